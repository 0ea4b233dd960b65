"""Timers of windows: one per time, window and key."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator, Optional

from flinkish.messages.checkpoints import KeyGroupRange
from flinkish.operators.timers import KeyedTimerService
from flinkish.state.keyed_snapshot import KeyedSnapshotReader, StateEntries


class WindowTimerService(KeyedTimerService):
    """Its scope is a `WindowScope`, so timers stand in the queues as (namespace, key)."""

    def snapshot_states(self) -> Iterator[StateEntries]:
        for entries in super().snapshot_states():
            yield StateEntries(
                replace(entries.meta, namespaced=True),
                [key for _, key in entries.keys],
                entries.values,
                [namespace for namespace, _ in entries.keys],
            )

    def restore(self, reader: KeyedSnapshotReader, key_groups: Optional[KeyGroupRange] = None) -> None:
        for name, queue in self.queues():
            for block in reader.read(name, key_groups):
                for namespace, key, timestamp in zip(block.namespaces or (), block.keys, block.values):
                    queue.register(timestamp, (namespace, key))
