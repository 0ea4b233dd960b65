"""Ends of channels that remember: for tests of one core."""

from __future__ import annotations

import pytest

from flinkish.messages.elements import ColumnBatch, RowBatch
from flinkish.taskmanager import wire
from flinkish.taskmanager.credit_ledger import CreditLedger
from flinkish.taskmanager.frame_sizer import FrameSizer
from flinkish.taskmanager.output_channel import LocalOutputChannel, RemoteOutputChannel


class Receiver:
    """Takes what a local channel hands over; ``consume`` gives the credits back."""

    def __init__(self, ledger):
        self.ledger = ledger
        self.elements = []

    def receive(self, element):
        self.elements.append(element)

    def consume(self):
        self.ledger.give_back(self.ledger.held)

    def values(self):
        return [v for e in self.elements if type(e) is RowBatch for v in e.values]

    def timed(self):
        """(value, timestamp) of all rows."""
        found = []
        for element in self.elements:
            if type(element) is RowBatch:
                found += zip(element.values, element.timestamps or [None] * len(element))
        return found


class Transport:
    """Remembers frames, decoded; ``pending`` is what it says it still holds."""

    def __init__(self):
        self.frames = []
        self.payload_bytes = []
        self.pending = 0
        self.decoder = wire.ColumnDecoder()

    def send(self, peer_slot, kind, channel_id, buffers):
        payload = b"".join(bytes(buffer) for buffer in buffers)
        self.payload_bytes.append(len(payload))
        decode = {
            wire.ROWS: wire.decode_rows,
            wire.COLUMNS: self.decoder.decode,
            wire.EVENT: wire.decode_event,
            wire.CREDIT: wire.decode_credit,
        }[kind]
        self.frames.append(decode(payload))

    def pending_bytes(self, peer_slot):
        return self.pending

    def sizes(self):
        """Records of each batch sent, and the events as they are."""
        return [len(f) if type(f) in (RowBatch, ColumnBatch) else f for f in self.frames]


class Ends:
    """Makes channels."""

    def __init__(self):
        self.made = 0

    def local(self, credits=100, records=1024, sizer=None):
        ledger = CreditLedger(credits)
        receiver = Receiver(ledger)
        self.made += 1
        channel = LocalOutputChannel(
            self.made, self.made - 1, "here", ledger, sizer or self.sizer(records), receiver
        )
        return channel, receiver

    def remote(self, credits=100, records=1024, sizer=None, pending_max=1 << 20):
        transport = Transport()
        self.made += 1
        channel = RemoteOutputChannel(
            self.made,
            self.made - 1,
            "there",
            CreditLedger(credits),
            sizer or self.sizer(records),
            transport,
            pending_max,
        )
        return channel, transport

    @staticmethod
    def sizer(records=1024):
        sizer = FrameSizer(records)
        sizer.sample(1)  # the first record has been seen
        return sizer


@pytest.fixture
def ends():
    return Ends()
