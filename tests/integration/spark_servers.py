"""A standalone Spark cluster of real processes, from pip's pyspark (it has no start scripts)."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.integration.waiting import wait_until

SPARK_HOME = Path(pyspark.__file__).parent
#: Short-lived JVMs spend most of their time on compiling: a third less of it.
FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


@dataclass(frozen=True)
class Host:
    """Where a server runs; ``enter`` stands in front of its command."""

    address: str
    enter: tuple[str, ...] = ()


THIS_HOST = Host("127.0.0.1")


class StandaloneCluster:
    """A master and workers, for ``with``; all of them end with it.

    Args:
        folder: for logs and for the work of executors.
        master_host, worker_hosts: one worker for each of the latter.
        cores: of each worker.
    """

    def __init__(self, folder, master_host=THIS_HOST, worker_hosts=(THIS_HOST, THIS_HOST), cores=2):
        self.folder = Path(folder)
        self.master_host = master_host
        self.worker_hosts = tuple(worker_hosts)
        self.cores = cores
        self.processes: list[subprocess.Popen] = []

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        host = self.master_host.address
        # Free here and now, so that the workers need not wait for the master to tell it.
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        self.url = f"spark://{host}:{port}"
        try:
            self._start("master.Master", self.master_host, "--port", port, "--webui-port", 0)
            for number, worker_host in enumerate(self.worker_hosts):
                self._start(
                    "worker.Worker", worker_host, "--webui-port", 0, "--cores", self.cores, "--memory", "4g",
                    "--work-dir", self.folder / f"work-{number}", self.url,
                )  # fmt: skip
            wait_until(self._is_up, f"a standalone cluster in {self.folder}", timeout_s=120)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, name, host, *arguments):
        number = len(self.processes)
        with open(self.folder / f"server-{number}.log", "wb") as log:
            process = subprocess.Popen(
                [*host.enter, SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}",
                 "--host", host.address, *map(str, arguments)],
                env={**os.environ, **spark_environ(host), "SPARK_DAEMON_MEMORY": "384m",
                     "SPARK_DAEMON_JAVA_OPTS": f"{FAST_START} -Djava.io.tmpdir={self.folder}"},
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)

    def _is_up(self):
        for number, process in enumerate(self.processes):
            assert process.poll() is None, self._log(number)
        return self._log(0).count("Registering worker ") == len(self.worker_hosts)

    def _log(self, number):
        return (self.folder / f"server-{number}.log").read_text()

    def applications(self):
        """Ids of those that hold executors or wait for some."""
        log = self._log(0)
        return set(re.findall(r"Registered app .* with ID (\S+)", log)) - set(re.findall(r"Removing app (\S+)", log))

    def executor_logs(self, application):
        """What the executors of an application wrote to stderr."""
        return "".join(path.read_text() for path in sorted(self.folder.glob(f"work-*/{application}/*/stderr")))

    def __exit__(self, *exc_info):
        for process in reversed(self.processes):  # the master last: workers tell it goodbye
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(15)


def spark_environ(host=THIS_HOST):
    """Variables for each process of Spark on ``host``."""
    return {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": host.address,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }

