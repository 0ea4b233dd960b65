"""The same workloads on bytewax: one process, two worker threads, records read before the clock.

``python -m tests.benchmarks.bytewax_peer W2 N1 N2`` prints records/s between the two sizes.
"""

from __future__ import annotations

import json
import os
import sys
import time

import bytewax.operators as op
from bytewax._bytewax import cli_main
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition

from tests.benchmarks.data import MIN_VALUE, PARTS, json_parts, part

BATCH = 1_000


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


class Parts(FixedPartitionedSource):
    def __init__(self, parts: dict[str, Part]):
        self.parts = parts

    def list_parts(self):
        return list(self.parts)

    def build_part(self, step_id, for_part, resume_state):
        return self.parts[for_part]


class Discard(DynamicSink):
    def build(self, step_id, worker_index, worker_count):
        return DiscardPartition()


class DiscardPartition(StatelessSinkPartition):
    def write_batch(self, items):
        return None


def parse(line):
    fields = json.loads(line)
    return fields["key"], fields["value"], fields["ts"]


def running_sum(state, value):
    total = (state or 0) + value
    return total, total


def seconds(workload: str, n: int) -> float:
    if workload == "W1":
        items = []
        for index in range(PARTS):
            with open(f"{json_parts(n)}/part-{index}.jsonl") as lines:
                items.append(lines.readlines())
    else:
        items = [part(n, index) for index in range(PARTS)]
    flow = Dataflow("benchmark")
    stream = op.input("in", flow, Parts({str(i): Part(x) for i, x in enumerate(items)}))
    if workload == "W1":
        stream = op.map("parse", stream, parse)
        stream = op.filter("keep", stream, lambda record: record[1] >= MIN_VALUE)
        stream = op.map("double", stream, lambda record: (record[0], record[1] * 2, record[2]))
    else:
        stream = op.map("key", stream, lambda record: (record[0], record[1]))
        stream = op.stateful_map("sum", stream, running_sum)
    op.output("out", stream, Discard())
    start = time.perf_counter()
    cli_main(flow, workers_per_process=2)
    return time.perf_counter() - start


if __name__ == "__main__":
    name, small, large = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    first = seconds(name, small)
    second = seconds(name, large)
    print((large - small) / (second - first), flush=True)
    os._exit(0)  # bytewax's threads outlive the flow
