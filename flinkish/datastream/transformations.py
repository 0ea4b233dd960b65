"""What the user's calls leave behind: a tree of transformations, plain data for ``flinkish.graph``.

A ``Transformation`` names its inputs and says what runs; it knows nothing of the runtime.  The
operator classes below are descriptions: ``flinkish.operators.factory`` makes the operator that
runs from one.  User functions in them are plain callables or the classes of
``flinkish.datastream.functions``, as the user gave them.

Source: Flink's ``org.apache.flink.api.dag.Transformation`` and its subclasses.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Sequence

from flinkish.datastream.field_aggregates import FieldAggregates
from flinkish.datastream.partitioners import StreamPartitioner
from flinkish.datastream.triggers import EventTimeTrigger
from flinkish.datastream.window_assigners import SlidingEventTimeWindows, TumblingEventTimeWindows

_ids = itertools.count(1)


class ChainingStrategy(enum.Enum):
    """Whether an operator may run in one loop with the one before it (Flink's words)."""

    ALWAYS = "ALWAYS"
    NEVER = "NEVER"
    HEAD = "HEAD"  # a chain may start here, but not run through


# ---- operators, as descriptions -----------------------------------------------------------------


@dataclass
class Operator:
    """What one node does.  ``takes_columns`` / ``gives_columns``: physical batch forms."""

    @property
    def takes_columns(self) -> bool:
        return False

    @property
    def gives_columns(self) -> bool:
        return False


@dataclass
class MapOperator(Operator):
    function: Any


@dataclass
class FilterOperator(Operator):
    function: Any


@dataclass
class FlatMapOperator(Operator):
    function: Any


@dataclass
class ProcessOperator(Operator):
    """``ProcessFunction`` on a stream without keys."""

    function: Any


@dataclass
class KeyedProcessOperator(Operator):
    function: Any


@dataclass
class ReduceOperator(Operator):
    """Keyed running reduce: emits the new accumulator for each record."""

    function: Any


@dataclass
class CoMapOperator(Operator):
    function: Any


@dataclass
class CoFlatMapOperator(Operator):
    function: Any


@dataclass
class CoProcessOperator(Operator):
    function: Any


@dataclass
class KeyedCoProcessOperator(Operator):
    function: Any


@dataclass
class BroadcastProcessOperator(Operator):
    """The second input is broadcast.  ``descriptors``: of the broadcast states."""

    function: Any
    descriptors: tuple[Any, ...] = ()


@dataclass
class KeyedBroadcastProcessOperator(Operator):
    """The same with a first input that has keys; the second has none."""

    function: Any
    descriptors: tuple[Any, ...] = ()


@dataclass
class IntervalJoinOperator(Operator):
    """``ProcessJoinFunction`` on two keyed streams.  Bounds are inclusive."""

    function: Any
    lower_ms: int
    upper_ms: int
    left_late_tag: Any = None
    right_late_tag: Any = None


@dataclass
class LocalAggregationOperator(Operator):
    """Combines records of equal keys before the exchange.

    ``kind``: "reduce" or "aggregate".  ``size`` in records.  ``pane_ms``: only records whose event times lie in one pane
    are combined (panes begin at ``offset_ms``); None: all of a key.
    """

    kind: str
    function: Any
    key_selector: Any
    key_type: Any
    size: int
    latency_ms: int
    pane_ms: Optional[int]
    offset_ms: int


@dataclass
class PartitionWindowOperator(Operator):
    """All records of a subtask as one window, which fires when the input has ended.

    ``kind``: "map", "reduce" or "aggregate"; ``function``: a MapPartitionFunction or a callable of all records, what
    reduces, or an AggregateFunction.
    """

    kind: str
    function: Any


@dataclass
class AsyncWaitOperator(Operator):
    """``function``: an AsyncFunction or a callable.  ``timeout_ms`` 0: none."""

    function: Any
    ordered: bool
    timeout_ms: int
    capacity: int
    retry_strategy: Any


@dataclass
class TimestampsAndWatermarksOperator(Operator):
    watermark_strategy: Any


@dataclass
class WindowOperator(Operator):
    """Keyed window.

    ``kind``: "reduce", "aggregate", "apply" or "process".  ``function`` reduces or aggregates
    (None for "apply"/"process"); ``window_function`` sees the window, the key and its content
    (None: the reduced value is emitted as it is).  ``trigger``: None, the assigner's own.  ``evictor``: None, every
    record stays until the window goes.  ``on_columns``: it runs on column batches; the graph decides that.
    """

    assigner: Any
    kind: str
    function: Any = None
    window_function: Any = None
    trigger: Any = None
    allowed_lateness_ms: int = 0
    late_data_tag: Any = None
    evictor: Any = None
    on_columns: bool = False

    @property
    def is_aligned(self) -> bool:
        """All keys share its windows, and nothing but the watermark fires them."""
        if type(self.assigner) not in (TumblingEventTimeWindows, SlidingEventTimeWindows):
            return False
        return self.evictor is None and (self.trigger is None or type(self.trigger) is EventTimeTrigger)

    @property
    def can_run_on_columns(self) -> bool:
        return (
            isinstance(self.function, FieldAggregates)
            and self.function.key_field is not None
            and self.is_aligned
            and not self.allowed_lateness_ms
            and self.late_data_tag is None
        )

    @property
    def takes_columns(self) -> bool:
        return self.on_columns

    @property
    def gives_columns(self) -> bool:
        return self.on_columns


@dataclass
class ColumnsToRowsOperator(Operator):
    """Put in by the graph where columns meet an operator that takes rows; records become Row."""

    @property
    def takes_columns(self) -> bool:
        return True


@dataclass
class SourceOperator(Operator):
    """``source`` is a ``connectors.spi.Source`` (or a ``SourceFunction``, wrapped)."""

    source: Any
    watermark_strategy: Any

    @property
    def gives_columns(self) -> bool:
        return bool(getattr(self.source, "gives_columns", False))


@dataclass
class SinkOperator(Operator):
    """``sink`` is a ``connectors.spi.Sink`` or a ``SinkFunction``."""

    sink: Any

    @property
    def takes_columns(self) -> bool:
        return bool(getattr(self.sink, "takes_columns", False))


# ---- transformations ----------------------------------------------------------------------------


@dataclass(eq=False)
class Transformation:
    """One node of the user's program.

    ``parallelism`` None: the environment's.  ``max_parallelism`` None: derived.
    ``slot_sharing_group`` None: the inputs' group if they agree, else "default".
    """

    name: str
    output_type: Any = None
    parallelism: Optional[int] = None
    max_parallelism: Optional[int] = None
    uid: Optional[str] = None
    uid_hash: Optional[str] = None
    description: Optional[str] = None
    slot_sharing_group: Optional[str] = None
    chaining_strategy: ChainingStrategy = ChainingStrategy.ALWAYS
    buffer_timeout_ms: Optional[int] = None
    id: int = field(default_factory=lambda: next(_ids), init=False)

    @property
    def inputs(self) -> Sequence["Transformation"]:
        return ()


@dataclass(eq=False)
class PhysicalTransformation(Transformation):
    """Becomes a StreamNode.  ``key_selectors[i]`` (or None) keys input i; see KeyGroupPartitioner."""

    operator: Operator = None  # type: ignore[assignment]
    key_selectors: tuple[Optional[Callable[[Any], Any]], ...] = ()
    key_type: Any = None


@dataclass(eq=False)
class SourceTransformation(PhysicalTransformation):
    pass


@dataclass(eq=False)
class OneInputTransformation(PhysicalTransformation):
    input: Transformation = None  # type: ignore[assignment]

    @property
    def inputs(self):
        return (self.input,)


@dataclass(eq=False)
class TwoInputTransformation(PhysicalTransformation):
    input1: Transformation = None  # type: ignore[assignment]
    input2: Transformation = None  # type: ignore[assignment]

    @property
    def inputs(self):
        return (self.input1, self.input2)


@dataclass(eq=False)
class SinkTransformation(OneInputTransformation):
    pass


@dataclass(eq=False)
class UnionTransformation(Transformation):
    union_inputs: tuple[Transformation, ...] = ()

    @property
    def inputs(self):
        return self.union_inputs


@dataclass(eq=False)
class PartitionTransformation(Transformation):
    input: Transformation = None  # type: ignore[assignment]
    partitioner: StreamPartitioner = None  # type: ignore[assignment]

    @property
    def inputs(self):
        return (self.input,)


@dataclass(eq=False)
class SideOutputTransformation(Transformation):
    input: Transformation = None  # type: ignore[assignment]
    output_tag: Any = None

    @property
    def inputs(self):
        return (self.input,)
