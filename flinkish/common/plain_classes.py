"""Which classes have objects that are only their fields, so that the wire and state may write the fields."""

from __future__ import annotations

import copyreg
import dataclasses
import enum
from typing import Any, Callable, Optional


def is_plain(kind: type) -> bool:
    """Whether pickle would take a tuple's elements or the ``__dict__``, and nothing else."""
    if own_pickling(kind):
        return False
    if kind.__bases__ == (tuple,):  # the __new__ and __getnewargs__ of a NamedTuple take and give its elements
        return kind.__dictoffset__ == 0
    if not is_made_plainly(kind) or any(vars(base).get("__slots__") for base in kind.__mro__):
        return False
    return kind.__dictoffset__ != 0


def own_pickling(kind: type) -> list[str]:
    """What makes its objects pickle in a way of their own, none of a plain class: methods, or ``copyreg``."""
    own = [name for name in _HOOKS if getattr(kind, name, None) is not getattr(object, name, None)]
    return own + (["copyreg"] if kind in copyreg.dispatch_table else [])


def is_made_plainly(kind: type) -> bool:
    """``object.__new__`` makes one, and no base that is written in C holds more (a dict has its items)."""
    if kind.__new__ is not object.__new__ or hasattr(kind, "__getnewargs__") or hasattr(kind, "__getnewargs_ex__"):
        return False
    return all(base.__flags__ & _HEAP_TYPE for base in kind.__mro__[:-1])


def is_told_by_name(kind: type) -> bool:
    """Whether the members of an Enum are told by their names, as in Flink: it is no str or number, whose values
    other code has, and no Flag, whose members are sums."""
    return (
        isinstance(kind, enum.EnumMeta)
        and not issubclass(kind, enum.Flag)
        and kind.__eq__ is object.__eq__
        and kind.__reduce_ex__ is enum.Enum.__reduce_ex__
    )


def member_names(kind: Any) -> tuple[str, ...]:
    """Of an Enum without aliases, whatever it shows as ``name`` and gives as an iterator."""
    return tuple(dict.fromkeys(member._name_ for member in kind.__members__.values()))


def default_maker(field: dataclasses.Field) -> Optional[Callable[[], Any]]:
    """Makes the default of a dataclass's field; None: it has none.

    A class that came by value, through cloudpickle itself, has a copy of ``dataclasses.MISSING``: which
    object it is says nothing then, its type does.
    """
    default = field.default
    if not isinstance(default, _MISSING_TYPE):
        return lambda: default
    if not isinstance(field.default_factory, _MISSING_TYPE):
        return field.default_factory
    return None


_MISSING_TYPE = type(dataclasses.MISSING)
_HOOKS = ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__")
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement
