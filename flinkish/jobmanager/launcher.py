"""How slots come to life: what the JobManager asks of Spark, or of the local machine."""

from __future__ import annotations

import abc
from typing import Optional, Sequence

from flinkish.errors import FlinkishError
from flinkish.messages.launch import SlotLaunch


class Launcher(abc.ABC):
    """Starts supervisors, which start slots.

    One object serves one JobManager.  Its methods are called on the JobManager's thread, except
    ``stop``, and return at once, except ``stop``.
    """

    @abc.abstractmethod
    def capacity(self) -> Optional[int]:
        """Slots that the cluster can ever have; None: unknown, or it grows."""

    @abc.abstractmethod
    def launch(self, launches: Sequence[SlotLaunch]) -> None:
        """Start these supervisors, in the background.  Called again, with a new lease, only after ``alive`` has
        said False; with the same lease only for those that ``take_ended`` has named, or for more of them."""

    @abc.abstractmethod
    def stop(self, timeout_ms: int) -> None:
        """End what runs and wait for it, at most ``timeout_ms``, then kill it.

        Supervisors have been sent StopSupervisor before.  Called from any thread; a second call
        does nothing."""

    @abc.abstractmethod
    def alive(self) -> bool:
        """Whether a launch is waiting or running."""

    def take_ended(self) -> Sequence[tuple[int, FlinkishError]]:
        """Supervisors (by ``task_index``) that have ended alone since the last call, and why; the others
        of the launch go on."""
        return ()

    def abandon(self, tasks: Sequence[int]) -> None:
        """Kill what carries these supervisors (by ``task_index``), if it still runs: nothing has been heard of
        them for the heartbeat timeout.  Their end is told as any other.  Does nothing where they are threads of
        this process."""

    @abc.abstractmethod
    def failure(self) -> Optional[FlinkishError]:
        """Why the last launch has ended, when it has failed."""

    @abc.abstractmethod
    def describe_waiting(self) -> str:
        """What a launch that has not started everywhere waits for; empty: nothing, or it is not known."""

    @abc.abstractmethod
    def advertised_hosts(self) -> list[str]:
        """Names or addresses of this machine that supervisors try, in order."""

    @abc.abstractmethod
    def bind_host(self) -> str:
        """Address that the JobManager listens on."""
