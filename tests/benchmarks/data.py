"""The data set: event ``i`` is a pure function of ``i``, so that every system sees the same records.

10,000 keys, values 0..999, ten events a millisecond of event time, one in ten up to 1,999 ms late.
A set lies in files (``FOLDER/RECORDS/parts_csv/part-0.csv`` and ``parts_jsonl/part-0.jsonl``), is made
on first use, and what is in the files counts: whoever puts other events there measures those.
"""

from __future__ import annotations

import bisect
import itertools
import json
import os
import tempfile
from dataclasses import dataclass, field
from typing import Any, Iterator

KEYS = [f"user_{k:05d}" for k in range(10_000)]
BASE_TS_MS = 1_700_000_000_000
EVENTS_PER_MS = 10
LATENESS_MS = 2_000
WINDOW_MS = 10_000  # of W3, W4, W4-csv and sliding
SLIDE_MS = 2_000  # sliding: a window begins so long after the one before
GAP_MS = 500  # session: events of a key that lie no further apart are one session
JOIN_MS = 1_000  # interval-join: how far apart in time
MIN_VALUE = 100  # W1 keeps value >= MIN_VALUE
PARTS = 2  # round robin: event i is in part i % PARTS
_MASK = (1 << 64) - 1

Event = tuple[str, int, int]


def event(i: int, seed: int = 0) -> Event:
    """(key, value, event time in ms) of event ``i``."""
    h = (i * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019 + seed * 0xD1342543DE82EF95) & _MASK
    h ^= h >> 29
    h = (h * 0xBF58476D1CE4E5B9) & _MASK
    h ^= h >> 32
    timestamp_ms = BASE_TS_MS + i // EVENTS_PER_MS
    if (h >> 40) % 10 == 0:
        timestamp_ms -= (h >> 44) % LATENESS_MS
    return KEYS[h % len(KEYS)], (h >> 16) % 1000, timestamp_ms


def default_folder() -> str:
    return os.path.join(tempfile.gettempdir(), f"flinkish-benchmark-{os.getuid()}")


@dataclass(frozen=True)
class DataSet:
    """``records`` events of one seed in ``PARTS`` files of each form.

    Args:
        folder: holds a folder for each number of records.
    """

    records: int
    seed: int = 0
    folder: str = field(default_factory=default_folder)

    @staticmethod
    def parse(text: str) -> "DataSet":
        """What ``str()`` gave: a set on the command line of another process."""
        return DataSet(*json.loads(text))

    def __str__(self) -> str:
        return json.dumps([self.records, self.seed, self.folder])

    def path(self, form: str, index: int) -> str:
        """The file of one part; ``form``: "csv" or "jsonl"."""
        name = str(self.records) if self.seed == 0 else f"{self.records}-seed-{self.seed}"
        return os.path.join(self.folder, name, f"parts_{form}", f"part-{index}.{form}")

    def make(self) -> "DataSet":
        """Write the files that are not there yet."""
        for form, line in ("csv", "%s,%d,%d\n"), ("jsonl", '{"key":"%s","value":%d,"ts":%d}\n'):
            for index in range(PARTS):
                path = self.path(form, index)
                if os.path.exists(path):
                    continue
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path + ".making", "w") as out:
                    for i in range(index, self.records, PARTS):
                        out.write(line % event(i, self.seed))
                os.replace(path + ".making", path)
        return self

    def lines(self, index: int) -> list[str]:
        """The JSON lines of one part."""
        with open(self.path("jsonl", index)) as lines:
            return lines.readlines()

    def tuples(self, index: int) -> list[Event]:
        """The events of one part, in order; equal keys are one object."""
        keys: dict[str, str] = {}
        events = []
        with open(self.path("csv", index)) as lines:
            for line in lines:
                key, value, timestamp_ms = line.split(",")
                events.append((keys.setdefault(key, key), int(value), int(timestamp_ms)))
        return events

    def table(self, index: int) -> Any:
        """The events of one part as columns k, v, ts: one pyarrow.Table in one piece."""
        from pyarrow import csv  # only here: bytewax may run in an environment without it

        options = csv.ReadOptions(column_names=["k", "v", "ts"])
        return csv.read_csv(self.path("csv", index), options).combine_chunks()

    def _events(self) -> Iterator[Event]:
        for index in range(PARTS):
            yield from self.tuples(index)

    def expected(self, workload: str) -> tuple[int, int]:
        """(rows, checksum) that ``workload`` gives over the set.

        W1: the sum of the doubled values that are kept.  W2: the sum of each key's last running
        sum, which does not depend on the order of a key's records.  W3, W4, W4-csv, sliding and session:
        sums and counts of all windows added.  interval-join: both values of each pair added.
        """
        if workload == "W1":
            kept = [value for _, value, _ in self._events() if value >= MIN_VALUE]
            return len(kept), 2 * sum(kept)
        if workload in ("W3", "W4", "W4-csv"):
            return self._windowed(WINDOW_MS)
        if workload == "sliding":
            return self._windowed(SLIDE_MS)
        if workload == "session":
            return self._in_sessions()
        if workload == "interval-join":
            return self._joined()
        values = [value for _, value, _ in self._events()]
        return len(values), sum(values)

    def _windowed(self, slide_ms: int) -> tuple[int, int]:
        """Pairs of a key and a window of ``WINDOW_MS``, one every ``slide_ms``; sums and counts added."""
        windows, checksum = set(), 0
        for key, value, timestamp_ms in self._events():
            last = timestamp_ms - timestamp_ms % slide_ms
            for start in range(last, timestamp_ms - WINDOW_MS, -slide_ms):
                windows.add((key, start))
                checksum += value + 1
        return len(windows), checksum

    def _in_sessions(self) -> tuple[int, int]:
        """Sessions of all keys, and sums and counts added."""
        times: dict[str, list[int]] = {}
        checksum = 0
        for key, value, timestamp_ms in self._events():
            times.setdefault(key, []).append(timestamp_ms)
            checksum += value + 1
        rows = 0
        for of_key in times.values():
            of_key.sort()
            rows += 1 + sum(later - earlier > GAP_MS for earlier, later in itertools.pairwise(of_key))
        return rows, checksum

    def _joined(self) -> tuple[int, int]:
        """Pairs of an even and an odd value of one key that lie near in time, and the sum of all their values."""
        sides: dict[str, tuple[list, list]] = {}
        for key, value, timestamp_ms in self._events():
            sides.setdefault(key, ([], []))[value % 2].append((timestamp_ms, value))
        rows = checksum = 0
        for left, right in sides.values():
            right.sort()
            sums = [0, *itertools.accumulate(value for _, value in right)]
            for timestamp_ms, value in left:
                first = bisect.bisect_left(right, (timestamp_ms - JOIN_MS,))
                end = bisect.bisect_left(right, (timestamp_ms + JOIN_MS + 1,))
                rows += end - first
                checksum += (end - first) * value + sums[end] - sums[first]
        return rows, checksum
