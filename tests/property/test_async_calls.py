"""AsyncCalls against the rules themselves: any completions, timeouts, attempts, watermarks and clock, at every step a snapshot."""

from hypothesis import given
from hypothesis import strategies as st

from flinkish.messages.elements import Watermark, WatermarkStatus
from flinkish.operators.async_io.async_calls import AskTimeout, AsyncCalls, Cancel, Fail, Start
from flinkish.operators.async_io.element_queue import AsyncRecord

BAD = "try again"  # a result, and the message of an error, with which the strategy is not content


class World:
    """Carries effects out by hand: calls are a dict, and outcomes are noted."""

    def __init__(self, ordered, capacity, timeout_ms, attempts):
        self.attempts, self.timeout_ms = attempts, timeout_ms
        self.calls = AsyncCalls(ordered, capacity, timeout_ms, self.retry_delay if attempts > 1 else None)
        self.now_ms = 0
        self.under_way = {}  # (number, attempt) -> value
        self.old = []  # calls that nobody waits for, and may answer all the same
        self.started = {}  # value -> times of its attempts
        self.timed_out, self.failed, self.left = set(), [], []
        self.begun_after = {}  # value -> when its call was first begun

    def retry_delay(self, record, results, error):
        if record.attempt >= self.attempts or (results != [BAD] if error is None else str(error) != BAD):
            return None
        return 3 * record.attempt

    def obey(self, effects):
        for effect in effects:
            match effect:
                case Start(record):
                    assert record.results is None and (record.number, record.attempt) not in self.under_way
                    self.under_way[record.number, record.attempt] = record.value
                    self.started.setdefault(record.value, []).append(self.now_ms)
                case Cancel(number, attempt):
                    self.old.append((number, attempt, self.under_way.pop((number, attempt))))
                case AskTimeout(record):
                    assert self.now_ms - self.started[record.value][0] >= self.timeout_ms > 0
                    assert record.value not in self.timed_out
                    self.timed_out.add(record.value)
                    self.calls.finish(record, [("timeout", record.value)])
                case Fail(record, error):
                    self.failed.append((record.value, str(error)))

    def answer(self, index, kind):
        key = sorted(self.under_way)[index % len(self.under_way)]
        value = self.under_way.pop(key)
        self.old.append((*key, value))
        results, error = {
            "good": ([("result", value)], None),
            "many": ([("result", value), ("and", value)], None),
            "none": ([], None),
            "bad": ([BAD], None),
            "error": (None, ValueError(BAD)),
        }[kind]
        last = self.attempts == 1 or key[1] >= self.attempts
        fails = error is not None and last
        self.obey(self.calls.answered(*key, results, error, self.now_ms))
        assert bool(self.failed) == fails

    def answer_again(self):
        for number, attempt, value in self.old:
            assert self.calls.answered(number, attempt, [("late", value)], None, self.now_ms) == []

    def take(self):
        while (head := self.calls.head) is not None:
            self.calls.take()
            if type(head) is AsyncRecord:
                self.left.append(("record", head.value, tuple(head.results)))
            else:
                self.left.append(("control", head))


KINDS = st.sampled_from(["good", "many", "none", "bad", "error"])
EVENTS = st.one_of(
    st.tuples(st.just("add")),
    st.tuples(st.just("add")),
    st.tuples(st.just("answer"), st.integers(0, 7), KINDS),
    st.tuples(st.just("answer"), st.integers(0, 7), KINDS),
    st.tuples(st.just("again")),
    st.tuples(st.just("watermark")),
    st.tuples(st.just("status")),
    st.tuples(st.just("clock"), st.integers(1, 9)),
    st.tuples(st.just("take")),
)


@given(
    ordered=st.booleans(),
    capacity=st.integers(1, 4),
    timeout_ms=st.sampled_from([0, 5, 12]),
    attempts=st.integers(1, 3),
    restored=st.integers(0, 6),
    events=st.lists(EVENTS, max_size=60),
)
def test_each_record_has_one_outcome_and_leaves_in_its_place(ordered, capacity, timeout_ms, attempts, restored, events):
    world = World(ordered, capacity, timeout_ms, attempts)
    calls, came = world.calls, [("record", -n) for n in range(restored, 0, -1)]
    calls.restore((-n, None) for n in range(restored, 0, -1))
    world.obey(calls.advance(0))
    added = 0
    for event in events:
        match event:
            case ("add",) if calls.room > 0:
                added += 1
                came.append(("record", added))
                world.obey(calls.add(added, None, world.now_ms))
            case ("answer", index, kind) if world.under_way:
                world.answer(index, kind)
            case ("again",):
                world.answer_again()
            case ("watermark",):
                added += 1
                control = Watermark(added)
                if came and came[-1][0] == "control" and type(came[-1][1]) is Watermark and not calls.is_empty:
                    if ("control", came[-1][1]) not in world.left:
                        came.pop()  # no record stands between them
                came.append(("control", control))
                calls.add_control(control)
            case ("status",):
                came.append(("control", WatermarkStatus(added % 2 == 0)))
                calls.add_control(came[-1][1])
            case ("clock", ms):
                world.now_ms += ms
                next_ms = calls.next_time_ms
                effects = calls.advance(world.now_ms)
                assert not effects or (next_ms is not None and next_ms <= world.now_ms)
                world.obey(effects)
            case ("take",):
                world.take()
                world.obey(calls.advance(world.now_ms))  # the backlog has room now
        calls.check()
        if world.failed:
            return  # the job ends here
        left = [entry[1] for entry in world.left if entry[0] == "record"]
        assert [value for value, _ in calls.records()] == [v for k, v in came if k == "record" and v not in left]
    while not calls.is_empty:  # the input has ended
        world.take()
        world.obey(calls.advance(world.now_ms))
        if world.under_way:
            world.answer(0, "bad")  # and is the outcome when no attempt is left
        elif calls.next_time_ms is not None:
            world.now_ms = max(world.now_ms, calls.next_time_ms)
        world.answer_again()
        calls.check()
        assert world.under_way or calls.head is not None or calls.is_empty or calls.next_time_ms is not None
    check_order(ordered, came, world)


def check_order(ordered, came, world):
    """One outcome each; nothing passes a control, and when ordered nothing passes anything."""
    left = [entry[:2] for entry in world.left]
    assert len(left) == len(came)
    assert [entry for entry in left if entry[0] == "control"] == [entry for entry in came if entry[0] == "control"]
    if ordered:
        assert left == came
    assert _segments(left) == _segments(came)
    for kind, value, *results in world.left:
        if kind == "record":
            first = results[0][:1]
            assert (first == (("timeout", value),)) == (value in world.timed_out)
            assert first in [(), (BAD,), (("timeout", value),), (("result", value),)]
            assert len(world.started[value]) <= world.attempts
            assert first != (BAD,) or len(world.started[value]) == world.attempts


def _segments(entries):
    segments = [set()]
    for kind, value in entries:
        if kind == "control":
            segments.append(set())
        else:
            segments[-1].add(value)
    return segments
