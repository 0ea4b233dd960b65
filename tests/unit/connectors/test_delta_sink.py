import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from flinkish.connectors.delta.delta_sink import DeltaSink
from flinkish.connectors.spi import CommitId
from flinkish.errors import CorruptSnapshotError, ExternalError, InvalidJobError, UserError
from flinkish.testing.spi_fakes import SinkRun
from flinkish.testing.spi_suites import SinkSuite

SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.timestamp("ms", tz="UTC"))])


def rows_of(path):
    """n of each record, in order of the files."""
    if not DeltaTable.is_deltatable(str(path)):
        return []
    table = DeltaTable(str(path))
    return pa.table(table.to_pyarrow_table()).column("n").to_pylist()


class TestDeltaSink(SinkSuite):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path / "table"

    def make_sink(self):
        return DeltaSink(self.path, SCHEMA)

    def records(self):
        return [(i, i * 1_000) for i in range(20)]

    def read_back(self):
        return [(n, n * 1_000) for n in rows_of(self.path)]


def write(path, numbers, mode, job_id):
    run = SinkRun(DeltaSink(path, SCHEMA, mode=mode), job_id=job_id)
    run.write([(n, 0) for n in numbers])
    run.finish()
    return run


def test_append_and_overwrite_make_new_versions(tmp_path):
    write(tmp_path, [1], "error", "a" * 32)
    write(tmp_path, [2], "append", "b" * 32)
    assert sorted(rows_of(tmp_path)) == [1, 2]
    write(tmp_path, [3], "overwrite", "c" * 32)
    assert rows_of(tmp_path) == [3]
    assert DeltaTable(str(tmp_path)).version() == 2


def test_overwrite_with_an_empty_result_empties_the_table(tmp_path):
    write(tmp_path, [1], "error", "a" * 32)
    write(tmp_path, [], "overwrite", "b" * 32)
    assert rows_of(tmp_path) == []


def test_a_repeated_commit_is_known_by_its_transaction_version(tmp_path):
    """``deltalake`` alone would take the files twice and double the rows."""
    run = write(tmp_path, [1, 2], "error", "a" * 32)
    run._sink.create_committer().commit(run.committables)
    write(tmp_path, [3], "append", "b" * 32)
    run._sink.create_committer().commit(run.committables)
    assert sorted(rows_of(tmp_path)) == [1, 2, 3]


def test_several_commits_of_a_job_overwrite_once(tmp_path):
    """As checkpoints will do it."""
    write(tmp_path, [1], "error", "a" * 32)
    run = SinkRun(DeltaSink(tmp_path, SCHEMA, mode="overwrite"), job_id="b" * 32)
    committer = run._sink.create_committer()
    for n in (2, 3):
        run.write([(n, 0)])
        committer.commit(run.writers[0].prepare_commit())
    run.writers[0].close()
    assert sorted(rows_of(tmp_path)) == [2, 3]


def test_existing_tables_and_foreign_folders_are_refused_early(tmp_path):
    write(tmp_path / "table", [1], "error", "a" * 32)
    with pytest.raises(InvalidJobError, match="a Delta table already"):
        DeltaSink(tmp_path / "table", SCHEMA).validate()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.md").write_text("mine")
    with pytest.raises(InvalidJobError, match="no Delta table and holds notes.md"):
        DeltaSink(tmp_path / "other", SCHEMA, mode="overwrite").validate()
    with pytest.raises(InvalidJobError, match="modes are"):
        DeltaSink(tmp_path, SCHEMA, mode="replace")


def test_abort_removes_files_of_killed_slots_and_keeps_committed_ones(tmp_path):
    sink = DeltaSink(tmp_path, SCHEMA)
    run = SinkRun(sink)
    run.write([(1, 0)])
    sink.create_committer().commit(run.writers[0].prepare_commit())
    run.write([(2, 0)])  # its writer never closes
    sink.for_operator("job1" * 8, run.contexts[0].operator_id()).create_committer().remove_leftovers([])  # not its own
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    taken_over = DeltaSink(tmp_path, SCHEMA).for_operator("job0" * 8, run.contexts[0].operator_id())
    taken_over.create_committer().remove_leftovers([])  # another driver, the same job
    assert rows_of(tmp_path) == [1]
    assert len(list(tmp_path.glob("*.parquet"))) == 1


def test_one_sink_object_may_be_two_sinks_of_a_job(tmp_path):
    sink = DeltaSink(tmp_path, SCHEMA)
    runs = [SinkRun(sink), SinkRun(sink)]
    runs[1].contexts[0].operator_id = lambda: "f" * 32
    runs[1].writers = [sink.create_writer(runs[1].contexts[0])]
    for number, run in enumerate(runs):
        run.write([(number, 0)])
    committables = [run.writers[0].prepare_commit() for run in runs]
    sink.for_operator("job0" * 8, "e" * 32).create_committer().remove_leftovers([])  # of neither
    for files in committables:
        sink.create_committer().commit(files)
    assert sorted(rows_of(tmp_path)) == [0, 1]


@pytest.mark.parametrize("record", [{"n": 1}, {"n": 1, "at": 0, "more": 2}])
def test_a_record_with_other_fields_than_the_table_is_refused(tmp_path, record):
    run = SinkRun(DeltaSink(tmp_path, SCHEMA))
    run.write([record])
    with pytest.raises(UserError, match="'at'|'more'"):
        run.prepare()
    run.fail()
    assert list(tmp_path.glob("*.parquet")) == []


@pytest.mark.parametrize("name", ["a b", "ü€", "a#b?", "a[1]*", "50% off"])
def test_a_table_may_lie_in_a_folder_of_any_name(tmp_path, name):
    for folder, path in ((tmp_path / name, tmp_path / name), (tmp_path / "u" / name, (tmp_path / "u" / name).as_uri())):
        write(path, [1], "error", "a" * 32)
        write(path, [2], "append", "b" * 32)
        assert sorted(rows_of(folder)) == [1, 2]


@pytest.mark.parametrize("name", ["a%20b", "a\nb"])
def test_folders_in_which_deltalake_loses_its_log_are_refused(tmp_path, name):
    for path in (tmp_path / name, (tmp_path / name).as_uri()):
        with pytest.raises(InvalidJobError, match="deltalake does not take"):
            DeltaSink(path, SCHEMA)


def test_timestamps_are_stored_in_microseconds(tmp_path):
    run = SinkRun(DeltaSink(tmp_path, SCHEMA))
    columns = pa.RecordBatch.from_arrays(
        [pa.array([1]), pa.array([1_500], pa.timestamp("ms", tz="UTC"))], schema=SCHEMA
    )
    run.writers[0].write_columns(columns, None, 0)
    run.write([(2, 2_500)])  # an int counts in the unit of the schema that the user gave
    run.finish()
    table = DeltaTable(str(tmp_path)).to_pyarrow_table()
    assert table.schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert table.column("at").cast(pa.int64()).to_pylist() == [1_500_000, 2_500_000]


# ---- tables that are there ------------------------------------------------------------------------


def table_of(path, configuration=None, partition_by=None, **columns):
    write_deltalake(str(path), pa.table(columns), configuration=configuration, partition_by=partition_by)
    return DeltaTable(str(path))


@pytest.mark.parametrize(
    "schema, why",
    [
        ({"m": pa.int64()}, "it has no column 'm', only n"),
        ({"n": pa.string()}, "its column 'n' is int64, the sink's schema has string"),
        ({"n": pa.int32()}, "its column 'n' is int64"),
        ({"n": pa.int64(), "m": pa.int64()}, "it has no column 'm'"),
    ],
)
def test_what_does_not_fit_the_columns_of_a_table_is_refused_before_the_job_begins(tmp_path, schema, why):
    """``deltalake`` would add the files, and readers find nulls or cannot read the table."""
    table_of(tmp_path, n=[1])
    sink = DeltaSink(tmp_path, schema, mode="append")
    for validate in (sink.validate, sink.validate_restored):
        with pytest.raises(InvalidJobError, match=why):
            validate()
    DeltaSink(tmp_path, schema, mode="overwrite").validate()  # its columns go too


def test_columns_may_come_in_another_order_and_those_that_may_be_null_be_left_out(tmp_path):
    there = pa.schema([("n", pa.list_(pa.field("x", pa.uint32(), nullable=False))), ("s", pa.string()), ("t", pa.int64())])
    first = SinkRun(DeltaSink(tmp_path, there), job_id="a" * 32)
    first.write([([1 << 31], "a", 1)])
    first.finish()
    more = SinkRun(DeltaSink(tmp_path, {"s": pa.string(), "n": pa.list_(pa.int64())}, mode="append"), job_id="b" * 32)
    more.write([("b", [2])])
    more.finish()
    rows = DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist()
    assert sorted(rows, key=str) == [{"n": [1 << 31], "s": "a", "t": 1}, {"n": [2], "s": "b", "t": None}]


def test_tables_whose_files_say_more_or_other_than_their_columns_are_refused(tmp_path):
    table_of(tmp_path / "parts", n=[1], p=["a"], partition_by=["p"])
    table_of(tmp_path / "names", {"delta.columnMapping.mode": "name", "delta.minReaderVersion": "2"}, n=[1])
    table_of(tmp_path / "grows", {"delta.appendOnly": "true"}, n=[1])
    table_of(tmp_path / "checked", n=[1]).alter.add_constraint({"positive": "n > 0"})
    never_null = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    write_deltalake(str(tmp_path / "never"), pa.table({"n": [1]}, schema=never_null))
    n = {"n": pa.int64()}
    for name, schema, mode, why in [
        ("parts", {**n, "p": pa.string()}, "append", "it is partitioned by p"),
        ("parts", {**n, "p": pa.string()}, "overwrite", "it is partitioned by p"),
        ("names", n, "append", "delta.columnMapping.mode: name"),
        ("grows", n, "overwrite", "delta.appendOnly"),
        ("checked", n, "append", "constraints, which this sink does not check: positive"),
        ("never", n, "append", "never null, and the sink's schema allows it"),
        ("never", {"m": pa.int64()}, "append", "it has no column 'm'"),
    ]:
        with pytest.raises(InvalidJobError, match=why):
            DeltaSink(tmp_path / name, schema, mode=mode).validate()
    for name, schema in (("grows", n), ("never", never_null)):
        DeltaSink(tmp_path / name, schema, mode="append").validate()


@pytest.mark.parametrize(
    "type_", [pa.uint64(), pa.time64("us"), pa.duration("s"), pa.float16(), pa.list_(pa.uint64()), pa.decimal256(50, 2)]
)
def test_types_that_delta_does_not_have_are_refused_in_the_driver(tmp_path, type_):
    with pytest.raises(InvalidJobError, match="could not use the column 'c' in a Delta table"):
        DeltaSink(tmp_path, {"c": type_})


def test_columns_that_differ_in_case_and_none_at_all_are_refused(tmp_path):
    with pytest.raises(InvalidJobError, match="'A' and 'a'"):
        DeltaSink(tmp_path, {"A": pa.int64(), "a": pa.int64()})
    with pytest.raises(InvalidJobError, match="it has no columns"):
        DeltaSink(tmp_path, {})


def test_times_with_any_zone_and_inside_of_records_are_stored_in_microseconds(tmp_path):
    inside = pa.list_(pa.struct([("t", pa.timestamp("ns"))]))
    run = SinkRun(DeltaSink(tmp_path, {"at": pa.timestamp("ms", "Europe/Berlin"), "inside": inside}))
    run.write([(1_000, [{"t": 5_000}])])
    run.finish()
    table = DeltaTable(str(tmp_path)).to_pyarrow_table()
    assert table["at"].cast(pa.int64()).to_pylist() == [1_000_000] and table.schema.field("at").type.tz == "UTC"
    assert table["inside"].to_pylist()[0][0]["t"].microsecond == 5


# ---- with checkpoints ------------------------------------------------------------------------------


def test_one_sink_object_may_be_a_sink_of_two_jobs(tmp_path):
    """In a notebook, where the second job would write over the files of the first."""
    sink = DeltaSink(tmp_path, SCHEMA, mode="append")
    for number, job_id in enumerate(("a" * 32, "b" * 32)):
        run = SinkRun(sink, job_id=job_id)
        run.write([(number, 0)])
        run.finish()
    assert sorted(rows_of(tmp_path)) == [0, 1]


def test_a_table_or_a_file_that_is_gone_is_told_and_nothing_is_added(tmp_path):
    run = SinkRun(DeltaSink(tmp_path / "table", SCHEMA, mode="append"))
    committer = run._sink.create_committer()
    committer.commit_checkpoint(prepared(run, 1), commit_id(1))
    files = prepared(run, 2)
    (tmp_path / "table" / files[0].path).rename(tmp_path / "away")
    with pytest.raises(CorruptSnapshotError, match="is not there"):
        committer.commit_checkpoint(files, commit_id(2))
    assert rows_of(tmp_path / "table") == [1]
    (tmp_path / "table").rename(tmp_path / "moved")
    for repeat in (lambda: committer.commit_checkpoint(prepared(run, 3), commit_id(3)), committer.job_finished):
        with pytest.raises(ExternalError, match="the table is gone"):
            repeat()
    run.writers[0].close()
    assert not DeltaTable.is_deltatable(str(tmp_path / "table"))


def test_what_was_written_for_another_table_is_published_there(tmp_path):
    """A job that goes on from a savepoint may name another folder than before."""
    run = SinkRun(DeltaSink(tmp_path / "old", SCHEMA))
    files = prepared(run, 1)
    again = DeltaSink(tmp_path / "new", SCHEMA)
    again.validate_restored()
    committer = again.for_operator("j", "op").create_committer()
    committer.commit_checkpoint(files, commit_id(1))
    assert rows_of(tmp_path / "old") == [1] and rows_of(tmp_path / "new") == []
    unwanted = prepared(run, 2)
    committer.abort(unwanted)
    assert not (tmp_path / "old" / unwanted[0].path).exists()
    run.writers[0].close()


def test_a_table_that_another_sink_has_made_since_must_fit_too(tmp_path):
    run = SinkRun(DeltaSink(tmp_path, SCHEMA))
    table_of(tmp_path, m=["x"])
    with pytest.raises(InvalidJobError, match="it has no column 'n'"):
        run._sink.create_committer().commit_checkpoint(prepared(run, 1), commit_id(1))
    run.writers[0].close()


def commit_id(checkpoint_id, run_id="run"):
    return CommitId("a" * 32, run_id, checkpoint_id, "op")


def prepared(run, *numbers):
    """What a checkpoint finds after these records."""
    if numbers:
        run.write([(n, 0) for n in numbers])
    run.writers[0].flush(False)
    return run.writers[0].prepare_commit()


def test_replayed_checkpoints_are_skipped_up_to_the_version_that_the_table_has(tmp_path):
    """Case B18 (b) of the given semantics: the table has 30, then 29, 30 and 31 come."""
    run = SinkRun(DeltaSink(tmp_path, SCHEMA))
    committer = run._sink.create_committer()
    committables = {number: prepared(run, number) for number in (29, 30, 31)}
    for number in (29, 30, 29, 30, 31, 31):
        committer.commit_checkpoint(committables[number], commit_id(number))
    assert sorted(rows_of(tmp_path)) == [29, 30, 31]
    assert DeltaTable(str(tmp_path)).transaction_version(f"flinkish-{'a' * 32}-run-op") == 31
    run.writers[0].close()


def test_a_new_run_may_use_numbers_that_the_table_has_seen_of_another(tmp_path):
    run = SinkRun(DeltaSink(tmp_path, SCHEMA))
    committer = run._sink.create_committer()
    committer.commit_checkpoint(prepared(run, 1), commit_id(7, "first"))
    committer.commit_checkpoint(prepared(run, 2), commit_id(3, "restored by hand"))
    assert sorted(rows_of(tmp_path)) == [1, 2]
    run.writers[0].close()


def test_a_checkpoint_without_records_is_published_and_costs_no_transaction(tmp_path):
    """Case B18 (c)."""
    run = SinkRun(DeltaSink(tmp_path, SCHEMA))
    committer = run._sink.create_committer()
    committer.commit_checkpoint(prepared(run, 1), commit_id(1))
    assert prepared(run) == []
    committer.commit_checkpoint([], commit_id(2))
    assert DeltaTable(str(tmp_path)).version() == 0 and rows_of(tmp_path) == [1]


def test_overwrite_replaces_with_the_first_checkpoint_and_never_after_a_restore(tmp_path):
    write(tmp_path, [1], "error", "a" * 32)
    run = SinkRun(DeltaSink(tmp_path, SCHEMA, mode="overwrite"))
    committer = run._sink.create_committer()
    committer.commit_checkpoint(prepared(run, 2), commit_id(1))
    run._sink.create_committer().commit_checkpoint(prepared(run, 3), commit_id(2))
    assert sorted(rows_of(tmp_path)) == [2, 3]
    restored = DeltaSink(tmp_path, SCHEMA, mode="overwrite")
    again = SinkRun(restored)
    restored.validate_restored()
    restored.create_committer().commit_checkpoint(prepared(again, 4), commit_id(3, "restored"))
    restored.create_committer().job_finished()
    assert sorted(rows_of(tmp_path)) == [2, 3, 4]


def test_a_job_with_checkpoints_and_no_records_makes_an_empty_table(tmp_path):
    DeltaSink(tmp_path, SCHEMA).create_committer().job_finished()
    assert rows_of(tmp_path) == [] and DeltaTable(str(tmp_path)).version() == 0


def test_aborting_removes_what_was_prepared_and_leftovers_but_nothing_that_is_needed(tmp_path):
    run = SinkRun(DeltaSink(tmp_path, SCHEMA))
    committer = run._sink.create_committer()
    published, aborted, kept = prepared(run, 1), prepared(run, 2), prepared(run, 3)
    committer.commit_checkpoint(published, commit_id(1))
    committer.abort([*published, *aborted])
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    run.write([(4, 0)])  # its writer is killed
    committer.remove_leftovers(kept)
    assert {path.name for path in tmp_path.glob("*.parquet")} == {published[0].path, kept[0].path}
    committer.commit_checkpoint(kept, commit_id(2))
    assert sorted(rows_of(tmp_path)) == [1, 3]
