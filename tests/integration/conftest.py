"""One Spark at a time in the tests' process, started as a job would start it."""

from __future__ import annotations

import os
import time

import pytest


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
    if context is not None:  # the listener that the status comes from is a little behind
        deadline = time.monotonic() + 20
        while context.statusTracker().getActiveJobsIds():
            assert time.monotonic() < deadline, session.running_stages(context)
            time.sleep(0.05)


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
