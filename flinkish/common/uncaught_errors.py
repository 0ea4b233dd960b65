"""How an error of ours is shown when nobody caught it: without the engine's frames.

``get_execution_environment`` calls `fold_engine_frames`, so a script shows the user's traceback first,
then one line with operator, subtask and record; IPython asks the error itself.  A broken rule of the
engine's own (InternalError) keeps all its frames: a bug report needs them.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from flinkish.common.user_traceback import is_engine_file
from flinkish.errors import FlinkishError, InternalError, UserFunctionError


def uncaught_error_lines(error: BaseException) -> list[str]:
    """What to print, one or more lines an item, without line ends."""
    if isinstance(error, UserFunctionError):
        return [str(error)]
    shown = traceback.TracebackException.from_exception(error)
    if isinstance(error, FlinkishError) and not isinstance(error, InternalError):
        kept = [frame for frame in shown.stack if not is_engine_file(frame.filename)]
        if not kept:
            return [str(error)]
        shown.stack = traceback.StackSummary.from_list(kept)
        shown.__cause__ = shown.__context__ = None  # told by `why`
    return "".join(shown.format()).rstrip("\n").split("\n")


def fold_engine_frames() -> None:
    """From now on, errors of ours that end the program or a notebook's cell are shown as above."""
    FlinkishError._render_traceback_ = uncaught_error_lines  # type: ignore[attr-defined]  # IPython's hook
    previous = sys.excepthook
    if getattr(previous, "folds_engine_frames", False):
        return

    def show(kind: type[BaseException], error: BaseException, tb: Any) -> None:
        if isinstance(error, FlinkishError):
            print("\n".join(uncaught_error_lines(error)), file=sys.stderr)
        else:
            previous(kind, error, tb)

    show.folds_engine_frames = True  # type: ignore[attr-defined]
    sys.excepthook = show
