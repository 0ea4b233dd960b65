"""Connections from slot to slot, over which records flow.

For each attempt of which it has tasks, a slot connects to each slot that these send records to, and is connected
to by each slot that sends records to them; two slots that send to each other have two connections.  Tasks of several
attempts may run side by side, and an attempt ends with its last task.  Data and events go with the direction in
which the connection was opened, credits against it::

    sender  --connect, PeerHello(job, attempt, slot)-->  receiver
    sender  --ROWS, COLUMNS, EVENT-------------------->  receiver
    sender  <-CREDIT-----------------------------------  receiver

The JobManager lets tasks start only when every slot of the attempt has all its outgoing connections, so
no frame can come before the receiver knows the attempt.  A PeerHello may: it waits for `begin`.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Container, Mapping, Optional

from flinkish.errors import ConnectionLostError
from flinkish.messages.checks import MessageRefused, check_message
from flinkish.messages.control import PeerHello
from flinkish.messages.deployment import SlotAddress
from flinkish.shell.connections import ROLE_SLOT, Connection, Listener, connect
from flinkish.shell.drop_log import DropLog
from flinkish.shell.event_loop import EventLoop
from flinkish.shell.process import SlotSocketPath, host_identity
from flinkish.shell.tls import Tls

log = logging.getLogger(__name__)

# Connections whose attempt this slot has not been told of yet.
_EARLY_MAX = 4096

# A receiver that strangers flood may drop an honest peer too, before it has said who it is.
_TRIES = 10
_RETRY_MS = 100


class AttemptConnections:
    """Those of one attempt; the transport of its channels."""

    def __init__(self, credit_kind: int):
        self._credit_kind = credit_kind
        self.outgoing: dict[str, Connection] = {}
        self.incoming: dict[str, Connection] = {}
        self.waiting: set[str] = set()  # receivers that are not connected yet
        self.on_ready: Optional[Callable[[], None]] = None

    def send(self, peer_slot: str, kind: int, channel_id: int, buffers: list) -> None:
        """To a peer that is gone: dropped, the core has been told."""
        table = self.incoming if kind == self._credit_kind else self.outgoing
        connection = table.get(peer_slot)
        if connection is not None:
            connection.send(kind, channel_id, *buffers)

    def pending_bytes(self, peer_slot: str) -> int:
        connection = self.outgoing.get(peer_slot)
        return 0 if connection is None else connection.pending_bytes

    def ready(self) -> None:
        on_ready, self.on_ready = self.on_ready, None
        if on_ready is not None:
            on_ready()

    def close(self) -> None:
        """Nobody hears of it."""
        connections = [*self.outgoing.values(), *self.incoming.values()]
        self.on_ready, self.waiting = None, set()
        self.outgoing, self.incoming = {}, {}
        for connection in connections:
            connection.on_close = None
            connection.close()


class PeerConnections:
    """The transport of a SlotCore.

    Args:
        bind_host: the address by which other slots reach this one.
        on_frame: (attempt, peer_slot, kind, channel_id, payload).
        on_peer_lost: (attempt, peer_slot, error), for connections of attempts that have not ended.
        data_kinds, credit_kind: the frame kinds that go with a connection's direction, and against it;
            a peer that sends another is dropped.
        tls: of TCP.
        unix_sockets: whether slots of one host talk by Unix sockets.
    """

    def __init__(
        self,
        loop: EventLoop,
        secret: bytes,
        slot_id: str,
        bind_host: str,
        on_frame: Callable[[int, str, int, int, Any], None],
        on_peer_lost: Callable[[int, str, Optional[BaseException]], None],
        data_kinds: Container[int],
        credit_kind: int,
        connect_timeout_ms: int,
        tls: Optional[Tls] = None,
        unix_sockets: bool = True,
    ):
        self._loop = loop
        self._secret = secret
        self._slot_id = slot_id
        self._host = host_identity()
        self._on_frame = on_frame
        self._on_peer_lost = on_peer_lost
        self._data_kinds = data_kinds
        self._credit_kind = credit_kind
        self._connect_timeout_ms = connect_timeout_ms
        self._tls = tls
        self._log_dropped = DropLog()
        self._job_id = ""
        self._attempts: dict[int, AttemptConnections] = {}
        self._newest = -1  # attempt that has begun here
        self._early: dict[Connection, Optional[PeerHello]] = {}
        self._socket_path = SlotSocketPath() if unix_sockets else None
        self._listener = Listener(
            loop,
            secret,
            ROLE_SLOT,
            bind_host=bind_host,
            unix_path=self._unix_path,
            on_connection=self._accepted,
            tls=tls,
        )

    @property
    def address(self) -> SlotAddress:
        return SlotAddress(self._slot_id, self._host, self._unix_path, self._listener.address)

    @property
    def _unix_path(self) -> Optional[str]:
        return self._socket_path.path if self._socket_path is not None else None

    # ---- transport of SlotCore ------------------------------------------------------------------

    def for_attempt(self, attempt: int) -> "AttemptConnections":
        if attempt not in self._attempts:
            self._attempts[attempt] = AttemptConnections(self._credit_kind)
        return self._attempts[attempt]

    def flush(self) -> None:
        self._loop.flush()

    # ---- attempts -------------------------------------------------------------------------------

    def begin(
        self,
        job_id: str,
        attempt: int,
        receivers: Mapping[str, SlotAddress],
        on_ready: Callable[[], None],
    ) -> None:
        """Connect to `receivers` for an attempt that is newer than all before; `on_ready()` when all are connected.

        A receiver that cannot be reached is reported as lost, and `on_ready` never comes."""
        assert job_id != self._job_id or attempt > self._newest
        self._job_id, self._newest = job_id, attempt
        connections = self.for_attempt(attempt)
        connections.on_ready = on_ready
        connections.waiting = set(receivers)
        for connection, hello in list(self._early.items()):
            if hello is None or (hello.job_id == job_id and hello.attempt > attempt):
                continue
            del self._early[connection]
            if (hello.job_id, hello.attempt) == (job_id, attempt):
                self._adopt(connection, hello)
            else:
                connection.on_close = None
                connection.close()
        for address in receivers.values():
            by_unix = address.unix_path is not None and self._unix_path is not None
            self._connect(attempt, address, by_unix and address.host == self._host)
        if not connections.waiting:
            connections.ready()

    def end_all_but(self, attempts: Container[int]) -> None:
        """Close the connections of the others."""
        for attempt in [known for known in self._attempts if known not in attempts]:
            self._attempts.pop(attempt).close()

    def close(self) -> None:
        self.end_all_but(())
        for connection in list(self._early):
            connection.on_close = None
            connection.close()
        self._early.clear()
        self._listener.close()
        if self._socket_path is not None:
            self._socket_path.close()

    # ---- outgoing -------------------------------------------------------------------------------

    def _connect(self, attempt: int, address: SlotAddress, by_unix: bool, tries_left: int = _TRIES) -> None:
        connections, peer = self._attempts[attempt], address.slot_id

        def on_ready(connection: Connection) -> None:
            connection.send_message(PeerHello(self._job_id, attempt, self._slot_id))
            connections.waiting.discard(peer)
            if not connections.waiting:
                connections.ready()

        def on_frame(connection: Connection, kind: int, channel_id: int, payload: Any) -> None:
            if kind == self._credit_kind:
                self._on_frame(attempt, peer, kind, channel_id, payload)
            else:
                self._drop(connection, f"it sent a frame of kind {kind}")

        def on_close(connection: Connection, error: Optional[ConnectionLostError]) -> None:
            if connections.outgoing.get(peer) is connection:
                del connections.outgoing[peer]
                failed(error)

        def try_again() -> None:
            if self._attempts.get(attempt) is connections:
                self._connect(attempt, address, by_unix, tries_left - 1)

        def failed(error: Optional[ConnectionLostError]) -> None:
            if tries_left and error is not None and error.fields.get("dropped"):
                self._loop.call_later(_RETRY_MS, try_again)
            elif by_unix and peer in connections.waiting:
                log.warning("unix socket failed, trying tcp peer=%s reason=%r", peer, str(error))
                self._connect(attempt, address, by_unix=False)
            else:
                self._on_peer_lost(attempt, peer, error)

        try:
            connections.outgoing[peer] = connect(
                self._loop,
                address.unix_path if by_unix and address.unix_path else address.tcp,
                self._secret,
                ROLE_SLOT,
                timeout_ms=self._connect_timeout_ms,
                tls=self._tls,
                on_ready=on_ready,
                on_frame=on_frame,
                on_close=on_close,
            )
        except ConnectionLostError as error:
            failed(error)

    # ---- incoming -------------------------------------------------------------------------------

    def _accepted(self, connection: Connection) -> None:
        if len(self._early) >= _EARLY_MAX:
            self._drop(connection, "too many connections")
            return
        self._early[connection] = None
        connection.on_message = self._hello
        connection.on_frame = self._frame_before_hello
        connection.on_close = self._early_closed

    def _early_closed(self, connection: Connection, error: Optional[ConnectionLostError]) -> None:
        self._early.pop(connection, None)

    def _frame_before_hello(self, connection: Connection, kind: int, channel: int, payload: Any) -> None:
        self._drop(connection, "records before the attempt is known")

    def _drop(self, connection: Connection, reason: str, level: int = logging.WARNING) -> None:
        self._log_dropped(connection.peer, reason, level)
        connection.close()

    def _hello(self, connection: Connection, message: Any) -> None:
        if not isinstance(message, PeerHello) or self._early.get(connection) is not None:
            self._drop(connection, "unexpected message")
            return
        try:
            check_message(message)
        except MessageRefused as refused:
            self._drop(connection, str(refused))
            return
        of_this_job = message.job_id == self._job_id
        if of_this_job and message.attempt in self._attempts and message.attempt <= self._newest:
            del self._early[connection]
            self._adopt(connection, message)
        elif of_this_job and message.attempt <= self._newest:
            self._drop(connection, f"it is of attempt {message.attempt}, which is over", logging.INFO)
        else:
            self._early[connection] = message

    def _adopt(self, connection: Connection, hello: PeerHello) -> None:
        attempt, peer = hello.attempt, hello.slot_id
        incoming = self._attempts[attempt].incoming
        if peer in incoming:
            connection.on_close = None
            self._drop(connection, f"slot {peer[:80]!r} is connected already")
            return
        incoming[peer] = connection

        def on_frame(connection: Connection, kind: int, channel_id: int, payload: Any) -> None:
            if kind in self._data_kinds:
                self._on_frame(attempt, peer, kind, channel_id, payload)
            else:
                self._drop(connection, f"it sent a frame of kind {kind}")

        def on_close(connection: Connection, error: Optional[ConnectionLostError]) -> None:
            if incoming.get(peer) is connection:
                del incoming[peer]
                self._on_peer_lost(attempt, peer, error)

        connection.on_message = lambda connection, message: self._drop(connection, "unexpected message")
        connection.on_frame = on_frame
        connection.on_close = on_close
