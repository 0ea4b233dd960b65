"""Writes part files into a folder and publishes them: with each checkpoint, or without checkpoints when the job
has succeeded.

A writer writes hidden files (``.part-...``) and completes its file at each checkpoint.  The committer renames them
when the checkpoint is complete, so each record is seen once however often the job restarts.  Without
checkpoints a job that fails or is cancelled leaves the folder as it was.  An empty result is a folder with one file
that has no rows.

A job that goes on from a checkpoint publishes what the one before has left, in the folder where that lies.  What is not
there any more was published and taken away by its reader, as far as anyone can tell: this is logged.  Hidden files
that nothing needs any more are removed when its tasks restart, and when another driver takes it over; those of a
driver that was killed stay, where none stood by.

    ParquetSink("out/windows", schema)
    FileSink.for_row_format("out/lines", str).build()                            # PyFlink's form
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import uuid
from dataclasses import dataclass
from typing import Any, Iterable, Optional

from pyarrow import fs

from flinkish.common.arguments import check_argument
from flinkish.common.time import TimeLike, to_milliseconds
from flinkish.connectors.files.file_sink_options import (
    BucketAssigner,
    DefaultRollingPolicy,
    OutputFileConfig,
    RollingPolicy,
)
from flinkish.connectors.files.file_system import absolute_uri, open_file_system
from flinkish.connectors.files.part_writer import ParquetPart, PartFormat, PartSinkWriter, row_format
from flinkish.connectors.spi import CommitId, Committer, Sink, SinkWriter, WriterInitContext
from flinkish.errors import CorruptSnapshotError, ExternalError, InvalidJobError

log = logging.getLogger(__name__)

_COMPARED_BYTES = 1 << 20


@dataclass(frozen=True)
class PendingFile:
    """A complete hidden file that waits for its name.  ``name`` None: this writer had no records since the
    last checkpoint, and its input has ended.  ``folder``: the URI of where it lies, for the sink of the program that
    goes on may have another; None: written by a version that did not say, so the sink's."""

    job_id: str
    hidden_name: Optional[str]
    name: Optional[str]
    rows: int
    folder: Optional[str] = None


class FileSink(Sink[Any]):
    """Records as part files.

    >>> stream.sink_to(FileSink.for_row_format("out", Encoder.simple_string_encoder()).build())

    Args:
        path: the folder; local or a URI of ``pyarrow.fs``.  All slots must reach it.
        part_format: ``ParquetPart`` or ``TextPart``.
        overwrite: replace what the folder holds, when the first files are published.  Only files named
            ``part-*`` (or as ``names`` says) or ``*.parquet`` directly in the folder are ever removed.  A job that
            goes on from a checkpoint removes nothing.
        names: how the names of the files begin and end; None: ``part-…`` and the format's suffix.
        part_size_bytes: begin another file when one has this size; None: one file a writer.
    Raises:
        InvalidJobError: at the start of the job, when the folder holds something already and
            ``overwrite`` is off.
    """

    def __init__(
        self,
        path: Any,
        part_format: PartFormat,
        overwrite: bool = False,
        names: Optional[OutputFileConfig] = None,
        part_size_bytes: Optional[int] = None,
    ):
        self.uri = absolute_uri(path)
        check_argument(
            part_format,
            PartFormat,
            "FileSink()",
            "part_format",
            do="give ParquetPart(schema) or TextPart() of flinkish.connectors.files",
        )
        check_argument(overwrite, bool, "FileSink()", "overwrite")
        if names is not None:
            check_argument(names, OutputFileConfig, "FileSink()", "names")
        if part_size_bytes is not None:
            check_argument(part_size_bytes, int, "FileSink()", "part_size_bytes")
        self.part_format = part_format
        self.overwrite = overwrite
        self.prefix = "part" if names is None else names.part_prefix
        self.suffix = part_format.suffix if names is None else names.part_suffix
        self.part_size_bytes = part_size_bytes
        self.takes_columns = part_format.takes_columns
        # Of this driver, so that slots of one that has lost the job never write the same file as ours.
        self._token = uuid.uuid4().hex[:12]
        # Of the driver's object only: whose hidden files it may remove, and whether it replaces what was there before.
        self._owner = ""
        self._replaces = overwrite

    @staticmethod
    def for_row_format(base_path: Any, encoder: Any = None) -> "FileSinkBuilder":
        """Text; ``encoder``: an ``Encoder``, or a callable that makes a line of a record; None: ``str``."""
        return FileSinkBuilder(base_path, row_format(encoder))

    @staticmethod
    def for_bulk_format(base_path: Any, writer_factory: Any) -> "FileSinkBuilder":
        if not isinstance(writer_factory, PartFormat):
            raise InvalidJobError(
                "could not make the file sink",
                why=f"a {type(writer_factory).__name__} is no bulk format",
                do="give ParquetPart(schema) (from flinkish.connectors.files import ParquetPart)",
            )
        return FileSinkBuilder(base_path, writer_factory)

    def with_record_type(self, record_type: Any) -> "FileSink":
        typed = copy.copy(self)
        typed.part_format = self.part_format.with_record_type(record_type)
        return typed

    def for_operator(self, job_id: str, operator_id: str) -> "FileSink":
        owned = copy.copy(self)
        owned._owner = owner_mark(job_id, operator_id)
        return owned

    def is_data_file(self, name: str) -> bool:
        own = name.startswith((f"{self.prefix}-", "part-")) or name.endswith(".parquet")
        return own and os.path.basename(name) == name

    def written_folder(self) -> tuple[str, bool]:
        return folder_key(self.uri), self.overwrite

    def validate(self) -> None:
        system, path = open_file_system(self.uri)
        if system.get_file_info(path).type == fs.FileType.File:
            raise InvalidJobError(
                f"could not write to {self.uri}", why="it is a file", do="name a folder"
            )
        found = visible_names(system, path)
        if found and not self.overwrite:
            raise InvalidJobError(
                f"could not write to {self.uri}",
                why=f"the folder is not empty: it holds {found[0]}"
                + (f" and {len(found) - 1} more" if len(found) > 1 else ""),
                do="name another folder, or set overwrite=True to replace what is there (--overwrite of flinkish "
                "demo and jobs/flight_delays.py)",
            )
        self._replaces = self.overwrite
        self._make_folder()

    def validate_restored(self) -> None:
        self._replaces = False
        self._make_folder()

    def _make_folder(self) -> None:
        system, path = open_file_system(self.uri)
        try:
            system.create_dir(path, recursive=True)
        except OSError as error:
            raise InvalidJobError(
                f"could not make the folder {self.uri}",
                why=f"{type(error).__name__}: {error}",
                do="name a folder that can be made and written",
            ) from error

    def create_writer(self, context: WriterInitContext) -> SinkWriter[Any]:
        return _FileWriter(self, context)

    def create_committer(self) -> Committer:
        return _FileCommitter(self)


class ParquetSink(FileSink):
    """Records as Parquet files with ``schema`` (a ``pyarrow.Schema`` or a dict name -> type).

    Takes tuples, NamedTuples, Rows, dicts, dataclasses and column batches, each with exactly the fields
    of the schema.

    >>> stream.sink_to(ParquetSink("out", {"name": pa.string(), "n": pa.int64()}))
    """

    def __init__(
        self,
        path: Any,
        schema: Any,
        overwrite: bool = False,
        compression: str = "snappy",
        **options: Any,
    ):
        super().__init__(path, ParquetPart(schema, compression, **options), overwrite)


class FileSinkBuilder:
    """PyFlink's way to make a ``FileSink``."""

    def __init__(self, base_path: Any, part_format: PartFormat):
        self._base_path, self._format = absolute_uri(base_path), part_format
        self._overwrite = False
        self._names: Optional[OutputFileConfig] = None
        self._part_size_bytes: Optional[int] = None

    def overwrite(self, overwrite: bool = True) -> "FileSinkBuilder":
        self._overwrite = check_argument(overwrite, bool, "overwrite()", "overwrite")
        return self

    def with_output_file_config(self, output_file_config: OutputFileConfig) -> "FileSinkBuilder":
        call = "with_output_file_config()"
        self._names = check_argument(output_file_config, OutputFileConfig, call, "output_file_config")
        return self

    def with_rolling_policy(self, rolling_policy: RollingPolicy) -> "FileSinkBuilder":
        check_argument(rolling_policy, RollingPolicy, "with_rolling_policy()", "rolling_policy")
        by_size = isinstance(rolling_policy, DefaultRollingPolicy)
        self._part_size_bytes = rolling_policy.part_size_bytes if by_size else None  # type: ignore[attr-defined]
        return self

    def with_bucket_assigner(self, bucket_assigner: BucketAssigner) -> "FileSinkBuilder":
        check_argument(bucket_assigner, BucketAssigner, "with_bucket_assigner()", "bucket_assigner")
        return self

    def with_bucket_check_interval(self, interval: TimeLike) -> "FileSinkBuilder":
        """Nothing waits for it: files are published when the job has succeeded."""
        to_milliseconds(interval)
        return self

    def build(self) -> FileSink:
        return FileSink(
            self._base_path, self._format, self._overwrite, self._names, self._part_size_bytes
        )


FileSink.RowFormatBuilder = FileSink.BulkFormatBuilder = FileSinkBuilder  # type: ignore[attr-defined]


class _FileWriter(PartSinkWriter):
    def __init__(self, sink: FileSink, context: WriterInitContext):
        super().__init__(sink.uri, sink.part_format)
        self._job_id, self._uri = context.job_id(), sink.uri
        # The operator's id: two sinks of a job may have one folder.
        origin = f"{self._job_id[:8]}-{context.operator_id()[:8]}"
        self._stem = f"{sink.prefix}-{origin}-{context.index_of_subtask():05d}"
        if context.attempt_number():  # the attempts before it may have published files
            self._stem += f"-{context.attempt_number()}"
        self._suffix, self._part_size_bytes = sink.suffix, sink.part_size_bytes
        self._complete: list[PendingFile] = []
        self._marks = f"{sink._token}.{owner_mark(self._job_id, context.operator_id())}"
        self._parts = 0
        self._input_ended = False

    def next_name(self) -> str:
        return f".{self._stem}-{self._parts:05d}.{self._marks}.inprogress"

    def written(self) -> None:
        if self._part_size_bytes is not None and self._stream.tell() >= self._part_size_bytes:
            self._complete_file()

    def _complete_file(self) -> None:
        name = f"{self._stem}-{self._parts:05d}{self._suffix}"
        rows = self.finish_file()
        self._complete.append(PendingFile(self._job_id, self._name, name, rows, self._uri))
        self._parts += 1

    def flush(self, end_of_input: bool) -> None:
        self._input_ended = end_of_input

    def prepare_commit(self) -> list[Any]:
        if self._file is not None:
            self._complete_file()
        complete, self._complete = self._complete, []
        if self._input_ended and not complete:
            return [PendingFile(self._job_id, None, None, 0, self._uri)]
        return complete


class _FileCommitter(Committer):
    def __init__(self, sink: FileSink):
        self._sink = sink
        self._system, self._folder = open_file_system(sink.uri)
        self._published: set[str] = set()  # hidden names, of a commit that has not come to its end

    def commit(self, committables: Iterable[PendingFile]) -> None:
        pending = list(committables)
        job_id = pending[0].job_id if pending else ""
        self._publish_all(pending)
        self._fill_empty_folder(job_id[:8])

    def commit_checkpoint(self, committables: Iterable[PendingFile], commit_id: CommitId) -> None:
        self._publish_all(committables)

    def job_finished(self) -> None:
        self._publish_all(())
        self._fill_empty_folder(self._sink._token[:8])

    def _publish_all(self, pending: Iterable[PendingFile]) -> None:
        files = [file for file in pending if file.name is not None]
        if self._sink._replaces:
            own = {file.name for file in files}  # a repeated commit has renamed some of them
            for name in visible_names(self._system, self._folder):
                if name not in own and self._sink.is_data_file(name):
                    self._system.delete_file(f"{self._folder}/{name}")
        for file in files:
            self._publish(file)
        self._published.clear()
        self._sink._replaces = False

    def _fill_empty_folder(self, stem: str) -> None:
        """A result without rows is a file without rows."""
        system, folder, sink = self._system, self._folder, self._sink
        system.create_dir(folder, recursive=True)
        if not any(map(sink.is_data_file, visible_names(system, folder))):
            with system.open_output_stream(f"{folder}/{sink.prefix}-{stem}-empty{sink.suffix}") as stream:
                sink.part_format.open(stream).close()

    def _place_of(self, file: PendingFile) -> tuple[fs.FileSystem, str]:
        if file.folder in (None, self._sink.uri):
            return self._system, self._folder
        return open_file_system(file.folder)

    def _publish(self, file: PendingFile) -> None:
        system, folder = self._place_of(file)
        hidden, final = f"{folder}/{file.hidden_name}", f"{folder}/{file.name}"
        if system.get_file_info(hidden).type == fs.FileType.File:
            # Stores without a rename copy and then delete: both are there when a driver was killed in between.
            if system.get_file_info(final).type != fs.FileType.NotFound and not _same_bytes(system, hidden, final):
                raise ExternalError(
                    f"could not publish {file.rows} records of a file sink",
                    where=f"job {file.job_id}, {folder}",
                    why=f"{file.name} is there already, and it is another file than {file.hidden_name}",
                    do=f"move {file.name} away, which this sink has not written",
                )
            system.move(hidden, final)
        elif system.get_file_info(final).type != fs.FileType.File:  # a repeated commit has renamed it
            self._not_there(file, folder)
        self._published.add(str(file.hidden_name))

    def _not_there(self, file: PendingFile, folder: str) -> None:
        """Neither name is.  Flink too takes such a file, after a recovery, for one that is published and was taken away.

        Raises:
            CorruptSnapshotError: this driver's tasks have written it, and it was never published.
        """
        ours = f".{self._sink._token}." in str(file.hidden_name)
        if ours and file.hidden_name not in self._published:
            raise CorruptSnapshotError(
                f"could not publish {file.rows} records of a file sink",
                where=f"job {file.job_id}, {folder}",
                why=f"neither {file.hidden_name} nor {file.name} is there, and it was not published yet",
                do="bring the file back if it has been moved. If it is lost, begin from a checkpoint before it, and leave "
                "files whose names begin with a dot alone while a job writes there",
            )
        log.warning(
            "a file of a file sink is not there any more, it must have been published and taken away job=%s folder=%s "
            "name=%s hidden=%s records=%d",
            file.job_id, folder, file.name, file.hidden_name, file.rows,
        )

    def abort(self, committables: Iterable[PendingFile]) -> None:
        for file in committables:
            if file.hidden_name is not None:
                system, folder = self._place_of(file)
                path = f"{folder}/{file.hidden_name}"
                if system.get_file_info(path).type == fs.FileType.File:
                    system.delete_file(path)

    def remove_leftovers(self, kept: Iterable[PendingFile]) -> None:
        """Hidden files of slots and drivers that were killed."""
        needed = {file.hidden_name for file in kept}
        selector = fs.FileSelector(self._folder, allow_not_found=True)
        for info in self._system.get_file_info(selector):
            if info.base_name.endswith(f".{self._sink._owner}.inprogress") and info.base_name not in needed:
                self._system.delete_file(info.path)


def owner_mark(job_id: str, operator_id: str) -> str:
    """Marks the unpublished files of a sink in a job, so that those of killed slots and drivers are found too."""
    return hashlib.sha256(f"{job_id} {operator_id}".encode()).hexdigest()[:16]


def folder_key(uri: str) -> str:
    """The same for all spellings of a folder."""
    system, path = open_file_system(uri)
    return f"{system.type_name}:{path.rstrip('/')}"


def _same_bytes(system: fs.FileSystem, one: str, other: str) -> bool:
    if system.get_file_info(one).size != system.get_file_info(other).size:
        return False
    with system.open_input_stream(one) as left, system.open_input_stream(other) as right:
        while True:
            data = left.read(_COMPARED_BYTES)
            if data != right.read(_COMPARED_BYTES):
                return False
            if not data:
                return True


def visible_names(system: fs.FileSystem, folder: str) -> list[str]:
    """Names in ``folder`` that do not begin with a dot, sorted; none when there is no folder."""
    infos = system.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return sorted(info.base_name for info in infos if not info.base_name.startswith("."))
