"""How busy the machine is with work that is not ours: a noisy run is taken again."""

from __future__ import annotations

import os
import time

_TICKS = os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """CPU seconds of all cores since boot, idle and waiting left out."""
    with open("/proc/stat") as stat:
        fields = [int(field) for field in stat.readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / _TICKS


def tree_cpu_seconds(root: int) -> float:
    """CPU seconds of ``root`` and its living descendants, with what it has reaped."""
    parent, cpu = {}, {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended meanwhile
        parent[int(name)] = int(fields[1])
        cpu[int(name)] = sum(map(int, fields[11:15])) / _TICKS
    total = 0.0
    for pid in cpu:
        ancestor = pid
        while ancestor and ancestor != root:
            ancestor = parent.get(ancestor, 0)
        if ancestor:
            total += cpu[pid]
    return total


class ForeignLoad:
    """``with ForeignLoad() as load: ...; load.cores``: cores used by others meanwhile."""

    def __enter__(self) -> "ForeignLoad":
        self._start = time.monotonic()
        self._busy, self._own = busy_seconds(), tree_cpu_seconds(os.getpid())
        return self

    def __exit__(self, *exc) -> None:
        seconds = time.monotonic() - self._start
        others = busy_seconds() - self._busy - (tree_cpu_seconds(os.getpid()) - self._own)
        self.cores = max(0.0, others / seconds)


def wait_until_quiet(at_most_s: float, busy_cores: float = 0.35, sample_s: float = 0.25) -> None:
    """Until the machine uses less than ``busy_cores``, what ended just now included."""
    deadline = time.monotonic() + at_most_s
    while time.monotonic() < deadline:
        start, busy = time.monotonic(), busy_seconds()
        time.sleep(sample_s)
        if (busy_seconds() - busy) / (time.monotonic() - start) < busy_cores:
            return
