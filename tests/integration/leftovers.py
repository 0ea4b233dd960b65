"""What processes leave: found by a variable in the environment that all descendants inherit."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys
from pathlib import Path

MARK = "FLINKISH_TEST_MARK"

# Of the kernel's tables.
_ESTABLISHED, _LISTENS, _ACCEPTS = "01", "0A", 0x10000


def marked(mark):
    """Processes that run and were started, however indirectly, with this mark: pid -> command line."""
    found = {}
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                if command := command_line(folder.name):  # a zombie has none
                    found[int(folder.name)] = command[-300:]
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def command_line(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def lives(pid):
    """Whether it runs; a zombie does not."""
    try:
        return bool(command_line(pid))
    except (FileNotFoundError, ProcessLookupError):
        return False


def ancestors(pid):
    """Parent, its parent, and so on, as far as they still run."""
    while pid := _parent(pid):
        yield pid


def _parent(pid):
    """0 if there is none, or the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def carrier(slot, kind):
    """The process of this ``kind`` that carries a slot in Spark: "slot" (itself), "worker" (Spark's, in Python) or
    "executor" (its JVM).  They descend so: executor -> daemon -> worker -> fork server -> slot."""
    line = [slot, *ancestors(slot)]
    if kind == "slot":
        return slot
    daemon = max(index for index, pid in enumerate(line) if "pyspark.daemon" in command_line(pid))
    return {"worker": line[daemon - 1], "executor": line[daemon + 1]}[kind]


def descendants(root=None):
    """Processes below this one (or ``root``), zombies too."""
    root = root or os.getpid()
    return {int(folder.name) for folder in Path("/proc").glob("[0-9]*") if root in ancestors(folder.name)}


def children():
    """Processes that this one has started and that have not been waited for."""
    own = os.getpid()
    return {pid for pid in descendants() if _parent(pid) == own}


def listening_sockets(pids):
    """Where these processes accept connections: "127.0.0.1:4711", "@flinkish-..."."""
    found = set()
    for pid in pids:
        own = _sockets(pid)
        found |= {place for place, inode in _all_listening(f"/proc/{pid}/net") if inode in own}
    return found


def still_listening(places, net="/proc/self/net"):
    """Those of ``places`` at which anybody accepts connections."""
    return places & {place for place, _ in _all_listening(net)}


def connections(pid):
    """(own place, place of the peer) of each TCP connection of a process."""
    own = _sockets(pid)
    return [
        (_place(fields[1]), _place(fields[2]))
        for table in ("tcp", "tcp6")
        for fields in _table(f"/proc/{pid}/net", table)
        if fields[3] == _ESTABLISHED and fields[9] in own
    ]


def _sockets(pid):
    """Inodes."""
    found = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            # It may be closed meanwhile; of this process one is for certain, with which the folder was listed.
            with contextlib.suppress(FileNotFoundError):
                target = os.readlink(descriptor)
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found


def _all_listening(net):
    for fields in _table(net, "unix"):
        if int(fields[3], 16) & _ACCEPTS and len(fields) > 7:
            yield fields[7], fields[6]
    for fields in (*_table(net, "tcp"), *_table(net, "tcp6")):
        if fields[3] == _LISTENS:
            yield _place(fields[1]), fields[9]


def _table(net, name):
    try:
        lines = Path(net, name).read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, OSError):
        return []  # the process has ended
    return [line.split() for line in lines[1:]]


def _place(text):
    """Of an address as the kernel's tables write it: 32-bit words in the machine's order, and the port."""
    words, _, port = text.partition(":")
    raw = b"".join(
        int(words[start : start + 8], 16).to_bytes(4, sys.byteorder) for start in range(0, len(words), 8)
    )
    address = ipaddress.ip_address(raw)
    return f"{getattr(address, 'ipv4_mapped', None) or address}:{int(port, 16)}"
