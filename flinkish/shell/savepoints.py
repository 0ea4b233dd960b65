"""Savepoints without their job: list them, delete one, and put one beside a program.

    list_savepoints("s3://bucket/savepoints")
    dispose_savepoint("s3://bucket/savepoints/savepoint-9f3c...-12")
"""

from __future__ import annotations

import shlex
import time
from typing import Any, Callable, Mapping, NoReturn, Optional, Sequence

from flinkish.common import options
from flinkish.common.configuration import Configuration
from flinkish.common.file_system import absolute_uri
from flinkish.errors import CorruptSnapshotError
from flinkish.graph.job_graph_generator import create_job_graph
from flinkish.graph.stream_graph import StreamGraph
from flinkish.jobmanager.restore_decision import adopt_max_parallelism, decide_restore
from flinkish.shell.state_check import Misfit, StateCheck
from flinkish.shell.state_recovery import load_checkpoint
from flinkish.storage.checkpoint_storage import CheckpointStorage, FoundSavepoint, storage_at


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
    """In place of a cluster: says what a program would get of a savepoint or checkpoint, and ends the program.

    Args:
        path: its folder or its `_metadata`.
        configuration: how it is reached, see `CheckpointStorage`; its state files by that of the job.
        show: gets the report.
    Raises:
        CorruptSnapshotError: there is none, or it is not whole.
    """

    def __init__(self, path: Any, configuration: Mapping[str, Any], show: Callable[[str], None]):
        self._checkpoint, self._uri = load_checkpoint(path, configuration), absolute_uri(path)
        self._show = show

    def submit(self, stream_graph: StreamGraph, configuration: Optional[Mapping[str, Any]] = None) -> NoReturn:
        """Raises SystemExit: 0 when all that can be compared without running the program fits, else 1."""
        job_graph = create_job_graph(stream_graph)
        adopt_max_parallelism(job_graph, self._checkpoint)
        decision = decide_restore(job_graph, self._checkpoint)
        check = StateCheck(storage_at(self._uri, job_graph.configuration), job_graph.configuration)
        matched = [(operator, saved) for operator, _, saved in decision.matched]
        examined = check.examine([*matched, *((None, saved) for saved in decision.missing)])
        for line in decision.report({operator_id: found.states for operator_id, found in examined.items()}):
            self._show(line)
        ignore = options.read(job_graph.configuration, options.STATE_RECOVERY_IGNORE_UNCLAIMED)
        misfits = [Misfit(error) for error in decision.all_refusals(ignore)]
        for _, saved in matched:
            misfits += examined[saved.operator_id].misfits.values()
        for misfit in misfits:
            mark = "IN DOUBT  " if misfit.when else "REFUSED   "
            self._show(f"  {mark}{misfit}".replace("\n", f"\n{' ' * 10}"))
        self._show(f'job "{job_graph.job_name}" {self._conclusion(misfits)}')
        raise SystemExit(1 if misfits else 0)

    def _conclusion(self, misfits: Sequence[Misfit]) -> str:
        """Kinds and declared types of states are said by `open()`, which has not run."""
        refused = sum(not misfit.when for misfit in misfits)
        if refused:
            return f"cannot go on from it: {refused} refusal{'s' if refused > 1 else ''}"
        if misfits:
            return "may be refused later: see what is in doubt"
        in_flight = "; records in flight when they are read" if self._checkpoint.in_flight else ""
        return (
            "fits as far as this can be told before it runs: its operators, keys and classes of records do; kinds and "
            f"declared types of states are compared when they are opened{in_flight}"
        )
