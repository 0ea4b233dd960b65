"""What is left when jobs and clusters on local processes have ended, in every way."""

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from flinkish.datastream import StreamExecutionEnvironment
from flinkish.errors import InvalidJobError, JobCancelledError
from flinkish.testing.mini_cluster import MiniCluster

CHECKOUT = Path(__file__).resolve().parents[2]


def leftovers():
    """Children, threads, sockets and loops of this process, and temporary folders of flinkish."""
    children = set()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        try:
            children.update((task / "children").read_text().split())
        except FileNotFoundError:
            continue  # the thread has just ended
    threads = sorted(thread.name for thread in threading.enumerate() if "flinkish" in thread.name)
    open_ends = []
    for descriptor in Path(f"/proc/{os.getpid()}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:
            continue
        if target.startswith(("socket:", "anon_inode:", "pipe:", "/memfd:")):
            open_ends.append(target)
    return {
        "children": sorted(children),
        "threads": threads,
        "open": sorted(open_ends),
        "folders": folders(),
    }


def folders():
    return sorted(path.name for path in Path(tempfile.gettempdir()).glob("flinkish*"))


def nothing_is_left_since(before):
    # Threads of user code (an enumerator's) are told to end, but close() does not wait for them.
    for thread in threading.enumerate():
        if "flinkish" in thread.name and thread.name not in before["threads"]:
            thread.join(5)
    return leftovers() == before


def numbers(env):
    return env.from_sequence(1, 100).rebalance().map(lambda n: n + 1)


def forever(env):
    return env.from_sequence(1, 2**60).rebalance().map(lambda n: n + 1).filter(lambda n: n < 0)


def test_the_mini_cluster_target_runs_a_job_in_slots_of_its_own_and_leaves_nothing():
    before = leftovers()
    env = StreamExecutionEnvironment.get_execution_environment(
        {"execution.target": "mini-cluster", "parallelism.default": 2}
    )
    numbers(env).print()
    env.execute()
    assert nothing_is_left_since(before)


def test_a_job_that_fails_leaves_nothing_either():
    before = leftovers()
    env = StreamExecutionEnvironment.get_execution_environment({"execution.target": "mini-cluster"})
    numbers(env).map(lambda n: 1 // (n - 50)).print()
    with pytest.raises(Exception, match="ZeroDivisionError"):
        env.execute()
    assert nothing_is_left_since(before)


def test_a_closed_cluster_leaves_nothing_and_takes_no_job(collect):
    before = leftovers()
    cluster = MiniCluster(slots=2)
    env = cluster.get_execution_environment()
    assert sorted(collect(numbers(env))) == list(range(2, 102))
    forever(env).print()
    client = env.execute_async()
    cluster.close()
    with pytest.raises(JobCancelledError):
        client.wait()
    assert nothing_is_left_since(before)
    env.from_collection([1]).print()
    with pytest.raises(InvalidJobError, match="closed"):
        env.execute()


SCRIPT = """
import sys
sys.path.insert(0, {checkout!r})
from dataclasses import dataclass
from flinkish.datastream import StreamExecutionEnvironment

@dataclass
class Reading:
    number: int

env = StreamExecutionEnvironment.get_execution_environment(
    {{"execution.target": "mini-cluster", "parallelism.default": 2}}
)
def reading(number):
    if number == 1:
        with open({bell!r}, "w") as pipe:
            pipe.write("\\n")
    return Reading(number)

stream = env.from_sequence(1, {count}).map(reading).key_by(lambda r: r.number % 2)
stream.reduce(lambda a, b: Reading(a.number + b.number)).filter(lambda r: r.number > {above}).print()
"""


def script(tmp_path, bell, count, above, end):
    path = tmp_path / "job.py"
    path.write_text(SCRIPT.format(checkout=str(CHECKOUT), bell=bell.path, count=count, above=above) + end)
    return path


@pytest.fixture
def start():
    """Starts a script in a session of its own; a test that fails leaves nothing of it."""
    started = []

    def run(path):
        process = subprocess.Popen(
            [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
            # A shell starts background commands with SIGINT ignored, and that is inherited by all below.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()  # its slots end with it
            process.communicate()


def members(session):
    """Processes of a session that are still there."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(folder.name))
    return found


def test_classes_of_main_travel_as_records_and_results(tmp_path, bell, start):
    process = start(script(tmp_path, bell, 10, 0, "env.execute()"))
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    lines = [line.partition("> ")[2] for line in output.splitlines()]
    assert "Reading(number=25)" in lines and "Reading(number=30)" in lines
    assert members(process.pid) == []


def test_a_script_that_never_waits_for_its_job_leaves_nothing(tmp_path, bell, start):
    before = folders()
    process = start(script(tmp_path, bell, 2**60, 2**200, f"env.execute_async()\nopen({bell.path!r}).readline()"))
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert "jobs that still run are cancelled" in errors
    assert members(process.pid) == [] and folders() == before


def test_ctrl_c_ends_the_job_and_leaves_nothing(tmp_path, bell, start):
    before = folders()
    process = start(script(tmp_path, bell, 2**60, 2**200, "env.execute()"))
    bell.wait(process=process)
    assert len(members(process.pid)) == 4, "the driver, two slots, and what forks them"
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors.splitlines()[-1]
    assert members(process.pid) == [] and folders() == before


def test_a_driver_that_is_killed_takes_its_slots_along(tmp_path, bell, start):
    before = folders()
    process = start(script(tmp_path, bell, 2**60, 2**200, "env.execute()"))
    bell.wait(process=process)
    ends = [os.pidfd_open(member) for member in members(process.pid)]
    assert len(ends) == 4, "the driver, two slots, and what forks them"
    process.kill()
    process.communicate(timeout=60)
    for end in ends:
        assert select.select([end], [], [], 20)[0], "a process outlives its driver"
        os.close(end)
    assert members(process.pid) == []
    assert folders() == before
