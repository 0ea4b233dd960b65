"""Warnings about strangers at a port, in bounded number."""

from __future__ import annotations

import logging
import time
from typing import Any, Callable

log = logging.getLogger(__name__)

_DROPS_TOLD = 10
_DROPS_WINDOW_S = 60


class DropLog:
    """Says which peers a listener dropped, at most ``_DROPS_TOLD`` times in ``_DROPS_WINDOW_S``: a port scan
    must not fill the disk with our log."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic):
        self._clock_s = clock_s
        self._window_began_s = clock_s()
        self._count = 0

    def __call__(self, peer: Any, reason: str, level: int = logging.WARNING) -> None:
        now_s = self._clock_s()
        if now_s - self._window_began_s >= _DROPS_WINDOW_S:
            if self._count > _DROPS_TOLD:
                log.warning("more peers dropped count=%d", self._count - _DROPS_TOLD)
            self._window_began_s, self._count = now_s, 0
        self._count += 1
        if self._count <= _DROPS_TOLD:
            log.log(level, "peer dropped peer=%s reason=%r", peer, reason)
        if self._count == _DROPS_TOLD:
            log.warning("peers are dropped often, not all are told window_s=%d", _DROPS_WINDOW_S)
