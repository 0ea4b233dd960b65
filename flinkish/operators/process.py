"""process on a stream without keys, and what all process operators share: contexts and results."""

from __future__ import annotations

from typing import Any, Optional

from flinkish.datastream.functions import KeyedProcessFunction, ProcessFunction
from flinkish.datastream.time_domain import TimeDomain
from flinkish.operators.flat_map import results_block
from flinkish.operators.operator import RuntimeOperator
from flinkish.operators.timers import UnkeyedTimerService


class RecordContext(ProcessFunction.Context):
    """One object for all records of an operator; ``time`` is set for each."""

    def __init__(self, timers: Any):
        self.time: Optional[int] = None
        self._timers = timers

    def timer_service(self):
        return self._timers

    def timestamp(self):
        return self.time


class KeyedContext(KeyedProcessFunction.OnTimerContext):
    """For records and, in another object, for timers; then ``domain`` is set."""

    def __init__(self, timers: Any, backend: Any):
        self.time: Optional[int] = None
        self.domain: Optional[TimeDomain] = None
        self._timers = timers
        self._backend = backend

    def timer_service(self):
        return self._timers

    def timestamp(self):
        return self.time

    def get_current_key(self):
        return self._backend.current_key

    def time_domain(self):
        return self.domain


class ProcessOperatorBase(RuntimeOperator):
    """Results of a process function: any number, main or side output.

    What it emits is fixed at once, also for a chained neighbour, because it may be part of state.
    """

    expanding = True
    keeps_emitted = True
    tagged_results = True
    function_role = "process"
    context: Any

    def process(self, function, value, timestamp, context=None):
        """The reference: one call of a process function for a record.  ``context`` None: ``self.context``."""
        context = context or self.context
        context.time = timestamp
        results = self.call(function, value, context, record=value)
        for result in self.iterate(results, value, function=function):
            yield from self.output.expand()
            yield from self.output.result(result, timestamp)

    def generate_process(self, code, function, value, timestamp, emit, context=None):
        context = code.bind("ctx", context or self.context)
        if timestamp is None:
            code.before(f"{context}.time = None")
        else:
            code.line(f"{context}.time = {timestamp}")
        with results_block(code, self, function, f"{value}, {context}", value) as result:
            emit.result(result, timestamp)


class ProcessOperator(ProcessOperatorBase):
    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        self.function = self.own(spec.operator.function, "process_element")
        self.timers = UnkeyedTimerService(environment.now_ms)
        self.context = RecordContext(self.timers)

    def process_element(self, value, timestamp, input_index=0):
        yield from self.process(self.function, value, timestamp)

    def generate(self, code, value, timestamp, emit, input_index=0):
        self.generate_process(code, self.function, value, timestamp, emit)

    def fire(self, watermark):
        self.current_watermark = self.timers.watermark = watermark
        return None
