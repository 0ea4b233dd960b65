"""Broadcast state: process functions of a stream and a broadcast one."""

import pytest

from flinkish.common.time import Time
from flinkish.common.typeinfo import Types
from flinkish.datastream.functions import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedStateFunction,
    MapFunction,
)
from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from flinkish.datastream.window import TumblingEventTimeWindows
from flinkish.errors import InvalidJobError, UserError
from flinkish.testing import StreamRecord, StreamTestHarness, Watermark
from tests.unit.operators.scripts import BACKENDS, Run, clock, element, elements, in_any_order, watermark

RULES = MapStateDescriptor("rules", Types.STRING(), Types.PICKLED_BYTE_ARRAY())
LIMITS = MapStateDescriptor("limits")
COUNT = ValueStateDescriptor("count")
SIDE = OutputTag("side")
NONE_YET = -(2**63)


class Match(BroadcastProcessFunction):
    """Elements are texts; the broadcast side puts (name, rule) or removes a name."""

    def process_element(self, value, ctx):
        rules, limits = ctx.get_broadcast_state(RULES), ctx.get_broadcast_state(LIMITS)
        yield value, sorted(rules.items()), limits["most"], ctx.timestamp(), ctx.current_watermark()
        yield SIDE, ("element", value, ctx.current_processing_time())

    def process_broadcast_element(self, value, ctx):
        rules = ctx.get_broadcast_state(RULES)
        if isinstance(value, str):
            del rules[value]
        elif value[0] == "most":
            ctx.get_broadcast_state(LIMITS).put(*value)
        else:
            rules[value[0]] = value[1]
        yield SIDE, ("rules", value in rules if isinstance(value, str) else len(list(rules)), ctx.current_watermark())


def match(stream, rules):
    return stream.connect(rules.broadcast(RULES, LIMITS)).process(Match())


@pytest.mark.parametrize("fused", [True, False])
def test_one_side_changes_what_the_other_reads(fused):
    steps = [
        element("early", 1),
        element(("most", 9), 2, input=1),
        elements((("x", 1), 3), (("y", 2), 4), input=1),
        watermark(10, inputs=2),
        element("later", 12),
        clock(77),
        element("x", 13, input=1),
        element("last", 14),
    ]
    run = Run(match, steps, fused=fused, tags=[SIDE])
    assert run.records == [
        (("early", [], None, 1, NONE_YET), 1),
        ("WM", 10),
        (("later", [("x", 1), ("y", 2)], 9, 12, 10), 12),
        (("last", [("y", 2)], 9, 14, 10), 14),
    ]
    assert run.of_tag(SIDE) == [
        (("element", "early", 0), 1),
        (("rules", 0, NONE_YET), 2),
        (("rules", 1, NONE_YET), 3),
        (("rules", 2, NONE_YET), 4),
        (("element", "later", 0), 12),
        (("rules", False, 10), 13),
        (("element", "last", 77), 14),
    ]


def test_the_watermark_is_the_lesser_of_both_sides_and_a_side_may_be_idle():
    with StreamTestHarness(match) as harness:
        harness.process_watermark(20)
        harness.process_watermark(5, input=1)
        assert harness.output == [Watermark(5)]
        harness.process_watermark_status(True, input=1)
        assert harness.output == [Watermark(5), Watermark(20)]


# ---- with keys -----------------------------------------------------------------------------------


class Alert(KeyedBroadcastProcessFunction):
    """Counts a key's elements; a timer says how many there were, under the rule that holds then.  The broadcast side
    may ask what is counted, or begin anew."""

    def open(self, runtime_context):
        self.count = runtime_context.get_state(COUNT)

    def process_element(self, value, ctx):
        key, time = value
        self.count.update((self.count.value() or 0) + 1)
        for _ in range(2):  # one timer a key and time
            ctx.timer_service().register_event_time_timer(time)
        ctx.timer_service().register_processing_time_timer(1_000 + time)
        if self.count.value() == 3:
            ctx.timer_service().delete_event_time_timer(time)
        assert ctx.get_current_key() == key
        yield key, self.count.value(), ctx.get_broadcast_state(RULES).get("rule")

    def process_broadcast_element(self, value, ctx):
        if value == "ask":
            found = []
            ctx.apply_to_keyed_state(COUNT, lambda key, count: found.append((key, count.value())))
            for key, count in sorted(found):
                yield SIDE, (key, count, ctx.timestamp())
        elif value == "begin anew":
            ctx.apply_to_keyed_state(COUNT, Clear())
        else:
            ctx.get_broadcast_state(RULES).put("rule", value)

    def on_timer(self, timestamp, ctx):
        rule = ctx.get_broadcast_state(RULES)["rule"]
        yield ctx.get_current_key(), self.count.value(), rule, ctx.time_domain().name, ctx.timestamp()
        yield SIDE, (ctx.get_current_key(), timestamp, ctx.current_watermark())


class Clear(KeyedStateFunction):
    def process(self, key, state):
        state.clear()


def alert(stream, rules):
    return stream.key_by(lambda value: value[0]).connect(rules.broadcast(RULES)).process(Alert())


KEYED = [
    elements((("a", 30), 1), (("b", 20), 2), (("a", 40), 3)),
    element("strict", 4, input=1),
    element("ask", 5, input=1),
    element(("a", 30), 6),
    watermark(25, inputs=2),
    element("mild", 7, input=1),
    watermark(35, inputs=2),
    clock(1_035),
    element("begin anew", 8, input=1),
    element(("a", 36), 9),
    element("ask", 10, input=1),
    watermark(2**63 - 1, inputs=2),
    clock(5_000),
]
GIVEN = [
    (("a", 1, None), 1),
    (("b", 1, None), 2),
    (("a", 2, None), 3),
    (("a", 3, "strict"), 6),
    (("b", 1, "strict", "EVENT_TIME", 20), 20),
    ("WM", 25),
    ("WM", 35),  # the timer of a at 30 was deleted
    (("b", 1, "mild", "PROCESSING_TIME", 1_020), None),
    (("a", 3, "mild", "PROCESSING_TIME", 1_030), None),
    (("a", 1, "mild"), 9),
    (("a", 1, "mild", "EVENT_TIME", 36), 36),
    (("a", 1, "mild", "EVENT_TIME", 40), 40),
    ("WM", 2**63 - 1),
    (("a", 1, "mild", "PROCESSING_TIME", 1_036), None),
    (("a", 1, "mild", "PROCESSING_TIME", 1_040), None),
]
ON_THE_SIDE = [
    (("a", 2, 5), 5),
    (("b", 1, 5), 5),
    (("b", 20, 25), 20),
    (("b", 1_020, 35), None),
    (("a", 1_030, 35), None),
    (("a", 1, 10), 10),
    (("a", 36, 2**63 - 1), 36),
    (("a", 40, 2**63 - 1), 40),
    (("a", 1_036, 2**63 - 1), None),
    (("a", 1_040, 2**63 - 1), None),
]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_keyed_state_timers_and_broadcast_state_work_together(backend, fused):
    run = Run(alert, KEYED, backend, fused=fused, tags=[SIDE])
    assert run.records == GIVEN
    assert run.of_tag(SIDE) == ON_THE_SIDE
    assert run.timers == 0


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_run_that_is_cut_after_every_step_gives_the_same(parallelism):
    whole = Run(alert, KEYED, tags=[SIDE])
    cut = Run(alert, KEYED, parallelism=parallelism, fused=False, tags=[SIDE], cut=True)
    assert in_any_order(cut.results) == in_any_order(whole.results)
    assert sorted(map(repr, cut.of_tag(SIDE))) == sorted(map(repr, whole.of_tag(SIDE)))


def test_every_subtask_has_the_same_broadcast_state_after_each_rescale():
    """B23: {r: 1} in each of 2, 3, 1 and 2 subtasks; counts go on."""

    class Look(KeyedBroadcastProcessFunction):
        def open(self, runtime_context):
            self.subtask = runtime_context.get_index_of_this_subtask()
            self.count = runtime_context.get_state(COUNT)

        def process_element(self, value, ctx):
            self.count.update((self.count.value() or 0) + 1)
            yield self.subtask, self.count.value(), dict(ctx.get_broadcast_state(RULES).items())

        def process_broadcast_element(self, value, ctx):
            ctx.get_broadcast_state(RULES).put(*value)

    def build(stream, rules):
        return stream.key_by(lambda value: value).connect(rules.broadcast(RULES)).process(Look())

    keys = [(f"key {number}", None) for number in range(40)]
    snapshot = None
    for round_, parallelism in enumerate([2, 3, 1, 2], 1):
        if snapshot is None:
            harness = StreamTestHarness(build, parallelism=parallelism)
            harness.process_element(("r", 1), input=1)
        else:
            harness = StreamTestHarness.restore(build, snapshot, parallelism)
        with harness:
            harness.process_elements(keys)
            seen = [record.value for record in harness.output]
            assert {subtask for subtask, _, _ in seen} == set(range(parallelism))
            assert [(count, rules) for _, count, rules in seen] == [(round_, {"r": 1})] * 40
            snapshot = harness.snapshot()


def test_a_state_that_the_function_never_asks_for_is_kept():
    class Ignores(Match):
        def process_element(self, value, ctx):
            return []

    def ignoring(stream, rules):
        return stream.connect(rules.broadcast(RULES, LIMITS)).process(Ignores())

    with StreamTestHarness(match) as harness:
        harness.process_element(("x", 1), input=1)
        snapshot = harness.snapshot()
    with StreamTestHarness.restore(ignoring, snapshot) as harness:
        snapshot = harness.snapshot()
    with StreamTestHarness.restore(match, snapshot) as harness:
        harness.process_element("now", 1)
        assert harness.output[0].value[1] == [("x", 1)]


@pytest.mark.parametrize("batches", [True, False])
def test_results_of_a_timer_come_before_the_watermark_that_fired_it(batches):
    """B13: a timer that registers itself anew for the time that fires; both results are in the window [0, 10)."""

    class Again(KeyedBroadcastProcessFunction):
        def open(self, runtime_context):
            self.fired = runtime_context.get_state(COUNT)

        def process_element(self, value, ctx):
            ctx.timer_service().register_event_time_timer(9)

        def process_broadcast_element(self, value, ctx):
            return None

        def on_timer(self, timestamp, ctx):
            if self.fired.value() is None:
                self.fired.update(1)
                ctx.timer_service().register_event_time_timer(9)
            yield ctx.get_current_key(), 1

    def build(stream, rules):
        fired = stream.key_by(lambda value: value).connect(rules.broadcast(RULES)).process(Again())
        windows = fired.key_by(lambda value: 0).window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
        return windows.reduce(lambda one, other: (one[0] + other[0], one[1] + other[1]))

    with StreamTestHarness(build) as harness:
        if batches:
            harness.process_elements([("a", 1), ("b", 2), ("c", 3)])
        else:
            for time, key in enumerate("abc", 1):
                harness.process_element(key, time)
        harness.process_watermark(9)
        harness.process_watermark(9, input=1)
        (record, after) = harness.output
        assert (sorted(record.value[0]), record.value[1], record.timestamp) == (sorted("aabbcc"), 6, 9)
        assert after == Watermark(9)


def test_what_is_emitted_of_the_state_does_not_change_with_it():
    class Emits(BroadcastProcessFunction):
        def process_element(self, value, ctx):
            yield ctx.get_broadcast_state(RULES)["list"]

        def process_broadcast_element(self, value, ctx):
            rules = ctx.get_broadcast_state(RULES)
            known = rules["list"] or []
            known.append(value)
            rules["list"] = known

    with StreamTestHarness(lambda s, rules: s.connect(rules.broadcast(RULES)).process(Emits())) as harness:
        for number in (1, 2):
            harness.process_element(number, input=1)
            harness.process_element("now")
        assert harness.output == [StreamRecord([1]), StreamRecord([1, 2])]


# ---- what is refused -----------------------------------------------------------------------------


class Does(KeyedBroadcastProcessFunction):
    """Calls ``action`` on one of the sides."""

    def __init__(self, side, action):
        self.side, self.action = side, action

    def open(self, runtime_context):
        self.count = runtime_context.get_state(COUNT)

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(5)
        return self.action(self, ctx) if self.side == "element" else None

    def process_broadcast_element(self, value, ctx):
        return self.action(self, ctx) if self.side == "broadcast" else None

    def on_timer(self, timestamp, ctx):
        return self.action(self, ctx) if self.side == "timer" else None


@pytest.mark.parametrize(
    "side, action, text",
    [
        ("element", lambda f, ctx: ctx.get_broadcast_state(RULES).put(1, 2), "cannot be changed here"),
        ("timer", lambda f, ctx: ctx.get_broadcast_state(RULES).put_all({1: 2}), "cannot be changed here"),
        ("timer", lambda f, ctx: ctx.get_broadcast_state(RULES).clear(), "cannot be changed here"),
        ("element", lambda f, ctx: ctx.get_broadcast_state(RULES).remove(1), "cannot be changed here"),
        ("element", lambda f, ctx: ctx.get_broadcast_state(RULES).__setitem__(1, 2), "cannot be changed here"),
        ("element", lambda f, ctx: ctx.get_broadcast_state(LIMITS), "there is no broadcast state"),
        ("broadcast", lambda f, ctx: ctx.get_broadcast_state("rules"), "there is no broadcast state"),
        ("broadcast", lambda f, ctx: f.count.value(), "could not use keyed state"),
        ("broadcast", lambda f, ctx: f.count.update(1), "could not use keyed state"),
        ("broadcast", lambda f, ctx: ctx.apply_to_keyed_state("count", print), "not a StateDescriptor"),
        ("broadcast", lambda f, ctx: ctx.apply_to_keyed_state(COUNT, Clear), "give a callable"),
        ("broadcast", lambda f, ctx: ctx.apply_to_keyed_state(ListStateDescriptor("count"), print), "described twice"),
    ],
)  # fmt: skip
def test_what_a_side_must_not_do_is_refused_with_advice(side, action, text):
    def build(stream, rules):
        return stream.key_by(lambda value: 0).connect(rules.broadcast(RULES)).process(Does(side, action))

    configuration = {"flinkish.fused-chains": str(side == "element").lower()}
    with StreamTestHarness(build, configuration=configuration) as harness:
        with pytest.raises(UserError, match=text) as refused:
            harness.process_element(1)
            harness.process_element(1, input=1)
            harness.process_watermark(9)
            harness.process_watermark(9, input=1)
        assert refused.value.do
        assert 'operator "Co-Process-Broadcast-Keyed"' in str(refused.value)


def test_a_record_of_the_broadcast_side_leaves_no_key_behind():
    """Also when the function that it applied to keyed state has failed."""

    class Fails(Does):
        def process_broadcast_element(self, value, ctx):
            try:
                ctx.apply_to_keyed_state(COUNT, self.fail)
            except ZeroDivisionError:
                self.count.value()

        def process_element(self, value, ctx):
            self.count.update(1)

        def fail(self, key, state):
            return 1 / 0

    def build(stream, rules):
        return stream.key_by(lambda value: 0).connect(rules.broadcast(RULES)).process(Fails("element", None))

    with StreamTestHarness(build) as harness:
        harness.process_element(1)
        with pytest.raises(UserError, match="could not use keyed state"):
            harness.process_element(1, input=1)


def test_programs_that_cannot_work_are_refused_when_they_are_written():
    keyed = Does("element", None)
    for build, text in (
        (lambda s, r: s.connect(r.broadcast(RULES)).process(keyed), "call key_by"),
        (lambda s, r: s.key_by(lambda v: v).connect(r.broadcast(RULES)).process(Match()), "has a key"),
        (lambda s, r: s.connect(r.broadcast(RULES)).process(lambda v, ctx: v), "BroadcastProcessFunction"),
        (lambda s, r: s.connect(r.broadcast(RULES)).process(Match), r"give an object: Match\(\)"),
        (lambda s, r: s.connect(r.broadcast(RULES, MapStateDescriptor("rules"))), "two states with the name"),
        (lambda s, r: s.connect(r.broadcast(COUNT)), "takes MapStateDescriptors"),
        (lambda s, r: s.connect(type(r.broadcast(RULES))(r, RULES)).process(Match()), "broadcast"),
    ):
        with pytest.raises(InvalidJobError, match=text):
            StreamTestHarness(build)


def test_a_keyed_map_behind_it_is_its_own_operator():
    """Side outputs and results of both sides go on like all others."""

    class Counted(MapFunction):
        def open(self, runtime_context):
            self.count = runtime_context.get_state(COUNT)

        def map(self, value):
            self.count.update((self.count.value() or 0) + 1)
            return value, self.count.value()

    def build(stream, rules):
        matched = stream.connect(rules.broadcast(RULES, LIMITS)).process(Match())
        return matched.get_side_output(SIDE).key_by(lambda value: value[0]).map(Counted())

    with StreamTestHarness(build) as harness:
        harness.process_element(("x", 1), 1, input=1)
        harness.process_element("a", 2)
        harness.process_element("b", 3)
        assert [(record.value[0][0], record.value[1]) for record in harness.output] == [
            ("rules", 1),
            ("element", 1),
            ("element", 2),
        ]
