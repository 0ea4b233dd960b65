"""Jobs on Spark whose slots, Python workers, executors and tasks are killed, stopped or hang: every record is
counted once, and every result published once.  One job goes through several faults, on one Spark application for
each launch mode."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest

from flinkish.common.job_status import JobStatus
from spark_plugin.session_cluster import SessionCluster
from tests.integration.leftovers import ancestors, carrier
from tests.integration.recovery_program import KEYS, build, counted_without_gap
from tests.integration.spark_servers import FAST_START, THIS_HOST, StandaloneCluster
from tests.integration.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("no_jobs_left")]

RECORDS = 1 << 40  # more than any run takes: the test stops the job
SETTINGS = {
    "execution.checkpointing.interval": "100 ms",
    "execution.checkpointing.timeout": "2 s",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 100,
    "restart-strategy.fixed-delay.delay": "0 ms",
    "slot.request.timeout": "120 s",
    "heartbeat.interval": "500 ms",
    "heartbeat.timeout": "2500 ms",
    "parallelism.default": 2,
}


class RunningJob:
    """The counting job of recovery_program, and what carries it."""

    def __init__(self, cluster, folder):
        self.cluster, self.folder = cluster, folder
        self.faults = 0
        env = cluster.get_execution_environment(SETTINGS)
        build(env, folder, RECORDS, pause_s=0.002)
        self.client = env.execute_async("recovery")
        self.wait_until_it_works()

    def describe(self):
        return self.client._handle.describe()

    def slots(self):
        """Pids of the processes that serve the job."""
        held = [slot for slot in self.cluster.describe()["slots"] if slot["job"] == self.client.job_id]
        return [slot["pid"] for slot in held if slot["pid"]]

    def wait_until_it_works(self):
        """Until a checkpoint of this attempt is complete, and its results are published."""
        count = self.describe()["checkpoints"]["counts"]["completed"]
        wait_until(lambda: set(self.describe()["status-counts"]) == {"RUNNING"}, "all tasks run", 120)
        wait_until(lambda: self.describe()["checkpoints"]["counts"]["completed"] > count + 1, "a checkpoint", 60)

    def recover_from(self, fault):
        """Have ``fault``, a function, break something; returns the error that the job has recovered from."""
        self.faults += 1
        began_s = time.monotonic()
        fault()
        wait_until(lambda: self.describe()["restarts"] >= self.faults, "a restart", 90)
        self.wait_until_it_works()
        root = self.describe()["exceptions"][-1]
        print(f"{fault.__name__}: works again after {time.monotonic() - began_s:.1f} s: {root['exceptionName']}")
        return root

    def stop(self, savepoints):
        """Stop it in order; results beyond what it has read are published by then."""
        self.client.stop_with_savepoint(False, str(savepoints)).result(60_000)
        self.client.wait(30_000)
        assert self.client.status is JobStatus.FINISHED
        counts = counted_without_gap(self.folder)
        assert sum(counts.values()) > 100  # however slow the machine
        return counts


class Faults:
    """What may happen to a job."""

    def __init__(self, job):
        self.job = job
        self.stopped = []

    def hang(self):
        """It hangs by itself, at a record that comes soon."""

    def kill_slot(self):
        os.kill(self.job.slots()[0], signal.SIGKILL)

    def kill_worker(self):
        os.kill(carrier(self.job.slots()[0], "worker"), signal.SIGKILL)

    def kill_executor(self):
        os.kill(carrier(self.job.slots()[1], "executor"), signal.SIGKILL)

    def stop_slot(self):
        self._stop(self.job.slots()[0])

    def stop_worker(self):
        self._stop(carrier(self.job.slots()[0], "worker"))

    def _stop(self, pid):
        self.stopped.append(pid)
        os.kill(pid, signal.SIGSTOP)

    def continue_stopped(self):
        """Those that nobody has killed."""
        for pid in self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


#: What the cause says that the job has recovered from.
CAUSES = {
    "hang": "(execution.checkpointing.timeout)",
    "kill_slot": "SIGKILL",
    "kill_worker": "its supervisor ",  # the slot says that it is gone, or the driver where it was
    "kill_executor": "its supervisor ",
    "stop_slot": "",  # the checkpoint that it keeps from its end, or the supervisor that kills it: who is first
    "stop_worker": "no heartbeat",
}
ALL = tuple(CAUSES)


def survive(context, mode, faults, folder):
    """Have one job go through these faults; all of its results must be there once."""
    if "hang" in faults:
        (folder / "faults").write_text("1500 hang\n")
    with SessionCluster(context, slots=2, configuration={**SETTINGS, "flinkish.launch-mode": mode}) as cluster:
        job = RunningJob(cluster, folder)
        happening = Faults(job)
        try:
            for name in faults:
                assert CAUSES[name] in job.recover_from(getattr(happening, name))["stacktrace"]
            assert len(job.stop(folder / "savepoints")) == KEYS
        finally:
            happening.continue_stopped()


def local_cluster(spark_of_tests):
    return spark_of_tests.context_for("local-cluster[2,1,1024]", executor_memory="512m")


@pytest.mark.parametrize("mode, faults", [("barrier", ("hang", "kill_worker")), ("independent", ("stop_worker",))])
def test_a_job_on_local_cluster_survives_what_is_killed_stopped_or_hangs(spark_of_tests, tmp_path, mode, faults):
    survive(local_cluster(spark_of_tests), mode, faults, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["barrier", "independent"])
def test_a_job_on_local_cluster_survives_whatever_is_killed_stopped_or_hangs(spark_of_tests, tmp_path, mode):
    survive(local_cluster(spark_of_tests), mode, ALL, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["barrier", "independent"])
def test_a_job_on_a_standalone_cluster_survives_a_worker_that_is_killed(spark_of_tests, tmp_path, mode):
    with StandaloneCluster(tmp_path / "standalone", worker_hosts=[THIS_HOST] * 3, cores=1) as standalone:
        context = spark_of_tests.context_for(
            standalone.url, executor_memory="512m", executor_extraJavaOptions=FAST_START, driver_host="127.0.0.1"
        )
        with SessionCluster(context, slots=2, configuration={**SETTINGS, "flinkish.launch-mode": mode}) as cluster:
            job = RunningJob(cluster, tmp_path)

            def kill_a_standalone_worker_with_a_slot():
                lines = [set(ancestors(slot)) for slot in job.slots()]
                worker = next(p for p in standalone.processes[1:] if any(p.pid in line for line in lines))
                os.killpg(worker.pid, signal.SIGKILL)

            assert "its supervisor on " in job.recover_from(kill_a_standalone_worker_with_a_slot)["stacktrace"]
            assert len(job.stop(tmp_path / "savepoints")) == KEYS
        spark_of_tests.stop()
