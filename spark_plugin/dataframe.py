"""A bounded DataFrame as a flinkish source.

Spark writes each partition once, when the source is made, as one Arrow file; slots read the files
as column batches.  The files hold what Spark itself sends to Python workers, so every type that
Arrow carries keeps value and type (Parquet would turn intervals into numbers), and rows keep their
order within a partition.

The DataFrame is written before the stream starts, because slots hold their cores until the stream
ends: a DataFrame job that a stream waits for could wait for the stream.  So they cannot be written
again for a second job either, and stay while the source can be used: until the program has dropped
it, until ``SessionCluster.close`` or until its Spark has stopped, at the latest until the driver's
JVM ends, which outlives a driver that is killed.  What a killed JVM left is removed by the next driver
of this machine that writes a DataFrame to the same folder.
"""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Iterator, Optional, Sequence

from flinkish.connectors.files.formats import event_times_ms
from flinkish.connectors.spi import (
    Boundedness,
    Source,
    SourceReader,
    SourceReaderContext,
    SourceSplit,
    SplitEnumerator,
    SplitEnumeratorContext,
)
from flinkish.connectors.split_assignment import OnDemandSplitEnumerator, SequentialSplitReader
from flinkish.errors import InvalidJobError, UnsupportedSparkError, UserError
from spark_plugin.dataframe_files import DataFrameFiles, files_in, remove_stale
from spark_plugin.launcher import application_of

log = logging.getLogger(__name__)


def dataframe_source(
    dataframe: Any, timestamp_column: Optional[str] = None, staging_dir: Optional[str] = None
) -> "DataFrameSource":
    """A source of the rows of ``dataframe``, written out now.

    Args:
        dataframe: a bounded DataFrame of a classic Spark session, or of one of Spark Connect.
        timestamp_column: a timestamp, date or integer (ms) column that gives the event times.
        staging_dir: a folder that driver and executors share; needed where executors run on other
            machines.  Default: the driver's temporary folder.
    Raises:
        InvalidJobError: it is a streaming DataFrame, lacks the column, has two columns of one name
            or a type that Arrow does not bring to Python.
        UnsupportedSparkError: executors do not share the driver's disk, and no folder was given.
    """
    if dataframe.isStreaming:
        raise InvalidJobError(
            "could not read the DataFrame as a source",
            why="it is a streaming DataFrame",
            do="use a source of flinkish for what feeds it",
        )
    _check_types(dataframe.schema)
    if timestamp_column is not None and timestamp_column not in dataframe.columns:
        raise InvalidJobError(
            f"could not find the column {timestamp_column!r}",
            where="the DataFrame",
            why=f"it has {', '.join(dataframe.columns)}",
        )
    application = application_of(dataframe.sparkSession)
    if staging_dir is None and not application.is_on_this_machine():
        raise UnsupportedSparkError(
            "could not write the DataFrame for the slots",
            where=application.where,
            why="executors do not share the driver's temporary folder",
            do="give staging_dir, a folder that all of them mount",
        )
    remove_stale(staging_dir)
    staging = DataFrameFiles(staging_dir, application)
    try:
        files = _write(dataframe, staging.folder)
    except BaseException:
        staging.remove()
        raise
    log.info("dataframe written files=%d folder=%s", len(files), staging.folder)
    return DataFrameSource(files, timestamp_column, staging)


def _check_types(schema: Any) -> None:
    repeated = {name for name in schema.names if schema.names.count(name) > 1}
    if repeated:
        raise InvalidJobError(
            "could not read the DataFrame as a source",
            why=f"two of its columns are called {sorted(repeated)[0]!r}",
            do="rename one of them",
        )
    for field in schema.fields:
        for type_ in _nested_types(field.dataType):
            if type(type_).__name__ in ("YearMonthIntervalType", "CalendarIntervalType"):
                raise InvalidJobError(
                    "could not read the DataFrame as a source",
                    where=f"column {field.name!r}",
                    why=f"Arrow does not bring values of type {type_.simpleString()} to Python",
                    do="cast the column to a string or to a number of months",
                )


def _nested_types(type_: Any) -> Iterator[Any]:
    yield type_
    inner = [getattr(type_, name, None) for name in ("elementType", "keyType", "valueType")]
    inner += [field.dataType for field in getattr(type_, "fields", ())]
    for child in inner:
        if child is not None:
            yield from _nested_types(child)


def _write(dataframe: Any, folder: str) -> list["ArrowFileSplit"]:
    rows = dataframe.mapInArrow(_partition_writer(folder), "partition int, path string, count long")
    written = sorted((row.partition, row.path, row["count"]) for row in rows.collect())
    return [ArrowFileSplit(path, count) for _, path, count in written]


def _partition_writer(folder: str) -> Callable:
    def write_partition(batches):
        """Runs in Spark's Python workers; travels by value, so it needs no flinkish there."""
        import os
        import uuid

        import pyarrow as pa
        from pyspark import TaskContext

        # A name of its own for each attempt: only the one that succeeds is reported.
        partition = TaskContext.get().partitionId()
        path = os.path.join(folder, f"part-{partition:05d}-{uuid.uuid4().hex}.arrow")
        writer, count = None, 0
        for batch in batches:
            if writer is None:
                writer = pa.ipc.new_file(path, batch.schema)
            writer.write_batch(batch)
            count += batch.num_rows
        if writer is not None:
            writer.close()
        names = ["partition", "path", "count"]
        found = [[partition], [path], [count]] if count else [[], [], []]
        types = [pa.int32(), pa.string(), pa.int64()]
        yield pa.RecordBatch.from_arrays(
            [pa.array(values, type_) for values, type_ in zip(found, types)], names
        )

    return write_partition


# ---- the source ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArrowFileSplit(SourceSplit):
    """One file; ``skip`` rows of it were given already."""

    path: str
    rows: int
    skip: int = 0

    def split_id(self) -> str:
        return Path(self.path).name


class DataFrameSource(Source[Any, ArrowFileSplit]):
    """See ``dataframe_source``."""

    gives_columns = True

    def __init__(
        self, splits: Sequence[ArrowFileSplit], timestamp_column: Optional[str], staging: DataFrameFiles
    ):
        self._splits = list(splits)
        self._timestamp_column = timestamp_column
        self._folder = staging.folder
        weakref.finalize(self, staging.drop)

    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(
        self, context: SplitEnumeratorContext[ArrowFileSplit]
    ) -> SplitEnumerator[ArrowFileSplit]:
        return self.restore_enumerator(context, self._splits)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[ArrowFileSplit], state: Any
    ) -> SplitEnumerator[ArrowFileSplit]:
        staging = files_in(self._folder)
        if staging is None:
            raise UserError(
                "could not read the DataFrame",
                where=self._folder,
                why="what Spark wrote for the slots is gone: its driver, its Spark or its cluster has ended",
                do="make the source again with from_dataframe",
            )
        return _Enumerator(context, state, staging)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[Any, ArrowFileSplit]:
        return _ArrowFileReader(context, self._timestamp_column)


class _Enumerator(OnDemandSplitEnumerator[ArrowFileSplit]):
    """Keeps the files while a job reads them, also when the source object is gone."""

    def __init__(self, context: Any, splits: Sequence[ArrowFileSplit], staging: DataFrameFiles):
        super().__init__(context, lambda: splits, splits)
        staging.acquire()
        self._release = weakref.finalize(self, staging.release)

    def close(self) -> None:
        self._release()  # does nothing the second time
        super().close()


class _ArrowFileReader(SequentialSplitReader[Any, ArrowFileSplit]):
    def __init__(self, context: SourceReaderContext, timestamp_column: Optional[str]):
        super().__init__(context)
        self._timestamp_column = timestamp_column
        self._source: Any = None
        self._file: Any = None
        self._next_batch = 0
        self._batch: Any = None
        self._times: Any = None
        self._next = 0  # row of the batch
        self._given = 0  # rows of the split

    def open_split(self, split: ArrowFileSplit) -> None:
        import pyarrow as pa

        self._source = pa.memory_map(split.path)
        self._file = pa.ipc.open_file(self._source)
        self._batch, self._next_batch, self._next, self._given = None, 0, 0, split.skip
        skip = split.skip
        while skip > 0 and self._load():
            self._next = min(skip, self._batch.num_rows)
            skip -= self._next

    def _load(self) -> bool:
        if self._next_batch >= self._file.num_record_batches:
            return False
        self._batch = self._file.get_batch(self._next_batch)
        self._next_batch += 1
        self._next = 0
        column = self._timestamp_column
        self._times = event_times_ms(self._batch.column(column)) if column else None
        return True

    def read(self, output: Any, room: int) -> bool:
        while self._batch is None or self._next >= self._batch.num_rows:
            if not self._load():
                return False
        rows = min(room, self._batch.num_rows - self._next)
        times = None if self._times is None else self._times[self._next : self._next + rows]
        output.collect_columns(self._batch.slice(self._next, rows), times)
        self._next += rows
        self._given += rows
        return True

    def position(self) -> ArrowFileSplit:
        return replace(self._current, skip=self._given)

    def close_split(self) -> None:
        # Batches that were handed on keep the mapping alive by themselves.
        self._source = self._file = self._batch = self._times = None
