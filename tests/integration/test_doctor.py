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
from tests.integration.leftovers import listening_sockets

pytestmark = pytest.mark.usefixtures("no_jobs_left")

FLINKISH = ("-m", "flinkish.cli")
#: An examination ends when it is done; a busy machine needs longer than the ten seconds that users wait.
PATIENT_S = 60


def statuses(findings):
    return {line.check: line.status for line in findings.lines}


ALL_OK = dict.fromkeys(
    ("settings", "Java", "Spark", "task slots", "launch", "Python", "slot to driver", "slot to slot", "local disk",
     "checkpoints", "memory", "clock"),
    "ok",
)  # fmt: skip
#: No job uses it yet, and the doctor tries it all the same.
STORAGE = "execution.checkpointing.dir"


@contextlib.contextmanager
def nothing_left(tmp_path):
    """Afterwards no thread, listening port or folder of the examination is there."""
    before = set(threading.enumerate()), listening_sockets([os.getpid()])
    yield
    left = {thread.name for thread in set(threading.enumerate()) - before[0] if "doctor" in thread.name}
    assert not left
    assert listening_sockets([os.getpid()]) <= before[1]
    assert not list(tmp_path.rglob(".flinkish-doctor-*"))


@pytest.mark.parametrize("master", [pytest.param("local[2]", marks=pytest.mark.launch), "local-cluster[2,1,1024]"])
def test_where_jobs_run_every_check_is_ok(spark_of_tests, tmp_path, master):
    context = spark_of_tests.context_for(master)
    assert ClassicApplication(context).wait_for_executors(2, threading.Event())
    checkpoints = tmp_path / "not" / "yet"
    with nothing_left(tmp_path):
        findings = doctor.examine(context, {STORAGE: str(checkpoints)}, PATIENT_S)
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
        STORAGE: str(tmp_path / "file" / "checkpoints"),
        "foo": "bar",
        "taskmanager.numberOfTaskSlot": "1",
    }
    with nothing_left(tmp_path):
        findings = doctor.examine(context, settings, PATIENT_S)
    assert statuses(findings) == {
        **ALL_OK, "settings": "warn", "launch": "warn", "slot to driver": "fail", "slot to slot": "warn",
        "checkpoints": "fail", "clock": "warn",
    }, findings  # fmt: skip
    assert findings.of("settings").found == (
        'the setting "foo" has no effect, unless the job itself reads it; '
        'the setting "taskmanager.numberOfTaskSlot" has no effect; did you mean "taskmanager.numberOfTaskSlots"?'
    )
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
    (tmp_path / "file").write_text("in the way")
    done = run_python(
        *FLINKISH, "doctor", "--master", "local[2]", "--json", "--timeout", PATIENT_S,
        "--conf", f"spark.app.name=mark-{tmp_path.name}", "-D", f"{STORAGE}={tmp_path / 'file' / 'chk'}",
        environ={"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert answer["jobs_will_run"] is False
    found = {line["check"]: line for line in answer["findings"]}
    assert {check: line["status"] for check, line in found.items()} == {**ALL_OK, "checkpoints": "fail"}
    assert found["Java"]["found"].startswith("Java ")
    assert "Not a directory" in found["checkpoints"]["found"]
    assert not list(tmp_path.glob(".flinkish*"))


def test_without_java_the_command_says_how_to_install_it(run_python, path_without_java):
    environ = {"PATH": path_without_java, "JAVA_HOME": None}
    machine = run_python(*FLINKISH, "doctor", "--json", environ=environ)
    assert machine.returncode == 1 and json.loads(machine.stdout)["findings"][0]["check"] == "Java"
    done = run_python(*FLINKISH, "doctor", environ=environ)
    assert done.returncode == 1, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("fail Java              could not start Spark: Java was not found")
    assert "do: " in "".join(rest) and rest[-1] == "Jobs will not run here: Java."


def test_a_master_that_is_not_there_is_told_at_once(run_python):
    done = run_python(*FLINKISH, "doctor", "--master", "spark://127.0.0.1:1")
    assert done.returncode == 1, done.stderr
    assert "fail Spark             could not start Spark: nobody answers at its master's address" in done.stdout
    assert "127.0.0.1:1" in done.stdout and "(Connection refused)" in done.stdout and "do: start the master" in done.stdout
    mini = run_python(*FLINKISH, "doctor", "--master", "mini-cluster")
    assert (mini.returncode, len(mini.stderr.splitlines())) == (1, 4)
    assert "needs neither Java nor Spark" in mini.stderr


@pytest.mark.parametrize(
    "arguments, found",
    [
        (["-D", "parallelism.default=x", "-D", "heartbeat.timeout=soon"],
         ["option \"parallelism.default\" cannot be 'x'", "option \"heartbeat.timeout\" cannot be 'soon'"]),
        (["--conf", "flinkish.lanch-mode=barrier"], ['there is no setting "flinkish.lanch-mode"']),
        (["-D", "novalue"], ['could not use the setting "novalue"']),
        (["--master", "minicluster"], ['could not use "minicluster" as master']),
        (["--master", "mini-cluster"], ["could not examine the MiniCluster"]),
        ([], ["option \"slot.request.timeout\" cannot be 'x'"]),  # in the configuration file
    ],
)  # fmt: skip
def test_wrong_settings_are_one_json_object_too(tmp_path, monkeypatch, capfd, arguments, found):
    from flinkish import cli

    if not arguments:
        (tmp_path / "flinkish-conf.yaml").write_text("slot.request.timeout: x\n")
        monkeypatch.setenv("FLINKISH_CONF_DIR", str(tmp_path))
    assert cli.main(["doctor", "--json", *arguments]) == 1
    check_failures(capfd.readouterr().out, "settings", found)


@pytest.mark.parametrize(
    "arguments, found",
    [
        (["--master", "yarn"], "could not start Spark on YARN: neither HADOOP_CONF_DIR"),
        (["--master", "k8s://https://127.0.0.1:1"], "could not start Spark: nobody answers"),
        (["-D", "spark.driver.memory=lots"], "could not start Spark: its JVM has ended"),
    ],
)
def test_a_spark_that_does_not_start_is_one_json_object_too(run_python, arguments, found):
    variables = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
    done = run_python(*FLINKISH, "doctor", "--json", *arguments, environ=dict.fromkeys(variables))
    assert done.returncode == 1, done.stderr
    check_failures(done.stdout, "Spark", [found])


def check_failures(output, check, found):
    answer = json.loads(output)
    assert answer["jobs_will_run"] is False
    failed = [line for line in answer["findings"] if line["status"] == "fail"]
    assert [line["check"] for line in failed] == [check] * len(found)
    for line, text in zip(failed, found):
        assert line["found"].startswith(text) and line["do"], line
