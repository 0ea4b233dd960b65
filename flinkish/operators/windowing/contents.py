"""What windows hold: accumulators, or the records themselves.  An entry is found by (namespace, key)."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from flinkish.common.constants import WINDOW_STATE_NAME
from flinkish.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)

MISSING = object()


class WindowContents:
    """``table``: of the state backend, once it is restored."""

    def __init__(self, operator: Any):
        self.operator = operator
        self.table: Any = None

    def descriptor(self) -> StateDescriptor:
        """How the state is kept."""
        return ListStateDescriptor(WINDOW_STATE_NAME)

    def add(self, entry: tuple, value: Any, timestamp: Optional[int]) -> None:
        raise NotImplementedError

    def merge(self, target: tuple, sources: Sequence[tuple]) -> None:
        """Move the content of ``sources`` to ``target``."""
        table = self.table
        merged = table.get(target, MISSING)
        for source in sources:
            content = table.pop(source, MISSING)
            if content is not MISSING:
                merged = content if merged is MISSING else self.merged(merged, content)
        if merged is not MISSING:
            table[target] = merged

    def merged(self, content: Any, other: Any) -> Any:
        return content + other


class Reduced(WindowContents):
    """The reduced value."""

    def descriptor(self):
        return ReducingStateDescriptor(WINDOW_STATE_NAME, self.operator.reduce)

    def add(self, entry, value, timestamp):
        table, operator = self.table, self.operator
        current = table.get(entry, MISSING)
        if current is not MISSING:
            value = operator.reduce(current, value)
        elif operator.check_first is not None:
            operator.check_first(value)
        table[entry] = value

    def merged(self, content, other):
        return self.operator.reduce(content, other)


class Aggregated(WindowContents):
    """The accumulator."""

    def descriptor(self):
        return AggregatingStateDescriptor(WINDOW_STATE_NAME, self.operator.spec.operator.function)

    def add(self, entry, value, timestamp):
        table, operator = self.table, self.operator
        accumulator = table.get(entry, MISSING)
        if accumulator is MISSING:
            accumulator = operator.create_accumulator()
        table[entry] = operator.add(value, accumulator)

    def merged(self, content, other):
        return self.operator.spec.operator.function.merge(content, other)


class Records(WindowContents):
    """All records, in the order in which they came."""

    def add(self, entry, value, timestamp):
        table = self.table
        values = table.get(entry)
        if values is None:
            table[entry] = [value]
        else:
            values.append(value)
            table[entry] = values


class TimestampedRecords(Records):
    """All records with their times, as evictors want them."""

    def add(self, entry, value, timestamp):
        super().add(entry, (value, timestamp), timestamp)
