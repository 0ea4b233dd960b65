"""The executor of a slot: in the message, by the thread, by a forked child; deaths, drops, order."""

import os
import signal
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from flinkish.errors import CheckpointFailedError, UserError
from flinkish.messages.checkpoints import (
    JOB_MANAGER_STORAGE,
    CheckpointOptions,
    FileHandle,
    InlineBytes,
    KeyGroupRange,
    SnapshotKind,
)
from flinkish.messages.deployment import ExecutionAttemptID
from flinkish.operators.snapshots import KeyedStateToWrite, TaskSnapshot
from flinkish.shell.event_loop import EventLoop
from flinkish.shell.snapshot_executor import SnapshotExecutor
from flinkish.state.changelog import LogAddition
from flinkish.state.keyed_snapshot import KeyedSnapshotReader, StateEntries, StateKind, StateMeta
from tests.integration.leftovers import children

ALL = KeyGroupRange(0, 127)


class Slot:
    def __init__(self, location):
        self.loop = EventLoop()
        self.location = str(location)
        self.shared_location = str(location.parent / "shared")
        self.stored = {}
        self.failed = {}
        self.in_flight = {}
        self.executor = SnapshotExecutor(self.loop, self.on_stored, self.on_failed, self.on_in_flight_stored)
        self.executor.configure({})
        self.children_before = children()  # other tests leave some

    def on_stored(self, execution, checkpoint_id, handles, async_ms, uploaded_bytes):
        self.stored[execution.subtask_index, checkpoint_id] = handles, uploaded_bytes

    def on_in_flight_stored(self, execution, checkpoint_id, content, parts):
        self.in_flight[checkpoint_id] = content

    def on_failed(self, execution, checkpoint_id, error):
        self.failed[execution.subtask_index, checkpoint_id] = error

    def snapshot(self, table, checkpoint_id=1, subtask=0, log=None):
        def states():
            meta = StateMeta("s", StateKind.VALUE)
            return [StateEntries(meta, list(table), list(table.values()))]

        addition = None
        if log is not None:
            addition = LogAddition(1, checkpoint_id, states, len(table), (), 0, lambda addition, file: log.append(file))
        part = KeyedStateToWrite("op", states, len(table), ALL, 128, addition=addition)
        options = CheckpointOptions(SnapshotKind.CHECKPOINT, self.location, self.shared_location)
        execution = ExecutionAttemptID("job", 0, "v", subtask)
        return TaskSnapshot(execution, checkpoint_id, options, {"op": part})

    def wait(self):
        assert self.loop.run_until(lambda: self.stored or self.failed, 30_000)

    def read(self, key=(0, 1)):
        ((handle,),) = self.stored[key][0].values()
        return self.read_file(handle.content)

    def read_file(self, content):
        reader = KeyedSnapshotReader(self.executor.open_content(content))
        found = {}
        for block in reader.read("s"):
            found.update(zip(block.keys, block.values))
        return content, found


@pytest.fixture
def slot(tmp_path):
    made = Slot(tmp_path / "chk-1")
    yield made
    made.executor.close()
    made.loop.close()


def large(count=5_000):
    return {number: f"value {number}" for number in range(count)}


def test_nothing_keyed_is_stored_at_once(slot):
    snapshot = slot.snapshot({})
    slot.executor.store(TaskSnapshot(snapshot.execution, 1, snapshot.options))
    assert slot.stored == {(0, 1): ({}, 0)}


def test_small_state_is_in_the_message_before_store_returns(slot):
    slot.executor.store(slot.snapshot({"a": 1}))
    content, found = slot.read()
    assert isinstance(content, InlineBytes) and found == {"a": 1}
    assert not os.path.exists(slot.location)


def test_middling_state_is_written_here_and_the_thread_makes_the_file(slot, monkeypatch):
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a fork for 100 kB"))
    table = {number: f"{number}" * 100 for number in range(500)}
    slot.executor.store(slot.snapshot(table))
    expected = dict(table)
    table.clear()  # it was written already
    slot.wait()
    content, found = slot.read()
    assert isinstance(content, FileHandle) and found == expected
    assert slot.stored[0, 1][1] == content.size


def test_large_state_is_written_by_a_child_as_it_was_at_the_barrier(slot):
    table = large()
    expected = dict(table)
    assert not slot.executor.shares_memory
    slot.executor.store(slot.snapshot(table))
    assert slot.executor.shares_memory
    for number in range(5_000):
        table[number] = "changed"
    slot.wait()
    assert not slot.executor.shares_memory
    content, found = slot.read()
    assert isinstance(content, FileHandle) and found == expected
    assert children() <= slot.children_before


def test_few_entries_that_are_large_fork_too(slot, monkeypatch):
    forks = []
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: forks.append(1) or fork())
    table = {number: os.urandom(1 << 20) for number in range(3)}
    slot.executor.store(slot.snapshot(table))
    slot.wait()
    assert forks == [1] and slot.read()[1] == table


def test_without_a_folder_large_state_comes_back_in_the_message(slot):
    slot.location = f"{JOB_MANAGER_STORAGE}/job/chk-1"
    table = large()
    slot.executor.store(slot.snapshot(table))
    slot.wait()
    content, found = slot.read()
    assert isinstance(content, InlineBytes) and found == table


def test_one_child_works_at_a_time_and_each_has_the_state_of_its_fork(slot):
    table = large()
    before = dict(table)
    slot.executor.store(slot.snapshot(table, subtask=0))
    table[0] = "later"
    slot.executor.store(slot.snapshot(table, subtask=1))
    working, waiting = slot.executor._children.pids(True), slot.executor._children.pids(False)
    assert len(working) == len(waiting) == 1
    assert slot.loop.run_until(lambda: len(slot.stored) == 2, 30_000)
    assert slot.read((0, 1))[1] == before and slot.read((1, 1))[1] == table


def test_a_child_that_is_killed_is_a_snapshot_that_failed(slot):
    class Slow:
        def __reduce__(self):
            os.kill(os.getpid(), signal.SIGKILL)

    slot.executor.store(slot.snapshot({**large(), "slow": Slow()}))
    slot.wait()
    error = slot.failed[0, 1]
    assert isinstance(error, CheckpointFailedError) and "signal 9" in str(error)


def test_a_child_tells_what_could_not_be_saved(slot):
    slot.executor.store(slot.snapshot({**large(), "bad": (number for number in ())}))
    slot.wait()
    error = slot.failed[0, 1]
    assert isinstance(error, UserError) and "generator" in str(error)


def test_small_state_that_can_not_be_saved_fails_before_store_returns(slot):
    slot.executor.store(slot.snapshot({"bad": (number for number in ())}))
    assert "generator" in str(slot.failed[0, 1])


def test_a_folder_that_can_not_be_written_fails_the_snapshot(slot, tmp_path):
    (tmp_path / "chk-1").write_text("a file is in the way")
    slot.executor.store(slot.snapshot(large()))
    slot.wait()
    assert "chk-1" in str(slot.failed[0, 1])


def test_what_is_dropped_is_killed_and_not_told(slot):
    slot.executor.store(slot.snapshot(large(), subtask=0))
    slot.executor.store(slot.snapshot(large(), subtask=1))
    first, _ = slot.executor._children.pids()
    slot.executor.drop(ExecutionAttemptID("job", 0, "v", 0), 1)
    slot.wait()  # the next one works
    assert set(slot.stored) == {(1, 1)} and not slot.failed
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_close_leaves_no_child(slot):
    for subtask in range(3):
        slot.executor.store(slot.snapshot(large(), subtask=subtask))
    slot.executor.close()
    assert children() <= slot.children_before
    slot.loop.run_once(50)
    assert not slot.stored and not slot.failed


def test_a_store_without_local_files_gets_them_from_the_thread(slot, monkeypatch):
    """As for S3: the child writes to a file without a name, which the thread copies."""
    storage = slot.executor._storage_at(f"{slot.location}/x")
    pid = os.getpid()
    create = storage.create_file
    monkeypatch.setattr(slot.executor, "_storage_of", lambda options: storage)
    monkeypatch.setattr(storage, "is_local", False)
    monkeypatch.setattr(
        storage, "create_file", lambda location: create(location) if os.getpid() == pid else pytest.fail("child")
    )
    os.makedirs(slot.location)
    table = large()
    slot.executor.store(slot.snapshot(table))
    slot.wait()
    assert not slot.failed
    monkeypatch.setattr(storage, "is_local", True)
    content, found = slot.read()
    assert isinstance(content, FileHandle) and found == table


def test_few_bytes_in_flight_are_in_the_message_and_many_in_a_file(slot):
    snapshot = slot.snapshot({})
    for checkpoint_id, data in ((1, b"few"), (2, b"many" * 10_000)):
        slot.executor.store_in_flight(snapshot.execution, checkpoint_id, snapshot.options, data, ())
    assert slot.in_flight == {1: InlineBytes(b"few")}
    assert slot.loop.run_until(lambda: 2 in slot.in_flight, 30_000)
    assert isinstance(slot.in_flight[2], FileHandle)
    with slot.executor.open_content(slot.in_flight[2]) as file:
        assert file.read() == b"many" * 10_000


def test_bytes_in_flight_that_are_not_wanted_any_more_are_not_told(slot):
    snapshot = slot.snapshot({})
    slot.executor.store_in_flight(snapshot.execution, 1, snapshot.options, b"many" * 10_000, ())
    slot.executor.drop(snapshot.execution, 1)
    slot.executor.store_in_flight(snapshot.execution, 2, snapshot.options, b"many" * 10_000, ())
    assert slot.loop.run_until(lambda: slot.in_flight, 30_000)
    assert list(slot.in_flight) == [2] and not slot.failed


def test_bytes_in_flight_that_can_not_be_written_fail_the_snapshot(slot, tmp_path):
    (tmp_path / "chk-1").write_text("a file where the folder should be")
    snapshot = slot.snapshot({})
    slot.executor.store_in_flight(snapshot.execution, 1, snapshot.options, b"many" * 10_000, ())
    assert slot.loop.run_until(lambda: slot.failed, 30_000)
    assert not slot.in_flight


def test_compressed_state_is_smaller_and_reads_as_any_other(slot):
    table = {number: "the same text" * 20 for number in range(500)}
    sizes = []
    for checkpoint_id, compression in ((1, None), (2, "zstd")):
        snapshot = slot.snapshot(table, checkpoint_id)
        part = replace(snapshot.keyed["op"], compression=compression)
        slot.stored.clear()
        slot.executor.store(replace(snapshot, keyed={"op": part}))
        slot.wait()
        content, found = slot.read((0, checkpoint_id))
        assert found == table
        sizes.append(content.size)
    assert sizes[1] < sizes[0] / 5


# ---- changelogs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [large(10), {number: "x" * 100 for number in range(500)}, large()])
def test_an_addition_to_a_log_goes_to_the_shared_files_however_it_is_written(slot, table):
    told = []
    slot.executor.store(slot.snapshot(table, log=told))
    slot.wait()
    ((handle,),) = slot.stored[0, 1][0].values()
    if len(table) == 10:
        assert told == [] and isinstance(handle.content, InlineBytes)
        return
    (file,) = handle.shared.values()
    assert told == [file] and file.uri.startswith(slot.shared_location + "/") and slot.stored[0, 1][1] == file.size
    assert slot.read_file(file)[1] == table
    assert not os.path.exists(slot.location)


@pytest.fixture
def thread(slot, monkeypatch):
    """Of the executor: stands before the file that it is about to make until ``go_on``."""
    storage = slot.executor._storage_at(f"{slot.location}/x")
    create, reached, may_go_on = storage.create_file, threading.Event(), threading.Event()
    monkeypatch.setattr(slot.executor, "_storage_of", lambda options: storage)

    def create_file(location):
        reached.set()
        assert may_go_on.wait(30)
        return create(location)

    monkeypatch.setattr(storage, "create_file", create_file)
    yield SimpleNamespace(wait=lambda: reached.wait(30), go_on=may_go_on.set)
    may_go_on.set()


def test_an_addition_that_is_not_wanted_any_more_is_told_to_its_log_alone(slot, thread):
    told = []
    snapshot = slot.snapshot({number: "x" * 100 for number in range(500)}, log=told)
    slot.executor.store(snapshot)  # the thread writes it
    assert thread.wait()
    slot.executor.drop(snapshot.execution, 1)
    thread.go_on()
    assert slot.loop.run_until(lambda: told, 30_000)
    assert not slot.stored and slot.read_file(told[0])[1]


@pytest.mark.parametrize("kind", ["keyed", "in flight", "log at the end"])
def test_what_the_thread_writes_after_the_jobmanager_has_deleted_the_folder_goes_again(slot, thread, tmp_path, kind):
    log = [] if kind == "log at the end" else None
    snapshot = slot.snapshot({number: "x" * 100 for number in range(500)}, log=log)
    if kind == "in flight":
        slot.executor.store_in_flight(snapshot.execution, 1, snapshot.options, b"many" * 10_000, ())
    else:
        slot.executor.store(snapshot)
    behind = replace(snapshot, checkpoint_id=2)
    slot.executor.store(behind)
    assert thread.wait()
    for checkpoint_id in (1, 2):
        slot.executor.drop(snapshot.execution, checkpoint_id)
    threading.Timer(0.01, thread.go_on).start()
    slot.executor.close()  # it waits for the thread
    assert not log and not tmp_path.exists(), "neither a file nor an empty folder, nor that of the job"


def test_a_child_that_is_killed_leaves_no_shared_file(slot):
    told = []
    snapshot = slot.snapshot({**large(), "slow": Sleeper()}, log=told)
    slot.executor.store(snapshot)
    slot.executor.drop(snapshot.execution, 1)
    assert slot.loop.run_until(lambda: not slot.executor.shares_memory, 30_000)
    assert not told and not slot.stored and not os.path.exists(slot.shared_location)


class Sleeper:
    """Takes for ever to be pickled."""

    def __reduce__(self):
        time.sleep(3_600)


@pytest.fixture
def materialiser(slot):
    directory = os.path.dirname(slot.location)
    slot.executor.configure(
        {
            "execution.checkpointing.dir": directory,
            "execution.checkpointing.interval": "1 s",
            "state.changelog.enabled": "true",
        }
    )
    return slot.executor.materialiser("job")


def test_a_base_is_what_was_there_and_no_checkpoint_waits_for_it(slot, materialiser):
    table, bases = large(), []
    slow = slot.snapshot({**table, "slow": Sleeper()}).keyed["op"]
    materialiser.write(slow.write, lambda file, error: pytest.fail("it sleeps"))
    materialiser.write(slot.snapshot(table).keyed["op"].write, lambda file, error: bases.append((file, error)))
    table["more"] = 1
    slot.executor.store(slot.snapshot(table))
    slot.wait()
    assert slot.read()[1] == table and not bases, "bases wait for each other"
    sleeping, _ = slot.executor._children.pids()
    os.kill(sleeping, signal.SIGKILL)


def test_a_base_that_could_not_be_written_is_told(slot, materialiser):
    heard = []
    broken = slot.snapshot({**large(), "bad": (number for number in ())}).keyed["op"]
    materialiser.write(broken.write, lambda file, error: heard.append((file, error)))
    assert slot.loop.run_until(lambda: heard, 30_000)
    assert heard[0][0] is None and "generator" in str(heard[0][1])


def test_a_base_is_stored_and_deleted_again(slot, materialiser):
    table, heard = large(), []
    expected = dict(table)
    materialiser.write(slot.snapshot(table).keyed["op"].write, lambda file, error: heard.append(file))
    table.clear()
    assert slot.loop.run_until(lambda: heard, 30_000)
    (file,) = heard
    assert file.uri.startswith(materialiser.shared_location + "/") and slot.read_file(file)[1] == expected
    materialiser.delete([file])
    materialiser.run(lambda storage, location: os.path.exists(location), lambda exists, error: heard.append(exists))
    assert slot.loop.run_until(lambda: len(heard) == 2, 30_000)
    assert heard[1] is False, "nor is an empty folder left"


@pytest.mark.parametrize(
    "missing", ["execution.checkpointing.dir", "execution.checkpointing.interval", "state.changelog.enabled"]
)
def test_a_job_without_checkpoints_that_share_files_makes_no_bases(slot, tmp_path, missing):
    settings = {
        "execution.checkpointing.dir": str(tmp_path),
        "execution.checkpointing.interval": "1 s",
        "state.changelog.enabled": "true",
    }
    slot.executor.configure(settings)
    assert slot.executor.materialiser("job") is not None
    del settings[missing]
    slot.executor.configure(settings)
    assert slot.executor.materialiser("job") is None
