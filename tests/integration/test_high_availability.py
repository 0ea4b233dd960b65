"""Several drivers, one leader: drivers that are killed or stopped, and the ones that stand by for them."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flinkish.cli import main
from flinkish.errors import LeadershipLostError
from flinkish.jobmanager.leader_election import Lease
from flinkish.shell.file_lease import encode_lease
from flinkish.shell.high_availability import _forget
from flinkish.shell.leadership import Leadership
from flinkish.shell.zookeeper_lease import ZookeeperCell, ZookeeperLease, connect
from flinkish.storage.conditional_store import FolderCell
from flinkish.storage.ha_store import HighAvailabilityStore, JobRecord
from tests.integration.high_availability_program import RECORDS, SlowUntilTold
from tests.integration.recovery_program import build, expected, published
from tests.integration.waiting import wait_until
from tests.integration.zookeeper_server import ZooKeeperServer, find_jars

CHECKOUT = Path(__file__).resolve().parents[2]


class Drivers:
    """Processes that run the same script; all that is left at the end is killed."""

    def __init__(self, folder: Path, **settings: str):
        self.folder = folder
        self.settings = {
            "high-availability.cluster-id": "test",
            "execution.checkpointing.interval": "100 ms",
            "execution.checkpointing.dir": str(folder / "checkpoints"),
            "restart-strategy.type": "none",
            **settings,
        }
        self.processes: list[subprocess.Popen] = []

    def start(self) -> "subprocess.Popen[str]":
        arguments = [f"{key}={value}" for key, value in self.settings.items()]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.high_availability_program", str(self.folder), *arguments],
            cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def start_leader_and_standby(self) -> "tuple[subprocess.Popen[str], subprocess.Popen[str]]":
        leader = self.start()
        wait_until(lambda: (self.folder / "out").exists() and len(published(self.folder)) > 10, "results")
        standby = self.start()
        assert "stands by: the driver on" in standby.stdout.readline()
        return leader, standby

    def let_go(self) -> None:
        """From now on the job is fast."""
        (self.folder / "go").touch()

    def __enter__(self) -> "Drivers":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(10)
            process.stdout.close()


def on_files(folder: Path, **settings: str) -> Drivers:
    return Drivers(
        folder,
        **{
            "high-availability.type": "filesystem",
            "high-availability.storageDir": str(folder / "ha"),
            "high-availability.filesystem.leader-election.lease-duration": "1500 ms",
            "high-availability.filesystem.leader-election.retry-period": "50 ms",
            **settings,
        },
    )


def record_on_files(folder: Path) -> JobRecord:
    (job,) = (folder / "ha" / "test").iterdir()
    record = HighAvailabilityStore(FolderCell(str(job / "record")), "the record").read()
    assert record is not None
    return record


def said(process: "subprocess.Popen[str]") -> list[str]:
    """All that is left to hear, when it has ended."""
    out, _ = process.communicate(timeout=60)
    return out.splitlines()


def running_tasks(capsys):
    """Of the one job that drivers run which can be found; 0: none runs."""
    capsys.readouterr()
    assert main(["list", "-r", "--json"]) == 0
    return sum(job["tasks"]["running"] for job in json.loads(capsys.readouterr().out)["jobs"])


def test_the_standby_goes_on_when_the_leader_is_killed_and_nobody_runs_the_job_again(tmp_path, capsys):
    with on_files(tmp_path) as drivers:
        leader, standby = drivers.start_leader_and_standby()
        wait_until(lambda: running_tasks(capsys) == 4, "two tasks in each of two slots")
        assert main(["rescale", "recovery", "-p", "1"]) == 0
        assert running_tasks(capsys) == 2
        count = len(published(tmp_path))
        wait_until(lambda: len(published(tmp_path)) > count, "results of one slot")
        hidden = wait_until(lambda: list((tmp_path / "out").glob(".part-*")), "a file that is being written")[0]
        left_over = hidden.with_name(hidden.name.replace("-00000-", "-00009-"))
        leader.kill()
        left_over.touch()  # as a slot leaves it that is killed; whether its slots have left one depends on the moment
        before = record_on_files(tmp_path)
        wait_until(lambda: running_tasks(capsys) == 2, "the standby's tasks, as many as there were")
        assert not left_over.exists()
        drivers.let_go()
        assert said(standby)[-1] == "finished" and standby.returncode == 0
        assert published(tmp_path) == expected(RECORDS)
        after = record_on_files(tmp_path)
        assert (after.epoch, after.run_id, after.status) == (2, before.run_id, "FINISHED")
        assert after.next_checkpoint_id > before.next_checkpoint_id and after.attempt > before.attempt
        assert not list((tmp_path / "checkpoints").rglob("chk-*")), "checkpoints of a finished job are left over"
        assert not list((tmp_path / "out").glob(".*")), "hidden files are left over"
        late = drivers.start()
        *told, ended = said(late)
        assert ended == "finished" and "has ended, FINISHED at" in told[-1]
        assert published(tmp_path) == expected(RECORDS)


def test_a_leader_that_was_stopped_finds_out_before_it_does_anything(tmp_path):
    with on_files(tmp_path) as drivers:
        leader, standby = drivers.start_leader_and_standby()
        os.kill(leader.pid, signal.SIGSTOP)
        first = record_on_files(tmp_path).checkpoints[-1]
        wait_until(
            lambda: record_on_files(tmp_path).epoch == 2 and record_on_files(tmp_path).checkpoints[-1] != first,
            "a checkpoint of the new leader",
        )
        drivers.let_go()
        os.kill(leader.pid, signal.SIGCONT)
        assert said(leader)[-1] == 'LeadershipLostError: lost leadership of job "recovery"' and leader.returncode == 1
        assert said(standby)[-1] == "finished"
        assert published(tmp_path) == expected(RECORDS)
        record = record_on_files(tmp_path)
        assert (record.epoch, record.status) == (2, "FINISHED")


@pytest.mark.soak
@pytest.mark.launch
def test_on_spark_too_the_standby_goes_on_when_the_leader_is_killed(tmp_path):
    """Each driver has a Spark of its own; that of the standby starts when it takes over."""
    spark = {"execution.target": "spark-application", "flinkish.spark.master": "local[2]", "spark.ui.enabled": "false"}
    with on_files(tmp_path, **spark) as drivers:
        leader, standby = drivers.start_leader_and_standby()
        leader.kill()
        drivers.let_go()
        assert said(standby)[-1] == "finished" and standby.returncode == 0
        assert published(tmp_path) == expected(RECORDS)
        assert (record_on_files(tmp_path).epoch, record_on_files(tmp_path).status) == (2, "FINISHED")


# ---- ZooKeeper ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory):
    jars = find_jars(tmp_path_factory.mktemp("zookeeper-jars"))
    with ZooKeeperServer(jars, tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def client(zookeeper):
    client = connect(zookeeper.quorum, 2_000, 10_000)
    yield client
    client.stop()
    client.close()


def on_zookeeper(folder: Path, server: ZooKeeperServer, session_timeout: str) -> Drivers:
    return Drivers(
        folder,
        **{
            "high-availability": "zookeeper",
            "high-availability.zookeeper.quorum": server.quorum,
            "high-availability.cluster-id": folder.name,
            "high-availability.zookeeper.client.session-timeout": session_timeout,
        },
    )


def test_with_zookeeper_too_the_standby_goes_on_when_the_leader_is_killed(zookeeper, tmp_path):
    with on_zookeeper(tmp_path, zookeeper, "3 s") as drivers:
        leader, standby = drivers.start_leader_and_standby()
        leader.kill()
        drivers.let_go()
        assert said(standby)[-1] == "finished" and standby.returncode == 0
        assert published(tmp_path) == expected(RECORDS)


def test_a_job_waits_with_its_results_while_zookeeper_restarts_and_keeps_its_leader(zookeeper, tmp_path):
    with on_zookeeper(tmp_path, zookeeper, "40 s") as drivers:
        leader, standby = drivers.start_leader_and_standby()
        zookeeper.kill()
        zookeeper.start()
        count = len(published(tmp_path))
        wait_until(lambda: len(published(tmp_path)) > count, "results after the restart")
        drivers.let_go()
        assert said(leader) == ["finished"]
        assert said(standby)[-1] == "finished"  # it has run nothing
        assert published(tmp_path) == expected(RECORDS)


def test_a_leader_stops_at_once_when_its_connection_is_lost_and_goes_on_with_the_session(zookeeper):
    leadership = Leadership("a job", ZookeeperLease(connect(zookeeper.quorum, 40_000, 10_000), "/lost/job"), 40_000, 50)
    leadership.start()
    try:
        assert leadership.wait_granted(10) and leadership.epoch == 1
        zookeeper.kill()
        wait_until(lambda: not leadership.may_act(), "the leader to stop", 10)  # long before its time is over
        zookeeper.start()
        leadership.require()
        assert leadership.epoch == 1
    finally:
        leadership.resign()
    assert not leadership.may_act()


def test_a_server_that_takes_a_connection_and_says_nothing_does_not_cost_the_session(zookeeper):
    """As one that is just starting: kazoo alone waits for it until the session is over."""
    leadership = Leadership("a job", ZookeeperLease(connect(zookeeper.quorum, 40_000, 10_000), "/mute/job"), 40_000, 50)
    leadership.start()
    try:
        assert leadership.wait_granted(10)
        zookeeper.kill()
        with socket.create_server(("127.0.0.1", zookeeper.port)) as listener:
            mute, _ = listener.accept()
        with mute:
            wait_until(lambda: not leadership.may_act(), "the leader to stop", 10)
            zookeeper.start()
            wait_until(leadership.may_act, "the leader to go on, long before its session is over", 20)
        assert leadership.epoch == 1
    finally:
        leadership.resign()


def test_a_server_that_is_cut_off_does_not_keep_from_the_others(zookeeper, monkeypatch):
    monkeypatch.setattr(random, "sample", lambda population, k: population)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:  # the system drops who comes when one waits
        cut_off = full.getsockname()
        with socket.create_connection(cut_off):
            client = connect(f"127.0.0.1:{cut_off[1]},{zookeeper.quorum}", 20_000, 10_000)
    assert client.get("/zookeeper")
    client.stop()
    client.close()


def test_a_session_that_has_ended_frees_the_lease_and_cannot_write_it(client, zookeeper):
    other = connect(zookeeper.quorum, 2_000, 10_000)
    store, stores_other = ZookeeperLease(client, "/ended/job"), ZookeeperLease(other, "/ended/job")
    changes: list[object] = []
    changed = threading.Event()
    store.listen(lambda event: (changes.append(event), changed.set()))
    first = Lease(1, "other", 2_000)
    assert stores_other.write(first, 0) == 1 and store.write(Lease(1, "me", 2_000), 0) is None
    assert (store.read().lease, store.read().holder_gone) == (first, False)
    stores_other.close()
    assert changed.wait(10)
    assert store.read().holder_gone
    assert store.write(Lease(2, "me", 2_000), 1) == 2
    assert store.write(Lease(3, "me", 2_000), 1) is None
    client.delete("/ended/job/holder-me")  # as the server does when a session expires
    assert store.read().holder_gone


def test_the_record_in_zookeeper_is_replaced_by_version(client):
    cell = ZookeeperCell(client, "/record/job/record")
    assert cell.read() == (None, 0)
    assert cell.replace(b"a", 0) == 1 and cell.replace(b"b", 0) is None
    assert cell.replace(b"b", 1) == 2 and cell.replace(b"c", 1) is None
    assert cell.read() == (b"b", 2)


def test_a_job_that_is_to_be_forgotten_leaves_no_node(client, zookeeper):
    settings = {
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": zookeeper.quorum,
        "high-availability.cluster-id": "forgotten",
    }
    for job in ("ended", "other"):
        client.create(f"/flink/forgotten/{job}/record", b"", makepath=True)
    _forget(settings, "ended")
    assert client.get_children("/flink/forgotten") == ["other"]


# ---- jobs of a cluster that lives on -----------------------------------------------------------


def ha_settings(folder: Path) -> dict[str, str]:
    return {
        "high-availability.type": "filesystem",
        "high-availability.storageDir": str(folder / "ha"),
        "high-availability.cluster-id": "test",
        "high-availability.filesystem.leader-election.lease-duration": "900 ms",
        "execution.checkpointing.interval": "50 ms",
        "execution.checkpointing.dir": str(folder / "checkpoints"),
    }


def test_a_session_whose_job_is_led_by_another_ends_that_job_and_runs_others(cluster, tmp_path):
    env = cluster.get_execution_environment(ha_settings(tmp_path))
    build(env, tmp_path, RECORDS, passing=SlowUntilTold(tmp_path))
    client = env.execute_async("recovery")
    wait_until(lambda: (tmp_path / "out").exists() and published(tmp_path), "results")
    lease = FolderCell(str(tmp_path / "ha" / "test" / client.job_id / "lease"))
    wait_until(
        lambda: lease.replace(encode_lease(Lease(2, "other", 60_000, "another driver")), lease.read()[1]),
        "the lease to be another's",
    )
    with pytest.raises(LeadershipLostError, match="another driver has the lease now, epoch 2"):
        client.wait(30_000)
    kept = record_on_files(tmp_path)
    assert kept.status is None and Path(kept.checkpoints[-1].removeprefix("file://")).exists()
    other = cluster.get_execution_environment({})
    with other.from_sequence(1, 10).execute_and_collect() as records:
        assert sorted(records) == list(range(1, 11))


def test_a_job_stopped_with_a_savepoint_has_ended_for_all_drivers(cluster, tmp_path):
    env = cluster.get_execution_environment(ha_settings(tmp_path))
    build(env, tmp_path, RECORDS, passing=SlowUntilTold(tmp_path))
    client = env.execute_async("stopped")
    wait_until(lambda: (tmp_path / "out").exists() and published(tmp_path), "results")
    location = client.stop_with_savepoint(False, str(tmp_path / "savepoints")).result(30_000)
    client.wait(30_000)
    wait_until(lambda: record_on_files(tmp_path).status, "the result")
    record = record_on_files(tmp_path)
    assert (record.status, record.latest) == ("FINISHED", location)
