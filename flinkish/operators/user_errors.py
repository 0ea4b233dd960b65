"""Turns what user code raised into a UserFunctionError: the user's traceback first, then one line with
operator, subtask and record."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Optional

from flinkish.common.user_traceback import (
    format_user_traceback,
    is_raised_by_user_code,
    let_pass,
    message_of,
)
from flinkish.connectors.spi import RecordError
from flinkish.errors import FlinkishError, UnstableKeyError, UserError, UserFunctionError
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
    if isinstance(error, RecordError) and error.__cause__ is not None:
        record, error = (error.record,), error.__cause__
    if isinstance(error, UnstableKeyError):
        if "operator" in error.fields:
            return error
        return with_operator(error, operator, environment.subtask_index)
    if isinstance(error, FlinkishError):
        return error
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
        error = error.__cause__  # raised in a loop of ours, which Python then renames
    shown = bounded_repr(record[0]) if record else None
    return _user_function_error(error, operator, environment, role, shown)


def travel_error(
    error: BaseException, operator: str, environment: TaskEnvironment, role: str
) -> BaseException:
    """The error to raise for a record that ``operator`` could not send or read, a UserError of
    `taskmanager.wire` with the reason as its cause: the user's traceback where code of the record's class
    raised, else the same four lines with the operator."""
    if not isinstance(error, UserError) or "operator" in error.fields:
        return error
    cause = error.__cause__
    if cause is not None and is_raised_by_user_code(cause):
        return _user_function_error(cause, operator, environment, role, error.fields.get("record"))
    where = f'operator "{operator}", subtask {environment.subtask_index} of {environment.parallelism}'
    fields = {**error.fields, "operator": operator}
    return type(error)(error.what, where=where, why=error.why, do=error.do, **fields)


def _user_function_error(
    error: BaseException, operator: str, environment: TaskEnvironment, role: str, shown: Optional[str]
) -> UserFunctionError:
    what = (
        f'operator "{operator}" subtask {environment.subtask_index} of {environment.parallelism} failed'
        + (f" in its {role}" if role else "")
        + (f" on record {shown}" if shown is not None else "")
    )
    return UserFunctionError(
        what,
        traceback_text=format_user_traceback(error),
        operator=operator,
        subtask=environment.subtask_index,
        record=shown,
        exception_type=type(error).__qualname__,
        exception_message=message_of(error),
    )


def bounded_repr(value: Any) -> str:
    """``repr`` of at most 200 characters on one line that never fails.

    Of text, bytes and plain containers no more is written than is shown: the ``repr`` of a record of
    60 MB takes 0.2 s and as much memory again.  Other classes write theirs in full."""
    try:
        text = _start_of_repr(value)
    except BaseException as error:
        let_pass(error)
        text = f"<{type(value).__qualname__}, whose repr raised {type(error).__name__}>"
    if len(text) > RECORD_CHARACTERS_MAX:
        text = text[: RECORD_CHARACTERS_MAX - 4] + " ..."
    return " ".join(text.splitlines())


class _Enough(Exception):
    """More has been written than is shown."""


def _start_of_repr(value: Any) -> str:
    """What ``repr(value)`` begins with: all of it, or more than is shown."""
    parts: list[str] = []
    written = 0
    around: set[int] = set()  # containers that are being written

    def add(text: str) -> None:
        nonlocal written
        parts.append(text)
        written += len(text)
        if written > RECORD_CHARACTERS_MAX:
            raise _Enough

    def write(value: Any) -> None:
        # By the method, so that a subclass with a repr of its own (an enum, a Row) is asked for it.
        method = type(value).__repr__
        if method in _TEXT_REPRS:
            long = len(value) > RECORD_CHARACTERS_MAX
            add(method(value[: RECORD_CHARACTERS_MAX + 1] if long else value))
        elif method in _BRACKETS and (method is not set.__repr__ or (type(value) is set and value)):
            opening, closing = _BRACKETS[method]
            if id(value) in around:
                add(f"{opening}...{closing}")
                return
            around.add(id(value))
            add(opening)
            if method is dict.__repr__:
                write_all(value.items(), write_pair)
            else:
                write_all(value, write)
            if method is tuple.__repr__ and len(value) == 1:
                add(",")
            add(closing)
            around.discard(id(value))
        else:
            add(repr(value))

    def write_all(values: Iterable[Any], write_one: Callable[[Any], None]) -> None:
        for index, one in enumerate(values):
            if index:
                add(", ")
            write_one(one)

    def write_pair(pair: tuple[Any, Any]) -> None:
        write(pair[0])
        add(": ")
        write(pair[1])

    try:
        write(value)
    except _Enough:
        pass
    return "".join(parts)


_TEXT_REPRS = (str.__repr__, bytes.__repr__)
_BRACKETS = {
    list.__repr__: "[]",
    tuple.__repr__: "()",
    dict.__repr__: "{}",
    set.__repr__: "{}",
}
