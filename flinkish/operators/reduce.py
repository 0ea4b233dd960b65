"""reduce on a keyed stream: emits the new accumulator for each record, or in a batch job that of each key."""

from __future__ import annotations

from typing import Iterator, Optional

from flinkish.datastream.aggregations import check_of_first
from flinkish.operators.copying import freeze
from flinkish.operators.operator import Item, KeyedOperator

_MISSING = object()


class StreamGroupedReduce(KeyedOperator):
    """State holds the very object that is emitted, so it is always fixed at emission."""

    keeps_emitted = True

    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        self.reduce = self.own(spec.operator.function, "reduce")
        self.check_first = check_of_first(spec.operator.function)
        self.table = self.backend.table("_op_state")

    def process_element(self, value, timestamp, input_index=0):
        yield from self.output.emit(self.reduce_with(value), timestamp)

    def reduce_with(self, value):
        """The reference: the accumulator with ``value`` in it, put into the state."""
        key = self.select_key(value)
        current = self.table.get(key, _MISSING)
        if current is not _MISSING:
            value = self.call(self.reduce, current, value, record=value)
        elif self.check_first is not None:
            self.call(self.check_first, value, record=value)
        self.table[key] = value
        return value

    def generate(self, code, value, timestamp, emit, input_index=0):
        emit(self.generate_reduce(code, value, freezes=emit.copies), timestamp, owned=True)

    def generate_reduce(self, code, value, freezes):
        """``freezes``: the variable that is returned holds what may leave, not what the state holds."""
        key = (self.generate_current_key if self.needs_key else self.generate_key)(code, value)
        table, missing = code.bind("table", self.table), code.bind("missing", _MISSING)
        result = code.variable("v")
        with code.block(f"if ({result} := {table}.get({key}, {missing})) is {missing}:"):
            if self.check_first is not None:
                with code.blame(self, record=value):
                    code.line(f"{code.bind('check_first', self.check_first)}({value})")
            code.line(f"{table}[{key}] = {result} = {value}")
            if freezes:  # once a key, so a call will do
                with code.blame(self, "output", value):
                    code.line(f"{result} = {code.bind('freeze', freeze)}({result})")
        with code.block("else:"):
            code.assign(result, self, self.reduce, result, value, record=value, once=freezes)
            code.line(f"{table}[{key}] = {result}")
            if freezes:  # here, where the elements of a new tuple are known
                with code.blame(self, "output", result):
                    code.freeze(result)
        return result


class BatchGroupedReduce(StreamGroupedReduce):
    """The records of a key come together and in order of time; its result has the time of the last one.

    Source: Flink's ``BatchGroupedReduceOperator``, whose results have the last possible time instead."""

    fires = True

    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        self.time: Optional[int] = None

    def process_element(self, value, timestamp, input_index=0):
        self.reduce_with(value)
        self.time = timestamp
        yield from ()

    def generate(self, code, value, timestamp, emit, input_index=0):
        self.generate_reduce(code, value, freezes=False)
        code.line(f"{code.bind('operator', self)}.time = {timestamp}")

    def finish_key(self) -> Iterator[Item]:
        for value in self.table.values():
            yield value, self.time
