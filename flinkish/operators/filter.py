"""filter: keeps the records for which the function is true."""

from __future__ import annotations

from flinkish.operators.codegen import Blame
from flinkish.operators.operator import RuntimeOperator


class StreamFilter(RuntimeOperator):
    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        self.filter = self.own(spec.operator.function, "filter")

    def process_element(self, value, timestamp, input_index=0):
        if self.needs_key:
            self.select_key(value, input_index)
        if self.call(_truth, self.filter, value, record=value):
            yield from self.output.emit(value, timestamp)

    def generate(self, code, value, timestamp, emit, input_index=0):
        if self.needs_key:
            self.generate_current_key(code, value, input_index)
        blame = Blame(self, record=value, function=self.filter, arguments=(value,))
        with code.block(f"if {code.expression(self.name, self.filter, value)}:", blame):
            emit(value, timestamp)


def _truth(function, value):
    """``bool`` belongs to the user's code too: an array has no truth value."""
    return bool(function(value))
