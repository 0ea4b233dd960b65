"""Wherever the engine runs code of the user's (functions, and what the classes of records define), an
error names operator and record and shows the user's frames only; and what user code does to its process is
called by its name."""

import contextlib
import ctypes
import os
import re
import resource
import signal
import stat
import sys
import threading
import time
import traceback
import types
from functools import partial

import pytest

from flinkish.common.typeinfo import Types
from flinkish.common.watermark_strategy import WatermarkGenerator, WatermarkStrategy
from flinkish.connectors.discarding import DiscardingSink
from flinkish.connectors.files.file_sink import FileSink
from flinkish.connectors.sequence import NumberSequenceSource
from flinkish.connectors.spi import InputStatus, Sink, SinkWriter, SourceReader
from flinkish.datastream.functions import KeyedProcessFunction, MapFunction
from flinkish.datastream.state import ValueStateDescriptor
from flinkish.errors import SlotLostError, UnpicklableFunctionError, UnstableKeyError, UserFunctionError
from tests.integration.test_refusals import check_lines
from tests.integration.test_rough_jobs import AskingSource


class Halt(BaseException):
    """No Exception."""


class Rough:
    """A record whose class raises in the method ``bad``."""

    def __init__(self, bad, kind=ValueError):
        self.bad, self.kind = bad, kind

    def explode(self, name):
        if self.bad == name:
            raise self.kind("boom")
        return True

    def __repr__(self):
        return f"<rough {self.bad}>"

    def __getitem__(self, index):
        return self.explode("getitem")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.explode("getattr")

    def __bool__(self):
        return self.explode("bool")

    def __iter__(self):
        return iter([self.explode("iter")])

    def __str__(self):
        return str(self.explode("str"))

    def __lt__(self, other):
        return self.explode("lt")

    def __hash__(self):
        return int(self.explode("hash"))

    def __eq__(self, other):
        return self.explode("eq")

    def __reduce__(self):
        self.explode("reduce")
        return Rough._made, (self.bad, self.kind)

    @staticmethod
    def _made(bad, kind):
        rough = Rough(bad, kind)
        rough.explode("make")
        return rough


class Steps(KeyedProcessFunction):
    def __init__(self, bad, kind):
        self.bad = Rough(bad, kind).explode

    def open(self, runtime_context):
        self.bad("open")

    def close(self):
        self.bad("close")

    def process_element(self, value, ctx):
        if self.bad("process"):
            ctx.timer_service().register_processing_time_timer(1)
        yield value
        self.bad("later")

    def on_timer(self, timestamp, ctx):
        self.bad("timer")
        yield from ()


class Generator(WatermarkGenerator):
    def __init__(self, bad, kind):
        self.bad = Rough(bad, kind).explode
        self.bad("made")

    def on_event(self, event, event_timestamp, output):
        self.bad("event")

    def on_periodic_emit(self, output):
        self.bad("periodic")


class RoughWriter(SinkWriter):
    def __init__(self, bad, kind):
        self.bad = Rough(bad, kind).explode

    def write(self, value, timestamp_ms, watermark_ms):
        self.bad("write")

    @property
    def has_room(self):
        return self.bad("has_room")

    def close(self):
        self.bad("close")


class RoughSink(Sink):
    def __init__(self, bad, kind):
        self.arguments = bad, kind

    def create_writer(self, context):
        return RoughWriter(*self.arguments)


class RoughReader(SourceReader):
    def __init__(self, bad, kind):
        self.bad = Rough(bad, kind).explode

    def poll_next(self, output):
        self.bad("poll")
        return InputStatus.NOTHING_AVAILABLE

    def fileno(self):
        self.bad("fileno")

    @property
    def poll_interval_ms(self):
        self.bad("interval")


class RoughSource(AskingSource):
    def __init__(self, bad, kind):
        self.arguments = bad, kind

    def create_reader(self, context):
        return RoughReader(*self.arguments)


def fail(kind):
    raise kind("boom")


def assigned(assign):
    return WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assign)


def generated(bad, kind):
    return WatermarkStrategy.for_generator(lambda: Generator(bad, kind))


def rough(env, bad, kind):
    return env.from_collection([1]).map(lambda n: Rough(bad, kind)).name("maker")


def numbers(env, strategy=WatermarkStrategy.no_watermarks()):
    return env.from_source(NumberSequenceSource(1, 3), strategy, "numbers")


# By name: the place, operator (and its role) that is named, record that is named ("": none), job.
ROUGH, NUMBER, NONE = "<rough", r"\d$", ""
PLACES = {
    "map": ('"here"', NUMBER, lambda env, kind, path: numbers(env).map(lambda n: fail(kind)).name("here")),
    "lt of a record in a function": (
        '"here"', ROUGH, lambda env, kind, path: rough(env, "lt", kind).map(lambda r: sorted([r, r])).name("here")),
    "bool of what a filter gives": (
        '"here"', ROUGH, lambda env, kind, path: rough(env, "bool", kind).filter(lambda r: r).name("here")),
    "iter of what a flat_map gives": (
        '"here"', ROUGH, lambda env, kind, path: rough(env, "iter", kind).flat_map(lambda r: r).name("here")),
    "inlined key selector": (
        '"maker" key selector', ROUGH, lambda env, kind, path: rough(env, "getitem", kind).key_by(lambda r: r[0]).reduce(max)),
    **{
        f"inlined {operator}": ('"here"', ROUGH, lambda env, kind, path, apply=apply: apply(rough(env, "getitem", kind)).name("here"))
        for operator, apply in {
            "map": lambda stream: stream.map(lambda r: (1, r[0])),
            "filter": lambda stream: stream.filter(lambda r: r[0] > 1),
            "reduce": lambda stream: stream.union(stream).key_by(lambda r: 1).reduce(lambda a, b: (a, b[0])),
        }.items()
    },
    "called key selector": (
        '"maker" key selector', ROUGH,
        lambda env, kind, path: rough(env, "getattr", kind).key_by(lambda r: [r.name][0]).reduce(max)),
    "key selector of columns": (
        '"Source: numbers" key selector', NUMBER,
        lambda env, kind, path: numbers(env).key_by(lambda n: fail(kind) if n > 1 else n).reduce(max)),
    "partitioner": (
        '"maker" partitioner', ROUGH,
        lambda env, kind, path: rough(env, "", kind).partition_custom(lambda key, n: fail(kind), lambda r: 1).map(str)),
    "copying": (
        '"maker" output', ROUGH, lambda env, kind, path: rough(env, "reduce", kind).rebalance().map(lambda r: 1)),
    "making a copy": (
        '"maker" output', ROUGH, lambda env, kind, path: rough(env, "make", kind).rebalance().map(lambda r: 1)),
    "sending to another slot": (
        '"maker" output', ROUGH,
        lambda env, kind, path: rough(reusing(env), "reduce", kind).broadcast().map(lambda r: 1)),
    "reading from another slot": (
        '"reader" input', NONE,
        lambda env, kind, path: rough(reusing(env), "make", kind).broadcast().map(lambda r: 1).name("reader")),
    "timestamp assigner of a source": (
        '"Source: numbers" timestamp assigner', NUMBER, lambda env, kind, path: numbers(env, assigned(lambda n, t: fail(kind)))),
    "timestamp assigner of a stream": (
        '"Timestamps/Watermarks" timestamp assigner', ROUGH,
        lambda env, kind, path: rough(env, "getattr", kind).assign_timestamps_and_watermarks(assigned(lambda r, t: r.at))),
    **{
        f"watermark generator, {bad}": (
            f'"Timestamps/Watermarks" {role}', record,
            lambda env, kind, path, bad=bad: rough(env, "", kind).assign_timestamps_and_watermarks(generated(bad, kind)))
        for bad, role, record in (("made", "watermark generator", NONE), ("event", "watermark generator", ROUGH))
    },
    **{
        f"process function, {bad}": (
            f'"here" {role}', record,
            lambda env, kind, path, bad=bad: numbers(env).key_by(lambda n: 1).process(Steps(bad, kind)).name("here"))
        for bad, role, record in (
            ("open", "open", NONE), ("close", "close", NONE), ("process", "", NUMBER), ("later", "", NUMBER),
            ("timer", "on_timer", "<processing_time timer"))
    },
    "reduce": (
        '"here"', NUMBER, lambda env, kind, path: numbers(env).key_by(lambda n: 1).reduce(lambda a, b: fail(kind)).name("here")),
    "results to the driver": (
        '"maker" output', ROUGH, lambda env, kind, path: rough(env, "reduce", kind)),
    "print": ('"Sink: here"', ROUGH, lambda env, kind, path: rough(env, "str", kind).print().name("here")),
    "encoder of files": (
        '"Sink: here"', ROUGH,
        lambda env, kind, path: rough(env, "str", kind).sink_to(FileSink.for_row_format(path).build()).name("here")),
    **{
        f"source reader, {bad}": (
            f'"Source: here" {role}', NONE,
            lambda env, kind, path, bad=bad: env.from_source(
                RoughSource(bad, kind), WatermarkStrategy.no_watermarks(), "here"))
        for bad, role in (("poll", "poll_next"), ("fileno", "fileno"), ("interval", "poll_interval_ms"))
    },
    **{
        f"sink writer, {bad}": (
            f'"Sink: here" {role}', record,
            lambda env, kind, path, bad=bad: rough(env, "", kind).sink_to(RoughSink(bad, kind)).name("here"))
        for bad, role, record in (("write", "", ROUGH), ("has_room", "has_room", NONE), ("close", "close", NONE))
    },
}  # fmt: skip


def reusing(env):
    env.get_config().enable_object_reuse()
    return env


# Each place with one kind in turn: all kinds go the same ways.
KINDS = [ValueError, StopIteration, Halt, GeneratorExit, KeyboardInterrupt, SystemExit, RuntimeError]


@pytest.mark.parametrize(
    "place, kind", [(place, KINDS[index % len(KINDS)]) for index, place in enumerate(PLACES)], ids=str
)
def test_an_error_of_user_code_names_operator_and_record_and_shows_the_users_frames_only(
    cluster, collect, tmp_path, place, kind
):
    named, record, job = PLACES[place]
    env = cluster.get_execution_environment({"parallelism.default": 2 if "another slot" in place else 1})
    stream = job(env, kind, str(tmp_path / "out"))
    with pytest.raises(UserFunctionError) as caught:
        collect(stream) if hasattr(stream, "execute_and_collect") else env.execute()
    text = str(caught.value)
    lines = text.splitlines()
    name, _, role = named.partition('" ')
    assert lines[-1].startswith(f'operator {name.rstrip(chr(34))}" subtask ') and (f"in its {role}" in lines[-1]) == bool(role)
    assert re.search(f" on record {record}", lines[-1]) if record else " on record " not in lines[-1]
    assert lines[0].startswith("Traceback") and f"{kind.__name__}: boom" in text
    files = {line.split('"')[1] for line in lines if line.startswith("  File ")}
    assert files == {__file__}
    assert caught.value.fields["exception_type"] in (kind.__name__, "TypeError") and "During handling" not in text


# ---- keys -----------------------------------------------------------------------------------------------


class Text(str):
    """Equal to its text."""


class Plain:
    """Has the default hash, its address."""


class ByIdentity:
    def __hash__(self):
        return id(self)

    def __eq__(self, other):
        return self is other


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield str(ctx.get_current_key()), self.count.value()


def test_keys_that_are_equal_are_one_key_whichever_slot_they_come_from(cluster, collect):
    nan = float("nan")
    groups = [
        [1, True, 1.0], [nan, -nan, float("nan")], [0, 0.0, -0.0, False], ["a", Text("a")], [2**70, float(2**70)],
        [(1, (True, nan, Text("b"))), (1.0, (1, -nan, "b"))], [10**4_000], [None], [frozenset([1, 2.0]), frozenset([1.0, 2])],
    ]  # fmt: skip
    keys = [key for group in groups for key in group] * 5
    env = cluster.get_execution_environment({"parallelism.default": 2})
    indices = env.from_sequence(0, len(keys) - 1).rebalance()
    counts = dict(sorted(collect(indices.key_by(lambda index: keys[index]).process(Count()))))
    assert sorted(counts.values()) == sorted(5 * len(group) for group in groups)


@pytest.mark.parametrize(
    "key, kind, why, do",
    [
        ([1], "list", "it can change", "tuple"),
        ((1, {"a": 1}), "dict", "it can change", "some of its values"),
        (Plain(), "Plain", "its address, which differs in each process", "a tuple of its fields"),
        ((1, ByIdentity()), "ByIdentity", "defines equality itself", "a tuple of its fields"),
        (Rough("hash"), "Rough", "defines equality itself", "a tuple of its fields"),
    ],
    ids=["list", "dict in a tuple", "default hash", "identity", "raising hash"],
)
def test_a_key_that_is_not_the_same_in_every_process_is_refused_with_advice(cluster, key, kind, why, do):
    env = cluster.get_execution_environment({"parallelism.default": 2})
    env.from_sequence(0, 9).map(str).name("keyed").key_by(lambda _: key).reduce(max).sink_to(DiscardingSink())
    with pytest.raises(UnstableKeyError) as caught:
        env.execute()
    check_lines(str(caught.value).splitlines(), f"{kind} as a key", 'key_by of operator "keyed"', why, do)


# ---- what pickles in the driver and does not unpickle in a slot -------------------------------------------


class Unreadable:
    """Travels to a slot, and raises there."""

    def __init__(self, how):
        self.how = how

    def __getstate__(self):
        return {"how": self.how}

    def __setstate__(self, state):
        raise state["how"]("not here")


class Holder(MapFunction):
    def __init__(self, held):
        self.clients = {"main": [held]}

    def map(self, value):
        return value


def holding(held):
    return lambda value: (held, value)


@pytest.fixture
def module_of_the_driver(monkeypatch):
    """A module that slots do not find, because it is in no folder."""
    module = types.ModuleType("driver_only")
    text = "class Client:\n    def parse(self, value):\n        return value\n\ndef parse(value):\n    return value\n"
    exec(text, vars(module))
    monkeypatch.setitem(sys.modules, "driver_only", module)
    return module


@pytest.mark.parametrize(
    "build, function, variable, why",
    [
        (lambda m: m.parse, "driver_only.parse", "", "it is a driver_only.parse, which"),
        (lambda m: m.Client().parse, "driver_only.Client.parse", "self", "No module named 'driver_only'"),
        (lambda m: holding(m.Client()), "holding.<locals>.<lambda> (line", "held", "a driver_only.Client, which"),
        (lambda m: Holder(Unreadable(KeyError)), "Holder", "[0]",
         'captures "[0]" of "[\'main\']" of "self.clients", a Unreadable, which does not unpickle there: KeyError: '),
        (lambda m: holding(Unreadable(SystemExit)), "holding.<locals>.<lambda>", "held", "in __setstate__)"),
    ],
    ids=["function", "method", "closure", "attribute", "no exception"],
)  # fmt: skip
def test_what_does_not_unpickle_in_a_slot_names_operator_function_and_variable(
    cluster, module_of_the_driver, build, function, variable, why
):
    env = cluster.get_execution_environment()
    env.from_collection([1]).map(build(module_of_the_driver)).name("P").sink_to(DiscardingSink())
    with pytest.raises(UnpicklableFunctionError) as caught:
        env.execute()
    error = caught.value
    check_lines(
        str(error).splitlines(), f"could not read function {function}", 'operator "P" in task "', why,
        "install the module" if "driver_only" in why or "driver_only" in function else "__getstate__",
    )  # fmt: skip
    assert (error.fields["operator"], error.fields["variable"]) == ("P", variable)


# ---- what user code does to its process ----------------------------------------------------------------


def close_descriptors(value):
    os.closerange(3, 1_000)


def close_sockets(value):
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.close(descriptor)


def replace_the_clock(value):
    time.monotonic_ns = lambda: 1 // 0


def raise_in_a_signal_handler(value, of_a_task=False):
    def handle(signum, frame):
        files = [at.f_code.co_filename.rpartition("/")[2] for at, _ in traceback.walk_stack(frame)]
        if files[0] == ("task.py" if of_a_task else "event_loop.py") and ("task.py" in files) == of_a_task:
            raise ValueError("too late")
        signal.setitimer(signal.ITIMER_REAL, 0.001)

    if signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.001)


class Endless:
    def __repr__(self):
        return repr([self])


def recurse(value):
    sys.setrecursionlimit(10**6)
    repr(Endless())


@pytest.mark.parametrize(
    "function, why, do",
    [
        (close_descriptors, 'a descriptor of the slot was closed under it', "os.closerange"),
        (close_sockets, 'a descriptor of the slot was closed under it', "os.closerange"),
        (replace_the_clock, "user code has replaced time.monotonic_ns, which flinkish needs", "put replaced functions back"),
        (raise_in_a_signal_handler, "such as a signal handler or a trace function, raised ValueError: too late", "catch it"),
        (lambda value: os._exit(3), "user code ended the process with exit code 3 (os._exit", "raise an exception"),
        (lambda value: ctypes.string_at(0), "SIGSEGV), in string_at (", "the stacks of all threads"),
        (recurse, "(SIGSEGV), in __repr__ (", "recursion without end"),
        (lambda value: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL", "out of memory"),
    ],
    ids=["closerange", "sockets", "clock", "handler", "exit", "segv", "recursion", "kill"],
)  # fmt: skip
def test_what_user_code_does_to_its_process_is_called_by_its_name(cluster, function, why, do):
    env = cluster.get_execution_environment({"parallelism.default": 2})
    endless = env.from_sequence(1, 1 << 40)  # or the job may end before a signal comes
    endless.rebalance().map(function).name("breaking").rebalance().map(str).sink_to(DiscardingSink())
    with pytest.raises(SlotLostError) as caught:
        env.execute()
    error = caught.value
    assert why in error.why and do in error.do and '"breaking (' in str(error)
    assert "an error of flinkish" not in str(error) and "flinkish/" not in error.why


def test_a_signal_handler_that_raises_within_a_subtask_is_an_error_of_user_code(cluster):
    env = cluster.get_execution_environment()
    endless = env.from_sequence(1, 1 << 40)
    endless.map(partial(raise_in_a_signal_handler, of_a_task=True)).sink_to(DiscardingSink())
    with pytest.raises(UserFunctionError, match="ValueError: too late"):
        env.execute()


def test_memory_that_the_system_refuses_and_an_exit_of_a_thread_are_errors_of_user_code_or_none(cluster, collect):
    env = cluster.get_execution_environment()

    def grow(value):
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
        return bytearray(4 << 30)

    with pytest.raises(UserFunctionError, match="MemoryError") as caught:
        collect(env.from_collection([1]).map(grow).name("growing"))
    assert caught.value.fields["operator"] == "growing"

    def leave(value):
        thread = threading.Thread(target=sys.exit, args=(4,))
        thread.start()
        thread.join()
        return value

    assert sorted(collect(cluster.get_execution_environment().from_collection([1, 2]).map(leave))) == [1, 2]


# ---- a sink that ends slowly ------------------------------------------------------------------------------


class SlowAtTheEnd(Sink):
    """What it has buffered leaves once ``go`` is there; it writes its process into ``ending`` when it begins to
    wait for that."""

    def __init__(self, ending, go):
        self.ending, self.go = ending, go

    def create_writer(self, context):
        return SlowWriter(self)


class SlowWriter(SinkWriter):
    def __init__(self, sink):
        self.sink, self.ended = sink, False

    def write(self, value, timestamp_ms, watermark_ms):
        """It leaves at the end."""

    def flush(self, end_of_input):
        if end_of_input:
            self.ended = True
            self.sink.ending.write_text(str(os.getpid()))

    @property
    def has_room(self):
        return self.flushed

    @property
    def flushed(self):
        return not self.ended or self.sink.go.exists()

    def prepare_commit(self):
        assert self.flushed
        return []


def test_a_sink_that_ends_slowly_leaves_its_slot_to_the_other_subtasks(cluster, tmp_path):
    ending, go = tmp_path / "ending", tmp_path / "go"

    def other():
        while not ending.exists():
            yield 0
        go.write_text(str(os.getpid()))

    env = cluster.get_execution_environment({"parallelism.default": 1})
    env.from_collection([1]).sink_to(SlowAtTheEnd(ending, go))
    env.add_source(other).sink_to(DiscardingSink())
    env.execute_async().wait(30_000)
    assert ending.read_text() == go.read_text()
