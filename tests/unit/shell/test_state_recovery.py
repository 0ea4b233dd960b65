from dataclasses import replace

import pytest

from flinkish.datastream import StreamExecutionEnvironment
from flinkish.errors import CheckpointStorageError, CorruptSnapshotError, InvalidJobError
from flinkish.graph.job_graph_generator import create_job_graph
from flinkish.jobmanager.completed_checkpoints import CheckpointRetention
from flinkish.messages.checkpoints import JOB_MANAGER_STORAGE, CompletedCheckpoint, SnapshotKind
from flinkish.shell.state_recovery import checkpoint_settings
from flinkish.storage.checkpoint_storage import CheckpointStorage


def job(settings, name="counting"):
    env = StreamExecutionEnvironment.get_execution_environment(settings)
    env.from_sequence(1, 3).print()
    return create_job_graph(env.get_stream_graph(name))


def settings_of(settings, **options):
    return checkpoint_settings(job(settings, **options), frozenset(), commits=True)


def store(folder, job_id, checkpoint_id, name="counting", completed_ms=1):
    storage = CheckpointStorage(folder)
    checkpoint = CompletedCheckpoint(
        job_id, name, "run", checkpoint_id, 0, completed_ms, SnapshotKind.CHECKPOINT,
        storage.checkpoint_location(job_id, checkpoint_id), {},
    )  # fmt: skip
    storage.store_metadata(checkpoint)
    return replace(checkpoint, flinkish_version="")


def test_without_a_folder_the_driver_keeps_checkpoints_and_without_an_interval_none_begins():
    found = settings_of({})
    assert found.configuration.directory == JOB_MANAGER_STORAGE
    assert found.configuration.interval_ms is None and not found.configuration.final_checkpoint


def test_the_settings_of_checkpoints_reach_the_coordinator(tmp_path):
    found = settings_of(
        {
            "execution.checkpointing.interval": "2 s",
            "execution.checkpointing.min-pause": "1 s",
            "execution.checkpointing.timeout": "1 min",
            "execution.checkpointing.max-concurrent-checkpoints": 2,
            "execution.checkpointing.tolerable-failed-checkpoints": 3,
            "execution.checkpointing.mode": "AT_LEAST_ONCE",
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            "state.checkpoints.num-retained": 4,
            "state.checkpoints.dir": str(tmp_path / "checkpoints"),
            "state.savepoints.dir": str(tmp_path / "savepoints"),
        }
    )
    configuration = found.configuration
    assert configuration.directory == CheckpointStorage(tmp_path / "checkpoints").directory
    assert configuration.savepoint_directory == CheckpointStorage(tmp_path / "savepoints").directory
    assert (configuration.interval_ms, configuration.min_pause_ms, configuration.timeout_ms) == (2_000, 1_000, 60_000)
    assert (configuration.max_concurrent, configuration.tolerable_failures) == (2, 3)
    assert not configuration.exactly_once and configuration.final_checkpoint
    assert (found.retained_max, found.retention) == (4, CheckpointRetention.RETAIN_ON_CANCELLATION)


def test_files_without_a_folder_are_refused():
    with pytest.raises(InvalidJobError, match="execution.checkpointing.dir is not set"):
        settings_of({"execution.checkpointing.storage": "filesystem"})


def test_a_folder_that_cannot_be_made_is_refused_before_the_job_begins(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointStorageError, match="could not create in the checkpoint storage"):
        settings_of({"execution.checkpointing.dir": str(tmp_path / "file" / "folder")})


def test_latest_is_the_newest_complete_checkpoint_of_a_job_with_that_name(tmp_path):
    store(tmp_path, "a" * 32, 9, completed_ms=10)
    newest = store(tmp_path, "b" * 32, 3, completed_ms=20)
    store(tmp_path, "c" * 32, 5, name="another", completed_ms=30)
    CheckpointStorage(tmp_path).create_folder(f"{tmp_path}/{'b' * 32}/chk-4")  # never completed
    settings = {"execution.checkpointing.dir": str(tmp_path), "execution.state-recovery.path": "latest"}
    found = settings_of(settings)
    assert found.restored == newest and found.owned
    assert not settings_of({**settings, "execution.state-recovery.claim-mode": "NO_CLAIM"}).owned
    assert found.create_coordinator(job(settings)).next_checkpoint_id == 4, "ids rise for ever"
    assert settings_of(settings, name="new").restored is None


def test_a_complete_checkpoint_that_is_passed_over_is_told_with_what_it_costs(tmp_path, caplog):
    good, damaged = store(tmp_path, "a" * 32, 3), store(tmp_path, "a" * 32, 4)
    CheckpointStorage(tmp_path).create_folder(f"{tmp_path}/{'a' * 32}/chk-5")  # never completed
    metadata = tmp_path / ("a" * 32) / "chk-4" / "_metadata"
    metadata.write_bytes(metadata.read_bytes().replace(b'"completed_ms":1', b'"completed_ms":2'))
    settings = {"execution.checkpointing.dir": str(tmp_path), "execution.state-recovery.path": "latest"}
    assert settings_of(settings).restored == good
    told = [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()]
    assert f"location={damaged.location} why='it is cut off or damaged" in told[1] and len(told) == 2
    assert ["published twice" in message for message in told] == [False, True]


def test_who_claims_the_latest_owns_what_else_its_run_has_left(tmp_path):
    older = [store(tmp_path, "b" * 32, number, completed_ms=number) for number in (9, 10)]
    newest = store(tmp_path, "b" * 32, 11, completed_ms=20)
    store(tmp_path, "a" * 32, 8, completed_ms=1)  # of another run, which may be alive
    storage = CheckpointStorage(tmp_path)
    broken = store(tmp_path, "b" * 32, 7).location
    (tmp_path / ("b" * 32) / "chk-7" / "_metadata").write_bytes(b"?")
    unfinished = storage.checkpoint_location("b" * 32, 12)
    storage.write(unfinished, b"half")
    settings = {"execution.checkpointing.dir": str(tmp_path), "execution.state-recovery.path": "latest"}
    found = settings_of(settings)
    assert (found.restored, found.retained, found.unfinished) == (newest, tuple(older), (unfinished,))
    assert found.create_coordinator(job(settings)).completed.retained == [*older, newest]
    for changed in (
        {"execution.state-recovery.claim-mode": "NO_CLAIM"},
        {"execution.state-recovery.path": newest.location, "execution.state-recovery.claim-mode": "CLAIM"},
    ):
        found = settings_of({**settings, **changed})
        assert (found.restored, found.retained, found.unfinished) == (newest, (), ())
    assert not storage.is_complete(unfinished) and storage.is_complete(broken)


def test_a_path_is_not_claimed_unless_that_is_asked_for(tmp_path):
    checkpoint = store(tmp_path, "a" * 32, 9)
    settings = {"execution.savepoint.path": checkpoint.location}
    assert settings_of(settings).restored == checkpoint and not settings_of(settings).owned
    assert settings_of({**settings, "execution.state-recovery.claim-mode": "CLAIM"}).owned
    with pytest.raises(CorruptSnapshotError, match="no such folder"):
        settings_of({"execution.savepoint.path": str(tmp_path / "nothing")})


UNALIGNED = {"execution.checkpointing.interval": "1 s", "execution.checkpointing.unaligned.enabled": "true"}


@pytest.mark.parametrize(
    "settings, expected",
    [
        (UNALIGNED, (True, None)),
        ({"execution.checkpointing.unaligned": "true"}, (True, None)),  # the spelling of Flink 1
        ({**UNALIGNED, "execution.checkpointing.aligned-checkpoint-timeout": "2 s"}, (True, 2_000)),
        ({**UNALIGNED, "execution.checkpointing.alignment-timeout": "2 s"}, (True, 2_000)),  # likewise
        ({**UNALIGNED, "execution.checkpointing.mode": "AT_LEAST_ONCE"}, (False, None)),
    ],
)
def test_barriers_overtake_when_that_is_asked_for_and_means_something(settings, expected):
    configuration = settings_of(settings).configuration
    assert (configuration.unaligned, configuration.aligned_timeout_ms) == expected


def test_unaligned_checkpoints_are_one_at_a_time():
    with pytest.raises(InvalidJobError, match="max-concurrent-checkpoints is 3"):
        settings_of({**UNALIGNED, "execution.checkpointing.max-concurrent-checkpoints": 3})


def test_a_custom_partitioner_has_to_promise_the_same_answers():
    def settings(**more):
        env = StreamExecutionEnvironment.get_execution_environment({**UNALIGNED, **more})
        env.from_sequence(1, 3).partition_custom(lambda key, count: key % count, lambda value: value).print()
        graph = create_job_graph(env.get_stream_graph("custom"))
        return checkpoint_settings(graph, frozenset(), commits=False).configuration

    with pytest.raises(InvalidJobError, match="execution.checkpointing.unaligned.forced"):
        settings()
    assert settings(**{"execution.checkpointing.unaligned.forced": "true"}).unaligned
