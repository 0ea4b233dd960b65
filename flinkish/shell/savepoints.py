"""Savepoints without their job: list them, delete one, and put one beside a program.

    list_savepoints("s3://bucket/savepoints")
    dispose_savepoint("s3://bucket/savepoints/savepoint-9f3c...-12")
"""

from __future__ import annotations

import shlex
import time
from typing import Any, Callable, Mapping, NoReturn, Optional

from flinkish.common import options
from flinkish.common.configuration import Configuration
from flinkish.errors import CorruptSnapshotError
from flinkish.graph.job_graph_generator import create_job_graph
from flinkish.graph.stream_graph import StreamGraph
from flinkish.jobmanager.restore_decision import adopt_max_parallelism, decide_restore
from flinkish.messages.checkpoints import CompletedCheckpoint
from flinkish.storage.checkpoint_storage import CheckpointStorage, FoundSavepoint


def list_savepoints(directory: Any, configuration: Optional[Mapping[str, Any]] = None) -> list[FoundSavepoint]:
    """The savepoints and checkpoints below a folder (directly, or as ``<job id>/chk-<n>``, where jobs keep theirs), newest
    first, and folders that should be some with what they lack.

    Raises:
        CheckpointStorageError: there is no such folder, or it cannot be read.
    """
    return CheckpointStorage(directory, configuration or Configuration()).list_savepoints()


def dispose_savepoint(path: Any, configuration: Optional[Mapping[str, Any]] = None, force: bool = False) -> str:
    """Delete a savepoint, or a checkpoint that no job owns, with all of its own files; where it was.

    Args:
        force: also one that is not whole.
    Raises:
        CorruptSnapshotError: it is not whole, and nobody has said ``force``.
        CheckpointStorageError: there is none at ``path``, or it cannot be deleted.
    """
    storage = CheckpointStorage(path, configuration or Configuration())
    try:
        location = storage.load(path).location
    except CorruptSnapshotError as error:
        location, files = storage.files_of_snapshot(path)
        if not force:
            raise CorruptSnapshotError(
                "could not dispose of a savepoint that is not whole",
                where=location,
                why=error.why,
                do=f"make sure that no job is writing it, then delete its folder with all that lies in it ({len(files)} "
                f"files): flinkish savepoint dispose --force {shlex.quote(location)}. Files outside of it that it may "
                "have shared with other checkpoints stay",
            ) from error
    storage.discard(location)
    return location


def describe_savepoint(found: FoundSavepoint) -> str:
    """A line for people."""
    savepoint = found.savepoint
    if savepoint is None:
        return f"{found.location}  not whole: {found.problem}"
    taken = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(savepoint.completed_ms / 1_000))
    return f'{found.location}  job "{savepoint.job_name}"  {taken}  {savepoint.state_size} bytes'


class RestoreCheck:
    """In place of a cluster: says what a program would get of a savepoint, and ends the program.

    Args:
        show: gets the lines of the report.
    """

    def __init__(self, checkpoint: CompletedCheckpoint, show: Callable[[str], None]):
        self._checkpoint, self._show = checkpoint, show

    def submit(self, stream_graph: StreamGraph, configuration: Optional[Mapping[str, Any]] = None) -> NoReturn:
        """Raises SystemExit: 0 when the program can go on from it, else 1."""
        job_graph = create_job_graph(stream_graph)
        adopt_max_parallelism(job_graph, self._checkpoint)
        decision = decide_restore(job_graph, self._checkpoint)
        for line in decision.report():
            self._show(line)
        ignore = options.read(job_graph.configuration, options.STATE_RECOVERY_IGNORE_UNCLAIMED)
        refusal = decision.refusal(ignore)
        self._show(f'job "{job_graph.job_name}" can go on from it' if refusal is None else str(refusal))
        raise SystemExit(0 if refusal is None else 1)
