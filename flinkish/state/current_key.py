"""What stands for the current key where there is none.

State and timers put the current key into dicts, so a key that cannot be hashed is refused by the access itself, and an
access with a key pays nothing for it.  ``None`` is a key like any other.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, NoReturn

from flinkish.errors import UserError


class NoKey:
    """Nothing can be kept under it.

    Args:
        why, do: of the error.
    """

    __slots__ = ("_why", "_do")

    def __init__(self, why: str, do: str):
        self._why, self._do = why, do

    def __hash__(self) -> NoReturn:
        raise UserError("could not use keyed state or a timer", why=self._why, do=self._do)


#: Outside of a record and of a timer.
NO_KEY = NoKey(
    "no key is set: it was used outside of a keyed context, as open(), close(), initialize_state() and "
    "snapshot_state() are",
    "use it where a record or a timer is processed, as its state belongs to the key of that; what belongs to the "
    "subtask is operator state: context.get_operator_state_store() in initialize_state() of a CheckpointedFunction",
)


@contextlib.contextmanager
def without_key(backend: Any) -> Iterator[None]:
    """User code that runs between two records, or while one waits for room, has no key; the record has its own again.

    ``backend``: may be None."""
    if backend is None:
        yield
        return
    key, backend.current_key = backend.current_key, NO_KEY
    try:
        yield
    finally:
        backend.current_key = key
