"""The load and the clock of W5: one process, two loopback sockets.

The system under test reads lines ``key,value,emit_ns`` from the first port; they are sent on a
schedule of the wall clock.  It writes lines ``key,sum,emit_ns`` to the second, over one connection or
several.  Latency = arrival there - the scheduled time, so a reader that stalls is counted, not hidden.

``python -m tests.benchmarks.feeder RATE WARM_SECONDS SECONDS SEED`` prints the two ports, then one line
of JSON: percentiles of what was scheduled after the warm seconds, and a checksum over all.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from typing import Any, Sequence

from tests.benchmarks.data import event

CONNECT_TIMEOUT_S = 120.0  # a Spark stage may have to start first
STALL_TIMEOUT_S = 30.0
ARRIVAL_TIMEOUT_S = 15.0
ROWS = 20_000  # the lines repeat after that many
_BLOCK_BYTES = 1 << 16


def percentiles(latencies_ms: Sequence[float]) -> dict[str, float]:
    ordered = sorted(latencies_ms)

    def at(part: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 3)

    return {"p50_ms": at(0.5), "p99_ms": at(0.99), "p999_ms": at(0.999), "max_ms": round(ordered[-1], 3)}


class Arrivals:
    """Blocks of whole lines and when they came, from all connections of the system's sink."""

    def __init__(self, server: socket.socket, total: int):
        self.server, self.total = server, total
        self.blocks: list[tuple[int, bytes]] = []  # (arrival in ns, whole lines)
        self.received = 0
        self.complete = threading.Event()
        self.readers: list[threading.Thread] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self.server.accept()
            reader = threading.Thread(target=self._read, args=(connection,), daemon=True)
            reader.start()
            self.readers.append(reader)

    def _read(self, connection: socket.socket) -> None:
        rest = b""
        while True:
            block = connection.recv(_BLOCK_BYTES)
            now_ns = time.time_ns()
            if not block:
                return
            block = rest + block
            cut = block.rfind(b"\n") + 1
            rest = block[cut:]
            if cut:
                with self._lock:
                    self.blocks.append((now_ns, block[:cut]))
                    self.received += block.count(b"\n", 0, cut)
                    if self.received >= self.total:
                        self.complete.set()


def feed(connection: socket.socket, rows: Sequence[tuple[str, int]], rate: int, total: int):
    """Send each line when it is due; returns (when the first was due in ns, most behind in ns)."""
    step_ns = 1_000_000_000 // rate
    start_ns = time.time_ns() + 50_000_000
    sent = behind_ns = 0
    while sent < total:
        now_ns = time.time_ns()
        due = min(total, (now_ns - start_ns) // step_ns + 1)
        if due <= sent:
            time.sleep(max(0, start_ns + sent * step_ns - now_ns) / 1e9)
            continue
        lines = []
        for i in range(sent, due):
            key, value = rows[i % len(rows)]
            lines.append(f"{key},{value},{start_ns + i * step_ns}\n")
        behind_ns = max(behind_ns, now_ns - (start_ns + sent * step_ns))
        connection.sendall("".join(lines).encode())
        sent = due
    return start_ns, behind_ns


def report(blocks: Sequence[tuple[int, bytes]], cut_ns: int) -> dict[str, Any]:
    """Percentiles of lines scheduled at or after ``cut_ns``; the checksum adds up the last sum of
    each key, and ``values`` what stands in the second field, which is the same for an echo."""
    latencies_ms, last, values = [], {}, 0
    for arrival_ns, block in blocks:
        for line in block.splitlines():
            key, number, emit = line.split(b",")
            emit_ns = int(emit)
            last[key] = int(number)
            values += last[key]
            if emit_ns >= cut_ns:
                latencies_ms.append((arrival_ns - emit_ns) / 1e6)
    found = percentiles(latencies_ms) if latencies_ms else {}
    return {**found, "checksum": sum(last.values()), "values": values}


def run(rate: int, warm_s: float, seconds: float, seed: int) -> dict[str, Any]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    print(*(server.getsockname()[1] for server in servers), flush=True)
    total = int(rate * (warm_s + seconds))
    rows = [event(i, seed)[:2] for i in range(min(total, ROWS))]
    arrivals = Arrivals(servers[1], total)
    servers[0].settimeout(CONNECT_TIMEOUT_S)
    connection, _ = servers[0].accept()
    connection.settimeout(STALL_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    start_ns, behind_ns = feed(connection, rows, rate, total)
    arrivals.complete.wait(ARRIVAL_TIMEOUT_S)
    connection.close()  # the system's input ends, and it closes its outputs
    for reader in arrivals.readers:
        reader.join(ARRIVAL_TIMEOUT_S)
    found = report(arrivals.blocks, start_ns + int(warm_s * 1e9))
    sent_values = sum(rows[i % len(rows)][1] for i in range(total))
    return {
        **found, "sent": total, "received": arrivals.received, "sent_values": sent_values,
        "feeder_behind_ms_max": round(behind_ns / 1e6, 3),
    }  # fmt: skip


if __name__ == "__main__":
    arguments = sys.argv[1:]
    try:
        outcome = run(int(arguments[0]), float(arguments[1]), float(arguments[2]), int(arguments[3]))
    except OSError as error:  # a system that does not connect, or stops to read
        outcome = {"failed": f"{type(error).__name__}: {error}"}
    print(json.dumps(outcome), flush=True)
