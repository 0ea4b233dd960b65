"""The interval join on pathway, two threads, records read before the clock.

``python -m tests.benchmarks.pathway_peer DATASET`` runs over the data set and prints a line of JSON: seconds, CPU
seconds, rows, checksum.  One run a process: pathway has one graph for all of it.

Pathway takes the records as a stream that commits every 100 ms, joins by expressions and adds up rows and checksum
inside; no Python runs for a pair, which favours it.
"""

from __future__ import annotations

import json
import os
import sys
import time

from tests.benchmarks.data import JOIN_MS, PARTS, DataSet

os.environ["PATHWAY_THREADS"] = str(PARTS)  # read when it is imported

import pathway as pw  # noqa: E402


class Event(pw.Schema):
    key: str
    value: int
    time: int


class Records(pw.io.python.ConnectorSubject):
    deletions_enabled = False

    def __init__(self, records: list):
        super().__init__()
        self.records = records

    def run(self):
        for key, value, time_ms in self.records:
            self.next(key=key, value=value, time=time_ms)


def measure(data: DataSet) -> list:
    """[seconds, CPU seconds, rows, checksum]"""
    parts = [data.tuples(index) for index in range(PARTS)]
    subject = Records([record for pair in zip(*parts) for record in pair])
    events = pw.io.python.read(subject, schema=Event, autocommit_duration_ms=100)
    left, right = events.filter(events.value % 2 == 0), events.filter(events.value % 2 == 1)
    pairs = left.interval_join(
        right, left.time, right.time, pw.temporal.interval(-JOIN_MS, JOIN_MS), left.key == right.key
    ).select(key=left.key, total=left.value + right.value)
    sums = pairs.reduce(rows=pw.reducers.count(), checksum=pw.reducers.sum(pairs.total))
    last = [0, 0]

    def on_change(key, row, time, is_addition):
        if is_addition:
            last[:] = row["rows"], row["checksum"]

    pw.io.subscribe(sums, on_change=on_change)
    start, cpu = time.perf_counter(), time.process_time()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    return [time.perf_counter() - start, time.process_time() - cpu, *last]


if __name__ == "__main__":
    print(json.dumps(measure(DataSet.parse(sys.argv[1]))), flush=True)
    os._exit(0)  # its threads outlive the run
