"""Folders and files of checkpoints, on any file system that ``pyarrow.fs`` knows::

    <dir>/<job id>/chk-<n>/        one checkpoint: its files, and _metadata, written last
    <dir>/<job id>/shared/         files that several checkpoints use
    <dir>/<job id>/taskowned/      files that slots delete themselves
    <savepoint dir>/savepoint-<first six of the job id>-<random>/

Files are written once, under names that nobody has used, so whoever writes for an attempt that is over
disturbs nobody.  `_metadata` appears whole or not at all: on a local disk it is written beside, synced, and
linked to its name; an object store shows a file when all of it is there.  A folder without a whole
`_metadata` is no checkpoint, is never chosen, and `list_checkpoints` says why.

URIs that leave this module carry no query and no password; the storage opens them by its own, and `storage_at` finds
the one that can.

All methods block; they belong on a thread that may wait.  One object may be used by several threads.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Mapping, Optional, TypeVar

import pyarrow as pa
from pyarrow import fs

from flinkish.common import options
from flinkish.common.file_system import absolute_uri, open_file_system, without_secrets
from flinkish.errors import CheckpointStorageError, CorruptSnapshotError, InvalidJobError
from flinkish.messages.checkpoints import Bytes, CompletedCheckpoint, FileHandle, InlineBytes
from flinkish.storage.metadata import decode_metadata, encode_metadata

METADATA = "_metadata"
SHARED, TASK_OWNED = "shared", "taskowned"
METADATA_BYTES_MAX = 1 << 30
#: Into memory at once, for `CheckpointStorage.read`.
READ_BYTES_MAX = 1 << 34

_CHECKPOINT = re.compile(r"chk-([0-9]{1,19})")
_SAVEPOINT = re.compile(r"savepoint-[A-Za-z0-9_-]{1,64}")
_JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
#: What lies in the folder of a checkpoint: files with names by chance, `_metadata`, and what is half written.
_OWN_FILE = re.compile(r"[0-9a-f]{32}|_metadata|\.[A-Za-z0-9_.-]+\.inprogress")
_COPY_BYTES = 1 << 20
_T = TypeVar("_T")


@dataclass(frozen=True)
class FoundCheckpoint:
    """A folder ``chk-<checkpoint_id>``; ``problem``: why it is no whole checkpoint, None when it is one;
    ``completed``: it has a `_metadata`, so what belongs to it may be published."""

    checkpoint_id: int
    location: str
    problem: Optional[str]
    completed: bool


@dataclass(frozen=True)
class FoundSavepoint:
    """A folder ``savepoint-...`` or ``chk-<n>``; ``problem``: why it is not whole, None when it is."""

    location: str
    savepoint: Optional[CompletedCheckpoint] = None
    problem: Optional[str] = None

    @property
    def completed_ms(self) -> int:
        return 0 if self.savepoint is None else self.savepoint.completed_ms


class SnapshotStream:
    """A new file.  As a context manager it is closed at a good end, and given up after an error.

    Where the store shows a file before it is whole, one with a name that says something (``final_path``)
    is written beside, and gets its name when it is whole."""

    def __init__(self, storage: "CheckpointStorage", path: str, final_path: Optional[str] = None):
        self._storage, self._path, self._final_path = storage, path, final_path or path
        self._size = 0
        self._open = True
        self._stream: Any = storage._attempt("write", path, lambda: storage._create(path))

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._storage._attempt("write", self._path, lambda: self._stream.write(data))
        self._size += size
        return size

    def close(self) -> FileHandle:
        """Make the file durable."""
        if self._open:
            self._open = False
            try:
                self._storage._attempt("write", self._path, self._finish)
            except CheckpointStorageError:
                self._storage._delete_file(self._path)
                raise
        return FileHandle(self._storage._uri(self._final_path), self._size)

    def _finish(self) -> None:
        if self._storage.is_local:
            self._stream.flush()
            os.fsync(self._stream.fileno())
        self._stream.close()
        if self._final_path != self._path:
            self._storage._rename(self._path, self._final_path)

    def abort(self) -> None:
        """Give up and remove what was written; nothing when it is closed."""
        if self._open:
            self._open = False
            try:
                self._storage._attempt("close", self._path, self._stream.close)
            finally:
                self._storage._delete_file(self._path)

    def __enter__(self) -> "SnapshotStream":
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class CheckpointStorage:
    """Checkpoints below one folder.

    Args:
        directory: path or URI (``execution.checkpointing.dir``); an S3 URI may name its server in the query
            (``?endpoint_override=localhost:9000&scheme=http``).
        configuration: with Flink's ``s3.*`` keys.
        lazy: an S3 server is asked nothing before the first file, which a thread makes that may wait.
    Raises:
        InvalidJobError: there is no file system for the URI.
    """

    def __init__(self, directory: Any, configuration: Optional[Mapping[str, Any]] = None, lazy: bool = False):
        uri = absolute_uri(directory)
        if uri.startswith("file:"):  # one form for local files
            uri = open_file_system(uri)[1]
        shown = without_secrets(uri).rstrip("/")
        self._uri_given, self._configuration = uri, configuration
        self._opened: Optional[fs.FileSystem] = None
        if lazy and uri.startswith("s3://"):
            path = shown[len("s3://") :]
        else:
            self._opened, path = open_file_system(uri, configuration)
        self.is_local = isinstance(self._opened, fs.LocalFileSystem)
        self._shows_parts = self.is_local or isinstance(self._opened, fs.HadoopFileSystem)
        self._base = path.rstrip("/") or "/"
        assert shown.endswith(self._base.rstrip("/")), f"{shown} does not end with {self._base}"
        self._prefix = shown[: len(shown) - len(self._base.rstrip("/"))]

    @property
    def _fs(self) -> fs.FileSystem:
        if self._opened is None:
            self._opened = open_file_system(self._uri_given, self._configuration)[0]
        return self._opened

    @property
    def directory(self) -> str:
        return self._uri(self._base)

    # ---- places ---------------------------------------------------------------------------------

    def checkpoint_location(self, job_id: str, checkpoint_id: int) -> str:
        return f"{self._job(job_id)}/chk-{int(checkpoint_id)}"

    def shared_location(self, job_id: str) -> str:
        return f"{self._job(job_id)}/{SHARED}"

    def task_owned_location(self, job_id: str) -> str:
        return f"{self._job(job_id)}/{TASK_OWNED}"

    def savepoint_location(self, job_id: str) -> str:
        """A new name for a savepoint in this directory."""
        self._job(job_id)
        return f"{self.directory}/savepoint-{job_id[:6]}-{secrets.token_hex(6)}"

    def _job(self, job_id: str) -> str:
        if not _JOB_ID.fullmatch(job_id):
            raise InvalidJobError(
                f"could not use {job_id[:100]!r} as the id of a job",
                why="it names a folder: letters, digits, - and _ may stand in it, at most 128",
            )
        return f"{self.directory}/{job_id}"

    def create_folder(self, location: str) -> None:
        """And those above it; it may exist."""
        path = self._path(location)
        self._attempt("create", path, lambda: self._fs.create_dir(path, recursive=True))

    def require(self) -> None:
        """Raises: CheckpointStorageError: the folder is on a local disk and cannot be made, or its server does not answer
        or refuses to."""
        if isinstance(self._fs, fs.LocalFileSystem):
            self.create_folder(self.directory)
        else:
            self._attempt("look", self._base, lambda: self._fs.get_file_info(self._base))

    # ---- files ----------------------------------------------------------------------------------

    def create_file(self, location: str) -> SnapshotStream:
        """A new file in the folder ``location``, under a name of its own."""
        return SnapshotStream(self, f"{self._path(location)}/{secrets.token_hex(16)}")

    def create_named_file(self, location: str, name: str) -> SnapshotStream:
        """A new file whose name is the address of its content: who writes it twice writes the same."""
        return self._create_named(self._named(location, name))

    def _named(self, location: str, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,255}", name) or name in (".", "..", METADATA):
            raise InvalidJobError(f"could not use {name[:100]!r} as the name of a file of a checkpoint")
        return f"{self._path(location)}/{name}"

    def _create_named(self, path: str) -> SnapshotStream:
        if not self._shows_parts:
            return SnapshotStream(self, path)
        folder, _, name = path.rpartition("/")
        return SnapshotStream(self, f"{folder}/.{name}.{secrets.token_hex(8)}.inprogress", path)

    def write(self, location: str, data: Any) -> FileHandle:
        with self.create_file(location) as stream:
            stream.write(data)
        return stream.close()

    def upload(self, local_path: str, location: str, name: Optional[str] = None) -> FileHandle:
        """Copy a file of this machine; Python holds no GIL while the bytes are on their way."""
        with open(local_path, "rb") as source:
            stream = self.create_file(location) if name is None else self.create_named_file(location, name)
            with stream:
                while chunk := source.read(_COPY_BYTES):
                    stream.write(chunk)
        return stream.close()

    def adopt(self, local_path: str, location: str, name: str) -> FileHandle:
        """`upload` of a file that nobody changes any more: where storage and file lie on one disk, its bytes are not
        copied but get a second name.  ``name`` is the address of its content; the file must be durable."""
        path = self._named(location, name)
        if not self.is_local:
            return self.upload(local_path, location, name)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.link(local_path, path)
        except FileExistsError:
            return FileHandle(self._uri(path), os.path.getsize(path))
        except OSError:  # another disk, or one without links
            return self.upload(local_path, location, name)
        self._attempt("write", path, lambda: _sync_folder(os.path.dirname(path)))
        return FileHandle(self._uri(path), os.path.getsize(path))

    def download(self, content: Bytes, local_path: str) -> None:
        """A handle's bytes as a new file of this machine."""
        with open(local_path, "xb") as target:
            if isinstance(content, InlineBytes):
                target.write(content.data)
                return
            with self.open_file(content) as source:
                while chunk := source.read(_COPY_BYTES):
                    target.write(chunk)

    def open_file(self, handle: FileHandle) -> BinaryIO:
        """A file that can seek.

        Raises:
            CorruptSnapshotError: the file is gone or has another size than the handle says.
        """
        system, path = self._resolve(handle.uri)
        size = self._attempt("read", path, lambda: system.get_file_info(path)).size
        if size != handle.size:
            raise CorruptSnapshotError(
                "could not read a file of a checkpoint",
                where=without_secrets(handle.uri),
                why="it is gone" if size is None else f"it has {size} bytes, {handle.size} were written",
                do="restore from another checkpoint or savepoint",
            )
        return self._attempt("read", path, lambda: system.open_input_file(path))

    def read(self, content: Bytes) -> bytes:
        """All bytes of a handle."""
        if isinstance(content, InlineBytes):
            return content.data
        if content.size > READ_BYTES_MAX:
            raise CheckpointStorageError(
                "could not read a file into memory", where=content.uri, why=f"it has {content.size} bytes"
            )
        with self.open_file(content) as source:
            return self._attempt("read", content.uri, source.read)

    # ---- metadata -------------------------------------------------------------------------------

    def store_metadata(self, checkpoint: CompletedCheckpoint) -> str:
        """Write the `_metadata` of ``checkpoint`` into its location: from here on it is complete.  Its URI.

        Raises:
            CheckpointStorageError: it is there already (another leader was first), or cannot be written.
        """
        data = encode_metadata(checkpoint)
        folder = self._path(checkpoint.location)
        path = f"{folder}/{METADATA}"
        if self._attempt("write", path, lambda: self._fs.get_file_info(path)).type != fs.FileType.NotFound:
            raise self._failure("write", path, "it is there already: a checkpoint is completed once")
        with self._create_named(path) as stream:
            stream.write(data)
        return self._uri(path)

    def _rename(self, path: str, final_path: str) -> None:
        if not self.is_local:
            self._fs.move(path, final_path)
            return
        if final_path.endswith("/" + METADATA):
            os.link(path, final_path)  # unlike rename it fails when another leader was first
            os.unlink(path)
        else:
            os.replace(path, final_path)  # the same content
        _sync_folder(os.path.dirname(final_path))

    def load(self, pointer: Any) -> CompletedCheckpoint:
        """The checkpoint or savepoint at ``pointer``: its folder or its `_metadata`, anywhere.

        Raises:
            CorruptSnapshotError: there is none, or it is not whole.
        """
        return self._load(*self._folder(pointer))

    def _folder(self, pointer: Any) -> tuple[fs.FileSystem, str, str]:
        """File system, path and location of the folder that ``pointer`` names, or its `_metadata`."""
        uri = absolute_uri(pointer).rstrip("/")
        if uri.startswith("file:"):
            uri = open_file_system(uri)[1]
        query = uri.partition("?")[2]
        shown = without_secrets(uri)
        if shown.endswith("/" + METADATA):
            shown = shown[: -len(METADATA) - 1]
        system, path = self._resolve(uri if query or "@" in uri else shown)
        path = path.rstrip("/")
        if path.endswith("/" + METADATA):
            path = path[: -len(METADATA) - 1]
        return system, path, shown

    def _load(self, system: fs.FileSystem, folder: str, location: str) -> CompletedCheckpoint:
        path = f"{folder}/{METADATA}"
        info = self._attempt("read", path, lambda: system.get_file_info([path, folder]))
        if info[0].type != fs.FileType.File:
            why = "the folder has no _metadata: it was not completed, or is being deleted"
            if info[1].type == fs.FileType.NotFound:
                why = "there is no such folder"
            raise CorruptSnapshotError(
                "could not find a checkpoint",
                where=location,
                why=why,
                do="name a folder that has a _metadata",
                completed=False,
            )
        if info[0].size > METADATA_BYTES_MAX:
            raise CorruptSnapshotError(
                "could not read the metadata of a checkpoint",
                where=path,
                why=f"it has {info[0].size} bytes, at most {METADATA_BYTES_MAX} are read",
                do="restore from another checkpoint or savepoint",
            )

        def read() -> bytes:
            with system.open_input_file(path) as source:
                return source.read()

        try:
            data = self._attempt("read", path, read)
        except CheckpointStorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            raise CorruptSnapshotError(
                "could not find a checkpoint", where=location, why="it has just been deleted", completed=False
            ) from error
        return decode_metadata(data, location)

    def job_ids(self) -> list[str]:
        """Jobs that have a folder here, sorted."""
        selector = fs.FileSelector(self._base, allow_not_found=True)
        infos = self._attempt("list", self._base, lambda: self._fs.get_file_info(selector))
        folders = [info.base_name for info in infos if info.type == fs.FileType.Directory]
        return sorted(name for name in folders if _JOB_ID.fullmatch(name))

    def list_savepoints(self) -> list[FoundSavepoint]:
        """All savepoints and checkpoints in this folder, newest first, those that are not whole with the reason:
        directly, or as checkpoints of a job (``<job id>/chk-<n>``).

        Raises:
            CheckpointStorageError: there is no such folder, or it cannot be read.
        """
        kind = self._attempt("list", self._base, lambda: self._fs.get_file_info(self._base)).type
        if kind != fs.FileType.Directory:
            raise CheckpointStorageError(
                "could not list savepoints",
                where=self.directory,
                why="there is no such folder" if kind == fs.FileType.NotFound else "it is no folder",
                do="name the folder that savepoints are written into (execution.checkpointing.savepoint-dir)",
            )
        folders = self._folders(self._base)
        snapshots = [info for info in folders if _is_snapshot(info.base_name)]
        for info in folders:
            if _JOB_ID.fullmatch(info.base_name) and not _is_snapshot(info.base_name):
                snapshots += [inner for inner in self._folders(info.path) if _CHECKPOINT.fullmatch(inner.base_name)]
        found = []
        for info in snapshots:
            location = self._uri(info.path)
            try:
                found.append(FoundSavepoint(location, self._load(self._fs, info.path, location)))
            except CorruptSnapshotError as error:
                found.append(FoundSavepoint(location, problem=error.why))
        return sorted(found, key=lambda one: (one.completed_ms, one.location), reverse=True)

    def _folders(self, path: str) -> list[Any]:
        infos = self._attempt("list", path, lambda: self._fs.get_file_info(fs.FileSelector(path)))
        return [info for info in infos if info.type == fs.FileType.Directory]

    def list_checkpoints(self, job_id: str) -> list[FoundCheckpoint]:
        """All folders ``chk-<n>`` of a job, newest first, those that are not whole with the reason."""
        return [found for found, _ in self._checkpoints(job_id)]

    def newest_complete(self, job_id: str) -> tuple[Optional[CompletedCheckpoint], list[FoundCheckpoint]]:
        """The newest whole checkpoint of a job, and the newer folders that are none, to be told."""
        passed_over = []
        for found, checkpoint in self._checkpoints(job_id):
            if checkpoint is not None:
                return checkpoint, passed_over
            passed_over.append(found)
        return None, passed_over

    def _checkpoints(self, job_id: str) -> Iterator[tuple[FoundCheckpoint, Optional[CompletedCheckpoint]]]:
        """Newest first, each with its metadata if it is whole."""
        for checkpoint_id, path in self._checkpoint_folders(job_id):
            location = self._uri(path)
            try:
                checkpoint = self._load(self._fs, path, location)
            except CorruptSnapshotError as error:
                completed = error.fields.get("completed", True)
                yield FoundCheckpoint(checkpoint_id, location, error.why, completed), None
                continue
            if checkpoint.job_id == job_id and checkpoint.checkpoint_id == checkpoint_id:
                yield FoundCheckpoint(checkpoint_id, location, None, True), checkpoint
                continue
            why = f"its metadata are those of checkpoint {checkpoint.checkpoint_id} of {checkpoint.job_id}"
            yield FoundCheckpoint(checkpoint_id, location, why, True), None

    def complete_checkpoints(self, job_id: str) -> list[CompletedCheckpoint]:
        """All that a job has.

        Raises:
            CorruptSnapshotError: one of them cannot be read, or others came or went meanwhile.
        """
        complete, folders = [], self._checkpoint_folders(job_id)
        for found, checkpoint in self._checkpoints(job_id):
            if checkpoint is not None:
                complete.append(checkpoint)
            elif found.completed:
                raise CorruptSnapshotError(
                    "could not read all checkpoints of a job", where=found.location, why=found.problem or ""
                )
        if self._checkpoint_folders(job_id) != folders:
            raise CorruptSnapshotError(
                "could not read all checkpoints of a job", where=self._job(job_id), why="some came or went meanwhile"
            )
        return complete

    def shared_files(self, job_id: str) -> list[FileHandle]:
        """All in the folder of files that several checkpoints use, also what is half written."""
        path = self._path(self.shared_location(job_id))
        selector = fs.FileSelector(path, allow_not_found=True)
        infos = self._attempt("list", path, lambda: self._fs.get_file_info(selector))
        return [FileHandle(self._uri(info.path), info.size) for info in infos if info.type == fs.FileType.File]

    def unfinished(self, job_id: str) -> list[str]:
        """Locations of the folders ``chk-<n>`` of a job without a `_metadata`."""
        locations = (self._uri(path) for _, path in self._checkpoint_folders(job_id))
        return [location for location in locations if not self.is_complete(location)]

    def is_complete(self, location: str) -> bool:
        """Whether there is a `_metadata`, of whatever worth."""
        system, path = self._resolve(location)
        path = f"{path.rstrip('/')}/{METADATA}"
        return self._attempt("read", path, lambda: system.get_file_info(path)).type != fs.FileType.NotFound

    def _checkpoint_folders(self, job_id: str) -> list[tuple[int, str]]:
        path = self._path(self._job(job_id))
        selector = fs.FileSelector(path, allow_not_found=True)
        infos = self._attempt("list", path, lambda: self._fs.get_file_info(selector))
        matches = [(_CHECKPOINT.fullmatch(info.base_name), info) for info in infos]
        return sorted(
            ((int(match[1]), info.path) for match, info in matches if match and info.type == fs.FileType.Directory),
            reverse=True,
        )

    # ---- deleting -------------------------------------------------------------------------------

    def delete_file(self, handle: FileHandle) -> None:
        """It may be gone already."""
        system, path = self._resolve(handle.uri)
        self._delete_file(path, system)

    def forget(self, files: Iterable[FileHandle], *locations: str) -> None:
        """Delete files that a slot has written into these folders for checkpoints which nobody wants any more.  Who has
        deleted the folders, and that of their job, may have been there before, so they go too where nothing is left in
        them."""
        for file in files:
            self.delete_file(file)
        for location in locations:
            if location.startswith("/"):  # elsewhere another slot's first file there might go with the folder
                self.delete_if_empty(location)

    def delete_if_empty(self, location: str) -> None:
        """Delete a folder in which nothing is left, and that of its job behind a checkpoint's or that of shared files.
        Nobody else may write there meanwhile, but on a local disk.  In an object store such a folder is an object too:
        `pyarrow` makes it when the last file is deleted."""
        system, path = self._resolve(location)
        path = path.rstrip("/")
        folder, _, name = path.rpartition("/")
        for emptied in (path, folder) if _CHECKPOINT.fullmatch(name) or name == SHARED else (path,):
            if not self._is_deleted_if_empty(emptied, system):
                return

    def _is_deleted_if_empty(self, path: str, system: fs.FileSystem) -> bool:
        """Whether there is no such folder now."""
        if isinstance(system, fs.LocalFileSystem):
            try:
                os.rmdir(path)
            except FileNotFoundError:
                return True
            except OSError:  # others have files there
                return False
            return True
        selector = fs.FileSelector(path, allow_not_found=True)
        if self._attempt("list", path, lambda: system.get_file_info(selector)):
            return False
        self._delete_folder(path, system)
        return True

    def files_of_snapshot(self, pointer: Any) -> tuple[str, list[str]]:
        """Location of a checkpoint's or savepoint's folder, which need not be whole, and the names of its files.

        Raises:
            CheckpointStorageError: there is none, or it is none by its name and what lies in it.
        """
        system, path, location = self._folder(pointer)
        selector = fs.FileSelector(path, allow_not_found=True)
        kind = self._attempt("read", path, lambda: system.get_file_info(path)).type
        infos = [] if kind == fs.FileType.File else self._attempt("list", path, lambda: system.get_file_info(selector))
        foreign = sorted(
            info.base_name for info in infos if info.type != fs.FileType.File or not _OWN_FILE.fullmatch(info.base_name)
        )
        if kind == fs.FileType.NotFound:
            why = "there is no such folder"
        elif kind == fs.FileType.File:
            why = "it is no folder"
        elif not _is_snapshot(path.rpartition("/")[2]):
            why = "its name is not that of a savepoint or checkpoint (savepoint-..., chk-<n>)"
        elif foreign:
            why = f"what lies in it is not all of a checkpoint: {', '.join(foreign[:5])}"
        else:
            return location, [info.base_name for info in infos]
        raise CheckpointStorageError(
            "could not find a savepoint or checkpoint", where=location, why=why, do="name the folder of one"
        )

    def discard(self, location: str) -> None:
        """Delete a checkpoint's or savepoint's folder with all that lies in it; it may be gone already.  Its
        `_metadata` goes first, so that a half-deleted folder is no checkpoint; shared files stay."""
        system, path = self._resolve(location)
        path = path.rstrip("/")
        name = path.rpartition("/")[2]
        if not _is_snapshot(name):
            raise CheckpointStorageError(
                "could not delete a folder", where=without_secrets(location), why="it is no checkpoint or savepoint"
            )
        self._delete_file(f"{path}/{METADATA}", system)
        self._delete_folder(path, system)

    def discard_job(self, job_id: str) -> None:
        """Delete what is left of a job whose checkpoints are all discarded: its folders, and shared files."""
        for folder in (self.shared_location(job_id), self.task_owned_location(job_id), self._job(job_id)):
            self._delete_folder(self._path(folder), self._fs)

    def _delete_folder(self, path: str, system: fs.FileSystem) -> None:
        def delete() -> None:
            if system.get_file_info(path).type == fs.FileType.Directory:
                system.delete_dir(path)

        for tries_left in (1, 0):
            try:
                self._attempt("delete", path, delete)
            except CheckpointStorageError:
                if system.get_file_info(path).type == fs.FileType.NotFound:
                    return  # somebody else has deleted it
                if not tries_left:
                    raise  # else a slot has just written into it

    def _delete_file(self, path: str, system: Optional[fs.FileSystem] = None) -> None:
        system = system or self._fs
        try:
            self._attempt("delete", path, lambda: system.delete_file(path))
        except CheckpointStorageError:
            if system.get_file_info(path).type == fs.FileType.File:
                raise

    # ---- paths and failures ---------------------------------------------------------------------

    def _create(self, path: str) -> Any:
        if not self.is_local:
            return self._fs.open_output_stream(path)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return open(path, "xb")
        except FileNotFoundError:  # somebody has just deleted the empty folder, see `forget`
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return open(path, "xb")

    def _uri(self, path: str) -> str:
        return self._prefix + path

    def _path(self, location: str) -> str:
        """Path of a folder of this storage's file system."""
        return self._resolve(location)[1].rstrip("/")

    def _resolve(self, uri: str) -> tuple[fs.FileSystem, str]:
        """File system and path of any URI; those of this storage's server need no query."""
        if ".." in uri.split("/"):
            raise InvalidJobError("could not use a path", where=without_secrets(uri), why='".." stands in it')
        if uri.startswith("file:"):
            uri = open_file_system(uri)[1]
        if self.is_local and uri.startswith("/"):
            return self._fs, uri
        if self.reaches(uri):
            return self._fs, uri[len(self._prefix) :]
        return open_file_system(uri, self._configuration)

    def reaches(self, uri: str) -> bool:
        """Whether it lies in the bucket of this storage, so that it opens it with its own keys."""
        own = f"{self._prefix}{self._base.partition('/')[0]}/"
        return not self.is_local and "?" not in uri and uri.startswith(own)

    def _attempt(self, verb: str, path: str, action: Callable[[], _T]) -> _T:
        try:
            return action()
        except (OSError, pa.ArrowException) as error:
            raise self._failure(verb, path, f"{type(error).__name__}: {error}") from error

    def _failure(self, verb: str, path: str, why: str) -> CheckpointStorageError:
        return CheckpointStorageError(
            f"could not {verb} in the checkpoint storage",
            where=without_secrets(path if "://" in path else self._uri(path)),
            why=why,
            do="check the folder, its rights and its space (execution.checkpointing.dir)",
        )


#: Settings whose URI may say in its query how its server is reached.
_WITH_SERVERS = options.CHECKPOINT_DIRECTORY, options.SAVEPOINT_DIRECTORY, options.STATE_RECOVERY_PATH


def storage_at(location: str, configuration: Mapping[str, Any], lazy: bool = False) -> CheckpointStorage:
    """A storage that reaches ``location``, a URI as `CheckpointStorage` gives them.

    Args:
        configuration: of the job; one of its folders may be named by a URI with a query, which says how the server is
            reached, and then this is so for all in its bucket.
    """
    if not location.startswith("/"):
        for option in _WITH_SERVERS:
            folder = options.read(configuration, option)
            if folder is not None and ("?" in folder or "@" in folder):
                storage = CheckpointStorage(folder, configuration, lazy)
                if storage.reaches(location):
                    return storage
    return CheckpointStorage(location, configuration, lazy)


def _is_snapshot(name: str) -> bool:
    return bool(_CHECKPOINT.fullmatch(name) or _SAVEPOINT.fullmatch(name))


def _sync_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
