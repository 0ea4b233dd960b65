"""Chains as bytes; what cannot travel is named."""

import abc
import collections
import functools
import pickle
import socket
import sqlite3
import subprocess
import sys
import threading
import types
import weakref
from pathlib import Path

import cloudpickle
import pytest

from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.datastream import StreamExecutionEnvironment
from flinkish.datastream import partitioners as p
from flinkish.errors import UnpicklableFunctionError
from flinkish.graph.chain_pickling import (
    install_main_classes,
    main_module_classes,
    pickle_chains,
    unpickle_main_classes,
)
from flinkish.graph.job_graph_generator import create_job_graph
from flinkish.graph.stream_graph_generator import StreamGraphGenerator
from tests.unit.graph.programs import keyed, map_, partition, reduce_, sink, source

ROOT = Path(__file__).resolve().parents[3]
GLOBAL_LOCK = threading.Lock()


def job(*transformations, **options):
    return create_job_graph(StreamGraphGenerator(transformations, **options).generate(), "0" * 32)


def refusal(stream):
    with pytest.raises(UnpicklableFunctionError) as caught:
        pickle_chains(job(stream))
    error = caught.value
    assert error.do and error.where
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    return error


def by_value(function):
    """As if the notebook or ``__main__`` had defined it."""
    function.__module__ = "__main__"
    return function


def test_a_captured_variable_is_named_with_operator_and_function():
    lock = threading.Lock()

    def locked(value):
        with lock:
            return value

    error = refusal(sink(map_(map_(source(), "fine"), "guard", locked)))
    assert error.fields["operator"] == "guard" and error.fields["variable"] == "lock"
    assert "locked (line" in error.what and 'operator "guard"' in error.what
    assert 'captures "lock", a _thread.lock' in error.why and "open()" in error.do


def test_the_way_to_a_culprit_inside_an_object_is_named():
    class Client:
        def __init__(self):
            self.retries = 3
            self.parts = {"lock": threading.Lock()}

    client = Client()
    error = refusal(map_(source(), "call", lambda value: client.retries + value))
    assert """"['lock']" of "self.parts" of "client", a _thread.lock""" in error.why


@pytest.mark.parametrize(
    "make, variable",
    [
        (lambda: functools.partial(max, GLOBAL_LOCK), "argument 0"),
        (lambda: functools.partial(max, key=GLOBAL_LOCK), "key"),
        (lambda: by_value(lambda value: GLOBAL_LOCK), "GLOBAL_LOCK"),
        (lambda: by_value(lambda value: [GLOBAL_LOCK for _ in "a"]), "GLOBAL_LOCK"),
        (lambda: by_value(lambda value, lock=GLOBAL_LOCK: value), "lock"),
        (lambda: types.SimpleNamespace(handle=GLOBAL_LOCK), "self.handle"),
    ],
)
def test_each_kind_of_capture_is_named(make, variable):
    error = refusal(map_(source(), "M", make()))
    assert error.fields["variable"] == variable


def test_a_method_of_an_object_names_the_attribute():
    class Worker:
        def __init__(self):
            self.lock = threading.Lock()

        def work(self, value):
            return value

    error = refusal(map_(source(), "M", Worker().work))
    assert 'captures "self.lock" of "self"' in error.why


def test_the_functions_of_a_watermark_strategy_are_named():
    lock = threading.Lock()

    def time_of(record):
        return lock and record

    def generator():
        return lock and None

    stream = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    plain = WatermarkStrategy.for_monotonous_timestamps()
    for strategy, role, function in (
        (plain.with_timestamp_assigner(time_of), "timestamp assigner", time_of),
        (WatermarkStrategy.for_generator(generator), "watermark generator", generator),
    ):
        error = refusal(stream.assign_timestamps_and_watermarks(strategy).transformation)
        assert f"{role} {function.__qualname__} (line" in error.what and f"of {__file__})" in error.what
        assert 'captures "lock", a _thread.lock' in error.why


class Held:
    """An importable class: it goes by name, its attributes by value."""

    def __init__(self, held=None):
        self.held = held

    def __call__(self, value):
        return value


class HeldInDict(dict):
    pass


class NoRepr:
    def __repr__(self):
        raise ValueError("has none")


class RaisesOnReduce:
    def __reduce__(self):
        raise RuntimeError("no\nlater lines")


def held_in_dict():
    held = HeldInDict(a=1)
    held.lock = GLOBAL_LOCK
    return held


def deep(levels):
    held = GLOBAL_LOCK
    for _ in range(levels):
        held = Held(held)
    return held


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


@by_value
def attribute_of_function(value):
    return value


attribute_of_function.lock = GLOBAL_LOCK
Point = collections.namedtuple("Point", "x lock")


@pytest.mark.parametrize(
    "value, way, kind",
    [
        (sqlite3.connect(":memory:"), '"value"', "sqlite3.Connection"),
        (socket.socket(), '"value"', "socket.socket"),
        ((n for n in ()), '"value"', "generator"),
        ({"call": by_value(lambda n: GLOBAL_LOCK)}, "\"GLOBAL_LOCK\" of \"['call']\" of \"value\"", "_thread.lock"),
        (held_in_dict(), '"self.lock" of "value"', "_thread.lock"),
        (collections.deque([1, GLOBAL_LOCK]), '"[1]" of "value"', "_thread.lock"),
        (collections.defaultdict(by_value(lambda: GLOBAL_LOCK)), '"GLOBAL_LOCK" of "argument 0" of "value"',
         "_thread.lock"),
        (map(by_value(lambda n: GLOBAL_LOCK), []), '"GLOBAL_LOCK" of "argument 0" of "value"', "_thread.lock"),
        (ValueError("bad", GLOBAL_LOCK), '"argument 1" of "value"', "_thread.lock"),
        (Point(1, GLOBAL_LOCK), '".lock" of "value"', "_thread.lock"),
        ({GLOBAL_LOCK: 1}, f'"key {str(GLOBAL_LOCK)[:23]}', "_thread.lock"),
        ({NoRepr(): GLOBAL_LOCK}, '"[<NoRepr instance at ', "_thread.lock"),
        ([0] * 1_000 + [GLOBAL_LOCK], '"[1000]" of "value"', "_thread.lock"),
        (GLOBAL_LOCK.acquire, '"self" of "value"', "_thread.lock"),
        (attribute_of_function, '"lock" of "value"', "_thread.lock"),
        (functools.partial(by_value(lambda client, n: n), GLOBAL_LOCK), '"client" of "value"', "_thread.lock"),
        (RaisesOnReduce(), '"value"', f"{__name__}.RaisesOnReduce: RuntimeError: no"),
        (deep(20), '"self.held" of "self.held" of "self.held" of "self.held" of ... of', "_thread.lock"),
        (nested(5_000), '"value"', "list, which is nested too deeply"),
        (type("Open", (), {"__module__": "__main__", "at": property(by_value(lambda self: GLOBAL_LOCK))}),
         '"GLOBAL_LOCK" of "Open.at" of "value"', "_thread.lock"),
    ],
)  # fmt: skip
def test_odd_captures_are_named_down_to_the_culprit(value, way, kind):
    error = refusal(map_(source(), "M", by_value(lambda record: (value, record))))
    assert f"it captures {way}" in error.why and f", a {kind}" in error.why


def test_a_method_that_leads_back_to_its_class_is_not_blamed():
    """``super()`` holds the class, so each such method fails as long as the class does."""

    class Client:
        def __init__(self):
            super().__init__()

        lock = threading.Lock()

    error = refusal(map_(source(), "M", by_value(lambda value: Client)))
    assert '"Client.lock" of "Client", a _thread.lock' in error.why


def test_a_base_class_is_named_with_what_it_holds():
    class Base(abc.ABC):
        lock = threading.Lock()

    class Derived(Base):
        pass

    error = refusal(map_(source(), "M", by_value(lambda value: Derived)))
    assert '"Base.lock" of "Base" of "Derived", a _thread.lock' in error.why


def test_an_attribute_is_no_global_of_the_same_name():
    """Only what the code reads as a global goes along."""
    lock = threading.Lock()
    function = by_value(lambda value: value.GLOBAL_LOCK and lock)
    assert refusal(map_(source(), "M", function)).fields["variable"] == "lock"


_CACHED = """
import functools, sys, typing

@functools.lru_cache(maxsize=10)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

UserId = typing.NewType("UserId", int)
from flinkish.graph.chain_pickling import _dumps
open(sys.argv[1], "wb").write(_dumps((lambda n: UserId(fib(n)), fib, UserId)))
"""


def test_cached_functions_and_new_types_of_main_travel(tmp_path):
    """They would go by their name in ``__main__``, where the slot has none."""
    subprocess.run(
        [sys.executable, "-c", _CACHED, tmp_path / "pickle"], cwd=ROOT, check=True, timeout=60
    )
    call, fib, user_id = pickle.loads((tmp_path / "pickle").read_bytes())
    assert call(50) == 12586269025 and user_id(1) == 1
    assert (fib.__name__, fib.cache_parameters()["maxsize"]) == ("fib", 10)
    assert fib.cache_info().hits > 0


def test_what_getstate_leaves_out_is_no_obstacle():
    class Careful:
        def __init__(self):
            self.lock, self.other = threading.Lock(), 1

        def __getstate__(self):
            return {"other": self.other}

        def __call__(self, value):
            return value

    assert pickle_chains(job(map_(source(), "M", Careful())))


def test_key_selectors_and_partitioners_are_named_too():
    lock = threading.Lock()
    stream = partition(source(), p.CustomPartitioner(lambda key, n: lock and 0, abs))
    assert "partitioner" in refusal(map_(stream)).what
    error = refusal(reduce_(keyed(source(), lambda value: lock)))
    assert "key selector" in error.what and 'operator "Source: numbers"' in error.what
    error = refusal(reduce_(keyed(source()), "sum", selector=lambda value: lock))
    assert "key selector" in error.what and 'operator "sum"' in error.what


@pytest.fixture
def spark_classes():
    """Classes that look like pyspark's: the check must not need pyspark."""

    def make(name, module):
        return type(name, (), {"__module__": module, "__reduce__": lambda self: (str, ("pickles",))})

    return types.SimpleNamespace(
        Session=make("SparkSession", "pyspark.sql.session"),
        Series=make("Series", "pyspark.pandas.series"),
        ClassicFrame=type("DataFrame", (make("DataFrame", "pyspark.sql.dataframe"),), {"__module__": "x"}),
        Mine=make("DataFrame", "mine.frames"),
        Broadcast=make("Broadcast", "pyspark.core.broadcast"),
        JavaObject=make("JavaObject", "py4j.java_gateway"),
        Row=make("Row", "pyspark.sql.types"),
    )


def test_a_captured_spark_session_is_named_with_advice_even_if_it_would_pickle(spark_classes):
    for spark in (spark_classes.Session(), spark_classes.ClassicFrame(), spark_classes.Series()):
        error = refusal(map_(source(), "look up", lambda value: (spark, value)))
        assert error.fields["variable"] == "spark" and "in the driver only" in error.why
        assert "from_dataframe" in error.do
    other = spark_classes.Mine()
    assert pickle_chains(job(map_(source(), "M", lambda value: (other, value))))


def test_each_kind_of_spark_object_gets_its_own_advice(spark_classes):
    for value, advice in ((spark_classes.Broadcast(), "capture its value"), (spark_classes.JavaObject(), "collect()")):
        error = refusal(map_(source(), "look up", lambda record: (value, record)))
        assert "in the driver only" in error.why and advice in error.do
    row = spark_classes.Row()
    assert pickle_chains(job(map_(source(), "M", lambda record: (row, record))))


def test_a_captured_environment_or_stream_is_named_itself_and_not_what_it_holds():
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1])
    for value, name in ((env, "StreamExecutionEnvironment"), (stream, "DataStream")):
        error = refusal(map_(source(), "look up", lambda record: (value, record)))
        assert error.fields["variable"] == "value" and name in error.why
        assert "in the driver only" in error.why and "connect()" in error.do
        assert error.why.count(" of ") == 0


def test_checking_for_spark_imports_no_pyspark():
    code = (
        "import sys\n"
        "from tests.unit.graph.test_chain_pickling import job, map_, source, pickle_chains\n"
        "pickle_chains(job(map_(source(), 'M', lambda v: v)))\n"
        "assert 'pyspark' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


_DRIVER = """
import collections, dataclasses, enum, sys, threading, typing
from flinkish.graph.chain_pickling import main_module_classes

@dataclasses.dataclass
class Base:
    x: int

class Sub(Base):
    pass

class Color(enum.Enum):
    RED = 1

Pair = collections.namedtuple("Pair", "a b")

@dataclasses.dataclass(slots=True)
class Slots:
    a: int

class More(Slots):
    __slots__ = "b"

class Named(typing.NamedTuple):
    a: int

class Bad:
    lock = threading.Lock()

import cloudpickle
classes = main_module_classes()
with open(sys.argv[1], "wb") as file:
    cloudpickle.dump((classes, cloudpickle.dumps(lambda: (Sub(1), Color.RED, Pair(1, 2), Slots(1), More(2), Named(1)))), file)
"""

_SLOT = """
import dataclasses, pickle, sys
classes, function = pickle.load(open(sys.argv[1], "rb"))
classes = pickle.loads(classes)
assert all(dataclasses.fields(classes[name])[0].default is dataclasses.MISSING for name in ("Base", "Slots"))
main = sys.modules["__main__"]
vars(main).update(classes)
sub, color, pair, slots, more, named = pickle.loads(function)()
assert not hasattr(slots, "__dict__") and not hasattr(more, "__dict__")
more.b = 3
assert type(more) is main.More and pickle.loads(pickle.dumps([slots, more]))[1].b == 3
assert type(named) is main.Named and pickle.loads(pickle.dumps(named)) == named
assert type(sub) is main.Sub and main.Sub.__mro__[1] is main.Base
assert color is main.Color.RED and type(pair) is main.Pair
assert pickle.loads(pickle.dumps([sub, color, pair])) == [sub, color, pair]
print(sorted(classes))
"""


def test_classes_of_main_are_one_class_in_the_slot_whichever_pickle_brought_them(tmp_path):
    def run(name, code):
        (tmp_path / name).write_text(code)
        return subprocess.run(
            [sys.executable, name, "data"], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout

    run("driver.py", _DRIVER)
    assert run("slot.py", _SLOT) == "['Base', 'Color', 'More', 'Named', 'Pair', 'Slots', 'Sub']\n"


_NESTED = """
import dataclasses, enum, sys, typing
from flinkish.graph import chain_pickling

class Outer:
    class Named(typing.NamedTuple):
        a: int
    class Plain:
        pass
    class Kind(enum.Enum):
        A = 1
    class Deep:
        @dataclasses.dataclass(slots=True)
        class Deeper:
            a: int

@dataclasses.dataclass
class Order:
    @dataclasses.dataclass
    class Item:
        n: int
    item: Item
    kind: Outer.Kind = Outer.Kind.A

def local():
    class Local(typing.NamedTuple):
        a: int
    return Local

class Holder:
    Local = local()

Given = local()
Given.__name__ = "Given"

def values():
    return [Outer.Named(1), Outer.Kind.A, Outer.Deep.Deeper(1), Order(Order.Item(1)), Given(1)]

function = chain_pickling._dumps(lambda: (values(), Outer.Plain(), Holder.Local(1)))
open(sys.argv[1], "wb").write(function)
open(sys.argv[2], "wb").write(chain_pickling.main_module_classes())
"""

_NESTED_SLOT = """
import pickle, sys
from flinkish.state.serializers import LayoutReader, LayoutWriter
main = sys.modules["__main__"]
vars(main).update(pickle.loads(open(sys.argv[2], "rb").read()))
values, plain, local = pickle.loads(open(sys.argv[1], "rb").read())()
assert type(values[0]) is main.Outer.Named and type(values[2]) is main.Outer.Deep.Deeper
layouts = LayoutWriter()
data = layouts.dumps(values)
assert LayoutReader(layouts.layouts).loads(data) == values
print(*(layout.qualname for layout in layouts.layouts))
print(type(LayoutReader(()).loads(layouts.dumps(plain))).__qualname__)
try:
    layouts.dumps(local)
except pickle.PicklingError as error:
    print(error)
"""


def test_classes_nested_in_classes_of_main_are_state_under_their_names(tmp_path):
    def run(name, code):
        (tmp_path / name).write_text(code)
        return subprocess.run(
            [sys.executable, name, "function", "classes"], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout.splitlines()

    run("driver.py", _NESTED)
    assert run("slot.py", _NESTED_SLOT) == [
        "Outer.Named Outer.Kind Outer.Deep.Deeper Order Order.Item Given",
        "Outer.Plain",
        "__main__.local.<locals>.Local is defined inside a function, where nobody who restores it can find it: "
        "define the class at the top of a module",
    ]


class Unreadable:
    def __reduce__(self):
        return int, ("no number",)


def test_of_the_main_modules_classes_those_that_cannot_be_read_are_left_out():
    good, left_out = unpickle_main_classes(pickle.dumps({"Good": Exception, "Bad": [Unreadable()]}), "s0")
    assert good == {"Good": Exception}
    assert left_out == {"Bad": "ValueError: invalid literal for int() with base 10: 'no number'"}
    with pytest.raises(UnpicklableFunctionError) as caught:
        unpickle_main_classes(b"no pickle", "s0")
    assert "__main__" in caught.value.what and caught.value.where == "slot s0"


def test_what_main_has_imported_is_found_in_the_slots_main_when_it_is_asked_for(monkeypatch, tmp_path):
    (tmp_path / "moved_away.py").write_text("class Visit: pass")
    monkeypatch.syspath_prepend(tmp_path)
    driver, slot = types.ModuleType("__main__"), types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", driver)
    exec("from moved_away import Visit", driver.__dict__)
    data = main_module_classes()
    monkeypatch.delitem(sys.modules, "moved_away")
    monkeypatch.setitem(sys.modules, "__main__", slot)
    classes, left_out = unpickle_main_classes(data, "s")
    install_main_classes(classes)
    assert not left_out and "moved_away" not in sys.modules
    assert slot.Visit.__module__ == "moved_away" and not hasattr(slot, "Other")


def test_an_enum_of_main_keeps_the_aliases_of_its_members(monkeypatch):
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec("import enum\nclass Kind(enum.Enum):\n    A = 1\n    B = 2\n    OLD = B\n    def shown(self): return 1", main.__dict__)
    data = main_module_classes()
    monkeypatch.setattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", weakref.WeakValueDictionary())
    kind = unpickle_main_classes(data, "s")[0]["Kind"]
    assert kind is not main.Kind and list(kind.__members__) == ["A", "B", "OLD"]
    assert kind.OLD is kind.B and kind.A.shown() == 1
