"""A writer and its channels against a plain list, for any order of emits, pumps, events and
credits."""

import random
from collections import deque
from operator import itemgetter

from hypothesis import given
from hypothesis import strategies as st

from flinkish.datastream import partitioners
from flinkish.graph.job_graph import OutputEdge
from flinkish.messages.elements import EndOfInput, RowBatch, Watermark
from flinkish.operators.codegen import CodeWriter
from flinkish.operators.copying import freeze
from flinkish.taskmanager import wire
from flinkish.taskmanager.credit_ledger import CreditLedger
from flinkish.taskmanager.frame_sizer import FrameSizer
from flinkish.taskmanager.input_channel import InputChannel
from flinkish.taskmanager.input_gate import InputGate
from flinkish.taskmanager.output_channel import LocalOutputChannel, RemoteOutputChannel
from flinkish.taskmanager.record_writer import create_record_writer

PARTITIONERS = [
    partitioners.ForwardPartitioner(),
    partitioners.RebalancePartitioner(),
    partitioners.BroadcastPartitioner(),
    partitioners.KeyGroupPartitioner(itemgetter(0)),
    partitioners.CustomPartitioner(lambda key, count: key % count, itemgetter(1)),
]


class Wires:
    """Both directions of one channel; delivers when told."""

    def __init__(self):
        self.frames = deque()
        self.pending = 0

    def send(self, peer_slot, kind, channel_id, buffers):
        self.frames.append((kind, b"".join(bytes(buffer) for buffer in buffers)))

    def pending_bytes(self, peer_slot):
        return self.pending


class Pipe:
    """A writer with receivers in this slot and in others."""

    def __init__(self, partitioner, kinds, window, records, seed):
        sizer = FrameSizer(records)
        self.gates, self.wires, outputs = [], [], []
        for number, local in enumerate(kinds):
            gate, wires = InputGate(0), Wires()
            ledger = CreditLedger(window)
            inputs = InputChannel(number, 0, "peer", gate, 0, ledger, None if local else wires)
            gate.channels.append(inputs)
            gate.seal()
            if local:
                output = LocalOutputChannel(number, number, "here", ledger, sizer, inputs)
            else:
                output = RemoteOutputChannel(
                    number, number, "peer", CreditLedger(window), sizer, wires, 1000
                )
            self.gates.append(gate)
            self.wires.append(wires)
            outputs.append(output)
        edge = OutputEdge(0, 0, partitioner, 128)
        self.writer = create_record_writer(edge, outputs, sizer, random.Random(seed), freeze, 100)
        self.received = [[] for _ in kinds]
        code = CodeWriter("pipe", room=lambda: self.writer.room)
        with code.function("rows", "values"):
            with code.block("for v in values:"):
                self.writer.generate(code, "v", None)
        with code.function("timed_rows", "values, timestamps"):
            with code.block("for v, t in zip(values, timestamps):"):
                self.writer.generate(code, "v", "t")
        self.loops = code.build()

    def emit(self, way, values, timestamps):
        if way == "one":
            for i, value in enumerate(values):
                self.writer.emit(value, timestamps[i] if timestamps else None)
        elif way == "batch":
            self.writer.emit_batch(values, timestamps)
        elif timestamps is None:
            self.loops["rows"](values)
        else:
            self.loops["timed_rows"](values, timestamps)

    def deliver(self, number):
        """All that is on the wires of one channel, both ways."""
        gate, wires = self.gates[number], self.wires[number]
        frames, wires.frames = wires.frames, deque()
        for kind, payload in frames:
            if kind == wire.CREDIT:
                self.writer.channels[number].ledger.give_back(wire.decode_credit(payload))
            else:
                gate.channels[0].receive_frame(kind, payload)

    def take(self, number, count):
        for _ in range(count):
            element = self.gates[number].next_element()
            if element is None:
                return
            if type(element) is RowBatch:
                times = element.timestamps or [None] * len(element)
                assert len(times) == len(element.values)
                self.received[number] += zip(element.values, times)
            else:
                self.received[number].append(element)

    def check(self):
        for gate, output in zip(self.gates, self.writer.channels):
            output.check()
            gate.channels[0].check()


moves = st.lists(
    st.one_of(
        st.tuples(
            st.just("emit"),
            st.sampled_from(["one", "batch", "generated"]),
            st.integers(0, 30),
            st.sampled_from(["untimed", "timed", "mixed"]),
        ),
        st.tuples(st.just("pump"), st.booleans()),
        st.tuples(st.just("watermark")),
        st.tuples(st.just("deliver"), st.integers(0, 3)),
        st.tuples(st.just("take"), st.integers(0, 3), st.integers(1, 4)),
        st.tuples(st.just("socket"), st.booleans()),
    ),
    max_size=40,
)


@given(
    which=st.integers(0, len(PARTITIONERS) - 1),
    kinds=st.lists(st.booleans(), min_size=1, max_size=4),
    window=st.integers(1, 3),
    records=st.sampled_from([1, 2, 7, 100]),
    moves=moves,
)
def test_every_channel_gets_its_records_once_in_order_with_their_timestamps(
    which, kinds, window, records, moves
):
    partitioner = PARTITIONERS[which]
    count = len(kinds)
    pipe = Pipe(partitioner, kinds, window, records, seed=3)
    reference = Pipe(partitioner, [True] * count, 1_000_000, records, seed=3)
    number, watermark = 0, 0
    for move in moves:
        match move:
            case ("emit", way, size, timed):
                values = [(f"k{(number + i) % 5}", number + i) for i in range(size)]
                timestamps = {
                    "untimed": None,
                    "timed": [number + i for i in range(size)],
                    "mixed": [number + i if i % 2 else None for i in range(size)],
                }[timed]
                pipe.emit(way, values, timestamps)
                reference.emit("one", values, timestamps)
                number += size
            case ("pump", flush):
                pipe.writer.pump(flush)
            case ("watermark",):
                watermark += 1
                pipe.writer.emit_watermark(watermark)
            case ("deliver", channel):
                pipe.deliver(channel % count)
            case ("take", channel, elements):
                pipe.take(channel % count, elements)
            case ("socket", full):
                for wires in pipe.wires:
                    wires.pending = 5000 if full else 0
        pipe.check()
    for wires in pipe.wires:
        wires.pending = 0
    pipe.writer.emit_end_of_input()
    while not (pipe.writer.is_empty and all(gate.ended for gate in pipe.gates)):
        pipe.writer.pump(flush=True)
        for channel in range(count):
            pipe.deliver(channel)
            pipe.take(channel, 100)
        pipe.check()
    reference.writer.pump(flush=True)
    for channel in range(count):
        reference.take(channel, 1_000_000)
        got = [pair for pair in pipe.received[channel] if isinstance(pair, tuple)]
        assert got == reference.received[channel]
        events = [event for event in pipe.received[channel] if not isinstance(event, tuple)]
        assert events[-1] == EndOfInput()
        times = [event.timestamp for event in events if isinstance(event, Watermark)]
        assert times == sorted(set(times))
