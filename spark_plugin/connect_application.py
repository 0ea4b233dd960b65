"""A Spark behind Spark Connect: its driver is another process, which may run on another machine.

All that there is to ask it by is what a Connect session offers.  The slots are tasks of
``spark.range(n).mapInArrow(..., barrier=True)``, the JobManager lives in this process, the client.
"""

from __future__ import annotations

import atexit
import ipaddress
import logging
import os
import re
import socket
import threading
import weakref
from typing import Any, Callable, Iterator, Mapping, Optional
from urllib.parse import urlsplit

from flinkish.errors import UnsupportedSparkError
from spark_plugin import session
from spark_plugin.spark_application import SparkApplication, TaskMain

log = logging.getLogger(__name__)

_POLL_S = 0.5
_ASK_TIMEOUT_S = 5
_SCHEMA = "task int, reason string, failed boolean"
#: Clients whose goodbye does not wait for a server that is gone.
_bounded: weakref.WeakSet[Any] = weakref.WeakSet()


class ConnectApplication(SparkApplication):
    """See the module.

    Args:
        spark: a Spark Connect session.
        environ: of this process.
    Raises:
        UnsupportedSparkError: it is serverless, or has been stopped.
    """

    reach_advice = (
        "run the program where executors reach it (on the cluster's network, or on a classic session by "
        "spark-submit), or set jobmanager.rpc.address to an address of it that they reach; on Databricks "
        "take compute with dedicated access mode"
    )

    def __init__(self, spark: Any, environ: Mapping[str, str] = os.environ):
        self.session = spark
        self.identity = spark.session_id
        self.where = f"Spark Connect session {self.identity}"
        if spark.is_stopped:
            raise UnsupportedSparkError(
                "could not start slots in this Spark session",
                where=self.where,
                why="it has been stopped",
                do="make a new session",
            )
        self.master = "" if is_serverless(environ) else self.setting("spark.master")
        if not self.master:
            raise UnsupportedSparkError(
                "could not start slots on serverless compute",
                where=self.where,
                why="its executors are kept from connecting to the program that calls execute()",
                do="take classic compute; on Databricks: with dedicated access mode",
            )
        self.where += f", master {self.master}"
        self._server = server_address(spark)
        self._bound_exit()

    def setting(self, key: str, default: str = "") -> str:
        from pyspark.errors import PySparkException

        try:
            return self.session.conf.get(key, default) or default
        except PySparkException as error:
            # Serverless compute lets nobody read some keys.
            log.info("spark does not tell a setting key=%s error=%s", key, str(error).partition("\n")[0])
            return default

    def is_on_this_machine(self) -> bool:
        return session.is_on_this_machine(self.master) and self._own_address()[1]

    def task_slots(self) -> Optional[int]:
        if "*" not in self.master:
            counted = session.task_slots_of_master(self.master, self.task_cpus(), cores=0)
            if counted is not None:
                return counted
        return self._registered_task_slots()

    def _registered_task_slots(self) -> Optional[int]:
        """From the number of partitions that Spark gives a range: the cores of its executors, at least 2,
        unless somebody has set another number."""
        for key in ("spark.sql.leafNodeDefaultParallelism", "spark.default.parallelism"):
            if self.setting(key):
                return None
        plan = self.session.sql("EXPLAIN SELECT * FROM range(1000000)").collect()[0][0]
        splits = re.search(r"splits=(\d+)", plan)
        return int(splits[1]) // self.task_cpus() if splits else None

    def wait_for_task_slots(self, wanted: Optional[int], timeout_ms: int) -> None:
        # The server is older than this session, so its executors have come; how many were asked for is
        # not told.
        if wanted is not None and not self._is_local():
            session.wait_until_registered(self._registered_or_enough(wanted), wanted, timeout_ms, self.where)

    def wait_for_executors(self, tasks: int, stopping: threading.Event) -> bool:
        registered = self._registered_or_enough(tasks)
        while not self._is_local() and registered() < tasks:
            if stopping.wait(_POLL_S):
                return False
        return True

    def _bound_exit(self) -> None:
        """PySpark 4 says goodbye to the server when the process ends, and goes on trying for ten minutes when
        it is gone.  Called after PySpark has registered that, so this comes before it."""
        client = self.session.client
        if hasattr(client, "set_retry_policies") and client not in _bounded:
            _bounded.add(client)
            atexit.register(_try_once_if_gone, client, self._server)

    def _is_local(self) -> bool:
        """Its one executor is there from the start."""
        return session.is_local(self.master)

    def _registered_or_enough(self, tasks: int) -> Callable[[], int]:
        def registered() -> int:
            found = self._registered_task_slots()
            return tasks if found is None else found

        return registered

    def run_tasks(
        self, name: str, description: str, count: int, main: TaskMain, together: bool
    ) -> list[tuple[int, str, bool]]:
        def arrow_main(batches: Iterator[Any]) -> Iterator[Any]:
            for _ in batches:  # one number, of no meaning
                pass
            import pyarrow as pa

            ends = list(main())
            types = [pa.int32(), pa.string(), pa.bool_()]
            arrays = [pa.array(values, type_) for values, type_ in zip(zip(*ends), types)]
            yield pa.RecordBatch.from_arrays(arrays, ["task", "reason", "failed"])

        self.session.addTag(name)  # of what this thread runs
        numbers = self.session.range(0, count, 1, count)
        rows = numbers.mapInArrow(arrow_main, _SCHEMA, barrier=together).collect()
        return [tuple(row) for row in rows]

    def runs_tasks(self, name: str) -> bool:
        return True

    def cancel(self, name: str) -> None:
        log.info("interrupting the spark jobs that carry slots tag=%s", name)
        self._ask(lambda: self.session.interruptTag(name), "cancel")

    def _ask(self, question: Callable[[], Any], what: str) -> None:
        """In a thread of its own: the client asks a server that is gone for ten minutes."""
        thread = threading.Thread(target=question, name=f"flinkish {what}", daemon=True)
        thread.start()
        thread.join(_ASK_TIMEOUT_S)

    def is_alive(self) -> bool:
        if self.session.is_stopped:
            return False
        return _answers(self._server)

    def describe_waiting(self, name: str, tasks: int) -> str:
        return f"{self.where} does not say what holds the cores"

    # ---- addresses --------------------------------------------------------------------------------

    def advertised_hosts(self) -> list[str]:
        if self.is_on_this_machine():
            return ["127.0.0.1"]
        own, server_is_here = self._own_address()
        # Executors reach the driver of the server already, so they reach this program beside it.
        driver = self.setting("spark.driver.host")
        return [driver] if server_is_here and driver else [own]

    def bind_host(self) -> str:
        return self.advertised_hosts()[0]

    def _own_address(self) -> tuple[str, bool]:
        """The address of this machine on the way to the server, and whether the server runs here."""
        if self._server is None:
            return socket.gethostbyname(socket.gethostname()), False
        host, port = self._server
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:  # nothing is sent
            probe.connect(address)
            own, peer = probe.getsockname()[0], probe.getpeername()[0]
        return own, own == peer or ipaddress.ip_address(peer).is_loopback


def _answers(server: Optional[tuple[str, int]]) -> bool:
    """Whether somebody listens there; True also where it is not known where."""
    if server is None:
        return True
    try:
        socket.create_connection(server, timeout=_ASK_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def stop_session(spark: Any) -> None:
    """Stop a Spark Connect session, without a long wait for a server that is gone."""
    if hasattr(spark.client, "set_retry_policies"):
        _try_once_if_gone(spark.client, server_address(spark))
    spark.stop()


def _try_once_if_gone(client: Any, server: Optional[tuple[str, int]]) -> None:
    if not client.is_closed and not _answers(server):
        client.set_retry_policies([])


def server_address(spark: Any) -> Optional[tuple[str, int]]:
    """Host and port of the server of a Connect session; None where its channel does not tell.

    >>> from types import SimpleNamespace as N
    >>> server_address(N(client=N(_builder=N(endpoint="[::1]:15002"))))
    ('::1', 15002)
    """
    endpoint = getattr(getattr(spark.client, "_builder", None), "endpoint", "")
    parts = urlsplit(f"//{endpoint}")
    return (parts.hostname, parts.port) if parts.hostname and parts.port else None


def is_serverless(environ: Mapping[str, str]) -> bool:
    """Whether this is a program on Databricks' serverless compute, or a client of it.

    >>> is_serverless({"IS_SERVERLESS": "TRUE"}), is_serverless({"DATABRICKS_RUNTIME_VERSION": "16.4"})
    (True, False)
    """
    return environ.get("IS_SERVERLESS", "").lower() == "true" or bool(
        environ.get("DATABRICKS_SERVERLESS_COMPUTE_ID")
    )
