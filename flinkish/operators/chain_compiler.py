"""From the tree of a chain to its generated functions.

Functions of a chain:

* ``rows_…(values)`` and ``rows_…(values, timestamps)`` for each place where batches of rows come in: each
  input of the head, and what follows a columns-to-rows operator,
* ``drain_…(items)`` for each operator that fires (timers, windows): what follows it, for the items that
  it produces,
* ``rest_…(value, timestamp)`` where the chain is too deep for one function.

Those that may suspend are generators.  Within a function everything is inline, so what a writer has
fetched before the loop is used by nobody else meanwhile.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable, Iterable, Iterator, Optional

from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.partitioners import CustomPartitioner, KeyGroupPartitioner
from flinkish.operators.codegen import CodeWriter
from flinkish.operators.columns_to_rows import ColumnsToRowsOperator
from flinkish.operators.copying import freeze
from flinkish.operators.inlining import as_called
from flinkish.operators.node import Node, Target
from flinkish.operators.operator import Item
from flinkish.operators.sink import SinkFunctionOperator, SinkWriterOperator
from flinkish.operators.source import SourceOperator


class CompiledChain:
    """The functions, and how to find who is to blame for an exception in them."""

    def __init__(self, chain: Any, code: CodeWriter):
        self._chain = chain
        self._code = code
        self._rows: dict[tuple[int, int, bool], Callable[..., Any]] = {}
        self._drains: dict[int, Callable[..., Any]] = {}
        self.source_text = ""

    def rows(
        self, node: Node, input_index: int, values: list, timestamps: Optional[list]
    ) -> Optional[Iterator[None]]:
        """Run records into ``node`` (behind it, when it is a source); a generator if it may suspend."""
        if timestamps is None:
            return self._rows[id(node), input_index, False](values)
        return self._rows[id(node), input_index, True](values, timestamps)

    def drain(self, node: Node, items: Iterable[Item]) -> Optional[Iterator[None]]:
        return self._drains[id(node)](items)

    def forget(self) -> None:
        self._code.forget()

    def _generated_line(self, tb: Any) -> tuple[int, dict[str, Any]]:
        """The innermost line of the chain in a traceback, and its variables; 0 when there is none."""
        line, variables = 0, {}
        while tb is not None:
            if tb.tb_frame.f_code.co_filename == self._code.filename:
                line, variables = tb.tb_lineno, tb.tb_frame.f_locals
            tb = tb.tb_next
        return line, variables

    def user_error(self, error: BaseException) -> BaseException:
        """``error`` with the operator and the record named, if a line of the user's raised it."""
        # StopIteration that leaves a generator of the chain: Python made another error of it there.
        cause = error.__cause__ if isinstance(error.__cause__, StopIteration) else None
        line, variables = self._generated_line(None if cause is None else cause.__traceback__)
        if not line:
            line, variables = self._generated_line(error.__traceback__)
        blame = self._code.blame_of(line)
        if blame is None:
            return error
        if blame.results in variables:
            error = blame.operator.explain_results(error, variables[blame.results], blame.function)
        record = (variables[blame.record],) if blame.record in variables else ()
        if blame.arguments:
            arguments = [variables.get(name) for name in blame.arguments]  # None: a record without time
            error = as_called(error, blame.function, arguments)
        return blame.operator.error(error, *record, role=blame.role)


def compile_chain(chain: Any) -> CompiledChain:
    return _Compiler(chain).compile()


class _Compiler:
    def __init__(self, chain: Any):
        self.chain = chain
        self.copies = not chain.environment.object_reuse
        self.code = CodeWriter(chain.environment.task_name, chain.room)
        self._numbers = itertools.count(1)

    def compile(self) -> CompiledChain:
        result = CompiledChain(self.chain, self.code)
        rows: dict[tuple[int, int, bool], str] = {}
        direct: dict[tuple[int, int, bool], Callable[..., Any]] = {}
        drains: dict[int, str] = {}
        for node in self.chain.nodes:
            for timed in (False, True):
                for index in self._row_inputs(node):
                    key = (id(node), index, timed)
                    emit_batch = self._whole_batch(node)
                    if emit_batch is not None:
                        direct[key] = emit_batch
                    else:
                        rows[key] = self._write_rows(node, index, timed)
            if node.operator.fires:
                drains[id(node)] = self._write_drain(node)
        functions = self.code.build()
        result._rows = {key: functions[name] for key, name in rows.items()} | direct
        result._drains = {key: functions[name] for key, name in drains.items()}
        result.source_text = self.code.source_text
        return result

    def _row_inputs(self, node: Node) -> Iterable[int]:
        if node is self.chain.head:
            return range(max(1, self.chain.number_of_inputs))
        return (0,) if isinstance(node.operator, ColumnsToRowsOperator) else ()

    def _whole_batch(self, node: Node) -> Optional[Callable[..., Any]]:
        """`emit_batch` of the one writer behind a source, unless it runs user code for each record
        (whose errors should name the record)."""
        if not isinstance(node.operator, (SourceOperator, ColumnsToRowsOperator)):
            return None
        if len(node.main) != 1 or node.main[0].writer is None:
            return None
        if isinstance(node.main[0].partitioner, (KeyGroupPartitioner, CustomPartitioner)):
            return None
        emit_batch, operator = node.main[0].writer.emit_batch, node.operator
        return lambda values, timestamps=None: operator.call(emit_batch, values, timestamps, role="output")

    # ---- functions ------------------------------------------------------------------------------

    def _write_rows(self, node: Node, input_index: int, timed: bool) -> str:
        code = self.code
        name = f"rows_{next(self._numbers)}"
        value, time = code.variable("v"), code.variable("ts") if timed else None
        with code.function(name, "values, timestamps" if timed else "values"):
            records = f"{value}, {time} in zip(values, timestamps)" if timed else f"{value} in values"
            with code.block(f"for {records}:"):
                if _expands(node) and _reaches_output_directly(node):
                    code.spend()
                if isinstance(node.operator, SourceOperator):
                    self.emit(node, value, time, owned=True)
                else:
                    self._generate(node, value, time, input_index, owned=True)
        return name

    def _write_drain(self, node: Node) -> str:
        code = self.code
        name = f"drain_{next(self._numbers)}"
        value, time = code.variable("v"), code.variable("ts")
        with code.function(name, "items"):
            with code.block("for item in items:"):
                code.spend()
                with code.block("if item is None:"):
                    code.line("continue")
                code.line(f"{value}, {time} = item")
                emit = Emit(self, node, False)
                if node.operator.tagged_results:
                    emit.result(value, time)
                else:
                    emit(value, time)
        return name

    # ---- pieces ---------------------------------------------------------------------------------

    def emit(
        self, node: Node, value: str, time: Optional[str], owned: bool, tag: Optional[OutputTag] = None
    ) -> None:
        """What follows the output of ``node``.  ``owned``: nobody else can reach the value."""
        code, targets = self.code, node.consumers(tag)
        if not targets:
            if tag is not None:
                self._unclaimed(node, code.bind("tag", tag), value, time)
            else:
                code.line("pass")
            return
        convert = node.converter(tag)
        if convert is not None:
            with code.blame(node.operator, "output", value):
                code.convert(value, convert)
        if node.operator.keeps_emitted and not owned and self.copies:
            with code.blame(node.operator, "output", value):
                code.freeze(value)
            owned = True
        for target in targets[:-1]:
            copy, copy_owned = value, owned
            if self.copies:
                copy, copy_owned = code.variable("copy"), True
                code.line(f"{copy} = {value}")
                with code.blame(node.operator, "output", value):
                    code.freeze(copy)
            self._into(node, target, copy, time, copy_owned)
        self._into(node, targets[-1], value, time, owned)

    def _into(self, node: Node, target: Target, value: str, time: Optional[str], owned: bool) -> None:
        code = self.code
        if target.writer is not None:
            with code.blame(node.operator, target.role, value):
                if self.copies and not owned:
                    code.freeze(value)
                target.writer.generate(code, value, time)
            return
        child = target.node
        sink = isinstance(child.operator, (SinkWriterOperator, SinkFunctionOperator))
        if sink and self.copies and not owned and child.operator.keeps_values:
            with code.blame(node.operator, "output", value):
                code.freeze(value)
        if not code.deep:
            self._generate(child, value, time, 0, owned)
            return
        name = f"rest_{next(self._numbers)}"
        inner, inner_time = code.variable("v"), code.variable("ts") if time else None
        with code.function(name, inner if time is None else f"{inner}, {inner_time}"):
            self._generate(child, inner, inner_time, 0, owned)
        call = f"{name}({value if time is None else f'{value}, {time}'})"
        with code.set_down():
            if _expands(child):
                code.expand()
                call = f"yield from {call}"
            code.line(call)

    def _generate(
        self, node: Node, value: str, time: Optional[str], input_index: int, owned: bool
    ) -> None:
        node.operator.generate(self.code, value, time, Emit(self, node, owned), input_index)

    def result(self, node: Node, value: str, time: Optional[str]) -> None:
        """What follows something that a process function yielded: ``(tag, value)``, or a record."""
        code = self.code
        tag = code.variable("tag")
        if self.copies:
            with code.blame(node.operator, "output", value):
                code.freeze(value, tag)
        else:
            code.line(f"{tag} = None")
            output_tag = code.bind("output_tag", OutputTag)
            test = f"type({value}) is tuple and len({value}) == 2 and type({value}[0]) is {output_tag}"
            with code.block(f"if {test}:"):
                code.line(f"{tag}, {value} = {value}")
        with code.block(f"if {tag} is None:"):
            self.emit(node, value, time, owned=self.copies)
        side = code.variable("side")
        sides = [(tag_id, targets) for tag_id, targets in node.sides.items() if targets]
        with code.block("else:"):
            if not sides:
                self._unclaimed(node, tag, value, time)
                return
            code.line(f"{side} = {tag}.tag_id")
            word = "if"
            for tag_id, _ in sides:
                with code.block(f"{word} {side} == {tag_id!r}:"):
                    self.emit(node, value, time, owned=False, tag=OutputTag(tag_id))
                word = "elif"
            with code.block("else:"):
                self._unclaimed(node, tag, value, time)

    def _unclaimed(self, node: Node, tag: str, value: str, time: Optional[str]) -> None:
        """A side output that nobody has asked for."""
        code = self.code
        collect = self.chain.environment.collect_side_output
        if collect is None:
            code.line("pass")
            return
        with code.blame(node.operator, "output", value):
            frozen = f"{code.bind('freeze', freeze)}({value})"
            code.line(f"{code.bind('collect', collect)}({tag}.tag_id, {frozen}, {time})")


class Emit:
    """What an operator calls in `generate` where it emits.

    ``input_owned``: nobody but the record can reach the operator's input value; what it hands on as
    it is, is then owned too.  ``copies``: what is emitted, and somebody else can reach, is copied."""

    def __init__(self, compiler: _Compiler, node: Node, input_owned: bool):
        self._compiler, self._node, self.input_owned = compiler, node, input_owned
        self.copies = compiler.copies

    def __call__(
        self, value: str, timestamp: Optional[str], owned: bool = False, tag: Optional[OutputTag] = None
    ) -> None:
        self._compiler.emit(self._node, value, timestamp, owned, tag)

    def result(self, value: str, timestamp: Optional[str]) -> None:
        self._compiler.result(self._node, value, timestamp)


def _expands(node: Node) -> bool:
    """Whether a record that enters ``node`` may suspend."""
    return node.operator.expanding or any(
        target.node is not None and _expands(target.node) for target in node.targets
    )


def _reaches_output_directly(node: Node) -> bool:
    """Whether a record can reach a writer without being counted by an expanding operator."""
    if node.operator.expanding:
        return False
    return any(
        target.writer is not None or _reaches_output_directly(target.node) for target in node.targets
    )
