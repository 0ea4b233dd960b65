"""The REST endpoint of a driver: which JobManagers it speaks for, and how long it is there.

JobManagers of one process that want the same address share an endpoint; it opens with the first and closes with the
last.  Before it closes, those who wait for a savepoint or a stop are told how it has ended.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import threading
from typing import TYPE_CHECKING, Any, Mapping, Optional

from flinkish.common import options
from flinkish.common.job_client import JobHandle
from flinkish.errors import ConfigurationError, FlinkishError, ResourceError
from flinkish.rest.handlers import Handlers
from flinkish.rest.http_server import HttpServer
from flinkish.rest.operations import Operations
from flinkish.rest.registration import DriverAddress, Registration
from flinkish.shell.drop_log import DropLog
from flinkish.shell.state_recovery import installed_version

if TYPE_CHECKING:
    from flinkish.shell.job_manager import JobManager

log = logging.getLogger(__name__)

TOKEN_CHARACTERS_MIN = 16
_TELL_RESULTS_S = 3.0

_endpoints: dict[tuple[str, int], "RestEndpoint"] = {}
_lock = threading.Lock()


class RestEndpoint:
    """Made by ``join``."""

    def __init__(self, host: str, port: int, configuration: Mapping[str, Any]):
        self._managers: list["JobManager"] = []
        self.token = _token(configuration)
        self._operations = Operations()
        name = options.read(configuration, options.REST_ADDRESS)
        names = frozenset() if name is None else frozenset({name.lower()})
        self._handlers = Handlers(self, self._operations, self.token, names, installed_version())
        try:
            self._server = HttpServer(host, port, self._handlers.handle, DropLog())
        except (OSError, OverflowError) as error:
            raise ResourceError(
                "could not open the port for REST",
                where=f"{host}:{port} ({options.REST_BIND_ADDRESS.key}, {options.REST_PORT.key})",
                why=f"{type(error).__name__}: {error}",
                do=f"set {options.REST_PORT.key} to 0 for any port that is free, or to -1 for none",
            ) from error
        self.address = self._server.address
        self._registration = self._register()
        self._server.start()
        if ipaddress.ip_address(self.address[0]).is_loopback:
            log.info("REST listens address=%s:%d", *self.address)
        else:
            log.warning("REST listens, and others can overhear its token address=%s:%d", *self.address)

    def _register(self) -> Optional[Registration]:
        host, port = self.address
        if ipaddress.ip_address(host).is_unspecified:
            host = "::1" if ":" in host else "127.0.0.1"
        try:
            return Registration(DriverAddress(host, port, self.token, os.getpid()))
        except (FlinkishError, OSError) as error:
            log.warning("this driver is not found by the command line without -m error=%s", error)
            return None

    # ---- what the handlers ask ------------------------------------------------------------------

    def describe(self) -> list[dict[str, Any]]:
        return [manager.describe() for manager in list(self._managers)]

    def find(self, job_id: str) -> Optional[JobHandle]:
        for manager in list(self._managers):
            for job in manager.jobs():
                if job.job_id == job_id:
                    return job
        return None

    # ---- the end --------------------------------------------------------------------------------

    def leave(self, manager: "JobManager") -> None:
        """It is closed; returns when nobody asks about its jobs any more."""
        with _lock:
            if len(self._managers) > 1:
                self._managers.remove(manager)
                return
        self._operations.wait_read(_TELL_RESULTS_S)
        with _lock:
            self._managers.remove(manager)
            if self._managers:
                return  # another one has come meanwhile
            for key in [key for key, endpoint in _endpoints.items() if endpoint is self]:
                del _endpoints[key]
        self._server.close()
        if self._registration is not None:
            try:
                self._registration.close()
            except OSError as error:
                log.warning("the file by which this driver was found is left over error=%s", error)

    def leave_to_parent(self) -> None:
        self._server.leave_to_parent()
        if self._registration is not None:
            self._registration.leave_to_parent()


def join(manager: "JobManager", configuration: Mapping[str, Any]) -> Optional[RestEndpoint]:
    """The endpoint that speaks for ``manager`` from now on; None: the settings want none.

    Raises:
        ResourceError: the port cannot be opened.
        ConfigurationError: there is no token in the file that the settings name.
    """
    host = options.read(configuration, options.REST_BIND_ADDRESS)
    port = options.read(configuration, options.REST_PORT)
    if port < 0:
        return None
    with _lock:
        endpoint = _endpoints.get((host, port))
        if endpoint is None:
            endpoint = _endpoints[host, port] = RestEndpoint(host, port, configuration)
        endpoint._managers.append(manager)
        return endpoint


def _token(configuration: Mapping[str, Any]) -> str:
    path = options.read(configuration, options.REST_TOKEN_FILE)
    if path is None:
        return secrets.token_urlsafe(32)
    try:
        with open(path, encoding="ascii") as file:
            token = file.readline().strip()
        why = f"it has {len(token)} characters in its first line, {TOKEN_CHARACTERS_MIN} are needed"
    except (OSError, UnicodeDecodeError) as error:
        token, why = "", f"{type(error).__name__}: {error}"
    if len(token) < TOKEN_CHARACTERS_MIN:
        raise ConfigurationError(
            "could not read the token for REST",
            where=f"{options.REST_TOKEN_FILE.key}: {path}",
            why=why,
            do="write a long random text into it that only its user may read, or leave the setting out",
        )
    return token


def leave_to_parent() -> None:
    """In a process that was forked off."""
    for endpoint in _endpoints.values():
        endpoint.leave_to_parent()
    _endpoints.clear()
