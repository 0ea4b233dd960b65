"""Speaks HTTP/1.1 on one port: one thread for all connections, so that a slow or silent client costs a descriptor.

A connection carries one request.  Whoever has not sent it whole within ``REQUEST_S`` is dropped; of more than
``CONNECTIONS_MAX`` the oldest.  Requests are answered on threads of their own, at most ``ANSWERING_MAX`` at a time,
because their handlers may wait for the JobManager.

What stands on the wire is read by h11 (pure Python, no dependencies), which knows the traps: lengths that contradict
each other, lines without end, chunked bodies.
"""

from __future__ import annotations

import asyncio
import logging
import os
import selectors
import socket
import threading
from typing import Any, Callable, Optional
from urllib.parse import parse_qsl, unquote, urlsplit

import h11

from flinkish.common.completable_future import CompletableFuture
from flinkish.rest.messages import Request, Response, error_body

log = logging.getLogger(__name__)

REQUEST_S = 5.0
RESPONSE_S = 5.0
ANSWER_S = 30.0
CONNECTIONS_MAX = 128
ANSWERING_MAX = 8
HEAD_BYTES_MAX = 16 << 10
BODY_BYTES_MAX = 64 << 10

_CLOSE_S = 2.0
_BACKLOG = 1024


class HttpServer:
    """Listens from the start; ``start`` begins to answer.

    Args:
        port: 0: any that is free.
        handle: makes the answer; on a thread of its own, raises nothing.
        on_dropped: gets the peer and why it was turned away; on the server's threads.
    Raises:
        OSError: there is no such address or the port is taken.
    """

    def __init__(
        self, host: str, port: int, handle: Callable[[Request], Response], on_dropped: Callable[[Any, str], None]
    ):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._handle, self._on_dropped = handle, on_dropped
        self._selector: Any = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._waiting: dict[asyncio.StreamWriter, None] = {}  # for a whole request, oldest first
        self._asked = 0  # requests that are there whole, and not answered
        self._answering: Optional[asyncio.Semaphore] = None
        self._closing: Optional[asyncio.Event] = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main, name="flinkish REST", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._started.wait()

    def close(self) -> None:
        """Take no more requests, and end when those that are there are answered; bounded."""
        if self._closing is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(2 * _CLOSE_S)

    def leave_to_parent(self) -> None:
        """In a process that was forked off: let go of all descriptors.  Their numbers stay taken, because objects that
        were inherited would close them."""
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in {self._selector.fileno(), *self._selector.get_map()}:
            os.dup2(null, descriptor, inheritable=False)
        os.close(null)

    # ---- on the thread --------------------------------------------------------------------------

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._started.set()
            self._loop.close()
            self._socket.close()

    async def _serve(self) -> None:
        self._answering, self._closing = asyncio.Semaphore(ANSWERING_MAX), asyncio.Event()
        server = await asyncio.start_server(self._connected, sock=self._socket, limit=HEAD_BYTES_MAX, backlog=_BACKLOG)
        self._started.set()
        await self._closing.wait()
        server.close()
        for writer in list(self._waiting):
            writer.transport.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:  # who is being answered hears it
            await asyncio.wait(tasks, timeout=_CLOSE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._waiting[writer] = None
        writer.transport.set_write_buffer_limits(high=0)
        while len(self._waiting) > CONNECTIONS_MAX:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.transport.abort()
        try:
            await self._converse(reader, writer)
            writer.close()
        except (ConnectionError, asyncio.TimeoutError):
            self._on_dropped(writer.get_extra_info("peername"), "it went away, or was too slow")
        finally:
            self._waiting.pop(writer, None)
            if not writer.is_closing():
                writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        try:
            request = await asyncio.wait_for(self._receive(connection, reader, writer), REQUEST_S)
        except h11.RemoteProtocolError as error:
            response = Response(error.error_status_hint, error_body(f"That is no request: {error}"), refused="garbage")
        else:
            if request is None:
                return  # it has said nothing, as one that only looks whether somebody is there
            self._waiting.pop(writer, None)
            response = await self._answer(request)
        if response.refused:
            self._on_dropped(writer.get_extra_info("peername"), response.refused)
        if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._send(connection, writer, response)

    async def _receive(
        self, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Optional[Request]:
        """None: the other side has closed before it began.  Raises RemoteProtocolError: what it says is no HTTP."""
        head: Optional[h11.Request] = None
        body = bytearray()
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                if connection.they_are_waiting_for_100_continue:
                    writer.write(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
                connection.receive_data(await reader.read(HEAD_BYTES_MAX))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > BODY_BYTES_MAX:
                    raise h11.RemoteProtocolError(f"its body is longer than {BODY_BYTES_MAX} bytes", 413)
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                return _request(head, bytes(body))
            else:  # closed
                return None

    async def _answer(self, request: Request) -> Response:
        assert self._answering is not None
        if self._asked >= CONNECTIONS_MAX:
            return _busy()
        self._asked += 1
        try:
            await asyncio.wait_for(self._answering.acquire(), ANSWER_S)
            answer = CompletableFuture.run_async(lambda: self._handle(request), "flinkish REST request")
            answer.add_done_callback(lambda _: self._answered())
            return await asyncio.wait_for(answer, ANSWER_S)
        except asyncio.TimeoutError:
            return _busy()
        finally:
            self._asked -= 1

    def _answered(self) -> None:
        """On the thread of the answer, however late."""
        assert self._answering is not None
        try:
            self._loop.call_soon_threadsafe(self._answering.release)
        except RuntimeError:
            log.debug("a request was answered when the server was closed")

    async def _send(self, connection: h11.Connection, writer: asyncio.StreamWriter, response: Response) -> None:
        body = response.encode()
        headers = [
            ("Content-Type", "application/json; charset=UTF-8"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Connection", "close"),
        ]
        if response.status == 401:
            headers.append(("WWW-Authenticate", "Bearer"))
        for event in (
            h11.Response(status_code=response.status, headers=headers), h11.Data(data=body), h11.EndOfMessage()
        ):  # fmt: skip
            writer.write(connection.send(event) or b"")
        await asyncio.wait_for(writer.drain(), RESPONSE_S)  # until all is sent, see the buffer's limit


def _busy() -> Response:
    return Response(503, error_body("The driver is busy; ask again later."))


def _request(head: h11.Request, body: bytes) -> Request:
    try:
        target = urlsplit(head.target.decode("ascii"))
        query = dict(parse_qsl(target.query, keep_blank_values=True, max_num_fields=20))
    except ValueError as error:
        raise h11.RemoteProtocolError(f"its target cannot be read: {error}", 400) from None
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
    return Request(head.method.decode("ascii"), unquote(target.path), headers, query, body)
