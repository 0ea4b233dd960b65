"""Slots in a Spark that this process reaches by Spark Connect only: its server is another process."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flinkish.datastream import StreamExecutionEnvironment
from flinkish.errors import ConnectionLostError, NotEnoughSlotsError
from flinkish.shell.job_manager import JobManager
from spark_plugin import doctor
from spark_plugin.session_cluster import SessionCluster

#: A busy machine takes long to start Spark.
PATIENT = {"slot.request.timeout": "180 s"}
START_TIMEOUT_S = 180
FLINKISH = ("-m", "flinkish.cli")


class ConnectProgram:
    """``connect_program.py`` in a process of its own, for ``with``."""

    def __init__(self, folder):
        self.log = Path(folder) / "program.log"

    def __enter__(self):
        program = Path(__file__).with_name("connect_program.py")
        checkout = program.parent.parent.parent
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, program],
                env={**os.environ, "PYTHONPATH": str(checkout)},
                cwd=self.log.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        try:
            self.found = self._line()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _line(self):
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(START_TIMEOUT_S), self.log.read_text()
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        return json.loads(line)

    def __exit__(self, *exc_info):
        self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    with ConnectProgram(tmp_path_factory.mktemp("connect")) as program:
        yield program


@pytest.fixture(scope="module")
def spark(program):
    """A session of this process.  Made without ``SparkSession.builder`` of pyspark.sql, which would make
    every later session of the process one of Spark Connect."""
    from pyspark.sql.connect.session import SparkSession

    spark = SparkSession.builder.remote(program.found["url"]).create()
    yield spark
    # Whatever the tests have left would hold a core.
    rows = spark.range(0, 4, 1, 4).mapInArrow(_all_four_together, "id long", barrier=True).collect()
    assert len(rows) == 4
    spark.stop()


def _all_four_together(batches):
    from pyspark import BarrierTaskContext

    BarrierTaskContext.get().barrier()
    yield from batches


def count_words(env):
    words = ["to", "be", "or", "not", "to", "be"] * 50
    pairs = env.from_collection(words).map(lambda word: (word, 1))
    with pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1])).execute_and_collect() as results:
        return dict(results)


def test_the_session_of_a_program_on_a_local_connect_carries_slots(program):
    assert program.found["session"].startswith("pyspark.sql.connect")
    assert (program.found["sum"], program.found["slots"]) == (500_500, 2)


def test_a_session_cluster_on_a_connect_server_runs_jobs_beside_dataframes(spark):
    frame = spark.range(0, 100, 1, 2).selectExpr("id", "id * 2 AS twice")
    with SessionCluster(spark, slots=2, configuration=PATIENT) as cluster:
        env = cluster.get_execution_environment()
        assert count_words(env) == {"to": 100, "be": 100, "or": 50, "not": 50}
        with env.from_sequence(1, 1_000).map(lambda number: os.getpid()).execute_and_collect() as results:
            assert len(set(results)) == 2
        assert spark.range(1_000).selectExpr("sum(id)").first()[0] == 499_500
        with env.from_dataframe(frame).map(lambda row: row.twice).execute_and_collect() as results:
            assert sorted(results) == [2 * number for number in range(100)]


def test_the_doctor_finds_that_jobs_run_here(spark):
    findings = doctor.examine(spark, timeout_s=60)
    assert {line.status for line in findings.lines} == {"ok"}, findings
    assert findings.of("Spark").found.endswith(", Spark Connect, local, master local[4]")
    assert findings.of("Java").found == "runs on the server of Spark Connect"
    assert "12 connections between 4 tasks" in findings.of("slot to slot").found


WITHOUT_JAVA = {"PATH": "", "JAVA_HOME": None}  # no other Spark can start


JOB = """
import sys
from flinkish.datastream import StreamExecutionEnvironment

if sys.argv[1:]:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
env = StreamExecutionEnvironment.get_execution_environment({"slot.request.timeout": "180 s"})
with env.from_sequence(1, 10).map(lambda number: 2 * number).execute_and_collect() as results:
    print(sum(results))
"""


def test_a_program_runs_in_the_connect_session_that_it_has_made(program, run_python, tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    done = run_python("job.py", program.found["url"], environ=WITHOUT_JAVA)
    assert (done.returncode, done.stdout) == (0, "110\n"), done.stderr


#: How a command is told a Spark Connect server: arguments and variables.
WAYS = {
    "--master": lambda url: (["--master", url], {}),
    "-D": lambda url: (["-D", f"spark.remote={url}"], {}),
    "SPARK_REMOTE": lambda url: ([], {"SPARK_REMOTE": url}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_job_runs_on_the_connect_server_that_its_settings_name(program, run_python, tmp_path, way):
    (tmp_path / "job.py").write_text(JOB)
    arguments, environ = WAYS[way](program.found["url"])
    done = run_python(*FLINKISH, "run", *arguments, "job.py", environ={**WITHOUT_JAVA, **environ})
    assert (done.returncode, done.stdout) == (0, "110\n"), done.stderr


@pytest.mark.parametrize("way", WAYS)
def test_the_doctor_examines_the_connect_server_that_its_settings_name(program, run_python, way):
    arguments, environ = WAYS[way](program.found["url"])
    done = run_python(
        *FLINKISH, "doctor", "--json", "--timeout", 60, *arguments, environ={**WITHOUT_JAVA, **environ}
    )
    findings = {line["check"]: line for line in json.loads(done.stdout)["findings"]}
    assert done.returncode == 0 and {line["status"] for line in findings.values()} == {"ok"}, done.stdout + done.stderr
    assert findings["Spark"]["found"].endswith(", Spark Connect, local, master local[4]")


class Forwarder:
    """Passes bytes between a port of its own and another one; ``close`` is how a server looks that is gone."""

    def __init__(self, port):
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)

    def _start(self, target, *arguments):
        threading.Thread(target=target, args=arguments, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):  # closed
            while True:
                near = self._listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [near, far]
                self._start(self._pass_on, near, far)
                self._start(self._pass_on, far, near)

    def _pass_on(self, source, target):
        with contextlib.suppress(OSError):  # closed
            while data := source.recv(65536):
                target.sendall(data)

    def close(self):
        for sock in self._sockets:
            with contextlib.suppress(OSError):  # the other side has closed it
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


GOODBYE = """
import sys
from pyspark.sql.connect.session import SparkSession
from spark_plugin.launcher import application_of

spark = SparkSession.builder.remote(sys.argv[1]).create()
print(application_of(spark).master, flush=True)
sys.stdin.read()
"""


def test_a_program_whose_server_is_gone_ends_all_the_same(program):
    """PySpark's own goodbye would go on trying for ten minutes."""
    address, token = program.found["url"][len("sc://") :].split("/;")
    forwarder = Forwarder(int(address.rpartition(":")[2]))
    driver = subprocess.Popen(
        [sys.executable, "-c", GOODBYE, f"sc://localhost:{forwarder.port}/;{token}"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    give_up = threading.Timer(START_TIMEOUT_S, driver.kill)
    give_up.start()
    try:
        assert driver.stdout.readline() == "local[4]\n", driver.communicate()
        forwarder.close()
        _, errors = driver.communicate(timeout=60)
        assert driver.returncode == 0, errors
    finally:
        give_up.cancel()
        forwarder.close()
        driver.kill()


def test_independent_mode_runs_on_a_connect_server(spark):
    configuration = {**PATIENT, "flinkish.launch-mode": "independent"}
    env = StreamExecutionEnvironment.get_execution_environment(configuration, spark=spark)
    env.set_parallelism(2)
    assert count_words(env)["to"] == 100


def test_more_slots_than_the_server_has_are_refused_at_once(spark):
    env = StreamExecutionEnvironment.get_execution_environment(spark=spark)
    env.set_parallelism(5)
    env.from_sequence(1, 10).print()
    with pytest.raises(NotEnoughSlotsError, match="needs 5 slots, the cluster has 4"):
        env.execute()


@pytest.mark.parametrize("mode", ["barrier", "independent"])
def test_executors_that_cannot_reach_the_client_fail_the_job_with_the_addresses_that_they_tried(
    spark, monkeypatch, mode
):
    monkeypatch.setattr(JobManager, "connect_timeout_ms", 1_000)
    # The client listens on 127.0.0.1, so nobody answers there.
    configuration = {**PATIENT, "jobmanager.rpc.address": "127.0.0.2", "flinkish.launch-mode": mode}
    env = StreamExecutionEnvironment.get_execution_environment(configuration, spark=spark)
    env.from_sequence(1, 10).print()
    with pytest.raises(ConnectionLostError) as caught:
        env.execute()
    error = caught.value
    assert error.what == "executors could not reach the JobManager"
    assert error.where.startswith(f"Spark Connect session {spark.session_id}")
    assert "tried for 1000 ms: 127.0.0.2:" in error.why and "refused" in error.why
    assert "jobmanager.rpc.address" in error.do and "dedicated access mode" in error.do


def test_slots_that_wait_for_cores_are_interrupted_when_their_job_is_given_up(spark):
    with SessionCluster(spark, slots=3, configuration=PATIENT) as cluster:
        assert count_words(cluster.get_execution_environment({"parallelism.default": "1"}))["or"] == 50
        beside = StreamExecutionEnvironment.get_execution_environment({"slot.request.timeout": "3 s"}, spark=spark)
        beside.set_parallelism(2)
        beside.from_sequence(1, 10).print()
        started_s = time.monotonic()
        with pytest.raises(NotEnoughSlotsError) as caught:
            beside.execute()
        assert "2 Spark tasks must start together" in caught.value.why
        assert time.monotonic() - started_s < 60


def test_a_connect_server_that_is_not_there_is_told_at_once_and_its_token_is_not(run_python, tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    began_s = time.monotonic()
    done = run_python(*FLINKISH, "run", "job.py", environ={"SPARK_REMOTE": "sc://127.0.0.1:1/;token=secret"})
    assert time.monotonic() - began_s < 60 and done.returncode == 1 and "secret" not in done.stderr
    refusal = done.stderr[done.stderr.index("could not start Spark") :].splitlines()
    assert refusal[0] == "could not start Spark: nobody answers at the address of its Connect server"
    assert refusal[1] == "  where: master sc://127.0.0.1:1/"
    assert refusal[2] == "  why: tried 127.0.0.1:1 (Connection refused)"
    assert refusal[3].startswith("  do: start the server")


def test_a_master_beside_another_connect_server_is_refused(run_python, tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    arguments = ["--master", "local[2]", "-D", "spark.remote=sc://h/;token=secret"]
    done = run_python(*FLINKISH, "run", *arguments, "job.py")
    assert done.returncode == 1 and "could not choose between two Sparks" in done.stderr
    assert "why: one is local[2], the other sc://h/\n" in done.stderr and "secret" not in done.stderr
    found = run_python(*FLINKISH, "doctor", *arguments)
    assert found.returncode == 1 and "fail settings          could not choose between two Sparks" in found.stdout
