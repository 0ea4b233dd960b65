"""Windows against a naive reference that keeps every record of every window in a list: any stream, disorder, lateness,
split into batches, parallelism, backend, and a restore in the middle."""

from contextlib import nullcontext

from hypothesis import given, settings
from hypothesis import strategies as st

from flinkish.datastream.functions import AggregateFunction, ProcessWindowFunction
from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.time_window import TimeWindow
from flinkish.datastream.window import (
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from flinkish.testing import StreamRecord, StreamTestHarness, Watermark
from tests.rocksdb_states import tiny_caches

LATE = OutputTag("late")


# ---- the reference ----------------------------------------------------------------------------------


def windows_of(kind, size, slide, offset, time):
    """(start, end) by definition: all that hold ``time``, among those near it."""
    around = range((time - offset) // slide * slide + offset - 3 * size, time + 1)
    if kind == "session":
        return [(time, time + size)]
    if kind == "cumulative":
        starts = [start for start in around if (start - offset) % size == 0 and start <= time < start + size]
        return [(start, end) for start in starts for end in range(start + slide, start + size + 1, slide) if time < end]
    return [(start, start + size) for start in around if (start - offset) % slide == 0 and start <= time < start + size]


class Reference:
    def __init__(self, kind, size, slide, offset, lateness):
        self.assigner = kind, size, slide, offset
        self.merges, self.lateness = kind == "session", lateness
        self.watermark = -(2**63)
        self.windows = {}  # (key, start, end) -> values
        self.output, self.late = [], []

    def record(self, key, value, time):
        taken = False
        for start, end in windows_of(*self.assigner, time):
            values = [value]
            if self.merges:
                touching = sorted(w for w in self.windows if w[0] == key and w[1] <= end and w[2] >= start)
                start, end = min([start, *(w[1] for w in touching)]), max([end, *(w[2] for w in touching)])
                if end - 1 + self.lateness > self.watermark:
                    values = [v for w in touching for v in self.windows.pop(w)] + values
            if end - 1 + self.lateness <= self.watermark:
                continue
            taken = True
            self.windows.setdefault((key, start, end), []).extend(values)
            if end - 1 <= self.watermark:
                self.fire(key, start, end)
        if not taken and time + self.lateness <= self.watermark:
            self.late.append(StreamRecord((key, value, 1), time))

    def advance(self, watermark):
        for key, start, end in list(self.windows):
            if self.watermark < end - 1 <= watermark:
                self.fire(key, start, end)
            if end - 1 + self.lateness <= watermark:
                del self.windows[key, start, end]
        self.watermark = watermark
        self.output.append(Watermark(watermark))

    def fire(self, key, start, end):
        values = self.windows[key, start, end]
        self.output.append(StreamRecord((key, start, end, sum(values), len(values)), end - 1))


# ---- the real thing ---------------------------------------------------------------------------------


def assigner_of(kind, size, slide, offset):
    if kind == "tumbling":
        return TumblingEventTimeWindows.of(size, offset)
    if kind == "sliding":
        return SlidingEventTimeWindows.of(size, slide, offset)
    if kind == "cumulative":
        return CumulativeEventTimeWindows.of(size, slide, offset)
    return EventTimeSessionWindows.with_gap(size)


class SumAndCount(AggregateFunction):
    def create_accumulator(self):
        return [0, 0]

    def add(self, value, accumulator):
        accumulator[0] += value[1]
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator):
        return tuple(accumulator)

    def merge(self, acc_a, acc_b):
        return [acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]]


class OfWindow(ProcessWindowFunction):
    """Of records, of one reduced record or of one aggregate."""

    def process(self, key, context, elements):
        elements, window = list(elements), context.window()
        if self.of == "process":
            total, count = sum(value for _, value, _ in elements), len(elements)
        else:
            ((total, count),) = elements if self.of == "aggregate" else [elements[0][1:]]
        yield key, window.start, window.end, total, count

    def __init__(self, of):
        self.of = of


def add(one, other):
    return one[0], one[1] + other[1], one[2] + other[2]


def build(kind, size, slide, offset, lateness, function):
    def pipeline(stream):
        windowed = stream.key_by(lambda r: r[0]).window(assigner_of(kind, size, slide, offset))
        windowed = windowed.allowed_lateness(lateness).side_output_late_data(LATE)
        if function == "reduce":
            return windowed.reduce(add, OfWindow(function))
        if function == "aggregate":
            return windowed.aggregate(SumAndCount(), OfWindow(function))
        return windowed.process(OfWindow(function))

    return pipeline


def between_watermarks(elements):
    """What lies between two watermarks in any order: keys have none."""
    runs = [[]]
    for element in elements:
        if isinstance(element, Watermark):
            runs += [element], []
        else:
            runs[-1].append(element)
    return [run if isinstance(run, Watermark) else sorted(run, key=repr) for run in runs if run]


@st.composite
def scripts(draw):
    """Batches of records (key, value, time), and watermarks, which rise."""
    steps, watermark = [], draw(st.integers(-40, 0))
    for _ in range(draw(st.integers(1, 8))):
        if draw(st.booleans()):
            watermark += draw(st.integers(1, 25))
            steps.append(watermark)
        else:
            record = st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.integers(watermark - 30, watermark + 30))
            steps.append(draw(st.lists(record, min_size=1, max_size=6)))
    return steps + [watermark + 200]


@st.composite
def assigners(draw):
    kind = draw(st.sampled_from(["tumbling", "sliding", "cumulative", "session"]))
    slide = draw(st.integers(1, 9))
    size = slide * draw(st.integers(1, 4)) if kind == "cumulative" else draw(st.integers(1, 20))
    if kind in ("tumbling", "session"):
        slide = size
    return kind, size, slide, draw(st.integers(1 - slide, slide - 1)) if kind != "session" else 0


@settings(max_examples=70, deadline=None)
@given(
    assigner=assigners(),
    lateness=st.sampled_from([0, 0, 5, 40]),
    function=st.sampled_from(["reduce", "aggregate", "process"]),
    script=scripts(),
    backend=st.sampled_from(["hashmap", "hashmap", "rocksdb"]),
    fused=st.sampled_from([True, False, False]),
    parallelism=st.integers(1, 2),
    cut=st.integers(0, 8),
)
def test_windows_give_what_a_naive_reference_gives(
    assigner, lateness, function, script, backend, fused, parallelism, cut
):
    reference = Reference(*assigner, lateness)
    pipeline = build(*assigner, lateness, function)
    options = {"configuration": {"flinkish.fused-chains": fused}}
    with tiny_caches() if backend == "rocksdb" else nullcontext():
        output, late = [], []
        harness = StreamTestHarness(pipeline, backend, parallelism, **options)
        for number, step in enumerate(script):
            if isinstance(step, int):
                reference.advance(step)
                harness.process_watermark(step)
            else:
                for key, value, time in step:
                    reference.record(key, value, time)
                harness.process_elements([((key, value, 1), time) for key, value, time in step])
            if number == cut:
                snapshot = harness.snapshot()
                output, late = list(harness.output), list(harness.side_output(LATE))
                harness.close()
                harness = StreamTestHarness.restore(pipeline, snapshot, 3 - parallelism, backend, **options)
                harness.clear_output()  # sources tell their watermarks again
        output, late = output + harness.output, late + harness.side_output(LATE)
        left = harness.num_keyed_state_entries() if backend == "hashmap" else 0  # an estimate in RocksDB
        assert left == harness.num_event_time_timers() == 0
        harness.close()
    assert between_watermarks(output) == between_watermarks(reference.output)
    assert sorted(late, key=repr) == sorted(reference.late, key=repr)


@given(times=st.lists(st.integers(-60, 60), min_size=1, max_size=12), gap=st.integers(1, 12))
def test_sessions_of_a_reference_are_the_runs_of_near_times(times, gap):
    """The reference itself, against another definition: a session ends where the next time is more than a gap away."""
    reference = Reference("session", gap, gap, 0, 0)
    for time in times:
        reference.record("a", 1, time)
    found = sorted(TimeWindow(start, end) for _, start, end in reference.windows)
    ordered, runs = sorted(times), []
    for time in ordered:
        if runs and time <= runs[-1].end:
            runs[-1].end = time + gap
        else:
            runs.append(TimeWindow(time, time + gap))
    assert found == runs
