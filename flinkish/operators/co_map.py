"""map and flat_map on two connected streams.  A co-map's None is no result, as in PyFlink."""

from __future__ import annotations

from flinkish.operators.flat_map import results_block
from flinkish.operators.operator import RuntimeOperator


class CoStreamMap(RuntimeOperator):
    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        function = spec.operator.function
        self.maps = (self.own(function, "map1"), self.own(function, "map2"))

    def process_element(self, value, timestamp, input_index=0):
        if self.needs_key:
            self.select_key(value, input_index)
        result = self.call(self.maps[input_index], value, record=value)
        if result is not None:
            yield from self.output.emit(result, timestamp)

    def generate(self, code, value, timestamp, emit, input_index=0):
        if self.needs_key:
            self.generate_current_key(code, value, input_index)
        result = code.variable("v")
        code.assign(result, self, self.maps[input_index], value, record=value, once=True)
        with code.block(f"if {result} is not None:"):
            emit(result, timestamp)


class CoStreamFlatMap(RuntimeOperator):
    expanding = True

    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        function = spec.operator.function
        self.flat_maps = (self.own(function, "flat_map1"), self.own(function, "flat_map2"))

    def process_element(self, value, timestamp, input_index=0):
        if self.needs_key:
            self.select_key(value, input_index)
        flat_map = self.flat_maps[input_index]
        results = self.call(flat_map, value, record=value)
        for result in self.iterate(results, value, function=flat_map):
            yield from self.output.expand()
            yield from self.output.emit(result, timestamp)

    def generate(self, code, value, timestamp, emit, input_index=0):
        if self.needs_key:
            self.generate_current_key(code, value, input_index)
        with results_block(code, self, self.flat_maps[input_index], value, value) as result:
            emit(result, timestamp)
