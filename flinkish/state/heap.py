"""Keyed state on the heap: one dict per state, from canonical key to value.

The operator sets ``backend.current_key`` once for a record or timer; a state object reads it from
its *scope* (the backend, or a window's scope whose key also names the window).  An access is one
dict operation: 55 ns for ``value()`` and 65 ns for ``update()`` in CPython 3.11, half of it the call.

Tables hold the objects that user code gave.  What an operator emits is fixed at emission
(`operators.copying`), so a change that user code makes to a value in place is seen by nobody else;
whether it is kept without ``update`` is up to the backend, and users must not rely on it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional

from flinkish.datastream import state as api
from flinkish.datastream.functions import KeyedStateStore
from flinkish.errors import InternalError, InvalidJobError
from flinkish.messages.checkpoints import KeyGroupRange
from flinkish.state.canonical_key import map_key
from flinkish.state.current_key import NO_KEY
from flinkish.state.common_form import adapted, adapted_value, common_form, into_form
from flinkish.state.declared_types import DeclaredType, adapter, declared_by, infos_of
from flinkish.state.key_classes import KeyClasses
from flinkish.state.key_decoding import decode_key
from flinkish.state.key_groups import key_groups_of_canonical
from flinkish.state.keyed_snapshot import (
    DELETIONS_OF,
    DROPPED_WINDOWS,
    EntryBlock,
    KeyedSnapshotReader,
    StateEntries,
    StateKind,
    StateMeta,
)
from flinkish.state.serializers import state_refusal
from flinkish.state.ttl import IncrementalCleanup, StateTtl, bare, convert

_MISSING = object()


class HeapKeyedStateBackend:
    """All keyed state of one operator in one subtask.

    ``current_key`` is set by the operator; outside of a record or timer it is `NO_KEY`, which every state refuses.

    Order: made -> `restore` (once for each handle) -> states are asked for, at any time.  A restored
    state that nobody asks for stays, and is in the next snapshot again, as in Flink.

    Args:
        now_ms: processing time, which times to live are counted in.

    ``key_type``: what ``key_by`` declares of the keys; set before `restore`.  ``key_classes``: that they have.
    """

    __slots__ = (
        "current_key", "key_type", "key_classes", "operator", "tables", "now_ms", "_states", "_restored", "_scoped", "_ttls",
        "_cleanups",
    )  # fmt: skip

    def __init__(self, operator: str, now_ms: Optional[Callable[[], int]] = None):
        self.current_key: Any = NO_KEY
        self.operator = operator
        self.now_ms = now_ms
        self.key_type: Optional[DeclaredType] = None
        self.key_classes = KeyClasses(operator)
        self._ttls: dict[str, StateTtl] = {}
        self._cleanups: list[IncrementalCleanup] = []  # that run at every record
        self.tables: dict[str, dict] = {}
        self._states: dict[str, tuple[Any, Any]] = {}
        self._restored: dict[str, StateMeta] = {}
        self._scoped: set[str] = set()  # tables whose keys are (namespace, key)

    def table(self, name: str) -> dict:
        """The dict of state ``name``; operators with state of their own (reduce) use it directly.

        What another backend gives here must do ``get``, ``[]``, ``pop``, ``setdefault``, ``in``, ``items`` and walking,
        and may keep a value that was changed in place only when it is put again."""
        return self.tables.setdefault(name, {})

    def window_table(self, name: str) -> "WindowTable":
        """The table of an operator's windows."""
        table = self.tables[name] = WindowTable()
        return table

    #: Keeps state outside of this process's memory.
    is_database = False

    def close(self) -> None:
        """Give back what the backend has beside memory."""

    def clear(self) -> None:
        """Forget what is kept of all keys."""
        for table in self.tables.values():
            table.clear()
        if self._ttls:
            for _, state in self._states.values():
                cleanup = getattr(state, "cleanup", None)
                if cleanup is not None:
                    cleanup.clear()

    def add_to_log(self, checkpoint_id: int) -> Any:
        """What a checkpoint adds to a changelog (`changelog.LogAddition`); None: there is none."""

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """A checkpoint for which state was saved is complete."""

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        """And this one will not be."""

    def state(self, descriptor: api.StateDescriptor, scope: Any = None, prefix: str = "") -> Any:
        """The state object of ``descriptor``; the same one for an equal descriptor.

        Args:
            scope: has ``current_key``; default: this backend.
            prefix: keeps states of another scope apart, e.g. ``"window/"``.
        Raises:
            InvalidJobError: the name is used for a state of another kind, or the kind is unknown.
            StateMigrationError: the state was restored, and was saved with another kind or type.
        """
        name = prefix + descriptor.name
        known = self._states.get(name)
        if known is not None:
            if known[0] != descriptor:
                raise InvalidJobError(
                    f'state "{descriptor.name}" was described twice',
                    where=f'operator "{self.operator}"',
                    why=f"first as {known[0]!r}, then as {descriptor!r} with another kind or type",
                    do="give each state its own name",
                )
            return known[1]
        for cls, (kind, make) in _KINDS.items():
            if isinstance(descriptor, cls):
                break
        else:
            raise InvalidJobError(
                f"could not make a state from {descriptor!r}", where=f'operator "{self.operator}"'
            )
        ttl = StateTtl.of(kind, descriptor, self._processing_time)
        if scope is not None:
            self._scoped.add(name)
        table = self.table(name)
        if name in self._restored:
            self._check_restored(self._restored[name], kind, scope is not None, descriptor, table)
            convert(self._restored[name], ttl, table)
        owner = self if scope is None else scope
        state = make(table, owner, descriptor) if ttl is None else self._expiring(name, ttl, table, owner, descriptor)
        self._states[name] = (descriptor, state)
        return state

    # ---- time to live ---------------------------------------------------------------------------

    def _expiring(self, name: str, ttl: StateTtl, table: dict, scope: Any, descriptor: Any) -> Any:
        state = ttl.state(self._plain_state(table, scope, descriptor), scope, descriptor)
        state.cleanup = ttl.incremental_cleanup(table)
        if state.cleanup is not None and ttl.cleans_at_every_record:
            self._cleanups.append(state.cleanup)
            self.__class__ = self._cleaning_class()  # so that others pay nothing
        self._ttls[name] = ttl
        return state

    def _cleaning_class(self) -> type:
        return CleaningBackend

    @staticmethod
    def _plain_state(table: dict, scope: Any, descriptor: Any) -> Callable[[StateKind], Any]:
        """Makes states without a time to live."""
        plain = {kind: make for kind, make in _KINDS.values()}
        return lambda kind: plain[kind](table, scope, descriptor)

    def _processing_time(self) -> int:
        assert self.now_ms is not None, "a backend without a clock cannot keep a time to live"
        return self.now_ms()

    # ---- snapshots ------------------------------------------------------------------------------

    def snapshot_states(self) -> Iterator[StateEntries]:
        """All tables, for `keyed_snapshot.write_keyed_snapshot`; lists are made as each comes up, so it is
        walked while nothing changes the state (a forked child's memory never changes)."""
        for name, table in self.tables.items():
            entries = self._entries(self._meta(name, table), table)
            ttl = self._ttls.get(name)
            yield entries if ttl is None or not ttl.cleans_full_snapshots else ttl.without_expired(entries)

    @staticmethod
    def _entries(meta: StateMeta, table: dict) -> StateEntries:
        if isinstance(table, WindowTable):
            keys, values, namespaces = [], [], []  # type: ignore[var-annotated]
            for start, contents in table.items():
                keys += contents
                values += contents.values()
                namespaces += [start] * len(contents)
            return StateEntries(meta, keys, values, namespaces)
        if meta.namespaced:
            names = [namespace for namespace, _ in table]
            return StateEntries(meta, [key for _, key in table], list(table.values()), names)
        return StateEntries(meta, list(table), list(table.values()))

    def restore(self, reader: KeyedSnapshotReader, key_groups: Optional[KeyGroupRange] = None) -> None:
        """Take over the entries of ``key_groups`` (default: all of the file) from one handle.  Timers are
        not state of the backend (`KeyedTimerService.restore`).

        Raises:
            StateMigrationError, CorruptSnapshotError: see `KeyedSnapshotReader`.
        """
        self._check_keys(reader.states.values())
        for meta in reader.states.values():
            if meta.kind is StateKind.DELETIONS:
                self._delete(meta, reader, key_groups)
        for meta in reader.states.values():
            if meta.kind in (StateKind.TIMERS, StateKind.DELETIONS):
                continue
            table = self.table(meta.name)
            windows = isinstance(table, WindowTable)
            if meta.name in self._states:
                raise InternalError(
                    f'state "{meta.name}" was asked for before it was restored', where=f'operator "{self.operator}"'
                )
            if windows and not meta.namespaced:
                raise state_refusal(
                    self.operator, meta.name, "it has become a state of windows",
                    f"it was saved as a {meta.kind.value} state of keys, the program keeps windows under this name",
                    "give the operator another uid, and restore with allow_non_restored_state",
                )  # fmt: skip
            bring = self._described(meta, table)
            for block in reader.read(meta.name, key_groups):
                if bring is not None:
                    block.values = list(map(bring, block.values))
                _fill(table, block)
                self.filled(table)

    def _described(self, meta: StateMeta, table: dict) -> Optional[Callable[[Any], Any]]:
        """Note what a handle says of a state, before its entries come.

        Subtasks may have saved it in different forms, when some have asked for it since its type or time to live
        changed and others have not.  Then what is there already is brought into a common form.
        Returns:
            what brings the handle's entries into it; None: they are in it.
        """
        known = self._restored.get(meta.name)
        if known is None or isinstance(table, WindowTable) or not table:
            self._restored[meta.name] = meta
            return None
        common = self._restored[meta.name] = common_form(self.operator, known, meta)
        bring = into_form(known, common, self._processing_time)
        if bring is not None:
            for key in list(table):
                table[key] = bring(table[key])
        return into_form(meta, common, self._processing_time)

    def _check_keys(self, metas: Iterable[StateMeta]) -> None:
        for meta in metas:
            self.key_classes.check(meta, self.key_type)

    def _delete(self, meta: StateMeta, reader: KeyedSnapshotReader, key_groups: Optional[KeyGroupRange]) -> None:
        """What a file of changes says of entries that earlier files of the same subtask have."""
        table = self.table(meta.name[len(DELETIONS_OF) :])
        windows = isinstance(table, WindowTable)
        groups = reader.key_groups if key_groups is None else key_groups.intersection(reader.key_groups)
        for encoded in meta.properties.get(DROPPED_WINDOWS, ()):
            window, _ = decode_key(bytes.fromhex(encoded))
            if not windows:
                for key in _keys_in(groups, [key for start, key in table if start == window], reader):
                    del table[window, key]
            elif window in table:
                contents = table[window]
                for key in _keys_in(groups, list(contents), reader):
                    del contents[key]
                if not contents:
                    table.pop(window)
        for block in reader.read(meta.name, key_groups):
            if windows:
                for window, key in zip(block.namespaces or (), block.keys):
                    if window in table:
                        table[window].pop(key, None)
            else:
                keys = block.keys if block.namespaces is None else zip(block.namespaces, block.keys)
                for key in keys:
                    table.pop(key, None)

    def restored(self, handle: Any) -> None:
        """All of one handle is taken over."""

    def filled(self, table: dict) -> None:
        """``table`` has got some restored entries; more may come."""

    def _meta(self, name: str, table: dict) -> StateMeta:
        known = self._states.get(name)
        if known is None:
            scoped = isinstance(table, WindowTable) or name in self._scoped
            meta = self._restored.get(name) or StateMeta(name, StateKind.VALUE, scoped)
            return self.with_keys(meta)
        descriptor = known[0]
        kind = next(kind for cls, (kind, _) in _KINDS.items() if isinstance(descriptor, cls))
        ttl = self._ttls.get(name)
        described = None if ttl is None else ttl.describe()
        return self.with_keys(StateMeta(name, kind, name in self._scoped, declared_by(descriptor), described))

    def with_keys(self, meta: StateMeta) -> StateMeta:
        """``meta`` with what a snapshot says of the keys."""
        return replace(meta, key_type=self.key_type or meta.key_type, key_classes=self.key_classes.layouts())

    def _check_restored(
        self, saved: StateMeta, kind: StateKind, namespaced: bool, descriptor: Any, table: dict
    ) -> None:
        """Compare what was saved with what is asked for now, and bring rows into their new form."""
        name = saved.name
        if saved.kind is not kind or saved.namespaced != namespaced:
            raise state_refusal(
                self.operator, name, "its kind has changed",
                f"it was saved as a {saved.kind.value} state{_OF_WINDOWS[saved.namespaced]}, "
                f"the program declares a {kind.value} state{_OF_WINDOWS[namespaced]}",
                "give the new state another name", old=saved.kind.value, new=kind.value,
            )  # fmt: skip
        for role, info in infos_of(descriptor).items():
            entries = (entry if saved.ttl is None else bare(kind, entry) for entry in table.values())
            values = (part for entry in entries for part in _parts(kind, role, entry))
            adapt = adapter(self.operator, name, role, info, saved.declared.get(role), values)
            if adapt is not None:
                adapt = adapt if saved.ttl is None else adapted_value(adapt)
                for key, entry in table.items():
                    table[key] = adapted(kind, adapt, entry)

    @property
    def num_entries(self) -> int:
        """Entries over all tables; a window table counts one for each key and window."""
        return sum(
            table.num_entries if isinstance(table, WindowTable) else len(table)
            for table in self.tables.values()
        )


class CleaningBackend(HeapKeyedStateBackend):
    """One with states whose cleanup runs at every record: for each the operator sets the key once."""

    __slots__ = ()
    _key: Any = HeapKeyedStateBackend.current_key  # the slot

    @property  # type: ignore[override]
    def current_key(self) -> Any:
        return self._key

    @current_key.setter
    def current_key(self, key: Any) -> None:
        self._key = key
        now_ms = self._processing_time()
        for cleanup in self._cleanups:
            if now_ms >= cleanup.due_ms:
                cleanup.run(now_ms)


class WindowTable(dict):
    """State of windows: window start -> key -> accumulator, so that a window fires by one walk."""

    def open(self, start: Any) -> dict:
        """The contents of a window that has none yet."""
        contents: dict = {}
        self[start] = contents
        return contents

    @property
    def num_entries(self) -> int:
        return sum(map(len, self.values()))


class StateStore(KeyedStateStore):
    """The getters that user code calls; also the base of `RuntimeContext`."""

    def __init__(self, backend: HeapKeyedStateBackend, scope: Any = None, prefix: str = ""):
        self._backend, self._scope, self._prefix = backend, scope, prefix

    def get_state(self, state_descriptor):
        return self._get(state_descriptor, api.ValueStateDescriptor)

    def get_list_state(self, state_descriptor):
        return self._get(state_descriptor, api.ListStateDescriptor)

    def get_map_state(self, state_descriptor):
        return self._get(state_descriptor, api.MapStateDescriptor)

    def get_reducing_state(self, state_descriptor):
        return self._get(state_descriptor, api.ReducingStateDescriptor)

    def get_aggregating_state(self, state_descriptor):
        return self._get(state_descriptor, api.AggregatingStateDescriptor)

    def _get(self, descriptor: Any, kind: type) -> Any:
        if not isinstance(descriptor, kind):
            raise InvalidJobError(
                f"could not get state: {descriptor!r} is not a {kind.__name__}",
                where=f'operator "{self._backend.operator}"',
            )
        return self._backend.state(descriptor, self._scope, self._prefix)


# ---- the states ---------------------------------------------------------------------------------


class HeapValueState(api.ValueState):
    __slots__ = ("_table", "_scope")

    def __init__(self, table: dict, scope: Any, descriptor: Any):
        self._table, self._scope = table, scope

    def value(self):
        return self._table.get(self._scope.current_key)

    def update(self, value) -> None:
        if value is None:
            self._table.pop(self._scope.current_key, None)
        else:
            self._table[self._scope.current_key] = value

    def clear(self) -> None:
        self._table.pop(self._scope.current_key, None)


class HeapListState(api.ListState):
    def __init__(self, table: dict, scope: Any, descriptor: Any):
        self._table, self._scope = table, scope

    def get(self) -> list:
        """A new list, so that the state may be changed while it is walked; empty if there is none."""
        return list(self._table.get(self._scope.current_key, ()))

    def add(self, value) -> None:
        key = self._scope.current_key
        values = self._table.get(key)
        if values is None:
            self._table[key] = [value]
        else:
            values.append(value)
            self._table[key] = values

    def add_all(self, values: Iterable) -> None:
        values = list(values)
        if values:
            key = self._scope.current_key
            known = self._table.setdefault(key, [])
            known.extend(values)
            self._table[key] = known

    def update(self, values: Iterable) -> None:
        values = list(values)
        if values:
            self._table[self._scope.current_key] = values
        else:
            self.clear()

    def clear(self) -> None:
        self._table.pop(self._scope.current_key, None)


class HeapMapState(api.MapState):
    """A dict per key; the state entry goes when its dict becomes empty.  Its keys are those of a dict, but that all NaNs
    are one (`map_key`)."""

    def __init__(self, table: dict, scope: Any, descriptor: Any):
        self._table, self._scope = table, scope

    def _map(self) -> Mapping:
        return self._table.get(self._scope.current_key) or {}

    def get(self, key):
        return self._map().get(map_key(key))

    def put(self, key, value) -> None:
        key, current = map_key(key), self._scope.current_key
        entries = self._table.get(current)
        if entries is None:
            self._table[current] = {key: value}
        else:
            entries[key] = value
            self._table[current] = entries

    def put_all(self, dict_value: Mapping) -> None:
        if dict_value:
            current = self._scope.current_key
            entries = self._table.setdefault(current, {})
            entries.update({map_key(key): value for key, value in dict(dict_value).items()})
            self._table[current] = entries

    def remove(self, key) -> None:
        key, current = map_key(key), self._scope.current_key
        entries = self._table.get(current)
        if entries is not None and key in entries:
            del entries[key]
            if entries:
                self._table[current] = entries
            else:
                del self._table[current]

    def contains(self, key) -> bool:
        return map_key(key) in self._map()

    def items(self) -> Iterator:
        return iter(list(self._map().items()))

    def keys(self) -> Iterator:
        return iter(list(self._map()))

    def values(self) -> Iterator:
        return iter(list(self._map().values()))

    def is_empty(self) -> bool:
        return not self._map()

    def clear(self) -> None:
        self._table.pop(self._scope.current_key, None)

    def __len__(self) -> int:
        return len(self._map())

    def __bool__(self) -> bool:  # a state object is not "empty" as an object
        return True


class HeapReducingState(api.ReducingState):
    def __init__(self, table: dict, scope: Any, descriptor: Any):
        self._table, self._scope = table, scope
        self._reduce = descriptor.reduce_function.reduce

    def get(self):
        return self._table.get(self._scope.current_key)

    def add(self, value) -> None:
        key = self._scope.current_key
        current = self._table.get(key, _MISSING)
        self._table[key] = value if current is _MISSING else self._reduce(current, value)

    def clear(self) -> None:
        self._table.pop(self._scope.current_key, None)


class HeapAggregatingState(api.AggregatingState):
    def __init__(self, table: dict, scope: Any, descriptor: Any):
        self._table, self._scope = table, scope
        self._function = descriptor.agg_function

    def get(self):
        accumulator = self._table.get(self._scope.current_key, _MISSING)
        return None if accumulator is _MISSING else self._function.get_result(accumulator)

    def add(self, value) -> None:
        key = self._scope.current_key
        accumulator = self._table.get(key, _MISSING)
        if accumulator is _MISSING:
            accumulator = self._function.create_accumulator()
        self._table[key] = self._function.add(value, accumulator)

    def clear(self) -> None:
        self._table.pop(self._scope.current_key, None)


_KINDS: dict[type, tuple[StateKind, Callable]] = {
    api.ValueStateDescriptor: (StateKind.VALUE, HeapValueState),
    api.ListStateDescriptor: (StateKind.LIST, HeapListState),
    api.MapStateDescriptor: (StateKind.MAP, HeapMapState),
    api.ReducingStateDescriptor: (StateKind.REDUCING, HeapReducingState),
    api.AggregatingStateDescriptor: (StateKind.AGGREGATING, HeapAggregatingState),
}


_OF_WINDOWS = {False: "", True: " of windows"}


# ---- restoring ----------------------------------------------------------------------------------


def _keys_in(key_groups: KeyGroupRange, keys: list, reader: KeyedSnapshotReader) -> list:
    """Those that lie in some key groups: another subtask may have had a window when this one dropped it."""
    groups = key_groups_of_canonical(keys, reader.max_parallelism) if keys else ()
    return [key for key, group in zip(keys, groups) if group in key_groups]


def _fill(table: dict, block: EntryBlock) -> None:
    if isinstance(table, WindowTable):
        for start, key, value in zip(block.namespaces or (), block.keys, block.values):
            contents = table.get(start)
            if contents is None:
                contents = table.open(start)
            contents[key] = value
    elif block.namespaces is not None:
        table.update(zip(zip(block.namespaces, block.keys), block.values))
    else:
        table.update(zip(block.keys, block.values))


def _parts(kind: StateKind, role: str, entry: Any) -> Iterable:
    """What the declared type speaks of: elements of a list, keys or values of a map."""
    if kind is StateKind.MAP:
        return entry if role == "key" else entry.values()
    return entry if kind is StateKind.LIST else (entry,)
