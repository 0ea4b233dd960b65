"""Connections from slot to slot, over which records flow.

A slot connects to each slot that it sends records to, and is connected to by each slot that sends
records to it; two slots that send to each other have two connections.  Data and events go with the
direction in which the connection was opened, credits against it::

    sender  --connect, PeerHello(job, attempt, slot)-->  receiver
    sender  --ROWS, COLUMNS, EVENT-------------------->  receiver
    sender  <-CREDIT-----------------------------------  receiver

The JobManager lets tasks start only when every slot of the job has all its outgoing connections, so
no frame can come before the receiver knows the attempt.  A PeerHello may: it waits for `begin`.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Mapping, Optional

from flinkish.errors import ConnectionLostError
from flinkish.messages.control import PeerHello
from flinkish.messages.deployment import SlotAddress
from flinkish.shell.connections import ROLE_SLOT, Connection, Listener, connect
from flinkish.shell.event_loop import EventLoop
from flinkish.shell.process import SlotSocketPath, host_identity

log = logging.getLogger(__name__)

# Connections whose attempt this slot has not been told of yet.
_EARLY_MAX = 4096


class PeerConnections:
    """The transport of a SlotCore.

    Args:
        bind_host: the address by which other slots reach this one.
        on_frame: (peer_slot, kind, channel_id, payload).
        on_peer_lost: (peer_slot, error), for connections of the current attempt.
        credit_kind: the frame kind that goes against a connection's direction.
    """

    def __init__(
        self,
        loop: EventLoop,
        secret: bytes,
        slot_id: str,
        bind_host: str,
        on_frame: Callable[[str, int, int, Any], None],
        on_peer_lost: Callable[[str, Optional[BaseException]], None],
        credit_kind: int,
        connect_timeout_ms: int,
    ):
        self._loop = loop
        self._secret = secret
        self._slot_id = slot_id
        self._host = host_identity()
        self._on_frame = on_frame
        self._on_peer_lost = on_peer_lost
        self._credit_kind = credit_kind
        self._connect_timeout_ms = connect_timeout_ms
        self._attempt: Optional[tuple[str, int]] = None
        self._outgoing: dict[str, Connection] = {}
        self._incoming: dict[str, Connection] = {}
        self._early: dict[Connection, Optional[PeerHello]] = {}
        self._waiting: set[str] = set()
        self._on_ready: Optional[Callable[[], None]] = None
        self._socket_path = SlotSocketPath()
        self._listener = Listener(
            loop,
            secret,
            ROLE_SLOT,
            bind_host=bind_host,
            unix_path=self._socket_path.path,
            on_connection=self._accepted,
        )

    @property
    def address(self) -> SlotAddress:
        return SlotAddress(self._slot_id, self._host, self._socket_path.path, self._listener.address)

    # ---- transport of SlotCore ------------------------------------------------------------------

    def send(self, peer_slot: str, kind: int, channel_id: int, buffers: list) -> None:
        """To a peer that is gone: dropped, the core has been told."""
        table = self._incoming if kind == self._credit_kind else self._outgoing
        connection = table.get(peer_slot)
        if connection is not None:
            connection.send(kind, channel_id, *buffers)

    def pending_bytes(self, peer_slot: str) -> int:
        connection = self._outgoing.get(peer_slot)
        return 0 if connection is None else connection.pending_bytes

    # ---- attempts -------------------------------------------------------------------------------

    def begin(
        self,
        job_id: str,
        attempt: int,
        receivers: Mapping[str, SlotAddress],
        on_ready: Callable[[], None],
    ) -> None:
        """Leave the attempt before, connect to `receivers`; `on_ready()` when all are connected.

        A receiver that cannot be reached is reported as lost, and `on_ready` never comes."""
        self.end()
        self._attempt = (job_id, attempt)
        self._on_ready = on_ready
        self._waiting = set(receivers)
        for connection, hello in list(self._early.items()):
            if hello is None:
                continue
            del self._early[connection]
            if (hello.job_id, hello.attempt) == self._attempt:
                self._adopt(connection, hello)
            else:
                connection.on_close = None
                connection.close()
        for address in receivers.values():
            same_host = address.host == self._host and address.unix_path is not None
            self._connect(address, by_unix=same_host)
        if not self._waiting:
            self._ready()

    def end(self) -> None:
        """Close the connections of the current attempt."""
        connections = [*self._outgoing.values(), *self._incoming.values()]
        self._attempt, self._on_ready = None, None
        self._waiting = set()
        self._outgoing, self._incoming = {}, {}
        for connection in connections:
            connection.on_close = None
            connection.close()

    def close(self) -> None:
        self.end()
        for connection in list(self._early):
            connection.on_close = None
            connection.close()
        self._early.clear()
        self._listener.close()
        self._socket_path.close()

    # ---- outgoing -------------------------------------------------------------------------------

    def _connect(self, address: SlotAddress, by_unix: bool) -> None:
        attempt, peer = self._attempt, address.slot_id

        def on_ready(connection: Connection) -> None:
            assert attempt is not None
            connection.send_message(PeerHello(attempt[0], attempt[1], self._slot_id))
            self._waiting.discard(peer)
            if not self._waiting:
                self._ready()

        def on_frame(connection: Connection, kind: int, channel_id: int, payload: Any) -> None:
            self._on_frame(peer, kind, channel_id, payload)

        def on_close(connection: Connection, error: Optional[ConnectionLostError]) -> None:
            if self._outgoing.get(peer) is connection:
                del self._outgoing[peer]
                failed(error)

        def failed(error: Optional[ConnectionLostError]) -> None:
            if by_unix and peer in self._waiting:
                log.warning("unix socket failed, trying tcp peer=%s reason=%r", peer, str(error))
                self._connect(address, by_unix=False)
            else:
                self._on_peer_lost(peer, error)

        try:
            self._outgoing[peer] = connect(
                self._loop,
                address.unix_path if by_unix and address.unix_path else address.tcp,
                self._secret,
                ROLE_SLOT,
                timeout_ms=self._connect_timeout_ms,
                on_ready=on_ready,
                on_frame=on_frame,
                on_close=on_close,
            )
        except ConnectionLostError as error:
            failed(error)

    def _ready(self) -> None:
        on_ready, self._on_ready = self._on_ready, None
        if on_ready is not None:
            on_ready()

    # ---- incoming -------------------------------------------------------------------------------

    def _accepted(self, connection: Connection) -> None:
        if len(self._early) >= _EARLY_MAX:
            log.warning("peer dropped peer=%s reason='too many connections'", connection.peer)
            connection.close()
            return
        self._early[connection] = None
        connection.on_message = self._hello
        connection.on_frame = self._frame_before_hello
        connection.on_close = self._early_closed

    def _early_closed(self, connection: Connection, error: Optional[ConnectionLostError]) -> None:
        self._early.pop(connection, None)

    def _frame_before_hello(self, connection: Connection, kind: int, channel: int, payload: Any) -> None:
        log.warning("peer dropped peer=%s reason='records before the attempt is known'", connection.peer)
        connection.close()

    def _hello(self, connection: Connection, message: Any) -> None:
        if not isinstance(message, PeerHello) or self._early.get(connection) is not None:
            log.warning("peer dropped peer=%s reason='unexpected message'", connection.peer)
            connection.close()
            return
        attempt = (message.job_id, message.attempt)
        if self._attempt == attempt:
            del self._early[connection]
            self._adopt(connection, message)
        elif self._attempt is not None and attempt[0] == self._attempt[0] and attempt < self._attempt:
            log.info("stale peer dropped peer=%s attempt=%d", message.slot_id, message.attempt)
            connection.close()
        else:
            self._early[connection] = message

    def _adopt(self, connection: Connection, hello: PeerHello) -> None:
        peer = hello.slot_id
        if peer in self._incoming:
            log.warning("peer dropped peer=%s reason='it is connected already'", peer)
            connection.on_close = None
            connection.close()
            return
        self._incoming[peer] = connection

        def on_frame(connection: Connection, kind: int, channel_id: int, payload: Any) -> None:
            self._on_frame(peer, kind, channel_id, payload)

        def on_close(connection: Connection, error: Optional[ConnectionLostError]) -> None:
            if self._incoming.get(peer) is connection:
                del self._incoming[peer]
                self._on_peer_lost(peer, error)

        connection.on_message = None
        connection.on_frame = on_frame
        connection.on_close = on_close
