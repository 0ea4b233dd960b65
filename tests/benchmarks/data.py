"""The data set: event ``i`` is a pure function of ``i``, so that every system sees the same records.

10,000 keys, values 0..999, ten events a millisecond of event time, one in ten up to 1,999 ms late.
"""

from __future__ import annotations

import os
import tempfile

KEYS = [f"user_{k:05d}" for k in range(10_000)]
BASE_TS_MS = 1_700_000_000_000
EVENTS_PER_MS = 10
LATENESS_MS = 2_000
MIN_VALUE = 100  # W1 keeps value >= MIN_VALUE
PARTS = 2  # round robin: event i is in part i % PARTS
_MASK = (1 << 64) - 1


def event(i: int) -> tuple[str, int, int]:
    """(key, value, event time in ms) of event ``i``."""
    h = (i * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _MASK
    h ^= h >> 29
    h = (h * 0xBF58476D1CE4E5B9) & _MASK
    h ^= h >> 32
    timestamp_ms = BASE_TS_MS + i // EVENTS_PER_MS
    if (h >> 40) % 10 == 0:
        timestamp_ms -= (h >> 44) % LATENESS_MS
    return KEYS[h % len(KEYS)], (h >> 16) % 1000, timestamp_ms


def part(n: int, index: int, parts: int = PARTS) -> list[tuple[str, int, int]]:
    """The events of one part of ``n``, in order."""
    return [event(i) for i in range(index, n, parts)]


def json_parts(n: int) -> str:
    """A folder with ``part-0.jsonl`` and ``part-1.jsonl`` of ``n`` events; made on first use."""
    folder = os.path.join(tempfile.gettempdir(), f"flinkish-benchmark-{os.getuid()}", str(n))
    os.makedirs(folder, exist_ok=True)
    for index in range(PARTS):
        path = os.path.join(folder, f"part-{index}.jsonl")
        if os.path.exists(path):
            continue
        with open(path + ".making", "w") as out:
            for key, value, timestamp_ms in part(n, index):
                out.write('{"key":"%s","value":%d,"ts":%d}\n' % (key, value, timestamp_ms))
        os.replace(path + ".making", path)
    return folder


def expected(workload: str, n: int) -> tuple[int, int]:
    """(rows, checksum) that ``workload`` gives over ``n`` events.

    W1: the sum of the doubled values that are kept.  W2: the sum of each key's last running sum,
    which does not depend on the order of a key's records.
    """
    rows = checksum = 0
    for i in range(n):
        _, value, _ = event(i)
        if workload != "W1":
            rows, checksum = rows + 1, checksum + value
        elif value >= MIN_VALUE:
            rows, checksum = rows + 1, checksum + 2 * value
    return rows, checksum
