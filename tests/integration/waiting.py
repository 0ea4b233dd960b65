"""Waiting for what another process or thread does."""

from __future__ import annotations

import time


def wait_until(condition, what, timeout_s=60):
    """The first true value of ``condition``; fails after ``timeout_s`` with what was awaited."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, f"{what}: not within {timeout_s} s"
        time.sleep(0.05)
    return found
