"""What one core can do: the workload as a plain loop in one process, no engine.

``python -m tests.benchmarks.bare W2 DATASET PART`` says "ready", waits for a line on stdin, so that
two of them start together, runs over its part and prints the loop's seconds and CPU seconds.
"""

from __future__ import annotations

import json
import sys
import time

from tests.benchmarks.data import LATENESS_MS, MIN_VALUE, WINDOW_MS, DataSet


def parsed(lines):
    loads = json.loads
    for line in lines:
        fields = loads(line)
        yield fields["key"], fields["value"], fields["ts"]


def w1(lines, emit) -> None:
    def keep(record):
        return record[1] >= MIN_VALUE

    def convert(record):
        return record[0], record[1] * 2, record[2]

    for record in parsed(lines):
        if keep(record):
            emit(convert(record))


def w2(records, emit) -> None:
    sums: dict = {}

    def add(key, value):
        total = sums.get(key, 0) + value
        sums[key] = total
        return key, total

    for record in records:
        emit(add(record[0], record[1]))


def w3(records, emit) -> None:
    windows: dict = {}  # start -> {key: [sum, count]}
    watermark = 0
    next_end = None

    def fire(start):
        for key, (total, count) in windows.pop(start).items():
            emit((key, start, total, count))

    for key, value, timestamp in records:
        start = timestamp - timestamp % WINDOW_MS
        window = windows.get(start)
        if window is None:
            window = windows[start] = {}
            next_end = min(windows) + WINDOW_MS
        accumulator = window.get(key)
        if accumulator is None:
            window[key] = [value, 1]
        else:
            accumulator[0] += value
            accumulator[1] += 1
        if timestamp - LATENESS_MS > watermark:
            watermark = timestamp - LATENESS_MS
            while next_end is not None and next_end <= watermark:
                fire(next_end - WINDOW_MS)
                next_end = min(windows) + WINDOW_MS if windows else None
    for start in sorted(windows):
        fire(start)


LOOPS = {"W1": w1, "W2": w2, "W2-reduce": w2, "W3": w3}


def main() -> None:
    workload, data, index = sys.argv[1], DataSet.parse(sys.argv[2]), int(sys.argv[3])
    records: list = data.lines(index) if workload == "W1" else data.tuples(index)
    print("ready", flush=True)
    sys.stdin.readline()
    start, cpu = time.perf_counter(), time.process_time()
    LOOPS[workload](records, lambda record: None)
    print(json.dumps([time.perf_counter() - start, time.process_time() - cpu]), flush=True)


if __name__ == "__main__":
    main()
