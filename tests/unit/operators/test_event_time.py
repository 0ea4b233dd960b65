"""Event time, idleness and timers through whole pipelines: the traces that users report (the given cases B01 to B15).

Each runs on both state backends, uncut and cut by a snapshot and restore at every step, with one and with several
subtasks.  Of splits and restored sources there is more in ``test_source.py`` and ``test_snapshots.py``, of one input's
channels in ``tests/unit/taskmanager/test_watermark_valve.py``.
"""

import numpy as np
import pytest

from flinkish.common.watermark_strategy import WatermarkGenerator, WatermarkStrategy
from flinkish.datastream.functions import CoProcessFunction, KeyedProcessFunction, ProcessFunction, ProcessWindowFunction
from flinkish.datastream.state import ValueStateDescriptor
from flinkish.datastream.window import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from flinkish.errors import UserFunctionError
from flinkish.messages.elements import MAX_WATERMARK_MS
from flinkish.testing import StreamTestHarness, Watermark

BACKENDS = ["hashmap", "rocksdb"]


def record(value, time, input=0):
    return lambda harness: harness.process_element(value, time, input)


def records(*pairs):
    return lambda harness: harness.process_elements(list(pairs))


def watermark(time, input=0):
    return lambda harness: harness.process_watermark(time, input)


def clock(ms):
    return lambda harness: harness.set_processing_time(ms)


class Status:
    """Kept over a restore, as by a source whose timeout is over again."""

    def __init__(self, idle, input):
        self.idle, self.input = idle, input

    def __call__(self, harness):
        harness.process_watermark_status(self.idle, self.input)


def play(build, steps, backend="hashmap", cuts=(), parallelism=1, **options):
    """The output of ``steps``, cut by a snapshot before each of ``cuts``; without watermarks that tell nothing new."""
    harness = StreamTestHarness(build, backend, parallelism, **options)
    output, idle = [], {}
    try:
        for number, step in enumerate(steps):
            if number in cuts:
                snapshot = harness.snapshot()
                output += harness.output
                harness.close()
                harness = StreamTestHarness.restore(build, snapshot, parallelism, backend, **options)
                for status in idle.values():
                    status(harness)
            step(harness)
            if isinstance(step, Status):
                idle[step.input] = step
        output += harness.output
        assert harness.num_event_time_timers() == 0
    finally:
        harness.close()
    told, last = [], float("-inf")
    for element in output:
        if not isinstance(element, Watermark):
            told.append((element.value, element.timestamp))
        elif element.timestamp > last:
            last = element.timestamp
            told.append(last)
    return told


@pytest.fixture(params=BACKENDS)
def check(request):
    """Whether a trace gives the right output, uncut and cut at every step."""

    def check(build, steps, expected, parallelism=1, ordered=True, **options):
        for cut in ((), range(len(steps))):
            found = play(build, steps, request.param, cut, parallelism, **options)
            if not ordered:
                found, expected = sorted(found, key=repr), sorted(expected, key=repr)
            assert found == expected, (request.param, list(cut))

    return check


# ---- B01 to B06: which windows a record is in -----------------------------------------------------


class SumOfWindow(ProcessWindowFunction):
    """(key, start, end, sum)"""

    def process(self, key, context, elements):
        window = context.window()
        yield key, window.start, window.end, sum(value[1] for value in elements)


def summed_in(assigner):
    return lambda stream: stream.key_by(lambda value: value[0]).window(assigner).process(SumOfWindow())


DAY_MS = 86_400_000
NEW_YEARS_EVE = 1_704_040_200_000  # 2023-12-31T16:30Z


@pytest.mark.parametrize(
    "assigner, times, expected",
    [
        (TumblingEventTimeWindows.of(5_000), [-1, -5_000, -5_001, 0], [(-10_000, -5_000, 4), (-5_000, 0, 3), (0, 5_000, 8)]),
        (TumblingEventTimeWindows.of(5_000, 2_000), [-9_000], [(-13_000, -8_000, 1)]),
        (
            TumblingEventTimeWindows.of(DAY_MS, -8 * 3_600_000),
            [NEW_YEARS_EVE],
            [(NEW_YEARS_EVE - 1_800_000, NEW_YEARS_EVE - 1_800_000 + DAY_MS, 1)],
        ),
        (SlidingEventTimeWindows.of(5_500, 5_000), [513_040], [(510_000, 515_500, 1)]),
        (
            SlidingEventTimeWindows.of(1_600, 700),
            [1_709_315_512_577],
            [(1_709_315_511_400, 1_709_315_513_000, 1), (1_709_315_512_100, 1_709_315_513_700, 1)],
        ),
        (SlidingEventTimeWindows.of(10, 5), [12], [(5, 15, 1), (10, 20, 1)]),
    ],
    ids=["B01-negative", "B01-offset", "B01-day", "B03-5500-5000", "B03-1600-700", "B03-10-5"],
)
def test_b01_and_b03_windows_begin_below_any_time(check, assigner, times, expected):
    steps = [record(("a", 1 << number), time) for number, time in enumerate(times)] + [watermark(MAX_WATERMARK_MS)]
    fired = [(("a", *window), window[1] - 1) for window in expected]
    check(summed_in(assigner), steps, [*fired, MAX_WATERMARK_MS])


def test_b04_a_session_that_covers_another_takes_it_in(check):
    gaps = EventTimeSessionWindows.with_dynamic_gap(lambda value: value[2])
    steps = [record(("a", 1, 2), 5), record(("a", 2, 10), 0), watermark(20)]
    check(summed_in(gaps), steps, [(("a", 0, 10, 3), 9), 20])


def test_b06_a_session_that_is_still_open_takes_a_late_record(check):
    steps = [record(("a", 1), 0), record(("a", 1), 9), watermark(12), record(("a", 1), 1), watermark(17), watermark(18)]
    check(summed_in(EventTimeSessionWindows.with_gap(10)), steps, [12, 17, (("a", 0, 19, 3), 18), 18])


# ---- B10: idle inputs -------------------------------------------------------------------------------


class Pass(CoProcessFunction):
    def process_element1(self, value, ctx):
        yield value

    process_element2 = process_element1


@pytest.mark.parametrize("build", [
    lambda one, other: one.union(other).map(lambda value: value),
    lambda one, other: one.connect(other).process(Pass()),
], ids=["union", "connect"])  # fmt: skip
@pytest.mark.parametrize("first", [0, 1])
def test_b10_all_inputs_idle_one_comes_back_behind_then_ahead(check, build, first):
    steps = [
        watermark(5, 0), watermark(4, 1), Status(True, first), Status(True, 1 - first),
        Status(False, 1), watermark(4, 1), record("late", 4, 1), watermark(6, 1), record("on time", 7, 1),
        watermark(8, 1),
    ]  # fmt: skip
    check(build, steps, [4, 5, ("late", 4), 6, ("on time", 7), 8])


def test_idleness_passes_operators_exchanges_and_keys(check):
    """An input that is idle behind a shuffle, several chains and a keyed operator still holds nothing back."""

    def build(one, other):
        far = one.map(lambda value: value).rebalance().map(lambda value: value).disable_chaining()
        keyed = far.key_by(lambda value: value).process(Timers()).map(lambda value: value)
        return keyed.union(other).map(lambda value: value)

    steps = [watermark(3, 0), watermark(9, 1), Status(True, 0), watermark(12, 1), Status(False, 0), watermark(20, 0)]
    check(build, steps, [3, 9, 12], parallelism=2)


def test_operators_are_told_how_long_their_subtask_was_backpressured():
    with StreamTestHarness(lambda stream: stream.map(str)) as harness:
        for task in harness._core.tasks.values():
            assert task.chain.environment.blocked_ms == task.times.blocked_ms


# ---- B11: mid-stream generators ---------------------------------------------------------------------


class Latest(KeyedProcessFunction):
    """Says how far event time is."""

    def process_element(self, value, ctx):
        now = ctx.timer_service().current_watermark()
        yield value, "late" if ctx.timestamp() <= now else "on time"


class Punctuated(WatermarkGenerator):
    def on_event(self, event, event_timestamp, output):
        if event[0] == "!":
            output.emit_watermark(event_timestamp)

    def on_periodic_emit(self, output):
        pass


def timed(strategy):
    strategy = strategy.with_timestamp_assigner(lambda value: value[1])
    return lambda stream: stream.assign_timestamps_and_watermarks(strategy).key_by(lambda value: 0).process(Latest())


def test_b11_a_generator_in_mid_stream_begins_anew_and_what_was_late_stays_late(check):
    """Flink saves no generator, and neither do we; operators with keys go on where they were."""
    steps = [record(("a", 700), None), record(("!", 500), None), record(("b", 400), None), record(("!", 450), None),
             record(("c", 480), None), record(("!", 600), None), record(("d", 601), None)]  # fmt: skip
    found = [("a", "on time"), ("!", "on time"), ("b", "late"), ("!", "late"), ("c", "late"), ("!", "on time"),
             ("d", "on time")]  # fmt: skip
    for cut in (2, 3, 5):
        told = play(timed(WatermarkStrategy.for_generator(Punctuated)), steps, cuts=[cut])
        assert [(value[0][0], value[1]) for value, _ in (one for one in told if isinstance(one, tuple))] == found
    check(timed(WatermarkStrategy.for_generator(Punctuated)), steps[:3], [
        ((("a", 700), "on time"), 700), ((("!", 500), "on time"), 500), 500, ((("b", 400), "late"), 400),
    ])  # fmt: skip


def test_a_periodic_generator_of_ones_own_speaks_at_each_interval():
    class Slow(WatermarkGenerator):
        def __init__(self):
            self.seen = []

        def on_event(self, event, event_timestamp, output):
            self.seen.append(event_timestamp)

        def on_periodic_emit(self, output):
            if self.seen:
                output.emit_watermark(min(self.seen))

    steps = [
        record(("a", 700), None), record(("b", 300), None), clock(199), clock(200), record(("c", 250), None),
        clock(400),
    ]  # fmt: skip
    told = play(timed(WatermarkStrategy.for_generator(Slow)), steps)
    assert [one if isinstance(one, int) else one[0] for one in told] == [
        (("a", 700), "on time"), (("b", 300), "on time"), 300, (("c", 250), "late"),
    ]  # fmt: skip


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("watermark", [None, 1.5, 5.0, "5", True, 2**63, Watermark(5)])
def test_a_watermark_that_is_no_int_of_ms_fails_in_its_generator(watermark, fused):
    """A float went on until some operator behind could not count with it."""

    class Odd(Punctuated):
        def on_event(self, event, event_timestamp, output):
            output.emit_watermark(watermark)

    options = {"configuration": {"flinkish.fused-chains": fused}}
    with pytest.raises(UserFunctionError, match="a watermark must.*\\n.*watermark generator"):
        play(timed(WatermarkStrategy.for_generator(Odd)), [record(("a", 700), None)], **options)


def test_a_watermark_may_be_a_number_of_numpy():
    class Numbers(Punctuated):
        def on_event(self, event, event_timestamp, output):
            output.emit_watermark(np.int64(event_timestamp))

    told = play(timed(WatermarkStrategy.for_generator(Numbers)), [record(("a", 700), None)])
    assert told[-1] == 700 and type(told[-1]) is int


# ---- B09: one lateness rule -------------------------------------------------------------------------


class Late(ProcessFunction):
    def process_element(self, value, ctx):
        yield value, ctx.timestamp() <= ctx.timer_service().current_watermark()


def test_b09_a_record_at_the_watermark_is_late_and_one_above_is_not(check):
    """Windows judge their last instant by the same rule: see ``tests/unit/operators/test_window.py``."""
    steps = [record("a", 999), watermark(999), record("b", 999), record("c", 1_000), watermark(1_000)]
    keyed = lambda stream: stream.key_by(lambda value: 0).process(Latest())  # noqa: E731
    check(keyed, steps, [
        (("a", "on time"), 999), 999, (("b", "late"), 999), (("c", "on time"), 1_000), 1_000,
    ])  # fmt: skip
    assert play(lambda stream: stream.process(Late()), steps) == [
        (("a", False), 999), 999, (("b", True), 999), (("c", False), 1_000), 1_000,
    ]  # fmt: skip


# ---- B13 and timers ---------------------------------------------------------------------------------


class Again(KeyedProcessFunction):
    """A timer at 9 that emits, and once sets itself again for the very time that fires."""

    def open(self, context):
        self.fired = context.get_state(ValueStateDescriptor("fired"))

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(9)
        return ()

    def on_timer(self, timestamp, ctx):
        yield "r"
        if not self.fired.value():
            self.fired.update(True)
            ctx.timer_service().register_event_time_timer(9)


@pytest.mark.parametrize("batch", [1, 1_024])
@pytest.mark.parametrize("chained", [True, False])
def test_b13_what_timers_emit_is_before_their_watermark(check, batch, chained):
    def build(stream):
        fired = stream.key_by(lambda value: value).process(Again())
        fired = fired if chained else fired.rebalance()
        windows = fired.key_by(lambda value: value).window(TumblingEventTimeWindows.of(10))
        return windows.apply(_count)

    steps = [record("x", 1), watermark(8), watermark(9), watermark(20)]
    options = {"configuration": {"taskmanager.network.max-records-per-batch": batch}}
    expected = [8, ((0, 10, 2), 9), 9, 20]
    check(build, steps, expected, **options)


def _count(key, window, inputs):
    yield window.start, window.end, len(list(inputs))


class Timers(KeyedProcessFunction):
    """``(key, "+", time)`` sets an event-time timer, ``"-"`` deletes it; ``"P+"`` and ``"P-"`` do with the clock's."""

    def process_element(self, value, ctx):
        timers = ctx.timer_service()
        _, what, time = value
        {
            "+": timers.register_event_time_timer,
            "-": timers.delete_event_time_timer,
            "P+": timers.register_processing_time_timer,
            "P-": timers.delete_processing_time_timer,
        }[what](time)
        return ()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, ctx.time_domain().name


def with_timers(stream):
    return stream.key_by(lambda value: value[0]).process(Timers())


def test_event_timers_are_one_for_a_key_and_time_fire_in_order_and_can_be_deleted(check):
    steps = [
        record(("a", "+", 30), 1), record(("a", "+", 10), 1), record(("a", "+", 10), 1), record(("b", "+", 20), 1),
        record(("a", "-", 30), 1), record(("a", "-", 77), 1), watermark(9), watermark(25),
        record(("a", "+", 5), 26), watermark(26), record(("c", "+", 40), 27), watermark(MAX_WATERMARK_MS),
    ]  # fmt: skip
    expected = [
        9, (("a", 10, "EVENT_TIME"), 10), (("b", 20, "EVENT_TIME"), 20), 25, (("a", 5, "EVENT_TIME"), 5), 26,
        (("c", 40, "EVENT_TIME"), 40), MAX_WATERMARK_MS,
    ]  # fmt: skip
    check(with_timers, steps, expected)
    check(with_timers, steps, expected, parallelism=2, ordered=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_timers_of_the_clock_are_apart_from_those_of_event_time(backend):
    steps = [
        record(("a", "P+", 300), 1), record(("a", "P+", 300), 1), record(("a", "+", 300), 1),
        record(("b", "P+", 100), 1), record(("b", "P+", 200), 1), record(("b", "P-", 200), 1), clock(99), clock(100), watermark(300), clock(1_000),
    ]  # fmt: skip
    expected = [
        (("b", 100, "PROCESSING_TIME"), None), (("a", 300, "EVENT_TIME"), 300), 300,
        (("a", 300, "PROCESSING_TIME"), None),
    ]  # fmt: skip
    for cuts in ((), range(8)):  # a restored harness begins at the time of its snapshot
        assert play(with_timers, steps, backend, cuts) == expected, cuts


# ---- B15: chained stateful operators ----------------------------------------------------------------


def test_b15_windows_of_windows_lose_nothing(check):
    def build(stream):
        seconds = TumblingEventTimeWindows.of
        counts = stream.key_by(lambda value: 0).window(seconds(5_000)).apply(_count)
        return counts.key_by(lambda value: 0).window(seconds(10_000)).apply(_sum)

    steps = [record("x", 1_000), record("x", 6_000), record("x", 11_000), watermark(MAX_WATERMARK_MS)]
    expected = [((0, 10_000, 2), 9_999), ((10_000, 20_000, 1), 19_999), MAX_WATERMARK_MS]
    check(build, steps, expected)
    several = [*steps[:3], watermark(4_999), watermark(9_999), watermark(MAX_WATERMARK_MS)]
    check(build, several, [4_999, ((0, 10_000, 2), 9_999), 9_999, *expected[1:]])


def _sum(key, window, inputs):
    yield window.start, window.end, sum(count for _, _, count in inputs)
