"""State as data: a job's savepoint as DataFrames, and a job that begins with state from a DataFrame."""

import enum
import sys
import warnings
from dataclasses import dataclass, replace

import pytest

from flinkish.common.typeinfo import Types
from flinkish.connectors.discarding import DiscardingSink
from flinkish.datastream.functions import KeyedProcessFunction
from flinkish.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flinkish.errors import UnsupportedSparkError
from flinkish.state_processor import KeyedStateBootstrap, SavepointReader
from flinkish.storage.checkpoint_storage import CheckpointStorage
from flinkish.testing.stream_test_harness import StreamTestHarness
from spark_plugin.state_data import read_state, read_state_metadata, register_state_sources, write_savepoint
from tests.integration.waiting import wait_until

pytestmark = [pytest.mark.launch, pytest.mark.usefixtures("no_jobs_left")]


@pytest.fixture
def spark(spark_of_tests):
    from pyspark.sql import SparkSession

    spark_of_tests.context_for("local[3]")
    session = SparkSession.builder.getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def count_state():
    descriptor = ValueStateDescriptor("count", Types.LONG())
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(3_600_000).build())
    return descriptor


def recent_state():
    return ListStateDescriptor("recent")


def parity_state():
    return MapStateDescriptor("parity", Types.STRING(), Types.LONG())


class Remember(KeyedProcessFunction):
    """Counts a key's records, keeps the last two, and counts the even and odd ones.  Makes a file at the hundredth."""

    def __init__(self, seen):
        self.seen = seen

    def open(self, runtime_context):
        self.count = runtime_context.get_state(count_state())
        self.recent = runtime_context.get_list_state(recent_state())
        self.parity = runtime_context.get_map_state(parity_state())

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.recent.update([*self.recent.get(), value][-2:])
        kind = "odd" if value // 10 % 2 else "even"
        self.parity.put(kind, (self.parity.get(kind) or 0) + 1)
        if count == 100:
            self.seen.touch()
        yield ctx.get_current_key(), count, self.recent.get(), dict(self.parity.items())


@pytest.fixture(scope="module")
def savepoint(cluster, tmp_path_factory):
    """Of a job that was stopped in the middle; keys are "0" to "9"."""
    folder = tmp_path_factory.mktemp("savepoint")
    env = cluster.get_execution_environment({"parallelism.default": 2})
    stream = env.from_sequence(1, 1 << 40).uid("numbers").set_parallelism(1)
    stream.key_by(lambda n: str(n % 10)).process(Remember(folder / "seen")).uid("remember").sink_to(
        DiscardingSink()
    )
    client = env.execute_async("remember")
    wait_until((folder / "seen").exists, "records")
    return client.stop_with_savepoint(False, str(folder)).result(60_000)


def assert_is_a_prefix_of_the_numbers(counts, recent, parity):
    """``counts``: key -> count, as the rows say; ``recent``: (key, position, value); ``parity``: (key, kind, count)."""
    total = sum(counts.values())
    last = {str(n % 10): n for n in range(total - 9, total + 1)}
    assert counts == {key: (n - int(key)) // 10 + (key != "0") for key, n in last.items()}
    assert sorted(recent) == sorted(row for key, n in last.items() for row in ((key, 0, n - 10), (key, 1, n)))
    for key, count in counts.items():
        assert sum(part for other, _, part in parity if other == key) == count


def test_the_savepoint_of_a_job_is_read_by_functions(spark, savepoint):
    states = {(row.operator_uid, row.state_name): row for row in read_state_metadata(spark, savepoint).collect()}
    assert states["remember", "count"].value_type == "int64" and states["remember", "count"].ttl_ms == 3_600_000
    assert states["remember", "parity"].map_key_type == "string"
    assert ("numbers", "SourceReaderState") in states

    counts = read_state(spark, savepoint, operator_uid="remember", state_name="count", part_bytes=500)
    assert dict(counts.dtypes)["key"] == "string" and dict(counts.dtypes)["value"] == "bigint"
    assert counts.rdd.getNumPartitions() > 1  # key groups are read side by side
    rows = counts.collect()
    assert {row.ttl.ttl_ms for row in rows} == {3_600_000}
    assert all((row.ttl.expires_at - row.ttl.last_access).total_seconds() == 3_600 for row in rows)
    recent = read_state(spark, savepoint, operator_uid="remember", state_name="recent").collect()
    parity = read_state(spark, savepoint, operator_uid="remember", state_name="parity").collect()
    assert_is_a_prefix_of_the_numbers(
        {row.key: row.value for row in rows},
        [(row.key, row.position, row.value) for row in recent],
        [(row.key, row.map_key, row.value) for row in parity],
    )
    # In this process the same, and as text when several states are read.
    assert sorted(
        SavepointReader.read(savepoint).read_table("remember", None, "count")["value"].to_pylist()
    ) == sorted(row.value for row in rows)
    every = read_state(spark, savepoint)
    assert dict(every.dtypes)["value"] == "string"
    texts = every.where("state_name = 'count'").selectExpr("key", "cast(value as bigint) value").collect()
    assert {(row.key, row.value) for row in texts} == {(row.key, row.value) for row in rows}


def has_data_sources():
    import pyspark

    return int(pyspark.__version__.split(".")[0]) >= 4


def test_the_savepoint_of_a_job_is_a_data_source_where_pyspark_has_them(spark, savepoint):
    if not has_data_sources():
        with pytest.raises(UnsupportedSparkError, match="read_state"):
            register_state_sources(spark)
        return
    register_state_sources(spark)
    metadata = spark.read.format("flinkish-state-metadata").load(savepoint)
    assert {row.state_name for row in metadata.collect()} >= {"count", "recent", "parity"}
    source = spark.read.format("flinkish-state").option("operatorUid", "remember")
    counts = source.option("stateName", "count").option("partBytes", 500).load(savepoint)
    expected = read_state(spark, savepoint, operator_uid="remember", state_name="count")
    assert counts.schema == expected.schema
    assert sorted(counts.collect()) == sorted(expected.collect())
    chosen = spark.read.schema("value double, key string").format("flinkish-state").option("stateName", "count")
    assert sorted(map(tuple, chosen.load(savepoint).collect())) == sorted(
        (float(row.value), row.key) for row in expected.collect()
    )


def test_a_job_begins_with_the_state_that_a_dataframe_gives(spark, cluster, tmp_path):
    dataframe = spark.range(0, 300, 1, 4).selectExpr(
        "cast(id % 100 as string) word", "id n", "if(id < 100, 'first', 'later') kind"
    )
    totals = dataframe.groupBy("word").count()
    path = str(tmp_path / "bootstrap")
    location = write_savepoint(
        totals, path, "remember", KeyedStateBootstrap(count_state(), "count"),
        key="word", max_parallelism=64, parallelism=3,
    )  # fmt: skip
    location = write_savepoint(
        dataframe.where("n < 200"), str(tmp_path / "more"), "sums",
        KeyedStateBootstrap(ReducingStateDescriptor("sum", lambda a, b: a + b), "n"),
        KeyedStateBootstrap(recent_state(), "n"),
        KeyedStateBootstrap(parity_state(), "n", map_key="kind"),
        key="word", max_parallelism=64, parallelism=2, base=location,
    )  # fmt: skip
    assert read_state(spark, location, operator_uid="remember").count() == 100
    sums = read_state(spark, location, state_name="sum").collect()
    assert {row.key: row.value for row in sums} == {str(k): 2 * k + 100 for k in range(100)}

    env = cluster.get_execution_environment(
        {"parallelism.default": 2, "execution.state-recovery.path": location,
         "execution.state-recovery.ignore-unclaimed-state": "true"}
    )  # fmt: skip
    words = env.from_collection(["7", "7", "new"]).key_by(lambda word: word)
    counted = words.process(CountOn()).uid("remember").set_max_parallelism(64)
    with counted.execute_and_collect() as results:
        assert sorted(results) == [("7", 4), ("7", 5), ("new", 1)]


class CountOn(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(count_state())

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value, count


def test_a_failing_bootstrap_names_the_key(spark, tmp_path):
    twice = spark.range(4).selectExpr("'k' word", "id n")
    with pytest.raises(Exception, match="two rows of the key 'k'"):
        write_savepoint(twice, str(tmp_path / "s"), "op", KeyedStateBootstrap("v", "n"), key="word", parallelism=1)
    assert not (tmp_path / "s" / "_metadata").exists()


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def classes_of_a_script():
    """As a script defines them: only the driver's ``__main__`` has them."""

    @dataclass(frozen=True)
    class CarKey:
        number: int
        colour: Colour

    @dataclass
    class Car:
        key: CarKey

    for cls in (CarKey, Car):
        cls.__module__, cls.__qualname__ = "__main__", cls.__name__
    return CarKey, Car


class KeepCar(KeyedProcessFunction):
    def __init__(self, car):
        self.car = car

    def open(self, runtime_context):
        self.kept = runtime_context.get_state(ValueStateDescriptor("car"))

    def process_element(self, number, ctx):
        yield number, self.kept.value()
        self.kept.update(self.car(ctx.get_current_key()))


def test_objects_of_a_scripts_classes_go_through_dataframes_and_back(spark, tmp_path, monkeypatch):
    car_key, car = classes_of_a_script()
    for cls in (car_key, car):
        monkeypatch.setattr(sys.modules["__main__"], cls.__name__, cls, raising=False)

    def job(stream):
        keyed = stream.key_by(lambda number: car_key(number, list(Colour)[number % 2]))
        return keyed.process(KeepCar(car)).uid("cars")

    storage = CheckpointStorage(tmp_path)
    with StreamTestHarness(job) as harness:
        harness.process_elements([(number, None) for number in range(3)])
        storage.create_folder(str(tmp_path / "first"))
        storage.store_metadata(replace(harness.snapshot(), location=str(tmp_path / "first")))
    rows = read_state(spark, tmp_path / "first", "cars", state_name="car").select("key", "value")
    state = KeyedStateBootstrap("car", "value", value_type=car)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        untyped = KeyedStateBootstrap("car", "value")
        write_savepoint(rows, tmp_path / "untyped", "cars", untyped, key="key", parallelism=2)
    assert sorted(str(warning.message)[:30] for warning in said if warning.filename == __file__) == [
        'the key of operator "cars" is ', 'the value of state "car" of op',
    ]  # fmt: skip
    location = write_savepoint(
        rows, tmp_path / "second", "cars", state, key="key", key_type=car_key, parallelism=2
    )
    none = write_savepoint(rows.where("false"), tmp_path / "none", "cars", state, key="key", key_type=car_key)
    assert read_state(spark, none, "cars", state_name="car").count() == 0  # the state is there, without entries
    own = {"execution.checkpointing.dir": str(tmp_path)}
    with StreamTestHarness.restore(job, storage.load(location), 2, configuration=own) as harness:
        harness.process_elements([(number, None) for number in range(3)])
        found = dict(record.value for record in harness.output if hasattr(record, "value"))
    assert found == {number: car(car_key(number, list(Colour)[number % 2])) for number in range(3)}
