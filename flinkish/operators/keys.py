"""Key selectors, as operators and record writers use them."""

from __future__ import annotations

import itertools
import keyword
import operator
import types
from typing import Any, Callable, Iterator, Optional

from flinkish.datastream.fields import FieldSelector
from flinkish.errors import UnstableKeyError
from flinkish.state.key_encoding import canonical_key
from flinkish.state.key_groups import KeyMemo


def key_function(selector: Any) -> Callable[[Any], Any]:
    """The callable of a key selector: a `KeySelector` has ``get_key``."""
    return getattr(selector, "get_key", selector)


def key_expression(selector: Any, value: str, bind: Callable[[str, Any], str]) -> str:
    """Python expression for the key of the variable ``value``: that of the fields where the selector takes
    only fields, else a call.  ``bind`` names an object for the code.

    >>> key_expression(operator.itemgetter(0), "v", None)
    'v[0]'
    >>> key_expression(operator.itemgetter(0, "b"), "v", None)
    "(v[0], v['b'])"
    >>> key_expression(lambda record: record.user.name, "v", None)
    'v.user.name'
    """
    if type(selector) is operator.itemgetter:
        fields = selector.__reduce__()[1]
        if all(type(field) in (int, str) for field in fields):
            parts = [f"{value}[{field!r}]" for field in fields]
            return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
    if type(selector) is operator.attrgetter:
        names = selector.__reduce__()[1]
        if len(names) == 1 and all(map(_is_name, names[0].split("."))):
            return f"{value}.{names[0]}"
    function = key_function(selector)
    if type(function) is types.FunctionType and (fields_only := _expression_of_fields(function, value)):
        return fields_only
    call = f"{bind('key_of', function)}({value})"
    if type(selector) is FieldSelector and type(selector.field) in (int, str):
        kind = "tuple" if type(selector.field) is int else "dict"
        return f"{value}[{selector.field!r}] if type({value}) is {kind} else {call}"
    return call


def _expression_of_fields(function: types.FunctionType, value: str) -> Optional[str]:
    """What ``function`` returns for ``value``, where that is only fields of it (``lambda r: r[0]``,
    ``lambda r: (r.user, r["day"])``): a call costs as much as the rest of a keyed emit (40 ns).

    Found by comparing: the function is such an expression if that compiles to the very same code."""
    code = function.__code__
    if code.co_argcount != 1 or code.co_flags & _OTHER_PARAMETERS or code.co_freevars or code.co_cellvars:
        return None
    argument = code.co_varnames[0]
    if len(code.co_varnames) > 1 or len(code.co_names) + len(code.co_consts) > _FIELDS_MAX:
        return None
    fields = [f".{name}" for name in code.co_names]
    fields += [f"[{constant!r}]" for constant in code.co_consts if type(constant) in (int, str)]
    for parts in _field_tuples(fields):
        for form in ("lambda {0}: {1}", "def f({0}): return {1}"):
            text = ", ".join([argument + part for part in parts])
            compiled = compile(form.format(argument, f"({text})" if len(parts) > 1 else text), "", "exec")
            other = next(c for c in compiled.co_consts if type(c) is types.CodeType)
            if _does(other) == _does(code):
                text = ", ".join([value + part for part in parts])
                return f"({text})" if len(parts) > 1 else text
    return None


_FIELDS_MAX = 5  # a None among the constants counts
_OTHER_PARAMETERS = 0x04 | 0x08 | 0x20 | 0x80 | 0x200  # *args, **kwargs, and all that is suspended


def _field_tuples(fields: list[str]) -> Iterator[tuple[str, ...]]:
    """One field, a field of a field, and two or three fields."""
    pairs = list(itertools.product(fields, repeat=2))
    yield from ((field,) for field in fields)
    yield from ((first + second,) for first, second in pairs)
    yield from pairs
    yield from itertools.permutations(fields, 3)


def _does(code: types.CodeType) -> tuple:
    constants = tuple((type(constant), constant) for constant in code.co_consts if constant is not None)
    return code.co_code, constants, code.co_names


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def key_converter(key_type: Any) -> Callable[[Any], Any]:
    """From a canonical key to that of the declared type: with LONG declared, "7" is refused or becomes
    7 as the type says.  Writer and operator must both use it, or a key's state is elsewhere."""
    if key_type is None:
        return _same
    convert = key_type.convert

    def convert_key(key: Any) -> Any:
        try:
            return canonical_key(convert(key))
        except (TypeError, ValueError) as error:
            raise UnstableKeyError(
                f"a key is not of its declared type {key_type}",
                why=f"the key selector gave {key!r:.200}, a {type(key).__qualname__}: {error}",
                do="declare the type that the selector gives, or leave key_type out",
            ) from error

    return convert_key


def canonical_memo(key_type: Any = None) -> KeyMemo:
    """``memo[key]`` is the canonical key, of the declared type if there is one."""
    return KeyMemo(key_converter(key_type))


def _same(key: Any) -> Any:
    return key
