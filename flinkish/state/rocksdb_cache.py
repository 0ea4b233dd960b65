"""Tables of the RocksDB backend: Python objects in front, RocksDB behind.

An entry is in the first of these places that has it, and what is in a later one is then out of date or the same::

    the table itself, a dict     dirty: not written yet
    ``_deleted``                 keys whose deletion is not written yet
    ``_young``, ``_old``         clean objects; the old half is dropped when the young one is full
    the column family            bytes

So a hit is a dict look-up, and ``table[key] = value`` is a dict's own (no Python runs).  The dirty ones are bounded:
looking for a key that is not dirty, and each batch of records, writes the oldest when there are too many.  Written
entries stay as clean objects.

What user code changes in place without ``update`` is kept only while the object stays in a cache: it is lost when the entry
leaves it, as in Flink's RocksDB always.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Callable, Iterable, Iterator, Optional

from flinkish.state.heap import WindowTable
from flinkish.state.key_encoding import encode_key
from flinkish.state.key_decoding import decode_key
from flinkish.state.rocksdb_encoding import (
    decode_entry_key,
    decode_scoped_key,
    encode_entry_key,
    encode_scoped_key,
    encode_window_key,
    group_prefix,
)
from flinkish.state.rocksdb_memory import OBJECT_BYTES, OBJECT_FACTOR

_MISSING = object()
_dict_get, _dict_pop, _dict_len, _dict_contains = dict.get, dict.pop, dict.__len__, dict.__contains__

#: Dirty entries of one state, as bytes: a barrier pickles them between two records (1 to 3 ms).
DIRTY_BYTES = 1 << 20
DIRTY_ENTRIES_MAX = 65_536
#: Written at once between two records: about 1 ms.
WRITE_ENTRIES = 256
_SAMPLE = 16
_FIRST_LIMIT = 64  # until the size of some entries is known
_CLEAN_MIN = 16


class Family:
    """The column family of one state.  ``column``, ``handle``: None until something is written to it."""

    __slots__ = ("name", "column_name", "column", "handle", "entry_bytes", "written", "writes")

    def __init__(self, name: str, column_name: str):
        self.name, self.column_name = name, column_name
        self.column: Any = None
        self.handle: Any = None
        self.entry_bytes: Optional[float] = None  # of key and value, a moving average
        self.written = False  # since the last flush
        self.writes = 0

    def measured(self, total_bytes: int, entries: int) -> None:
        if entries:
            mean = total_bytes / entries
            self.entry_bytes = mean if self.entry_bytes is None else 0.75 * self.entry_bytes + 0.25 * mean


class CachedTable(dict):
    """Entries of one state, by key, or by (namespace, key) when ``namespaced``.

    Args:
        backend: writes and reads (`RocksDBKeyedStateBackend`).
    """

    __slots__ = ("backend", "family", "namespaced", "dirty_max", "clean_max", "_deleted", "_young", "_old")

    def __init__(self, backend: Any, family: Family):
        super().__init__()
        self.backend, self.family = backend, family
        self.namespaced = False
        self._deleted: set = set()
        self._young: dict = {}
        self._old: dict = {}
        self.set_limits()

    # ---- keys -----------------------------------------------------------------------------------

    def raw_key(self, key: Any) -> bytes:
        encode = encode_scoped_key if self.namespaced else encode_entry_key
        return encode(key, self.backend.max_parallelism)  # type: ignore[arg-type]

    def key_of(self, raw: bytes) -> Any:
        return (decode_scoped_key if self.namespaced else decode_entry_key)(raw)

    def ranges(self) -> Iterable[tuple[Optional[bytes], Optional[bytes]]]:
        """Where its entries lie in the column family: from (included) to (not included)."""
        return ((None, None),)

    # ---- limits ---------------------------------------------------------------------------------

    def set_limits(self) -> None:
        """By what the entries take, as far as it is known."""
        entry_bytes = self.family.entry_bytes
        if entry_bytes is None:
            self.dirty_max, self.clean_max = _FIRST_LIMIT, _CLEAN_MIN
            return
        share = self.share()
        self.dirty_max = max(_CLEAN_MIN, min(DIRTY_ENTRIES_MAX, int(DIRTY_BYTES * share / entry_bytes)))
        bytes_each = OBJECT_FACTOR * entry_bytes + OBJECT_BYTES
        objects = self.backend.memory.objects_of_table() * share - self.dirty_max * bytes_each
        self.clean_max = max(_CLEAN_MIN, int(objects / 2 / bytes_each))

    def share(self) -> float:
        """Of what its state may take."""
        return 1.0

    def trim(self) -> None:
        """Write the oldest dirty entries while there are too many."""
        while _dict_len(self) + len(self._deleted) > self.dirty_max:
            if self.family.entry_bytes is None and _dict_len(self):  # there may be deletions alone
                self.backend.measure(self, list(islice(dict.__iter__(self), _SAMPLE)))
                self.set_limits()
            else:
                self.write(list(islice(dict.__iter__(self), WRITE_ENTRIES)))

    def write(self, keys: Optional[list] = None) -> None:
        """Write entries, default: all that are dirty, and all deletions."""
        keys = list(dict.__iter__(self)) if keys is None else keys
        deleted = [key for key in self._deleted if not _dict_contains(self, key)]
        if not keys and not deleted:
            return
        self.backend.write(self, keys, [dict.__getitem__(self, key) for key in keys], deleted)
        self._deleted.clear()
        for key in keys:
            self._keep(key, _dict_pop(self, key))
        self.set_limits()

    def take_dirty(self) -> tuple[list, list, list]:
        """Keys and values of what is dirty, and keys that are deleted; it all stays."""
        deleted = [key for key in self._deleted if not _dict_contains(self, key)]
        return list(dict.__iter__(self)), list(dict.values(self)), deleted

    @property
    def num_dirty(self) -> int:
        return _dict_len(self)

    # ---- access ---------------------------------------------------------------------------------

    def get(self, key: Any, default: Any = None) -> Any:
        value = _dict_get(self, key, _MISSING)
        return self._find(key, default) if value is _MISSING else value

    def __missing__(self, key: Any) -> Any:
        value = self._find(key, _MISSING)
        if value is _MISSING:
            raise KeyError(key)
        return value

    def _find(self, key: Any, default: Any) -> Any:
        """A key that is not dirty."""
        if _dict_len(self) > self.dirty_max:
            self.trim()
        if self._deleted and key in self._deleted:
            return default
        value = self._young.get(key, _MISSING)
        if value is not _MISSING:
            return value
        value = self._old.pop(key, _MISSING)
        if value is _MISSING:
            column = self.family.column
            if column is None:
                return default
            data = column.get(self.raw_key(key))
            if data is None:
                return default
            value = self.backend.codec.decode(data, self.family.name)
        self._keep(key, value)
        return value

    def _keep(self, key: Any, value: Any) -> None:
        young = self._young
        young[key] = value
        if self._old:
            self._old.pop(key, None)
        if len(young) > self.clean_max:
            self._old, self._young = young, {}

    def pop(self, key: Any, *default: Any) -> Any:
        value = _dict_pop(self, key, _MISSING)
        if value is _MISSING:
            value = self._find(key, _MISSING)
            if value is _MISSING:
                if not default:
                    raise KeyError(key)
                return default[0]
        self._young.pop(key, None)
        self._old.pop(key, None)
        if self.family.column is not None:
            self._deleted.add(key)
            if len(self._deleted) > self.dirty_max:
                self.trim()
        return value

    def __delitem__(self, key: Any) -> None:
        self.pop(key)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        value = self.get(key, _MISSING)
        if value is _MISSING:
            self[key] = value = default
        return value

    def update(self, entries: Any = ()) -> None:  # type: ignore[override]
        for key, value in entries.items() if hasattr(entries, "items") else entries:
            self[key] = value
            if _dict_len(self) > self.dirty_max:
                self.trim()

    def __contains__(self, key: Any) -> bool:
        return self.get(key, _MISSING) is not _MISSING

    # ---- walking --------------------------------------------------------------------------------

    def items(self) -> Iterator[tuple[Any, Any]]:  # type: ignore[override]
        """All keys that are there now, each with the value that it has when the walk comes to it; entries may be
        changed and removed meanwhile."""
        family = self.family
        if family.column is None:
            for key in list(dict.keys(self)):
                value = self._find_without_keeping(key, None, True)
                if value is not _MISSING:
                    yield key, value
            return
        self.write()
        writes = family.writes
        for start, end in self.ranges():
            for raw, data in self.backend.entries(family.column, start, end):
                key = self.key_of(raw)
                if _dict_len(self) > self.dirty_max:
                    self.trim()
                # What RocksDB walks over is as it was when the walk began.
                value = self._find_without_keeping(key, data, family.writes != writes)
                if value is not _MISSING:
                    yield key, value

    def _find_without_keeping(self, key: Any, data: Optional[bytes], is_old: bool) -> Any:
        """The value now.  ``data``: what RocksDB had of it, which ``is_old`` if anything was written since."""
        value = _dict_get(self, key, _MISSING)
        if value is not _MISSING:
            return value
        if key in self._deleted:
            return _MISSING
        value = self._young.get(key, _MISSING)
        if value is _MISSING:
            value = self._old.get(key, _MISSING)
        if value is not _MISSING:
            return value
        if is_old:
            column = self.family.column
            data = None if column is None else column.get(self.raw_key(key))
        return _MISSING if data is None else self.backend.codec.decode(data, self.family.name)

    def __iter__(self) -> Iterator:
        for key, _ in self.items():
            yield key

    def keys(self) -> Iterator:  # type: ignore[override]
        return iter(self)

    def values(self) -> Iterator:  # type: ignore[override]
        for _, value in self.items():
            yield value

    def __len__(self) -> int:
        """Walks over all of them."""
        if self.family.column is None:
            return _dict_len(self)
        self.write()
        return sum(
            1 for start, end in self.ranges() for _ in self.backend.entries(self.family.column, start, end)
        )

    def __bool__(self) -> bool:
        return next(self.items(), None) is not None

    def clear(self) -> None:
        for key in list(self):
            self.pop(key)


class WindowContents(CachedTable):
    """Entries of one window, by key.  Their keys begin with key group and window."""

    __slots__ = ("start", "popped", "_owner")

    def __init__(self, backend: Any, family: Family, start: Any, owner: "CachedWindowTable"):
        self.start, self.popped, self._owner = encode_key(start), False, owner
        super().__init__(backend, family)

    def raw_key(self, key: Any) -> bytes:
        return encode_window_key(self.start, key, self.backend.max_parallelism)

    def key_of(self, raw: bytes) -> Any:
        return decode_key(raw, 2 + len(self.start))[0]

    def ranges(self) -> Iterator[tuple[Optional[bytes], Optional[bytes]]]:
        groups = self.backend.key_groups
        for group in range(groups.start, groups.end + 1):
            prefix = group_prefix(group) + self.start
            yield prefix, prefix_end(prefix)

    def share(self) -> float:
        return 1.0 / max(1, len(self._owner))

    def items(self) -> Iterator[tuple[Any, Any]]:  # type: ignore[override]
        column = self.family.column
        if not self.popped or column is None:
            yield from super().items()
            return
        dirty = dict(dict.items(self))  # not worth writing any more
        for start, end in self.ranges():
            for raw, data in self.backend.entries(column, start, end):
                key = self.key_of(raw)
                if key not in dirty and key not in self._deleted:
                    yield key, self.backend.codec.decode(data, self.family.name)
        yield from dirty.items()

    def remove(self) -> None:
        """Delete what RocksDB has of it; nobody looks at it any more."""
        dict.clear(self)
        column = self.family.column
        if column is None:
            return
        for start, end in self.ranges():
            raw_keys = [raw for raw, _ in self.backend.entries(column, start, end)]
            for at in range(0, len(raw_keys), WRITE_ENTRIES):
                self.backend.delete_raw(self.family, raw_keys[at : at + WRITE_ENTRIES])


class CachedWindowTable(WindowTable):
    """Window start -> `WindowContents`.  A window that was popped can be walked until another one opens, or
    the next batch of records comes."""

    def __init__(self, backend: Any, family: Family):
        super().__init__()
        self.backend, self.family = backend, family
        self._popped: list[WindowContents] = []

    def open(self, start: Any) -> WindowContents:
        if self._popped:
            self.purge()  # one with this start may be among them
        contents = self[start] = WindowContents(self.backend, self.family, start, self)
        return contents

    def pop(self, start: Any) -> WindowContents:  # type: ignore[override]
        contents = dict.pop(self, start)
        contents.popped = True
        self._popped.append(contents)
        return contents

    def purge(self) -> None:
        """Between two batches: nobody walks over popped windows any more."""
        popped, self._popped = self._popped, []
        for contents in popped:
            contents.remove()

    def find_starts(self) -> None:
        """Windows that RocksDB has and this table does not know, after a restore."""
        column, groups = self.family.column, self.backend.key_groups
        if column is None:
            return
        seek: Callable[[bytes], Optional[bytes]] = self.backend.first_key(column)
        for group in range(groups.start, groups.end + 1):
            prefix = group_prefix(group)
            raw = seek(prefix)
            while raw is not None and raw.startswith(prefix):
                start, at = decode_key(raw, 2)
                if start not in self:
                    self.open(start)
                raw = seek(prefix_end(raw[:at]))


def prefix_end(prefix: bytes) -> bytes:
    """The first bytes behind all that begin with ``prefix``, which is not all 0xff.

    >>> prefix_end(b"a\\xff")
    b'b'
    """
    prefix = prefix.rstrip(b"\xff")
    return prefix[:-1] + bytes([prefix[-1] + 1])
