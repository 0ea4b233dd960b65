"""What the data source and the writer refuse before Spark does anything.  How they read and write: tests/integration."""

from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import IntegerType, StringType, StructType

from flinkish.common.typeinfo import Types
from flinkish.datastream.state import MapStateDescriptor, ValueStateDescriptor
from flinkish.errors import InvalidJobError
from flinkish.state_processor import KeyedStateBootstrap, OperatorIdentifier, OperatorTransformation, SavepointWriter
from spark_plugin.state_data import _data_sources, _for_spark, write_savepoint

StateSource, MetadataSource = _data_sources()


@pytest.fixture
def savepoint(tmp_path):
    state = KeyedStateBootstrap(ValueStateDescriptor("n", Types.LONG()), "n")
    data = OperatorTransformation.bootstrap_with([{"k": "a", "n": 1}]).key_by("k", Types.STRING()).transform(state)
    writer = SavepointWriter.new_savepoint(8).with_operator(OperatorIdentifier.for_uid("u"), data)
    return writer.write(tmp_path / "savepoint")


def source(cls, path, **options):
    options = {option.replace("__", "."): value for option, value in options.items()}
    return cls(CaseInsensitiveDict({"path": path, **options}))


def read(reader):
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_options_may_be_written_in_any_case(savepoint):
    chosen = source(StateSource, savepoint, OPERATORuid="u", statename="n", partbytes="1", s3__endpoint="x")
    assert [row["value"] for row in read(chosen.reader(chosen.schema()))] == [1]


@pytest.mark.parametrize(
    "options, why",
    [
        ({"operatorID": "u"}, "could not use the option 'operatorid' of flinkish-state"),
        ({"partBytes": "0"}, "could not use '0' as partBytes"),
        ({"partBytes": "many"}, "could not use 'many' as partBytes"),
    ],
)
def test_options_that_mean_nothing_are_refused_and_not_passed_over(savepoint, options, why):
    chosen = source(StateSource, savepoint, **options)
    with pytest.raises(InvalidJobError, match=why):
        chosen.reader(chosen.schema())


def test_one_savepoint_is_read_and_none_is_written(savepoint):
    with pytest.raises(InvalidJobError, match="several savepoints at once"):
        StateSource(CaseInsensitiveDict({"paths": f'["{savepoint}", "{savepoint}"]'})).schema()
    with pytest.raises(InvalidJobError, match="without a path"):
        StateSource(CaseInsensitiveDict({})).schema()
    with pytest.raises(InvalidJobError, match="could not write with the format flinkish-state") as refused:
        source(StateSource, savepoint).writer(StructType(), False)
    assert "write_savepoint" in refused.value.do


def test_columns_of_states_can_be_chosen_and_no_others(savepoint):
    chosen = source(MetadataSource, savepoint)
    schema = StructType().add("num_entries", IntegerType()).add("state_name", StringType())
    (batch,) = chosen.reader(schema).read(None)
    assert batch.to_pylist() == [{"num_entries": 1, "state_name": "n"}] and batch.schema.field(0).type == pa.int32()
    with pytest.raises(InvalidJobError, match="could not read the column 'nope' of states"):
        chosen.reader(StructType().add("nope", StringType()))
    with pytest.raises(InvalidJobError, match="could not use the option 'operatoruid'"):
        source(MetadataSource, savepoint, operatorUid="u").schema()


def test_times_are_read_in_the_unit_that_spark_has():
    schema = pa.schema([("a", pa.timestamp("ns", "UTC")), ("b", pa.list_(pa.timestamp("ms"))), ("c", pa.duration("s"))])
    found = _for_spark(schema)
    assert found.field("a").type == pa.timestamp("us", "UTC") and found.field("b").type == pa.list_(pa.timestamp("us"))


def test_what_is_not_a_dataframe_or_has_not_the_columns_is_refused_before_spark_runs(tmp_path):
    dataframe = SimpleNamespace(mapInArrow=None, columns=["k", "n"])
    state = KeyedStateBootstrap("v", "n")
    for given, states, key, more, why in [
        (5, [state], "k", {}, "cannot use 5 as dataframe"),
        (dataframe, [state], "word", {}, "could not find the column 'word'"),
        (dataframe, [KeyedStateBootstrap("v", ["n", "m"])], "k", {}, "could not find the column 'm'"),
        (dataframe, [KeyedStateBootstrap(MapStateDescriptor("v"), "n", "m")], "k", {}, "could not find the column 'm'"),
        (dataframe, [state], "k", {"parallelism": 0}, "cannot use 0 as parallelism"),
        (dataframe, [state], 5, {}, "cannot use 5 as key"),
    ]:
        with pytest.raises(InvalidJobError, match=why):
            write_savepoint(given, tmp_path, "u", *states, key=key, **more)
