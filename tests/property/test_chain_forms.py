"""Any chain gives the same output in each form, at each batch size, and with however little room.

Chains are random trees of operators whose functions change what they have been given, what they have
emitted and what they keep; records leave a reference run as soon as they are emitted, one by one, and
the others as late as possible.  A record is ``[key, items]``, both lists of it can change.
"""

import copy

from hypothesis import given
from hypothesis import strategies as st

from flinkish.common.watermark_strategy import WatermarkGenerator, WatermarkStrategy
from flinkish.connectors.spi import Sink, SinkWriter
from flinkish.datastream import functions as f
from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.state import MapStateDescriptor, ValueStateDescriptor
from flinkish.datastream.transformations import (
    FilterOperator,
    FlatMapOperator,
    KeyedProcessOperator,
    MapOperator,
    PartitionWindowOperator,
    ProcessOperator,
    ReduceOperator,
    SinkOperator,
    TimestampsAndWatermarksOperator,
    WindowOperator,
)
from flinkish.datastream.window import (
    CountTrigger,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from flinkish.messages.elements import MAX_WATERMARK_MS, RowBatch
from tests.unit.operators.chains import Chain, ListWriter

SIDE, OTHER = OutputTag("side"), OutputTag("other")


# ---- functions that change things ---------------------------------------------------------------


class SameList(f.MapFunction):
    """Returns one and the same list each time."""

    def open(self, context):
        self.kept = [0, []]

    def map(self, value):
        self.kept[0] = value[0]
        self.kept[1].extend(value[1][:2])
        del self.kept[1][:-4]
        return self.kept


class ChangesPrevious(f.FilterFunction):
    """Adds to the record that it let through before."""

    def open(self, context):
        self.previous = None

    def filter(self, value):
        if self.previous is not None:
            self.previous[1].append("spoilt")
        self.previous = value
        return value[0] != 2


class Repeats(f.FlatMapFunction):
    """Yields the record as often as its key says, and adds to it between."""

    def flat_map(self, value):
        for n in range(value[0]):
            value[1].append(n)
            yield value


class SameFlatList(f.MapFunction):
    """Returns one and the same list of atoms each time."""

    def open(self, context):
        self.kept = [0, 0]

    def map(self, value):
        self.kept[0] = value[0]
        self.kept[1] += len(value[1])
        return self.kept


class Sides(f.ProcessFunction):
    def process_element(self, value, ctx):
        if value[0] % 2:
            yield SIDE, value
        value[1].append(ctx.timestamp())
        yield value
        yield OTHER, value
        value[1].append("after")


class EmitsState(f.KeyedProcessFunction):
    """Emits the very list that it keeps, from records and timers; a timer sets itself again once."""

    def open(self, context):
        self.kept = context.get_state(ValueStateDescriptor("kept"))
        self.marks = context.get_map_state(MapStateDescriptor("marks"))

    def process_element(self, value, ctx):
        kept = self.kept.value() or []
        kept.extend(value[1][:1])
        del kept[:-3]
        self.kept.update(kept)
        time = ctx.timestamp()
        if time is not None:
            ctx.timer_service().register_event_time_timer(time // 5 * 5 + 4)
            if value[0] == 1:
                ctx.timer_service().delete_event_time_timer(time - 1)
        ctx.timer_service().register_processing_time_timer(10 + value[0])
        return [[value[0], kept], (SIDE, [value[0], kept])]

    def on_timer(self, timestamp, ctx):
        kept = self.kept.value()
        kept.append(timestamp)
        yield [ctx.get_current_key(), kept]
        if not self.marks.contains(timestamp):
            self.marks.put(timestamp, True)
            ctx.timer_service().register_event_time_timer(timestamp)
        kept.append("after")


def add(first, second):
    first[1].extend(second[1][:2])
    del first[1][:-5]
    return first


class AfterSomeRecords(WatermarkGenerator):
    def __init__(self):
        self.n = 0

    def on_event(self, event, event_timestamp, output):
        self.n += 1
        if self.n % 3 == 0:
            output.emit_watermark(self.n * 2)

    def on_periodic_emit(self, output):
        output.emit_watermark(self.n)


def show(key, window, values):
    for value in values:
        yield value
    yield SIDE, [key, [window.start]]


class Keeps(Sink):
    """Whether the writer takes batches of its own is what matters here."""

    def __init__(self, batches, log):
        self.batches, self.log = batches, log

    def create_writer(self, context):
        return (BatchKeeper if self.batches else Keeper)(self.log)


class Keeper(SinkWriter):
    def __init__(self, log):
        self.log = log

    def write(self, value, timestamp_ms, watermark_ms):
        self.log.append((value, timestamp_ms, watermark_ms))

    def write_watermark(self, watermark_ms):
        self.log.append(watermark_ms)


class BatchKeeper(Keeper):
    def write_batch(self, values, timestamps_ms, watermark_ms):
        times = timestamps_ms or [None] * len(values)
        self.log += [(value, time, watermark_ms) for value, time in zip(values, times)]


def key_of(value):
    return value[0]


def window(kind, function, lateness, window_function=None, assigner=None, trigger=None):
    assigner = TumblingEventTimeWindows.of(5) if assigner is None else assigner
    return WindowOperator(assigner, kind, function, window_function, trigger, lateness, OTHER)


#: name -> (makes a fresh operator, sides it may have)
KINDS = {
    "map": (lambda log: MapOperator(lambda v: [v[0], v[1] + ["m"]]), ()),
    "map in place": (lambda log: MapOperator(lambda v: v[1].append("p") or v), ()),
    "same list": (lambda log: MapOperator(SameList()), ()),
    "same flat list": (lambda log: MapOperator(SameFlatList()), ()),
    "filter": (lambda log: FilterOperator(ChangesPrevious()), ()),
    "flat_map": (lambda log: FlatMapOperator(Repeats()), ()),
    "nothing": (lambda log: FlatMapOperator(lambda v: None if v[0] else [v]), ()),
    "process": (lambda log: ProcessOperator(Sides()), (SIDE, OTHER)),
    "keyed process": (lambda log: (KeyedProcessOperator(EmitsState()), key_of), (SIDE,)),
    "reduce": (lambda log: (ReduceOperator(add), key_of), ()),
    "watermarks": (
        lambda log: TimestampsAndWatermarksOperator(WatermarkStrategy.for_generator(AfterSomeRecords)), ()
    ),
    "times": (
        lambda log: TimestampsAndWatermarksOperator(
            WatermarkStrategy.for_bounded_out_of_orderness(3).with_timestamp_assigner(lambda v: v[0] * 4)
        ),
        (),
    ),
    "window": (lambda log: (window("reduce", add, 0), key_of), (OTHER,)),
    "late window": (lambda log: (window("reduce", add, 6), key_of), (OTHER,)),
    "window function": (lambda log: (window("apply", None, 4, show), key_of), (SIDE, OTHER)),
    "sliding window": (
        lambda log: (window("reduce", add, 6, assigner=SlidingEventTimeWindows.of(10, 4)), key_of), (OTHER,)
    ),
    "session": (
        lambda log: (window("apply", None, 6, show, EventTimeSessionWindows.with_gap(3)), key_of), (SIDE, OTHER)
    ),
    "counted window": (
        lambda log: (window("reduce", add, 0, None, SlidingEventTimeWindows.of(10, 5), CountTrigger.of(2)), key_of),
        (OTHER,),
    ),
    "partition": (lambda log: PartitionWindowOperator("map", lambda values: values), ()),
    "reduced partition": (lambda log: PartitionWindowOperator("reduce", add), ()),
    "sink": (lambda log: SinkOperator(Keeps(False, log)), ()),
    "batch sink": (lambda log: SinkOperator(Keeps(True, log)), ()),
}  # fmt: skip
#: Nothing is chained behind them: a sink has no output, a flat list is no record of the others, and what a partition
#: gives has no time.
LAST = {"sink", "batch sink", "same flat list", "partition", "reduced partition"}
NEEDS_TIMES = {"window", "late window", "window function", "sliding window", "session", "counted window"}


@st.composite
def trees(draw):
    """(kinds, edges, outputs): a tree of up to six operators; some outputs have several consumers."""
    count = draw(st.integers(1, 6))
    kinds = [draw(st.sampled_from(sorted(set(KINDS) - LAST)))]
    edges, outputs = [], []
    for child in range(1, count):
        parents = [i for i, kind in enumerate(kinds) if kind not in LAST]
        parent = draw(st.sampled_from(parents[-3:]))
        tag = draw(st.sampled_from((None, *KINDS[kinds[parent]][1])))
        kinds.append(draw(st.sampled_from(sorted(KINDS))))
        edges.append((parent, child, tag))
    for i, kind in enumerate(kinds):
        if "sink" in kind:
            continue
        has_children = any(parent == i for parent, _, _ in edges)
        for tag in (None, *KINDS[kind][1]):
            if draw(st.booleans()) or (tag is None and not has_children):
                outputs.append((i, tag))
    return kinds, edges, outputs


@st.composite
def inputs(draw, timed):
    """Batches of (key, item) with times, watermarks that only go up, and the clock.

    ``timed``: a window needs them, so each record has a time, and the clock stands still, because what
    its timers emit has none."""
    steps, mark, clock = [], 0, 0
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["rows", "rows", "rows", "watermark", *([] if timed else ["clock"])]))
        if kind == "rows":
            records = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=8))
            times = draw(st.lists(st.integers(0, 30), min_size=len(records), max_size=len(records)))
            if not timed and draw(st.booleans()):
                times = None
            steps.append(("rows", records, times))
        elif kind == "watermark":
            mark += draw(st.integers(1, 12))
            steps.append(("watermark", mark))
        else:
            clock += draw(st.sampled_from([5, 200]))
            steps.append(("clock", clock))
    return [*steps, ("watermark", MAX_WATERMARK_MS)]


class SendingWriter(ListWriter):
    """What is sealed leaves as a copy, as it does through a socket."""

    def seal(self):
        self.open = copy.deepcopy(self.open)
        super().seal()


def run(tree, steps, fused, size, capacity, send_each):
    kinds, edges, outputs = tree
    logs = [[] for _ in kinds]
    operators = [KINDS[kind][0](log) for kind, log in zip(kinds, logs)]
    chain = Chain(*operators, edges=edges, outputs=outputs, fused=fused)
    for writer in chain.writers:
        writer.capacity = capacity
        writer.__class__ = SendingWriter

    def send():
        for writer in chain.writers:
            writer.seal()
        for log in logs:
            log[:] = [entry if type(entry) is int else _Sent.of(entry) for entry in log]

    for step in steps:
        if step[0] == "rows":
            _, records, times = step
            values = [[key, [item]] for key, item in records]
            for start in range(0, len(values), size):
                batch = RowBatch(
                    values[start : start + size], None if times is None else times[start : start + size]
                )
                chain.run(chain.chain.process_batch(0, batch, 0, len(batch)))
                if send_each:
                    send()
        elif step[0] == "watermark":
            chain.watermark(step[1])
        else:
            chain.time(step[1])
        if send_each:
            send()
    send()
    result = [writer.elements for writer in chain.writers] + logs
    figures = (chain.chain.num_keyed_state_entries(), chain.chain.num_event_time_timers())
    chain.close()
    return copy.deepcopy(result), figures, chain.chain.metrics()


class _Sent(tuple):
    """An entry of a sink's log that has been copied already."""

    @staticmethod
    def of(entry):
        return entry if type(entry) is _Sent else _Sent(copy.deepcopy(entry))


@given(st.data())
def test_fused_and_interpreted_agree_at_any_batch_size_and_room(data):
    tree = data.draw(trees())
    steps = data.draw(inputs(timed=bool(NEEDS_TIMES & set(tree[0]))))
    expected = run(tree, steps, fused=False, size=1, capacity=1_000_000, send_each=True)
    fused_one_by_one = run(tree, steps, fused=True, size=1, capacity=1_000_000, send_each=True)
    assert fused_one_by_one == expected
    for fused in (True, False):
        size = data.draw(st.integers(1, 9))
        capacity = data.draw(st.integers(1, 7))
        assert run(tree, steps, fused, size, 1_000_000, send_each=False) == expected
        assert run(tree, steps, fused, size, capacity, send_each=False) == expected


@given(st.data())
def test_an_expanding_chain_overdraws_its_outputs_by_one_record_at_most(data):
    names = st.sampled_from(["map", "flat_map", "filter", "process"])
    kinds = data.draw(st.lists(names, min_size=1, max_size=4))
    last = len(kinds) - 1
    edges = [(i, i + 1, None) for i in range(last)]
    outputs = [(i, None) for i in range(last + 1) if data.draw(st.booleans()) or i == last]
    operators = [KINDS[kind][0](None) for kind in kinds]
    chain = Chain(*operators, edges=edges, outputs=outputs, fused=data.draw(st.booleans()))
    if not chain.chain.expanding:
        return
    for writer in chain.writers:
        writer.capacity = data.draw(st.integers(1, 4))
    records = data.draw(st.lists(st.integers(0, 3), max_size=12))
    chain.rows([[key, []] for key in records], list(range(len(records))))
    for writer in chain.writers:
        writer.seal()
        assert writer.overdraft <= 0
