"""A driver that a test, or the soak, starts, listens to, and kills."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

from tests.integration.leftovers import MARK, marked
from tests.integration.spark_servers import FAST_START, THIS_HOST, spark_environ

CHECKOUT = Path(__file__).resolve().parents[2]
#: Of each small job.
SUM = 338_350


class Driver:
    """A program in a process of its own.

    Args:
        master: URL of a Spark master.
        folder: is there and empty.  The driver's temporary files go to ``temporary`` in it, those of its
            executors to ``temporary_of_executors``.
        host: where the process runs.
        configuration: besides what every driver gets.
        program: what Python gets in front of the configuration, as JSON; None: job_to_kill.py, with a pipe.
    """

    def __init__(self, master, folder, host=THIS_HOST, configuration={}, program=None):
        self.mark = secrets.token_hex(8)
        self.temporary, self.temporary_of_executors = folder / "temporary", folder / "temporary_of_executors"
        self.temporary.mkdir()
        self.temporary_of_executors.mkdir()
        merged = {
            "flinkish.spark.master": master,
            "slot.request.timeout": "180 s",
            "spark.driver.extraJavaOptions": f"{FAST_START} -Djava.io.tmpdir={self.temporary}",
            "spark.driver.host": host.address,
            "spark.executor.extraJavaOptions": f"{FAST_START} -Djava.io.tmpdir={self.temporary_of_executors}",
            "spark.executorEnv.TMPDIR": str(self.temporary_of_executors),
            "spark.executorEnv.SPARK_LOCAL_DIRS": str(self.temporary_of_executors),
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.cores.max": "2",
            f"spark.executorEnv.{MARK}": self.mark,
            **configuration,
        }
        program = program or (CHECKOUT / "tests" / "integration" / "job_to_kill.py", folder / "pipe")
        with open(folder / "errors", "wb") as errors:
            self.process = subprocess.Popen(
                [*host.enter, sys.executable, *program, json.dumps(merged)],
                env={**os.environ, **spark_environ(host), "PYTHONPATH": str(CHECKOUT), MARK: self.mark,
                     "TMPDIR": str(self.temporary), "SPARK_LOCAL_DIRS": str(self.temporary)},
                stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder, start_new_session=True,
                # A shell starts background commands with SIGINT ignored, and that is inherited by all below.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )  # fmt: skip
        self._errors = folder / "errors"

    def hear(self, fact):
        """Value of ``fact`` in the next line of the driver, which must be about it."""
        line = self.process.stdout.readline()
        assert line, f"the driver has ended: {self.errors()}"
        facts = json.loads(line)
        assert fact in facts, facts
        return facts[fact]

    def errors(self):
        return self._errors.read_text()

    def kill_rest(self):
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
        self.process.stdout.close()
