"""What holds event time back, a source, split, generator or input: all reports, read against the records' way.

From the subtasks that are asked about (those of an operator, or all behind which nothing comes) one goes to the input
that is furthest behind, in it to the channel, from there to the subtask that sends on it, and so on.  The way ends at

    SPLIT       a split of a source that has not got further
    READER      a source without splits of its own; or one that has not said anything yet
    GENERATOR   a watermark generator in mid-stream
    RECORDS     the sender has got further: its watermark waits behind records that are not processed yet
    TASK        a subtask that does not run, or has not reported yet

Idle inputs and splits hold nothing back, so the way never leads there; where all are idle it ends without a holder.

`text_of` (``common.watermark_explanation``) makes sentences of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Optional

from flinkish.errors import InvalidJobError
from flinkish.graph.execution_graph import ExecutionState, ExecutionVertex
from flinkish.graph.job_graph import JobVertex
from flinkish.messages.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS

if TYPE_CHECKING:
    from flinkish.jobmanager.job_state import JobState

Reports = Mapping[str, Mapping[str, Any]]

HOLDERS_MAX = 20
_BRANCHES_MAX = 3  # of channels or splits that are equally far behind


def explain_watermarks(
    master: "JobState", reports: Reports, now_ms: int, operator: Optional[str] = None
) -> dict[str, Any]:
    """Plain data.

    Args:
        reports: of ``taskmanager.watermark_report``, by ``str(execution)``.
        operator: name or uid of an operator, name or id of a vertex; None: where the job ends.
    Returns:
        ``watermark`` (the least of the subtasks asked about; None: unknown), ``held-by`` (at most HOLDERS_MAX, each
        with ``kind``, ``task``, ``watermark``, ``since``, and ``operator``, ``split`` where there are), ``idle`` and
        ``paused`` (names of sources' subtasks), ``vertices`` (each with its ``subtasks``: ``watermark``, ``state``,
        ``since``).
    Raises:
        InvalidJobError: there is no such operator.
    """
    return _Explanation(master, reports).explain(now_ms, operator)


@dataclass
class _Explanation:
    master: "JobState"
    reports: Reports

    def explain(self, now_ms: int, operator: Optional[str]) -> dict[str, Any]:
        asked = self._asked(operator)
        subtasks = [e for e in self.master.executions.values() if e.execution.vertex_id in {v.id for v in asked}]
        seen: set[str] = set()
        holders = [holder for execution in subtasks for holder in self._holders(execution, seen)]
        sources = list(self._sources())
        marks = [self._watermark(execution) for execution in subtasks]
        return {
            "jid": self.master.job.job_id,
            "name": self.master.job.job_name,
            "state": self.master.status.name,
            "now": now_ms,
            "operator": operator,
            "watermark": None if None in marks else min([mark for mark in marks if mark is not None], default=None),
            "held-by": sorted(holders, key=lambda holder: (holder["watermark"], holder["since"]))[:HOLDERS_MAX],
            "idle": [name for name, state in sources if state == "IDLE"],
            "paused": [name for name, state in sources if state == "PAUSED"],
            "vertices": [self._vertex(vertex) for vertex in self.master.job_graph.vertices],
        }

    def _asked(self, operator: Optional[str]) -> list[JobVertex]:
        vertices = self.master.job_graph.vertices
        if operator is None:
            return [vertex for vertex in vertices if not vertex.outputs]
        found = [vertex for vertex in vertices if operator in _names(vertex)]
        if not found:
            raise InvalidJobError(
                f'could not find the operator "{operator}"',
                where=f'job "{self.master.job.job_name}"',
                why="its operators are " + ", ".join(f'"{op.name}"' for v in vertices for op in v.chain.operators),
                do="give the name or uid of one of them",
            )
        return found

    # ---- the way back -------------------------------------------------------------------------------

    def _holders(self, execution: ExecutionVertex, seen: set[str]) -> Iterator[dict[str, Any]]:
        task = str(execution.execution)
        if task in seen or execution.state is ExecutionState.FINISHED:
            return
        seen.add(task)
        report = self.reports.get(task)
        if report is None or execution.state is not ExecutionState.RUNNING:
            yield self._holder("TASK", execution, MIN_WATERMARK_MS, 0, state=execution.state.name)
            return
        active = [found for found in report["generators"] if found["state"] == "ACTIVE"]
        if report["generators"]:
            for found in sorted(active, key=lambda found: found["watermark"])[:1]:
                yield self._holder(
                    "GENERATOR", execution, found["watermark"], found["since"], operator=found["operator"]
                )
        elif report["source"] is not None:
            yield from self._of_source(execution, report["source"])
        else:
            inputs = [one for one in report["inputs"] if one["state"] == "ACTIVE"]
            least = min([one["watermark"] for one in inputs], default=MAX_WATERMARK_MS)
            for one in inputs:
                if one["watermark"] == least:
                    yield from self._of_input(execution, one, seen)

    def _of_source(self, execution: ExecutionVertex, source: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        if source["state"] != "ACTIVE":
            return
        slowest = [part for part in source["slowest"] if part["state"] == "ACTIVE"]
        for part in _furthest_behind(slowest):
            kind = "SPLIT" if part["split"] else "READER"
            yield self._holder(
                kind, execution, part["watermark"], part["since"], operator=source["operator"], split=part["split"]
            )
        if not source["slowest"]:
            yield self._holder(
                "READER", execution, source["watermark"], source["since"], operator=source["operator"], split="",
                assigned=source["assigned"],
            )  # fmt: skip

    def _of_input(
        self, execution: ExecutionVertex, one: Mapping[str, Any], seen: set[str]
    ) -> Iterator[dict[str, Any]]:
        for channel in _furthest_behind(one["slowest"]):
            sender = self.master.executions.get((channel["vertex"], channel["subtask"]))
            if sender is None:
                continue
            sent = self._watermark(sender)
            if sent is not None and sent > channel["watermark"]:
                yield self._holder(
                    "RECORDS", execution, channel["watermark"], channel["since"], sender=sender.name_with_subtask,
                    sent=sent,
                )  # fmt: skip
            else:
                yield from self._holders(sender, seen)

    @staticmethod
    def _holder(kind: str, execution: ExecutionVertex, watermark: int, since: int, **more: Any) -> dict[str, Any]:
        return {
            "kind": kind,
            "task": execution.name_with_subtask,
            "vertex": execution.execution.vertex_id,
            "subtask": execution.execution.subtask_index,
            "watermark": watermark,
            "since": since,
            **more,
        }

    # ---- each subtask -------------------------------------------------------------------------------

    def _watermark(self, execution: ExecutionVertex) -> Optional[int]:
        """What it has sent on; None: unknown."""
        if execution.state is ExecutionState.FINISHED:
            return MAX_WATERMARK_MS
        return _where(self.reports.get(str(execution.execution)))["watermark"]

    def _vertex(self, vertex: JobVertex) -> dict[str, Any]:
        subtasks = [e for (vertex_id, _), e in sorted(self.master.executions.items()) if vertex_id == vertex.id]
        return {
            "id": vertex.id,
            "name": vertex.name,
            "subtasks": [
                {
                    "subtask": execution.execution.subtask_index,
                    **_where(self.reports.get(str(execution.execution))),
                    "input-watermark": _input_watermark(self.reports.get(str(execution.execution))),
                }
                for execution in subtasks
            ],
        }

    def _sources(self) -> Iterator[tuple[str, str]]:
        """(name, state) of the subtasks of sources."""
        for execution in self.master.executions.values():
            report = self.reports.get(str(execution.execution))
            if report is not None and report["source"] is not None:
                state = report["source"]["state"]
                # A generator behind the source says what goes on, so a silent source alone makes nothing idle.
                yield execution.name_with_subtask, state if state == "PAUSED" else _where(report)["state"]


def _names(vertex: JobVertex) -> set[str]:
    names = {vertex.id, vertex.name}
    for op in vertex.chain.operators:
        names |= {op.name, op.operator_id} | ({op.uid} if op.uid else set())
    return names


def _furthest_behind(parts: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of parts in their order: those with the least watermark, some of them when there are many."""
    return [part for part in parts if part["watermark"] == parts[0]["watermark"]][:_BRANCHES_MAX]


def _where(report: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    """``watermark``, ``state`` and ``since`` of what a subtask sends on."""
    if report is None:
        return {"watermark": None, "state": "UNKNOWN", "since": 0}
    if report["generators"]:
        parts = report["generators"]
    elif report["source"] is not None:
        parts = [report["source"]]
    else:
        parts = report["inputs"]
    active = [part for part in parts if part["state"] != "IDLE"]
    # All idle: the largest counts, see CombinedWatermark.
    found = min(active, key=_mark) if active else max(parts, key=_mark)
    return {name: found[name] for name in ("watermark", "state", "since")}


def _input_watermark(report: Optional[Mapping[str, Any]]) -> int:
    """Flink's ``currentInputWatermark``: the least of the inputs."""
    inputs = [] if report is None else report["inputs"]
    return min([one["watermark"] for one in inputs], default=MIN_WATERMARK_MS)


def _mark(part: Mapping[str, Any]) -> int:
    return part["watermark"]
