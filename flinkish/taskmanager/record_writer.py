"""Spreads the records of one output edge over its channels: one writer per partitioner.

An emit appends to the open list of a channel and does nothing else; sealing and sending is the
task's, between its slices (``pump``).  Memos of keys hold the lists themselves: CPython 3.11 inlines
``list.append`` where it sees a list, and `dict.get` is faster than ``[]`` of a subclass.  Measured for a loop
over records with a keyed emit, memo warm: 53 instead of 77 ns with ``memo[key](value)`` and bound methods in
the memo, 85 instead of 120 with timestamps.

``generate`` writes the same into a fused loop.  Whoever appends to the lists
calls ``prepare_rows`` or ``prepare_timed_rows`` first, and again after each suspension: open
columns are sealed and the lists of a channel are equally long (see ``output_channel``).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import Any, Callable, Optional

import numpy as np

from flinkish.datastream import partitioners
from flinkish.errors import InternalError, UserError
from flinkish.graph.job_graph import OutputEdge
from flinkish.messages.deployment import EdgeDescriptor
from flinkish.messages.elements import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    ControlEvent,
    EndOfData,
    EndOfInput,
    Watermark,
    WatermarkStatus,
)
from flinkish.operators import output
from flinkish.operators.columns import rows_of
from flinkish.operators.keys import key_converter, key_function
from flinkish.state.column_memo import ColumnMemo
from flinkish.state.key_groups import (
    KeyMemo,
    key_group,
    key_groups_of_column,
    subtask_for_key_group,
)
from flinkish.taskmanager.frame_sizer import FrameSizer
from flinkish.taskmanager.output_channel import OutputChannel

RECEIVER_WAIT_MS = 2
SAMPLE_FROM_RECORDS = 2  # a look costs 1 microsecond, and 30 records of 64 MB a machine
COLUMN_PIECE_ROWS = (
    256  # below, a batch is not cut any further (DESIGN.md, "two physical batch forms")
)


class ChannelWriter(output.RecordWriter):
    """What all writers share.  ``channels`` in the order of the consumers' subtask indices."""

    def __init__(
        self, channels: list[OutputChannel], sizer: FrameSizer, buffer_timeout_ms: int = 100
    ):
        assert channels
        self.channels = channels
        self.sizer = sizer
        self.buffer_timeout_ms = buffer_timeout_ms
        self.edge: Optional[EdgeDescriptor] = None  # of those that a slot makes
        self._lists = [channel.values for channel in channels]
        self._several = len(channels) > 1
        self._has_columns = False
        self._stuck = False  # a channel has sealed elements that wait
        self._sample_next = 0
        self._flushed_ms: Optional[int] = None
        self._offered_ms = 0

    # ---- the chain's side -----------------------------------------------------------------------

    @property
    def room(self) -> int:
        if self._stuck or self._has_columns:
            room = min([channel.room for channel in self.channels])
        else:
            room = 2 * self.sizer.records - max(map(len, self._lists))
        # Records spread over several channels, so what is left would be filled by slices of half of it, down
        # to single records (W2-reduce: 157 records a slice, with this 500).
        return max(room, self.sizer.records >> 2) if room > 0 and self._several else room

    def make_room(self) -> int:
        """``room``, once full frames have been sent as far as they may."""
        if not (self._stuck or self._has_columns):
            records = self.sizer.records
            room = 2 * records - max(map(len, self._lists))
            if room > records:  # the usual case: no channel has a full frame
                return room
        elif self.room > (self.sizer.rows if self._has_columns else self.sizer.records):
            return self.room
        self.pump(flush=False)
        return self.room

    def prepare_rows(self) -> None:
        """Before a loop that appends values."""
        if self._has_columns:
            for channel in self.channels:
                channel.seal_columns()
                if channel.queue:
                    self._stuck = True

    def prepare_timed_rows(self) -> None:
        """Before a loop that appends values and timestamps."""
        self.prepare_rows()
        for channel in self.channels:
            if len(channel.timestamps) != len(channel.values):
                channel.align()

    def emit_watermark(self, timestamp: int) -> None:
        self._emit_event(Watermark(timestamp))

    def emit_watermark_status(self, idle: bool) -> None:
        self._emit_event(WatermarkStatus(idle))

    def emit_latency_marker(self, marker: Any) -> None:
        self._emit_event(marker)

    def emit_barrier(self, barrier: CheckpointBarrier) -> list[tuple[OutputChannel, list]]:
        """``barrier`` on every channel, behind all records so far or, where it may, before those that have not left;
        returns what it has overtaken, and what of it still waits can be told by ``holds``."""
        options = barrier.options
        if options.unaligned:
            assert self.edge is not None
            options = replace(options, forced_aligned=not self.edge.unaligned)
            barrier = replace(barrier, options=options)
        if options.may_overtake and not options.aligned_timeout_ms:
            return self._overtake(self.channels, barrier)
        self._emit_event(barrier)
        return []

    def holds(self, checkpoint_id: int) -> bool:
        """Whether the barrier waits on a channel where it may still overtake."""
        return any([c.barrier is not None and c.barrier.checkpoint_id == checkpoint_id for c in self.channels])

    def overtake(self, checkpoint_id: int) -> list[tuple[OutputChannel, list]]:
        """Its time is over: the barrier leaves where it still waits."""
        overtaken = []
        for channel in self.channels:
            barrier = channel.barrier
            if barrier is not None and barrier.checkpoint_id == checkpoint_id:
                hurried = replace(barrier, options=replace(barrier.options, aligned_timeout_ms=None))
                overtaken += self._overtake([channel], hurried)
        return overtaken

    def _overtake(
        self, channels: list[OutputChannel], barrier: CheckpointBarrier
    ) -> list[tuple[OutputChannel, list]]:
        overtaken = [(channel, channel.overtake(barrier)) for channel in channels]
        self._stuck = self._stuck or any([channel.queue for channel in channels])
        return overtaken

    def emit_marker(self, marker: CancelCheckpointMarker) -> None:
        """A checkpoint was given up, and no barrier of it has gone out."""
        self._emit_event(marker)

    def emit_end_of_data(self) -> None:
        """No more records and watermarks; the task stays for a checkpoint."""
        self._emit_event(EndOfData())

    def emit_end_of_input(self) -> None:
        """The task has ended: the last thing on every channel."""
        self._emit_event(EndOfInput())

    def _emit_event(self, event: ControlEvent) -> None:
        for channel in self.channels:
            channel.add_event(event)
            if channel.queue:
                self._stuck = True

    def emit_rows_of_columns(self, columns: Any, timestamps: Any) -> None:
        """Columns whose channel only Python code can tell: as rows."""
        values = rows_of(columns)
        self.emit_batch(values, None if timestamps is None else timestamps.tolist())

    def _prepare_in(self, code: Any, timestamp: Optional[str]) -> None:
        name = code.bind("writer", self)
        code.before(
            f"{name}.prepare_rows()" if timestamp is None else f"{name}.prepare_timed_rows()"
        )

    def _emit_columns_by(self, columns: Any, timestamps: Any, targets: np.ndarray) -> None:
        """Rows of ``columns`` to the channels numbered in ``targets``; one ``take``, then
        slices."""
        self._has_columns = True
        counts = np.bincount(targets, minlength=len(self.channels))
        if counts.max() == len(targets):
            self.channels[int(counts.argmax())].add_columns(columns, timestamps)
            return
        order = np.argsort(targets, kind="stable")
        columns = columns.take(order)
        if timestamps is not None:
            timestamps = timestamps[order]
        start = 0
        for channel, count in zip(self.channels, counts.tolist()):
            if count:
                times = None if timestamps is None else timestamps[start : start + count]
                channel.add_columns(columns.slice(start, count), times)
                start += count

    # ---- the task's side ------------------------------------------------------------------------

    def pump(self, flush: bool) -> None:
        """Send what is full, or everything with ``flush``, as far as credits and sockets allow."""
        channels = self.channels
        if self._sample_next >= len(channels):
            self._sample_next = 0
        values = self._lists[self._sample_next]
        self._sample_next += 1
        if len(values) >= SAMPLE_FROM_RECORDS:
            self.sizer.sample(values[-1])
        full, stuck = self.sizer.records, False
        for channel in channels:
            if channel.queue or channel.columns:
                channel.pump(flush)
                if channel.queue:
                    stuck = True
            else:
                count = len(channel.values)
                if count and (flush or count >= full):
                    channel.pump(flush)
        self._stuck = stuck

    def pump_busy(self, now_ms: int) -> None:
        """``pump`` of a task that has more input: what is not full leaves when the buffer timeout has passed,
        and before that to receivers that wait.  (A steady 100,000 records/s keep a source busy with small
        reads: frames would fill for 20 ms.)"""
        if self._flushed_ms is None:
            self._flushed_ms = self._offered_ms = now_ms
        timeout = self.buffer_timeout_ms
        if 0 <= timeout <= now_ms - self._flushed_ms:
            self._flushed_ms = self._offered_ms = now_ms
            self.pump(flush=True)
            return
        self.pump(flush=False)
        if timeout >= 0 and now_ms - self._offered_ms >= RECEIVER_WAIT_MS:
            self._offered_ms = now_ms
            for channel in self.channels:
                if not channel.is_empty and channel.receiver_waits:
                    channel.pump(flush=True)

    def discard(self) -> None:
        for channel in self.channels:
            channel.discard()

    @property
    def is_empty(self) -> bool:
        for channel in self.channels:
            if channel.values or channel.queue or channel.columns:
                return False
        return True

    @property
    def records_out(self) -> int:
        return sum([channel.records_out + channel.pending_records for channel in self.channels])

    @property
    def bytes_out(self) -> int:
        return sum([channel.bytes_out for channel in self.channels])

    @property
    def pool_usage(self) -> float:
        """Share of the buffers that is filled (Flink's outPoolUsage), 0 to 1."""
        pending = capacity = 0
        for channel in self.channels:
            held = channel.pending_records
            pending += held
            capacity += held + max(0, channel.room)
        return pending / capacity if capacity else 0.0


class SingleChannelWriter(ChannelWriter):
    """Forward and global: every record to one channel; the others see the events only."""

    def __init__(self, channels, sizer, buffer_timeout_ms: int = 100):
        super().__init__(channels, sizer, buffer_timeout_ms)
        self.channel = channels[0]

    def emit(self, value: Any, timestamp: Optional[int]) -> None:
        self.channel.emit(value, timestamp)

    def emit_batch(self, values: list, timestamps: Optional[list]) -> None:
        self.channel.add_rows(values, timestamps)

    def emit_columns(self, columns: Any, timestamps: Any) -> None:
        self._has_columns = True
        self.channel.add_columns(columns, timestamps)

    def generate(self, code: Any, value: str, timestamp: Optional[str]) -> None:
        self._prepare_in(code, timestamp)
        code.line(f"{code.bind('values', self.channel.values)}.append({value})")
        if timestamp is not None:
            code.line(f"{code.bind('timestamps', self.channel.timestamps)}.append({timestamp})")


class RoundRobinWriter(ChannelWriter):
    """Rebalance (starts at a random channel) and rescale (starts at the first)."""

    def __init__(self, channels, sizer, buffer_timeout_ms: int = 100, start: int = 0):
        super().__init__(channels, sizer, buffer_timeout_ms)
        turned = channels[start:] + channels[:start]
        self._next_channel: Callable[[], OutputChannel] = cycle(turned).__next__

    def emit(self, value: Any, timestamp: Optional[int]) -> None:
        self._next_channel().emit(value, timestamp)

    def emit_batch(self, values: list, timestamps: Optional[list]) -> None:
        # Channel j from here gets every n-th value: slices instead of a loop (15 against 60 ns a
        # record).
        next_channel, step = self._next_channel, len(self.channels)
        for start in range(step):
            times = None if timestamps is None else timestamps[start::step]
            next_channel().add_rows(values[start::step], times)
        for _ in range(len(values) % step):
            next_channel()

    def emit_columns(self, columns: Any, timestamps: Any) -> None:
        self._has_columns = True
        rows = columns.num_rows
        pieces = max(1, min(len(self.channels), rows // COLUMN_PIECE_ROWS))
        for i in range(pieces):
            start, stop = rows * i // pieces, rows * (i + 1) // pieces
            times = None if timestamps is None else timestamps[start:stop]
            self._next_channel().add_columns(columns.slice(start, stop - start), times)

    def generate(self, code: Any, value: str, timestamp: Optional[str]) -> None:
        self._prepare_in(code, timestamp)
        next_channel = code.bind("next_channel", self._next_channel)
        if timestamp is None:
            code.line(f"{next_channel}().values.append({value})")
            return
        channel = code.variable("channel")
        code.line(f"{channel} = {next_channel}()")
        code.line(f"{channel}.values.append({value})")
        code.line(f"{channel}.timestamps.append({timestamp})")


class ShuffleWriter(ChannelWriter):
    """A random channel for each record."""

    def __init__(self, channels, sizer, rng: Any, buffer_timeout_ms: int = 100):
        super().__init__(channels, sizer, buffer_timeout_ms)
        self._random = rng.random

    def emit(self, value: Any, timestamp: Optional[int]) -> None:
        self.channels[int(self._random() * len(self.channels))].emit(value, timestamp)

    def emit_batch(self, values: list, timestamps: Optional[list]) -> None:
        channels, random, count = self.channels, self._random, len(self.channels)
        if timestamps is None:
            self.prepare_rows()
            for value in values:
                channels[int(random() * count)].values.append(value)
            return
        self.prepare_timed_rows()
        for value, timestamp in zip(values, timestamps):
            channel = channels[int(random() * count)]
            channel.values.append(value)
            channel.timestamps.append(timestamp)

    def emit_columns(self, columns: Any, timestamps: Any) -> None:
        random, count = self._random, len(self.channels)
        targets = np.array([int(random() * count) for _ in range(columns.num_rows)], dtype=np.int64)
        self._emit_columns_by(columns, timestamps, targets)

    def generate(self, code: Any, value: str, timestamp: Optional[str]) -> None:
        self._prepare_in(code, timestamp)
        channels = code.bind("channels", self.channels)
        random = code.bind("random", self._random)
        pick = f"{channels}[int({random}() * {len(self.channels)})]"
        if timestamp is None:
            code.line(f"{pick}.values.append({value})")
            return
        channel = code.variable("channel")
        code.line(f"{channel} = {pick}")
        code.line(f"{channel}.values.append({value})")
        code.line(f"{channel}.timestamps.append({timestamp})")


class BroadcastWriter(ChannelWriter):
    """Every record to every channel.

    Receivers in this slot get the objects themselves, so each of them gets a copy of its own
    (``freeze``), except the first when no other slot takes part: what is to be pickled later must
    not be an object that a receiver here can change.
    """

    def __init__(self, channels, sizer, freeze: Callable[[Any], Any], buffer_timeout_ms: int = 100):
        super().__init__(channels, sizer, buffer_timeout_ms)
        self._freeze = freeze
        remote = any(not channel.is_local for channel in channels)
        self._copied = [
            channel.is_local and (remote or i > 0) for i, channel in enumerate(channels)
        ]

    def emit(self, value: Any, timestamp: Optional[int]) -> None:
        for channel, copied in zip(self.channels, self._copied):
            channel.emit(self._freeze(value) if copied else value, timestamp)

    def emit_batch(self, values: list, timestamps: Optional[list]) -> None:
        for channel, copied in zip(self.channels, self._copied):
            channel.add_rows(list(map(self._freeze, values)) if copied else values, timestamps)

    def emit_columns(self, columns: Any, timestamps: Any) -> None:
        self._has_columns = True
        if timestamps is not None:  # Arrow's own arrays cannot change
            timestamps = timestamps.view()
            timestamps.flags.writeable = False
        for channel in self.channels:
            channel.add_columns(columns, timestamps)

    @property
    def records_out(self) -> int:
        return super().records_out // len(self.channels)

    def generate(self, code: Any, value: str, timestamp: Optional[str]) -> None:
        self._prepare_in(code, timestamp)
        each = code.variable("each")
        pairs = list(zip(self.channels, self._copied))
        shared = [channel.values for channel, copied in pairs if not copied]
        if shared:
            code.line(f"for {each} in {code.bind('values', shared)}: {each}.append({value})")
        copying = [channel.values for channel, copied in pairs if copied]
        if copying:
            lists, freeze = code.bind("values", copying), code.bind("freeze", self._freeze)
            code.line(f"for {each} in {lists}: {each}.append({freeze}({value}))")
        if timestamp is not None:
            lists = code.bind("timestamps", [channel.timestamps for channel in self.channels])
            code.line(f"for {each} in {lists}: {each}.append({timestamp})")


class CustomWriter(ChannelWriter):
    """The channel that the user's ``partitioner(key, num_partitions)`` names."""

    def __init__(self, channels, sizer, partitioner, key_selector, buffer_timeout_ms: int = 100):
        super().__init__(channels, sizer, buffer_timeout_ms)
        count = len(channels)
        select = key_function(key_selector)
        partition = getattr(partitioner, "partition", partitioner)

        def channel_of(value: Any) -> OutputChannel:
            index = partition(select(value), count)
            if (
                not (isinstance(index, int) or hasattr(index, "__index__"))
                or not 0 <= index < count
            ):
                raise UserError(
                    f"custom partitioner returned {index!r}",
                    why=f"it must be an int from 0 to {count - 1}: there are {count} channels",
                    do="return key-dependent numbers modulo num_partitions",
                )
            return channels[index]

        self.channel_of = channel_of

    def emit(self, value: Any, timestamp: Optional[int]) -> None:
        self.channel_of(value).emit(value, timestamp)

    def emit_batch(self, values: list, timestamps: Optional[list]) -> None:
        channel_of = self.channel_of
        if timestamps is None:
            self.prepare_rows()
            for value in values:
                channel_of(value).values.append(value)
            return
        self.prepare_timed_rows()
        for value, timestamp in zip(values, timestamps):
            channel = channel_of(value)
            channel.values.append(value)
            channel.timestamps.append(timestamp)

    def emit_columns(self, columns: Any, timestamps: Any) -> None:
        self.emit_rows_of_columns(columns, timestamps)

    def generate(self, code: Any, value: str, timestamp: Optional[str]) -> None:
        self._prepare_in(code, timestamp)
        channel_of = code.bind("channel_of", self.channel_of)
        if timestamp is None:
            code.line(f"{channel_of}({value}).values.append({value})")
            return
        channel = code.variable("channel")
        code.line(f"{channel} = {channel_of}({value})")
        code.line(f"{channel}.values.append({value})")
        code.line(f"{channel}.timestamps.append({timestamp})")


class KeyGroupWriter(ChannelWriter):
    """The channel of the subtask that owns the key group of the key.

    A key that is not hashable (a list) makes the memo raise; ``compute`` then refuses or accepts
    it in the words of ``state.key_groups``.
    """

    def __init__(
        self,
        channels,
        sizer,
        key_selector: Callable[[Any], Any],
        max_parallelism: int,
        key_field: Any = None,
        key_type: Any = None,
        buffer_timeout_ms: int = 100,
    ):
        super().__init__(channels, sizer, buffer_timeout_ms)
        self.key_type = key_type
        self._convert = key_converter(key_type)
        self.key_selector = key_selector
        self._select = key_function(key_selector)
        self.key_field = key_field
        self.max_parallelism = max_parallelism
        self._groups = ColumnMemo(KeyMemo(self._group_of))
        self._channels_by_key = KeyMemo(self._channel_of)
        self._values_by_key = KeyMemo(lambda key: self._channel_of(key).values)
        self._lists_by_key = KeyMemo(self._lists_of)

    def _group_of(self, canonical: Any) -> int:
        return key_group(self._convert(canonical), self.max_parallelism)

    def _channel_of(self, canonical: Any) -> OutputChannel:
        group = self._group_of(canonical)
        return self.channels[subtask_for_key_group(group, self.max_parallelism, len(self.channels))]

    def _lists_of(self, canonical: Any) -> tuple[list, list]:
        channel = self._channel_of(canonical)
        return channel.values, channel.timestamps

    def emit(self, value: Any, timestamp: Optional[int]) -> None:
        key = self._select(value)
        try:
            channel = self._channels_by_key[key]
        except (TypeError, ValueError):
            channel = self._channels_by_key.compute(key)
        channel.emit(value, timestamp)

    def emit_batch(self, values: list, timestamps: Optional[list]) -> None:
        select = self._select
        if timestamps is None:
            self.prepare_rows()
            values_by_key = self._values_by_key
            for value in values:
                key = select(value)
                try:
                    found = values_by_key[key]
                except (TypeError, ValueError):
                    found = values_by_key.compute(key)
                found.append(value)
            return
        self.prepare_timed_rows()
        lists_by_key = self._lists_by_key
        for value, timestamp in zip(values, timestamps):
            key = select(value)
            try:
                found, times = lists_by_key[key]
            except (TypeError, ValueError):
                found, times = lists_by_key.compute(key)
            found.append(value)
            times.append(timestamp)

    def emit_columns(self, columns: Any, timestamps: Any) -> None:
        field = self.key_field
        if field is None:
            self.emit_rows_of_columns(columns, timestamps)
            return
        column = columns.column(field)
        if self.key_type is None:
            groups = key_groups_of_column(column, self.max_parallelism, self._groups)
        else:  # the declared type may change the key, value by value
            groups = self._groups.numbers(column)
        targets = groups.astype(np.int64) * len(self.channels) // self.max_parallelism
        self._emit_columns_by(columns, timestamps, targets)

    def generate(self, code: Any, value: str, timestamp: Optional[str]) -> None:
        self._prepare_in(code, timestamp)
        key, found = code.select_key(self.key_selector, value), code.variable("found")
        if timestamp is None:
            code.look_up_key(self._values_by_key, key, found)
            code.line(f"{found}.append({value})")
            return
        code.look_up_key(self._lists_by_key, key, found)
        values, times = code.variable("values"), code.variable("times")
        code.line(f"{values}, {times} = {found}")
        code.line(f"{values}.append({value})")
        code.line(f"{times}.append({timestamp})")


def create_record_writer(
    edge: OutputEdge,
    channels: list[OutputChannel],
    sizer: FrameSizer,
    rng: Any,
    freeze: Callable[[Any], Any],
    buffer_timeout_ms: int,
) -> ChannelWriter:
    """The writer of ``edge``.

    Args:
        channels: to all consumers that this subtask reaches, in the order of their subtask indices.
        rng: ``random.Random`` of this subtask.
        freeze: ``operators.copying.freeze``, or the identity with ``pipeline.object-reuse``.
    """
    timeout = buffer_timeout_ms if edge.buffer_timeout_ms is None else edge.buffer_timeout_ms
    match edge.partitioner:
        case partitioners.ForwardPartitioner() | partitioners.GlobalPartitioner():
            return SingleChannelWriter(channels, sizer, timeout)
        case partitioners.RebalancePartitioner():
            start = rng.randrange(len(channels))
            return RoundRobinWriter(channels, sizer, timeout, start)
        case partitioners.RescalePartitioner():
            return RoundRobinWriter(channels, sizer, timeout)
        case partitioners.ShufflePartitioner():
            return ShuffleWriter(channels, sizer, rng, timeout)
        case partitioners.BroadcastPartitioner():
            return BroadcastWriter(channels, sizer, freeze, timeout)
        case partitioners.CustomPartitioner(partitioner, key_selector):
            return CustomWriter(channels, sizer, partitioner, key_selector, timeout)
        case partitioners.KeyGroupPartitioner() as keyed:
            return KeyGroupWriter(
                channels,
                sizer,
                keyed.key_selector,
                edge.target_max_parallelism,
                keyed.key_field,
                keyed.key_type,
                timeout,
            )
    raise InternalError(
        "could not make a record writer",
        where=f"edge {edge.edge_id}",
        why=f"unknown partitioner {edge.partitioner!r}",
    )
