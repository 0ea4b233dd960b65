"""Partitions of a bounded stream, each as one window."""

import pytest

from flinkish.common.typeinfo import Types
from flinkish.common.types import Row
from flinkish.datastream import AggregateFunction, MapPartitionFunction, Order, OutputTag
from flinkish.errors import InvalidJobError, UserFunctionError
from flinkish.messages.elements import MAX_WATERMARK_MS
from flinkish.testing import StreamTestHarness, Watermark

SIDE = OutputTag("side")
RECORDS = [("b", 2), ("a", 3), ("b", 1), ("a", 1), ("c", 5), ("a", 2)]


def key(record):
    return record[0]


def number(record):
    return record[1]


class Count(MapPartitionFunction):
    def open(self, runtime_context):
        self.subtask = runtime_context.get_index_of_this_subtask()

    def map_partition(self, values):
        yield SIDE, self.subtask
        yield len(values), sorted(number(value) for value in values)


class Sum(AggregateFunction):
    def create_accumulator(self):
        return [0]

    def add(self, value, accumulator):
        accumulator[0] += value[1]
        return accumulator

    def get_result(self, accumulator):
        return accumulator[0]

    def merge(self, acc_a, acc_b):
        return [acc_a[0] + acc_b[0]]


def add(one, other):
    return min(one[0], other[0]), one[1] + other[1]


def run(build, parallelism=1, fused=True, backend="hashmap", cuts=False):
    """The values that come at the end of the input; nothing else must come before."""
    options = {"configuration": {"flinkish.fused-chains": fused}}
    harness = StreamTestHarness(build, backend, parallelism, **options)
    for position, record in enumerate(RECORDS):
        harness.process_element(record, position)
        assert not [element for element in harness.output if not isinstance(element, Watermark)]
        if cuts:
            snapshot = harness.snapshot()
            harness.close()
            harness = StreamTestHarness.restore(build, snapshot, 1 + position % 3, backend, **options)
    harness.process_watermark(MAX_WATERMARK_MS)
    output = harness.output
    assert output[-1] == Watermark(MAX_WATERMARK_MS)
    assert harness.num_keyed_state_entries() == 0 or backend == "rocksdb"
    found = [element.value for element in output if not isinstance(element, Watermark)]
    found_sides = [record.value for record in harness.side_output(SIDE)]
    harness.close()
    return found, found_sides


FORMS = pytest.mark.parametrize("fused", [True, False])


@FORMS
def test_a_subtask_is_a_partition_of_a_stream_without_keys(fused):
    found, sides = run(lambda s: s.rebalance().full_window_partition().map_partition(Count()), 2, fused)
    assert sorted(found) == [(3, [1, 2, 5]), (3, [1, 2, 3])] or sum(count for count, _ in found) == 6
    assert sorted(number for _, numbers in found for number in numbers) == [1, 1, 2, 2, 3, 5]
    assert sorted(sides) == [0, 1]


@FORMS
def test_a_key_is_a_partition_of_a_keyed_stream(fused):
    found, _ = run(lambda s: s.key_by(key).full_window_partition().map_partition(Count()), 2, fused)
    assert sorted(found) == [(1, [5]), (2, [1, 2]), (3, [1, 2, 3])]


@FORMS
def test_a_partition_is_sorted_by_a_field_or_a_selector(fused):
    def sort(field, order):
        return run(lambda s: s.full_window_partition().sort_partition(field, order), 1, fused)[0]

    ascending = [("b", 1), ("a", 1), ("b", 2), ("a", 2), ("a", 3), ("c", 5)]
    assert sort(1, Order.ASCENDING) == sort(number, Order.ASCENDING) == ascending
    assert sort(1, Order.DESCENDING) == [("c", 5), ("a", 3), ("b", 2), ("a", 2), ("b", 1), ("a", 1)]
    by_key, _ = run(lambda s: s.key_by(key).full_window_partition().sort_partition(1, Order.DESCENDING), 2, fused)
    assert [record for record in by_key if record[0] == "a"] == [("a", 3), ("a", 2), ("a", 1)]
    assert sorted(by_key) == sorted(RECORDS)


def test_a_sorted_partition_keeps_its_declared_type():
    declared = Types.ROW_NAMED(["k", "n"], [Types.STRING(), Types.INT()])

    def build(stream):
        rows = stream.map(lambda record: Row(*record), declared)
        return rows.full_window_partition().sort_partition("n", Order.ASCENDING).map(lambda row: row.n)

    assert run(build)[0] == [1, 1, 2, 2, 3, 5]


@FORMS
def test_a_partition_is_reduced_and_aggregated_as_records_come(fused):
    assert run(lambda s: s.full_window_partition().reduce(add), 1, fused)[0] == [("a", 14)]
    assert run(lambda s: s.full_window_partition().aggregate(Sum()), 1, fused)[0] == [14]
    reduced, _ = run(lambda s: s.key_by(key).full_window_partition().reduce(add), 2, fused)
    assert sorted(reduced) == [("a", 6), ("b", 3), ("c", 5)]
    aggregated, _ = run(lambda s: s.key_by(key).full_window_partition().aggregate(Sum()), 2, fused)
    assert sorted(aggregated) == [3, 5, 6]


def test_a_subtask_without_records_reduces_to_nothing_and_aggregates_to_the_empty_accumulator():
    def alone(stream):
        return stream.global_().full_window_partition()

    assert run(lambda s: alone(s).reduce(add), 3)[0] == [("a", 14)]
    assert sorted(run(lambda s: alone(s).aggregate(Sum()), 3)[0]) == [0, 0, 14]
    assert sorted(run(lambda s: alone(s).map_partition(Count()), 3)[0])[:2] == [(0, []), (0, [])]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("keyed", [False, True])
def test_partitions_are_in_snapshots_and_are_dealt_out_anew(keyed, backend):
    def partitions(stream):
        return (stream.key_by(key) if keyed else stream.rebalance()).full_window_partition()

    counted, _ = run(lambda s: partitions(s).map_partition(Count()), backend=backend, cuts=True)
    assert sorted(n for _, numbers in counted for n in numbers) == [1, 1, 2, 2, 3, 5]
    reduced, _ = run(lambda s: partitions(s).reduce(add), backend=backend, cuts=True)
    assert sum(number(record) for record in reduced) == 14
    aggregated, _ = run(lambda s: partitions(s).aggregate(Sum()), backend=backend, cuts=True)
    assert sum(aggregated) == 14


@FORMS
def test_what_an_operator_before_does_to_a_record_that_it_has_emitted_changes_no_partition(fused):
    kept = [0, 0]

    def same_list(record):
        kept[1] += 1
        return kept

    assert run(lambda s: s.map(same_list).full_window_partition().map_partition(lambda values: values), 1, fused)[0] == [
        [0, n] for n in range(1, 7)
    ]


@pytest.mark.parametrize("keyed", [False, True])
def test_a_savepoint_after_the_end_does_not_give_the_results_again(keyed):
    def build(stream):
        stream = stream.key_by(key) if keyed else stream
        return stream.full_window_partition().map_partition(lambda values: values)

    with StreamTestHarness(build) as harness:
        harness.process_element(("a", 1), 1)
        harness.process_watermark(MAX_WATERMARK_MS)
        snapshot = harness.snapshot()
    with StreamTestHarness.restore(build, snapshot) as harness:
        harness.process_watermark(MAX_WATERMARK_MS)
        assert all(isinstance(element, Watermark) for element in harness.output)


def test_watermarks_wait_for_the_results():
    with StreamTestHarness(lambda s: s.full_window_partition().reduce(add)) as harness:
        harness.process_watermark(5)
        assert harness.output == []


@FORMS
def test_an_error_in_a_partition_names_the_operator(fused):
    def build(stream):
        return stream.full_window_partition().sort_partition(lambda record: record[1] or "x", Order.ASCENDING)

    with StreamTestHarness(build, configuration={"flinkish.fused-chains": fused}) as harness:
        harness.process_elements([(("a", 1), 1), (("a", 0), 2)])
        with pytest.raises(UserFunctionError, match="SortPartition"):
            harness.process_watermark(MAX_WATERMARK_MS)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda p: p.map_partition(Count), "got a class instead of a function"),
        (lambda p: p.map_partition(lambda one, other: ()), "called with 1 argument"),
        (lambda p: p.sort_partition(0, "ascending"), "Order.ASCENDING or Order.DESCENDING"),
        (lambda p: p.sort_partition(None, Order.ASCENDING), "cannot use a NoneType"),
        (lambda p: p.reduce(Sum()), "cannot use a Sum"),
        (lambda p: p.aggregate(add), "give an object of a AggregateFunction"),
    ],
)
@pytest.mark.parametrize("keyed", [False, True])
def test_what_cannot_be_done_with_partitions_is_refused_in_the_call(keyed, call, message):
    def build(stream):
        return call((stream.key_by(key) if keyed else stream).full_window_partition())

    with pytest.raises(InvalidJobError) as refused:
        StreamTestHarness(build)
    assert message in str(refused.value)
