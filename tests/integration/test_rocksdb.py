"""Jobs with their state in RocksDB: incremental checkpoints, failures, rescaling, the other backend, nothing left."""

import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from flinkish.connectors.discarding import DiscardingSink
from flinkish.datastream.functions import KeyedProcessFunction
from flinkish.datastream.state import ValueStateDescriptor
from flinkish.errors import JobCancelledError, StateMigrationError, UserFunctionError
from flinkish.testing.mini_cluster import MiniCluster
from tests.integration.waiting import wait_until

KEYS, ROUNDS = 6_000, 8
PADDING = "x" * 1_000  # so that more than the caches take is written


class Count(KeyedProcessFunction):
    """Emits a key when it has come ``ROUNDS`` times; fails once, when an incremental checkpoint is complete."""

    def __init__(self, folder, fault):
        self.folder, self.fault = folder, fault

    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count"))

    def process_element(self, record, ctx):
        if self.fault and record % 499 == 0 and not (self.folder / "failed").exists():
            if snapshots(self.folder):
                (self.folder / "failed").touch()
                if self.fault == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError("once")
            time.sleep(0.05)  # the pace of the source: checkpoints come meanwhile
        count = (self.count.value() or (0, ""))[0] + 1
        self.count.update((count, PADDING))
        if count == ROUNDS:
            yield record % KEYS


def snapshots(folder):
    """Complete checkpoints that have files of RocksDB, or when the test wants full ones, files of their own."""
    complete = list(folder.glob("checkpoints/*/chk-*/_metadata"))
    if (folder / "full").exists():
        return [path for path in complete if list(path.parent.glob("[0-9a-f]*"))]
    return [path for path in complete if b".sst" in read(path)]


def read(path):
    try:
        return path.read_bytes()
    except FileNotFoundError:  # a newer one is complete
        return b""


@pytest.fixture(scope="module")
def cluster():
    with MiniCluster(slots=2) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def nothing_stays():
    before = state_folders()
    yield
    wait_until(lambda: state_folders() <= before, "folders of RocksDB are removed")


def state_folders():
    return set(Path(tempfile.gettempdir()).glob("flinkish-state-*"))


def counting(cluster, folder, settings, parallelism=2, fault=None):
    env = cluster.get_execution_environment(
        {
            "state.backend.type": "rocksdb",
            "state.backend.rocksdb.memory.fixed-per-slot": "16 mb",
            "execution.checkpointing.interval": "100 ms",
            "execution.checkpointing.dir": str(folder / "checkpoints"),
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.delay": "0 ms",
            **settings,
        }
    )
    env.set_parallelism(parallelism)
    records = env.from_sequence(0, KEYS * ROUNDS - 1)
    return records.key_by(lambda record: record % KEYS).process(Count(folder, fault)).uid("count")


@pytest.mark.parametrize(("fault", "form"), [("raise", "full"), ("kill", "incremental")])
def test_after_a_failure_checkpoints_bring_every_count_back(cluster, tmp_path, fault, form):
    settings = {"execution.checkpointing.incremental": str(form == "incremental")}
    if form == "full":
        (tmp_path / "full").touch()
    with counting(cluster, tmp_path, settings, fault=fault).execute_and_collect() as found:
        assert sorted(found) == list(range(KEYS))
    assert (tmp_path / "failed").exists()


def test_an_incremental_checkpoint_goes_on_with_another_parallelism_and_not_in_memory(tmp_path):
    kept = {
        "restart-strategy.type": "none",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.state-recovery.path": "latest",
        "pipeline.max-parallelism": "64",
    }
    with MiniCluster(slots=3) as cluster:
        for parallelism in (1, 3):
            failing = counting(cluster, tmp_path, kept, parallelism, "raise")
            with pytest.raises(UserFunctionError, match="once"), failing.execute_and_collect() as found:
                assert list(found) == [], "it failed before the last round"
            (tmp_path / "failed").unlink()
            assert snapshots(tmp_path)
        with pytest.raises(StateMigrationError, match="own format of the backend rocksdb"):
            with counting(cluster, tmp_path, {**kept, "state.backend.type": "hashmap"}).execute_and_collect() as found:
                list(found)
        with counting(cluster, tmp_path, kept, 2).execute_and_collect() as found:
            assert sorted(found) == list(range(KEYS))


class KilledAhead(Count):
    """Its slot is killed once, when it has stored files that no checkpoint has."""

    def process_element(self, record, ctx):
        if record % 499 == 0:
            time.sleep(0.05)
            ahead = left_over(self.folder)
            if ahead and snapshots(self.folder) and not (self.folder / "failed").exists():
                (self.folder / "failed").write_text("\n".join(ahead))
                os.kill(os.getpid(), signal.SIGKILL)
        yield from super().process_element(record, ctx)


def left_over(folder):
    """Names of shared files that no complete checkpoint refers to."""
    names = [path.name for path in folder.glob("checkpoints/*/shared/*")]
    known = b"".join(map(read, folder.glob("checkpoints/*/chk-*/_metadata")))
    return {name for name in names if name.encode() not in known}


def test_what_a_killed_slot_has_stored_ahead_is_removed_when_all_tasks_have_ended(cluster, tmp_path):
    env = cluster.get_execution_environment(
        {
            "state.backend.type": "rocksdb",
            "state.backend.rocksdb.memory.fixed-per-slot": "16 mb",
            "execution.checkpointing.interval": "300 ms",
            "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.delay": "500 ms",
        }
    )
    env.set_parallelism(2)
    records = env.from_sequence(0, 100 * KEYS * ROUNDS)
    counted = records.key_by(lambda record: record % KEYS).process(KilledAhead(tmp_path, None)).uid("count")
    counted.sink_to(DiscardingSink())
    client = env.execute_async("killed")
    wait_until(lambda: client._handle.describe()["restarts"] == 1, "a slot is killed and the job goes on")
    ahead = set((tmp_path / "failed").read_text().split("\n"))
    shared = lambda: {path.name for path in tmp_path.glob("checkpoints/*/shared/*")}  # noqa: E731
    wait_until(lambda: not ahead & shared(), "they are gone", timeout_s=20)
    client.cancel().result(30_000)
    with pytest.raises(JobCancelledError):
        client.wait(30_000)
    assert snapshots(tmp_path) and shared() and not left_over(tmp_path)
