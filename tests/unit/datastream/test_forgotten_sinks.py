import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from flinkish import StreamExecutionEnvironment as Environment
from flinkish.datastream.forgotten_sinks import forget_waiting_sinks, report_forgotten_sinks

CHECKOUT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def none_wait():
    forget_waiting_sinks()
    yield
    forget_waiting_sinks()


def test_sinks_that_never_ran_are_told_once_with_the_place_of_their_environment(capsys):
    def make():  # gone when the report comes
        env = Environment.get_execution_environment()
        stream = env.from_collection([1])
        stream.print()
        stream.print()

    make()
    report_forgotten_sinks()
    said = capsys.readouterr().err
    assert "2 sinks were added and never ran: call env.execute()" in said and f"{__file__}:" in said
    report_forgotten_sinks()
    assert capsys.readouterr().err == ""


def test_sinks_that_ran_or_were_given_up_and_sources_alone_are_not_told(capsys):
    env = Environment.get_execution_environment()
    env.from_collection([1]).map(lambda n: n)
    report_forgotten_sinks()
    env.from_collection([1]).print()
    env.get_stream_graph(clear_transformations=True)
    env.from_collection([1]).print()
    env.close()
    report_forgotten_sinks()
    assert capsys.readouterr().err == ""


def test_at_the_end_of_a_program_environments_of_libraries_and_tests_are_not_told(capsys):
    env = Environment.get_execution_environment()
    env.from_collection([1]).print()
    report_forgotten_sinks(of_program_only=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("end, told", [("", True), ("raise ValueError('x')", False), ("env.close()", False)])
def test_a_plain_script_that_ends_in_order_is_told_of_a_forgotten_execute(tmp_path, end, told):
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent(
            """
            from flinkish.datastream import StreamExecutionEnvironment
            env = StreamExecutionEnvironment.get_execution_environment()
            env.from_collection([1]).print()
            """
        )
        + end
    )
    done = subprocess.run(
        [sys.executable, script], env={"PYTHONPATH": str(CHECKOUT)}, capture_output=True, text=True
    )
    assert ("1 sink was added and never ran: call env.execute()" in done.stderr) == told, done.stderr
    assert not told or f"{script}:3" in done.stderr
