import pyarrow as pa
import pytest
from deltalake import DeltaTable

from flinkish.connectors.delta.delta_sink import DeltaSink
from flinkish.connectors.spi import CommitId
from flinkish.errors import InvalidJobError, UserError
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
    sink.create_committer().remove_leftovers([])
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


# ---- with checkpoints ------------------------------------------------------------------------------


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
