"""Keyed state in RocksDB, behind a cache of Python objects.

Each operator of a subtask has a database of its own in a folder of the slot's disk, with a column family for each state
(`rocksdb_encoding`); all of a slot share one memory budget (`rocksdb_memory`).  User code meets `CachedTable`s
(`rocksdb_cache`) through the state objects of the heap backend.  The database is opened when something has to be
written the first time, so state that fits into the cache of dirty entries costs no disk.

Three ways out of here:

* `freeze`: all entries as they are now, for a canonical file (savepoints, full checkpoints);
* `changes`: an incremental snapshot, a *base* of files that are stored already and what has changed since
  (`rocksdb_snapshots`);
* a `Materialisation` makes the next base on a thread: it flushes, links the files and stores those that are new.

All runs on the slot's thread but for the materialisation, and the walk over what was frozen.  The write-ahead log is off:
what a slot loses, the last checkpoint has.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Iterator, Mapping, Optional

import rocksdict

from flinkish.common import options as config
from flinkish.errors import InternalError, ResourceError
from flinkish.messages.checkpoints import IncrementalKeyedStateHandle, KeyGroupRange
from flinkish.state.bases import BaseSchedule, Materialiser, UploadedFiles
from flinkish.state.heap import HeapKeyedStateBackend
from flinkish.state.keyed_snapshot import KeyedSnapshotReader, StateEntries
from flinkish.state.local_folders import LOCAL_FOLDERS
from flinkish.state.rocksdb_cache import CachedTable, CachedWindowTable, Family
from flinkish.state.rocksdb_encoding import ValueCodec, group_prefix
from flinkish.state.rocksdb_memory import slot_memory
from flinkish.state.rocksdb_snapshots import (
    Base,
    Changes,
    FrozenState,
    FrozenTable,
    Materialisation,
    Restorer,
    StateDescription,
)
from flinkish.state.serializers import state_refusal
from flinkish.state.ttl import StateTtl, unexpired

#: Written since the last base: above it the next one is made.
CHANGES_BYTES = 2 << 20
#: Above it the changes are dropped, and the next checkpoint is a full one.
CHANGES_BYTES_MAX = 30 * CHANGES_BYTES
#: Entries that a sweep for expired ones looks at between two batches.
_SWEEP_ENTRIES = 16

_Brings = dict[str, Callable[[Any], Any]]


class RocksDBKeyedStateBackend(HeapKeyedStateBackend):
    """See the module.

    Args:
        key_groups: of the subtask.
        materialiser: runs a `Materialisation`; None: there are no incremental checkpoints.
    """

    is_database = True

    def __init__(
        self,
        operator: str,
        now_ms: Callable[[], int],
        configuration: Mapping[str, Any],
        key_groups: KeyGroupRange,
        max_parallelism: int,
        materialiser: Optional[Materialiser] = None,
    ):
        super().__init__(operator, now_ms)
        self.configuration, self.key_groups, self.max_parallelism = configuration, key_groups, max_parallelism
        self._directories = config.read(configuration, config.ROCKSDB_LOCAL_DIRECTORIES) or ()
        self.memory = slot_memory(configuration)
        self.codec = ValueCodec(operator)
        self.families: dict[str, Family] = {}
        self.folder: Optional[str] = None
        self._db: Any = None
        self._unlogged = rocksdict.WriteOptions()
        self._unlogged.disable_wal = True
        # ---- incremental checkpoints
        self._materialiser = materialiser
        self._base: Optional[Base] = None  # that changes are counted from
        self._stored: Optional[Base] = None  # the newest, also when too much has changed since
        self._changes: dict[tuple[str, bytes], Optional[bytes]] = {}  # (column, key) -> value, None: deleted
        self._sealed: dict[tuple[str, bytes], Optional[bytes]] = {}  # that the base under way will have
        self._changes_bytes = 0
        self._records_changes = materialiser is not None
        self._whole = True  # base (or the empty beginning), sealed and changes are all that there is
        self._schedule = BaseSchedule(configuration, now_ms, operator)
        self._uploaded_bytes = 0
        self._uploaded = UploadedFiles()
        self._sweeps: dict[str, Iterator[None]] = {}

    # ---- tables ---------------------------------------------------------------------------------

    def table(self, name: str) -> CachedTable:
        known = self.tables.get(name)
        if known is None:
            known = self.tables[name] = CachedTable(self, self._family(name))
            self.memory.tables += 1
        known.namespaced = name in self._scoped  # type: ignore[attr-defined]
        return known  # type: ignore[return-value]

    def window_table(self, name: str) -> CachedWindowTable:
        table = self.tables[name] = CachedWindowTable(self, self._family(name))
        self.memory.tables += 1
        return table

    def _family(self, name: str) -> Family:
        family = self.families.get(name)
        if family is None:
            family = self.families[name] = Family(name, f"state-{len(self.families)}")
        return family

    def _cached_tables(self) -> Iterator[CachedTable]:
        for table in self.tables.values():
            if isinstance(table, CachedWindowTable):
                yield from table.values()
            else:
                yield table  # type: ignore[misc]

    def between_batches(self) -> None:
        """No user code is under way: write what is too much, forget popped windows, begin a new base."""
        for table in self.tables.values():
            if isinstance(table, CachedWindowTable):
                table.purge()
        for cached in self._cached_tables():
            if cached.num_dirty > cached.dirty_max:
                cached.trim()
        for name, sweep in self._sweeps.items():
            if next(sweep, _ENDED) is _ENDED:
                self._sweeps[name] = self._sweep(name)
        self._materialise_if_due()

    # ---- the database ---------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._db is not None

    def _open(self, column_names: Mapping[str, str] = {}) -> None:
        """Open the database in ``folder``, which is made when there is none.

        Args:
            column_names: of the states that are in it."""
        try:
            if self.folder is None:
                self.folder = LOCAL_FOLDERS.make(self._directories)
            columns = {name: self.memory.options(self.configuration) for name in column_names.values()}
            options = self.memory.options(self.configuration)
            self._db = rocksdict.Rdict(os.path.join(self.folder, "db"), options, columns or None)
        except Exception as error:  # what the binding raises has no class of its own
            raise self._disk_error("open a RocksDB database", error) from error
        for name, column_name in column_names.items():
            family = self.families[name] = Family(name, column_name)
            family.column = self._db.get_column_family(column_name)
            family.handle = self._db.get_column_family_handle(column_name)

    def _disk_error(self, action: str, error: BaseException) -> ResourceError:
        return ResourceError(
            f"could not {action}",
            where=f'operator "{self.operator}", {self.folder or "the temporary folder"}',
            why=f"{type(error).__name__}: {error}",
            do="check the space and rights of that folder, or name others (state.backend.rocksdb.localdir)",
        )

    def _open_family(self, family: Family) -> None:
        if self._db is None:
            self._open()
        name = family.column_name
        try:
            family.column = self._db.create_column_family(name, self.memory.options(self.configuration))
        except Exception as error:
            raise self._disk_error("write to a RocksDB database", error) from error
        family.handle = self._db.get_column_family_handle(name)

    def close(self) -> None:
        """Remove the database; a second call does nothing."""
        if self._schedule.closed:
            return
        self._schedule.closed = True
        if not self._schedule.under_way:
            self._give_back()
        self.memory.tables -= len(self.tables)
        self._sweeps.clear()
        for family in self.families.values():
            family.column = family.handle = None
        # Threads may still read it: the last of them closes it.
        self._db = None
        if self.folder is not None:
            LOCAL_FOLDERS.remove(self.folder)

    # ---- reading and writing --------------------------------------------------------------------

    def measure(self, table: CachedTable, keys: list) -> None:
        """Learn what entries take as bytes, from some of them."""
        name = table.family.name
        values = [self.codec.encode(dict.__getitem__(table, key), name) for key in keys]
        table.family.measured(sum(map(len, values)) + sum(len(table.raw_key(key)) for key in keys), len(keys))

    def write(self, table: CachedTable, keys: list, values: list, deleted: list) -> None:
        """Raises UserError: a value cannot be pickled."""
        family = table.family
        encode, name, raw_key = self.codec.encode, family.name, table.raw_key
        entries: list[tuple[bytes, Optional[bytes]]] = [
            (raw_key(key), encode(value, name)) for key, value in zip(keys, values)
        ]
        family.measured(sum(len(raw) + len(data or b"") for raw, data in entries), len(entries))
        entries += [(raw_key(key), None) for key in deleted]
        self.write_raw(family, entries)

    def delete_raw(self, family: Family, raw_keys: list[bytes]) -> None:
        self.write_raw(family, [(raw, None) for raw in raw_keys])

    def write_raw(self, family: Family, entries: list[tuple[bytes, Optional[bytes]]]) -> None:
        """Entries as bytes, None: deleted."""
        if not entries:
            return
        if family.column is None:
            self._open_family(family)
        batch, handle = rocksdict.WriteBatch(raw_mode=True), family.handle
        for raw, data in entries:
            if data is None:
                batch.delete(raw, handle)
            else:
                batch.put(raw, data, handle)
        try:
            self._db.write(batch, self._unlogged)
        except Exception as error:
            raise self._disk_error("write to a RocksDB database", error) from error
        family.written = True
        family.writes += 1
        if not self._records_changes:
            return
        changes, column, size = self._changes, family.column_name, 0
        for raw, data in entries:
            changes[column, raw] = data
            size += len(raw) + (0 if data is None else len(data))
        self._changes_bytes += size
        if self._changes_bytes > CHANGES_BYTES_MAX:
            self._forget_changes()

    def entries(self, column: Any, start: Optional[bytes], end: Optional[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Those of a column family from ``start`` to before ``end``, as they are at the first."""
        options = None
        if end is not None:
            options = rocksdict.ReadOptions()
            options.set_iterate_upper_bound(end)
        return column.items(from_key=start, read_opt=options)

    def first_key(self, column: Any) -> Callable[[bytes], Optional[bytes]]:
        """A function that gives the first key at or behind another."""
        walk = column.iter()

        def seek(raw: bytes) -> Optional[bytes]:
            walk.seek(raw)
            return walk.key() if walk.valid() else None

        return seek

    # ---- time to live ---------------------------------------------------------------------------

    def _expiring(self, name: str, ttl: StateTtl, table: Any, scope: Any, descriptor: Any) -> Any:
        """What expires is found by reads and by a walk over the database, a few entries at a time: the binding has
        no compaction filter, which Flink has, and a list of all keys would not fit into memory."""
        self._ttls[name] = ttl
        if ttl.config.get_cleanup_strategies().get_rocksdb_compact_filter_cleanup_strategy() is not None:
            self._sweeps[name] = self._sweep(name)
        return ttl.state(self._plain_state(table, scope, descriptor), scope, descriptor)

    def _sweep(self, name: str) -> Iterator[None]:
        """One walk; pauses after some entries, and between two walks for a part of the time to live."""
        ttl, table = self._ttls[name], self.tables[name]
        pause_until_ms = self._processing_time() + max(1_000, ttl.ttl_ms // 16)
        while self._processing_time() < pause_until_ms:
            yield
        looked_at = 0
        for key, entry in table.items():
            kept = unexpired(ttl.kind, entry, self._processing_time() - ttl.ttl_ms)
            if kept is None:
                table.pop(key, None)
            elif kept is not entry:
                table[key] = kept
            looked_at += 1
            if looked_at % _SWEEP_ENTRIES == 0:
                yield

    # ---- full snapshots -------------------------------------------------------------------------

    def freeze(self) -> FrozenState:
        """All entries as they are now; any thread may walk over them, once."""
        tables = []
        for table in self.tables.values():
            if isinstance(table, CachedWindowTable):
                table.purge()
        for cached in self._cached_tables():
            cached.write()
        for name, table in self.tables.items():
            family, ttl = self.families[name], self._ttls.get(name)
            if family.column is None:
                continue
            kept = ttl if ttl is not None and ttl.cleans_full_snapshots else None
            windows = isinstance(table, CachedWindowTable)
            meta = self._meta(name, table)
            tables.append(FrozenTable(meta, windows, family.column.snapshot(), kept))
        return FrozenState(self.operator, tables, tuple(self.codec.writer.layouts))

    def snapshot_states(self) -> Iterator[StateEntries]:
        if not self.is_open:
            for table in self.tables.values():
                if isinstance(table, CachedWindowTable):
                    table.purge()
            return super().snapshot_states()
        return self.freeze().states()

    # ---- incremental snapshots ------------------------------------------------------------------

    @property
    def can_give_changes(self) -> bool:
        """Whether `changes` has all that there is.  It has not behind a restore from a canonical file, or of
        several parts, until there is a base."""
        return self.is_open and self._materialiser is not None and self._whole

    def changes(self, checkpoint_id: int) -> Changes:
        """An incremental snapshot.  Pickles the dirty entries; what is written already is only referred to."""
        self._schedule.require()
        described, dirty = [], []
        for name, table in self.tables.items():
            windows = isinstance(table, CachedWindowTable)
            if windows:
                table.purge()  # type: ignore[attr-defined]
                dirty += [(name, start, *contents.take_dirty()) for start, contents in table.items()]
            else:
                dirty.append((name, None, *table.take_dirty()))  # type: ignore[attr-defined]
            column = self.families[name].column_name if self.families[name].column is not None else None
            described.append(StateDescription(self._meta(name, table), windows, column))
        dirty = [part for part in dirty if part[2] or part[4]]
        pickled = self.codec.dumps(dirty, ", ".join(sorted({part[0] for part in dirty})))
        written = {**self._sealed, **self._changes}
        uploaded, self._uploaded_bytes = self._uploaded_bytes, 0
        if self._base is not None:
            self._uploaded.refer(checkpoint_id, self._base.shared.values())
        layouts = tuple(self.codec.writer.layouts)
        return Changes(self.key_groups, self._base, described, layouts, written, pickled, uploaded)

    def _forget_changes(self) -> None:
        """There are too many to keep, or they are not all: the next base begins anew."""
        self._changes, self._sealed, self._changes_bytes = {}, {}, 0
        self._base, self._whole, self._records_changes = None, False, False

    def _materialise_if_due(self) -> None:
        if self._materialiser is None or not self.is_open:
            return
        if not self._schedule.is_due(self._changes_bytes > CHANGES_BYTES or not self._whole, bool(self._changes)):
            return
        self._schedule.begin()
        self._sealed, self._changes, self._changes_bytes = self._changes, {}, 0
        self._records_changes = True
        columns = [family.column for family in self.families.values() if family.written]
        for family in self.families.values():
            family.written = False
        assert self.folder is not None
        work = Materialisation(self._db, os.path.join(self.folder, "db"), columns, self._stored)

        def done(base: Any, error: Optional[BaseException]) -> None:
            self._schedule.end(error)
            if error is None:
                self._keep_stored(base)
            if self._schedule.closed:
                self._give_back()
                return
            self._uploaded_bytes += work.uploaded_bytes
            if error is None:
                if self._records_changes:  # else too much has changed meanwhile: the next one follows at once
                    self._base, self._whole, self._sealed = base, True, {}
                return
            for family in self.families.values():
                family.written = family.column is not None
            if self._whole:
                self._changes, self._sealed = {**self._sealed, **self._changes}, {}
                self._changes_bytes += CHANGES_BYTES + 1
            else:
                self._forget_changes()

        self._materialiser.run(work.run, done)

    def _keep_stored(self, base: Base) -> None:
        before = {} if self._stored is None else {file.uri: file for file in self._stored.stored.values()}
        kept = {file.uri: file for file in base.stored.values()}
        for uri in kept.keys() - before.keys():
            self._uploaded.add(kept[uri])
        self._uploaded.release(file for uri, file in before.items() if uri not in kept)
        self._stored = base
        self._delete_unused()

    def _give_back(self) -> None:
        """There will be no other snapshot."""
        if self._stored is not None:
            self._uploaded.release(self._stored.stored.values())
        self._delete_unused()

    def _delete_unused(self) -> None:
        unused = self._uploaded.take_unused()
        if unused:
            assert self._materialiser is not None
            self._materialiser.delete(unused)

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        self._uploaded.complete(checkpoint_id)
        self._delete_unused()

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._uploaded.given_up(checkpoint_id)
        self._delete_unused()

    # ---- restoring ------------------------------------------------------------------------------

    def restore(self, reader: KeyedSnapshotReader, key_groups: Optional[KeyGroupRange] = None) -> None:
        for meta in reader.states.values():
            if meta.namespaced and not isinstance(self.tables.get(meta.name), CachedWindowTable):
                self._scoped.add(meta.name)
        super().restore(reader, key_groups)

    def filled(self, table: Any) -> None:
        for cached in table.values() if isinstance(table, CachedWindowTable) else (table,):
            cached.trim()

    def restore_incremental(self, handle: IncrementalKeyedStateHandle, open_content: Callable[[Any], Any]) -> None:
        """Take over the key groups of one handle: as this database's own files when it is the first, else by copying
        its entries.

        Raises:
            StateMigrationError, CorruptSnapshotError: it does not fit, or is damaged.
        """
        restorer = Restorer(self.operator, handle, open_content, self._directories)
        try:
            brings = self._restore_described(restorer)
            if not self.is_open and restorer.has_files and not brings:
                self._restore_files(restorer)
            else:
                self._restore_entries(restorer, brings)
            self._restore_dirty(restorer, brings)
        finally:
            restorer.close()

    def _restore_described(self, restorer: Restorer) -> _Brings:
        """By state what brings the handle's entries into the form that others have (`_described`)."""
        self._check_keys(described.meta for described in restorer.states)
        brings: _Brings = {}
        for described in restorer.states:
            meta, name = described.meta, described.meta.name
            table = self.tables.get(name)
            if name in self._states:
                raise InternalError(
                    f'state "{name}" was asked for before it was restored', where=f'operator "{self.operator}"'
                )
            if table is not None and isinstance(table, CachedWindowTable) != described.windows:
                raise state_refusal(
                    self.operator, name, "it is kept for windows in one and for keys in the other",
                    "the operator has changed its kind",
                    "give the operator another uid, and restore with allow_non_restored_state",
                )  # fmt: skip
            if described.windows:
                table = table if table is not None else self.window_table(name)
            else:
                if meta.namespaced:
                    self._scoped.add(name)
                table = self.table(name)
            if (bring := self._described(meta, table)) is not None:
                brings[name] = bring
        return brings

    def _restore_files(self, restorer: Restorer) -> None:
        self.folder = LOCAL_FOLDERS.make(self._directories)
        restorer.fetch_files(os.path.join(self.folder, "db"))
        self.codec = ValueCodec(self.operator, restorer.layouts)
        # Column families are named by number: those that came with the files keep theirs.
        taken = {d.meta.name: d.column_name for d in restorer.states if d.column_name in restorer.columns}
        waiting = [name for name in self.families if name not in taken]
        self._open(taken)
        numbers = [int(name.rpartition("-")[2]) for name in taken.values()]
        for number, name in enumerate(waiting, max(numbers, default=-1) + 1):
            self.families[name].column_name = f"state-{number}"
        for name, table in self.tables.items():
            table.family = self.families[name]  # type: ignore[attr-defined]
            if isinstance(table, CachedWindowTable):  # a handle before may have had a little of a window
                for contents in table.values():
                    contents.family = table.family
        self._clip(restorer.key_groups)
        # The stored files are not clipped: of key groups that come from another handle, whatever its form, they may
        # have entries of before, which would come back with them.
        is_all = restorer.key_groups == self.key_groups
        if is_all and self._materialiser is not None and restorer.is_stored_in(self._materialiser.shared_location):
            self._base = self._stored = restorer.base
        self._whole = self._records_changes = self._base is not None
        for name, entries in restorer.written():
            self.write_raw(self.families[name], entries)
        for table in self.tables.values():
            if isinstance(table, CachedWindowTable):
                table.find_starts()

    def _clip(self, key_groups: KeyGroupRange) -> None:
        """Delete the key groups that belong to others."""
        before, behind = group_prefix(key_groups.start), group_prefix(key_groups.end + 1)
        for family in self.families.values():
            if family.column is None:
                continue
            seek = self.first_key(family.column)
            first, later = seek(b""), seek(behind)
            if first is not None and first < before:
                family.column.delete_range(b"", before, self._unlogged)
            if later is not None:
                family.column.delete_range(behind, b"\xff\xff\xff", self._unlogged)
            family.written = True

    def _restore_entries(self, restorer: Restorer, brings: _Brings) -> None:
        codec = ValueCodec(self.operator, restorer.layouts)
        for name, entries in restorer.entries():
            bring = brings.get(name)
            recoded = [(raw, self._recoded(codec, data, name, bring)) for raw, data in entries]
            self.write_raw(self._family(name), recoded)
        self._forget_changes()
        for table in self.tables.values():
            if isinstance(table, CachedWindowTable):
                table.find_starts()

    def _recoded(
        self, codec: ValueCodec, data: Optional[bytes], name: str, bring: Optional[Callable[[Any], Any]]
    ) -> Optional[bytes]:
        """Record layouts have other numbers in another database."""
        if data is None or (bring is None and data[0] == 0x80):
            return data
        value = codec.decode(data, name)
        return self.codec.encode(value if bring is None else bring(value), name)

    def _restore_dirty(self, restorer: Restorer, brings: _Brings) -> None:
        for name, start, keys, values, deleted in restorer.dirty(self.max_parallelism):
            table: Any = self.tables[name]
            if start is not None:
                contents = table.get(start)
                table = table.open(start) if contents is None else contents
            bring = brings.get(name)
            table.update(zip(keys, values if bring is None else map(bring, values)))
            for key in deleted:
                table.pop(key, None)


_ENDED = object()
