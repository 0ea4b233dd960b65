"""Lines of text from and to a TCP socket.

Both ends are non-blocking: the slot waits for the descriptors together with everything else.  A
socket cannot be read again, so records in flight are lost when a job fails: for tests and tours.
"""

from __future__ import annotations

import codecs
import errno
import socket
import time
from dataclasses import dataclass
from typing import Any, Callable, Optional

from flinkish.common.arguments import check_argument
from flinkish.connectors.spi import (
    Boundedness,
    InputStatus,
    ReaderOutput,
    Sink,
    SinkWriter,
    Source,
    SourceReader,
    SourceReaderContext,
    SourceSplit,
    SplitEnumerator,
    SplitEnumeratorContext,
    WriterInitContext,
    each_encoded,
)
from flinkish.connectors.split_assignment import NoSplitEnumerator
from flinkish.errors import ConnectionLostError, InvalidJobError, UserError

_RECEIVE_BYTES = 256 * 1024
_SEND_BUFFER_BYTES = 256 * 1024
_END_TIMEOUT_S = 30.0
#: Charsets in which an ASCII byte is that character, wherever it stands.
_ASCII_AND_MORE = frozenset({"ascii", "utf-8", "iso8859-1", "iso8859-15", "cp1252"})
_IN_PROGRESS = (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY)


def _connect_nowait(host: str, port: int) -> socket.socket:
    """Start to connect; the first read or write tells whether it went well."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    connection = socket.socket(family, kind, protocol)
    connection.setblocking(False)
    # A line leaves at once: with Nagle's algorithm and delayed acknowledgements some wait 40 ms.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    code = connection.connect_ex(address)
    if code not in _IN_PROGRESS:
        connection.close()
        raise OSError(code, errno.errorcode.get(code, "connect failed"))
    return connection


def _is_established(connection: socket.socket) -> bool:
    try:
        connection.getpeername()
    except OSError:
        return False
    return True


def _check_address(host: Any, port: Any, call: str) -> None:
    check_argument(host, str, call, "host", do="give a name or an address")
    if not 1 <= check_argument(port, int, call, "port", do="give a number from 1 to 65535") <= 65_535:
        raise InvalidJobError(f"{call} cannot use the port {port}", do="give a number from 1 to 65535")


@dataclass(frozen=True)
class _SocketSplit(SourceSplit):
    def split_id(self) -> str:
        return "socket"


class SocketTextSource(Source[str, _SocketSplit]):
    """Connects to ``host:port`` and gives each line of what it receives; ends when the server closes.

    >>> env.from_source(SocketTextSource("localhost", 9999), WatermarkStrategy.no_watermarks(), "lines")

    Args:
        delimiter: ends a line; with the default a carriage return before it is dropped too.
        max_retries: how often to connect again, after a failure or a close; -1: for ever.
        retry_interval_ms: pause between two tries.
        charset: of the text; bytes that do not belong to it become U+FFFD.
        max_line_bytes: a longer line fails the job instead of filling the memory.
    """

    fixed_parallelism = 1

    def __init__(
        self,
        host: str,
        port: int,
        delimiter: str = "\n",
        max_retries: int = 0,
        retry_interval_ms: int = 500,
        charset: str = "utf-8",
        max_line_bytes: int = 16 * 1024 * 1024,
    ):
        _check_address(host, port, "SocketTextSource()")
        check_argument(delimiter, str, "SocketTextSource()", "delimiter")
        if not delimiter:
            raise InvalidJobError("could not cut text into lines", why="the delimiter is empty")
        for parameter, number in (
            ("max_retries", max_retries),
            ("retry_interval_ms", retry_interval_ms),
            ("max_line_bytes", max_line_bytes),
        ):
            check_argument(number, int, "SocketTextSource()", parameter)
        try:
            delimiter.encode(charset)
        except (LookupError, TypeError, UnicodeEncodeError) as error:
            raise InvalidJobError(
                f"could not use the charset {charset!r}", why=str(error), do="name one that Python knows"
            ) from None
        self.host, self.port, self.delimiter = host, port, delimiter
        self.max_retries, self.retry_interval_ms = max_retries, retry_interval_ms
        self.charset, self.max_line_bytes = charset, max_line_bytes

    def boundedness(self) -> Boundedness:
        return Boundedness.CONTINUOUS_UNBOUNDED

    def create_enumerator(
        self, context: SplitEnumeratorContext[_SocketSplit]
    ) -> SplitEnumerator[_SocketSplit]:
        return NoSplitEnumerator()  # the one reader knows where to connect

    def create_reader(self, context: SourceReaderContext) -> SourceReader[str, _SocketSplit]:
        return _SocketReader(self)


class _SocketReader(SourceReader[str, _SocketSplit]):
    def __init__(self, source: SocketTextSource):
        self._source = source
        self._delimiter = source.delimiter.encode(source.charset)
        # Text can be split instead of bytes where no byte of the delimiter is part of another character.
        self._splits_text = self._delimiter.isascii() and codecs.lookup(source.charset).name in _ASCII_AND_MORE
        self._connection: Optional[socket.socket] = None
        self._established = False  # this connection has been accepted
        self._tries_left = source.max_retries
        self._retry_at = 0.0
        self._rest = b""  # begins with an unfinished line
        self._lines: list[str] = []
        self._next = 0
        self._drained = False  # the last read took all that was there
        self._ended = False

    @property
    def poll_interval_ms(self) -> Optional[int]:  # type: ignore[override]
        return self._source.retry_interval_ms if self._connection is None else None

    def fileno(self) -> Optional[int]:
        return None if self._connection is None else self._connection.fileno()

    def poll_next(self, output: ReaderOutput[str]) -> InputStatus:
        room = output.room
        if room <= 0:
            return InputStatus.MORE_AVAILABLE
        if self._next >= len(self._lines):
            if self._ended:
                return InputStatus.END_OF_INPUT
            if not self._receive():
                return InputStatus.NOTHING_AVAILABLE
        batch = self._lines[self._next : self._next + room]
        self._next += len(batch)
        if batch:
            output.collect_batch(batch)
        if self._next < len(self._lines):
            return InputStatus.MORE_AVAILABLE
        if self._ended:
            return InputStatus.END_OF_INPUT
        return InputStatus.NOTHING_AVAILABLE if self._drained else InputStatus.MORE_AVAILABLE

    def _receive(self) -> bool:
        """Read what is there; False when there is nothing yet."""
        source = self._source
        if self._connection is None:
            if time.monotonic() < self._retry_at:
                return False
            try:
                self._established = False
                self._connection = _connect_nowait(source.host, source.port)
            except OSError as error:
                return self._lost(error)
        self._established = self._established or _is_established(self._connection)
        try:
            data = self._connection.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.ENOTCONN:  # still connecting
                return False
            if isinstance(error, ConnectionResetError):  # a server that is not there refuses
                self._established = True
            return self._lost(error)
        if not data:
            return self._lost(None)
        self._drained = len(data) < _RECEIVE_BYTES
        given, delimiter, self._rest = (self._rest + data).rpartition(self._delimiter)
        if len(self._rest) > source.max_line_bytes:
            raise UserError(
                f"could not read a line from {source.host}:{source.port}",
                why=f"more than {source.max_line_bytes} bytes came without a line end",
                do="set another delimiter, or a larger max_line_bytes",
            )
        self._give(given, bool(delimiter))
        return True

    def _give(self, data: bytes, some: bool = True) -> None:
        """The lines of ``data``, if there are ``some``."""
        charset, delimiter = self._source.charset, self._delimiter
        carriage_return = delimiter == b"\n" and b"\r" in data
        self._next = 0
        if not some:
            self._lines = []
        elif self._splits_text and not carriage_return:
            self._lines = data.decode(charset, "replace").split(self._source.delimiter)
        else:
            self._lines = [
                (line[:-1] if carriage_return and line.endswith(b"\r") else line).decode(charset, "replace")
                for line in data.split(delimiter)
            ]

    def _lost(self, error: Optional[OSError]) -> bool:
        """The connection is gone: give the unfinished line, then try again, end or fail."""
        source = self._source
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        rest, self._rest = self._rest, b""
        self._give(rest, bool(rest))
        if self._tries_left != 0:
            self._tries_left -= 1 if self._tries_left > 0 else 0
            self._retry_at = time.monotonic() + source.retry_interval_ms / 1_000
            return bool(rest)
        if error is not None:
            do = "start the server first, or set max_retries"
            if isinstance(error, socket.gaierror):
                do = "see whether the name of the host is right"
            elif self._established:
                do = "see why the server broke the connection off; max_retries would connect again"
            raise ConnectionLostError(
                f"could not read from {source.host}:{source.port}",
                why=f"{type(error).__name__}: {error}"
                + (", in the middle of the connection" if self._established else ""),
                do=do,
            ) from error
        self._ended = True
        return True

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _to_bytes(line: Any) -> bytes:
    return line if isinstance(line, bytes) else str(line).encode()


class SocketTextSink(Sink[Any]):
    """Sends each record as a line to ``host:port``; each subtask over a connection of its own.

    >>> stream.sink_to(SocketTextSink("localhost", 9998, encoder=json.dumps))

    Args:
        encoder: makes text or bytes of a record; the line end is added.
    """

    def __init__(
        self, host: str, port: int, encoder: Callable[[Any], Any] = str, line_end: str = "\n"
    ):
        _check_address(host, port, "SocketTextSink()")
        check_argument(line_end, str, "SocketTextSink()", "line_end")
        if not callable(encoder):
            raise InvalidJobError(
                f"SocketTextSink() cannot use {encoder!r} as encoder",
                why=f"it is of type {type(encoder).__name__}",
                do="give a callable that makes text or bytes of a record",
            )
        self.host, self.port, self.encoder, self.line_end = host, port, encoder, line_end

    def create_writer(self, context: WriterInitContext) -> SinkWriter[Any]:
        return _SocketWriter(self)


class _SocketWriter(SinkWriter[Any]):
    keeps_values = False  # each is encoded at once

    def __init__(self, sink: SocketTextSink):
        self._sink = sink
        self._buffer = bytearray()
        self._deadline: Optional[float] = None  # of the next bytes, once the input has ended
        try:
            self._connection = _connect_nowait(sink.host, sink.port)
        except OSError as error:
            raise self._lost(error) from error

    @property
    def has_room(self) -> bool:  # type: ignore[override]
        if self._deadline is not None:
            return self._end_nowait(self._deadline)
        if len(self._buffer) >= _SEND_BUFFER_BYTES:
            self._send_nowait()
        return len(self._buffer) < _SEND_BUFFER_BYTES

    @property
    def flushed(self) -> bool:  # type: ignore[override]
        return not self._buffer

    def fileno(self) -> Optional[int]:
        return self._connection.fileno() if self._buffer else None

    def write(self, value: Any, timestamp_ms: Optional[int], watermark_ms: int) -> None:
        self.write_batch([value], None, watermark_ms)

    def write_batch(self, values: list, timestamps_ms: Optional[list], watermark_ms: int) -> None:
        self._buffer += self._encoded(each_encoded(self._sink.encoder, values))
        if len(self._buffer) >= _SEND_BUFFER_BYTES:
            self._send_nowait()

    def _encoded(self, lines: list) -> bytes:
        end = self._sink.line_end
        if set(map(type, lines)) == {str}:
            try:
                return (end.join(lines) + end).encode()
            except UnicodeEncodeError:  # of a line that is to be named
                return self._encoded_one_by_one(lines)
        return self._encoded_one_by_one(lines)

    def _encoded_one_by_one(self, lines: list) -> bytes:
        end = self._sink.line_end.encode()
        return b"".join([line + end for line in each_encoded(_to_bytes, lines)])

    def flush(self, end_of_input: bool) -> None:
        self._send_nowait()
        if end_of_input and self._deadline is None:
            self._deadline = time.monotonic() + _END_TIMEOUT_S

    def _end_nowait(self, deadline: float) -> bool:
        """Whether the last bytes of the stream have left; they may take long, while the peer takes some."""
        if self._send_nowait():
            self._deadline = deadline = time.monotonic() + _END_TIMEOUT_S
        if self._buffer and time.monotonic() > deadline:
            raise self._lost(TimeoutError(f"the peer took nothing for {_END_TIMEOUT_S:.0f} s at the end"))
        return not self._buffer

    def _send_nowait(self) -> int:
        sent = 0
        try:
            while self._buffer:
                count = self._connection.send(memoryview(self._buffer)[:_SEND_BUFFER_BYTES])
                del self._buffer[:count]
                sent += count
        except BlockingIOError:
            return sent
        except OSError as error:
            if error.errno == errno.ENOTCONN:  # still connecting
                return sent
            raise self._lost(error) from error
        return sent

    def _lost(self, error: BaseException) -> ConnectionLostError:
        return ConnectionLostError(
            f"could not write to {self._sink.host}:{self._sink.port}",
            why=f"{type(error).__name__}: {error}",
            do="see whether the server runs and reads",
        )

    def close(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None:
            connection.close()
