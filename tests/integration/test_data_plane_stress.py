"""Records that explode, records that are large, readers that are slow: on real slots and real sockets."""

import contextlib
import json
import os
import re
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from flinkish.common.typeinfo import Types
from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.connectors.discarding import DiscardingSink
from flinkish.connectors.spi import Sink, SinkWriter
from flinkish.datastream.functions import (
    CoMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    ProcessWindowFunction,
)
from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.time_window import TimeWindow
from flinkish.datastream.window import TumblingEventTimeWindows
from flinkish.errors import UserError
from flinkish.operators import sink
from flinkish.taskmanager.frame_sizer import FRAME_BYTES
from flinkish.taskmanager.output_channel import RemoteOutputChannel
from tests.integration.running_jobs import MB, end, figures_by_task, memory_bytes
from tests.integration.tcp_slots import TcpMiniCluster
from tests.integration.waiting import wait_until

MILLION = 1_000_000
KB = 1 << 10


def peak_bytes():
    """The most memory that this process has had so far."""
    return memory_bytes("self", "VmHWM")


# ---- one record that explodes -------------------------------------------------------------------


def a_million(value):
    """Together these records take 95 MB."""
    for number in range(MILLION):
        yield number, value


class TimerYieldsAMillion(KeyedProcessFunction):
    """At the end of the input, which is where event time ends."""

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(1 << 50)

    def on_timer(self, timestamp, ctx):
        yield from a_million(timestamp)


class WindowYieldsAMillion(ProcessWindowFunction[int, tuple, int, TimeWindow]):
    def process(self, key, context, elements):
        yield from a_million(key)


def timed(stream):
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value)
    return stream.assign_timestamps_and_watermarks(strategy)


def a_thousand_times_a_thousand(stream):
    return stream.flat_map(lambda _: range(1_000)).flat_map(
        lambda high: ((1_000 * high + low, 7) for low in range(1_000))
    )


class Tally(Sink):
    """Each writer adds a line to a file when its input ends: records, their sum, peak memory of the slot."""

    def __init__(self, path):
        self.path = str(path)

    def create_writer(self, context):
        return TallyWriter(self.path)

    def total(self):
        writers = [json.loads(line) for line in Path(self.path).read_text().splitlines()]
        count, numbers, peaks = map(list, zip(*writers))
        return sum(count), sum(numbers), max(peaks)


class TallyWriter(SinkWriter):
    keeps_values = False

    def __init__(self, path):
        self.path, self.count, self.numbers = path, 0, 0

    def write(self, value, timestamp_ms, watermark_ms):
        raise AssertionError("a writer with write_batch is given batches")

    def write_batch(self, values, timestamps_ms, watermark_ms):
        self.count += len(values)
        self.numbers += sum([number for number, _ in values])

    def flush(self, end_of_input):
        if end_of_input:
            with open(self.path, "a") as file:
                file.write(json.dumps([self.count, self.numbers, peak_bytes()]) + "\n")


def tally_of(env, path, *exploded):
    """Runs the job: (records, sum of their numbers, peak memory of a slot)."""
    first, *others = exploded
    tally = Tally(path)
    (first.union(*others) if others else first).rebalance().sink_to(tally)
    env.execute()
    return tally.total()


def test_one_record_that_explodes_into_a_million_arrives_whole_in_bounded_memory(cluster, tmp_path):
    env = cluster.get_execution_environment({"parallelism.default": 2})
    one = env.from_collection([7])
    keyed = timed(one).key_by(lambda value: value)
    ways = (
        one.flat_map(a_million),
        a_thousand_times_a_thousand(one),
        keyed.process(TimerYieldsAMillion()),
        keyed.window(TumblingEventTimeWindows.of(1_000)).process(WindowYieldsAMillion()),
    )
    count, numbers, peak = tally_of(env, tmp_path / "tally", *ways)
    assert count == len(ways) * MILLION
    assert numbers == len(ways) * MILLION * (MILLION - 1) // 2
    assert peak < 150 * MB, "75 MB are the interpreter and its modules; a million records take 95 MB"


def test_a_list_of_a_million_results_is_not_copied(cluster, tmp_path):
    env = cluster.get_execution_environment({"parallelism.default": 2})
    exploded = env.from_collection([7]).flat_map(lambda value: list(a_million(value)))
    count, numbers, peak = tally_of(env, tmp_path / "tally", exploded)
    assert (count, numbers) == (MILLION, MILLION * (MILLION - 1) // 2)
    assert peak < 230 * MB, "the list of user code takes 95 MB"


def test_what_a_record_explodes_into_reaches_the_next_task_while_the_rest_is_still_to_be_made(cluster, collect):
    """Each result costs 5 ms in the chain behind the flat_map: they are not all made in one go."""

    def slowly(number):
        time.sleep(0.005)
        return number, time.monotonic()

    env = cluster.get_execution_environment({"execution.buffer-timeout": "20 ms"})
    stream = env.from_collection([1]).flat_map(lambda _: range(400)).map(slowly).rebalance()
    results = collect(stream.map(lambda made: (*made, time.monotonic())))
    assert sorted(number for number, _, _ in results) == list(range(400))
    waited_s = [received - made for _, made, received in results]
    assert sorted(waited_s)[200] < 0.5, "all of them together take 2 s"


# ---- large records ------------------------------------------------------------------------------

SIZES = [
    *(16 * KB + more for more in (-1, 0, 1)),  # from here on a frame gets memory of its own
    *(32 * KB + more for more in (-1, 0, 1)),
    230 * KB,
    *(FRAME_BYTES + more for more in (-1, 0, 1)),
    64 * MB,
]
SHAPES = {
    "bytes": lambda size: bytes(bytearray(range(251)) * (size // 251 + 1))[:size],
    "str": lambda size: ("0123456789äß" * (size // 12 + 1))[:size],
    "array": lambda size: np.arange(size // 8, dtype=np.int64).reshape(-1, 2 if size % 16 == 0 else 1),
    "nested": lambda size: {"id": size, "parts": [(b"\1" * (size // 2), None), [{"text": "z" * (size // 2)}]]},
}


def same(one, other):
    if isinstance(one, np.ndarray):
        return type(other) is np.ndarray and one.dtype == other.dtype and np.array_equal(one, other)
    return one == other and type(one) is type(other)


class NotesTheHop(MapFunction):
    """(number, shape, size, payload, hops): adds (how it came, whether from another process)."""

    def __init__(self, edge):
        self.edge = edge

    def map(self, value):
        *content, hops, sender = value
        return *content, [*hops, (self.edge, sender != os.getpid())], os.getpid()


def make_large(number):
    shape = list(SHAPES)[number % len(SHAPES)]
    size = SIZES[number // len(SHAPES)]
    return number, shape, size, SHAPES[shape](size), [], os.getpid()


def is_intact(value):
    number, shape, size, payload, hops, _ = value
    return number, shape, size, same(SHAPES[shape](size), payload), hops, peak_bytes()


@pytest.mark.parametrize("sockets", ["unix", "tcp"])
def test_records_of_any_size_and_shape_arrive_as_they_were_over_every_kind_of_edge(cluster, collect, sockets):
    with contextlib.ExitStack() as stack:
        if sockets == "tcp":
            cluster = stack.enter_context(TcpMiniCluster(slots=2))
        env = cluster.get_execution_environment({"parallelism.default": 2})
        numbers = range(0, len(SIZES) * len(SHAPES), 1 if sockets == "unix" else len(SHAPES))
        large = env.from_collection(numbers).rebalance().map(make_large)
        keyed = large.key_by(lambda value: value[0]).map(NotesTheHop("key_by"))
        broadcast = keyed.rebalance().map(NotesTheHop("rebalance")).broadcast().map(NotesTheHop("broadcast"))
        results = collect(broadcast.map(is_intact))
    assert sorted(number for number, *_ in results) == sorted([*numbers, *numbers])
    assert [] == [(shape, size) for _, shape, size, intact, _, _ in results if not intact]
    ways = {hop for *_, hops, _ in results for hop in hops}
    assert ways == {(e, other) for e in ("key_by", "rebalance", "broadcast") for other in (False, True)}
    assert max(peak for *_, peak in results) < 2_500 * MB


class LowersTheLimit(MapFunction):
    """To 1 MiB in the process of its slot, so that no test has to make a record of 1 GiB."""

    def open(self, runtime_context):
        RemoteOutputChannel.payload_bytes_max = sink.TO_DRIVER_BYTES_MAX = MB

    def map(self, size):
        return b"x" * size


def test_a_record_above_the_limit_of_a_frame_is_refused_by_operator_size_limit_and_advice(cluster, collect):
    def job(*sizes):
        env = cluster.get_execution_environment({"parallelism.default": 2})
        return env.from_collection(sizes).map(LowersTheLimit()).name("makes large ones").broadcast().map(len)

    allowed = MB - 200  # what stands around it in the frame takes less
    assert collect(job(allowed)) == [allowed] * 2
    with pytest.raises(UserError) as refused:
        collect(job(10, MB))
    what, where, why, do = str(refused.value).splitlines()
    assert what == "could not send a record of type bytes to another slot"
    assert "makes large ones" in where
    size, limit = map(int, re.findall(r"\d{3,}", why))
    assert MB < size < MB + 200 and limit == MB
    assert "send smaller ones, or the place of the data" in do


def test_a_record_that_is_too_large_for_the_driver_is_refused_by_the_sink_with_size_limit_and_advice(
    cluster, collect
):
    env = cluster.get_execution_environment({"parallelism.default": 1})
    with pytest.raises(UserError) as refused:
        collect(env.from_collection([10, MB]).map(LowersTheLimit()))
    what, where, why, do = str(refused.value).splitlines()
    assert what == "could not send a record to the driver" and "collect sink" in where
    size, limit = map(int, re.findall(r"\d{3,}", why))
    assert MB < size < MB + 200 and limit == MB
    assert "write it to a file from the slot" in do


# ---- subtasks of one slot that feed each other --------------------------------------------------

TIGHT = {"taskmanager.network.credits-per-channel": 1, "taskmanager.network.max-records-per-batch": 16}
COUNT = 4_000


class SlowSink(MapFunction):
    """Rests 1 ms after every hundredth record."""

    def __init__(self):
        self.count = 0

    def map(self, value):
        self.count += 1
        if self.count % 100 == 0:
            time.sleep(0.001)
        return value


class BothSides(CoMapFunction):
    def map1(self, value):
        return "left", value

    def map2(self, value):
        return "right", value


@pytest.mark.parametrize("slots", [1, 2])
def test_subtasks_that_feed_each_other_under_backpressure_come_to_their_end(cluster, collect, slots):
    env = cluster.get_execution_environment({"parallelism.default": slots, **TIGHT})
    numbers = env.from_sequence(1, COUNT).rebalance().map(lambda n: n)
    sums = numbers.key_by(lambda n: n % 7).reduce(lambda a, b: a + b)
    results = collect(sums.rebalance().map(SlowSink()))
    assert len(results) == COUNT
    expected = {sum(range(rest or 7, COUNT + 1, 7)) for rest in range(7)}
    assert expected <= set(results) and max(results) == max(expected)


@pytest.mark.parametrize("slots", [1, 2])
def test_two_ways_of_one_stream_that_meet_again_come_to_their_end(cluster, collect, slots):
    """By union and by connect; the one way is slow, and turns one record into three."""
    env = cluster.get_execution_environment({"parallelism.default": slots, **TIGHT})
    numbers = env.from_sequence(1, COUNT).rebalance().map(lambda n: n)
    slow = numbers.rebalance().flat_map(lambda n: (n, n, n)).map(SlowSink())
    fast = numbers.key_by(lambda n: n % 5).map(lambda n: -n)
    union = slow.union(fast).rebalance().map(lambda n: ("union", n))
    connected = slow.rebalance().connect(fast.rebalance()).map(BothSides())
    results = Counter(collect(union.union(connected).rebalance().map(SlowSink())))
    every = range(1, COUNT + 1)
    assert results == Counter(
        {("union", n): 3 for n in every}
        | {("union", -n): 1 for n in every}
        | {("left", n): 3 for n in every}
        | {("right", -n): 1 for n in every}
    )


# ---- readers of different speed -----------------------------------------------------------------


SIDE = OutputTag("side", Types.LONG())
AHEAD = 10_000  # records that the buffers between two tasks hold: 4 credits, an open batch and one in work


class MissesNone(MapFunction):
    """Counts along; rests 1 ms after every hundredth record when it is ``slow``."""

    def __init__(self, slow):
        self.slow, self.last = slow, 0

    def map(self, number):
        self.last += 1
        assert number == self.last
        if self.slow and number % 100 == 0:
            time.sleep(0.001)
        return number


class AlsoAside(ProcessFunction):
    def process_element(self, value, ctx):
        yield value
        yield SIDE, value


def test_a_slow_reader_of_one_output_throttles_the_source_and_the_fast_one_beside_it_misses_nothing(cluster):
    """Two consumers of one stream, and two of its side output."""
    env = cluster.get_execution_environment({"parallelism.default": 1})
    numbers = env.from_sequence(1, 1 << 60).rebalance().process(AlsoAside())
    for kind, stream in (("main", numbers), ("side", numbers.get_side_output(SIDE))):
        for slow in (True, False):
            read = stream.rebalance().map(MissesNone(slow)).name(f"{kind} {'slow' if slow else 'fast'}")
            read.sink_to(DiscardingSink()).name("end")
    client = env.execute_async()
    taken = [{}]  # records that have come to each reader; all are in one slot, so it counts them at one moment

    def far_enough():
        figures = figures_by_task(cluster, client)
        now = {name: each["numRecordsIn"] for name, each in figures.items() if "end" in name}
        if now != taken[-1]:
            taken.append(now)
        return len(taken) > 3 and min(now.values()) > 3 * AHEAD

    wait_until(far_enough, "the slow readers have come far")
    end(client)
    for now in taken[1:]:
        assert len(now) == 4 and max(now.values()) - min(now.values()) <= AHEAD


def test_a_job_whose_reader_has_stopped_does_not_hold_up_the_job_beside_it(cluster, collect):
    env = cluster.get_execution_environment({"parallelism.default": 1})
    with env.from_sequence(1, 1 << 60).map(lambda n: (n, "x" * 1_000)).execute_and_collect() as unread:
        assert next(unread)[0] == 1
        other = cluster.get_execution_environment({"parallelism.default": 1})
        assert len(collect(other.from_sequence(1, 50_000).rebalance().map(lambda n: n))) == 50_000
        # The first job stands still and has lost nothing.
        assert [next(unread)[0] for _ in range(20_000)] == list(range(2, 20_002))
