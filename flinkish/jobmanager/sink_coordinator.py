"""The JobManager's end of sinks: what their writers have prepared, and its publication.

Writers send committables at the end of their input.  They stay bytes until the job's end: then
the committers, which are user code and wait for services, run on a thread of their own, never on
the JobManager's loop.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import cloudpickle

from flinkish.connectors.spi import Sink, SinkCoordinatorContext
from flinkish.errors import FlinkishError
from flinkish.jobmanager.source_coordinator import user_error
from flinkish.messages.control import SinkPayload


class WriterGateway(SinkCoordinatorContext):
    """Carries a coordinator's values to the writers.  Any thread may call it.

    ``send(subtask, payload)`` gives a payload to the JobManager, which holds it until the subtask
    runs and drops it when the subtask has ended.
    """

    def __init__(self, send: Callable[[int, Any], None]):
        self._send = send

    def send_to_writer(self, subtask: int, payload: Any) -> None:
        self._send(subtask, SinkPayload(pickle.dumps(payload, protocol=5)))


@dataclass
class SinkCommittablesCollector:
    """What the writers of one sink have prepared, in the order of subtasks."""

    name: str
    sink: Sink
    by_subtask: dict[int, list[bytes]] = field(default_factory=dict)

    def add(self, subtask: int, committables: bytes) -> None:
        self.by_subtask.setdefault(subtask, []).append(committables)

    def load(self) -> list[Any]:
        """Unpickles user classes: not for the JobManager's loop."""
        return [
            committable
            for subtask in sorted(self.by_subtask)
            for blob in self.by_subtask[subtask]
            for committable in cloudpickle.loads(blob)
        ]


def commit_sinks(
    sinks: list[SinkCommittablesCollector], on_start: Callable[[str], None]
) -> Optional[FlinkishError]:
    """Publish at the end of a job, sink by sink.

    The first that fails ends it: those behind it are aborted.  The failed one is not, because what
    it may have published already must not be removed.

    Args:
        on_start: gets the name of each sink before its committer runs.
    Returns:
        None, or the error that the job fails with.
    """
    for index, collected in enumerate(sinks):
        on_start(collected.name)
        try:
            committer = collected.sink.create_committer()
            if committer is None:
                continue
            try:
                committer.commit(collected.load())
            finally:
                committer.close()
        except BaseException as error:  # on the committers' thread, where only the user's code raises such
            abort_sinks(sinks[index + 1 :], on_start)
            return user_error(f'committer of sink "{collected.name}" failed in the driver', error)
    return None


def abort_sinks(
    sinks: list[SinkCommittablesCollector], on_start: Callable[[str], None]
) -> list[FlinkishError]:
    """Remove what was prepared; each sink is tried.  Returns what went wrong, for the log."""
    failures: list[FlinkishError] = []
    for collected in sinks:
        on_start(collected.name)
        try:
            committer = collected.sink.create_committer()
            if committer is None:
                continue
            try:
                committer.abort(collected.load())
            finally:
                committer.close()
        except BaseException as error:  # on the committers' thread, where only the user's code raises such
            failures.append(
                user_error(f'committer of sink "{collected.name}" could not abort', error)
            )
    return failures
