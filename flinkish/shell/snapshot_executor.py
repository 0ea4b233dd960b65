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
works waits until that has ended (its memory is what it was at its barrier).  The thread runs what frees the GIL.

A child inherits none of the slot's duties (`SlotProcess._in_forked_child`), runs nobody's exit handlers, and
answers by a pipe.  One that dies is a snapshot that has failed.

State in a database (rocksdb) stands still without a child, which could not use the database's threads: the thread writes
it (`database_snapshots`).

What an unaligned barrier has overtaken is bytes already: up to 20 kB in the message, else the thread writes a file.
"""

from __future__ import annotations

import functools
import gc
import io
import logging
import os
import pickle
import queue
import signal
import tempfile
import threading
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any, Callable, Mapping, NoReturn, Optional, Union

from flinkish.common import options as config
from flinkish.errors import CheckpointFailedError, FlinkishError, InternalError, ResourceError
from flinkish.messages.checkpoints import (
    Bytes,
    CheckpointOptions,
    FileHandle,
    InFlightPart,
    InlineBytes,
    KeyedStateHandle,
)
from flinkish.messages.deployment import ExecutionAttemptID
from flinkish.operators.snapshots import TaskSnapshot
from flinkish.shell.database_snapshots import BaseMaterialiser, write_snapshot
from flinkish.shell.event_loop import EventLoop
from flinkish.storage.checkpoint_storage import CheckpointStorage

log = logging.getLogger(__name__)

#: What may be written between two records: 1 MiB takes about 5 ms, a fork as long with a few GB of memory.
SYNCHRONOUS_ENTRIES_MAX = 2_000
SYNCHRONOUS_BYTES_MAX = 1 << 20
#: Flink's ``state.storage.fs.memory-threshold``.
INLINE_BYTES_MAX = 20 * 1024

_CHILD_NICENESS = 10  # records go first
_READ_BYTES = 1 << 20

Handles = dict[str, tuple[KeyedStateHandle, ...]]
_Key = tuple[ExecutionAttemptID, int]


class _TooLarge(Exception):
    pass


class _BoundedBuffer(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > SYNCHRONOUS_BYTES_MAX:
            raise _TooLarge
        return super().write(data)


@dataclass
class _Child:
    snapshot: TaskSnapshot
    storage: Optional[CheckpointStorage]
    files: dict[str, IO[bytes]]  # by operator id, what it writes for the thread to upload
    pid: int
    answer_fd: int
    go_fd: int  # it works when something comes here
    begun_ns: int
    working: bool = False
    answer: bytearray = field(default_factory=bytearray)


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
        self._children: dict[_Key, _Child] = {}  # in the order of their forks
        self._wanted: set[_Key] = set()  # of those, and of what the thread does
        self._wanted_in_flight: set[_Key] = set()
        self._worker: Optional[_Worker] = None
        self._base_worker: Optional[_Worker] = None  # so that no acknowledgement waits for a base

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
                self._fork(key, snapshot, storage, begun_ns)
                return
        except FlinkishError as error:
            self._on_failed(*key, error)
            return
        large = {name: data for name, data in written.items() if len(data) > INLINE_BYTES_MAX}
        contents: dict[str, Bytes] = {name: InlineBytes(data) for name, data in written.items()}
        if storage is None or not large:
            self._stored(key, snapshot, contents, begun_ns)
            return
        location = snapshot.options.location

        def write() -> dict[str, Bytes]:
            return contents | {name: storage.write(location, data) for name, data in large.items()}

        self._write_in_thread(key, snapshot, write, begun_ns)

    def _write_databases(
        self, key: _Key, snapshot: TaskSnapshot, storage: Optional[CheckpointStorage], begun_ns: int
    ) -> None:
        self._wanted.add(key)

        def done(stored: Any) -> None:
            if key in self._wanted:
                self._wanted.discard(key)
                self._on_stored(*key, stored[0], (time.monotonic_ns() - begun_ns) // 1_000_000, stored[1])

        work = functools.partial(write_snapshot, snapshot, storage, INLINE_BYTES_MAX)
        self._in_thread(work, done, lambda error: self._failed(key, error))

    def materialiser(self, job_id: str) -> Optional[BaseMaterialiser]:
        """Stores what operators keep in databases between checkpoints; None: the job has no incremental ones."""
        directory = config.read(self._configuration, config.CHECKPOINT_DIRECTORY)
        if directory is None or config.read(self._configuration, config.CHECKPOINT_STORAGE) == "jobmanager":
            return None
        if config.read(self._configuration, config.CHECKPOINTING_INTERVAL) is None:
            return None
        if not config.read(self._configuration, config.ROCKSDB_INCREMENTAL):
            return None
        storage = self._storage_in(str(directory))

        def in_thread(work: Callable[[], Any], done: Callable[[Any], None], failed: Callable[[Any], None]) -> None:
            if self._base_worker is None:
                self._base_worker = _Worker("state-base")
            self._in_thread(work, done, failed, self._base_worker)

        return BaseMaterialiser(storage, storage.shared_location(job_id), in_thread)

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

        def write() -> Bytes:
            return self._storage_of(options).write(options.location, data)

        def done(content: Bytes) -> None:
            if key in self._wanted_in_flight:
                self._wanted_in_flight.discard(key)
                self._on_in_flight_stored(execution, checkpoint_id, content, parts)

        def failed(error: FlinkishError) -> None:
            if key in self._wanted_in_flight:
                self.drop(*key)
                log.warning("records in flight not stored execution=%s checkpoint=%d\n%s", *key, error)
                self._on_failed(*key, error)

        self._in_thread(write, done, failed)

    def drop(self, execution: ExecutionAttemptID, checkpoint_id: int) -> None:
        """It is not wanted any more; neither callback follows.  What it has written belongs to the folder of
        its checkpoint, which the JobManager deletes."""
        key = execution, checkpoint_id
        self._wanted.discard(key)
        self._wanted_in_flight.discard(key)
        child = self._children.get(key)
        if child is not None:
            self._kill(child)  # it has ended when its pipe has: to wait here for the end of its memory takes long

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
        while self._children:
            _, child = self._children.popitem()
            self._kill(child)
            self._end(child)
        self._wanted.clear()
        self._wanted_in_flight.clear()
        for worker in (self._worker, self._base_worker):
            if worker is not None:
                worker.stop()

    # ---- storage --------------------------------------------------------------------------------

    def _storage_of(self, options: CheckpointOptions) -> CheckpointStorage:
        return self._storage_at(options.location)

    def _storage_at(self, uri: str) -> CheckpointStorage:
        """The configured one if ``uri`` lies in it, which knows endpoints and keys; else one for its folder."""
        directory = config.read(self._configuration, config.CHECKPOINT_DIRECTORY)
        if directory is not None:
            storage = self._storage_in(str(directory))
            if uri.startswith(storage.directory.rstrip("/") + "/"):
                return storage
        return self._storage_in(uri.rpartition("/")[0] or uri)

    def _storage_in(self, directory: str) -> CheckpointStorage:
        storage = self._storages.get(directory)
        if storage is None:
            if len(self._storages) > 64:  # folders of savepoints
                self._storages.clear()
            storage = self._storages[directory] = CheckpointStorage(directory, self._configuration)
        return storage

    # ---- the child ------------------------------------------------------------------------------

    def _fork(
        self, key: _Key, snapshot: TaskSnapshot, storage: Optional[CheckpointStorage], begun_ns: int
    ) -> None:
        uploads = storage is not None and not storage.is_local
        files = {operator_id: tempfile.TemporaryFile() for operator_id in snapshot.keyed} if uploads else {}
        answer_fd, answers_fd = os.pipe()
        goes_fd, go_fd = os.pipe()
        inherited = [answer_fd, go_fd, *(child.go_fd for child in self._children.values())]
        try:
            with warnings.catch_warnings():
                # Threads of pyarrow and C libraries; the child uses none of them.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            for fd in (answer_fd, answers_fd, goes_fd, go_fd):
                os.close(fd)
            _close(files)
            raise ResourceError(
                "could not fork a process that writes a snapshot",
                why=f"{type(error).__name__}: {error}",
                do="give the machine more memory or processes (ulimit -u)",
            ) from error
        if pid == 0:
            _be_child(snapshot, storage, files, answers_fd, goes_fd, inherited)
        os.close(answers_fd)
        os.close(goes_fd)
        os.set_blocking(answer_fd, False)
        child = _Child(snapshot, storage, files, pid, answer_fd, go_fd, begun_ns)
        self._children[key] = child
        self._wanted.add(key)
        self._loop.register(answer_fd, "r", lambda readable, writable: self._on_answer(key))
        self._let_next_work()

    def _let_next_work(self) -> None:
        first = next(iter(self._children.values()), None)
        if first is not None and not first.working:
            first.working = True
            with suppress(BrokenPipeError):  # it has died, as its answer is about to tell
                os.write(first.go_fd, b"g")

    def _on_answer(self, key: _Key) -> None:
        child = self._children[key]
        try:
            part = os.read(child.answer_fd, _READ_BYTES)
        except BlockingIOError:
            return
        if part:
            child.answer += part
            return
        del self._children[key]
        status = self._end(child)
        self._let_next_work()
        if key not in self._wanted:
            _close(child.files)
            return
        snapshot, storage = child.snapshot, child.storage
        try:
            answer: Any = pickle.loads(child.answer)
        except (pickle.UnpicklingError, EOFError):
            answer = _died(status)
        if isinstance(answer, FlinkishError):
            _close(child.files)
            self._failed(key, answer)
        elif not child.files:
            self._wanted.discard(key)
            self._stored(key, snapshot, answer, child.begun_ns)
        else:
            assert storage is not None
            upload = functools.partial(_upload, storage, snapshot.options.location, child.files)
            self._write_in_thread(key, snapshot, upload, child.begun_ns)

    def _kill(self, child: _Child) -> None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        _close(child.files)

    def _end(self, child: _Child) -> Optional[int]:
        """Release what the parent has of it; its wait status, None when somebody else has taken that."""
        self._loop.unregister(child.answer_fd)
        os.close(child.answer_fd)
        os.close(child.go_fd)
        try:
            return os.waitpid(child.pid, 0)[1]
        except ChildProcessError:  # user code waits for any child
            return None

    # ---- the thread -----------------------------------------------------------------------------

    def _write_in_thread(
        self, key: _Key, snapshot: TaskSnapshot, work: Callable[[], dict[str, Bytes]], begun_ns: int
    ) -> None:
        self._wanted.add(key)

        def done(contents: dict[str, Bytes]) -> None:
            if key in self._wanted:
                self._wanted.discard(key)
                self._stored(key, snapshot, contents, begun_ns)

        self._in_thread(work, done, lambda error: self._failed(key, error))

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
        handles: Handles = {}
        uploaded = 0
        for operator_id, content in contents.items():
            handles[operator_id] = (KeyedStateHandle(snapshot.keyed[operator_id].key_groups, content),)
            if isinstance(content, FileHandle):
                uploaded += content.size
        async_ms = (time.monotonic_ns() - begun_ns) // 1_000_000
        self._on_stored(*key, handles, async_ms, uploaded)


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


# ---- in the child -------------------------------------------------------------------------------


def _be_child(
    snapshot: TaskSnapshot,
    storage: Optional[CheckpointStorage],
    files: Mapping[str, IO[bytes]],
    answers_fd: int,
    goes_fd: int,
    inherited: list[int],
) -> NoReturn:
    """Write, answer, end without anybody's exit handlers."""
    try:
        for fd in inherited:
            os.close(fd)
        gc.disable()  # a pass would touch, and so copy, the memory of all objects
        os.nice(_CHILD_NICENESS)
        if os.read(goes_fd, 1):  # else the parent is gone
            answer = memoryview(pickle.dumps(_written(snapshot, storage, files)))
            # The pipe stays open: the kernel closes it when it has given back our memory, which takes 100 ms a GB
            # or, as we are nice, much longer, and the parent waits for our end when it sees the pipe's.
            while answer:
                answer = answer[os.write(answers_fd, answer) :]
    finally:
        os._exit(0)


def _written(
    snapshot: TaskSnapshot, storage: Optional[CheckpointStorage], files: Mapping[str, IO[bytes]]
) -> Union[dict[str, Bytes], FlinkishError]:
    """Handles by operator id, those that are written to ``files`` left out."""
    contents: dict[str, Bytes] = {}
    try:
        for operator_id, part in snapshot.keyed.items():
            if storage is None:
                buffer = io.BytesIO()
                part.write(buffer)
                contents[operator_id] = InlineBytes(buffer.getvalue())
            elif operator_id in files:
                part.write(files[operator_id])  # type: ignore[arg-type]
                files[operator_id].flush()
            else:
                with storage.create_file(snapshot.options.location) as stream:
                    part.write(stream)  # type: ignore[arg-type]
                contents[operator_id] = stream.close()
    except FlinkishError as error:
        return error
    except BaseException as error:  # whatever it is, the parent must hear of it
        return CheckpointFailedError(
            "could not write a snapshot", where=snapshot.options.location, why=f"{type(error).__name__}: {error}"
        )
    return contents


# ---- in the thread ------------------------------------------------------------------------------


def _upload(storage: CheckpointStorage, location: str, files: Mapping[str, IO[bytes]]) -> dict[str, Bytes]:
    try:
        handles: dict[str, Bytes] = {}
        for operator_id, file in files.items():
            file.seek(0)
            with storage.create_file(location) as stream:
                while chunk := file.read(_READ_BYTES):
                    stream.write(chunk)
            handles[operator_id] = stream.close()
        return handles
    finally:
        _close(files)


def _died(status: Optional[int]) -> CheckpointFailedError:
    why = "it ended without an answer"
    if status is not None and os.WIFSIGNALED(status):
        why = f"it was killed by signal {os.WTERMSIG(status)}"
    return CheckpointFailedError(
        "could not write a snapshot",
        why=f"the process that writes it has died: {why}",
        do="look for an out-of-memory killer in the log of its machine, and give the executors more memory",
    )


def _close(files: Mapping[str, IO[bytes]]) -> None:
    for file in files.values():
        file.close()


class _Worker:
    """One thread; it ends with the process and keeps nobody."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Optional[Callable[[], None]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, work: Callable[[], None]) -> None:
        self._queue.put(work)

    def stop(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
