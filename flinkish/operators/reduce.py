"""reduce on a keyed stream: emits the new accumulator for each record."""

from __future__ import annotations

from flinkish.operators.operator import KeyedOperator

_MISSING = object()


class StreamGroupedReduce(KeyedOperator):
    """State holds the very object that is emitted, so it is always fixed at emission."""

    keeps_emitted = True

    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        self.reduce = self.own(spec.operator.function, "reduce")
        self.table = self.backend.table("_op_state")

    def process_element(self, value, timestamp, input_index=0):
        key = self.select_key(value)
        current = self.table.get(key, _MISSING)
        if current is not _MISSING:
            value = self.call(self.reduce, current, value, record=value)
        self.table[key] = value
        yield from self.output.emit(value, timestamp)

    def generate(self, code, value, timestamp, emit, input_index=0):
        key = (self.generate_current_key if self.needs_key else self.generate_key)(code, value)
        table, missing = code.bind("table", self.table), code.bind("missing", _MISSING)
        result = code.variable("v")
        with code.block(f"if ({result} := {table}.get({key}, {missing})) is {missing}:"):
            code.line(f"{result} = {value}")
        with code.block("else:"):
            code.assign(result, self, self.reduce, result, value, record=value)
        code.line(f"{table}[{key}] = {result}")
        emit(result, timestamp)
