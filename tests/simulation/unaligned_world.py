"""Unaligned checkpoints in the data plane: the world of `barrier_world` with barriers that overtake, and after it a
second one that goes on from one of its checkpoints, with other parallelisms: through ``decide_restore`` and
``deal_out_checkpoint``, as a JobMaster does.

What must hold beyond a consistent cut (there: with what is in flight):

* In the second run each vertex takes exactly what was in flight to it and what the vertices before it give, record by
  record, so nothing is lost or doubled by the restore.
* What was in flight on a keyed edge is taken by the subtask that owns the key.
* The records of one sender stay in order over checkpoint and restore.
* No record comes behind a watermark that is not lower: what was in flight of watermarks is taken for those of the
  senders that said them, or for nobody's.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import Any, Callable, Sequence

from flinkish.datastream import partitioners
from flinkish.graph.execution_graph import slots_needed
from flinkish.graph.job_graph import ChainedOperator, JobEdge, JobGraph, JobVertex, OperatorChainSpec
from flinkish.jobmanager.checkpoint_plan import checkpointed_vertices
from flinkish.jobmanager.pending_checkpoint import PendingCheckpoint
from flinkish.jobmanager.restore_decision import decide_restore, deal_out_checkpoint
from flinkish.messages.checkpoints import CompletedCheckpoint, SnapshotKind
from flinkish.messages.deployment import TaskRestore
from flinkish.messages.elements import MIN_WATERMARK_MS, Element, RowBatch, Watermark
from flinkish.state.key_groups import key_group, subtask_for_key_group
from flinkish.taskmanager import task as task_module
from flinkish.taskmanager.barrier_aligner import BarrierAligner
from flinkish.taskmanager.in_flight_collector import InFlightCollector
from flinkish.testing.scripted_chain import ScriptLog
from flinkish.testing.simulated_slots import SimulatedSlots
from tests.simulation.barrier_world import BarrierWorld

RESTORES = 2  # with whichever parallelisms


class UnalignedWorld(BarrierWorld):
    """``collector``: class under test."""

    unaligned = True
    counts = (8, 20, 50)
    frame_records = (3, 16, 64)
    steps_max = 40_000

    def __init__(
        self,
        seed: int,
        aligner: type[BarrierAligner] = BarrierAligner,
        collector: type[InFlightCollector] = InFlightCollector,
    ):
        super().__init__(seed, aligner)
        self.seed = seed
        self.collector = collector
        self.replayed = 0
        self.edges_by = 0  # ids of edges rise by this in the second run

    def run(self) -> None:
        original, task_module.InFlightCollector = task_module.InFlightCollector, self.collector
        try:
            super().run()
        finally:
            task_module.InFlightCollector = original
        chosen = [number for number in self.complete if self._in_flight_parts(number)] or self.complete
        for _ in range(RESTORES if chosen else 0):
            self._go_on_from(self.rng.choice(chosen))

    # ---- the second run -------------------------------------------------------------------------

    def _go_on_from(self, checkpoint_id: int) -> None:
        checkpoint = self._checkpoint(checkpoint_id)
        self.edges_by = self.rng.choice((0, 0, 10))
        graph = self._rescaled(checkpoint_id)
        if self._is_ambiguous(graph, checkpoint):
            assert decide_restore(_with_operators(graph), checkpoint).refusals, "it cannot know which edge is which"
            self.edges_by = 0
            graph = self._rescaled(checkpoint_id)
        self.events.append(
            f"go on from {checkpoint_id} with {[(v.id, v.parallelism) for v in graph.vertices]}, "
            f"edges renumbered by {self.edges_by}"
        )
        log = ScriptLog()
        slot_ids = [f"t{index}" for index in range(slots_needed(graph))]
        slots = SimulatedSlots(self.seed, slot_ids, log.chain, network_slow=self.rng.random(), credits=2)
        slots.deploy(graph, {"taskmanager.network.max-records-per-batch": "16"}, False, _restores(graph, checkpoint))
        slots.start()
        slots.run_until_quiet()
        assert set(slots.states.values()) == {"FINISHED"}, slots.failures
        self._check_second(graph, log, checkpoint_id)

    def _checkpoint(self, checkpoint_id: int) -> CompletedCheckpoint:
        """What the CheckpointCoordinator makes of the acknowledgements."""
        states = {
            execution: message.state
            for execution, messages in self.acknowledged.items()
            for message in messages
            if message.checkpoint_id == checkpoint_id
        }
        finished = frozenset((gone.vertex_id, gone.subtask_index) for gone in self.executions - states.keys())
        kind, location = SnapshotKind.CHECKPOINT, f"file:/chk/chk-{checkpoint_id}"
        pending = PendingCheckpoint(
            checkpoint_id, kind, location, 0, 0, [], set(), set(), finished, frozenset(), states=states
        )
        vertices = checkpointed_vertices(_with_operators(self.job.graph))
        operators, in_flight = pending.operator_snapshots(vertices), pending.in_flight(vertices)
        return CompletedCheckpoint("job", "random", "run", checkpoint_id, 0, 0, kind, location, operators, in_flight)

    def _rescaled(self, checkpoint_id: int) -> JobGraph:
        """The rest of the job: some vertices with another parallelism, what is forward together, and edges perhaps with
        other ids, as after a change of the program elsewhere."""
        parallelism = {vertex.id: vertex.parallelism for vertex in self.job.vertices}
        for group in self._bound_together():
            if self.rng.random() < 0.6:
                parallelism.update(dict.fromkeys(group, self.rng.randint(1, 4)))
        edges = {edge.id: replace(edge, id=edge.id + self.edges_by) for edge in self.job.edges}
        vertices = []
        for vertex in self.job.vertices:
            script: Any = vertex.chain
            outputs = tuple(replace(output, edge_id=output.edge_id + self.edges_by) for output in script.outputs)
            source = script.source
            if source is not None:
                before = Counter(who for _, _, who in self._before(vertex.id, vertex.parallelism, checkpoint_id))
                source = _rest_of(source, [before[subtask] for subtask in range(vertex.parallelism)])
            vertices.append(
                replace(
                    vertex,
                    parallelism=parallelism[vertex.id],
                    chain=replace(script, outputs=outputs, source=source),
                    inputs=[edges[edge.id] for edge in vertex.inputs],
                    outputs=[edges[edge.id] for edge in vertex.outputs],
                )
            )
        return JobGraph("job", "random", vertices)

    def _bound_together(self) -> list[set[str]]:
        """Vertices whose parallelism is the same, for forward edges are between them."""
        groups = [{vertex.id} for vertex in self.job.vertices]
        for edge in self.job.edges:
            if isinstance(edge.partitioner, partitioners.ForwardPartitioner):
                ends = {edge.source_vertex_id, edge.target_vertex_id}
                bound = [group for group in groups if group & ends]
                groups = [group for group in groups if not group & ends] + [set().union(*bound)]
        return groups

    def _is_ambiguous(self, graph: JobGraph, checkpoint: CompletedCheckpoint) -> bool:
        """Whether something was in flight on an edge that has got another id and looks like another one."""
        alike = Counter(map(_likeness, graph.edges))
        edges = {edge.id: edge for edge in self.job.edges}
        used = self._in_flight_edges(checkpoint.checkpoint_id)
        return self.edges_by > 0 and any(alike[_likeness(edges[edge_id])] > 1 for edge_id in used)

    def _in_flight_edges(self, checkpoint_id: int) -> set[int]:
        return {part.edge.edge_id for _, part in self._in_flight_parts(checkpoint_id)}

    # ---- what must hold -------------------------------------------------------------------------

    def _check_second(self, graph: JobGraph, log: ScriptLog, checkpoint_id: int) -> None:
        in_flight = self._in_flight(checkpoint_id)
        given: dict[str, Counter] = {}
        for vertex in graph.vertices:
            process = vertex.chain.process  # type: ignore[attr-defined]
            taken = [
                (index, value, subtask)
                for subtask in range(vertex.parallelism)
                for kind, index, value, _ in log.seen[vertex.id, subtask]
                if kind == "record"
            ]
            given[vertex.id] = Counter(
                result
                for _, value, subtask in taken
                for result in ((value,) if process is None else process(subtask, value))
            )
            for index in {edge.input_index for edge in vertex.inputs}:
                edges = [edge for edge in vertex.inputs if edge.input_index == index]
                expected: Counter = Counter()
                for edge in edges:
                    expected.update(in_flight.get(edge.id - self.edges_by, ()))
                    copies = vertex.parallelism if isinstance(edge.partitioner, partitioners.BroadcastPartitioner) else 1
                    for value, count in given[edge.source_vertex_id].items():
                        expected[value] += copies * count
                found = Counter(value for number, value, _ in taken if number == index)
                assert found == expected, (
                    f"restored, input {index} of {vertex.id}: lost {list((expected - found).items())[:3]}, "
                    f"too many {list((found - expected).items())[:3]}"
                )
                if len(edges) == 1:
                    self._check_owners(vertex, edges[0], [found for found in taken if found[0] == index])
            if len(vertex.inputs) == 1:
                self._check_order(vertex, log, checkpoint_id)
            if not self.job.idle:  # else its next records may come behind what the others have said meanwhile
                self._check_watermarks(vertex, log)
        self.replayed += sum(map(len, in_flight.values()))

    def _check_owners(self, vertex: JobVertex, edge: JobEdge, taken: list[tuple[int, Any, int]]) -> None:
        keyed = edge.partitioner
        if isinstance(keyed, partitioners.KeyGroupPartitioner):
            for _, value, subtask in taken:
                group = key_group(keyed.key_selector(value), vertex.max_parallelism)
                owner = subtask_for_key_group(group, vertex.max_parallelism, vertex.parallelism)
                assert subtask == owner, f"{value} came to subtask {subtask} of {vertex.id}, its owner is {owner}"

    def _check_order(self, vertex: JobVertex, log: ScriptLog, checkpoint_id: int) -> None:
        """Behind a source, and by key: (origin, number) rises for each origin, before and after together."""
        (edge,) = vertex.inputs
        behind_source = not next(v for v in self.job.vertices if v.id == edge.source_vertex_id).inputs
        if not behind_source or not isinstance(edge.partitioner, partitioners.KeyGroupPartitioner):
            return
        before = self._before(vertex.id, self._parallelism(vertex.id), checkpoint_id)
        after = [
            (0, value, subtask) for subtask in range(vertex.parallelism) for value in log.records(vertex.id, subtask)
        ]
        last: dict[tuple[int, Any], int] = {}
        for _, (origin, number), _ in [*before, *after]:
            key = origin, edge.partitioner.key_selector((origin, number))
            assert last.get(key, -1) < number, f"{number} of {origin} comes after {last[key]} at {vertex.id}"
            last[key] = number

    def _check_watermarks(self, vertex: JobVertex, log: ScriptLog) -> None:
        """Sources give numbers in order, each with its number as its time, and watermarks as high as the last one."""
        for subtask in range(vertex.parallelism):
            watermarks: dict[int, int] = {}
            for kind, index, value, _ in log.seen[vertex.id, subtask]:
                if kind == "watermark":
                    watermarks[index] = value
                elif kind == "record" and vertex.inputs:
                    reached = watermarks.get(index, MIN_WATERMARK_MS)
                    assert value[1] > reached, f"{value} comes to {vertex.id} {subtask} behind watermark {reached}"

    def _parallelism(self, vertex_id: str) -> int:
        return next(vertex.parallelism for vertex in self.job.vertices if vertex.id == vertex_id)


def _with_operators(graph: JobGraph) -> JobGraph:
    """For the JobMaster, to whom each vertex has an operator of its own name."""
    vertices = []
    for vertex in graph.vertices:
        operator = ChainedOperator(0, vertex.id, vertex.name, None)  # type: ignore[arg-type]
        vertices.append(replace(vertex, chain=OperatorChainSpec((operator,), (), ())))
    return JobGraph(graph.job_id, graph.job_name, vertices)


def _restores(graph: JobGraph, checkpoint: CompletedCheckpoint) -> dict[tuple[str, int], TaskRestore]:
    declared = _with_operators(graph)
    refusal = decide_restore(declared, checkpoint).refusal(ignore_unclaimed=False)
    assert refusal is None, refusal
    return deal_out_checkpoint(declared, checkpoint)


def _likeness(edge: JobEdge) -> tuple[str, str, int, str]:
    return edge.source_vertex_id, edge.target_vertex_id, edge.input_index, edge.partitioner.name


def _rest_of(
    source: Callable[[int, int], Sequence[list[Element]]], taken: list[int]
) -> Callable[[int, int], Sequence[list[Element]]]:
    """A source that goes on behind the first ``taken[i]`` records of each old subtask ``i``.  What an old one has left
    is like a split: new ones share them, and their watermark is the lowest of their splits."""

    def polls(subtask: int, parallelism: int) -> Sequence[list[Element]]:
        splits = {
            split: deque(_skipped(source(split, len(taken)), taken[split]))
            for split in range(subtask, len(taken), parallelism)
        }
        if len(splits) == 1:
            return list(*splits.values())
        made: list[list[Element]] = []
        reached = dict.fromkeys(splits, MIN_WATERMARK_MS)
        said = MIN_WATERMARK_MS
        while splits:
            for split, left in list(splits.items()):
                elements = left.popleft()
                made.append([element for element in elements if isinstance(element, RowBatch)])
                for element in elements:
                    if isinstance(element, Watermark):
                        reached[split] = element.timestamp
                if min(reached.values()) > said:
                    said = min(reached.values())
                    made[-1].append(Watermark(said))
                if not left:
                    del splits[split], reached[split]
        return made

    return polls


def _skipped(polls: Sequence[list[Element]], count: int) -> Sequence[list[Element]]:
    """Without the first ``count`` records."""
    for elements in polls:
        for element in elements:
            if isinstance(element, RowBatch) and count:
                taken = min(count, len(element.values))
                count -= taken
                del element.values[:taken]
                if element.timestamps is not None:
                    del element.timestamps[:taken]
    assert not count
    return polls
