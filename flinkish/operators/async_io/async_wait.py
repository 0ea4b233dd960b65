"""AsyncWaitOperator: an asynchronous function over a stream.

It decides nothing and blocks nowhere: `AsyncCalls` says what is to be done, a `CallRunner` makes the calls in other threads, and
their answers are put down until the slot's thread comes by, which they wake.  Then results leave, as if a timer had fired.

When as many records are on their way as ``capacity`` allows, the task takes no more input.  Where a record comes all the same
(an operator before it in the chain has made several of one), the loop waits with that record in hand: it lets this operator, and
asynchronous ones behind it, send on what they have, and suspends.  As in Flink a barrier waits for such a record.

A snapshot has the records whose results have not left, without watermarks between them (sources tell theirs again at a
restore), and their calls are made again after it.  Time for them begins anew, and so do attempts.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional

from flinkish.common.user_traceback import let_pass
from flinkish.datastream.functions import AsyncFunction
from flinkish.datastream.state import ListStateDescriptor
from flinkish.messages.elements import Watermark, WatermarkStatus
from flinkish.operators.async_io.async_calls import AskTimeout, AsyncCalls, Cancel, Effect, Start
from flinkish.operators.async_io.call_runner import CallRunner, Inbox, checked_results, create_call_runner
from flinkish.operators.async_io.element_queue import AsyncRecord, Control
from flinkish.operators.copying import freeze
from flinkish.operators.operator import Item, RuntimeOperator

#: Flink's name of the records that were on their way.
IN_FLIGHT_STATE: ListStateDescriptor = ListStateDescriptor("_async_wait_operator_state_")


class AsyncWaitOperator(RuntimeOperator):
    fires = True
    expanding = True  # a record may have to wait
    function_role = "async_invoke"

    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        description = spec.operator
        self.invoke = self.own(description.function, "async_invoke")
        self._timeout_handler = _timeout_handler(description.function)
        self._strategy = description.retry_strategy
        predicate = self._strategy.get_retry_predicate()
        self._result_predicate = predicate.result_predicate()
        self._exception_predicate = predicate.exception_predicate()
        retries = self._result_predicate is not None or self._exception_predicate is not None
        self.calls = AsyncCalls(
            description.ordered,
            description.capacity,
            description.timeout_ms,
            self._retry_delay if retries else None,
        )
        self.copies = not environment.object_reuse
        #: Set by the chain: sends on what this operator, and asynchronous ones behind it, have.
        self.pump: Callable[[], Iterator[None]]
        #: The chain is suspended here, until an answer comes; not while results of this operator are being sent on.
        self.waiting = False
        self._answers = Inbox(environment.wakeup)
        self._runner: Optional[CallRunner] = None
        self._in_flight: Any = None

    # ---- life -----------------------------------------------------------------------------------

    def open(self):
        self._in_flight = self.operator_state.get_list_state(IN_FLIGHT_STATE)
        self.calls.restore(self._in_flight.get())
        subtask = self.environment.subtask_index
        create = self.environment.create_call_runner or create_call_runner
        self._runner = create(
            self.invoke,
            lambda *answer: self._answers.put(answer),
            self.calls.capacity,
            f"{self.name} {subtask + 1}",
            self.copies,
        )
        context = self.runtime_context()
        for function in self.functions:
            self.call(self._runner.run, function.open, context, role="open")

    def close(self):
        if self._runner is None:
            return
        self._runner.cancel_all()
        try:
            for function in self.functions:
                self.call(self._runner.run, function.close, role="close")
        finally:
            self._runner.close()

    def finish(self):
        yield from self._wait(lambda: self.calls.is_empty)

    def snapshot_state(self, context):
        self._in_flight.update(self.calls.records())
        return super().snapshot_state(context)

    # ---- records --------------------------------------------------------------------------------

    def process_element(self, value, timestamp, input_index=0):
        if self.copies:
            value = self.call(freeze, value, record=value, role="input")
        if self.calls.room <= 0:
            yield from self.wait_for_room()
        self.add(value, timestamp)

    def generate(self, code, value, timestamp, emit, input_index=0):
        if self.copies and not emit.input_owned:
            with code.blame(self, "input", value):
                code.freeze(value)
        operator, calls = code.bind(self.name, self), code.bind("calls", self.calls)
        code.expand()
        with code.block(f"if {calls}.room <= 0:"):
            with code.set_down():
                code.line(f"yield from {operator}.wait_for_room()")
        code.line(f"{operator}.add({value}, {timestamp})")

    def add(self, value: Any, timestamp: Optional[int]) -> None:
        self._obey(self.calls.add(value, timestamp, self.environment.now_ms()))

    def wait_for_room(self) -> Iterator[None]:
        return self._wait(lambda: self.calls.room > 0)

    def _wait(self, until: Callable[[], bool]) -> Iterator[None]:
        while not until():
            yield from self.pump()
            if until():
                return
            self.waiting = True
            try:
                yield
            finally:
                self.waiting = False

    # ---- what leaves ----------------------------------------------------------------------------

    def take_results(self) -> Iterator[Item]:
        """Results that may leave now, up to the next watermark or status."""
        calls = self.calls
        while type(record := calls.head) is AsyncRecord:
            calls.take()
            if not record.results:
                yield None
            for result in record.results:  # type: ignore[union-attr]
                yield result, record.timestamp

    def take_control(self) -> Optional[Control]:
        """The watermark or status that leaves next, if it is one of them."""
        head = self.calls.head
        if head is None or type(head) is AsyncRecord:
            return None
        self.calls.take()
        return head  # type: ignore[return-value]

    def forwards_watermark(self, watermark):
        if self.calls.is_empty:
            return True
        self.calls.add_control(Watermark(watermark))
        return False

    def forwards_watermark_status(self, idle):
        if self.calls.is_empty:
            return True
        self.calls.add_control(WatermarkStatus(idle))
        return False

    # ---- time -----------------------------------------------------------------------------------

    @property
    def next_processing_time(self) -> Optional[int]:
        if self._answers or self.calls.head is not None:
            return 0
        return self.calls.next_time_ms

    @property
    def is_due(self) -> bool:
        """Whether `advance`, or sending on, would do something now."""
        next_time = self.next_processing_time
        return next_time is not None and next_time <= self.environment.now_ms()

    def advance(self, now_ms: int) -> None:
        """Take what has been answered, then do what is due."""
        for number, attempt, results, error in self._answers.take():
            self._obey(self.calls.answered(number, attempt, results, error, now_ms))
        self._obey(self.calls.advance(now_ms))

    def _obey(self, effects: list[Effect]) -> None:
        runner = self._runner
        assert runner is not None
        for effect in effects:
            if isinstance(effect, Start):
                record = effect.record  # its value stays as it is, for another attempt and for snapshots
                value = freeze(record.value) if self.copies else record.value
                runner.start(record.number, record.attempt, value)
            elif isinstance(effect, Cancel):
                runner.cancel(effect.number, effect.attempt)
            elif isinstance(effect, AskTimeout):
                self.calls.finish(effect.record, self._results_of_timeout(effect.record))
            else:
                let_pass(effect.error)
                raise self.error(effect.error, effect.record.value) from effect.error

    def _results_of_timeout(self, record: AsyncRecord) -> list:
        if self._timeout_handler is None:
            attempts = "" if record.attempt == 1 else f" in {record.attempt} attempts"
            error = TimeoutError(f"async_invoke gave no result within {self.calls.timeout_ms} ms{attempts}")
            raise self.error(error, record.value)
        value = record.value
        results = self.call(self._timeout_handler, value, record=value, role="timeout")
        return self.call(checked_results, results, "timeout", self.copies, record=value, role="timeout")

    def _retry_delay(
        self, record: AsyncRecord, results: Optional[list], error: Optional[BaseException]
    ) -> Optional[int]:
        value, strategy = record.value, self._strategy
        predicate, outcome = (self._result_predicate, results) if error is None else (self._exception_predicate, error)
        if predicate is None or not self.call(predicate, outcome, record=value, role="retry predicate"):
            return None
        if not self.call(strategy.can_retry, record.attempt, record=value, role="retry strategy"):
            return None
        return self.call(strategy.get_backoff_time_millis, record.attempt, record=value, role="retry strategy")


def _timeout_handler(function: Any) -> Optional[Callable[[Any], Any]]:
    """The user's own; None: a timeout fails the job."""
    handler = getattr(type(function), "timeout", None)
    if not isinstance(function, AsyncFunction) or handler is AsyncFunction.timeout:
        return None
    return function.timeout
