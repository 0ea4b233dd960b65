"""A source of whole numbers.  Source: Flink's ``NumberSequenceSource``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from flinkish.common.arguments import check_argument
from flinkish.connectors.spi import SourceReader, SourceReaderContext
from flinkish.connectors.split_assignment import (
    PinnedSplitSource,
    RangeSplit,
    SequentialSplitReader,
    index_ranges,
)
from flinkish.errors import InvalidJobError


@dataclass(frozen=True)
class NumberSequenceSplit(RangeSplit):
    """Numbers ``position`` to ``end`` (inclusive) are still to be read."""


class NumberSequenceSource(PinnedSplitSource[int, NumberSequenceSplit]):
    """The numbers from ``start`` to ``end``, both included; each reader gets a neighbouring range,
    in order."""

    def __init__(self, start: int, end: int):
        for parameter, number in (("start", start), ("end", end)):
            if not -(2**63) <= check_argument(number, int, "NumberSequenceSource()", parameter) < 2**63:
                raise InvalidJobError(
                    f"NumberSequenceSource() cannot use {number} as {parameter}", why="it does not fit into 64 bits"
                )
        if start > end:
            raise InvalidJobError(
                "could not make a number sequence",
                why=f"start {start} lies behind end {end}",
                do="give start <= end; both are included",
            )
        self.start, self.end = int(start), int(end)

    def splits(self, parallelism: int) -> list[NumberSequenceSplit]:
        first = self.start
        return [
            NumberSequenceSplit(first + low, first + high - 1, first + low)
            for low, high in index_ranges(self.end - first + 1, parallelism)
            if high > low
        ]

    def create_reader(self, context: SourceReaderContext) -> SourceReader[int, NumberSequenceSplit]:
        return _NumberSequenceReader(context)


class _NumberSequenceReader(SequentialSplitReader[int, NumberSequenceSplit]):
    _next = 0

    def open_split(self, split: NumberSequenceSplit) -> None:
        self._next = split.position

    def read(self, output: Any, room: int) -> bool:
        end = min(self._next + room, self._current.end + 1)
        if end > self._next:
            output.collect_batch(list(range(self._next, end)))
            self._next = end
        return end <= self._current.end

    def position(self) -> NumberSequenceSplit:
        return replace(self._current, position=self._next)
