"""flat_map: any number of results for each record."""

from __future__ import annotations

import contextlib
import inspect

from flinkish.operators.codegen import Blame
from flinkish.operators.operator import RuntimeOperator


class StreamFlatMap(RuntimeOperator):
    expanding = True
    function_role = "flat_map"

    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        self.flat_map = self.own(spec.operator.function, "flat_map")

    def process_element(self, value, timestamp, input_index=0):
        if self.needs_key:
            self.select_key(value, input_index)
        results = self.call(self.flat_map, value, record=value)
        for result in self.iterate(results, value, function=self.flat_map):
            yield from self.output.expand()
            yield from self.output.emit(result, timestamp)

    def generate(self, code, value, timestamp, emit, input_index=0):
        if self.needs_key:
            self.generate_current_key(code, value, input_index)
        with results_block(code, self, self.flat_map, value, value) as result:
            emit(result, timestamp)


@contextlib.contextmanager
def results_block(code, operator, function, arguments, record):
    """The loop over what ``function(arguments)`` returns; gives the variable of one result.  None
    stands for no result.  A generator function never returns None, so it needs no test."""
    call = f"{code.bind(operator.name, function)}({arguments})"
    result = code.variable("v")
    if inspect.isgeneratorfunction(function):
        with code.expanding_block(f"for {result} in {call}:", Blame(operator, record=record)):
            yield result
        return
    results = code.variable("results")
    with code.blame(operator, record=record):
        code.line(f"{results} = {call}")
    blame = Blame(operator, record=record, results=results, function=function)
    with code.block(f"if {results} is not None:"):
        with code.expanding_block(f"for {result} in {results}:", blame):
            yield result
