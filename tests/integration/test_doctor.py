"""``flinkish doctor`` on real Spark, where all is well and where something is not."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time

import pytest

from spark_plugin import doctor
from spark_plugin.classic_application import ClassicApplication

pytestmark = [pytest.mark.launch, pytest.mark.usefixtures("no_jobs_left")]

FLINKISH = ("-m", "flinkish.cli")
#: An examination ends when it is done; a busy machine needs longer than the ten seconds that users wait.
PATIENT_S = 60


def statuses(findings):
    return {line.check: line.status for line in findings.lines}


ALL_OK = dict.fromkeys(
    ("Java", "Spark", "task slots", "launch", "Python", "slot to driver", "slot to slot", "local disk",
     "checkpoints", "memory", "clock"),
    "ok",
)  # fmt: skip


@contextlib.contextmanager
def nothing_left(tmp_path):
    """Afterwards no thread, listening port or folder of the examination is there."""
    before = set(threading.enumerate()), listening_ports()
    yield
    left = {thread.name for thread in set(threading.enumerate()) - before[0] if "doctor" in thread.name}
    assert not left
    assert listening_ports() <= before[1]
    assert not list(tmp_path.rglob(".flinkish-doctor-*"))


def listening_ports():
    """Of this process."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            inodes.add(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # the one that lists them
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in open(table).read().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                ports.add(fields[1])
    return ports


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_where_jobs_run_every_check_is_ok(spark_of_tests, tmp_path, master):
    context = spark_of_tests.context_for(master)
    assert ClassicApplication(context).wait_for_executors(2, threading.Event())
    checkpoints = tmp_path / "not" / "yet"
    with nothing_left(tmp_path):
        findings = doctor.examine(context, {"execution.checkpointing.dir": str(checkpoints)}, PATIENT_S)
    assert statuses(findings) == ALL_OK, findings
    assert findings.jobs_will_run and str(findings).endswith("Jobs will run here.")
    assert "2 free of 2" in findings.of("task slots").found
    assert "2 connections between 2 tasks" in findings.of("slot to slot").found
    assert "driver and executors write, rename, read and delete" in findings.of("checkpoints").found
    assert list(tmp_path.iterdir()) == []


def test_what_is_out_of_reach_is_told_and_the_rest_is_tried_all_the_same(spark_of_tests, tmp_path):
    """192.0.2.0/24 is nobody's (RFC 5737): packets to it are lost or sent back."""
    (tmp_path / "file").write_text("in the way")
    context = spark_of_tests.context_for("local-cluster[2,1,1024]")
    assert ClassicApplication(context).wait_for_executors(2, threading.Event())
    settings = {
        "jobmanager.rpc.address": "192.0.2.1",
        "execution.checkpointing.dir": str(tmp_path / "file" / "checkpoints"),
    }
    with nothing_left(tmp_path):
        findings = doctor.examine(context, settings, PATIENT_S)
    assert statuses(findings) == {
        **ALL_OK, "launch": "warn", "slot to driver": "fail", "slot to slot": "warn", "checkpoints": "fail",
        "clock": "warn",
    }, findings  # fmt: skip
    reach = findings.of("slot to driver")
    assert "2 of 2 tasks" in reach.found and "tried 192.0.2.1:" in reach.found
    assert "spark.driver.host" in reach.do
    assert "Not a directory" in findings.of("checkpoints").found
    assert findings.of("slot to slot").found == "not tried"
    assert not findings.jobs_will_run


def test_slots_that_others_hold_are_named_and_not_waited_for(spark_of_tests, bell, tmp_path):
    context = spark_of_tests.context_for("local[2]")
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    path, ring = bell.path, "\n"

    def hold(partition):
        with open(path, "w") as pipe:
            pipe.write(ring)
        open(gate).close()  # until the test opens it too
        return partition

    holders = threading.Thread(
        target=lambda: context.parallelize(range(2), 2).mapPartitions(hold).count(), daemon=True
    )
    holders.start()
    try:
        bell.wait(2, timeout_s=PATIENT_S)
        began_s = time.monotonic()
        findings = doctor.examine(context, timeout_s=10_000)
        assert time.monotonic() - began_s < PATIENT_S
    finally:
        while holders.is_alive():
            try:
                os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                pass  # nobody waits at it at this moment
            holders.join(0.05)
    slots = findings.of("task slots")
    assert slots.status == "warn" and slots.found.startswith("0 free of 2; stage "), findings
    assert "runs 2" in slots.found and findings.of("launch").found == "not tried: no task slot is free"


def test_the_command_starts_spark_examines_it_and_stops_it(run_python, tmp_path):
    done = run_python(
        *FLINKISH, "doctor", "--master", "local[2]", "--json", "--timeout", PATIENT_S,
        "--conf", f"spark.app.name=mark-{tmp_path.name}", "-D", f"execution.checkpointing.dir={tmp_path / 'chk'}",
        environ={"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["jobs_will_run"] is True
    assert {line["check"]: line["status"] for line in answer["findings"]} == ALL_OK
    assert answer["findings"][0]["found"].startswith("Java ")
    assert not list(tmp_path.glob("chk")) and not list(tmp_path.glob(".flinkish*"))


def test_without_java_the_command_says_how_to_install_it(run_python, path_without_java):
    done = run_python(*FLINKISH, "doctor", environ={"PATH": path_without_java, "JAVA_HOME": None})
    assert done.returncode == 1, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("fail Java              could not start Spark: Java was not found")
    assert "do: " in "".join(rest) and rest[-1] == "Jobs will not run here: Java."


def test_a_master_that_is_not_there_is_told_at_once(run_python):
    done = run_python(*FLINKISH, "doctor", "--master", "spark://127.0.0.1:1")
    assert done.returncode == 1, done.stderr
    assert "fail Spark             no master answers at 127.0.0.1:1 (Connection refused)" in done.stdout
    mini = run_python(*FLINKISH, "doctor", "--master", "mini-cluster")
    assert (mini.returncode, len(mini.stderr.splitlines())) == (1, 4)
    assert "needs neither Java nor Spark" in mini.stderr
