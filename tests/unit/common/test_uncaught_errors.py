"""What a program shows of an error that it did not catch."""

import pytest

from flinkish.common.uncaught_errors import fold_engine_frames
from flinkish.errors import InternalError, InvalidJobError, UserFunctionError

FAILS = """
from flinkish.datastream import StreamExecutionEnvironment

def divide(x):
    return 10 // x

env = StreamExecutionEnvironment.get_execution_environment({"execution.target": "mini-cluster"})
stream = env.from_collection([1, 0]).map(divide)
"""


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "job.py"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("end", ["stream.print()\nenv.execute()", "list(stream.execute_and_collect())"])
def test_a_script_shows_the_users_traceback_first_and_then_one_line(run_python, script, end):
    ended = run_python(script(FAILS + end))
    assert ended.returncode == 1
    assert ended.stderr.startswith("Traceback (most recent call last):\n"), ended.stderr
    assert ended.stderr.count("File ") == 1 and "in divide\n    return 10 // x" in ended.stderr
    lines = ended.stderr.splitlines()
    assert lines[-2] == "ZeroDivisionError: integer division or modulo by zero"
    assert lines[-1] == 'operator "Map" subtask 0 of 1 failed on record 0'


def test_a_refusal_shows_the_line_of_the_program_that_asked(run_python, script):
    ended = run_python(script(FAILS + "stream.set_parallelism(-3)"))
    assert ended.returncode == 1
    assert "stream.set_parallelism(-3)" in ended.stderr and "datastream" not in ended.stderr
    assert "flinkish.errors.InvalidJobError: " in ended.stderr


def test_errors_of_others_are_shown_as_ever(run_python, script):
    ended = run_python(script(FAILS + "{}[1]"))
    assert ended.returncode == 1
    assert "line 9, in <module>" in ended.stderr and ended.stderr.endswith("KeyError: 1\n")


def test_a_notebook_shows_the_same():
    fold_engine_frames()
    error = UserFunctionError("operator failed", traceback_text="Traceback\n  boom\n")
    assert error._render_traceback_() == ["Traceback\n  boom\noperator failed"]
    assert InvalidJobError("no", why="because")._render_traceback_() == ["no\n  why: because"]


def test_an_error_of_the_engine_keeps_its_frames():
    try:
        raise InternalError("broken")
    except InternalError as error:
        assert any("test_uncaught_errors.py" in line for line in error._render_traceback_())
