"""Tracebacks of user code as text, without the engine's frames above it."""

from __future__ import annotations

import os
import traceback
from types import FrameType, TracebackType
from typing import Optional

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ENGINE = (_PACKAGE + os.sep, os.path.join(os.path.dirname(_PACKAGE), "spark_plugin") + os.sep)
_JOBS = os.path.join(_PACKAGE, "jobs") + os.sep  # runs in the engine like a user's
#: How the file names of generated chains begin.
GENERATED = "<flinkish chain "
_CHAINED_MAX = 20
#: What a failure carries at most: it goes over the wire, into logs and through Spark.
TRACEBACK_CHARACTERS_MAX = 64 * 1024
MESSAGE_CHARACTERS_MAX = 8 * 1024


def format_user_traceback(error: BaseException) -> str:
    """The traceback of ``error`` from the user's first frame on, and so for each exception before it.

    One that no frame of the user's raised (over a result that cannot be iterated, say) begins with the
    generated line, which shows the operator.  What the engine alone met while it was dealing with
    another error is left out unless it is the declared cause.  Of a text above `TRACEBACK_CHARACTERS_MAX`
    the middle is left out."""
    try:
        text = "".join(_shown(error, _CHAINED_MAX).format())
    except Exception as failure:  # a __str__ that raises must not hide the place
        text = "".join(traceback.format_tb(_kept(error))) + f"{type(error).__qualname__} ({failure!r})\n"
    return without_middle(text, TRACEBACK_CHARACTERS_MAX)


def without_middle(text: str, characters_max: int) -> str:
    """``text``, or its two ends and how much is missing between them.

    >>> without_middle("a" * 30 + "b" * 970, 60)
    'aaaaaaaaaa [... 980 characters left out ...] bbbbbbbbbb'
    """
    if len(text) <= characters_max:
        return text
    kept = max(0, characters_max - 40) // 2
    return f"{text[:kept]} [... {len(text) - 2 * kept} characters left out ...] {text[len(text) - kept:]}"


def is_engine_file(file_name: str) -> bool:
    """Whether a frame of this file is the engine's, or of a chain that it generated."""
    return file_name.startswith((*_ENGINE, GENERATED)) and not file_name.startswith(_JOBS)


def is_generated_file(file_name: str) -> bool:
    """Whether the name is that of a generated chain."""
    return file_name.startswith(GENERATED)


def _shown(error: BaseException, chained_max: int) -> traceback.TracebackException:
    shown = traceback.TracebackException(type(error), error, _kept(error))
    cause, context = error.__cause__, error.__context__
    if shown.__cause__ is not None and cause is not None:
        shown.__cause__ = _shown(cause, chained_max - 1) if chained_max else None
    if shown.__context__ is not None and context is not None:
        if not chained_max or _first_user_frame(context.__traceback__) is None:
            shown.__context__ = None
        else:
            shown.__context__ = _shown(context, chained_max - 1)
    return shown


def _kept(error: BaseException) -> Optional[TracebackType]:
    first = _first_user_frame(error.__traceback__)
    if first is not None:
        return first
    kept = error.__traceback__
    while kept is not None and kept.tb_next is not None and not _is_generated(kept.tb_frame):
        kept = kept.tb_next
    return kept


def _is_generated(frame: FrameType) -> bool:
    return is_generated_file(frame.f_code.co_filename)


def _first_user_frame(tb: Optional[TracebackType]) -> Optional[TracebackType]:
    while tb is not None:
        if not is_engine_file(tb.tb_frame.f_code.co_filename):
            return tb
        tb = tb.tb_next
    return None
