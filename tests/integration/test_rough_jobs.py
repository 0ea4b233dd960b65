"""Jobs that a user writes without care: on real slots, what must work works and what fails says why."""

import asyncio
import collections
import concurrent.futures
import dataclasses
import multiprocessing
import os
import signal
import subprocess
import threading
from decimal import Decimal
from typing import NamedTuple

import pytest

from flinkish.common.job_status import JobStatus
from flinkish.common.types import Row
from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.connectors.collect_sink import CollectSink
from flinkish.connectors.spi import (
    Boundedness,
    Committer,
    InputStatus,
    Sink,
    SinkWriter,
    Source,
    SourceReader,
    SplitEnumerator,
)
from flinkish.datastream.functions import CoProcessFunction, MapFunction, ProcessFunction
from flinkish.datastream.output_tag import OutputTag
from flinkish.errors import UserFunctionError
from tests.integration.waiting import wait_until


CLUSTER = {"slots": 3}


@pytest.fixture
def env(cluster):
    return cluster.get_execution_environment({"parallelism.default": 2})


def failure_of(run):
    with pytest.raises(UserFunctionError) as raised:
        run()
    text = str(raised.value)
    assert text.startswith("Traceback") or "File" not in text, "frames come first, if the user has any there"
    return raised.value, text


class Pair(NamedTuple):
    name: str
    number: int


@dataclasses.dataclass
class Point:
    name: str
    at: list


def test_records_of_every_kind_cross_slots_with_type_and_value(env, collect):
    values = [
        Point("a", [1]), Pair("b", 2), {"k": [1, {"x": None}]}, (1, (2, 3)), Row(1, "x"), Row(a=1, b=None),
        None, b"xyz", Decimal("1.50"), True, 3.5, float("inf"), 2**70, frozenset([1]), [1, [2]], "\u00fc",
    ]  # fmt: skip
    stream = env.from_collection(values).rebalance().map(lambda value: value).rebalance()
    results = collect(stream.map(lambda value: (value, type(value).__name__)))
    assert sorted(map(repr, results)) == sorted(repr((value, type(value).__name__)) for value in values)


def test_records_of_classes_that_were_made_inside_a_function_cross_slots(env, collect):
    @dataclasses.dataclass
    class Local:
        n: int

    Couple = collections.namedtuple("Couple", "a b")

    stream = env.from_sequence(1, 20).map(lambda n: (Local(n), Couple(n, 0))).rebalance()
    stream = stream.map(lambda pair: (isinstance(pair[0], Local), pair[1]._replace(b=pair[0].n))).rebalance()
    results = collect(stream.map(lambda pair: pair))
    assert all(same_class for same_class, _ in results)
    assert sorted((couple.a, couple.b) for _, couple in results) == [(n, n) for n in range(1, 21)]


def test_functions_are_records_too(env, collect):
    functions = env.from_sequence(1, 4).map(lambda n: lambda: n).rebalance()
    assert sorted(collect(functions.map(lambda function: function()))) == [1, 2, 3, 4]


def test_every_way_between_operators_of_unequal_parallelism_brings_each_record(env, collect):
    numbers = env.from_sequence(1, 30).map(lambda n: n).set_parallelism(2)
    ways = {
        "rebalance": numbers.rebalance(),
        "rescale": numbers.rescale(),
        "shuffle": numbers.shuffle(),
        "global": numbers.global_(),
        "broadcast": numbers.broadcast(),
        "custom": numbers.partition_custom(lambda key, count: key % count, lambda n: n),
    }
    tagged = [
        way.map(lambda n, name=name: (name, n)).set_parallelism(3) for name, way in sorted(ways.items())
    ]
    tagged.append(numbers.rescale().map(lambda n: ("down", n)).set_parallelism(1))
    tagged.append(numbers.forward().map(lambda n: ("forward", n)).set_parallelism(2))
    counts = collections.Counter(name for name, _ in collect(tagged[0].union(*tagged[1:])))
    expected = dict.fromkeys([*ways, "down", "forward"], 30)
    assert counts == {**expected, "broadcast": 90}


def test_a_stream_united_with_its_own_side_output_and_others_of_unequal_parallelism_is_whole(env, collect):
    odd = OutputTag("odd")

    class Split(ProcessFunction):
        def process_element(self, value, ctx):
            yield (odd, value) if value % 2 else value

    even = env.from_sequence(1, 10).process(Split()).set_parallelism(3)
    one = env.from_sequence(11, 12).map(lambda n: n).set_parallelism(1)
    assert sorted(collect(even.union(even.get_side_output(odd), one, one))) == sorted(
        [*range(1, 11), 11, 11, 12, 12]
    )


def test_a_keyed_stream_connects_with_a_broadcast_one(env, collect):
    class Both(CoProcessFunction):
        def process_element1(self, value, ctx):
            yield value

        def process_element2(self, value, ctx):
            yield value

    keyed = env.from_collection([("a", 1), ("b", 2)]).key_by(lambda pair: pair[0])
    results = collect(keyed.connect(env.from_collection(["rule"]).broadcast()).process(Both()))
    assert sorted(map(str, results)) == ["('a', 1)", "('b', 2)", "rule", "rule"]


def test_empty_input_goes_through_every_operator_and_ends(env, collect):
    empty = env.from_collection([])
    stream = empty.key_by(lambda n: n).reduce(lambda a, b: a).rebalance().flat_map(lambda n: [n, n])
    assert collect(stream.union(empty.map(lambda n: n))) == []


def test_a_record_of_20_megabytes_crosses_slots_twice_and_reaches_the_driver(env, collect):
    grow = env.from_collection([b"x" * 20_000_000]).rebalance().map(lambda value: value + b"y")
    (result,) = collect(grow.rebalance().map(lambda value: value + b"z"))
    assert len(result) == 20_000_002 and result.endswith(b"xyz")


def test_one_record_becomes_300_000_and_all_arrive_once(env, collect):
    def burst(_):
        yield from range(300_000)

    stream = env.from_collection([0]).flat_map(burst).rebalance().key_by(lambda n: n % 7)
    last = {}
    for n in collect(stream.reduce(max).filter(lambda n: n >= 299_993)):
        last[n % 7] = n
    assert sorted(last.values()) == list(range(299_993, 300_000))


# ---- failures -----------------------------------------------------------------------------------


class Halt(BaseException):
    """Not an Exception, as pytest's outcomes and asyncio's CancelledError are not."""


@pytest.mark.parametrize("error", [Halt("halt"), KeyboardInterrupt(), asyncio.CancelledError("gone")])
def test_user_code_may_raise_what_is_no_exception(env, collect, error):
    def halt(value):
        raise error

    raised, text = failure_of(lambda: collect(env.from_collection([1]).map(halt).name("halting")))
    assert "in halt" in text and "raise error" in text and "flinkish/" not in text
    assert raised.fields["exception_type"] == type(error).__name__
    assert "halting" in text.splitlines()[-1]


def test_the_line_about_the_record_is_one_line_however_the_record_looks(env, collect):
    class Tall:
        def __repr__(self):
            return "first\nsecond"

    stream = env.from_collection([1]).map(lambda n: Tall()).map(lambda tall: tall.nothing)
    _, text = failure_of(lambda: collect(stream))
    last = text.splitlines()[-1]
    assert last.startswith('operator "Map" subtask') and last.endswith("failed on record first second")


class NoSplits(SplitEnumerator):
    def handle_split_request(self, subtask_id, host):
        raise OSError("no service")


class AskingReader(SourceReader):
    def __init__(self, context):
        self.context = context

    def start(self):
        self.context.send_split_request()

    def poll_next(self, output):
        return InputStatus.NOTHING_AVAILABLE


class AskingSource(Source):
    def boundedness(self):
        return Boundedness.BOUNDED

    def create_enumerator(self, context):
        return NoSplits()

    def create_reader(self, context):
        return AskingReader(context)


def test_an_enumerators_error_begins_with_the_users_frame(env, collect):
    stream = env.from_source(AskingSource(), WatermarkStrategy.no_watermarks(), "asking")
    _, text = failure_of(lambda: collect(stream))
    lines = text.splitlines()
    assert "in handle_split_request" in lines[1] and __file__ in lines[1]
    assert lines[-1] == 'enumerator of source "Source: asking" failed in the driver'


class Preparing(SinkWriter):
    def __init__(self, committable):
        self.committable = committable

    def write(self, value, timestamp_ms, watermark_ms):
        pass

    def prepare_commit(self):
        return [self.committable()]


class FailingCommitter(Committer):
    def __init__(self, kind):
        self.kind = kind

    def commit(self, committables):
        raise self.kind("the table is gone")


class PreparingSink(Sink):
    def __init__(self, committable, kind=OSError):
        self.committable, self.kind = committable, kind

    def create_writer(self, context):
        return Preparing(self.committable)

    def create_committer(self):
        return FailingCommitter(self.kind)


@pytest.mark.parametrize("kind", [OSError, SystemExit, Halt])
def test_a_committers_error_begins_with_the_users_frame(env, kind):
    env.from_collection([1]).sink_to(PreparingSink(int, kind))
    _, text = failure_of(env.execute)
    lines = text.splitlines()
    assert "in commit" in lines[1] and __file__ in lines[1]
    assert lines[-1] == 'committer of sink "Sink: PreparingSink" failed in the driver'


def test_committables_that_do_not_pickle_name_the_sink(env):
    env.from_collection([1]).sink_to(PreparingSink(threading.Lock))
    _, text = failure_of(env.execute)
    last = text.splitlines()[-1]
    assert "cannot pickle '_thread.lock'" in text
    assert 'operator "Sink: PreparingSink"' in last and "prepare_commit" in last


def test_a_record_that_cannot_travel_names_operator_and_type_without_a_tower_of_tracebacks(env, collect):
    stream = env.from_collection([1]).map(lambda n: threading.Lock()).name("locking").rebalance()
    _, text = failure_of(lambda: collect(stream.map(lambda lock: 1)))
    assert text.count("Traceback") == 1 and "a value of type lock was emitted" in text
    assert 'operator "locking"' in text.splitlines()[-1]


def test_a_gauge_with_a_strange_value_does_not_end_the_job(env):
    class Gauging(MapFunction):
        def open(self, runtime_context):
            self.reports = 0
            runtime_context.get_metrics_group().gauge("lock", self.report)

        def report(self):
            self.reports += 1
            return threading.Lock()

        def map(self, value):
            return self.reports

    reports = CollectSink()
    env.from_sequence(1, 2**60).map(Gauging()).filter(lambda count: count >= 2).sink_to(reports)
    client = env.execute_async()
    assert next(reports.results()) >= 2
    assert client.status is JobStatus.RUNNING
    shown = [value for task in client.get_metrics().values() for name, value in task.items() if "lock" in name]
    assert shown and all("lock object" in value for value in shown)
    client.cancel().result()


class StartsProcesses(MapFunction):
    """Uses processes in every way, and cleans up after none but the pool."""

    def open(self, runtime_context):
        self.executor = concurrent.futures.ProcessPoolExecutor(1)

    def map(self, value):
        with multiprocessing.Pool(2) as pool:  # ends its workers by SIGTERM
            doubled = sum(pool.map(abs, [value, -value]))
        worker = self.executor.submit(os.getpid).result()
        program = subprocess.Popen(["sleep", "600"])
        shell = subprocess.Popen("sleep 600 & echo $!; wait", shell=True, stdout=subprocess.PIPE)
        child = os.fork()
        if child == 0:
            signal.pause()
        return doubled, [worker, program.pid, child, shell.pid, int(shell.stdout.readline())]


def test_processes_of_user_code_obey_while_the_job_runs_and_end_with_their_slot(cluster, collect):
    env = cluster.get_execution_environment()
    env.set_parallelism(1)
    (doubled, pids), *_ = collect(env.from_collection([21]).map(StartsProcesses()))
    assert doubled == 42
    wait_until(lambda: not any(map(is_alive, pids)), "the end of processes that user code left behind")


def in_the_background(number):
    """Starts a process whose parent ends at once."""
    if number:
        return number
    shell = subprocess.run("sleep 600 >/dev/null & echo $!", shell=True, stdout=subprocess.PIPE)
    return -int(shell.stdout)


def test_the_end_of_a_job_ends_no_process_of_the_job_beside_it(cluster, collect):
    env = cluster.get_execution_environment({"parallelism.default": 1})
    with env.from_sequence(0, 2**62).map(in_the_background).execute_and_collect() as results:
        started = -next(results)
        other = cluster.get_execution_environment({"parallelism.default": 2})
        for _ in range(2):  # the second needs the slots that the end of the first has replaced
            assert collect(other.from_collection([1])) == [1]
        assert next(results) == 1 and is_alive(started)
    wait_until(lambda: not is_alive(started), "the end of what the slot has left in the background")


def is_alive(pid):
    return os.path.exists(f"/proc/{pid}")
