"""Turns what user code raised into a UserFunctionError: the user's traceback first, then one line with
operator, subtask and record."""

from __future__ import annotations

from typing import Any

from flinkish.common.user_traceback import format_user_traceback
from flinkish.errors import FlinkishError, UnstableKeyError, UserFunctionError
from flinkish.operators.output import TaskEnvironment
from flinkish.state.key_encoding import with_operator

RECORD_CHARACTERS_MAX = 200


def user_error(
    error: BaseException, operator: str, environment: TaskEnvironment, role: str = "", *record: Any
) -> BaseException:
    """The error to raise instead of ``error``.

    Args:
        operator: name of the operator whose code raised.
        role: what it was doing when it was not processing a record: "open", "key selector" ...
        record: the record (or the timer's description), if there was one.
    """
    if isinstance(error, UnstableKeyError):
        if "operator" in error.fields:
            return error
        return with_operator(error, operator, environment.subtask_index)
    if isinstance(error, FlinkishError):
        return error
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
        error = error.__cause__  # raised in a loop of ours, which Python then renames
    shown = bounded_repr(record[0]) if record else None
    what = (
        f'operator "{operator}" subtask {environment.subtask_index} of {environment.parallelism} failed'
        + (f" in its {role}" if role else "")
        + (f" on record {shown}" if record else "")
    )
    return UserFunctionError(
        what,
        traceback_text=format_user_traceback(error),
        operator=operator,
        subtask=environment.subtask_index,
        record=shown,
        exception_type=type(error).__qualname__,
        exception_message=_message(error),
    )


def bounded_repr(value: Any) -> str:
    """``repr`` of at most 200 characters on one line that never fails."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__qualname__}, whose repr raised {type(error).__name__}>"
    if len(text) > RECORD_CHARACTERS_MAX:
        text = text[: RECORD_CHARACTERS_MAX - 4] + " ..."
    return " ".join(text.splitlines())


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:
        return f"<message raised {type(failure).__name__}>"
