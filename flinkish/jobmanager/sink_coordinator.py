"""The JobManager's end of sinks: what their writers have prepared, and its publication.

With checkpoints, committables come with the acknowledgements, and each complete checkpoint publishes its own.
Without, writers send them at the end of their input, and they stay bytes until the job's end.  Committers are user
code and wait for services, so they run on a thread of their own, never on the JobManager's loop.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any, Callable, Collection, Iterable, Mapping, Optional

import cloudpickle

from flinkish.connectors.spi import CommitId, Committer, Sink, SinkCoordinatorContext
from flinkish.errors import FlinkishError
from flinkish.jobmanager.source_coordinator import user_error
from flinkish.messages.checkpoints import CheckpointCommit
from flinkish.messages.control import SinkPayload

#: By operator id, pickled lists.
Blobs = Mapping[str, tuple[bytes, ...]]


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
    """One sink that commits, and what its writers have sent at the end of their input, in the order of subtasks."""

    operator_id: str
    name: str
    sink: Sink
    by_subtask: dict[int, list[bytes]] = field(default_factory=dict)

    def add(self, subtask: int, committables: bytes) -> None:
        self.by_subtask.setdefault(subtask, []).append(committables)

    def take(self, subtasks: Optional[Collection[int]] = None) -> list[bytes]:
        """All of these subtasks, None: of all; nothing of it is left."""
        taken = sorted(self.by_subtask if subtasks is None else self.by_subtask.keys() & set(subtasks))
        return [blob for subtask in taken for blob in self.by_subtask.pop(subtask)]

    def committer(self) -> "_OneCommitter":
        return _OneCommitter(self.sink)


class _OneCommitter:
    """A committer of the sink, closed at the end of the ``with``; None where it has none."""

    def __init__(self, sink: Sink):
        self._sink = sink

    def __enter__(self) -> Optional[Committer]:
        self._committer = self._sink.create_committer()
        return self._committer

    def __exit__(self, *exc_info: Any) -> None:
        if self._committer is not None:
            self._committer.close()


def load(blobs: Iterable[bytes]) -> list[Any]:
    """Unpickles user classes: not for the JobManager's loop."""
    return [committable for blob in blobs for committable in cloudpickle.loads(blob)]


def commit_checkpoint(
    sinks: Mapping[str, SinkCommittablesCollector], commit: CheckpointCommit, on_start: Callable[[str], None]
) -> Optional[FlinkishError]:
    """Publish what a checkpoint publishes, sink by sink; the first that fails ends it.

    Args:
        sinks: by operator id.  Committables of another are those of a sink that the user has given up.
        on_start: gets the name of each sink before its committer runs.
    Returns:
        None, or the error that the job fails with.
    """
    for operator_id, blobs in commit.committables.items():
        collected = sinks.get(operator_id)
        if collected is None:
            continue
        on_start(collected.name)
        commit_id = CommitId(commit.job_id, commit.run_id, commit.checkpoint_id, operator_id)
        try:
            with collected.committer() as committer:
                if committer is not None:
                    committer.commit_checkpoint(load(blobs), commit_id)
        except BaseException as error:  # on the committers' thread, where only the user's code raises such
            return _commit_error(collected, error)
    return None


def commit_sinks(
    sinks: list[SinkCommittablesCollector],
    on_start: Callable[[str], None],
    prepared: Blobs = {},
    by_checkpoints: bool = False,
    kept: Optional[Blobs] = None,
) -> Optional[FlinkishError]:
    """Publish at the end of a job what no checkpoint has published, sink by sink.

    The first that fails ends it: those behind it are aborted.  The failed one is not, because what
    it may have published already must not be removed.

    Args:
        on_start: gets the name of each sink before its committer runs.
        prepared: what goes before what the collectors have.
        by_checkpoints: checkpoints have published everything, unless there is something left.
        kept: tasks that were replaced may have left something behind, which is to be removed, but not this.
    Returns:
        None, or the error that the job fails with.
    """
    for index, collected in enumerate(sinks):
        on_start(collected.name)
        blobs = [*prepared.get(collected.operator_id, ()), *collected.take()]
        try:
            with collected.committer() as committer:
                if committer is None:
                    continue
                if blobs or not by_checkpoints:
                    committer.commit(load(blobs))
                committer.job_finished()
                if kept is not None:
                    committer.remove_leftovers(load(kept.get(collected.operator_id, ())))
        except BaseException as error:  # on the committers' thread, where only the user's code raises such
            abort_sinks(sinks[index + 1 :], on_start)
            return _commit_error(collected, error)
    return None


def _commit_error(collected: SinkCommittablesCollector, error: BaseException) -> FlinkishError:
    return user_error(f'committer of sink "{collected.name}" failed in the driver', error)


def abort_sinks(
    sinks: list[SinkCommittablesCollector], on_start: Callable[[str], None], kept: Blobs = {}
) -> list[FlinkishError]:
    """No task runs: remove what was prepared and left behind, but not ``kept``; each sink is tried.
    Returns what went wrong, for the log."""
    failures: list[FlinkishError] = []
    for collected in sinks:
        on_start(collected.name)
        blobs = collected.take()
        try:
            with collected.committer() as committer:
                if committer is not None:
                    committer.abort(load(blobs))
                    committer.remove_leftovers(load(kept.get(collected.operator_id, ())))
        except BaseException as error:  # on the committers' thread, where only the user's code raises such
            failures.append(_abort_error(collected, error))
    return failures


def abort_committables(
    sinks: Mapping[str, SinkCommittablesCollector], committables: Blobs, on_start: Callable[[str], None]
) -> list[FlinkishError]:
    """Remove what no checkpoint will publish, while other tasks may run.  Returns what went wrong."""
    failures: list[FlinkishError] = []
    for operator_id, blobs in committables.items():
        collected = sinks.get(operator_id)
        if collected is None:
            continue
        on_start(collected.name)
        try:
            with collected.committer() as committer:
                if committer is not None:
                    committer.abort(load(blobs))
        except BaseException as error:  # on the committers' thread, where only the user's code raises such
            failures.append(_abort_error(collected, error))
    return failures


def _abort_error(collected: SinkCommittablesCollector, error: BaseException) -> FlinkishError:
    return user_error(f'committer of sink "{collected.name}" could not abort', error)
