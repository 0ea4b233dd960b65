"""Mutual proof of the job's secret before anything else is accepted.

Moves, the same for both sides (initiator and acceptor)::

    start      -> HELLO(magic, version, nonce)      at once, no waiting for the other
    peer HELLO -> PROOF(hmac(secret, side, role, version, both nonces))
    peer PROOF    compared with what the peer's side must send  -> authenticated, or refused

One round trip.  Invariants:
- nonces are fresh, 32 random bytes from each side, so a recorded proof is worth nothing later;
- the proof names its side, so a peer that sends our own proof back is refused;
- the proof names the role (which service is being spoken to), so a proof for a slot is worth
  nothing at the JobManager;
- only fixed-size payloads are looked at; nothing is unpickled.

Pure: nonces are arguments.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Optional

KIND_HELLO = 254
KIND_PROOF = 255

# The version of framing and handshake; the messages have their own.
WIRE_VERSION = 1

MAX_PAYLOAD_BEFORE_AUTHENTICATION = 4 * 1024

_MAGIC = b"flinkish"
_NONCE_BYTES = 32
_HELLO = struct.Struct(f"<{len(_MAGIC)}sH{_NONCE_BYTES}s")


class HandshakeRefused(Exception):
    """The peer did not prove the secret; the text says what was wrong, never what was expected."""


class Handshake:
    """One side of it.

    Args:
        secret: the job's.
        initiator: whether this side has opened the connection.
        role: the service that the acceptor offers, "job-manager" or "slot".
        nonce: 32 fresh random bytes.
    """

    def __init__(self, secret: bytes, initiator: bool, role: str, nonce: bytes):
        assert len(nonce) == _NONCE_BYTES
        assert len(secret) >= 16, "the secret is too short to protect anything"
        self._secret = secret
        self._initiator = initiator
        self._role = role
        self._nonce = nonce
        self._peer_nonce: Optional[bytes] = None
        self.authenticated = False

    def hello(self) -> bytes:
        """Payload of the first frame."""
        return _HELLO.pack(_MAGIC, WIRE_VERSION, self._nonce)

    def receive(self, kind: int, payload: bytes) -> Optional[bytes]:
        """Take a frame of the peer.

        Returns:
            payload of the PROOF that must be sent now, or None.
        Raises:
            HandshakeRefused: drop the connection.
        """
        if kind == KIND_HELLO and self._peer_nonce is None:
            if len(payload) != _HELLO.size:
                raise HandshakeRefused("its greeting has the wrong size")
            magic, version, nonce = _HELLO.unpack(payload)
            if magic != _MAGIC:
                raise HandshakeRefused("it does not speak flinkish's protocol")
            if version != WIRE_VERSION:
                raise HandshakeRefused(f"it speaks protocol version {version}, this side {WIRE_VERSION}")
            if hmac.compare_digest(nonce, self._nonce):
                raise HandshakeRefused("it sent this side's own nonce back")
            self._peer_nonce = nonce
            return self._proof(self._initiator)
        if kind == KIND_PROOF and self._peer_nonce is not None and not self.authenticated:
            if not hmac.compare_digest(payload, self._proof(not self._initiator)):
                raise HandshakeRefused("it does not have the secret")
            self.authenticated = True
            return None
        raise HandshakeRefused(f"it sent a frame of kind {kind} before it proved the secret")

    def _proof(self, by_initiator: bool) -> bytes:
        assert self._peer_nonce is not None
        mine, theirs = self._nonce, self._peer_nonce
        initiator_nonce, acceptor_nonce = (mine, theirs) if self._initiator else (theirs, mine)
        side = b"initiator" if by_initiator else b"acceptor"
        text = b"\0".join(
            (b"flinkish-handshake", str(WIRE_VERSION).encode(), self._role.encode(), side)
        )
        # Fixed-size nonces last: no two different inputs give the same bytes.
        return hmac.new(
            self._secret, text + b"\0" + initiator_nonce + acceptor_nonce, hashlib.sha256
        ).digest()
