"""The local half of a two-phase aggregation: combines records of equal keys before they are sent to the key's subtask.

It stands at the end of the producer's chain and holds one reduced value or accumulator for each key; before windows,
for each key and pane.  A pane is as long as the greatest common divisor of the windows' size and slide, so all of its
records belong to the same windows, and what the window operator decides of one holds for all.

What it holds leaves as ``(key, value)`` when ``size`` records have been taken or the oldest has waited for
``latency_ms``, and before every watermark, idle status and barrier.  So no watermark overtakes a record, and no snapshot
has state of it.

Source: Flink SQL's local-global aggregation (``MapBundleOperator``, ``LocalSlicingWindowAggOperator``).
"""

from __future__ import annotations

from typing import Any, Iterator, Optional

from flinkish.datastream.aggregations import check_of_first
from flinkish.operators.codegen import Blame
from flinkish.operators.copying import freeze
from flinkish.operators.keys import canonical_memo, key_function
from flinkish.operators.operator import Item, RuntimeOperator


class LocalAggregationOperator(RuntimeOperator):
    expanding = True
    fires = True
    function_role = "the reduce function"

    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        operator = spec.operator
        self.is_reduce: bool = operator.kind == "reduce"
        self.combine = self.own(operator.function, "reduce" if self.is_reduce else "add")
        self.check_first = check_of_first(operator.function)
        self.create_accumulator = None if self.is_reduce else operator.function.create_accumulator
        self.key_of = key_function(operator.key_selector)
        self.key_memo = canonical_memo(operator.key_type)
        self.size: int = operator.size
        self.latency_ms: int = operator.latency_ms
        self.pane_ms: Optional[int] = operator.pane_ms
        self.offset_ms: int = operator.offset_ms
        self.copies = not environment.object_reuse
        #: (canonical key, pane) -> [key as the selector gave it, value, event time].
        self.held: dict[tuple, list] = {}
        self.taken = 0  # records in them
        self._flush_at: Optional[int] = None

    # ---- records --------------------------------------------------------------------------------

    def process_element(self, value, timestamp, input_index=0):
        if self.copies:  # whoever emitted it may change it
            value = self.call(freeze, value, record=value)
        results = self.call(self.take, value, timestamp, record=value)
        if results is not None:
            for result, time in results:
                yield from self.output.expand()
                yield from self.output.emit(result, time, owned=True)

    def generate(self, code, value, timestamp, emit, input_index=0):
        if self.copies and not emit.input_owned:
            with code.blame(self, record=value):
                code.freeze(value)
        results, result, time = code.variable("results"), code.variable("v"), code.variable("ts")
        with code.blame(self, record=value):
            code.line(f"{results} = {code.bind('take', self.take)}({value}, {timestamp})")
        with code.block(f"if {results} is not None:"):
            with code.expanding_block(f"for {result}, {time} in {results}:", Blame(self, record=value)):
                emit(result, time, owned=True)

    def take(self, value: Any, timestamp: Optional[int]) -> Optional[Iterator[Any]]:
        """One record; what must leave with it, if anything."""
        key = self.call(self.key_of, value, record=value, role="key selector")
        try:
            canonical = self.key_memo[key]
        except (TypeError, ValueError):
            canonical = self.call(self.key_memo.compute, key, record=value, role="key selector")
        pane = None
        if self.pane_ms is not None and timestamp is not None:  # a record without a time is for the window to refuse
            pane = (timestamp - self.offset_ms) // self.pane_ms
        entry = canonical, pane
        held = self.held.get(entry)
        if held is None:
            if self.check_first is not None:
                self.check_first(value)
            first = value if self.create_accumulator is None else self.combine(value, self.create_accumulator())
            self.held[entry] = [key, first, timestamp]
        else:
            held[1] = self.combine(held[1], value) if self.is_reduce else self.combine(value, held[1])
            if pane is None or timestamp > held[2]:
                held[2] = timestamp
        self.taken += 1
        if self.taken >= self.size:
            return self._flush()
        if self._flush_at is None:
            self._flush_at = self.environment.now_ms() + self.latency_ms
        return None

    # ---- what makes them leave ------------------------------------------------------------------

    def _flush(self) -> Iterator[Any]:
        held, self.held = self.held, {}
        self.taken, self._flush_at = 0, None
        return (((key, value), timestamp) for key, value, timestamp in held.values())

    def _flush_held(self) -> Optional[Iterator[Item]]:
        return self._flush() if self.held else None

    def fire(self, watermark: int) -> Optional[Iterator[Item]]:
        self.current_watermark = watermark
        return self._flush_held()

    def before_idle(self) -> Optional[Iterator[Item]]:
        return self._flush_held()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Optional[Iterator[Item]]:
        return self._flush_held()

    def fire_processing_time(self, now_ms: int) -> Optional[Iterator[Item]]:
        return self._flush() if self._flush_at is not None and self._flush_at <= now_ms else None

    @property
    def next_processing_time(self) -> Optional[int]:
        return self._flush_at

    def snapshot_state(self, context):
        assert not self.held, "the barrier has gone on before records that came before it"
        return super().snapshot_state(context)
