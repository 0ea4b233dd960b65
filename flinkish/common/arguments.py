"""Refuses an argument of a wrong type in the call that got it, not in a slot that uses it later."""

from __future__ import annotations

import reprlib
from typing import Any, Union

from flinkish.errors import InvalidJobError

_IN_WORDS = {int: "an int", str: "a text"}


def check_argument(
    value: Any, kinds: Union[type, tuple[type, ...]], call: str, parameter: str, do: str = ""
) -> Any:
    """``value`` when it is of one of ``kinds``; ints of NumPy are ints, True and False are not.

    Args:
        call: the method as the user wrote it, ``"from_sequence()"``.
        parameter: its name.
        do: what to give instead; "": what ``kinds`` says.
    Raises:
        InvalidJobError: it is of another type.

    >>> check_argument(5, int, "from_sequence()", "start")
    5
    """
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if not isinstance(value, bool) or bool in kinds:
        if isinstance(value, kinds):
            return value
        if int in kinds and hasattr(value, "__index__") and not isinstance(value, type):
            return value.__index__()
    wanted = " or ".join(_IN_WORDS.get(kind, f"a {kind.__name__}") for kind in kinds)
    given = f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"
    raise InvalidJobError(
        f"{call} cannot use {reprlib.repr(value)} as {parameter}",
        why=f"it is {given}, not {wanted}",
        do=do or f"give {wanted}",
    )
