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

from flinkish.connectors.discarding import DiscardingSink
from flinkish.datastream import StreamExecutionEnvironment
from flinkish.datastream.functions import MapFunction
from flinkish.errors import InvalidJobError, JobCancelledError
from flinkish.testing.mini_cluster import MiniCluster
from tests.integration.waiting import wait_until

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
        {first}
        with open({bell!r}, "w") as pipe:
            pipe.write("\\n")
    return Reading(number)

stream = env.from_sequence(1, {count}).map(reading).key_by(lambda r: r.number % 2)
stream.reduce(lambda a, b: Reading(a.number + b.number)).filter(lambda r: r.number > {above}).print()
"""


def script(tmp_path, bell, count, above, end, first="pass"):
    """``first``: what a slot does before the bell rings."""
    path = tmp_path / "job.py"
    text = SCRIPT.format(checkout=str(CHECKOUT), bell=bell.path, count=count, above=above, first=first)
    path.write_text(text + end)
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


CHILDREN = """import subprocess; subprocess.Popen("sleep 1000 & sleep 1000 & wait", shell=True)"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_driver_that_is_killed_takes_along_its_slots_and_what_user_code_has_started(
    tmp_path, bell, start, monkeypatch, end
):
    monkeypatch.setenv("FLINKISH_RUN_DIR", str(tmp_path / "drivers"))
    before = folders()
    process = start(script(tmp_path, bell, 2**60, 2**200, "env.execute()", CHILDREN))
    bell.wait(process=process)
    # The driver, two slots, and what forks them; a shell and what it runs.
    wait_until(lambda: len(members(process.pid)) == 4 + 3, "all processes")
    ends = [os.pidfd_open(member) for member in members(process.pid)]
    assert len(list((tmp_path / "drivers").iterdir())) == 1
    process.send_signal(end)
    process.communicate(timeout=60)
    for descriptor in ends:
        assert select.select([descriptor], [], [], 20)[0], "a process outlives its driver"
        os.close(descriptor)
    assert members(process.pid) == []
    assert folders() == before
    assert not (tmp_path / "drivers").exists(), "the file by which it was found"


class ClosesLate(MapFunction):
    def __init__(self, gate):
        self.gate = gate

    def map(self, value):
        return value

    def close(self):
        open(self.gate).close()


def test_ctrl_c_ends_the_wait_for_the_end_of_a_cluster_and_not_that_end(tmp_path, bell):
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    before, handler = leftovers(), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        cluster = MiniCluster(slots=1)
        env = cluster.get_execution_environment()
        env.from_sequence(1, 2**60).map(bell.at_first_record()).map(ClosesLate(gate)).sink_to(DiscardingSink())
        client = env.execute_async()
        bell.wait()

        def interrupt():
            wait_until(lambda: cluster.job_manager._tearing_down, "that it closes")
            os.kill(os.getpid(), signal.SIGINT)

        for _ in range(2):
            presses = threading.Thread(target=interrupt)
            with pytest.raises(KeyboardInterrupt):
                presses.start()
                cluster.close()
            presses.join()
        assert cluster.closed and not client.status.is_terminal_state()
        with open(gate, "w"), pytest.raises(JobCancelledError):
            client.wait(20_000)
        cluster.close()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert nothing_is_left_since(before)


FORKS = """
import os
client = env.execute_async()
open({bell!r}).readline()

def fork(*actions):
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        for action in actions:
            try:
                action()
            except Exception as error:
                print(error.what)
        sys.exit()  # with all that Python does at the end of a process
    return pid

os.waitpid(fork(client.wait, client.cancel, client.get_metrics), 0)
hold, release = os.pipe()
lives = fork(lambda: (os.close(release), os.read(hold, 1)))
print(client.status.name)
client.cancel().result(20_000)
os.close(release)
os.waitpid(lives, 0)
"""


def test_a_forked_process_neither_uses_nor_ends_the_cluster_of_its_parent(tmp_path, bell, start):
    before = folders()
    process = start(script(tmp_path, bell, 2**60, 2**200, FORKS.format(bell=bell.path)))
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert output.splitlines() == ["could not use a cluster of another process"] * 3 + ["RUNNING"]
    # One that lives still has copies of what connects the cluster's processes.
    assert "did not end" not in errors
    assert members(process.pid) == [] and folders() == before
