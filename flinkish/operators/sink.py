"""The end of a chain: a SinkWriter of ``connectors.spi``, or a SinkFunction."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any, Iterator, Optional

import cloudpickle

from flinkish.common.user_traceback import let_pass
from flinkish.connectors.spi import Sink, SinkWriter, WriterInitContext
from flinkish.datastream.functions import CheckpointListener, SinkContext
from flinkish.datastream.state import ListStateDescriptor
from flinkish.errors import InternalError, UserError
from flinkish.messages.control import SinkCommittables, SinkPayload
from flinkish.messages.elements import FRAME_PAYLOAD_BYTES_MAX
from flinkish.operators.operator import RuntimeOperator
from flinkish.operators.runtime_context import OperatorSubtaskContext

#: Flink's name of the state of writers.
WRITER_STATE: ListStateDescriptor = ListStateDescriptor("writer_raw_states")

TO_DRIVER_BYTES_MAX = FRAME_PAYLOAD_BYTES_MAX - 64 * 1024  # what stands around it in the message takes less


class SinkWriterOperator(RuntimeOperator):
    """Hands records to the writer.  A writer with a ``write_batch`` of its own gets the records of a
    slice together, at its end; order and content are the same."""

    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        self.writer: Any = None
        self.sink: Sink = spec.operator.sink
        self._pending: Optional[tuple[list, Optional[list]]] = None
        self._prepared: list = []  # no snapshot has had it yet
        self._finished = False
        self._writer_state: Any = None

    def open(self):
        context = _WriterContext(self)
        self._writer_state = self.operator_state.get_list_state(WRITER_STATE)
        entries = self._writer_state.get()
        if entries:
            self.writer = self.call(self.sink.restore_writer, context, entries, role="restore_writer")
        else:
            self.writer = self.call(self.sink.create_writer, context, role="create_writer")

    def close(self):
        if self.writer is not None:
            self.call(self.writer.close, role="close")

    @property
    def collects(self) -> bool:
        """Whether records wait for the end of the slice."""
        return type(self.writer).write_batch is not SinkWriter.write_batch

    @property
    def keeps_values(self) -> bool:
        return self.writer.keeps_values or self.collects

    @property
    def has_room(self) -> bool:
        try:
            return self.writer.has_room
        except BaseException as error:
            let_pass(error)
            raise self.error(error, role="has_room") from error

    @property
    def flushed(self) -> bool:
        try:
            return self.writer.flushed
        except BaseException as error:
            let_pass(error)
            raise self.error(error, role="flush") from error

    def fileno(self) -> Optional[int]:
        return self.call(self.writer.fileno, role="fileno")

    # ---- records --------------------------------------------------------------------------------

    def process_element(self, value, timestamp, input_index=0):
        self.call(self.writer.write, value, timestamp, self.current_watermark, record=value)
        yield from ()

    def generate(self, code, value, timestamp, emit, input_index=0):
        if not self.collects:
            watermark = code.local(self, "watermark")
            code.before(f"{watermark} = {code.bind('sink', self)}.current_watermark")
            with code.blame(self, record=value):
                write = code.bind(self.name, self.writer.write)
                code.line(f"{write}({value}, {timestamp}, {watermark})")
            return
        values, times = code.local(self, "values"), code.local(self, "times")
        timed = timestamp is not None
        code.before(f"{values}, {times} = {code.bind('begin', self.begin)}({timed})")
        code.line(f"{values}.append({value})")
        if timed:
            code.line(f"{times}.append({timestamp})")
        with code.blame(self):
            code.after(f"{code.bind('write_pending', self.write_pending)}()")

    def begin(self, timed: bool) -> tuple[list, Optional[list]]:
        """Lists for the records of the next slice."""
        assert self._pending is None, "records of the slice before have not been written"
        self._pending = ([], [] if timed else None)
        return self._pending

    def write_pending(self) -> None:
        """Hand over what has been collected; also when a later record of the slice has failed."""
        pending, self._pending = self._pending, None
        if pending is not None and pending[0]:
            values, timestamps = pending
            self.call(self.writer.write_batch, values, timestamps, self.current_watermark)

    def write_columns(self, columns: Any, timestamps: Any) -> None:
        self.call(self.writer.write_columns, columns, timestamps, self.current_watermark)

    # ---- events ---------------------------------------------------------------------------------

    def fire(self, watermark):
        self.current_watermark = watermark
        self.call(self.writer.write_watermark, watermark, role="write_watermark")
        return None

    def on_idle(self) -> None:
        self.call(self.writer.flush, False, role="flush")

    def finish(self) -> Iterator[None]:
        self.call(self.writer.flush, True, role="flush")
        while not self.flushed:
            yield
        self._finished = True
        self._prepare_commit()
        if self._prepared and not self.environment.final_checkpoint:
            self.environment.send_event(self.spec.operator_id, SinkCommittables(self._take_prepared()))

    # ---- checkpoints ----------------------------------------------------------------------------

    def prepare_snapshot_pre_barrier(self, checkpoint_id):
        if not self._finished:
            self.call(self.writer.flush, False, role="flush")
            self._prepare_commit()
        return None

    def _prepare_commit(self) -> None:
        self._prepared += self.call(self.writer.prepare_commit, role="prepare_commit")

    def _take_prepared(self) -> bytes:
        prepared, self._prepared = self._prepared, []
        return self.call(cloudpickle.dumps, prepared, role="prepare_commit")

    def snapshot_state(self, context):
        entries = self.call(self.writer.snapshot_state, context.get_checkpoint_id(), role="snapshot_state")
        self._writer_state.update(entries)
        part = super().snapshot_state(context)
        return replace(part, committables=self._take_prepared()) if self._prepared else part

    def checkpoint_listeners(self):
        return [self.writer] if isinstance(self.writer, CheckpointListener) else []

    def handle_event(self, payload: Any) -> None:
        if not isinstance(payload, SinkPayload):
            raise InternalError(f'sink "{self.name}" got an event {type(payload).__name__}')
        value = self.call(pickle.loads, payload.payload, role="handle_coordinator_event")
        self.call(self.writer.handle_coordinator_event, value, role="handle_coordinator_event")


class SinkFunctionOperator(RuntimeOperator):
    """A SinkFunction, or a callable of the record alone."""

    keeps_values = True  # we cannot know what it does with them
    has_room = flushed = True

    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        function = spec.operator.sink
        self.invoke = self.own(function, "invoke")
        self.takes_context = self.invoke is not function
        self.context = _InvokeContext(self)

    def process_element(self, value, timestamp, input_index=0):
        self.context.time = timestamp
        arguments = (value, self.context) if self.takes_context else (value,)
        self.call(self.invoke, *arguments, record=value)
        yield from ()

    def generate(self, code, value, timestamp, emit, input_index=0):
        context = code.bind("ctx", self.context)
        if not self.takes_context:
            context = ""
        elif timestamp is None:
            code.before(f"{context}.time = None")
        else:
            code.line(f"{context}.time = {timestamp}")
        with code.blame(self, record=value):
            code.line(f"{code.bind(self.name, self.invoke)}({value}, {context})".replace(", )", ")"))

    def fileno(self) -> Optional[int]:
        return None

    def write_pending(self) -> None:
        """Nothing is ever held back."""

    def on_idle(self) -> None:
        """It buffers nothing that we know of."""

    def handle_event(self, payload: Any) -> None:
        raise InternalError(f'sink function "{self.name}" has no coordinator')


class _InvokeContext(SinkContext):
    def __init__(self, operator: SinkFunctionOperator):
        self._operator = operator
        self.time: Optional[int] = None

    def current_processing_time(self):
        return self._operator.environment.now_ms()

    def current_watermark(self):
        return self._operator.current_watermark

    def timestamp(self):
        return self.time


class _WriterContext(OperatorSubtaskContext, WriterInitContext):
    def attempt_number(self):
        return self._environment.attempt

    def job_id(self):
        return self._environment.job_id

    def operator_id(self):
        return self._operator.spec.operator_id

    def restored_checkpoint_id(self):
        restore = self._environment.restore
        return None if restore is None else restore.checkpoint_id

    def send_to_coordinator(self, payload):
        data = pickle.dumps(payload, pickle.HIGHEST_PROTOCOL)
        if len(data) > TO_DRIVER_BYTES_MAX:
            raise UserError(
                "could not send a record to the driver",
                why=f"with what goes with it, it takes {len(data)} bytes, the limit is "
                f"{TO_DRIVER_BYTES_MAX}: it is sent in one piece",
                do="collect or print less of it, or write it to a file from the slot",
            )
        self._environment.send_event(self._operator.spec.operator_id, SinkPayload(data))
