"""Unaligned checkpoints in the data plane: the world of `barrier_world` with barriers that overtake, and after it a
second one that goes on from one of its checkpoints, with other parallelisms.

What must hold beyond a consistent cut (there: with what is in flight):

* In the second run each vertex takes exactly what was in flight to it and what the vertices before it give, record by
  record, so nothing is lost or doubled by the restore.
* What was in flight on a keyed edge is taken by the subtask that owns the key.
* The records of one sender stay in order over checkpoint and restore.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from flinkish.datastream import partitioners
from flinkish.graph.chain_pickling import pickle_partitioner
from flinkish.graph.execution_graph import slots_needed
from flinkish.graph.job_graph import JobEdge, JobGraph, JobVertex
from flinkish.messages.deployment import TaskRestore
from flinkish.messages.elements import RowBatch
from flinkish.state.key_groups import key_group, subtask_for_key_group
from flinkish.state.redistribution import deal_out_in_flight
from flinkish.taskmanager import task as task_module
from flinkish.taskmanager.barrier_aligner import BarrierAligner
from flinkish.taskmanager.in_flight_collector import InFlightCollector
from flinkish.testing.scripted_chain import ScriptLog
from flinkish.testing.simulated_slots import SimulatedSlots
from tests.simulation.barrier_world import BarrierWorld

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

    def run(self) -> None:
        original, task_module.InFlightCollector = task_module.InFlightCollector, self.collector
        try:
            super().run()
        finally:
            task_module.InFlightCollector = original
        chosen = [number for number in self.complete if self._in_flight_parts(number)] or self.complete
        if chosen:
            self._go_on_from(self.rng.choice(chosen))

    # ---- the second run -------------------------------------------------------------------------

    def _go_on_from(self, checkpoint_id: int) -> None:
        graph = self._rescaled()
        self.events.append(
            f"go on from {checkpoint_id} with {[(v.id, v.parallelism) for v in graph.vertices]}"
        )
        log = ScriptLog()
        slot_ids = [f"t{index}" for index in range(slots_needed(graph))]
        skip = {
            (vertex.id, subtask): len([1 for _, _, who in self._before(vertex.id, vertex.parallelism, checkpoint_id)
                                       if who == subtask])
            for vertex in graph.vertices if not vertex.inputs for subtask in range(vertex.parallelism)
        }  # fmt: skip

        def chain(*arguments: Any) -> Any:
            made = log.chain(*arguments)
            if made.source is not None:
                _skip(made.source.polls, skip[made.key])
            return made

        slots = SimulatedSlots(self.seed, slot_ids, chain, network_slow=self.rng.random(), credits=2)
        slots.deploy(graph, {"taskmanager.network.max-records-per-batch": "16"}, False, self._restores(graph, checkpoint_id))
        slots.start()
        slots.run_until_quiet()
        assert set(slots.states.values()) == {"FINISHED"}, slots.failures
        self._check_second(graph, log, checkpoint_id)

    def _rescaled(self) -> JobGraph:
        """Sources, and what is forward, keep their parallelism."""
        forward = {
            end
            for edge in self.job.edges
            if isinstance(edge.partitioner, partitioners.ForwardPartitioner)
            for end in (edge.source_vertex_id, edge.target_vertex_id)
        }
        vertices = [
            replace(vertex, parallelism=self.rng.randint(1, 4) if vertex.inputs and vertex.id not in forward
                    else vertex.parallelism)
            for vertex in self.job.vertices
        ]  # fmt: skip
        return JobGraph("job", "random", vertices)

    def _restores(self, graph: JobGraph, checkpoint_id: int) -> dict[tuple[str, int], TaskRestore]:
        saved = {vertex.id: vertex for vertex in self.job.vertices}
        declared = {vertex.id: vertex for vertex in graph.vertices}
        in_flight: dict[tuple[str, int], tuple] = {}
        parts = self._in_flight_parts(checkpoint_id)
        for edge in self.job.edges:
            target, source = edge.target_vertex_id, edge.source_vertex_id
            dealt = deal_out_in_flight(
                [found for found in parts if found[1].edge.edge_id == edge.id],
                edge.id,
                edge.partitioner,
                pickle_partitioner,
                (saved[target].parallelism, saved[target].max_parallelism),
                (declared[target].parallelism, declared[target].max_parallelism),
                saved[source].parallelism == declared[source].parallelism,
            )
            for index, restores in enumerate(dealt):
                in_flight[target, index] = in_flight.get((target, index), ()) + restores
        return {
            (vertex.id, index): TaskRestore(checkpoint_id, {}, in_flight.get((vertex.id, index), ()))
            for vertex in graph.vertices
            for index in range(vertex.parallelism)
        }

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
                    expected.update(in_flight.get(edge.id, ()))
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

    def _parallelism(self, vertex_id: str) -> int:
        return next(vertex.parallelism for vertex in self.job.vertices if vertex.id == vertex_id)


def _skip(polls: Any, count: int) -> None:
    """Take the first ``count`` records out of the polls of a source."""
    for elements in polls:
        for element in elements:
            if isinstance(element, RowBatch) and count:
                taken = min(count, len(element.values))
                count -= taken
                del element.values[:taken]
                if element.timestamps is not None:
                    del element.timestamps[:taken]
    assert not count
