"""Keyed state on the heap whose checkpoints store what has changed: ``state.changelog.enabled`` with ``hashmap``.

The state lies in canonical files (`keyed_snapshot`), one behind the other::

    base             all entries, at one moment
    changes ...      entries that were put since, keys that were removed since (DELETIONS), windows that were dropped

Each checkpoint adds one file and refers to those before it.  One that fits into the message is not kept for the next
checkpoint, which tells its changes again.  A base is made by a forked child between two batches (`bases`), and
takes the place of all files from before.  Without a base the checkpoint itself stores all entries, and its file is
one.  Timers are in the file that a checkpoint adds, all of them: a restore takes those of the last.

Tables note keys, not values, so an entry that changed ten times between two checkpoints is stored once, as it is
then.  Flink's changelog stores each change; its plan for increments of the heap backend (FLIP-151) notes keys too.  A
value that user code changes in place is stored when its key was also put, removed or added to since; else the
checkpoint has it as it was, as Flink's changelog has.

Numbers: each snapshot and each base is a *cut* with a number; what tables have noted before it belongs to it.
Invariants (`Changelog.check`): the first file has all entries, the numbers of the others rise; what changed up to the
last file's number is in the files, the rest in cuts behind it or in the tables.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Mapping, Optional

from flinkish.common import options as config
from flinkish.messages.checkpoints import (
    Bytes,
    FileHandle,
    IncrementalKeyedStateHandle,
    InlineBytes,
    KeyedStateHandle,
    KeyGroupRange,
)
from flinkish.state.bases import BaseSchedule, Materialiser, UploadedFiles
from flinkish.state.heap import CleaningBackend, HeapKeyedStateBackend, WindowTable
from flinkish.state.key_encoding import encode_key
from flinkish.state.keyed_snapshot import (
    COMPRESSION,
    DELETIONS_OF,
    DROPPED_WINDOWS,
    KeyedSnapshotReader,
    StateEntries,
    StateKind,
    StateMeta,
    write_keyed_snapshot,
)

#: Changes may take as much as the base, and this where the base is small: a restore reads both.
CHANGES_BYTES_MIN = 1 << 20
#: Files behind a base; each is named in the metadata of each checkpoint.
FILES_MAX = 64
#: Cuts that are not stored yet; more are put together.
_CUTS_MAX = 8

#: Where a table without windows has its keys in `Changes.keys`.
_NO_WINDOW = None


# ---- tables -------------------------------------------------------------------------------------


@dataclass
class Changes:
    """Of one table: keys by window, and the windows that were dropped (and may be there again)."""

    keys: dict[Any, dict[Any, None]] = field(default_factory=dict)
    dropped: dict[Any, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.keys.values())) + len(self.dropped)

    def add(self, later: "Changes") -> None:
        for window, keys in later.keys.items():
            self.keys.setdefault(window, {}).update(keys)
        self.dropped.update(later.dropped)


class ChangelogTable(dict):
    """Notes the keys of entries that are put or removed, in ``changed``."""

    __slots__ = ("changed",)

    def __init__(self) -> None:
        super().__init__()
        self.changed: dict[Any, None] = {}

    def __setitem__(self, key: Any, value: Any) -> None:
        self.changed[key] = None
        dict.__setitem__(self, key, value)

    def __delitem__(self, key: Any) -> None:
        dict.__delitem__(self, key)
        self.changed[key] = None

    def pop(self, key: Any, *default: Any) -> Any:
        if key in self:
            self.changed[key] = None
        return dict.pop(self, key, *default)

    def popitem(self) -> tuple[Any, Any]:
        entry = dict.popitem(self)
        self.changed[entry[0]] = None
        return entry

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self.changed[key] = None
        return dict.setdefault(self, key, default)

    def update(self, *entries: Any, **named: Any) -> None:  # type: ignore[override]
        new = dict(*entries, **named)
        self.changed.update(dict.fromkeys(new))
        dict.update(self, new)

    def __ior__(self, entries: Any) -> "ChangelogTable":  # type: ignore[override,misc]
        self.update(entries)
        return self

    def clear(self) -> None:
        self.changed.update(dict.fromkeys(self))
        dict.clear(self)

    def take_changes(self) -> Changes:
        changed, self.changed = self.changed, {}
        return Changes({_NO_WINDOW: changed} if changed else {})


class ChangelogWindowTable(WindowTable):
    """Window -> `ChangelogTable`; a window that is popped is dropped with all that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped: dict[Any, None] = {}

    def open(self, start: Any) -> ChangelogTable:
        contents = ChangelogTable()
        dict.__setitem__(self, start, contents)
        return contents

    def __setitem__(self, start: Any, contents: Any) -> None:
        if start in self:
            self.dropped[start] = None
        self.open(start).update(contents)

    def __delitem__(self, start: Any) -> None:
        dict.__delitem__(self, start)
        self.dropped[start] = None

    def pop(self, start: Any, *default: Any) -> Any:
        if start in self:
            self.dropped[start] = None
        return dict.pop(self, start, *default)

    def take_changes(self) -> Changes:
        changes = Changes(dropped=self.dropped)
        self.dropped = {}
        for start, contents in self.items():
            if contents.changed:
                changes.keys[start], contents.changed = contents.changed, {}
        return changes


# ---- the log ------------------------------------------------------------------------------------


#: By state.
Cut = Mapping[str, Changes]


@dataclass(frozen=True)
class LogFile:
    number: int
    content: FileHandle


class Changelog:
    """Which files have the state, and which changes are in none of them.

    A file of a snapshot is taken over only when no snapshot was taken after that one: the later one does not refer to
    the file, so the JobManager may delete it when the later one is complete."""

    def __init__(self) -> None:
        self.files: list[LogFile] = []
        self.cuts: list[tuple[int, Cut]] = []
        self.number = 0
        self._newest = 0  # snapshot

    def cut(self, changes: Cut) -> int:
        """What has changed since the last cut; the number of this one."""
        self.number += 1
        if any(changes.values()):
            self.cuts.append((self.number, changes))
        if len(self.cuts) > _CUTS_MAX:
            merged: dict[str, Changes] = {}
            for _, cut in self.cuts:
                _merge(merged, cut)
            self.cuts = [(self.number, merged)]
        return self.number

    def changes(self) -> dict[str, Changes]:
        """All that is in no file, by state."""
        merged: dict[str, Changes] = {}
        for _, cut in self.cuts:
            _merge(merged, cut)
        return merged

    @property
    def num_changes(self) -> int:
        """At least: a key that changed in two cuts counts twice."""
        return sum(len(changes) for _, cut in self.cuts for changes in cut.values())

    def snapshot(self, whole: bool) -> list[FileHandle]:
        """One is taken at the last cut.  The files that are not used any more.

        Args:
            whole: it stores all entries, so no later one may refer to the files that are there."""
        self._newest = self.number
        if not whole:
            return []
        unused, self.files = self.contents, []
        return unused

    def snapshot_stored(self, number: int, content: FileHandle, whole: bool) -> list[FileHandle]:
        """The files that are not used any more."""
        if number != self._newest or (self.files and self.files[-1].number >= number):
            return [content]
        if whole:
            return self.base_stored(number, content)
        if not self.files:
            return [content]
        self.files.append(LogFile(number, content))
        self._forget_cuts(number)
        return []

    def base_stored(self, number: int, content: FileHandle) -> list[FileHandle]:
        """A file with all entries at a cut.  The files that are not used any more."""
        unused = [file.content for file in self.files if file.number <= number]
        later = [file for file in self.files if file.number > number]
        self.files = [LogFile(number, content), *later]
        self._forget_cuts(number)
        return unused

    def restored(self, contents: Iterable[FileHandle]) -> None:
        """The state is what these files have."""
        assert not self.files and not self.number
        self.files = [LogFile(number, content) for number, content in enumerate(contents, 1)]
        self.number = len(self.files)

    def _forget_cuts(self, number: int) -> None:
        self.cuts = [(cut, changes) for cut, changes in self.cuts if cut > number]

    @property
    def contents(self) -> list[FileHandle]:
        return [file.content for file in self.files]

    @property
    def has_changes(self) -> bool:
        """There are some behind the base, as far as cuts tell."""
        return len(self.files) > 1 or bool(self.cuts)

    @property
    def has_outgrown(self) -> bool:
        """The changes are as much as the base."""
        if not self.files:
            return False
        base, *later = (file.content.size for file in self.files)
        return len(later) >= FILES_MAX or sum(later) > max(base, CHANGES_BYTES_MIN)

    def check(self) -> None:
        numbers = [file.number for file in self.files]
        cuts = [number for number, _ in self.cuts]
        assert numbers == sorted(set(numbers)) and cuts == sorted(set(cuts))
        assert all(number <= self.number for number in (*numbers, *cuts))
        assert not numbers or all(cut > numbers[-1] for cut in cuts) or self._newest != numbers[-1]


def _merge(into: dict[str, Changes], cut: Cut) -> None:
    for name, changes in cut.items():
        into.setdefault(name, Changes()).add(changes)


# ---- files of a handle --------------------------------------------------------------------------

#: `IncrementalKeyedStateHandle.backend`: its files are canonical ones, which every backend reads.
LOG_BACKEND = "hashmap"


def files_in_order(handle: IncrementalKeyedStateHandle) -> list[Bytes]:
    """Of a handle of `LOG_BACKEND`, the base first."""
    files: dict[str, Bytes] = {**handle.shared, **handle.private}
    return [content for _, content in sorted(files.items())]


@dataclass(frozen=True)
class LogAddition:
    """The file that one checkpoint adds.

    Args:
        states: what it has of the backend; makes the entries anew at each call.
        num_entries: about.
        files: that it refers to; none: it has all entries.
        uploaded_bytes: of bases, since the snapshot before.
        on_stored: gets this and its file.
    """

    number: int
    checkpoint_id: int
    states: Callable[[], Iterable[StateEntries]]
    num_entries: int
    files: tuple[LogFile, ...]
    uploaded_bytes: int
    on_stored: Callable[["LogAddition", FileHandle], None]

    @property
    def is_whole(self) -> bool:
        return not self.files

    def stored(self, content: Bytes) -> None:
        """It is durable, whether the checkpoint is still wanted or not; called on the slot's thread."""
        if isinstance(content, FileHandle):
            self.on_stored(self, content)

    def handle(
        self, key_groups: KeyGroupRange, backend_id: str, content: Bytes
    ) -> KeyedStateHandle | IncrementalKeyedStateHandle:
        if self.is_whole and isinstance(content, InlineBytes):
            return KeyedStateHandle(key_groups, content)
        shared = {_name(file.number): file.content for file in self.files}
        private: dict[str, Bytes] = {}
        if isinstance(content, FileHandle):
            shared[_name(self.number)] = content
        else:
            private[_name(self.number)] = content
        return IncrementalKeyedStateHandle(key_groups, LOG_BACKEND, backend_id, self.checkpoint_id, shared, private)


def _name(number: int) -> str:
    return f"{number:010d}"


# ---- the backend --------------------------------------------------------------------------------


class ChangelogKeyedStateBackend(HeapKeyedStateBackend):
    """See the module.

    Args:
        key_groups: of the subtask.
        materialiser: stores bases.
    """

    __slots__ = (
        "key_groups", "max_parallelism", "log", "_compression", "_materialiser", "_schedule", "_uploaded",
        "_uploaded_bytes", "_handles_restored", "_restored_last",
    )  # fmt: skip

    def __init__(
        self,
        operator: str,
        now_ms: Callable[[], int],
        configuration: Mapping[str, Any],
        key_groups: KeyGroupRange,
        max_parallelism: int,
        materialiser: Materialiser,
    ):
        super().__init__(operator, now_ms)
        self.key_groups, self.max_parallelism = key_groups, max_parallelism
        self.log = Changelog()
        self._compression = COMPRESSION if config.read(configuration, config.SNAPSHOT_COMPRESSION) else None
        self._materialiser = materialiser
        self._schedule = BaseSchedule(configuration, now_ms, operator)
        self._uploaded = UploadedFiles()
        self._uploaded_bytes = 0
        self._handles_restored = 0
        self._restored_last: Cut = {}  # by the last file

    def table(self, name: str) -> dict:
        known = self.tables.get(name)
        if known is None:
            known = self.tables[name] = ChangelogTable()
        return known

    def window_table(self, name: str) -> WindowTable:
        table = self.tables[name] = ChangelogWindowTable()
        return table

    def _cleaning_class(self) -> type:
        return _CleaningChangelogBackend

    def close(self) -> None:
        self._schedule.closed = True
        if not self._schedule.under_way:
            self._release(self.log.contents)

    # ---- checkpoints ----------------------------------------------------------------------------

    def add_to_log(self, checkpoint_id: int) -> LogAddition:
        self._schedule.require()
        number = self.log.cut(self._take_changes())
        whole = not self.log.files or 2 * self.log.num_changes > self.num_entries
        self._release(self.log.snapshot(whole))
        self._uploaded.refer(checkpoint_id, self.log.contents)
        uploaded, self._uploaded_bytes = self._uploaded_bytes, 0
        states, entries = self.snapshot_states, self.num_entries
        if not whole:
            changes = self.log.changes()
            states = functools.partial(self._changed_states, changes)
            entries = sum(map(len, changes.values()))
        files = tuple(self.log.files)
        return LogAddition(number, checkpoint_id, states, entries, files, uploaded, self._addition_stored)

    def _take_changes(self) -> Cut:
        taken = ((name, table.take_changes()) for name, table in self.tables.items())  # type: ignore[attr-defined]
        return {name: changes for name, changes in taken if changes}

    def _addition_stored(self, addition: LogAddition, content: FileHandle) -> None:
        self._uploaded.add(content, addition.checkpoint_id)
        self._release(self.log.snapshot_stored(addition.number, content, addition.is_whole))
        if self._schedule.closed:
            self._release(self.log.contents)

    def _changed_states(self, changes: Cut) -> Iterator[StateEntries]:
        """Every state is described, also one in which nothing has changed."""
        for name, table in self.tables.items():
            changed = changes.get(name, _NOTHING)
            walk = _changed_in_windows if isinstance(table, WindowTable) else _changed_in_table
            yield from walk(self._meta(name, table), table, changed)

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        self._uploaded.complete(checkpoint_id)
        self._release()

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._uploaded.given_up(checkpoint_id)
        self._release()

    def _release(self, files: Iterable[FileHandle] = ()) -> None:
        self._uploaded.release(files)
        unused = self._uploaded.take_unused()
        if unused:
            self._materialiser.delete(unused)

    # ---- bases ----------------------------------------------------------------------------------

    def between_batches(self) -> None:
        """No user code is under way: begin a new base when it is time."""
        changes = self.log
        if not changes.files or not self._schedule.is_due(changes.has_outgrown, changes.has_changes):
            return
        self._schedule.begin()
        number = changes.cut(self._take_changes())

        def write(out: BinaryIO) -> int:
            states = self.snapshot_states()
            return write_keyed_snapshot(
                out, states, self.key_groups, self.max_parallelism, self._compression, self.operator
            )

        def done(content: Any, error: Optional[BaseException]) -> None:
            self._schedule.end(error)
            if error is None:
                self._uploaded.add(content)
                self._uploaded_bytes += content.size
                self._release(changes.base_stored(number, content))
            if self._schedule.closed:
                self._release(changes.contents)

        self._materialiser.write(write, done)

    # ---- restoring ------------------------------------------------------------------------------

    def restore(self, reader: KeyedSnapshotReader, key_groups: Optional[KeyGroupRange] = None) -> None:
        super().restore(reader, key_groups)
        self._restored_last = self._take_changes()

    def restored(self, handle: KeyedStateHandle | IncrementalKeyedStateHandle) -> None:
        """The log goes on from the files of the handle when they are all that there is, and of this job: those of
        another one may be deleted by it, or by a user.  Else the next checkpoint has all entries."""
        self._handles_restored += 1
        last, self._restored_last = self._restored_last, {}
        self.log = Changelog()
        if isinstance(handle, KeyedStateHandle) or self._handles_restored > 1 or handle.key_groups != self.key_groups:
            return
        location = self._materialiser.shared_location.rstrip("/") + "/"
        own = all(file.uri.startswith(location) for file in handle.shared.values())
        if not own or not handle.shared or not all(isinstance(last, InlineBytes) for last in handle.private.values()):
            return
        self.log.restored([handle.shared[name] for name in sorted(handle.shared)])
        if handle.private:  # the last one, which no other checkpoint can refer to
            self.log.cut(last)


class _CleaningChangelogBackend(CleaningBackend, ChangelogKeyedStateBackend):
    __slots__ = ()


_NOTHING = Changes()


def _changed_in_table(meta: StateMeta, table: dict, changed: Changes) -> Iterator[StateEntries]:
    keys = changed.keys.get(_NO_WINDOW, {})
    put, gone = [key for key in keys if key in table], [key for key in keys if key not in table]
    yield _entries(meta, put, [table[key] for key in put])
    if gone:
        yield _entries(_deletions(meta), gone, [None] * len(gone))


def _entries(meta: StateMeta, keys: list, values: list) -> StateEntries:
    if not meta.namespaced:
        return StateEntries(meta, keys, values)
    return StateEntries(meta, [key for _, key in keys], values, [namespace for namespace, _ in keys])


def _changed_in_windows(meta: StateMeta, table: dict, changed: Changes) -> Iterator[StateEntries]:
    put, gone = StateEntries(meta, [], [], []), StateEntries(_deletions(meta, changed.dropped), [], [], [])
    for start, keys in changed.keys.items():
        contents = table.get(start)
        if contents is None:
            continue  # dropped
        for key in keys:
            entries = put if key in contents else gone
            entries.keys.append(key)
            entries.values.append(contents.get(key))
            entries.namespaces.append(start)  # type: ignore[union-attr]
    yield put
    if gone.keys or changed.dropped:
        yield gone


def _deletions(meta: StateMeta, dropped: Iterable[Any] = ()) -> StateMeta:
    """As `HeapKeyedStateBackend.restore` reads them."""
    properties = {DROPPED_WINDOWS: [encode_key(window).hex() for window in dropped]} if meta.namespaced else {}
    return StateMeta(DELETIONS_OF + meta.name, StateKind.DELETIONS, meta.namespaced, properties=properties)
