"""assign_timestamps_and_watermarks in the middle of a stream.

What comes from upstream ends here: event times, watermarks and idleness; only the last watermark
goes through.  Source: Flink's TimestampsAndWatermarksOperator.
"""

from __future__ import annotations

from typing import Any, Optional

from flinkish.common import options
from flinkish.messages.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from flinkish.operators.operator import RuntimeOperator, is_end
from flinkish.operators.watermarks import (
    EventTimeAssigner,
    checked_timestamp,
    checked_watermark,
    timestamp_caller,
)


class TimestampsAndWatermarksOperator(RuntimeOperator):
    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        strategy = spec.operator.watermark_strategy
        self.assign = timestamp_caller(strategy)
        self.assigner = self.call(EventTimeAssigner, strategy, self, role="watermark generator")
        self.interval_ms = options.read(
            environment.configuration, options.PIPELINE_AUTO_WATERMARK_INTERVAL
        )
        self.emitted = MIN_WATERMARK_MS
        self.idle = False
        self.pending: list[tuple[str, Any]] = []  # what the generator has emitted, not yet sent on
        self.flush_pending: Any = None  # set by the chain: sends on what is pending
        self._next_tick: Optional[int] = None
        #: A generator that may emit after any record: the loop must look.
        self.expanding = self.assigner.on_batch is None

    def open(self):
        super().open()
        if self.interval_ms:
            self._next_tick = self.environment.now_ms() + self.interval_ms

    # ---- WatermarkOutput, for the generator -----------------------------------------------------

    def emit_watermark(self, timestamp_ms: int) -> None:
        timestamp_ms = checked_watermark(timestamp_ms)
        if timestamp_ms > self.emitted:
            self.mark_active()
            self.emitted = timestamp_ms
            self.pending.append(("watermark", timestamp_ms))

    def mark_idle(self) -> None:
        if not self.idle:
            self.idle = True
            self.pending.append(("idle", True))

    def mark_active(self) -> None:
        if self.idle:
            self.idle = False
            self.pending.append(("idle", False))

    # ---- records --------------------------------------------------------------------------------

    def process_element(self, value, timestamp, input_index=0):
        if self.assign is not None:
            timestamp = self.call(self._assign, value, timestamp, record=value, role="timestamp assigner")
        yield from self.output.emit(value, timestamp)
        self.assigner.records += 1
        if self.assigner.on_batch is not None:
            if timestamp is not None:
                self.assigner.on_batch(timestamp)
            return
        event_time = MIN_WATERMARK_MS if timestamp is None else timestamp
        self.call(
            self.assigner.generator.on_event, value, event_time, self, record=value,
            role="watermark generator",
        )  # fmt: skip
        if self.pending:
            yield from self.flush_pending()

    def _assign(self, value, timestamp):
        return checked_timestamp(self.assign(value, timestamp))

    def generate(self, code, value, timestamp, emit, input_index=0):
        assigner = self.assigner
        bound = code.bind("assigner", assigner)
        if self.assign is not None:
            time = code.variable("ts")
            function, takes_both = self.spec.operator.watermark_strategy.timestamp_function()
            arguments = (value, str(timestamp)) if takes_both else (value,)
            code.assign(time, self, function, *arguments, record=value, role="timestamp assigner")
            with code.blame(self, "timestamp assigner", value):
                within = f"{MIN_WATERMARK_MS} < {time} <= {MAX_WATERMARK_MS}"
                with code.block(f"if type({time}) is not int or not {within}:"):
                    code.line(f"{time} = {code.bind('checked', checked_timestamp)}({time})")
            timestamp = time
        emit(value, timestamp, owned=emit.input_owned)
        if assigner.idle_timer is not None:
            code.line(f"{bound}.records += 1")
        if assigner.on_batch is not None:
            if timestamp is not None and assigner.makes_watermarks:
                largest, generator = code.local(self, "max_ts"), code.bind("generator", assigner.generator)
                code.before(f"{largest} = {generator}.max_timestamp")
                code.after(f"{generator}.max_timestamp = {largest}")
                known = f"{timestamp} is not None and " if self.assign is None else ""
                with code.block(f"if {known}{timestamp} > {largest}:"):
                    code.line(f"{largest} = {timestamp}")
            return
        event_time = str(MIN_WATERMARK_MS) if timestamp is None else timestamp
        if timestamp is not None and self.assign is None:
            event_time = f"{MIN_WATERMARK_MS} if {timestamp} is None else {timestamp}"
        with code.blame(self, "watermark generator", value):
            on_event = code.bind("on_event", assigner.generator.on_event)
            code.line(f"{on_event}({value}, {event_time}, {code.bind('operator', self)})")
        code.expand()
        with code.block(f"if {code.bind('operator', self)}.pending:"):
            with code.set_down():
                code.line(f"yield from {code.bind('flush_pending', self.flush_pending)}()")

    # ---- time -----------------------------------------------------------------------------------

    def forwards_watermark(self, watermark: int) -> bool:
        return is_end(watermark)

    def forwards_watermark_status(self, idle: bool) -> bool:
        return False

    def tick(self, now_ms: int) -> bool:
        """Let the generator emit if its interval is over; True when something is pending."""
        if self._next_tick is not None and now_ms >= self._next_tick:
            self._next_tick = now_ms + self.interval_ms
            active_ms = now_ms - self.environment.blocked_ms()
            self.call(self.assigner.on_periodic, active_ms, role="watermark generator")
        return bool(self.pending)

    @property
    def next_processing_time(self) -> Optional[int]:
        return self._next_tick
