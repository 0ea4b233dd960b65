"""Refuse a Spark master, or a server of Spark Connect, that cannot work from here, before a JVM starts.

Spark itself tries for a minute and more (Spark Connect for ten), or its JVM ends and PySpark does not say why.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import time
from typing import Mapping, Optional, Sequence
from urllib.parse import urlsplit
from urllib.request import proxy_bypass_environment

from flinkish.common.notices import notify
from flinkish.errors import ConnectionLostError, UnsupportedSparkError

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 3.0
START_TIMEOUT_S = 10.0  # for a master whose machine refuses connections: it may be about to start
_RETRY_S = 0.2
_NOTICE_S = 2.0
_REFUSED = os.strerror(errno.ECONNREFUSED)
_HADOOP_VARIABLES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
_GRPC_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
_CONNECT_PORT = 15002
_ADVICE = {
    "spark": "start the master, or give its address as its web page shows it",
    "k8s": "give the address that `kubectl cluster-info` shows, and open the way to it",
    "sc": "start the server (sbin/start-connect-server.sh), or give its address as sc://HOST:PORT",
}


def check_master_works(master: str, environ: Mapping[str, str] = os.environ) -> None:
    """Look for what the master needs.  Costs a few milliseconds, three seconds for each address that stays silent,
    or ten for a master that is not there but may be starting.

    Raises:
        UnsupportedSparkError: YARN without its configuration.
        ConnectionLostError: nobody listens at any of its addresses.
    """
    where = f"master {without_parameters(master)}"
    if master == "yarn" and not any(environ.get(name) for name in _HADOOP_VARIABLES):
        raise UnsupportedSparkError(
            "could not start Spark on YARN",
            where=where,
            why=f"neither {' nor '.join(_HADOOP_VARIABLES)} is set, so Spark does not know the cluster",
            do="set HADOOP_CONF_DIR to the folder with core-site.xml and yarn-site.xml of the cluster",
        )
    failures = _failures_to_connect(master_addresses(master, environ), where)
    if failures:
        form = master.partition(":")[0]
        of_whom = "its master's address" if form != "sc" else "the address of its Connect server"
        raise ConnectionLostError(
            f"could not start Spark: nobody answers at {of_whom}",
            where=where,
            why=f"tried {', '.join(failures)}",
            do=_ADVICE[form],
        )


def without_parameters(master: str) -> str:
    """For texts that users see: the parameters of a Spark Connect URL may hold a token.

    >>> without_parameters("sc://host:15002/;token=secret")
    'sc://host:15002/'
    """
    return master.partition(";")[0]


def master_addresses(master: str, environ: Mapping[str, str]) -> list[tuple[str, int]]:
    """Where a standalone master, the API server of Kubernetes or a server of Spark Connect should listen; empty
    where the master does not say it, or a proxy stands between.

    >>> master_addresses("spark://a:7077,[::1]:7078", {})
    [('a', 7077), ('::1', 7078)]
    >>> master_addresses("k8s://api.cluster", {}), master_addresses("k8s://http://127.0.0.1:8001", {})
    ([('api.cluster', 443)], [('127.0.0.1', 8001)])
    >>> master_addresses("sc://host/;token=secret", {}), master_addresses("sc://[::1]:7", {})
    ([('host', 15002)], [('::1', 7)])
    """
    if master.startswith("spark://"):
        found = (re.fullmatch(r"\[?(.+?)\]?:(\d+)", part.strip()) for part in master[len("spark://") :].split(","))
        return [(match[1], int(match[2])) for match in found if match]
    if master.startswith("k8s://") and not any(environ.get(name) for name in _PROXY_VARIABLES):
        url = master[len("k8s://") :]
        parts = urlsplit(url if "://" in url else f"https://{url}")
        default = 80 if parts.scheme == "http" else 443
        return [(parts.hostname, parts.port or default)] if parts.hostname else []
    if master.startswith("sc://"):
        parts = urlsplit(without_parameters(master))
        if not parts.hostname or _grpc_takes_a_proxy(parts.hostname, environ):
            return []
        return [(parts.hostname, parts.port or _CONNECT_PORT)]
    return []


def _grpc_takes_a_proxy(host: str, environ: Mapping[str, str]) -> bool:
    exceptions = {"no": environ.get("no_proxy", "")}
    has_one = any(environ.get(name) for name in _GRPC_PROXY_VARIABLES)
    return has_one and not proxy_bypass_environment(host, exceptions)


def _failures_to_connect(addresses: Sequence[tuple[str, int]], where: str) -> list[str]:
    """Why each address cannot be reached; empty: one of them answers.  While one refuses, all are tried again."""
    began_s, told = time.monotonic(), False
    while True:
        failures: dict[str, str] = {}
        for host, port in addresses:
            failure = _failure_to_connect(host, port)
            if failure is None:
                return []
            failures[f"{host}:{port}"] = failure
        waited_s = time.monotonic() - began_s
        if _REFUSED not in failures.values() or waited_s >= START_TIMEOUT_S:
            return [f"{address} ({failure})" for address, failure in failures.items()]
        if not told and waited_s >= _NOTICE_S:
            told = True
            notify(f"Nobody answers at {', '.join(failures)}: waiting for a moment ({where})", unheard=log.warning)
        time.sleep(_RETRY_S)


def _failure_to_connect(host: str, port: int) -> Optional[str]:
    try:
        socket.create_connection((host, port), ANSWER_TIMEOUT_S).close()
    except TimeoutError:
        return f"no answer within {ANSWER_TIMEOUT_S:.0f} s"
    except OSError as error:
        return error.strerror or str(error)
    return None
