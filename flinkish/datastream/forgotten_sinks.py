"""Tells who forgot ``env.execute()``: sinks that were added and never ran.

An environment in a function is gone when the function ends, and it is there that execute() is missed
most.  So what waits is noted here by a small record that outlives its environment and does not keep it
alive; a record exists only while sinks wait.
"""

from __future__ import annotations

import atexit
import os
import sys
from dataclasses import dataclass
from typing import Optional

from flinkish.common.notices import users_frame

__all__ = ["SinksToRun", "forget_waiting_sinks", "report_forgotten_sinks"]

_waiting: "dict[SinksToRun, None]" = {}  # in order of their first sink


@dataclass(eq=False)
class SinksToRun:
    """Of one environment.

    ``place``: file and line that made the environment.  ``in_program``: that is in the script that
    runs, not in a library, a test or a notebook."""

    place: str = ""
    in_program: bool = False
    count: int = 0
    process: int = 0

    @classmethod
    def of_caller(cls) -> "SinksToRun":
        frame = users_frame()
        names = frame.f_globals
        return cls(
            f"{frame.f_code.co_filename}:{frame.f_lineno}",
            names.get("__name__") == "__main__" and "__file__" in names,
        )

    def add(self) -> None:
        self.count += 1
        self.process = os.getpid()
        _waiting[self] = None

    def clear(self) -> None:
        """They run, or were given up."""
        self.count = 0
        _waiting.pop(self, None)


def report_forgotten_sinks(of_program_only: bool = False) -> None:
    """Print a line to stderr for each environment whose sinks never ran, once.

    ``of_program_only``: leave out environments that the running script did not make itself."""
    for sinks in list(_waiting):
        count = sinks.count
        mine = sinks.process == os.getpid()  # not inherited by fork
        sinks.clear()
        if mine and (sinks.in_program or not of_program_only):
            were = "1 sink was" if count == 1 else f"{count} sinks were"
            print(
                f"warning: {were} added and never ran: call env.execute()\n  where: the environment of "
                f"{sinks.place}",
                file=sys.stderr,
            )


def forget_waiting_sinks() -> None:
    """Say nothing about those that wait now."""
    for sinks in list(_waiting):
        sinks.clear()


def _at_exit() -> None:
    failure: Optional[BaseException] = getattr(sys, "last_value", None)  # set when the program failed
    if failure is None:
        report_forgotten_sinks(of_program_only=True)


atexit.register(_at_exit)
