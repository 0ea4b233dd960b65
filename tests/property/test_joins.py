"""Joins against nested loops: any two streams, disorder, lateness, split into batches, parallelism, backend, and a
restore in the middle."""

from contextlib import nullcontext

from hypothesis import given, settings
from hypothesis import strategies as st

from flinkish.datastream.output_tag import OutputTag
from flinkish.testing import StreamRecord, StreamTestHarness, Watermark
from tests.property.test_windows import Reference, assigner_of, assigners, between_watermarks
from tests.rocksdb_states import tiny_caches

LEFT_LATE, RIGHT_LATE = OutputTag("left late"), OutputTag("right late")


def key_of(record):
    return record[0]


@st.composite
def scripts(draw):
    """Steps (input, watermark) or (input, records); a record is (key, value, time), watermarks of an input rise."""
    marks, steps = [draw(st.integers(-40, 0)), draw(st.integers(-40, 0))], []
    for _ in range(draw(st.integers(1, 10))):
        side = draw(st.integers(0, 1))
        if draw(st.integers(0, 2)) == 0:
            marks[side] += draw(st.integers(1, 25))
            steps.append((side, marks[side]))
        else:
            near = min(marks)
            record = st.tuples(st.sampled_from("aab"), st.integers(1, 9), st.integers(near - 15, near + 30))
            steps.append((side, draw(st.lists(record, min_size=1, max_size=6))))
    end = max(marks) + 200
    return steps + [(0, end), (1, end)]


def scaled(step, by):
    if isinstance(step, int):
        return step * by
    return [(key, value, time * by) for key, value, time in step]


class Marks:
    """The watermark of two inputs, as their operator sees it."""

    def __init__(self):
        self.of, self.combined = [-(2**63)] * 2, -(2**63)

    def advance(self, side, watermark):
        """The new one, or None."""
        self.of[side] = watermark
        if min(self.of) == self.combined:
            return None
        self.combined = min(self.of)
        return self.combined


def run(pipeline, script, backend, fused, parallelism, cut, tags=()):
    """Output, and what went to ``tags``."""
    output, late = [], {tag.tag_id: [] for tag in tags}
    options = {"configuration": {"flinkish.fused-chains": fused}}

    def take(harness):
        output.extend(harness.output)
        for tag in tags:
            late[tag.tag_id] += harness.side_output(tag)

    with tiny_caches() if backend == "rocksdb" else nullcontext():
        harness = StreamTestHarness(pipeline, backend, parallelism, **options)
        for number, (side, step) in enumerate(script):
            if isinstance(step, int):
                harness.process_watermark(step, side)
            else:
                harness.process_elements([((key, value), time) for key, value, time in step], side)
            if number == cut:
                snapshot = harness.snapshot()
                take(harness)
                harness.close()
                harness = StreamTestHarness.restore(pipeline, snapshot, 3 - parallelism, backend, **options)
                harness.clear_output()  # sources tell their watermarks again
        take(harness)
        left = harness.num_keyed_state_entries() if backend == "hashmap" else 0  # an estimate in RocksDB
        assert left == harness.num_event_time_timers() == 0
        harness.close()
    return output, late


forms = {
    "backend": st.sampled_from(["hashmap", "hashmap", "rocksdb"]),
    "fused": st.sampled_from([True, False, False]),
    "parallelism": st.integers(1, 2),
    "cut": st.integers(0, 9),
}


@settings(max_examples=35, deadline=None)
@given(
    bounds=st.tuples(st.integers(-15, 15), st.integers(-15, 15)).map(sorted),
    scales=st.sampled_from([(1, 1), (100, 1), (100, 100)]),
    exclusive=st.tuples(st.booleans(), st.booleans()),
    script=scripts(),
    **forms,
)
def test_an_interval_join_gives_what_a_nested_loop_gives(
    bounds, scales, exclusive, script, backend, fused, parallelism, cut
):
    """Times are scaled too, so that records fall into one bucket, or several."""
    (lower, upper), (above, below) = (bound * scales[1] for bound in bounds), exclusive
    script = [(side, scaled(step, scales[0])) for side, step in script]

    def pipeline(one, other):
        join = one.key_by(key_of).interval_join(other.key_by(key_of)).between(lower, upper)
        join = join.lower_bound_exclusive() if above else join
        join = join.upper_bound_exclusive() if below else join
        join = join.side_output_left_late_data(LEFT_LATE).side_output_right_late_data(RIGHT_LATE)
        return join.process(
            lambda left, right, ctx: [(left, right, ctx.get_left_timestamp(), ctx.get_right_timestamp())]
        )

    def near(left, right):
        distance = right[2] - left[2]
        return left[0] == right[0] and lower + above <= distance <= upper - below

    expected, late, seen, marks = [], ([], []), ([], []), Marks()
    for side, step in script:
        if isinstance(step, int):
            combined = marks.advance(side, step)
            expected += [] if combined is None else [Watermark(combined)]
            continue
        for record in step:
            if record[2] <= marks.combined:
                late[side].append(StreamRecord(record[:2], record[2]))
                continue
            for other in seen[1 - side]:
                left, right = (record, other) if side == 0 else (other, record)
                if near(left, right):
                    joined = left[:2], right[:2], left[2], right[2]
                    expected.append(StreamRecord(joined, max(left[2], right[2])))
            seen[side].append(record)

    output, found_late = run(pipeline, script, backend, fused, parallelism, cut, (LEFT_LATE, RIGHT_LATE))
    assert between_watermarks(output) == between_watermarks(expected)
    for records, tag in zip(late, (LEFT_LATE, RIGHT_LATE)):
        assert sorted(found_late[tag.tag_id], key=repr) == sorted(records, key=repr)
    reached = -(2**63)
    for element in output:
        assert element.timestamp > reached or isinstance(element, Watermark)
        reached = element.timestamp if isinstance(element, Watermark) else reached


class Pairs(Reference):
    """Values are (input, value)."""

    def __init__(self, assigner, lateness, method):
        super().__init__(*assigner, lateness)
        self.method = method

    def fire(self, key, start, end):
        first, second = ([value for of, value in self.windows[key, start, end] if of == side] for side in (0, 1))
        if self.method == "join":
            found = [(key, one, other) for one in first for other in second]
        else:
            found = [(sorted((key, one) for one in first), sorted((key, other) for other in second))]
        self.output += [StreamRecord(value, end - 1) for value in found]


@settings(max_examples=25, deadline=None)
@given(
    assigner=assigners(),
    lateness=st.sampled_from([0, 0, 5, 40]),
    method=st.sampled_from(["join", "co_group"]),
    script=scripts(),
    **forms,
)
def test_a_join_of_windows_gives_what_a_nested_loop_gives(
    assigner, lateness, method, script, backend, fused, parallelism, cut
):
    def pipeline(one, other):
        streams = getattr(one, method)(other).where(key_of).equal_to(key_of)
        windowed = streams.window(assigner_of(*assigner)).allowed_lateness(lateness)
        if method == "join":
            return windowed.apply(lambda first, second: (first[0], first[1], second[1]))
        return windowed.apply(lambda first, second: [(sorted(first), sorted(second))])

    reference, marks = Pairs(assigner, lateness, method), Marks()
    for side, step in script:
        if isinstance(step, int):
            combined = marks.advance(side, step)
            if combined is not None:
                reference.advance(combined)
            continue
        for key, value, time in step:
            reference.record(key, (side, value), time)
    output, _ = run(pipeline, script, backend, fused, parallelism, cut)
    assert between_watermarks(output) == between_watermarks(reference.output)
