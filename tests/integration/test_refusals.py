"""What cannot work is refused early, in four lines: what, where, why, do.

The refusals that need no Spark are provoked in one process without Java: had a launch been tried first,
its error would have come instead.
"""

from __future__ import annotations

import json
import textwrap

import pytest

from flinkish.datastream import StreamExecutionEnvironment
from flinkish.errors import InvalidJobError, NotEnoughSlotsError, UnpicklableFunctionError, UnsupportedSparkError

FLINKISH = ("-m", "flinkish.cli")

SCRIPT = """
import json, socket, sys, threading
from pathlib import Path

from flinkish.connectors.files.file_sink import FileSink
from flinkish.datastream import StreamExecutionEnvironment
from flinkish.datastream.functions import KeyedProcessFunction
from flinkish.errors import FlinkishError

lock = threading.Lock()
refusals = {}


def refused(attempt):
    env = StreamExecutionEnvironment.get_execution_environment()
    try:
        attempt(env)
    except FlinkishError as error:
        refusals[attempt.__name__] = dict(
            type=type(error).__name__, lines=str(error).splitlines(), variable=error.fields.get("variable")
        )
    else:
        refusals[attempt.__name__] = None
    return attempt


def numbers(env):
    return env.from_collection([3, 1, 2])


@refused
def no_java(env):
    numbers(env).print()
    env.execute()


@refused
def global_lock(env):
    def guarded(value):
        with lock:
            return value

    numbers(env).map(guarded).name("guard").print()
    env.execute()


@refused
def default_argument(env):
    def send(value, connection=socket.socket()):
        return value

    numbers(env).map(send).name("send").print()
    env.execute()


class Client:
    def __init__(self):
        self.parts = {"stream": (line for line in ())}


class Enrich(KeyedProcessFunction):
    def __init__(self):
        self.client = Client()

    def process_element(self, value, ctx):
        yield value


@refused
def inside_a_rich_function(env):
    numbers(env).key_by(lambda value: value).process(Enrich()).name("enrich").print()
    env.execute()


@refused
def key_selector(env):
    file = open(sys.argv[1] + "/log", "w")
    numbers(env).key_by(lambda value: file.fileno()).reduce(max).print()
    env.execute()


@refused
def environment(env):
    numbers(env).map(lambda value: env).name("nested").print()
    env.execute()


@refused
def folder(env):
    numbers(env).sink_to(FileSink.for_row_format(sys.argv[1] + "/full").build()).name("result")
    env.execute()


@refused
def folder_of_an_unpicklable_job(env):
    numbers(env).map(lambda value: lock).sink_to(FileSink.for_row_format(sys.argv[1] + "/new").build())
    env.execute()


@refused
def environment_parallelism(env):
    env.set_max_parallelism(4).set_parallelism(5)


@refused
def later_max_parallelism(env):
    env.set_parallelism(5).set_max_parallelism(4)


@refused
def operator_parallelism(env):
    env.set_max_parallelism(4)
    numbers(env).rebalance().map(lambda value: value).name("wide").set_parallelism(5)


@refused
def parallelism_by_setting(env):
    env.configure({"pipeline.max-parallelism": "4", "parallelism.default": "5"})
    numbers(env).rebalance().map(lambda value: value).name("wide").print()
    env.execute()


@refused
def more_than_there_are_key_groups(env):
    env.set_parallelism(40_000)
    numbers(env).rebalance().map(lambda value: value).name("wide").print()
    env.execute()


@refused
def zero(env):
    env.set_parallelism(0)


@refused
def negative(env):
    numbers(env).rebalance().map(lambda value: value).name("wide").set_parallelism(-2)


@refused
def text(env):
    env.set_parallelism("2")


@refused
def truth(env):
    numbers(env).rebalance().map(lambda value: value).name("wide").set_max_parallelism(True)


print(json.dumps(refusals))
"""


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """By the names of the script's attempts."""
    import os
    import subprocess
    import sys

    folder = tmp_path_factory.mktemp("refusals")
    (folder / "full").mkdir()
    (folder / "full" / "part-0-0").write_text("an earlier result")
    (folder / "job.py").write_text(textwrap.dedent(SCRIPT))
    environ = {**os.environ, "JAVA_HOME": str(folder / "no-java"), "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "job.py", str(folder)], cwd=folder, env=environ, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    # Nothing was started, and what the folders hold is as before.
    assert sorted(path.name for path in folder.iterdir()) == ["full", "job.py", "log"]
    assert (folder / "full" / "part-0-0").read_text() == "an earlier result"
    return json.loads(done.stdout)


def check_lines(lines, what, where, why, do):
    assert len(lines) == 4, lines
    for line, label, part in zip(lines, ("", "  where: ", "  why: ", "  do: "), (what, where, why, do)):
        assert line.startswith(label) and part in line, lines


@pytest.mark.parametrize(
    "attempt, what, where, why, do",
    [
        ("no_java", "could not start Spark: Java was not found", "this machine", "JAVA_HOME is", "17"),
        ("global_lock", 'guarded (line', 'operator "guard"', 'it captures "lock", a _thread.lock', "open()"),
        ("default_argument", "send (line", 'operator "send"', 'it captures "connection", a socket.socket', "open()"),
        ("inside_a_rich_function", "could not send function Enrich of operator", 'operator "enrich"',
         "\"['stream']\" of \"self.parts\" of \"self.client\", a generator", "open()"),
        ("key_selector", "could not send key selector key_selector.<locals>.<lambda> (line", 'operator "', 'it captures "file", a _io.', "open()"),
        ("environment", "<lambda>", 'operator "nested"', 'StreamExecutionEnvironment, which lives in the driver only',
         "connect()"),
        ("folder", "could not write to /", 'operator "Sink: result"', "not empty: it holds part-0-0", "overwrite=True"),
        ("folder_of_an_unpicklable_job", "<lambda>", 'operator "', 'it captures "lock"', "open()"),
        ("environment_parallelism", "parallelism of the job to 5", "the job", "its max parallelism is 4", "lower"),
        ("later_max_parallelism", "parallelism of the job to 5", "the job", "its max parallelism is 4", "lower"),
        ("operator_parallelism", 'parallelism of "wide" to 5', '"wide"', "its max parallelism is 4", "lower"),
        ("parallelism_by_setting", "parallelism 5", 'operator "', "its max parallelism is 4", "lower"),
        ("more_than_there_are_key_groups", "parallelism 40000", 'operator "', "its max parallelism is 32768", "lower"),
        ("zero", "parallelism of the job to 0", "the job", "it must be at least 1", "1 or more"),
        ("negative", 'parallelism of "wide" to -2', '"wide"', "it must be at least 1", "1 or more"),
        ("text", "parallelism of the job to '2'", "the job", "it is a str, not an int", "1 or more"),
        ("truth", 'max parallelism of "wide" to True', '"wide"', "it is a bool, not an int", "from 1 to 32768"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_where_why_and_what_to_do(refusals, attempt, what, where, why, do):
    check_lines(refusals[attempt]["lines"], what, where, why, do)


def test_no_attempt_goes_through_and_variables_are_fields_too(refusals):
    assert [name for name, refusal in refusals.items() if refusal is None] == []
    assert {name: refusal["variable"] for name, refusal in refusals.items() if refusal["variable"]} == {
        "global_lock": "lock",
        "default_argument": "connection",
        "inside_a_rich_function": "['stream']",
        "key_selector": "file",
        "environment": "env",
        "folder_of_an_unpicklable_job": "lock",
    }


def test_a_job_or_a_spark_inside_a_job_is_refused_in_its_slot(cluster):
    """Each slot would start a Spark of its own."""

    def start_job(value):
        env = StreamExecutionEnvironment.get_execution_environment()
        env.from_elements(value).print()
        env.execute()

    def start_spark(value):
        from spark_plugin.session import get_or_create_session

        return get_or_create_session(1, {})

    for function, what in (
        (start_job, "could not start a job inside a job"),
        (start_spark, "could not start Spark inside a job"),
    ):
        env = cluster.get_execution_environment()
        error = refusal_of(env.from_elements(1).map(function).name("look up"), InvalidJobError)
        check_lines(
            str(error).splitlines(), what, 'operator "look up", subtask 0 of 2, slot ', "this code runs in a slot",
            "do it in the program that calls execute()",
        )  # fmt: skip


# ---- with Spark ---------------------------------------------------------------------------------------


def refusal_of(stream, kind):
    stream.print()
    with pytest.raises(kind) as caught:
        stream.get_execution_environment().execute()
    return caught.value


@pytest.mark.launch
def test_objects_of_spark_are_refused_before_a_job_starts(spark_of_tests):
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    context = spark_of_tests.context_for("local[2]")
    spark = SparkSession.builder.getOrCreate()
    frame = spark.range(3)
    captured = {
        "SparkSession": (spark, "env.from_dataframe()"),
        "SparkContext": (context, "collect()"),
        "DataFrame": (frame, "env.from_dataframe()"),
        "RDD": (context.parallelize([1]), "collect()"),
        "PipelinedRDD": (context.parallelize([1]).map(str), "collect()"),
        "Column": (F.col("id"), "values of the record"),
        "Broadcast": (context.broadcast([1]), "capture its value"),
        "Accumulator": (context.accumulator(0), "metric"),
        "UserDefinedFunction": (F.udf(lambda value: value), "the Python function"),
        "JavaObject": (context._jsc, "collect()"),
    }
    jobs_before = set(context.statusTracker().getJobIdsForGroup(None))
    for kind, (held, advice) in captured.items():
        env = StreamExecutionEnvironment.get_execution_environment(spark=context)
        holder = {"spark": held}
        error = refusal_of(env.from_sequence(1, 3).map(lambda value: (holder, value)).name("look up"), UnpicklableFunctionError)
        check_lines(str(error).splitlines(), "<lambda> (line", 'operator "look up"', "lives in the driver only", advice)
        assert f".{kind}, which" in error.why and '"[\'spark\']" of "holder"' in error.why, error
    assert set(context.statusTracker().getJobIdsForGroup(None)) == jobs_before


@pytest.mark.launch
def test_more_slots_than_the_cluster_has_are_refused(spark_of_tests):
    env = StreamExecutionEnvironment.get_execution_environment(spark=spark_of_tests.context_for("local[2]"))
    env.set_parallelism(3)
    error = refusal_of(env.from_sequence(1, 3).rebalance().map(lambda value: value), NotEnoughSlotsError)
    check_lines(
        str(error).splitlines(), "could not start 3 slots", "master local[2]", "needs 3 slots, the cluster has 2",
        "start Spark with more cores",
    )  # fmt: skip


@pytest.mark.launch
def test_dynamic_allocation_is_refused_and_the_doctor_says_so_too(spark_of_tests):
    from spark_plugin import doctor

    context = spark_of_tests.context_for("local-cluster[1,1,1024]", dynamicAllocation_enabled="true")
    env = StreamExecutionEnvironment.get_execution_environment(spark=context)
    error = refusal_of(env.from_sequence(1, 3).map(lambda value: value), UnsupportedSparkError)
    check_lines(
        str(error).splitlines(), "could not start slots with dynamic allocation", "master local-cluster[1,1,1024]",
        "spark.dynamicAllocation.enabled is true", "spark.dynamicAllocation.enabled=false",
    )  # fmt: skip
    assert not context.statusTracker().getActiveJobsIds()
    findings = doctor.examine(context, timeout_s=60)
    launch = findings.of("launch")
    assert [line for line in findings.lines if line.status == "fail"] == [launch] and not findings.jobs_will_run, findings
    assert findings.of("task slots").found.startswith("not tried")
    assert "dynamic allocation" in launch.found and "spark.dynamicAllocation.enabled=false" in launch.do


@pytest.mark.parametrize(
    "command", [("flinkish.cli", "demo"), ("jobs.flight_delays", "--target", "mini-cluster")], ids=["demo", "job"]
)
def test_an_earlier_result_is_not_overwritten_unasked(run_python, tmp_path, path_without_java, command):
    (tmp_path / "result" / "windows").mkdir(parents=True)
    earlier = tmp_path / "result" / "windows" / "part-0-0.parquet"
    earlier.write_text("an earlier result")
    done = run_python(
        "-m", *command, "--output", tmp_path / "result", environ={"PATH": path_without_java, "JAVA_HOME": None}
    )
    assert done.returncode == 1 and earlier.read_text() == "an earlier result"
    check_lines(
        done.stderr.strip().splitlines()[-4:], f"could not write to {tmp_path / 'result' / 'windows'}", 'operator "',
        "the folder is not empty", "--overwrite",
    )  # fmt: skip
