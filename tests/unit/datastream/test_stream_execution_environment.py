import json
import threading

import pytest

from flinkish import Configuration, JobClient, JobExecutionResult, JobStatus, Time, Types, WatermarkStrategy
from flinkish import StreamExecutionEnvironment as Environment
from flinkish.common import JobListener, RestartStrategies
from flinkish.connectors.spi import Boundedness, Source
from flinkish.datastream import (
    CheckpointingMode,
    EmbeddedRocksDBStateBackend,
    ExternalizedCheckpointRetention,
    FileSystemCheckpointStorage,
    RuntimeExecutionMode,
)
from flinkish.datastream.checkpoint_config import ExternalizedCheckpointCleanup
from flinkish.datastream.checkpoint_storage import JobManagerCheckpointStorage
from flinkish.datastream.data_stream import CachedDataStream
from flinkish.errors import ConfigurationError, InvalidJobError, JobCancelledError, UserError


class Handle:
    job_id = "ab" * 16

    def __init__(self, interrupt=False):
        self.interrupt, self.cancelled = interrupt, threading.Event()

    def status(self):
        return JobStatus.CANCELED if self.cancelled.is_set() else JobStatus.RUNNING

    def cancel(self):
        self.cancelled.set()

    def wait(self, timeout_s=None):
        if self.cancelled.is_set():
            raise JobCancelledError("cancelled")
        if self.interrupt:
            raise KeyboardInterrupt
        return JobExecutionResult(self.job_id, 1)

    def metrics(self):
        return {}


class Cluster:
    """Keeps what was submitted."""

    def __init__(self, handle=None):
        self.handle, self.jobs = handle or Handle(), []

    def submit(self, stream_graph, configuration):
        self.jobs.append((stream_graph, configuration))
        return JobClient(self.handle)


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def env(cluster):
    return Environment.get_execution_environment({"my.key": "v"}, cluster=cluster)


def test_execute_submits_the_graph_once_and_starts_the_next_program_empty(env, cluster):
    stream = env.from_sequence(1, 3).map(lambda n: n)
    stream.print()
    assert env.execute("first").get_net_runtime() == 1
    (graph, configuration) = cluster.jobs[0]
    assert graph.job_name == "first" and configuration["my.key"] == "v"
    with pytest.raises(InvalidJobError, match="nothing to run"):
        env.execute()
    stream.print("again")
    env.execute("second")
    assert cluster.jobs[1][0].job_name == "second"


def test_execute_async_returns_a_client(env):
    env.from_collection([1]).print()
    assert env.execute_async().status is JobStatus.RUNNING


def test_ctrl_c_cancels_the_job_and_goes_on_up():
    handle = Handle(interrupt=True)
    env = Environment.get_execution_environment(cluster=Cluster(handle))
    env.from_collection([1]).print()
    with pytest.raises(KeyboardInterrupt):
        env.execute()
    assert handle.cancelled.is_set()


def test_the_execution_plan_is_json_and_does_not_use_the_program_up(env):
    env.from_collection([1]).map(lambda n: n).name("same").print()
    plan = json.loads(env.get_execution_plan())
    assert [node["type"] for node in plan["nodes"]][1] == "same"
    bundle = env._repr_mimebundle_()
    assert {"text/plain", "text/html", "text/vnd.mermaid"} == set(bundle)
    env.execute()


def test_an_environment_without_a_program_still_has_a_text():
    env = Environment.get_execution_environment()
    assert "parallelism=1" in repr(env) and env._repr_html_() is None
    assert set(env._repr_mimebundle_()) == {"text/plain"}


def test_checkpoint_settings_of_pyflink_1_do_what_they_did(env):
    config = env.get_checkpoint_config()
    config.set_checkpoint_storage_dir("file:///shared/checkpoints").enable_externalized_checkpoints(
        ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION
    )
    values = env.configuration.to_dict()
    assert values["execution.checkpointing.dir"] == "file:///shared/checkpoints"
    assert values["execution.checkpointing.storage"] == "filesystem"
    assert values["execution.checkpointing.externalized-checkpoint-retention"] == "RETAIN_ON_CANCELLATION"
    config.set_externalized_checkpoint_cleanup(ExternalizedCheckpointCleanup.DELETE_ON_CANCELLATION)
    assert config.get_externalized_checkpoint_cleanup() is ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION
    config.set_checkpoint_storage(JobManagerCheckpointStorage())
    assert env.configuration.to_dict()["execution.checkpointing.storage"] == "jobmanager"
    with pytest.raises(InvalidJobError, match=r"set_checkpoint_storage_dir\(\)"):
        config.set_checkpoint_storage_dir(JobManagerCheckpointStorage())


def test_settings_end_in_the_configuration(env):
    env.set_parallelism(3).set_max_parallelism(12).set_buffer_timeout(Time.seconds(1))
    env.disable_operator_chaining().set_runtime_mode(RuntimeExecutionMode.AUTOMATIC)
    env.set_restart_strategy(RestartStrategies.no_restart())
    env.set_state_backend(EmbeddedRocksDBStateBackend(True))
    env.set_checkpoint_storage(FileSystemCheckpointStorage("s3://b/c"))
    env.enable_checkpointing("10 s", CheckpointingMode.AT_LEAST_ONCE)
    env.get_checkpoint_config().set_externalized_checkpoint_retention(
        ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    ).enable_unaligned_checkpoints()
    values = env.configuration.to_dict()
    assert values["parallelism.default"] == "3" and values["pipeline.max-parallelism"] == "12"
    assert values["execution.buffer-timeout"] == "1000 ms"
    assert values["pipeline.operator-chaining.enabled"] == "false"
    assert values["restart-strategy.type"] == "none" and values["state.backend.type"] == "rocksdb"
    assert values["execution.checkpointing.dir"] == "s3://b/c"
    assert values["execution.checkpointing.interval"] == "10000 ms"
    assert values["execution.checkpointing.mode"] == "AT_LEAST_ONCE"
    assert env.get_checkpoint_config().is_externalized_checkpoints_enabled()
    assert env.get_parallelism() == 3 and not env.is_chaining_enabled()
    assert env.is_unaligned_checkpoints_enabled()


def test_configure_takes_settings_over_and_refuses_bad_ones(env):
    env.configure(Configuration({"parallelism.default": 2, "unknown.key": "kept"}))
    assert env.get_parallelism() == 2 and env.configuration["unknown.key"] == "kept"
    with pytest.raises(ConfigurationError):
        env.configure({"parallelism.default": "many"})


def test_a_launchers_settings_stand_behind_those_of_the_program():
    cluster = Cluster()
    Environment.set_context({"parallelism.default": 2, "a": "1"}, cluster=cluster)
    try:
        env = Environment.get_execution_environment({"a": "2"})
        env.from_collection([1]).print()
        env.execute()
    finally:
        Environment.reset_context()
    assert env.get_parallelism() == 2 and env.configuration["a"] == "2" and len(cluster.jobs) == 1
    assert Environment.get_execution_environment().get_parallelism() == 1


def test_a_setting_that_is_not_used_is_told_at_the_users_line(env):
    env.configuration.set_string("state.backend.rocksdb.checkpoint.transfer.thread.num", "8")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 1_000))
    env.enable_checkpointing(1_000)
    env.from_collection([1]).print()
    with pytest.warns(UserWarning, match="does not use state.backend.rocksdb.checkpoint.transfer.thread.num$") as warned:
        env.execute()
    assert [warning.filename for warning in warned] == [__file__]


def test_mistyped_and_impossible_settings_are_found_before_the_job_is_submitted(env, cluster):
    env.from_collection([1]).print()
    for key, value in (
        ("flinkish.fusd-chains", "false"),
        ("taskmanager.numberOfTaskSlots", "0"),
        ("execution.runtime-mode", "SWIFT"),
    ):
        env.configuration.set_string(key, value)
        with pytest.raises(InvalidJobError):
            env.execute()
        env.configuration.remove_config(key)
    assert not cluster.jobs
    env.configuration.set_string("paralelism.default", "2")
    with pytest.warns(UserWarning, match='did you mean "parallelism.default"'):
        env.execute()
    assert len(cluster.jobs) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda env: env.add_jars("a.jar"),
        lambda env: env.add_classpaths("a"),
        lambda env: env.create_input(None),
        lambda env: env.set_python_executable("python3"),
        lambda env: env.add_python_archive("a.zip"),
        lambda env: env.register_cached_file("f", "n"),
        lambda env: env.set_runtime_mode("BATCH"),
        lambda env: env.from_source([1], WatermarkStrategy.no_watermarks(), "s"),
        lambda env: env.from_source(Typed(), None, "s"),
        lambda env: env.from_collection([1], int),
        lambda env: env.set_parallelism(0),
        lambda env: env.set_parallelism(True),
    ],
)
def test_what_cannot_work_is_refused_at_the_call(env, call):
    with pytest.raises(InvalidJobError):
        call(env)


class Typed(Source):
    fixed_parallelism = 1

    def boundedness(self):
        return Boundedness.BOUNDED

    def create_enumerator(self, context): ...

    def create_reader(self, context): ...

    def produced_type(self):
        return Types.LONG()


def test_a_source_gives_its_type_and_its_fixed_parallelism(env):
    stream = env.from_source(Typed(), WatermarkStrategy.no_watermarks(), "typed")
    assert stream.get_type() == Types.LONG() and stream.transformation.parallelism == 1
    assert (
        env.from_source(Typed(), WatermarkStrategy.no_watermarks(), "s", Types.INT()).get_type()
        == Types.INT()
    )


def test_add_source_takes_a_plain_generator_function(env):
    def numbers(ctx):
        yield from range(3)

    stream = env.add_source(numbers, "numbers")
    assert stream.get_name() == "numbers" and stream.transformation.parallelism == 1


def test_add_python_file_keeps_absolute_paths(env, tmp_path):
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("")
        env.add_python_file(str(tmp_path / name))
    assert env.configuration["python.files"] == f"{tmp_path / 'a.py'};{tmp_path / 'b.py'}"
    with pytest.raises(InvalidJobError):
        env.add_python_file(str(tmp_path / "c.py"))


def test_execute_and_collect_with_a_limit_takes_no_more_than_that_and_ends_the_job(env, cluster):
    stream = env.from_collection([1, 2, 3])
    submit = cluster.submit

    def submit_and_feed(stream_graph, configuration):
        import pickle

        node = next(n for n in stream_graph.nodes.values() if "collect sink" in n.name)
        node.operator.sink.results()._add([pickle.dumps([1, 2, 3])], lambda: None)
        return submit(stream_graph, configuration)

    cluster.submit = submit_and_feed
    assert stream.execute_and_collect(limit=2) == [1, 2]
    assert cluster.handle.cancelled.is_set()
    with pytest.raises(InvalidJobError):
        stream.execute_and_collect(limit=-1)
    with pytest.raises(InvalidJobError, match="limit=..."):
        stream.execute_and_collect(3)


class Listener(JobListener):
    def __init__(self):
        self.heard = []

    def on_job_submitted(self, job_client, error):
        self.heard.append(("submitted", job_client and job_client.job_id, error))

    def on_job_executed(self, job_execution_result, error):
        self.heard.append(("executed", job_execution_result and job_execution_result.get_net_runtime(), error))


def test_job_listeners_hear_of_submission_end_and_failure(env, cluster):
    listener = Listener()
    env.register_job_listener(listener)
    assert env.get_job_listeners() == [listener]
    env.from_collection([1]).print()
    env.execute()
    assert listener.heard == [("submitted", Handle.job_id, None), ("executed", 1, None)]

    env.from_collection([1]).print()
    client = env.execute_async()  # nobody waits for its end, so nobody is told
    assert listener.heard[2:] == [("submitted", Handle.job_id, None)]
    client.cancel().result(10_000)

    env.from_collection([1]).print()
    with pytest.raises(JobCancelledError) as cancelled:
        env.execute()
    assert listener.heard[3:] == [("submitted", Handle.job_id, None), ("executed", None, cancelled.value)]

    with pytest.raises(InvalidJobError, match="nothing to run") as refused:
        env.execute()
    assert listener.heard[5:] == [("submitted", None, refused.value)]

    env.clear_job_listeners()
    env.from_collection([1]).print()
    env.execute_async()
    assert len(listener.heard) == 6
    with pytest.raises(InvalidJobError, match="job_listener"):
        env.register_job_listener(print)


def test_records_that_are_collected_come_with_the_job_that_the_program_starts(env, cluster):
    records = env.from_collection([1]).collect_async()
    with pytest.raises(UserError, match="has not been started"):
        next(records)
    client = env.execute_async()
    assert records.job_client is client
    (graph, _) = cluster.jobs[0]
    assert "Data stream collect sink" in [node.name.removeprefix("Sink: ") for node in graph.nodes.values()]
    records.close()
    assert cluster.handle.cancelled.is_set()


def test_a_stream_without_an_end_is_not_cached(env, cluster):
    cached = env.socket_text_stream("localhost", 1).map(len).name("lengths").cache()
    cached.print()
    with pytest.warns(UserWarning, match="source without an end"):
        env.execute_async()
    (graph, _) = cluster.jobs[0]
    assert not any(node.name == "Cache" for node in graph.nodes.values()) and not cached.is_cached
    assert isinstance(cached, CachedDataStream) and cached.get_name() == "lengths"
    assert cached.set_parallelism(3).uid("u").transformation.inputs[0].parallelism == 3


def test_settings_of_javas_serializers_are_kept_and_said_to_have_no_effect(env):
    config = env.get_config()
    for enable, disable, get in [
        ("enable_force_kryo", "disable_force_kryo", "is_force_kryo_enabled"),
        ("enable_force_avro", "disable_force_avro", "is_force_avro_enabled"),
        ("disable_generic_types", "enable_generic_types", "has_generic_types_disabled"),
    ]:
        assert getattr(config, get)() is False
        with pytest.warns(UserWarning, match=f"{enable}.* has no effect"):
            getattr(config, enable)()
        assert getattr(config, get)() is True and getattr(config, disable)() is config
        assert getattr(config, get)() is False
    assert config.get_default_kryo_serializer_classes() == {}
    assert config.get_registered_kryo_types() == config.get_registered_pojo_types() == []
    with pytest.raises(InvalidJobError, match="class of Java"):
        EmbeddedRocksDBStateBackend().set_options("com.example.Options")
