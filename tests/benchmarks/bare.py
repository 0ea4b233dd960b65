"""What one core can do: the workload as a plain loop in one process, no engine.

``python -m tests.benchmarks.bare W2 N PART`` waits for a line on stdin, so that two of them start
together, then runs over its part of N events and prints the seconds that the loop took.
"""

from __future__ import annotations

import json
import sys
import time

from tests.benchmarks.data import MIN_VALUE, json_parts, part


def w1(lines, emit) -> None:
    loads = json.loads

    def keep(record):
        return record[1] >= MIN_VALUE

    def convert(record):
        return record[0], record[1] * 2, record[2]

    for line in lines:
        fields = loads(line)
        record = (fields["key"], fields["value"], fields["ts"])
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


def main() -> None:
    workload, n, index = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if workload == "W1":
        with open(f"{json_parts(n)}/part-{index}.jsonl") as lines:
            records: list = lines.readlines()
        run = w1
    else:
        records = part(n, index)
        run = w2
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    run(records, lambda record: None)
    print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
