"""One writer for each partitioner; all ways to emit choose the same channels."""

import random
from collections import Counter
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pytest

from flinkish.common.typeinfo import Types
from flinkish.datastream import partitioners
from flinkish.errors import InternalError, UnstableKeyError, UserError
from flinkish.graph.job_graph import OutputEdge
from flinkish.messages.elements import EndOfInput, Watermark, WatermarkStatus
from flinkish.operators.codegen import CodeWriter
from flinkish.operators.copying import freeze
from flinkish.state.key_groups import canonical_key, key_group, subtask_for_key_group
from flinkish.taskmanager.record_writer import create_record_writer

PARTITIONERS = {
    "forward": partitioners.ForwardPartitioner(),
    "global": partitioners.GlobalPartitioner(),
    "rebalance": partitioners.RebalancePartitioner(),
    "rescale": partitioners.RescalePartitioner(),
    "shuffle": partitioners.ShufflePartitioner(),
    "broadcast": partitioners.BroadcastPartitioner(),
    "custom": partitioners.CustomPartitioner(lambda key, count: key % count, itemgetter(1)),
    "hash": partitioners.KeyGroupPartitioner(itemgetter(0)),
    "hash by a lambda": partitioners.KeyGroupPartitioner(lambda value: (value[0], value[1] % 3)),
}


@pytest.fixture
def make(ends):
    def make(partitioner, channels=3, kind="local", credits=1000, seed=7, timeout=100):
        sizer = ends.sizer()
        pairs = [getattr(ends, kind)(credits=credits, sizer=sizer) for _ in range(channels)]
        edge = OutputEdge(0, 0, partitioner, 128)
        outputs = [pair[0] for pair in pairs]
        writer = create_record_writer(edge, outputs, sizer, random.Random(seed), freeze, timeout)
        return writer, [pair[1] for pair in pairs]

    return make


def loops(writer):
    """The generated loops: without and with timestamps."""
    code = CodeWriter("test", room=lambda: writer.room)
    with code.function("rows", "values"):
        with code.block("for v in values:"):
            writer.generate(code, "v", None)
    with code.function("timed_rows", "values, timestamps"):
        with code.block("for v, t in zip(values, timestamps):"):
            writer.generate(code, "v", "t")
    functions = code.build()
    return functions["rows"], functions["timed_rows"]


def emit_by(way, writer, values, timestamps):
    if way == "one":
        for i, value in enumerate(values):
            writer.emit(value, None if timestamps is None else timestamps[i])
    elif way == "batch":
        writer.emit_batch(values, timestamps)
    elif timestamps is None:
        loops(writer)[0](values)
    else:
        loops(writer)[1](values, timestamps)


@pytest.mark.parametrize("name", PARTITIONERS)
@pytest.mark.parametrize("way", ["batch", "generated"])
@pytest.mark.parametrize("timed", [False, True])
def test_every_way_to_emit_chooses_the_same_channels(make, name, way, timed):
    values = [(f"k{i % 11}", i) for i in range(100)]
    timestamps = [i if i % 7 else None for i in range(100)] if timed else None
    results = []
    for current in ("one", way):
        writer, receivers = make(PARTITIONERS[name])
        emit_by(current, writer, values[:33], timestamps and timestamps[:33])
        emit_by(current, writer, values[33:40], None)
        emit_by(current, writer, values[40:], timestamps and timestamps[40:])
        for channel in writer.channels:
            channel.check()
        writer.pump(flush=True)
        assert writer.is_empty and writer.records_out == 100
        results.append([receiver.timed() for receiver in receivers])
    assert results[0] == results[1]
    copies = 3 if name == "broadcast" else 1
    assert sum(map(len, results[0])) == 100 * copies
    flat = sorted(pair for pairs in results[0] for pair in pairs)
    expected = timestamps[:33] + [None] * 7 + timestamps[40:] if timed else [None] * 100
    assert [v for v, _ in flat] == sorted(v for v in values for _ in range(copies))
    assert dict(flat) == dict(zip(values, expected))


def test_rebalance_spreads_evenly_and_goes_on_where_it_stopped(make):
    writer, receivers = make(PARTITIONERS["rebalance"])
    for count in (1, 5, 2, 7, 3, 4, 1, 1):
        writer.emit_batch(list(range(count)), None)
    writer.pump(flush=True)
    assert [len(receiver.values()) for receiver in receivers] == [8, 8, 8]


def test_rebalance_starts_anywhere_and_rescale_at_the_first(make):
    first = {}
    for name in ("rebalance", "rescale"):
        starts = set()
        for seed in range(20):
            writer, receivers = make(PARTITIONERS[name], seed=seed)
            writer.emit("x", None)
            writer.pump(flush=True)
            starts.add([bool(receiver.values()) for receiver in receivers].index(True))
        first[name] = starts
    assert first == {"rebalance": {0, 1, 2}, "rescale": {0}}


def test_shuffle_reaches_all_and_repeats_with_its_seed(make):
    def run(seed):
        writer, receivers = make(PARTITIONERS["shuffle"], seed=seed)
        writer.emit_batch(list(range(300)), None)
        writer.pump(flush=True)
        return [receiver.values() for receiver in receivers]

    assert run(1) == run(1) != run(2)
    assert min(map(len, run(1))) > 60


def test_global_uses_only_the_first_channel_and_events_reach_all(make):
    writer, receivers = make(PARTITIONERS["global"])
    writer.emit("x", 1)
    writer.emit_watermark(5)
    writer.emit_watermark_status(True)
    writer.emit_end_of_input()
    assert [receiver.values() for receiver in receivers] == [["x"], [], []]
    for receiver in receivers:
        assert receiver.elements[-3:] == [Watermark(5), WatermarkStatus(True), EndOfInput()]


def test_a_broadcast_record_is_shared_by_no_two_receivers(ends):
    record = {"list": [1]}

    def run(kinds):
        sizer = ends.sizer()
        pairs = [getattr(ends, kind)(sizer=sizer) for kind in kinds]
        edge = OutputEdge(0, 0, PARTITIONERS["broadcast"], 128)
        outputs = [pair[0] for pair in pairs]
        writer = create_record_writer(edge, outputs, sizer, random.Random(0), freeze, 100)
        emitted = []
        writer.emit(record, None)
        writer.emit_batch([record], None)
        loops(writer)[0]([record])
        loops(writer)[1]([record], [1])
        for channel in outputs:
            assert [value == record for value in channel.values] == [True] * 4
            if channel.is_local:
                emitted += [id(value) for value in channel.values if value is not record]
        originals = sum(c.is_local and any(v is record for v in c.values) for c in outputs)
        assert len(set(emitted)) == len(emitted)
        return originals

    assert run(["local", "local", "local"]) == 1
    # What a peer is sent is pickled later, so no receiver in this slot may hold that object.
    assert run(["local", "remote", "local"]) == 0
    assert run(["remote", "remote"]) == 0


def test_records_go_to_the_owner_of_their_key_group(make):
    writer, receivers = make(PARTITIONERS["hash"])
    keys = ["a", 1, 1.0, True, None, float("nan"), b"b", ("t", 2), 2**80]
    for key in keys:
        writer.emit((key, 0), None)
        writer.emit_batch([(key, 1)], [5])
        loops(writer)[1]([(key, 2)], [5])
    writer.pump(flush=True)
    for index, receiver in enumerate(receivers):
        for key, _ in receiver.values():
            group = key_group(canonical_key(key), 128)
            assert subtask_for_key_group(group, 128, 3) == index
    assert sum(len(receiver.values()) for receiver in receivers) == 3 * len(keys)


@pytest.mark.parametrize("way", ["one", "batch", "generated"])
@pytest.mark.parametrize("timed", [False, True])
def test_an_unstable_key_is_refused_in_words(make, way, timed):
    writer, _ = make(PARTITIONERS["hash"])
    with pytest.raises(UnstableKeyError, match="list"):
        emit_by(way, writer, [([1, 2], 0)], [1] if timed else None)


def test_a_declared_key_type_converts_before_the_channel_is_chosen(make):
    declared = partitioners.KeyGroupPartitioner(
        itemgetter(0), key_type=Types.STRING(), key_field="k"
    )
    writer, receivers = make(declared)
    writer.emit_batch([(key, 0) for key in "abcdef"], None)
    writer.emit_columns(pa.record_batch({"k": list("abcdef")}), None)
    writer.pump(flush=True)
    rows = [sorted(key for key, _ in receiver.values()) for receiver in receivers]
    columns = [
        sorted(
            e.columns.column("k").to_pylist() for e in receiver.elements if hasattr(e, "columns")
        )
        for receiver in receivers
    ]
    assert [[*parts] for parts in rows] == [sum(parts, []) for parts in columns]


@pytest.mark.parametrize("bad", [3, -1, "1", None, 1.0])
def test_a_custom_partitioner_out_of_range_is_the_users_error(make, bad):
    writer, _ = make(partitioners.CustomPartitioner(lambda key, count: bad, itemgetter(0)))
    with pytest.raises(UserError, match="custom partitioner returned") as raised:
        writer.emit(("a", 1), None)
    assert "there are 3 channels" in str(raised.value)


@pytest.mark.parametrize(
    "name", [n for n in PARTITIONERS if n not in ("custom", "hash by a lambda")]
)
@pytest.mark.parametrize("timed", [False, True])
def test_columns_reach_the_same_channels_with_their_timestamps(make, name, timed):
    partitioner = PARTITIONERS[name]
    if name == "hash":
        partitioner = partitioners.KeyGroupPartitioner(itemgetter(0), key_field="k")
    writer, receivers = make(partitioner)
    count = 5000
    keys = [f"k{i % 101}" for i in range(count)]
    writer.emit_columns(
        pa.record_batch({"k": keys, "i": range(count)}), np.arange(count) if timed else None
    )
    writer.pump(flush=True)
    seen = Counter()
    for index, receiver in enumerate(receivers):
        for batch in receiver.elements:
            rows = batch.columns.to_pylist()
            assert [row["i"] for row in rows] == sorted(row["i"] for row in rows)
            if timed:
                assert batch.timestamps.tolist() == [row["i"] for row in rows]
            for row in rows:
                seen[row["i"]] += 1
                if name == "hash":
                    group = key_group(row["k"], 128)
                    assert subtask_for_key_group(group, 128, 3) == index
    assert set(seen.values()) == {3 if name == "broadcast" else 1} and len(seen) == count


def test_room_is_that_of_the_fullest_channel(make):
    writer, receivers = make(PARTITIONERS["custom"], credits=1)
    assert writer.room == 2048
    writer.emit_batch([("a", 1)] * 1500, None)
    assert writer.room == 548
    writer.pump(flush=False)  # one credit, so one frame of 1,024
    assert writer.room == 2048 - 476
    writer.emit_watermark(1)
    writer.emit_batch([("a", 1)] * 1500, None)
    assert 0.3 < writer.pool_usage < 0.5
    assert writer.room == 256  # a quarter of a frame, although only 72 fit
    writer.emit_batch([("a", 1)] * 72, None)
    assert writer.room == 0


def test_a_few_large_records_fill_a_channel_also_before_the_first_frame_has_been_sent(make):
    writer, (receiver,) = make(PARTITIONERS["forward"], channels=1, credits=1)
    writer.emit_batch(["x" * (1 << 20)] * 3, None)
    writer.pump(flush=False)
    assert len(receiver.values()) == 1 and writer.sizer.records == 1
    assert writer.room == 0


def test_a_busy_task_flushes_when_the_buffer_timeout_has_passed(make):
    for timeout, flushed_at in ((100, 200), (0, 150), (-1, None)):
        writer, receivers = make(PARTITIONERS["forward"], channels=1, timeout=timeout, credits=2)
        writer.pump_busy(100)
        writer.emit("sent, and not taken yet", None)
        writer.pump(flush=True)
        writer.emit("x", None)
        times = []
        for now_ms in (150, 199, 200, 1000):
            writer.pump_busy(now_ms)
            if "x" in receivers[0].values() and not times:
                times.append(now_ms)
        assert times == ([flushed_at] if flushed_at else []), timeout


def test_a_busy_task_does_not_let_a_receiver_wait_that_has_taken_all(make):
    writer, receivers = make(PARTITIONERS["forward"], channels=1, credits=2)
    writer.pump_busy(100)
    writer.emit("x", None)
    writer.pump_busy(101)
    assert receivers[0].values() == []  # not for each turn, a frame costs 50 us
    writer.pump_busy(102)
    assert receivers[0].values() == ["x"]


def test_an_unknown_partitioner_is_refused(make):
    with pytest.raises(InternalError, match="record writer"):
        make(partitioners.StreamPartitioner())
