"""Which part of a pickle cannot be read here although it could be written elsewhere, and why.

`read_leniently` reads all the same: what cannot be made (its module is missing, its ``__setstate__`` or
``__reduce__`` raises) becomes an `Unreadable`, which takes whatever is done to it.  The rest of the object
is as it was, so `pickling_culprit` finds the way to the `Unreadable` like one to an object that does not
pickle.
"""

from __future__ import annotations

import io
import pickle
import traceback
from typing import Any, Callable, Optional

from flinkish.common.user_traceback import message_of, user_frames

# The reader in Python, because that in C cannot go on after an error.
_Reader: Any = getattr(pickle, "_Unpickler")


class Unreadable:
    """Stands for what could not be made.  ``name``: of its class or function, where that is known."""

    def __init__(self, error: BaseException, name: str):
        self.error, self.__qualname__ = error, name

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UnreadableFound(self)

    def _take(self, *arguments: Any, **keywords: Any) -> Unreadable:
        return self

    __call__ = __setitem__ = append = extend = add = update = __setstate__ = _take


class UnreadableFound(Exception):
    """Raised out of a pickler that meets an `Unreadable`."""

    def __init__(self, unreadable: Unreadable):
        super().__init__(reason(unreadable.error))
        self.unreadable = unreadable


class _LenientReader(_Reader):
    dispatch = dict(_Reader.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except BaseException as error:  # an import runs the user's code
            return Unreadable(error, f"{module}.{name}")

    def _make(self, load: Callable[[Any], None], taken: int) -> None:
        """Run ``load``, which takes so many things off the stack and puts one there."""
        depth, things = len(self.stack) - taken, self.stack[-taken:]
        known = _unreadable_in(things)
        error: Optional[BaseException] = None
        if known is None or known is not things[0]:
            try:
                load(self)
                return
            except BaseException as raised:
                error = raised
        name = getattr(things[0], "__qualname__", type(things[0]).__qualname__)
        del self.stack[depth:]
        self.stack.append(known or Unreadable(error, name))  # type: ignore[arg-type]

    def load_reduce(self) -> None:
        self._make(_Reader.load_reduce, 2)

    def load_newobj(self) -> None:
        self._make(_Reader.load_newobj, 2)

    def load_newobj_ex(self) -> None:
        self._make(_Reader.load_newobj_ex, 3)

    def load_build(self) -> None:
        self._make(_Reader.load_build, 2)

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex
    dispatch[pickle.BUILD[0]] = load_build


def _unreadable_in(things: Any, depth: int = 3) -> Optional[Unreadable]:
    """Where making a thing fails because of one that it is made of, that one is to be named (a class
    because of its base)."""
    for thing in things:
        if isinstance(thing, Unreadable):
            return thing
        if depth and isinstance(thing, (tuple, list)):
            found = _unreadable_in(thing, depth - 1)
            if found is not None:
                return found
    return None


def read_leniently(data: bytes) -> Any:
    """The object of a pickle of which some part cannot be read.  Only for bytes of a peer that has proved the
    secret."""
    return _LenientReader(io.BytesIO(data)).load()


def reason(error: BaseException) -> str:
    """What was raised, in one line, and where in the user's code."""
    lines = message_of(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")
    frames = user_frames(traceback.extract_tb(error.__traceback__))
    if not frames or frames[-1].filename.startswith("<"):
        return text
    return f"{text} ({frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name})"
