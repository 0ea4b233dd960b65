"""What a user is told while a program runs, besides errors and logs."""

from __future__ import annotations

import sys
import warnings
from types import FrameType
from typing import Callable, Optional

from flinkish.common.user_traceback import is_engine_file

_listener: Optional[Callable[[str], None]] = None


def listen(listener: Optional[Callable[[str], None]]) -> None:
    """From now on ``listener`` gets each notice of what takes long, one line without its end.

    None: nobody does, as in a program that only uses the library."""
    global _listener
    _listener = listener


def notify(text: str, unheard: Optional[Callable[[str], None]] = None) -> None:
    """Say what takes long.  ``unheard`` gets it where nobody listens."""
    tell = _listener or unheard
    if tell is not None:
        tell(text)


def users_frame() -> FrameType:
    """The innermost frame that is not the engine's; the outermost one where all are."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_engine_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def warn_user(text: str) -> None:
    """A UserWarning that shows the user's line, however deep in the engine it is found."""
    place = users_frame()
    warnings.warn_explicit(
        text,
        UserWarning,
        place.f_code.co_filename,
        place.f_lineno,
        module=place.f_globals.get("__name__"),
        registry=place.f_globals.setdefault("__warningregistry__", {}),
    )
