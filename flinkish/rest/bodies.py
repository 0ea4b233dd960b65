"""JSON of jobs: of what a JobManager says of them (``jobmanager.job_details``), in Flink's form.

What is not known is left out; times are ms since epoch, -1 or 0 for what has not been, as in Flink.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping

from flinkish.common.job_status import JobStatus

_EXECUTION_STATES = (
    "CREATED", "SCHEDULED", "DEPLOYING", "RUNNING", "FINISHED", "CANCELING", "CANCELED", "FAILED", "RECONCILING",
    "INITIALIZING",
)  # fmt: skip
#: A vertex is as the first of these that one of its subtasks is in.
_WORST_FIRST = ("FAILED", "CANCELING", "CANCELED", "CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING")
_TYPE = {"jobType": "STREAMING", "schedulerType": "Adaptive"}

Job = Mapping[str, Any]


def job_overview(job: Job, now_ms: int) -> dict[str, Any]:
    """An entry of ``/jobs/overview``."""
    counts = _counts(job["tasks"])
    tasks = {"total": sum(counts.values()), **{state.lower(): count for state, count in counts.items()}}
    names = {"jid": job["jid"], "name": job["name"], **_TYPE}
    return {**names, **_times(job, now_ms), "tasks": tasks, "pending-operators": 0}


def job_details(job: Job, now_ms: int) -> dict[str, Any]:
    """``/jobs/:jobid``."""
    nodes = [_node(vertex) for vertex in job["vertices"]]
    return {
        "jid": job["jid"],
        "name": job["name"],
        "isStoppable": False,  # that is Flink's old stop, without a savepoint
        "job-type": _TYPE["jobType"],
        "schedulerType": _TYPE["schedulerType"],
        **_times(job, now_ms),
        "maxParallelism": max((vertex["max-parallelism"] for vertex in job["vertices"]), default=-1),
        "now": now_ms,
        "timestamps": {status.name: job["timestamps"].get(status.name, 0) for status in JobStatus},
        "vertices": [_vertex(vertex, job["tasks"]) for vertex in job["vertices"]],
        "status-counts": _counts(job["tasks"]),
        "plan": {"jid": job["jid"], "name": job["name"], "type": "STREAMING", "nodes": nodes},
        "pending-operators": 0,
    }


def overview(jobs: Iterable[Job], slots_total: int, slots_available: int, taskmanagers: int, version: str) -> dict:
    """``/overview``."""
    states = [JobStatus[job["state"]] for job in jobs]
    return {
        "taskmanagers": taskmanagers,
        "slots-total": slots_total,
        "slots-available": slots_available,
        "jobs-running": sum(not state.is_terminal_state() for state in states),
        "jobs-finished": states.count(JobStatus.FINISHED),
        "jobs-cancelled": states.count(JobStatus.CANCELED),
        "jobs-failed": states.count(JobStatus.FAILED),
        "flink-version": version,
        "flink-commit": "",
    }


def resource_requirements(job: Job) -> dict[str, Any]:
    """``/jobs/:jobid/resource-requirements``: by vertex id."""
    return {
        vertex["id"]: {"parallelism": {"lowerBound": 1, "upperBound": vertex["parallelism"]}}
        for vertex in job["vertices"]
    }


def vertex_watermarks(vertex: Job) -> list[dict[str, str]]:
    """``/jobs/:jobid/vertices/:vertexid/watermarks``."""
    return [
        {"id": f"{subtask['subtask']}.currentInputWatermark", "value": str(subtask["input-watermark"])}
        for subtask in vertex["subtasks"]
    ]


def _times(job: Job, now_ms: int) -> dict[str, Any]:
    times = job["timestamps"]
    start_ms, last_ms = min(times.values()), max(times.values())
    ended = JobStatus[job["state"]].is_globally_terminal_state()
    return {
        "state": job["state"],
        "start-time": start_ms,
        "end-time": last_ms if ended else -1,
        "duration": (last_ms if ended else now_ms) - start_ms,
        "last-modification": last_ms,
    }


def _counts(tasks: Iterable[Job]) -> dict[str, int]:
    counts = dict.fromkeys(_EXECUTION_STATES, 0)
    for task in tasks:
        counts[task["state"]] += 1
    return counts


def _vertex(vertex: Job, tasks: Iterable[Job]) -> dict[str, Any]:
    counts = _counts(task for task in tasks if task["vertex"] == vertex["id"])
    return {
        "id": vertex["id"],
        "slotSharingGroupId": vertex["slot-sharing-group"],
        "name": vertex["name"],
        "maxParallelism": vertex["max-parallelism"],
        "parallelism": vertex["parallelism"],
        "status": next((state for state in _WORST_FIRST if counts[state]), "FINISHED"),
        "tasks": counts,
        "uids": vertex["uids"],
    }


def _node(vertex: Job) -> dict[str, Any]:
    return {
        "id": vertex["id"],
        "parallelism": vertex["parallelism"],
        "operator": "",
        "operator_strategy": "",
        "description": vertex["name"],
        "inputs": [
            {"num": number, "id": source, "ship_strategy": strategy, "exchange": "pipelined_bounded"}
            for number, (source, strategy) in enumerate(vertex["inputs"])
        ],
        "optimizer_properties": {},
    }
