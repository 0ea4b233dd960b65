"""The canonical file of keyed state: what one operator has saved in one subtask.

Every backend writes it for savepoints and reads it, so a savepoint of one restores into another; the
heap backend writes its checkpoints in it too.  Entries lie by key group, so that after a change of the
parallelism each subtask reads only the groups that it owns now::

    "FLKS", version (2 bytes)
    block ...                     about 128 kB of entries of one state, by key group
    footer                        JSON: states, record layouts, blocks (offset, length, crc32, ...)
    footer length (8), crc32 of the footer (4), "SKLF"

A block is one pickle of columns (``value_columns``): entries for each key group, namespaces, keys, values.
Within a key group the entries keep the order in which the table had them.  Numbers are little endian.
This format is on disk: a change needs a new version, and the old ones stay readable.

A reader needs the last bytes, the footer and the blocks that it wants; it never unpickles a block whose
checksum is wrong.  Who can write to the checkpoint storage can run code in the job (values are
pickles), so the storage is trusted as the job's code is.
"""

from __future__ import annotations

import contextlib
import enum
import json
import struct
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Mapping, Optional, Union
from zlib import crc32

import numpy as np
import pyarrow as pa

from flinkish.errors import CorruptSnapshotError, InternalError, StateMigrationError, UserError
from flinkish.messages.checkpoints import KeyGroupRange
from flinkish.state.declared_types import DeclaredType
from flinkish.state.key_groups import UPPER_BOUND_MAX_PARALLELISM, key_groups_of_canonical
from flinkish.state.serializers import LayoutReader, LayoutWriter, RecordLayout
from flinkish.state.value_columns import column_form, decode_column, encode_column, merge_forms, table_column

#: Name of the state of DELETIONS of another state: this, then the other's name.
DELETIONS_OF = "_deleted/"
#: Its property: windows that were dropped before anything else of the file happened, encoded as keys, in hex.
DROPPED_WINDOWS = "dropped_windows"

# 3 had members of Enums by value, and no classes of keys; 2 had no types of fields in record layouts; 1 had no forms, and
# no Arrow types of what was declared.
VERSION = 4
#: Flink's ``execution.checkpointing.snapshot-compression`` is a switch; this is what it switches on.
COMPRESSION = "zstd"
BLOCK_BYTES = 128 << 10  # what a reader of some key groups may read too much at either end
BLOCK_BYTES_MAX = 1 << 20  # unless a single entry is larger

_MAGIC, _END_MAGIC = b"FLKS", b"SKLF"
_HEADER = struct.Struct("<4sH")
_TRAILER = struct.Struct("<QI4s")
_CODECS = ("zstd", "lz4")
_FOOTER_BYTES_MAX = 256 << 20
_BLOCK_BYTES_READ_MAX = 1 << 40


class StateKind(enum.Enum):
    VALUE = "VALUE"
    LIST = "LIST"
    MAP = "MAP"
    REDUCING = "REDUCING"
    AGGREGATING = "AGGREGATING"
    TIMERS = "TIMERS"  # the values are times, ms
    DELETIONS = "DELETIONS"  # of a changelog: keys whose entries are gone; the values are None


@dataclass(frozen=True)
class StateMeta:
    """What a snapshot says of one state.

    Args:
        namespaced: entries belong to a key and a namespace, e.g. a window's start.
        declared: types that its descriptor gave: "value" (of a list: of its elements), of a map "key" too.
        ttl: the time to live of its entries, if any, as its backend describes it.
        properties: facts of the operator that are no entries (JSON values), e.g. its watermark.
        key_type: what ``key_by`` declared of its keys; None: nothing, or the snapshot is older.
        key_classes: that its keys have had (`key_classes`); snapshots of older versions have none.
        forms: of "namespace", "key" and "value": what the writer has seen of them (`value_columns.column_form`).
    """

    name: str
    kind: StateKind
    namespaced: bool = False
    declared: Mapping[str, DeclaredType] = field(default_factory=dict)
    ttl: Optional[Mapping[str, Any]] = None
    properties: Mapping[str, Any] = field(default_factory=dict)
    key_type: Optional[DeclaredType] = None
    forms: Mapping[str, Any] = field(default_factory=dict, compare=False)
    key_classes: tuple[RecordLayout, ...] = field(default=(), compare=False)

    def to_json(self) -> dict:
        return {
            "name": self.name,
            "kind": self.kind.value,
            "namespaced": self.namespaced,
            "declared": {role: declared.to_json() for role, declared in self.declared.items()},
            "ttl": self.ttl,
            "properties": dict(self.properties),
            "key_type": self.key_type and self.key_type.to_json(),
            "forms": dict(self.forms),
            "key_classes": [layout.to_json() for layout in self.key_classes],
        }

    @classmethod
    def from_json(cls, found: Any) -> "StateMeta":
        declared = {role: DeclaredType.from_json(text) for role, text in found["declared"].items()}
        return cls(
            str(found["name"]),
            StateKind(found["kind"]),
            bool(found["namespaced"]),
            {role: known for role, known in declared.items() if known is not None},
            found["ttl"],
            found["properties"],
            DeclaredType.from_json(found.get("key_type")),
            found.get("forms", {}),
            tuple(map(RecordLayout.from_json, found.get("key_classes", ()))),
        )


@dataclass
class StateEntries:
    """Entries of one state, in any order of keys: three lists of one length (no namespaces: None).

    The lists are new, the objects in them are those of the state."""

    meta: StateMeta
    keys: list
    values: list
    namespaces: Optional[list] = None


# ---- writing ------------------------------------------------------------------------------------


class KeyedSnapshotWriter:
    """Writes one file, block by block; memory beyond the state's own is some blocks, and its keys and values
    as columns (8 bytes a number or object, the length of a text).

    Args:
        out: the file; written from front to back.
        key_groups: of the subtask.
        compression: "zstd", "lz4" or None.
    Raises:
        UserError: a value cannot be pickled.
    """

    def __init__(
        self,
        out: BinaryIO,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        compression: Optional[str] = None,
        operator: str = "",
    ):
        assert compression is None or compression in _CODECS
        self._out, self._key_groups, self._max_parallelism = out, key_groups, max_parallelism
        self._operator, self._compression = operator, compression
        self._codec = None if compression is None else pa.Codec(compression)
        self._layouts = LayoutWriter()
        self._states: dict[str, dict] = {}
        self._offset = 0
        self._block_entries = 1024
        self._write(_HEADER.pack(_MAGIC, VERSION))

    def write(self, entries: StateEntries) -> None:
        """All entries of a state that lies in a table: they are brought into the order of key groups here."""
        meta, count = entries.meta, len(entries.keys)
        assert len(entries.values) == count
        blocks = self._state(meta)
        if not count:
            return
        groups = key_groups_of_canonical(entries.keys, self._max_parallelism)
        order = np.argsort(groups.astype(np.int16), kind="stable")  # a radix sort of 2-byte numbers
        groups = groups[order]
        self._check_groups(meta, blocks, groups)
        with self._explained(meta):
            columns = [
                values and table_column(values, self._layouts).sorted(order)
                for values in (entries.namespaces, entries.keys, entries.values)
            ]

        def encode(start: int, end: int) -> list:
            return [column and column.encode(start, end) for column in columns]

        self._write_blocks(meta, blocks, groups, encode)

    def write_sorted(
        self, meta: StateMeta, groups: np.ndarray, keys: list, values: list, namespaces: Optional[list] = None
    ) -> None:
        """The next entries of a state, by rising key group: for backends that keep them in this order.

        Args:
            groups: int32 of shape ``[n]``, the key group of each.
        """
        blocks = self._state(meta)
        if not keys:
            return
        self._check_groups(meta, blocks, groups)

        def encode(start: int, end: int) -> list:
            return [
                part and encode_column(part[start:end], self._layouts) for part in (namespaces, keys, values)
            ]

        self._write_blocks(meta, blocks, groups, encode)

    def _check_groups(self, meta: StateMeta, blocks: list, groups: np.ndarray) -> None:
        first, last = int(groups[0]), int(groups[-1])
        if first not in self._key_groups or last not in self._key_groups or (blocks and first < blocks[-1][4]):
            raise InternalError(
                f'could not save state "{meta.name}" by key group',
                where=f'operator "{self._operator}"',
                why=f"entries of key groups {first} to {last} came to the subtask of {self._key_groups}",
            )

    def _write_blocks(
        self, meta: StateMeta, blocks: list, groups: np.ndarray, encode: Callable[[int, int], list]
    ) -> None:
        start, count = 0, len(groups)
        length = self._block_entries
        while start < count:
            end = min(start + length, count)
            data = self._dumps(meta, groups[start:end], lambda: encode(start, end))
            if len(data) > BLOCK_BYTES_MAX and end - start > 1:
                length = (end - start) // 2
                continue
            packed = data if self._codec is None else self._codec.compress(data, asbytes=True)
            first, last = int(groups[start]), int(groups[end - 1])
            blocks.append([self._offset, len(packed), crc32(packed), first, last, end - start, len(data)])
            self._write(packed)
            length = max(1, min((end - start) * BLOCK_BYTES // len(data), 4 * length, 1 << 18))
            start = end
        self._block_entries = length

    def _dumps(self, meta: StateMeta, groups: np.ndarray, encode: Callable[[], list]) -> bytes:
        present, counts = np.unique(groups, return_counts=True)
        forms = self._states[meta.name]["forms"]
        with self._explained(meta):
            columns = encode()
            for role, column in zip(("namespace", "key", "value"), columns):
                if column is not None:
                    form = column_form(column, self._layouts)
                    forms[role] = merge_forms(forms.get(role, "n"), form)
            return self._layouts.dumps((present.astype("<i4").tobytes(), counts.astype("<i4").tobytes(), *columns))
        raise AssertionError("it returns or raises")

    @contextlib.contextmanager
    def _explained(self, meta: StateMeta) -> Iterator[None]:
        try:
            yield
        except RecursionError:
            raise self._unpicklable(meta, "a value is nested too deeply") from None
        except Exception as error:  # pickling runs code of the values' classes, which may raise anything
            raise self._unpicklable(meta, f"{type(error).__name__}: {error}") from error

    def _unpicklable(self, meta: StateMeta, why: str) -> UserError:
        return UserError(
            f'could not save state "{meta.name}"',
            where=f'operator "{self._operator}"',
            why=why,
            do="keep plain data in state, and define its classes at the top of a module",
            state=meta.name,
        )

    def close(self) -> int:
        """Write the footer; the size of the file.  The file itself is closed by its owner."""
        footer = json.dumps(
            {
                "operator": self._operator,
                "max_parallelism": self._max_parallelism,
                "key_groups": [self._key_groups.start, self._key_groups.end],
                "compression": self._compression,
                "layouts": [layout.to_json() for layout in self._layouts.layouts],
                "states": list(self._states.values()),
            },
            separators=(",", ":"),
        ).encode()
        self._write(footer)
        self._write(_TRAILER.pack(len(footer), crc32(footer), _END_MAGIC))
        return self._offset

    def _state(self, meta: StateMeta) -> list:
        state = self._states.get(meta.name)
        if state is None:
            state = self._states[meta.name] = {**meta.to_json(), "forms": {}, "blocks": []}
        assert state["kind"] == meta.kind.value, f"two states are called {meta.name}"
        return state["blocks"]

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._offset += len(data)


def write_keyed_snapshot(
    out: BinaryIO,
    states: Iterable[StateEntries],
    key_groups: KeyGroupRange,
    max_parallelism: int,
    compression: Optional[str] = None,
    operator: str = "",
) -> int:
    """A whole file from tables; its size in bytes."""
    writer = KeyedSnapshotWriter(out, key_groups, max_parallelism, compression, operator)
    for entries in states:
        writer.write(entries)
    return writer.close()


# ---- reading ------------------------------------------------------------------------------------


_READ_BYTES = 8 << 20  # at once: a request to an object store takes as long as a megabyte


@dataclass(frozen=True)
class _Block:
    offset: int
    length: int
    checksum: int
    first_group: int
    last_group: int
    entries: int
    raw_bytes: int


@dataclass
class EntryBlock:
    """Some entries of one state, by rising key group.

    ``groups``: int32 of shape ``[n]``; the lists have n entries each."""

    groups: np.ndarray
    keys: list
    values: list
    namespaces: Optional[list] = None


def _runs(blocks: list[_Block]) -> Iterator[list[_Block]]:
    """Blocks that lie one behind the other, as many as are read at once."""
    run: list[_Block] = []
    for block in blocks:
        if run and (
            run[-1].offset + run[-1].length != block.offset
            or block.offset + block.length - run[0].offset > _READ_BYTES
        ):
            yield run
            run = []
        run.append(block)
    if run:
        yield run


class KeyedSnapshotReader:
    """Reads one file.

    Args:
        source: its bytes, or a file that can seek (``pyarrow`` files can).
        name: path, for errors.
        operator: for errors.
        layout_reader: makes the objects; default: those of the program's classes.
    Raises:
        CorruptSnapshotError: the file is cut off or damaged, or of a newer version.
    """

    def __init__(
        self,
        source: Union[bytes, Any],
        name: str = "inline state",
        operator: str = "",
        layout_reader: Callable[[Iterable[RecordLayout]], LayoutReader] = LayoutReader,
    ):
        self._file = pa.BufferReader(source) if isinstance(source, (bytes, memoryview)) else source
        self.name = name
        footer = self._footer()
        try:
            self.operator = operator or str(footer["operator"])
            self.max_parallelism = int(footer["max_parallelism"])
            self.key_groups = KeyGroupRange(*map(int, footer["key_groups"]))
            if not 0 < self.max_parallelism <= UPPER_BOUND_MAX_PARALLELISM:
                raise ValueError(f"max parallelism {self.max_parallelism}")
            compression = footer["compression"]
            if compression is not None and compression not in _CODECS:
                raise ValueError(f"compression {compression!r}")
            self._codec = None if compression is None else pa.Codec(compression)
            self._layouts = layout_reader(map(RecordLayout.from_json, footer["layouts"]))
            #: By name.
            self.states: dict[str, StateMeta] = {}
            self._blocks: dict[str, list[_Block]] = {}
            for state in footer["states"]:
                meta = StateMeta.from_json(state)
                self.states[meta.name] = meta
                self._blocks[meta.name] = [self._checked(_Block(*map(int, block))) for block in state["blocks"]]
        except (KeyError, TypeError, ValueError) as error:
            raise self._corrupt(self._footer_at, f"the footer is not one: {type(error).__name__}: {error}") from error

    @property
    def layouts(self) -> tuple[RecordLayout, ...]:
        """Of the records in keys and values of all states."""
        return self._layouts.layouts

    def stored_bytes(self, state: str) -> int:
        """Of all key groups of the file."""
        return sum(block.length for block in self._blocks.get(state, ()))

    def num_entries(self, state: str) -> int:
        """Of all key groups of the file."""
        return sum(block.entries for block in self._blocks.get(state, ()))

    def read(self, state: str, key_groups: Optional[KeyGroupRange] = None) -> Iterator[EntryBlock]:
        """Entries of a state, those of ``key_groups`` only; nothing when the file has no such state.

        Raises:
            CorruptSnapshotError: a block is damaged.
            StateMigrationError: values have a class that cannot take them any more.
        """
        wanted = self.key_groups if key_groups is None else key_groups.intersection(self.key_groups)
        blocks = [
            block
            for block in self._blocks.get(state, ())
            if wanted.count and block.first_group <= wanted.end and block.last_group >= wanted.start
        ]
        for run in _runs(blocks):
            start = run[0].offset
            data = memoryview(self._read(start, run[-1].offset + run[-1].length - start))
            for block in run:
                part = data[block.offset - start : block.offset - start + block.length]
                yield self._cut(self._decode(state, block, part), wanted)

    def _decode(self, state: str, block: _Block, data: Any) -> EntryBlock:
        if crc32(data) != block.checksum:
            raise self._corrupt(block.offset, f"the checksum of the block of {block.length} bytes is wrong")
        layouts = self._layouts
        layouts.state, layouts.operator = state, self.operator
        try:
            if self._codec is not None:
                data = self._codec.decompress(data, block.raw_bytes, asbytes=True)
            present, counts, namespaces, keys, values = layouts.loads(data)
            groups = np.repeat(np.frombuffer(present, dtype="<i4"), np.frombuffer(counts, dtype="<i4"))
            columns = [column and self._decoded(column) for column in (keys, values, namespaces)]
            found = EntryBlock(groups, *columns)
            sizes = {len(found.groups), len(found.keys), len(found.values), block.entries}
            if found.namespaces is not None:
                sizes.add(len(found.namespaces))
            if len(sizes) != 1:
                raise ValueError(f"its columns have {sorted(sizes)} entries")
            return found
        except StateMigrationError:
            raise
        except Exception as error:  # a class that raises is refused by the reader
            why = f"the block of {block.length} bytes cannot be decoded: {type(error).__name__}: {error}"
            raise self._corrupt(block.offset, why) from error

    def _decoded(self, column: tuple) -> list:
        try:
            return decode_column(column, self._layouts)
        except StateMigrationError:
            raise
        except Exception as error:  # the checksum was right: it is code of the values' classes that raises
            raise self._layouts.refusal(
                f"its values cannot be made: {type(error).__name__}: {error}",
                "the class of a key raised when a dict was made of its entries",
                "correct the class (its __hash__ and __eq__, or what they need)",
            ) from error

    @staticmethod
    def _cut(block: EntryBlock, wanted: KeyGroupRange) -> EntryBlock:
        start = int(np.searchsorted(block.groups, wanted.start, "left"))
        end = int(np.searchsorted(block.groups, wanted.end, "right"))
        if start == 0 and end == len(block.groups):
            return block
        names = None if block.namespaces is None else block.namespaces[start:end]
        return EntryBlock(block.groups[start:end], block.keys[start:end], block.values[start:end], names)

    # ---- the file -------------------------------------------------------------------------------

    def _footer(self) -> Any:
        self._file.seek(0, 2)
        self._size = self._file.tell()
        self._footer_at = 0
        if self._size < _HEADER.size + _TRAILER.size:
            raise self._corrupt(0, f"it has {self._size} bytes, fewer than an empty one")
        magic, version = _HEADER.unpack(self._read(0, _HEADER.size))
        if magic != _MAGIC:
            raise self._corrupt(0, f"it begins with {magic!r}, not with {_MAGIC!r}: it is no keyed state")
        if version > VERSION:
            raise CorruptSnapshotError(
                "could not read keyed state of a newer flinkish",
                where=self.name,
                why=f"its format has version {version}, this flinkish reads up to {VERSION}",
                do="restore with the flinkish that has written it, or a newer one",
            )
        at = self._size - _TRAILER.size
        length, checksum, end = _TRAILER.unpack(self._read(at, _TRAILER.size))
        if end != _END_MAGIC:
            raise self._corrupt(at, f"it ends with {end!r}, not with {_END_MAGIC!r}: it is cut off")
        if length > min(at - _HEADER.size, _FOOTER_BYTES_MAX):
            raise self._corrupt(at, f"the footer is said to have {length} bytes")
        self._footer_at = at - length
        footer = self._read(self._footer_at, length)
        if crc32(footer) != checksum:
            raise self._corrupt(self._footer_at, "the checksum of the footer is wrong")
        try:
            return json.loads(footer)
        except ValueError as error:
            raise self._corrupt(self._footer_at, f"the footer is no JSON: {error}") from error

    def _checked(self, block: _Block) -> _Block:
        if not (
            _HEADER.size <= block.offset
            and 0 < block.length
            and block.offset + block.length <= self._footer_at
            and 0 <= block.first_group <= block.last_group < self.max_parallelism
            and 0 < block.entries
            and 0 < block.raw_bytes <= _BLOCK_BYTES_READ_MAX
        ):
            raise ValueError(f"{block}")
        return block

    def _read(self, offset: int, length: int) -> bytes:
        self._file.seek(offset)
        data = self._file.read(length)
        if len(data) != length:
            raise self._corrupt(offset, f"{length} bytes were expected, {len(data)} are there")
        return data

    def _corrupt(self, offset: int, why: str) -> CorruptSnapshotError:
        return CorruptSnapshotError(
            "could not read keyed state",
            where=f"{self.name}, offset {offset}",
            why=why,
            do="restore from an older checkpoint or savepoint",
            path=self.name,
            offset=offset,
        )
