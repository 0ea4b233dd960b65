"""What one core can do: the workload as a plain loop in one process, no engine.

``python -m tests.benchmarks.bare W2 DATASET PART`` says "ready", waits for a line on stdin, so that
two of them start together, runs over its part and prints the loop's seconds and CPU seconds.
"""

from __future__ import annotations

import json
import sys
import time

from tests.benchmarks.data import GAP_MS, JOIN_MS, LATENESS_MS, MIN_VALUE, SLIDE_MS, WINDOW_MS, DataSet


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


def sliding(records, emit) -> None:
    windows: dict = {}  # start -> {key: [sum, count]}
    watermark = 0
    next_end = None

    def fire(start):
        for key, (total, count) in windows.pop(start).items():
            emit((key, start, total, count))

    for key, value, timestamp in records:
        start = timestamp - timestamp % SLIDE_MS
        while start > timestamp - WINDOW_MS:
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
            start -= SLIDE_MS
        if timestamp - LATENESS_MS > watermark:
            watermark = timestamp - LATENESS_MS
            while next_end is not None and next_end <= watermark:
                fire(next_end - WINDOW_MS)
                next_end = min(windows) + WINDOW_MS if windows else None
    for start in sorted(windows):
        fire(start)


def session(records, emit) -> None:
    """Open sessions of each key, and for each millisecond the keys of which one may end then."""
    open_of: dict = {}  # key -> [[first time, last time, sum, count]]
    ends: dict = {}
    watermark = None

    def fire(key, watermark):
        rest = []
        for one in open_of[key]:
            if one[1] + GAP_MS <= watermark:
                emit((key, one[0], one[2], one[3]))
            else:
                rest.append(one)
        if rest:
            open_of[key] = rest
        else:
            del open_of[key]

    for key, value, timestamp in records:
        mine = [timestamp, timestamp, value, 1]
        sessions = open_of.get(key)
        if sessions is None:
            open_of[key] = [mine]
        else:
            rest = []
            for one in sessions:
                if one[0] - GAP_MS <= mine[1] and mine[0] <= one[1] + GAP_MS:
                    mine = [min(one[0], mine[0]), max(one[1], mine[1]), one[2] + mine[2], one[3] + mine[3]]
                else:
                    rest.append(one)
            rest.append(mine)
            open_of[key] = rest
        ends.setdefault(mine[1] + GAP_MS, []).append(key)
        if watermark is None:
            watermark = timestamp - LATENESS_MS - GAP_MS
        while watermark < timestamp - LATENESS_MS:
            watermark += 1
            for ended in ends.pop(watermark, ()):
                if ended in open_of:
                    fire(ended, watermark)
    for key in list(open_of):
        fire(key, float("inf"))


def interval_join(records, emit) -> None:
    """Each record with all that its key has kept of the other side; what is too old is thrown away on the way."""
    kept: tuple[dict, dict] = ({}, {})
    newest = 0

    def join(left, right):
        return left[0], left[1] + right[1]

    for record in records:
        key, value, timestamp = record
        side = value % 2
        if timestamp > newest:
            newest = timestamp
        others = kept[1 - side].get(key)
        if others is not None:
            for other in others:
                if abs(other[2] - timestamp) <= JOIN_MS:
                    emit(join(other, record) if side else join(record, other))
        mine = kept[side].setdefault(key, [])
        mine.append(record)
        if mine[0][2] < newest - LATENESS_MS - JOIN_MS:
            del mine[0]


LOOPS = {
    "W1": w1,
    "W2": w2,
    "W2-reduce": w2,
    "W3": w3,
    "sliding": sliding,
    "session": session,
    "interval-join": interval_join,
}


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
