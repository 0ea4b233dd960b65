"""RocksDB and heap backends side by side, for tests: tiny caches, and threads that run when the test says."""

import contextlib
import io
import os
from unittest import mock

from flinkish.messages.checkpoints import InlineBytes, KeyGroupRange
from flinkish.state import rocksdb, rocksdb_cache
from flinkish.state.heap import HeapKeyedStateBackend
from flinkish.state.keyed_snapshot import KeyedSnapshotReader, write_keyed_snapshot
from flinkish.state.rocksdb import RocksDBKeyedStateBackend
from flinkish.storage.checkpoint_storage import CheckpointStorage

MAX_PARALLELISM = 16
ALL = KeyGroupRange(0, MAX_PARALLELISM - 1)
#: Where nothing waits for a disk: a database syncs a file for each of its states.
FAST_DISK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
HALVES = KeyGroupRange(0, 7), KeyGroupRange(8, 15)


@contextlib.contextmanager
def tiny_caches(dirty=4, changes_bytes=300):
    """Nearly everything is evicted, and bases are made all the time."""
    with (
        mock.patch.multiple(rocksdb_cache, DIRTY_ENTRIES_MAX=dirty, _CLEAN_MIN=2, _FIRST_LIMIT=2, _SAMPLE=1, WRITE_ENTRIES=2),
        mock.patch.multiple(rocksdb, CHANGES_BYTES=changes_bytes, CHANGES_BYTES_MAX=100 * changes_bytes),
    ):
        yield


class StepMaterialiser:
    """Keeps the work until `step`: first the thread's part, then what the slot hears of it."""

    def __init__(self, folder):
        self.storage = CheckpointStorage(str(folder))
        self.shared_location = self.storage.shared_location("job")
        self.waiting, self.heard = [], []

    def run(self, work, done):
        self.waiting.append((work, done))

    def write(self, write, done):
        """As a child would: what it writes is what is there now."""
        out = io.BytesIO()
        write(out)
        data = out.getvalue()
        self.run(lambda storage, location: storage.write(location, data), done)

    def delete(self, files):
        for file in files:
            self.storage.delete_file(file)

    def step(self):
        if self.heard:
            done, base, error = self.heard.pop(0)
            done(base, error)
        elif self.waiting:
            work, done = self.waiting.pop(0)
            try:
                self.heard.append((done, work(self.storage, self.shared_location), None))
            except Exception as error:
                self.heard.append((done, None, error))

    def run_all(self):
        while self.waiting or self.heard:
            self.step()


def rocksdb_backend(materialiser=None, key_groups=ALL, now_ms=lambda: 0, **configuration):
    settings = {"state.backend.rocksdb.memory.fixed-per-slot": "4 mb", **configuration}
    if FAST_DISK is not None:
        settings.setdefault("state.backend.rocksdb.localdir", FAST_DISK)
    return RocksDBKeyedStateBackend("op", now_ms, settings, key_groups, MAX_PARALLELISM, materialiser)


def canonical(backend, key_groups=ALL):
    out = io.BytesIO()
    write_keyed_snapshot(out, backend.snapshot_states(), key_groups, MAX_PARALLELISM, operator="op")
    return out.getvalue()


def from_canonical(data, backend, key_groups=None):
    backend.restore(KeyedSnapshotReader(data), key_groups)
    return backend


def heap():
    return HeapKeyedStateBackend("op", lambda: 0)


def incremental(backend, checkpoint_id=1):
    """An incremental handle, its changes inline."""
    changes = backend.changes(checkpoint_id)
    return changes.handle("op", checkpoint_id, InlineBytes(changes.encode()))


def opener(materialiser):
    def open_content(content):
        return content.data if isinstance(content, InlineBytes) else materialiser.storage.open_file(content)

    return open_content


def contents(backend):
    """State name -> {key: value}, of windows {(start, key): value}; without empty states."""
    found = {}
    for name, table in backend.tables.items():
        if hasattr(table, "open"):
            entries = {(start, key): value for start, part in table.items() for key, value in part.items()}
        else:
            entries = dict(table.items())
        if entries:
            found[name] = entries
    return found
