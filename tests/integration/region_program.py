"""A job whose subtasks exchange nothing, and whose result tells which of them were opened again.

Each record leaves as ``subtask record count attempt pid``, where ``count`` is how many records its function has seen since
it was opened: kept in memory only, so it goes on in a task that a failure elsewhere has left alone, and begins anew in
one that has restarted.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

from flinkish.common import Types
from flinkish.connectors.files import FileSink
from flinkish.datastream import KeyedProcessFunction, MapFunction, StreamExecutionEnvironment
from flinkish.datastream.state import ValueStateDescriptor

PARALLELISM = 3
KEYS = 7
FAULT_WITHIN = 190


class Counting(MapFunction):
    """``faults``: record -> "raise" or "kill-slot", once, at this record of its subtask or, ``after_a_checkpoint``, at the
    first one behind it when something has been published."""

    def __init__(self, folder: Path, name: str, faults: dict[int, str], after_a_checkpoint: bool, pause_s: float):
        self.folder, self.name, self.pause_s = str(folder), name, pause_s
        self.faults, self.after_a_checkpoint = faults, after_a_checkpoint

    def open(self, context):
        self.subtask = context.get_index_of_this_subtask()
        self.attempt, self.count = context.get_attempt_number(), 0
        with open(f"{self.folder}/opened-{self.name}-{self.subtask}", "a") as file:
            file.write(f"{self.attempt} {os.getpid()}\n")

    def map(self, value):
        time.sleep(self.pause_s)
        self._fail_if_due(value)
        self.count += 1
        return f"{self.subtask} {value} {self.count} {self.attempt} {os.getpid()}"

    def _fail_if_due(self, value):
        for record, kind in self.faults.items():
            late = self.after_a_checkpoint and 0 < value - record < FAULT_WITHIN
            if not late and value != record:
                continue
            if self.after_a_checkpoint and not self._has_published():
                time.sleep(0.01)  # so that there is one before the records are over
                continue
            try:
                os.close(os.open(f"{self.folder}/happened-{self.name}-{record}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            if kind == "kill-slot":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError(f"record {value} is bad, once")

    def _has_published(self):
        return any(name.startswith("part-") for name in os.listdir(f"{self.folder}/out-{self.name}"))


class Numbering(KeyedProcessFunction):
    """Adds how many records of its key have come."""

    def open(self, context):
        self.seen = context.get_state(ValueStateDescriptor("seen", Types.LONG()))

    def process_element(self, value, context):
        seen = (self.seen.value() or 0) + 1
        self.seen.update(seen)
        yield f"{value} {seen}"


def build(
    env: StreamExecutionEnvironment,
    folder: Path,
    records: int,
    faults: dict[int, str],
    name: str = "a",
    after_a_checkpoint: bool = False,
    pause_s: float = 0.002,
    keyed: bool = False,
) -> None:
    """Three forward chains of two tasks each; subtask i reads the i-th third of 1 .. ``records``.  ``keyed``: a shuffle
    instead, which makes it one region, and a number behind each record: the how manieth of its key it is."""
    counting = Counting(folder, name, faults, after_a_checkpoint, pause_s)
    stream = env.from_sequence(1, records).uid(f"numbers {name}").map(counting).uid(f"counting {name}")
    if keyed:
        written = stream.key_by(key_of).process(Numbering()).uid(f"text {name}")
    else:
        written = stream.map(str).start_new_chain().uid(f"text {name}")
    written.sink_to(FileSink.for_row_format(folder / f"out-{name}", str).build()).uid(f"files {name}")


def key_of(line: str) -> int:
    return int(line.split()[1]) % KEYS


def opened(folder: Path, name="a") -> dict[int, list[tuple[int, int]]]:
    """Subtask -> (attempt, pid) of each time that its function was opened."""
    found = {}
    for path in sorted(folder.glob(f"opened-{name}-*")):
        lines = path.read_text().splitlines()
        found[int(path.name.rpartition("-")[2])] = [tuple(map(int, line.split())) for line in lines]
    return found


def published(folder: Path, name="a") -> list[tuple[int, ...]]:
    """(subtask, record, count, attempt, pid), and the number of a keyed one, by record."""
    found = []
    for path in (folder / f"out-{name}").glob("part-*"):
        found += [tuple(map(int, line.split())) for line in path.read_text().splitlines()]
    return sorted(found, key=lambda line: line[1])


def check_exact(folder: Path, records: int, name="a") -> None:
    """Each record was published once, and nothing else is left in the folder."""
    counts = Counter(record for _, record, *_ in published(folder, name))
    assert counts == Counter(range(1, records + 1))
    assert [path.name for path in (folder / f"out-{name}").iterdir() if path.name.startswith(".")] == []


def check_left_alone(folder: Path, subtask: int, name="a") -> None:
    """Its function was opened once, and has counted all of its records without a gap."""
    (once,) = opened(folder, name)[subtask]
    lines = [line for line in published(folder, name) if line[0] == subtask]
    assert [line[2] for line in lines] == list(range(1, len(lines) + 1))
    assert {line[3:5] for line in lines} == {once}


def check_numbers(folder: Path, name="a") -> None:
    """Of each key: 1, 2, 3 ..."""
    numbers: dict[int, list[int]] = {}
    for _, record, *_, number in published(folder, name):
        numbers.setdefault(record % KEYS, []).append(number)
    assert {key: sorted(found) for key, found in numbers.items()} == {
        key: list(range(1, len(found) + 1)) for key, found in numbers.items()
    }
