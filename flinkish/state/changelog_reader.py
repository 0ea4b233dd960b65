"""The files of a changelog as one: for who reads state as data, without tables to put it into."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Hashable, Iterator, Optional, Sequence

from flinkish.messages.checkpoints import KeyGroupRange
from flinkish.state.key_decoding import decode_key
from flinkish.state.keyed_snapshot import (
    DELETIONS_OF,
    DROPPED_WINDOWS,
    EntryBlock,
    KeyedSnapshotReader,
    StateKind,
    StateMeta,
)
from flinkish.state.value_columns import merge_forms


class ChangelogReader:
    """What a `KeyedSnapshotReader` is for one file.  The newest is read first, so memory takes the keys of the changes
    and no entries.

    Args:
        files: the base first.
    """

    def __init__(self, files: Sequence[KeyedSnapshotReader]):
        self.files = files
        #: By name.
        self.states: dict[str, StateMeta] = {}
        for file in files:
            for name, meta in file.states.items():
                if meta.kind is StateKind.DELETIONS:
                    continue
                known = self.states.get(name, meta).forms
                forms = {role: merge_forms(known.get(role, "n"), form) for role, form in meta.forms.items()}
                self.states[name] = replace(meta, forms={**known, **forms})

    def num_entries(self, state: str) -> int:
        """At most: one that has changed counts in each file."""
        return sum(file.num_entries(state) for file in self._files_of(state))

    def stored_bytes(self, state: str) -> int:
        return sum(file.stored_bytes(state) for file in self._files_of(state))

    def _files_of(self, state: str) -> Sequence[KeyedSnapshotReader]:
        """Timers are all in the last file, and need the others no more."""
        return self.files[-1:] if self.states[state].kind is StateKind.TIMERS else self.files

    def read(self, state: str, key_groups: Optional[KeyGroupRange] = None) -> Iterator[EntryBlock]:
        """As `KeyedSnapshotReader.read`; key groups rise within a file."""
        newer: set[Hashable] = set()
        dropped: set[Any] = set()
        for file in reversed(self._files_of(state)):
            found: set[Hashable] = set()
            for block in file.read(state, key_groups):
                identities = _identities(block)
                found.update(identities)
                yield _without(block, identities, newer, dropped)
            deletions = file.states.get(DELETIONS_OF + state)
            if deletions is not None:
                dropped |= {decode_key(bytes.fromhex(w))[0] for w in deletions.properties.get(DROPPED_WINDOWS, ())}
                for block in file.read(deletions.name, key_groups):
                    found.update(_identities(block))
            newer |= found


def _identities(block: EntryBlock) -> list[Hashable]:
    namespaces = [None] * len(block.keys) if block.namespaces is None else block.namespaces
    return [(_hashable(namespace), _hashable(key)) for namespace, key in zip(namespaces, block.keys)]


def _hashable(key: Any) -> Hashable:
    """Records of a key are Rows, where their classes are not there."""
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key


def _without(block: EntryBlock, identities: list[Hashable], newer: set[Hashable], dropped: set[Any]) -> EntryBlock:
    names = block.namespaces
    kept = [
        index
        for index, identity in enumerate(identities)
        if identity not in newer and (names is None or not dropped or names[index] not in dropped)
    ]
    if len(kept) == len(identities):
        return block
    return EntryBlock(
        block.groups[kept],
        [block.keys[index] for index in kept],
        [block.values[index] for index in kept],
        None if names is None else [names[index] for index in kept],
    )
