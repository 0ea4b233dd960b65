"""Shared pages, exit texts, and names of hosts."""

import os
import signal
import subprocess
import sys
import time

from flinkish.shell.process import (
    EXIT_BROKEN,
    EXIT_INTERNAL_ERROR,
    EXIT_JOB_MANAGER_LOST,
    ProgressPage,
    SlotSocketPath,
    describe_exit,
    executor_id,
    explain_end,
    host_identity,
)


def test_exit_texts_name_the_signal_or_the_meaning():
    assert "SIGKILL" in describe_exit(-signal.SIGKILL)
    assert "SIGSEGV" in describe_exit(-signal.SIGSEGV)
    assert describe_exit(EXIT_JOB_MANAGER_LOST) == "exit code 73 (lost the JobManager)"
    assert describe_exit(3) == "exit code 3"


def test_the_end_of_a_slot_is_its_own_will_only_if_it_has_said_so_in_its_page():
    page = ProgressPage.create()
    try:
        assert page.end_note() is None
        for status in (0, 3, EXIT_INTERNAL_ERROR):
            why, do = explain_end(status, page.end_note())
            assert why.startswith(f"user code ended the process with exit code {status} ") and "os._exit" in do
        page.note_end()
        assert explain_end(0, page.end_note()) == ("exit code 0 (released)", "")
        page.note_end("a descriptor was closed: \u00fc" + "x" * 10_000, "look for os.close")
        page.note_end("and so", "this does not count")
        why, do = explain_end(EXIT_BROKEN, page.end_note())
        assert why.startswith("a descriptor was closed: \u00fcxxx") and do == "look for os.close"
        assert explain_end(EXIT_INTERNAL_ERROR, page.end_note())[0].startswith("exit code 70 (an error of flinkish itself): a d")
    finally:
        page.close()


def test_a_mark_of_a_child_shows_in_the_page_of_its_parent():
    before = set(os.listdir("/proc/self/fd"))
    page = ProgressPage.create()
    assert page.last_ns() == 0
    started = time.monotonic_ns()
    code = "import sys; from flinkish.shell.process import ProgressPage; ProgressPage(int(sys.argv[1])).mark()"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(page.fd)], pass_fds=(page.fd,), env=env, check=True)
    assert started < page.last_ns() < time.monotonic_ns()
    page.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_slot_can_tell_that_its_supervisor_asks_it_to_end():
    page = ProgressPage.create()
    page.mark()
    assert not page.stop_asked()
    page.ask_to_stop()
    code = "import sys; from flinkish.shell.process import ProgressPage; print(ProgressPage(int(sys.argv[1])).stop_asked())"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(page.fd)]
    output = subprocess.run(command, pass_fds=(page.fd,), env=env, check=True, capture_output=True, text=True)
    assert output.stdout.strip() == "True"
    page.close()


def test_the_executor_is_known_from_what_its_cluster_manager_has_set():
    log_url = "http://host:8081/logPage/?appId=app-1&executorId=3&logType=stderr"
    assert executor_id({"SPARK_LOG_URL_STDERR": log_url}) == "3"
    assert executor_id({"SPARK_EXECUTOR_ID": "7", "SPARK_LOG_URL_STDERR": log_url}) == "7"
    assert executor_id({"CONTAINER_ID": "container_1_01_000002"}) == "container_1_01_000002"
    assert executor_id({}) == ""


def test_two_processes_of_one_machine_and_user_have_the_same_host_name():
    code = "from flinkish.shell.process import host_identity; print(host_identity())"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    assert output.stdout.strip() == host_identity()


def test_two_slots_never_share_a_socket_path():
    one, other = SlotSocketPath(), SlotSocketPath()
    assert one.path != other.path
    one.close()
    other.close()
