"""Raises TaskCancelled inside user code that hangs: the handler of the signal that a supervisor sends.

A cancelled task ends between two records, so a function that sleeps, waits for a socket or loops for ever
would keep its slot.  The exception is raised where the user's code is at work, or a library that it has
called; never in the middle of the engine's own bookkeeping.  There the signal does nothing: the task will
see by itself that it has been cancelled, and user code that only passed through the engine is met by the
next signal.
"""

from __future__ import annotations

import os
from types import FrameType
from typing import Any, Optional

from flinkish.common.user_traceback import is_engine_file, is_generated_file
from flinkish.errors import TaskCancelled

_OPERATORS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "operators") + os.sep


def interrupt_user_code(signum: int, frame: Optional[FrameType]) -> None:
    """To be installed by `signal.signal`; runs in the slot's only thread."""
    if runs_user_code(frame):
        raise TaskCancelled


def runs_user_code(frame: Any) -> bool:
    """Whether ``frame`` is of code that an operator has called: no frame of the engine lies inside it."""
    inner = frame
    while frame is not None and not is_engine_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or frame is inner:
        return False
    caller = frame.f_code.co_filename
    return is_generated_file(caller) or caller.startswith(_OPERATORS)
