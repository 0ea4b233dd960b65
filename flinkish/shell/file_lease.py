"""The lease as a value in a ConditionalCell: a folder that all drivers share."""

from __future__ import annotations

import json
from typing import Callable, Optional, Protocol

from flinkish.jobmanager.leader_election import Lease, LeaseRead
from flinkish.storage.conditional_store import ConditionalCell


class LeaseStore(Protocol):
    """Where candidates meet.  All methods but ``close`` run on one thread, block, and may raise anything."""

    def read(self) -> LeaseRead: ...

    def write(self, lease: Lease, version: int) -> Optional[int]:
        """Replace that version, durably; the new one, None: refused."""

    def listen(self, listener: Callable[[object], None]) -> None:
        """Before the first read: ``listener`` gets ConnectionSuspended and LeaseChanged, on any thread."""

    def close(self) -> None:
        """The candidate is gone; what still waits in the other methods fails."""


class FileLease:
    """See the module; nothing tells of a change, so candidates look again and again."""

    def __init__(self, cell: ConditionalCell):
        self._cell = cell

    def read(self) -> LeaseRead:
        data, version = self._cell.read()
        return LeaseRead(None if data is None else decode_lease(data), version)

    def write(self, lease: Lease, version: int) -> Optional[int]:
        return self._cell.replace(encode_lease(lease), version)

    def listen(self, listener: Callable[[object], None]) -> None:
        """A folder says nothing."""

    def close(self) -> None:
        """Nothing is open."""


def encode_lease(lease: Lease) -> bytes:
    return json.dumps(vars(lease)).encode()


def decode_lease(data: bytes) -> Lease:
    return Lease(**json.loads(data))
