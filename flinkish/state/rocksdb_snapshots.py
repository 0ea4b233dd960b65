"""Incremental snapshots of a RocksDB database, and what its threads do.

A snapshot is a *base* and the changes after it::

    shared    <owner>-<content address>.sst, .manifest    files of the base, stored once, counted by the JobManager
    private   CURRENT, rocksdict-config.json      of the base, a few bytes
              changes                             states, what was written after the base, what was dirty at the barrier

The base is made between checkpoints, by a `Materialisation`, so a barrier waits for no flush and no file of the database: it
pickles the dirty entries (at most 1 MB a state), and the thread stores those and what was written since the base
(some 2 MB).  Flushing at the barrier instead takes as long as 10 MB take to be synced, flushed, hashed and stored: 80 ms
here.  A base has nothing that was written behind a barrier which refers to it, because it is referred to only when it is
there; it may have more than the changes that were sealed for it, and putting these again changes nothing.

The changes file: "FLKR", version (2 bytes), lengths of three parts (8 bytes each), crc32 of all that follows; JSON of states and
record layouts; a pickle of written entries (column family, key, value or None), which is bytes only; a pickle of dirty
entries (`serializers`).  This format is on disk: a change needs a new version, and the old ones stay readable.

The owner, a word by chance, keeps apart the files of databases that store the same: the manifests of two that were
restored from one checkpoint may be equal, and one's may just be deleted, because nobody refers to it any more, while the
other stores its own.

Links: `Checkpoint` of the binding holds the GIL through its syncs (20 to 30 ms), so files are linked here.  The manifest
is copied first; when it is as long after the links as before, no file of it has gone meanwhile.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import secrets
import shutil
import struct
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence
from zlib import crc32

import rocksdict

from flinkish.errors import CorruptSnapshotError, InternalError
from flinkish.messages.checkpoints import (
    Bytes,
    FileHandle,
    IncrementalKeyedStateHandle,
    InlineBytes,
    KeyGroupRange,
)
from flinkish.state.keyed_snapshot import StateEntries, StateMeta
from flinkish.state.key_groups import key_group
from flinkish.state.local_folders import LOCAL_FOLDERS
from flinkish.state.rocksdb_encoding import (
    ValueCodec,
    decode_entry_key,
    decode_key,
    decode_scoped_key,
    group_prefix,
)
from flinkish.state.serializers import RecordLayout
from flinkish.state.ttl import StateTtl

BACKEND = "rocksdb"
SST_END = (0x88E241B785F4CFF7).to_bytes(8, "little")  # RocksDB's kBlockBasedTableMagicNumber
CHANGES = "changes"
VERSION = 3  # 2 had members of Enums by value, and no classes of keys; 1 had no types of fields in record layouts

_MAGIC = b"FLKR"
_HEADER = struct.Struct("<4sHQQQI")
_SMALL_FILES = ("CURRENT", "rocksdict-config.json")
_LINK_ATTEMPTS = 50
_CHUNK = 2_048
_HASH_BYTES = 1 << 20

#: (state, window start, keys, values, deleted keys)
Dirty = tuple[str, Any, list, list, list]


# ---- full snapshots -----------------------------------------------------------------------------


@dataclass(frozen=True)
class FrozenTable:
    """``snapshot``: of the column family.  ``ttl``: leaves out what has expired; None: all is written."""

    meta: StateMeta
    windows: bool
    snapshot: Any
    ttl: Optional[StateTtl]


@dataclass(frozen=True)
class FrozenState:
    operator: str
    tables: list[FrozenTable]
    layouts: tuple[RecordLayout, ...]

    def states(self) -> Iterator[StateEntries]:
        """All entries, by state and rising key group, some thousand at a time."""
        codec = ValueCodec(self.operator, self.layouts)
        for table in self.tables:
            found = False
            for entries in self._chunks(table, codec):
                found = True
                yield entries if table.ttl is None else table.ttl.without_expired(entries)
            if not found:
                yield StateEntries(table.meta, [], [])

    def _chunks(self, table: FrozenTable, codec: ValueCodec) -> Iterator[StateEntries]:
        meta = table.meta
        namespaced = meta.namespaced
        keys: list = []
        values: list = []
        namespaces: list = []
        for raw, data in table.snapshot.items():
            if table.windows:
                namespace, at = decode_key(raw, 2)
                keys.append(decode_key(raw, at)[0])
                namespaces.append(namespace)
            elif namespaced:
                namespace, key = decode_scoped_key(raw)
                keys.append(key)
                namespaces.append(namespace)
            else:
                keys.append(decode_entry_key(raw))
            values.append(codec.decode(data, meta.name))
            if len(keys) >= _CHUNK:
                yield StateEntries(meta, keys, values, namespaces if namespaced else None)
                keys, values, namespaces = [], [], []
        if keys:
            yield StateEntries(meta, keys, values, namespaces if namespaced else None)


# ---- making a base ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Base:
    """Files that are stored, by their name in the database's folder.  ``ahead``: those that no checkpoint has, yet.
    ``owner``: see the module."""

    shared: Mapping[str, FileHandle]
    private: Mapping[str, InlineBytes]
    ahead: Mapping[str, FileHandle] = field(default_factory=dict)
    owner: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def stored(self) -> dict[str, FileHandle]:
        return {**self.ahead, **self.shared}


class Materialisation:
    """Makes the next base; `run` is called on a thread.

    A compaction of the whole database gives it all its new files at once.  A base that began behind it would store a
    gigabyte, while changes pile up, and the checkpoints meanwhile store those.  So each base stores files *ahead* that a
    compaction has written and the database does not know yet.

    Args:
        folder: of the database.
        columns: to be flushed.
        known: the base before: what it has is not stored again.
    """

    def __init__(self, db: Any, folder: str, columns: list[Any], known: Optional[Base]):
        self._db, self._folder, self._columns = db, folder, columns
        known = known or Base({}, {})
        self._known, self._owner = known.stored, known.owner
        self.uploaded_bytes = 0

    def run(self, storage: Any, shared_location: str) -> Base:
        for column in self._columns:
            column.flush(True)
        links = f"{self._folder}-links"
        shutil.rmtree(links, ignore_errors=True)
        os.mkdir(links)
        try:
            manifest, names = self._link(links)
            self._columns = []
            return self._store(storage, shared_location, links, manifest, names)
        finally:
            shutil.rmtree(links, ignore_errors=True)
            self._db = None

    def _link(self, links: str) -> tuple[str, list[str]]:
        """The manifest's name, and those of the files it names, all linked in ``links``."""
        for _ in range(_LINK_ATTEMPTS):
            for name in os.listdir(links):
                os.unlink(os.path.join(links, name))
            with open(os.path.join(self._folder, "CURRENT")) as current:
                manifest = current.read().strip()
            path = os.path.join(self._folder, manifest)
            try:
                with open(path, "rb") as source:
                    content = source.read()
                names = sorted({file["name"].lstrip("/") for file in self._db.live_files()})
                for name in names:
                    os.link(os.path.join(self._folder, name), os.path.join(links, name))
                if os.path.getsize(path) != len(content):
                    continue
            except FileNotFoundError:  # a compaction has just ended
                continue
            with open(os.path.join(links, manifest), "wb") as target:
                target.write(content)
            return manifest, names
        raise InternalError(
            "could not link the files of a RocksDB database",
            where=self._folder,
            why=f"compactions changed them {_LINK_ATTEMPTS} times meanwhile",
        )

    def _store(self, storage: Any, location: str, links: str, manifest: str, names: list[str]) -> Base:
        store = functools.partial(self._store_file, storage, location, links)
        shared = {name: store(name, "sst") for name in names}
        self._known.pop(manifest, None)
        shared[manifest] = store(manifest, "manifest")
        private = {}
        for name in _SMALL_FILES:
            with open(os.path.join(self._folder, name), "rb") as source:
                private[name] = InlineBytes(source.read())
        private["CURRENT"] = InlineBytes(manifest.encode() + b"\n")
        ahead = {name: store(name, "sst") for name in self._link_ahead(links, names)}
        return Base(shared, private, ahead, self._owner)

    def _store_file(self, storage: Any, location: str, links: str, name: str, kind: str) -> FileHandle:
        path = os.path.join(links, name)
        handle = self._known.get(name)
        if handle is None or handle.size != os.path.getsize(path):
            handle = storage.adopt(path, location, f"{self._owner}-{content_address(path)}.{kind}")
            self.uploaded_bytes += handle.size
        return handle

    def _link_ahead(self, links: str, names: list[str]) -> list[str]:
        """Names of whole files that compactions under way have written; they are linked in ``links``."""
        live = {*names, *(file["name"].lstrip("/") for file in self._db.live_files())}
        ahead = []
        for name in sorted(os.listdir(self._folder)):
            if not name.endswith(".sst") or name in live:
                continue
            path = os.path.join(self._folder, name)
            try:
                if _is_whole(path):
                    os.link(path, os.path.join(links, name))
                    ahead.append(name)
            except FileNotFoundError:  # the compaction was given up, or the file was old and is deleted
                continue
        return ahead


def _is_whole(path: str) -> bool:
    """RocksDB writes the end of a table's file last."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - len(SST_END)))
        return file.read() == SST_END


def content_address(path: str) -> str:
    """SHA-256 of a file and its size; hashing frees the GIL."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as source:
        while chunk := source.read(_HASH_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return f"{digest.hexdigest()}-{size}"


# ---- changes ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StateDescription:
    """``column_name``: its column family, None: nothing was ever written.  ``windows``: kept for windows."""

    meta: StateMeta
    windows: bool
    column_name: Optional[str]

    def to_json(self) -> dict:
        return {"meta": self.meta.to_json(), "windows": self.windows, "column": self.column_name}

    @classmethod
    def from_json(cls, found: Any) -> "StateDescription":
        column = found["column"]
        return cls(StateMeta.from_json(found["meta"]), bool(found["windows"]), None if column is None else str(column))


@dataclass(frozen=True)
class Changes:
    """What an incremental snapshot refers to and stores; any thread may `encode` it, later."""

    key_groups: KeyGroupRange
    base: Optional[Base]
    states: list[StateDescription]
    layouts: tuple[RecordLayout, ...]
    written: Mapping[tuple[str, bytes], Optional[bytes]] = field(repr=False)
    dirty: bytes = field(repr=False)
    uploaded_bytes: int = 0  # for the base, since the snapshot before

    def encode(self) -> bytes:
        description = json.dumps(
            {
                "states": [state.to_json() for state in self.states],
                "layouts": [layout.to_json() for layout in self.layouts],
            },
            separators=(",", ":"),
        ).encode()
        columns: dict[str, tuple[list, list]] = {}
        for (column, raw), data in self.written.items():
            keys, values = columns.setdefault(column, ([], []))
            keys.append(raw)
            values.append(data)
        written = pickle.dumps(columns, 5)
        checksum = crc32(self.dirty, crc32(written, crc32(description)))
        header = _HEADER.pack(_MAGIC, VERSION, len(description), len(written), len(self.dirty), checksum)
        return b"".join((header, description, written, self.dirty))

    def handle(self, backend_id: str, checkpoint_id: int, content: Bytes) -> IncrementalKeyedStateHandle:
        """With ``content``: where the encoded changes are."""
        base = self.base or Base({}, {})
        private: dict[str, Bytes] = {**base.private, CHANGES: content}
        return IncrementalKeyedStateHandle(
            self.key_groups, BACKEND, backend_id, checkpoint_id, dict(base.shared), private
        )


# ---- reading ------------------------------------------------------------------------------------


class Restorer:
    """Reads one handle.

    Args:
        open_content: bytes of a part, or a file.
        directories: see `LocalFolders.make`.
    Raises:
        CorruptSnapshotError: the changes file is damaged, or of a newer version.
    """

    def __init__(
        self,
        operator: str,
        handle: IncrementalKeyedStateHandle,
        open_content: Callable[[Any], Any],
        directories: Sequence[str] = (),
    ):
        self._operator, self._handle, self._open_content = operator, handle, open_content
        self._directories = directories
        self.key_groups = handle.key_groups
        self._folder: Optional[str] = None
        self._db: Any = None
        content = handle.private.get(CHANGES)
        if content is None:
            raise self._corrupt("it has no changes file")
        data = memoryview(self._read(content))
        if len(data) < _HEADER.size:
            raise self._corrupt(f"the changes file has {len(data)} bytes")
        magic, version, *lengths, checksum = _HEADER.unpack(data[: _HEADER.size])
        if magic != _MAGIC or len(data) != _HEADER.size + sum(lengths):
            raise self._corrupt("the changes file is cut off, or no such file")
        if version > VERSION:
            raise self._corrupt(f"its format has version {version}, this flinkish reads up to {VERSION}")
        if crc32(data[_HEADER.size :]) != checksum:
            raise self._corrupt("the checksum of the changes file is wrong")
        parts, at = [], _HEADER.size
        for length in lengths:
            parts.append(data[at : at + length])
            at += length
        described = json.loads(bytes(parts[0]))
        self.states = [StateDescription.from_json(state) for state in described["states"]]
        self.layouts = [RecordLayout.from_json(layout) for layout in described["layouts"]]
        self._written: dict[str, tuple[list, list]] = pickle.loads(parts[1])
        self._dirty = parts[2]
        self._state_of = {state.column_name: state.meta.name for state in self.states}
        self.columns: set[str] = set()

    @property
    def has_files(self) -> bool:
        return bool(self._handle.shared)

    @property
    def base(self) -> Base:
        private = {name: part for name, part in self._handle.private.items() if name != CHANGES}
        return Base(dict(self._handle.shared), private)  # type: ignore[arg-type]

    def is_stored_in(self, location: str) -> bool:
        """Whether all files lie there: those of another job may be deleted by it, or by a user."""
        return all(file.uri.startswith(location.rstrip("/") + "/") for file in self._handle.shared.values())

    def fetch_files(self, folder: str) -> None:
        """The base's files, by link where they lie on the same disk, into a new folder."""
        os.makedirs(folder)
        files: dict[str, Bytes] = {**self._handle.shared, **self.base.private}
        for name, content in files.items():
            if "/" in name or name in ("", ".", ".."):
                raise self._corrupt(f"it has a file {name!r}")
            self._fetch(content, os.path.join(folder, name))
        self.columns = set(rocksdict.Rdict.list_cf(folder, rocksdict.Options(raw_mode=True))) - {"default"}

    def _fetch(self, content: Bytes, path: str) -> None:
        # Files of rows never change; RocksDB may write to the others.
        if isinstance(content, FileHandle) and content.uri.startswith("/") and path.endswith(".sst"):
            try:
                os.link(content.uri, path)
            except OSError:  # another disk, or a file that is gone: `open_content` says so
                pass
            else:
                if os.path.getsize(path) == content.size:
                    return
                os.unlink(path)
        source = self._open_content(content)
        with open(path, "xb") as target:
            if isinstance(source, bytes):
                target.write(source)
            else:
                with source:
                    shutil.copyfileobj(source, target, _HASH_BYTES)

    def written(self) -> Iterator[tuple[str, list[tuple[bytes, Optional[bytes]]]]]:
        """By state what was written after the base, of the handle's key groups."""
        start, end = group_prefix(self.key_groups.start), group_prefix(self.key_groups.end + 1)
        for column, (keys, values) in self._written.items():
            yield self._state_of[column], [(raw, data) for raw, data in zip(keys, values) if start <= raw < end]

    def entries(self) -> Iterator[tuple[str, list[tuple[bytes, Optional[bytes]]]]]:
        """By state, some at a time, what base and written changes have of the handle's key groups."""
        if self.has_files:
            self._folder = LOCAL_FOLDERS.make(self._directories)
            folder = os.path.join(self._folder, "db")
            self.fetch_files(folder)
            options = rocksdict.Options(raw_mode=True)
            columns = {name: rocksdict.Options(raw_mode=True) for name in self.columns}
            self._db = rocksdict.Rdict(folder, options, columns, rocksdict.AccessType.read_only(False))
            start, end = group_prefix(self.key_groups.start), group_prefix(self.key_groups.end + 1)
            for name in sorted(self.columns & self._state_of.keys()):
                bound = rocksdict.ReadOptions()
                bound.set_iterate_upper_bound(end)
                chunk: list[tuple[bytes, Optional[bytes]]] = []
                for entry in self._db.get_column_family(name).items(from_key=start, read_opt=bound):
                    chunk.append(entry)
                    if len(chunk) >= _CHUNK:
                        yield self._state_of[name], chunk
                        chunk = []
                yield self._state_of[name], chunk
        yield from self.written()

    def dirty(self, max_parallelism: int) -> list[Dirty]:
        """Of the handle's key groups, by state and window."""
        names = ", ".join(sorted(state.meta.name for state in self.states))
        found: list[Dirty] = ValueCodec(self._operator, self.layouts).loads(self._dirty, names)
        namespaced = {state.meta.name: state.meta.namespaced and not state.windows for state in self.states}
        kept: list[Dirty] = []
        for name, start, keys, values, deleted in found:

            def is_ours(key: Any) -> bool:
                return key_group(key[1] if namespaced[name] else key, max_parallelism) in self.key_groups

            entries = [(key, value) for key, value in zip(keys, values) if is_ours(key)]
            kept.append(
                (name, start, [key for key, _ in entries], [value for _, value in entries], list(filter(is_ours, deleted)))
            )
        return kept

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._folder is not None:
            LOCAL_FOLDERS.remove(self._folder)

    def _read(self, content: Bytes) -> bytes:
        source = self._open_content(content)
        if isinstance(source, bytes):
            return source
        with source:
            return source.read()

    def _corrupt(self, why: str) -> CorruptSnapshotError:
        return CorruptSnapshotError(
            f'could not restore the keyed state of operator "{self._operator}"',
            where=f"checkpoint {self._handle.checkpoint_id}",
            why=why,
            do="restore from another checkpoint or savepoint",
        )
