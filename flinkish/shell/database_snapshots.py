"""What the slot's threads do for operators whose state is a database: write their snapshots, and store files of the
next base between checkpoints.  Both run Python, so both give way to the records: a full snapshot rests as long as it
works, and a base is mostly calls that free the GIL (flush, hash, link).  Bases of state on the heap come from a child.
"""

from __future__ import annotations

import io
import logging
import time
from dataclasses import replace
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Optional

from flinkish.messages.checkpoints import (
    Bytes,
    FileHandle,
    IncrementalKeyedStateHandle,
    InlineBytes,
    KeyedStateHandle,
)
from flinkish.operators.snapshots import KeyedStateToWrite, TaskSnapshot
from flinkish.state.bases import Done
from flinkish.storage.checkpoint_storage import CheckpointStorage

log = logging.getLogger(__name__)

Handle = KeyedStateHandle | IncrementalKeyedStateHandle
_Hears = Callable[[Any], None]


def write_snapshot(
    snapshot: TaskSnapshot, storage: Optional[CheckpointStorage], inline_bytes_max: int
) -> tuple[dict[str, tuple[Handle, ...]], int]:
    """Store all keyed state of a snapshot; handles by operator id, and bytes that were written.

    Args:
        storage: None: all goes into messages.
    """
    uploaded = 0

    def stored(data: bytes) -> Bytes:
        nonlocal uploaded
        if storage is None or len(data) <= inline_bytes_max:
            return InlineBytes(data)
        uploaded += len(data)
        return storage.write(snapshot.options.location, data)

    handles: dict[str, tuple[Handle, ...]] = {}
    for operator_id, part in snapshot.keyed.items():
        found: list[Handle] = []
        if part.changes is not None:
            uploaded += part.changes.uploaded_bytes
            content = stored(part.changes.encode())
            found.append(part.changes.handle(operator_id, snapshot.checkpoint_id, content))
        if part.changes is None and storage is not None:
            with storage.create_file(snapshot.options.location) as stream:
                _resting(part).write(stream)  # type: ignore[arg-type]
            file = stream.close()
            uploaded += file.size
            found.append(KeyedStateHandle(part.key_groups, _inline_if_small(storage, file, inline_bytes_max)))
        else:
            buffer = io.BytesIO()
            part.write(buffer)
            found.append(KeyedStateHandle(part.key_groups, stored(buffer.getvalue())))
        handles[operator_id] = tuple(found)
    return handles, uploaded


def _inline_if_small(storage: CheckpointStorage, file: FileHandle, inline_bytes_max: int) -> Bytes:
    if file.size > inline_bytes_max:
        return file
    data = storage.read(file)
    storage.delete_file(file)
    return InlineBytes(data)


def _resting(part: KeyedStateToWrite) -> KeyedStateToWrite:
    def states() -> Iterator[Any]:
        begun_s = time.thread_time()  # of this thread: what it has waited for the GIL is rest already
        for entries in part.states():
            yield entries
            time.sleep(time.thread_time() - begun_s)
            begun_s = time.thread_time()

    return replace(part, states=states)


class BaseMaterialiser:
    """See `flinkish.state.bases.Materialiser`.

    Args:
        in_thread: (work, done, failed).
        write_in_child: (storage, location, write, done, failed); ``done`` gets the file.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        shared_location: str,
        in_thread: Callable[[Callable[[], Any], _Hears, _Hears], None],
        write_in_child: Callable[[CheckpointStorage, str, Callable[[BinaryIO], Any], _Hears, _Hears], None],
    ):
        self._storage, self.shared_location = storage, shared_location
        self._in_thread, self._write_in_child = in_thread, write_in_child

    def run(self, work: Callable[[Any, str], Any], done: Done) -> None:
        self._in_thread(lambda: work(self._storage, self.shared_location), *_hears(done))

    def write(self, write: Callable[[BinaryIO], Any], done: Done) -> None:
        self._write_in_child(self._storage, self.shared_location, write, *_hears(done))

    def delete(self, files: Iterable[FileHandle]) -> None:
        def work() -> None:
            self._storage.forget(files, self.shared_location)

        def failed(error: Any) -> None:
            log.warning("could not delete a file that no checkpoint refers to error=%s", error)

        self._in_thread(work, lambda result: None, failed)


def _hears(done: Done) -> tuple[_Hears, _Hears]:
    return lambda result: done(result, None), lambda error: done(None, error)
