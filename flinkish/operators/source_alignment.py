"""A reader's side of watermark alignment: it reports how far it has got, and stops where it may not go on.

States of a reader, and of each of its splits where it has several::

    reading --its watermark passes the limit--> paused --the limit reaches its watermark--> reading

A paused reader is not polled.  Events of its coordinator and barriers come as ever, and it does not become idle.
A single split is paused with its reader; one of several by ``SourceReader.pause_or_resume_splits``, between two polls,
also while the reader's own watermark, the least of its splits, is far behind.

The limit comes from the JobManager (``jobmanager.watermark_alignment``).  Until it has come a restored reader does not
get further than it was, while others that restart with it have not said how far they are; a new one reads on.

Source: Flink's ``SourceOperator`` (FLIP-182, FLIP-217).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flinkish.common import options
from flinkish.common.watermark_strategy import WatermarkAlignment
from flinkish.connectors.spi import SourceReader
from flinkish.errors import InvalidJobError
from flinkish.messages.control import SourceReportedWatermark
from flinkish.messages.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS

if TYPE_CHECKING:
    from flinkish.operators.source import SourceOperator


class SourceAlignment:
    """Of one reader; called by its SourceOperator."""

    def __init__(self, source: "SourceOperator", alignment: WatermarkAlignment):
        self._source = source
        self._interval_ms = alignment.update_interval_ms
        self._allow_unaligned = options.read(
            source.environment.configuration, options.ALLOW_UNALIGNED_SOURCE_SPLITS
        )
        self._reported = MIN_WATERMARK_MS
        self.max_watermark = MAX_WATERMARK_MS
        self.next_report_ms = source.environment.now_ms() + self._interval_ms
        #: Splits that the reader has been told to pause.
        self.paused_splits: set[str] = set()

    @property
    def is_paused(self) -> bool:
        """Whether the reader as a whole waits for the others."""
        return self._source.emitted > self.max_watermark

    @property
    def drift_ms(self) -> int:
        """How far ahead of what it may the reader is; below 0: so far it may go on.  0 until a limit has come."""
        if self.max_watermark == MAX_WATERMARK_MS or self._source.emitted == MIN_WATERMARK_MS:
            return 0
        return self._source.emitted - self.max_watermark

    def report(self, now_ms: int) -> None:
        """Tell the JobManager, once an interval, when there is news."""
        if now_ms < self.next_report_ms:
            return
        self.next_report_ms = now_ms + self._interval_ms
        self._tell(MAX_WATERMARK_MS if self._source.idle else self._source.emitted)

    def at_end(self) -> None:
        """Nothing more will be read: the others do not wait for this reader."""
        self._tell(MAX_WATERMARK_MS)

    def _tell(self, watermark: int) -> None:
        if watermark != self._reported:
            self._reported = watermark
            self._source.send(SourceReportedWatermark(watermark))

    def restored(self, watermark: int) -> None:
        """It goes on with splits, of which the furthest was there."""
        if watermark > MIN_WATERMARK_MS:
            self.max_watermark = watermark

    def allow(self, max_watermark: int) -> None:
        """The JobManager says how far it may get."""
        self.max_watermark = max_watermark
        self.check_splits()

    def check_splits(self) -> None:
        """Pause the splits that are ahead, let those go on that are not any more.

        Raises:
            InvalidJobError: the reader cannot do that, and the settings want it to."""
        parts, splits = self._source.combined.parts, self._source.split_outputs
        ahead: set[str] = set()
        if len(splits) > 1:
            ahead = {split for split in splits if parts[split][0] > self.max_watermark}
        if ahead == self.paused_splits:
            return
        # One that is gone is not resumed.
        resume = sorted(split for split in self.paused_splits - ahead if split in splits)
        pause, self.paused_splits = sorted(ahead - self.paused_splits), ahead
        reader = self._source.reader
        if type(reader).pause_or_resume_splits is SourceReader.pause_or_resume_splits:
            if not self._allow_unaligned:
                self._refuse(pause or resume)
        elif pause or resume:
            self._source.call(reader.pause_or_resume_splits, pause, resume, role="pause_or_resume_splits")

    def _refuse(self, splits: list[str]) -> None:
        raise InvalidJobError(
            f'could not align the splits of source "{self._source.name}"',
            where=f"subtask {self._source.environment.subtask_index + 1} of {self._source.environment.parallelism}",
            why=f"its reader has several splits, {', '.join(splits)} is ahead of the limit, and a "
            f"{type(self._source.reader).__name__} cannot pause single splits",
            do=f"set {options.ALLOW_UNALIGNED_SOURCE_SPLITS.key} to true, which aligns readers as a whole, raise the "
            "parallelism to one split a reader, or write pause_or_resume_splits in the reader",
        )

