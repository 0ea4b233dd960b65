"""Slots as processes of this machine, without Spark: for MiniCluster."""

from __future__ import annotations

import logging
import threading
from typing import Any, Mapping, Optional, Sequence

from flinkish.common import options
from flinkish.errors import FlinkishError, InternalError
from flinkish.jobmanager.launcher import Launcher
from flinkish.messages.launch import SlotLaunch
from flinkish.shell.supervisor import run_supervisor

log = logging.getLogger(__name__)


def local_configuration(slots: int, configuration: Optional[Mapping[str, Any]] = None) -> dict[str, Any]:
    """One supervisor for all slots of this machine: they are forked from one process, so that it imports once what
    they need."""
    return {**(configuration or {}), options.NUM_TASK_SLOTS.key: slots}


class LocalLauncher(Launcher):
    """One thread per supervisor.  It lives as long as its slots, because the parent-death signal of
    a slot process follows the thread that forked it.

    Args:
        slots: how many the cluster has.
    """

    def __init__(self, slots: int):
        self._slots = slots
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failure: Optional[FlinkishError] = None

    def capacity(self) -> Optional[int]:
        return self._slots

    def launch(self, launches: Sequence[SlotLaunch]) -> None:
        self._failure = None
        self._stop.clear()
        self._threads = [
            threading.Thread(
                target=self._supervise,
                args=(launch,),
                name=f"flinkish supervisor {launch.task_index}",
                daemon=True,
            )
            for launch in launches
        ]
        for thread in self._threads:
            thread.start()

    def _supervise(self, launch: SlotLaunch) -> None:
        try:
            reason = run_supervisor(launch, stop=self._stop.is_set)
            log.info("supervisor ended task=%d reason=%r", launch.task_index, reason)
        except FlinkishError as error:
            self._fail(error)
        except Exception as error:
            log.exception("supervisor failed task=%d", launch.task_index)
            self._fail(
                InternalError(
                    f"supervisor {launch.task_index} failed", why=f"{type(error).__name__}: {error}"
                )
            )

    def _fail(self, error: FlinkishError) -> None:
        """One lost supervisor ends the launch, as one lost task ends a barrier stage."""
        self._failure = self._failure or error
        self._stop.set()

    def stop(self, timeout_ms: int) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout_ms / 1000)
            if thread.is_alive():
                log.warning("supervisor did not end thread=%s timeout_ms=%d", thread.name, timeout_ms)

    def alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def failure(self) -> Optional[FlinkishError]:
        return self._failure

    def describe_waiting(self) -> str:
        return ""

    def advertised_hosts(self) -> list[str]:
        return ["127.0.0.1"]

    def bind_host(self) -> str:
        return "127.0.0.1"
