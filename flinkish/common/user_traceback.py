"""Tracebacks of user code as text, without the engine's frames above it."""

from __future__ import annotations

import copy
import copyreg
import os
import pickle
import signal
import traceback
from types import TracebackType
from typing import Iterable, Iterator, Optional

from flinkish.errors import TaskCancelled

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_ENGINE = (_PACKAGE + os.sep, os.path.join(os.path.dirname(_PACKAGE), "spark_plugin") + os.sep)
_JOBS = os.path.join(_PACKAGE, "jobs") + os.sep  # runs in the engine like a user's
_CONNECTORS = os.path.join(_PACKAGE, "connectors") + os.sep
_TOOLS = tuple(str(tool.__file__) for tool in (copy, copyreg, pickle))
_CLOUDPICKLE = f"{os.sep}cloudpickle{os.sep}"  # by name: most who ask for a traceback need not import it
#: How the file names of generated chains begin.
GENERATED = "<flinkish chain "
_CHAINED_MAX = 20
#: What a failure carries at most: it goes over the wire, into logs and through Spark.
TRACEBACK_CHARACTERS_MAX = 64 * 1024
MESSAGE_CHARACTERS_MAX = 8 * 1024


def format_user_traceback(error: BaseException) -> str:
    """The traceback of ``error`` with the user's frames only, and so for each exception before it.

    One that no frame of the user's raised (over a result that cannot be iterated, say) shows the generated
    line, which names the operator, and the connector at work.  What the engine alone met while it was
    dealing with another error is left out unless it is the declared cause.  Of a text above
    `TRACEBACK_CHARACTERS_MAX` the middle is left out."""
    try:
        text = "".join(_shown(error, _CHAINED_MAX).format())
    except Exception as failure:  # a __str__ that raises must not hide the place
        frames = _folded(traceback.extract_tb(error.__traceback__))
        text = "".join(frames.format()) + f"{type(error).__qualname__} ({failure!r})\n"
    return without_middle(text, TRACEBACK_CHARACTERS_MAX)


def user_frames(frames: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Those that are neither the engine's nor of what it copies and pickles records with."""
    found, own = [], True
    for frame in frames:
        tool = frame.filename in _TOOLS or _CLOUDPICKLE in frame.filename
        own = is_engine_file(frame.filename) or (own and tool)
        if not own:
            found.append(frame)
    return found


def is_raised_by_user_code(error: BaseException) -> bool:
    """Whether code of the user's was at work when ``error`` was raised."""
    return bool(user_frames(_places(error.__traceback__)))


def without_middle(text: str, characters_max: int) -> str:
    """``text``, or its two ends and how much is missing between them.

    >>> without_middle("a" * 30 + "b" * 970, 60)
    'aaaaaaaaaa [... 980 characters left out ...] bbbbbbbbbb'
    """
    if len(text) <= characters_max:
        return text
    kept = max(0, characters_max - 40) // 2
    return f"{text[:kept]} [... {len(text) - 2 * kept} characters left out ...] {text[len(text) - kept:]}"


def message_of(error: BaseException) -> str:
    """``str(error)``, bounded; never fails."""
    try:
        return without_middle(str(error), MESSAGE_CHARACTERS_MAX)
    except BaseException as failure:
        let_pass(failure)
        return f"<message raised {type(failure).__name__}>"


def let_pass(error: BaseException) -> None:
    """Raise ``error`` again if it is not user code that raised it: Ctrl-C in a main program, where Python's
    own handler is in place (a slot has another), the cancelling of a task, and the closing of a suspended
    generator, which no frame below the one that caught it has raised.  For ``except BaseException``."""
    if isinstance(error, TaskCancelled):
        raise error
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raise error
    tb = error.__traceback__
    if isinstance(error, GeneratorExit) and tb is not None and tb.tb_next is None:
        raise error


def is_engine_file(file_name: str) -> bool:
    """Whether a frame of this file is the engine's, or of a chain that it generated."""
    return file_name.startswith((*_ENGINE, GENERATED)) and not file_name.startswith(_JOBS)


def is_generated_file(file_name: str) -> bool:
    """Whether the name is that of a generated chain."""
    return file_name.startswith(GENERATED)


def _shown(error: BaseException, chained_max: int) -> traceback.TracebackException:
    shown = traceback.TracebackException(type(error), error, error.__traceback__)
    cause, context = error.__cause__, error.__context__
    shown.stack = _folded(shown.stack, explained=cause is not None and is_raised_by_user_code(cause))
    if shown.__cause__ is not None and cause is not None:
        shown.__cause__ = _shown(cause, chained_max - 1) if chained_max else None
    if shown.__context__ is not None and context is not None:
        if not chained_max or not is_raised_by_user_code(context):
            shown.__context__ = None
        else:
            shown.__context__ = _shown(context, chained_max - 1)
    if getattr(shown, "exceptions", None):  # of an ExceptionGroup
        shown.exceptions = [_shown(part, chained_max - 1) for part in error.exceptions if chained_max]  # type: ignore[attr-defined]
    return shown


def _folded(stack: traceback.StackSummary, explained: bool = False) -> traceback.StackSummary:
    """``explained``: its cause has frames of the user's, so it needs none of ours."""
    kept = user_frames(stack)
    if not kept and not explained:
        generated = [frame for frame in stack if is_generated_file(frame.filename)]
        kept = generated[-1:] + [frame for frame in stack if frame.filename.startswith(_CONNECTORS)]
    return traceback.StackSummary.from_list(kept)


def _places(tb: Optional[TracebackType]) -> Iterator[traceback.FrameSummary]:
    """Without the text of the lines, which nobody has asked for yet."""
    while tb is not None:
        code = tb.tb_frame.f_code
        yield traceback.FrameSummary(code.co_filename, tb.tb_lineno, code.co_name, lookup_line=False)
        tb = tb.tb_next
