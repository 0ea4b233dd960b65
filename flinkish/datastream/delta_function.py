"""How far two records are apart: what `DeltaTrigger` and `DeltaEvictor` ask."""

from __future__ import annotations

import abc
import math
from typing import Any, Callable, Generic, TypeVar

from flinkish.common.arguments import check_argument
from flinkish.datastream.function_adapters import check_parameters
from flinkish.errors import InvalidJobError

T = TypeVar("T")

__all__ = ["DeltaFunction"]


class DeltaFunction(abc.ABC, Generic[T]):
    @abc.abstractmethod
    def get_delta(self, old_data_point: T, new_data_point: T) -> float:
        """The distance between two records."""


def delta_of(function: Any, call: str) -> Callable[[Any, Any], float]:
    """The callable of a DeltaFunction or a plain callable; ``call`` is what got it."""
    if isinstance(function, DeltaFunction):
        return function.get_delta
    if callable(function) and not isinstance(function, type):
        check_parameters(function, ("old_data_point", "new_data_point"), call)
        return function
    raise InvalidJobError(
        f"{call}() could not measure how far records are apart by {function!r}",
        do="give a DeltaFunction, or a callable of (old record, new record) that gives a number",
    )


def check_threshold(threshold: Any, call: str) -> Any:
    """A number that differences are compared with."""
    check_argument(threshold, (int, float), f"{call}()", "threshold")
    if math.isnan(threshold):
        raise InvalidJobError(f"{call}() cannot use nan as threshold", why="no difference is above or below it")
    return threshold
