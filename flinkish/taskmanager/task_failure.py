"""What the end of a subtask is called: the error that the JobManager hears, from whatever was raised."""

from __future__ import annotations

import traceback

from flinkish.common.user_traceback import (
    TRACEBACK_CHARACTERS_MAX,
    format_user_traceback,
    is_raised_by_user_code,
    without_middle,
)
from flinkish.errors import FlinkishError, InternalError, ResourceError, UnstableKeyError, UserFunctionError
from flinkish.messages.deployment import TaskDeploymentDescriptor
from flinkish.operators.user_errors import message_of


def as_failure(error: BaseException, name: str, descriptor: TaskDeploymentDescriptor) -> FlinkishError:
    """``error`` as that of the subtask ``name``, which was deployed by ``descriptor``."""
    if isinstance(error, UnstableKeyError) and "operator" not in error.fields:
        where = f'key_by behind operator "{name}"'
        return UnstableKeyError(error.what, where=where, why=error.why, do=error.do, **error.fields)
    if isinstance(error, FlinkishError):
        if not error.where:
            error.where = f'task "{name}"'
        return error
    if isinstance(error, MemoryError):
        return ResourceError(
            "a subtask ran out of memory",
            where=f'task "{name}"',
            why=f"its slot's process was refused more: {type(error).__name__}",
            do="give the executors more memory, or make the records and what the functions keep smaller",
        )
    if not isinstance(error, Exception) or is_raised_by_user_code(error):
        return _raised_by_user_code(error, descriptor)
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return InternalError(
        "a subtask failed",
        where=f'task "{name}"',
        why=f"{type(error).__name__}: {message_of(error)}",
        traceback_text=without_middle(text, TRACEBACK_CHARACTERS_MAX),
    )


def _raised_by_user_code(error: BaseException, descriptor: TaskDeploymentDescriptor) -> UserFunctionError:
    """For what operators let pass (KeyboardInterrupt, asyncio's CancelledError), which in a slot only user code
    raises, because signals go to the slot's own handlers; and for what a signal handler or a trace function of
    the user's raises while the engine is at work."""
    index, total = descriptor.execution.subtask_index, descriptor.parallelism
    failure = UserFunctionError(
        f'operator "{descriptor.task_name}" subtask {index} of {total} failed',
        traceback_text=format_user_traceback(error),
        operator=descriptor.task_name,
        subtask=index,
        exception_type=type(error).__qualname__,
        exception_message=message_of(error),
    )
    failure.__cause__ = error  # for who runs tasks in the test's own process
    return failure
