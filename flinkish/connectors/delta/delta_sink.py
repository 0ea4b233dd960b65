"""Writes a Delta table: slots write Parquet files, the driver adds them in one transaction, one for each checkpoint,
or without checkpoints one at the job's end.

The transaction carries an application id and a version: the run of the job and the number of the checkpoint.  A repeated
commit asks the table for the version that it has and does nothing when that is not lower: ``deltalake`` itself
would take the same files twice.  Nor does it look whether a file is there, or fits: both are looked at here
(`delta_schema`).

A file's name has the sink's token, which no other sink has, and the mark of its job and operator: no other job writes over
it, be it of the same sink object, and a driver that takes over finds what the one before has left.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import time
import uuid
from dataclasses import dataclass
from typing import Any, Iterable, Optional

import pyarrow as pa
from pyarrow import fs

from flinkish.connectors.delta.delta_schema import check_table, delta_schema
from flinkish.connectors.files.file_sink import folder_key, owner_mark, visible_names
from flinkish.connectors.files.file_system import absolute_uri, open_file_system
from flinkish.connectors.files.part_writer import ParquetPart, PartSinkWriter, as_schema
from flinkish.connectors.spi import CommitId, Committer, Sink, SinkWriter, WriterInitContext
from flinkish.errors import CorruptSnapshotError, ExternalError, InvalidJobError, ResourceError

log = logging.getLogger(__name__)

_MODES = ("error", "append", "overwrite")


@dataclass(frozen=True)
class DeltaFile:
    """A complete file that no transaction names yet; ``path`` None: this writer had no records.  ``version``:
    of the transaction in a job without checkpoints.  ``table``: its URI; None, in savepoints of before: the sink's."""

    application_id: str
    version: int
    path: Optional[str]
    size: int
    rows: int
    modified_ms: int
    table: Optional[str] = None


class DeltaSink(Sink[Any]):
    """Records as a Delta table.  Takes what ``ParquetSink`` takes.

    >>> stream.sink_to(DeltaSink("tables/rides", {"id": pa.int64(), "fare": pa.float64()}, mode="append"))

    Args:
        path: folder of the table, local or a URI that ``deltalake`` and ``pyarrow.fs`` know.
        schema: a ``pyarrow.Schema`` or a dict name -> type.  Delta stores timestamps in microseconds.
        mode: "error": the table must not exist; "append": it has these columns, with these types, and others only that
            may be null; "overwrite": replace its content, with the first transaction.  A job that goes on from a
            checkpoint appends.
        storage_options: for ``deltalake`` (keys, region, endpoint).
    Raises:
        InvalidJobError: Delta has no such type.
    """

    takes_columns = True

    def __init__(
        self,
        path: Any,
        schema: Any,
        mode: str = "error",
        storage_options: Optional[dict[str, str]] = None,
    ):
        if mode not in _MODES:
            raise InvalidJobError(
                f"could not use the mode {mode!r}", why=f"modes are {', '.join(_MODES)}"
            )
        _import_deltalake()
        self.uri = absolute_uri(path)
        _check_path(self.uri)
        schema = as_schema(schema)
        self.part_format = ParquetPart(schema, file_schema=delta_schema(schema))
        self.mode = mode
        self.storage_options = storage_options
        self._token = uuid.uuid4().hex[:12]
        self._owner: Optional[str] = None  # of the driver's object only: whose files it may remove
        self._has_table = False  # of the driver's object only: it has seen the table
        self._replaces = mode == "overwrite"  # of the driver's object only

    @property
    def schema(self) -> pa.Schema:
        """Of the table."""
        return self.part_format.file_schema

    def for_operator(self, job_id: str, operator_id: str) -> "DeltaSink":
        owned = copy.copy(self)
        owned._owner = owner_mark(job_id, operator_id)
        return owned

    def written_folder(self) -> tuple[str, bool]:
        return folder_key(self.uri), self.mode == "overwrite"

    def validate_restored(self) -> None:
        self._replaces = False
        table = self._open_table(self.uri)
        if table is not None:
            check_table(table, self.uri, self.schema, overwrite=False)
        else:
            log.warning("the job goes on from a checkpoint and finds no Delta table, it makes a new one uri=%s", self.uri)

    def validate(self) -> None:
        self._replaces = self.mode == "overwrite"
        table = self._open_table(self.uri)
        if table is not None:
            if self.mode == "error":
                raise InvalidJobError(
                    f"could not write to {self.uri}",
                    why="there is a Delta table already",
                    do='name another folder, or use mode="append" or "overwrite"',
                )
            check_table(table, self.uri, self.schema, self._replaces)
            return
        system, path = open_file_system(self.uri)
        found = visible_names(system, path)
        if found:
            raise InvalidJobError(
                f"could not write to {self.uri}",
                why=f"the folder is no Delta table and holds {found[0]}",
                do="name an empty folder or a Delta table",
            )

    def _open_table(self, uri: str) -> Any:
        """A ``DeltaTable``; None: there is none."""
        deltalake = _import_deltalake()
        if not deltalake.DeltaTable.is_deltatable(uri, self.storage_options):
            return None
        self._has_table = self._has_table or uri == self.uri
        return deltalake.DeltaTable(uri, storage_options=self.storage_options)

    def create_writer(self, context: WriterInitContext) -> SinkWriter[Any]:
        return _DeltaWriter(self, context)

    def create_committer(self) -> Committer:
        return _DeltaCommitter(self)


class _DeltaWriter(PartSinkWriter):
    """Files get their final names at once: a reader sees only what a transaction names."""

    def __init__(self, sink: DeltaSink, context: WriterInitContext):
        super().__init__(sink.uri, sink.part_format)
        self._application_id = f"flinkish-{context.job_id()}-{context.operator_id()}"
        # One sink object may be two sinks of a job, and of two jobs.
        origin = f"{sink._token}-{owner_mark(context.job_id(), context.operator_id())}"
        self._stem = f"part-{origin}-{context.index_of_subtask():05d}-{context.attempt_number()}"
        self._table = sink.uri
        self._commits = 0
        self._input_ended = False

    def next_name(self) -> str:
        return f"{self._stem}-{self._commits:05d}{self._format.suffix}"

    def flush(self, end_of_input: bool) -> None:
        self._input_ended = end_of_input

    def prepare_commit(self) -> list[Any]:
        version = self._commits
        if self._file is None:
            nothing = DeltaFile(self._application_id, version, None, 0, 0, 0, self._table)
            return [nothing] if self._input_ended else []
        rows, path = self.finish_file(), self._name
        self._commits += 1
        info = self._system.get_file_info(f"{self._folder}/{path}")
        modified_ms = int(info.mtime.timestamp() * 1_000) if info.mtime else 0
        return [DeltaFile(self._application_id, version, path, info.size, rows, modified_ms, self._table)]


class _DeltaCommitter(Committer):
    def __init__(self, sink: DeltaSink):
        self._sink = sink

    def commit(self, committables: Iterable[DeltaFile]) -> None:
        by_version: dict[tuple[str, int], list[DeltaFile]] = {}
        for file in committables:
            by_version.setdefault((file.application_id, file.version), []).append(file)
        if not by_version:
            by_version[f"flinkish-{self._sink._token}", 0] = []
        for (application_id, version), files in sorted(by_version.items()):
            self._commit_to_tables(application_id, version, files)

    def commit_checkpoint(self, committables: Iterable[DeltaFile], commit_id: CommitId) -> None:
        application_id = f"flinkish-{commit_id.job_id}-{commit_id.run_id}-{commit_id.operator_id}"
        self._commit_to_tables(application_id, commit_id.checkpoint_id, committables)

    def job_finished(self) -> None:
        """A result without rows is a table without rows."""
        sink = self._sink
        if sink._replaces or sink._open_table(sink.uri) is None:
            self._commit(sink.uri, f"flinkish-{sink._token}", 0, [])

    def _commit_to_tables(self, application_id: str, version: int, files: Iterable[DeltaFile]) -> None:
        """A job that went on from a savepoint may write to another table now than when the files were written."""
        by_table: dict[str, list[DeltaFile]] = {self._sink.uri: []}
        for file in files:
            if file.path is not None:
                by_table.setdefault(file.table or self._sink.uri, []).append(file)
        for uri, of_table in by_table.items():
            self._commit(uri, application_id, version, of_table)

    def _commit(self, uri: str, application_id: str, version: int, files: list[DeltaFile]) -> None:
        from deltalake import CommitProperties, Schema, Transaction
        from deltalake.transaction import AddAction, create_table_with_add_actions

        sink = self._sink
        own, had_table = uri == sink.uri, sink._has_table
        table = sink._open_table(uri)
        known = None if table is None else table.transaction_version(application_id)
        if known is not None and known >= version:
            sink._replaces = sink._replaces and not own
            return  # this transaction is in the table already
        if table is None and own and had_table:
            raise ExternalError(
                f"could not publish {sum(file.rows for file in files)} records in a Delta table",
                where=uri,
                why="the table is gone, which this job has seen there",
                do="bring it back with its _delta_log; or start the job with another folder, from a savepoint",
            )
        replaces = own and sink._replaces and known is None  # only the first transaction replaces what was there before
        if table is not None and own and not had_table:
            check_table(table, uri, sink.schema, replaces)  # made by somebody else since the job has begun
        self._require(uri, files)
        actions = [
            AddAction(
                path=str(file.path),
                size=file.size,
                partition_values={},
                modification_time=file.modified_ms or int(time.time() * 1_000),
                data_change=True,
                stats=json.dumps({"numRecords": file.rows}),
            )
            for file in files
        ]
        properties = CommitProperties(app_transactions=[Transaction(application_id, version)])
        if table is None:
            system, path = open_file_system(uri)
            system.create_dir(path, recursive=True)
            create_table_with_add_actions(
                uri,
                Schema.from_arrow(sink.schema),
                actions,
                mode="error",
                storage_options=sink.storage_options,
                commit_properties=properties,
            )
        else:
            if not actions and not replaces:
                return
            mode = "overwrite" if replaces else "append"
            table.create_write_transaction(
                actions, mode, Schema.from_arrow(sink.schema), commit_properties=properties
            )
        if own:
            sink._replaces, sink._has_table = False, True

    def _require(self, uri: str, files: list[DeltaFile]) -> None:
        """Raises: CorruptSnapshotError: a file is gone, which would make the table unreadable."""
        if not files:
            return
        system, folder = open_file_system(uri)
        infos = system.get_file_info([f"{folder}/{file.path}" for file in files])
        for file, info in zip(files, infos):
            if info.type != fs.FileType.File or info.size != file.size:
                gone = info.type != fs.FileType.File
                raise CorruptSnapshotError(
                    f"could not publish {file.rows} records in a Delta table",
                    where=uri,
                    why=f"{file.path} is not there" if gone else f"{file.path} has {info.size} bytes, not {file.size}",
                    do="bring the file back if it has been moved, or removed by a vacuum with too short a retention. If it "
                    "is lost, begin from a checkpoint before it",
                )

    def abort(self, committables: Iterable[DeltaFile]) -> None:
        by_table: dict[str, set[str]] = {}
        for file in committables:
            if file.path is not None:
                by_table.setdefault(file.table or self._sink.uri, set()).add(file.path)
        for uri, names in by_table.items():
            system, folder = open_file_system(uri)
            for name in sorted(names - self._committed_names(uri)):
                if system.get_file_info(f"{folder}/{name}").type == fs.FileType.File:
                    system.delete_file(f"{folder}/{name}")

    def remove_leftovers(self, kept: Iterable[DeltaFile]) -> None:
        """Files of slots and drivers that were killed."""
        uri, owner = self._sink.uri, self._sink._owner
        system, folder = open_file_system(uri)
        infos = [
            info
            for info in system.get_file_info(fs.FileSelector(folder, allow_not_found=True))
            if info.base_name.startswith("part-") and info.base_name.split("-")[2:3] == [owner]
        ]
        needed = self._committed_names(uri) | {file.path for file in kept} if infos else frozenset()
        for info in infos:
            if info.base_name not in needed:
                system.delete_file(info.path)

    def _committed_names(self, uri: str) -> frozenset[str]:
        table = self._sink._open_table(uri)
        if table is None:
            return frozenset()
        return frozenset(name.rsplit("/", 1)[-1] for name in table.file_uris())


def _import_deltalake() -> Any:
    try:
        import deltalake
    except ImportError as error:
        raise ResourceError(
            "could not write a Delta table",
            why=f"the package deltalake is missing: {error}",
            do="pip install 'flinkish[delta]'",
        ) from error
    return deltalake


def _check_path(uri: str) -> None:
    """Refuse folders in which deltalake looks for its log under another name (seen with deltalake 1.6)."""
    if not uri.startswith(("/", "file:")):
        return
    folder = open_file_system(uri)[1]
    found = re.search(r"%[0-9A-Fa-f]{2}|[\x00-\x1f\x7f]", folder)
    if found:
        raise InvalidJobError(
            f"could not write a Delta table to {folder!r}",
            why=f"deltalake does not take {found.group()!r} in a path as it is written",
            do="name another folder",
        )
