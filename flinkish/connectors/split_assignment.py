"""The two ways in which bounded sources hand out splits that are known from the start, and none.

``PinnedSplitEnumerator`` gives split i to subtask i: the same records go to the same subtask in each
run.  ``OnDemandSplitEnumerator`` gives the next split to whoever asks: a slow reader gets fewer.
"""

from __future__ import annotations

import abc
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Generic, Optional, Sequence, TypeVar

from flinkish.connectors.spi import (
    Boundedness,
    InputStatus,
    ReaderOutput,
    Source,
    SourceReader,
    SourceReaderContext,
    SourceSplit,
    SplitEnumerator,
    SplitEnumeratorContext,
)

T = TypeVar("T")
SplitT = TypeVar("SplitT", bound=SourceSplit)


def index_ranges(count: int, parts: int) -> list[tuple[int, int]]:
    """Cut ``range(count)`` into ``parts`` neighbouring ranges whose sizes differ by one at most.

    >>> index_ranges(7, 3)
    [(0, 3), (3, 5), (5, 7)]
    """
    size, extra = divmod(count, parts)
    ranges, start = [], 0
    for part in range(parts):
        end = start + size + (1 if part < extra else 0)
        ranges.append((start, end))
        start = end
    return ranges


class PinnedSplitEnumerator(SplitEnumerator[SplitT]):
    """Split i belongs to subtask i modulo the parallelism; a reader gets all of its splits at its
    first request, so that each of them has its part in the reader's watermark from the start.

    ``snapshot_state`` returns the splits that no reader has; give them to a new one to restore.
    """

    def __init__(self, context: SplitEnumeratorContext[SplitT], splits: Sequence[SplitT]):
        self._context = context
        self._waiting: dict[int, list[SplitT]] = {}
        for index, split in enumerate(splits):
            self._waiting.setdefault(index % context.current_parallelism(), []).append(split)

    def handle_split_request(self, subtask_id: int, host: Optional[str]) -> None:
        for split in self._waiting.pop(subtask_id, []):
            self._context.assign_split(split, subtask_id)
        self._context.signal_no_more_splits(subtask_id)

    def add_splits_back(self, splits: Sequence[SplitT], subtask_id: int) -> None:
        self._waiting.setdefault(subtask_id, [])[:0] = splits

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return [split for subtask in sorted(self._waiting) for split in self._waiting[subtask]]


@dataclass(frozen=True)
class RangeSplit(SourceSplit):
    """A range of numbered records that has been read up to ``position``, which is the next one."""

    start: int
    end: int
    position: int

    def split_id(self) -> str:
        return f"{self.start}-{self.end}"


class PinnedSplitSource(Source[T, SplitT]):
    """A bounded source with a ``PinnedSplitEnumerator``.  A subclass writes ``splits``."""

    @abc.abstractmethod
    def splits(self, parallelism: int) -> Sequence[SplitT]:
        """The input, cut for so many readers."""

    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(self, context: SplitEnumeratorContext[SplitT]) -> SplitEnumerator[SplitT]:
        return PinnedSplitEnumerator(context, self.splits(context.current_parallelism()))

    def restore_enumerator(
        self, context: SplitEnumeratorContext[SplitT], state: Any
    ) -> SplitEnumerator[SplitT]:
        return PinnedSplitEnumerator(context, state)


class NoSplitEnumerator(SplitEnumerator[SplitT]):
    """For a source whose readers find their input themselves."""

    def handle_split_request(self, subtask_id: int, host: Optional[str]) -> None:
        """There is nothing to hand out."""


class OnDemandSplitEnumerator(SplitEnumerator[SplitT]):
    """The next split goes to the next reader that asks.

    Args:
        find_splits: finds the splits; may wait for a file system, so it runs on a worker thread.
        splits: those left over from before a restore, instead of ``find_splits``.
    """

    def __init__(
        self,
        context: SplitEnumeratorContext[SplitT],
        find_splits: Callable[[], Sequence[SplitT]],
        splits: Optional[Sequence[SplitT]] = None,
    ):
        self._context = context
        self._find_splits = find_splits
        self._waiting_splits: Optional[deque[SplitT]] = None if splits is None else deque(splits)
        self._waiting_readers: list[int] = []

    def start(self) -> None:
        if self._waiting_splits is None:
            self._context.call_async(self._find_splits, self._found)

    def _found(self, splits: Optional[Sequence[SplitT]], error: Optional[BaseException]) -> None:
        if error is not None:
            raise error  # fails the job
        returned = self._waiting_splits or ()
        self._waiting_splits = deque([*returned, *(splits or ())])
        readers, self._waiting_readers = self._waiting_readers, []
        for subtask_id in readers:
            if subtask_id in self._context.registered_readers():  # else it has failed meanwhile, and asks again
                self.handle_split_request(subtask_id, None)

    def handle_split_request(self, subtask_id: int, host: Optional[str]) -> None:
        if self._waiting_splits is None:
            if subtask_id not in self._waiting_readers:
                self._waiting_readers.append(subtask_id)
        elif self._waiting_splits:
            self._context.assign_split(self._waiting_splits.popleft(), subtask_id)
        else:
            self._context.signal_no_more_splits(subtask_id)

    def add_splits_back(self, splits: Sequence[SplitT], subtask_id: int) -> None:
        if self._waiting_splits is not None:
            self._waiting_splits.extendleft(reversed(splits))

    def snapshot_state(self, checkpoint_id: int) -> Any:
        """The splits that wait, or None while they are still being looked for."""
        return None if self._waiting_splits is None else list(self._waiting_splits)


class SequentialSplitReader(SourceReader[T, SplitT], Generic[T, SplitT]):
    """Reads its splits one after the other and asks for one more when it has none.

    A subclass writes ``open_split``, ``read``, ``position`` and ``close_split``.  Splits that wait
    hold the reader's watermark back, as they must: their records are still to come.
    """

    def __init__(self, context: SourceReaderContext):
        self._context = context
        self._waiting: deque[SplitT] = deque()
        self._outputs_missing = False
        self._current: Optional[SplitT] = None
        self._output: Any = None
        self._asked = False
        self._no_more_splits = False

    # -- written by the subclass ------------------------------------------------------------------

    def open_split(self, split: SplitT) -> None:
        """Get ready to read ``split`` from its position."""

    def read(self, output: Any, room: int) -> bool:
        """Give at most ``room`` records of the current split to ``output``.

        Returns:
            True while the split has more; False when it is finished.
        """
        raise NotImplementedError

    def position(self) -> SplitT:
        """The current split, positioned behind the last record that ``read`` gave."""
        raise NotImplementedError

    def close_split(self) -> None:
        """Release what ``open_split`` opened."""

    # -- called by the engine ---------------------------------------------------------------------

    def start(self) -> None:
        self._ask()

    def _ask(self) -> None:
        if not (self._waiting or self._current or self._asked or self._no_more_splits):
            self._asked = True
            self._context.send_split_request()

    def poll_next(self, output: ReaderOutput[T]) -> InputStatus:
        if self._outputs_missing:
            self._outputs_missing = False
            for split in self._waiting:
                output.create_output_for_split(split.split_id())
        if self._current is None:
            if not self._waiting:
                if self._no_more_splits:
                    return InputStatus.END_OF_INPUT
                self._ask()
                return InputStatus.NOTHING_AVAILABLE
            self._current = self._waiting.popleft()
            self.open_split(self._current)
            self._output = output.create_output_for_split(self._current.split_id())
        room = output.room
        if room > 0 and not self.read(self._output, room):
            self.close_split()
            output.release_output_for_split(self._current.split_id())
            self._current = self._output = None
            if not self._waiting:
                if self._no_more_splits:
                    return InputStatus.END_OF_INPUT
                self._ask()
                return InputStatus.NOTHING_AVAILABLE
        return InputStatus.MORE_AVAILABLE

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        self._asked = False
        self._outputs_missing = True
        self._waiting.extend(splits)

    def notify_no_more_splits(self) -> None:
        self._asked = False
        self._no_more_splits = True

    def snapshot_state(self, checkpoint_id: int) -> list[SplitT]:
        current = [] if self._current is None else [self.position()]
        return [*current, *self._waiting]

    def close(self) -> None:
        if self._current is not None:
            self.close_split()
            self._current = self._output = None
