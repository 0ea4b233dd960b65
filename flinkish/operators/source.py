"""The head of a chain that reads: runs a SourceReader, gives its records event times and watermarks.

What a poll collects becomes a list of batches and control events in order; the task takes the list and
feeds it to the chain slice by slice.  A watermark never overtakes records: the periodic one goes
into the same list while anything collected has not been processed.

Per split: each split output has a watermark generator of its own, the reader's watermark is the
least over its splits that are not idle.  A split counts from the moment that it is assigned, so that
nothing is late because its split spoke last.  A reader that uses the reader's own output instead has
one generator for all.  A reader without splits, with none on the way, is idle.

A snapshot has each split with its watermark.  A restored split counts with that from the start, so the
watermark stays where it was until the split speaks or is idle.
"""

from __future__ import annotations

from operator import length_hint
from typing import Any, Optional

import cloudpickle
import numpy as np

from flinkish.common import options
from flinkish.common.user_traceback import let_pass
from flinkish.connectors.spi import InputStatus, ReaderOutput, SourceOutput, SourceReaderContext
from flinkish.datastream.state import ListStateDescriptor
from flinkish.errors import InternalError, UserError
from flinkish.messages.control import (
    SourceAddSplits,
    SourceCustomEvent,
    SourceNoMoreSplits,
    SourceRegister,
    SourceRequestSplit,
    SourceWatermarkAlignment,
)
from flinkish.messages.elements import (
    MAX_WATERMARK_MS,
    MIN_WATERMARK_MS,
    ColumnBatch,
    Element,
    RowBatch,
    Watermark,
    WatermarkStatus,
)
from flinkish.metrics import names
from flinkish.operators.column_times import column_times, given_times
from flinkish.operators.columns import rows_of
from flinkish.operators.inlining import as_called
from flinkish.operators.operator import RuntimeOperator
from flinkish.operators.runtime_context import OperatorSubtaskContext
from flinkish.operators.source_alignment import SourceAlignment
from flinkish.operators.watermarks import (
    CombinedWatermark,
    EventTimeAssigner,
    batch_timestamp_caller,
    checked_timestamp,
    checked_watermark,
    timestamp_caller,
)

#: Flink's name of the state of readers.  Entries are (pickled split, its watermark).
READER_STATE: ListStateDescriptor = ListStateDescriptor("SourceReaderState")

_READER = ""  # the reader's own output among the parts of the combined watermark


class SourceOperator(RuntimeOperator):
    """``poll`` and ``take`` are called by the task, everything else by the chain."""

    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        description = spec.operator
        self.source = description.source
        self.strategy = description.watermark_strategy
        self.interval_ms = options.read(
            environment.configuration, options.PIPELINE_AUTO_WATERMARK_INTERVAL
        )
        self.reader: Any = None
        self.main = _MainOutput(self)
        self.split_outputs: dict[str, _Output] = {}
        self.per_split = False  # the reader has asked for an output of a split
        self.assigned: set[str] = set()
        self.requests = 0  # split requests without an answer
        self.combined = CombinedWatermark()
        self.idle = False
        self.emitted = MIN_WATERMARK_MS
        self._next_tick: Optional[int] = None
        self._empty_ticks = 0
        self._elements: list[Element] = []
        self._values: list = []
        self._timestamps: Optional[list] = None
        self._reader_state: Any = None
        self._restored_watermarks: dict[str, int] = {}  # of splits that have no output yet
        alignment = self.strategy.alignment
        self.alignment = None if alignment is None else SourceAlignment(self, alignment)
        self.outstanding = 0  # elements that the task has taken and the chain has not finished
        self.room = 0

    # ---- life -----------------------------------------------------------------------------------

    def open(self):
        self.reader = self.call(self.source.create_reader, _ReaderContext(self), role="create_reader")
        if self.interval_ms:
            self._next_tick = self.environment.now_ms() + self.interval_ms
        self._reader_state = self.operator_state.get_list_state(READER_STATE)
        splits = []
        for pickled, watermark in self._reader_state.get():
            split = self.call(cloudpickle.loads, pickled, role="add_splits")
            split_id = self.call(split.split_id, role="split_id")
            splits.append(split)
            self.assigned.add(split_id)
            self._restored_watermarks[split_id] = watermark
        if splits:
            self.call(self.reader.add_splits, splits, role="add_splits")
            if self.alignment is not None:
                self.alignment.restored(max(self._restored_watermarks.values()))
        self.send(SourceRegister(self.environment.host))
        self.call(self.reader.start, role="start")

    def close(self):
        if self.reader is not None:
            self.call(self.reader.close, role="close")

    @property
    def poll_interval_ms(self) -> Optional[int]:
        """When the task asks the reader again although nothing says so; None: never."""
        try:
            return self.reader.poll_interval_ms
        except BaseException as error:
            let_pass(error)
            raise self.error(error, role="poll_interval_ms") from error

    def fileno(self) -> Optional[int]:
        return self.call(self.reader.fileno, role="fileno")

    @property
    def operator_id(self) -> str:
        return self.spec.operator_id

    def send(self, payload: Any) -> None:
        self.environment.send_event(self.spec.operator_id, payload)

    # ---- checkpoints ----------------------------------------------------------------------------

    def snapshot_state(self, context):
        splits = self.call(self.reader.snapshot_state, context.get_checkpoint_id(), role="snapshot_state")
        entries = []
        for split in splits:
            split_id = self.call(split.split_id, role="split_id")
            pickled = self.call(cloudpickle.dumps, split, role="snapshot_state")
            entries.append((pickled, self._watermark_of(split_id)))
        self._reader_state.update(entries)
        return super().snapshot_state(context)

    def _watermark_of(self, split_id: str) -> int:
        part = self.combined.parts.get(split_id)
        return self._restored_watermarks.get(split_id, MIN_WATERMARK_MS) if part is None else part[0]

    def checkpoint_listeners(self):
        return [self.reader]

    def handle_event(self, payload: Any) -> None:
        if isinstance(payload, SourceAddSplits):
            splits = self.call(cloudpickle.loads, payload.splits, role="add_splits")
            self.requests = 0
            self._empty_ticks = 0
            for split in splits:
                split_id = self.call(split.split_id, role="split_id")
                self.assigned.add(split_id)
                if self.per_split:
                    self.split_output(split_id)
            self._update_status()
            self.call(self.reader.add_splits, splits, role="add_splits")
        elif isinstance(payload, SourceNoMoreSplits):
            self.requests = 0
            self.call(self.reader.notify_no_more_splits, role="notify_no_more_splits")
        elif isinstance(payload, SourceCustomEvent):
            event = self.call(cloudpickle.loads, payload.event, role="handle_source_event")
            self.call(self.reader.handle_source_event, event, role="handle_source_event")
        elif isinstance(payload, SourceWatermarkAlignment) and self.alignment is not None:
            self.alignment.allow(payload.max_watermark_ms)
        else:
            raise InternalError(f'source "{self.name}" got an event {type(payload).__name__}')

    # ---- the task's side ------------------------------------------------------------------------

    def poll(self, room: int) -> InputStatus:
        """Let the reader collect up to ``room`` records."""
        self.room = room
        status = self.call(self.reader.poll_next, self.main, role="poll_next")
        if not isinstance(status, InputStatus):
            raise UserError(
                f"poll_next returned {status!r}",
                where=f'source "{self.name}"',
                do="return an InputStatus: MORE_AVAILABLE, NOTHING_AVAILABLE or END_OF_INPUT",
            )
        if self.alignment is not None:
            self.alignment.check_splits()
        return status

    @property
    def is_paused(self) -> bool:
        """Whether the reader is not to be polled: it is too far ahead of others."""
        return self.alignment is not None and self.alignment.is_paused

    def finish(self):
        if self.alignment is not None:
            self.alignment.at_end()
        yield from super().finish()

    @property
    def has_collected(self) -> bool:
        """Whether `take` would give something."""
        return bool(self._values or self._elements)

    def take(self) -> list[Element]:
        """What was collected, in order."""
        self._seal()
        elements, self._elements = self._elements, []
        self.outstanding += len(elements)
        return elements

    def done(self) -> None:
        """The chain has finished one element that was taken."""
        if self.outstanding:
            self.outstanding -= 1

    # ---- collecting -----------------------------------------------------------------------------

    def append(self, value: Any, timestamp: Optional[int]) -> None:
        values = self._values
        if timestamp is not None:
            if self._timestamps is None:
                self._timestamps = [None] * len(values)
            self._timestamps.append(timestamp)
        elif self._timestamps is not None:
            self._timestamps.append(None)
        values.append(value)
        self.room -= 1

    def extend(self, values: list, timestamps: Optional[list]) -> None:
        self.room -= len(values)
        if not self._values:
            self._values, self._timestamps = values, timestamps
            return
        if timestamps is not None and self._timestamps is None:
            self._timestamps = [None] * len(self._values)
        if self._timestamps is not None:
            self._timestamps += [None] * len(values) if timestamps is None else timestamps
        self._values += values

    def add_columns(self, columns: Any, timestamps: Any) -> None:
        self._seal()
        self.room -= columns.num_rows
        self._elements.append(ColumnBatch(columns, timestamps))

    def _seal(self) -> None:
        if self._values:
            self._elements.append(RowBatch(self._values, self._timestamps))
            self._values, self._timestamps = [], None

    # ---- splits and watermarks ------------------------------------------------------------------

    def split_output(self, split_id: str) -> "_Output":
        if not self.per_split:
            self.per_split = True
            for assigned in sorted(self.assigned):
                self.combined.add(assigned)  # all, before the watermark of one could advance it
            for assigned in sorted(self.assigned):
                self.split_output(assigned)
        output = self.split_outputs.get(split_id)
        if output is None:
            self.combined.add(split_id)
            output = self.split_outputs[split_id] = _Output(self, split_id)
            restored = self._restored_watermarks.pop(split_id, MIN_WATERMARK_MS)
            if restored > MIN_WATERMARK_MS and self.combined.update(split_id, restored):
                self._emit_combined()
            self._update_status()
        return output

    def release_split(self, split_id: str) -> None:
        self.assigned.discard(split_id)
        self._restored_watermarks.pop(split_id, None)
        self.split_outputs.pop(split_id, None)
        if self.combined.remove(split_id):
            self._emit_combined()
        self._update_status()

    def update_part(self, part: str, watermark: int) -> None:
        self.combined.add(part)
        advanced = self.combined.update(part, checked_watermark(watermark))
        self._update_status()
        if advanced:
            self._emit_combined()

    def set_part_idle(self, part: str, idle: bool) -> None:
        self.combined.add(part)
        if self.combined.set_idle(part, idle):
            self._emit_combined()
        self._update_status()

    def _emit_combined(self) -> None:
        if self.combined.watermark > self.emitted:
            self.emitted = self.combined.watermark
            self._seal()
            if self.idle:  # an idle output passes no watermark
                self.idle = False
                self._elements.append(WatermarkStatus(False))
            self._elements.append(Watermark(self.emitted))

    def _update_status(self) -> None:
        idle = self.combined.idle if self.combined.parts else self._empty_ticks > 1
        if idle != self.idle:
            self.idle = idle
            self._seal()
            self._elements.append(WatermarkStatus(idle))

    @property
    def next_processing_time(self) -> Optional[int]:
        if self.alignment is None:
            return self._next_tick
        if self._next_tick is None:
            return self.alignment.next_report_ms
        return min(self._next_tick, self.alignment.next_report_ms)

    def tick(self, now_ms: int) -> bool:
        """Once an interval: periodic watermarks and idleness.  True when the chain must pass on, now,
        what `take` gives, because nothing collected is in its way."""
        waiting = bool(self.outstanding or self.has_collected)
        if self._next_tick is not None and now_ms >= self._next_tick:
            self._next_tick = now_ms + self.interval_ms
            self.call(self._periodic, now_ms - self.environment.blocked_ms(), role="watermark generator")
            if self.alignment is not None:
                self.alignment.check_splits()
        if self.alignment is not None:
            self.alignment.report(now_ms)
        return not waiting and bool(self._elements)

    def _periodic(self, active_ms: int) -> None:
        paused, paused_splits = self.is_paused, self.alignment.paused_splits if self.alignment else ()
        outputs = list(self.split_outputs.items())
        if self.main.used:
            outputs.append((_READER, self.main))
        for part, output in outputs:
            output.on_periodic(active_ms, paused or part in paused_splits)
        if not self.assigned and not outputs and not self.requests:
            self._empty_ticks += 1
        self._update_status()

    def watermark_parts(self) -> list[tuple[str, int, str]]:
        """(id, watermark, "ACTIVE", "IDLE" or "PAUSED") of each split; the id "" is the reader's own output."""
        paused = self.alignment.paused_splits if self.alignment else set()
        return [
            (part, watermark, "PAUSED" if part in paused else "IDLE" if idle else "ACTIVE")
            for part, (watermark, idle) in self.combined.parts.items()
        ]

    def metrics(self):
        figures = {names.CURRENT_OUTPUT_WATERMARK: self.emitted}
        if self.alignment is not None:
            figures[names.WATERMARK_ALIGNMENT_DRIFT] = self.alignment.drift_ms
        return figures


class _GeneratorOutput:
    """Where the generator of one split puts its watermarks."""

    __slots__ = ("_source", "_part")

    def __init__(self, source: SourceOperator, part: str):
        self._source, self._part = source, part

    def emit_watermark(self, timestamp_ms: int) -> None:
        self._source.update_part(self._part, timestamp_ms)

    def mark_idle(self) -> None:
        self._source.set_part_idle(self._part, True)

    def mark_active(self) -> None:
        self._source.set_part_idle(self._part, False)


class _Output(SourceOutput):
    """Takes the records of one split."""

    def __init__(self, source: SourceOperator, part: str):
        self._source = source
        self._part = part
        strategy = source.strategy
        self._watermarks = _GeneratorOutput(source, part)
        self._assigner = source.call(EventTimeAssigner, strategy, self._watermarks, role="watermark generator")
        self._on_batch = self._assigner.on_batch
        self._assign = timestamp_caller(strategy)
        self._assign_times = batch_timestamp_caller(strategy)
        self._field = strategy.timestamp_field
        self._idle = False

    # ---- WatermarkOutput, for readers that make their own -----------------------------------------

    def emit_watermark(self, timestamp_ms: int) -> None:
        self._idle = False
        self._watermarks.emit_watermark(timestamp_ms)

    def mark_idle(self) -> None:
        self._idle = True
        self._watermarks.mark_idle()

    def mark_active(self) -> None:
        self._idle = False
        self._watermarks.mark_active()

    def _wake(self) -> None:
        """Before the first record after a silence: from now on this split is waited for again."""
        self._idle = False
        self._assigner.wake()

    # ---- records --------------------------------------------------------------------------------

    def collect(self, value, timestamp_ms=None):
        source, assigner = self._source, self._assigner
        if self._idle or assigner.idle:
            self._wake()
        if self._assign is not None:
            timestamp_ms = source.call(
                self._timestamp, value, timestamp_ms, record=value, role="timestamp assigner"
            )
        elif timestamp_ms is not None and (
            type(timestamp_ms) is not int or not MIN_WATERMARK_MS < timestamp_ms <= MAX_WATERMARK_MS
        ):
            timestamp_ms = source.call(checked_timestamp, timestamp_ms, record=value, role="timestamp")
        source.append(value, timestamp_ms)
        assigner.records += 1
        if self._on_batch is not None:
            if timestamp_ms is not None:
                self._on_batch(timestamp_ms)
        else:
            self._on_event(value, timestamp_ms)

    def collect_batch(self, values, timestamps_ms=None):
        if not values:
            return
        if self._on_batch is None:  # a watermark may belong between two records
            times = [None] * len(values) if timestamps_ms is None else timestamps_ms
            for value, timestamp_ms in zip(values, times):
                self.collect(value, timestamp_ms)
            return
        if self._idle or self._assigner.idle:
            self._wake()
        if self._assign is not None:
            timestamps_ms = self._assign_batch(values, timestamps_ms)
        elif timestamps_ms is not None:
            timestamps_ms = self._checked(values, timestamps_ms, "timestamp")
        self._source.extend(values, timestamps_ms)
        self._assigner.records += len(values)
        if timestamps_ms is not None and self._assigner.makes_watermarks:
            try:
                largest = max(timestamps_ms)
            except TypeError:  # some have none
                largest = max([t for t in timestamps_ms if t is not None], default=MIN_WATERMARK_MS)
            self._on_batch(largest)

    def collect_columns(self, columns, timestamps_ms=None):
        if not columns.num_rows:
            return
        if self._idle or self._assigner.idle:
            self._wake()
        if not self._source.source.gives_columns:
            raise UserError(
                "a source collected columns that did not say so",
                where=f'source "{self._source.name}"',
                do="set gives_columns = True on the Source class",
            )
        if timestamps_ms is not None:
            timestamps_ms = given_times(timestamps_ms, columns.num_rows)
        if self._field is not None:
            timestamps_ms = self._source.call(
                column_times, columns, self._field, role="timestamp assigner"
            )
        elif self._assign is not None:
            times = None if timestamps_ms is None else timestamps_ms.tolist()
            assigned = self._assign_batch(rows_of(columns), times)
            timestamps_ms = np.array(assigned, dtype=np.int64)
        self._source.add_columns(columns, timestamps_ms)
        self._assigner.records += columns.num_rows
        if self._on_batch is None:
            times = [None] * columns.num_rows if timestamps_ms is None else timestamps_ms.tolist()
            for value, timestamp_ms in zip(rows_of(columns), times):
                self._on_event(value, timestamp_ms)
        elif timestamps_ms is not None:
            self._on_batch(int(timestamps_ms.max()))

    def on_periodic(self, active_ms: int, paused: bool) -> None:
        if not self._idle:  # the reader has said so itself, and says when it ends
            self._assigner.on_periodic(active_ms, paused)

    def _timestamp(self, value, timestamp_ms):
        return checked_timestamp(self._assign(value, timestamp_ms))

    def _assign_batch(self, values: list, timestamps_ms: Optional[list]) -> list:
        left = iter(values)
        try:
            times = self._assign_times(left, timestamps_ms)
        except BaseException as error:
            let_pass(error)
            value = values[len(values) - length_hint(left) - 1]
            function, takes_both = self._source.strategy.timestamp_function()
            raised = error if takes_both else as_called(error, function, [value])
            raise self._source.error(raised, value, "timestamp assigner") from raised
        return self._checked(values, times, "timestamp assigner")

    def _checked(self, values: list, times: list, role: str) -> list:
        """``times`` as ints within 64 bits; None, which only the reader may give, stays."""
        if set(map(type, times)) == {int} and MIN_WATERMARK_MS < min(times) and max(times) <= MAX_WATERMARK_MS:
            return times
        checked: list[Optional[int]] = []
        try:
            for time in times:
                checked.append(None if time is None and self._assign is None else checked_timestamp(time))
        except BaseException as error:  # also of a number of the user's
            let_pass(error)
            raise self._source.error(error, values[len(checked)], role) from error
        return checked

    def _on_event(self, value: Any, timestamp_ms: Optional[int]) -> None:
        event_time = MIN_WATERMARK_MS if timestamp_ms is None else timestamp_ms
        self._source.call(
            self._assigner.generator.on_event, value, event_time, self._watermarks, record=value,
            role="watermark generator",
        )  # fmt: skip


class _MainOutput(_Output, ReaderOutput):
    """The reader's own output.  It counts among the parts once the reader has used it."""

    def __init__(self, source: SourceOperator):
        super().__init__(source, _READER)
        self.used = False

    def _use(self) -> None:
        if not self.used:
            self.used = True
            self._source.combined.add(_READER)
            self._source._update_status()

    def collect(self, value, timestamp_ms=None):
        if not self.used:
            self._use()
        super().collect(value, timestamp_ms)

    def collect_batch(self, values, timestamps_ms=None):
        self._use()
        super().collect_batch(values, timestamps_ms)

    def collect_columns(self, columns, timestamps_ms=None):
        self._use()
        super().collect_columns(columns, timestamps_ms)

    def emit_watermark(self, timestamp_ms):
        self._use()
        super().emit_watermark(timestamp_ms)

    def mark_idle(self):
        self._use()
        super().mark_idle()

    @property
    def room(self):
        return max(0, self._source.room)

    def create_output_for_split(self, split_id):
        return self._source.split_output(split_id)

    def release_output_for_split(self, split_id):
        self._source.release_split(split_id)


class _ReaderContext(OperatorSubtaskContext, SourceReaderContext):
    def host(self):
        return self._environment.host

    def send_split_request(self):
        self._operator.requests += 1
        self._operator.send(SourceRequestSplit(self._environment.host))

    def send_source_event(self, event):
        self._operator.send(SourceCustomEvent(cloudpickle.dumps(event)))

    def wakeup(self):
        self._environment.wakeup()
