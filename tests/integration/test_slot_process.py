"""Real slot processes under a real supervisor; the JobManager is a listener of the test."""

import ast
import glob
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from flinkish.errors import AuthenticationError, ConnectionLostError
from flinkish.messages.control import (
    CancelTasks,
    DeployTasks,
    Heartbeat,
    KillSlot,
    PeerHello,
    RegisterSlot,
    RegisterSupervisor,
    RegistrationRefused,
    ReleaseSlot,
    StartTasks,
    StopSupervisor,
    SupervisorHeartbeat,
    TasksDeployed,
)
from flinkish.messages.deployment import ExecutionAttemptID, TaskDeploymentDescriptor
from flinkish.messages.launch import SlotLaunch
from flinkish.shell.connections import ROLE_JOB_MANAGER, ROLE_SLOT, Listener, connect
from flinkish.shell.event_loop import EventLoop
from flinkish.shell.process import EXIT_JOB_MANAGER_LOST, EXIT_TERMINATED, host_identity
from flinkish.shell.supervisor import run_supervisor
from tests.integration.leftovers import ancestors, descendants

SECRET = b"s" * 32
WAIT_S = 60


class FakeJobManager:
    """The protocol peer: remembers who registered and what they said."""

    def __init__(self):
        self.loop = EventLoop()
        self.listener = Listener(self.loop, SECRET, ROLE_JOB_MANAGER, on_connection=self._accept)
        self.connections = []
        self.supervisors = {}  # task index -> (connection, RegisterSupervisor)
        self.slots = {}  # slot id -> list of (connection, RegisterSlot), oldest first
        self.said = []  # everything but heartbeats
        self.reports = []
        self.lost = set()
        self.silent = False
        self._beat()

    def _beat(self):
        for connection in self.connections:
            if not connection.closed and not self.silent:
                connection.send_message(Heartbeat())
        self.loop.call_later(200, self._beat)

    def _accept(self, connection):
        self.connections.append(connection)
        connection.on_message = self._message
        connection.on_close = lambda connection, error: self.lost.add(connection)

    def _message(self, connection, message):
        if isinstance(message, RegisterSupervisor):
            self.supervisors[message.task_index] = (connection, message)
        elif isinstance(message, RegisterSlot):
            self.slots.setdefault(message.slot_id, []).append((connection, message))
        elif isinstance(message, SupervisorHeartbeat):
            self.reports += message.reports
        else:
            self.said.append(message)

    def until(self, condition):
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, (self.slots, self.reports[-4:], self.said)
            self.loop.run_once(10)

    def registered(self, slot_id, times=1):
        """The newest process of a slot, once `times` of them have registered."""
        self.until(lambda: len(self.slots.get(slot_id, ())) >= times)
        return self.slots[slot_id][-1]

    def exits(self, slot_id):
        return [r for r in self.reports if r.slot_id == slot_id and r.exit_status is not None]

    def launch(self, *slot_ids, **options):
        options.setdefault("heartbeat_interval_ms", 100)
        return SlotLaunch(
            lease="lease",
            task_index=0,
            slot_ids=slot_ids,
            job_manager_addresses=(self.listener.address,),
            secret=SECRET,
            **options,
        )

    def close(self):
        self.listener.close()
        for connection in self.connections:
            connection.on_close = None
            connection.close()
        self.loop.close()


class Supervised:
    """A supervisor in a thread of its own, as LocalLauncher runs it."""

    def __init__(self, launch):
        self.stop = threading.Event()
        self.result = []
        self.thread = threading.Thread(target=self._run, args=(launch,))
        self.thread.start()

    def _run(self, launch):
        try:
            self.result.append(run_supervisor(launch, spark_attempt=3, stop=self.stop.is_set))
        except Exception as error:
            self.result.append(error)

    def ended(self):
        return not self.thread.is_alive()

    def end(self):
        self.stop.set()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()
        return self.result[0]


def parent(pid):
    return next(ancestors(pid))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def traces():
    """What a slot could leave behind: processes, descriptors, files, Unix sockets."""
    with open("/proc/net/unix") as file:
        sockets = {line.split()[-1] for line in file if "@flinkish-" in line}
    ours = {name for name in sockets if name.split("-")[1] in {str(pid) for pid in descendants()}}
    return descendants(), len(os.listdir("/proc/self/fd")), set(glob.glob(tempfile.gettempdir() + "/flinkish*")), ours


@pytest.fixture
def job_manager():
    before = traces()
    manager = FakeJobManager()
    supervised = []

    def supervise(*slot_ids, **options):
        supervised.append(Supervised(manager.launch(*slot_ids, **options)))
        return supervised[-1]

    manager.supervise = supervise
    yield manager
    for one in supervised:
        one.end()
    manager.close()
    assert traces() == before, "something was left behind"


def deploy(job_id="job", attempt=0, **fields):
    values = dict(
        job_name="test",
        tasks=(),
        peers={},
        configuration={},
        main_classes=b"",
        sys_path=(),
        initial_credits=4,
    )
    return DeployTasks(job_id=job_id, attempt=attempt, **{**values, **fields})


def test_a_supervisor_registers_starts_its_slots_and_stops_when_told(job_manager):
    supervised = job_manager.supervise("a", "b")
    for slot_id in ("a", "b"):
        connection, registration = job_manager.registered(slot_id)
        assert registration.lease == "lease"
        assert registration.pid in descendants()
        assert registration.address.host == host_identity()
        assert registration.address.tcp[0] == "127.0.0.1"
    connection, registration = job_manager.supervisors[0]
    assert (registration.slot_ids, registration.spark_attempt) == (("a", "b"), 3)
    job_manager.until(lambda: {r.slot_id for r in job_manager.reports} == {"a", "b"})
    connection.send_message(StopSupervisor("the cluster is closed"))
    job_manager.until(supervised.ended)
    assert supervised.end() == "the cluster is closed"
    assert len(job_manager.exits("a")) == len(job_manager.exits("b")) == 1


def test_a_released_slot_exits_with_zero_and_a_fresh_process_registers(job_manager):
    job_manager.supervise("a")
    connection, first = job_manager.registered("a")
    connection.send_message(ReleaseSlot("the job is over"))
    _, second = job_manager.registered("a", times=2)
    assert second.pid != first.pid
    assert [(r.pid, r.exit_status) for r in job_manager.exits("a")] == [(first.pid, 0)]
    assert connection in job_manager.lost


def test_a_slot_that_is_killed_is_reported_with_the_signal_and_replaced_and_the_other_lives(job_manager):
    job_manager.supervise("a", "b")
    _, first = job_manager.registered("a")
    _, other = job_manager.registered("b")
    os.kill(first.pid, signal.SIGKILL)
    _, second = job_manager.registered("a", times=2)
    assert second.pid != first.pid and alive(other.pid)
    (report,) = job_manager.exits("a")
    assert report.exit_status == -signal.SIGKILL and "SIGKILL" in report.detail
    assert len(job_manager.slots["b"]) == 1


def test_the_report_of_a_slot_that_crashed_in_native_code_has_its_stack(job_manager):
    job_manager.supervise("a")
    _, first = job_manager.registered("a")
    os.kill(first.pid, signal.SIGSEGV)
    job_manager.until(lambda: job_manager.exits("a"))
    report = job_manager.exits("a")[0]
    assert "SIGSEGV" in report.detail and ".py, line " in report.detail and "\n" not in report.detail
    assert "the stacks of all threads" in report.do
    job_manager.registered("a", times=2)


def test_kill_slot_dumps_the_stacks_kills_and_replaces(job_manager):
    job_manager.supervise("a")
    _, first = job_manager.registered("a")
    supervisor, _ = job_manager.supervisors[0]
    supervisor.send_message(KillSlot("a", first.pid + 1, "it was meant for another process"))
    supervisor.send_message(KillSlot("a", first.pid, "the task does not end"))
    supervisor.send_message(KillSlot("unknown", first.pid, "nothing happens"))
    job_manager.until(lambda: job_manager.exits("a"))
    report = job_manager.exits("a")[0]
    assert report.pid == first.pid and report.exit_status == -signal.SIGKILL
    assert "the task does not end" in report.detail
    assert ".py, line " in report.detail
    job_manager.registered("a", times=2)


def test_a_slot_that_stands_still_shows_in_its_progress_and_a_stop_ends_it_all_the_same(job_manager):
    supervised = job_manager.supervise("a")
    _, slot = job_manager.registered("a")
    os.kill(slot.pid, signal.SIGSTOP)
    job_manager.until(lambda: job_manager.reports[-1].progress_age_ms > 1_500)
    supervised.stop.set()
    job_manager.until(supervised.ended)
    assert not alive(slot.pid)


def test_an_idle_slot_shows_progress(job_manager):
    job_manager.supervise("a")
    job_manager.registered("a")
    job_manager.until(lambda: job_manager.reports and job_manager.reports[-1].progress_age_ms < 100)
    del job_manager.reports[:]
    job_manager.until(lambda: len(job_manager.reports) >= 15)
    assert max(report.progress_age_ms for report in job_manager.reports) < 1_400


def test_a_supervisor_and_its_slots_end_when_the_job_manager_closes_the_connection(job_manager):
    supervised = job_manager.supervise("a")
    _, slot = job_manager.registered("a")
    for connection in job_manager.connections:
        connection.close()
    job_manager.until(supervised.ended)
    assert "lost the JobManager" in supervised.end()
    assert not alive(slot.pid)


def test_a_supervisor_and_its_slots_end_when_the_job_manager_is_silent(job_manager):
    supervised = job_manager.supervise("a", heartbeat_timeout_ms=1_500)
    _, slot = job_manager.registered("a")
    job_manager.silent = True
    job_manager.until(supervised.ended)
    assert "no heartbeat" in supervised.end()
    assert not alive(slot.pid)


def test_a_slot_that_the_system_does_not_run_is_killed_and_replaced_after_the_heartbeat_timeout(job_manager):
    job_manager.supervise("a", "b", heartbeat_timeout_ms=1_000)
    _, stopped = job_manager.registered("a")
    _, other = job_manager.registered("b")
    os.kill(stopped.pid, signal.SIGSTOP)
    _, second = job_manager.registered("a", times=2)
    (report,) = job_manager.exits("a")
    assert (report.pid, report.exit_status) == (stopped.pid, -signal.SIGKILL)
    assert "stopped (SIGSTOP)" in report.detail and "heartbeat.timeout" in report.detail
    assert alive(other.pid) and not job_manager.exits("b")
    assert parent(second.pid) == parent(other.pid), "the server that forks them is the same"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_slots_end_with_the_server_that_forks_them_and_a_new_one_brings_new_ones(job_manager, how):
    job_manager.supervise("a", "b", heartbeat_timeout_ms=1_000)
    old = [job_manager.registered(slot_id)[1].pid for slot_id in ("a", "b")]
    server = parent(old[0])
    assert parent(old[1]) == server
    os.kill(server, how)
    new = [job_manager.registered(slot_id, times=2)[1].pid for slot_id in ("a", "b")]
    job_manager.until(lambda: not any(alive(pid) for pid in (server, *old)))
    assert parent(new[0]) == parent(new[1]) != server
    for slot_id in ("a", "b"):
        (report,) = job_manager.exits(slot_id)
        assert "it ended with the process that forks slots: killed by signal 9" in report.detail


def test_a_sigterm_to_all_processes_reaches_the_slots_and_not_the_server_that_forks_them(job_manager):
    job_manager.supervise("a")
    _, first = job_manager.registered("a")
    server = parent(first.pid)
    for pid in (server, first.pid):
        os.kill(pid, signal.SIGTERM)
    _, second = job_manager.registered("a", times=2)
    assert [report.exit_status for report in job_manager.exits("a")] == [EXIT_TERMINATED]
    assert parent(second.pid) == server


TELLING = """
import gc, os, random, signal, sys, threading
import numpy.random

def tell(path):
    blocked = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    settings = ("marked" in sys.modules, gc.get_threshold()[0], blocked, threading.active_count(), os.environ.get("MARKED"))
    print(repr((settings, (random.random(), numpy.random.random()))), file=open(path, "a"))
    sys.modules["marked"] = sys
    os.environ["MARKED"] = "yes"
    gc.set_threshold(1)
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


def test_what_one_job_imports_and_sets_does_not_reach_the_next_and_random_numbers_differ(job_manager, tmp_path):
    (tmp_path / "telling.py").write_text(TELLING)
    told = tmp_path / "told"
    # A pickle that calls telling.tell(path), and is an empty dict.
    classes = b"ctelling\ntell\n(S" + repr(str(told)).encode() + b"\ntR0}."
    job_manager.supervise("a", sys_path=(str(tmp_path),))
    for times in (1, 2, 3):
        connection, _ = job_manager.registered("a", times=times)
        connection.send_message(deploy(main_classes=classes))
        job_manager.until(lambda: len(job_manager.said) >= times)
        connection.send_message(ReleaseSlot())
    settings, numbers = zip(*map(ast.literal_eval, told.read_text().splitlines()))
    assert len(settings) == 3 and len(set(settings)) == 1
    assert settings[0] == (False, settings[0][1], False, 1, None) and settings[0][1] > 1
    assert all(len(set(drawn)) == 3 for drawn in zip(*numbers))


def test_a_slot_that_loses_only_its_own_connection_ends_and_is_replaced(job_manager):
    job_manager.supervise("a")
    connection, first = job_manager.registered("a")
    connection.close()
    job_manager.registered("a", times=2)
    assert job_manager.exits("a")[0].exit_status == EXIT_JOB_MANAGER_LOST


def test_a_refused_supervisor_ends_its_slots(job_manager):
    supervised = job_manager.supervise("a")
    job_manager.registered("a")
    job_manager.supervisors[0][0].send_message(RegistrationRefused("another one was first"))
    job_manager.until(supervised.ended)
    assert supervised.end() == "refused by the JobManager: another one was first"


def test_a_supervisor_without_a_job_manager_fails_with_the_addresses_it_tried():
    before = traces()
    manager = FakeJobManager()
    launch = manager.launch("a", connect_timeout_ms=500)
    manager.close()
    with pytest.raises(ConnectionLostError) as caught:
        run_supervisor(launch)
    host, port = launch.job_manager_addresses[0]
    assert f"{host}:{port}" in str(caught.value)
    assert traces() == before


def test_a_supervisor_with_a_wrong_secret_fails_and_starts_nothing(job_manager):
    launch = job_manager.launch("a")
    object.__setattr__(launch, "secret", b"x" * 32)
    supervised = Supervised(launch)
    job_manager.until(supervised.ended)
    assert isinstance(supervised.end(), AuthenticationError)
    assert not job_manager.slots and not job_manager.supervisors


def test_a_slot_whose_start_fails_again_and_again_is_tried_with_growing_pauses(job_manager, monkeypatch, tmp_path):
    broken = tmp_path / "broken-python"
    broken.write_text("#!/bin/sh\nexit 9\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    supervised = job_manager.supervise("a")
    started = time.monotonic()
    job_manager.until(lambda: len(job_manager.exits("a")) >= 4)
    assert time.monotonic() - started > 0.5
    assert {report.exit_status for report in job_manager.exits("a")} == {9}
    supervised.end()
    assert len(job_manager.exits("a")) < 8


SUPERVISOR_PROGRAM = """
import pickle, sys
from flinkish.shell.supervisor import run_supervisor
run_supervisor(pickle.load(sys.stdin.buffer))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_slots_die_with_the_process_of_their_supervisor(job_manager, how):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR_PROGRAM], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
    )
    parent.stdin.write(pickle.dumps(job_manager.launch("a", "b")))
    parent.stdin.close()
    pids = [job_manager.registered(slot_id)[1].pid for slot_id in ("a", "b")]
    assert all(alive(pid) for pid in pids)
    parent.send_signal(how)
    parent.wait(WAIT_S)
    job_manager.until(lambda: not any(alive(pid) for pid in pids))


def test_a_slot_survives_the_interrupt_key_of_a_terminal(job_manager):
    job_manager.supervise("a")
    connection, slot = job_manager.registered("a")
    os.kill(slot.pid, signal.SIGINT)
    connection.send_message(deploy())
    job_manager.until(lambda: TasksDeployed("job", 0) in job_manager.said)
    assert alive(slot.pid) and not job_manager.exits("a")


def test_a_slot_answers_a_deployment_and_ignores_messages_of_other_attempts(job_manager):
    job_manager.supervise("a")
    connection, slot = job_manager.registered("a")
    connection.send_message(StartTasks("job", 0))
    connection.send_message(CancelTasks("other job", ()))
    connection.send_message(deploy(attempt=0))
    connection.send_message(deploy(attempt=1))
    job_manager.until(lambda: TasksDeployed("job", 1) in job_manager.said)
    connection.send_message(StartTasks("job", 1))
    connection.send_message(ReleaseSlot())
    job_manager.until(lambda: job_manager.exits("a"))
    assert job_manager.exits("a")[0].exit_status == 0


def test_classes_that_cannot_be_loaded_fail_the_attempt_and_not_the_slot(job_manager):
    job_manager.supervise("a")
    connection, slot = job_manager.registered("a")
    task = TaskDeploymentDescriptor(ExecutionAttemptID("job", 0, "v", 0), "v", 1, 128, b"", (), ())
    connection.send_message(deploy(main_classes=b"not a pickle", tasks=(task,)))
    job_manager.until(lambda: job_manager.said)
    (failed,) = job_manager.said
    assert failed.state == "FAILED" and "__main__" in str(failed.failure.error)
    connection.send_message(deploy(attempt=1))
    job_manager.until(lambda: TasksDeployed("job", 1) in job_manager.said)


def test_slots_take_peers_by_unix_socket_and_tcp_only_with_the_secret(job_manager):
    job_manager.supervise("a")
    _, slot = job_manager.registered("a")
    for address in (slot.address.unix_path, slot.address.tcp):
        states = []
        good = connect(job_manager.loop, address, SECRET, ROLE_SLOT, on_ready=states.append)
        job_manager.until(lambda: states)
        bad_states = []
        connect(
            job_manager.loop,
            address,
            b"x" * 32,
            ROLE_SLOT,
            on_close=lambda connection, error: bad_states.append(error),
        )
        job_manager.until(lambda: bad_states)
        assert isinstance(bad_states[0], AuthenticationError)
        # Records before the attempt is known are refused as well.
        closed = []
        good.on_close = lambda connection, error: closed.append(error)
        good.send_message(PeerHello("nobody's job", 0, "b"))
        good.send(1, 1, b"records")
        job_manager.until(lambda: closed)
    assert alive(slot.pid)


def test_the_standard_library_comes_before_the_working_folder(job_manager, tmp_path, monkeypatch):
    for name in ("random", "logging", "pickle"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    monkeypatch.chdir(tmp_path)
    job_manager.supervise("a")
    job_manager.registered("a")
    assert not job_manager.exits("a")


def test_the_paths_of_the_driver_reach_the_slot(job_manager, tmp_path):
    (tmp_path / "only_here.py").write_text("class Loaded:\n    pass\n")
    job_manager.supervise("a", sys_path=(str(tmp_path), "/not/there"))
    connection, _ = job_manager.registered("a")
    # A pickle of {"Loaded": only_here.Loaded}: unpickling imports the module.
    classes = b"(S'Loaded'\nconly_here\nLoaded\nd."
    connection.send_message(deploy(main_classes=classes))
    job_manager.until(lambda: job_manager.said)
    assert job_manager.said == [TasksDeployed("job", 0)]
