"""Authenticated connections: non-blocking frames over TCP or Unix sockets.

States of a `Connection`::

    CONNECTING -> [TLS ->] HANDSHAKE -> READY -> CLOSED        (an accepted one is connected)

`on_ready` once, then `on_frame` / `on_message` in the order of the wire, then `on_close` once.
Before READY only the fixed-size frames of the handshake are read; what is sent meanwhile waits.
All of it belongs to the loop's thread.  TLS is for TCP, see `shell.tls`.

Kinds 254 and 255 are the handshake's; kind 0 is a pickled message; the others are the owner's.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import pickle
import socket
import struct
import sys
from collections import deque
from typing import Any, Callable, Iterable, Optional, Union

from flinkish.errors import AuthenticationError, ConnectionLostError, InternalError
from flinkish.messages.elements import FRAME_PAYLOAD_BYTES_MAX
from flinkish.shell.drop_log import DropLog
from flinkish.shell.event_loop import EventLoop, TimerHandle
from flinkish.shell.framing import FrameDecoder, FrameTooLargeError, header
from flinkish.shell.handshake import (
    KIND_HELLO,
    KIND_PROOF,
    MAX_PAYLOAD_BEFORE_AUTHENTICATION,
    Handshake,
    HandshakeRefused,
)
from flinkish.shell.tls import Tls, TlsRefused

log = logging.getLogger(__name__)

KIND_MESSAGE = 0

# What services are called in the handshake.
ROLE_JOB_MANAGER = "job-manager"
ROLE_SLOT = "slot"

HANDSHAKE_TIMEOUT_MS = 5_000

# ("host", port), or the path of a Unix socket (a leading "\0": Linux's abstract names).
Address = Union[tuple[str, int], str]

_BUFFERS_PER_CALL = 512  # below the system's limit (IOV_MAX, 1024)
_FLUSH_ABOVE_BYTES = 256 * 1024
_READ_PER_TURN_BYTES = 1024 * 1024
_SOCKET_BUFFER_BYTES = 1024 * 1024
_ACCEPTS_PER_TURN = 16

_CONNECTING, _TLS, _HANDSHAKE, _READY, _CLOSED = range(5)

_ACCEPT_PAUSE_MS = 100


class Connection:
    """One authenticated peer.  Made by `connect` or by a `Listener`.

    Attributes (set them before the loop turns, or in `on_ready` / `on_connection`):
        on_ready(connection): the peer has proved the secret.
        on_frame(connection, kind, channel, payload): `payload` is bytes or bytearray and yours.
        on_message(connection, message): a frame of kind 0, unpickled.
        on_close(connection, error): once; `error` is None after `close()`, else a
            ConnectionLostError (an AuthenticationError when the handshake failed; its field
            `dropped` is True when the peer closed during the handshake without a word).
        tag: anything the owner wants to remember.
        peer: text for logs.
        reads: how many reads have brought bytes: a count that stands still is a silent peer.

    A callback that raises does not cost other frames: the rest of what was read is handed out, then
    the first exception leaves by the loop.
    """

    def __init__(
        self,
        loop: EventLoop,
        sock: socket.socket,
        secret: bytes,
        role: str,
        *,
        initiator: bool,
        peer: str = "",
        connected: bool = True,
        handshake_timeout_ms: int = HANDSHAKE_TIMEOUT_MS,
        max_payload: int = FRAME_PAYLOAD_BYTES_MAX,
        on_ready: Optional[Callable[["Connection"], None]] = None,
        on_frame: Optional[Callable[["Connection", int, int, Any], None]] = None,
        on_message: Optional[Callable[["Connection", Any], None]] = None,
        on_close: Optional[Callable[["Connection", Optional[ConnectionLostError]], None]] = None,
        log_dropped: Optional[DropLog] = None,
        tls: Optional[Tls] = None,
    ):
        self.on_ready, self.on_frame = on_ready, on_frame
        self._log_dropped = log_dropped or DropLog()
        self.on_message, self.on_close = on_message, on_close
        self.tag: Any = None
        self.peer = peer or _peer_name(sock)
        self.reads = 0
        self._loop = loop
        self._sock: Any = sock
        self._fd = sock.fileno()
        self._tls = tls if sock.family != socket.AF_UNIX else None
        self._initiator = initiator
        self._max_payload = max_payload
        self._decoder = FrameDecoder(MAX_PAYLOAD_BEFORE_AUTHENTICATION)
        self._handshake: Optional[Handshake] = Handshake(secret, initiator, role, os.urandom(32))
        self._pending: deque[Any] = deque()
        self._pending_bytes = 0
        self._held: list[tuple[int, int, tuple]] = []  # sent before READY
        self._flush_queued = False
        self._events = "r"
        self._closing = False
        self._deadline: Optional[TimerHandle] = loop.call_later(
            handshake_timeout_ms, self._handshake_timed_out, handshake_timeout_ms
        )
        sock.setblocking(False)
        self._state = _CONNECTING
        if connected:
            self._start_handshake()
        else:
            self._watch("w")

    # ---- for the owner -------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        return self._state == _READY and not self._closing

    @property
    def closed(self) -> bool:
        return self._state == _CLOSED

    @property
    def pending_bytes(self) -> int:
        """Bytes that the system has not taken yet."""
        return self._pending_bytes

    @property
    def local_host(self) -> str:
        """The address by which this side reaches the peer (TCP only)."""
        return self._sock.getsockname()[0]

    def fileno(self) -> int:
        return self._fd

    def send(self, kind: int, channel: int, *buffers: Any) -> None:
        """Queue one frame; the buffers must not change any more.

        It leaves at the end of the loop's turn, earlier when much is queued.  After the connection
        has closed the frame is dropped: `on_close` has told the owner.
        """
        if self._state != _READY:
            if self._state != _CLOSED:
                self._held.append((kind, channel, buffers))
                self._pending_bytes += sum(_size(buffer) for buffer in buffers)
            return
        if self._closing:
            return
        size = 0
        for buffer in buffers:
            size += len(buffer) if type(buffer) is bytes else _size(buffer)
        if size > self._max_payload:
            raise InternalError(
                "could not send a frame",
                where=f"connection to {self.peer}",
                why=f"it has {size} bytes, the limit is {self._max_payload}",
                do="make records smaller, they are sent in one piece",
            )
        self._queue(kind, channel, size, buffers)

    def send_message(self, message: Any) -> None:
        self.send(KIND_MESSAGE, 0, pickle.dumps(message, protocol=5))

    def flush(self) -> None:
        """Give the system what it takes now; the loop does the rest when there is room."""
        self._flush_queued = False
        if self._state == _CLOSED or self._state < _HANDSHAKE:
            return
        pending = self._pending
        try:
            while pending:
                if len(pending) == 1:
                    sent = self._sock.send(pending[0])
                elif len(pending) <= _BUFFERS_PER_CALL:
                    sent = self._sock.sendmsg(pending)
                else:
                    sent = self._sock.sendmsg([pending[i] for i in range(_BUFFERS_PER_CALL)])
                self._pending_bytes -= sent
                while sent:
                    size = len(pending[0])
                    if size > sent:
                        pending[0] = memoryview(pending[0])[sent:]
                        break
                    sent -= size
                    pending.popleft()
        except (BlockingIOError, InterruptedError):
            if self._events != "rw":
                self._watch("rw")
            return
        except OSError as error:
            self._lost(f"sending failed: {error}")
            return
        if self._closing:
            self._close(None)
        elif self._events != "r":
            self._watch("r")

    def close(self) -> None:
        """Close now, after one try to send what is queued; `on_close(connection, None)` follows."""
        if self._state == _CLOSED:
            return
        if self._state == _READY and self._pending:
            self.flush()
        self._close(None)

    def close_when_sent(self) -> None:
        """Close as soon as all that is queued has left; nothing more is read or sent."""
        if self._state != _READY or not self._pending:
            self.close()
            return
        self._closing = True
        self.flush()

    # ---- inside --------------------------------------------------------------------------------

    def _queue(self, kind: int, channel: int, size: int, buffers: Iterable[Any]) -> None:
        pending = self._pending
        pending.append(header(kind, channel, size))
        for buffer in buffers:
            if type(buffer) is not bytes:
                buffer = memoryview(buffer)
                if not buffer.nbytes:
                    continue
                # As plain bytes: the system's count is in bytes, whatever the items are.
                buffer = buffer.cast("B")
            if buffer:
                pending.append(buffer)
        self._pending_bytes += size + 9
        if self._pending_bytes > _FLUSH_ABOVE_BYTES and self._events != "rw":
            self.flush()
        elif not self._flush_queued:
            self._flush_queued = True
            self._loop.flush_soon(self)

    def _watch(self, events: str) -> None:
        self._events = events
        self._loop.register(self._fd, events, self._on_events if self._tls is None else self._on_tls_events)

    def _start_handshake(self) -> None:
        if self._sock.family != socket.AF_UNIX:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        else:
            # TCP buffers grow by themselves, those of Unix sockets do not.
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        if self._tls is None:
            self._greet()
            return
        try:
            self._sock = self._tls.wrap(self._sock, self._initiator)
        except OSError as error:
            self._lost(f"could not start TLS: {error}")
            return
        self._state = _TLS
        self._go_on_with_tls()

    def _go_on_with_tls(self) -> None:
        try:
            waits_for = self._sock.do_handshake()
        except TlsRefused as refused:
            self._refused(str(refused))
        except OSError as error:
            self._lost(f"{error}", dropped=True)
        else:
            if waits_for:
                self._watch(waits_for)
            else:
                self._greet()

    def _greet(self) -> None:
        self._state = _HANDSHAKE
        self._watch("r")
        assert self._handshake is not None
        hello = self._handshake.hello()
        self._queue(KIND_HELLO, 0, len(hello), (hello,))

    def _on_events(self, readable: bool, writable: bool) -> None:
        if self._state == _CONNECTING:
            self._on_connected()
            return
        if writable and self._pending:
            self.flush()
        if readable and self._state != _CLOSED:
            self._read()

    def _on_tls_events(self, readable: bool, writable: bool) -> None:
        if self._state == _TLS:
            self.reads += readable
            self._go_on_with_tls()
            return
        try:
            self._on_events(readable, writable)
        finally:
            if self._state > _TLS and self._state != _CLOSED and self._sock.pending():
                self._loop.call_soon_threadsafe(self._on_tls_events, True, False)

    def _on_connected(self) -> None:
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._lost(f"could not connect: {os.strerror(code)}")
            return
        self._start_handshake()

    def _read(self) -> None:
        scratch = self._loop.scratch()
        decoder = self._decoder
        left = _READ_PER_TURN_BYTES
        while left > 0 and self._state != _CLOSED:
            buffer = decoder.next_buffer(scratch)
            try:
                count = self._sock.recv_into(buffer)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if self._state == _HANDSHAKE and isinstance(error, TlsRefused):
                    self._refused(str(error))  # it did not like what we have shown
                else:
                    self._lost(f"receiving failed: {error}", dropped=self._state == _HANDSHAKE)
                return
            if count == 0:
                in_handshake = self._state == _HANDSHAKE
                self._lost(
                    "the peer closed the connection" + (" during the handshake" if in_handshake else ""),
                    dropped=in_handshake,
                )
                return
            self.reads += 1
            left -= count
            drained = count < len(buffer)
            failure: Optional[Exception] = None
            try:
                for kind, channel, payload in decoder.received(scratch, count):
                    try:
                        if self._handshake is not None:
                            self._on_handshake_frame(kind, payload)
                        elif self._closing:
                            continue
                        elif kind == KIND_MESSAGE:
                            self._on_message_frame(payload)
                        elif self.on_frame is not None:
                            self.on_frame(self, kind, channel, payload)
                    except Exception as error:
                        if failure is not None:
                            log.exception("a callback failed again peer=%s", self.peer)
                        failure = failure or error
                    if self._state == _CLOSED:
                        break
            except FrameTooLargeError as error:
                if self._handshake is not None:
                    self._refused(f"it announced {error}")
                else:
                    self._lost(f"the peer broke the protocol: it announced {error}")
            if failure is not None:
                raise failure
            if drained:
                return

    def _on_handshake_frame(self, kind: int, payload: Any) -> None:
        handshake = self._handshake
        assert handshake is not None
        try:
            answer = handshake.receive(kind, payload)
        except HandshakeRefused as refused:
            self._refused(str(refused))
            return
        if answer is not None:
            self._queue(KIND_PROOF, 0, len(answer), (answer,))
        if handshake.authenticated:
            self._handshake = None
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            self._decoder.max_payload = self._max_payload
            self._state = _READY
            held, self._held = self._held, []
            for held_kind, held_channel, buffers in held:
                self._pending_bytes -= sum(_size(buffer) for buffer in buffers)
                self.send(held_kind, held_channel, *buffers)
            if self.on_ready is not None:
                self.on_ready(self)

    def _on_message_frame(self, payload: Any) -> None:
        try:
            message = pickle.loads(payload)
        except Exception as error:
            # The peer has the secret, so this is a bug or another version, not an attack.
            self._lost(f"could not read a message: {type(error).__name__}: {error}")
            return
        if self.on_message is not None:
            self.on_message(self, message)

    def _handshake_timed_out(self, timeout_ms: int) -> None:
        self._deadline = None
        if self._state == _CONNECTING:
            self._lost(f"could not connect within {timeout_ms} ms")
        elif self._state < _READY:
            self._refused(f"it did not prove the secret within {timeout_ms} ms")

    def _refused(self, why: str) -> None:
        self._log_dropped(self.peer, why)
        # So that an honest peer with another secret finds that out too, and does not just try again.
        self.flush()
        self._close(
            AuthenticationError(
                "a peer did not prove the secret of the job",
                where=f"connection {'to' if self._initiator else 'from'} {self.peer}",
                why=why,
                do="check that both ends belong to the same job and run the same version of flinkish",
            )
        )

    def _lost(self, why: str, dropped: bool = False) -> None:
        if self._state < _READY and not self._initiator:
            # Most often a slot that ends while it starts, as with Ctrl-C.
            self._log_dropped(self.peer, why, logging.INFO)
        self._close(
            ConnectionLostError(
                "lost the connection to a peer" if self._state == _READY else "could not connect to a peer",
                where=f"connection {'to' if self._initiator else 'from'} {self.peer}",
                why=why,
                dropped=dropped,
            )
        )

    def _close(self, error: Optional[ConnectionLostError]) -> None:
        if self._state == _CLOSED:
            return
        self._state = _CLOSED
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._loop.unregister(self._fd)
        with contextlib.suppress(OSError):  # user code has closed it under us: so ``error`` says
            self._sock.close()
        self._pending.clear()
        self._held.clear()
        self._pending_bytes = 0
        on_close = self.on_close
        if on_close is not None:
            on_close(self, error)
        # The callbacks usually hold the owner, which holds this connection.
        self.on_ready = self.on_frame = self.on_message = self.on_close = None


class Listener:
    """Accepts connections and hands them out once they have proved the secret.

    Args:
        role: the service offered here; whoever connects must name the same.
        bind_host: host of the TCP port, None for no TCP.  Port 0 takes a free one.
        unix_path: a Unix socket besides (leading "\\0": abstract).  On Linux peers of other users
            are dropped at once.
        on_connection: called with each authenticated connection; set its callbacks there.
        max_half_open: unauthenticated connections at a time, for each of the two sockets, so that a
            flood over the network does not cost the peers of this machine.  One that has said nothing
            gives way first, then the oldest.
        tls: on the TCP port, TLS and nothing else.
    """

    def __init__(
        self,
        loop: EventLoop,
        secret: bytes,
        role: str,
        bind_host: Optional[str] = "127.0.0.1",
        unix_path: Optional[str] = None,
        on_connection: Optional[Callable[[Connection], None]] = None,
        *,
        port: int = 0,
        max_half_open: int = 256,
        handshake_timeout_ms: int = HANDSHAKE_TIMEOUT_MS,
        max_payload: int = FRAME_PAYLOAD_BYTES_MAX,
        tls: Optional[Tls] = None,
    ):
        self.on_connection = on_connection
        self.unix_path = unix_path
        self._loop = loop
        self._secret = secret
        self._role = role
        self._max_half_open = max_half_open
        self._handshake_timeout_ms = handshake_timeout_ms
        self._max_payload = max_payload
        self._tls = tls
        self._log_dropped = DropLog()
        # The socket that each came by.
        self._half_open: dict[Connection, socket.socket] = {}
        self._sockets: list[socket.socket] = []
        self._tcp_address: Optional[tuple[str, int]] = None
        try:
            if bind_host is not None:
                family = socket.AF_INET6 if ":" in bind_host else socket.AF_INET
                sock = socket.socket(family, socket.SOCK_STREAM)
                self._sockets.append(sock)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((bind_host, port))
                self._tcp_address = sock.getsockname()[:2]
            if unix_path is not None:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._sockets.append(sock)
                sock.bind(unix_path)
            for sock in self._sockets:
                sock.setblocking(False)
                sock.listen(1024)
                loop.register(sock.fileno(), "r", lambda r, w, sock=sock: self._accept(sock))
        except OSError:
            self.close()
            raise

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) of the TCP socket."""
        assert self._tcp_address is not None, "this listener has no TCP port"
        return self._tcp_address

    @property
    def half_open(self) -> int:
        return len(self._half_open)

    def close(self) -> None:
        """Stop accepting; connections that were handed out belong to their owner."""
        for sock in self._sockets:
            if sock.fileno() >= 0:
                self._loop.unregister(sock.fileno())
            sock.close()
        if self._sockets and self.unix_path and not self.unix_path.startswith("\0"):
            if os.path.exists(self.unix_path):
                os.unlink(self.unix_path)
        self._sockets = []
        for connection in list(self._half_open):
            connection.close()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of descriptors or memory, or an error of the network that the connection met.
                self._log_dropped("unknown", f"could not accept it: {error}")
                self._pause(listening)
                return
            if listening.family == socket.AF_UNIX and not _same_user(sock):
                self._log_dropped(self.unix_path, "it belongs to another user")
                sock.close()
                continue
            self._make_room(listening)
            connection = Connection(
                self._loop,
                sock,
                self._secret,
                self._role,
                initiator=False,
                peer=address_text(address) if address else "a local process",
                handshake_timeout_ms=self._handshake_timeout_ms,
                max_payload=self._max_payload,
                on_ready=self._on_ready,
                on_close=self._on_close,
                log_dropped=self._log_dropped,
                tls=self._tls,
            )
            if not connection.closed:
                self._half_open[connection] = listening

    def _make_room(self, listening: socket.socket) -> None:
        if len(self._half_open) < self._max_half_open:
            return
        here = [connection for connection, socket_ in self._half_open.items() if socket_ is listening]
        if len(here) >= self._max_half_open:
            victim = next((connection for connection in here if not connection.reads), here[0])
            self._log_dropped(victim.peer, "too many unproven connections")
            victim.close()

    def _pause(self, listening: socket.socket) -> None:
        """Without a pause the loop would spin on the waiting connection."""
        self._loop.unregister(listening.fileno())

        def resume() -> None:
            if listening in self._sockets:
                self._loop.register(listening.fileno(), "r", lambda r, w: self._accept(listening))

        self._loop.call_later(_ACCEPT_PAUSE_MS, resume)

    def _on_ready(self, connection: Connection) -> None:
        self._half_open.pop(connection, None)
        connection.on_ready = connection.on_close = None
        if self.on_connection is not None:
            self.on_connection(connection)

    def _on_close(self, connection: Connection, error: Optional[ConnectionLostError]) -> None:
        self._half_open.pop(connection, None)


def connect(
    loop: EventLoop,
    address: Address,
    secret: bytes,
    role: str,
    *,
    timeout_ms: int = HANDSHAKE_TIMEOUT_MS,
    max_payload: int = FRAME_PAYLOAD_BYTES_MAX,
    tls: Optional[Tls] = None,
    **callbacks: Any,
) -> Connection:
    """Start to connect; `on_ready` or `on_close` follows, within `timeout_ms`.

    Args:
        address: ("host", port) or the path of a Unix socket.  A host name is looked up at once,
            which blocks; use numbers inside a running loop.
    Raises:
        ConnectionLostError: the address is refused or unknown already now.
    """
    where = f"connection to {address_text(address)}"
    try:
        if isinstance(address, str):
            family, target = socket.AF_UNIX, address
        else:
            found = socket.getaddrinfo(address[0], address[1], type=socket.SOCK_STREAM)
            # IPv4 first: "localhost" is often ::1 before 127.0.0.1, and listeners bind the latter.
            found.sort(key=lambda entry: entry[0] != socket.AF_INET)
            family, target = found[0][0], found[0][4]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectionLostError("could not connect to a peer", where=where, why=str(error)) from error
    sock.setblocking(False)
    code = sock.connect_ex(target)
    if code not in (0, errno.EINPROGRESS):
        sock.close()
        raise ConnectionLostError("could not connect to a peer", where=where, why=os.strerror(code))
    return Connection(
        loop,
        sock,
        secret,
        role,
        initiator=True,
        peer=address_text(address),
        # TLS may fail at once: `on_close` must not come before this returns.
        connected=code == 0 and tls is None,
        handshake_timeout_ms=timeout_ms,
        max_payload=max_payload,
        tls=tls,
        **callbacks,
    )


def _size(buffer: Any) -> int:
    return len(buffer) if isinstance(buffer, (bytes, bytearray)) else memoryview(buffer).nbytes


def _same_user(sock: socket.socket) -> bool:
    if not sys.platform.startswith("linux"):
        return True  # the folder's mode protects the path
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid == os.geteuid()


def _peer_name(sock: socket.socket) -> str:
    try:
        return address_text(sock.getpeername())
    except OSError:
        return "an unknown peer"


def address_text(address: Any) -> str:
    if isinstance(address, bytes):
        address = os.fsdecode(address)
    if isinstance(address, str):
        return "unix:" + address.replace("\0", "@") if address else "a local process"
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
