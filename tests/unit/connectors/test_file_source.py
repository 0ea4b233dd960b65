import bz2
import datetime
import errno
import gzip
import os
import random
import time

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkish.common.typeinfo import Types
from flinkish.connectors.files import AvroFormat, CsvFormat, formats
from flinkish.connectors.files.file_source import (
    FileEnumeratorProvider,
    FileSource,
    FileSplitAssignerProvider,
)
from flinkish.connectors.files.file_system import find_files, uri_of
from flinkish.connectors.files.formats import ParquetFormat, StreamFormat, TextLineFormat
from flinkish.errors import ExternalError, InvalidJobError, UserError
from flinkish.testing.spi_fakes import SourceRun
from flinkish.testing.spi_suites import BoundedSourceSuite


def read(source, parallelism=1, room=1_000):
    run = SourceRun(source, parallelism).run_until_end(room)
    run.close()
    return run.values


# ---- text ---------------------------------------------------------------------------------------


class TestTextFiles(BoundedSourceSuite):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path
        self.lines = [f"line {i} " + "x" * (i % 37) for i in range(500)]
        (tmp_path / "a.txt").write_text("\n".join(self.lines[:300]) + "\n")
        (tmp_path / "b.txt").write_text("\n".join(self.lines[300:]))
        (tmp_path / "empty.txt").write_text("")
        (tmp_path / "_hidden").write_text("not read\n")

    def make_source(self):
        return FileSource(self.path, split_bytes=997)

    def expected(self):
        return self.lines


class TestGzippedText(BoundedSourceSuite):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path
        self.lines = [f"line {i}" for i in range(200)]
        for part in range(2):
            with gzip.open(tmp_path / f"{part}.txt.gz", "wt") as stream:
                stream.writelines(f"{line}\n" for line in self.lines[part::2])

    def make_source(self):
        return FileSource(self.path, split_bytes=10)

    def expected(self):
        return self.lines


@given(
    lines=st.lists(st.text(st.sampled_from("aé€😀 \r"), max_size=6), max_size=12),
    ends=st.data(),
    split_bytes=st.integers(1, 40),
    room=st.integers(1, 5),
)
def test_each_line_is_read_by_the_split_in_which_it_starts(
    tmp_path_factory, lines, ends, split_bytes, room
):
    """Any cut of any file gives what Python's own reading of lines gives."""
    text = "".join(line + ends.draw(st.sampled_from(["\n", "\r\n"])) for line in lines)
    if ends.draw(st.booleans()):
        text += "last"
    expected = [line[:-1] if line.endswith("\r") else line for line in text.split("\n")]
    if expected[-1] == "":
        expected.pop()
    path = tmp_path_factory.mktemp("lines") / "file.txt"
    path.write_bytes(text.encode())
    assert read(FileSource(path, split_bytes=split_bytes), room=room) == expected


class Given:
    """The output of a reader."""

    def __init__(self):
        self.records = []

    def collect_batch(self, batch):
        self.records += batch

    def collect_columns(self, batch, times):
        self.records += batch.to_pylist()


def opened(file_format, split):
    reader = file_format.create_reader(None)
    reader._current = split
    reader.open_split(split)
    return reader


def rest_of(file_format, split):
    reader, given = opened(file_format, split), Given()
    while reader.read(given, 1_000):
        pass
    reader.close_split()
    return given.records


@pytest.mark.parametrize("seed", range(12))
def test_a_reader_goes_on_from_any_place_of_a_file(tmp_path, monkeypatch, seed):
    """Also when it goes on from where it has gone on before, and blocks begin elsewhere than at the first time."""
    rng = random.Random(seed)
    path = tmp_path / ("f.txt.gz" if seed % 2 else "f.txt")
    lines = rng.choices(["", "a", "é\r", "b" * 9, "c" * 40], k=rng.randint(0, 14))
    content = ("\n".join(lines) + rng.choice(["", "\n", "\r\n"])).encode()
    path.write_bytes(gzip.compress(content) if seed % 2 else content)
    text = TextLineFormat(split_bytes=rng.randint(20, 80))
    monkeypatch.setattr(formats, "_BLOCK_BYTES", rng.randint(5, 30))
    for split in text.find_splits(find_files([str(path)]), 1):
        expected, given = rest_of(text, split), Given()
        reader = opened(text, split)
        while reader.read(given, rng.randint(1, 3)):
            position = reader.position()
            assert given.records + rest_of(text, position) == expected
            if rng.random() < 0.5:
                reader.close_split()
                reader = opened(text, position)
        reader.close_split()
        assert given.records == expected


def test_positions_of_earlier_versions_skip_more_lines_than_a_block_has(tmp_path):
    """They said how many lines of a block were given whose size depended on where reading had begun."""
    lines = [f"{i}" for i in range(60_000)]
    (tmp_path / "f").write_text("\n".join(lines))
    split = formats.FileSplit(str(tmp_path / "f"), 0, -1, 4, 50_000)  # "0\n1\n" came before
    assert rest_of(TextLineFormat(), split) == lines[50_002:]


def test_a_compressed_file_that_is_shorter_than_what_was_read_is_refused(tmp_path):
    path = tmp_path / "f.gz"
    path.write_bytes(gzip.compress(b"a\nb\n"))
    for position, skip, why in ((9, 0, "read to byte 9, now it has 4"), (2, 3, "2 of the lines")):
        with pytest.raises(UserError) as caught:
            opened(TextLineFormat(), formats.FileSplit(str(path), 0, -1, position, skip))
        assert why in caught.value.why


def test_lines_longer_than_a_block_are_whole(tmp_path):
    lines = ["a" * 3_000_000, "b", "c" * 2_500_000, "d"]
    (tmp_path / "f").write_text("\n".join(lines))
    assert read(FileSource(tmp_path / "f", split_bytes=1_000_000)) == lines


def test_one_reader_keeps_the_order_of_a_file_and_of_sorted_names(tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).write_text("".join(f"{name}{i}\n" for i in range(100)))
    expected = [f"{name}{i}" for name in "ab" for i in range(100)]
    assert read(FileSource(tmp_path, split_bytes=50)) == expected


def test_a_small_file_is_still_shared_by_readers_when_it_has_a_megabyte_for_each(tmp_path):
    path = tmp_path / "f"
    path.write_text(("x" * 99 + "\n") * 40_000)
    run = SourceRun(FileSource(path), 3).run_until_end()
    counts = [len(output.values) for output in run.outputs]
    assert sum(counts) == 40_000 and min(counts) > 10_000


def test_other_charsets_and_broken_bytes(tmp_path):
    (tmp_path / "latin").write_bytes("gr\u00fcn\n".encode("latin-1"))
    assert read(FileSource(tmp_path / "latin", charset_name="ISO-8859-1")) == ["gr\u00fcn"]
    with pytest.raises(UserError) as caught:
        read(FileSource(tmp_path / "latin"))
    assert "byte 2" in str(caught.value) and "latin" in str(caught.value)
    assert read(FileSource(tmp_path / "latin", errors="replace")) == ["gr\ufffdn"]


def test_a_byte_order_mark_is_kept_as_in_flink_or_dropped_where_asked_for(tmp_path):
    text = "\ufeffa\n" + "b\n" * 50 + "\ufeffc"
    (tmp_path / "f").write_bytes(text.encode())
    assert read(FileSource(tmp_path, split_bytes=16)) == text.split("\n")
    without = read(FileSource(tmp_path, split_bytes=16, charset_name="utf-8-sig"))
    assert without == text[1:].split("\n")  # only the one at the start is a mark


def test_a_line_of_many_blocks_is_not_copied_for_each_of_them(tmp_path):
    (tmp_path / "f").write_bytes(b"x" * 48_000_000 + b"\ny")
    start = time.process_time()
    assert list(map(len, read(FileSource(tmp_path)))) == [48_000_000, 1]
    assert time.process_time() - start < 4  # 9 s when each block copied the line so far


@pytest.mark.parametrize("name", ["a.gz", "a.GZ", "a.gzip"])
def test_gzip_is_known_by_the_ending_and_may_have_several_parts_or_none(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(b"a\nb") + gzip.compress(b"c\n"))
    (tmp_path / f"empty{name}").write_bytes(b"")
    assert read(FileSource(tmp_path)) == ["a", "bc"]


@pytest.mark.parametrize("name", ["a.xz", "a.deflate"])
def test_a_compression_that_flink_knows_and_we_do_not_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"a\n")
    with pytest.raises(InvalidJobError, match=f"{name} as text(?s:.*)cannot decompress"):
        read(FileSource(tmp_path, charset_name="latin-1"))


NAMES = ["a b.txt", "ü€.txt", "a#b.txt", "a%20b.txt", "a\nb.txt", "a[1].txt", "a?b.txt", "a*b.txt", "a:b.txt"]


def test_files_may_have_any_name(tmp_path):
    folder = tmp_path / "any [name] #1"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text(f"{name!r}\n")
    expected = sorted(map(repr, NAMES))
    for path in (folder, folder.as_uri()):
        assert sorted(read(FileSource(path))) == expected
    for name in NAMES:
        assert read(FileSource(folder / name)) == read(FileSource((folder / name).as_uri())) == [repr(name)]
    assert len(read(FileSource(f"{tmp_path}/any*/a?b.txt"))) == 6


def test_found_files_of_a_store_are_opened_by_its_uri():
    """Unescaped, or without the bucket and the options, another process cannot open them."""
    for uri, path, expected in (
        ("s3://b/in?region=eu", "b/in/a b#1%.txt", "s3://b/in/a%20b%231%25.txt?region=eu"),
        ("gs://b", "b/ü.txt", "gs://b/%C3%BC.txt"),
        ("hdfs://host:90/in", "/in/a.txt", "hdfs://host:90/in/a.txt"),
        ("file:///in", "/in/a b.txt", "/in/a b.txt"),
        ("/in#1", "/in#1/a b.txt", "/in#1/a b.txt"),
    ):
        assert uri_of(path, uri) == expected


def test_links_that_lead_back_are_not_followed_and_dead_ones_are_left_out(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "f").write_text("x\n")
    (tmp_path / "deep" / "up").symlink_to(tmp_path)
    (tmp_path / "deep" / "same").symlink_to(tmp_path / "deep")
    (tmp_path / "itself").symlink_to(tmp_path / "itself")
    (tmp_path / "dead").symlink_to(tmp_path / "nothing")
    (tmp_path / "again").symlink_to(tmp_path / "deep")  # a link to a folder beside it counts
    assert read(FileSource(tmp_path)) == read(FileSource(f"{tmp_path}/**/f")) == ["x", "x"]


def test_names_that_pyarrow_cannot_open_are_refused(tmp_path):
    name = os.fsencode(tmp_path) + b"/\xff.txt"
    with open(name, "w") as stream:
        stream.write("x\n")
    with pytest.raises(ExternalError, match="could not list the files of"):
        read(FileSource(tmp_path))
    for path in (name, "/tmp/a\0b"):
        with pytest.raises(InvalidJobError, match="could not use the path"):
            FileSource(path)


@pytest.mark.parametrize("kind", ["text", "parquet"])
@pytest.mark.parametrize(
    ("error", "do"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "let the user that the slots run as read it"),
        (FileNotFoundError(errno.ENOENT, "No such file"), "leave files where they are"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_file_that_cannot_be_opened_is_named(tmp_path, monkeypatch, kind, error, do):
    class System:
        def open_input_file(self, path):
            raise error

    pq.write_table(pa.table({"a": [1]}), tmp_path / "f")
    source = FileSource(tmp_path / "f", format=kind)
    splits = source.format.find_splits(find_files(source.paths), 1)
    monkeypatch.setattr(source.format, "find_splits", lambda files, parallelism: splits)
    monkeypatch.setattr(formats, "open_file_system", lambda uri: (System(), uri))
    with pytest.raises(ExternalError) as caught:
        read(source)
    assert str(tmp_path / "f") in caught.value.what and caught.value.do.startswith(do)


def test_a_file_that_changes_before_it_is_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "f"
    for kind, had, has in (
        ("text", b"line\n" * 100, b"line\n" * 80),
        ("parquet", parquet_bytes(range(100)), parquet_bytes(range(80))),
        ("parquet", parquet_bytes(range(100)), parquet_bytes(range(300))),
    ):
        path.write_bytes(had)
        source = FileSource(path, format=kind)
        splits = source.format.find_splits(find_files(source.paths), 1)
        monkeypatch.setattr(source.format, "find_splits", lambda files, parallelism, splits=splits: splits)
        path.write_bytes(has)
        with pytest.raises(UserError) as caught:
            read(source)
        assert f"it had {len(had)} bytes, now {len(has)}" in caught.value.why and str(path) in caught.value.what


def test_a_text_file_may_grow_while_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_text("line\n" * 100)
    source = FileSource(path)
    splits = source.format.find_splits(find_files(source.paths), 1)
    monkeypatch.setattr(source.format, "find_splits", lambda files, parallelism: splits)
    with path.open("a") as stream:
        stream.write("more\n" * 100)
    assert read(source) == ["line"] * 100


def parquet_bytes(numbers):
    stream = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": list(numbers)}), stream)
    return stream.getvalue().to_pybytes()


LONG_TEXT = b"".join(b"%032d\n" % (i * 7_919**7) for i in range(40_000))


@pytest.mark.parametrize(
    "name, content, place",
    [
        ("cut.gz", gzip.compress(LONG_TEXT)[:-10_000], "byte "),
        ("text.gz", LONG_TEXT, "byte 0 or later"),
        ("trailer.gz", gzip.compress(LONG_TEXT)[:-4], "byte "),
        ("checksum.gz", gzip.compress(b"a\n")[:-8] + bytes(4) + gzip.compress(b"a\n")[-4:], "byte 0"),
        ("padded.gz", gzip.compress(b"a\n") + bytes(100), "byte 0"),
        ("text.bz2", LONG_TEXT, "byte 0 or later"),
        ("cut.bz2", bz2.compress(LONG_TEXT)[:-10], "byte "),
        ("text.zst", LONG_TEXT, "byte 0 or later"),
        ("text.lz4", LONG_TEXT, "byte 0 or later"),
    ],
)
def test_a_broken_compressed_file_is_named_with_the_place(tmp_path, name, content, place):
    (tmp_path / "a.txt").write_text("fine\n")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        read(FileSource(tmp_path))
    error = caught.value
    assert f"{tmp_path}/{name} as " in error.what and error.where.startswith(place)
    assert "compress" in error.why or "inflate" in error.why
    assert "copied in full" in error.do


def test_a_file_system_that_fails_names_the_file_and_is_not_the_users_fault(tmp_path, monkeypatch):
    class Broken:
        def read(self, count):
            raise OSError(errno.EIO, "Input/output error")

        def seek(self, offset):
            pass

        def close(self):
            pass

    class System:
        def open_input_file(self, path):
            return Broken()

    (tmp_path / "f").write_text("x\n")
    monkeypatch.setattr(formats, "open_file_system", lambda uri: (System(), uri))
    with pytest.raises(ExternalError, match="could not read .*/f as text"):
        read(FileSource(tmp_path / "f"))


def test_a_broken_parquet_file_is_named_with_the_place(tmp_path):
    table = pa.table({"b": [f"x{i * 7_919}" for i in range(50_000)]})
    path = tmp_path / "f.parquet"
    pq.write_table(table, path, row_group_size=10_000)
    whole = path.read_bytes()
    middle = len(whole) // 2
    for content, place in (
        (whole[:middle], "its footer"),
        (b"", "its footer"),
        (whole[:middle] + b"\xff" * 4_000 + whole[middle + 4_000 :], "row groups 0 to 4, after "),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError) as caught:
            read(FileSource(path, format="parquet"))
        error = caught.value
        assert "f.parquet as Parquet" in error.what and error.where.startswith(place) and error.why


def test_charsets_in_which_lines_cannot_be_found_are_refused():
    with pytest.raises(InvalidJobError, match="more than the one byte"):
        TextLineFormat("utf-16")
    with pytest.raises(InvalidJobError, match="klingon"):
        TextLineFormat("klingon")


def test_patterns_and_several_paths(tmp_path):
    for name in ("2024/a.log", "2024/b.txt", "2025/deep/c.log", "d.log"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name + "\n")
    assert read(FileSource(f"{tmp_path}/2024/*.log")) == ["2024/a.log"]
    assert read(FileSource(f"{tmp_path}/202?/*")) == ["2024/a.log", "2024/b.txt"]
    assert read(FileSource(f"{tmp_path}/**/*.log")) == ["2024/a.log", "2025/deep/c.log", "d.log"]
    assert read(FileSource([tmp_path / "d.log", f"{tmp_path}/2024"])) == [
        "d.log",
        "2024/a.log",
        "2024/b.txt",
    ]
    assert read(FileSource(f"file://{tmp_path}/2024")) == ["2024/a.log", "2024/b.txt"]


def test_relative_paths_mean_the_drivers_folder(tmp_path, monkeypatch):
    (tmp_path / "f").write_text("x\n")
    monkeypatch.chdir(tmp_path)
    source = FileSource("f")
    monkeypatch.chdir("/")
    assert read(source) == ["x"]


def test_a_path_that_is_not_there_is_refused(tmp_path):
    for path in (tmp_path / "missing", f"{tmp_path}/*.missing"):
        with pytest.raises(InvalidJobError, match="no such file"):
            read(FileSource(path))


def test_pyflinks_builder_makes_the_same_source(tmp_path):
    (tmp_path / "f").write_text("a\nb\n")
    builder = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path))
    assert read(builder.process_static_file_set().build()) == ["a", "b"]
    with pytest.raises(InvalidJobError, match="bounded in this version"):
        builder.monitor_continuously(1_000)


def test_unknown_formats_and_misplaced_options_are_refused(tmp_path):
    with pytest.raises(InvalidJobError, match="parquet, text"):
        FileSource(tmp_path, format="xml")
    with pytest.raises(InvalidJobError, match="do: read lines of JSON as text") as refused:
        FileSource(tmp_path, format="json")
    assert "env.from_dataframe(spark.read.json(path))" in refused.value.do
    with pytest.raises(InvalidJobError, match="option 'columns'"):
        FileSource(tmp_path, format=TextLineFormat(), columns=["a"])
    with pytest.raises(InvalidJobError, match="no path"):
        FileSource([])


# ---- Parquet ------------------------------------------------------------------------------------


class TestParquetFiles(BoundedSourceSuite):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path
        self.rows = [{"id": i, "name": f"n{i}", "at": None if i % 7 else i} for i in range(400)]
        table = pa.Table.from_pylist(self.rows)
        pq.write_table(table.slice(0, 250), tmp_path / "a.parquet", row_group_size=37)
        pq.write_table(table.slice(250), tmp_path / "b.parquet", row_group_size=60)

    def make_source(self):
        return FileSource(self.path, format=ParquetFormat(batch_rows=16))

    def expected(self):
        return self.rows


def test_parquet_gives_columns_and_only_those_asked_for(tmp_path):
    table = pa.table({"a": [1, 2], "b": ["x", "y"], "c": [None, 1.5]})
    pq.write_table(table, tmp_path / "f.parquet")
    source = FileSource(tmp_path, format="parquet", columns=["c", "a"])
    assert source.gives_columns
    run = SourceRun(source).run_until_end()
    assert run.outputs[0].column_batches[0].schema.names == ["c", "a"]
    assert run.values == [{"c": None, "a": 1}, {"c": 1.5, "a": 2}]


@pytest.mark.parametrize("kind", ["parquet", "csv", "avro"])
def test_readers_of_records_go_on_from_any_place_of_a_file(tmp_path, kind):
    path, rows = tmp_path / "f", [{"n": n} for n in range(120)]
    if kind == "parquet":
        pq.write_table(pa.table({"n": range(120)}), path, row_group_size=50)
        file_format = ParquetFormat(batch_rows=32)
    elif kind == "csv":
        path.write_text("n\n" + "".join(f"{row['n']}\n" for row in rows))
        file_format = CsvFormat({"n": Types.LONG()}, header=True, block_bytes=100)
    else:
        schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}
        with path.open("wb") as stream:
            fastavro.writer(stream, schema, rows, sync_interval=40)
        file_format = AvroFormat()
    for split in file_format.find_splits(find_files([str(path)]), 1):
        expected, given = rest_of(file_format, split), Given()
        reader = opened(file_format, split)
        while reader.read(given, 13):
            position = reader.position()
            assert given.records + rest_of(file_format, position) == expected
            reader.close_split()
            reader = opened(file_format, position)
        reader.close_split()
        assert given.records == expected


def test_a_column_gives_the_event_times(tmp_path):
    moment = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.timezone.utc)
    table = pa.table(
        {"n": [1], "at": pa.array([moment], pa.timestamp("us", tz="Europe/Berlin")), "ms": [17]}
    )
    pq.write_table(table, tmp_path / "f.parquet")
    for column, expected in (("at", int(moment.timestamp() * 1000)), ("ms", 17)):
        source = FileSource(tmp_path, format="parquet", columns=["n"], timestamp_column=column)
        run = SourceRun(source).run_until_end()
        assert run.outputs[0].records == [({"n": 1}, expected)]


def test_event_times_must_be_times_without_nulls(tmp_path):
    pq.write_table(pa.table({"s": ["x"], "t": pa.array([None], pa.int64())}), tmp_path / "f")
    for column, reason in (("s", "its type is string"), ("t", "hold null")):
        with pytest.raises(UserError, match=reason):
            read(FileSource(tmp_path / "f", format="parquet", timestamp_column=column))


def test_parquet_files_of_two_schemas_are_refused_with_both(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "2.parquet")
    with pytest.raises(InvalidJobError) as caught:
        read(FileSource(tmp_path, format="parquet"))
    assert "a: int64" in str(caught.value) and "a: string" in str(caught.value)


def test_a_column_that_is_not_there_is_refused(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    with pytest.raises(InvalidJobError, match="could not find the column 'b'"):
        read(FileSource(tmp_path, format="parquet", columns=["b"]))


@pytest.mark.parametrize("splittable", [True, False])
def test_a_non_splittable_enumerator_gives_each_file_to_one_reader(tmp_path, splittable):
    (tmp_path / "a.txt").write_text("line\n" * 100)
    (tmp_path / "empty.txt").write_text("")
    enumerator = (
        FileEnumeratorProvider.default_splittable_file_enumerator()
        if splittable
        else FileEnumeratorProvider.default_non_splittable_file_enumerator()
    )
    source = (
        FileSource.for_record_stream_format(TextLineFormat(split_bytes=50), tmp_path)
        .set_file_enumerator(enumerator)
        .set_split_assigner(FileSplitAssignerProvider.locality_aware_split_assigner())
        .build()
    )
    run = SourceRun(source, 2).run_until_end(1_000)
    run.close()
    assert run.values == ["line"] * 100
    splits = source.format.find_splits(find_files(source.paths), 2)
    assert len(splits) == (10 if splittable else 1)
