"""Slots whose sink is slower than their source: memory stays flat, because the source is throttled."""

import time

import numpy as np
import pytest

from flinkish.common.typeinfo import Types
from flinkish.connectors.discarding import DiscardingSink
from flinkish.datastream.functions import KeyedProcessFunction, MapFunction, RuntimeContext
from flinkish.datastream.state import ValueStateDescriptor
from flinkish.metrics import names
from tests.integration.running_jobs import MB, end, figures_by_task, memory_bytes, slot_pids
from tests.integration.waiting import wait_until

# Records between source and slow sink of a subtask: three exchanges over two channels, each with 4 credits and
# an output that is at most twice full, in batches of 1,024; and a batch in work in each task.
BUFFERED = (3 * 2 * (4 + 2) + 3) * 1_024 * 5 // 4


class Counts(KeyedProcessFunction):
    """A new record of 200 bytes for each; state of 1,000 keys."""

    def open(self, runtime_context: RuntimeContext):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value, count, f"{value:0150d}"


class RestsOften(MapFunction):
    """5,000 records a second."""

    def __init__(self):
        self.count = 0

    def map(self, value):
        self.count += 1
        if self.count % 25 == 0:
            time.sleep(0.005)
        return value


def run_with_a_slow_sink(cluster, seconds, warm_up_s):
    """(Seconds and memory in bytes of both slots, ten times a second from the end of the warm-up on; the last
    figures by task) of a job with a keyed exchange between two slots, state, and a sink that rests."""
    env = cluster.get_execution_environment({"parallelism.default": 2})
    numbers = env.from_sequence(1, 1 << 60).rebalance().map(lambda n: n + 0).name("numbers")
    slow = numbers.key_by(lambda n: n % 1_000).process(Counts()).name("counts").rebalance().map(RestsOften())
    slow.name("slow").sink_to(DiscardingSink()).name("end")
    client = env.execute_async()
    wait_until(lambda: len(figures_by_task(cluster, client)) == 4, "all tasks report")
    pids, started_s, samples = slot_pids(cluster, client), time.monotonic(), []
    assert len(pids) == 2
    while (at_s := time.monotonic() - started_s) < seconds:
        time.sleep(0.1)
        if at_s >= warm_up_s:
            samples.append((at_s, [memory_bytes(pid) for pid in pids]))
    figures = figures_by_task(cluster, client)
    assert slot_pids(cluster, client) == pids, "no slot was replaced"
    end(client)
    return samples, figures


def growth_bytes_per_s(samples, slot):
    """Slope of the line through the samples of a slot (least squares)."""
    seconds, memory = np.array([s for s, _ in samples]), np.array([m[slot] for _, m in samples])
    return np.polyfit(seconds, memory, 1)[0]


def check_flat(samples, figures, growth_bytes_per_s_max):
    for slot in range(2):
        assert growth_bytes_per_s(samples, slot) < growth_bytes_per_s_max, [m[slot] >> 20 for _, m in samples]
        assert max(memory[slot] for _, memory in samples) < 200 * MB
    by_name = {name.split(" -> ")[0]: each for name, each in figures.items()}
    read = by_name["Source: Sequence Source"]["numRecordsOut"]
    assert by_name["Source: Sequence Source"][names.TASK_BACK_PRESSURED_TIME] > 800
    assert 0 < read - by_name["slow"]["numRecordsIn"] < BUFFERED


def test_memory_stays_flat_and_the_source_is_throttled_while_the_sink_is_slow(cluster):
    samples, figures = run_with_a_slow_sink(cluster, seconds=12, warm_up_s=3)
    check_flat(samples, figures, growth_bytes_per_s_max=MB // 2)


@pytest.mark.soak
def test_memory_stays_flat_for_ten_minutes(cluster):
    samples, figures = run_with_a_slow_sink(cluster, seconds=600, warm_up_s=30)
    check_flat(samples, figures, growth_bytes_per_s_max=4 << 10)  # 2 MB in the ten minutes
