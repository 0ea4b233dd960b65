"""How far two records are apart: what `DeltaTrigger` and `DeltaEvictor` ask."""

from __future__ import annotations

import abc
from typing import Any, Callable, Generic, TypeVar

from flinkish.errors import InvalidJobError

T = TypeVar("T")

__all__ = ["DeltaFunction"]


class DeltaFunction(abc.ABC, Generic[T]):
    @abc.abstractmethod
    def get_delta(self, old_data_point: T, new_data_point: T) -> float:
        """The distance between two records."""


def delta_of(function: Any) -> Callable[[Any, Any], float]:
    """The callable of a DeltaFunction or a plain callable."""
    if isinstance(function, DeltaFunction):
        return function.get_delta
    if callable(function) and not isinstance(function, type):
        return function
    raise InvalidJobError(
        f"could not measure how far records are apart by {function!r}",
        do="give a DeltaFunction, or a callable of (old record, new record) that gives a number",
    )
