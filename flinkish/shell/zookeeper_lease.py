"""Lease and record of a job in ZooKeeper, by the kazoo package::

    <root>/<cluster id>/<job id>/lease                 the value that candidates replace by its version
    <root>/<cluster id>/<job id>/holder-<candidate>    ephemeral: there while the session of who wrote the lease lives
    <root>/<cluster id>/<job id>/record                see ``storage.ha_store``

The lease is written together with a check that the writer's own ephemeral node is there, so a session that has
expired writes nothing.  A standby watches the holder's node and takes over at once when it goes.

The holder acts for the session's timeout from the begin of its last write, so it has stopped before the server lets
the session expire; and when the connection is lost it stops at once, until a write succeeds again.

A server that is cut off, or that is just starting, may take a connection and say nothing.  kazoo waits for it as long
as the session lasts, divided by the number of servers, and to be connected it waits the whole session; so one such
server could cost the leader its job.  Here an attempt takes at most a sixth of the session.
"""

from __future__ import annotations

import math
import random
from typing import Any, Callable, Optional

from flinkish.errors import ConnectionLostError, InvalidJobError
from flinkish.jobmanager.leader_election import ConnectionSuspended, Lease, LeaseChanged, LeaseRead
from flinkish.shell.file_lease import decode_lease, encode_lease

#: How many attempts to connect a session has time for, at least.
ATTEMPTS_A_SESSION = 6


def connect(quorum: str, session_timeout_ms: int, connection_timeout_ms: int) -> Any:
    """A KazooClient that has a session.

    Raises:
        InvalidJobError: the package kazoo is missing.
        ConnectionLostError: no server answers in time.
    """
    try:
        from kazoo.client import KazooClient
        from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
    except ImportError as error:
        raise InvalidJobError(
            "could not use ZooKeeper",
            where="high-availability.type: zookeeper",
            why=f"the package kazoo is not installed ({error})",
            do="pip install 'flinkish[zookeeper]'",
        ) from error

    class ShortAttempts(SequentialThreadingHandler):
        def create_connection(self, *args: Any, timeout: float, **kwargs: Any) -> Any:
            return super().create_connection(*args, timeout=timeout / ATTEMPTS_A_SESSION, **kwargs)

    # It must be back before the session ends, so the pauses between attempts stay short.
    retry = {"max_tries": -1, "delay": 0.05, "max_delay": session_timeout_ms / 10_000}
    client = KazooClient(
        _named_often(quorum),
        timeout=session_timeout_ms / 1000,
        connection_retry=retry,
        handler=ShortAttempts(),
        randomize_hosts=False,
    )
    try:
        client.start(connection_timeout_ms / 1000)
    except KazooTimeoutError as error:
        client.close()
        raise ConnectionLostError(
            "could not connect to ZooKeeper",
            where=quorum,
            why=f"no server has answered for {connection_timeout_ms} ms "
            "(high-availability.zookeeper.client.connection-timeout)",
            do="check high-availability.zookeeper.quorum, and that the servers run",
        ) from error
    return client


def _named_often(quorum: str) -> str:
    """The servers in random order, again and again until there are ``ATTEMPTS_A_SESSION`` names: kazoo waits for an
    answer as long as the session lasts, divided by their number."""
    names, slash, root = quorum.partition("/")
    servers = names.split(",")
    servers = random.sample(servers, len(servers))  # not by kazoo, which could name the same one twice in a row
    times = math.ceil(ATTEMPTS_A_SESSION / len(servers))
    return ",".join(servers * times) + slash + root


class ZookeeperCell:
    """A ConditionalCell: a node; version n of it is ours n + 1."""

    def __init__(self, client: Any, path: str):
        self._client, self._path = client, path

    def read(self) -> tuple[Optional[bytes], int]:
        from kazoo.exceptions import NoNodeError

        try:
            data, stat = self._client.get(self._path)
        except NoNodeError:
            return None, 0
        return data, stat.version + 1

    def replace(self, value: bytes, version: int) -> Optional[int]:
        from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

        try:
            if version == 0:
                self._client.create(self._path, value, makepath=True)
                return 1
            return self._client.set(self._path, value, version - 1).version + 1
        except (BadVersionError, NodeExistsError, NoNodeError):
            return None


class ZookeeperLease:
    """A LeaseStore.  ``folder``: node of the job.  ``client`` is closed with it."""

    def __init__(self, client: Any, folder: str):
        self._client, self._folder = client, folder
        self._cell = ZookeeperCell(client, f"{folder}/lease")
        self._listener: Callable[[object], None] = _ignore

    def listen(self, listener: Callable[[object], None]) -> None:
        from kazoo.protocol.states import KazooState

        def changed(state: Any) -> None:
            if state != KazooState.CONNECTED:
                listener(ConnectionSuspended())

        self._listener = listener
        self._client.add_listener(changed)

    def read(self) -> LeaseRead:
        data, version = self._cell.read()
        lease = None if data is None else decode_lease(data)
        gone = bool(
            lease is not None
            and lease.holder
            and self._client.exists(self._node_of(lease.holder), watch=self._holder_changed) is None
        )
        return LeaseRead(lease, version, gone)

    def write(self, lease: Lease, version: int) -> Optional[int]:
        from kazoo import exceptions

        if not lease.holder:
            return self._cell.replace(encode_lease(lease), version)
        node = self._node_of(lease.holder)
        found = self._client.exists(node)
        if found is None:
            self._client.create(node, ephemeral=True, makepath=True)
        elif found.owner_session_id != self._client.client_id[0]:
            self._client.delete(node)  # of one's own session before this one, which has not expired yet
            self._client.create(node, ephemeral=True)
        transaction = self._client.transaction()
        transaction.check(node, 0)
        if version == 0:
            transaction.create(f"{self._folder}/lease", encode_lease(lease))
        else:
            transaction.set_data(f"{self._folder}/lease", encode_lease(lease), version - 1)
        results = transaction.commit()
        refusals = (
            exceptions.BadVersionError,
            exceptions.NodeExistsError,
            exceptions.NoNodeError,
            exceptions.RolledBackError,
            exceptions.RuntimeInconsistency,
        )
        for result in results:
            if isinstance(result, refusals):
                return None
            if isinstance(result, Exception):
                raise result
        return version + 1

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    def _node_of(self, candidate: str) -> str:
        return f"{self._folder}/holder-{candidate}"

    def _holder_changed(self, event: Any) -> None:
        self._listener(LeaseChanged())


def _ignore(event: object) -> None:
    """Before anybody listens."""
