"""A changelog has what the heap has, through any order of changes, checkpoints that are stored, given up or complete,
bases and restores; and no file goes that a complete checkpoint needs."""

import copy
import random
from dataclasses import replace

import pytest

from flinkish.jobmanager.completed_checkpoints import CompletedCheckpoints, discard_private
from flinkish.jobmanager.events import DiscardFiles
from flinkish.messages.checkpoints import (
    CompletedCheckpoint,
    IncrementalKeyedStateHandle,
    InlineBytes,
    KeyGroupRange,
    OperatorSnapshot,
    OperatorSubtaskState,
    SnapshotKind,
    SubtaskState,
)
from flinkish.state import changelog
from tests.changelog_states import SharedFolder, changelog_backend, from_log, take, written
from tests.property.test_rocksdb import KEYS, STATE_OPS, Side, value_of
from tests.rocksdb_states import HALVES, canonical, contents, from_canonical, heap

CHECKPOINTING = (
    *("take",) * 12, *("store",) * 14, *("acknowledge",) * 12, *("give up",) * 2, *("batch",) * 4, *("base",) * 4,
    "restart",
)  # fmt: skip


class World:
    """One subtask, its slot and its JobManager."""

    def __init__(self, rng, retained_max):
        self.rng, self.shared = rng, SharedFolder()
        self.completed = CompletedCheckpoints("job", retained_max)
        self.expected, self.found = Side(heap()), Side(changelog_backend(self.shared))
        self.number = 0
        self.storing = []  # (id, addition, its bytes), in any order
        self.stored = {}  # id -> handle
        self.pending = {}  # id -> what the state was
        self.complete = {}  # id -> what the state was, of those that are retained
        self.left = set()  # by tasks that have ended before they heard of a checkpoint's end
        self.files_max = 0

    @property
    def backend(self):
        return self.found.backend

    def run(self, steps):
        for key in range(100, 300):  # so that most of the state stays as it is
            for side in (self.expected, self.found):
                side.do("update", key, key)
        for number in range(steps):
            chance = self.rng.random()
            if chance < 0.75:
                step = self.rng.choice(STATE_OPS), self.rng.choice(KEYS), value_of(self.rng)
            elif chance < 0.82:
                step = "window" if self.rng.random() < 0.8 else "fire", self.rng.randrange(3), self.rng.choice(KEYS)
            else:
                way = self.rng.choice(CHECKPOINTING)
                getattr(self, way.replace(" ", "_"))()
                if way not in ("take", "batch"):
                    self.check()
                continue
            assert self.expected.do(*step) == self.found.do(*step), f"step {number}: {step}"

    def take(self):
        if len(self.pending) < 3:
            self.number += 1
            addition = self.backend.add_to_log(self.number)
            self.storing.append((self.number, addition, written(addition)))
            self.pending[self.number] = copy.deepcopy(contents(self.backend))

    def store(self):
        if self.storing:
            at = self.rng.randrange(len(self.storing)) if self.rng.random() < 0.3 else 0
            number, addition, data = self.storing.pop(at)
            content = InlineBytes(data) if self.rng.random() < 0.3 else self.shared.store(data)
            addition.stored(content)
            if number in self.pending:
                self.stored[number] = addition.handle(self.backend.key_groups, "op", content)
                assert isinstance(self.stored[number], IncrementalKeyedStateHandle) or addition.is_whole

    def acknowledge(self):
        """In the order of ids; this one subtask completes the checkpoint, and older ones are given up."""
        if not self.stored or min(self.stored) != min(self.pending):
            return
        number = min(self.stored)
        handle = self.stored.pop(number)
        operators = {"op": OperatorSubtaskState((handle,))}
        self.completed.acknowledged(number, SubtaskState(operators))
        snapshot = OperatorSnapshot("op", None, "op", 1, 16, {0: operators["op"]})
        effects = self.completed.add(
            CompletedCheckpoint("job", "job", "run", number, 0, 0, SnapshotKind.CHECKPOINT, "/chk", {"op": snapshot})
        )
        self.completed.check()
        self.complete[number] = self.pending.pop(number)
        for old in self.complete.keys() - {checkpoint.checkpoint_id for checkpoint in self.completed.retained}:
            del self.complete[old]
        self.discard(effects)
        self.backend.checkpoint_completed(number)

    def give_up(self):
        """The oldest, before or after it was acknowledged; what is being stored goes on."""
        if self.pending:
            number = min(self.pending)
            del self.pending[number]
            handle = self.stored.pop(number, None)
            if handle is not None and self.rng.random() < 0.5:
                state = SubtaskState({"op": OperatorSubtaskState((handle,))})
                self.completed.acknowledged(number, state)
                self.discard(discard_private("job", state))
            self.backend.checkpoint_aborted(number)

    def discard(self, effects):
        for effect in effects:
            if isinstance(effect, DiscardFiles):
                for uri in effect.uris:
                    self.shared.files.pop(uri, None)

    def batch(self):
        self.backend.between_batches()

    def base(self):
        self.shared.fails = self.rng.random() < 0.2
        self.shared.step()

    def restart(self):
        """From the newest complete checkpoint: as it was, or by way of checkpoints of two subtasks."""
        if not self.complete:
            return
        self.backend.close()
        while self.shared.waiting:
            self.base()
        for _, addition, data in self.storing:
            addition.stored(self.shared.store(data))
        self.left.update(self.backend._uploaded._files)
        self.storing, self.stored, self.pending = [], {}, {}
        newest = self.completed.retained[-1]
        (handle,) = newest.operators["op"].subtasks[0].keyed
        backend = changelog_backend(self.shared)
        if self.rng.random() < 0.5:
            from_log(handle, self.shared, backend)
        else:
            for half in HALVES:
                part = from_log(replace(handle, key_groups=half), self.shared, changelog_backend(self.shared, half))
                before = set(self.shared.files)
                from_log(take(part, self.shared, 1, inline=self.rng.random() < 0.5), self.shared, backend)
                self.left |= set(self.shared.files) - before
        self.found = Side(backend)
        self.expected = Side(heap())
        from_canonical(canonical(backend), self.expected.backend)
        assert contents(backend) == self.complete[newest.checkpoint_id]

    def check(self):
        self.backend.log.check()
        self.files_max = max(self.files_max, len(self.backend.log.files))
        for checkpoint in self.completed.retained:
            (handle,) = checkpoint.operators["op"].subtasks[0].keyed
            restored = from_log(handle, self.shared, heap())
            assert contents(restored) == self.complete[checkpoint.checkpoint_id], checkpoint.checkpoint_id

    def known_files(self):
        """Those that somebody will delete, or needs."""
        return {*self.completed.last_use, *self.backend._uploaded._files, *self.left}


@pytest.mark.parametrize("seed", range(6))
def test_complete_checkpoints_have_the_state_of_their_barrier_whatever_becomes_of_others(seed, monkeypatch):
    monkeypatch.setattr(changelog, "CHANGES_BYTES_MIN", 3_000)
    monkeypatch.setattr(changelog, "FILES_MAX", 5)
    world = World(random.Random(seed), retained_max=1 + seed % 2)
    world.run(500)
    assert world.complete and world.files_max >= 2
    assert set(world.shared.files) <= world.known_files(), "nobody deletes these"


def test_halves_have_their_own_entries_only():
    world = World(random.Random(3), 1)
    world.run(200)
    world.take()
    while world.storing:
        world.store()
    handle = world.stored[world.number]
    for half in HALVES:
        part = from_log(replace(handle, key_groups=half), world.shared, changelog_backend(world.shared, half))
        assert canonical(part, KeyGroupRange(half.start, half.end))
