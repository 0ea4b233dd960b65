"""Snapshots of a piece of pipeline: cut anywhere, restored at any parallelism, the output is the same."""

from dataclasses import dataclass, field
from typing import Any, Callable

import pytest

from flinkish import (
    AggregateFunction,
    AggregatingStateDescriptor,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ProcessWindowFunction,
    ReducingStateDescriptor,
    Time,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
)
from flinkish.datastream.functions import CheckpointedFunction, CheckpointListener, SinkFunction
from flinkish.datastream.output_tag import OutputTag
from flinkish.errors import InvalidJobError, StateMigrationError, UserFunctionError
from flinkish.messages.checkpoints import DistributionMode, KeyedStateHandle
from flinkish.shell import snapshot_executor
from flinkish.state.keyed_snapshot import KeyedSnapshotReader
from flinkish.testing import StreamRecord, StreamTestHarness, Watermark
from tests.rocksdb_states import FAST_DISK, tiny_caches

LATE = OutputTag("late", Types.PICKLED_BYTE_ARRAY())


def first(record):
    return record[0]


class AllStates(KeyedProcessFunction):
    """Every kind of keyed state, and a timer in each time domain for each record."""

    def open(self, runtime_context):
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))
        self.counts = runtime_context.get_map_state(MapStateDescriptor("counts"))
        self.sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b))
        self.mean = runtime_context.get_aggregating_state(AggregatingStateDescriptor("mean", Mean()))

    def process_element(self, value, ctx):
        number = value[1]
        self.seen.add(number)
        self.counts.put(number % 2, (self.counts.get(number % 2) or 0) + 1)
        self.sum.add(number)
        self.mean.add(number)
        timers = ctx.timer_service()
        timers.register_event_time_timer(ctx.timestamp() + 7)
        timers.register_processing_time_timer(timers.current_processing_time() + 3)
        yield value[0], self.last.value(), self.seen.get(), dict(self.counts.items()), self.sum.get(), self.mean.get()
        self.last.update(value)

    def on_timer(self, timestamp, ctx):
        yield "timer", ctx.time_domain().name, timestamp, ctx.get_current_key(), self.sum.get()


class Mean(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a, acc_b):
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Joined(KeyedCoProcessFunction):
    def open(self, runtime_context):
        self.left = runtime_context.get_list_state(ListStateDescriptor("left"))

    def process_element1(self, value, ctx):
        self.left.add(value[1])
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5)

    def process_element2(self, value, ctx):
        yield value[0], value[1], self.left.get()

    def on_timer(self, timestamp, ctx):
        yield "forget", ctx.get_current_key(), self.left.get()
        self.left.clear()


class CountedWindows(ProcessWindowFunction):
    """State of the window and of the key beside what the window holds."""

    def process(self, key, context, elements):
        fired = context.window_state().get_state(ValueStateDescriptor("fired"))
        total = context.global_state().get_state(ValueStateDescriptor("total"))
        fired.update((fired.value() or 0) + 1)
        total.update((total.value() or 0) + len(list(elements)))
        yield key, context.window().start, [value for _, value in elements], fired.value(), total.value()

    def clear(self, context):
        context.window_state().get_state(ValueStateDescriptor("fired")).clear()


class Numbering(MapFunction, CheckpointedFunction):
    """Numbers the records of its subtask."""

    def initialize_state(self, context):
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("count"))
        self.count = sum(self.state.get())

    def snapshot_state(self, context):
        self.state.update([self.count])

    def map(self, value):
        self.count += 1
        return value, self.count


def windows(stream):
    return stream.key_by(first).window(TumblingEventTimeWindows.of(Time.milliseconds(10)))


@dataclass(frozen=True)
class Scenario:
    build: Callable[..., Any]
    inputs: int = 1
    keyed: bool = True  # so it may be restored with another parallelism


SCENARIOS = {
    "reduce": Scenario(lambda s: s.key_by(first).reduce(lambda a, b: (a[0], a[1] + b[1]))),
    "all states and timers": Scenario(lambda s: s.key_by(first).process(AllStates())),
    "window reduce": Scenario(lambda s: windows(s).reduce(lambda a, b: (a[0], a[1] + b[1]))),
    "window aggregate": Scenario(lambda s: windows(s.map(lambda r: r)).aggregate(MeanOfRecords())),
    "window with lateness": Scenario(
        lambda s: windows(s).allowed_lateness(12).side_output_late_data(LATE).process(CountedWindows())
    ),
    "co-process": Scenario(
        lambda a, b: a.connect(b).key_by(first, first).process(Joined()), inputs=2
    ),
    "interval join": Scenario(
        lambda a, b: a.key_by(first).interval_join(b.key_by(first)).between(-12, 8).side_output_left_late_data(LATE)
        .process(lambda left, right, ctx: [(left, right, ctx.get_timestamp())]),
        inputs=2,
    ),
    "two stateful operators": Scenario(
        lambda s: s.key_by(first)
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
        .key_by(lambda r: r[1] % 3)
        .process(AllStates())
    ),
    "operator state": Scenario(lambda s: s.map(Numbering()), keyed=False),
}


class MeanOfRecords(Mean):
    def add(self, value, accumulator):
        return super().add(value[1], accumulator)


def steps(inputs: int) -> list[Callable[[StreamTestHarness], None]]:
    """What the test feeds: each step is one call."""
    script: list[tuple] = []
    for round_ in range(4):
        for index, key in enumerate("abcab"):
            time = 10 * round_ + 2 * index
            script.append(("record", (key, time), time, index % inputs))
        script.append(("clock", 2 * round_ + 2))
        script += [("watermark", 10 * round_ + 6, index) for index in range(inputs)]
        script.append(("record", ("late", round_), max(0, 10 * round_ - 9), 0))
    script += [("watermark", 100, index) for index in range(inputs)]
    made: list[Callable[[StreamTestHarness], None]] = []
    for kind, *rest in script:
        if kind == "record":
            made.append(lambda harness, rest=rest: harness.process_element(rest[0], rest[1], rest[2]))
        elif kind == "clock":
            made.append(lambda harness, rest=rest: harness.set_processing_time(rest[0]))
        else:
            made.append(lambda harness, rest=rest: harness.process_watermark(rest[0], rest[1]))
    return made


def observed(harness: StreamTestHarness) -> tuple[list, list]:
    """Records, and side output."""
    records = [record for record in harness.output if isinstance(record, StreamRecord)]
    return records, list(harness.side_output(LATE))


def in_any_order(output: tuple[list, list]) -> tuple[list, list]:
    return sorted(output[0], key=repr), sorted(output[1], key=repr)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "interpreted"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_cut_by_a_snapshot_and_restore_at_every_step_the_output_is_the_same(name, fused):
    scenario = SCENARIOS[name]
    options = {"flinkish.fused-chains": fused}
    script = steps(scenario.inputs)
    with StreamTestHarness(scenario.build, inputs=scenario.inputs, configuration=options) as harness:
        for step in script:
            step(harness)
        expected = observed(harness)
    assert expected[0]
    for cut in range(0, len(script) + 1, 1 if fused else 5):
        with StreamTestHarness(scenario.build, inputs=scenario.inputs, configuration=options) as harness:
            for step in script[:cut]:
                step(harness)
            before, snapshot = observed(harness), harness.snapshot()
        with StreamTestHarness.restore(
            scenario.build, snapshot, inputs=scenario.inputs, configuration=options
        ) as harness:
            for step in script[cut:]:
                step(harness)
            after = observed(harness)
        found = before[0] + after[0], before[1] + after[1]
        # Timers of one time fire by key group after a restore, so only their order may differ.
        assert in_any_order(found) == in_any_order(expected), f"cut before step {cut}"


KEYED = [name for name, scenario in SCENARIOS.items() if scenario.keyed]


@pytest.mark.parametrize("name", KEYED)
def test_cut_and_restored_with_another_parallelism_the_output_is_the_same(name):
    def cut(harness, steps):
        for step in steps:
            step(harness)
        return harness.snapshot()

    in_parts(SCENARIOS[name], cut, {})


@pytest.mark.parametrize(
    "name, backend",
    [
        *((name, "hashmap") for name in KEYED), ("all states and timers", "rocksdb"), ("window with lateness", "rocksdb"),
        ("interval join", "rocksdb"),
    ],
)
def test_cut_by_checkpoints_that_refer_to_earlier_ones_the_output_is_the_same(name, backend, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot_executor, "INLINE_BYTES_MAX", 100)
    files = []

    def cut(harness, steps):
        for number, step in enumerate(steps):
            step(harness)
            if number % 4 == 3 or number == len(steps) - 1:
                taken = harness.checkpoint()
        handles = [h for o in taken.operators.values() for s in o.subtasks.values() for h in s.keyed]
        files.extend(len(getattr(handle, "shared", ())) for handle in handles)
        return taken

    options = {"execution.checkpointing.dir": str(tmp_path), "state.changelog.enabled": "true"}
    if FAST_DISK is not None:
        options["state.backend.rocksdb.localdir"] = FAST_DISK
    with tiny_caches():
        in_parts(SCENARIOS[name], cut, options, backend)
    assert backend == "rocksdb" or max(files) > 0


def in_parts(scenario: Scenario, cut: Callable[..., Any], options: dict, backend: str = "hashmap") -> None:
    """Compare a run of one piece with one in four, each restored from what ``cut(harness, steps)`` gave of the one before."""
    script = steps(scenario.inputs)
    with StreamTestHarness(scenario.build, parallelism=2, inputs=scenario.inputs) as harness:
        for step in script:
            step(harness)
        expected = observed(harness)
    third = len(script) // 4
    parts = [script[:third], script[third : 2 * third], script[2 * third : 3 * third], script[3 * third :]]
    found: tuple[list, list] = ([], [])
    snapshot = None
    for part, parallelism in zip(parts, (2, 3, 1, 2)):
        with StreamTestHarness(
            scenario.build, backend, parallelism, inputs=scenario.inputs, snapshot=snapshot, configuration=options
        ) as harness:
            snapshot = cut(harness, part)
            output = observed(harness)
        found[0].extend(output[0])
        found[1].extend(output[1])
    assert in_any_order(found) == in_any_order(expected)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_ints_beyond_what_most_floats_hold_keep_their_state_over_a_rescale(backend):
    keys = [sign * (1 << bits) for bits in range(60, 300, 7) for sign in (1, -1)] + [2.0**200 + 2.0**150, 3 * 2**150]

    def build(stream):
        return stream.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1])).uid("sum")

    with StreamTestHarness(build, backend, 2) as harness:
        harness.process_elements([((key, 1), None) for key in keys])
        snapshot = harness.snapshot()
    with StreamTestHarness.restore(build, snapshot, 3, backend) as harness:
        harness.process_elements([((key, 1), None) for key in keys])
        assert sorted(record.value[1] for record in harness.output) == [2] * len(keys)


def test_the_harness_goes_on_after_a_snapshot_and_what_comes_then_is_not_in_it():
    with StreamTestHarness(SCENARIOS["reduce"].build) as harness:
        harness.process_element(("a", 1))
        snapshot = harness.snapshot()
        harness.process_element(("a", 10))
        assert harness.output[-1] == StreamRecord(("a", 11))
        later = harness.snapshot()
    assert later.checkpoint_id > snapshot.checkpoint_id
    for taken, expected in ((snapshot, 101), (later, 111)):
        with StreamTestHarness.restore(SCENARIOS["reduce"].build, taken) as harness:
            harness.process_element(("a", 100))
            assert harness.output == [StreamRecord(("a", expected))]


def test_a_snapshot_is_made_of_canonical_files_by_key_group():
    with StreamTestHarness(SCENARIOS["all states and timers"].build, parallelism=2) as harness:
        for number, key in enumerate("abcdefgh"):
            harness.process_element((key, number), number)
        snapshot = harness.snapshot()
    handles = [h for o in snapshot.operators.values() for s in o.subtasks.values() for h in s.keyed]
    assert len(handles) == 2 and all(isinstance(handle, KeyedStateHandle) for handle in handles)
    keys: list[str] = []
    for handle in handles:
        reader = KeyedSnapshotReader(handle.content.data)
        assert {"last", "seen", "counts", "sum", "mean"} < set(reader.states)
        for block in reader.read("last"):
            assert all(int(group) in handle.key_groups for group in block.groups)
            keys += block.keys
    assert sorted(keys) == list("abcdefgh")


class Lists(MapFunction, CheckpointedFunction):
    """Says what of each operator state its subtask has after a restore."""

    def initialize_state(self, context):
        store = context.get_operator_state_store()
        self.split = store.get_list_state(ListStateDescriptor("split"))
        self.union = store.get_union_list_state(ListStateDescriptor("union"))
        self.broadcast = store.get_broadcast_state(MapStateDescriptor("broadcast"))
        self.restored = context.is_restored(), context.get_restored_checkpoint_id()

    def open(self, runtime_context):
        self.index = runtime_context.get_index_of_this_subtask()

    def snapshot_state(self, context):
        if not self.restored[0]:
            self.split.update([10 * self.index + number for number in range(5)])
            self.union.update([f"of {self.index}"])
            self.broadcast.put("r", 1)

    def map(self, value):
        has = sorted(self.split.get()), sorted(self.union.get()), dict(self.broadcast.items())
        return self.index, has, self.restored


def lists_after(snapshot, parallelism):
    with StreamTestHarness.restore(
        lambda s: s.rebalance().map(Lists()), snapshot, parallelism=parallelism
    ) as harness:
        for number in range(parallelism):
            harness.process_element(number)
        return {record.value[0]: record.value[1:] for record in harness.output}, harness.snapshot()


def test_list_union_and_broadcast_state_are_dealt_out():
    """Case B23: a list is a partition of its entries, unchanged parallelism keeps the assignment, and each
    subtask has exactly the broadcast map."""
    with StreamTestHarness(lambda s: s.rebalance().map(Lists()), parallelism=2) as harness:
        for number in range(2):
            harness.process_element(number)
        assert {record.value[2] for record in harness.output} == {(False, None)}
        snapshot = harness.snapshot()
    own = {0: list(range(5)), 1: list(range(10, 15))}
    found, snapshot = lists_after(snapshot, 2)
    assert {index: has[0][0] for index, has in found.items()} == own
    for parallelism in (3, 1, 2):
        found, snapshot = lists_after(snapshot, parallelism)
        assert len(found) == parallelism
        entries = [entry for (split, _, _), _ in found.values() for entry in split]
        assert sorted(entries) == own[0] + own[1]
        for (_, _, broadcast), restored in found.values():
            assert broadcast == {"r": 1}
            assert restored[0] and restored[1] is not None
        assert {"of 0", "of 1"} == set().union(*(union for (_, union, _), _ in found.values()))


def test_operator_state_says_how_it_is_dealt_out():
    with StreamTestHarness(lambda s: s.map(Lists())) as harness:
        snapshot = harness.snapshot()
    (states,) = [
        state.operator.states
        for operator in snapshot.operators.values()
        for state in operator.subtasks.values()
        if state.operator is not None and "split" in state.operator.states
    ]
    assert {name: mode for name, (mode, _) in states.items()} == {
        "split": DistributionMode.SPLIT,
        "union": DistributionMode.UNION,
        "broadcast": DistributionMode.BROADCAST,
    }


def test_state_that_nobody_asks_for_after_a_restore_is_in_the_next_snapshot_again():
    class Forgetful(MapFunction, CheckpointedFunction):
        def initialize_state(self, context): ...

        def snapshot_state(self, context): ...

        def map(self, value):
            return value

    def build(function):
        return lambda s: s.map(function).uid("function")

    with StreamTestHarness(build(Numbering())) as harness:
        harness.process_element("x")
        snapshot = harness.snapshot()
    with StreamTestHarness.restore(build(Forgetful()), snapshot) as harness:
        snapshot = harness.snapshot()
    with StreamTestHarness.restore(build(Numbering()), snapshot) as harness:
        harness.process_element("y")
        assert harness.output == [StreamRecord(("y", 2))]


@dataclass
class Remark:
    text: str


class Remembering(MapFunction, CheckpointedFunction):
    """Says what it has in a list, union list and broadcast state, and puts the record into each."""

    def __init__(self, type_info: Any = None):
        self.type_info = type_info

    def initialize_state(self, context):
        store = context.get_operator_state_store()
        self.split = store.get_list_state(ListStateDescriptor("split", self.type_info))
        self.union = store.get_union_list_state(ListStateDescriptor("union", self.type_info))
        self.broadcast = store.get_broadcast_state(MapStateDescriptor("broadcast", None, self.type_info))

    def snapshot_state(self, context): ...

    def map(self, value):
        found = self.split.get(), self.union.get(), list(self.broadcast.values())
        self.split.add(value)
        self.union.add(value)
        self.broadcast.put(0, value)
        return found


def test_operator_state_goes_on_when_a_class_has_got_a_field(monkeypatch):
    build = lambda s: s.map(Remembering()).uid("remembering")  # noqa: E731
    with StreamTestHarness(build) as harness:
        harness.process_element(Remark("a"))
        snapshot = harness.snapshot()

    @dataclass
    class Changed:
        text: str
        tags: list = field(default_factory=lambda: ["new"])

    monkeypatch.setattr(f"{__name__}.Remark", Changed)
    with StreamTestHarness.restore(build, snapshot) as harness:
        harness.process_element(5)
        assert harness.output == [StreamRecord(([Changed("a", ["new"])],) * 3)]


def test_operator_state_of_another_declared_type_is_refused():
    with StreamTestHarness(lambda s: s.map(Remembering(Types.LONG())).uid("remembering")) as harness:
        harness.process_element(5)
        snapshot = harness.snapshot()
    with pytest.raises(StateMigrationError, match='state "split": its declared type string does not fit'):
        StreamTestHarness.restore(lambda s: s.map(Remembering(Types.STRING())).uid("remembering"), snapshot)


def test_another_max_parallelism_is_refused_with_both_numbers():
    def build(s):
        return s.key_by(first).reduce(lambda a, b: (a[0], a[1] + b[1])).set_max_parallelism(64)

    with StreamTestHarness(SCENARIOS["reduce"].build) as harness:
        harness.process_element(("a", 1))
        snapshot = harness.snapshot()
    with pytest.raises(StateMigrationError) as caught:
        StreamTestHarness.restore(build, snapshot)
    assert "128" in str(caught.value) and "64" in str(caught.value)


def test_state_of_an_operator_that_is_gone_is_refused_and_dropped_when_that_is_allowed():
    with StreamTestHarness(lambda s: s.key_by(first).process(AllStates()).uid("old")) as harness:
        harness.process_element(("a", 1), 1)
        snapshot = harness.snapshot()

    def build(s):
        return s.key_by(first).process(AllStates()).uid("new")

    with pytest.raises(StateMigrationError, match="would be lost"):
        StreamTestHarness.restore(build, snapshot)
    with StreamTestHarness.restore(build, snapshot, allow_non_restored_state=True) as harness:
        assert harness.num_keyed_state_entries() == 0


def test_what_user_code_raises_at_a_snapshot_fails_the_task_with_its_name():
    class Broken(MapFunction, CheckpointedFunction):
        def initialize_state(self, context): ...

        def snapshot_state(self, context):
            raise OSError("no connection")

        def map(self, value):
            return value

    with StreamTestHarness(lambda s: s.map(Broken()).name("broken one")) as harness:
        with pytest.raises(UserFunctionError, match="broken one") as caught:
            harness.snapshot()
    assert "no connection" in str(caught.value)


def test_a_state_is_either_split_or_united():
    class Twice(MapFunction, CheckpointedFunction):
        def initialize_state(self, context):
            store = context.get_operator_state_store()
            store.get_list_state(ListStateDescriptor("s"))
            store.get_union_list_state(ListStateDescriptor("s"))

        def snapshot_state(self, context): ...

        def map(self, value):
            return value

    with pytest.raises(InvalidJobError, match="described twice"):
        StreamTestHarness(lambda s: s.map(Twice()))


def test_keyed_state_is_there_when_state_is_initialised():
    class Keyed(MapFunction, CheckpointedFunction):
        def initialize_state(self, context):
            self.last = context.get_keyed_state_store().get_state(ValueStateDescriptor("last"))

        def open(self, runtime_context):
            assert runtime_context.get_state(ValueStateDescriptor("last")) is self.last

        def snapshot_state(self, context):
            assert context.get_checkpoint_id() == 1 and context.get_checkpoint_timestamp() == 0

        def map(self, value):
            before = self.last.value()
            self.last.update(value)
            return before

    with StreamTestHarness(lambda s: s.key_by(first).map(Keyed())) as harness:
        harness.process_element(("a", 1))
        snapshot = harness.snapshot()
    with StreamTestHarness.restore(lambda s: s.key_by(first).map(Keyed()), snapshot) as harness:
        harness.process_element(("a", 2))
        assert harness.output == [StreamRecord(("a", 1))]


def test_windows_that_have_fired_do_not_fire_again_and_late_stays_late():
    build = SCENARIOS["window reduce"].build
    with StreamTestHarness(build) as harness:
        harness.process_element(("a", 1), 5)
        harness.process_element(("a", 2), 15)
        harness.process_watermark(9)
        assert harness.output == [StreamRecord(("a", 1), 9), Watermark(9)]
        snapshot = harness.snapshot()
    with StreamTestHarness.restore(build, snapshot) as harness:
        harness.process_element(("a", 100), 6)  # its window is over
        harness.process_watermark(19)
        assert harness.output == [Watermark(9), StreamRecord(("a", 2), 19), Watermark(19)]


class Listening(SinkFunction, CheckpointListener):
    def invoke(self, value, context): ...

    def notify_checkpoint_complete(self, checkpoint_id):
        raise AssertionError("a savepoint commits nothing")


def test_a_savepoint_tells_listeners_nothing():
    def build(s):
        s.add_sink(Listening())
        return s

    with StreamTestHarness(build) as harness:
        harness.process_element(1)
        harness.snapshot()
        assert harness.output == [StreamRecord(1)]


def test_a_checkpoint_tells_listeners_and_one_without_a_folder_is_refused(tmp_path):
    class Told(SinkFunction, CheckpointListener):
        def invoke(self, value, context): ...

        def notify_checkpoint_complete(self, checkpoint_id):
            (tmp_path / "told").write_text(str(checkpoint_id))

    def build(s):
        s.add_sink(Told())
        return s

    with StreamTestHarness(build) as harness, pytest.raises(ValueError, match="execution.checkpointing.dir"):
        harness.checkpoint()
    with StreamTestHarness(build, configuration={"execution.checkpointing.dir": str(tmp_path)}) as harness:
        assert harness.checkpoint().checkpoint_id == 1
    assert (tmp_path / "told").read_text() == "1"
