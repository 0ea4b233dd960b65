import pyarrow as pa
import pytest
from deltalake import DeltaTable

from flinkish.connectors.delta.delta_sink import DeltaSink
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
    sink.create_committer().abort([])
    assert rows_of(tmp_path) == [1]
    assert len(list(tmp_path.glob("*.parquet"))) == 1


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
