"""CSV, Avro, ORC and Parquet-by-Avro files: what pyarrow and fastavro read and write is what we write and read."""

import datetime as dt
import decimal
import gzip
import io
import json

import cloudpickle
import fastavro
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from flinkish.common import Instant, Row, Types
from flinkish.connectors.files import AvroFormat, AvroPart, CsvFormat, FileSink, FileSource, OrcPart, ParquetPart
from flinkish.datastream import StreamExecutionEnvironment
from flinkish.datastream.formats.avro import (
    AvroBulkWriters,
    AvroInputFormat,
    AvroRowDeserializationSchema,
    AvroRowSerializationSchema,
    AvroSchema,
    GenericRecordAvroTypeInfo,
)
from flinkish.datastream.formats.csv import CsvBulkWriters, CsvReaderFormat, CsvSchema
from flinkish.datastream.formats.orc import OrcBulkWriters
from flinkish.datastream.formats.parquet import (
    AvroParquetReaders,
    AvroParquetWriters,
    ParquetBulkWriters,
    ParquetColumnarRowInputFormat,
)
from flinkish.errors import InvalidJobError, UserError
from flinkish.testing.spi_fakes import SinkRun, SourceRun
from flinkish.testing.spi_suites import BoundedSourceSuite, SinkSuite


def read(source):
    run = SourceRun(source).run_until_end()
    run.close()
    return run.values


def write(sink, records):
    run = SinkRun(sink)
    run.write(records)
    run.finish()


def bulk_sink(folder, writers):
    return FileSink.for_bulk_format(folder, writers).build()


def files(folder):
    return sorted(folder.glob("[!.]*"))


# ---- CSV ----------------------------------------------------------------------------------------

COLUMNS = {"name": Types.STRING(), "n": Types.LONG(), "x": Types.DOUBLE()}


class TestCsvFiles(BoundedSourceSuite):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path
        for part in range(2):
            rows = [{"name": f"a\n{i}", "n": i, "x": i / 3} for i in range(part * 40, part * 40 + 40)]
            pyarrow.csv.write_csv(pa.Table.from_pylist(rows), tmp_path / f"{part}.csv")

    def make_source(self):
        return FileSource(self.path, format="csv", columns=COLUMNS, header=True, block_bytes=256)

    def expected(self):
        return [{"name": f"a\n{i}", "n": i, "x": i / 3} for i in range(80)]


class TestCsvSink(SinkSuite):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path / "out"

    def make_sink(self):
        return bulk_sink(self.path, CsvBulkWriters.for_schema(self.schema()))

    def schema(self):
        builder = CsvSchema.builder().add_string_column("name").add_number_column("n")
        builder.add_number_column("x", Types.DOUBLE())
        return builder.set_use_header().set_null_value("NULL").build()

    def records(self):
        return [(f'"r" {i},\n', i, None if i % 3 else i / 7) for i in range(50)]

    def read_back(self):
        options = pyarrow.csv.ConvertOptions(null_values=["NULL"])
        parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
        tables = [pyarrow.csv.read_csv(f, parse_options=parse, convert_options=options) for f in files(self.path)]
        return [tuple(row.values()) for table in tables for row in table.to_pylist()]


def csv_rows(path, text, schema):
    path.write_text(text)
    return [tuple(row.values()) for row in read(FileSource.for_record_stream_format(schema, path).build())]


def test_csv_columns_have_flinks_types(tmp_path):
    builder = CsvSchema.builder()
    for name, kind in [("a", Types.BYTE()), ("b", Types.SHORT()), ("c", Types.INT()), ("d", Types.LONG())]:
        builder.add_number_column(name, kind)
    builder.add_number_column("e", Types.FLOAT()).add_number_column("f", Types.DOUBLE())
    builder.add_number_column("g", Types.BIG_DEC()).add_boolean_column("h").add_string_column("i")
    schema = builder.build()
    line = "127,-32767,2147483647,-9223372036854775808, 3e38,2e-308,1.5,true,string\n"
    values = (127, -32767, 2147483647, -(2**63), 3.0000000054977558e38, 2e-308, decimal.Decimal("1.5"), True, "string")
    reader = CsvReaderFormat.for_schema(schema)
    assert csv_rows(tmp_path / "f.csv", line, reader) == [values]
    assert reader.produced_type().get_field_types()[4] == Types.FLOAT()
    write(bulk_sink(tmp_path / "out", CsvBulkWriters.for_schema(schema)), [values])
    assert files(tmp_path / "out")[0].read_text() == (
        "127,-32767,2147483647,-9223372036854775808,3.0E38,2.0E-308,1.5,true,string\n"
    )


def test_a_csv_value_that_is_not_of_the_declared_type_says_so_first(tmp_path):
    (tmp_path / "f.csv").write_text("1\n2\nabc\n")
    with pytest.raises(UserError, match="abc") as caught:
        read(FileSource(tmp_path / "f.csv", format="csv", columns={"n": Types.INT()}))
    assert caught.value.do.startswith("declare for that column the type that its values have")


def test_csv_arrays_comments_headers_quotes_and_nulls(tmp_path):
    path = tmp_path / "f.csv"
    arrays = CsvSchema.builder().add_array_column("a", ";", Types.INT()).add_array_column("b", ":", Types.BOOLEAN())
    arrays = arrays.add_array_column("c", ",").set_column_separator("|").disable_quote_char().build()
    lines = "1;2;3|true:false|a,b,c\n|false|x\n"
    values = [([1, 2, 3], [True, False], ["a", "b", "c"]), ([], [False], ["x"])]
    assert csv_rows(path, lines, CsvReaderFormat.for_schema(arrays)) == values
    write(bulk_sink(tmp_path / "out", CsvBulkWriters.for_schema(arrays)), values)
    assert files(tmp_path / "out")[0].read_text() == lines

    text = CsvSchema.builder().add_string_column("s")
    commented = CsvReaderFormat.for_schema(text.set_allow_comments().build())
    assert csv_rows(path, "a\n# not\nb\n", commented) == [("a",), ("b",)]
    assert csv_rows(path, "# not\n", commented) == []
    pair = CsvSchema.builder().add_string_column("s").add_number_column("n")
    header = pair.set_use_header().set_skip_first_data_row().build()
    assert csv_rows(path, "x,y\nfirst,0\nsecond,1\n", CsvReaderFormat.for_schema(header)) == [("second", 1)]
    pair.set_skip_first_data_row(False).set_strict_headers().set_null_value("-").set_escape_char("\\")
    strict = CsvReaderFormat.for_schema(pair.build())
    assert csv_rows(path, 's,n\n"a ""b"",",-\n"\\"",2\n', strict) == [('a "b",', None), ('"', 2)]
    with pytest.raises(UserError, match="its header"):
        csv_rows(path, "n,s\n", strict)


def test_csv_dates_bytes_compression_and_event_times(tmp_path):
    columns = {"d": Types.SQL_DATE(), "t": Types.SQL_TIME(), "at": Types.SQL_TIMESTAMP()}
    columns["raw"] = Types.PRIMITIVE_ARRAY(Types.BYTE())
    with gzip.open(tmp_path / "f.csv.gz", "wt") as stream:
        stream.write("2021-01-09,12:00:01,1970-01-01 00:00:01.5,aGk=\n")
    run = SourceRun(FileSource(tmp_path, format="csv", columns=columns, timestamp_column="at")).run_until_end()
    at = dt.datetime(1970, 1, 1, 0, 0, 1, 500_000)
    assert run.values == [{"d": dt.date(2021, 1, 9), "t": dt.time(12, 0, 1), "at": at, "raw": b"hi"}]
    assert run.outputs[0].records == [(run.values[0], 1_500)]


def test_a_csv_line_may_be_longer_than_a_block_and_a_byte_order_mark_is_none_of_it(tmp_path):
    rows = [{"s": "x" * size, "n": i} for i, size in enumerate((3, 300, 1, 5_000, 40, 2))]
    text = "".join(f"{row['s']},{row['n']}\n" for row in rows)
    (tmp_path / "f.csv").write_text(text)
    columns = {"s": Types.STRING(), "n": Types.INT()}
    run = SourceRun(FileSource(tmp_path, format="csv", columns=columns, block_bytes=64)).run_until_end()
    assert run.values == rows
    path = tmp_path / "f.csv"
    pair = CsvSchema.builder().add_string_column("s").add_number_column("n")
    for schema in (pair.set_use_header().set_strict_headers().build(), pair.set_allow_comments().build()):
        assert csv_rows(path, "\ufeffs,n\na,1\n", CsvReaderFormat.for_schema(schema)) == [("a", 1)]
    commented = CsvSchema.builder().add_string_column("s").set_allow_comments().build()
    assert csv_rows(path, "\ufeff# not\na\n", CsvReaderFormat.for_schema(commented)) == [("a",)]
    doubled = CsvSchema.builder().add_string_column("s").set_escape_char('"').build()
    assert csv_rows(path, '"a""b"\n', CsvReaderFormat.for_schema(doubled)) == [('a"b',)]


def test_csv_that_does_not_fit_fails_with_the_file(tmp_path):
    for text, why in [("1,2,3\n", "Expected 2 columns"), ("x,2\n", "invalid value 'x'"), ("1,300\n", "300")]:
        (tmp_path / "f.csv").write_text(text)
        with pytest.raises(UserError, match=f"f.csv as CSV(.|\n)*{why}"):
            read(FileSource(tmp_path, format="csv", columns={"a": Types.INT(), "b": Types.BYTE()}))
    (tmp_path / "f.csv").write_text("1e80\n")
    with pytest.raises(UserError, match="too large") as error:
        read(FileSource(tmp_path, format="csv", columns={"a": Types.BIG_DEC()}))
    assert "what is declared" in error.value.do
    for options, why in [({}, "declare Types"), ({"columns": {}}, "no columns")]:
        with pytest.raises(InvalidJobError, match=why):
            FileSource(tmp_path, format="csv", **options)
    with pytest.raises(InvalidJobError, match="event times"):
        CsvFormat({"a": Types.STRING()}, timestamp_column="a")
    with pytest.raises(InvalidJobError, match="as struct"):
        CsvFormat({"a": Types.ROW([Types.INT()])})
    with pytest.raises(InvalidJobError, match="could not find the column 'z'"):
        CsvFormat({"a": Types.INT()}, timestamp_column="z")


# ---- Avro ---------------------------------------------------------------------------------------

SCHEMA_TEXT = json.dumps(
    {
        "type": "record",
        "name": "Ride",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "counts", "type": {"type": "map", "values": "int"}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "fare", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        ],
    }
)
SCHEMA = AvroSchema.parse_string(SCHEMA_TEXT)
START = dt.datetime(2021, 1, 9, 12, tzinfo=dt.timezone.utc)


def rides(count):
    return [
        {
            "id": i,
            "name": None if i % 3 == 0 else f"n{i}",
            "tags": ["a"] * (i % 3),
            "counts": {"x": i},
            "kind": "AB"[i % 2],
            "at": START + dt.timedelta(seconds=i),
            "fare": decimal.Decimal(i).scaleb(-2),
        }
        for i in range(count)
    ]


class TestAvroFiles(BoundedSourceSuite):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path
        for part in range(2):
            with open(tmp_path / f"{part}.avro", "wb") as stream:
                fastavro.writer(stream, json.loads(SCHEMA_TEXT), rides(60)[part::2], sync_interval=200)

    def make_source(self):
        return FileSource(self.path, format=AvroFormat(SCHEMA))

    def expected(self):
        return rides(60)


class TestAvroSink(SinkSuite):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path / "out"

    def make_sink(self):
        return bulk_sink(self.path, AvroBulkWriters.for_generic_record(SCHEMA))

    def records(self):
        return rides(50)

    def read_back(self):
        found = []
        for file in files(self.path):
            with open(file, "rb") as stream:
                found += fastavro.reader(stream)
        return found


class TestAvroParquetFiles(BoundedSourceSuite):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path
        write(bulk_sink(tmp_path / "out", AvroParquetWriters.for_generic_record(SCHEMA)), rides(40))
        self.path = tmp_path / "out"

    def make_source(self):
        return FileSource.for_record_stream_format(AvroParquetReaders.for_generic_record(SCHEMA), self.path).build()

    def expected(self):
        return rides(40)

    def test_other_readers_see_the_types_that_avro_declares(self):
        schema = pq.read_schema(files(self.path)[0])
        assert schema.field("at").type == pa.timestamp("ms", "UTC")
        assert schema.field("fare").type == pa.decimal128(10, 2)
        assert schema.field("name").nullable and not schema.field("id").nullable


def test_avro_is_read_by_another_schema_and_records_that_do_not_fit_are_named(tmp_path):
    with open(tmp_path / "f.avro", "wb") as stream:
        fastavro.writer(stream, json.loads(SCHEMA_TEXT), rides(2))
    newer = {"type": "record", "name": "Ride", "fields": [
        {"name": "id", "type": "double"}, {"name": "city", "type": "string", "default": "?"}]}  # fmt: skip
    assert read(FileSource(tmp_path, format=AvroFormat(AvroSchema(newer)))) == [
        {"id": 0.0, "city": "?"},
        {"id": 1.0, "city": "?"},
    ]
    (tmp_path / "g.avro").write_bytes(b"no avro at all")
    with pytest.raises(UserError, match="g.avro as Avro"):
        read(FileSource(tmp_path / "g.avro", format="avro"))
    with pytest.raises(UserError, match="could not write a record as Avro"):
        write(bulk_sink(tmp_path / "out", AvroPart(SCHEMA)), [{"id": "x"}])


def test_avro_schemas_types_and_refusals(tmp_path):
    (tmp_path / "s.avsc").write_text(SCHEMA_TEXT)
    assert AvroSchema.parse_file(str(tmp_path / "s.avsc")) == SCHEMA
    assert json.loads(str(SCHEMA)) == json.loads(SCHEMA_TEXT)
    info = GenericRecordAvroTypeInfo(SCHEMA)
    assert info == GenericRecordAvroTypeInfo(AvroSchema.parse_string(SCHEMA_TEXT)) and str(info) == "avro<Ride>"
    assert info.mismatch({"id": 1}) == "" and "expected a dict" in info.mismatch(1)
    for text, why in [("{", "no JSON"), ('{"type": "nothing"}', "could not use the Avro schema")]:
        with pytest.raises(InvalidJobError, match=why):
            AvroSchema.parse_string(text)
    with pytest.raises(InvalidJobError, match="could not read the Avro schema"):
        AvroSchema.parse_file(str(tmp_path / "none"))
    with pytest.raises(InvalidJobError, match="no record"):
        AvroPart(AvroSchema.parse_string('"string"'))
    for text in ("[]", '{"type": "record", "name": "R"}'):
        with pytest.raises(InvalidJobError, match="no record"):
            AvroRowDeserializationSchema(avro_schema_string=text)
    with pytest.raises(InvalidJobError, match="codec"):
        AvroPart(SCHEMA, codec="none such")
    with pytest.raises(InvalidJobError, match="class of Java"):
        AvroRowDeserializationSchema(record_class="com.example.Ride")
    with pytest.raises(InvalidJobError, match="needs a schema"):
        AvroRowSerializationSchema()
    stream = StreamExecutionEnvironment().create_input(AvroInputFormat(str(tmp_path), SCHEMA))
    assert stream.get_type() == info
    with pytest.raises(InvalidJobError, match="create_input"):
        StreamExecutionEnvironment().create_input("in.avro")


def avro_record(name="R", **fields):
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields.items()]}


def test_avro_that_does_not_fit_its_schema_or_is_broken_is_named(tmp_path):
    with open(tmp_path / "f.avro", "wb") as stream:
        fastavro.writer(stream, avro_record(id="long"), [{"id": 1}])
    (tmp_path / "g.avro").write_bytes(b"hello world not avro")
    for name, kind in [("f.avro", "string"), ("g.avro", "long")]:
        with pytest.raises(UserError, match=f"{name} as Avro"):
            read(FileSource(tmp_path / name, format=AvroFormat(AvroSchema(avro_record(id=kind)))))


def test_avro_keeps_numbers_whole_and_takes_defaults_for_what_a_dict_lacks(tmp_path):
    schema = avro_record(a="int", b=["null", "long"], u={"type": "string", "logicalType": "uuid"})
    schema["fields"].append({"name": "c", "type": "int", "default": 7})
    part = AvroBulkWriters.for_generic_record(AvroSchema(schema))
    name = "12345678-1234-5678-1234-567812345678"
    write(bulk_sink(tmp_path, part), [{"a": 1.0, "b": True, "u": name}, (2, None, name, 3)])
    records = [(record["a"], record["b"], record["c"]) for record in read(FileSource(tmp_path, format="avro"))]
    assert records == [(1, 1, 7), (2, None, 3)]
    writer = AvroRowSerializationSchema(avro_schema_string=json.dumps(schema))
    for bad in [(1.5, 1, name, 1), (2**31, 1, name, 1), (1, 2**63, name, 1), (1, 1, "no uuid", 1)]:
        with pytest.raises(UserError, match="could not write a record as Avro"):
            writer.serialize(bad)


def test_avro_records_may_share_a_name_in_two_namespaces_and_contain_their_own_kind(tmp_path):
    first = {**avro_record("Item", x="int"), "namespace": "a"}
    schema = avro_record(p=first, q={**avro_record("Item", y="string"), "namespace": "b"}, z="a.Item")
    text = json.dumps(schema)
    row = Row(p=Row(x=1), q=Row(y="s"), z=Row(x=2))
    message = AvroRowSerializationSchema(avro_schema_string=text).serialize(row)
    assert AvroRowDeserializationSchema(avro_schema_string=text).deserialize(message) == row

    chain = avro_record("Node", v="int", next=["null", "Node"])
    nodes = [{"v": 1, "next": {"v": 2, "next": None}}]
    write(bulk_sink(tmp_path, AvroBulkWriters.for_generic_record(AvroSchema(chain))), nodes)
    assert read(FileSource(tmp_path, format=AvroFormat(AvroSchema(chain)))) == nodes
    with pytest.raises(InvalidJobError, match="contains itself"):
        AvroRowDeserializationSchema(avro_schema_string=json.dumps(chain))


def test_a_union_of_avro_is_a_struct_of_members_in_parquet_as_java_writes_it(tmp_path):
    schema = AvroSchema(avro_record(u=["int", "null", "double"], v=["string", "long"]))
    records = [{"u": 1, "v": "a"}, {"u": 2.0, "v": 5}, {"u": None, "v": "b"}]
    write(bulk_sink(tmp_path, AvroParquetWriters.for_generic_record(schema)), records)
    kind = pq.read_schema(files(tmp_path)[0]).field("u").type
    assert kind == pa.struct([("member0", pa.int32()), ("member1", pa.float64())])
    found = read(FileSource.for_record_stream_format(AvroParquetReaders.for_generic_record(schema), tmp_path).build())
    assert found == records and type(found[1]["u"]) is float
    with pytest.raises(UserError, match="u is 'x', none of"):
        write(bulk_sink(tmp_path / "out", AvroParquetWriters.for_generic_record(schema)), [{"u": "x", "v": "a"}])


def test_a_field_of_avro_may_be_nothing_but_null(tmp_path):
    schema = AvroSchema(avro_record(none="null", n="int"))
    records = [{"none": None, "n": 1}, {"none": None, "n": 2}]
    write(bulk_sink(tmp_path, AvroParquetWriters.for_generic_record(schema)), records)
    assert read(FileSource.for_record_stream_format(AvroParquetReaders.for_generic_record(schema), tmp_path).build()) == records
    message = AvroRowSerializationSchema(avro_schema_string=str(schema)).serialize((None, 3))
    assert AvroRowDeserializationSchema(avro_schema_string=str(schema)).deserialize(message) == Row(none=None, n=3)


def test_a_logical_type_that_is_not_known_is_the_number_below_it():
    text = json.dumps(avro_record(a={"type": "long", "logicalType": "timestamp-nanos"}))
    message = AvroRowSerializationSchema(avro_schema_string=text).serialize((5,))
    assert AvroRowDeserializationSchema(avro_schema_string=text).deserialize(message) == Row(a=5)


def test_avro_messages_are_rows_and_the_bytes_of_fastavro():
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": ["int", "null"]}]}
    text = json.dumps({"type": "record", "name": "R", "fields": [
        {"name": "n", "type": "long"},
        {"name": "inner", "type": inner},
        {"name": "more", "type": {"type": "array", "items": "Inner"}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    ]})  # fmt: skip
    writer = cloudpickle.loads(cloudpickle.dumps(AvroRowSerializationSchema(avro_schema_string=text)))
    reader = cloudpickle.loads(cloudpickle.dumps(AvroRowDeserializationSchema(avro_schema_string=text)))
    at, day = dt.datetime(2021, 1, 9, 12, 0, 0, 5), dt.date(2021, 1, 9)
    row = Row(n=1, inner=Row(x=None), more=[Row(x=1), Row(x=2)], at=at, day=day)
    message = writer.serialize(row)
    assert reader.deserialize(message) == row
    assert writer.serialize((1, (None,), [(1,), (2,)], row.at, row.day)) == message
    record = fastavro.schemaless_reader(io.BytesIO(message), json.loads(text), None)
    assert record["more"] == [{"x": 1}, {"x": 2}]
    assert reader.get_produced_type() == Types.ROW_NAMED(
        ["n", "inner", "more", "at", "day"],
        [
            Types.LONG(),
            Types.ROW_NAMED(["x"], [Types.INT()]),
            Types.OBJECT_ARRAY(Types.ROW_NAMED(["x"], [Types.INT()])),
            Types.SQL_TIMESTAMP(),
            Types.SQL_DATE(),
        ],
    )
    with pytest.raises(UserError, match="could not read a message as Avro"):
        reader.deserialize(message[:3])
    with pytest.raises(UserError, match="could not write a record as Avro"):
        writer.serialize((1, 2))


# ---- Parquet and ORC by a row type --------------------------------------------------------------

ROW_TYPE = Types.ROW_NAMED(["Name", "n"], [Types.STRING(), Types.LONG()])


class TestOrcSink(SinkSuite):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path / "out"

    def make_sink(self):
        return bulk_sink(self.path, OrcBulkWriters.for_row_type(ROW_TYPE, {"orc.compress": "SNAPPY"}))

    def records(self):
        return [(f"r{i}", None if i % 3 else i) for i in range(50)]

    def read_back(self):
        found = []
        for file in files(self.path):
            reader = orc.ORCFile(file)
            assert reader.compression == "SNAPPY" and reader.schema.names == ["Name", "n"]
            found += [tuple(row.values()) for row in reader.read().to_pylist()]
        return found


def test_parquet_by_a_row_type_casts_and_finds_columns_whatever_their_case(tmp_path):
    table = pa.table({"other": [0.5], "NAME": ["a"], "n": pa.array([7], pa.int32())})
    pq.write_table(table, tmp_path / "f.parquet")
    loose = ParquetColumnarRowInputFormat(ROW_TYPE, is_case_sensitive=False)
    source = FileSource.for_bulk_file_format(loose, tmp_path).build()
    run = SourceRun(source).run_until_end()
    assert run.values == [{"Name": "a", "n": 7}] and source.produced_type() == ROW_TYPE
    assert run.outputs[0].column_batches[0].schema.field("n").type == pa.int64()
    strict = FileSource.for_bulk_file_format(ParquetColumnarRowInputFormat(ROW_TYPE), tmp_path).build()
    assert read(strict) == [{"Name": None, "n": 7}]
    with pytest.raises(InvalidJobError, match="parquet.page.size"):
        ParquetColumnarRowInputFormat(ROW_TYPE, {"parquet.page.size": "1"})


def test_a_column_of_the_row_type_that_a_parquet_file_lacks_is_null_with_one_warning_a_file(tmp_path, caplog):
    old = pa.table({"n": pa.array(range(5), pa.int32())})
    pq.write_table(old, tmp_path / "1.parquet", row_group_size=2)
    pq.write_table(pa.table({"Name": ["a"], "n": pa.array([7], pa.int32())}), tmp_path / "2.parquet")
    pq.write_table(pa.table({"other": [0.5]}), tmp_path / "3.parquet")
    expected = [{"Name": None, "n": n} for n in range(5)] + [{"Name": "a", "n": 7}, {"Name": None, "n": None}]
    source = FileSource.for_bulk_file_format(ParquetColumnarRowInputFormat(ROW_TYPE, batch_size=3), tmp_path).build()
    assert sorted(read(source), key=expected.index) == expected
    warned = [record.getMessage() for record in caplog.records if "read as null" in record.getMessage()]
    assert len(warned) == 2 and "['Name']" in warned[0] and "1.parquet" in warned[0]
    pq.write_table(pa.table({"n": ["x"]}), tmp_path / "4.parquet")
    with pytest.raises(InvalidJobError, match="n: int32"):
        read(source)


def test_instants_are_columns_of_nanoseconds_in_utc_also_within_lists(tmp_path):
    row_type = Types.ROW_NAMED(["at", "all"], [Types.INSTANT(), Types.LIST(Types.INSTANT())])
    rows = [(Instant(5, 7), [Instant(-1, 0), None]), (None, None), (dt.datetime(1970, 1, 1), [])]
    write(bulk_sink(tmp_path, ParquetBulkWriters.for_row_type(row_type)), rows)
    table = pq.read_table(files(tmp_path)[0])
    assert table.schema.field("at").type == pa.timestamp("ns", "UTC")
    assert table.column("at").cast(pa.int64()).to_pylist() == [5_000_000_007, None, 0]
    assert [v.value for v in table.column("all")[0].values.to_pylist() if v is not None] == [-1_000_000_000]


def test_parquet_and_orc_writers_know_flinks_settings_and_refuse_others(tmp_path):
    writers = ParquetBulkWriters.for_row_type(ROW_TYPE, {"parquet.compression": "GZIP"})
    write(bulk_sink(tmp_path / "out", writers), [("a", 1)])
    (file,) = files(tmp_path / "out")
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "GZIP"
    assert writers.get_row_type() == ROW_TYPE and OrcPart({"a": pa.int64()}).get_row_type().get_field_names() == ["a"]
    timed = Types.ROW_NAMED(["t"], [Types.SQL_TIME()])
    for make, why in [
        (lambda: OrcBulkWriters.for_row_type(timed), "time64"),
        (lambda: OrcPart({"a": pa.int64()}, compression="none such"), "(?i)none such"),
        (lambda: ParquetPart({"a": pa.int64()}, compression="none such"), "(?i)none such"),
    ]:
        with pytest.raises(InvalidJobError, match=why):
            make()
    for make in (
        lambda: ParquetBulkWriters.for_row_type(ROW_TYPE, {"parquet.page.size": "1"}),
        lambda: OrcBulkWriters.for_row_type(ROW_TYPE, {"orc.other": "1"}),
    ):
        with pytest.raises(InvalidJobError, match="known are"):
            make()
