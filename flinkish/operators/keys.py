"""Key selectors, as operators and record writers use them."""

from __future__ import annotations

import keyword
import operator
from typing import Any, Callable, Optional

from flinkish.datastream.fields import FieldSelector
from flinkish.errors import UnstableKeyError
from flinkish.operators.inlining import inlined
from flinkish.state.key_encoding import canonical_key
from flinkish.state.key_groups import KeyMemo


def key_function(selector: Any) -> Callable[[Any], Any]:
    """The callable of a key selector: a `KeySelector` has ``get_key``."""
    return getattr(selector, "get_key", selector)


def key_expression(selector: Any, value: str, bind: Callable[[str, Any], str]) -> str:
    """Python expression for the key of the variable ``value``: that of the selector where it can be read
    (`operators.inlining`), else a call.  ``bind`` names an object for the code.

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
    if (expression := inlined(function, [value], bind)) is not None:
        return expression.text
    call = f"{bind('key_of', function)}({value})"
    if type(selector) is FieldSelector and type(selector.field) in (int, str):
        kind = "tuple" if type(selector.field) is int else "dict"
        return f"{value}[{selector.field!r}] if type({value}) is {kind} else {call}"
    return call


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


def canonical_memo(key_type: Any = None, classes: Optional[dict[type, None]] = None) -> KeyMemo:
    """``memo[key]`` is the canonical key, of the declared type if there is one; ``classes`` as for `KeyMemo`."""
    return KeyMemo(key_converter(key_type), classes=classes)


def _same(key: Any) -> Any:
    return key
