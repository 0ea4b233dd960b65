"""What goes over the wire, against a real socket; who is slow is dropped, and who is right is answered meanwhile."""

import http.client
import json
import socket
import threading

import pytest

from flinkish.rest import http_server
from flinkish.rest.http_server import BODY_BYTES_MAX, CONNECTIONS_MAX, HEAD_BYTES_MAX, HttpServer
from flinkish.rest.messages import Response

WAIT_S = 30


@pytest.fixture
def dropped():
    return []


@pytest.fixture
def server(dropped):
    def echo(request):
        return Response(200, {"method": request.method, "path": request.path, "query": dict(request.query),
                              "host": request.headers.get("host"), "body": request.body.decode()})  # fmt: skip

    server = HttpServer("127.0.0.1", 0, echo, lambda peer, why: dropped.append(why))
    server.start()
    yield server
    server.close()
    assert not server._thread.is_alive()


def ask(server, method, path, body=None, headers={}):
    connection = http.client.HTTPConnection(*server.address, timeout=WAIT_S)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    answer = response.status, response.headers, json.loads(response.read())
    connection.close()
    return answer


def send(server, data):
    sock = socket.create_connection(server.address, WAIT_S)
    sock.sendall(data)
    return sock


def hear(sock):
    """All that is said until the other side closes."""
    heard = b""
    try:
        while part := sock.recv(65536):
            heard += part
    except ConnectionResetError:
        pass
    sock.close()
    return heard


def test_requests_arrive_as_they_are_and_answers_are_json_that_nobody_keeps(server):
    status, headers, answer = ask(server, "PATCH", "/jobs/a%20b?mode=cancel&x=%2F", b'{"a": 1}')
    assert status == 200 and answer == {
        "method": "PATCH", "path": "/jobs/a b", "query": {"mode": "cancel", "x": "/"},
        "host": "{}:{}".format(*server.address), "body": '{"a": 1}',
    }  # fmt: skip
    assert headers["Content-Type"].startswith("application/json") and headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers
    _, _, answer = ask(server, "POST", "/", iter([b"in ", b"pieces"]))
    assert answer["body"] == "in pieces"
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    sock = send(server, head)
    assert sock.recv(12) == b"HTTP/1.1 100"
    sock.sendall(b"body")
    assert b'"body": "body"' in hear(sock)


@pytest.mark.parametrize(
    "data, status",
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"400"),
        (b"GET  HTTP/1.1\r\nHost: a\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", b"501"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * (HEAD_BYTES_MAX + 10), b"431"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n" + b"x" * (BODY_BYTES_MAX + 1), b"413"),
        (b"GET /?" + b"&".join(b"a=1" for _ in range(40)) + b" HTTP/1.1\r\nHost: a\r\n\r\n", b"400"),
        (b"GET http://[ HTTP/1.1\r\nHost: a\r\n\r\n", b"400"),
    ],
)
def test_what_is_no_request_is_refused(server, dropped, data, status):
    assert hear(send(server, data)).split(b" ", 2)[1] == status and dropped == ["garbage"]
    assert ask(server, "GET", "/")[0] == 200


def test_one_request_a_connection(server):
    twice = b"GET /first HTTP/1.1\r\nHost: a\r\n\r\nGET /second HTTP/1.1\r\nHost: a\r\n\r\n"
    heard = hear(send(server, twice))
    assert b"/first" in heard and b"/second" not in heard and heard.count(b"HTTP/1.1 200") == 1


def test_the_slow_are_dropped_and_the_others_answered_meanwhile(server, dropped, monkeypatch):
    monkeypatch.setattr(http_server, "REQUEST_S", 1.0)
    slow = [send(server, data) for data in (b"", b"G", b"GET / HTTP/1.1\r\nHost: a\r\n")]
    assert ask(server, "GET", "/")[0] == 200
    assert [hear(sock) for sock in slow] == [b"", b"", b""]
    assert dropped == ["it went away, or was too slow"] * 3


def test_of_too_many_connections_the_oldest_are_dropped(server):
    waiting = [send(server, b"") for _ in range(CONNECTIONS_MAX + 20)]
    assert ask(server, "GET", "/")[0] == 200
    assert [hear(sock) for sock in waiting[:20]] == [b""] * 20
    last = waiting[-1]
    last.sendall(b"GET /last HTTP/1.1\r\nHost: a\r\n\r\n")
    assert b"/last" in hear(last)
    for sock in waiting[20:-1]:
        sock.close()


def test_a_handler_that_hangs_costs_the_others_nothing_until_too_many_do(monkeypatch):
    monkeypatch.setattr(http_server, "ANSWER_S", 0.8)
    gate = threading.Event()

    def handle(request):
        if request.path == "/hangs":
            gate.wait(WAIT_S)
        return Response(200)

    server = HttpServer("127.0.0.1", 0, handle, lambda peer, why: None)
    server.start()
    hangs = b"GET /hangs HTTP/1.1\r\nHost: a\r\n\r\n"
    try:
        hanging = [send(server, hangs)]
        assert ask(server, "GET", "/")[0] == 200
        hanging += [send(server, hangs) for _ in range(http_server.ANSWERING_MAX - 1)]
        assert [hear(sock).split(b" ", 2)[1] for sock in hanging] == [b"503"] * http_server.ANSWERING_MAX
        assert ask(server, "GET", "/")[0] == 503  # no thread is made for it
        monkeypatch.setattr(http_server, "ANSWER_S", WAIT_S)
        waiting = []
        for number in range(1, CONNECTIONS_MAX + 1):
            waiting.append(send(server, hangs))
            while server._asked < number:
                pass  # it is being read
        assert ask(server, "GET", "/")[0] == 503  # at once: too many wait
        for sock in waiting:
            sock.close()
        gate.set()
        while ask(server, "GET", "/")[0] == 503:
            pass  # they end just now
    finally:
        gate.set()
        server.close()


def test_what_is_being_answered_when_the_server_closes_is_answered():
    begun, gate = threading.Event(), threading.Event()

    def handle(request):
        begun.set()
        gate.wait(WAIT_S)
        return Response(200, {"answer": "all of it"})

    server = HttpServer("127.0.0.1", 0, handle, lambda peer, why: None)
    server.start()
    silent = send(server, b"GET")
    asked = send(server, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert begun.wait(WAIT_S)
    closing = threading.Thread(target=server.close)
    closing.start()
    assert hear(silent) == b""
    gate.set()
    assert b"all of it" in hear(asked)
    closing.join()
    assert not server._thread.is_alive()


def test_a_port_that_is_taken_is_an_error_at_once(server):
    with pytest.raises(OSError):
        HttpServer(*server.address, lambda request: Response(200), lambda peer, why: None)
