"""The command ``python -m tests.simulation --seeds N [--first-seed M] [--world NAME] [--processes P]``.

Every world from N seeds: exit 0 and a count, or 1 and the first seed that fails with its story, the same one for any
number of processes.  How far it is, and how long it will take, is told on standard error: all worlds advance together,
so that the estimate is right from the first minute on.  A run that was broken off goes on with --first-seed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from typing import Iterable, Iterator, NamedTuple, Optional, Sequence

from tests.simulation.worlds import WORLDS, first_failure

SEEDS_AT_A_TIME = 20
_TOLD_EVERY_S = 30.0
INTERRUPTED = 130


class Task(NamedTuple):
    world: str
    first_seed: int
    seeds: int


class Done(NamedTuple):
    task: Task
    seconds: float
    failure: Optional[tuple[int, str]]


def tasks_of(worlds: Sequence[str], first_seed: int, seeds: int) -> list[Task]:
    """Few seeds of each world, then the next few."""
    end = first_seed + seeds
    return [
        Task(world, first, min(SEEDS_AT_A_TIME, end - first))
        for first in range(first_seed, end, SEEDS_AT_A_TIME)
        for world in worlds
    ]


def run(task: Task) -> Done:
    begun = time.monotonic()
    failure = first_failure(WORLDS[task.world], range(task.first_seed, task.first_seed + task.seeds))
    return Done(task, time.monotonic() - begun, failure)


class Progress:
    """One line that is written again and again on a terminal, else one every half minute."""

    def __init__(self, worlds: int, seeds: int) -> None:
        self._worlds, self._seeds = worlds, seeds
        self._done = 0
        self._begun_s = time.monotonic()
        self._told_s = self._begun_s
        self._again = sys.stderr.isatty()

    def add(self, task: Task) -> None:
        self._done += task.seeds
        now_s = time.monotonic()
        if now_s - self._told_s >= (1.0 if self._again else _TOLD_EVERY_S):
            self._told_s = now_s
            end = "\r" if self._again else "\n"
            print(self.text(now_s - self._begun_s).ljust(79), end=end, file=sys.stderr, flush=True)

    def text(self, seconds: float) -> str:
        """``seconds``: since the begin."""
        left_s = seconds / self._done * (self._worlds * self._seeds - self._done)
        each_ms = 1_000 * seconds / self._done * self._worlds
        return (
            f"{self._done // self._worlds:,} of {self._seeds:,} seeds, {each_ms:.0f} ms each, "
            f"{_duration(seconds)} gone, about {_duration(left_s)} left"
        )


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def _leave_interrupts_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def in_order(tasks: Iterable[Task], processes: int) -> Iterator[Done]:
    if processes == 1:
        yield from map(run, tasks)
        return
    # Fresh interpreters: the process that runs the tests may have threads.
    with multiprocessing.get_context("spawn").Pool(processes, _leave_interrupts_to_parent) as pool:
        yield from pool.imap(run, tasks)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=2_000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--world", choices=sorted(WORLDS), action="append", help="default: all")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: one a core")
    options = parser.parse_args(arguments)
    worlds = options.world or sorted(WORLDS)
    tasks = tasks_of(worlds, options.first_seed, options.seeds)
    progress = Progress(len(worlds), options.seeds)
    seconds: Counter[str] = Counter()
    try:
        for done in in_order(tasks, max(1, min(options.processes, len(tasks)))):
            name = done.task.world
            seconds[name] += done.seconds  # type: ignore[assignment]
            if done.failure is not None:
                seed, story = done.failure
                print(story)
                print(f"{name}: seed {seed} failed; again with --world {name} --first-seed {seed} --seeds 1")
                return 1
            progress.add(done.task)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    for name in worlds:
        print(f"{name}: {options.seeds} seeds, {seconds[name]:.1f} s")
    return 0
