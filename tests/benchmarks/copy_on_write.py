"""A table that copies on write, pickled by a thread, beside the forked child of the engine: decision note 0027.

    python -m tests.benchmarks.copy_on_write [--keys 1000000] [--checkpoints 3] [--rounds 2] [--rest-s 10] [--json FILE]

The table is made as cheap as Python allows: while a snapshot is written nothing changes the dict itself, changes go
into a second one that lies over it and is merged when the thread has ended, so that a barrier costs nothing.
Deletions, and changes of a value in place, it does not do at all.  The thread writes either as the engine's child
does, or less: pickles of a thousand entries in the order of the dict, without key groups, checksums or types.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pickle
import tempfile
import threading
import time
from typing import Any, BinaryIO, Callable, Optional

from flinkish import KeyedProcessFunction
from flinkish.datastream.functions import CheckpointedFunction
from flinkish.messages.checkpoints import KeyGroupRange
from flinkish.state.keyed_snapshot import StateEntries, StateKind, StateMeta, write_keyed_snapshot
from flinkish.testing import MiniCluster
from tests.benchmarks.checkpoints import RATE, KeepLast, Notes, PacedReport, run_paced
from tests.benchmarks.report import median, spread

_CHUNK = 1_000  # entries; one pickle of them holds the GIL for about a millisecond


class CopyOnWriteTable:
    def __init__(self) -> None:
        self._base: dict = {}
        self._over: Optional[dict] = None  # what has changed since the barrier

    def get(self, key: Any) -> Any:
        over = self._over
        if over is not None and key in over:
            return over[key]
        return self._base.get(key)

    def put(self, key: Any, value: Any) -> None:
        (self._base if self._over is None else self._over)[key] = value

    def begin(self) -> dict:
        """What there is; it does not change until `end`."""
        assert self._over is None
        self._over = {}
        return self._base

    def end(self) -> None:
        over, self._over = self._over, None
        self._base.update(over or {})


class KeepLastInCopyOnWrite(KeyedProcessFunction, CheckpointedFunction):
    """As `KeepLast`, with a table of its own; its snapshot is complete when the thread has ended."""

    def __init__(self, write: Callable[[dict, BinaryIO], None]):
        self.write = write

    def initialize_state(self, context):
        Notes.clear()

    def open(self, runtime_context):
        self.table = CopyOnWriteTable()
        self.thread: Optional[threading.Thread] = None

    def process_element(self, value, ctx):
        key, number, scheduled_ns = value
        if not Notes.first_record_ns:
            Notes.first_record_ns = time.monotonic_ns()
        if self.thread is not None and not self.thread.is_alive():
            self.thread = None
            self.table.end()
            Notes.complete()
        known = self.table.get(key) is not None
        self.table.put(key, (number, number / 8, f"last of {number}"))
        if scheduled_ns:
            yield scheduled_ns, known

    def snapshot_state(self, context):
        assert self.thread is None, "give more --rest-s: the thread still writes the snapshot before"
        Notes.begin()
        self.thread = threading.Thread(target=_store, args=(self.write, self.table.begin()), daemon=True)
        self.thread.start()


def _store(write: Callable[[dict, BinaryIO], None], table: dict) -> None:
    with tempfile.TemporaryFile() as out:
        write(table, out)
        out.flush()
        os.fsync(out.fileno())


def _write_pickles(table: dict, out: BinaryIO) -> None:
    entries = iter(table.items())
    while chunk := list(itertools.islice(entries, _CHUNK)):
        out.write(pickle.dumps(chunk, pickle.HIGHEST_PROTOCOL))


def _write_as_the_engine(table: dict, out: BinaryIO) -> None:
    entries = StateEntries(StateMeta("last", StateKind.VALUE), list(table), list(table.values()))
    write_keyed_snapshot(out, [entries], KeyGroupRange(0, 127), 128)


_WAYS: dict[str, Callable[[], Any]] = {
    "forked child": KeepLast,
    "thread, same file": lambda: KeepLastInCopyOnWrite(_write_as_the_engine),
    "thread, pickles": lambda: KeepLastInCopyOnWrite(_write_pickles),
}


def measure(cluster: Any, keys: int, checkpoints: int, rounds: int, rest_s: float) -> list[dict]:
    """Each way in turns, at `RATE` and as fast as records go."""
    paced: dict[str, list[PacedReport]] = {way: [] for way in _WAYS}
    unpaced: dict[str, list[PacedReport]] = {way: [] for way in _WAYS}
    for _ in range(rounds):
        for rate, reports in (RATE, paced), (None, unpaced):
            for way, function in _WAYS.items():
                with tempfile.TemporaryDirectory(prefix="flinkish-benchmark-") as folder:
                    reports[way].append(run_paced(cluster, function(), keys, rate, checkpoints, folder, rest_s))
    rows = []
    for way in _WAYS:
        row: dict = {"way": way, "keys": keys, "snapshots": sum(len(each.pauses_ms) for each in paced[way])}
        figures = {
            "pause_ms": [value for each in paced[way] for value in each.pauses_ms],
            "async_s": [value for each in paced[way] for value in each.async_s],
            "p99_ms": [value for each in paced[way] for value in each.p99_ms],
            "p99_ms_without": [each.p99_ms_without for each in paced[way]],
            "cpu_s": [value for each in paced[way] for value in each.cpu_s],
            "records_per_s": [value for each in unpaced[way] for value in each.records_per_s],
            "records_per_s_without": [each.records_per_s_without for each in unpaced[way]],
            "without_ratio": [
                value / each.records_per_s_without
                for each in unpaced[way]
                for value in each.records_per_s
                if each.records_per_s_without
            ],
        }
        for name, values in figures.items():
            row[name], row[f"{name}_spread"] = median(values, 3), spread(values, 3)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.copy_on_write")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--checkpoints", type=int, default=3, help="in each job")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rest-s", type=float, default=10.0, help="between two; the thread must have ended")
    parser.add_argument("--json", metavar="FILE", help="write one JSON object a line")
    args = parser.parse_args()
    with MiniCluster(slots=1) as cluster:
        rows = measure(cluster, args.keys, args.checkpoints, args.rounds, args.rest_s)
    lines = [json.dumps(row) + "\n" for row in rows]
    print("".join(lines), end="")
    if args.json:
        with open(args.json, "w") as out:
            out.writelines(lines)


if __name__ == "__main__":
    main()
