"""Who leads a job, where it goes on, and what is done by a driver that leads no more."""

import errno
import os
import queue
import threading
from dataclasses import replace

import cloudpickle
import pytest

from flinkish.common.job_id import JobID
from flinkish.common.job_status import JobStatus
from flinkish.connectors.files import FileSink
from flinkish.datastream import StreamExecutionEnvironment
from flinkish.errors import (
    CheckpointStorageError,
    ExternalError,
    InvalidJobError,
    JobCancelledError,
    LeadershipLostError,
    NotEnoughSlotsError,
)
from flinkish.graph.job_graph_generator import create_job_graph
from flinkish.jobmanager.events import (
    DiscardCheckpoint,
    MetadataStored,
    StoreJobResult,
    StoreMetadata,
    SweepSharedFiles,
)
from flinkish.jobmanager.leader_election import Lease
from flinkish.messages.checkpoints import CheckpointCommit, CompletedCheckpoint, SnapshotKind
from flinkish.shell import high_availability
from flinkish.shell.checkpoint_files import CheckpointFiles
from flinkish.shell.file_lease import FileLease, encode_lease
from flinkish.shell.high_availability import EndedJob, LedJob, lead, next_job_id
from flinkish.shell.job_runtime import JobRuntime
from flinkish.shell.leadership import Leadership
from flinkish.shell.state_recovery import checkpoint_settings
from flinkish.storage.checkpoint_storage import CheckpointStorage
from flinkish.storage.conditional_store import FolderCell
from flinkish.storage.ha_store import RESERVED_IDS, HighAvailabilityStore, JobRecord
from flinkish.testing.spi_fakes import FakeWriterContext

JOB = "a" * 32


def settings(folder, **more):
    return {
        "high-availability.type": "filesystem",
        "high-availability.storageDir": str(folder / "ha"),
        "high-availability.filesystem.leader-election.lease-duration": "30 s",
        "high-availability.filesystem.leader-election.retry-period": "10 ms",
        "execution.checkpointing.dir": str(folder / "checkpoints"),
        **more,
    }


def job(configuration, name="counting"):
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.from_sequence(1, 3).print()
    return create_job_graph(env.get_stream_graph(name), JOB)


def cell(folder, kind):
    return FolderCell(str(folder / "ha" / "default" / JOB / kind))


def steal(folder):
    """Another driver takes the lease, as if this one's time had been over."""
    lease = cell(folder, "lease")
    while lease.replace(encode_lease(Lease(9, "other", 30_000, "another driver")), lease.read()[1]) is None:
        continue
    HighAvailabilityStore(cell(folder, "record"), "").take_over(9, JobRecord(JOB, "counting", "r"))


@pytest.fixture
def led(tmp_path):
    found = lead(job(settings(tmp_path)), "run-1")
    assert isinstance(found, LedJob)
    yield found
    found.leadership.resign()


def complete(folder, checkpoint_id, kind=SnapshotKind.CHECKPOINT):
    storage = CheckpointStorage(folder / "checkpoints")
    location = storage.checkpoint_location(JOB, checkpoint_id)
    if kind.is_savepoint:
        location = storage.savepoint_location(JOB)
    checkpoint = CompletedCheckpoint(JOB, "counting", "run-1", checkpoint_id, 0, 1, kind, location, {})
    storage.create_folder(location)
    return checkpoint


def stored(folder, checkpoint_id, kind=SnapshotKind.CHECKPOINT):
    checkpoint = complete(folder, checkpoint_id, kind)
    CheckpointStorage(folder / "checkpoints").store_metadata(checkpoint)
    return checkpoint


# ---- leading ------------------------------------------------------------------------------------


def test_a_job_has_the_same_id_in_each_driver_of_a_cluster_and_another_when_it_runs_again(tmp_path, monkeypatch):
    first = [next_job_id(name, settings(tmp_path)) for name in ("a", "a", "b")]
    high_availability._started.clear()  # another process
    assert [next_job_id(name, settings(tmp_path)) for name in ("a", "a", "b")] == first and len(set(first)) == 3
    high_availability._started.clear()
    other = settings(tmp_path, **{"high-availability.cluster-id": "other"})
    assert next_job_id("a", other) not in first


def test_the_first_driver_leads_and_one_that_finds_the_lease_given_back_goes_on_at_once(tmp_path, led):
    assert (led.epoch, led.record.run_id, led.record.attempt) == (1, "run-1", -1)
    led.leadership.require()
    led.leadership.resign()
    with pytest.raises(LeadershipLostError, match="given leadership back"):
        led.leadership.require()
    second = lead(job(settings(tmp_path)), "run-2")
    assert (second.epoch, second.record.run_id) == (2, "run-1")
    second.leadership.resign()


def test_a_driver_that_comes_later_stands_by_and_says_for_whom(tmp_path, led):
    lines, told = [], threading.Event()

    def hear(text):
        lines.append(text)
        told.set()

    high_availability.notify, before = (lambda text, unheard: hear(text)), high_availability.notify
    try:
        standby = []
        waiting = threading.Thread(target=lambda: standby.append(lead(job(settings(tmp_path)), "run-2")))
        waiting.start()
        assert told.wait(30)
        assert 'Job "counting" stands by: the driver on' in lines[0] and "epoch 1" in lines[0]
        led.leadership.resign()
        waiting.join(30)
        assert standby[0].epoch == 2
        standby[0].leadership.resign()
    finally:
        high_availability.notify = before


def test_a_driver_whose_storage_cannot_be_written_says_so_again_and_leads_when_it_can(tmp_path, monkeypatch):
    def full(cell, value, version):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), cell.folder)

    lines: queue.Queue = queue.Queue()
    monkeypatch.setattr(high_availability, "notify", lambda text, unheard: lines.put(text))
    monkeypatch.setattr(high_availability, "_PROGRESS_S", 0)
    with monkeypatch.context() as no_space:
        no_space.setattr(high_availability.FolderCell, "replace", full)
        led: list = []
        waiting = threading.Thread(target=lambda: led.append(lead(job(settings(tmp_path)), "run-1")))
        waiting.start()
        said = [lines.get(timeout=30) for _ in range(2)]
    waiting.join(30)
    led[0].leadership.resign()
    assert said[0] == said[1] and said[0].startswith(
        'Job "counting" stands by: nobody leads, and the lease cannot be written: OSError: [Errno 28] No space left on device'
    )


@pytest.mark.parametrize("status", list(filter(JobStatus.is_globally_terminal_state, JobStatus)))
def test_a_job_that_has_ended_is_not_run_again(tmp_path, led, status):
    assert led.store_result(status.name)
    led.leadership.resign()
    ended = lead(job(settings(tmp_path)), "run-2")
    assert isinstance(ended, EndedJob) and ended.status() is status
    if status is JobStatus.FINISHED:
        assert ended.wait().get_job_id() == JobID(JOB)
    else:
        expected = JobCancelledError if status is JobStatus.CANCELED else ExternalError
        with pytest.raises(expected, match='job "counting"'):
            ended.wait()
    with pytest.raises(InvalidJobError, match=f"the job is {status.name}"):
        ended.take_savepoint()


def test_who_waits_for_leadership_hears_when_it_is_lost(tmp_path):
    leadership = Leadership('job "counting"', FileLease(cell(tmp_path, "lease")), 600, 10)
    lost, heard = [], threading.Event()
    leadership.on_lost(lambda error: (lost.append(error), heard.set()))
    leadership.start()
    assert leadership.wait_granted(30)
    steal(tmp_path)
    assert heard.wait(30) and "another driver has the lease now, epoch 9" in lost[0].why
    for call in (leadership.require, lambda: leadership.wait_granted(1)):
        with pytest.raises(LeadershipLostError, match='lost leadership of job "counting"'):
            call()
    late = []
    leadership.on_lost(late.append)
    assert late == lost and not leadership.may_act()


def test_where_the_settings_say_so_a_job_that_has_ended_is_forgotten_and_one_that_has_not_is_kept(tmp_path):
    wanted = settings(tmp_path, **{"job-result-store.delete-on-commit": "true"})
    first = lead(job(wanted), "run-1")
    first.resign()
    second = lead(job(wanted), "run-2")
    assert second.record.run_id == "run-1"
    assert second.store_result("FINISHED")
    second.resign()
    assert not (tmp_path / "ha" / "default" / JOB).exists()
    again = lead(job(wanted), "run-3")
    assert (again.record.run_id, again.record.status) == ("run-3", None)
    again.resign()


# ---- where it goes on ---------------------------------------------------------------------------


def graph_of(configuration):
    env = StreamExecutionEnvironment.get_execution_environment({"parallelism.default": 2, **configuration})
    env.from_sequence(1, 3).key_by(lambda n: n % 2).reduce(lambda a, b: a + b).uid("sums").print()
    return create_job_graph(env.get_stream_graph("counting"), JOB)


def parallelism_of(graph):
    return {vertex.id: vertex.parallelism for vertex in graph.vertices}


def test_a_takeover_goes_on_with_the_parallelism_that_the_job_had(tmp_path, led):
    graph = graph_of(settings(tmp_path))
    assert led.with_parallelism_of_record(graph) is graph
    rescaled = dict.fromkeys(parallelism_of(graph), 3)
    led.store_parallelism(rescaled)
    led.leadership.resign()
    second = lead(graph, "run-2")
    assert second.is_takeover and parallelism_of(second.with_parallelism_of_record(graph)) == rescaled
    # There are fewer slots than that.
    assert second.with_parallelism_of_program(NotEnoughSlotsError("")) is graph
    assert second.with_parallelism_of_program(NotEnoughSlotsError("")) is None
    reactive = graph_of(settings(tmp_path, **{"scheduler-mode": "reactive"}))
    assert second.with_parallelism_of_record(reactive) is reactive
    second.leadership.resign()


def test_a_program_that_has_changed_since_goes_on_as_it_says(tmp_path, led):
    graph = graph_of(settings(tmp_path, **{"pipeline.max-parallelism": 8}))
    led.record = replace(led.record, parallelism={"gone": 4, **dict.fromkeys(parallelism_of(graph), 9)})
    assert led.with_parallelism_of_record(graph) is graph
    led.record = replace(led.record, parallelism={"gone": 4})
    assert led.with_parallelism_of_record(graph) is graph


def test_a_takeover_removes_hidden_files_except_those_that_the_checkpoint_or_a_savepoint_needs(tmp_path):
    env = StreamExecutionEnvironment.get_execution_environment(settings(tmp_path))
    out = tmp_path / "out"
    env.from_sequence(1, 3).sink_to(FileSink.for_row_format(str(out)).build()).uid("files")
    graph = create_job_graph(env.get_stream_graph("counting"), JOB)
    (sink,) = [op for vertex in graph.vertices for op in vertex.chain.operators if op.uid == "files"]
    writer = FakeWriterContext(job_id=JOB)
    writer.operator_id = lambda: sink.operator_id

    def prepared():
        """A file that a slot of the first leader has completed, and what it has told of it."""
        one = FileSink.for_row_format(str(out)).build().create_writer(writer)
        one.write_batch(["x"], None, 0)
        one.flush(False)
        (file,) = one.prepare_commit()
        return file, CheckpointCommit(JOB, "run-1", 4, {sink.operator_id: (cloudpickle.dumps([file]),)})

    first = lead(graph, "run-1")
    JobRuntime(graph, first)  # makes the folder
    (of_checkpoint, commit), (of_savepoint, saved), (_, _) = prepared(), prepared(), prepared()
    for kind, commits in ((SnapshotKind.SAVEPOINT, (saved,)), (SnapshotKind.CHECKPOINT, (commit,))):
        checkpoint = replace(complete(tmp_path, 4, kind), commits=commits)
        CheckpointStorage(tmp_path / "checkpoints").store_metadata(checkpoint)
        first.add_checkpoint(checkpoint, 1, 0)
    first.leadership.resign()
    assert len(list(out.iterdir())) == 3

    runtime = JobRuntime(graph, lead(graph, "run-2"))
    runtime.attach(lambda event: None)
    assert {path.name for path in out.iterdir()} == {of_checkpoint.hidden_name, of_savepoint.hidden_name}
    runtime.close_coordinators(None).join(30)


def test_what_a_savepoint_needs_is_remembered_and_one_that_needs_nothing_is_not(tmp_path, led):
    commit = CheckpointCommit(JOB, "run-1", 4, {"files": (b"",)})
    for commits in ((), (commit,)):
        checkpoint = replace(complete(tmp_path, 4, SnapshotKind.SAVEPOINT), commits=commits)
        led.add_checkpoint(checkpoint, 1, 0)
    assert led.store.read().savepoints == (checkpoint.location,)


def settings_by(folder, record, **more):
    return checkpoint_settings(job(settings(folder, **more)), frozenset(), True, record)


def test_a_takeover_goes_on_from_the_record_whatever_the_settings_say(tmp_path):
    old, new = stored(tmp_path, 3), stored(tmp_path, 4)
    gone = complete(tmp_path, 2)
    record = JobRecord(
        JOB, "counting", "run-1", 2, (gone.location, old.location, new.location), next_checkpoint_id=105, attempt=3
    )
    found = settings_by(tmp_path, record, **{"execution.state-recovery.path": "/not/there"})
    assert found.restored.checkpoint_id == 4 and found.owned and found.run_id == "run-1"
    assert [checkpoint.checkpoint_id for checkpoint in found.retained] == [3]
    assert found.configuration.high_availability
    coordinator = found.create_coordinator(job(settings(tmp_path)))
    assert coordinator.next_checkpoint_id == 105
    assert [checkpoint.checkpoint_id for checkpoint in coordinator.completed.retained] == [3, 4]


def test_a_takeover_leaves_alone_what_its_job_began_from_unless_it_has_claimed_that(tmp_path):
    record = JobRecord(JOB, "counting", "run-1", 2, (stored(tmp_path, 4).location,))
    for path, mode, claims in (
        ("/the/first", "CLAIM", True),
        ("/the/first", "NO_CLAIM", False),
        ("latest", "CLAIM", True),
        ("latest", "NO_CLAIM", False),
    ):
        begun = {"execution.state-recovery.path": path, "execution.state-recovery.claim-mode": mode}
        found = settings_by(tmp_path, record, **begun)
        assert found.create_coordinator(job(settings(tmp_path))).completed.claimed == claims


def test_a_takeover_after_a_stopping_savepoint_goes_on_from_it_and_leaves_it_alone(tmp_path):
    checkpoint, savepoint = stored(tmp_path, 3), stored(tmp_path, 4, SnapshotKind.SAVEPOINT_SUSPEND)
    record = JobRecord(JOB, "counting", "run-1", 2, (checkpoint.location, savepoint.location))
    found = settings_by(tmp_path, record)
    assert found.restored.checkpoint_id == 4 and not found.owned


def test_a_takeover_without_its_newest_checkpoint_is_refused(tmp_path):
    old, gone = stored(tmp_path, 3), complete(tmp_path, 4)
    with pytest.raises(CheckpointStorageError, match="could not find a checkpoint"):
        settings_by(tmp_path, JobRecord(JOB, "counting", "run-1", 2, (old.location, gone.location)))


def test_before_the_first_checkpoint_the_settings_say_where_to_begin_and_the_run_stays(tmp_path):
    found = settings_by(tmp_path, JobRecord(JOB, "counting", "run-1", 2, next_checkpoint_id=101))
    assert found.restored is None and (found.run_id, found.next_checkpoint_id) == ("run-1", 101)


# ---- the checkpoint storage's thread ------------------------------------------------------------


@pytest.fixture
def files(tmp_path, led):
    said = []
    files = CheckpointFiles(
        JOB, "counting", str(tmp_path / "checkpoints"), settings(tmp_path), said.append, led, retained_max=1
    )
    files.start()
    files.said = said

    def carry_out(*orders):
        done = threading.Event()
        for order in orders:
            files.carry_out(order)
        files.after(done.set)
        assert done.wait(30)

    files.do = carry_out
    yield files
    files.close().join(30)


def test_a_checkpoint_is_complete_when_it_stands_in_the_record_with_the_attempt(files, led, tmp_path):
    files.attempt = 2
    files.do(StoreMetadata(complete(tmp_path, 1)))
    record = led.store.read()
    assert files.said == [MetadataStored(1)]
    assert record.latest.endswith("/chk-1") and (record.attempt, record.next_checkpoint_id) == (2, 2 + RESERVED_IDS)


def test_a_savepoint_of_a_job_that_goes_on_is_not_where_to_go_on(files, led, tmp_path):
    files.do(StoreMetadata(complete(tmp_path, 1, SnapshotKind.SAVEPOINT)))
    assert files.said == [MetadataStored(1)] and led.store.read().latest is None


def test_a_leader_of_the_past_completes_and_deletes_nothing(files, led, tmp_path):
    first = complete(tmp_path, 1)
    files.do(StoreMetadata(first))
    # Its time is not over by its own clock: the record's epoch refuses it.
    steal(tmp_path)
    files.do(StoreMetadata(complete(tmp_path, 2)))
    assert isinstance(files.said[-1].error, LeadershipLostError)
    files.do(
        StoreJobResult(JOB, "FAILED"),
        DiscardCheckpoint(JOB, first.location),
        DiscardCheckpoint(JOB, str(tmp_path / "checkpoints" / JOB)),
    )
    storage = CheckpointStorage(tmp_path / "checkpoints")
    left = storage.write(storage.shared_location(JOB), b"of the new one")
    files.do(SweepSharedFiles(JOB, f"{storage.directory}/{JOB}"))
    assert os.path.exists(left.uri)
    record = led.store.read()
    assert (record.latest, record.status) == (first.location, None)
    assert CheckpointStorage(tmp_path / "checkpoints").load(first.location).checkpoint_id == 1


def test_checkpoints_of_a_job_that_has_ended_go_after_its_result_is_stored(files, led, tmp_path, monkeypatch):
    first = complete(tmp_path, 1)
    files.do(StoreMetadata(first))
    failures = iter([CheckpointStorageError("no", why="for a moment")])
    store_result = led.store.store_result

    def sometimes(*arguments):
        for failure in failures:
            raise failure
        store_result(*arguments)

    monkeypatch.setattr(led.store, "store_result", sometimes)
    files.do(StoreJobResult(JOB, "FINISHED"), DiscardCheckpoint(JOB, first.location))
    assert led.store.read().status == "FINISHED"
    assert CheckpointStorage(tmp_path / "checkpoints").list_checkpoints(JOB) == []


def test_without_a_stored_result_the_checkpoints_stay_for_who_takes_over(files, led, tmp_path, monkeypatch):
    first = complete(tmp_path, 1)
    files.do(StoreMetadata(first))
    monkeypatch.setattr(high_availability, "_RESULT_ATTEMPTS", 1)

    def fails(*arguments):
        raise CheckpointStorageError("no", why="for ever")

    monkeypatch.setattr(led.store, "store_result", fails)
    files.do(StoreJobResult(JOB, "FINISHED"), DiscardCheckpoint(JOB, first.location))
    assert CheckpointStorage(tmp_path / "checkpoints").load(first.location)


def test_a_record_that_cannot_be_written_for_a_moment_holds_up_the_checkpoint_only(files, led, tmp_path, monkeypatch):
    failures = iter([CheckpointStorageError("no", why="for a moment")])
    add_checkpoint = led.store.add_checkpoint

    def sometimes(*arguments):
        add_checkpoint(*arguments)  # it arrives, and that is not known
        for failure in failures:
            raise failure

    monkeypatch.setattr("flinkish.shell.checkpoint_files._RECORD_RETRY_S", 0.01)
    monkeypatch.setattr(led.store, "add_checkpoint", sometimes)
    files.do(StoreMetadata(complete(tmp_path, 1)))
    assert files.said == [MetadataStored(1)]


def test_a_checkpoint_that_was_given_up_leaves_the_record_before_it_is_deleted(files, led, tmp_path):
    first, second = complete(tmp_path, 1), complete(tmp_path, 2)
    files.do(StoreMetadata(first), StoreMetadata(second), DiscardCheckpoint(JOB, second.location))
    assert led.store.read().checkpoints == (first.location,)


# ---- settings -----------------------------------------------------------------------------------

_ZOOKEEPER = {"high-availability.type": "zookeeper", "high-availability.zookeeper.quorum": "localhost:1"}


@pytest.mark.parametrize(
    "changed, why",
    [
        ({"high-availability.storageDir": None}, "storageDir"),
        ({"high-availability.storageDir": "s3://bucket/ha"}, "hard links"),
        ({"high-availability.type": "zookeeper"}, "zookeeper.quorum"),
        ({"execution.checkpointing.dir": None}, "execution.checkpointing.dir"),
        ({"execution.checkpointing.storage": "jobmanager"}, "execution.checkpointing.dir"),
        ({"high-availability.cluster-id": "a/../b"}, "cluster id"),
        ({"high-availability.cluster-id": " "}, "cluster id"),
        ({"high-availability.cluster-id": "a/./b"}, "cluster id"),
        ({"high-availability.cluster-id": "x" * 400}, "has 400 bytes, at most 255 can be"),
        ({"high-availability.cluster-id": "/".join(["x" * 200] * 6)}, "all its names together 1200, at most 1000"),
        ({"high-availability.cluster-id": "x" * 400, **_ZOOKEEPER}, "cluster-id"),
        ({"high-availability.zookeeper.path.root": "/" + "x" * 400, **_ZOOKEEPER}, "zookeeper.path.root"),
        ({"high-availability.storageDir": "/tmp/" + "x" * 400}, "storageDir"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_waits(tmp_path, changed, why):
    wanted = {key: value for key, value in {**settings(tmp_path), **changed}.items() if value is not None}
    with pytest.raises(InvalidJobError, match=why):
        lead(job(wanted), "run")


def test_an_unknown_type_is_refused(tmp_path):
    with pytest.raises(InvalidJobError, match="NONE, filesystem, zookeeper"):
        high_availability.is_enabled({"high-availability": "etcd"})
