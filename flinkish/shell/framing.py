"""How frames stand on a byte stream: `uint32 length, uint8 kind, uint32 channel`, then the payload.

    FrameDecoder.next_buffer()  ->  the owner reads into it  ->  FrameDecoder.received(n)  ->  frames

Many small frames arrive by one read into a buffer that all connections share; a frame too large for
that is read straight into memory of its own.  Payloads are owned by whoever gets them.

Invariants: a payload never exceeds `max_payload`, which is checked before anything is allocated;
between two reads a decoder holds at most a header and `SMALL_FRAME` bytes, or one large frame, so
there is always room for the next read.
"""

from __future__ import annotations

import struct
from typing import Iterator, Union

from flinkish.messages.elements import FRAME_PAYLOAD_BYTES_MAX

HEADER = struct.Struct("<IBI")
HEADER_BYTES = HEADER.size

# An incomplete frame above this gets memory of its own.
SMALL_FRAME = 16 * 1024

Payload = Union[bytes, bytearray]


class FrameTooLargeError(ValueError):
    """A header announces more than the peer may send."""


class FrameDecoder:
    """Bytes in, frames out."""

    __slots__ = ("max_payload", "_tail", "_large", "_large_filled", "_large_kind", "_large_channel")

    def __init__(self, max_payload: int = FRAME_PAYLOAD_BYTES_MAX):
        self.max_payload = max_payload
        self._tail = b""
        self._large: bytearray | None = None
        self._large_filled = 0
        self._large_kind = 0
        self._large_channel = 0

    @property
    def buffered_bytes(self) -> int:
        return len(self._tail) + self._large_filled

    def next_buffer(self, scratch: memoryview) -> memoryview:
        """Where the next bytes belong: a part of `scratch`, or of the large frame that is coming."""
        if self._large is not None:
            return memoryview(self._large)[self._large_filled :]
        held = len(self._tail)
        if held:
            scratch[:held] = self._tail
        return scratch[held:]

    def received(self, scratch: memoryview, count: int) -> Iterator[tuple[int, int, Payload]]:
        """Take `count` bytes that were read into `next_buffer`; yields (kind, channel, payload).

        Raises:
            FrameTooLargeError: see `max_payload`, which may change between two frames.
        """
        if self._large is not None:
            self._large_filled += count
            if self._large_filled == len(self._large):
                payload, self._large = self._large, None
                self._large_filled = 0
                yield self._large_kind, self._large_channel, payload
            return
        end = len(self._tail) + count
        self._tail = b""
        position = 0
        unpack_from = HEADER.unpack_from
        while end - position >= HEADER_BYTES:
            length, kind, channel = unpack_from(scratch, position)
            if length > self.max_payload:
                raise FrameTooLargeError(f"a frame of {length} bytes; at most {self.max_payload} are allowed")
            start = position + HEADER_BYTES
            stop = start + length
            if stop > end:
                if length > SMALL_FRAME:
                    large = bytearray(length)
                    large[: end - start] = scratch[start:end]
                    self._large = large
                    self._large_filled = end - start
                    self._large_kind, self._large_channel = kind, channel
                    return
                break
            position = stop
            yield kind, channel, bytes(scratch[start:stop])
        if position < end:
            self._tail = bytes(scratch[position:end])


def header(kind: int, channel: int, payload_bytes: int) -> bytes:
    return HEADER.pack(payload_bytes, kind, channel)
