"""Whether a program can go on from a checkpoint or savepoint, and which subtask gets what of it.

State finds its operator by the operator's id, which comes from its uid, or else from its name: never from the
order of the program's lines.  So operators may be added, moved and chained differently.  State whose operator
is gone is lost, so that is refused unless the user allows it (``execution.state-recovery.ignore-unclaimed-state``).
Keyed state cannot be read with another max parallelism: every key would be in another group.  Where the program sets
none the saved one is taken over.

Source: Flink's ``Checkpoints.loadAndValidateCheckpoint``, ``VertexParallelismInformation``, ``StateAssignmentOperation`` and
``VertexFinishedStateChecker``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Iterator, Mapping, Optional, Sequence

from flinkish.errors import FlinkishError, StateMigrationError
from flinkish.graph.chain_pickling import pickle_partitioner
from flinkish.graph.job_graph import ChainedOperator, JobEdge, JobGraph, JobVertex
from flinkish.messages.checkpoints import (
    Bytes,
    CompletedCheckpoint,
    InFlightPart,
    InFlightRestore,
    OperatorSnapshot,
    size_of,
)
from flinkish.messages.deployment import EdgeDescriptor, TaskRestore
from flinkish.state.redistribution import deal_out, deal_out_in_flight

#: (vertex id, subtask index)
Subtask = tuple[str, int]


@dataclass(frozen=True)
class RestoreDecision:
    """A checkpoint beside a program.

    ``matched``: operators of the program with what is saved for them; ``missing``: saved state whose operator the
    program does not have; ``added``: operators of the program that begin without state; ``refusals``: why
    matched state cannot be used."""

    checkpoint: CompletedCheckpoint
    job_name: str
    matched: tuple[tuple[ChainedOperator, JobVertex, OperatorSnapshot], ...]
    missing: tuple[OperatorSnapshot, ...]
    added: tuple[ChainedOperator, ...]
    refusals: tuple[FlinkishError, ...]

    def refusal(self, ignore_unclaimed: bool) -> Optional[FlinkishError]:
        """The first reason why the program cannot go on from here; None: there is none."""
        return next(self.all_refusals(ignore_unclaimed), None)

    def all_refusals(self, ignore_unclaimed: bool) -> Iterator[FlinkishError]:
        yield from self.refusals
        if not self.missing or ignore_unclaimed:
            return
        names = ", ".join(f'"{snapshot.name}" ({_id_of(snapshot)})' for snapshot in self.missing)
        yield StateMigrationError(
            f'could not restore job "{self.job_name}": it has no operator for some of the saved state',
            where=self.checkpoint.location,
            why=f"state of {names} would be lost",
            do="give the operators the uids that they had, or set "
            "execution.state-recovery.ignore-unclaimed-state to true to drop that state",
            operators=tuple(snapshot.operator_id for snapshot in self.missing),
        )

    def report(self, states: Mapping[str, Sequence[str]]) -> list[str]:
        """A line for each operator, for people.

        Args:
            states: by operator id what is told of its states.
        """
        checkpoint = self.checkpoint
        lines = [f"{checkpoint.kind.name.lower()} {checkpoint.checkpoint_id} of job "
                 f'"{checkpoint.job_name}" ({checkpoint.job_id}): {checkpoint.location}']  # fmt: skip

        def tell(saved: OperatorSnapshot, line: str) -> None:
            lines.append(line)
            lines.extend(f"              {state}" for state in states.get(saved.operator_id, ()))

        for operator, vertex, saved in self.matched:
            parallelism = f"parallelism {saved.parallelism}"
            if vertex.parallelism != saved.parallelism:
                parallelism += f" -> {vertex.parallelism}"
            tell(saved, f'  restored  "{operator.name}" ({_id_of(saved)}): {_describe(saved)}, {parallelism}')
        for saved in self.missing:
            tell(saved, f'  DROPPED   "{saved.name}" ({_id_of(saved)}): {_describe(saved)}')
        for operator in self.added:
            lines.append(f'  new       "{operator.name}" ({operator.uid or operator.operator_id})')
        return lines


def adopt_max_parallelism(job_graph: JobGraph, checkpoint: CompletedCheckpoint) -> None:
    """Have the vertices for which the program sets no max parallelism take over the saved one, where they fit into it.
    To be called before anything is made of ``job_graph``, which is changed."""
    adopted: dict[str, int] = {}
    for vertex in job_graph.vertices:
        ids = (operator.operator_id for operator in vertex.chain.operators)
        saved = [checkpoint.operators[id_] for id_ in ids if id_ in checkpoint.operators]
        keyed = [snapshot for snapshot in saved if any(state.keyed for state in snapshot.subtasks.values())]
        numbers = {snapshot.max_parallelism for snapshot in keyed or saved}
        if vertex.max_parallelism_derived and len(numbers) == 1 and max(numbers) >= vertex.parallelism:
            (vertex.max_parallelism,) = numbers
            adopted[vertex.id] = vertex.max_parallelism
    targets = {edge.id: edge.target_vertex_id for edge in job_graph.edges}
    for vertex in job_graph.vertices:
        outputs = tuple(
            replace(
                output,
                target_max_parallelism=adopted.get(targets[output.edge_id], output.target_max_parallelism),
            )
            for output in vertex.chain.outputs
        )
        vertex.chain = replace(vertex.chain, outputs=outputs)


def decide_restore(job_graph: JobGraph, checkpoint: CompletedCheckpoint) -> RestoreDecision:
    """Put a checkpoint beside a program."""
    operators = {operator.operator_id: (operator, vertex) for operator, vertex in _operators(job_graph)}
    matched = tuple(
        (*operators[operator_id], snapshot)
        for operator_id, snapshot in checkpoint.operators.items()
        if operator_id in operators
    )
    unpublished = {operator_id for commit in checkpoint.commits for operator_id in commit.committables}
    missing = tuple(
        snapshot
        for operator_id, snapshot in checkpoint.operators.items()
        if operator_id not in operators and (_has_state(snapshot) or operator_id in unpublished)
    )
    added = tuple(
        operator for operator_id, (operator, _) in operators.items() if operator_id not in checkpoint.operators
    )
    refusals: list[FlinkishError] = []
    for _, vertex, snapshot in matched:
        try:
            deal_out(snapshot, vertex.parallelism, vertex.max_parallelism)
        except StateMigrationError as error:
            error.where = ", ".join(filter(None, (error.where, checkpoint.location)))
            if vertex.parallelism > snapshot.max_parallelism:  # it cannot be set with this parallelism
                error.do = f"run the operator with a parallelism of at most {snapshot.max_parallelism}"
            refusals.append(error)
    refusals += _in_flight_refusals(job_graph, checkpoint)
    refusals += _finished_refusals(job_graph, checkpoint)
    return RestoreDecision(checkpoint, job_graph.job_name, matched, missing, added, tuple(refusals))


def deal_out_checkpoint(job_graph: JobGraph, checkpoint: CompletedCheckpoint) -> dict[Subtask, TaskRestore]:
    """What each subtask goes on from; one of a checkpoint that ``decide_restore`` does not refuse."""
    in_flight = _deal_out_in_flight(job_graph, checkpoint)
    dealt: dict[Subtask, TaskRestore] = {}
    for vertex in job_graph.vertices:
        saved = [
            (operator.operator_id, checkpoint.operators.get(operator.operator_id))
            for operator in vertex.chain.operators
        ]
        parts = {
            operator_id: deal_out(snapshot, vertex.parallelism, vertex.max_parallelism)
            for operator_id, snapshot in saved
            if snapshot is not None
        }
        finished = _has_finished(vertex, checkpoint)
        for index in range(vertex.parallelism):
            states = {
                operator_id: (part[index],) for operator_id, part in parts.items() if not part[index].is_empty
            }
            dealt[vertex.id, index] = TaskRestore(
                checkpoint.checkpoint_id, states, in_flight.get((vertex.id, index), ()), finished
            )
    return dealt


def _has_finished(vertex: JobVertex, checkpoint: CompletedCheckpoint) -> bool:
    saved = [checkpoint.operators.get(operator.operator_id) for operator in vertex.chain.operators]
    return bool(saved) and all(snapshot is not None and is_finished(snapshot) for snapshot in saved)


def _finished_refusals(job_graph: JobGraph, checkpoint: CompletedCheckpoint) -> Iterator[StateMigrationError]:
    vertices = {vertex.id: vertex for vertex in job_graph.vertices}
    finished = {vertex.id for vertex in job_graph.vertices if _has_finished(vertex, checkpoint)}
    for edge in job_graph.edges:
        source, target = vertices[edge.source_vertex_id], vertices[edge.target_vertex_id]
        if target.id not in finished or source.id in finished:
            continue
        yield StateMigrationError(
            f'could not restore "{target.name}" behind "{source.name}"',
            where=checkpoint.location,
            why="all subtasks of the former had finished, so they read nothing any more, and those of the latter had not",
            do="give the finished operators other uids, so that they begin without state, or restore with the inputs "
            "that they had",
        )


def is_finished(snapshot: OperatorSnapshot) -> bool:
    """Whether all subtasks had finished before the checkpoint."""
    return snapshot.parallelism > 0 and len(snapshot.finished_subtasks) == snapshot.parallelism


def _edge_of(job_graph: JobGraph, saved: EdgeDescriptor) -> Optional[JobEdge]:
    """The edge of the program that a saved one has become; None: there is none, or it cannot be told which."""
    vertices = (saved.source_vertex, saved.target_vertex, saved.input_index)
    found = [
        edge
        for edge in job_graph.edges
        if (edge.source_vertex_id, edge.target_vertex_id, edge.input_index) == vertices
        and edge.partitioner.name == saved.partitioner
    ]
    same = [edge for edge in found if edge.id == saved.edge_id]
    return same[0] if same else found[0] if len(found) == 1 else None


def _parts_by_edge(checkpoint: CompletedCheckpoint) -> dict[EdgeDescriptor, list[tuple[Bytes, InFlightPart]]]:
    parts: dict[EdgeDescriptor, list[tuple[Bytes, InFlightPart]]] = {}
    for vertex in checkpoint.in_flight:
        for _, handles in sorted(vertex.by_subtask.items()):
            for handle in handles:
                for part in handle.parts:
                    parts.setdefault(part.edge, []).append((handle.content, part))
    return parts


def _deal_out_in_flight(
    job_graph: JobGraph, checkpoint: CompletedCheckpoint
) -> dict[Subtask, tuple[InFlightRestore, ...]]:
    vertices = {vertex.id: vertex for vertex in job_graph.vertices}
    dealt: dict[Subtask, tuple[InFlightRestore, ...]] = {}
    for saved_edge, parts in sorted(_parts_by_edge(checkpoint).items(), key=lambda item: item[0].edge_id):
        edge = _edge_of(job_graph, saved_edge)
        assert edge is not None, "decide_restore has refused it"
        target, source = vertices[edge.target_vertex_id], vertices[edge.source_vertex_id]
        saved = checkpoint.operators[target.id]  # the id of a vertex is that of its head
        restores = deal_out_in_flight(
            parts,
            edge.id,
            edge.partitioner,
            pickle_partitioner,
            (saved.parallelism, saved.max_parallelism),
            (target.parallelism, target.max_parallelism),
            checkpoint.operators[source.id].parallelism == source.parallelism,
        )
        for index, part in enumerate(restores):
            dealt[target.id, index] = dealt.get((target.id, index), ()) + part
    return dealt


def _in_flight_refusals(job_graph: JobGraph, checkpoint: CompletedCheckpoint) -> Iterator[StateMigrationError]:
    names = {vertex.id: vertex.name for vertex in job_graph.vertices}
    for saved in _parts_by_edge(checkpoint):
        if _edge_of(job_graph, saved) is not None:
            continue
        source, target = names.get(saved.source_vertex), names.get(saved.target_vertex)
        yield StateMigrationError(
            f'could not restore the records in flight from "{source or saved.source_vertex}" to '
            f'"{target or saved.target_vertex}"',
            where=checkpoint.location,
            why="the checkpoint is unaligned, and the program does not have this connection "
            f"({saved.partitioner}) any more: tasks are gone, chained or connected differently",
            do="restore it with the program that has written it, and take a savepoint, which is always aligned",
        )


def _operators(job_graph: JobGraph) -> Iterator[tuple[ChainedOperator, JobVertex]]:
    for vertex in job_graph.vertices:
        for operator in vertex.chain.operators:
            yield operator, vertex


def _has_state(snapshot: OperatorSnapshot) -> bool:
    return snapshot.coordinator is not None or any(not state.is_empty for state in snapshot.subtasks.values())


def _id_of(snapshot: OperatorSnapshot) -> str:
    return f"uid {snapshot.uid}" if snapshot.uid else snapshot.operator_id


def _describe(snapshot: OperatorSnapshot) -> str:
    size = sum(size_of(handle) for state in snapshot.subtasks.values() for handle in state.keyed)
    has_own = any(state.operator and state.operator.states for state in snapshot.subtasks.values())
    parts = [f"{size} bytes of keyed state"] if size else []
    parts += ["operator state"] if has_own else []
    parts += [f"{len(snapshot.coordinator)} bytes of its coordinator"] if snapshot.coordinator else []
    if is_finished(snapshot):
        parts.append("finished")
    return ", ".join(parts) or "no state"
