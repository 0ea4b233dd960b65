"""Asynchronous functions in a harness: coroutines sleep by the clock of the test."""

import asyncio
import threading
from collections import Counter

import pytest

from flinkish.common.typeinfo import Types
from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.datastream import AsyncDataStream
from flinkish.datastream.async_retry_predicates import empty_result_predicate, has_exception_predicate
from flinkish.datastream.functions import AsyncFunction, AsyncRetryStrategy
from flinkish.errors import InvalidJobError, UserFunctionError
from flinkish.testing import StreamRecord, StreamTestHarness, Watermark

both_forms = pytest.mark.parametrize("fused", [True, False], ids=["compiled", "interpreted"])


def harness(build, fused=True, **options):
    return StreamTestHarness(build, configuration={"flinkish.fused-chains": fused}, **options)


def values(output):
    return [element.value if isinstance(element, StreamRecord) else element for element in output]


async def sleep(value):
    """A record is (name, ms that its call takes)."""
    await asyncio.sleep(value[1] / 1000)
    return [value[0]]


def ordered(function=sleep, timeout=1_000_000, **options):
    return lambda stream: AsyncDataStream.ordered_wait(stream, function, timeout, **options)


def unordered(function=sleep, timeout=1_000_000, **options):
    return lambda stream: AsyncDataStream.unordered_wait(stream, function, timeout, **options)


# ---- order ----------------------------------------------------------------------------------------------


@both_forms
def test_ordered_results_leave_as_their_records_came(fused):
    with harness(ordered(), fused) as h:
        h.process_elements([(("a", 300), 1), (("b", 100), 2), (("c", 200), 3)])
        h.process_watermark(3)
        h.set_processing_time(299)
        assert h.output == []
        h.set_processing_time(300)
        assert h.output == [StreamRecord("a", 1), StreamRecord("b", 2), StreamRecord("c", 3), Watermark(3)]


@both_forms
def test_unordered_results_overtake_between_watermarks_only(fused):
    with harness(unordered(), fused) as h:
        h.process_elements([(("a", 300), 1), (("b", 100), 2)])
        h.process_watermark(2)
        h.process_elements([(("c", 50), 3), (("d", 10), 4)])
        h.set_processing_time(200)
        assert h.output == [StreamRecord("b", 2)]
        h.set_processing_time(1_000)
        assert h.output[1:] == [StreamRecord("a", 1), Watermark(2), StreamRecord("d", 4), StreamRecord("c", 3)]


def test_a_watermark_with_nothing_before_it_leaves_at_once_and_two_in_a_row_are_one():
    with harness(ordered()) as h:
        h.process_watermark(1)
        h.process_element(("a", 10), 2)
        h.process_watermark(3)
        h.process_watermark(4)
        h.process_element(("b", 10), 5)
        assert h.output == [Watermark(1)]
        h.set_processing_time(10)
        assert h.output[1:] == [StreamRecord("a", 2), Watermark(4), StreamRecord("b", 5)]


def test_idleness_stays_behind_the_records_and_watermarks_that_it_follows():
    seen = []

    def build(stream, other):
        joined = ordered()(stream).union(other)
        return joined.map(lambda value: seen.append(value) or value)

    with harness(build) as h:
        h.process_watermark(100, input=1)
        h.process_element(("a", 10), 1)
        h.process_watermark(50)
        h.process_watermark_status(True)
        assert h.output == [], "it is not idle for those behind it, and its watermark is not out"
        h.set_processing_time(10)
        assert h.output == [StreamRecord("a", 1), Watermark(50), Watermark(100)]


# ---- capacity ---------------------------------------------------------------------------------------------


class Counting(AsyncFunction):
    """``now`` and ``most``: calls under way, and the most of them."""

    now = most = 0

    async def async_invoke(self, value):
        cls = type(self)
        cls.now += 1
        cls.most = max(cls.most, cls.now)
        await asyncio.sleep(0.01)
        cls.now -= 1
        return [value]


@both_forms
@pytest.mark.parametrize("shape", ["head", "behind a channel", "flat_map before", "two in a chain"])
def test_never_more_calls_than_the_capacity(fused, shape):
    Counting.now = Counting.most = 0

    def build(stream):
        if shape == "behind a channel":
            stream = stream.rebalance()
        if shape == "flat_map before":
            stream = stream.flat_map(lambda n: [n * 10 + i for i in range(10)])
        stream = AsyncDataStream.ordered_wait(stream, Counting(), 10_000, capacity=3)
        if shape == "two in a chain":
            stream = AsyncDataStream.ordered_wait(stream.flat_map(lambda n: [n, n]), sleep_and_keep, 10_000, capacity=2)
        return stream

    async def sleep_and_keep(value):
        await asyncio.sleep(0.02)
        return [value]

    with harness(build, fused) as h:
        h.process_elements([(n, n) for n in range(10)])
        h.process_watermark(10)
        h.set_processing_time(2_000)
        expected = {
            "head": list(range(10)),
            "behind a channel": list(range(10)),
            "flat_map before": list(range(100)),
            "two in a chain": [n for n in range(10) for _ in range(2)],
        }[shape]
        assert values(h.output) == [*expected, Watermark(10)]
        assert Counting.most == 3 and Counting.now == 0


@both_forms
def test_a_call_may_give_more_than_fits_while_a_record_waits_for_room(fused):
    async def many(value):
        await asyncio.sleep(0.01)
        return [value] * 3_000

    def build(stream):
        return AsyncDataStream.ordered_wait(stream.flat_map(lambda n: [n, n + 1, n + 2]), many, 0, capacity=1)

    with harness(build, fused) as h:
        h.process_element(0)
        h.set_processing_time(100)
        assert values(h.output) == [0] * 3_000 + [1] * 3_000 + [2] * 3_000


def test_a_full_operator_lets_a_snapshot_pass():
    with harness(ordered(capacity=2)) as h:
        h.process_elements([((f"{n}", 100), n) for n in range(5)])
        snapshot = h.snapshot()
    with StreamTestHarness.restore(ordered(capacity=2), snapshot) as h:
        h.set_processing_time(1_000)
        assert values(h.output) == ["0", "1"], "the source had not read the others"


def test_a_snapshot_that_waits_behind_records_says_so():
    with harness(lambda stream: ordered(capacity=2)(stream.rebalance())) as h:
        h.process_elements([((f"{n}", 100), n) for n in range(5)])
        with pytest.raises(TimeoutError, match="more capacity"):
            h.snapshot()


# ---- one outcome ---------------------------------------------------------------------------------------------


class Late(AsyncFunction):
    """Does not take a cancellation for an end; `timeout` has its own result."""

    def timeout(self, value):
        return [("too slow", value[0])]

    async def async_invoke(self, value):
        try:
            return await sleep(value)
        except asyncio.CancelledError:
            return ["late"]


@both_forms
def test_a_timeout_gives_what_the_handler_says_and_what_comes_later_is_ignored(fused):
    with harness(ordered(Late(), 100), fused) as h:
        h.process_elements([(("a", 500), 1), (("b", 99), 2), (("c", 100), 3)])
        h.set_processing_time(99)
        h.process_element(("d", 500), 4)
        h.set_processing_time(1_000)
        assert values(h.output) == [("too slow", "a"), "b", ("too slow", "c"), ("too slow", "d")]
        assert [record.timestamp for record in h.output] == [1, 2, 3, 4]


def test_a_timeout_without_a_handler_fails_the_job_and_says_how_long():
    with harness(ordered(timeout=100)) as h:
        h.process_element(("a", 500))
        with pytest.raises(UserFunctionError, match="async_invoke gave no result within 100 ms") as raised:
            h.set_processing_time(1_000)
    assert raised.value.fields["record"] == "('a', 500)"
    assert raised.value.fields["exception_type"] == "TimeoutError"


def test_without_a_timeout_a_call_may_take_for_ever():
    with harness(ordered(timeout=0)) as h:
        h.process_element(("a", 1_000_000))
        h.set_processing_time(999_999)
        assert h.output == []
        h.set_processing_time(1_000_000)
        assert values(h.output) == ["a"]


class Flaky(AsyncFunction):
    """Fails, or finds nothing, as often as the record says; notes the times of its attempts."""

    def __init__(self, how, own_timeout=False):
        self.how, self.attempts, self.own_timeout = how, [], own_timeout

    def open(self, context):
        self.left, Flaky.last = {}, self

    def timeout(self, value):
        return [] if self.own_timeout else super().timeout(value)

    async def async_invoke(self, value):
        name, failures = value
        self.attempts.append(int(asyncio.get_running_loop().time() * 1000))
        left = self.left.setdefault(name, failures)
        self.left[name] -= 1
        if left <= 0:
            return [name]
        if self.how == "raises":
            raise ConnectionError(f"{left} left")
        return []


def with_retry(function, strategy, timeout=100_000):
    return lambda stream: AsyncDataStream.ordered_wait_with_retry(stream, function, timeout, strategy)


@both_forms
@pytest.mark.parametrize(
    "strategy, attempts",
    [
        (AsyncRetryStrategy.fixed_delay(3, 100, empty_result_predicate, has_exception_predicate), [0, 100, 200, 300]),
        (
            AsyncRetryStrategy.exponential_backoff(3, 100, 150, 2.0, empty_result_predicate, has_exception_predicate),
            [0, 100, 250, 400],
        ),
    ],
    ids=["fixed", "exponential"],
)
@pytest.mark.parametrize("how", ["raises", "finds nothing"])
def test_calls_are_made_again_as_the_strategy_says(fused, how, strategy, attempts):
    with harness(with_retry(Flaky(how), strategy), fused) as h:
        h.process_element(("a", 3), 5)
        h.set_processing_time(10_000)
        assert h.output == [StreamRecord("a", 5)]
        assert Flaky.last.attempts == attempts


def test_after_the_last_attempt_the_outcome_is_what_it_gave():
    once = AsyncRetryStrategy.fixed_delay(1, 100, empty_result_predicate, has_exception_predicate)
    with harness(with_retry(Flaky("finds nothing"), once)) as h:
        h.process_elements([(("a", 2), 1), (("b", 0), 2)])
        h.set_processing_time(1_000)
        assert h.output == [StreamRecord("b", 2)]
    with harness(with_retry(Flaky("raises"), once)) as h:
        h.process_element(("a", 2))
        with pytest.raises(UserFunctionError, match="1 left") as raised:
            h.set_processing_time(1_000)
    assert 'raise ConnectionError(f"{left} left")' in str(raised.value)


def test_an_outcome_that_its_predicate_does_not_name_is_not_tried_again():
    on_result = AsyncRetryStrategy.fixed_delay(3, 100, empty_result_predicate)
    with harness(with_retry(Flaky("raises"), on_result)) as h:
        with pytest.raises(UserFunctionError, match="3 left"):
            h.process_element(("a", 3))


def test_the_timeout_is_one_for_all_attempts():
    patient = AsyncRetryStrategy.fixed_delay(100, 30, empty_result_predicate)
    with harness(with_retry(Flaky("finds nothing", own_timeout=True), patient, timeout=100)) as h:
        h.process_element(("a", 50))
        h.set_processing_time(1_000)
        assert Flaky.last.attempts == [0, 30, 60, 90]
        assert h.output == []
        h.process_element(("b", 0))
        assert values(h.output) == ["b"], "what the handler gave was the outcome, so the queue is free"


@both_forms
@pytest.mark.parametrize("how", ["raises", "finds nothing"])
def test_when_the_input_has_ended_calls_are_made_again_until_attempts_or_time_are_over(fused, how):
    strategy = AsyncRetryStrategy.fixed_delay(3, 100, empty_result_predicate, has_exception_predicate)
    with harness(with_retry(Flaky(how), strategy), fused) as h:
        h.process_elements([(("a", 3), 1), (("b", 1), 2)])
        h.end_input()
        h.set_processing_time(10_000)
        assert h.output[:2] == [StreamRecord("a", 1), StreamRecord("b", 2)]
        assert Flaky.last.attempts == [0, 0, 100, 100, 200, 300]
    with harness(with_retry(Flaky(how, own_timeout=True), strategy, timeout=150), fused) as h:
        h.process_elements([(("a", 3), 1), (("b", 1), 2)])
        h.end_input()
        h.set_processing_time(10_000)
        assert h.output[0] == StreamRecord("b", 2)
        assert Flaky.last.attempts == [0, 0, 100, 100]


def test_the_end_of_the_input_waits_for_all_calls():
    with harness(lambda s: ordered()(s).map(lambda x: x.upper())) as h:
        h.process_elements([(("a", 300), 1), (("b", 100), 2)])
        h.end_input()
        assert h.output == []
        h.set_processing_time(300)
        assert values(h.output)[:2] == ["A", "B"] and isinstance(h.output[2], Watermark)


# ---- functions ---------------------------------------------------------------------------------------------


class Resources(AsyncFunction):
    """What it opens belongs to a loop, and is closed on it."""

    log = []

    async def open(self, context):
        self.loop = asyncio.get_running_loop()
        self.log.append(("open", context.get_index_of_this_subtask()))

    async def async_invoke(self, value):
        assert asyncio.get_running_loop() is self.loop
        return (value, value)

    async def close(self):
        assert asyncio.get_running_loop() is self.loop
        self.log.append("closed")


def test_open_calls_and_close_run_on_one_event_loop():
    Resources.log.clear()
    with harness(ordered(Resources())) as h:
        h.process_element(1)
        assert values(h.output) == [1, 1]
    assert Resources.log == [("open", 0), "closed"]


class Blocks(AsyncFunction):
    def async_invoke(self, value):
        yield value
        yield -value


@pytest.mark.parametrize("function", [Blocks(), lambda value: [value, -value]], ids=["function", "callable"])
def test_a_function_that_is_no_coroutine_may_block(function):
    with harness(unordered(function)) as h:
        h.process_elements([(1, 10), (2, 20)])
        assert [(r.value, r.timestamp) for r in h.output] == [(1, 10), (-1, 10), (2, 20), (-2, 20)]


MAY_ANSWER = threading.Event()


async def outside(value):
    await asyncio.to_thread(MAY_ANSWER.wait)
    return [value]


def test_a_harness_waits_for_the_world_outside_when_it_is_asked_to():
    MAY_ANSWER.clear()
    with harness(ordered(outside)) as h:
        h.process_elements([(1, None), (2, None)])
        with pytest.raises(TimeoutError, match="2 calls have not answered"):
            h.wait_for_async_calls(timeout=1)
        assert h.output == []
        MAY_ANSWER.set()
        h.wait_for_async_calls()
        assert values(h.output) == [1, 2]


@pytest.mark.parametrize("given", ["text", None, 5, {"a": 1}])
def test_what_is_no_list_of_results_is_refused_with_the_record(given):
    async def invoke(value):
        return given

    with harness(ordered(invoke)) as h:
        with pytest.raises(UserFunctionError, match="async_invoke must return a list of results") as raised:
            h.process_element("r")
    assert raised.value.fields["record"] == "'r'"


def test_a_coroutine_that_nothing_awaits_is_explained():
    with harness(ordered(lambda value: sleep(value))) as h:
        with pytest.raises(UserFunctionError, match="write it with async def"):
            h.process_element(("a", 1))


def test_results_take_the_declared_type():
    with harness(ordered(lambda v: [v + 0.1], output_type=Types.FLOAT())) as h:
        h.process_element(1)
        assert values(h.output) == [pytest.approx(1.1)] and h.output[0].value != 1.1  # 32 bits wide


@both_forms
def test_nobody_sees_what_another_changes(fused):
    kept, shared = [], {"found": 0}

    async def changes(value):
        value.append("changed")
        await asyncio.sleep(0.1)
        shared["found"] += 1
        return [value, shared]

    def same_list(value):
        kept[:] = [value]
        return kept

    def build(stream):
        return ordered(changes)(stream.map(same_list)).map(lambda v: v.append("after") or v if isinstance(v, list) else v)

    with harness(build, fused) as h:
        h.process_elements([(1, None), (2, None)])
        snapshot = h.snapshot()
        h.set_processing_time(100)
        one, two = [1, "changed", "after"], [2, "changed", "after"]
        assert values(h.output) == [one, {"found": 1}, two, {"found": 2}]
    with StreamTestHarness.restore(build, snapshot) as h:
        h.set_processing_time(1_000)
        assert values(h.output)[::2] == [one, two], "the snapshot has the records as they came"


@pytest.mark.parametrize("where", ["timeout", "predicate", "downstream"])
@both_forms
def test_errors_of_other_user_code_name_their_operator(fused, where):
    class Function(AsyncFunction):
        def timeout(self, value):
            return [1 // 0]

        async def async_invoke(self, value):
            await asyncio.sleep(value)
            return [value]

    strategy = AsyncRetryStrategy.fixed_delay(1, 1, lambda results: 1 // 0 if where == "predicate" else False)

    def build(stream):
        stream = with_retry(Function(), strategy, 500)(stream).name("ask")
        return stream.map(lambda v: v / 0).name("after")

    with harness(build, fused) as h:
        with pytest.raises(UserFunctionError) as raised:
            h.process_element({"timeout": 10, "predicate": 0.2, "downstream": 0.1}[where])
            h.set_processing_time(5_000)
    assert raised.value.fields["operator"] == ("after" if where == "downstream" else "ask")
    assert raised.value.fields["exception_type"] == "ZeroDivisionError"


# ---- snapshots ---------------------------------------------------------------------------------------------

TRACE = [("r", 0, 40), ("r", 1, 10), ("clock", 15), ("w", 1), ("r", 2, 30), ("r", 3, 5), ("clock", 30), ("w", 3), ("r", 4, 1)]


def play(h, trace):
    for kind, *what in trace:
        if kind == "r":
            h.process_element((what[0], what[1]), what[0])
        elif kind == "w":
            h.process_watermark(what[0])
        else:
            h.set_processing_time(h._clock.now_ms() + what[0])


@pytest.mark.parametrize("backend, parallelism", [("hashmap", 1), ("rocksdb", 3)])
@pytest.mark.parametrize("mode", [ordered, unordered])
def test_a_snapshot_at_any_step_loses_nothing_and_repeats_nothing(mode, backend, parallelism):
    def build(stream):
        return mode()(stream).uid("ask").key_by(lambda n: n % 2).map(lambda n: n)

    for cut in range(len(TRACE) + 1):
        with StreamTestHarness(build, backend) as h:
            play(h, TRACE[:cut])
            snapshot, before = h.snapshot(), list(h.output)
        with StreamTestHarness.restore(build, snapshot, parallelism, state_backend=backend) as h:
            play(h, TRACE[cut:])
            h.set_processing_time(10_000)
            h.process_watermark(10)
            output = before + h.output
        found = [element.value for element in output if isinstance(element, StreamRecord)]
        assert Counter(found) == Counter(range(5)), cut
        if mode is ordered and parallelism == 1:
            assert found == sorted(found)
        watermark = -1
        for element in output:  # none is late that was not
            if isinstance(element, Watermark):
                watermark = element.timestamp
            else:
                assert element.timestamp == element.value > watermark, (cut, output)


def test_a_restored_operator_calls_for_no_more_than_its_capacity_and_takes_nothing_new_before():
    with harness(ordered(capacity=6)) as h:
        h.process_elements([((n, 50), n) for n in range(6)])
        snapshot = h.snapshot()
    Counting.now = Counting.most = 0
    with StreamTestHarness.restore(ordered(Counting(), capacity=2), snapshot) as h:
        h.process_element(("new", 0), 9)
        again = h.snapshot()
        h.set_processing_time(1_000)
        assert [value[0] for value in values(h.output)] == [0, 1, 2, 3, 4, 5, "new"]
        assert Counting.most == 2
    with StreamTestHarness.restore(ordered(Counting(), capacity=2), again) as h:
        h.set_processing_time(1_000)
        assert [value[0] for value in values(h.output)] == [0, 1, 2, 3, 4, 5]


def test_watermarks_are_made_behind_it_from_what_has_left():
    strategy = WatermarkStrategy.for_monotonous_timestamps()

    def build(stream):
        return unordered()(stream).assign_timestamps_and_watermarks(strategy)

    with harness(build) as h:
        h.process_element(("a", 100), 500)
        h.set_processing_time(99)
        assert h.output == []
        h.set_processing_time(1_000)
        assert h.output == [StreamRecord("a", 500), Watermark(499)]


# ---- arguments ---------------------------------------------------------------------------------------------


class AsyncTimeout(AsyncFunction):
    async def async_invoke(self, value):
        return []

    async def timeout(self, value):
        return []


async def gives(value):
    yield value


class Twice(AsyncFunction):
    async def async_invoke(self, value, result_future):
        return []


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((Late, 10), "give an object: Late()"),
        ((gives, 10), "asynchronous generator"),
        ((AsyncTimeout(), 10), "write timeout() with def"),
        ((Twice(), 10), "called with 1 argument"),
        ((5, 10), "cannot use a int"),
        ((sleep, -1), "it is negative"),
        ((sleep, "soon"), "soon"),
        ((sleep, 10, 0), "give at least 1"),
        ((sleep, 10, "many"), "capacity"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments, message):
    def build(stream):
        return AsyncDataStream.unordered_wait(stream, *arguments)

    with pytest.raises(InvalidJobError) as raised:
        harness(build)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"max_attempts": "3"},
        {"max_attempts": 1.5},
        {"max_attempts": 0},
        {"multiplier": "2"},
        {"multiplier": -1.0},
        {"multiplier": float("nan")},
        {"exception_predicate": ValueError},
        {"exception_predicate": lambda: True},
        {"result_predicate": False},
        {"initial_delay": -5},
    ],
)
def test_a_retry_strategy_that_could_not_be_asked_is_refused_where_it_is_made(changed):
    given = {"max_attempts": 3, "initial_delay": 10, "max_retry_delay": 100, "multiplier": 2.0}
    AsyncRetryStrategy.exponential_backoff(**given)
    with pytest.raises(InvalidJobError):
        AsyncRetryStrategy.exponential_backoff(**{**given, **changed})


def test_a_strategy_of_the_users_own_must_have_a_predicate():
    class Own(AsyncRetryStrategy):
        def can_retry(self, current_attempts):
            return True

        def get_backoff_time_millis(self, current_attempts):
            return 1

        def get_retry_predicate(self):
            return None

    with pytest.raises(InvalidJobError, match="Own.get_retry_predicate"):
        harness(lambda stream: AsyncDataStream.ordered_wait_with_retry(stream, sleep, 100, Own()))


def test_attempts_need_a_strategy_and_an_end():
    def build(timeout, strategy):
        return lambda stream: AsyncDataStream.ordered_wait_with_retry(stream, sleep, timeout, strategy)

    with pytest.raises(InvalidJobError, match="attempts need an end"):
        harness(build(0, AsyncRetryStrategy.fixed_delay(1, 1)))
    with pytest.raises(InvalidJobError, match="async_retry_strategy"):
        harness(build(10, None))
