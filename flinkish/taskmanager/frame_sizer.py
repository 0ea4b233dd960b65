"""How many records go into one frame, so that a frame stays near a size in bytes.

Memory in flight is credits x frame size, so the size has to be bounded in bytes although
credits count frames.  The size of a record is learned in two ways: from the payloads of the
last frames, and before there is one (or where a channel never pickles, inside a slot) from a
shallow look at one record a turn.  It rises at once and falls slowly.
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import Any

FRAME_BYTES = 256 * 1024
FIRST_RECORDS = 64  # until a record has been seen
COLUMN_ROWS_MAX = 64 * 1024
COLUMN_FRAME_BYTES = 1024 * 1024  # operators on columns pay for each batch: W4 with 256 kB has half the rate


class FrameSizer:
    """Shared by the channels of one writer: their records are alike.

    ``records``: rows at which an open buffer counts as full.  ``rows``: the same for column
    batches.

    >>> sizer = FrameSizer(max_records=1024)
    >>> sizer.observe(frame_bytes=1_024_000, records=100); sizer.records
    25
    """

    __slots__ = ("max_records", "records", "rows", "_record_bytes", "_row_bytes")

    def __init__(self, max_records: int):
        assert max_records >= 1, max_records
        self.max_records = max_records
        self.records = min(FIRST_RECORDS, max_records)
        self.rows = COLUMN_ROWS_MAX // 16
        self._record_bytes = 0.0
        self._row_bytes = 0.0

    def observe(self, frame_bytes: int, records: int) -> None:
        """A frame of ``records`` rows took ``frame_bytes``."""
        measured = frame_bytes / records
        known = self._record_bytes
        self._record_bytes = measured if measured > known else 0.75 * known + 0.25 * measured
        self._resize()

    def sample(self, value: Any) -> None:
        """A record as it lies in an open buffer; counts only when it looks larger than is known."""
        looks = estimate_bytes(value)
        # A tuple of four small fields takes 250 bytes as objects and 30 pickled: beside a measured
        # size only what no way of counting explains says something new.
        if not self._record_bytes or looks > 16 * self._record_bytes + 4096:
            self._record_bytes = looks / 4 if looks < 4096 else float(looks)
            self._resize()

    def observe_columns(self, batch_bytes: int, rows: int) -> None:
        """A column batch of ``rows`` took ``batch_bytes``."""
        measured = max(1.0, batch_bytes / rows)
        known = self._row_bytes
        self._row_bytes = measured if measured > known else 0.75 * known + 0.25 * measured
        self.rows = max(1, min(COLUMN_ROWS_MAX, int(COLUMN_FRAME_BYTES / self._row_bytes)))

    def _resize(self) -> None:
        per_frame = (
            int(FRAME_BYTES / self._record_bytes) if self._record_bytes else self.max_records
        )
        self.records = max(1, min(self.max_records, per_frame))


def estimate_bytes(value: Any) -> int:
    """Size of ``value`` in memory, looking one level deep, at most 16 elements; about 1
    microsecond."""
    size = sys.getsizeof(value, 64)
    kind = type(value)
    if kind in (int, str, bytes, float, bool):
        return size
    if isinstance(value, dict):
        elements: Any = value.values()
    elif isinstance(value, (tuple, list, set, frozenset)):
        elements = value
    else:
        elements = getattr(value, "__dict__", None)
        if not elements:
            return size
        elements = elements.values()
    count = len(elements)
    looked = sum(sys.getsizeof(element, 64) for element in islice(elements, 16))
    return size + (looked if count <= 16 else looked * count // 16)
