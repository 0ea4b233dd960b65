"""What runs in a Spark task that carries slots."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import flinkish
from flinkish.messages.launch import SlotLaunch


@dataclass(frozen=True)
class SupervisorEnd:
    """How a supervisor ended that Spark has not seen failing: the reason, or with ``failed`` its error."""

    task_index: int
    reason: str
    failed: bool


def supervisor_task(
    launches: Sequence[SlotLaunch], raises: bool
) -> Callable[[], Iterator[tuple[int, str, bool]]]:
    """The function of a Spark task; it gives the fields of one SupervisorEnd.

    It travels by value and unpickles the rest only after the driver's paths are in place, so a
    checkout that is not installed works too.

    Args:
        launches: the task of partition i takes the i-th.
        raises: fail the task when the JobManager cannot be reached.  That ends a barrier stage at
            once; a task that runs alone would be tried thrice more, for ten seconds each.
    """
    blob = pickle.dumps(list(launches))
    sys_path = launches[0].sys_path
    # A checkout goes before a flinkish that is installed there; all else behind what Spark has.
    own_root = str(Path(flinkish.__file__).resolve().parent.parent)

    def main() -> Iterator[tuple[int, str, bool]]:
        import os
        import pickle
        import sys

        from pyspark import TaskContext

        if own_root not in sys.path and os.path.exists(os.path.join(own_root, "flinkish")):
            sys.path.insert(0, own_root)
        sys.path.extend(path for path in sys_path if path not in sys.path and os.path.exists(path))
        from flinkish.errors import ConnectionLostError
        from flinkish.shell.supervisor import run_supervisor

        task: Any = TaskContext.get()
        launch = pickle.loads(blob)[task.partitionId()]
        try:
            reason, failed = run_supervisor(launch, task.attemptNumber()), False
        except ConnectionLostError as error:
            if raises:
                raise
            reason, failed = f"{type(error).__module__}.{type(error).__name__}: {error}", True
        yield launch.task_index, reason, failed

    return main
