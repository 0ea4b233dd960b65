"""The workloads as flinkish jobs, and how long their records took.

The clock runs from the first record that a source hands over to the last that a sink takes, in
the slots (one monotonic clock per machine).  Launch, deploy and the making of the records are
outside; two sizes are compared anyway, so that constant costs drop out.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import pyarrow.compute as pc

from flinkish import (
    AggregateFunction,
    EventTimeSessionWindows,
    KeyedProcessFunction,
    ProcessWindowFunction,
    RuntimeContext,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from flinkish.connectors.files.file_source import FileSource
from flinkish.connectors.files.file_system import find_files
from flinkish.connectors.socket_text import SocketTextSink
from flinkish.connectors.spi import (
    Boundedness,
    InputStatus,
    Sink,
    SinkCoordinator,
    SinkWriter,
    Source,
    SourceReader,
    SourceSplit,
    SplitEnumerator,
)
from tests.benchmarks.data import GAP_MS, JOIN_MS, LATENESS_MS, MIN_VALUE, PARTS, SLIDE_MS, WINDOW_MS, DataSet

# ---- sources ------------------------------------------------------------------------------------


class SlotClock:
    """What the source of a slot notes and the sink of the same slot reports."""

    started_ns: int = 0
    preparing_cpu_s: float = 0.0  # spent on records before the clock started


@dataclass(frozen=True)
class PartSplit(SourceSplit):
    index: int

    def split_id(self) -> str:
        return str(self.index)


class PartEnumerator(SplitEnumerator):
    """Part i goes to reader i; they start together when all have their records in memory."""

    def __init__(self, context):
        self.context = context
        self.ready: set[int] = set()

    def handle_split_request(self, subtask_id, host):
        self.context.assign_split(PartSplit(subtask_id), subtask_id)
        self.context.signal_no_more_splits(subtask_id)

    def handle_source_event(self, subtask_id, event):
        self.ready.add(subtask_id)
        if len(self.ready) == self.context.current_parallelism():
            for reader in sorted(self.ready):
                self.context.send_event_to_source_reader(reader, "go")


class MemorySource(Source):
    """Tuples that lie ready in the memory of ``PARTS`` readers; each comes ``passes`` times."""

    fixed_parallelism = PARTS

    def __init__(self, data: DataSet, passes: int = 1):
        self.data, self.passes = data, passes

    def boundedness(self):
        return Boundedness.BOUNDED

    def create_enumerator(self, context):
        return PartEnumerator(context)

    def create_reader(self, context):
        return MemoryReader(self.data, self.passes, context)


class MemoryReader(SourceReader):
    def __init__(self, data: DataSet, passes: int, context):
        self.data, self.passes, self.context = data, passes, context
        self.records: list = []
        self.position = 0
        self.may_start = False

    def start(self):
        self.context.send_split_request()

    def add_splits(self, splits):
        (split,) = splits
        cpu = time.process_time()
        self.load(split.index)
        SlotClock.preparing_cpu_s = time.process_time() - cpu
        self.context.send_source_event("ready")

    def load(self, index):
        self.records = self.data.tuples(index)

    def handle_source_event(self, event):
        self.may_start = True
        SlotClock.started_ns = time.monotonic_ns()
        self.context.wakeup()

    def poll_next(self, output):
        if not self.may_start:
            return InputStatus.NOTHING_AVAILABLE
        end = self.position + output.room
        output.collect_batch(self.records[self.position : end])
        self.position = end
        if end < len(self.records):
            return InputStatus.MORE_AVAILABLE
        self.position = 0
        self.passes -= 1
        return InputStatus.MORE_AVAILABLE if self.passes else InputStatus.END_OF_INPUT


class ColumnsSource(MemorySource):
    """The same as columns."""

    gives_columns = True

    def create_reader(self, context):
        return ColumnsReader(self.data, self.passes, context)


class ColumnsReader(MemoryReader):
    batch: Any = None

    def load(self, index):
        (self.batch,) = self.data.table(index).to_batches()

    def poll_next(self, output):
        if not self.may_start:
            return InputStatus.NOTHING_AVAILABLE
        rows = self.batch.slice(self.position, output.room)
        output.collect_columns(rows)
        self.position += rows.num_rows
        return InputStatus.MORE_AVAILABLE if self.position < self.batch.num_rows else InputStatus.END_OF_INPUT


class TimedFileSource(FileSource):
    """Starts the clock of the slot when its reader does."""

    def create_reader(self, context):
        SlotClock.started_ns = time.monotonic_ns()
        return super().create_reader(context)


class FileEnumerator(SplitEnumerator):
    """File i goes to reader i: a reader that got both would find all of the second late."""

    def __init__(self, context, splits):
        self.context, self.splits = context, splits

    def handle_split_request(self, subtask_id, host):
        self.context.assign_split(self.splits[subtask_id], subtask_id)
        self.context.signal_no_more_splits(subtask_id)


class CsvSource(TimedFileSource):
    """The parts' CSV files as columns."""

    fixed_parallelism = PARTS

    def __init__(self, data: DataSet):
        columns = {"k": Types.STRING(), "v": Types.LONG(), "ts": Types.LONG()}
        super().__init__([data.path("csv", index) for index in range(PARTS)], format="csv", columns=columns)

    def create_enumerator(self, context):
        return FileEnumerator(context, self.format.find_splits(find_files(self.paths), PARTS))


# ---- the sink -----------------------------------------------------------------------------------


class SlotReport(NamedTuple):
    rows: int
    checksum: int
    started_ns: int
    ended_ns: int
    preparing_cpu_s: float


class JobReport(NamedTuple):
    rows: int
    checksum: int
    seconds: float  # from the first record of any slot to the last of any
    preparing_cpu_s: float


class TimedSink(Sink):
    """Counts rows and a checksum in each slot; the totals come to the driver."""

    takes_columns = True

    def __init__(self, workload: str):
        self.workload = workload
        self.reports: list[SlotReport] = []

    def create_writer(self, context):
        return TimedWriter(self.workload, context)

    def create_coordinator(self, context):
        return TimedCoordinator(self.reports)

    def __getstate__(self):
        return {"workload": self.workload}

    def result(self) -> JobReport:
        reports = self.reports
        start = min(report.started_ns for report in reports)
        end = max(report.ended_ns for report in reports)
        return JobReport(
            sum(report.rows for report in reports),
            sum(report.checksum for report in reports),
            (end - start) / 1e9,
            sum(report.preparing_cpu_s for report in reports),
        )


class TimedCoordinator(SinkCoordinator):
    def __init__(self, reports):
        self.reports = reports

    def handle(self, subtask, attempt, payload):
        self.reports.append(payload)


class TimedWriter(SinkWriter):
    """Takes batches, as sinks of files and brokers do; W2 keeps the last value of each key, the
    others add up."""

    keeps_values = False

    def __init__(self, workload, context):
        self.workload, self.context = workload, context
        self.rows = self.checksum = 0
        self.last: dict = {}

    def write(self, value, timestamp_ms, watermark_ms):
        self.write_batch([value], None, watermark_ms)

    def write_batch(self, values, timestamps_ms, watermark_ms):
        self.rows += len(values)
        if self.workload in ("W1", "interval-join"):
            self.checksum += sum([value[1] for value in values])
        elif self.workload in WINDOWS:
            self.checksum += sum([total + count for _, _, total, count in values])
        elif self.workload == "W2":
            self.last.update(values)  # (key, sum)
        else:
            last = self.last
            for key, total, _ in values:
                last[key] = total

    def write_columns(self, columns, timestamps_ms, watermark_ms):
        self.rows += columns.num_rows
        self.checksum += sum([pc.sum(columns.column(name)).as_py() for name in ("total", "n")])

    def flush(self, end_of_input):
        if end_of_input:
            checksum = self.checksum + sum(self.last.values())
            self.context.send_to_coordinator(
                SlotReport(
                    self.rows,
                    checksum,
                    SlotClock.started_ns,
                    time.monotonic_ns(),
                    SlotClock.preparing_cpu_s,
                )
            )


# ---- user functions -----------------------------------------------------------------------------


def parse(line):
    fields = json.loads(line)
    return fields["key"], fields["value"], fields["ts"]


class RunningSum(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value, ctx):
        total = (self.sum.value() or 0) + value[1]
        self.sum.update(total)
        yield value[0], total


class RunningSumLine(RunningSum):
    def process_element(self, value, ctx):
        total = (self.sum.value() or 0) + value[1]
        self.sum.update(total)
        yield "%s,%d,%d" % (value[0], total, value[2])


class SumAndCount(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator

    def merge(self, acc_a, acc_b):
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


WINDOWS = {
    "W3": TumblingEventTimeWindows.of(WINDOW_MS),
    "sliding": SlidingEventTimeWindows.of(WINDOW_MS, SLIDE_MS),
    "session": EventTimeSessionWindows.with_gap(GAP_MS),
}


class WithWindow(ProcessWindowFunction):
    def process(self, key, context, elements):
        for total, count in elements:
            yield key, context.window().start, total, count


def add_values(left, right, ctx):
    yield left[0], left[1] + right[1]


# ---- jobs ---------------------------------------------------------------------------------------


def build(env, workload: str, data: DataSet, source: Optional[MemorySource] = None) -> TimedSink:
    """Add ``workload`` over ``data`` to ``env``; ``source``: of these data, not for W1."""
    sink = TimedSink(workload)
    strategy = WatermarkStrategy.no_watermarks()
    if workload == "W1":
        files = TimedFileSource([data.path("jsonl", index) for index in range(PARTS)])
        stream = (
            env.from_source(files, strategy, "files")
            .map(parse)
            .filter(lambda record: record[1] >= MIN_VALUE)
            .map(lambda record: (record[0], record[1] * 2, record[2]))
        )
        stream.sink_to(sink)
        return sink
    if workload in ("W4", "W4-csv"):
        source = source or (ColumnsSource(data) if workload == "W4" else CsvSource(data))
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(LATENESS_MS).with_timestamp_assigner("ts")
        keyed = env.from_source(source, strategy, "columns").key_by("k")
        windows = keyed.window(TumblingEventTimeWindows.of(WINDOW_MS))
        windows.aggregate_fields(total=("v", "sum"), n="count").sink_to(sink)
        return sink
    if workload in WINDOWS or workload == "interval-join":
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(
            LATENESS_MS
        ).with_timestamp_assigner(lambda record: record[2])
    records = env.from_source(source or MemorySource(data), strategy, "memory")
    if workload == "interval-join":
        even, odd = (records.filter(lambda record, rest=rest: record[1] % 2 == rest) for rest in (0, 1))
        near = even.key_by(lambda record: record[0]).interval_join(odd.key_by(lambda record: record[0]))
        near.between(-JOIN_MS, JOIN_MS).process(add_values).sink_to(sink)
        return sink
    keyed = records.key_by(lambda record: record[0])
    if workload == "W2":
        stream = keyed.process(RunningSum())
    elif workload == "W2-reduce":
        stream = keyed.reduce(
            lambda total, record: (record[0], total[1] + record[1], record[2])
        )
    elif workload in WINDOWS:
        stream = keyed.window(WINDOWS[workload]).aggregate(SumAndCount(), WithWindow())
    else:
        raise ValueError(f"no workload {workload!r}")
    stream.sink_to(sink)
    return sink


def build_latency(env, in_port: int, out_port: int) -> None:
    """W5: lines ``key,value,emit_ns`` from one socket, ``key,running sum,emit_ns`` to another."""

    def split(line):
        key, value, emit_ns = line.split(",")
        return key, int(value), int(emit_ns)

    # One map, in the chain of the one socket: two would be fed over an exchange of their own.
    records = env.socket_text_stream("127.0.0.1", in_port).map(split).set_parallelism(1)
    sums = records.key_by(lambda record: record[0]).process(RunningSumLine())
    sums.sink_to(SocketTextSink("127.0.0.1", out_port))
