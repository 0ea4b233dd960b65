"""Jobs on real slot processes of this machine."""

import logging.handlers
import os
import queue
import re
import signal
import socket
import threading
import time

import pytest

from flinkish.common.job_status import JobStatus
from flinkish.connectors.discarding import DiscardingSink
from flinkish.connectors.spi import (
    Boundedness,
    InputStatus,
    Source,
    SourceReader,
    SourceSplit,
    SplitEnumerator,
)
from flinkish.datastream import StreamExecutionEnvironment
from flinkish.datastream.functions import (
    KeyedProcessFunction,
    MapFunction,
    ProcessWindowFunction,
    RuntimeContext,
)
from flinkish.datastream.state import ValueStateDescriptor
from flinkish.datastream.window import TumblingProcessingTimeWindows
from flinkish.common.time import Time
from flinkish.common.typeinfo import Types
from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.errors import (
    ConnectionLostError,
    JobCancelledError,
    NotEnoughSlotsError,
    SlotLostError,
    UnpicklableFunctionError,
    UserFunctionError,
)
from flinkish.shell.executor import prepare
from flinkish.shell.job_manager import JobManager
from flinkish.shell.local_launcher import LocalLauncher

LINES = ["to be or not to be", "that is the question", "to be"]


def endless(env):
    """A source that never ends and always has records."""
    return env.from_source(EndlessSource(), WatermarkStrategy.no_watermarks(), "endless")


class EndlessSplit(SourceSplit):
    def split_id(self):
        return "endless"


class EndlessEnumerator(SplitEnumerator):
    def __init__(self, context):
        self.context = context

    def handle_split_request(self, subtask_id, host):
        self.context.assign_split(EndlessSplit(), subtask_id)


class EndlessReader(SourceReader):
    def __init__(self, context):
        self.context, self.number, self.splits = context, 0, []

    def start(self):
        self.context.send_split_request()

    def add_splits(self, splits):
        self.splits += splits
        self.context.wakeup()

    def poll_next(self, output):
        if not self.splits:
            return InputStatus.NOTHING_AVAILABLE
        for _ in range(min(output.room, 100)):
            output.collect(self.number)
            self.number += 1
        return InputStatus.MORE_AVAILABLE


class EndlessSource(Source):
    def boundedness(self):
        return Boundedness.CONTINUOUS_UNBOUNDED

    def create_enumerator(self, context):
        return EndlessEnumerator(context)

    def create_reader(self, context):
        return EndlessReader(context)


def word_count(env):
    return (
        env.from_collection(LINES)
        .flat_map(lambda line: line.split())
        .map(lambda word: (word, 1))
        .key_by(lambda pair: pair[0])
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
    )


def test_words_are_counted_by_key_over_two_slots(cluster, collect):
    results = collect(word_count(cluster.get_execution_environment()))
    last = {}
    for word, count in results:
        assert count == last.get(word, 0) + 1, "each key counts in order"
        last[word] = count
    assert last == {"to": 3, "be": 3, "or": 1, "not": 1, "that": 1, "is": 1, "the": 1, "question": 1}


def test_every_record_of_a_large_shuffle_arrives_once(cluster, collect):
    env = cluster.get_execution_environment()
    numbers = env.from_sequence(1, 50_000).rebalance().map(lambda n: n * 2).key_by(lambda n: n % 97)
    results = collect(numbers.reduce(lambda a, b: max(a, b)))
    assert len(results) == 50_000
    assert max(results) == 100_000


class CountAndTell(KeyedProcessFunction):
    """Counts each key in state and tells the count when its event-time timer fires."""

    def open(self, runtime_context: RuntimeContext):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(1_000)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), self.count.value(), timestamp


def test_a_keyed_process_function_has_state_and_timers(cluster, collect):
    env = cluster.get_execution_environment()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda value, timestamp: value
    )
    stream = env.from_sequence(1, 300).assign_timestamps_and_watermarks(strategy)
    results = collect(stream.key_by(lambda n: n % 3).process(CountAndTell()))
    assert sorted(results) == [(0, 100, 1_000), (1, 100, 1_000), (2, 100, 1_000)]


def test_a_user_exception_shows_the_users_traceback_first_and_the_cluster_goes_on(cluster, collect):
    def explode(number):
        return 1 // (number - 5)

    env = cluster.get_execution_environment()
    env.from_sequence(1, 10).map(explode).name("explode").print()
    with pytest.raises(UserFunctionError) as raised:
        env.execute()
    text = str(raised.value)
    assert text.startswith("Traceback") and "return 1 // (number - 5)" in text
    last_line = text.splitlines()[-1]
    assert "explode" in last_line and "5" in last_line
    assert collect(cluster.get_execution_environment().from_collection([1, 2])) in ([1, 2], [2, 1])


def test_a_running_job_is_cancelled_and_its_slots_come_back(cluster, collect, bell):
    env = cluster.get_execution_environment()
    stream = endless(env).map(lambda n: n + 1).rebalance().map(bell.at_first_record())
    stream.sink_to(DiscardingSink())
    client = env.execute_async("endless")
    bell.wait()
    client.cancel().result()
    assert client.status is JobStatus.CANCELED
    with pytest.raises(JobCancelledError):
        client.wait()
    assert len(collect(word_count(cluster.get_execution_environment()))) == 12


class Hangs(MapFunction):
    """Rings, then never returns; rings again when it is closed."""

    def __init__(self, bell, how):
        self.bell, self.how = bell, how

    def map(self, value):
        self.bell.ring()
        while self.how == "loops":
            pass
        if self.how == "reads a socket":
            ours, _ = socket.socketpair()
            ours.recv(1)
        elif self.how == "sits in a regex":
            re.match(r"(a+)+$", "a" * 64 + "b")
        time.sleep(1_000)

    def close(self):
        self.bell.ring()


@pytest.mark.parametrize("how", ["loops", "sleeps", "reads a socket", "sits in a regex"])
def test_user_code_that_hangs_is_interrupted_and_closed_when_its_job_is_cancelled(cluster, bell, how):
    env = cluster.get_execution_environment(
        {"task.cancellation.interval": "100 ms", "task.cancellation.timeout": "0"}
    )
    env.from_collection([1]).map(Hangs(bell, how)).sink_to(DiscardingSink())
    client = env.execute_async()
    bell.wait()
    client.cancel().result(30_000)
    assert client.status is JobStatus.CANCELED
    bell.wait()


class Stubborn(MapFunction):
    """Takes no interruption for an answer."""

    def __init__(self, bell):
        self.bell = bell

    def map(self, value):
        while True:
            try:
                self.bell.ring()
                time.sleep(1_000)
            except BaseException:
                continue


def test_user_code_that_cannot_be_interrupted_costs_its_slot_and_the_job_beside_it_goes_on(cluster, collect, bell):
    env = cluster.get_execution_environment(
        {"task.cancellation.interval": "100 ms", "task.cancellation.timeout": "500 ms", "parallelism.default": 1}
    )
    with endless(env).execute_and_collect() as beside:
        assert next(beside) == 0
        env.from_collection([1]).map(Stubborn(bell)).sink_to(DiscardingSink())
        client = env.execute_async()
        bell.wait()
        [victim] = [slot["pid"] for slot in cluster.describe()["slots"] if slot["job"] == client.job_id]
        client.cancel().result(30_000)
        assert client.status is JobStatus.CANCELED
        bell.wait()  # it was interrupted, and went on
        assert collect(env.from_collection([1, 2])) == [1, 2], "in the slot that took its place"
        assert victim not in [slot["pid"] for slot in cluster.describe()["slots"]]
        assert [next(beside) for _ in range(20_000)] == list(range(1, 20_001))


def test_a_slot_process_that_is_killed_fails_the_job_and_is_replaced(cluster, collect, bell):
    env = cluster.get_execution_environment()
    endless(env).rebalance().map(bell.at_first_record()).sink_to(DiscardingSink())
    client = env.execute_async()
    bell.wait(2)
    victim = next(slot for slot in cluster.describe()["slots"] if slot["job"])
    os.kill(victim["pid"], signal.SIGKILL)
    with pytest.raises(SlotLostError, match="SIGKILL"):
        client.wait(20_000)
    assert len(collect(word_count(cluster.get_execution_environment()))) == 12


def test_more_parallelism_than_slots_is_refused_at_once_with_both_numbers(cluster):
    env = cluster.get_execution_environment({"parallelism.default": 3})
    env.from_sequence(1, 10).map(lambda n: n).print()
    started = time.monotonic()
    with pytest.raises(NotEnoughSlotsError, match="needs 3 slots, the cluster has 2"):
        env.execute()
    assert time.monotonic() - started < 5


def test_a_capture_that_cannot_travel_is_refused_before_the_job_starts(cluster):
    lock = threading.Lock()
    env = cluster.get_execution_environment()
    env.from_sequence(1, 10).map(lambda n: (lock, n)).print()
    with pytest.raises(UnpicklableFunctionError, match="lock"):
        env.execute()


def test_an_enumerator_that_fails_in_the_driver_fails_the_job(cluster):
    class Broken(EndlessSource):
        def create_enumerator(self, context):
            raise FileNotFoundError("there is no such folder")

    env = cluster.get_execution_environment()
    env.from_source(Broken(), WatermarkStrategy.no_watermarks(), "broken").print()
    with pytest.raises(UserFunctionError, match="there is no such folder"):
        env.execute()


def test_supervisors_that_cannot_reach_the_driver_fail_the_job_with_the_addresses_tried():
    class Unreachable(LocalLauncher):
        def advertised_hosts(self):
            return ["127.0.0.77"]

    manager = JobManager(Unreachable(1), 1, application=True)
    manager.connect_timeout_ms = 500
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1]).print()
    runtime = prepare(env.get_stream_graph())
    manager.start()
    with pytest.raises(ConnectionLostError, match="127.0.0.77"):
        manager.submit(runtime).wait(10)


@pytest.fixture
def logged_errors():
    """A queue of the log records of errors, from whatever thread."""
    records = queue.SimpleQueue()
    handler = logging.handlers.QueueHandler(records)
    handler.setLevel(logging.ERROR)
    logging.getLogger("flinkish").addHandler(handler)
    yield records
    logging.getLogger("flinkish").removeHandler(handler)


def test_a_failed_job_is_logged_only_when_nobody_waits_to_be_told(cluster, logged_errors):
    def bad_job():
        env = cluster.get_execution_environment()
        env.from_collection([0]).map(lambda n: 1 // n).sink_to(DiscardingSink())
        return env

    with pytest.raises(UserFunctionError):
        bad_job().execute("awaited")
    bad_job().execute_async("alone")
    assert "name='alone'" in logged_errors.get(timeout=60).getMessage()
    assert logged_errors.empty()


class StartAndCount(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield context.window().start, len(list(elements))


def test_a_window_of_the_clock_fires_once_whatever_comes_in_its_last_millisecond(cluster, collect):
    env = cluster.get_execution_environment()
    env.set_parallelism(1)
    by_clock = TumblingProcessingTimeWindows.of(Time.milliseconds(5))
    fired = collect(env.from_sequence(1, 200_000).key_by(lambda n: 0).window(by_clock).process(StartAndCount()))
    assert len({start for start, _ in fired}) == len(fired) > 1
    assert sum(count for _, count in fired) <= 200_000  # the last window is not over when the input ends
