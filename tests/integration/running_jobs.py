"""What tests look at while a job runs: the figures of its tasks, the memory of its slots."""

from __future__ import annotations

import re
from pathlib import Path

from flinkish.common.job_status import JobStatus

MB = 1 << 20


def figures_by_task(cluster, client):
    """The newest figures of each subtask by its task's name; of several subtasks the last one's."""
    names = {}
    for job in cluster.describe()["jobs"]:
        if job["jid"] == client.job_id:
            names = {task["id"]: task["name"] for task in job["tasks"]}
    return {names[execution]: figures for execution, figures in client.get_metrics().items()}


def all_tasks_run(client):
    return {task["state"] for task in client._handle.describe()["tasks"]} == {"RUNNING"}


def slot_pids(cluster, client):
    return sorted(slot["pid"] for slot in cluster.describe()["slots"] if slot["job"] == client.job_id)


def memory_bytes(pid, which="VmRSS"):
    """What a process holds now, or (``VmHWM``) the most that it has held."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"{which}:\s+(\d+) kB", status)[1]) << 10


def end(client):
    client.cancel().result()
    assert client.status is JobStatus.CANCELED
