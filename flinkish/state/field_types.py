"""Declared types of a record's fields as text, and whether values of one may be taken for values of another.

The text is an annotation in one spelling: ``Optional[int]``, ``"int | None"`` and ``Union[None, int]`` are
``int | None``, ``typing.List`` is ``list``, classes that are not built in have their module in front.
``Any`` stands for all that an annotation leaves open or that cannot be known: type variables, abstract
classes and protocols, and names that stand in an annotation as text and lead to nothing, as in a slot
those that the job's script has imported.  It fits everything, because a change that is not one must not be refused.

A type fits another when each of its values is one of the other: ``int`` fits ``int | None``, a class its base
class, ``list[int]`` fits ``list``.  A class that has moved, or has an alias at its old place, is the same class.
"""

from __future__ import annotations

import ast
import inspect
import keyword
import pkgutil
import sys
import types
import typing
from collections import ChainMap
from typing import Any, Mapping, Optional

ANY = "Any"
#: What text in an annotation may name although the slot has not what the job's script imports.
_TYPING = {
    name: getattr(typing, name)
    for name in (
        "Annotated", "Dict", "Final", "FrozenSet", "List", "Literal", "Optional", "Set", "Tuple", "Union"
    )
}  # fmt: skip


def field_types(cls: type, fields: tuple[str, ...]) -> tuple[str, ...]:
    """The type of each field of a dataclass or NamedTuple."""
    declared = {name: field.type for name, field in getattr(cls, "__dataclass_fields__", {}).items()}
    if not declared:
        declared = getattr(cls, "__annotations__", {})
    # The last class is object, whose module has the built-in names.
    modules = [vars(sys.modules[base.__module__]) for base in cls.__mro__ if base.__module__ in sys.modules]
    names = _Names(*modules, _TYPING, {"typing": typing})
    return tuple(_text(declared.get(name, Any), names) for name in fields)


class _Names(ChainMap):
    def __missing__(self, name: str) -> Any:
        return Any


def _text(annotation: Any, names: Mapping[str, Any], within: tuple[str, ...] = ()) -> str:
    """``within``: the texts that have led here, because a type may be defined by itself."""
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        if annotation in within:
            return ANY
        try:
            found = eval(annotation, {"__builtins__": {}}, names)
        except Exception:  # evaluating runs the user's code; a name may be missing, or be no type
            return ANY
        return _text(found, names, (*within, annotation))
    if annotation is None or annotation is type(None):
        return "None"
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Union or origin is types.UnionType:
        return _union([_text(arg, names, within) for arg in args])
    if origin is typing.Literal:
        return _union(["None" if arg is None else _name(type(arg)) for arg in args])
    if origin in (typing.Annotated, typing.Final):
        return _text(args[0], names, within)
    if isinstance(annotation, typing.NewType):
        return _text(annotation.__supertype__, names, within)
    name = _name(origin or annotation)
    if not args or name == ANY:
        return name
    listed = ("..." if arg is ... else _text(arg, names, within) for arg in args)
    return f"{name}[{', '.join(listed)}]"


def _union(texts: list[str]) -> str:
    return " | ".join(dict.fromkeys(texts))


def _name(cls: Any) -> str:
    if not isinstance(cls, type) or cls is object or cls is Any:
        return ANY
    if inspect.isabstract(cls) or getattr(cls, "_is_protocol", False):
        return ANY
    if typing.is_typeddict(cls):
        return "dict"
    if cls.__module__ == "builtins":
        return cls.__name__
    name = f"{cls.__module__}.{cls.__qualname__}"
    parts = name.split(".")
    return ANY if any(keyword.iskeyword(part) or not part.isidentifier() for part in parts) else name


def fits(old: str, new: str) -> bool:
    return old == new or _fits(ast.parse(old, mode="eval").body, ast.parse(new, mode="eval").body)


def _fits(old: ast.expr, new: ast.expr) -> bool:
    if isinstance(old, ast.BinOp):
        return _fits(old.left, new) and _fits(old.right, new)
    if isinstance(new, ast.BinOp):
        return _fits(old, new.left) or _fits(old, new.right)
    old_name, old_args = _parts(old)
    new_name, new_args = _parts(new)
    if ANY in (old_name, new_name):
        return True
    if not _is_a(old_name, new_name):
        return False
    if old_args is None or new_args is None or "..." in map(ast.unparse, (*old_args, *new_args)):
        return True
    return len(old_args) == len(new_args) and all(map(_fits, old_args, new_args))


def _parts(node: ast.expr) -> tuple[str, Optional[list[ast.expr]]]:
    if not isinstance(node, ast.Subscript):
        return ast.unparse(node), None
    return ast.unparse(node.value), node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def _is_a(old: str, new: str) -> bool:
    if old.rpartition(".")[2] == new.rpartition(".")[2]:
        return True
    try:
        return issubclass(_class(old), _class(new))
    except Exception:  # gone, and importing its module may run the user's code
        return False


def _class(name: str) -> Any:
    return pkgutil.resolve_name(name if "." in name else f"builtins.{name}")
