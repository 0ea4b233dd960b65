"""Authenticated connections over real sockets: good peers, and everything else that may knock."""

import hashlib
import os
import pickle
import random
import select
import socket
import ssl
import subprocess
import sys
import threading
import time

import pytest

from flinkish.errors import AuthenticationError, ConnectionLostError, InternalError
from flinkish.shell.connections import ROLE_JOB_MANAGER, ROLE_SLOT, Connection, Listener, connect
from flinkish.shell.event_loop import EventLoop
from flinkish.shell.finding import wait_connected
from flinkish.shell.framing import header
from flinkish.shell.handshake import KIND_HELLO, KIND_PROOF, Handshake
from flinkish.shell.process import SlotSocketPath
from flinkish.shell.tls import Tls, create_credentials

SECRET = b"s" * 32
TLS = Tls(create_credentials())


class Side:
    """Collects what a connection says."""

    def __init__(self):
        self.ready, self.frames, self.messages, self.closed = [], [], [], []

    def callbacks(self):
        return dict(
            on_ready=self.ready.append,
            on_frame=lambda c, kind, channel, payload: self.frames.append((kind, channel, payload)),
            on_message=lambda c, message: self.messages.append(message),
            on_close=lambda c, error: self.closed.append(error),
        )


class World:
    """A listener and what it has accepted, in one loop."""

    def __init__(self, **options):
        self.loop = EventLoop()
        self.side = Side()
        self.accepted: list[Connection] = []
        self.listener = Listener(
            self.loop, SECRET, ROLE_SLOT, on_connection=self.accept, **options
        )

    def accept(self, connection):
        self.accepted.append(connection)
        for name, callback in self.side.callbacks().items():
            setattr(connection, name, callback)

    def until(self, condition, timeout_s=10):
        """Short waits: some conditions come true outside of the loop."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "it did not happen"
            self.loop.run_once(5)

    def client(self, address=None, secret=SECRET, role=ROLE_SLOT, **options):
        side = Side()
        connection = connect(
            self.loop, address or self.listener.address, secret, role, **side.callbacks(), **options
        )
        return connection, side

    def close(self):
        self.listener.close()
        for connection in self.accepted:
            connection.close()
        self.loop.close()


@pytest.fixture
def world():
    before = set(os.listdir("/proc/self/fd"))
    worlds = []

    def make(**options):
        worlds.append(World(**options))
        return worlds[-1]

    yield make
    for one in worlds:
        one.close()
    assert set(os.listdir("/proc/self/fd")) == before, "a descriptor was left open"


@pytest.fixture(params=["tcp", "unix", "tls"])
def pair(request, world):
    """A connected pair: (world, client, client's side)."""
    if request.param == "unix":
        one = world(bind_host=None, unix_path=SlotSocketPath().path)
        client, side = one.client(one.listener.unix_path)
    else:
        tls = TLS if request.param == "tls" else None
        one = world(tls=tls)
        client, side = one.client(tls=tls)
    one.until(lambda: side.ready and one.accepted)
    yield one, client, side
    client.close()


def test_frames_and_messages_arrive_in_order_in_both_directions(pair):
    world, client, side = pair
    client.send(1, 7, b"ab", bytearray(b"cd"), memoryview(b"ef"), b"")
    client.send_message({"hello": (1, 2)})
    client.send(3, 2**32 - 1)
    world.until(lambda: len(world.side.frames) == 2 and world.side.messages)
    assert world.side.frames == [(1, 7, b"abcdef"), (3, 2**32 - 1, b"")]
    assert world.side.messages == [{"hello": (1, 2)}]
    world.accepted[0].send(4, 9, b"back")
    world.until(lambda: side.frames)
    assert side.frames == [(4, 9, b"back")]


def test_what_is_sent_before_the_peer_has_proved_the_secret_waits_for_it(world):
    one = world()
    client, side = one.client()
    client.send(1, 1, b"early")
    client.send_message("early too")
    one.until(lambda: one.side.messages)
    assert one.side.frames == [(1, 1, b"early")] and one.side.messages == ["early too"]
    assert client.pending_bytes == 0
    client.close()


def test_large_and_small_frames_pass_when_the_sockets_are_full(pair):
    world, client, side = pair
    sent = []
    for number in range(400):
        payload = bytes([number % 251]) * (number * 37 if number % 50 else 3_000_000)
        sent.append((1, number, payload))
        client.send(1, number, payload)
    assert client.pending_bytes > 1_000_000
    world.until(lambda: len(world.side.frames) == len(sent))
    assert all(a == b for a, b in zip(world.side.frames, sent))
    assert client.pending_bytes == 0


def test_buffers_of_wider_items_are_counted_in_bytes(pair):
    from array import array

    world, client, side = pair
    client.send(1, 1, array("q", range(100_000)))
    world.until(lambda: world.side.frames)
    assert bytes(world.side.frames[0][2]) == array("q", range(100_000)).tobytes()


def test_the_close_of_one_side_is_seen_by_the_other_once(pair):
    world, client, side = pair
    client.send(1, 1, b"last")
    client.close()
    client.close()
    client.send(1, 1, b"dropped")
    world.until(lambda: world.side.closed)
    assert world.side.frames == [(1, 1, b"last")]
    assert side.closed == [None]
    assert [type(error) for error in world.side.closed] == [ConnectionLostError]


def test_close_when_sent_delivers_everything_first(pair):
    world, client, side = pair
    for number in range(20):
        client.send(1, number, b"x" * 1_000_000)
    client.close_when_sent()
    world.until(lambda: world.side.closed)
    assert [channel for _, channel, _ in world.side.frames] == list(range(20))


def test_a_frame_above_the_limit_is_refused_by_the_sender_and_by_the_receiver(world):
    one = world(max_payload=10_000)
    client, side = one.client()
    one.until(lambda: side.ready)
    client.send(1, 1, b"x" * 10_001)
    one.until(lambda: one.side.closed)
    assert "10001" in one.side.closed[0].why and not one.side.frames
    small, small_side = one.client(max_payload=100)
    one.until(lambda: small_side.ready)
    with pytest.raises(InternalError, match="100"):
        small.send(1, 1, b"x" * 101)
    small.close()
    client.close()


def test_an_error_of_a_callback_costs_no_other_frame(pair):
    world, client, side = pair
    seen = []

    def on_frame(connection, kind, channel, payload):
        seen.append(channel)
        if channel == 1:
            raise ValueError("a bug of the owner")

    world.accepted[0].on_frame = on_frame
    for channel in range(4):
        client.send(1, channel, b"x")
    with pytest.raises(ValueError):
        world.until(lambda: len(seen) == 4)
    world.until(lambda: len(seen) == 4)
    client.send(1, 9, b"x")
    world.until(lambda: 9 in seen)


def test_a_message_that_cannot_be_read_ends_the_connection_and_not_the_loop(pair):
    world, client, side = pair
    client.send(0, 0, b"\x80\x05not a pickle")
    world.until(lambda: world.side.closed)
    assert "could not read a message" in world.side.closed[0].why


# ---- those who do not have the secret -----------------------------------------------------------


class Bomb:
    """Leaves a trace when it is unpickled."""

    exploded = False

    @staticmethod
    def explode():
        Bomb.exploded = True

    def __reduce__(self):
        return Bomb.explode, ()


def raw(world):
    sock = socket.create_connection(world.listener.address)
    sock.settimeout(10)
    return sock


def assert_dropped(world, sock, caplog, reason):
    """The peer's socket sees the end, nothing was handed out, one warning says why."""
    world.until(lambda: world.listener.half_open == 0 and reason in caplog.text)
    sock.setblocking(False)
    data = b""

    def ended():
        nonlocal data
        try:
            part = sock.recv(65536)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True
        data += part
        return not part

    world.until(ended)
    sock.close()
    assert not world.accepted and not world.side.frames and not world.side.messages
    assert not Bomb.exploded
    assert caplog.text.count("peer dropped") == 1
    return data


def wait_half_open(world, count=1):
    world.until(lambda: world.listener.half_open == count)


def test_another_secret_is_refused_on_both_sides_with_a_warning(world, caplog):
    one = world()
    client, side = one.client(secret=b"x" * 32)
    client.send_message(Bomb())
    one.until(lambda: side.closed and one.listener.half_open == 0)
    assert isinstance(side.closed[0], AuthenticationError) and not side.ready
    assert not one.accepted and not Bomb.exploded
    assert "does not have the secret" in caplog.text


def test_a_connection_for_another_service_is_refused(world):
    one = world()
    client, side = one.client(role=ROLE_JOB_MANAGER)
    one.until(lambda: side.closed and one.listener.half_open == 0)
    assert isinstance(side.closed[0], AuthenticationError) and not one.accepted


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "announced"),
        (b"\xff" * 100, "announced"),
        (header(KIND_HELLO, 0, 1 << 31) + b"x" * 1000, "announced"),
        (header(KIND_HELLO, 0, 4096) + b"x" * 4096, "wrong size"),
        (header(KIND_PROOF, 0, 32) + b"x" * 32, "before it proved"),
        (header(0, 0, len(pickle.dumps(Bomb()))) + pickle.dumps(Bomb()), "before it proved"),
        (header(1, 5, 3) + b"abc", "before it proved"),
    ],
    ids=["http", "ones", "huge", "long greeting", "proof first", "pickle first", "records first"],
)
def test_garbage_is_dropped_before_anything_is_unpickled(world, caplog, data, reason):
    one = world()
    sock = raw(one)
    sock.sendall(data)
    wait_half_open(one)
    assert_dropped(one, sock, caplog, reason)


def test_a_pickle_behind_a_greeting_without_proof_is_not_unpickled(world, caplog):
    one = world()
    sock = raw(one)
    bomb = pickle.dumps(Bomb())
    hello = Handshake(b"x" * 32, True, ROLE_SLOT, os.urandom(32)).hello()
    sock.sendall(header(KIND_HELLO, 0, len(hello)) + hello + header(0, 0, len(bomb)) + bomb)
    wait_half_open(one)
    assert_dropped(one, sock, caplog, "before it proved")


def test_half_a_frame_and_silence_ends_at_the_deadline(world, caplog):
    one = world(handshake_timeout_ms=100)
    sock = raw(one)
    sock.sendall(header(KIND_HELLO, 0, 42)[:5])
    wait_half_open(one)
    assert_dropped(one, sock, caplog, "within 100 ms")


def test_a_peer_that_says_nothing_ends_at_the_deadline(world, caplog):
    one = world(handshake_timeout_ms=100)
    sock = raw(one)
    wait_half_open(one)
    assert_dropped(one, sock, caplog, "within 100 ms")


def test_a_peer_that_drips_bytes_ends_at_the_deadline_too(world, caplog):
    one = world(handshake_timeout_ms=200)
    sock = raw(one)
    wait_half_open(one)
    hello = Handshake(SECRET, True, ROLE_SLOT, os.urandom(32)).hello()
    for byte in (header(KIND_HELLO, 0, len(hello)) + hello)[:-1]:
        sock.send(bytes([byte]))
        one.loop.run_once(1)
    assert_dropped(one, sock, caplog, "within 200 ms")


def record_a_good_handshake(one):
    """Bytes that a real initiator sends, recorded by a relay between it and the listener."""
    relay = socket.create_server(("127.0.0.1", 0))
    recorded = bytearray()

    def forward():
        client, _ = relay.accept()
        server = socket.create_connection(one.listener.address)
        server.settimeout(10)
        client.settimeout(10)
        greeting = server.recv(9 + 42, socket.MSG_WAITALL)
        client.sendall(greeting)
        recorded.extend(client.recv(9 + 42, socket.MSG_WAITALL))
        server.sendall(recorded)
        client.sendall(server.recv(9 + 32, socket.MSG_WAITALL))
        proof = client.recv(9 + 32, socket.MSG_WAITALL)
        recorded.extend(proof)
        server.sendall(proof)
        client.close()
        server.close()

    thread = threading.Thread(target=forward)
    thread.start()
    client, side = one.client(relay.getsockname()[:2])
    one.until(lambda: side.closed and one.accepted and one.side.closed)
    thread.join()
    relay.close()
    one.accepted.clear()
    return bytes(recorded)


def test_a_recorded_handshake_that_is_replayed_is_refused(world, caplog):
    one = world()
    recorded = record_a_good_handshake(one)
    assert len(recorded) == 92
    sock = raw(one)
    sock.sendall(recorded)
    wait_half_open(one)
    assert_dropped(one, sock, caplog, "does not have the secret")


def test_a_mirror_is_refused(world, caplog):
    one = world()
    sock = raw(one)
    wait_half_open(one)
    sock.sendall(sock.recv(9 + 42, socket.MSG_WAITALL))
    assert_dropped(one, sock, caplog, "own nonce")


def test_the_oldest_of_too_many_silent_peers_gives_way_and_a_good_one_still_gets_in(world):
    one = world(max_half_open=5)
    silent = [raw(one) for _ in range(20)]
    client, side = one.client()
    one.until(lambda: side.ready and one.accepted)
    assert one.listener.half_open <= 5
    client.close()
    for sock in silent:
        sock.close()


def test_one_that_has_begun_its_proof_stays_while_silent_ones_give_way(world):
    one = world(max_half_open=5)
    honest = raw(one)
    hello = Handshake(SECRET, True, ROLE_SLOT, os.urandom(32)).hello()
    honest.sendall(header(KIND_HELLO, 0, len(hello)) + hello)
    wait_half_open(one)
    one.loop.run_once(100)
    silent = [raw(one) for _ in range(20)]
    one.until(lambda: one.listener.half_open == 5 and not one.loop.run_once(0))
    honest.setblocking(False)
    assert len(honest.recv(200)) == 9 + 42 + 9 + 32, "it was greeted, and is still there"
    with pytest.raises(BlockingIOError):
        honest.recv(1)
    for sock in [honest, *silent]:
        sock.close()


def test_a_flood_over_the_network_costs_no_peer_of_this_machine(world):
    one = world(max_half_open=5, unix_path=SlotSocketPath().path)
    local = socket.socket(socket.AF_UNIX)
    local.connect(one.listener.unix_path)
    wait_half_open(one)
    silent = [raw(one) for _ in range(20)]
    one.until(lambda: one.listener.half_open == 6 and not one.loop.run_once(0))
    local.setblocking(False)
    assert len(local.recv(200)) == 9 + 42
    with pytest.raises(BlockingIOError):
        local.recv(1)
    for sock in [local, *silent]:
        sock.close()


def test_a_local_process_of_another_user_is_dropped_at_once(world, caplog, monkeypatch):
    one = world(bind_host=None, unix_path=SlotSocketPath().path, handshake_timeout_ms=60_000)
    is_root = os.getuid() == 0
    if not is_root:  # no process of another user can be started: so let the listener be somebody else's
        monkeypatch.setattr(os, "getuid", lambda: 65534)
    program = f"""if True:
        import os, socket, sys
        {"os.setuid(65534)" if is_root else ""}
        sock = socket.socket(socket.AF_UNIX)
        sock.connect({one.listener.unix_path!r})
        print(sock.recv(1000))
    """
    with subprocess.Popen([sys.executable, "-S", "-c", program], stdout=subprocess.PIPE, text=True) as child:
        one.until(lambda: child.poll() is not None)
        assert child.stdout.read() == "b''\n"
    assert "another user" in caplog.text and one.listener.half_open == 0


# ---- TLS ----------------------------------------------------------------------------------------


def test_records_of_64_megabytes_pass_over_tls_while_the_reader_holds_back(world):
    one = world(tls=TLS)
    client, side = one.client(tls=TLS)
    one.until(lambda: side.ready and one.accepted)
    payloads = [random.Random(seed).randbytes(1 << 20) * 64 for seed in (1, 2)]
    digests = []
    one.accepted[0].on_frame = lambda *frame: digests.append(hashlib.sha256(frame[-1]).digest())
    one.loop.unregister(one.accepted[0].fileno())  # as a reader that does something else
    for number, payload in enumerate(payloads):
        client.send(1, number, payload, b"end")
        one.accepted[0].send(4, number, b"credit")
    one.until(lambda: side.frames and not one.loop.run_once(0))
    assert client.pending_bytes > 100_000_000, "what the peer does not read stays here"
    one.accepted[0]._watch("rw")
    one.until(lambda: len(digests) == 2, 60)
    assert digests == [hashlib.sha256(payload + b"end").digest() for payload in payloads]
    assert client.pending_bytes == 0 and len(side.frames) == 2
    client.close()


def test_what_goes_over_a_tls_connection_cannot_be_read_on_the_way(world):
    one = world(tls=TLS)
    seen = bytearray()
    relay = socket.create_server(("127.0.0.1", 0))

    def forward():
        client, _ = relay.accept()
        server = socket.create_connection(one.listener.address)
        ends = {client: server, server: client}
        while ends:
            for sock in select.select(list(ends), [], [], 10)[0]:
                part = sock.recv(65536)
                seen.extend(part)
                if not part:
                    client.close()
                    server.close()
                    return
                ends[sock].sendall(part)

    thread = threading.Thread(target=forward)
    thread.start()
    client, side = one.client(relay.getsockname()[:2], tls=TLS)
    client.send(1, 1, b"in clear text" * 1000)
    one.until(lambda: one.side.frames)
    client.close()
    thread.join()
    relay.close()
    assert len(seen) > 13_000 and b"clear text" not in seen and b"flinkish" not in seen


@pytest.mark.parametrize("spoken", ["plain", "another certificate"])
def test_a_peer_with_the_secret_but_without_the_certificate_is_refused(world, caplog, spoken):
    one = world(tls=TLS)
    client, side = one.client(tls=None if spoken == "plain" else Tls(create_credentials()))
    client.send_message(Bomb())
    one.until(lambda: side.closed and one.listener.half_open == 0)
    assert isinstance(side.closed[0], ConnectionLostError) and not side.ready
    assert not one.accepted and not Bomb.exploded
    assert "TLS: " in caplog.text


def test_a_client_without_a_certificate_is_refused(world, caplog):
    one = world(tls=TLS)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    seen = []

    def talk():
        try:
            with context.wrap_socket(raw(one)) as sock:
                sock.sendall(header(0, 0, len(pickle.dumps(Bomb()))) + pickle.dumps(Bomb()))
                seen.append(sock.recv(1000))
        except (ssl.SSLError, ConnectionResetError) as error:
            seen.append(error)

    thread = threading.Thread(target=talk)
    thread.start()
    one.until(lambda: seen)
    thread.join()
    one.until(lambda: one.listener.half_open == 0)
    assert seen[0] != b"" and not isinstance(seen[0], bytes)
    assert "peer did not return a certificate" in caplog.text
    assert not one.accepted and not Bomb.exploded


def test_a_tls_client_at_a_port_without_it_is_refused_on_both_sides(world):
    one = world()
    client, side = one.client(tls=TLS)
    one.until(lambda: side.closed and one.listener.half_open == 0)
    assert isinstance(side.closed[0], AuthenticationError) and not one.accepted


def test_a_tls_peer_that_lacks_the_secret_is_refused(world, caplog):
    one = world(tls=TLS)
    client, side = one.client(secret=b"x" * 32, tls=TLS)
    one.until(lambda: side.closed and one.listener.half_open == 0)
    assert isinstance(side.closed[0], AuthenticationError) and not one.accepted
    assert "does not have the secret" in caplog.text


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"])
def test_a_tls_peer_that_falls_silent_ends_at_the_deadline(world, caplog, sent):
    one = world(handshake_timeout_ms=100, tls=TLS)
    sock = raw(one)
    sock.sendall(sent)
    wait_half_open(one)
    assert_dropped(one, sock, caplog, "within 100 ms")


def test_closing_the_listener_drops_those_that_have_not_proved_the_secret(world):
    one = world()
    sock = raw(one)
    wait_half_open(one)
    one.listener.close()
    assert one.listener.half_open == 0
    sock.close()


# ---- finding the JobManager ---------------------------------------------------------------------


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[:2]


def test_addresses_are_tried_in_order_until_one_answers(world):
    one = world()
    connection = wait_connected(one.loop, [closed_port(), one.listener.address], SECRET, ROLE_SLOT, 10_000)
    assert connection.ready and connection.peer.endswith(str(one.listener.address[1]))
    connection.close()


def test_when_none_answers_the_error_names_each_address_and_its_failure(world):
    one = world()
    first, second = closed_port(), closed_port()
    with pytest.raises(ConnectionLostError) as caught:
        wait_connected(one.loop, [first, second], SECRET, ROLE_SLOT, 700)
    for host, port in (first, second):
        assert f"{host}:{port} (Connection refused)" in caught.value.why.replace("could not connect: ", "")
    assert not isinstance(caught.value, AuthenticationError)
    assert pickle.loads(pickle.dumps(caught.value)).fields["addresses"] == (first, second)


def test_a_peer_that_accepts_and_says_nothing_does_not_hold_up_the_next_address(world):
    one = world()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        addresses = [mute.getsockname()[:2], one.listener.address]
        connection = wait_connected(one.loop, addresses, SECRET, ROLE_SLOT, 10_000, stagger_ms=20)
        assert connection.ready
        connection.close()


def test_a_wrong_secret_fails_at_once_and_not_at_the_timeout(world):
    one = world()
    with pytest.raises(AuthenticationError, match="JobManager"):
        wait_connected(one.loop, [one.listener.address], b"x" * 32, ROLE_SLOT, 60_000)


def test_ten_megabytes_in_small_frames_pass_within_seconds(pair):
    world, client, side = pair
    count = 0

    def on_frame(connection, kind, channel, payload):
        nonlocal count
        count += 1

    world.accepted[0].on_frame = on_frame
    payload = b"x" * 200
    for _ in range(50_000):
        client.send(1, 1, payload)
    world.until(lambda: count == 50_000, 20)
