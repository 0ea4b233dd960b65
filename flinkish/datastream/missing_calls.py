"""What to say of a method that another call must come before, as in ``a.join(b).where(key).apply(function)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

from flinkish.errors import MissingCallError

__all__ = ["WithMissingCalls"]


class WithMissingCalls:
    """Base of the streams and of what stands between the calls that lead to one."""

    #: How a program comes to the object.
    _made_by = ""
    #: Method that it does not have -> (why, what to do).
    _missing_calls: Mapping[str, tuple[str, str]] = {}

    if not TYPE_CHECKING:  # a type checker would take every name for known

        def __getattr__(self, name: str) -> Any:
            if name in self._missing_calls:
                why, do = self._missing_calls[name]
                raise MissingCallError(f"{type(self).__name__} has no {name}()", where=self._made_by, why=why, do=do)
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=self)
