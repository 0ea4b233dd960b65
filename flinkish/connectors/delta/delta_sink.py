"""Writes a Delta table: slots write Parquet files, the driver adds them in one transaction, one for each checkpoint,
or without checkpoints one at the job's end.

The transaction carries an application id and a version: the run of the job and the number of the checkpoint.  A repeated
commit asks the table for the version that it has and does nothing when that is not lower: ``deltalake`` itself
would take the same files twice.
"""

from __future__ import annotations

import copy
import json
import re
import time
import uuid
from dataclasses import dataclass
from typing import Any, Iterable, Optional

import pyarrow as pa
from pyarrow import fs

from flinkish.connectors.files.file_sink import folder_key, visible_names
from flinkish.connectors.files.file_system import absolute_uri, open_file_system
from flinkish.connectors.files.part_writer import ParquetPart, PartSinkWriter, as_schema
from flinkish.connectors.spi import CommitId, Committer, Sink, SinkWriter, WriterInitContext
from flinkish.errors import InvalidJobError, ResourceError

_MODES = ("error", "append", "overwrite")


@dataclass(frozen=True)
class DeltaFile:
    """A complete file that no transaction names yet; ``path`` None: this writer had no records.  ``version``:
    of the transaction in a job without checkpoints."""

    application_id: str
    version: int
    path: Optional[str]
    size: int
    rows: int
    modified_ms: int


class DeltaSink(Sink[Any]):
    """Records as a Delta table.  Takes what ``ParquetSink`` takes.

    >>> stream.sink_to(DeltaSink("tables/rides", {"id": pa.int64(), "fare": pa.float64()}, mode="append"))

    Args:
        path: folder of the table, local or a URI that ``deltalake`` and ``pyarrow.fs`` know.
        schema: a ``pyarrow.Schema`` or a dict name -> type.  Delta stores timestamps in microseconds.
        mode: "error": the table must not exist; "append"; "overwrite": replace its content, with the first
            transaction.  A job that goes on from a checkpoint appends.
        storage_options: for ``deltalake`` (keys, region, endpoint).
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
        self.part_format = ParquetPart(schema, file_schema=_microseconds(schema))
        self.mode = mode
        self.storage_options = storage_options
        self._token = uuid.uuid4().hex[:12]
        self._operator = ""  # of the driver's object only: whose files it may remove; "": all with the token
        self._replaces = mode == "overwrite"  # of the driver's object only

    @property
    def schema(self) -> pa.Schema:
        """Of the table."""
        return self.part_format.file_schema

    def for_operator(self, job_id: str, operator_id: str) -> "DeltaSink":
        owned = copy.copy(self)
        owned._operator = operator_id[:8]
        return owned

    def written_folder(self) -> tuple[str, bool]:
        return folder_key(self.uri), self.mode == "overwrite"

    def validate_restored(self) -> None:
        self._replaces = False

    def validate(self) -> None:
        deltalake = _import_deltalake()
        self._replaces = self.mode == "overwrite"
        if deltalake.DeltaTable.is_deltatable(self.uri, self.storage_options):
            if self.mode == "error":
                raise InvalidJobError(
                    f"could not write to {self.uri}",
                    why="there is a Delta table already",
                    do='name another folder, or use mode="append" or "overwrite"',
                )
            return
        system, path = open_file_system(self.uri)
        found = visible_names(system, path)
        if found:
            raise InvalidJobError(
                f"could not write to {self.uri}",
                why=f"the folder is no Delta table and holds {found[0]}",
                do="name an empty folder or a Delta table",
            )

    def create_writer(self, context: WriterInitContext) -> SinkWriter[Any]:
        return _DeltaWriter(self, context)

    def create_committer(self) -> Committer:
        return _DeltaCommitter(self)


class _DeltaWriter(PartSinkWriter):
    """Files get their final names at once: a reader sees only what a transaction names."""

    def __init__(self, sink: DeltaSink, context: WriterInitContext):
        super().__init__(sink.uri, sink.part_format)
        self._application_id = f"flinkish-{context.job_id()}-{context.operator_id()}"
        # The operator's id: one sink object may be two sinks of a job.
        origin = f"{sink._token}-{context.operator_id()[:8]}"
        self._stem = f"part-{origin}-{context.index_of_subtask():05d}-{context.attempt_number()}"
        self._commits = 0
        self._input_ended = False

    def next_name(self) -> str:
        return f"{self._stem}-{self._commits:05d}{self._format.suffix}"

    def flush(self, end_of_input: bool) -> None:
        self._input_ended = end_of_input

    def prepare_commit(self) -> list[Any]:
        version = self._commits
        if self._file is None:
            nothing = DeltaFile(self._application_id, version, None, 0, 0, 0)
            return [nothing] if self._input_ended else []
        rows, path = self.finish_file(), self._name
        self._commits += 1
        info = self._system.get_file_info(f"{self._folder}/{path}")
        modified_ms = int(info.mtime.timestamp() * 1_000) if info.mtime else 0
        return [DeltaFile(self._application_id, version, path, info.size, rows, modified_ms)]


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
            self._commit(application_id, version, [file for file in files if file.path])

    def commit_checkpoint(self, committables: Iterable[DeltaFile], commit_id: CommitId) -> None:
        application_id = f"flinkish-{commit_id.job_id}-{commit_id.run_id}-{commit_id.operator_id}"
        files = [file for file in committables if file.path]
        self._commit(application_id, commit_id.checkpoint_id, files)

    def job_finished(self) -> None:
        """A result without rows is a table without rows."""
        sink = self._sink
        from deltalake import DeltaTable

        if sink._replaces or not DeltaTable.is_deltatable(sink.uri, sink.storage_options):
            self._commit(f"flinkish-{sink._token}", 0, [])

    def _commit(self, application_id: str, version: int, files: list[DeltaFile]) -> None:
        from deltalake import CommitProperties, DeltaTable, Schema, Transaction
        from deltalake.transaction import AddAction, create_table_with_add_actions

        sink = self._sink
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
        if not DeltaTable.is_deltatable(sink.uri, sink.storage_options):
            system, path = open_file_system(sink.uri)
            system.create_dir(path, recursive=True)
            create_table_with_add_actions(
                sink.uri,
                Schema.from_arrow(sink.schema),
                actions,
                mode="error",
                storage_options=sink.storage_options,
                commit_properties=properties,
            )
            sink._replaces = False
            return
        table = DeltaTable(sink.uri, storage_options=sink.storage_options)
        known = table.transaction_version(application_id)
        if known is not None and known >= version:
            sink._replaces = False
            return  # this transaction is in the table already
        # Only the first transaction of a job replaces what was there before it.
        mode = "overwrite" if sink._replaces and known is None else "append"
        if actions or mode == "overwrite":
            table.create_write_transaction(
                actions, mode, Schema.from_arrow(sink.schema), commit_properties=properties
            )
            sink._replaces = False

    def abort(self, committables: Iterable[DeltaFile]) -> None:
        system, folder = open_file_system(self._sink.uri)
        aborted = {file.path for file in committables if file.path is not None}
        for name in sorted(aborted - self._committed_names() if aborted else ()):
            if system.get_file_info(f"{folder}/{name}").type == fs.FileType.File:
                system.delete_file(f"{folder}/{name}")

    def remove_leftovers(self, kept: Iterable[DeltaFile]) -> None:
        """Files of slots that were killed."""
        system, folder = open_file_system(self._sink.uri)
        selector = fs.FileSelector(folder, allow_not_found=True)
        needed = self._committed_names() | {file.path for file in kept}
        for info in system.get_file_info(selector):
            if info.base_name.startswith(f"part-{self._sink._token}-{self._sink._operator}") and info.base_name not in needed:
                system.delete_file(info.path)

    def _committed_names(self) -> frozenset[str]:
        from deltalake import DeltaTable

        sink = self._sink
        if not DeltaTable.is_deltatable(sink.uri, sink.storage_options):
            return frozenset()
        table = DeltaTable(sink.uri, storage_options=sink.storage_options)
        return frozenset(uri.rsplit("/", 1)[-1] for uri in table.file_uris())


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


def _microseconds(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [
            field.with_type(pa.timestamp("us", tz=field.type.tz))
            if pa.types.is_timestamp(field.type)
            else field
            for field in schema
        ]
    )
