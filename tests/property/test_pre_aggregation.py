"""Windows and reductions with pre-aggregation against those without: any stream, batch size, latency, split by
watermarks, parallelism, backend, form of the chain, and a restore in the middle."""

from collections import Counter
from contextlib import nullcontext

from hypothesis import given, settings
from hypothesis import strategies as st

from flinkish.common.time import Time
from flinkish.datastream.functions import AggregateFunction
from flinkish.datastream.window import SlidingEventTimeWindows, TumblingEventTimeWindows
from flinkish.testing import StreamRecord, StreamTestHarness
from tests.rocksdb_states import tiny_caches


class Values(AggregateFunction):
    """Accumulators are changed in place, and ``merge`` may give either of them back."""

    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        accumulator.append(value[1])
        return accumulator

    def get_result(self, accumulator):
        return sorted(accumulator)

    def merge(self, acc_a, acc_b):
        acc_b.extend(acc_a)
        return acc_b


def gather(first, second):
    first[1].extend(second[1])
    return first


def with_key(key, window, results):
    return [(key, window.start, window.end, sorted(result[1])) for result in results]


def named(row):
    return tuple(row.as_dict().items())


KINDS = {
    "aggregate": lambda windowed: windowed.aggregate(Values()),
    "reduce": lambda windowed: windowed.reduce(gather, with_key),
    "fields": lambda windowed: windowed.aggregate_fields(
        n="count", total=(2, "sum"), mean=(2, "avg"), top=(2, "max")
    ).map(named),
}

steps_of = st.lists(
    st.one_of(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 99), st.integers(-20, 60)), min_size=1, max_size=8),
        st.integers(-10, 70),  # a watermark
        st.just("later"),  # the clock goes on
        st.just("snapshot"),
    ),
    max_size=8,
)


def results_of(steps, build, backend="hashmap", parallelism=1, fused=True):
    """Counted results, by (value, time)."""
    options = {"configuration": {"flinkish.fused-chains": fused}}
    found, now_ms = Counter(), 0

    def take():
        found.update((repr(r.value), r.timestamp) for r in harness.output if isinstance(r, StreamRecord))

    harness = StreamTestHarness(build, backend, parallelism, **options)
    for step in [*steps, 1_000]:
        if step == "snapshot":
            snapshot = harness.snapshot()
            take()
            harness.close()
            parallelism = 3 - parallelism
            harness = StreamTestHarness.restore(build, snapshot, parallelism, backend, **options)
            harness.clear_output()
            harness.set_processing_time(now_ms)
        elif step == "later":
            now_ms += 5
            harness.set_processing_time(now_ms)
        elif isinstance(step, int):
            harness.process_watermark(step)
        else:
            harness.process_elements([([key, [value], value], time) for key, value, time in step])
    take()
    assert harness.num_event_time_timers() == 0
    harness.close()
    return found


@settings(max_examples=8)
@given(
    steps=steps_of,
    kind=st.sampled_from(sorted(KINDS)),
    size_ms=st.integers(1, 12),
    slide_ms=st.one_of(st.none(), st.integers(1, 12)),
    offset_ms=st.integers(0, 5),
    size=st.integers(1, 6),
    latency_ms=st.sampled_from([1, 7, 100]),
    backend=st.sampled_from(["hashmap", "hashmap", "rocksdb"]),
    parallelism=st.integers(1, 2),
    fused=st.booleans(),
)
def test_windows_are_those_without(
    steps, kind, size_ms, slide_ms, offset_ms, size, latency_ms, backend, parallelism, fused
):
    if slide_ms is None:
        assigner = TumblingEventTimeWindows.of(size_ms, offset_ms % size_ms)
    else:
        assigner = SlidingEventTimeWindows.of(size_ms, slide_ms, offset_ms % slide_ms)

    def without(stream):
        return KINDS[kind](stream.map(list).key_by(lambda r: r[0]).window(assigner))

    def with_pre_aggregation(stream):
        keyed = stream.map(list).key_by(lambda r: r[0])
        return KINDS[kind](keyed.pre_aggregate(size, Time.milliseconds(latency_ms)).window(assigner))

    with tiny_caches() if backend == "rocksdb" else nullcontext():
        found = results_of(steps, with_pre_aggregation, backend, parallelism, fused)
    assert found == results_of(steps, without)


@settings(max_examples=4)
@given(
    steps=steps_of, size=st.integers(1, 6), backend=st.sampled_from(["hashmap", "rocksdb"]),
    parallelism=st.integers(1, 2), fused=st.booleans(),
)  # fmt: skip
def test_the_last_reduction_of_a_key_is_that_of_all_its_records(steps, size, backend, parallelism, fused):
    def build(stream):
        keyed = stream.map(lambda r: (r[0], r[2], 1)).key_by(lambda r: r[0])
        return keyed.pre_aggregate(size, 7).reduce(lambda a, b: (a[0], a[1] + b[1], a[2] + b[2])).map(lambda r: r)

    found = results_of(steps, build, backend, parallelism, fused)
    expected = {}
    for step in steps:
        for key, value, _ in step if isinstance(step, list) else ():
            total, count = expected.get(key, (0, 0))
            expected[key] = total + value, count + 1
    last = {}
    for text, _ in found:
        key, total, count = eval(text)
        last[key] = max(last.get(key, (0, 0)), (count, total))
    assert last == {key: (count, total) for key, (total, count) in expected.items()}


def test_a_batch_job_has_the_results_without():
    records = [(["a", [i], i], i) for i in range(8)] + [(["b", [1], 1], 3)]

    def results(build):
        with StreamTestHarness(build, configuration={"execution.runtime-mode": "BATCH"}) as harness:
            harness.process_elements(records)
            harness.end_input()
            return sorted(repr(record) for record in harness.output if isinstance(record, StreamRecord))

    for of in [
        lambda keyed: keyed.window(SlidingEventTimeWindows.of(6, 4)).aggregate(Values()),
        lambda keyed: keyed.reduce(gather).map(lambda r: (r[0], sorted(r[1]))),
    ]:
        expected = results(lambda stream, of=of: of(stream.map(list).key_by(lambda r: r[0])))
        assert len(expected) >= 2
        found = results(lambda stream, of=of: of(stream.map(list).key_by(lambda r: r[0]).pre_aggregate(3, 7)))
        assert found == expected
