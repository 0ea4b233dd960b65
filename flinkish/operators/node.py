"""The tree of a chain: operators, and where their outputs go."""

from __future__ import annotations

from typing import Any, Callable, Optional

from flinkish.datastream.partitioners import (
    CustomPartitioner,
    KeyGroupPartitioner,
    StreamPartitioner,
)
from flinkish.datastream.transformations import (
    FilterOperator,
    SourceOperator,
    TimestampsAndWatermarksOperator,
)
from flinkish.operators.operator import RuntimeOperator
from flinkish.operators.output import RecordWriter


#: They hand on what they were given, in the form that it has already.
_PASSING = (FilterOperator, SourceOperator, TimestampsAndWatermarksOperator)


class Target:
    """A consumer of an output: a writer or a chained node."""

    __slots__ = ("writer", "partitioner", "node")

    def __init__(
        self,
        writer: Optional[RecordWriter] = None,
        partitioner: Optional[StreamPartitioner] = None,
        node: Any = None,
    ):
        self.writer = writer
        self.partitioner = partitioner
        self.node: Any = node

    @property
    def role(self) -> str:
        """Whose code a writer runs for each record."""
        if isinstance(self.partitioner, KeyGroupPartitioner):
            return "key selector"
        return "partitioner" if isinstance(self.partitioner, CustomPartitioner) else "output"


class Node:
    """One operator of a chain.

    ``main``: consumers of the main output; ``sides``: of side outputs, by tag id; ``targets``: all,
    each of which gets the watermarks.
    """

    def __init__(self, operator: RuntimeOperator):
        self.operator = operator
        self.main: list[Target] = []
        self.sides: dict[str, list[Target]] = {}
        self.targets: list[Target] = []
        self._side_types: dict[str, Any] = {}

    def add(self, tag: Any, target: Target) -> None:
        (self.main if tag is None else self.sides.setdefault(tag.tag_id, [])).append(target)
        self.targets.append(target)
        if tag is not None:
            self._side_types[tag.tag_id] = tag.type_info

    def consumers(self, tag: Any = None) -> list[Target]:
        return self.main if tag is None else self.sides.get(tag.tag_id, [])

    def converter(self, tag: Any = None) -> Optional[Callable[[Any], Any]]:
        """What gives an output the form of its declared type; None when it stays as it is."""
        if tag is not None:
            declared = self._side_types.get(tag.tag_id)
        elif isinstance(self.operator.spec.operator, _PASSING):
            declared = None
        else:
            declared = self.operator.spec.output_type
        return None if declared is None else declared.converter()
