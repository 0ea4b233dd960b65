"""Chains as bytes; what cannot travel is named."""

import functools
import pickle
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

from flinkish.datastream import StreamExecutionEnvironment
from flinkish.datastream import partitioners as p
from flinkish.errors import UnpicklableFunctionError
from flinkish.graph.chain_pickling import pickle_chains
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
        (lambda: by_value(lambda value, lock=GLOBAL_LOCK: value), "default 0"),
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
        ClassicFrame=type("DataFrame", (make("DataFrame", "pyspark.sql.dataframe"),), {"__module__": "x"}),
        Mine=make("DataFrame", "mine.frames"),
    )


def test_a_captured_spark_session_is_named_with_advice_even_if_it_would_pickle(spark_classes):
    for cls in (spark_classes.Session, spark_classes.ClassicFrame):
        spark = cls()
        error = refusal(map_(source(), "look up", lambda value: (spark, value)))
        assert error.fields["variable"] == "spark" and "in the driver only" in error.why
        assert "from_dataframe" in error.do
    other = spark_classes.Mine()
    assert pickle_chains(job(map_(source(), "M", lambda value: (other, value))))


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
import pickle, sys
classes, function = pickle.load(open(sys.argv[1], "rb"))
classes = pickle.loads(classes)
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
