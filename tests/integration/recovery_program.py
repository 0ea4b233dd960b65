"""A job that counts, and whose result tells each record that was lost or counted twice.

    python -m tests.integration.recovery_program FOLDER [KEY=VALUE]...

Writes ``key count`` for each record below ``FOLDER/out``: counts of a key are 1, 2, 3 ... when every record is
counted once and every result published once.  The faults that the caller wants happen once each, at a record:
``FOLDER/faults`` says which.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Mapping, Optional

from flinkish.common import Configuration
from flinkish.connectors.files import FileSink
from flinkish.datastream import StreamExecutionEnvironment

RECORDS = 2_000
KEYS = 7


class Faulty:
    """Passes records on, slowly, and has the faults that ``FOLDER/faults`` names: ``RECORD KIND`` a line."""

    def __init__(self, folder: Path, pause_s: float = 0.001):
        self.folder, self.pause_s = str(folder), pause_s
        lines = (folder / "faults").read_text().splitlines() if (folder / "faults").exists() else []
        self.faults = {int(record): kind for record, kind in (line.split() for line in lines)}

    def __call__(self, record: int) -> int:
        time.sleep(self.pause_s)
        kind = self.faults.get(record)
        if kind is not None and self._first_time(record):
            if kind == "kill-slot":
                os.kill(os.getpid(), signal.SIGKILL)
            while kind == "hang":
                time.sleep(0.1)
            raise ValueError(f"record {record} is bad, once")
        return record

    def _first_time(self, record: int) -> bool:
        try:
            os.close(os.open(f"{self.folder}/happened-{record}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def build(
    env: StreamExecutionEnvironment,
    folder: Path,
    records: int = RECORDS,
    pause_s: float = 0.001,
    passing: Optional[Callable[[int], int]] = None,
) -> None:
    """The job, with a uid for each operator that has state.  ``passing``: instead of Faulty."""
    counts = (
        env.from_sequence(1, records)
        .uid("numbers")
        .map(passing or Faulty(folder, pause_s))
        .uid("faulty")
        .map(lambda record: (record % KEYS, 1))
        .key_by(lambda pair: pair[0])
        .reduce(lambda one, other: (one[0], one[1] + other[1]))
        .uid("counts")
    )
    sink = FileSink.for_row_format(str(folder / "out"), lambda pair: f"{pair[0]} {pair[1]}").build()
    counts.sink_to(sink).uid("files")


def published(folder: Path) -> Counter:
    """(key, count) -> how often."""
    lines: Counter = Counter()
    for file in sorted((folder / "out").glob("part-*")):
        lines.update(tuple(map(int, line.split())) for line in file.read_text().splitlines())
    return lines


def counted_without_gap(folder: Path) -> dict[int, int]:
    """Key -> how many of its records were counted, of a job that was stopped somewhere.  Which records it has read is not
    known, but each count of a key must be there once, up to the highest."""
    counts: dict[int, list[int]] = {}
    for (key, count), times in published(folder).items():
        assert times == 1, f"count {count} of key {key} was published {times} times"
        counts.setdefault(key, []).append(count)
    for key, found in counts.items():
        assert sorted(found) == list(range(1, len(found) + 1)), f"key {key} has a gap"
    return {key: len(found) for key, found in counts.items()}


def expected(records: int = RECORDS) -> Counter:
    per_key = Counter(record % KEYS for record in range(1, records + 1))
    return Counter({(key, n): 1 for key, total in per_key.items() for n in range(1, total + 1)})


def main(folder: str, settings: Mapping[str, Any]) -> None:
    configuration = Configuration({"execution.target": "mini-cluster", "parallelism.default": 2, **settings})
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    build(env, Path(folder))
    env.execute("recovery")


if __name__ == "__main__":
    main(sys.argv[1], dict(argument.split("=", 1) for argument in sys.argv[2:]))
