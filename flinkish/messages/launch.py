"""What a supervisor and its slots need to find the JobManager: travels inside the Spark closure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional


@dataclass(frozen=True)
class TlsCredentials:
    """PEM texts: the certificate that every process of a job shows, its key, and the authorities whose
    certificates they take."""

    certificate: bytes
    key: bytes = field(repr=False)
    ca: bytes


@dataclass(frozen=True)
class SlotLaunch:
    """One supervisor (one Spark task) and its slots.

    ``job_manager_addresses`` are tried in order.  ``secret`` never appears in arguments or the
    environment of a process.  ``sys_path``: entries of the driver, added in the slot where they exist.
    ``tls`` None: connections are not encrypted.  ``unix_sockets``: slots of one host talk by those.
    """

    lease: str
    task_index: int
    slot_ids: tuple[str, ...]
    job_manager_addresses: tuple[tuple[str, int], ...]
    secret: bytes = field(repr=False)
    heartbeat_interval_ms: int = 1_000
    heartbeat_timeout_ms: int = 10_000
    connect_timeout_ms: int = 10_000
    sys_path: tuple[str, ...] = ()
    tls: Optional[TlsCredentials] = None
    unix_sockets: bool = True
