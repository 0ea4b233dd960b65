"""Functions of joins, and of partitions that are read as a whole.  (Java's; PyFlink has none of them.)

As everywhere, functions with several results return an iterable, yield, or return None, and ``tag, value`` with an
``OutputTag`` first goes to that side output.
"""

from __future__ import annotations

import abc
from typing import Generic, Iterable, Optional

from flinkish.datastream.functions import IN, IN1, IN2, OUT, Function

__all__ = [
    "CoGroupFunction",
    "FlatJoinFunction",
    "JoinFunction",
    "MapPartitionFunction",
    "ProcessJoinFunction",
]


class JoinFunction(Function, Generic[IN1, IN2, OUT]):
    @abc.abstractmethod
    def join(self, first: IN1, second: IN2) -> OUT:
        """One result for each pair of records with equal keys in one window."""


class FlatJoinFunction(Function, Generic[IN1, IN2, OUT]):
    @abc.abstractmethod
    def join(self, first: IN1, second: IN2) -> Optional[Iterable[OUT]]:
        """Any number of results for each such pair."""


class CoGroupFunction(Function, Generic[IN1, IN2, OUT]):
    @abc.abstractmethod
    def co_group(self, first: Iterable[IN1], second: Iterable[IN2]) -> Optional[Iterable[OUT]]:
        """Any number of results for the records of one key in one window.

        Args:
            first, second: lists of the records of each stream, in the order in which they came; one may be empty.
        """


class ProcessJoinFunction(Function, Generic[IN1, IN2, OUT]):
    """What an interval join gives for two records that lie near enough."""

    class Context(abc.ABC):
        @abc.abstractmethod
        def get_left_timestamp(self) -> int:
            """Event time of the left record, ms."""

        @abc.abstractmethod
        def get_right_timestamp(self) -> int: ...

        @abc.abstractmethod
        def get_timestamp(self) -> int:
            """The later of both: event time of the results."""

    @abc.abstractmethod
    def process_element(
        self, left: IN1, right: IN2, ctx: "ProcessJoinFunction.Context"
    ) -> Optional[Iterable[OUT]]: ...


class MapPartitionFunction(Function, Generic[IN, OUT]):
    @abc.abstractmethod
    def map_partition(self, values: Iterable[IN]) -> Optional[Iterable[OUT]]:
        """Any number of results for all records of a partition, when the input has ended."""
