"""The workloads as flinkish jobs, and how long their records took.

The clock runs from the first record that a source hands over to the last that a sink takes, in
the slots (one monotonic clock per machine).  Launch, deploy and the making of the records are
outside; two sizes are compared anyway, so that constant costs drop out.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from flinkish import (
    KeyedProcessFunction,
    RuntimeContext,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
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
from tests.benchmarks.data import MIN_VALUE, json_parts, part


@dataclass(frozen=True)
class PartSplit(SourceSplit):
    index: int

    def split_id(self) -> str:
        return str(self.index)


class PartEnumerator(SplitEnumerator):
    """Part i goes to reader i."""

    def __init__(self, context):
        self.context = context

    def handle_split_request(self, subtask_id, host):
        self.context.assign_split(PartSplit(subtask_id), subtask_id)
        self.context.signal_no_more_splits(subtask_id)


class MemorySource(Source):
    """Records that lie ready in the reader's memory, as tuples or as JSON lines."""

    def __init__(self, n: int, workload: str):
        self.n, self.workload = n, workload

    def boundedness(self):
        return Boundedness.BOUNDED

    def create_enumerator(self, context):
        return PartEnumerator(context)

    def create_reader(self, context):
        return MemoryReader(self, context)


class MemoryReader(SourceReader):
    def __init__(self, source: MemorySource, context):
        self.source, self.context = source, context
        self.records: list | None = None
        self.position = 0

    def start(self):
        self.context.send_split_request()

    def add_splits(self, splits):
        (split,) = splits
        count = self.context.current_parallelism()
        if self.source.workload == "W1":
            with open(f"{json_parts(self.source.n)}/part-{split.index}.jsonl") as lines:
                self.records = lines.readlines()
        else:
            self.records = part(self.source.n, split.index, count)

    def poll_next(self, output):
        if self.records is None:
            return InputStatus.NOTHING_AVAILABLE
        if not self.position:
            started_ns[0] = time.monotonic_ns()
        end = self.position + output.room
        output.collect_batch(self.records[self.position : end])
        self.position = end
        return (
            InputStatus.MORE_AVAILABLE if end < len(self.records) else InputStatus.END_OF_INPUT
        )


#: When this process's source handed over its first record; the sink of the same slot reports it.
started_ns = [0]


class TimedSink(Sink):
    """Counts rows and a checksum in each slot; the totals come to the driver."""

    def __init__(self, workload: str):
        self.workload = workload

    def create_writer(self, context):
        return TimedWriter(self.workload, context)

    def create_coordinator(self, context):
        self.reports: list[tuple[int, int, int, int]] = []
        return TimedCoordinator(self.reports)

    def __getstate__(self):
        return {"workload": self.workload}

    def result(self) -> tuple[int, int, float]:
        """(rows, checksum, seconds from the first record of any slot to the last of any)."""
        rows = sum(report[0] for report in self.reports)
        checksum = sum(report[1] for report in self.reports)
        start = min(report[2] for report in self.reports)
        end = max(report[3] for report in self.reports)
        return rows, checksum, (end - start) / 1e9


class TimedCoordinator(SinkCoordinator):
    def __init__(self, reports):
        self.reports = reports

    def handle(self, subtask, attempt, payload):
        self.reports.append(payload)


class TimedWriter(SinkWriter):
    """Takes batches, as sinks of files and brokers do; W1 sums values, W2 keeps the last of each key."""

    keeps_values = False

    def __init__(self, workload, context):
        self.workload, self.context = workload, context
        self.rows = self.checksum = 0
        self.last: dict = {}

    def write(self, value, timestamp_ms, watermark_ms):
        self.write_batch([value], None, watermark_ms)

    def write_batch(self, values, timestamps_ms, watermark_ms):
        self.rows += len(values)
        if self.workload == "W1":
            self.checksum += sum([value[1] for value in values])
            return
        last = self.last
        for value in values:
            last[value[0]] = value[1]

    def flush(self, end_of_input):
        if end_of_input:
            checksum = self.checksum + sum(self.last.values())
            self.context.send_to_coordinator(
                (self.rows, checksum, started_ns[0], time.monotonic_ns())
            )


class RunningSum(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value, ctx):
        total = (self.sum.value() or 0) + value[1]
        self.sum.update(total)
        yield value[0], total


def parse(line):
    fields = json.loads(line)
    return fields["key"], fields["value"], fields["ts"]


def build(env, workload: str, n: int) -> TimedSink:
    """Add ``workload`` over ``n`` events to ``env``."""
    sink = TimedSink("W1" if workload == "W1" else "W2")
    source = env.from_source(
        MemorySource(n, workload), WatermarkStrategy.no_watermarks(), "memory"
    )
    if workload == "W1":
        stream = (
            source.map(parse)
            .filter(lambda record: record[1] >= MIN_VALUE)
            .map(lambda record: (record[0], record[1] * 2, record[2]))
        )
    elif workload == "W2":
        stream = source.key_by(lambda record: record[0]).process(RunningSum())
    elif workload == "W2-reduce":
        stream = source.key_by(lambda record: record[0]).reduce(
            lambda total, record: (record[0], total[1] + record[1], record[2])
        )
    else:
        raise ValueError(f"no workload {workload!r}")
    stream.sink_to(sink)
    return sink
