"""process on two connected streams, keyed or not."""

from __future__ import annotations

from flinkish.operators.keyed_process import KeyedProcessOperatorBase
from flinkish.operators.process import ProcessOperatorBase, RecordContext
from flinkish.operators.timers import UnkeyedTimerService


class CoProcessOperator(ProcessOperatorBase):
    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        function = spec.operator.function
        self.processes = (self.own(function, "process_element1"), self.own(function, "process_element2"))
        self.timers = UnkeyedTimerService(environment.now_ms)
        self.context = RecordContext(self.timers)

    def process_element(self, value, timestamp, input_index=0):
        yield from self.process(self.processes[input_index], value, timestamp)

    def generate(self, code, value, timestamp, emit, input_index=0):
        self.generate_process(code, self.processes[input_index], value, timestamp, emit)

    def fire(self, watermark):
        self.current_watermark = self.timers.watermark = watermark
        return None


class KeyedCoProcessOperator(KeyedProcessOperatorBase):
    """Both inputs are keyed alike and share state and timers."""

    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        function = spec.operator.function
        self.processes = (self.own(function, "process_element1"), self.own(function, "process_element2"))

    def process_element(self, value, timestamp, input_index=0):
        self.select_key(value, input_index)
        yield from self.process(self.processes[input_index], value, timestamp)

    def generate(self, code, value, timestamp, emit, input_index=0):
        self.generate_current_key(code, value, input_index)
        self.generate_process(code, self.processes[input_index], value, timestamp, emit)
