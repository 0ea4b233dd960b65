"""The interval join: bounds, lateness, what it keeps and for how long, snapshots."""

import itertools

import pytest

from flinkish.datastream.join_functions import ProcessJoinFunction
from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.state import ValueStateDescriptor
from flinkish.errors import UserError, UserFunctionError
from flinkish.messages.checkpoints import IncrementalKeyedStateHandle
from flinkish.messages.elements import MAX_WATERMARK_MS
from flinkish.shell import snapshot_executor
from flinkish.testing import StreamRecord, StreamTestHarness, Watermark
from tests.rocksdb_states import FAST_DISK, tiny_caches

BACKENDS = ("hashmap", "rocksdb")
FORMS = (True, False)
LATE = (OutputTag("left late"), OutputTag("right late"))


def key(record):
    return record[0]


def joined(left, right, ctx):
    assert ctx.get_timestamp() == max(ctx.get_left_timestamp(), ctx.get_right_timestamp())
    yield left[1], right[1]


def interval(lower, upper, *exclusive, function=joined, tags=(), the_other_way=False):
    def build(left, right):
        if the_other_way:
            left, right = right, left
        join = left.key_by(key).interval_join(right.key_by(key)).between(lower, upper)
        join = join.lower_bound_exclusive() if "lower" in exclusive else join
        join = join.upper_bound_exclusive() if "upper" in exclusive else join
        if tags:
            join = join.side_output_left_late_data(tags[0]).side_output_right_late_data(tags[1])
        return join.process(function)

    return build


def harness(build, backend="hashmap", parallelism=1, fused=False):
    return StreamTestHarness(build, backend, parallelism, configuration={"flinkish.fused-chains": fused})


def both(harness, watermark):
    harness.process_watermark(watermark, 0)
    harness.process_watermark(watermark, 1)


def values(harness):
    return [element.value for element in harness.output if isinstance(element, StreamRecord)]


@pytest.mark.parametrize("backend, fused", [("hashmap", True), ("hashmap", False), ("rocksdb", True)])
@pytest.mark.parametrize(
    "exclusive, matches",
    [
        ((), [98, 99, 100, 101]),
        (("lower",), [99, 100, 101]),
        (("upper",), [98, 99, 100]),
        (("lower", "upper"), [99, 100]),
    ],
)
def test_bounds_belong_to_the_interval_or_not(exclusive, matches, backend, fused):
    """B09, with the left record first, last, and the predicate written the other way round."""
    for left_first, turned in itertools.product((True, False), repeat=2):
        bounds, excluded = (-2, 1), exclusive
        if turned:
            bounds = (-1, 2)
            excluded = tuple({"lower": "upper", "upper": "lower"}[bound] for bound in exclusive)
        with harness(interval(*bounds, *excluded, the_other_way=turned), backend, fused=fused) as h:
            left = [(("a", "left"), 100, 0)]
            right = [(("a", time), time, 1) for time in (97, 98, 99, 100, 101, 102)] + [(("b", 100), 100, 1)]
            for value, time, side in (left + right) if left_first else (right + left):
                h.process_element(value, time, side)
            pairs = [(time, "left") if turned else ("left", time) for time in matches]
            assert h.output == [StreamRecord(pair, max(100, time)) for pair, time in zip(pairs, matches)]


def test_an_interval_that_holds_nothing_gives_nothing_and_keeps_nothing():
    with harness(interval(0, 0, "lower", "upper")) as h:
        for side in (0, 1):
            h.process_elements([(("a", time), time) for time in (99, 100, 101)], side)
        both(h, 101)
        assert values(h) == []
        assert h.num_keyed_state_entries() == 0


@pytest.mark.parametrize("fused", FORMS)
def test_a_record_at_the_watermark_is_late_and_one_above_it_is_not(fused):
    """The one rule of all operators that judge single records."""
    with harness(interval(-5, 5, tags=LATE), fused=fused) as h:
        both(h, 999)
        for side, time in itertools.product((0, 1), (998, 999, 1000)):
            h.process_element(("a", time), time, side)
        assert values(h) == [(1000, 1000)]
        for tag in LATE:
            assert h.side_output(tag) == [StreamRecord(("a", 998), 998), StreamRecord(("a", 999), 999)]


@pytest.mark.parametrize("fused", FORMS)
def test_the_watermark_is_that_of_the_input_that_is_behind(fused):
    with harness(interval(-5, 5, tags=LATE), fused=fused) as h:
        h.process_watermark(100, 0)
        h.process_watermark(10, 1)
        h.process_element(("a", "l"), 11, 0)
        h.process_element(("a", "r"), 9, 1)
        assert [h.side_output(tag) for tag in LATE] == [[], [StreamRecord(("a", "r"), 9)]]
        h.process_element(("a", "r"), 16, 1)
        assert values(h) == [("l", "r")]


@pytest.mark.parametrize("fused", FORMS)
def test_late_records_are_counted_where_no_side_output_takes_them(fused):
    with harness(interval(0, 0), fused=fused) as h:
        both(h, 5)
        h.process_elements([(("a", 1), 5), (("a", 2), 4), (("a", 3), 6)], 0)
        assert sum(chain.metrics()["numLateRecordsDropped"] for chain in _joins(h)) == 2


def _joins(harness):
    return [chain for chain in harness._core.chains() if "numLateRecordsDropped" in chain.metrics()]


@pytest.mark.parametrize(
    "bounds, left_goes, right_goes",
    [((-2, 1), 101, 102), ((3, 5), 105, 97), ((-5, -3), 97, 105), ((0, 0), 100, 100)],
)
def test_what_is_kept_goes_when_the_watermark_says_that_nothing_can_join_with_it(
    bounds, left_goes, right_goes
):
    for side, goes in ((0, left_goes), (1, right_goes)):
        with harness(interval(*bounds)) as h:
            both(h, 90)
            h.process_element(("a", "x"), 100, side)
            both(h, goes - 1)
            assert h.num_keyed_state_entries() == 1
            both(h, goes)
            assert h.num_keyed_state_entries() == 0


def test_what_nothing_to_come_can_join_with_is_not_kept_at_all():
    with harness(interval(-10, -5)) as h:
        both(h, 96)
        h.process_element(("a", "left"), 101, 0)  # with the right of 91 to 96, all late by now
        assert h.num_keyed_state_entries() == 0
        h.process_element(("a", "left"), 102, 0)
        assert h.num_keyed_state_entries() == 1


def test_records_of_a_key_that_lie_near_share_an_entry_which_goes_with_the_last_of_them():
    with harness(interval(0, 999)) as h:
        h.process_elements([(("a", time), time) for time in range(500, 0, -1)], 0)
        assert h.num_keyed_state_entries() == 1
        h.process_element(("a", "r"), 250, 1)
        assert values(h) == [(time, "r") for time in range(1, 251)]
        both(h, 500 + 998)
        assert h.num_keyed_state_entries() == 1
        both(h, 500 + 999)
        assert h.num_keyed_state_entries() == 0


@pytest.mark.parametrize("fused", FORMS)
def test_times_at_the_ends_of_what_64_bits_hold_join(fused):
    with harness(interval(-(2**62), 2**62), fused=fused) as h:
        for side, time in ((0, MAX_WATERMARK_MS - 1), (1, MAX_WATERMARK_MS - 3), (0, -(2**63) + 1), (1, -(2**63) + 3)):
            h.process_element(("a", time), time, side)
        found = values(h)
        assert found == [
            (MAX_WATERMARK_MS - 1, MAX_WATERMARK_MS - 3),
            (-(2**63) + 1, -(2**63) + 3),
        ]
        snapshot = h.snapshot()
        both(h, MAX_WATERMARK_MS)
        assert h.num_keyed_state_entries() == 0
    with StreamTestHarness.restore(interval(-(2**62), 2**62), snapshot, 1, "rocksdb") as h:
        h.clear_output()
        h.process_element(("a", "r"), MAX_WATERMARK_MS - 2, 1)
        assert values(h) == [(MAX_WATERMARK_MS - 1, "r")]


@pytest.mark.parametrize("fused", FORMS)
def test_a_record_without_event_time_is_refused_with_advice(fused):
    for time, batch in ((None, [(("a", 1), None)]), (5, [(("a", 1), 5), (("a", 2), None)])):
        with harness(interval(0, 1), fused=fused) as h:
            with pytest.raises(UserError, match="without event time came to an interval join") as refused:
                h.process_elements(batch, 1)
            assert "Interval Join" in str(refused.value)
            assert "assign_timestamps_and_watermarks" in refused.value.do


class Counting(ProcessJoinFunction):
    """Results to two outputs, and state of the key."""

    side = OutputTag("side")

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, left, right, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield self.side, count
        yield left[0], count


@pytest.mark.parametrize("fused", FORMS)
def test_a_function_has_state_of_the_key_and_side_outputs(fused):
    with harness(interval(-1, 1, function=Counting()), fused=fused) as h:
        for side, name in itertools.product((0, 1), "aab"):
            h.process_element((name, side), 10, side)
        assert values(h) == [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1)]
        assert [record.value for record in h.side_output(Counting.side)] == [1, 2, 3, 4, 1]


@pytest.mark.parametrize("fused", FORMS)
def test_what_a_function_does_to_a_record_that_it_has_given_out_changes_no_result(fused):
    def function(left, right, ctx):
        left[1].append("joined")
        return [left]

    with harness(interval(-9, 9, function=function), fused=fused) as h:
        h.process_element(("a", []), 10, 0)
        h.process_elements([(("a", 1), 10), (("a", 2), 11)], 1)
        assert values(h) == [("a", ["joined"]), ("a", ["joined", "joined"])]


@pytest.mark.parametrize("fused", FORMS)
def test_an_error_of_the_function_names_operator_and_record(fused):
    with harness(interval(0, 5, function=lambda left, right, ctx: 1 / right[1]), fused=fused) as h:
        h.process_element(("a", "left"), 1, 0)
        with pytest.raises(UserFunctionError, match="Interval Join") as failed:
            h.process_element(("a", 0), 2, 1)
        assert failed.value.fields["exception_type"] == "ZeroDivisionError"
        assert failed.value.fields["record"] == "('a', 0)"


@pytest.mark.parametrize("fused", FORMS)
def test_a_function_that_returns_no_iterable_is_told_so(fused):
    with harness(interval(0, 5, function=lambda left, right, ctx: 7), fused=fused) as h:
        h.process_element(("a", 1), 1, 0)
        with pytest.raises(UserFunctionError, match="must return an iterable or yield"):
            h.process_element(("a", 2), 2, 1)


# ---- snapshots ----------------------------------------------------------------------------------


SCRIPT = [
    (0, ("a", "l1"), 10), (1, ("a", "r1"), 9), (1, ("b", "r2"), 12), 8, (0, ("b", "l2"), 14), (0, ("a", "l3"), 12),
    (1, ("a", "r3"), 8), 11, (1, ("a", "r4"), 13), (0, ("b", "l4"), 12), 13, (1, ("b", "r5"), 16),
    (0, ("a", "l5"), 15), 30,
]  # fmt: skip
EXPECTED = [
    StreamRecord(("l1", "r1"), 10), StreamRecord(("l2", "r2"), 14), StreamRecord(("l1", "r4"), 13),
    StreamRecord(("l3", "r4"), 13), StreamRecord(("l4", "r2"), 12), StreamRecord(("l2", "r5"), 16),
    StreamRecord(("l5", "r4"), 15),
]  # fmt: skip


@pytest.mark.parametrize(
    "backends, fused", [(("hashmap",), True), (("hashmap",), False), (("rocksdb",), True), (BACKENDS, False)]
)
def test_a_join_that_is_cut_after_every_step_goes_on(backends, fused):
    build = interval(-2, 3, tags=LATE)
    output, late = [], []
    with tiny_caches():
        h = harness(build, backends[0], fused=fused)
        for number, step in enumerate(SCRIPT):
            if isinstance(step, int):
                both(h, step)
            else:
                side, value, time = step
                h.process_element(value, time, side)
            snapshot = h.snapshot()
            output += [element for element in h.output if not isinstance(element, Watermark)]
            late += [record for tag in LATE for record in h.side_output(tag)]
            entries = h.num_keyed_state_entries()
            h.close()
            h = StreamTestHarness.restore(
                build, snapshot, 1 + number % 3, backends[number % len(backends)],
                configuration={"flinkish.fused-chains": fused},
            )  # fmt: skip
            if backends == ("hashmap",):
                assert h.num_keyed_state_entries() == entries
            h.clear_output()
        h.close()
    assert output == EXPECTED
    assert late == [StreamRecord(("a", "r3"), 8)]


@pytest.mark.parametrize(
    "new_bounds, backend, incremental",
    [
        ((-800, 100), "hashmap", False),
        ((-100, 800), "rocksdb", False),
        ((-100, 800), "rocksdb", True),
        ((-100, 0), "hashmap", False),
    ],
)
def test_other_bounds_after_a_restore_hold_for_what_was_kept_too(
    new_bounds, backend, incremental, tmp_path, monkeypatch
):
    monkeypatch.setattr(snapshot_executor, "INLINE_BYTES_MAX", 100)
    lower, upper = new_bounds
    options = {"execution.checkpointing.dir": str(tmp_path)} if incremental else {}
    if FAST_DISK is not None:
        options["state.backend.rocksdb.localdir"] = FAST_DISK
    with tiny_caches():
        with StreamTestHarness(interval(-300, 300), backend, 2, configuration=options) as h:
            h.process_elements([((name, time), time) for name in "abc" for time in (500, 600, 900, 1300)], 0)
            h.process_elements([((name, time), time) for name in "abc" for time in (700, 1200)], 1)
            both(h, 700)
            for number in range(4 if incremental else 0):  # until there are files to refer to
                h.process_elements([((f"other {number} {n}", n), 900) for n in range(30)], number % 2)
                h.checkpoint()
            snapshot = h.checkpoint() if incremental else h.snapshot()
            if incremental:
                handles = [h for o in snapshot.operators.values() for s in o.subtasks.values() for h in s.keyed]
                assert any(isinstance(handle, IncrementalKeyedStateHandle) for handle in handles)
        with StreamTestHarness.restore(interval(lower, upper), snapshot, 1, backend, configuration=options) as h:
            h.clear_output()
            h.process_element(("b", 1400), 1400, 1)
            h.process_element(("b", 1400), 1400, 0)
            expected = [(left, 1400) for left in (500, 600, 900, 1300) if lower <= 1400 - left <= upper]
            expected += [(1400, right) for right in (700, 1200, 1400) if lower <= right - 1400 <= upper]
            assert sorted(values(h)) == sorted(expected)
            again = h.snapshot()
            both(h, 4000)
            if backend == "hashmap":
                assert h.num_keyed_state_entries() == 0
        with StreamTestHarness.restore(interval(lower, upper), again, 2, backend) as h:
            h.clear_output()
            h.process_element(("c", 1400), 1400, 1)
            assert sorted(values(h)) == [(left, 1400) for left in (600, 900, 1300) if lower <= 1400 - left <= upper]
