"""Facts in, findings out: what the doctor says to each state of a Spark."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from flinkish.errors import FlinkishError
from spark_plugin.doctor_findings import (
    LIBRARIES_VIRTUAL_BYTES,
    DriverFacts,
    Finding,
    Findings,
    judge,
    spark_kind,
)

GIB = 1 << 30

DRIVER = DriverFacts(
    spark_version="4.2.0",
    master="spark://m:7077",
    kind="standalone",
    java="Java 17 runs the driver",
    python="3.11.7",
    modules={"flinkish": "0.1.0", "pyarrow": "26.0.1"},
    slots_total=4,
    asked=2,
    together_ms=120,
    addresses=["10.0.0.1:4000"],
)


def report(index, **changes):
    host = f"host{index}"
    return {
        "index": index,
        "host": host,
        "python": "3.11.9",
        "modules": {"flinkish": "0.1.0", "pyarrow": "26.0.1"},
        "address_space_bytes": None,
        "container_bytes": None,
        "available_bytes": 8 * GIB,
        "driver": [{"address": "10.0.0.1:4000", "failure": "", "ms": 0.4}],
        "peers": [{"index": 1 - index, "address": f"10.0.0.{index}:5000", "failure": ""}],
        "clock_ahead_ms": 3.0,
        "clock_error_ms": 0.2,
        "local_disk": [{"folder": "/tmp", "failure": "", "free_bytes": 20 * GIB}],
        **changes,
    }


def reports(**changes):
    return [report(0, **changes), report(1, **changes)]


def line(check, driver=DRIVER, of=None):
    return judge(driver, reports() if of is None else of).of(check)


def test_where_all_is_well_each_line_says_what_was_found():
    findings = judge(DRIVER, reports())
    assert findings.jobs_will_run and {one.status for one in findings.lines} == {"ok"}
    assert [one.check for one in findings.lines] == [
        "settings", "Java", "Spark", "task slots", "launch", "Python", "slot to driver", "slot to slot", "local disk",
        "checkpoints", "memory", "clock",
    ]  # fmt: skip
    assert not [one for one in findings.lines if one.do or not one.found]
    assert str(findings).endswith("\n\nJobs will run here.")


@pytest.mark.parametrize(
    "changes, check, status, found, do",
    [
        ({"settings": 3}, "settings", "ok", "3 set", ""),
        ({"settings": 1, "settings_warnings": ['the setting "a" has no\n effect', "b"]}, "settings", "warn",
         'the setting "a" has no effect; b', "correct"),
        ({"slots_total": 0}, "task slots", "fail", "no executor has registered", "cluster manager"),
        ({"slots_busy": 4, "holders": ['stage 7 of "count" runs 4']}, "task slots", "warn",
         '0 free of 4; stage 7 of "count" runs 4', "slot.request.timeout"),
        ({"slots_total": 1}, "task slots", "warn", "DataFrame jobs wait", "more cores"),
        ({"asked": 1}, "task slots", "warn", "not all registered; one task was tried", "examine again"),
        ({"slots_per_task": 3}, "task slots", "ok", "3 slots of flinkish in each", ""),
        ({"refusal": ("could not start slots with dynamic allocation", "it is on", "turn it off")}, "launch", "fail",
         "dynamic allocation: it is on", "turn it off"),
        ({"job_failure": "lost the Spark tasks: no disk"}, "launch", "fail", "no disk", "Spark's log"),
        ({"together_ms": None}, "launch", "warn", "did not come together", ""),
        ({"kind": "Databricks, serverless"}, "Spark", "fail", "no place for processes", "dedicated access mode"),
        ({"kind": "Databricks, standard access mode"}, "Spark", "warn", "keeps users apart", "dedicated"),
        ({"storage_uri": "s3://b/c", "storage_failure": "no answer within 5.0 s"}, "checkpoints", "fail",
         "s3://b/c from the driver: no answer within 5.0 s", "name a folder"),
        ({"memory_overhead_bytes": 384 << 20, "tasks_per_executor": 4}, "memory", "warn",
         "384 MiB beside its heap for 4 slot(s)", "spark.executor.memoryOverhead"),
    ],
)  # fmt: skip
def test_what_the_driver_knows(changes, check, status, found, do):
    finding = line(check, replace(DRIVER, **changes))
    assert finding.status == status and found in finding.found and do in finding.do
    assert bool(finding.do) == bool(do)


@pytest.mark.parametrize(
    "changes, check, status, found, do",
    [
        ({"modules": {"flinkish": None, "pyarrow": "26.0.1"}}, "Python", "fail", "have no flinkish", "install it"),
        ({"python": "3.10.2"}, "Python", "fail", "run Python 3.10.2, the driver 3.11.7", "PYSPARK_PYTHON"),
        ({"modules": {"flinkish": "0.1.0", "pyarrow": "15.0.0"}}, "Python", "warn", "pyarrow 15.0.0", "same version"),
        ({"driver": [{"address": "10.0.0.1:4000", "failure": "no answer in time"}]}, "slot to driver", "fail",
         "2 of 2 tasks (host0, host1) do not reach the driver; tried 10.0.0.1:4000 (no answer in time)",
         "spark.driver.host"),
        ({"meeting_failure": "it does not know the token"}, "slot to driver", "fail", "it does not know", "answers"),
        ({"peers": [{"index": 0, "address": "10.0.0.9:1", "failure": "No route to host"}]}, "slot to slot", "fail",
         "2 of 2 connections failed; host0 to 10.0.0.9:1: No route to host", "any port"),
        ({"local_disk": [{"folder": "/ro", "failure": "Read-only file system"}]}, "local disk", "fail",
         "/ro on host0, host1: Read-only file system", "TMPDIR"),
        ({"local_disk": [{"folder": "/tmp", "failure": "", "free_bytes": 50 << 20}]}, "local disk", "warn",
         "50 MiB free in /tmp", "free some space"),
        ({"address_space_bytes": LIBRARIES_VIRTUAL_BYTES - 1}, "memory", "fail", "1.4 GiB of address space",
         "spark.executor.pyspark.memory"),
        ({"address_space_bytes": LIBRARIES_VIRTUAL_BYTES + 1}, "memory", "warn", "1.4 GiB of address space", "raise"),
        ({"container_bytes": 100 << 20}, "memory", "warn", "100 MiB available", "more memory"),
        ({"clock_ahead_ms": -5_000.0}, "clock", "warn", "5000 ms behind the driver", "NTP"),
        ({"clock_ahead_ms": 5_000.0, "clock_error_ms": 6_000.0}, "clock", "ok", "measured to 6000 ms", ""),
    ],
)  # fmt: skip
def test_what_the_tasks_report(changes, check, status, found, do):
    finding = line(check, of=reports(**changes))
    assert finding.status == status and found in finding.found and do in finding.do
    assert judge(DRIVER, reports(**changes)).jobs_will_run == (status != "fail")


def test_hosts_of_one_name_are_told_apart_by_their_addresses():
    both = [report(0, host="box", address="10.0.0.1"), report(1, host="box", address="10.0.0.2")]
    assert line("slot to slot", of=both).found.endswith("between 2 tasks on 2 host(s)")
    assert line("local disk", of=both).found.endswith(" on box (10.0.0.1)")
    same = [report(0, host="box", address="10.0.0.1"), report(1, host="box", address="10.0.0.1")]
    assert line("slot to slot", of=same).found.endswith("between 2 tasks on 1 host(s)")
    assert line("local disk", of=same).found.endswith(" on box")


def test_storage_that_only_some_executors_see_fails():
    driver = replace(DRIVER, storage_uri="/checkpoints")
    ok, other = {"failure": ""}, {"failure": "it is another disk"}
    assert line("checkpoints", driver, reports(storage=ok)).status == "ok"
    finding = line("checkpoints", driver, [report(0, storage=ok), report(1, storage=other)])
    assert finding.status == "fail" and "from executors (host1): it is another disk" in finding.found


REFUSAL = ("could not start slots with dynamic allocation", "it is on", "turn it off")


@pytest.mark.parametrize("total, status, found", [(None, "warn", "not tried: executors"), (4, "ok", "4 free of 4")])
def test_where_no_task_was_asked_for_none_is_missed(total, status, found):
    findings = judge(replace(DRIVER, slots_total=total, asked=0, together_ms=None, refusal=REFUSAL), [])
    slots = findings.of("task slots")
    assert slots.status == status and slots.found.startswith(found)
    assert [one.check for one in findings.lines if one.status == "fail"] == ["launch"]


def test_without_a_report_the_lines_say_that_nothing_was_tried():
    findings = judge(replace(DRIVER, together_ms=None), [])
    assert findings.of("task slots") == Finding(
        "task slots", "fail", "4 free of 4, but none of 2 tasks began within 10 s",
        "look at Spark's log, and whether its executors have started",
    )  # fmt: skip
    for check in ("Python", "slot to driver", "slot to slot", "local disk", "memory", "clock"):
        assert findings.of(check).status == "warn" and findings.of(check).found.startswith("not tried")


def test_text_and_json_carry_every_part():
    findings = Findings((Finding("Java", "ok", "Java 17"), Finding("Spark", "fail", "none", "start one")))
    assert str(findings) == (
        "ok   Java              Java 17\n"
        "fail Spark             none\n"
        "                       do: start one\n"
        "\n"
        "Jobs will not run here: Spark."
    )
    twice = Findings.of_errors("settings", [FlinkishError("x", why="y", do="z"), FlinkishError("x")])
    assert [(line.found, line.do) for line in twice.lines] == [("x: y", "z"), ("x", "")]
    assert str(twice).endswith("Jobs will not run here: settings.")
    parsed = json.loads(findings.to_json())
    assert parsed["jobs_will_run"] is False
    assert parsed["findings"][1] == {"check": "Spark", "status": "fail", "found": "none", "do": "start one"}


TAGS = "spark.databricks.clusterUsageTags."


@pytest.mark.parametrize(
    "master, connect, conf, environ, kind",
    [
        ("local[2]", False, {}, {}, "local"),
        ("local-cluster[1,1,512]", False, {}, {}, "local-cluster"),
        ("spark://h:7077", False, {}, {}, "standalone"),
        ("yarn", False, {}, {}, "YARN"),
        ("k8s://https://h", True, {}, {}, "Spark Connect, Kubernetes"),
        ("mesos://h", False, {}, {}, "of an unknown kind"),
        ("local[*]", False, {}, {"DATABRICKS_RUNTIME_VERSION": "16.4"}, "Databricks, serverless"),
        ("spark://h", False, {f"{TAGS}clusterId": "1", f"{TAGS}dataSecurityMode": "USER_ISOLATION"}, {},
         "Databricks, standard access mode"),
        ("spark://h", False, {f"{TAGS}clusterId": "1", f"{TAGS}dataSecurityMode": "SINGLE_USER"}, {},
         "Databricks, dedicated access mode"),
        ("spark://h", False, {f"{TAGS}clusterId": "1"}, {}, "Databricks"),
    ],
)  # fmt: skip
def test_the_kind_of_spark_is_told_apart(master, connect, conf, environ, kind):
    assert spark_kind(master, connect, conf, environ) == kind
