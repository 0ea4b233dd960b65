"""The interpreted chain: operators one by one, record by record.  The reference for the generated
code, and the way to step through a job with a debugger (``flinkish.fused-chains: false``)."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Optional

from flinkish.datastream.output_tag import OutputTag
from flinkish.operators.copying import freeze
from flinkish.operators.node import Node, Target
from flinkish.operators.operator import Item, side_output
from flinkish.operators.sink import SinkFunctionOperator, SinkWriterOperator
from flinkish.operators.source import SourceOperator


class InterpretedChain:
    """Same interface as ``chain_compiler.CompiledChain``."""

    def __init__(self, chain: Any):
        self.chain = chain
        self.copies = not chain.environment.object_reuse
        self.budget = 0
        for node in chain.nodes:
            node.operator.output = InterpretedOutput(self, node)

    def rows(
        self, node: Node, input_index: int, values: list, timestamps: Optional[list]
    ) -> Iterator[None]:
        self.budget = self.chain.room()
        is_source = isinstance(node.operator, SourceOperator)
        for i, value in enumerate(values):
            timestamp = None if timestamps is None else timestamps[i]
            if self.chain.expanding:
                yield from self.spend()
            if is_source:
                yield from node.operator.output.emit(value, timestamp, owned=True)
            else:
                yield from node.operator.process_element(value, timestamp, input_index)

    def drain(self, node: Node, items: Iterable[Item]) -> Iterator[None]:
        self.budget = self.chain.room()
        output = node.operator.output
        for item in items:
            yield from self.spend()
            if item is None:
                continue
            value, timestamp = item
            if node.operator.tagged_results:
                yield from output.result(value, timestamp)
            else:
                yield from output.emit(value, timestamp)

    def spend(self) -> Iterator[None]:
        """One record of the budget; suspends first when it is used up."""
        while self.budget <= 0:
            yield
            self.budget = self.chain.room()
        self.budget -= 1

    def forget(self) -> None:
        """There is no code."""

    def user_error(self, error: BaseException) -> BaseException:
        return error  # operators have named the place already


class InterpretedOutput:
    """Where an operator emits."""

    def __init__(self, interpreter: InterpretedChain, node: Node):
        self._interpreter = interpreter
        self._node = node

    def expand(self) -> Iterator[None]:
        """Before each record that an expanding operator emits."""
        return self._interpreter.spend()

    def emit(
        self, value: Any, timestamp: Optional[int], owned: bool = False, tag: Optional[OutputTag] = None
    ) -> Iterator[None]:
        operator, copies = self._node.operator, self._interpreter.copies
        targets = self._node.consumers(tag)
        if not targets:
            if tag is not None:
                self._unclaimed(tag, value, timestamp)
            return
        convert = self._node.converter(tag)
        if convert is not None:
            value = operator.call(convert, value, record=value, role="output")
        if operator.keeps_emitted and not owned and copies:
            value, owned = self._freeze(value), True
        for target in targets[:-1]:
            copy = self._freeze(value) if copies else value
            yield from self._into(target, copy, timestamp, copies or owned)
        yield from self._into(targets[-1], value, timestamp, owned)

    def result(self, value: Any, timestamp: Optional[int]) -> Iterator[None]:
        """Something that a process function yielded."""
        tag = side_output(value)
        if tag is not None:
            yield from self.emit(value[1], timestamp, tag=tag)
        elif self._interpreter.copies:
            yield from self.emit(self._freeze(value), timestamp, owned=True)
        else:
            yield from self.emit(value, timestamp)

    def _into(self, target: Target, value: Any, timestamp: Optional[int], owned: bool) -> Iterator[None]:
        copies = self._interpreter.copies
        if target.writer is not None:
            if copies and not owned:
                value = self._freeze(value)
            self._node.operator.call(
                target.writer.emit, value, timestamp, record=value, role=target.role
            )
            return
        child = target.node.operator
        if isinstance(child, (SinkWriterOperator, SinkFunctionOperator)):
            if copies and not owned and child.keeps_values:
                value = self._freeze(value)
        yield from child.process_element(value, timestamp)

    def _freeze(self, value: Any) -> Any:
        return self._node.operator.call(freeze, value, record=value, role="output")

    def _unclaimed(self, tag: OutputTag, value: Any, timestamp: Optional[int]) -> None:
        collect = self._interpreter.chain.environment.collect_side_output
        if collect is not None:
            collect(tag.tag_id, self._freeze(value), timestamp)
