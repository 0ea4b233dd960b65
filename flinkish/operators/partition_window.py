"""All records of one subtask as a window that fires when the input has ended: map_partition, reduce, aggregate.

It gathers records, or one reduced value or accumulator; both are operator state, dealt out anew by a rescale
(reduced values and accumulators that meet in one subtask are merged).  Results leave before the last watermark, and
have no event time.  Watermarks are held back until then, since nothing comes out before.

Source: Flink's ``MapPartitionOperator``, ``PartitionReduceOperator``, ``PartitionAggregateOperator``.  They run
user code on a thread beside the task and lose what they have gathered with a failure.
"""

from __future__ import annotations

from typing import Any, Iterator, Optional

from flinkish.datastream.state import ListStateDescriptor
from flinkish.operators.copying import freeze
from flinkish.operators.operator import Item, RuntimeOperator, is_end

_CONTENTS: ListStateDescriptor = ListStateDescriptor("partition-contents")


class PartitionWindowOperator(RuntimeOperator):
    fires = True
    function_role = "map_partition"

    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        operator = spec.operator
        self.kind: str = operator.kind
        self.tagged_results = self.kind == "map"
        method = {"map": "map_partition", "reduce": "reduce", "aggregate": "add"}[self.kind]
        self.function = self.own(operator.function, method)
        self.aggregate: Any = operator.function  # an AggregateFunction, when that is the kind
        self.copies = not environment.object_reuse
        self.contents: list = []  # records, or at most one reduced value or accumulator

    # ---- checkpoints ----------------------------------------------------------------------------

    def initialize_state(self):
        super().initialize_state()
        self.state = self.operator_state.get_list_state(_CONTENTS)
        self.contents += self.state.get()
        if self.kind != "map":
            merge = self.function if self.kind == "reduce" else self.aggregate.merge
            while len(self.contents) > 1:
                last = self.contents.pop()
                self.contents[-1] = self.call(merge, self.contents[-1], last, role="merge")

    def snapshot_state(self, context):
        self.state.update(self.contents)
        return super().snapshot_state(context)

    # ---- records --------------------------------------------------------------------------------

    def process_element(self, value, timestamp, input_index=0):
        contents = self.contents
        if self.kind == "aggregate":
            if not contents:
                contents.append(self.call(self.aggregate.create_accumulator, record=value))
            contents[0] = self.call(self.function, value, contents[0], record=value)
        else:
            if self.copies:  # whoever emitted it may change it
                value = self.call(freeze, value, record=value)
            if self.kind == "map" or not contents:
                contents.append(value)
            else:
                contents[0] = self.call(self.function, contents[0], value, record=value)
        yield from ()

    def generate(self, code, value, timestamp, emit, input_index=0):
        contents, kept = code.bind("contents", self.contents), code.variable("acc")
        if self.kind == "aggregate":
            with code.blame(self, record=value):
                with code.block(f"if not {contents}:"):
                    create = code.bind("create_accumulator", self.aggregate.create_accumulator)
                    code.line(f"{contents}.append({create}())")
                code.line(f"{kept} = {contents}[0]")
                code.assign(f"{contents}[0]", self, self.function, value, kept, record=value)
            return
        if self.copies and not emit.input_owned:
            with code.blame(self, record=value):
                code.freeze(value)
        if self.kind == "map":
            code.line(f"{contents}.append({value})")
            return
        with code.block(f"if {contents}:"):
            code.line(f"{kept} = {contents}[0]")
            code.assign(f"{contents}[0]", self, self.function, kept, value, record=value)
        with code.block("else:"):
            code.line(f"{contents}.append({value})")

    # ---- the end --------------------------------------------------------------------------------

    def forwards_watermark(self, watermark: int) -> bool:
        return is_end(watermark)

    def fire(self, watermark: int) -> Optional[Iterator[Item]]:
        self.current_watermark = watermark
        return self._results() if is_end(watermark) else None

    def _results(self) -> Iterator[Item]:
        contents = list(self.contents)
        self.contents.clear()
        if self.kind == "reduce":
            for value in contents:
                yield value, None
        elif self.kind == "aggregate":
            function = self.aggregate
            if not contents:  # as in Flink, each subtask has a result
                contents = [self.call(function.create_accumulator)]
            yield self.call(function.get_result, *contents), None
        else:
            yield None
            for result in self.iterate(self.call(self.function, contents), function=self.function):
                yield result, None
