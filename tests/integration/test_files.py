"""Connectors on a MiniCluster: real slots, real files, real sockets."""

import collections
import datetime
import decimal
import socket
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flinkish.common import WatermarkStrategy
from flinkish.connectors.files.file_sink import FileSink, ParquetSink
from flinkish.connectors.files.file_source import FileSource
from flinkish.connectors.socket_text import SocketTextSink
from flinkish.errors import FlinkishError, InvalidJobError, UserError
from flinkish.testing.mini_cluster import MiniCluster

NO_WATERMARKS = WatermarkStrategy.no_watermarks()


@pytest.fixture(scope="module")
def cluster():
    with MiniCluster(slots=2) as cluster:
        yield cluster


@pytest.fixture
def env(cluster):
    return cluster.get_execution_environment()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_words_of_text_files_are_counted(env, tmp_path):
    texts = ["to be or not to be\n" * 300, "that is the question\r\n" * 200, "be"]
    for index, text in enumerate(texts):
        (tmp_path / f"{index}.txt").write_bytes(text.encode())
    source = FileSource(tmp_path, split_bytes=500)
    counts = (
        env.from_source(source, NO_WATERMARKS, "lines")
        .flat_map(lambda line: [(word, 1) for word in line.split()])
        .key_by(lambda pair: pair[0])
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
    )
    with counts.execute_and_collect() as records:
        last = collections.Counter()
        for word, count in records:
            last[word] = max(last[word], count)
    assert last == collections.Counter(" ".join(texts).split())


VALUES = {
    "id": [1, 2, 3],
    "price": pa.array([decimal.Decimal("1.20"), None, decimal.Decimal("3.00")], pa.decimal128(9, 2)),
    "at": pa.array(
        [datetime.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc)] * 3,
        pa.timestamp("us", tz="UTC"),
    ),
    "tags": [["a", None], [], None],
    "inner": [{"x": 1}, None, {"x": None}],
    "raw": [b"\x00", b"", None],
}


def test_parquet_goes_through_as_columns_and_keeps_its_values(env, tmp_path):
    table = pa.table(VALUES)
    (tmp_path / "in").mkdir()
    for index in range(3):
        pq.write_table(table.slice(index, 1), tmp_path / "in" / f"{index}.parquet")
    source = FileSource(tmp_path / "in", format="parquet")
    env.from_source(source, NO_WATERMARKS, "in").sink_to(
        ParquetSink(tmp_path / "out", table.schema)
    )
    env.execute()
    assert pq.read_table(tmp_path / "out").sort_by("id").equals(table)


def test_python_functions_see_parquet_as_named_rows(env, tmp_path):
    pq.write_table(pa.table({"a": [1, None], "b": ["x", "y"]}), tmp_path / "f.parquet")
    rows = env.from_source(FileSource(tmp_path, format="parquet"), NO_WATERMARKS, "in").map(
        lambda row: (row.b, row["a"])
    )
    with rows.execute_and_collect() as records:
        assert sorted(records) == [("x", 1), ("y", None)]


def test_rows_are_written_to_parquet_by_all_subtasks(env, tmp_path):
    schema = {"n": pa.int64(), "square": pa.int64()}
    env.from_sequence(1, 1_000).map(lambda n: {"n": n, "square": n * n}).sink_to(
        ParquetSink(tmp_path / "out", schema)
    )
    env.execute()
    table = pq.read_table(tmp_path / "out").sort_by("n")
    assert table.column("square").to_pylist() == [n * n for n in range(1, 1_001)]
    assert len(names(tmp_path / "out")) == 2


def test_failed_job_leaves_the_folder_empty(env, tmp_path):
    def fail_late(n):
        if n == 900:
            raise ValueError("nine hundred")
        return (n,)

    env.from_sequence(1, 1_000).map(fail_late).sink_to(
        ParquetSink(tmp_path / "out", {"n": pa.int64()})
    )
    with pytest.raises(FlinkishError, match="nine hundred"):
        env.execute()
    assert names(tmp_path / "out") == []


def test_a_record_without_a_field_of_the_schema_fails_the_job_and_is_named(env, tmp_path, capfd):
    sink = ParquetSink(tmp_path / "out", {"n": pa.int64(), "square": pa.int64()})
    env.from_sequence(1, 5_000).map(
        lambda n: {"n": n} if n == 4_000 else {"n": n, "square": n * n}
    ).sink_to(sink)
    with pytest.raises(UserError) as caught:
        env.execute()
    error = caught.value
    assert 'operator "Sink: ParquetSink"' in error.where and "record {'n': 4000}" in error.where
    assert error.why.startswith("it has no field 'square'")
    assert names(tmp_path / "out") == [] and "Exception ignored" not in capfd.readouterr().err


def test_folders_and_files_may_have_any_name(env, tmp_path):
    in_folder, out = tmp_path / "in [1] #%20ü", tmp_path / "out *?\n%41"
    in_folder.mkdir()
    file_names = ["a b.txt", "a#b%20.txt", "[a].txt", "ü\n?.txt"]
    for name in file_names:
        (in_folder / name).write_text(name.replace("\n", " "))
    env.from_source(FileSource(in_folder), NO_WATERMARKS, "in").map(lambda line: {"line": line}).sink_to(
        ParquetSink(out, {"line": pa.string()})
    )
    env.execute()
    lines = env.from_source(FileSource(out, format="parquet"), NO_WATERMARKS, "out").map(lambda row: row.line)
    with lines.execute_and_collect() as records:
        assert sorted(records) == sorted(name.replace("\n", " ") for name in file_names)


def test_empty_result_can_be_read(env, tmp_path):
    env.from_sequence(1, 10).filter(lambda n: n > 10).map(lambda n: (n,)).sink_to(
        ParquetSink(tmp_path / "out", {"n": pa.int64()})
    )
    env.execute()
    table = pq.read_table(tmp_path / "out")
    assert (table.num_rows, table.schema.names) == (0, ["n"])


def test_text_sink_writes_lines(env, tmp_path):
    env.set_parallelism(1)
    env.from_collection(["a", "b", "c"]).sink_to(FileSink.for_row_format(tmp_path / "out").build())
    env.execute()
    (path,) = (tmp_path / "out").iterdir()
    assert path.read_text() == "a\nb\nc\n"


def test_missing_input_and_full_output_are_refused(cluster, env, tmp_path):
    env.from_source(FileSource(tmp_path / "missing"), NO_WATERMARKS, "in").print()
    with pytest.raises(FlinkishError, match="no such file"):
        env.execute()
    (tmp_path / "mine.txt").write_text("")
    other = cluster.get_execution_environment()
    other.from_collection([(1,)]).sink_to(ParquetSink(tmp_path, {"n": pa.int64()}))
    with pytest.raises(InvalidJobError, match="mine.txt"):
        other.execute()


def test_print_comes_out_in_the_driver(env, capsys):
    env.from_collection(["x", "y"]).print("letters")
    env.execute()
    # The collection has one subtask and so has what is chained to it, or two after a rebalance.
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split("> ")[1] for line in lines) == ["x", "y"]
    assert all(line.startswith("letters") for line in lines)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_list_that_a_function_goes_on_changing_arrives_as_it_was(env, tmp_path, parallelism):
    env.set_parallelism(parallelism)

    class Growing:
        def __init__(self):
            self.same = []

        def __call__(self, n):
            self.same.append(n)
            return self.same

    stream = env.from_collection([1, 2, 3]).map(Growing()).set_parallelism(1)
    with stream.execute_and_collect() as records:
        assert sorted(records) == [[1], [1, 2], [1, 2, 3]]


def test_lines_from_a_socket_to_a_socket(env):
    with socket.create_server(("127.0.0.1", 0)) as inputs, socket.create_server(
        ("127.0.0.1", 0)
    ) as outputs:
        received = []

        def serve():
            peer, _ = inputs.accept()
            peer.sendall(b"one\ntwo\n")
            peer.close()

        def receive():
            peer, _ = outputs.accept()
            with peer, peer.makefile() as lines:
                received.extend(lines.read().split())

        threads = [threading.Thread(target=serve), threading.Thread(target=receive)]
        for thread in threads:
            thread.start()
        env.socket_text_stream("127.0.0.1", inputs.getsockname()[1]).map(str.upper).sink_to(
            SocketTextSink("127.0.0.1", outputs.getsockname()[1])
        ).set_parallelism(1)
        env.execute()
        for thread in threads:
            thread.join(10)
    assert sorted(received) == ["ONE", "TWO"]


def test_a_source_function_runs_on_its_thread(env):
    def numbers(ctx):
        for n in range(5_000):
            ctx.collect(n)

    with env.add_source(numbers).map(lambda n: n + 1).execute_and_collect() as records:
        assert sorted(records) == list(range(1, 5_001))


def test_closing_the_iterator_cancels_an_endless_job(env):
    env.set_parallelism(1)

    def endless():
        n = 0
        while True:
            yield n
            n += 1

    with env.add_source(endless).execute_and_collect() as records:
        assert [next(records) for _ in range(10)] == list(range(10))
