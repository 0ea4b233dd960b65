"""The same workloads on bytewax: one process, two worker threads, records read before the clock.

``python -m tests.benchmarks.bytewax_peer W2 DATASET...`` runs over each data set and prints a line of
JSON for each: seconds, CPU seconds, rows, checksum.  ``... W5 IN_PORT OUT_PORT`` runs until the input
ends.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from datetime import datetime, timedelta, timezone

import bytewax.operators as op
from bytewax._bytewax import cli_main
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import windowing
from bytewax.outputs import DynamicSink, StatelessSinkPartition

from tests.benchmarks.data import GAP_MS, LATENESS_MS, MIN_VALUE, PARTS, SLIDE_MS, WINDOW_MS, DataSet

BATCH = 1_000
POLL = timedelta(microseconds=200)  # of the socket


class Part(StatefulSourcePartition):
    def __init__(self, items: list):
        self.items, self.position = items, 0

    def next_batch(self):
        batch = self.items[self.position : self.position + BATCH]
        if not batch:
            raise StopIteration
        self.position += BATCH
        return batch

    def snapshot(self):
        return self.position


class SocketLines(StatefulSourcePartition):
    def __init__(self, port: int):
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.connection.setblocking(False)
        self.rest = b""

    def next_batch(self):
        try:
            block = self.connection.recv(1 << 16)
        except BlockingIOError:
            return []
        if not block:
            raise StopIteration
        *lines, self.rest = (self.rest + block).split(b"\n")
        return [line.decode() for line in lines]

    def next_awake(self):
        return datetime.now(timezone.utc) + POLL

    def snapshot(self):
        return None


class Parts(FixedPartitionedSource):
    def __init__(self, parts: dict):
        self.parts = parts

    def list_parts(self):
        return list(self.parts)

    def build_part(self, step_id, for_part, resume_state):
        return self.parts[for_part]


class Checksum(DynamicSink):
    """Counts and adds up as the sink of flinkish's jobs does."""

    def __init__(self, workload: str):
        self.workload = workload
        self.workers: list[ChecksumPartition] = []

    def build(self, step_id, worker_index, worker_count):
        self.workers.append(ChecksumPartition(self.workload))
        return self.workers[-1]

    def result(self) -> tuple[int, int]:
        return (
            sum(worker.rows for worker in self.workers),
            sum(worker.checksum + sum(worker.last.values()) for worker in self.workers),
        )


class ChecksumPartition(StatelessSinkPartition):
    def __init__(self, workload: str):
        self.workload = workload
        self.rows = self.checksum = 0
        self.last: dict = {}

    def write_batch(self, items):
        self.rows += len(items)
        if self.workload == "W1":
            self.checksum += sum([item[1] for item in items])
        elif self.workload in WINDOWERS:
            self.checksum += sum([total + count for _, (_, (total, count)) in items])
        else:
            last = self.last
            for key, total in items:
                last[key] = total


class SocketSink(DynamicSink):
    def __init__(self, port: int):
        self.port = port

    def build(self, step_id, worker_index, worker_count):
        return SocketSinkPartition(self.port)


class SocketSinkPartition(StatelessSinkPartition):
    def __init__(self, port: int):
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def write_batch(self, items):
        lines = "".join("%s,%d,%d\n" % (key, total, emit) for key, (total, emit) in items)
        self.connection.sendall(lines.encode())

    def close(self):
        self.connection.close()


def parse(line):
    fields = json.loads(line)
    return fields["key"], fields["value"], fields["ts"]


def running_sum(state, value):
    total = (state or 0) + value
    return total, total


EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
WINDOWERS = {
    "W3": windowing.TumblingWindower(length=timedelta(milliseconds=WINDOW_MS), align_to=EPOCH),
    "sliding": windowing.SlidingWindower(
        length=timedelta(milliseconds=WINDOW_MS), offset=timedelta(milliseconds=SLIDE_MS), align_to=EPOCH
    ),
    "session": windowing.SessionWindower(gap=timedelta(milliseconds=GAP_MS)),
}


def windowed(stream, windower):
    clock = windowing.EventClock(
        ts_getter=lambda record: datetime.fromtimestamp(record[2] / 1000, timezone.utc),
        wait_for_system_duration=timedelta(milliseconds=LATENESS_MS),
    )
    return windowing.fold_window(
        "window",
        op.map("key", stream, lambda record: (record[0], record)),
        clock,
        windower,
        lambda: (0, 0),
        lambda sums, record: (sums[0] + record[1], sums[1] + 1),
        lambda a, b: (a[0] + b[0], a[1] + b[1]),
    ).down


def measure(workload: str, data: DataSet) -> list:
    """[seconds, CPU seconds, rows, checksum]"""
    read = data.lines if workload == "W1" else data.tuples
    parts = {str(index): Part(read(index)) for index in range(PARTS)}
    flow = Dataflow("benchmark")
    stream = op.input("in", flow, Parts(parts))
    if workload == "W1":
        stream = op.map("parse", stream, parse)
        stream = op.filter("keep", stream, lambda record: record[1] >= MIN_VALUE)
        stream = op.map("double", stream, lambda record: (record[0], record[1] * 2, record[2]))
    elif workload in WINDOWERS:
        stream = windowed(stream, WINDOWERS[workload])
    else:
        stream = op.map("key", stream, lambda record: (record[0], record[1]))
        stream = op.stateful_map("sum", stream, running_sum)
    sink = Checksum(workload)
    op.output("out", stream, sink)
    start, cpu = time.perf_counter(), time.process_time()
    cli_main(flow, workers_per_process=PARTS)
    return [time.perf_counter() - start, time.process_time() - cpu, *sink.result()]


def run_latency(in_port: int, out_port: int) -> None:
    def split(line):
        key, value, emit_ns = line.split(",")
        return key, (int(value), int(emit_ns))

    def add(state, pair):
        total = (state or 0) + pair[0]
        return total, (total, pair[1])

    flow = Dataflow("latency")
    stream = op.input("in", flow, Parts({"socket": SocketLines(in_port)}))
    stream = op.stateful_map("sum", op.map("split", stream, split), add)
    op.output("out", stream, SocketSink(out_port))
    cli_main(flow, workers_per_process=PARTS)


if __name__ == "__main__":
    name, arguments = sys.argv[1], sys.argv[2:]
    if name == "W5":
        run_latency(*map(int, arguments))
    else:
        for argument in arguments:
            print(json.dumps(measure(name, DataSet.parse(argument))), flush=True)
    sys.stdout.flush()
    os._exit(0)  # bytewax's threads outlive the flow
