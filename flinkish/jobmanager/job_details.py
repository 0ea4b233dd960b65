"""What a JobMaster shows of its job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flinkish.graph.execution_graph import ExecutionState

if TYPE_CHECKING:
    from flinkish.jobmanager.job_state import JobState


def describe_job(master: "JobState") -> dict:
    """For the REST API: plain data."""
    counts: dict[str, int] = {}
    for execution in master.executions.values():
        counts[execution.state.name] = counts.get(execution.state.name, 0) + 1
    return {
        "jid": master.job.job_id,
        "name": master.job.job_name,
        "state": master.status.name,
        "attempt": master.attempt,
        "timestamps": dict(master.status_times_ms),
        "status-counts": counts,
        "slots": [slot.slot_id for slot in master.slots],
        "tasks": [
            {
                "id": str(execution.execution),
                "vertex": execution.execution.vertex_id,
                "subtask": execution.execution.subtask_index,
                "attempt": execution.execution.attempt,
                "name": execution.task_name,
                "state": execution.state.name,
                "slot": execution.slot_id if master.slots else None,
            }
            for execution in master.executions.values()
        ],
        "vertices": [
            {
                "id": vertex.id,
                "name": vertex.name,
                "parallelism": vertex.parallelism,
                "max-parallelism": vertex.max_parallelism,
                "slot-sharing-group": vertex.slot_sharing_group,
                "uids": [operator.uid for operator in vertex.chain.operators if operator.uid is not None],
                "inputs": [(edge.source_vertex_id, edge.partitioner.name) for edge in vertex.inputs],
            }
            for vertex in master.job_graph.vertices
        ],
        "checkpoints": master.checkpoints.describe(),
        "restarts": master.attempt - master.job.first_attempt,
        "exceptions": master.recovery.exceptions.describe(),
    }


def describe_waiting(master: "JobState", now_ms: int) -> str:
    """What the next attempt waits for, in one line."""
    waiting = master.recovery.next_attempt
    if waiting is None:
        good = (ExecutionState.RUNNING, ExecutionState.FINISHED)
        missing = [e for e in master.executions.values() if e.state not in good]
        names = ", ".join(f"{e.name_with_subtask} is {e.state.name}" for e in missing[:3])
        return f"{len(missing)} tasks to run: {names}"
    parts: list[str] = []
    if not waiting.tasks_ended:
        parts.append(f"tasks to end in slots {', '.join(master.slots_of(master.unended()))}")
    elif master.closing:
        parts.append(f'the committer of sink "{master.committing}" to abort')
    elif not waiting.restore_known:
        unpublished = len(master.checkpoints.committables.commits)
        parts.append(f"{unpublished} checkpoints to be published" if unpublished else "a checkpoint to be stored")
    if len(master.held) < master.needed_next:
        parts.append(f"{master.needed_next - len(master.held)} of {master.needed_next} slots")
    if master.dying:
        parts.append(f"slots {', '.join(sorted(master.dying))} to end")
    if now_ms < waiting.due_ms:
        parts.append(f"the restart strategy's delay, {waiting.due_ms - now_ms} ms")
    return ", ".join(parts)
