"""A changelog backend whose slot and JobManager are the test: files in a dict, bases that are made when it says."""

import io

from flinkish.messages.checkpoints import FileHandle, InlineBytes
from flinkish.state.changelog import ChangelogKeyedStateBackend, files_in_order
from flinkish.state.keyed_snapshot import KeyedSnapshotReader, write_keyed_snapshot
from tests.rocksdb_states import ALL, MAX_PARALLELISM

CHANGELOG = {"state.changelog.enabled": "true"}


class SharedFolder:
    """The job's shared files, and the materialiser of one slot, whose bases wait for `step`."""

    shared_location = "/shared"

    def __init__(self):
        self.files = {}  # by uri
        self.waiting = []
        self.fails = False
        self._number = 0

    def store(self, data):
        self._number += 1
        file = FileHandle(f"{self.shared_location}/{self._number}", len(data))
        self.files[file.uri] = data
        return file

    def write(self, write, done):
        out = io.BytesIO()
        write(out)
        self.waiting.append((out.getvalue(), done))

    def delete(self, files):
        for file in files:
            del self.files[file.uri]

    def step(self):
        if self.waiting:
            data, done = self.waiting.pop(0)
            if self.fails:
                done(None, OSError("no space"))
            else:
                done(self.store(data), None)

    def open(self, content):
        return content.data if isinstance(content, InlineBytes) else self.files[content.uri]


def changelog_backend(shared, key_groups=ALL, now_ms=lambda: 0, **configuration):
    settings = {**CHANGELOG, **configuration}
    backend = ChangelogKeyedStateBackend("op", now_ms, settings, key_groups, MAX_PARALLELISM, shared)
    backend.window_table("windows")
    return backend


def written(addition, key_groups=ALL):
    """The file that the operator makes of it."""
    out = io.BytesIO()
    write_keyed_snapshot(out, addition.states(), key_groups, MAX_PARALLELISM, operator="op")
    return out.getvalue()


def take(backend, shared, checkpoint_id, inline=False):
    """A checkpoint that is stored at once; its handle."""
    addition = backend.add_to_log(checkpoint_id)
    data = written(addition, backend.key_groups)
    content = InlineBytes(data) if inline else shared.store(data)
    addition.stored(content)
    return addition.handle(backend.key_groups, "op", content)


def from_log(handle, shared, backend):
    """``backend`` with what the handle has, read as an operator does."""
    contents = files_in_order(handle) if hasattr(handle, "shared") else [handle.content]
    for content in contents:
        backend.restore(KeyedSnapshotReader(shared.open(content)), handle.key_groups)
    backend.restored(handle)
    return backend
