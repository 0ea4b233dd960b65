"""Collects at one subtask what the barrier of an unaligned checkpoint overtakes, until all of it is there.

One checkpoint at a time::

    nothing ──begin──> the batch in work, what is replayed, what the gates hold, what the writers have not sent
       ^                 │  inputs: channels that have not got their barrier record on; ``channel_complete``, then
       │                 │          ``inputs_complete``
       │                 │  outputs: barriers that have time left wait in the queues, until they leave in their turn or
       │                 │          ``tick`` finds their time over and lets them overtake
       │                 v
       ├──both complete──> handed on
       └──given up, or the next begins──> dropped
"""

from __future__ import annotations

from typing import Callable, Iterable, Optional, Sequence

from flinkish.messages.elements import Batch, CheckpointBarrier
from flinkish.taskmanager.barrier_aligner import TakeSnapshot
from flinkish.taskmanager.in_flight import FrameRecorder, InFlightData
from flinkish.taskmanager.input_gate import InputGate
from flinkish.taskmanager.output_channel import OutputChannel
from flinkish.taskmanager.record_writer import ChannelWriter


class InFlightCollector:
    """Of subtask ``subtask_index``.  ``on_over(data)``: called once for each that was begun, when it is complete or dropped."""

    def __init__(
        self,
        subtask_index: int,
        gates: Sequence[InputGate],
        writers: Sequence[ChannelWriter],
        on_over: Callable[[InFlightData], None],
    ):
        self._subtask = subtask_index
        self._gates, self._writers = gates, writers
        self._on_over = on_over
        self._channels = {channel.channel_id: channel for gate in gates for channel in gate.channels}
        #: What is being collected.
        self.data: Optional[InFlightData] = None
        self._overtakes_at_ms: Optional[int] = None

    @property
    def overtakes_at_ms(self) -> Optional[int]:
        """When ``tick`` has something to do."""
        return None if self.data is None else self._overtakes_at_ms

    def send_barrier(self, order: TakeSnapshot, in_work: Optional[tuple[InputGate, Batch]]) -> Optional[InFlightData]:
        """Let the barrier go on, and take what it overtakes here; None: it overtakes nothing.

        Args:
            in_work: the gate that a partly processed batch has come from, and the rest of it.
        """
        self.drop()
        barrier = order.barrier
        if not barrier.options.unaligned:
            for writer in self._writers:
                writer.emit_barrier(barrier)
            return None
        data = InFlightData(barrier.checkpoint_id, barrier.options)
        if order.unaligned:
            data.inputs_open = True
            self._take_from_gates(data, in_work)
            for channel_id in sorted(order.persist):
                self._channels[channel_id].overtake(barrier.checkpoint_id)
        for writer in self._writers:
            self._add_unsent(data, writer, writer.emit_barrier(barrier))
        data.outputs_open = True
        self._overtakes_at_ms = _due_ms(barrier)
        return data

    def begin(self, data: InFlightData) -> None:
        """The snapshot is taken, so what comes of ``data`` can be handed on."""
        self.data = data
        self.outputs_moved()

    def channel_complete(self, checkpoint_id: int, channel_id: int) -> None:
        """Its barrier is there."""
        data = self.data
        if data is not None and data.checkpoint_id == checkpoint_id:
            channel = self._channels[channel_id]
            assert channel.edge is not None
            data.add(channel.edge, channel.peer_subtask, self._subtask, True, channel.take_recorded())

    def inputs_complete(self, checkpoint_id: int) -> None:
        data = self.data
        if data is not None and data.checkpoint_id == checkpoint_id:
            data.inputs_open = False
            self.outputs_moved()

    def outputs_moved(self) -> None:
        """Barriers may have left in their turn."""
        data = self.data
        if data is None:
            return
        if data.outputs_open:
            data.outputs_open = any([writer.holds(data.checkpoint_id) for writer in self._writers])
        if data.is_complete:
            self.data = None
            self._on_over(data)

    def tick(self, now_ms: int) -> None:
        """Time has passed: barriers that wait in the outputs for too long overtake."""
        data, due_ms = self.data, self._overtakes_at_ms
        if data is None or due_ms is None or now_ms < due_ms:
            return
        self._overtakes_at_ms = None
        for writer in self._writers:
            self._add_unsent(data, writer, writer.overtake(data.checkpoint_id))
        self.outputs_moved()

    def drop(self, checkpoint_id: Optional[int] = None) -> None:
        """Nobody wants it any more; with an id, only if it is of that checkpoint."""
        data = self.data
        if data is not None and checkpoint_id in (None, data.checkpoint_id):
            self.data = None
            for channel in self._channels.values():
                channel.stop_recording()
            data.dropped = True
            self._on_over(data)

    def _take_from_gates(self, data: InFlightData, in_work: Optional[tuple[InputGate, Batch]]) -> None:
        if in_work is not None:
            gate, rest = in_work
            recorder = FrameRecorder()
            recorder.record(rest)
            assert gate.edge is not None
            data.add(gate.edge, None, self._subtask, True, recorder)
        for gate in self._gates:
            for edge, recorder in gate.recorded_replay():
                data.add(edge, None, self._subtask, True, recorder)

    def _add_unsent(
        self, data: InFlightData, writer: ChannelWriter, overtaken: Iterable[tuple[OutputChannel, list]]
    ) -> None:
        for channel, elements in overtaken:
            recorder = FrameRecorder()
            for element in elements:
                recorder.record(element)
            assert writer.edge is not None
            data.add(writer.edge, self._subtask, channel.peer_subtask, False, recorder)


def _due_ms(barrier: CheckpointBarrier) -> Optional[int]:
    """When a barrier that waits in an output overtakes; None: it has, or never does."""
    timeout_ms = barrier.options.aligned_timeout_ms
    return barrier.timestamp_ms + timeout_ms if timeout_ms else None
