"""Numbers, counted by key and published with each checkpoint: ``KEY COUNT NUMBER`` a line.

Each number is there once, and the counts of a key are 1, 2, 3 ..., unless something is lost or comes twice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Iterable

from flinkish.common import WatermarkStrategy
from flinkish.common.typeinfo import Types
from flinkish.connectors.files import FileSink
from flinkish.connectors.files.file_sink import PendingFile
from flinkish.connectors.files.part_writer import row_format
from flinkish.connectors.spi import CommitId, Committer, SourceReader, SourceReaderContext, SourceSplit
from flinkish.connectors.split_assignment import PinnedSplitSource, SequentialSplitReader
from flinkish.datastream import StreamExecutionEnvironment
from flinkish.datastream.functions import CheckpointedFunction, KeyedProcessFunction, MapFunction
from flinkish.datastream.state import ValueStateDescriptor
from tests.soak.stops import Stops

NAME = "kill soak"
SPLITS = 2
KEYS = 50
PAUSE_S = 0.001  # of the counting, so that there are records on their way


def key_of(number: int) -> int:
    return number // SPLITS % KEYS


@dataclass(frozen=True)
class Limit:
    """Of the numbers of each split: how many may be read by now, and whether that is all.  Grows while the job runs, so
    its end is where the soak says, and still each run of a reader reads the same numbers."""

    count: int
    is_end: bool = False

    def write(self, folder: Path) -> None:
        hidden = folder / ".limit"
        hidden.write_text(f"{self.count} {int(self.is_end)}")
        hidden.rename(folder / "limit")

    @staticmethod
    def read(folder: str) -> "Limit":
        count, is_end = Path(folder, "limit").read_text().split()
        return Limit(int(count), is_end == "1")


@dataclass(frozen=True)
class SoakSplit(SourceSplit):
    """Every ``SPLITS``-th number from ``index`` on; ``position`` of them have been read."""

    index: int
    position: int

    def split_id(self) -> str:
        return str(self.index)


class SoakSource(PinnedSplitSource[int, SoakSplit]):
    def __init__(self, folder: str):
        self.folder = folder

    def splits(self, parallelism: int) -> list[SoakSplit]:
        return [SoakSplit(index, 0) for index in range(SPLITS)]

    def create_reader(self, context: SourceReaderContext) -> SourceReader[int, SoakSplit]:
        return _SoakReader(context, self.folder)


class _SoakReader(SequentialSplitReader[int, SoakSplit]):
    def __init__(self, context: SourceReaderContext, folder: str):
        super().__init__(context)
        self._folder = folder
        self._limit = Limit(0)
        self._next = 0

    def open_split(self, split: SoakSplit) -> None:
        self._next = split.position

    def read(self, output: Any, room: int) -> bool:
        if self._next >= self._limit.count:
            self._limit = Limit.read(self._folder)
            if self._next >= self._limit.count:
                time.sleep(PAUSE_S)  # the limit rises with what is published: the cores are for that
                return not self._limit.is_end
        end = min(self._next + room, self._limit.count)
        first = self.position()
        output.collect_batch([position * SPLITS + first.index for position in range(first.position, end)])
        self._next = end
        return True

    def position(self) -> SoakSplit:
        assert self._current is not None
        return replace(self._current, position=self._next)


class PassOn(MapFunction, CheckpointedFunction):
    """Changes nothing; stops at records."""

    def __init__(self, stops: Stops):
        self.stops = stops

    def initialize_state(self, context):
        self.restored = context.is_restored()

    def snapshot_state(self, context):
        """There is nothing of it to keep."""

    def open(self, runtime_context):
        self.attempt = runtime_context.get_attempt_number()
        self.stops.deployed(self.attempt)
        if self.restored:
            self.stops.pass_by("restore", self.attempt)

    def map(self, value):
        self.stops.pass_by("running", self.attempt)
        return value


class Count(KeyedProcessFunction, CheckpointedFunction):
    """(key, count, number); stops in snapshots, and when it is restored."""

    def __init__(self, stops: Stops):
        self.stops = stops

    def initialize_state(self, context):
        self.restored = context.is_restored()

    def snapshot_state(self, context):
        self.stops.pass_by("snapshot", self.attempt, context.get_checkpoint_id())

    def open(self, runtime_context):
        self.attempt = runtime_context.get_attempt_number()
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.stops.deployed(self.attempt)
        if self.restored:
            self.stops.pass_by("restore", self.attempt)

    def process_element(self, value, ctx):
        time.sleep(PAUSE_S)
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield ctx.get_current_key(), count, value


class SoakSink(FileSink):
    """Files, whose committer stops before it publishes, and between two files of a checkpoint."""

    def __init__(self, folder: Path, stops: Stops):
        super().__init__(folder / "out", row_format(lambda found: " ".join(map(str, found))))
        self.stops = stops

    def create_committer(self) -> Committer:
        return _StoppingCommitter(super().create_committer(), self.stops)


class _StoppingCommitter(Committer):
    def __init__(self, committer: Committer, stops: Stops):
        self._committer, self._stops = committer, stops

    def commit(self, committables: Iterable[PendingFile]) -> None:
        self._committer.commit(committables)

    def commit_checkpoint(self, committables: Iterable[PendingFile], commit_id: CommitId) -> None:
        files = list(committables)
        self._stops.pass_by("before-commit", None, commit_id.checkpoint_id)
        if len(files) > 1:
            self._committer.commit_checkpoint(files[:1], commit_id)
            self._stops.pass_by("commit", None, commit_id.checkpoint_id)
        self._committer.commit_checkpoint(files, commit_id)

    def job_finished(self) -> None:
        self._committer.job_finished()

    def abort(self, committables: Iterable[PendingFile]) -> None:
        self._committer.abort(committables)

    def remove_leftovers(self, kept: Iterable[PendingFile]) -> None:
        self._committer.remove_leftovers(kept)

    def close(self) -> None:
        self._committer.close()


def build(env: StreamExecutionEnvironment, folder: Path, stops: Stops) -> None:
    source = SoakSource(str(folder))
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    counts = numbers.map(PassOn(stops)).uid("pass on").key_by(key_of).process(Count(stops)).uid("counts")
    counts.sink_to(SoakSink(folder, stops)).uid("files")
