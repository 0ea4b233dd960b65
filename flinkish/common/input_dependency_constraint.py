"""InputDependencyConstraint: kept for PyFlink programs; all subtasks of a job start together."""

from __future__ import annotations

from enum import Enum

__all__ = ["InputDependencyConstraint"]


class InputDependencyConstraint(Enum):
    ANY = 0
    ALL = 1
