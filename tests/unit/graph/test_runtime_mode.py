"""Whether a program is a stream or a batch, and what that does to its graph."""

import warnings

import pytest

from flinkish.datastream import StreamExecutionEnvironment
from flinkish.datastream.execution_mode import RuntimeExecutionMode
from flinkish.datastream.transformations import ChainingStrategy
from flinkish.errors import InvalidJobError
from flinkish.graph.job_graph_generator import create_job_graph
from flinkish.shell.state_recovery import checkpoint_settings


def program(mode, bounded=True, **settings):
    env = StreamExecutionEnvironment.get_execution_environment({"parallelism.default": "1", **settings})
    if mode is not None:
        env.set_runtime_mode(mode)
    numbers = env.from_sequence(1, 3)
    if not bounded:
        numbers = numbers.map(str).union(env.socket_text_stream("localhost", 1))
    numbers.key_by(lambda value: value).map(lambda value: value).name("plain").print()
    numbers.key_by(lambda value: value).reduce(max).name("keyed").print()
    return env


def mode_of(env):
    return env.get_stream_graph().configuration["execution.runtime-mode"]


def test_automatic_is_batch_where_all_sources_end():
    assert mode_of(program(None)) == "STREAMING"
    assert mode_of(program(RuntimeExecutionMode.STREAMING, bounded=False)) == "STREAMING"
    assert mode_of(program(RuntimeExecutionMode.AUTOMATIC)) == "BATCH"
    assert mode_of(program(RuntimeExecutionMode.AUTOMATIC, bounded=False)) == "STREAMING"
    assert mode_of(program(None, **{"execution.runtime-mode": "automatic"})) == "BATCH"


def test_a_batch_refuses_a_source_that_does_not_end_by_name():
    with pytest.raises(InvalidJobError, match="could not run the job in BATCH mode") as refused:
        program(RuntimeExecutionMode.BATCH, bounded=False).get_stream_graph()
    assert "Socket Stream" in refused.value.where and "AUTOMATIC" in refused.value.do


def test_an_operator_with_keys_is_the_head_of_its_chain():
    """Also where its input is forwarded; one that needs no key of its input stays as it is."""
    graph = program(RuntimeExecutionMode.BATCH).get_stream_graph()
    strategies = {node.name: node.chaining_strategy for node in graph.nodes.values()}
    assert strategies["keyed"] is ChainingStrategy.HEAD and strategies["plain"] is ChainingStrategy.ALWAYS


def test_a_batch_has_no_checkpoints_and_does_not_say_so_before_it_runs():
    settings = {"execution.checkpointing.interval": "1 s", "execution.checkpointing.savepoint-dir": "/tmp"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mode, interval_ms in ((RuntimeExecutionMode.BATCH, None), (RuntimeExecutionMode.STREAMING, 1_000)):
            job = create_job_graph(program(mode, **settings).get_stream_graph())
            found = checkpoint_settings(job, frozenset(), commits=True).configuration
            assert found.interval_ms == interval_ms and found.batch is (interval_ms is None)
            assert found.final_checkpoint is (interval_ms is not None)
