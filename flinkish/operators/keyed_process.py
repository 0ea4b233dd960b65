"""process on a keyed stream: state and timers of the record's key."""

from __future__ import annotations

from typing import Any, Iterator, Optional

from flinkish.datastream.time_domain import TimeDomain
from flinkish.operators.operator import Item, KeyedOperator
from flinkish.operators.process import KeyedContext, ProcessOperatorBase
from flinkish.operators.timers import TimerQueue


class KeyedProcessOperatorBase(KeyedOperator, ProcessOperatorBase):
    """Timers of process functions."""

    fires = True

    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        function = spec.operator.function
        self.on_timer = getattr(function, "on_timer", None)
        self.context = KeyedContext(self.timers, self.backend)
        self.timer_context = KeyedContext(self.timers, self.backend)

    def fire_event_timers(self, watermark: int) -> Iterator[Item]:
        return self._fire(self.timers.event_time, watermark, TimeDomain.EVENT_TIME)

    def fire_processing_timers(self, limit: int) -> Iterator[Item]:
        return self._fire(self.timers.processing_time, limit, TimeDomain.PROCESSING_TIME)

    def _fire(self, queue: TimerQueue, limit: int, domain: TimeDomain) -> Iterator[Item]:
        """Records that a processing-time timer emits have no event time, as in Flink."""
        backend, context, on_timer = self.backend, self.timer_context, self.on_timer
        context.domain = domain
        event_time = domain is TimeDomain.EVENT_TIME
        for timestamp, key in queue.fire(limit):
            yield None
            if on_timer is None:
                continue
            backend.current_key = key
            context.time = timestamp
            record_time: Optional[int] = timestamp if event_time else None
            about = _Timer(timestamp, key, domain)
            results = self.call(on_timer, timestamp, context, record=about, role="on_timer")
            if results is None:
                continue
            for result in self.iterate(results, about, "on_timer"):
                yield result, record_time


class KeyedProcessOperator(KeyedProcessOperatorBase):
    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        self.function = self.own(spec.operator.function, "process_element")

    def process_element(self, value, timestamp, input_index=0):
        self.select_key(value)
        yield from self.process(self.function, value, timestamp)

    def generate(self, code, value, timestamp, emit, input_index=0):
        self.generate_current_key(code, value)
        self.generate_process(code, self.function, value, timestamp, emit)


class _Timer:
    """Stands for the record in the error of a timer."""

    __slots__ = ("timestamp", "key", "domain")

    def __init__(self, timestamp: int, key: Any, domain: TimeDomain):
        self.timestamp, self.key, self.domain = timestamp, key, domain

    def __repr__(self) -> str:
        return f"<{self.domain.name.lower()} timer {self.timestamp} of key {self.key!r}>"
