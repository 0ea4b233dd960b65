"""The console command, in processes of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
FLINKISH = ("-m", "flinkish.cli")

SMALL_JOB = """
import sys
from dataclasses import dataclass
from flinkish.datastream import StreamExecutionEnvironment

@dataclass
class Reading:
    sensor: str
    value: int

arguments = sys.argv[1:]
env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
(
    env.from_collection([Reading("a", 1), Reading("b", 2), Reading("a", 3)])
    .key_by(lambda reading: reading.sensor)
    .reduce(lambda x, y: Reading(x.sensor, x.value + y.value))
    .filter(lambda reading: reading.value > 1)
    .map(lambda reading: f"{arguments} {reading}")
    .print()
)
env.execute("small")
"""


def script(folder, text, name="job.py"):
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def printed(output):
    return sorted(line.split("> ")[-1] for line in output.splitlines() if "Reading(" in line)


SMALL_RESULT = [f"['--x', '1'] Reading(sensor={sensor!r}, value={value})" for sensor, value in (("a", 4), ("b", 2))]


def left_running(text):
    """Command lines of processes that have ``text`` in theirs."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if text in line:
            found.append(line)
    return found


def test_run_on_the_mini_cluster_needs_no_java(run_python, tmp_path, path_without_java):
    job = script(tmp_path, SMALL_JOB)
    done = run_python(
        *FLINKISH, "run", "--master", "mini-cluster", job, "--x", "1",
        environ={"PATH": path_without_java, "JAVA_HOME": None},
    )
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == SMALL_RESULT


@pytest.mark.launch
def test_run_starts_a_local_spark_and_leaves_nothing_running(run_python, tmp_path):
    job = script(tmp_path, SMALL_JOB)
    done = run_python(*FLINKISH, "run", "-D", f"spark.app.name=mark-{tmp_path.name}", job, "--x", "1")
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == SMALL_RESULT
    assert done.stderr.splitlines()[0] == "Starting Spark ..."
    assert left_running(f"mark-{tmp_path.name}") == []


@pytest.mark.launch
def test_a_plain_python_script_starts_spark_by_itself_and_ends(run_python, tmp_path):
    done = run_python(script(tmp_path, SMALL_JOB), "--x", "1")
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == SMALL_RESULT


@pytest.mark.launch
def test_spark_submit_runs_the_same_script(tmp_path):
    import pyspark

    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [submit, "--master", "local[3]", script(tmp_path, SMALL_JOB), "--x", "1"],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path, capture_output=True, text=True, timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == SMALL_RESULT


def test_without_java_a_job_for_spark_says_how_to_install_it(run_python, tmp_path, path_without_java):
    done = run_python(
        *FLINKISH, "run", script(tmp_path, SMALL_JOB),
        environ={"PATH": path_without_java, "JAVA_HOME": None},
    )
    assert done.returncode == 1
    what, where, why, do = done.stderr.strip().splitlines()[-4:]
    assert what == "could not start Spark: Java was not found"
    assert where.startswith("  where: this machine, ")
    assert why.startswith("  why: JAVA_HOME is not set and PATH has no java")
    assert do.startswith("  do: ") and "17" in do


def test_a_failing_script_shows_its_own_traceback_and_gives_exit_code_1(run_python, tmp_path):
    job = script(tmp_path, "def f():\n    raise ValueError('from the script')\nf()\n")
    done = run_python(*FLINKISH, "run", job)
    assert done.returncode == 1
    assert "ValueError: from the script" in done.stderr
    assert "flinkish/cli.py" not in done.stderr


def test_the_exit_code_and_the_arguments_of_the_script_are_kept(run_python, tmp_path):
    job = script(tmp_path, "import sys\nprint(__name__, sys.argv[1:])\nsys.exit(7)\n")
    done = run_python(*FLINKISH, "run", job, "-D", "not=ours", "--flag")
    assert (done.returncode, done.stdout) == (7, "__main__ ['-D', 'not=ours', '--flag']\n")


def test_a_script_imports_what_lies_beside_it(run_python, tmp_path):
    (tmp_path / "jobs").mkdir()
    script(tmp_path / "jobs", "def double(n):\n    return 2 * n\n", "helper_of_job.py")
    job = script(
        tmp_path / "jobs",
        """
        from flinkish.datastream import StreamExecutionEnvironment
        from helper_of_job import double
        env = StreamExecutionEnvironment.get_execution_environment()
        env.from_collection([21]).map(double).print()
        env.execute()
        """,
    )
    done = run_python(*FLINKISH, "run", "--master", "mini-cluster", job)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


def test_a_missing_script_and_a_wrong_setting_are_refused(run_python, tmp_path):
    missing = run_python(*FLINKISH, "run", "nowhere.py")
    assert (missing.returncode, missing.stderr.splitlines()[0]) == (1, "could not run nowhere.py")
    wrong = run_python(*FLINKISH, "run", "-D", "novalue", script(tmp_path, "print(1)"))
    assert wrong.returncode == 1 and "KEY=VALUE" in wrong.stderr


def test_an_unknown_master_is_refused_before_java_starts(run_python, tmp_path, path_without_java):
    done = run_python(
        *FLINKISH, "run", "--master", "minicluster", script(tmp_path, SMALL_JOB),
        environ={"PATH": path_without_java, "JAVA_HOME": None},
    )
    assert done.returncode == 1
    what, where, why, do = done.stderr.splitlines()
    assert what == 'could not use "minicluster" as master' and where == "  where: --master"
    assert why.startswith("  why: the known forms are local, ") and do == '  do: did you mean "mini-cluster"?'


def test_wrong_settings_of_the_command_line_are_refused_before_java_starts(run_python, tmp_path, path_without_java):
    job = script(tmp_path, SMALL_JOB)
    for setting, text in (
        ("parallelism.default=x", "why: 'x' is no whole number"),
        ("heartbeat.timeout=soon", 'option "heartbeat.timeout" cannot be'),
        ("flinkish.fusd-chains=2", 'do: did you mean "flinkish.fused-chains"?'),
        ("taskmanager.numberOfTaskSlots=0", 'option "taskmanager.numberOfTaskSlots" cannot be'),
        ("execution.runtime-mode=SWIFT", 'option "execution.runtime-mode" cannot be'),
    ):
        done = run_python(
            *FLINKISH, "run", "-D", setting, job, environ={"PATH": path_without_java, "JAVA_HOME": None}
        )
        assert done.returncode == 1 and text in done.stderr
        labels = [line.partition(":")[0] for line in done.stderr.splitlines()]
        assert labels[1:] == ["  where", "  why", "  do"], done.stderr  # no traceback
        assert "the command line" in done.stderr and "Starting Spark" not in done.stderr


def test_wrong_settings_of_the_configuration_file_are_refused_by_demo_too(run_python, tmp_path):
    (tmp_path / "flinkish-conf.yaml").write_text("heartbeat:\n  timeout: soon\n")
    environ = {"FLINKISH_CONF_DIR": str(tmp_path)}
    for command in (("demo", "--output", tmp_path / "result"), ("run", script(tmp_path, SMALL_JOB))):
        done = run_python(*FLINKISH, *command, environ=environ)
        assert done.returncode == 1 and 'option "heartbeat.timeout" cannot be' in done.stderr
        assert len(done.stderr.splitlines()) == 4 and f"configuration file in {tmp_path}" in done.stderr


def test_a_script_that_is_no_python_shows_the_place_only(run_python, tmp_path):
    done = run_python(*FLINKISH, "run", script(tmp_path, "def f(:\n"))
    assert done.returncode == 1 and done.stderr.startswith("  File ") and "SyntaxError" in done.stderr
    assert "Traceback" not in done.stderr and "cli.py" not in done.stderr


def test_a_script_has_its_own_future_statements(run_python, tmp_path):
    text = "def f(value: int):\n    pass\nprint(f.__annotations__)\n"
    done = run_python(*FLINKISH, "run", script(tmp_path, text))
    assert (done.returncode, done.stdout) == (0, "{'value': <class 'int'>}\n"), done.stderr


def test_a_forgotten_execute_is_told(run_python, tmp_path):
    forgotten = script(tmp_path, SMALL_JOB.replace("env.execute", "str"))
    done = run_python(*FLINKISH, "run", forgotten)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("1 sink was added and never ran: call env.execute()") == 1
    assert f"{forgotten}:" in done.stderr


def test_version_names_what_is_installed(run_python):
    done = run_python(*FLINKISH, "version")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "flinkish", "python", "pyspark", "pyarrow", "java",
    ]  # fmt: skip


@pytest.mark.launch
def test_ctrl_c_closes_user_functions_and_leaves_nothing_running(tmp_path, bell):
    """PySpark's own handler would kill the slots before ``close``."""
    job = script(
        tmp_path,
        """
        import sys
        from flinkish.datastream import StreamExecutionEnvironment
        from flinkish.datastream.functions import MapFunction

        folder, bell = sys.argv[1:]

        class Watch(MapFunction):
            def open(self, context):
                with open(bell, "w") as pipe:
                    pipe.write("\\n")
            def map(self, value):
                return value
            def close(self):
                open(f"{folder}/closed", "a").write("x")

        env = StreamExecutionEnvironment.get_execution_environment()
        env.set_parallelism(2)
        env.from_sequence(0, 2**62).map(Watch()).filter(lambda n: False).print()
        env.execute()
        """,
    )
    process = subprocess.Popen(
        [sys.executable, *FLINKISH, "run", "-D", f"spark.app.name=mark-{tmp_path.name}", job, tmp_path,
         bell.path],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    try:
        bell.wait(2, process, timeout_s=180)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert (tmp_path / "closed").read_text() == "xx"
    assert left_running(f"mark-{tmp_path.name}") == []


def test_demo_without_java_runs_on_the_mini_cluster_and_says_so(run_python, tmp_path, path_without_java):
    done = run_python(
        *FLINKISH, "demo", "--output", tmp_path / "result",
        environ={"PATH": path_without_java, "JAVA_HOME": None},
    )
    assert done.returncode == 0, done.stderr
    assert "MiniCluster" in done.stdout and "For Spark: " in done.stdout
    assert "328,521 flights departed, 8,255 were cancelled" in done.stdout
    assert done.stderr == ""
    assert left_running(str(tmp_path)) == []


def test_a_second_demo_replaces_the_result_of_the_first_when_asked_to(run_python, tmp_path, path_without_java):
    (tmp_path / "result" / "windows").mkdir(parents=True)
    (tmp_path / "result" / "windows" / "part-0-0.parquet").write_text("an earlier result")
    demo = (*FLINKISH, "demo", "--output", tmp_path / "result")
    environ = {"PATH": path_without_java, "JAVA_HOME": None}
    refused = run_python(*demo, environ=environ)
    assert refused.returncode == 1 and "set overwrite" in refused.stderr
    done = run_python(*demo, "--overwrite", environ=environ)
    assert done.returncode == 0, done.stderr


def test_a_demo_with_a_wrong_parallelism_leaves_no_folder(run_python, tmp_path):
    done = run_python(*FLINKISH, "demo", "--parallelism", "0", environ={"TMPDIR": str(tmp_path)})
    assert done.returncode == 1 and "it must be at least 1" in done.stderr
    assert list(tmp_path.glob("flinkish-demo-*")) == []


@pytest.mark.launch
def test_demo_runs_in_spark_and_leaves_nothing_running(run_python, tmp_path):
    done = run_python(*FLINKISH, "demo", "--output", tmp_path / "result")
    assert done.returncode == 0, done.stderr
    assert "Starting Spark" in done.stdout
    assert "328,521 flights departed, 8,255 were cancelled" in done.stdout
    assert left_running(str(tmp_path)) == []


def test_a_job_that_the_script_did_not_wait_for_is_ended_in_order(run_python, tmp_path, bell):
    job = script(
        tmp_path,
        """
        import sys
        from flinkish.datastream import StreamExecutionEnvironment
        from flinkish.datastream.functions import MapFunction

        folder, bell = sys.argv[1:]

        class Watch(MapFunction):
            def open(self, context):
                self.rung = False
            def map(self, value):
                if not self.rung:
                    self.rung = True
                    with open(bell, "w") as pipe:
                        pipe.write("\\n")
                return value
            def close(self):
                open(f"{folder}/closed", "w").close()

        env = StreamExecutionEnvironment.get_execution_environment()
        env.from_sequence(0, 2**62).map(Watch()).filter(lambda n: False).print()
        env.execute_async()
        open(bell).readline()
        """,
    )
    done = run_python(*FLINKISH, "run", "--master", "mini-cluster", job, tmp_path, bell.path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "closed").exists()
    assert left_running(str(tmp_path)) == []
