"""Programs of another version."""

import sys
import types
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest


@pytest.fixture
def module(monkeypatch):
    """A module whose classes are declared anew, as by another version of the program."""
    made = types.ModuleType("program_of_test")
    monkeypatch.setitem(sys.modules, made.__name__, made)

    def declare(text):
        made.__dict__.update(dataclass=dataclass, field=field, NamedTuple=NamedTuple, Any=Any)
        exec(text, made.__dict__)
        return made

    return declare
