"""Which call of the program's code has raised when values were unpickled.

The reader in C does not say it, and bytes that are damaged raise the same kinds of errors.  So what could not be read
is read once more, by the reader in Python, which notes what it was about.
"""

from __future__ import annotations

import contextlib
import enum
import io
import pickle
import reprlib
from dataclasses import dataclass
from typing import Any, Callable, Optional

_Find = Callable[[str, str, Callable[[str, str], Any]], Any]
_MAKES_RECORDS = "flinkish.state.serializers"


@dataclass(frozen=True)
class FailedCall:
    """``what`` fails, the ``call`` that has raised, and what to ``do``."""

    what: str
    call: str
    do: str


def failed_call(data: Any, find: _Find) -> Optional[FailedCall]:
    """None: no code of the program has raised; the bytes are damaged.

    Args:
        data: of a pickle that could not be read.
        find: see `LayoutReader.find`.
    """
    retrace = _Retrace(data, find)
    with contextlib.suppress(Exception):  # of the user's code, or of the damage
        retrace.load()
    return retrace.failed


_PythonUnpickler: Any = getattr(pickle, "_Unpickler")


class _Retrace(_PythonUnpickler):
    dispatch = dict(_PythonUnpickler.dispatch)

    def __init__(self, data: Any, find: _Find):
        super().__init__(io.BytesIO(data))
        self._find = find
        self.failed: Optional[FailedCall] = None

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._find(module, name, super().find_class)
        except Exception:  # of a module that is imported
            what = f"{module}.{name} cannot be imported"
            self.failed = FailedCall(what, f"the import of {module}", "correct the module")
            raise

    def _make(self, load: Callable[[Any], None], taken: int, explain: Callable[..., FailedCall]) -> None:
        things = self.stack[-taken:]
        try:
            load(self)
        except Exception:
            if len(things) == taken:
                self.failed = explain(*things)
            raise

    def _fill(self, load: Callable[[Any], None], container_at: Optional[int], keys: slice) -> None:
        """``container_at``: on the stack; None: it lies below the mark."""
        things, below = list(self.stack), self.metastack[-1:]
        try:
            load(self)
        except Exception:
            containers = (below[0] if below else [])[-1:] if container_at is None else things[container_at:][:1]
            self.failed = _explain_filling(containers, things[keys])
            raise


def _explain_call(function: Any, arguments: Any, keywords: Any = None) -> FailedCall:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module == _MAKES_RECORDS:
        return FailedCall("its records cannot be made", "the class of a record", "correct the class")
    name = f"{module}.{name}" if module and name else _shown(function)
    shown = ", ".join([*map(_shown, arguments), *(f"{key}={_shown(value)}" for key, value in (keywords or {}).items())])
    if isinstance(function, enum.EnumMeta):
        return FailedCall(
            f"{name} has no member {shown} any more",
            f"{name}({shown})",
            f"keep the member, or give {name} a classmethod _missing_(cls, value) that returns the one in its place",
        )
    if isinstance(function, type):
        do = f"correct {name} (its __new__, __init__ or what it imports)"
        return FailedCall(f"{name} cannot be made", f"{name}({shown})", do)
    return FailedCall(f"{name} cannot be called", f"{name}({shown})", f"correct {name}, or what it imports")


def _explain_state(made: Any, state: Any) -> FailedCall:
    name = _class_name(made)
    what = f"{name} cannot take what it was saved with"
    how = "__setstate__" if hasattr(made, "__setstate__") else "setting the attributes"
    do = f"correct {name}: it must take what its older versions gave"
    return FailedCall(what, f"{how} of {name} with {_shown(state)}", do)


def _explain_filling(containers: list, keys: list) -> Optional[FailedCall]:
    for key in map(_unhashable, keys):
        if key is not None:
            name = _class_name(key)
            do = f"give {name} the __hash__ that it had"
            return FailedCall(f"{name} has no hash any more", f"__hash__ of {name}", do)
    if containers and type(containers[0]) not in (dict, list, set):
        name = _class_name(containers[0])
        what = f"{name} cannot take what it was saved with"
        return FailedCall(what, f"filling a {name}", f"correct {name}: it must take what its older versions held")
    return None


def _unhashable(key: Any) -> Any:
    """The part of a key that has no hash; None: it has one."""
    try:
        hash(key)
    except Exception:  # of the user's class
        parts = key if isinstance(key, tuple) else ()
        return next((found for found in map(_unhashable, parts) if found is not None), key)
    return None


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _shown(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except Exception:  # of the user's class
        return f"<{_class_name(value)}>"


def _watch(opcode: bytes, watch: Callable[..., None], *arguments: Any) -> None:
    load = _PythonUnpickler.dispatch[opcode[0]]
    _Retrace.dispatch[opcode[0]] = lambda self: watch(self, load, *arguments)


_watch(pickle.REDUCE, _Retrace._make, 2, _explain_call)
_watch(pickle.NEWOBJ, _Retrace._make, 2, _explain_call)
_watch(pickle.NEWOBJ_EX, _Retrace._make, 3, _explain_call)
_watch(pickle.BUILD, _Retrace._make, 2, _explain_state)
_watch(pickle.SETITEM, _Retrace._fill, -3, slice(-2, -1))
_watch(pickle.SETITEMS, _Retrace._fill, None, slice(0, None, 2))
_watch(pickle.ADDITEMS, _Retrace._fill, None, slice(None))
_watch(pickle.FROZENSET, _Retrace._fill, None, slice(None))
_watch(pickle.APPEND, _Retrace._fill, -2, slice(0))
_watch(pickle.APPENDS, _Retrace._fill, None, slice(0))
