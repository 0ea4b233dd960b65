"""A DataFrame of the session as a stream."""

from __future__ import annotations

import datetime
import gc
import os
from decimal import Decimal

import pytest

from flinkish.common import Row, WatermarkStrategy
from flinkish.connectors.spi import InputStatus
from flinkish.datastream import StreamExecutionEnvironment
from flinkish.datastream.window import TumblingEventTimeWindows
from flinkish.common.time import Time
from flinkish.errors import InvalidJobError, UnsupportedSparkError, UserError
from spark_plugin.dataframe import dataframe_source

pytestmark = [pytest.mark.launch, pytest.mark.usefixtures("no_jobs_left")]

UTC = datetime.timezone.utc
PATIENT = {"slot.request.timeout": "180 s"}

EVERY_TYPE = """
    select id,
        cast(id as tinyint) tiny, cast(id as float) f, cast(id as double) / 3 d, id % 2 = 0 b,
        cast(id as decimal(38, 18)) dec, cast(id as string) s, X'00ff' bin,
        timestamp'2020-02-29 23:59:59.123456' ts, timestamp_ntz'2020-02-29 23:59:59.5' ntz, date'1969-12-31' day,
        interval '1 02:03:04.5' day to second iv,
        array(id, null) arr, map('k', id) m, named_struct('x', id, 'y', array('z')) st,
        if(id = 1, null, id) maybe, cast(null as string) nothing
    from range(0, 3, 1, 2)
"""


@pytest.fixture
def spark(spark_of_tests):
    from pyspark.sql import SparkSession

    spark_of_tests.context_for("local[3]")
    session = SparkSession.builder.getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def collect(dataframe, parallelism=1):
    env = StreamExecutionEnvironment.get_execution_environment(PATIENT, spark=dataframe.sparkSession)
    env.set_parallelism(parallelism)
    with env.from_dataframe(dataframe).execute_and_collect() as results:
        return list(results)


def test_every_type_that_arrow_carries_keeps_value_and_type(spark):
    rows = collect(spark.sql(EVERY_TYPE))
    assert [row.id for row in rows] == [0, 1, 2]
    row = rows[1]
    assert isinstance(row, Row)
    expected = {
        "id": 1, "tiny": 1, "f": 1.0, "d": 1 / 3, "b": False,
        "dec": Decimal("1.000000000000000000"), "s": "1", "bin": b"\x00\xff",
        "ts": datetime.datetime(2020, 2, 29, 23, 59, 59, 123456, UTC),
        "ntz": datetime.datetime(2020, 2, 29, 23, 59, 59, 500000),
        "day": datetime.date(1969, 12, 31),
        "iv": datetime.timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=500),
        "arr": [1, None], "m": {"k": 1}, "maybe": None, "nothing": None,
    }  # fmt: skip
    found = row.as_dict()
    structure = found.pop("st")
    assert found == expected
    assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in expected.items()}
    assert (structure.x, structure.y) == (1, ["z"])


def test_rows_keep_their_order_and_partitions_spread_over_the_slots(spark):
    numbers = spark.range(0, 5_000, 1, 4)
    assert [row.id for row in collect(numbers)] == list(range(5_000))
    assert sorted(row.id for row in collect(numbers, parallelism=2)) == list(range(5_000))


def test_an_empty_dataframe_is_an_empty_stream(spark):
    assert collect(spark.createDataFrame([], "a int, b string")) == []


def test_a_dataframe_feeds_event_time_windows(spark):
    readings = spark.sql("select id % 2 sensor, id * 1000 at, id value from range(0, 120, 1, 3)")
    env = StreamExecutionEnvironment.get_execution_environment(PATIENT, spark=spark)
    env.set_parallelism(2)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Time.minutes(5)).with_timestamp_assigner(
        lambda row, _: row.at
    )
    sums = (
        env.from_dataframe(readings, strategy)
        .map(lambda row: (row.sensor, row.value))
        .key_by(lambda pair: pair[0])
        .window(TumblingEventTimeWindows.of(Time.minutes(1)))
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
    )
    with sums.execute_and_collect() as results:
        found = sorted(results)
    expected = [
        (sensor, sum(n for n in range(minute * 60, minute * 60 + 60) if n % 2 == sensor))
        for sensor in (0, 1)
        for minute in (0, 1)
    ]
    assert found == sorted(expected)


def test_the_files_are_removed_when_nothing_uses_the_source(spark):
    source = dataframe_source(spark.range(10))
    folder = source._folder
    enumerator = source.create_enumerator(None)
    del source
    gc.collect()
    assert os.listdir(folder), "a job still reads them"
    enumerator.close()
    enumerator.close()
    assert not os.path.exists(folder)


def test_a_source_whose_files_are_gone_says_so(spark):
    import cloudpickle

    source = dataframe_source(spark.range(10))
    copy = cloudpickle.loads(cloudpickle.dumps(source))
    del source
    gc.collect()
    with pytest.raises(UserError, match="could not read the DataFrame"):
        copy.create_enumerator(None)


class Readings:
    """Stands for both the reader's context and its output; takes ``room`` rows a call."""

    def __init__(self, room):
        self.room, self.rows, self.times = room, [], []

    def send_split_request(self):
        self.rows.append("asked")

    def create_output_for_split(self, split_id):
        return self

    def release_output_for_split(self, split_id):
        self.rows.append("released")

    def collect_columns(self, columns, times):
        assert columns.num_rows <= self.room
        self.rows += columns.column("id").to_pylist()
        self.times += list(times)


def test_a_restored_reader_goes_on_behind_the_last_row_it_gave(spark):
    source = dataframe_source(spark.sql("select id, timestamp_millis(id) at from range(0, 25, 1, 1)"), "at")
    (split,) = source._splits
    first = Readings(room=7)
    reader = source.create_reader(first)
    reader.start()
    reader.add_splits([split])
    reader.notify_no_more_splits()
    assert reader.poll_next(first) is InputStatus.MORE_AVAILABLE
    assert reader.poll_next(first) is InputStatus.MORE_AVAILABLE
    saved = reader.snapshot_state(1)
    reader.close()
    second = Readings(room=100)
    restored = source.create_reader(second)
    restored.add_splits(saved)
    restored.notify_no_more_splits()
    while restored.poll_next(second) is not InputStatus.END_OF_INPUT:
        assert len(second.rows) <= 25
    assert first.rows == ["asked", *range(14)]
    assert second.rows == [*range(14, 25), "released"]
    assert [*first.times, *second.times] == list(range(25))


@pytest.mark.parametrize(
    "query, why",
    [
        ("select interval '3' month m", "interval month"),
        ("select array(interval '3' month) m", "interval month"),
        ("select 1 a, 2 a", "called 'a'"),
    ],
)
def test_what_cannot_become_a_stream_is_refused_before_spark_runs(spark, query, why):
    with pytest.raises(InvalidJobError) as caught:
        dataframe_source(spark.sql(query))
    assert why in caught.value.why


def test_a_missing_timestamp_column_and_a_streaming_dataframe_are_refused(spark):
    with pytest.raises(InvalidJobError, match="could not find the column 'at'"):
        dataframe_source(spark.range(1), "at")
    with pytest.raises(InvalidJobError) as caught:
        dataframe_source(spark.readStream.format("rate").load())
    assert "streaming" in caught.value.why


def test_executors_on_other_machines_need_a_folder_that_all_reach(spark, monkeypatch):
    from spark_plugin import session

    monkeypatch.setattr(session, "is_on_this_machine", lambda master: False)
    with pytest.raises(UnsupportedSparkError) as caught:
        dataframe_source(spark.range(1))
    assert "staging_dir" in caught.value.do
