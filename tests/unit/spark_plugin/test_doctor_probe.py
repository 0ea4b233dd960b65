"""What the doctor's tasks do, as threads of this process; its port, with strangers at it; its storage
process."""

from __future__ import annotations

import inspect
import queue
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_plugin import doctor_probe
from spark_plugin.doctor import _CheckpointStorage, _mebibytes, _Meeting

SOURCE = inspect.getsource(doctor_probe)
TOKEN = "the token"
PATIENT_S = 60


def assignment(index, port, **changes):
    return {
        "index": index, "token": TOKEN, "driver_addresses": [("127.0.0.1", port)], "budget_s": PATIENT_S,
        "connect_timeout_s": PATIENT_S, "sys_path": [], "modules": ("pyarrow", "no_such_module"),
        "local_folders": [None], "storage": None, "source": SOURCE, **changes,
    }  # fmt: skip


def hold(meeting, tasks, **changes):
    """Run the tasks in threads and the meeting in this one; their reports."""
    ended = threading.Event()
    running = queue.SimpleQueue()  # an entry a task

    def one_less(_):
        running.get()
        if running.empty():
            ended.set()

    for index in range(tasks):
        running.put(index)
    threads_before = set(threading.enumerate())
    with ThreadPoolExecutor(tasks) as pool:
        probes = [pool.submit(doctor_probe.probe, assignment(i, meeting.port, **changes)) for i in range(tasks)]
        for probe in probes:
            probe.add_done_callback(one_less)
        meeting.hold(ended, time.monotonic() + PATIENT_S)
        reports = [probe.result(PATIENT_S) for probe in probes]
    assert set(threading.enumerate()) <= threads_before
    return reports


def test_tasks_meet_and_connect_to_each_other():
    with _Meeting("127.0.0.1", TOKEN, 3) as meeting:
        reports = hold(meeting, 3)
        assert meeting.over and meeting.together_ms is not None
        assert [meeting.reports[i] for i in range(3)] == reports
    assert {report["address"] for report in reports} == {"127.0.0.1"}
    for index, report in enumerate(reports):
        assert sorted(peer["index"] for peer in report["peers"]) == sorted({0, 1, 2} - {index})
        assert [peer["failure"] for peer in report["peers"]] == ["", ""]
        assert abs(report["clock_ahead_ms"]) - report["clock_error_ms"] < 1_000
        assert report["local_disk"][0]["failure"] == "" and report["local_disk"][0]["free_bytes"] > 0
        assert report["modules"]["pyarrow"] and report["modules"]["no_such_module"] is None


def test_a_driver_that_nobody_reaches_is_reported_with_the_reason():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with _Meeting("127.0.0.1", TOKEN, 2) as meeting:
        reports = hold(meeting, 2, driver_addresses=[("127.0.0.1", port)])
        assert meeting.over and meeting.reports == {}
    for report in reports:
        assert report["driver"] == [{"address": f"127.0.0.1:{port}", "failure": "Connection refused"}]
        assert "peers" not in report


def test_a_task_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("spark_plugin.doctor._MISSING_TASKS_S", 0.2)
    with _Meeting("127.0.0.1", TOKEN, 2) as meeting:
        (report,) = hold(meeting, 1)
        assert meeting.over and report["peers"] == [] and meeting.together_ms is None


@pytest.mark.parametrize(
    "garbage",
    [
        b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]\n",
        b'{"token": "another", "index": 0}\n',
        b'{"index": 0}\n',
        b"x" * (2 * doctor_probe.LINE_BYTES_MAX),
    ],
    ids=["empty", "http", "list", "token", "none", "long"],
)
def test_strangers_at_the_port_are_dropped_and_disturb_nothing(garbage):
    with _Meeting("127.0.0.1", TOKEN, 1) as meeting:
        with socket.create_connection(("127.0.0.1", meeting.port), PATIENT_S) as stranger:
            talking = threading.Thread(target=_send, args=(stranger, garbage))
            talking.start()
            (report,) = hold(meeting, 1)
            assert meeting.over and meeting.reports == {0: report}
            deadline_s = time.monotonic() + PATIENT_S
            while not _is_closed(stranger):  # its bytes may come after the task has reported
                assert time.monotonic() < deadline_s
                meeting.hold(threading.Event(), deadline_s)
            talking.join(PATIENT_S)


def _is_closed(sock):
    try:
        return sock.recv(100, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True  # closed with garbage unread


def _send(sock, data):
    try:
        sock.sendall(data)
    except OSError:
        pass  # dropped before all of it was sent, as it should be


def test_what_a_storage_check_writes_and_makes_is_gone_afterwards(tmp_path):
    (tmp_path / "there").mkdir()
    storage = _CheckpointStorage(SOURCE, str(tmp_path / "there" / "not" / "yet"), TOKEN, PATIENT_S)
    assert storage.prepare() == ""
    use = {"action": "use", "index": 3, **storage.assignment()}
    assert doctor_probe.run_storage_process(SOURCE, use, PATIENT_S) == {"failure": ""}
    assert (tmp_path / "there" / "not" / "yet").is_dir()
    elsewhere = {**use, "uri": str(tmp_path / "there")}
    assert "another disk" in doctor_probe.use_storage(**elsewhere)["failure"]
    storage.remove()
    assert list((tmp_path / "there").iterdir()) == []


def test_a_folder_that_a_job_has_begun_to_use_is_kept(tmp_path):
    storage = _CheckpointStorage(SOURCE, str(tmp_path / "new"), TOKEN, PATIENT_S)
    assert storage.prepare() == ""
    (tmp_path / "new" / "chk-1").write_text("of a job")
    storage.remove()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["chk-1"]


def test_storage_that_cannot_be_written_is_said_and_left_as_it_was(tmp_path):
    (tmp_path / "file").write_text("in the way")
    storage = _CheckpointStorage(SOURCE, str(tmp_path / "file" / "checkpoints"), TOKEN, PATIENT_S)
    assert "Not a directory" in storage.prepare()
    assert storage.assignment() is None
    storage.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_storage_that_hangs_is_given_up_and_its_process_killed(tmp_path):
    source = f"import time\ntime.sleep(600)  # {tmp_path}"
    began_s = time.monotonic()
    answer = doctor_probe.run_storage_process(source, {}, 0.5)
    assert answer == {"failure": "no answer within 0.5 s"} and time.monotonic() - began_s < PATIENT_S
    running = [_command_line(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert any(running) and not [line for line in running if str(tmp_path).encode() in line]


def _command_line(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it ended meanwhile


def test_a_storage_process_that_breaks_gives_its_last_words():
    assert doctor_probe.run_storage_process("raise ImportError('no pyarrow')", {}, PATIENT_S) == {
        "failure": "ImportError: no pyarrow"
    }


@pytest.mark.parametrize("text, mib", [("2g", 2048), ("384", 384), ("512mb", 512), ("1t", 1 << 20), ("2048k", 2)])
def test_memory_sizes_are_read_as_spark_writes_them(text, mib):
    assert _mebibytes(text) == mib


def test_an_address_space_limit_is_seen():
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    assert doctor_probe._address_space_bytes() == (None if before[0] == resource.RLIM_INFINITY else before[0])
