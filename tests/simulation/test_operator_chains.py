"""Real operator chains over simulated slots: the result does not depend on batches, credits,
delays, placement, or on whether the chain is fused."""

from __future__ import annotations

import pickle
import random
from collections import Counter

import pytest

from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.connectors.spi import (
    Boundedness,
    InputStatus,
    Sink,
    SinkWriter,
    Source,
    SourceReader,
)
from flinkish.datastream import StreamExecutionEnvironment
from flinkish.datastream.functions import KeyedProcessFunction
from flinkish.graph.execution_graph import slots_needed
from flinkish.graph.job_graph_generator import create_job_graph
from flinkish.messages.control import SinkPayload
from flinkish.testing.simulated_slots import SimulatedSlots

COUNT = 400


class Numbers(Source):
    """Each reader makes its own records: no splits, so no JobManager is needed."""

    def boundedness(self):
        return Boundedness.BOUNDED

    def create_enumerator(self, context):
        raise AssertionError("nobody asks for splits here")

    def create_reader(self, context):
        return NumbersReader(context.index_of_subtask(), context.current_parallelism())


class NumbersReader(SourceReader):
    poll_interval_ms = 1

    def __init__(self, index, parallelism):
        self.numbers = list(range(index, COUNT, parallelism))
        self.rng = random.Random(index)
        self.at = 0

    def poll_next(self, output):
        if self.at >= len(self.numbers):
            return InputStatus.END_OF_INPUT
        if self.rng.random() < 0.1:
            return InputStatus.NOTHING_AVAILABLE
        take = self.numbers[self.at : self.at + self.rng.randint(1, max(1, min(50, output.room)))]
        self.at += len(take)
        output.collect_batch([{"n": n} for n in take], [n * 10 for n in take])
        return InputStatus.MORE_AVAILABLE


class ToTheTest(Sink):
    """Sends each record to the coordinator's side, which is the test."""

    def create_writer(self, context):
        return ToTheTestWriter(context)


class ToTheTestWriter(SinkWriter):
    def __init__(self, context):
        self.send = context.send_to_coordinator

    def write(self, value, timestamp_ms, watermark_ms):
        self.send(value)


class RunningSum(KeyedProcessFunction):
    """Counts by key, and says so again at the end of event time."""

    def open(self, context):
        from flinkish.common.typeinfo import Types
        from flinkish.datastream.state import ValueStateDescriptor

        self.total = context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value, context):
        total = (self.total.value() or 0) + value["n"]
        self.total.update(total)
        context.timer_service().register_event_time_timer(10**9)
        value["n"] = -1  # the record is this operator's own by now
        yield ("sum", context.get_current_key(), total)

    def on_timer(self, timestamp, context):
        yield ("final", context.get_current_key(), self.total.value())


def build(rng):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(rng.randint(1, 3))
    stream = env.from_source(Numbers(), WatermarkStrategy.for_monotonous_timestamps(), "numbers")

    def expand(value):
        again = []
        for copy in range(3):
            again.append({"n": value["n"], "copy": copy})
        return again

    stream = stream.map(lambda value: value)
    stream = rng.choice([stream.rebalance, stream.shuffle, stream.rescale, lambda: stream])()
    stream = stream.flat_map(expand)
    if rng.random() < 0.5:
        stream = stream.disable_chaining()
    group = rng.choice(["default", "other"])
    keyed = stream.key_by(lambda value: (value["n"] % 7, value["copy"]))
    summed = keyed.process(RunningSum()).slot_sharing_group(group)

    summed.map(lambda value: value).sink_to(ToTheTest())
    return env.get_stream_graph("simulated")


@pytest.mark.parametrize("seed", range(25))
def test_a_keyed_job_gives_the_same_sums_over_any_network(seed):
    rng = random.Random(seed)
    graph = create_job_graph(build(rng))
    configuration = {
        **graph.configuration,
        "taskmanager.network.max-records-per-batch": str(rng.choice((1, 5, 64, 1024))),
        "flinkish.fused-chains": rng.choice(("true", "false")),
        "pipeline.auto-watermark-interval": str(rng.choice((1, 7, 200))),
    }
    slot_ids = [f"s{i}" for i in range(slots_needed(graph))]
    slots = SimulatedSlots(seed, slot_ids, network_slow=rng.random(), credits=rng.randint(1, 4))
    slots.deploy(graph, configuration)
    slots.start()
    slots.run_until_quiet(steps_max=500_000)
    failures = [str(error) for error in slots.failures.values()]
    assert set(slots.states.values()) == {"FINISHED"}, (seed, failures, slots.states)

    expected = Counter()
    for n in range(COUNT):
        for copy in range(3):
            expected[n % 7, copy] += n
    results = [
        pickle.loads(event.payload.payload)
        for event in slots.events
        if isinstance(event.payload, SinkPayload)
    ]
    final = {key: total for kind, key, total in results if kind == "final"}
    assert final == dict(expected), seed
    assert sum(kind == "sum" for kind, *_ in results) == COUNT * 3, seed
    last = {}
    for kind, key, total in results:
        if kind == "sum":
            assert total >= last.get(key, 0), (seed, key)
            last[key] = total
    assert last == final, seed
