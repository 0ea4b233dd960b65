"""Windows over columns in slots: the results of rows, over keyed exchanges, savepoints and the other backend."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.connectors.split_assignment import PinnedSplitSource, RangeSplit
from flinkish.connectors.spi import InputStatus, SourceReader
from flinkish.datastream.window import SlidingEventTimeWindows, TumblingEventTimeWindows
from tests.integration.waiting import wait_until

ROWS, BATCH = 6_000, 500
CASES = ("k", "hashmap", True), ("k", "rocksdb", False), (lambda row: row["k"], "hashmap", False)
AGGREGATES = {"total": ("v", "sum"), "n": "count", "least": ("v", "min"), "mean": ("v", "avg")}


def table():
    rng = np.random.default_rng(5)
    keys = [f"key {number}" if number else None for number in rng.integers(0, 300, ROWS)]
    values = pa.array(rng.integers(-50, 50, ROWS), mask=rng.random(ROWS) < 0.1)
    return pa.record_batch({"k": keys, "v": values, "ts": np.arange(ROWS) - rng.integers(0, 40, ROWS)})


class Columns(PinnedSplitSource):
    """Column batches; the first half, then as long as ``hold`` nothing more."""

    gives_columns = True

    def __init__(self, told, hold=False):
        self.told, self.hold = told, hold

    def splits(self, parallelism):
        return [RangeSplit(0, ROWS, 0)]

    def create_reader(self, context):
        return ColumnsReader(self, context)


class ColumnsReader(SourceReader):
    poll_interval_ms = 1

    def __init__(self, source, context):
        self.source, self.context = source, context
        self.split, self.no_more = None, False
        self.table = table()

    def start(self):
        if self.split is None:
            self.context.send_split_request()

    def add_splits(self, splits):
        (self.split,) = splits

    def notify_no_more_splits(self):
        self.no_more = True

    def snapshot_state(self, checkpoint_id):
        return [] if self.split is None else [self.split]

    def poll_next(self, output):
        if self.split is None:
            return InputStatus.END_OF_INPUT if self.no_more else InputStatus.NOTHING_AVAILABLE
        at = self.split.position
        if at == ROWS // 2 and self.source.hold:
            self.source.told.touch()
            return InputStatus.NOTHING_AVAILABLE
        output.collect_columns(self.table.slice(at, BATCH))
        self.split = replace(self.split, position=at + BATCH)
        return InputStatus.MORE_AVAILABLE if at + BATCH < ROWS else InputStatus.END_OF_INPUT


def expected(assigner):
    """By key and window, in plain Python."""
    found: dict = {}
    slide = getattr(assigner, "slide_ms", assigner.size_ms)
    for row in table().to_pylist():
        start = row["ts"] - row["ts"] % slide
        while start > row["ts"] - assigner.size_ms:
            found.setdefault((row["k"], start, start + assigner.size_ms), []).append(row["v"])
            start -= slide
    results = []
    for window, values in found.items():
        known = [value for value in values if value is not None]
        total, least = (sum(known), min(known)) if known else (None, None)
        results.append((*window, total, len(values), least, total / len(known) if known else None))
    return sorted(results, key=repr)


def windows(env, source, assigner, key):
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(40).with_timestamp_assigner("ts")
    keyed = env.from_source(source, strategy, "columns").uid("columns").key_by(key)
    return keyed.window(assigner).aggregate_fields(**AGGREGATES).uid("windows")


def on_columns(stream):
    env = stream.get_execution_environment()
    return [node.operator.on_columns for node in env.get_stream_graph().nodes.values() if node.uid == "windows"]


@pytest.mark.parametrize(
    "assigner", [TumblingEventTimeWindows.of(700), SlidingEventTimeWindows.of(900, 400)], ids=["tumbling", "sliding"]
)
def test_columns_give_what_rows_give(cluster, tmp_path, assigner):
    for key, backend, columns in CASES:
        env = cluster.get_execution_environment({"state.backend.type": backend})
        env.set_parallelism(2)
        stream = windows(env, Columns(tmp_path / "told"), assigner, key)
        with stream.execute_and_collect() as results:
            found = sorted((tuple(row) for row in results), key=repr)
        assert found == expected(assigner), backend
        assert on_columns(windows(env, Columns(tmp_path / "told"), assigner, key)) == [columns]


@pytest.mark.parametrize("backends", [("hashmap", "rocksdb"), ("rocksdb", "hashmap"), ("hashmap", "hashmap")], ids="-".join)
def test_a_savepoint_of_columns_goes_on_as_rows_and_the_other_way_round(cluster, tmp_path, backends):
    assigner = TumblingEventTimeWindows.of(700)
    first, second = (cluster.get_execution_environment({"state.backend.type": backend}) for backend in backends)
    first.set_parallelism(1), second.set_parallelism(2)
    stream = windows(first, Columns(tmp_path / "told", hold=True), assigner, "k")
    results = stream.collect_async()
    client = first.execute_async("before")
    wait_until((tmp_path / "told").exists, "half of the rows")
    location = client.stop_with_savepoint(False, str(tmp_path / "savepoints")).result(30_000)
    before = list(map(tuple, results))
    second.configure({"execution.state-recovery.path": location})
    with windows(second, Columns(tmp_path / "told"), assigner, "k").execute_and_collect() as results:
        after = list(map(tuple, results))
    assert after  # and before, if a watermark came in time
    assert sorted(before + after, key=repr) == expected(assigner)
