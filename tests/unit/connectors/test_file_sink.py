import collections
import dataclasses
import datetime
import decimal
import gc
import sys
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flinkish.common.serialization import Encoder
from flinkish.common.time import Instant
from flinkish.common.typeinfo import Types
from flinkish.common.types import Row
from flinkish.connectors.files.file_sink import FileSink, ParquetSink, PendingFile
from flinkish.connectors.files.file_sink_options import BucketAssigner, OutputFileConfig, RollingPolicy
from flinkish.connectors.files.part_writer import ParquetPart, TextPart
from flinkish.connectors.row_columns import RowsToColumns, fit_columns
from flinkish.connectors.spi import CommitId
from flinkish.datastream import StreamExecutionEnvironment
from flinkish.errors import CorruptSnapshotError, ExternalError, InvalidJobError, UserError
from flinkish.graph.job_graph_generator import create_job_graph
from flinkish.shell.job_runtime import JobRuntime
from flinkish.testing.spi_fakes import SinkRun
from flinkish.testing.spi_suites import SinkSuite

SCHEMA = pa.schema([("name", pa.string()), ("n", pa.int64()), ("x", pa.float64())])


class TestParquetSink(SinkSuite):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path / "out"

    def make_sink(self):
        return ParquetSink(self.path, SCHEMA)

    def records(self):
        return [(f"r{i}", i, None if i % 3 else i / 2) for i in range(50)]

    def read_back(self):
        if not list(self.path.glob("[!.]*")):
            return []
        table = pq.read_table(self.path)
        assert table.schema.equals(SCHEMA)
        return [tuple(row.values()) for row in table.to_pylist()]


class TestTextSink(SinkSuite):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path / "out"

    def make_sink(self):
        return FileSink.for_row_format(self.path).build()

    def records(self):
        return [f"zeile {i} ü" for i in range(20)]

    def read_back(self):
        files = sorted(self.path.glob("[!.]*"))
        return [line for file in files for line in file.read_text().splitlines()]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write(folder, records, job_id="job0" * 8, **options):
    run = SinkRun(ParquetSink(folder, SCHEMA, **options), job_id=job_id)
    run.write(records)
    run.finish()


def test_empty_result_is_a_folder_with_the_schema(tmp_path):
    write(tmp_path / "out", [])
    assert pq.read_table(tmp_path / "out").schema.equals(SCHEMA)
    assert names(tmp_path / "out") == ["part-job0job0-empty.parquet"]


def test_a_folder_that_is_not_empty_is_refused_before_the_job_starts(tmp_path):
    (tmp_path / "notes.md").write_text("mine")
    with pytest.raises(InvalidJobError) as caught:
        ParquetSink(tmp_path, SCHEMA).validate()
    assert "notes.md" in str(caught.value) and "overwrite" in str(caught.value)


def test_a_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "f").write_text("")
    with pytest.raises(InvalidJobError, match="it is a file"):
        ParquetSink(tmp_path / "f", SCHEMA).validate()


def test_overwrite_replaces_data_files_and_nothing_else(tmp_path):
    write(tmp_path, [("old", 1, 1.0)], job_id="a" * 32)
    (tmp_path / "notes.md").write_text("mine")
    write(tmp_path, [("new", 2, 2.0)], job_id="b" * 32, overwrite=True)
    assert names(tmp_path) == ["notes.md", "part-bbbbbbbb-01234567-00000-00000.parquet"]
    assert pq.read_table(tmp_path / "part-bbbbbbbb-01234567-00000-00000.parquet").to_pylist() == [
        {"name": "new", "n": 2, "x": 2.0}
    ]


def test_overwrite_by_a_job_that_fails_keeps_the_old_files(tmp_path):
    write(tmp_path, [("old", 1, 1.0)], job_id="a" * 32)
    run = SinkRun(ParquetSink(tmp_path, SCHEMA, overwrite=True), job_id="b" * 32)
    run.write([("new", 2, 2.0)])
    run.fail()
    assert names(tmp_path) == ["part-aaaaaaaa-01234567-00000-00000.parquet"]


def test_abort_also_removes_files_of_a_slot_that_was_killed(tmp_path):
    sink = ParquetSink(tmp_path, SCHEMA)
    run = SinkRun(sink)
    run.write([("a", 1, 1.0)])
    assert len(names(tmp_path)) == 1  # hidden; its writer never closes
    run._sink.create_committer().remove_leftovers([])
    assert names(tmp_path) == []


def test_who_takes_a_job_over_removes_what_the_driver_before_has_left_and_nothing_of_others(tmp_path):
    def run_of(job_id, operator_id):
        """A driver's; what it writes stays hidden, for its writer never closes."""
        run = SinkRun(ParquetSink(tmp_path, SCHEMA), job_id=job_id)
        run.contexts[0].operator_id = lambda: operator_id
        run.writers = [run._sink.create_writer(run.contexts[0])]
        run.write([("a", 1, 1.0)])
        return ParquetSink(tmp_path, SCHEMA).for_operator(job_id, operator_id).create_committer()

    mine, others_operator, others_job = run_of("a" * 32, "op"), run_of("a" * 32, "op2"), run_of("b" * 32, "op")
    run_of("a" * 32, "op")  # the new driver's own; no name is the same
    assert len(names(tmp_path)) == 4
    mine.remove_leftovers([])
    assert len(names(tmp_path)) == 2
    others_operator.remove_leftovers([])
    assert [name.startswith(".part-bbbbbbbb-") for name in names(tmp_path)] == [True]
    others_job.remove_leftovers([])
    assert names(tmp_path) == []


def test_abort_leaves_the_hidden_files_of_other_jobs(tmp_path):
    other = SinkRun(ParquetSink(tmp_path, SCHEMA))
    other.write([("a", 1, 1.0)])
    ParquetSink(tmp_path, SCHEMA).create_committer().abort([])
    assert len(names(tmp_path)) == 1
    other.finish()


def test_two_commits_of_one_writer_are_two_files(tmp_path):
    """As checkpoints will do it."""
    run = SinkRun(ParquetSink(tmp_path, SCHEMA, overwrite=True))
    committer = run._sink.create_committer()
    for i in range(2):
        run.write([(f"r{i}", i, None)])
        run.writers[0].flush(False)
        committer.commit(run.writers[0].prepare_commit())
    run.writers[0].close()
    assert pq.read_table(tmp_path).column("n").to_pylist() == [0, 1]


def test_column_batches_and_rows_keep_their_order(tmp_path):
    run = SinkRun(ParquetSink(tmp_path, SCHEMA))
    writer = run.writers[0]
    writer.write(("a", 1, None), None, 0)
    columns = pa.RecordBatch.from_pydict({"x": [1.5], "n": pa.array([2], pa.int32()), "name": ["b"]})
    writer.write_columns(columns, None, 0)
    writer.write(("c", 3, None), None, 0)
    run.finish()
    assert pq.read_table(tmp_path).column("n").to_pylist() == [1, 2, 3]


def test_column_batches_with_other_columns_are_refused(tmp_path):
    run = SinkRun(ParquetSink(tmp_path, SCHEMA))
    with pytest.raises(UserError, match="the schema has name, n, x"):
        run.writers[0].write_columns(pa.RecordBatch.from_pydict({"y": [1]}), None, 0)
    run.fail()


def test_many_rows_make_several_row_groups(tmp_path):
    rows = [("a", i, None) for i in range(300_000)]
    write(tmp_path, rows)
    (path,) = tmp_path.iterdir()
    metadata = pq.ParquetFile(path).metadata
    assert (metadata.num_rows, metadata.num_row_groups) == (300_000, 3)


def test_bulk_format_builder_takes_a_parquet_part(tmp_path):
    run = SinkRun(FileSink.for_bulk_format(tmp_path, ParquetPart(SCHEMA)).build())
    run.write([("a", 1, None)])
    run.finish()
    assert pq.read_table(tmp_path).num_rows == 1
    with pytest.raises(InvalidJobError, match="no bulk format"):
        FileSink.for_bulk_format(tmp_path, object())


@pytest.fixture
def ignored_exceptions(monkeypatch):
    """What Python would print as "Exception ignored in ...", as text."""
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: seen.append(repr(found.exc_value)))
    return seen


def test_a_parquet_sink_that_fails_leaves_no_file_and_no_word(tmp_path, ignored_exceptions):
    run = SinkRun(ParquetSink(tmp_path, SCHEMA))
    run.write([("a", 1, 1.0)] * 200_000)  # a row group is written, others wait
    run.fail()
    run = SinkRun(ParquetSink(tmp_path, SCHEMA))
    run.write([("a", 1, 1.0), {"nmae": "b"}])
    with pytest.raises(UserError, match="nmae"):
        run.prepare()
    run.fail()
    del run
    gc.collect()
    assert ignored_exceptions == [] and names(tmp_path) == []


@pytest.mark.parametrize("kind", [lambda path: ParquetSink(path, SCHEMA), lambda path: FileSink(path, TextPart())])
def test_a_full_disk_is_said_once(tmp_path, ignored_exceptions, kind):
    run = SinkRun(kind(tmp_path))
    (tmp_path / run.writers[0].next_name()).symlink_to("/dev/full")
    with pytest.raises(ExternalError, match="(?s)could not write .*inprogress.*No space left"):
        run.write([("a", 1, 1.0)] * 1_000)
        run.prepare()
    run.fail()
    del run
    gc.collect()
    assert ignored_exceptions == []


def test_a_record_that_is_no_line_of_text_is_named(tmp_path):
    for encoder, charset, record, why in (
        (lambda n: n, "utf-8", 5, "made a int of it"),
        (str, "ascii", "ü", "'ascii' codec can't encode"),
    ):
        run = SinkRun(FileSink(tmp_path, TextPart(encoder, charset)))
        with pytest.raises(UserError) as caught:
            run.write(["fine", record])
        run.fail()
        assert why in caught.value.why and caught.value.where == f"record {record!r}"


def test_str_is_an_encoder_of_any_record(tmp_path):
    """``str`` has an ``encode`` of its own, which is none of records."""
    assert [*written(tmp_path, FileSink.for_row_format(tmp_path, str), [1, None]).values()] == ["1\nNone\n"]


@pytest.mark.parametrize("name", ["a b", "ü€", "a#b", "a%20b", "a\nb", "a[1]*?"])
def test_a_folder_may_have_any_name(tmp_path, name):
    for path in (tmp_path / name, (tmp_path / "by-uri" / name).as_uri()):
        write(path, [("a", 1, 1.0)])
    for folder in (tmp_path / name, tmp_path / "by-uri" / name):
        assert names(folder) == ["part-job0job0-01234567-00000-00000.parquet"]


# ---- rows to columns ----------------------------------------------------------------------------


class Named(NamedTuple):
    n: int
    name: str
    x: float


@dataclasses.dataclass
class Data:
    name: str
    x: float
    n: int


Collected = collections.namedtuple("Collected", "x n name")


@pytest.mark.parametrize(
    "record",
    [
        ("a", 1, 0.5),
        ["a", 1, 0.5],
        Row("a", 1, 0.5),
        Row(x=0.5, n=1, name="a"),
        {"x": 0.5, "name": "a", "n": 1},
        Named(1, "a", 0.5),
        Collected(0.5, 1, "a"),
        Data("a", 0.5, 1),
    ],
    ids=lambda record: type(record).__name__,
)
def test_each_kind_of_record_finds_its_columns(record):
    expected = [{"name": "a", "n": 1, "x": 0.5}]
    assert RowsToColumns(SCHEMA).convert([record]).to_pylist() == expected
    assert RowsToColumns(SCHEMA).convert([record, ("b", 2, None)]).to_pylist()[:1] == expected


def test_instants_are_written_as_times():
    schema = pa.schema([("at", pa.timestamp("ns", "UTC")), ("all", pa.list_(pa.timestamp("us")))])
    at = datetime.datetime(1970, 1, 1, 0, 0, 2)
    (row,) = RowsToColumns(schema).convert([(Instant(1, 5), [Instant(1, 5_000), at])]).to_pylist()
    assert row["at"].nanosecond == 5 and row["all"] == [datetime.datetime(1970, 1, 1, 0, 0, 1, 5), at]
    with pytest.raises(UserError, match="not a whole number of us"):
        RowsToColumns(schema).convert([(None, [Instant(1, 5)])])


@dataclasses.dataclass
class Wider(Data):
    more: int = 0


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"name": "a", "n": 1}, "it has no field 'x'"),
        ({"nmae": "a", "n": 1, "x": 0.5}, "the schema has no field 'nmae'"),
        ({"name": "a", "n": 1, "x": 0.5, "y": 1}, "the schema has no field 'y'"),
        (Row(name="a", n=1), "it has no field 'x'"),
        (Row(name="a", n=1, x=0.5, y=1), "the schema has no field 'y'"),
        (collections.namedtuple("Short", "name n")("a", 1), "it has no field 'x'"),
        (Wider("a", 0.5, 1), "the schema has no field 'more'"),
        (Row("a", 1), "it has 2 fields, the schema has 3"),
        (["a", 1, 0.5, 2], "it has 4 fields, the schema has 3"),
    ],
    ids=repr,
)
def test_a_record_has_the_fields_of_the_schema_and_is_named_when_it_has_others(record, reason):
    with pytest.raises(UserError) as caught:
        RowsToColumns(SCHEMA).convert([("fine", 1, None), record])
    assert reason in caught.value.why and caught.value.where == f"record {record!r}" and caught.value.do


STRUCTS = pa.schema(
    [
        ("at", pa.struct([pa.field("street", pa.string(), nullable=False), ("number", pa.int64())])),
        ("tags", pa.list_(pa.struct([("k", pa.string())]))),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


@pytest.mark.parametrize(
    "at", [("a", None), ["a", None], Row("a", None), Row(number=None, street="a"), {"number": None, "street": "a"}]
)
def test_structs_inside_of_a_record_are_taken_as_records_are(at):
    row = (at, [{"k": "x"}, None, ("y",)], {"one": 1})
    assert RowsToColumns(STRUCTS).convert([row, (None, None, None)]).to_pylist() == [
        {"at": {"street": "a", "number": None}, "tags": [{"k": "x"}, None, {"k": "y"}], "counts": [("one", 1)]},
        {"at": None, "tags": None, "counts": None},
    ]


@pytest.mark.parametrize(
    ("change", "what", "why"),
    [
        ({"at": {"street": "a"}}, "'at'", "it has no field 'number'"),
        ({"at": {"street": "a", "number": 1, "zip": 2}}, "'at'", "the schema has no field 'zip'"),
        ({"at": ("a",)}, "'at'", "it has 1 fields, the schema has 2"),
        ({"at": {"street": None, "number": 1}}, "'at.street'", "never null"),
        ({"at": {"street": "a", "number": 1.5}}, "'at'", "int64"),
        ({"tags": [{"k": "x"}, {"K": "y"}]}, "'tags'", "the schema has no field 'K'"),
        ({"counts": {"one": 1.5}}, "'counts'", "fraction"),
    ],
    ids=repr,
)
def test_structs_that_do_not_fit_are_named_with_the_record(change, what, why):
    record = {"at": ("a", 1), "tags": [], "counts": {}, **change}
    with pytest.raises(UserError) as caught:
        RowsToColumns(STRUCTS).convert([{"at": ("b", 2), "tags": None, "counts": None}, record])
    error = caught.value
    assert what in error.what and why in error.why and error.where == f"record {record!r}"


def test_null_in_a_column_that_is_never_null_is_refused():
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    for given in (schema, pa.schema([("a", pa.int32())])):
        columns = pa.RecordBatch.from_arrays([pa.array([1, None], given.field(0).type)], schema=given)
        with pytest.raises(UserError, match="(?s)null to the field 'a'.*1 of 2 rows"):
            fit_columns(columns, schema)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([("a", 1, 1.0), ("b", 1)], "it has 2 fields, the schema has 3"),
        ([("a", 1, 1.0), ("b", "x", 1.0)], "to the field 'n'"),
        ([("a", 1.5, 1.0)], "to the field 'n'"),
        ([(1, 1, 1.0)], "to the field 'name'"),
        ([object()], "a object has no fields"),
    ],
)
def test_records_that_do_not_fit_are_named(rows, reason):
    with pytest.raises(UserError) as caught:
        RowsToColumns(SCHEMA).convert(rows)
    assert reason in str(caught.value) and "record" in str(caught.value)
    assert "the schema" in caught.value.do or "give tuples" in caught.value.do


def test_null_in_a_field_that_is_never_null_is_refused():
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    with pytest.raises(UserError, match="never null"):
        RowsToColumns(schema).convert([(1,), (None,)])


def test_values_keep_their_type():
    schema = pa.schema(
        [
            ("at", pa.timestamp("us", tz="UTC")),
            ("price", pa.decimal128(10, 2)),
            ("tags", pa.list_(pa.string())),
            ("inner", pa.struct([("a", pa.int64())])),
            ("raw", pa.binary()),
        ]
    )
    record = (
        datetime.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc),
        decimal.Decimal("1.20"),
        ["x", None],
        {"a": 1},
        b"\x00",
    )
    assert tuple(RowsToColumns(schema).convert([record]).to_pylist()[0].values()) == record


def test_schemas_are_checked_in_the_driver(tmp_path):
    with pytest.raises(InvalidJobError, match="same name"):
        ParquetSink(tmp_path, pa.schema([("a", pa.int64()), ("a", pa.string())]))
    with pytest.raises(InvalidJobError, match="could not use the schema"):
        ParquetSink(tmp_path, "a int")
    assert ParquetSink(tmp_path, {"a": pa.int64()}).part_format.schema.names == ["a"]


# ---- PyFlink's options --------------------------------------------------------------------------


class Bracketed(Encoder):
    def encode(self, element, stream):
        stream.write(f"<{element}>".encode())


def written(folder, builder, records, record_type=None):
    sink = builder.build()
    run = SinkRun(sink if record_type is None else sink.with_record_type(record_type))
    for record in records:
        run.write([record])
    run.finish()
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def test_an_encoder_writes_its_own_bytes_and_the_names_are_as_configured(tmp_path):
    config = OutputFileConfig.builder().with_part_prefix("rows").with_part_suffix(".txt").build()
    builder = FileSink.for_row_format(tmp_path, Bracketed()).with_output_file_config(config)
    assert written(tmp_path, builder, [1, 2]) == {"rows-job0job0-01234567-00000-00000.txt": "<1><2>"}


def test_the_simple_encoder_writes_flinks_text_of_a_declared_type_and_str_without_one(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    record = ("a", True)
    pair = Types.TUPLE([Types.STRING(), Types.BOOLEAN()])
    encoder = Encoder.simple_string_encoder()
    assert [*written(one, FileSink.for_row_format(one, encoder), [record], pair).values()] == ["(a,true)\n"]
    assert [*written(two, FileSink.for_row_format(two, encoder), [record]).values()] == ["('a', True)\n"]


def test_a_file_that_has_its_size_is_completed_and_another_begun(tmp_path):
    builder = FileSink.for_row_format(tmp_path).with_rolling_policy(
        RollingPolicy.default_rolling_policy(part_size=4)
    )
    assert [*written(tmp_path, builder, ["a", "b", "c"]).values()] == ["a\nb\n", "c\n"]


def test_overwrite_removes_files_with_the_configured_prefix(tmp_path):
    (tmp_path / "rows-old").write_text("old\n")
    (tmp_path / "notes.md").write_text("mine")
    builder = FileSink.for_row_format(tmp_path).with_output_file_config(OutputFileConfig("rows"))
    assert [*written(tmp_path, builder.overwrite(), ["new"])] == [
        "notes.md", "rows-job0job0-01234567-00000-00000",
    ]  # fmt: skip


def test_names_that_hide_a_file_or_leave_the_folder_are_refused():
    for names in ({"part_prefix": ".x"}, {"part_prefix": ""}, {"part_prefix": "../x"}, {"part_suffix": "/x"}):
        with pytest.raises(InvalidJobError, match="part"):
            OutputFileConfig(**names)


def test_folders_by_date_are_refused_and_the_base_path_is_taken(tmp_path):
    with pytest.raises(InvalidJobError, match="base path"):
        BucketAssigner.date_time_bucket_assigner()
    builder = FileSink.for_row_format(tmp_path).with_bucket_check_interval(1_000)
    builder.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
    builder.with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
    assert len(written(tmp_path, builder, ["a"])) == 1


# ---- with checkpoints ------------------------------------------------------------------------------


def prepared(run, *numbers):
    """What a checkpoint finds after these records."""
    if numbers:
        run.write([(str(n), n, None) for n in numbers])
    run.writers[0].flush(False)
    return run.writers[0].prepare_commit()


COMMIT = CommitId("job0" * 8, "run", 1, "op")


def commit(sink, committables, checkpoint_id=1):
    sink.create_committer().commit_checkpoint(committables, replace(COMMIT, checkpoint_id=checkpoint_id))


def numbers_in(folder):
    return sorted(pq.read_table(folder).column("n").to_pylist())


def test_files_are_seen_with_their_checkpoint_and_a_repeated_commit_changes_nothing(tmp_path):
    sink = ParquetSink(tmp_path, SCHEMA)
    run = SinkRun(sink)
    first, second = prepared(run, 1, 2), prepared(run, 3)
    assert [name for name in names(tmp_path) if name.startswith("part")] == []
    commit(sink, first)
    assert numbers_in(tmp_path) == [1, 2]
    for committables in (first, second, first, second):
        commit(sink, committables)
    assert numbers_in(tmp_path) == [1, 2, 3]
    assert prepared(run) == []  # a checkpoint without records


def test_a_later_attempt_never_takes_the_names_of_an_earlier_one(tmp_path):
    sink = ParquetSink(tmp_path, SCHEMA)
    run = SinkRun(sink)
    commit(sink, prepared(run, 1))
    for context in run.contexts:
        context._attempt = 1
    run.writers = [sink.create_writer(context) for context in run.contexts]
    commit(sink, prepared(run, 2), 2)
    assert numbers_in(tmp_path) == [1, 2]


def test_a_file_that_is_lost_is_no_silent_success(tmp_path):
    """Case B18 (d) of the given semantics."""
    sink = ParquetSink(tmp_path, SCHEMA)
    committables = prepared(SinkRun(sink), 1)
    (tmp_path / committables[0].hidden_name).unlink()
    with pytest.raises(CorruptSnapshotError, match="could not publish 1 records"):
        commit(sink, committables)


def restored(file):
    """As the driver of another run finds it."""
    return replace(file, hidden_name=file.hidden_name.replace(file.hidden_name.split(".")[2], "0" * 12))


def test_what_was_published_before_a_restore_may_have_been_taken_away(tmp_path, caplog):
    sink = ParquetSink(tmp_path, SCHEMA)
    (file,) = map(restored, prepared(SinkRun(sink), 1))
    commit(sink, [file])
    assert len(caplog.records) == 1 and f"name={file.name}" in caplog.text and "records=1" in caplog.text


def test_a_commit_that_is_repeated_by_its_driver_misses_no_file_that_was_taken_away(tmp_path):
    sink = ParquetSink(tmp_path, SCHEMA)
    run = SinkRun(sink)
    first, second = prepared(run, 1) + prepared(run, 2)
    committer = sink.create_committer()
    (tmp_path / second.hidden_name).rename(tmp_path / "away")
    with pytest.raises(CorruptSnapshotError, match="could not publish 1 records"):
        committer.commit_checkpoint([first, second], COMMIT)
    (tmp_path / first.name).unlink()
    (tmp_path / "away").rename(tmp_path / second.hidden_name)
    committer.commit_checkpoint([first, second], COMMIT)
    assert names(tmp_path) == [second.name]


def test_a_sink_with_another_folder_publishes_what_was_left_in_the_old_one(tmp_path):
    run = SinkRun(ParquetSink(tmp_path / "old", SCHEMA))
    (file,), (aborted,) = prepared(run, 1), prepared(run, 2)
    sink = ParquetSink(tmp_path / "new", SCHEMA)
    sink.validate_restored()
    sink.create_committer().abort([aborted])
    commit(sink, [file])
    assert names(tmp_path / "old") == [file.name] and names(tmp_path / "new") == []


def test_pending_files_of_earlier_versions_lie_in_the_sinks_folder(tmp_path):
    sink = ParquetSink(tmp_path, SCHEMA)
    (file,) = prepared(SinkRun(sink), 1)
    state = {key: value for key, value in vars(file).items() if key != "folder"}
    old = object.__new__(PendingFile)
    old.__dict__.update(state)
    commit(sink, [old])
    assert names(tmp_path) == [file.name]


def test_two_sinks_of_a_job_may_have_one_folder(tmp_path):
    sink = ParquetSink(tmp_path, SCHEMA)
    runs = [SinkRun(sink), SinkRun(sink)]
    runs[1].contexts[0].operator_id = lambda: "f" * 32
    runs[1].writers = [sink.create_writer(runs[1].contexts[0])]
    for number, run in enumerate(runs):
        commit(sink, prepared(run, number))
    assert numbers_in(tmp_path) == [0, 1]


def test_a_file_of_another_origin_is_never_replaced(tmp_path):
    sink = ParquetSink(tmp_path, SCHEMA)
    (file,) = prepared(SinkRun(sink), 1)
    content = (tmp_path / file.hidden_name).read_bytes()
    for other in (b"other", b"x" * len(content)):
        (tmp_path / file.name).write_bytes(other)
        with pytest.raises(ExternalError, match="could not publish 1 records"):
            commit(sink, [file])
        assert (tmp_path / file.name).read_bytes() == other
    (tmp_path / file.name).write_bytes(content)  # a store that copies was interrupted before it deleted
    commit(sink, [file])
    assert names(tmp_path) == [file.name]


def test_sinks_that_would_remove_each_others_files_are_refused_before_the_job_starts(tmp_path):
    env = StreamExecutionEnvironment.get_execution_environment()
    for prefix, overwrite in (("a", True), ("b", False)):
        names_ = OutputFileConfig(prefix, "")
        builder = FileSink.for_row_format(f"{tmp_path}/" if overwrite else f"file://{tmp_path}")
        sink = builder.with_output_file_config(names_).overwrite(overwrite).build()
        env.from_collection(["r"]).sink_to(sink).name(f"sink {prefix}")
    graph = create_job_graph(env.get_stream_graph())
    with pytest.raises(InvalidJobError) as caught:
        JobRuntime(graph)
    assert "2 sinks" in caught.value.why and '"sink a", "sink b"' in caught.value.where.replace("Sink: ", "")


def test_a_restored_job_goes_on_in_its_folder_and_overwrites_nothing(tmp_path):
    write(tmp_path, [("1", 1, None)], job_id="a" * 32)
    sink = ParquetSink(tmp_path, SCHEMA, overwrite=True)
    run = SinkRun(sink, job_id="b" * 32)
    sink.validate_restored()  # in place of validate
    commit(sink, prepared(run, 2))
    assert numbers_in(tmp_path) == [1, 2]


def test_overwrite_replaces_with_the_first_checkpoint_only(tmp_path):
    write(tmp_path, [("1", 1, None)], job_id="a" * 32)
    sink = ParquetSink(tmp_path, SCHEMA, overwrite=True)
    run = SinkRun(sink, job_id="b" * 32)
    commit(sink, prepared(run, 2))
    assert numbers_in(tmp_path) == [2]
    commit(sink, prepared(run, 3), 2)
    sink.create_committer().job_finished()
    assert numbers_in(tmp_path) == [2, 3]


def test_a_job_with_checkpoints_and_no_records_leaves_a_file_without_rows(tmp_path):
    sink = ParquetSink(tmp_path, SCHEMA)
    sink.create_committer().job_finished()
    assert numbers_in(tmp_path) == [] and len(names(tmp_path)) == 1


def test_aborting_removes_what_was_prepared_and_leftovers_but_nothing_that_is_needed(tmp_path):
    sink = ParquetSink(tmp_path, SCHEMA)
    run = SinkRun(sink)
    aborted, kept = prepared(run, 1), prepared(run, 2)
    committer = run._sink.create_committer()
    committer.abort(aborted)
    run.write([("3", 3, None)])  # its writer is killed
    committer.remove_leftovers(kept)
    assert names(tmp_path) == [kept[0].hidden_name]
    commit(sink, kept)
    assert numbers_in(tmp_path) == [2]
