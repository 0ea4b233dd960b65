"""Refuse a Spark master that cannot work from here, before a JVM starts.

Spark itself tries for a minute and more, or its JVM ends and PySpark does not say why.
"""

from __future__ import annotations

import os
import re
import socket
from typing import Mapping, Optional
from urllib.parse import urlsplit

from flinkish.errors import ConnectionLostError, UnsupportedSparkError

ANSWER_TIMEOUT_S = 3.0
_HADOOP_VARIABLES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def check_master_works(master: str, environ: Mapping[str, str] = os.environ) -> None:
    """Look for what the master needs.  Costs a few milliseconds, or three seconds for each address that
    stays silent.

    Raises:
        UnsupportedSparkError: YARN without its configuration.
        ConnectionLostError: nobody listens at any of its addresses.
    """
    where = f"master {master}"
    if master == "yarn" and not any(environ.get(name) for name in _HADOOP_VARIABLES):
        raise UnsupportedSparkError(
            "could not start Spark on YARN",
            where=where,
            why=f"neither {' nor '.join(_HADOOP_VARIABLES)} is set, so Spark does not know the cluster",
            do="set HADOOP_CONF_DIR to the folder with core-site.xml and yarn-site.xml of the cluster",
        )
    failures = []
    for host, port in master_addresses(master, environ):
        failure = _failure_to_connect(host, port)
        if failure is None:
            return
        failures.append(f"{host}:{port} ({failure})")
    if failures:
        standalone = master.startswith("spark:")
        raise ConnectionLostError(
            "could not start Spark: nobody answers at its master's address",
            where=where,
            why=f"tried {', '.join(failures)}",
            do="start the master, or give its address as its web page shows it" if standalone
            else "give the address that `kubectl cluster-info` shows, and open the way to it",
        )  # fmt: skip


def master_addresses(master: str, environ: Mapping[str, str]) -> list[tuple[str, int]]:
    """Where a standalone master or the API server of Kubernetes should listen; empty where the master does
    not say it, or a proxy stands between.

    >>> master_addresses("spark://a:7077,[::1]:7078", {})
    [('a', 7077), ('::1', 7078)]
    >>> master_addresses("k8s://api.cluster", {}), master_addresses("k8s://http://127.0.0.1:8001", {})
    ([('api.cluster', 443)], [('127.0.0.1', 8001)])
    """
    if master.startswith("spark://"):
        found = (re.fullmatch(r"\[?(.+?)\]?:(\d+)", part.strip()) for part in master[len("spark://") :].split(","))
        return [(match[1], int(match[2])) for match in found if match]
    if master.startswith("k8s://") and not any(environ.get(name) for name in _PROXY_VARIABLES):
        url = master[len("k8s://") :]
        parts = urlsplit(url if "://" in url else f"https://{url}")
        default = 80 if parts.scheme == "http" else 443
        return [(parts.hostname, parts.port or default)] if parts.hostname else []
    return []


def _failure_to_connect(host: str, port: int) -> Optional[str]:
    try:
        socket.create_connection((host, port), ANSWER_TIMEOUT_S).close()
    except TimeoutError:
        return f"no answer within {ANSWER_TIMEOUT_S:.0f} s"
    except OSError as error:
        return error.strerror or str(error)
    return None
