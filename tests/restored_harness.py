"""A StreamTestHarness that is closed and restored at random moments, for tests: another backend, changelog, parallelism
and form of the chain each time.

A run is all of its seed's.  Tests take theirs from `seeds`: few in each run, more in the soak, and any others with

    RESTORED_SEEDS=100:400 pytest tests/property/test_restored_*.py                # looks for new ones
    RESTORED_SEEDS=137:138 pytest tests/property/test_restored_*.py -k 'session'   # one alone
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
from typing import Any, Callable, Iterator, Optional
from unittest import mock

import pytest

from flinkish.datastream.output_tag import OutputTag
from flinkish.messages.checkpoints import CompletedCheckpoint
from flinkish.shell import snapshot_executor
from flinkish.testing import StreamRecord, StreamTestHarness, Watermark
from tests.rocksdb_states import FAST_DISK, MAX_PARALLELISM, tiny_caches

LATE = OutputTag("late")
PARALLELISM_MAX = 3
CUTS = 0.15  # of the steps
#: Of the steps, after which entries of keyed state are counted: tables of RocksDB write all that is dirty for it.
COUNTED = 0.03
CPU_S_MAX = 30


def seeds(quick: int, long: int) -> list:
    """For ``parametrize``: ``quick`` seeds in each run and the others of ``long`` in the soak, or those that
    RESTORED_SEEDS=FIRST:END names."""
    named = os.environ.get("RESTORED_SEEDS")
    if named:
        first, end = named.split(":")
        return list(range(int(first), int(end)))
    return [*range(quick), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(quick, long))]


@contextlib.contextmanager
def alarm(cpu_s: float = CPU_S_MAX) -> Iterator[None]:
    """Fails what takes more CPU time than that: it runs for ever."""

    def ring(signum: int, frame: Any) -> None:
        pytest.fail(f"it runs for ever: no end after {cpu_s:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, cpu_s, 1)  # again, as Python drops what is raised in a destructor
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def observed(harness: StreamTestHarness) -> list:
    """What came out since the last time, keys in any order: records, late ones, the watermark or None."""
    records = sorted(repr((e.value, e.timestamp)) for e in harness.output if isinstance(e, StreamRecord))
    late = sorted(map(repr, harness.side_output(LATE)))
    watermark = max((e.timestamp for e in harness.output if isinstance(e, Watermark)), default=None)
    harness.clear_output()
    return [records, late, watermark]


def timer_counts(harness: StreamTestHarness) -> tuple[int, int]:
    """In event time, in processing time."""
    return harness.num_event_time_timers(), harness.num_processing_time_timers()


class RestoredHarness:
    """Runs ``build`` as ``harness``, another one after each restore.

    Args:
        rng: says when and how.
        folder: of checkpoints.
        inputs: as of StreamTestHarness.
    """

    def __init__(self, build: Callable[..., Any], rng: random.Random, folder: str, inputs: int):
        self._build, self._rng, self._folder, self._inputs = build, rng, folder, inputs
        self.story: list[str] = []  # a line for each harness and each cut
        self._backend = ""
        self.harness = self._open(None, rng.choice(["hashmap", "rocksdb"]))

    def _open(self, snapshot: Optional[CompletedCheckpoint], backend: str) -> StreamTestHarness:
        rng, self._backend = self._rng, backend
        parallelism = rng.randint(1, PARALLELISM_MAX)
        configuration = {
            "execution.checkpointing.dir": self._folder,
            "pipeline.max-parallelism": MAX_PARALLELISM,
            "state.changelog.enabled": rng.random() < 0.5,
            "state.backend.rocksdb.memory.fixed-per-slot": "4 mb",
            "flinkish.fused-chains": rng.random() < 0.7,
        }
        if FAST_DISK is not None:
            configuration["state.backend.rocksdb.localdir"] = FAST_DISK
        chosen = "state.changelog.enabled", "flinkish.fused-chains"
        self.story.append(f"{backend} x {parallelism}, {({name: configuration[name] for name in chosen})}")
        return StreamTestHarness(
            self._build, backend, parallelism, inputs=self._inputs, configuration=configuration, snapshot=snapshot
        )

    def maybe_cut(self) -> None:
        """Perhaps a checkpoint that the next ones may refer to, or the end of this harness and the next one's begin.
        What has come out must have been seen by now; restored sources tell their watermarks again."""
        if self._rng.random() >= CUTS:
            return
        # Mostly not the end, so that a changelog has files with changes alone.
        way = self._rng.choice([*["checkpoint"] * 5, *["restored checkpoint"] * 3, "restored savepoint"])
        self.story.append(way)
        snapshot = self.harness.snapshot() if way == "restored savepoint" else self.harness.checkpoint()
        if way == "checkpoint":
            return
        self.close()
        # Files of RocksDB are no other backend's.
        must_stay = way == "restored checkpoint" and self._backend == "rocksdb"
        self.harness = self._open(snapshot, "rocksdb" if must_stay else self._rng.choice(["hashmap", "rocksdb"]))

    def close(self) -> None:
        self.harness.close()


@contextlib.contextmanager
def restored_harness(build: Callable[..., Any], seed: str, inputs: int = 1) -> Iterator[RestoredHarness]:
    """One whose moments are all of ``seed``, under the alarm; tells its story when the test fails."""
    rng = random.Random(f"moments of {seed}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(alarm())
        if rng.random() < 0.6:
            stack.enter_context(tiny_caches())
        stack.enter_context(mock.patch.object(snapshot_executor, "INLINE_BYTES_MAX", rng.choice([100, 100, 20_000])))
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=FAST_DISK))
        restored = RestoredHarness(build, rng, folder, inputs)
        try:
            yield restored
        except BaseException:
            print(f"seed {seed}", *restored.story, sep="\n  ")
            raise
        finally:
            restored.close()
