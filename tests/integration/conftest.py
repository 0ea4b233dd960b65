"""What integration tests share: a MiniCluster for a module, one Spark at a time in the tests' process, a
bell that jobs ring."""

from __future__ import annotations

import os
import select

import pytest

from flinkish.datastream.functions import MapFunction
from flinkish.testing.mini_cluster import MiniCluster

# ---- slots as local processes -------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(request):
    """A MiniCluster for the tests of a module; its ``CLUSTER`` holds other arguments than two slots."""
    with MiniCluster(**getattr(request.module, "CLUSTER", {"slots": 2})) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def collect():
    """Runs the job of a stream; returns its records."""

    def run(stream):
        with stream.execute_and_collect() as results:
            return list(results)

    return run


class Bell:
    """A named pipe: code of a job rings, in whatever process of this machine, and the test waits.

    A script without this class rings by a line written to ``path``.
    """

    def __init__(self, path):
        self.path = str(path)
        os.mkfifo(path)
        # For both directions: then neither side waits in open() for the other, and no end is read.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def ring(self):
        with open(self.path, "w") as pipe:
            pipe.write("\n")

    def at_first_record(self):
        """A MapFunction that changes nothing; each of its subtasks rings once."""
        return _RingAtFirstRecord(self)

    def wait(self, times=1, process=None, timeout_s=60):
        """Wait until it has been rung so often; fails when ``process`` (a Popen) ends before."""
        watched = [self._descriptor] if process is None else [self._descriptor, os.pidfd_open(process.pid)]
        try:
            while times > 0:
                ready, _, _ = select.select(watched, [], [], timeout_s)
                assert ready, f"nothing rang in {timeout_s} s"
                assert self._descriptor in ready, process.communicate()
                times -= os.read(self._descriptor, times).count(b"\n")
        finally:
            for descriptor in watched[1:]:
                os.close(descriptor)

    def close(self):
        os.close(self._descriptor)


class _RingAtFirstRecord(MapFunction):
    def __init__(self, bell):
        self.bell = bell
        self.rung = False

    def map(self, value):
        if not self.rung:
            self.rung = True
            self.bell.ring()
        return value


@pytest.fixture
def bell(tmp_path):
    bell = Bell(tmp_path / "bell")
    yield bell
    bell.close()


# ---- Spark --------------------------------------------------------------------------------------


class SparkOfTests:
    """Gives a SparkContext for a master; keeps it while the next test asks for the same."""

    def __init__(self) -> None:
        self.context = None
        self.asked = None

    def context_for(self, master, **settings):
        """``settings``: of Spark, without the "spark." and with "_" for "."."""
        from spark_plugin import session

        asked = (master, sorted(settings.items()))
        if self.asked != asked or session.active_context() is not self.context:
            self.stop()
            configuration = {f"spark.{key.replace('_', '.')}": str(v) for key, v in settings.items()}
            configuration["flinkish.spark.master"] = master
            self.context, self.asked = session.get_or_create_context(1, configuration), asked
        return self.context

    def stop(self):
        if self.context is not None:
            self.context.stop()
        self.context = self.asked = None


@pytest.fixture(scope="session")
def spark_of_tests():
    from spark_plugin import session

    spark = SparkOfTests()
    yield spark
    session.shut_down()


@pytest.fixture
def no_jobs_left(spark_of_tests):
    """After the test, Spark runs no job."""
    from spark_plugin import session

    yield
    context = session.active_context()
    if context is not None:
        # The status comes from a listener, which has to take the last events first.
        context._jsc.sc().listenerBus().waitUntilEmpty(20_000)
        if context.statusTracker().getActiveJobsIds():
            left = session.running_stages(context)
            spark_of_tests.stop()  # or the tests that come next wait for its cores
            pytest.fail(f"Spark still runs {left}")


@pytest.fixture
def path_without_java(tmp_path):
    """A PATH with the shell tools that Spark's scripts need, and no java."""
    import shutil

    folder = tmp_path / "bin-without-java"
    folder.mkdir()
    for tool in ("bash", "sh", "env", "cat", "dirname", "uname", "grep", "sed", "ps"):
        found = shutil.which(tool)
        if found:
            os.symlink(found, folder / tool)
    return str(folder)


@pytest.fixture(scope="session")
def standalone(tmp_path_factory):
    """A StandaloneCluster with two workers of two cores each."""
    from tests.integration.spark_servers import StandaloneCluster

    with StandaloneCluster(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster
