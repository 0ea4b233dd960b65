"""Jobs whose tasks, slots and driver fail: every record is counted once, and every result published once."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flinkish.cli import main as flinkish
from flinkish.common.job_status import JobStatus
from flinkish.common.time import Time
from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.connectors.sequence import NumberSequenceSource
from flinkish.datastream.connectors.file_system import FileSink
from flinkish.datastream.window import TumblingEventTimeWindows
from flinkish.errors import (
    CheckpointStorageError,
    ExternalError,
    InvalidJobError,
    StateMigrationError,
    UserFunctionError,
)
from flinkish.storage.checkpoint_storage import CheckpointStorage
from flinkish.testing.mini_cluster import MiniCluster
from tests.integration.recovery_program import Faulty, build, expected, published
from tests.integration.waiting import wait_until

CHECKOUT = Path(__file__).parents[2]
NO_DELAY = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "0 ms"}
CHECKPOINTS = {"execution.checkpointing.interval": "100 ms"}


@pytest.fixture(scope="module")
def cluster():
    with MiniCluster(slots=2) as cluster:
        yield cluster


def run(cluster, folder, settings, faults=""):
    (folder / "faults").write_text(faults)
    env = cluster.get_execution_environment(settings)
    build(env, folder)
    client = env.execute_async("recovery")
    client.wait(60_000)
    return client._handle.describe()


def hidden(folder):
    return [path.name for path in (folder / "out").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("fault", ["raise", "kill-slot"])
@pytest.mark.parametrize("storage", ["driver", "files"])
def test_after_a_failure_every_record_is_counted_once_and_published_once(cluster, tmp_path, fault, storage):
    settings = {**NO_DELAY, **CHECKPOINTS}
    if storage == "files":
        settings["execution.checkpointing.dir"] = str(tmp_path / "checkpoints")
    job = run(cluster, tmp_path, settings, f"900 {fault}\n")
    assert published(tmp_path) == expected()
    assert job["state"] == "FINISHED" and job["restarts"] == 1
    assert job["checkpoints"]["counts"]["completed"] > 2
    (root,) = job["exceptions"]
    assert root["exceptionName"] == ("UserFunctionError" if fault == "raise" else "SlotLostError")
    assert hidden(tmp_path) == []


def test_several_failures_one_after_the_other(cluster, tmp_path):
    settings = {**NO_DELAY, **CHECKPOINTS, "restart-strategy.fixed-delay.attempts": 4}
    job = run(cluster, tmp_path, settings, "200 raise\n400 kill-slot\n600 kill-slot\n800 raise\n")
    assert published(tmp_path) == expected()
    assert job["restarts"] == 4


def test_without_checkpoints_a_restart_begins_anew(cluster, tmp_path):
    job = run(cluster, tmp_path, NO_DELAY, "700 raise\n")
    assert published(tmp_path) == expected()
    assert job["restarts"] == 1 and job["checkpoints"]["counts"]["completed"] == 0
    assert hidden(tmp_path) == []


def test_without_checkpoints_nothing_restarts_unless_it_is_asked_for(cluster, tmp_path):
    with pytest.raises(UserFunctionError, match="record 300 is bad"):
        run(cluster, tmp_path, {}, "300 raise\n")
    assert published(tmp_path) == {} and hidden(tmp_path) == []


def test_when_the_restart_strategy_is_at_its_end_the_job_fails_with_the_last_cause(cluster, tmp_path):
    settings = {**NO_DELAY, **CHECKPOINTS, "restart-strategy.fixed-delay.attempts": 2}
    with pytest.raises(UserFunctionError, match="record 500 is bad") as failed:
        run(cluster, tmp_path, settings, "300 raise\n400 raise\n500 raise\n")
    assert failed.value.fields["not_restarted"] == "fixed-delay allows 2 restarts, this is failure 3"


def test_checkpoints_of_a_finished_job_are_removed_and_those_of_a_cancelled_one_kept_on_request(
    cluster, tmp_path
):
    settings = {
        **CHECKPOINTS,
        "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.checkpointing.num-retained": 2,
    }
    env = cluster.get_execution_environment(settings)
    build(env, tmp_path)
    client = env.execute_async("recovery")
    storage = CheckpointStorage(tmp_path / "checkpoints")
    wait_until(lambda: len(storage.list_checkpoints(client.job_id)) >= 2, "two checkpoints")
    client.cancel().result(30_000)
    wait_until(
        lambda: [found.problem for found in storage.list_checkpoints(client.job_id)] == [None, None],
        "only the two newest checkpoints are left",
    )
    newest = storage.newest_complete(client.job_id)[0]
    # The next run goes on from there, in the same folder, and ends well.
    resumed = cluster.get_execution_environment(
        {**settings, "execution.state-recovery.path": newest.location, "execution.state-recovery.claim-mode": "CLAIM"}
    )
    build(resumed, tmp_path)
    second = resumed.execute_async("recovery")
    second.wait(60_000)
    assert published(tmp_path) == expected()
    wait_until(lambda: not (tmp_path / "checkpoints" / second.job_id).exists(), "its checkpoints are removed")
    wait_until(lambda: not Path(newest.location.removeprefix("file://")).exists(), "the claimed checkpoint is removed")


@pytest.mark.parametrize("fault", ["raise", "kill-slot"])
def test_collected_records_come_once_with_checkpoints(cluster, tmp_path, fault):
    (tmp_path / "faults").write_text(f"600 {fault}\n")
    env = cluster.get_execution_environment({**NO_DELAY, **CHECKPOINTS})
    with env.from_sequence(1, 1_000).map(Faulty(tmp_path)).execute_and_collect() as records:
        assert sorted(records) == list(range(1, 1_001))


def test_collecting_without_checkpoints_ends_with_an_error_when_taken_records_would_come_again(
    cluster, tmp_path
):
    taken, failed = tmp_path / "taken", tmp_path / "failed"

    def fail_when_some_are_taken(record):
        if taken.exists() and not failed.exists():
            failed.touch()
            raise ValueError("once")
        return record

    env = cluster.get_execution_environment(NO_DELAY)
    env.set_parallelism(1)  # the records of another subtask would not come again
    with env.from_sequence(1, 2**60).map(fail_when_some_are_taken).execute_and_collect() as records:
        next(records)
        taken.touch()
        with pytest.raises(ExternalError, match="restarted from its beginning"):
            list(records)


def program(folder, *settings):
    arguments = [sys.executable, "-m", "tests.integration.recovery_program", str(folder), *settings]
    return subprocess.Popen(arguments, cwd=CHECKOUT)


def test_after_a_killed_driver_the_same_script_goes_on_from_the_newest_checkpoint(tmp_path):
    settings = (
        "execution.checkpointing.interval=100 ms",
        f"execution.checkpointing.dir={tmp_path / 'checkpoints'}",
        "execution.state-recovery.path=latest",
    )
    first = program(tmp_path, *settings)
    try:
        wait_until(lambda: (tmp_path / "out").exists() and len(published(tmp_path)) > 500, "results")
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait(30)
    before = published(tmp_path)
    assert before and before <= expected()
    second = program(tmp_path, *settings)
    assert second.wait(60) == 0
    assert published(tmp_path) == expected()


def test_a_savepoint_is_taken_while_the_job_goes_on_and_another_job_begins_with_it(cluster, tmp_path):
    env = cluster.get_execution_environment(CHECKPOINTS)
    build(env, tmp_path)
    client = env.execute_async("recovery")
    wait_until(lambda: len(published(tmp_path)) > 100, "results")
    with pytest.raises(CheckpointStorageError, match="could not create"):  # before any task fails with it
        client.trigger_savepoint(str(tmp_path / ("x" * 400)))
    location = client.trigger_savepoint(str(tmp_path / "savepoints")).result(30_000)
    assert client.status is JobStatus.RUNNING
    client.wait(60_000)
    assert published(tmp_path) == expected()
    savepoint = CheckpointStorage(tmp_path).load(location)
    assert {operator.uid for operator in savepoint.operators.values() if operator.uid} >= {"numbers", "counts"}


@pytest.mark.parametrize("parallelism, drain", [(1, False), (2, False), (1, True)])
def test_a_job_stopped_with_a_savepoint_goes_on_from_it(cluster, tmp_path, parallelism, drain):
    env = cluster.get_execution_environment(CHECKPOINTS)
    build(env, tmp_path)
    client = env.execute_async("recovery")
    wait_until(lambda: len(published(tmp_path)) > 100, "results")
    location = client.stop_with_savepoint(drain, str(tmp_path / "savepoints")).result(30_000)
    client.wait(30_000)
    assert client.status is JobStatus.FINISHED
    partly = published(tmp_path)
    assert 100 < sum(partly.values()) < sum(expected().values()) and partly <= expected()
    resumed = cluster.get_execution_environment(
        {**CHECKPOINTS, "execution.savepoint.path": location, "parallelism.default": parallelism}
    )
    build(resumed, tmp_path)
    resumed.execute("recovery")
    assert published(tmp_path) == expected()


@pytest.mark.parametrize("watermarks", ["of-the-source", "in-mid-stream"])
def test_windows_go_on_from_a_drain_with_what_it_has_left(cluster, tmp_path, watermarks):
    """The drain has fired all windows at the end of time; what comes later is not late for that."""
    numbers = range(1, 1_201)

    def windows(settings, pause_s):
        env = cluster.get_execution_environment({**CHECKPOINTS, **settings})
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, timestamp: value)
        source = NumberSequenceSource(numbers[0], numbers[-1])
        if watermarks == "of-the-source":
            stream = env.from_source(source, strategy, "numbers").uid("numbers").map(Faulty(tmp_path, pause_s))
        else:
            stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
            stream = stream.map(Faulty(tmp_path, pause_s)).assign_timestamps_and_watermarks(strategy)
        by_key = stream.key_by(lambda value: value % 3).window(TumblingEventTimeWindows.of(Time.milliseconds(50)))
        lines = by_key.apply(lambda key, window, values: [" ".join(map(str, values))]).uid("windows")
        lines.sink_to(FileSink.for_row_format(str(tmp_path / "out")).build()).uid("sink")
        return env.execute_async("drained")

    def written():
        return sorted(int(word) for file in (tmp_path / "out").glob("part-*") for word in file.read_text().split())

    client = windows({}, 0.001)
    wait_until(lambda: len(written()) > 100, "results")
    location = client.stop_with_savepoint(True, str(tmp_path / "savepoints")).result(30_000)
    client.wait(30_000)
    assert 100 < len(written()) < len(numbers)
    windows({"execution.state-recovery.path": location}, 0).wait(30_000)
    assert written() == list(numbers)


@pytest.mark.parametrize("unaligned", [False, True], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("origin", ["savepoint", "latest"])
def test_records_of_a_source_that_is_added_are_not_late_for_what_the_others_had_reached(
    cluster, tmp_path, origin, unaligned
):
    numbers, added = range(1, 1_201), range(10_001, 10_101)
    settings = {
        **CHECKPOINTS,
        "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
        "execution.checkpointing.unaligned.enabled": str(unaligned),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    }
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value % 10_000)

    def windows(settings, pause_s, *sources):
        env = cluster.get_execution_environment(settings)
        streams = []
        for numbers in sources:
            name = f"from {numbers[0]}"
            stream = env.from_source(NumberSequenceSource(numbers[0], numbers[-1]), strategy, name).uid(name)
            streams.append(stream.map(Faulty(tmp_path, pause_s)).uid(f"map {name}"))
        stream = streams[0].union(*streams[1:]) if streams[1:] else streams[0]
        by_key = stream.key_by(lambda value: value % 3).window(TumblingEventTimeWindows.of(Time.milliseconds(50)))
        lines = by_key.apply(lambda key, window, values: [" ".join(map(str, values))]).uid("windows")
        lines.sink_to(FileSink.for_row_format(str(tmp_path / "out")).build()).uid("sink")
        return env.execute_async("added")

    def written():
        return sorted(int(word) for file in (tmp_path / "out").glob("part-*") for word in file.read_text().split())

    client = windows(settings, 0.001, numbers)
    wait_until(lambda: len(written()) > 200, "results")
    if origin == "savepoint":
        location = client.stop_with_savepoint(False, str(tmp_path / "savepoints")).result(30_000)
    else:
        location = "latest"
        client.cancel().result(30_000)
    assert len(written()) < len(numbers)
    windows({**settings, "execution.state-recovery.path": location}, 0, numbers, added).wait(30_000)
    assert written() == [*numbers, *added]


def test_a_savepoint_of_a_job_that_is_over_is_refused(cluster, tmp_path):
    run(cluster, tmp_path, {}, "")
    env = cluster.get_execution_environment({})
    env.from_sequence(1, 3).print()
    client = env.execute_async()
    client.wait(30_000)
    with pytest.raises(InvalidJobError, match="could not take a snapshot"):
        client.trigger_savepoint(str(tmp_path)).result(30_000)


@pytest.fixture
def own_cluster():
    """For a test with the command, which ends all clusters of its process when its script is over."""
    with MiniCluster(slots=2) as cluster:
        yield cluster


def test_state_without_an_operator_is_refused_by_name_and_dropped_on_request(own_cluster, tmp_path, capsys):
    cluster = own_cluster
    env = cluster.get_execution_environment({})
    build(env, tmp_path)
    client = env.execute_async("recovery")
    wait_until(lambda: client._handle.describe()["status-counts"] == {"RUNNING": 4}, "all tasks run")
    location = client.stop_with_savepoint(False, str(tmp_path)).result(30_000)
    settings = {"execution.state-recovery.path": location}

    def other(settings):
        changed = cluster.get_execution_environment(settings)
        changed.from_sequence(1, 10).uid("numbers").map(str).uid("texts").print()
        return changed.execute_async("recovery")

    with pytest.raises(StateMigrationError, match="uid counts.*would be lost"):
        other(settings)
    other({**settings, "execution.state-recovery.ignore-unclaimed-state": "true"}).wait(30_000)
    # The same offline: the command tells it without running the job.
    script = tmp_path / "changed.py"
    script.write_text(
        "from flinkish.datastream import StreamExecutionEnvironment\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        "env.from_sequence(1, 10).uid('numbers').map(str).uid('texts').print()\n"
        "env.execute('changed')\n"
    )
    assert flinkish(["savepoint", "check", location, str(script)]) == 1
    shown = capsys.readouterr().out
    assert "DROPPED" in shown and "uid counts" in shown and "restored" in shown and "(texts)" in shown
    ignore = "execution.state-recovery.ignore-unclaimed-state=true"
    assert flinkish(["savepoint", "check", "-D", ignore, location, str(script)]) == 0
    assert flinkish(["savepoint", "list", str(tmp_path)]) == 0
    assert location in capsys.readouterr().out
    assert flinkish(["savepoint", "dispose", location]) == 0
    assert not Path(location.removeprefix("file://")).exists()
    assert flinkish(["savepoint", "dispose", location]) == 1
    assert "there is no such folder" in capsys.readouterr().err


def without_chance(text, location):
    """Sizes and ids of a report are others each time."""
    return re.sub(r"[0-9a-f]{32}", "ID", re.sub(r"\d+ bytes", "N bytes", text.replace(location, "PATH")))


def test_a_class_that_has_changed_is_refused_by_the_dry_run_as_the_docs_show_and_by_the_slots(tmp_path, capsys):
    page = (CHECKOUT / "flinkish" / "docs" / "state.md").read_text().partition("## Before a restore")[2]
    (changed,) = re.findall(r"```python\n(.*?)```", page.partition("```\n$ ")[0], re.DOTALL)
    command, shown_there = re.search(r"```\n(\$ .*?)\n(.*?)\n```", page, re.DOTALL).groups()
    script, counted = tmp_path / "totals.py", str(tmp_path / "counted")
    before = changed.replace("count: str", "count: int")
    take = f"""
from pathlib import Path
from tests.integration.waiting import wait_until
client = env.execute_async("totals")
wait_until(Path({counted!r}).exists, "a record is counted")
client.stop_with_savepoint(False, {str(tmp_path)!r}).result(30_000)
"""
    script.write_text(
        before.replace('env.execute("totals")', take).replace("% 3, 1)", f"% 3, 1 + bool(Path({counted!r}).touch()))")
    )
    assert flinkish(["run", "--master", "mini-cluster", str(script)]) == 0
    (folder,) = tmp_path.glob("savepoint-*")
    location = str(folder)
    capsys.readouterr()

    script.write_text(before)
    assert flinkish(["savepoint", "check", location, str(script)]) == 0
    assert "compared when they are opened" in capsys.readouterr().out.splitlines()[-1]

    script.write_text(changed)
    assert flinkish(["savepoint", "check", location, str(script)]) == 1
    shown = capsys.readouterr().out
    assert without_chance(shown.rstrip(), location) == without_chance(shown_there, command.split()[-2])

    recovery = f"execution.state-recovery.path={location}"
    assert flinkish(["run", "--master", "mini-cluster", "-D", recovery, str(script)]) == 1
    assert "count was int and is now str" in capsys.readouterr().err


def test_a_checkpoint_that_is_not_there_is_an_error_of_execute(cluster, tmp_path):
    env = cluster.get_execution_environment({"execution.state-recovery.path": str(tmp_path / "chk-3")})
    build(env, tmp_path)
    with pytest.raises(Exception, match="could not find a checkpoint"):
        env.execute_async("recovery")
    latest = cluster.get_execution_environment({"execution.state-recovery.path": "latest"})
    build(latest, tmp_path)
    with pytest.raises(InvalidJobError, match="driver's memory"):
        latest.execute_async("recovery")
