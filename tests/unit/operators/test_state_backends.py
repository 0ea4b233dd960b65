"""The same job gives the same result on each backend, and goes on from the other's savepoint with any parallelism."""

import random
import tempfile

import pytest

from flinkish.common.time import Time
from flinkish.common.typeinfo import Types
from flinkish.datastream.functions import KeyedProcessFunction, ProcessWindowFunction
from flinkish.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from flinkish.datastream.window import (
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from flinkish.messages.checkpoints import IncrementalKeyedStateHandle
from flinkish.messages.elements import Watermark
from flinkish.shell import snapshot_executor
from flinkish.testing import StreamTestHarness
from tests.rocksdb_states import FAST_DISK, tiny_caches


class EveryState(KeyedProcessFunction):
    def open(self, context):
        self.sum = context.get_state(ValueStateDescriptor("sum", Types.LONG()))
        self.seen = context.get_list_state(ListStateDescriptor("seen"))
        self.by_last = context.get_map_state(MapStateDescriptor("by last", Types.INT(), Types.INT()))
        self.largest = context.get_reducing_state(ReducingStateDescriptor("largest", max))

    def process_element(self, record, ctx):
        key, number = record
        self.sum.update((self.sum.value() or 0) + number)
        self.seen.add(number)
        self.by_last.put(number % 3, number)
        self.largest.add(number)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 50)
        yield key, self.sum.value(), list(self.seen.get())[-3:], sorted(self.by_last.items()), self.largest.get()

    def on_timer(self, timestamp, ctx):
        yield "timer", ctx.get_current_key(), timestamp, self.sum.value()
        if timestamp % 4 == 0:
            self.seen.clear()
            self.by_last.clear()


class Collected(ProcessWindowFunction):
    def process(self, key, context, elements):
        fired = context.window_state().get_state(ValueStateDescriptor("fired"))
        fired.update((fired.value() or 0) + 1)
        total = context.global_state().get_state(ValueStateDescriptor("total"))
        total.update((total.value() or 0) + len(elements))
        yield key, context.window().start, sorted(number for _, number in elements), fired.value(), total.value()

    def clear(self, context):
        context.window_state().get_state(ValueStateDescriptor("fired")).clear()


def keyed(stream):
    return stream.key_by(lambda record: record[0])


def windows(stream, lateness=0):
    return keyed(stream).window(TumblingEventTimeWindows.of(Time.milliseconds(40))).allowed_lateness(lateness)


def add(one, other):
    return one[0], one[1] + other[1]


def sessions(stream):
    return keyed(stream).window(EventTimeSessionWindows.with_gap(Time.milliseconds(25))).allowed_lateness(10)


JOBS = {
    "process": lambda stream: keyed(stream).process(EveryState()),
    "reduce": lambda stream: keyed(stream).reduce(add),
    "window reduce": lambda stream: windows(stream).reduce(add),
    "window process": lambda stream: windows(stream).process(Collected()),
    "late window process": lambda stream: windows(stream, 60).process(Collected()),
    "sliding windows": lambda stream: keyed(stream).window(SlidingEventTimeWindows.of(60, 20)).reduce(add),
    "session reduce": lambda stream: sessions(stream).reduce(add),
    "session records": lambda stream: sessions(stream).apply(lambda key, window, inputs: [(key, window.end, len(inputs))]),
    "own trigger": lambda stream: windows(stream).trigger(ContinuousEventTimeTrigger.of(15)).process(Collected()),
    "evictor": lambda stream: keyed(stream).window(GlobalWindows.create()).trigger(CountTrigger.of(2)).evictor(
        CountEvictor.of(3)
    ).apply(lambda key, window, inputs: [(key, sum(number for _, number in inputs))]),
    "count windows": lambda stream: keyed(stream).count_window(3).reduce(add),
}


CHANGELOG = "hashmap with a changelog"


def run(job, backends, folder=None):
    """Output of three runs, each from the savepoint of the one before (with a changelog: from its last checkpoint), with
    parallelism 1, 3, 2; sorted, since the order between keys is nobody's.  And how many files made a checkpoint at most."""
    rng, time, outputs, snapshot, files = random.Random(7), 0, [], None, 0
    options = {} if folder is None else {"execution.checkpointing.dir": folder}
    if FAST_DISK is not None:
        options["state.backend.rocksdb.localdir"] = FAST_DISK
    for backend, parallelism in zip(backends, (1, 3, 2)):
        log = {"state.changelog.enabled": "true"} if backend is CHANGELOG else {}
        harness = StreamTestHarness(
            JOBS[job], "hashmap" if log else backend, parallelism, snapshot=snapshot, configuration=options | log
        )
        with harness:
            for number in range(12):
                time += 10
                records = [
                    ((f"key-{rng.randrange(40)}", rng.randrange(100)), time + rng.randrange(-30, 10)) for _ in range(15)
                ]
                harness.process_elements(records)
                harness.process_watermark(time)
                if log and number > 6:
                    snapshot = harness.checkpoint()
                    files = max(files, *map(number_of_files, handles(snapshot)))
            outputs.append(sorted(repr(element) for element in harness.output if not isinstance(element, Watermark)))
            snapshot = snapshot if log else harness.snapshot()
    return outputs, files


def handles(snapshot):
    subtasks = (state for operator in snapshot.operators.values() for state in operator.subtasks.values())
    return [handle for state in subtasks for handle in state.keyed]


def number_of_files(handle):
    return len(handle.shared) + len(handle.private) if isinstance(handle, IncrementalKeyedStateHandle) else 1


@pytest.fixture
def folder(monkeypatch):
    """For checkpoints, where everything above 200 bytes is a file."""
    monkeypatch.setattr(snapshot_executor, "INLINE_BYTES_MAX", 200)
    with tempfile.TemporaryDirectory(dir=FAST_DISK) as name:
        yield name


@pytest.mark.parametrize("job", JOBS)
def test_results_are_the_same_on_each_backend_and_across_them(job, folder):
    expected, _ = run(job, ("hashmap", "hashmap", "hashmap"))
    assert all(expected), "each run has output"
    with tiny_caches():
        assert run(job, ("rocksdb", "rocksdb", "rocksdb"))[0] == expected
        assert run(job, ("rocksdb", "hashmap", "rocksdb"))[0] == expected
        for backends in (CHANGELOG,) * 3, (CHANGELOG, "hashmap", CHANGELOG), (CHANGELOG, "rocksdb", CHANGELOG):
            found, files = run(job, backends, folder)
            assert found == expected, backends
            # Sessions change nearly all of their state between two checkpoints, so each of these stores all of it.
            assert files >= 2 or "session" in job, "there were changes behind a base"
