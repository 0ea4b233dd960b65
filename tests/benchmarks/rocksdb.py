"""The RocksDB backend: its speed beside the heap on skewed keys; and checkpoints that store what has changed, of a
gigabyte in RocksDB and of a million keys on the heap with a changelog.

These two run a slot's core, loop and threads in this process: what it measures, from the trigger to the
acknowledgement, is what a slot does; the way of the messages is left out.  Records come evenly over each interval, also
while the snapshot is stored.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import shutil
import tempfile
import time
from typing import Any

from flinkish import KeyedProcessFunction, RuntimeContext, Types, ValueStateDescriptor
from flinkish.connectors.discarding import DiscardingSink
from flinkish.messages.checkpoints import (
    AcknowledgeCheckpoint,
    CheckpointOptions,
    DeclineCheckpoint,
    SnapshotKind,
    TriggerCheckpoint,
)
from flinkish.taskmanager.slot_core import SlotCore
from flinkish.testing.stream_test_harness import _SLOT, StreamTestHarness, _NoTransport
from tests.benchmarks.machine import tree_cpu_seconds
from tests.benchmarks.report import Row, median, spread

ROCKSDB = ("rocksdb-skewed", "checkpoint-rocksdb-1GB", "checkpoint-changelog-1M")

_KEYS = 200_000
_SKEW = 1.1
_VALUE_BYTES = 1_000
_STATE_BYTES = 1 << 30
_CHANGED = 0.01
_INTERVAL_S = 1.0
_CHECKPOINTS = 100  # of fewer, p99 would be the largest
_TICK_S = 0.01
_TIMEOUT_S = 120.0
_FIRST = 5  # checkpoints that store all that there is


# ---- skewed keys --------------------------------------------------------------------------------


class SumByKey(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value, ctx):
        total = (self.sum.value() or 0) + 1
        self.sum.update(total)
        yield value, total


class ZipfKeys:
    """From a number to a key: the i-th most frequent one comes with a probability of ``1 / i ** 1.1``."""

    def __init__(self, seed: int):
        weights = itertools.accumulate(1 / rank**_SKEW for rank in range(1, _KEYS + 1))
        rng = random.Random(seed)
        self.keys = [f"key-{index}" for index in rng.choices(range(_KEYS), cum_weights=list(weights), k=1 << 20)]

    def __call__(self, number: int) -> str:
        return self.keys[number & 0xFFFFF]


def measure_skewed(cluster: Any, records: int, seed: int, repeats: int) -> Row:
    """Records/s of a running sum on each backend, in turns."""
    keys = ZipfKeys(seed)
    rates: dict[str, list[float]] = {"hashmap": [], "rocksdb": []}
    cpu_rates: dict[str, list[float]] = {"hashmap": [], "rocksdb": []}
    more = records - records // 5
    for _ in range(repeats):
        for backend in rates:
            small, large = (_took(cluster, backend, keys, count) for count in (records // 5, records))
            rates[backend].append(more / (large[0] - small[0]))
            cpu_rates[backend].append(more / (large[1] - small[1]))
    ratios = [rocksdb / heap for rocksdb, heap in zip(rates["rocksdb"], rates["hashmap"])]
    cpu_ratios = [rocksdb / heap for rocksdb, heap in zip(cpu_rates["rocksdb"], cpu_rates["hashmap"])]
    return {
        "workload": "rocksdb-skewed",
        "records_per_s": median(rates["rocksdb"]),
        "records_per_s_spread": spread(rates["rocksdb"]),
        "heap_records_per_s": median(rates["hashmap"]),
        "heap_records_per_s_spread": spread(rates["hashmap"]),
        "heap_ratio": median(ratios, 4),
        "heap_ratio_spread": spread(ratios, 4),
        "heap_cpu_ratio": median(cpu_ratios, 4),
        "heap_cpu_ratio_spread": spread(cpu_ratios, 4),
        "runs": repeats,
    }


def _took(cluster: Any, backend: str, keys: ZipfKeys, records: int) -> tuple[float, float]:
    """Seconds, and CPU seconds of all threads of all processes."""
    env = cluster.get_execution_environment({"state.backend.type": backend})
    env.set_parallelism(1)
    stream = env.from_sequence(0, records - 1).map(keys).key_by(lambda key: key).process(SumByKey())
    stream.sink_to(DiscardingSink())
    begun, cpu_s = time.perf_counter(), tree_cpu_seconds(os.getpid())
    env.execute(f"skewed {backend}")
    return time.perf_counter() - begun, tree_cpu_seconds(os.getpid()) - cpu_s


# ---- checkpoints --------------------------------------------------------------------------------


class Keep(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.kept = runtime_context.get_state(ValueStateDescriptor("kept"))

    def process_element(self, value, ctx):
        self.kept.update(value[1])


class SlotUnderTest(StreamTestHarness):
    """A slot's core with the loop and the threads of a slot process, by the machine's clock; checkpoints in ``folder``."""

    def __init__(self, build: Any, folder: str, state_backend: str, **settings: Any):
        self._folder = folder
        configuration = {
            "execution.checkpointing.dir": folder,
            "execution.checkpointing.interval": "1 s",
            "state.backend.rocksdb.localdir": folder,
            **settings,
        }
        super().__init__(build, state_backend, configuration=configuration)

    def _create_core(self) -> SlotCore:
        assert self._files is not None
        return SlotCore(
            _SLOT, _SLOT, lambda: time.time_ns() // 1_000_000, _NoTransport(), self, clock_ns=time.perf_counter_ns,
            chain_factory=self._create_chain, **self._files.for_core(),
        )  # fmt: skip

    def turn(self, timeout_ms: float = 0) -> None:
        assert self._files is not None
        self._run()
        self._files.run_once(timeout_ms)

    def trigger(self, checkpoint_id: int) -> list[AcknowledgeCheckpoint]:
        """Begin a checkpoint; `acknowledged` has what came of it."""
        assert self._files is not None
        location, shared = self._files.locations(self._job.job_id, checkpoint_id)
        options = CheckpointOptions(SnapshotKind.CHECKPOINT, location, shared)
        self._checkpoint_messages.clear()
        for execution, task in self._core.tasks.items():
            if not task.gates:
                now_ms = time.time_ns() // 1_000_000
                self._core.on_trigger_checkpoint(TriggerCheckpoint(execution, checkpoint_id, now_ms, options))
        return self._checkpoint_messages

    def acknowledged(self, messages: list) -> bool:
        for message in messages:
            if isinstance(message, DeclineCheckpoint):
                raise message.failure.error
        return len(messages) == len(self._core.tasks)


def measure_checkpoints(
    state_bytes: int = _STATE_BYTES,
    checkpoints: int = _CHECKPOINTS,
    seed: int = 0,
    interval_s: float = _INTERVAL_S,
) -> Row:
    keys = state_bytes // _VALUE_BYTES
    return _measure("checkpoint-rocksdb-1GB", "rocksdb", keys, _VALUE_BYTES, checkpoints, seed, interval_s)


def measure_changelog(
    keys: int = 1_000_000, checkpoints: int = _CHECKPOINTS, seed: int = 0, interval_s: float = _INTERVAL_S
) -> Row:
    settings = {"state.changelog.enabled": "true"}
    return _measure("checkpoint-changelog-1M", "hashmap", keys, 100, checkpoints, seed, interval_s, **settings)


def _measure(
    workload: str,
    backend: str,
    keys: int,
    value_bytes: int,
    checkpoints: int,
    seed: int,
    interval_s: float,
    **settings: Any,
) -> Row:
    rng = random.Random(seed)
    folder = tempfile.mkdtemp(prefix="flinkish-benchmark-")
    delays, uploads, sizes = [], [], []
    try:
        build = lambda stream: stream.key_by(lambda pair: pair[0]).process(Keep())  # noqa: E731
        slot = SlotUnderTest(build, folder, backend, **settings)
        with slot:
            for start in range(0, keys, 1_000):
                slot.process_elements(
                    [((key, rng.randbytes(value_bytes)), None) for key in range(start, min(keys, start + 1_000))]
                )
                slot.turn()
            ids = itertools.count(1)
            for _ in range(_FIRST + checkpoints):
                delay, metrics = _interval(slot, next(ids), int(keys * _CHANGED), keys, value_bytes, rng, interval_s)
                delays.append(delay)
                uploads.append(metrics.uploaded_bytes)
                sizes.append(metrics.state_size)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    measured = sorted(delays[_FIRST:])
    return {
        "workload": workload,
        "state_bytes": median(sizes[_FIRST:]),
        "uploaded_bytes": median(uploads[_FIRST:]),
        "uploaded_bytes_mean": sum(uploads[_FIRST:]) // checkpoints,
        "uploaded_bytes_max": max(uploads[_FIRST:]),
        "p50_delay_ms": median(measured, 1),
        "p99_delay_ms": round(measured[math.ceil(0.99 * checkpoints) - 1], 1),
        "max_delay_ms": round(measured[-1], 1),
        "changed": _CHANGED,
        "checkpoints": checkpoints,
    }


def _interval(
    slot: SlotUnderTest,
    checkpoint_id: int,
    changes: int,
    keys: int,
    value_bytes: int,
    rng: random.Random,
    interval_s: float,
) -> tuple[float, Any]:
    """Spread the changes over one interval, with a checkpoint in its middle; its delay, ms, and the largest metrics."""
    ticks = round(interval_s / _TICK_S)
    begun = time.perf_counter()
    messages: list = []
    triggered = delay = 0.0
    for tick in range(ticks):
        due = begun + tick * _TICK_S
        while (left := due - time.perf_counter()) > 0:
            slot.turn(left * 1_000)
            if triggered and not delay and slot.acknowledged(messages):
                delay = time.perf_counter() - triggered
        if tick == ticks // 2:
            triggered = time.perf_counter()
            messages = slot.trigger(checkpoint_id)
        records = [((rng.randrange(keys), rng.randbytes(value_bytes)), None) for _ in range(changes // ticks)]
        slot.process_elements(records)
    deadline = time.perf_counter() + _TIMEOUT_S
    while not delay:
        slot.turn(1)
        if slot.acknowledged(messages):
            delay = time.perf_counter() - triggered
        if time.perf_counter() > deadline:
            raise TimeoutError(f"checkpoint {checkpoint_id} was not acknowledged within {_TIMEOUT_S} s")
    return delay * 1_000, max((message.metrics for message in messages), key=lambda m: m.state_size)
