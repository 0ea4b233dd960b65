"""Programs of another version."""

import pickle
import sys
import types
import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cloudpickle
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


@pytest.fixture
def script(module, monkeypatch):
    """A `module` whose classes have travelled by value, through cloudpickle alone (which loses ``__slots__``)."""

    def declare(text):
        made = module(text)
        own = made.__name__
        classes = {name: value for name, value in vars(made).items() if getattr(value, "__module__", "") == own}
        cloudpickle.register_pickle_by_value(made)
        try:
            data = cloudpickle.dumps(classes)
        finally:
            cloudpickle.unregister_pickle_by_value(made)
        # Without it the process finds the classes that it has sent itself.
        monkeypatch.setattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", weakref.WeakValueDictionary())
        made.__dict__.update(pickle.loads(data))
        return made

    return declare
