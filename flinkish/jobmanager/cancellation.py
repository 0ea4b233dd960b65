"""How long tasks that were told to end are waited for.

::

    idle ──begin──> WAITING ──interval over──> INTERRUPT (again and again)
                       └──timeout over──> KILL ──as long again──> GIVE_UP
    any ──end: all have ended──> idle

Invariant: what is begun has a deadline, unless ``timeout_ms`` is 0: then it waits for ever, as in Flink.

Source: Flink's ``TaskCanceler``, ``TaskInterrupter`` and ``TaskCancelerWatchDog``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional

from flinkish.jobmanager.recovery import FOR_EVER_MS


class CancellationStep(enum.Enum):
    INTERRUPT = "INTERRUPT"  # user code that still runs
    KILL = "KILL"  # the slots of what has not ended
    GIVE_UP = "GIVE_UP"  # waiting


@dataclass
class Cancellation:
    """``interval_ms`` 0: never interrupt.  ``timeout_ms`` 0: wait for ever."""

    interval_ms: int
    timeout_ms: int
    deadline_ms: Optional[int] = None
    interrupt_ms: int = FOR_EVER_MS  # when user code is interrupted next
    killed: bool = False

    @property
    def is_running(self) -> bool:
        return self.deadline_ms is not None

    def begin(self, now_ms: int) -> None:
        """Tasks have been told to end."""
        self.deadline_ms, self.killed = self.bound(now_ms), False
        self.interrupt_ms = now_ms + (self.interval_ms or FOR_EVER_MS)

    def bound(self, now_ms: int) -> int:
        """Until when what begins now may take."""
        return now_ms + (self.timeout_ms or FOR_EVER_MS)

    def end(self) -> None:
        """All have ended."""
        self.deadline_ms = None

    def tick(self, late_ms: int, now_ms: int) -> Optional[CancellationStep]:
        """What is to be done now.  ``late_ms``: of the JobManager itself, counts against nobody.

        >>> cancellation = Cancellation(interval_ms=10, timeout_ms=25)
        >>> cancellation.begin(0)
        >>> [step and step.name for step in (cancellation.tick(0, ms) for ms in (9, 10, 20, 25, 49, 50))]
        [None, 'INTERRUPT', 'INTERRUPT', 'KILL', 'INTERRUPT', 'GIVE_UP']
        """
        assert self.deadline_ms is not None, "nothing is waited for"
        self.deadline_ms += late_ms
        self.interrupt_ms += late_ms
        if now_ms < self.deadline_ms:
            if now_ms < self.interrupt_ms:
                return None
            self.interrupt_ms = now_ms + self.interval_ms
            return CancellationStep.INTERRUPT
        if self.killed:
            return CancellationStep.GIVE_UP
        self.killed, self.deadline_ms = True, now_ms + self.timeout_ms
        return CancellationStep.KILL
