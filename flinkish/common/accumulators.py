"""Accumulators: what functions count while they run, as one result of the job.

Each subtask has its own, got from ``RuntimeContext`` in ``open()``; when the job is over they are merged by name
(``JobExecutionResult.get_accumulator_result``).  A subtask that restarts begins anew, so accumulators count what the
last attempt has seen: what must survive a restart belongs into state.

    def open(self, runtime_context):
        self.lines = runtime_context.get_int_counter("lines")

Source: Flink's ``org.apache.flink.api.common.accumulators``; its names are for Java, PyFlink has none.
"""

from __future__ import annotations

import abc
import copy
import pickle
from contextlib import contextmanager
from typing import Any, Generic, Iterable, Iterator, Mapping, TypeVar

from flinkish.errors import UserError

V = TypeVar("V")
R = TypeVar("R")

__all__ = [
    "Accumulator",
    "AverageAccumulator",
    "DoubleCounter",
    "DoubleMaximum",
    "DoubleMinimum",
    "Histogram",
    "IntCounter",
    "IntMaximum",
    "IntMinimum",
    "ListAccumulator",
    "LongCounter",
    "LongMaximum",
    "LongMinimum",
    "SimpleAccumulator",
    "merge_accumulators",
]


class Accumulator(abc.ABC, Generic[V, R]):
    """Adds values of one type to a result of another.  It is pickled on its way to the driver."""

    @abc.abstractmethod
    def add(self, value: V) -> None: ...

    @abc.abstractmethod
    def get_local_value(self) -> R:
        """The result of this subtask so far; of a merged one: of the job."""

    @abc.abstractmethod
    def reset_local(self) -> None:
        """Begin anew."""

    @abc.abstractmethod
    def merge(self, other: "Accumulator[V, R]") -> None:
        """Take in what another subtask has added to one of the same class."""

    def clone(self) -> "Accumulator[V, R]":
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.get_local_value()!r})"


class SimpleAccumulator(Accumulator[V, V]):
    """Its result is of the type of its values."""


class _Sum(SimpleAccumulator[Any]):
    start: Any = 0

    def __init__(self, value: Any = None):
        self.value = self.start if value is None else value

    def add(self, value: Any) -> None:
        self.value += value

    def get_local_value(self) -> Any:
        return self.value

    def reset_local(self) -> None:
        self.value = self.start

    def merge(self, other: Any) -> None:
        self.value += other.value


class IntCounter(_Sum):
    """A sum of ints."""


class LongCounter(_Sum):
    """A sum of ints."""


class DoubleCounter(_Sum):
    """A sum of floats."""

    start = 0.0


class _Extreme(SimpleAccumulator[Any]):
    """The largest or smallest value; None when there was none."""

    better = staticmethod(max)

    def __init__(self) -> None:
        self.value: Any = None

    def add(self, value: Any) -> None:
        if value is not None:
            self.value = value if self.value is None else self.better(self.value, value)

    def get_local_value(self) -> Any:
        return self.value

    def reset_local(self) -> None:
        self.value = None

    def merge(self, other: Any) -> None:
        self.add(other.value)


class IntMaximum(_Extreme):
    pass


class LongMaximum(_Extreme):
    pass


class DoubleMaximum(_Extreme):
    pass


class IntMinimum(_Extreme):
    better = staticmethod(min)


class LongMinimum(_Extreme):
    better = staticmethod(min)


class DoubleMinimum(_Extreme):
    better = staticmethod(min)


class AverageAccumulator(SimpleAccumulator[float]):
    """The mean; 0.0 when there was no value."""

    def __init__(self) -> None:
        self.count, self.sum = 0, 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.sum += value

    def get_local_value(self) -> float:
        return self.sum / self.count if self.count else 0.0

    def reset_local(self) -> None:
        self.count, self.sum = 0, 0.0

    def merge(self, other: Any) -> None:
        self.count += other.count
        self.sum += other.sum


class ListAccumulator(Accumulator[Any, list]):
    """All values; of several subtasks one after the other."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def add(self, value: Any) -> None:
        self.values.append(value)

    def get_local_value(self) -> list[Any]:
        return list(self.values)

    def reset_local(self) -> None:
        self.values.clear()

    def merge(self, other: Any) -> None:
        self.values += other.values


class Histogram(Accumulator[int, dict[int, int]]):
    """How often each value was added, by value in ascending order."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def add(self, value: int) -> None:
        self.counts[value] = self.counts.get(value, 0) + 1

    def get_local_value(self) -> dict[int, int]:
        return dict(sorted(self.counts.items()))

    def reset_local(self) -> None:
        self.counts.clear()

    def merge(self, other: Any) -> None:
        for value, count in other.counts.items():
            self.counts[value] = self.counts.get(value, 0) + count


def merge_accumulators(of_subtasks: Iterable[bytes]) -> dict[str, Any]:
    """Results by name.

    Args:
        of_subtasks: of each a pickle of name -> Accumulator.
    Raises:
        UserError: two subtasks use one name for different classes, or an accumulator cannot be merged or read.
    """
    merged: dict[str, Accumulator] = {}
    for data in of_subtasks:
        accumulators: Mapping[str, Accumulator] = pickle.loads(data)
        for name, accumulator in accumulators.items():
            known = merged.setdefault(name, accumulator)
            if known is accumulator:
                continue
            if type(known) is not type(accumulator):
                raise UserError(
                    f'could not merge the accumulator "{name}"',
                    why=f"it is a {type(known).__name__} in one place and a {type(accumulator).__name__} in another",
                    do="give them different names",
                )
            with _naming(name):
                known.merge(accumulator)
    results = {}
    for name, accumulator in sorted(merged.items()):
        with _naming(name):
            results[name] = accumulator.get_local_value()
    return results


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Accumulators may be the user's classes, and hold what cannot be added or sorted."""
    try:
        yield
    except Exception as error:
        raise UserError(
            f'could not merge the accumulator "{name}"',
            why=f"{type(error).__name__}: {error}",
            do="add values of one type to it",
        ) from error
