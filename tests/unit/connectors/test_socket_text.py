import select
import socket
import struct
import time

import pytest

from flinkish.connectors import socket_text
from flinkish.connectors.socket_text import SocketTextSink, SocketTextSource
from flinkish.connectors.spi import InputStatus, RecordError
from flinkish.errors import ConnectionLostError, UserError
from flinkish.testing.spi_fakes import FakeReaderContext, FakeWriterContext, RecordingReaderOutput


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


def open_reader(server, **options):
    port = server.getsockname()[1]
    reader = SocketTextSource("127.0.0.1", port, **options).create_reader(FakeReaderContext())
    reader.start()
    return reader


def poll(reader, output, room=1_000):
    """One poll that gives something: waits for the reader's descriptor as a slot does."""
    while True:
        output.give_room(room)
        before = len(output.records)
        status = reader.poll_next(output)
        if status is not InputStatus.NOTHING_AVAILABLE or len(output.records) > before:
            return status
        assert select.select([reader.fileno()], [], [], 10)[0], "nothing came in 10 s"


def read_all(reader, room=1_000):
    output = RecordingReaderOutput()
    while poll(reader, output, room) is not InputStatus.END_OF_INPUT:
        assert output.overdraft == 0
    return output.values


def test_source_gives_lines_and_ends_when_the_server_closes(server):
    reader = open_reader(server)
    reader.poll_next(RecordingReaderOutput())  # connects
    peer, _ = server.accept()
    peer.sendall("one\r\nzwölf\n\nlast without end".encode())
    peer.close()
    assert read_all(reader, room=2) == ["one", "zwölf", "", "last without end"]
    reader.close()


def test_a_line_may_come_in_pieces(server):
    reader, output = open_reader(server), RecordingReaderOutput()
    reader.poll_next(output)
    peer, _ = server.accept()
    peer.sendall(b"he")
    assert select.select([reader.fileno()], [], [], 10)[0]
    assert reader.poll_next(output) is InputStatus.NOTHING_AVAILABLE and output.values == []
    peer.sendall(b"llo\nwor")
    poll(reader, output)
    assert output.values == ["hello"]
    peer.sendall(b"ld\n")
    peer.close()
    assert read_all(reader) == ["world"]
    reader.close()


@pytest.mark.parametrize("charset", ["utf-8", "ascii", "latin1", "utf-16-le", "gbk", "cp1252"])
@pytest.mark.parametrize("delimiter", ["\n", ",", "--"])
@pytest.mark.parametrize("data", [b"", b"a\xff,b\xc3\n\xa9c\r\n--", b"\n\n,", b"-\r\n", b"\xe4,\n\x00,\x00\n\x00-\x00-\x00x"])
def test_lines_are_cut_before_they_are_decoded(server, charset, delimiter, data):
    reader = open_reader(server, charset=charset, delimiter=delimiter)
    reader.poll_next(RecordingReaderOutput())
    peer, _ = server.accept()
    peer.sendall(data)
    peer.close()
    lines = data.split(delimiter.encode(charset))
    if not lines[-1]:
        lines.pop()
    if delimiter == "\n" and len(delimiter.encode(charset)) == 1:
        lines = [line.removesuffix(b"\r") for line in lines]
    assert read_all(reader) == [line.decode(charset, "replace") for line in lines]
    reader.close()


def test_source_says_that_nobody_listens(server):
    port = server.getsockname()[1]
    server.close()
    reader = SocketTextSource("127.0.0.1", port).create_reader(FakeReaderContext())
    with pytest.raises(ConnectionLostError, match="start the server first"):
        poll(reader, RecordingReaderOutput())
    reader.close()


@pytest.mark.parametrize("data", [b"", b"one\ntw"])
def test_a_connection_that_breaks_in_the_middle_is_not_told_to_start_the_server(server, data):
    reader, output = open_reader(server), RecordingReaderOutput()
    reader.poll_next(output)
    peer, _ = server.accept()
    if data:
        peer.sendall(data)
        poll(reader, output)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()  # by a reset
    with pytest.raises(ConnectionLostError) as caught:
        poll(reader, output)
    error = caught.value
    assert "ConnectionResetError" in error.why and "in the middle of the connection" in error.why
    assert "start the server" not in error.do and "max_retries" in error.do
    reader.close()


def test_an_unknown_host_is_not_told_to_start_the_server():
    source = SocketTextSource("no-such-host.invalid", 1)
    with pytest.raises(ConnectionLostError) as caught:
        source.create_reader(FakeReaderContext()).poll_next(RecordingReaderOutput())
    assert caught.value.do == "see whether the name of the host is right"


def test_source_with_retries_waits_by_an_interval(server):
    port = server.getsockname()[1]
    server.close()
    source = SocketTextSource("127.0.0.1", port, max_retries=-1, retry_interval_ms=60_000)
    reader, output = source.create_reader(FakeReaderContext()), RecordingReaderOutput()
    while reader.fileno() is not None or reader.poll_interval_ms is None:
        assert reader.poll_next(output) is InputStatus.NOTHING_AVAILABLE
    assert reader.poll_next(output) is InputStatus.NOTHING_AVAILABLE
    assert reader.poll_interval_ms == 60_000
    reader.close()


def test_a_line_without_end_fails_instead_of_filling_the_memory(server):
    reader, output = open_reader(server, max_line_bytes=10), RecordingReaderOutput()
    reader.poll_next(output)
    peer, _ = server.accept()
    peer.sendall(b"x" * 11)
    with pytest.raises(UserError, match="without a line end"):
        poll(reader, output)
    peer.close()
    reader.close()


def test_sink_sends_lines_and_all_of_them_at_the_end(server):
    writer = SocketTextSink("127.0.0.1", server.getsockname()[1]).create_writer(FakeWriterContext())
    peer, _ = server.accept()
    writer.write_batch(["a", 2], None, 0)
    writer.flush(True)
    writer.close()
    with peer.makefile() as lines:
        assert lines.read() == "a\n2\n"
    peer.close()


def test_sink_sends_bytes_and_text_in_order_and_names_the_line_that_has_no_utf_8(server):
    sink = SocketTextSink("127.0.0.1", server.getsockname()[1], encoder=lambda value: value)
    writer = sink.create_writer(FakeWriterContext())
    writer.write_batch(["one", b"two", 3], None, 0)
    writer.write_batch(["four", "five"], None, 0)
    assert bytes(writer._buffer) == b"one\ntwo\n3\nfour\nfive\n"
    with pytest.raises(RecordError) as caught:
        writer.write_batch(["good", "\ud800"], None, 0)
    assert caught.value.record == "\ud800" and isinstance(caught.value.__cause__, UnicodeEncodeError)
    writer.close()


def test_sink_has_no_room_while_its_peer_reads_nothing(server):
    writer = SocketTextSink("127.0.0.1", server.getsockname()[1]).create_writer(FakeWriterContext())
    peer, _ = server.accept()
    line = "x" * 100_000
    written = 0
    while writer.has_room:
        writer.write(line, None, 0)
        written += 1
        assert written < 10_000
    assert writer.fileno() is not None
    received = 0
    while not writer.has_room:
        received += len(peer.recv(1 << 20))
    assert received > 0
    peer.close()
    writer.close()


def test_the_end_of_a_sink_waits_in_turns_while_its_peer_takes_something_and_not_for_ever(server, monkeypatch):
    monkeypatch.setattr(socket_text, "_END_TIMEOUT_S", 0.2)
    writer = SocketTextSink("127.0.0.1", server.getsockname()[1]).create_writer(FakeWriterContext())
    peer, _ = server.accept()
    writer.write("x" * 20_000_000, None, 0)
    started = time.monotonic()
    writer.flush(True)
    assert not writer.flushed and writer.fileno() is not None and time.monotonic() - started < 0.2
    peer.recv(1 << 20)
    with pytest.raises(ConnectionLostError, match="took nothing for 0 s at the end"):
        while not writer.has_room:
            pass
    peer.close()
    writer.close()


def test_sink_says_that_its_peer_is_gone(server):
    writer = SocketTextSink("127.0.0.1", server.getsockname()[1]).create_writer(FakeWriterContext())
    peer, _ = server.accept()
    peer.close()
    with pytest.raises(ConnectionLostError, match="could not write to 127.0.0.1"):
        while True:
            writer.write("x" * 1_000, None, 0)
            writer.flush(True)
    writer.close()
