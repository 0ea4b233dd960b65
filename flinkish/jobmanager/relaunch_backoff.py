"""How soon what carries slots (a supervisor, or a launch of all of them) is launched again when it has ended.

What has lived for ``YOUNG_MS`` since it registered, and what ended for the first time, is launched again at
once.  One that dies young again and again waits longer each time, and is given up after ``DEATHS_MAX`` in a row:
something there kills it, and who waits for slots should know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

YOUNG_MS = 5_000
DEATHS_MAX = 10
FIRST_DELAY_MS = 200
DELAY_MS_MAX = 10_000


@dataclass
class RelaunchBackoff:
    deaths: int = 0  # in a row, each of them young
    registered_ms: Optional[int] = None

    def registered(self, now_ms: int) -> None:
        self.registered_ms = now_ms

    def ended(self, now_ms: int) -> Optional[int]:
        """It has ended.  Milliseconds until it is launched again; None: it is given up, and counting begins anew.

        >>> backoff = RelaunchBackoff()
        >>> [backoff.ended(0) for _ in range(4)]
        [0, 200, 400, 800]
        """
        since_ms, self.registered_ms = self.registered_ms, None
        if since_ms is not None and now_ms - since_ms >= YOUNG_MS:
            self.deaths = 0
        self.deaths += 1
        if self.deaths > DEATHS_MAX:
            self.deaths = 0
            return None
        return 0 if self.deaths == 1 else min(FIRST_DELAY_MS << (self.deaths - 2), DELAY_MS_MAX)
