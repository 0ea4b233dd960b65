"""Strangers at every port that a running job listens on; the job goes on and its result is right.

The ports are those that the system shows, not those that the program says it has.
"""

import base64
import contextlib
import hashlib
import os
import pickle
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from flinkish.datastream.functions import ParallelSourceFunction
from flinkish.errors import ConnectionLostError
from flinkish.messages.control import (
    PROTOCOL_VERSION,
    PeerHello,
    RegisterSlot,
    RegisterSupervisor,
    SlotFailed,
    TasksDeployed,
    TaskStateChanged,
)
from flinkish.messages.deployment import ExecutionAttemptID, SlotAddress, TaskFailure
from flinkish.shell.connections import HANDSHAKE_TIMEOUT_MS, ROLE_JOB_MANAGER, ROLE_SLOT, connect
from flinkish.shell.event_loop import EventLoop
from flinkish.shell.framing import HEADER_BYTES, header
from flinkish.shell.handshake import KIND_HELLO, KIND_PROOF, Handshake
from flinkish.shell.tls import Tls, create_credentials
from flinkish.taskmanager import wire
from flinkish.testing.mini_cluster import MiniCluster
from tests.integration.leftovers import descendants, listening_sockets
from tests.integration.running_jobs import memory_bytes
from tests.integration.tcp_slots import TcpMiniCluster
from tests.integration.waiting import wait_until

WAIT_S = 60
SEED = 20_261_128
HALF_OPEN_MAX = 256
ROLE_REST = "REST"
TOLD_MAX = {ROLE_REST: 500}  # bytes; by others no more than their half of the handshake
FLOOD = 1_000


# ---- what the system says ------------------------------------------------------------------------


def family_of(pid):
    """``pid`` and the processes that it and they have started."""
    return [pid, *descendants(pid)]


def descriptors_of(pid):
    """Number -> what it leads to, of the descriptors of a process."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
    return found


def listeners_of(pids):
    """(pid, place) of each socket on which these processes listen."""
    return {(pid, place) for pid in pids for place in listening_sockets([pid])}


# ---- the job that runs meanwhile -----------------------------------------------------------------


class Paced(ParallelSourceFunction):
    """Emits ("key", 1) at a steady pace until ``stop`` exists, and then how many it has emitted."""

    def __init__(self, stop):
        self.stop = str(stop)

    def run(self, ctx):
        sent = 0
        while not os.path.exists(self.stop):
            for _ in range(20):
                ctx.collect((f"key {sent % 16}", 1))
                sent += 1
            time.sleep(0.01)
        ctx.collect(("sent", sent))

    def cancel(self):
        Path(self.stop).touch()


class RunningJob:
    """Both subtasks of the sum get records from both sources, so each slot sends to the other."""

    def __init__(self, env, stop):
        self.stop = stop
        self.sums, self.updates, self.failure = {}, 0, None
        stream = env.add_source(Paced(stop)).key_by(lambda pair: pair[0])
        self._results = stream.reduce(lambda a, b: (a[0], a[1] + b[1])).execute_and_collect()
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def _take(self):
        try:
            for key, value in self._results:
                self.sums[key] = value
                self.updates += 1
        except Exception as error:
            self.failure = error

    def goes_on(self):
        before = self.updates
        wait_until(lambda: self.updates > before or self.failure, "the job stands still")
        assert self.failure is None, self.failure

    def finish(self):
        """Number of records that were summed; all must be there."""
        self.stop.touch()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive() and self.failure is None, self.failure
        sent = self.sums.pop("sent")
        assert sum(self.sums.values()) == sent and len(self.sums) == 16
        return sent

    def close(self):
        self.stop.touch()
        self._results.close()
        self._thread.join(WAIT_S)


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


# ---- strangers -----------------------------------------------------------------------------------


class Port:
    """One listening socket of the job."""

    def __init__(self, pid, address, role):
        self.pid, self.address, self.role = pid, address, role
        self.is_unix = isinstance(address, str)
        #: As the system's tables show it.
        self.place = address.replace("\0", "@") if self.is_unix else "{}:{}".format(*address)

    def __repr__(self):
        return f"{self.role} {self.pid} at {self.place}"

    def connect(self):
        sock = socket.socket(socket.AF_UNIX if self.is_unix else socket.AF_INET)
        sock.settimeout(WAIT_S)
        sock.connect(self.address)
        return sock

    def send(self, *parts):
        """A new connection on which these bytes were sent, as far as the other side took them."""
        sock = self.connect()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                sock.sendall(part)
        return sock


def frame(kind, payload=b"", channel=0):
    return header(kind, channel, len(payload)) + payload


HANDSHAKE_BYTES = 2 * HEADER_BYTES + 42 + 32


def assert_dropped(sock, what, bytes_max=HANDSHAKE_BYTES):
    """The other side closes, having said no more than its own half of the handshake."""
    heard = 0
    try:
        while part := sock.recv(65536):
            heard += len(part)
    except ConnectionResetError:
        pass
    except TimeoutError:
        raise AssertionError(f"not dropped: {what}") from None
    finally:
        sock.close()
    assert heard <= bytes_max, f"{what}: it was told {heard} bytes"


def receive_frame(sock):
    head = sock.recv(HEADER_BYTES, socket.MSG_WAITALL)
    length, kind, _ = struct.unpack("<IBI", head)
    return kind, sock.recv(length, socket.MSG_WAITALL) if length else b""


def shake_hands(sock, secret, role, initiator=True):
    """The peer's side of the handshake by hand; returns the bytes that were sent."""
    handshake = Handshake(secret, initiator, role, os.urandom(32))
    sent = frame(KIND_HELLO, handshake.hello())
    sock.sendall(sent)
    kind, greeting = receive_frame(sock)
    assert kind == KIND_HELLO
    proof = frame(KIND_PROOF, handshake.receive(KIND_HELLO, greeting))
    sock.sendall(proof)
    return sent + proof


def authenticated(port, secret):
    if port.role == ROLE_REST:
        return ask_rest(port, "GET /jobs", expected=b"200")
    sock = port.connect()
    shake_hands(sock, secret, port.role)
    assert receive_frame(sock)[0] == KIND_PROOF
    return sock


def rest_request(port, line, token=None, host=None, body=b"", length=None):
    """``line``: method and path.  ``length``: that is said of the body."""
    head = [f"{line} HTTP/1.1", f"Host: {host or port.place}", f"Content-Length: {length or len(body)}"]
    head += [f"Authorization: Bearer {token}"] if token else []
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def ask_rest(port, line, expected, **request):
    """The socket of a request that was answered so."""
    sock = port.send(rest_request(port, line, **request))
    answer = sock.recv(65536)
    assert answer.split(b" ", 2)[1:2] == [expected], (line, request, answer)
    return sock


def strangers_at_rest(port, job_id, rng):
    """(name, socket) of those that do not know the token; the job is not theirs to change."""
    job = f"/jobs/{job_id}"
    changes = [
        f"PATCH {job}?mode=cancel", f"PATCH {job}/rescaling?parallelism=1", f"POST {job}/stop", f"POST {job}/savepoints",
        f"POST {job}/checkpoints", f"PUT {job}/resource-requirements", f"DELETE {job}", f"POST /v1{job}/stop",
    ]  # fmt: skip
    for line in changes:
        for token in (None, "x", "x" * 43, "\xe9", "x" * 10_000):
            yield f"{line} without the token", ask_rest(port, line, b"401", token=token, body=b"{}")
    for host in ("evil.example", "evil.example:80", f"localhost.evil.example:{port.address[1]}"):
        yield "a page whose name leads here", ask_rest(port, f"GET {job}", b"403", host=host)
        yield "a change by such a page", ask_rest(port, changes[0], b"403", host=host)
    for number in range(5):
        sock = port.send(rng.randbytes(rng.randrange(1, 6_000)))
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        yield f"garbage {number}", sock
    for length in (2**20, 2**64, 10**30):
        sock = port.send(rest_request(port, changes[0], length=length), b"x" * 100_000)
        with contextlib.suppress(OSError):  # it has been dropped already
            sock.shutdown(socket.SHUT_WR)
        yield f"a length of {length}", sock
    yield "a head without end", port.send(b"GET / HTTP/1.1\r\n", b"X: y\r\n" * 100_000)
    yield "a line without end", port.send(b"GET /", b"x" * 100_000)
    chunks = rest_request(port, changes[0]).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    yield "chunks without end", port.send(chunks, b"1000\r\n%s\r\n" % (b"x" * 4096) * 50)
    smuggled = rest_request(port, "POST /jobs", body=rest_request(port, changes[0]))
    yield "a request in a request", port.send(smuggled)
    yield "a path that leads elsewhere", port.send(rest_request(port, "GET /jobs/../../../etc/passwd"))


def friends_at_rest(port, token, job_id):
    """(name, socket) of those that know the token and ask for what cannot be."""
    none = f"/jobs/{'0' * 32}"
    for line, body, expected in (
        (f"PATCH {none}?mode=cancel", b"", b"404"),
        (f"PATCH /jobs/{job_id}?mode=explode", b"", b"410"),
        (f"PATCH /jobs/{job_id}/rescaling?parallelism=-1", b"", b"400"),
        (f"PATCH /jobs/{job_id}/rescaling?parallelism=1000000000000", b"", b"400"),
        (f"POST /jobs/{job_id}/savepoints", b"[" * 60_000, b"400"),
        (f"POST /jobs/{job_id}/savepoints", b'{"target-directory": {}}', b"400"),
        (f"POST /jobs/{job_id}/savepoints", b"\x80\x05cos\nsystem\n", b"400"),
        (f"GET /jobs/{job_id}/savepoints/{'f' * 64}", b"", b"404"),
        (f"PUT /jobs/{job_id}/resource-requirements", b"{}", b"400"),
    ):
        yield line, ask_rest(port, line, expected, token=token, body=body)


def strangers_without_the_secret(port, secret, bomb, rng):
    """(name, socket) of those that must be dropped at once."""
    message = frame(0, pickle.dumps(bomb))
    hello = frame(KIND_HELLO, Handshake(b"x" * 32, True, port.role, os.urandom(32)).hello())
    other_role = {ROLE_SLOT: ROLE_JOB_MANAGER, ROLE_JOB_MANAGER: ROLE_SLOT}[port.role]

    for number in range(5):
        sock = port.send(rng.randbytes(rng.randrange(1, 6_000)))
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        yield f"garbage {number}", sock
    for cut in (1, HEADER_BYTES, HEADER_BYTES + rng.randrange(1, 42)):
        sock = port.send(hello[:cut])
        sock.shutdown(socket.SHUT_WR)  # until then it is waited for
        yield f"{cut} bytes of a greeting, then the end", sock
    for length in (2**32 - 1, 2**31, 4 * 1024 + 1):
        for kind in (KIND_HELLO, KIND_PROOF, 0, wire.ROWS):
            yield f"a length of {length}", port.send(header(kind, 0, length), b"x" * 100)
    for kind in (0, wire.ROWS, wire.COLUMNS, wire.EVENT, wire.CREDIT, 99, KIND_PROOF):
        yield f"kind {kind} first", port.send(frame(kind, message[HEADER_BYTES:]))
        yield f"kind {kind} behind a greeting", port.send(hello, frame(kind, message[HEADER_BYTES:]))

    with port.connect() as honest:
        recorded = shake_hands(honest, secret, port.role)
        assert receive_frame(honest)[0] == KIND_PROOF
    yield "a replay", port.send(recorded, message)

    mirror = port.connect()
    mirror.sendall(frame(*receive_frame(mirror)))
    yield "its own greeting", mirror
    for what, arguments in {
        "a wrong secret": (b"x" * 32, port.role),
        "a proof for another service": (secret, other_role),
        "a proof of the other side": (secret, port.role, False),
    }.items():
        sock = port.connect()
        shake_hands(sock, *arguments)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(message)
        yield what, sock


class Silent:
    """Those that the deadline of the handshake ends: silent at once, after half a frame, or with a byte
    now and then."""

    def __init__(self, ports):
        hello = frame(KIND_HELLO, Handshake(b"x" * 32, True, ROLE_SLOT, os.urandom(32)).hello())
        self.began_s = time.monotonic()
        self.sockets = []
        self._slow = []
        self._ended = threading.Event()
        for port in ports:
            text = b"GET /jobs HTTP/1.1\r\nHost: localhost\r\nX-Long: "
            said = text if port.role == ROLE_REST else hello
            for part in (b"", said[:HEADER_BYTES], said[:30], said):
                self.sockets.append((f"{len(part)} bytes, then silence", port.send(part)))
            slow = port.connect()
            self.sockets.append(("a byte a second", slow))
            self._slow.append((slow, said))
        self._thread = threading.Thread(target=self._drip)
        self._thread.start()

    def _drip(self):
        for place in range(40):
            for sock, said in self._slow:
                with contextlib.suppress(OSError):  # it has been dropped
                    sock.send(said[place : place + 1])
            if self._ended.wait(1):
                return

    def assert_all_dropped(self):
        for what, sock in self.sockets:
            assert_dropped(sock, what)
        lasted_s = time.monotonic() - self.began_s
        assert HANDSHAKE_TIMEOUT_MS / 1_000 <= lasted_s < 4 * HANDSHAKE_TIMEOUT_MS / 1_000
        self._ended.set()
        self._thread.join()


_FLOOD = """if True:
    import resource, socket, sys
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    address, count = eval(sys.argv[1]), int(sys.argv[2])
    sockets = []
    for _ in range(count):
        sock = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        sock.connect(address)
        sockets.append(sock)
    print("open", flush=True)
    sys.stdin.read()
"""


def flood(port, secret):
    """A thousand connections that say nothing, and an honest one that gets in all the same."""
    before = len(descriptors_of(port.pid))
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", _FLOOD, repr(port.address), str(FLOOD)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        honest_before = authenticated(port, secret)
        assert child.stdout.readline() == "open\n"
        # It stands behind them all, so they have been accepted when it is let in.
        honest_behind = authenticated(port, secret)
        assert len(descriptors_of(port.pid)) <= before + HALF_OPEN_MAX + 10, port
        honest_behind.close()
        honest_before.close()
    finally:
        child.communicate()
    wait_until(lambda: len(descriptors_of(port.pid)) <= before, f"descriptors stay: {port}")


def strangers_with_the_secret(port, secret, job_id, attempt, slot_ids):
    """(name, socket) of peers that are wrong in another way, and are dropped."""
    message = lambda value: frame(0, pickle.dumps(value))  # noqa: E731
    execution = ExecutionAttemptID(job_id, attempt, "nowhere", 0)
    if port.role == ROLE_SLOT:
        good = message(PeerHello(job_id, attempt, "stranger"))
        talks = {
            "an unknown message": message({"job": job_id}),
            "a message for another": message(TasksDeployed(job_id, attempt)),
            "records before the greeting": frame(wire.ROWS, b"x"),
            "an unknown kind before the greeting": frame(99),
            "a stale attempt": message(PeerHello(job_id, attempt - 1, slot_ids[0])),
            "an attempt that is none": message(PeerHello(job_id, "1", slot_ids[0])),
            "a name that is none": message(PeerHello(job_id, attempt, [1])),
            "an unknown kind": good + frame(99),
            "a credit against the direction": good + frame(wire.CREDIT, b"\1\0\0\0"),
            "a second greeting": good + good,
            "a huge frame": good + header(wire.ROWS, 0, 2**32 - 1),
        }
    else:
        address = SlotAddress("a", "host", None, ("127.0.0.1", 1))
        failure = TaskFailure(ConnectionLostError("made up"))
        talks = {
            "an unknown message": message({"job": job_id}),
            "a message for another": message(PeerHello(job_id, attempt, "a")),
            "a message that does not unpickle": frame(0, b"\x80\x05nothing"),
            "a launch that is over": message(RegisterSlot("old", slot_ids[0], 1, address)),
            "a supervisor of a launch that is over": message(
                RegisterSupervisor("old", 0, 0, "host", 1, ("a",), PROTOCOL_VERSION)
            ),
            "a registration of wrong types": message(RegisterSupervisor("old", [], {}, 1, None, "a")),
            "a state that is none": message(TaskStateChanged(execution, "EXPLODED")),
            # The job goes on: the first of the two comes from no slot of it.
            "a failure of the job": (
                message(SlotFailed(slot_ids[0], job_id, (execution,), failure)) + message("nonsense")
            ),
            "a huge frame": header(0, 0, 2**32 - 1),
        }
    for what, bytes_ in talks.items():
        sock = authenticated(port, secret)
        sock.sendall(bytes_)
        yield what, sock


def besiege(ports, job, secret, token, job_id, attempt, slot_ids, folder, seed=SEED):
    """All of it, in an order of chance; the job goes on meanwhile."""
    print(f"seed={seed}")
    rng = random.Random(seed)
    bomb = Bomb(folder / "exploded")
    pids = {port.pid for port in ports}
    silent = Silent(ports)
    for port in rng.sample(ports, len(ports)):
        if port.role == ROLE_REST:
            dropped = list(strangers_at_rest(port, job_id, rng))
        else:
            dropped = list(strangers_without_the_secret(port, secret, bomb, rng))
        for what, sock in dropped:
            assert_dropped(sock, f"{what} at {port}", TOLD_MAX.get(port.role, HANDSHAKE_BYTES))
        job.goes_on()
    silent.assert_all_dropped()
    descriptors = {pid: len(descriptors_of(pid)) for pid in pids}
    memory = {pid: memory_bytes(pid) for pid in pids}
    for port in rng.sample(ports, len(ports)):
        flood(port, secret)
        job.goes_on()
    for port in rng.sample(ports, len(ports)):
        if port.role == ROLE_REST:
            talks = friends_at_rest(port, token, job_id)
        else:
            talks = strangers_with_the_secret(port, secret, job_id, attempt, slot_ids)
        for what, sock in talks:
            assert_dropped(sock, f"{what} at {port}", bytes_max=10_000)
        job.goes_on()
    assert not os.path.exists(bomb.path), "a pickle of a stranger was opened"
    for pid in pids:
        wait_until(lambda: len(descriptors_of(pid)) <= descriptors[pid], f"descriptors stay in {pid}")
        grown = memory_bytes(pid) - memory[pid]
        assert grown < 64 << 20, f"process {pid} has grown by {grown} bytes"


def ports_of(cluster, pids, known):
    """The ports of a running job; asserts that they are those that are needed, and no other.

    Args:
        pids: processes that are looked at.
        known: what they listened on before.
    """
    manager = cluster.job_manager
    slots = manager._dispatcher.resource_manager.slots.values()
    wait_until(lambda: all(slot.address is not None for slot in slots), "a slot is missing")
    ports = [
        Port(os.getpid(), manager._listener.address, ROLE_JOB_MANAGER),
        Port(os.getpid(), manager.rest.address, ROLE_REST),
    ]
    for slot in slots:
        ports.append(Port(slot.pid, slot.address.tcp, ROLE_SLOT))
        if slot.address.unix_path is not None:
            ports.append(Port(slot.pid, slot.address.unix_path, ROLE_SLOT))
    needed = {(port.pid, port.place) for port in ports}
    assert listeners_of(pids) - known == needed
    assert {port.address[0] for port in ports if not port.is_unix} == {"127.0.0.1"}
    return ports


def job_of(cluster):
    (master,) = cluster.job_manager._dispatcher.jobs.values()
    return master.job.job_id, master.attempt, [slot.slot_id for slot in master.slots]


def assert_told_boundedly_and_without_the_secret(text, secret, processes):
    for form in (secret.hex(), base64.b64encode(secret).decode(), repr(secret)[2:-1]):
        assert form not in text
    # A listener and the connections behind it have a log each, and a minute may end in between.
    told = text.count("peer dropped")
    assert processes <= told <= processes * 2 * 2 * 11, told


def test_every_port_of_a_job_withstands_strangers_and_the_job_does_not_notice(tmp_path, capfd, caplog):
    caplog.set_level("INFO", "flinkish")  # of the slots too
    before = family_of(os.getpid())
    known = listeners_of(before)
    with MiniCluster(slots=2) as cluster:
        job = RunningJob(cluster.get_execution_environment(), tmp_path / "stop")
        try:
            job.goes_on()
            ports = ports_of(cluster, set(family_of(os.getpid())) - set(before[1:]), known)
            assert len(ports) == 6
            secret, token = cluster.job_manager._secret, cluster.job_manager.rest.token
            besiege(ports, job, secret, token, *job_of(cluster), tmp_path)
            assert job.finish() > 1_000
        finally:
            job.close()
    text = caplog.text + "".join(capfd.readouterr())
    assert_told_boundedly_and_without_the_secret(text, secret, 3)
    assert token not in text


def test_on_spark_the_same_ports_and_no_other_withstand_strangers_too(tmp_path, spark_of_tests, caplog):
    from spark_plugin.session_cluster import SessionCluster

    context = spark_of_tests.context_for("local[4]")
    known = listeners_of([os.getpid()])  # PySpark's own
    with SessionCluster(slots=2, spark=context) as cluster:
        job = RunningJob(cluster.get_execution_environment(), tmp_path / "stop")
        try:
            job.goes_on()
            slots = [slot["pid"] for slot in cluster.describe()["slots"]]
            ports = ports_of(cluster, [os.getpid(), *slots], known)
            assert len(ports) == 6
            secret, token = cluster.job_manager._secret, cluster.job_manager.rest.token
            besiege(ports, job, secret, token, *job_of(cluster), tmp_path, seed=SEED + 1)
            assert job.finish() > 1_000
        finally:
            job.close()
    assert_told_boundedly_and_without_the_secret(caplog.text, secret, 1)


# ---- TLS -----------------------------------------------------------------------------------------


def large_record(number):
    return random.Random(number).randbytes(1 << 20) * 64


def assert_refused(port, secret, tls):
    loop = EventLoop()
    ready, closed = [], []
    connect(
        loop, port.address, secret, port.role, tls=tls,
        on_ready=ready.append, on_close=lambda connection, error: closed.append(error),
    )  # fmt: skip
    assert loop.run_until(lambda: ready or closed, WAIT_S * 1000)
    loop.close()
    assert not ready and isinstance(closed[0], ConnectionLostError)


def test_with_tls_a_job_runs_over_tcp_and_refuses_who_lacks_its_certificate(tmp_path, collect, caplog):
    before = family_of(os.getpid())
    known = listeners_of(before)
    with TcpMiniCluster(2, {"security.ssl.internal.enabled": True, "parallelism.default": 2}) as cluster:
        stream = cluster.get_execution_environment().from_sequence(1, 4).map(large_record).rebalance()
        digests = collect(stream.map(lambda record: hashlib.sha256(record).hexdigest()))
        assert sorted(digests) == sorted(hashlib.sha256(large_record(n)).hexdigest() for n in range(1, 5))

        job = RunningJob(cluster.get_execution_environment(), tmp_path / "stop")
        try:
            job.goes_on()
            ports = ports_of(cluster, set(family_of(os.getpid())) - set(before[1:]), known)
            assert len(ports) == 4, "no Unix sockets"
            secret, bomb = cluster.job_manager._secret, Bomb(tmp_path / "exploded")
            for port in (port for port in ports if port.role != ROLE_REST):
                assert_refused(port, secret, None)
                assert_refused(port, secret, Tls(create_credentials()))
                for what, sock in {
                    "a pickle in clear text": port.send(frame(0, pickle.dumps(bomb))),
                    "half a record of TLS": port.send(b"\x16\x03\x01\x02\x00\x01"),
                }.items():
                    with contextlib.suppress(OSError):  # it has been dropped already
                        sock.shutdown(socket.SHUT_WR)
                    assert_dropped(sock, f"{what} at {port}")
                job.goes_on()
            assert job.finish() > 100 and not os.path.exists(bomb.path)
        finally:
            job.close()
    assert "TLS: " in caplog.text


# ---- addresses -----------------------------------------------------------------------------------

_DRIVER = """if True:
    import sys
    from flinkish.messages.control import Heartbeat, RegisterSlot, StopSupervisor
    from flinkish.shell.connections import ROLE_JOB_MANAGER, Listener
    from flinkish.shell.event_loop import EventLoop

    loop, connections = EventLoop(), []

    def accept(connection):
        connections.append(connection)
        connection.on_message = received

    def received(connection, message):
        if isinstance(message, RegisterSlot):
            print(message.pid, *message.address.tcp, flush=True)

    def beat():
        for connection in connections:
            connection.send_message(Heartbeat())
        loop.call_later(200, beat)

    listener = Listener(loop, b"s" * 32, ROLE_JOB_MANAGER, sys.argv[1], on_connection=accept)
    print(listener.address[1], flush=True)
    loop.register(0, "r", lambda *ready: connections[0].send_message(StopSupervisor("the test is over")))
    loop.call_later(0, beat)
    loop.run_until(lambda: bool(connections) and all(c.closed for c in connections), 60_000)
"""

_SLOTS = """if True:
    import sys
    from flinkish.messages.launch import SlotLaunch
    from flinkish.shell.supervisor import run_supervisor
    address = (sys.argv[1], int(sys.argv[2]))
    print(run_supervisor(SlotLaunch("lease", 0, ("a",), (address,), b"s" * 32)))
"""


def test_a_slot_on_another_host_listens_on_the_address_that_reaches_the_job_manager_and_no_other():
    from tests.integration.network_hosts import Network  # here, because slots import this module

    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

    def start(host, program, *arguments):
        command = [*host.enter, sys.executable, "-c", program, *map(str, arguments)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environ)

    with Network("driver", "slots") as network:
        address = network["driver"].address
        with start(network["driver"], _DRIVER, address) as driver:
            with start(network["slots"], _SLOTS, address, int(driver.stdout.readline())) as supervisor:
                pid, host, port = driver.stdout.readline().split()
                family = family_of(supervisor.pid)
                assert int(pid) in family
                tcp = {place for place in listening_sockets(family) if not place.startswith("@")}
                assert tcp == {f"{network['slots'].address}:{port}"} and host == network["slots"].address
                driver.stdin.close()
                assert supervisor.stdout.read() == "the test is over\n"
