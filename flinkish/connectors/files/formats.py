"""File formats of ``FileSource``: how a file is cut into splits and how a split is read.

``TextLineFormat`` gives a ``str`` per line, ``ParquetFormat`` column batches.  CSV and Avro have modules of their own.
"""

from __future__ import annotations

import abc
import codecs
import copy
import logging
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, NoReturn, Optional, Sequence

from flinkish.common.arguments import check_argument
from flinkish.connectors.files.file_system import FoundFile, open_file_system
from flinkish.connectors.spi import SourceReader, SourceReaderContext, SourceSplit
from flinkish.connectors.split_assignment import SequentialSplitReader
from flinkish.errors import ExternalError, InvalidJobError, UserError

log = logging.getLogger(__name__)

_MIN_SPLIT_BYTES = 1024 * 1024
_MAX_SPLIT_BYTES = 64 * 1024 * 1024
_BLOCK_BYTES = 128 * 1024


@dataclass(frozen=True)
class FileSplit(SourceSplit):
    """A part of one file.

    Text: the lines that start at bytes ``start`` to ``end`` (exclusive, -1: the whole file).
    ``position`` is a line start unless it is ``start``; ``skip`` lines from there on were given already.  They may
    reach over several blocks: how much a block holds depends on where reading began.

    Parquet: row groups ``start`` to ``end`` (exclusive); ``skip`` rows of them were given.

    ``file_bytes`` is the size that the file had when it was found; -1: not known.
    """

    uri: str
    start: int
    end: int
    position: int = 0
    skip: int = 0
    file_bytes: int = -1

    def split_id(self) -> str:
        return f"{self.uri}:{self.start}-{self.end}"


class FileFormat(abc.ABC):
    """What ``FileSource`` asks of a format."""

    gives_columns = False
    #: One split for each file, whatever its size.
    whole_files = False

    def with_whole_files(self, whole_files: bool) -> "FileFormat":
        changed = copy.copy(self)
        changed.whole_files = whole_files
        return changed

    @abc.abstractmethod
    def find_splits(self, files: Sequence[FoundFile], parallelism: int) -> list[FileSplit]:
        """Cut ``files`` into splits.  Runs in the driver on a worker thread; may read footers."""

    @abc.abstractmethod
    def create_reader(self, context: SourceReaderContext) -> SourceReader[Any, FileSplit]: ...

    def produced_type(self) -> Any:
        """The ``TypeInformation`` of the records, or None."""
        return None


class StreamFormat(FileFormat):
    """PyFlink's name for formats that read records one after the other."""

    @staticmethod
    def text_line_format(charset_name: str = "UTF-8") -> "TextLineFormat":
        return TextLineFormat(charset_name)


class BulkFormat(FileFormat):
    """PyFlink's name for formats that read many records at once."""


def one_split_a_file(files: Sequence[FoundFile]) -> list[FileSplit]:
    """For formats that cannot begin to read in the middle of a file."""
    return [FileSplit(file.uri, 0, -1, file_bytes=file.size) for file in files if file.size]


# What Arrow says of bytes that are no such file; it has no class of its own for that, and a service that
# does not answer raises OSError too.
_BROKEN = re.compile(r"compress|inflate|corrupt|invalid|magic|thrift|unexpected end|0 bytes", re.IGNORECASE)


@contextmanager
def naming(uri: str, kind: str, where: Callable[[], str]) -> Iterator[None]:
    """Errors of reading say which file, and where in it.

    Args:
        kind: what the file should be.
        where: called when reading fails.
    """
    try:
        yield
    except (OSError, ValueError) as error:  # Arrow's are of both families
        cause = UserError if isinstance(error, ValueError) else ExternalError
        do = ""
        if isinstance(error, FileNotFoundError):
            do = "leave files where they are while a job reads them; all slots must reach them"
        elif isinstance(error, PermissionError):
            do = "let the user that the slots run as read it"
        elif getattr(error, "errno", None) is None and _BROKEN.search(str(error)):
            cause, do = UserError, "write the file again, see whether it was copied in full and is named right"
        raise cause(f"could not read {uri} as {kind}", where=where(), why=str(error), do=do) from error


def refuse_changed(split: FileSplit, kind: str, why: str) -> NoReturn:
    raise UserError(
        f"could not read {split.uri} as {kind}",
        why=f"it was changed after the job had found it: {why}",
        do="leave files as they are while a job reads them, and write new ones beside them",
    )


# ---- text ---------------------------------------------------------------------------------------

_COMPRESSIONS = {".gz": "gzip", ".gzip": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
# Flink's text lines come out of these too; pyarrow does not know them.
_OTHER_COMPRESSIONS = (".deflate", ".xz")


def compression_of(uri: str) -> Optional[str]:
    ending = os.path.splitext(uri)[1].lower()
    if ending in _OTHER_COMPRESSIONS:
        raise InvalidJobError(
            f"could not read {uri} as text",
            why=f"this version cannot decompress {ending}",
            do=f"compress it as one of {', '.join(_COMPRESSIONS)}, or not at all",
        )
    return _COMPRESSIONS.get(ending)


class TextLineFormat(StreamFormat):
    r"""One record a line, without its line end (``\n`` or ``\r\n``).

    A line belongs to the split in which it starts.  A last line without a line end counts; an empty
    file has no lines.  Compressed files (``.gz``, ``.gzip``, ``.bz2``, ``.zst``, ``.lz4``) are read by one
    reader each.

    >>> source = FileSource("logs/*.txt.gz", format=TextLineFormat("ISO-8859-1"))

    Args:
        charset_name: an encoding in which the byte 10 is always a line end (UTF-8, Latin-1 ...).
            A byte order mark is part of the first line, as in Flink; "utf-8-sig" drops it.
        split_bytes: size of a split; None: so that each reader gets some, 1 to 64 MB.
        errors: "strict" fails on bytes outside the charset, "replace" puts U+FFFD.
    """

    def __init__(
        self, charset_name: str = "UTF-8", split_bytes: Optional[int] = None, errors: str = "strict"
    ):
        try:
            self.charset = codecs.lookup(charset_name).name
        except (LookupError, TypeError):
            raise InvalidJobError(
                f'could not use the charset "{charset_name}"', do="name one that Python knows"
            ) from None
        self.drops_mark = self.charset == "utf-8-sig"
        if self.drops_mark:
            self.charset = "utf-8"
        if "\n".encode(self.charset) != b"\n":
            raise InvalidJobError(
                f'could not read lines in the charset "{charset_name}"',
                why="a line end is more than the one byte 10 there",
                do="convert the files to UTF-8",
            )
        if split_bytes is not None:
            check_argument(split_bytes, int, "TextLineFormat()", "split_bytes")
            if split_bytes < 1:
                raise InvalidJobError("could not cut files into splits", why=f"split_bytes={split_bytes}")
        self.split_bytes = split_bytes
        self.errors = errors

    def find_splits(self, files: Sequence[FoundFile], parallelism: int) -> list[FileSplit]:
        size = self.split_bytes
        if size is None:
            even_share = -(-sum(file.size for file in files) // parallelism)
            size = min(max(even_share, _MIN_SPLIT_BYTES), _MAX_SPLIT_BYTES)
        splits = []
        for file in files:
            if compression_of(file.uri) or (self.whole_files and file.size):
                splits.append(FileSplit(file.uri, 0, -1))
                continue
            for start in range(0, file.size, size):
                end = min(start + size, file.size)
                splits.append(FileSplit(file.uri, start, end, start, file_bytes=file.size))
        return splits

    def create_reader(self, context: SourceReaderContext) -> SourceReader[str, FileSplit]:
        return _TextReader(context, self)


class _TextReader(SequentialSplitReader[str, FileSplit]):
    """Reads blocks, cut behind their last line end; decoding and cutting into lines run in C over a
    whole block (measured on lines of 30 bytes: 9.4 M lines/s; with blocks of 1 MB, which leave the
    core's cache, 3.4 M)."""

    def __init__(self, context: SourceReaderContext, text_format: TextLineFormat):
        super().__init__(context)
        self._charset, self._errors = text_format.charset, text_format.errors
        self._drops_mark = text_format.drops_mark
        self._file: Any = None
        self._kind = "text"
        self._rest = b""  # bytes that were read behind the last whole line
        self._offset = 0  # of the block in ``_lines``
        self._next_offset = 0  # of ``_rest``
        self._lines: list[str] = []
        self._next = 0
        self._at_end = False

    def open_split(self, split: FileSplit) -> None:
        system, path = open_file_system(split.uri)
        compression = compression_of(split.uri)
        self._rest, self._lines, self._next, self._at_end = b"", [], 0, False
        offset = split.position
        self._kind = f"{compression} text" if compression else "text"
        with naming(split.uri, self._kind, lambda: ""):
            if compression:
                self._file = system.open_input_stream(path, compression=compression)
            else:
                self._file = system.open_input_file(path)
        if compression:
            self._skip_bytes(offset)
        else:
            if offset == split.start and offset > 0:
                # The line that reaches over the start is the earlier split's.  It ends at the first
                # line end from the byte before the start on.
                offset = self._behind_line_end(offset - 1)
            else:
                self._file.seek(offset)
        self._offset = self._next_offset = offset
        self._skip_lines(split.skip)

    def _skip_lines(self, count: int) -> None:
        while count:
            self._load_block()
            if not self._lines:
                why = f"{count} of the lines that were read before are not there any more"
                refuse_changed(self._current, self._kind, why)
            self._next = min(count, len(self._lines))
            count -= self._next

    def _read_from(self, offset: int, count: Optional[int] = None) -> bytes:
        """The next bytes, of a block at most; ``offset`` is where they stand in the (uncompressed) text."""
        with naming(self._current.uri, self._kind, lambda: f"byte {offset} or later"):
            return self._file.read(_BLOCK_BYTES if count is None else min(count, _BLOCK_BYTES))

    def _skip_bytes(self, count: int) -> None:
        skipped = 0
        while skipped < count:
            data = self._read_from(skipped, count - skipped)
            if not data:
                refuse_changed(self._current, self._kind, f"it was read to byte {count}, now it has {skipped}")
            skipped += len(data)

    def _behind_line_end(self, offset: int) -> int:
        self._file.seek(offset)
        while True:
            data = self._read_from(offset)
            if not data:
                return offset
            end = data.find(b"\n")
            if end >= 0:
                self._rest = data[end + 1 :]
                return offset + end + 1
            offset += len(data)

    def _load_block(self) -> None:
        """Put the next lines of the split into ``_lines``; sets ``_at_end`` when there are none."""
        split = self._current
        assert split is not None
        split_end = split.end
        self._lines, self._next = [], 0
        self._offset = self._next_offset
        if self._at_end or 0 <= split_end <= self._offset:
            self._at_end = True
            return
        data = self._rest
        end = data.rfind(b"\n")
        if end < 0:
            # Joined once: a line of 100 MB would be copied 800 times.
            blocks, size = [data] if data else [], len(data)
            while end < 0:
                more = self._read_from(self._offset + size)
                if not more:
                    self._at_end = True
                    if self._offset + size < split_end:
                        why = f"it had {split.file_bytes} bytes, now {self._offset + size}"
                        refuse_changed(split, self._kind, why)
                    break
                end = more.rfind(b"\n")
                end += size if end >= 0 else 0
                blocks.append(more)
                size += len(more)
            data = b"".join(blocks)
        if self._at_end:
            self._rest = b""
            block = data
        else:
            limit = split_end - self._offset if split_end >= 0 else len(data)
            if end + 1 > limit:
                # Only lines that start before the end of the split: up to the first line end at or
                # behind its last byte.
                end = data.find(b"\n", max(limit - 1, 0))
            block, self._rest = data[: end + 1], data[end + 1 :]
        self._next_offset = self._offset + len(block)
        if block:
            self._lines = self._cut(block)

    def _cut(self, block: bytes) -> list[str]:
        if self._drops_mark and self._offset == 0:
            block = block.removeprefix(codecs.BOM_UTF8)
        try:
            text = block.decode(self._charset, self._errors)
        except UnicodeDecodeError as error:
            raise UserError(
                f"could not read {self._current.uri} as {self._charset}",
                where=f"byte {self._offset + error.start}",
                why=error.reason,
                do='name the right charset, or set errors="replace"',
            ) from None
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()  # behind the last line end
        if "\r" in text:
            lines = [line[:-1] if line.endswith("\r") else line for line in lines]
        return lines

    def read(self, output: Any, room: int) -> bool:
        if self._next >= len(self._lines):
            self._load_block()
            if not self._lines:
                return False
        batch = self._lines[self._next : self._next + room]
        self._next += len(batch)
        output.collect_batch(batch)
        return True

    def position(self) -> FileSplit:
        return replace(self._current, position=self._offset, skip=self._next)

    def close_split(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lines, self._rest = [], b""


# ---- Parquet ------------------------------------------------------------------------------------


class ParquetFormat(BulkFormat):
    """Parquet files as column batches; all files must have the same columns, unless ``schema`` says which there are.

    >>> source = FileSource("rides/", format=ParquetFormat(columns=["id", "fare"]))

    Args:
        columns: names of the columns to read; None: all.
        batch_rows: rows of a batch at most.
        timestamp_column: a timestamp or integer (ms) column that gives the event times.
        schema: an Arrow schema to which ``columns`` are cast, and by which one that a file lacks is null; None: as
            they are in the files.
        case_sensitive: False: a column is found whatever the case of its letters, and gets the name of ``columns``.
    """

    gives_columns = True

    def __init__(
        self,
        columns: Optional[Sequence[str]] = None,
        batch_rows: int = 8_192,
        timestamp_column: Optional[str] = None,
        schema: Any = None,
        case_sensitive: bool = True,
    ):
        if columns is not None:
            columns = list(check_argument(columns, (list, tuple), "ParquetFormat()", "columns"))
            for name in columns:
                check_argument(name, str, "ParquetFormat()", "the name of a column")
        if check_argument(batch_rows, int, "ParquetFormat()", "batch_rows") < 1:
            raise InvalidJobError("could not read batches of rows", why=f"batch_rows={batch_rows}")
        if timestamp_column is not None:
            check_argument(timestamp_column, str, "ParquetFormat()", "timestamp_column")
        self.columns = columns
        self.batch_rows = batch_rows
        self.timestamp_column = timestamp_column
        self.schema = schema
        self.case_sensitive = case_sensitive

    def find_splits(self, files: Sequence[FoundFile], parallelism: int) -> list[FileSplit]:
        import pyarrow.parquet as pq

        splits: list[FileSplit] = []
        expected: Any = None
        share = max(sum(file.size for file in files) // max(parallelism, 1), 1)
        for file in files:
            system, path = open_file_system(file.uri)
            with naming(file.uri, "Parquet", lambda: "its footer"):
                with system.open_input_file(path) as handle:
                    parquet = pq.ParquetFile(handle)
                    groups = parquet.metadata.num_row_groups
            schema = self._selected(parquet.schema_arrow, file.uri)
            if expected is None:
                expected = schema
            elif not self._agree(schema, expected):
                raise InvalidJobError(
                    "could not read the Parquet files as one stream",
                    where=file.uri,
                    why=f"its columns are {_describe(schema)}, those of {files[0].uri} are "
                    f"{_describe(expected)}",
                    do="read folders of one schema, or name the common columns",
                )
            part = groups * min(share, _MAX_SPLIT_BYTES) // max(file.size, 1)
            step = max(1, groups if self.whole_files else part)
            for start in range(0, groups, step):
                end = min(start + step, groups)
                splits.append(FileSplit(file.uri, start, end, file_bytes=file.size))
        return splits

    def _agree(self, schema: Any, expected: Any) -> bool:
        """Whether what is read of two files makes one stream; a column that one lacks has the type of ``schema``."""
        if self.schema is None:
            return schema.equals(expected)
        return all(field.equals(expected.field(field.name)) for field in schema if field.name in expected.names)

    def _selected(self, schema: Any, uri: str) -> Any:
        """Of a file's schema what is read.

        Source: Flink's ``ParquetVectorizedInputFormat``, which fills columns that a file lacks with null."""
        import pyarrow as pa

        names = schema.names if self.columns is None else self.names_in(schema.names)
        missing = [name for name in names if name not in schema.names]
        if missing and self.schema is not None:
            log.warning("columns are not in the file and are read as null columns=%r file=%s", missing, uri)
            names = [name for name in names if name in schema.names]
            missing = []
        if self.timestamp_column and self.timestamp_column not in schema.names:
            missing.append(self.timestamp_column)
        if missing:
            raise InvalidJobError(
                f"could not find the column {missing[0]!r}",
                where=uri,
                why=f"the file has {', '.join(schema.names)}",
            )
        return pa.schema([schema.field(name) for name in names])

    def names_in(self, names: Sequence[str]) -> list[str]:
        """What ``columns`` are called in a file that has ``names``."""
        assert self.columns is not None
        if self.case_sensitive:
            return self.columns
        known = {name.lower(): name for name in names}
        return [known.get(name.lower(), name) for name in self.columns]

    def create_reader(self, context: SourceReaderContext) -> SourceReader[Any, FileSplit]:
        return ParquetReader(context, self)


def _describe(schema: Any) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


class ColumnBatchReader(SequentialSplitReader[Any, FileSplit]):
    """Reads a split as column batches; ``FileSplit.skip`` counts the rows that were given.

    A subclass opens a split and says where in it reading stands."""

    kind = ""  #: of file, for errors

    def __init__(self, context: SourceReaderContext, timestamp_column: Optional[str]):
        super().__init__(context)
        self._timestamp_column = timestamp_column
        self._batches: Any = None
        self._batch: Any = None
        self._times: Any = None
        self._next = 0
        self._rows_given = 0

    @abc.abstractmethod
    def open_batches(self, split: FileSplit) -> tuple[Iterator[Any], int]:
        """Batches of the split, and how many of their first rows were given already."""

    @abc.abstractmethod
    def close_file(self) -> None:
        """The split is over, or given up."""

    def place(self) -> str:
        """Where in the file reading stands, for errors."""
        return f"after row {self._rows_given}"

    def selected(self, batch: Any) -> Any:
        """The columns that go out."""
        return batch

    def open_split(self, split: FileSplit) -> None:
        self._batch, self._next, self._rows_given = None, 0, split.skip
        self._batches, skip = self.open_batches(split)
        while skip > 0 and self._load():
            self._next = min(skip, self._batch.num_rows)
            skip -= self._next

    def _load(self) -> bool:
        with naming(self._current.uri, self.kind, self.place):
            batch = next(self._batches, None)
        self._batch, self._next = batch, 0
        if batch is None:
            return False
        column = self._timestamp_column
        self._times = event_times_ms(batch.column(column)) if column else None
        with naming(self._current.uri, self.kind, self.place):
            self._batch = self.selected(batch)
        return True

    def read(self, output: Any, room: int) -> bool:
        while self._batch is None or self._next >= self._batch.num_rows:
            if not self._load():
                return False
        rows = min(room, self._batch.num_rows - self._next)
        times = None if self._times is None else self._times[self._next : self._next + rows]
        self.emit(self._batch.slice(self._next, rows), times, output)
        self._next += rows
        self._rows_given += rows
        return True

    def emit(self, batch: Any, times: Any, output: Any) -> None:
        output.collect_columns(batch, times)

    def position(self) -> FileSplit:
        return replace(self._current, skip=self._rows_given)

    def close_split(self) -> None:
        self.close_file()
        self._batches = self._batch = self._times = None


class ParquetReader(ColumnBatchReader):
    kind = "Parquet"

    def __init__(self, context: SourceReaderContext, parquet_format: ParquetFormat):
        super().__init__(context, parquet_format.timestamp_column)
        self._format = parquet_format
        self._file: Any = None
        #: Of the columns in the file that is open, None: all; some of them may not be there.
        self._names: Optional[list[str]] = None

    def open_batches(self, split: FileSplit) -> tuple[Iterator[Any], int]:
        import pyarrow.parquet as pq

        system, path = open_file_system(split.uri)
        with naming(split.uri, "Parquet", lambda: "its footer"):
            handle = system.open_input_file(path)
            size = handle.size()
            if split.file_bytes not in (-1, size):
                handle.close()
                refuse_changed(split, "Parquet", f"it had {split.file_bytes} bytes, now {size}")
            self._file = pq.ParquetFile(handle)
        metadata = self._file.metadata
        groups = list(range(split.start, split.end))
        skip = split.skip
        while groups and skip >= metadata.row_group(groups[0]).num_rows:
            skip -= metadata.row_group(groups.pop(0)).num_rows
        form = self._format
        there = self._file.schema_arrow.names
        self._names = None if form.columns is None else form.names_in(there)
        columns = None
        if self._names is not None:
            wanted = dict.fromkeys((*self._names, *([form.timestamp_column] if form.timestamp_column else [])))
            columns = [name for name in wanted if name in there]
        batches = self._file.iter_batches(
            self._format.batch_rows, row_groups=groups, columns=columns, use_threads=False
        )
        return batches, skip

    def place(self) -> str:
        split = self._current
        return f"row groups {split.start} to {split.end - 1}, after {self._rows_given} rows of them"

    def selected(self, batch: Any) -> Any:
        import pyarrow as pa

        form = self._format
        if self._names is None:
            return batch
        if form.schema is None:
            return type(batch).from_arrays(batch.select(self._names).columns, names=form.columns)
        there = set(batch.schema.names)
        columns = [
            batch.column(name).cast(field.type) if name in there else pa.nulls(batch.num_rows, field.type)
            for name, field in zip(self._names, form.schema)
        ]
        return type(batch).from_arrays(columns, schema=form.schema)

    def close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def is_event_time(kind: Any) -> bool:
    """Whether a column of this type of Arrow can give event times."""
    import pyarrow as pa

    return pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_integer(kind)


def event_times_ms(column: Any) -> Any:
    """A timestamp, date or integer (ms) column as a numpy int64 array of ms.

    Raises:
        UserError: it holds a null, or is of another type.
    """
    import pyarrow as pa

    if column.null_count:
        raise UserError(
            "could not take the event times from the column",
            why=f"{column.null_count} of {len(column)} rows hold null",
        )
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"))
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64())
    elif pa.types.is_integer(column.type):
        column = column.cast(pa.int64())
    else:
        raise UserError(
            "could not take the event times from the column",
            why=f"its type is {column.type}",
            do="use a timestamp column, or integers in ms since the epoch",
        )
    return column.to_numpy(zero_copy_only=False)
