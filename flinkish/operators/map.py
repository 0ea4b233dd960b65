"""map and project: one result for each record."""

from __future__ import annotations

from flinkish.operators.operator import RuntimeOperator


class StreamMap(RuntimeOperator):
    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        self.map = self.own(spec.operator.function, "map")

    def process_element(self, value, timestamp, input_index=0):
        if self.needs_key:
            self.select_key(value, input_index)
        yield from self.output.emit(self.call(self.map, value, record=value), timestamp)

    def generate(self, code, value, timestamp, emit, input_index=0):
        if self.needs_key:
            self.generate_current_key(code, value, input_index)
        result = code.variable("v")
        code.assign(result, self, self.map, value, record=value, once=True)
        emit(result, timestamp)
