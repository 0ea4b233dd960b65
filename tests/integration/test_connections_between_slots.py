"""Slots find each other for one attempt: who connects, what waits, what is dropped."""

import dataclasses
import os
import select
import socket
import threading

import pytest

from flinkish.messages.control import PeerHello
from flinkish.shell.connections import ROLE_SLOT, connect
from flinkish.shell.event_loop import EventLoop
from flinkish.shell.peer_connections import PeerConnections

SECRET = b"s" * 32
ROWS, CREDIT = 1, 4


class Peer:
    def __init__(self, loop, slot_id):
        self.frames, self.lost, self.ready = [], [], []
        self.connections = PeerConnections(
            loop,
            SECRET,
            slot_id,
            "127.0.0.1",
            lambda attempt, peer, kind, channel, payload: self.frames.append(
                (peer, kind, channel, bytes(payload)) if attempt == 0 else (attempt, peer, kind, channel, bytes(payload))
            ),
            lambda attempt, peer, error: self.lost.append(peer),
            (ROWS,),
            CREDIT,
            connect_timeout_ms=2_000,
        )

    def begin(self, *receivers, attempt=0, job_id="job", beside=()):
        self.connections.end_all_but(beside)
        addresses = {peer.slot_id: peer for peer in receivers}
        self.connections.begin(job_id, attempt, addresses, lambda: self.ready.append((job_id, attempt)))

    def send(self, peer, kind, channel, buffers, attempt=0):
        self.connections.for_attempt(attempt).send(peer, kind, channel, buffers)

    @property
    def address(self):
        return self.connections.address


@pytest.fixture
def world():
    before = set(os.listdir("/proc/self/fd"))
    loop = EventLoop()
    peers = [Peer(loop, slot_id) for slot_id in ("a", "b", "c")]
    yield loop, *peers
    for peer in peers:
        peer.connections.close()
    loop.close()
    assert set(os.listdir("/proc/self/fd")) == before, "a descriptor was left open"


def until(loop, condition):
    assert loop.run_until(condition, 10_000)


def turn(loop, times=20):
    for _ in range(times):
        loop.run_once(1)


def test_records_go_with_the_connection_and_credits_against_it_in_both_directions(world):
    loop, a, b, c = world
    a.begin(b.address)
    b.begin(a.address)
    c.begin()
    until(loop, lambda: a.ready and b.ready)
    assert c.ready == [("job", 0)]
    a.send("b", ROWS, 1, [b"to ", b"b"])
    b.send("a", ROWS, 2, [b"to a"])
    until(loop, lambda: a.frames and b.frames)
    b.send("a", CREDIT, 1, [b"c1"])
    a.send("b", CREDIT, 2, [b"c2"])
    until(loop, lambda: len(a.frames) == 2 and len(b.frames) == 2)
    assert b.frames == [("a", ROWS, 1, b"to b"), ("a", CREDIT, 2, b"c2")]
    assert a.frames == [("b", ROWS, 2, b"to a"), ("b", CREDIT, 1, b"c1")]


def test_a_peer_that_is_deployed_earlier_waits_and_nothing_is_lost(world):
    loop, a, b, c = world
    a.begin(b.address)
    until(loop, lambda: a.ready)
    turn(loop)
    b.begin()
    a.send("b", ROWS, 1, [b"first"])
    until(loop, lambda: b.frames)
    assert b.frames == [("a", ROWS, 1, b"first")]
    assert not a.lost and not b.lost


def test_a_socket_that_cannot_be_reached_on_the_same_host_is_replaced_by_tcp(world):
    loop, a, b, c = world
    a.begin(dataclasses.replace(b.address, unix_path="\0flinkish-nobody-listens"))
    until(loop, lambda: a.ready)
    assert not a.lost


def test_a_peer_of_another_host_is_reached_by_tcp(world):
    loop, a, b, c = world
    a.begin(dataclasses.replace(b.address, host="elsewhere", unix_path="\0flinkish-nobody-listens"))
    until(loop, lambda: a.ready)


def test_a_peer_that_was_dropped_among_strangers_tries_again(world):
    loop, a, b, c = world
    b.begin()
    relay = socket.create_server(("127.0.0.1", 0))

    def forward():
        for _ in range(2):
            relay.accept()[0].close()
        ends = [relay.accept()[0], socket.create_connection(b.address.tcp)]
        while ends:
            for index, sock in enumerate(list(ends)):
                if select.select([sock], [], [], 0.01)[0]:
                    part = sock.recv(65536)
                    if not part:
                        for end in ends:
                            end.close()
                        return
                    ends[1 - index].sendall(part)

    thread = threading.Thread(target=forward)
    thread.start()
    a.begin(dataclasses.replace(b.address, host="elsewhere", tcp=relay.getsockname()[:2]))
    until(loop, lambda: a.ready)
    a.send("b", ROWS, 1, [b"through"])
    until(loop, lambda: b.frames)
    assert b.frames == [("a", ROWS, 1, b"through")] and not a.lost
    a.connections.end_all_but(())
    thread.join()
    relay.close()


@pytest.mark.parametrize("kind", [0, 2, CREDIT, 99])
def test_a_frame_of_a_kind_that_does_not_go_that_way_ends_the_connection(world, kind):
    loop, a, b, c = world
    b.begin()
    a.begin(b.address)
    until(loop, lambda: a.ready)
    a.connections.for_attempt(0).outgoing["b"].send(kind, 1, b"N.")
    until(loop, lambda: a.lost and b.lost)
    assert not b.frames


def test_a_peer_that_cannot_be_reached_is_lost_and_the_attempt_is_never_ready(world):
    loop, a, b, c = world
    gone = Peer(loop, "gone")
    address = gone.address
    gone.connections.close()
    a.begin(address, b.address)
    until(loop, lambda: a.lost)
    turn(loop)
    assert a.lost == ["gone"] and not a.ready


def test_both_ends_learn_that_a_peer_is_lost(world):
    loop, a, b, c = world
    a.begin(b.address)
    b.begin(c.address)
    until(loop, lambda: a.ready and b.ready)
    turn(loop)
    c.begin()
    b.connections.close()
    until(loop, lambda: a.lost and c.lost)
    assert (a.lost, c.lost, b.lost) == (["b"], ["b"], [])
    a.send("b", ROWS, 1, [b"dropped"])
    assert a.connections.for_attempt(0).pending_bytes("b") == 0


def test_a_new_attempt_leaves_the_old_one_without_calling_it_a_loss(world):
    loop, a, b, c = world
    a.begin(b.address)
    b.begin(a.address)
    until(loop, lambda: a.ready and b.ready)
    a.begin(b.address, attempt=1)
    b.begin(a.address, attempt=1)
    until(loop, lambda: len(a.ready) == 2 and len(b.ready) == 2)
    a.send("b", ROWS, 1, [b"new"], attempt=1)
    until(loop, lambda: b.frames)
    assert b.frames == [(1, "a", ROWS, 1, b"new")]
    assert not a.lost and not b.lost


def test_attempts_side_by_side_have_connections_of_their_own_and_end_one_by_one(world):
    loop, a, b, c = world
    a.begin(b.address)
    b.begin(a.address)
    until(loop, lambda: a.ready and b.ready)
    a.begin(b.address, attempt=1, beside={0})
    turn(loop)
    b.begin(attempt=1, beside={0})
    until(loop, lambda: len(a.ready) == 2 and len(b.ready) == 2)
    a.send("b", ROWS, 1, [b"of 0"])
    a.send("b", ROWS, 1, [b"of 1"], attempt=1)
    until(loop, lambda: len(b.frames) == 2)
    assert sorted(b.frames, key=len) == [("a", ROWS, 1, b"of 0"), (1, "a", ROWS, 1, b"of 1")]
    b.send("a", CREDIT, 1, [b"c"], attempt=1)
    until(loop, lambda: a.frames)
    assert a.frames == [(1, "b", CREDIT, 1, b"c")]
    b.connections.end_all_but({0})
    until(loop, lambda: a.lost)
    a.send("b", ROWS, 1, [b"goes on"])
    until(loop, lambda: len(b.frames) == 3)
    assert a.lost == ["b"] and not b.lost


def test_a_peer_of_an_attempt_that_has_ended_beside_others_is_dropped(world):
    loop, a, b, c = world
    b.begin(attempt=1)
    b.begin(attempt=3, beside={1})
    a.begin(b.address, attempt=2)
    until(loop, lambda: a.lost)
    a.begin(b.address, attempt=3)
    until(loop, lambda: a.ready)
    turn(loop)
    assert a.lost == ["b"]


def test_a_peer_of_an_older_attempt_is_dropped(world):
    loop, a, b, c = world
    b.begin(attempt=5)
    a.begin(b.address, attempt=4)
    until(loop, lambda: a.lost)
    assert not b.frames and not b.lost


def test_records_without_a_greeting_end_the_connection(world):
    loop, a, b, c = world
    b.begin()
    closed = []
    stranger = connect(loop, b.address.tcp, SECRET, ROLE_SLOT, on_close=lambda c, e: closed.append(e))
    stranger.send(ROWS, 1, b"x")
    until(loop, lambda: closed)
    assert not b.frames


def test_a_second_connection_in_the_name_of_a_peer_is_dropped(world):
    loop, a, b, c = world
    b.begin()
    a.begin(b.address)
    until(loop, lambda: a.ready)
    turn(loop)
    closed = []
    second = connect(loop, b.address.tcp, SECRET, ROLE_SLOT, on_close=lambda c, e: closed.append(e))
    second.send_message(PeerHello("job", 0, "a"))
    until(loop, lambda: closed)
    a.send("b", ROWS, 1, [b"still there"])
    until(loop, lambda: b.frames)
