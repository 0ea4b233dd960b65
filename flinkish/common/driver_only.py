"""A slot knows that it is one, so what would start a job from inside a job is refused there."""

from __future__ import annotations

from flinkish.errors import InvalidJobError

__all__ = ["check_in_driver", "this_is_slot"]

_slot_id = ""


def this_is_slot(slot_id: str) -> None:
    """Said once, by a slot's process, before it runs user code."""
    global _slot_id
    _slot_id = slot_id


def check_in_driver(what: str) -> None:
    """``what``: it would do, for the error.

    Raises:
        InvalidJobError: this process is a slot.
    """
    if _slot_id:
        raise InvalidJobError(
            f"could not {what} inside a job",
            where=f"slot {_slot_id}",
            why="this code runs in a slot, as part of a job; each slot would start a Spark of its own",
            do="do it in the program that calls execute(), and give functions plain values",
        )
