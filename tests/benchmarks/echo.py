"""The floor of W5: each line goes straight back, with no engine between.

``python -m tests.benchmarks.echo IN_PORT OUT_PORT``
"""

from __future__ import annotations

import select
import socket
import sys


def main() -> None:
    in_port, out_port = map(int, sys.argv[1:])
    source = socket.create_connection(("127.0.0.1", in_port))
    sink = socket.create_connection(("127.0.0.1", out_port))
    sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while select.select([source], [], []):
        block = source.recv(1 << 16)
        if not block:
            return
        sink.sendall(block)


if __name__ == "__main__":
    main()
