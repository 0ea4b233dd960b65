"""Jobs with their state on the heap and a changelog: failures, rescaling, the other backend, what is stored."""

import os
import signal
import time

import pytest

from flinkish.datastream.functions import KeyedProcessFunction, MapFunction
from flinkish.datastream.state import ValueStateDescriptor
from flinkish.errors import UserFunctionError
from flinkish.testing.mini_cluster import MiniCluster

KEYS, BUSY, ROUNDS = 3_000, 50, 400
PADDING = "x" * 1_500  # so that the changes of the busy keys are more than fits into a message
CHANGELOG = {"state.backend.type": "hashmap", "state.changelog.enabled": "true"}
KEPT = {
    "restart-strategy.type": "none",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "execution.state-recovery.path": "latest",
    "pipeline.max-parallelism": "64",
}


def key_of(record):
    """All keys, then the busy ones ``ROUNDS`` times, then all again."""
    if record < KEYS:
        return record
    record -= KEYS
    return record % BUSY if record < BUSY * ROUNDS else record - BUSY * ROUNDS


class Pace(MapFunction):
    """Slow until the job has failed, so that checkpoints come meanwhile; very slow once half of the records are through."""

    def __init__(self, folder, fault):
        self.folder, self.fault = folder, fault

    def map(self, record):
        if self.fault and record % 100 == 0 and not (self.folder / "failed").exists():
            time.sleep(0.01 if record < KEYS + ROUNDS * BUSY // 2 else 0.3)
        return record


class Count(KeyedProcessFunction):
    """Emits a key that has come for the last time; fails once, when a checkpoint with changes behind a base is complete."""

    def __init__(self, folder, fault):
        self.folder, self.fault = folder, fault

    def open(self, context):
        self.subtasks = context.get_number_of_parallel_subtasks()
        self.count = context.get_state(ValueStateDescriptor("count"))

    def process_element(self, record, ctx):
        if self.fault and record % 101 == 0 and not (self.folder / "failed").exists():
            if any(read(path).count(b"/shared/") > self.subtasks for path in metadata(self.folder)):
                (self.folder / "failed").touch()
                if self.fault == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError("once")
        count = (self.count.value() or (0, ""))[0] + 1
        self.count.update((count, PADDING))
        key = ctx.get_current_key()
        if count == (2 + ROUNDS if key < BUSY else 2):
            yield key


def metadata(folder):
    return list(folder.glob("checkpoints/*/chk-*/_metadata"))


def read(path):
    try:
        return path.read_bytes()
    except FileNotFoundError:  # a newer one is complete
        return b""


def counting(cluster, folder, settings, parallelism=2, fault=None):
    env = cluster.get_execution_environment(
        {
            "execution.checkpointing.interval": "50 ms",
            "execution.checkpointing.dir": str(folder / "checkpoints"),
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.delay": "0 ms",
            **settings,
        }
    )
    env.set_parallelism(parallelism)
    records = env.from_sequence(0, 2 * KEYS + BUSY * ROUNDS - 1).set_parallelism(1)
    records = records.map(Pace(folder, fault)).set_parallelism(1)
    counts = records.key_by(key_of).process(Count(folder, fault)).uid("count")
    return counts.execute_and_collect()


def test_after_a_killed_slot_checkpoints_bring_every_count_back_and_files_go_with_the_job(tmp_path):
    with MiniCluster(slots=2) as cluster, counting(cluster, tmp_path, CHANGELOG, fault="kill") as found:
        assert sorted(found) == list(range(KEYS))
    assert (tmp_path / "failed").exists() and not list(tmp_path.glob("checkpoints/*/*"))


def test_a_job_goes_on_from_base_and_changes_with_another_parallelism_and_in_rocksdb(tmp_path):
    with MiniCluster(slots=3) as cluster:
        for parallelism in (1, 3):
            failing = counting(cluster, tmp_path, {**KEPT, **CHANGELOG}, parallelism, "raise")
            with pytest.raises(UserFunctionError, match="once"), failing as found:
                assert list(found) == [], "it failed before the last records"
            (tmp_path / "failed").unlink()
        with counting(cluster, tmp_path, {**KEPT, "state.backend.type": "rocksdb"}) as found:
            assert sorted(found) == list(range(KEYS))
