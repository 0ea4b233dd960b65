"""Checkpoints of heap state and the way back: what they cost the records, and when the first is processed again.

``checkpoint-heap-1M`` and ``restore-1M`` have one slot with a key for each of ``records``: the pause grows with the
memory of one process.  Times are taken in the slot, by the one monotonic clock of the machine.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from array import array
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from flinkish import KeyedProcessFunction, RuntimeContext, ValueStateDescriptor, WatermarkStrategy
from flinkish.connectors.spi import Boundedness, InputStatus, Sink, SinkCoordinator, SinkWriter, Source, SourceReader
from flinkish.datastream.functions import CheckpointedFunction, CheckpointListener
from tests.benchmarks.data import DataSet
from tests.benchmarks.jobs import MemorySource, PartEnumerator, build
from tests.benchmarks.report import Row, median, spread
from tests.benchmarks.systems import SLOTS, check_result

CHECKPOINTS = ("checkpoint-heap-1M", "checkpoint-1s", "restore-1M")

RATE = 10_000  # records a second while checkpoints are taken
_TIMEOUT_MS = 300_000
_REST_S = 1.0  # between two checkpoints, at least
_POLL_S = 0.005
_SCATTER = 7_919  # from one record's key to the next one's
_PASSES = 4  # over the data set of checkpoint-1s, so that a run sees several checkpoints


# ---- a job whose records come by a schedule -----------------------------------------------------


class Barrier(NamedTuple):
    """One checkpoint as the slot saw it: times in ns, and CPU seconds of the slot and its ended children."""

    begun_ns: int
    first_record_ns: int
    completed_ns: int
    begun_cpu_s: float
    completed_cpu_s: float


class Notes:
    """What the function and the sink of the slot write down; each job begins anew."""

    barriers: list[Barrier] = []
    pending: Optional[tuple[int, float]] = None
    first_record_ns = 0
    gc_objects: Optional[int] = None  # what the garbage collector walks, at the first record of the job
    scheduled_ns = array("q")
    delays_ns = array("q")
    known = 0  # records whose key had a value

    @classmethod
    def clear(cls) -> None:
        cls.barriers, cls.pending, cls.first_record_ns, cls.known = [], None, 0, 0
        cls.gc_objects = None
        cls.scheduled_ns, cls.delays_ns = array("q"), array("q")

    @classmethod
    def begin(cls) -> None:
        cls.first_record_ns = 0
        cls.pending = time.monotonic_ns(), _cpu_s()

    @classmethod
    def complete(cls) -> None:
        if cls.pending is not None:
            begun_ns, cpu_s = cls.pending
            cls.pending = None
            now_ns = time.monotonic_ns()
            cls.barriers.append(Barrier(begun_ns, cls.first_record_ns or now_ns, now_ns, cpu_s, _cpu_s()))


def _cpu_s() -> float:
    return sum(os.times()[:4])


class PacedSource(Source):
    """First a record for each key, as fast as they go, then ``rate`` a second (None: as fast as they go) until
    ``checkpoints`` are complete, and for ``rest_s`` after that."""

    fixed_parallelism = 1

    def __init__(self, keys: int, load: bool, rate: Optional[int], checkpoints: int, rest_s: float = _REST_S):
        self.keys, self.load, self.rate, self.checkpoints, self.rest_s = keys, load, rate, checkpoints, rest_s

    def boundedness(self):
        return Boundedness.BOUNDED

    def create_enumerator(self, context):
        return PartEnumerator(context)

    def create_reader(self, context):
        return PacedReader(self)


class PacedReader(SourceReader):
    poll_interval_ms = 1

    def __init__(self, source: PacedSource):
        self.source = source
        self.loaded = 0 if source.load else source.keys
        self.sent = self.completed = 0
        self.begun_ns = self.ends_ns = 0

    def poll_next(self, output):
        source = self.source
        if self.loaded < source.keys:
            start, self.loaded = self.loaded, min(self.loaded + output.room, source.keys)
            output.collect_batch([(f"user-{index:07d}", index, 0) for index in range(start, self.loaded)])
            return InputStatus.MORE_AVAILABLE
        now_ns = time.monotonic_ns()
        if not self.begun_ns:
            self.begun_ns = self.ends_ns = now_ns
        if self.sent and self.completed >= source.checkpoints and now_ns >= self.ends_ns:
            return InputStatus.END_OF_INPUT
        due = output.room
        if source.rate is not None:
            due = min(due, (now_ns - self.begun_ns) * source.rate // 1_000_000_000 + 1 - self.sent)
        if due > 0:
            output.collect_batch([self._record(index, now_ns) for index in range(self.sent, self.sent + due)])
            self.sent += due
        return InputStatus.NOTHING_AVAILABLE if source.rate else InputStatus.MORE_AVAILABLE

    def _record(self, index: int, now_ns: int) -> tuple[str, int, int]:
        rate = self.source.rate
        scheduled_ns = now_ns if rate is None else self.begun_ns + index * 1_000_000_000 // rate
        return f"user-{index * _SCATTER % self.source.keys:07d}", index, scheduled_ns

    def notify_checkpoint_complete(self, checkpoint_id):
        self.completed += 1
        self.ends_ns = time.monotonic_ns() + int(self.source.rest_s * 1e9)


class KeepLast(KeyedProcessFunction, CheckpointedFunction, CheckpointListener):
    """Keeps a tuple of int, float and str for each key; notes when barriers and the records after them come."""

    def initialize_state(self, context):
        Notes.clear()

    def open(self, runtime_context: RuntimeContext):
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))

    def process_element(self, value, ctx):
        key, number, scheduled_ns = value
        if not Notes.first_record_ns:
            Notes.first_record_ns = time.monotonic_ns()
            if Notes.gc_objects is None:
                Notes.gc_objects = len(gc.get_objects())
        known = self.last.value() is not None
        self.last.update((number, number / 8, f"last of {number}"))
        if scheduled_ns:
            yield scheduled_ns, known

    def snapshot_state(self, context):
        Notes.begin()

    def notify_checkpoint_complete(self, checkpoint_id):
        Notes.complete()


class PacedReport(NamedTuple):
    """Of a whole job; a rate, a delay or CPU seconds for each of its checkpoints, and for the time without any."""

    first_record_ns: int
    gc_objects: int  # at the first record
    records: int
    known: int
    pauses_ms: list[float]
    async_s: list[float]
    p99_ms: list[float]
    p99_ms_without: Optional[float]
    records_per_s: list[float]
    records_per_s_without: Optional[float]
    cpu_s: list[float]  # of each snapshot, without what the records cost at the same time


class PacedSink(Sink):
    def __init__(self) -> None:
        self.begun = False
        self.reports: list[PacedReport] = []

    def create_writer(self, context):
        return PacedWriter(context)

    def create_coordinator(self, context):
        return PacedCoordinator(self)

    def __getstate__(self):
        return {}


class PacedCoordinator(SinkCoordinator):
    def __init__(self, sink: PacedSink):
        self.sink = sink

    def handle(self, subtask, attempt, payload):
        if payload is None:
            self.sink.begun = True
        else:
            self.sink.reports.append(payload)


class PacedWriter(SinkWriter):
    keeps_values = False

    def __init__(self, context):
        self.context = context
        self.begun = False

    def write(self, value, timestamp_ms, watermark_ms):
        self.write_batch([value], None, watermark_ms)

    def write_batch(self, values, timestamps_ms, watermark_ms):
        now_ns = time.monotonic_ns()
        Notes.scheduled_ns.extend([value[0] for value in values])
        Notes.delays_ns.extend([now_ns - value[0] for value in values])
        Notes.known += sum([value[1] for value in values])
        if not self.begun:
            self.begun = True
            self.context.send_to_coordinator(None)

    def flush(self, end_of_input):
        if end_of_input:
            self.context.send_to_coordinator(_report())


def _report() -> PacedReport:
    scheduled_ns = np.array(Notes.scheduled_ns, dtype=np.int64)
    delays_ms = np.array(Notes.delays_ns, dtype=np.int64) / 1e6
    barriers = Notes.barriers
    spans = [(scheduled_ns >= each.begun_ns) & (scheduled_ns <= each.completed_ns) for each in barriers]
    p99_ms = [float(np.percentile(delays_ms[span], 99)) for span in spans if span.any()]
    async_s = [(each.completed_ns - each.begun_ns) / 1e9 for each in barriers]
    p99_ms_without = rate_without = None
    if barriers:
        # From where the schedule has settled to the last checkpoint: the same load, and no snapshot under way.
        first_ns = int(scheduled_ns[0]) + int(_REST_S * 5e8)
        free = ~np.any(spans, axis=0) & (scheduled_ns > first_ns) & (scheduled_ns < barriers[-1].completed_ns)
        p99_ms_without = float(np.percentile(delays_ms[free], 99))
        rate_without = float(free.sum()) / ((barriers[-1].completed_ns - first_ns) / 1e9 - sum(async_s))
    return PacedReport(
        Notes.first_record_ns,
        Notes.gc_objects or 0,
        len(scheduled_ns),
        Notes.known,
        [(each.first_record_ns - each.begun_ns) / 1e6 for each in barriers],
        async_s,
        p99_ms,
        p99_ms_without,
        [float(span.sum()) / seconds for span, seconds in zip(spans, async_s)],
        rate_without,
        _cpu_of_snapshots(barriers),
    )


def _cpu_of_snapshots(barriers: list[Barrier]) -> list[float]:
    between = list(zip(barriers, barriers[1:]))
    seconds = sum((after.begun_ns - before.completed_ns) / 1e9 for before, after in between)
    rate = sum(after.begun_cpu_s - before.completed_cpu_s for before, after in between) / seconds if between else 0.0
    return [
        each.completed_cpu_s - each.begun_cpu_s - rate * (each.completed_ns - each.begun_ns) / 1e9 for each in barriers
    ]


def _submit(cluster: Any, source: PacedSource, function: Any, settings: dict) -> tuple[Any, PacedSink]:
    env = cluster.get_execution_environment({"parallelism.default": 1, **settings})
    sink = PacedSink()
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "paced").uid("paced")
    stream.key_by(lambda record: record[0]).process(function).uid("keep").sink_to(sink).uid("sink")
    return env.execute_async("paced"), sink


def _wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_MS / 1_000
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {_TIMEOUT_MS} ms still not: {what}")
        time.sleep(_POLL_S)


def run_paced(
    cluster: Any, function: Any, keys: int, rate: Optional[int], checkpoints: int, folder: str, rest_s: float = _REST_S
) -> PacedReport:
    """A job over ``keys`` keys of which so many checkpoints are taken, with ``rest_s`` before each."""
    settings = {"execution.checkpointing.dir": folder, "execution.checkpointing.timeout": "5 min"}
    client, sink = _submit(cluster, PacedSource(keys, True, rate, checkpoints, rest_s), function, settings)
    try:
        _wait_until(lambda: sink.begun or client._handle.status().is_terminal_state(), "the state is there")
        for _ in range(checkpoints):
            time.sleep(rest_s)
            client.trigger_checkpoint().result(_TIMEOUT_MS)
        client.wait(_TIMEOUT_MS)
    finally:
        if not client._handle.status().is_terminal_state():
            client.cancel().result()
    (report,) = sink.reports
    return report


# ---- the workloads ------------------------------------------------------------------------------


def measure_heap(cluster: Any, keys: int, checkpoints: int) -> Row:
    """Pause and delays of one slot with so many keys."""
    with tempfile.TemporaryDirectory(prefix="flinkish-benchmark-") as folder:
        report = run_paced(cluster, KeepLast(), keys, RATE, checkpoints, folder)
    return {
        "workload": "checkpoint-heap-1M",
        "system": "flinkish",
        "pause_ms": median(report.pauses_ms, 2),
        "pause_ms_spread": spread(report.pauses_ms, 2),
        "p99_ms": median(report.p99_ms, 2),
        "p99_ms_spread": spread(report.p99_ms, 2),
        "p99_ms_without": round(report.p99_ms_without, 2),
        "async_s": median(report.async_s, 3),
        "async_s_spread": spread(report.async_s, 3),
        "keys": keys,
        "records_per_s": RATE,
        "checkpoints": len(report.pauses_ms),
    }


def measure_each_second(cluster: Any, data: DataSet, repeats: int) -> Row:
    """W2 with a checkpoint every second and without, in turns."""
    data.make()
    rates: dict[bool, list[float]] = {True: [], False: []}
    completed = []
    for round_ in range(repeats):
        for with_checkpoints in (True, False) if round_ % 2 else (False, True):
            with tempfile.TemporaryDirectory(prefix="flinkish-benchmark-") as folder:
                settings = {"execution.checkpointing.dir": folder, "execution.checkpointing.interval": "1 s"}
                rate, count = _rate(cluster, data, settings if with_checkpoints else {})
            rates[with_checkpoints].append(rate)
            if with_checkpoints:
                completed.append(count)
    ratios = [with_ / without for with_, without in zip(rates[True], rates[False])]
    return {
        "workload": "checkpoint-1s",
        "system": "flinkish",
        "records_per_s": median(rates[True]),
        "records_per_s_spread": spread(rates[True]),
        "records_per_s_without": median(rates[False]),
        "records_per_s_without_spread": spread(rates[False]),
        "without_ratio": median(ratios, 4),
        "without_ratio_spread": spread(ratios, 4),
        "checkpoints": sum(completed),
        "runs": repeats,
    }


def _rate(cluster: Any, data: DataSet, settings: dict) -> tuple[float, int]:
    """Records/s, and checkpoints that were completed."""
    env = cluster.get_execution_environment(settings)
    env.set_parallelism(SLOTS)
    sink = build(env, "W2", data, MemorySource(data, _PASSES))
    client = env.execute_async(f"W2, {data.records} records")
    client.wait(_TIMEOUT_MS)
    report = sink.result()
    check_result("W2", report, data, _PASSES)
    return data.records * _PASSES / report.seconds, client._handle.describe()["checkpoints"]["counts"]["completed"]


def measure_restore(cluster: Any, keys: int, repeats: int) -> Row:
    """From the submission of a job that goes on from a savepoint to its first record, which has read its state."""
    seconds = []
    with tempfile.TemporaryDirectory(prefix="flinkish-benchmark-") as folder:
        client, sink = _submit(cluster, PacedSource(keys, True, RATE, 1), KeepLast(), {})
        _wait_until(lambda: sink.begun or client._handle.status().is_terminal_state(), "the state is there")
        savepoint = client.stop_with_savepoint(False, folder).result(_TIMEOUT_MS)
        for _ in range(repeats):
            begun_ns = time.monotonic_ns()
            client, sink = _submit(
                cluster, PacedSource(keys, False, RATE, 0), KeepLast(), {"execution.state-recovery.path": savepoint}
            )
            client.wait(_TIMEOUT_MS)
            (report,) = sink.reports
            if not 0 < report.known == report.records:
                raise AssertionError(f"{report.records} records found {report.known} values of {keys} keys")
            seconds.append((report.first_record_ns - begun_ns) / 1e9)
    return {
        "workload": "restore-1M",
        "system": "flinkish",
        "seconds": median(seconds, 3),
        "seconds_spread": spread(seconds, 3),
        "gc_objects": report.gc_objects,  # restored state is none of them
        "keys": keys,
        "runs": repeats,
    }
