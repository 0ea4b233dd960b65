"""Common conditions for another try of an asynchronous call."""

from __future__ import annotations

from typing import Any, Optional

__all__ = ["empty_result_predicate", "exception_type_predicate", "has_exception_predicate"]


def empty_result_predicate(result: Optional[list[Any]]) -> bool:
    """The call gave nothing."""
    return not result


def has_exception_predicate(error: Optional[BaseException]) -> bool:
    """The call failed."""
    return error is not None


def exception_type_predicate(error: BaseException, expected_error_type: type) -> bool:
    """The call failed in one way."""
    return isinstance(error, expected_error_type)
