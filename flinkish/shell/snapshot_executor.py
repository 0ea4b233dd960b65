"""Stores the snapshots of a slot's subtasks without holding up its one thread.

What happens to the keyed state of one snapshot (all else is in the message already)::

    nothing there, or it fits into 1 MiB ──written here, into memory──┬─ up to 20 kB ──> in the message
                                                                      └─ more ──> the thread writes a file
    more ──> a forked child writes it ──┬─ local storage: the file itself
                                        ├─ other storage: a file without a name, which the thread uploads
                                        └─ storage in the driver: into its answer

**Why a child.** Its memory stands still, also for objects that user code changes in place, and it does not share
the GIL: a Python thread that pickles cut a busy loop from 5.0 to 1.15 M records/s.  The fork itself copies page
tables only; the figures are in docs/decisions.  One child works at a time: one that is forked while another
works waits until that has ended (its memory is what it was at its barrier, `snapshot_children`).  The thread runs what
frees the GIL.

What a checkpoint adds to a changelog (`state.changelog`) is written in the same way, and goes to the folder of shared
files.  A child writes it, and a base, to a file without a name, for one that is killed must leave nothing there.

State in a database (rocksdb) stands still without a child, which could not use the database's threads: the thread writes
it (`database_snapshots`).

What an unaligned barrier has overtaken is bytes already: up to 20 kB in the message, else the thread writes a file.

What the thread writes while its snapshot is dropped, it deletes again: the JobManager may have deleted the folder before.
"""

from __future__ import annotations

import functools
import io
import logging
import queue
import threading
import time
from typing import IO, Any, BinaryIO, Callable, Iterable, Mapping, Optional, Union

from flinkish.common import options as config
from flinkish.errors import FlinkishError, InternalError
from flinkish.messages.checkpoints import (
    Bytes,
    CheckpointOptions,
    FileHandle,
    IncrementalKeyedStateHandle,
    InFlightPart,
    InlineBytes,
    KeyedStateHandle,
)
from flinkish.messages.deployment import ExecutionAttemptID
from flinkish.operators.snapshots import TaskSnapshot
from flinkish.shell.database_snapshots import BaseMaterialiser, write_snapshot
from flinkish.shell.event_loop import EventLoop
from flinkish.shell.snapshot_children import BASES, CHECKPOINTS, Contents, Files, SnapshotChildren, close_files
from flinkish.storage.checkpoint_storage import CheckpointStorage, storage_at

log = logging.getLogger(__name__)

#: What may be written between two records: 1 MiB takes about 5 ms, a fork as long with a few GB of memory.
SYNCHRONOUS_ENTRIES_MAX = 2_000
SYNCHRONOUS_BYTES_MAX = 1 << 20
#: Flink's ``state.storage.fs.memory-threshold``.
INLINE_BYTES_MAX = 20 * 1024

_READ_BYTES = 1 << 20
#: What is being written when the slot ends is deleted again, if that takes no longer.
_END_TIMEOUT_S = 2.0

Handles = dict[str, tuple[Union[KeyedStateHandle, IncrementalKeyedStateHandle], ...]]
_Key = tuple[ExecutionAttemptID, int]


class _TooLarge(Exception):
    pass


class _BoundedBuffer(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > SYNCHRONOUS_BYTES_MAX:
            raise _TooLarge
        return super().write(data)


class SnapshotExecutor:
    """Lives in the loop's thread; all methods are called there.

    Args:
        on_stored: (execution, checkpoint id, handles by operator id, ms it took, bytes written); may be called
            before ``store`` returns.
        on_failed: (execution, checkpoint id, error).
        on_in_flight_stored: (execution, checkpoint id, content, parts); may be called before ``store_in_flight``
            returns.
    """

    def __init__(
        self,
        loop: EventLoop,
        on_stored: Callable[[ExecutionAttemptID, int, Handles, int, int], None],
        on_failed: Callable[[ExecutionAttemptID, int, FlinkishError], None],
        on_in_flight_stored: Callable[[ExecutionAttemptID, int, Bytes, tuple[InFlightPart, ...]], None],
    ):
        self._loop = loop
        self._on_stored, self._on_failed = on_stored, on_failed
        self._on_in_flight_stored = on_in_flight_stored
        self._configuration: Mapping[str, Any] = {}
        self._storages: dict[str, CheckpointStorage] = {}
        self._children = SnapshotChildren(loop)
        self._wanted: set[_Key] = set()  # of what children and the thread do
        self._wanted_in_flight: set[_Key] = set()
        self._worker: Optional[_Worker] = None
        self._base_worker: Optional[_Worker] = None  # so that no acknowledgement waits for a base
        self._closed = False

    def configure(self, configuration: Mapping[str, Any]) -> None:
        """The job's; nothing is under way."""
        assert not self._wanted
        self._configuration = configuration
        self._storages.clear()

    # ---- what the slot asks ---------------------------------------------------------------------

    def store(self, snapshot: TaskSnapshot) -> None:
        """Make it durable.  State may change as soon as this returns."""
        begun_ns = time.monotonic_ns()
        key = snapshot.execution, snapshot.checkpoint_id
        try:
            storage = None if snapshot.options.is_inline else self._storage_of(snapshot.options)
            if any(part.stands_still for part in snapshot.keyed.values()):
                self._write_databases(key, snapshot, storage, begun_ns)
                return
            written = _write_synchronously(snapshot)
            if written is None:
                self._write_in_child(key, snapshot, storage, begun_ns)
                return
        except FlinkishError as error:
            self._on_failed(*key, error)
            return
        large = {name: data for name, data in written.items() if len(data) > INLINE_BYTES_MAX}
        contents: Contents = {name: InlineBytes(data) for name, data in written.items()}
        if storage is None or not large:
            self._stored(key, snapshot, contents, begun_ns)
            return

        def write() -> Contents:
            return contents | {name: storage.write(snapshot.location_of(name), data) for name, data in large.items()}

        self._write_in_thread(key, snapshot, storage, write, begun_ns)

    def _write_databases(
        self, key: _Key, snapshot: TaskSnapshot, storage: Optional[CheckpointStorage], begun_ns: int
    ) -> None:
        self._wanted.add(key)

        def done(stored: Any) -> None:
            if key in self._wanted:
                self._wanted.discard(key)
                self._on_stored(*key, stored[0], (time.monotonic_ns() - begun_ns) // 1_000_000, stored[1])

        work: Callable[[], Any] = functools.partial(write_snapshot, snapshot, storage, INLINE_BYTES_MAX)
        if storage is not None:
            work = self._while_wanted(
                self._wanted, key, storage, snapshot.options, work, lambda stored: _private(stored[0])
            )
        self._in_thread(work, done, lambda error: self._failed(key, error))

    def materialiser(self, job_id: str) -> Optional[BaseMaterialiser]:
        """Stores bases between checkpoints; None: the job has no checkpoints that need any."""
        directory = config.read(self._configuration, config.CHECKPOINT_DIRECTORY)
        if directory is None or config.read(self._configuration, config.CHECKPOINT_STORAGE) == "jobmanager":
            return None
        if config.read(self._configuration, config.CHECKPOINTING_INTERVAL) is None:
            return None
        rocksdb = config.read(self._configuration, config.STATE_BACKEND) == "rocksdb"
        if not config.read(self._configuration, config.ROCKSDB_INCREMENTAL if rocksdb else config.CHANGELOG_ENABLED):
            return None
        storage = self._storage_in(str(directory))
        location = storage.shared_location(job_id)
        return BaseMaterialiser(storage, location, self._in_base_thread, self._write_base)

    def _in_base_thread(
        self, work: Callable[[], Any], done: Callable[[Any], None], failed: Callable[[FlinkishError], None]
    ) -> None:
        if self._base_worker is None:
            self._base_worker = _Worker("state-base")
        self._in_thread(work, done, failed, self._base_worker)

    def _write_base(
        self,
        storage: CheckpointStorage,
        location: str,
        write: Callable[[BinaryIO], Any],
        done: Callable[[Any], None],
        failed: Callable[[FlinkishError], None],
    ) -> None:
        def written(answer: Union[Contents, FlinkishError], files: Files) -> None:
            if isinstance(answer, FlinkishError):
                failed(answer)
            else:
                upload = functools.partial(_upload, storage, lambda name: location, files)
                self._in_base_thread(upload, lambda contents: done(contents["base"]), failed)

        key = object()
        try:
            self._children.fork(key, BASES, {"base": write}, ("base",), storage, location, written)
        except FlinkishError as error:
            failed(error)

    def store_in_flight(
        self,
        execution: ExecutionAttemptID,
        checkpoint_id: int,
        options: CheckpointOptions,
        data: bytes,
        parts: tuple[InFlightPart, ...],
    ) -> None:
        """Make durable what a barrier has overtaken."""
        if options.is_inline or len(data) <= INLINE_BYTES_MAX:
            self._on_in_flight_stored(execution, checkpoint_id, InlineBytes(data), parts)
            return
        key = execution, checkpoint_id
        self._wanted_in_flight.add(key)

        storage = self._storage_of(options)

        def write() -> Bytes:
            return storage.write(options.location, data)

        def done(content: Bytes) -> None:
            if key in self._wanted_in_flight:
                self._wanted_in_flight.discard(key)
                self._on_in_flight_stored(execution, checkpoint_id, content, parts)

        def failed(error: FlinkishError) -> None:
            if key in self._wanted_in_flight:
                self.drop(*key)
                log.warning("records in flight not stored execution=%s checkpoint=%d\n%s", *key, error)
                self._on_failed(*key, error)

        work = self._while_wanted(self._wanted_in_flight, key, storage, options, write, lambda file: [file])
        self._in_thread(work, done, failed)

    def drop(self, execution: ExecutionAttemptID, checkpoint_id: int) -> None:
        """It is not wanted any more; neither callback follows.  What it has written until now belongs to the folder of
        its checkpoint, which the JobManager deletes from now on."""
        key = execution, checkpoint_id
        self._wanted.discard(key)
        self._wanted_in_flight.discard(key)
        self._children.kill(key)

    def open_content(self, content: Bytes) -> Any:
        """Bytes of saved state, or a file that can seek."""
        if isinstance(content, InlineBytes):
            return content.data
        return self._storage_at(content.uri).open_file(content)

    @property
    def shares_memory(self) -> bool:
        """A child is at work, so that whatever is written to is copied first."""
        return bool(self._children)

    def close(self) -> None:
        """Drop all that is under way."""
        self._children.close()
        self._closed = True
        self._wanted.clear()
        self._wanted_in_flight.clear()
        workers = [worker for worker in (self._worker, self._base_worker) if worker is not None]
        for worker in workers:
            worker.stop()
        deadline_s = time.monotonic() + _END_TIMEOUT_S
        for worker in workers:
            worker.wait(deadline_s - time.monotonic())

    # ---- storage --------------------------------------------------------------------------------

    def _storage_of(self, options: CheckpointOptions) -> CheckpointStorage:
        return self._storage_at(options.location)

    def _storage_at(self, uri: str) -> CheckpointStorage:
        """The configured one if ``uri`` lies in it; else one for its folder."""
        directory = config.read(self._configuration, config.CHECKPOINT_DIRECTORY)
        if directory is not None:
            storage = self._storage_in(str(directory))
            if uri.startswith(storage.directory.rstrip("/") + "/"):
                return storage
        return self._storage_in(uri.rpartition("/")[0] or uri)

    def _storage_in(self, directory: str) -> CheckpointStorage:
        """Lazy: this thread waits for no server."""
        storage = self._storages.get(directory)
        if storage is None:
            if len(self._storages) > 64:  # folders of savepoints
                self._storages.clear()
            storage = self._storages[directory] = storage_at(directory, self._configuration, lazy=True)
        return storage

    # ---- the child ------------------------------------------------------------------------------

    def _write_in_child(
        self, key: _Key, snapshot: TaskSnapshot, storage: Optional[CheckpointStorage], begun_ns: int
    ) -> None:
        def written(answer: Union[Contents, FlinkishError], files: Files) -> None:
            if isinstance(answer, FlinkishError):
                self._failed(key, answer)
            elif not files:
                self._wanted.discard(key)
                self._stored(key, snapshot, answer, begun_ns)
            else:
                assert storage is not None
                upload = functools.partial(_upload, storage, snapshot.location_of, files)
                self._write_in_thread(key, snapshot, storage, lambda: {**answer, **upload()}, begun_ns)

        uploaded = [
            operator_id
            for operator_id, part in snapshot.keyed.items()
            if storage is not None and (part.addition is not None or not storage.is_local)
        ]
        writers = {operator_id: part.write for operator_id, part in snapshot.keyed.items()}
        location = snapshot.options.location
        self._children.fork(key, CHECKPOINTS, writers, uploaded, storage, location, written)
        self._wanted.add(key)

    # ---- the thread -----------------------------------------------------------------------------

    def _write_in_thread(
        self,
        key: _Key,
        snapshot: TaskSnapshot,
        storage: CheckpointStorage,
        write: Callable[[], Contents],
        begun_ns: int,
    ) -> None:
        self._wanted.add(key)

        def done(contents: Optional[Contents]) -> None:
            if key in self._wanted:
                assert contents is not None
                self._wanted.discard(key)
                self._stored(key, snapshot, contents, begun_ns)
            elif contents is not None:
                _tell_logs(snapshot, contents)

        def unwanted(contents: Contents) -> list[Bytes]:
            """Of an addition to a log its log hears, while there is somebody to tell it."""
            return [
                content
                for operator_id, content in contents.items()
                if self._closed or snapshot.keyed[operator_id].addition is None
            ]

        work = self._while_wanted(self._wanted, key, storage, snapshot.options, write, unwanted)
        self._in_thread(work, done, lambda error: self._failed(key, error))

    def _while_wanted(
        self,
        wanted: set[_Key],
        key: _Key,
        storage: CheckpointStorage,
        options: CheckpointOptions,
        work: Callable[[], Any],
        unwanted: Callable[[Any], Iterable[Bytes]],
    ) -> Callable[[], Any]:
        """``work``, for the thread; None is its result when it was dropped before.  ``unwanted``: which of what it has
        written is deleted when it was dropped meanwhile."""

        def run() -> Any:
            if key not in wanted:
                return None
            written: Iterable[Bytes] = ()
            try:
                result = work()
                written = unwanted(result)
                return result
            finally:
                if key not in wanted:
                    files = [content for content in written if isinstance(content, FileHandle)]
                    storage.forget(files, options.location, options.shared_location)

        return run

    def _in_thread(
        self,
        work: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[FlinkishError], None],
        worker: Optional["_Worker"] = None,
    ) -> None:
        """``done(result)`` or ``failed(error)`` is called in the loop's thread."""
        if worker is None:
            if self._worker is None:
                self._worker = _Worker("snapshot-upload")
            worker = self._worker

        def run() -> None:
            try:
                result = work()
            except FlinkishError as error:
                self._loop.call_soon_threadsafe(failed, error)
            except Exception as error:
                wrapped = InternalError("could not store a snapshot", why=f"{type(error).__name__}: {error}")
                self._loop.call_soon_threadsafe(failed, wrapped)
            else:
                self._loop.call_soon_threadsafe(done, result)

        worker.submit(run)

    def _failed(self, key: _Key, error: FlinkishError) -> None:
        if key in self._wanted:
            self._wanted.discard(key)
            log.warning("snapshot not stored execution=%s checkpoint=%d\n%s", key[0], key[1], error)
            self._on_failed(*key, error)

    def _stored(
        self, key: _Key, snapshot: TaskSnapshot, contents: Mapping[str, Bytes], begun_ns: int
    ) -> None:
        _tell_logs(snapshot, contents)
        handles: Handles = {}
        uploaded = 0
        for operator_id, content in contents.items():
            part = snapshot.keyed[operator_id]
            handles[operator_id] = (part.handle(operator_id, content),)
            if isinstance(content, FileHandle):
                uploaded += content.size
            if part.addition is not None:
                uploaded += part.addition.uploaded_bytes
        async_ms = (time.monotonic_ns() - begun_ns) // 1_000_000
        self._on_stored(*key, handles, async_ms, uploaded)


def _private(handles: Handles) -> list[Bytes]:
    """What no other checkpoint refers to."""
    found: list[Bytes] = []
    for handle in (handle for of_operator in handles.values() for handle in of_operator):
        found += [handle.content] if isinstance(handle, KeyedStateHandle) else handle.private.values()
    return found


def _tell_logs(snapshot: TaskSnapshot, contents: Mapping[str, Bytes]) -> None:
    for operator_id, content in contents.items():
        addition = snapshot.keyed[operator_id].addition
        if addition is not None:
            addition.stored(content)


def _write_synchronously(snapshot: TaskSnapshot) -> Optional[dict[str, bytes]]:
    """Files by operator id; None: they are too large for the time between two records."""
    if snapshot.num_entries > SYNCHRONOUS_ENTRIES_MAX:
        return None
    written = {}
    try:
        for operator_id, part in snapshot.keyed.items():
            buffer = _BoundedBuffer()
            part.write(buffer)  # type: ignore[arg-type]
            written[operator_id] = buffer.getvalue()
    except _TooLarge:
        return None
    return written


# ---- in the thread ------------------------------------------------------------------------------


def _upload(storage: CheckpointStorage, location_of: Callable[[str], str], files: Files) -> Contents:
    try:
        handles: Contents = {}
        for name, file in files.items():
            handles[name] = _copied(storage, location_of(name), file)
        return handles
    finally:
        close_files(files)


def _copied(storage: CheckpointStorage, location: str, file: IO[bytes]) -> FileHandle:
    file.seek(0)
    with storage.create_file(location) as stream:
        while chunk := file.read(_READ_BYTES):
            stream.write(chunk)
    return stream.close()


class _Worker:
    """One thread; it ends with the process and keeps nobody."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Optional[Callable[[], None]]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        self._queue.put(work)

    def stop(self) -> None:
        self._queue.put(None)

    def wait(self, timeout_s: float) -> None:
        """Until it has stopped, or the time is over."""
        self._thread.join(max(0.0, timeout_s))

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
