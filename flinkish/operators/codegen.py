"""The code generator: one operator chain becomes one Python loop.

`CodeWriter` collects statements; operators and record writers add theirs with `line` and `block`,
name objects with `bind`, and say with `blame` whose fault an exception in those lines is.  The
result is a factory ``make(<bound objects>)`` that returns the functions of the chain as closures.

A generated function looks like this (map, filter, a flat_map, one writer)::

    def rows_0(values):
        writer_1.prepare_rows()                # `before` lines of the writer
        budget = room()
        for v1 in values:
            v2 = map_1(v1)
            if filter_1(v2):
                for v3 in flat_map_1(v2):      # an expanding loop: may suspend
                    while budget <= 0:
                        yield
                        budget = room()
                        writer_1.prepare_rows()
                    budget -= 1
                    values_1.append(v3)        # the open list of the writer's channel

Rules for those who write into it:

* A statement is one line; an exception is traced back by its line number.
* What is looked up once for a whole batch goes to `before`; it runs at the start of the function
  and again after each `yield`, because the task may seal buffers meanwhile.  What must be written
  back goes to `after`; it runs before each `yield` and at the end (not after an exception).
* Names come from `variable`, `local` and `bind`, so that they never collide.

Measured by ``python -m tests.benchmarks.chains`` (CPython 3.11, tuples of three atoms, best of 400
interleaved rounds on a shared two-core machine, spread of the ratios about 0.1), as ratios to a bare
loop that does the same by hand:

    ======================================  =====  ===================  ===========
    chain                                   fused  fused, object reuse  interpreted
    ======================================  =====  ===================  ===========
    map, filter, map                        1.4    1.0                  22
    keyed process, ValueState               3.1    2.9                  23
      against a loop with such a generator  1.1    1.0                  8
    reduce                                  2.0    1.2                  15
    window reduce                           1.05   1.05                 4.5
    ======================================  =====  ===================  ===========

What fused costs above object reuse is the look whether an emitted value can still change, 90-120 ns a
tuple (`operators.copying`); what a process function costs is its own generator and state methods.
"""

from __future__ import annotations

import builtins
import contextlib
import itertools
import keyword
import linecache
import re
import types
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Iterator, Optional

from flinkish.datastream.output_tag import OutputTag
from flinkish.operators.copying import ATOMS, INLINE_ELEMENTS_MAX, freeze
from flinkish.operators.inlining import inlined
from flinkish.operators.keys import key_expression, key_function

#: Python refuses more than 20 statically nested loops and 100 levels of indentation; a deeper chain
#: goes on in a function of its own.
LOOP_DEPTH_MAX = 12
INDENT_MAX = 60

#: Records that an expanding operator may produce in one go before the task gets its turn back.
BUDGET_MAX = 2048

_file_numbers = itertools.count(1)


@dataclass(frozen=True)
class Blame:
    """Whose code runs in a line: ``operator`` (anything with a ``name``), what it does there (empty:
    the operator's own function) and the variable that holds the record.  Where a line iterates over
    what ``function`` returned, ``results`` is the variable with that.  ``function(*arguments)``, of
    variables, is what the line does itself if it does not call it: then only the function can raise with the
    user's line."""

    operator: Any
    role: str = ""
    record: Optional[str] = None
    results: Optional[str] = None
    function: Any = None
    arguments: tuple[str, ...] = ()


@dataclass
class _Line:
    indent: int
    text: str
    blame: Optional[Blame]


@dataclass
class _Suspend:
    """Place for a `yield` with the function's `after` and `before` lines around it."""

    indent: int


@dataclass
class _Around:
    """Place for the function's `after` (or `before`) lines only, round a call that may suspend."""

    indent: int
    kind: str


@dataclass
class _Function:
    name: str
    parameters: str
    expanding: bool = False
    before: list[_Line] = field(default_factory=list)
    after: list[_Line] = field(default_factory=list)
    body: list[Any] = field(default_factory=list)
    indent: int = 0
    loops: int = 0
    locals: dict[tuple[int, str], str] = field(default_factory=dict)


class CodeWriter:
    """Collects the source of one generated file.

    Args:
        title: shown in the file name of tracebacks, e.g. the task's name.
        room: records that the outputs take now, at most ``BUDGET_MAX``.
    """

    def __init__(self, title: str, room: Callable[[], int]):
        self.title = title
        self.filename = f"<flinkish chain {next(_file_numbers)}: {title[:80]}>"
        self._names = itertools.count(1)
        self._bound: dict[str, Any] = {"room": room}
        self._bound_ids: dict[tuple[int, ...], str] = {}
        self._functions: list[_Function] = []
        self._stack: list[_Function] = []
        self._blame: Optional[Blame] = None
        self._blames: dict[int, Blame] = {}
        self._elements: dict[str, list[str]] = {}  # of variables that hold a new tuple, those of its elements
        self.source_text = ""

    # ---- text -----------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Add one statement at the current indentation."""
        function = self._stack[-1]
        function.body.append(_Line(function.indent, text, self._blame))

    @contextlib.contextmanager
    def block(self, header: str, blame: Optional[Blame] = None) -> Iterator[None]:
        """``header`` ends with a colon; what is written inside is indented, and must not be nothing.
        ``blame``: of the header alone."""
        function = self._stack[-1]
        function.body.append(_Line(function.indent, header, blame or self._blame))
        function.indent += 1
        loop = header.startswith(("for ", "while "))
        function.loops += loop
        try:
            yield
        finally:
            function.indent -= 1
            function.loops -= loop

    @contextlib.contextmanager
    def expanding_block(self, header: str, blame: Optional[Blame] = None) -> Iterator[None]:
        """A loop over what an operator produced from one record; suspends while there is no room."""
        with self.block(header, blame):
            self.spend()
            yield

    def spend(self) -> None:
        """One record of the budget; suspends first when it is used up."""
        self.expand()
        with self.block("while budget <= 0:"):
            function = self._stack[-1]
            function.body.append(_Suspend(function.indent))
        self.line("budget -= 1")

    def expand(self) -> None:
        """The current function becomes a generator."""
        self._stack[-1].expanding = True

    @contextlib.contextmanager
    def set_down(self) -> Iterator[None]:
        """Round a call that may emit or suspend by itself: what `before` lines hold is written back
        first and fetched again afterwards."""
        function = self._stack[-1]
        function.body.append(_Around(function.indent, "after"))
        yield
        function.body.append(_Around(function.indent, "before"))

    def before(self, text: str) -> None:
        """A statement for the start of the current function, repeated after each suspension.  The
        same text is written once."""
        self._once(self._stack[-1].before, text)

    def after(self, text: str) -> None:
        """A statement for the end of the current function, and before each suspension."""
        self._once(self._stack[-1].after, text)

    def _once(self, lines: list[_Line], text: str) -> None:
        if all(line.text != text for line in lines):
            lines.append(_Line(0, text, self._blame))

    @property
    def deep(self) -> bool:
        """Whether the rest of the chain must go on in a function of its own."""
        function = self._stack[-1]
        return function.loops >= LOOP_DEPTH_MAX or function.indent >= INDENT_MAX

    @contextlib.contextmanager
    def function(self, name: str, parameters: str) -> Iterator[_Function]:
        """What is written inside becomes the body of ``def name(parameters)``."""
        function = _Function(name, parameters)
        blame, self._blame = self._blame, None
        self._stack.append(function)
        try:
            yield function
        finally:
            self._stack.pop()
            self._blame = blame
        self._functions.append(function)

    # ---- names ----------------------------------------------------------------------------------

    def variable(self, hint: str = "v") -> str:
        """A new variable name."""
        return f"{_identifier(hint)}_{next(self._names)}"

    def local(self, owner: Any, hint: str) -> str:
        """The current function's one variable ``hint`` of ``owner``, for what `before` and `after` lines
        hold: several ways of a record may lead to ``owner``, and they must share it."""
        names = self._stack[-1].locals
        key = (id(owner), hint)
        if key not in names:
            names[key] = self.variable(hint)
        return names[key]

    def bind(self, hint: str, value: Any) -> str:
        """A name by which the generated code reaches ``value``: the same for the same object, and for
        the same method of it (``object.method`` is a new object each time)."""
        method = isinstance(value, types.MethodType)
        identity = (id(value.__self__), id(value.__func__)) if method else (id(value),)
        name = self._bound_ids.get(identity)
        if name is None:
            name = self.variable(hint)
            self._bound[name] = value  # keeps the object alive, so its id stays its own
            self._bound_ids[identity] = name
        return name

    @contextlib.contextmanager
    def blame(self, operator: Any, role: str = "", record: Optional[str] = None) -> Iterator[None]:
        """Exceptions in the lines written inside are the user's, in ``operator``."""
        outer, self._blame = self._blame, Blame(operator, role, record)
        try:
            yield
        finally:
            self._blame = outer

    # ---- pieces that several writers need -------------------------------------------------------

    def expression(self, hint: str, function: Any, *arguments: str) -> str:
        """The expression for ``function(*arguments)``, of variables: `blame` must know it."""
        expression = inlined(function, arguments, self.bind)
        return f"{self.bind(hint, function)}({', '.join(arguments)})" if expression is None else expression.text

    def assign(
        self,
        target: str,
        operator: Any,
        function: Any,
        *arguments: str,
        record: str,
        role: str = "",
        once: bool = False,
    ) -> None:
        """``target = function(*arguments)``, a function of the user's in ``operator``.  ``once``: target is a
        variable that nothing else is assigned to, so what is known of its value stays true."""
        expression = inlined(function, arguments, self.bind)
        blame = Blame(operator, role, record=record, function=function, arguments=arguments)
        outer, self._blame = self._blame, blame
        if expression is None:
            self.line(f"{target} = {self.bind(operator.name, function)}({', '.join(arguments)})")
        elif not once or expression.elements is None or len(expression.elements) > INLINE_ELEMENTS_MAX:
            self.line(f"{target} = {expression.text}")
        else:
            elements = [self.variable("e") for _ in expression.elements]
            for element, text in zip(elements, expression.elements):
                self.line(f"{element} = {text}")
            self.line(f"{target} = ({', '.join(elements)},)")
            self._elements[target] = elements
        self._blame = outer

    def convert(self, value: str, function: Any) -> None:
        """``value = function(value)``, a function of ours."""
        self._elements.pop(value, None)
        self.line(f"{value} = {self.bind('convert', function)}({value})")

    def freeze(self, value: str, tag: Optional[str] = None) -> None:
        """``value = freeze(value)``, with the common cases inline: see `operators.copying`.

        With ``tag`` (a variable's name), a pair ``(OutputTag, x)`` is taken apart first: the
        variable then holds the OutputTag and ``value`` is x as it was; else it holds None."""
        atoms, kind = self.bind("atoms", ATOMS), self.variable("kind")
        copy = f"{value} = {self.bind('freeze', freeze)}({value})"
        if tag is not None:
            self.line(f"{tag} = None")
        elements = self._elements.pop(value, None)
        # The types that the elements had last time are most often those that they have now, and an
        # `is` is cheaper than a look-up in a set (15 ns a pair).
        known = [self.variable("t") for _ in elements or range(INLINE_ELEMENTS_MAX)]
        self.before(f"{' = '.join(known)} = None")
        if elements is not None:
            self._freeze_elements(value, elements, known, atoms, copy, tag)
            return
        parts = [self.variable("e") for _ in known]
        with self.block(f"if ({kind} := type({value})) is tuple:"):
            word = "if"
            for count in [*range(2, INLINE_ELEMENTS_MAX + 1), 1]:
                test = f"{kind} == {count}" if word == "elif" else f"({kind} := len({value})) == {count}"
                with self.block(f"{word} {test}:"):
                    self.line(f"{', '.join(parts[:count])}, = {value}")
                    self._freeze_elements(value, parts[:count], known, atoms, copy, tag)
                word = "elif"
            with self.block("else:"):
                self.line(copy)
        with self.block(f"elif {kind} not in {atoms}:"):
            self.line(copy)

    def _freeze_elements(
        self, value: str, parts: list[str], known: list[str], atoms: str, copy: str, tag: Optional[str]
    ) -> None:
        pairs = list(zip(parts, known))
        with self.block(f"if {' or '.join(f'type({part}) is not {t}' for part, t in pairs)}:"):
            with self.block(f"if {' and '.join(f'type({part}) in {atoms}' for part in parts)}:"):
                self.line("; ".join(f"{t} = type({part})" for part, t in pairs))
            if tag is not None and len(parts) == 2:
                output_tag = self.bind("output_tag", OutputTag)
                with self.block(f"elif type({parts[0]}) is {output_tag}:"):
                    self.line(f"{tag}, {value} = {parts[0]}, {parts[1]}")
            with self.block("else:"):
                self.line(copy)

    def select_key(self, selector: Callable[[Any], Any], value: str) -> str:
        """Write the statement for the key of ``value``, as the selector gives it; the variable with it."""
        key, outer = self.variable("key"), self._blame
        if outer is not None:
            self._blame = replace(outer, function=key_function(selector), arguments=(value,))
        self.line(f"{key} = {key_expression(selector, value, self.bind)}")
        self._blame = outer
        return key

    def look_up_key(self, memo: Any, key: str, found: str) -> None:
        """``found = memo[key]``, another variable, where ``memo`` is a `state.key_groups.KeyMemo`."""
        name = self.bind("memo", memo)
        with self.block("try:"):
            with self.block(f"if ({found} := {name}.get({key})) is None:"):  # faster than the `[]` of a subclass of dict
                self.line(f"{found} = {name}[{key}]")
        with self.block("except (TypeError, ValueError):"):  # no hash: compute accepts or refuses it
            self.line(f"{found} = {name}.compute({key})")

    def canonical_key(
        self, selector: Callable[[Any], Any], value: str, memo: Any, typed: bool = False
    ) -> str:
        """Write the statements for the canonical key of ``value``, and return the variable that
        holds it.  ``memo`` is an `operators.keys.canonical_memo`.

        Without a declared type (``typed``), strings and ints are canonical as they are, so any number
        of them costs no miss of the memo (15 ns instead of 30 for a hit, 1,500 for a miss)."""
        key, kind, canonical = self.select_key(selector, value), self.variable("kind"), self.variable("key")
        if typed:
            self.look_up_key(memo, key, canonical)
            return canonical
        with self.block(f"if ({kind} := type({key})) is not str and {kind} is not int:"):
            self.look_up_key(memo, key, canonical)
            self.line(f"{key} = {canonical}")
        return key

    # ---- result ---------------------------------------------------------------------------------

    def build(self) -> dict[str, Callable[..., Any]]:
        """Compile all functions; by name."""
        parameters = ", ".join(self._bound) if self._bound else ""
        lines: list[_Line] = [_Line(0, f"def make({parameters}):", None)]
        for function in self._functions:
            lines += self._render(function)
        names = ", ".join(f"{function.name!r}: {function.name}" for function in self._functions)
        lines.append(_Line(1, f"return {{{names}}}", None))
        self._blames = {
            number: line.blame for number, line in enumerate(lines, 1) if line.blame is not None
        }
        self.source_text = "\n".join("    " * line.indent + line.text for line in lines) + "\n"
        code = compile(self.source_text, self.filename, "exec")
        namespace: dict[str, Any] = {"__builtins__": builtins, "__name__": "flinkish.generated"}
        exec(code, namespace)
        # mtime None keeps linecache.checkcache from dropping it: there is no such file.
        linecache.cache[self.filename] = (
            len(self.source_text), None, self.source_text.splitlines(True), self.filename
        )  # fmt: skip
        return namespace["make"](**self._bound)

    def forget(self) -> None:
        """The chain is closed: its source need not stay in `linecache`."""
        linecache.cache.pop(self.filename, None)

    def blame_of(self, line_number: int) -> Optional[Blame]:
        return self._blames.get(line_number)

    def _render(self, function: _Function) -> list[_Line]:
        room = ["budget = room()"] if function.expanding else []
        lines = [_Line(1, f"def {function.name}({function.parameters}):", None)]
        lines += [_Line(2, text, None) for text in room]
        lines += [_Line(2, line.text, line.blame) for line in function.before]
        for item in function.body:
            indent = item.indent + 2
            if isinstance(item, _Line):
                lines.append(_Line(indent, item.text, item.blame))
            elif isinstance(item, _Suspend):
                lines += [_Line(indent, line.text, line.blame) for line in function.after]
                lines.append(_Line(indent, "yield", None))
                lines += [_Line(indent, text, None) for text in room]
                lines += [_Line(indent, line.text, line.blame) for line in function.before]
            else:
                around = function.after if item.kind == "after" else function.before
                if item.kind == "before":
                    lines += [_Line(indent, text, None) for text in room]
                lines += [_Line(indent, line.text, line.blame) for line in around]
        lines += [_Line(2, line.text, line.blame) for line in function.after]
        if len(lines) == 1:
            lines.append(_Line(2, "pass", None))
        return lines


def _identifier(hint: str) -> str:
    name = re.sub(r"\W+", "_", hint).strip("_").lower()[:24] or "v"
    return f"v_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name
