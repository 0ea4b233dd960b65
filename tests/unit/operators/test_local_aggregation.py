"""What leaves the local half of a two-phase aggregation, and when; what the API refuses."""

import pytest

from flinkish import StreamExecutionEnvironment
from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.partitioners import KeyGroupPartitioner
from flinkish.datastream.transformations import LocalAggregationOperator
from flinkish.datastream.triggers import CountTrigger
from flinkish.datastream.window import EventTimeSessionWindows, TumblingEventTimeWindows
from flinkish.errors import InvalidJobError
from flinkish.messages.elements import Watermark, WatermarkStatus
from flinkish.testing import StreamTestHarness
from tests.unit.operators.chains import Chain, snapshot

both_forms = pytest.mark.parametrize("fused", [True, False])


def add(first, second):
    return first[0], first[1] + second[1]


def first_of(record):
    return record[0]


def local(size=100, latency_ms=50, pane_ms=None, **options):
    return Chain(LocalAggregationOperator("reduce", add, first_of, None, size, latency_ms, pane_ms, 0), **options)


@both_forms
def test_a_skewed_key_sends_one_value_for_each_batch(fused):
    """1,000 records, 990 of one key: without, each of them goes over the exchange to one subtask."""
    chain = local(size=100, fused=fused)
    chain.rows([("hot", 1) if i % 100 else ("rare", 1) for i in range(1_000)], list(range(1_000)))
    assert len(chain.values) == 20
    assert [value[1] for key, value in chain.values if key == "hot"] == [99] * 10


@both_forms
def test_what_is_held_leaves_before_watermarks_idle_statuses_and_barriers(fused):
    chain = local(fused=fused)
    chain.rows([("a", 1), ("a", 2)], [5, 3]).watermark(4)
    assert chain.output == [(("a", ("a", 3)), 3), Watermark(4)]
    chain.rows([("a", 1)], [6]).status(True)
    assert chain.output[2:] == [(("a", ("a", 1)), 6), WatermarkStatus(True)]
    chain.rows([("b", 1)], [7])
    restore, parts = snapshot(chain)
    assert chain.output[4:] == [(("b", ("b", 1)), 7)]
    assert restore.operators == {} and parts["id-0"].keyed is None


@both_forms
def test_what_is_held_leaves_after_the_latency_of_its_first_record(fused):
    chain = local(latency_ms=50, fused=fused).time(1_000).rows([("a", 1)], [5])
    chain.time(1_040).rows([("a", 2)], [6])
    assert chain.chain.next_processing_time() == 1_050
    assert chain.time(1_049).output == []
    assert chain.time(1_050).output == [(("a", ("a", 3)), 6)]
    assert chain.chain.next_processing_time() is None


@both_forms
def test_only_records_of_one_pane_are_combined_and_have_their_largest_time(fused):
    chain = local(pane_ms=10, fused=fused).rows([("a", 1), ("a", 2), ("a", 4), ("a", 8)], [9, 10, 3, -1]).watermark(20)
    assert chain.output[:-1] == [(("a", ("a", 5)), 9), (("a", ("a", 2)), 10), (("a", ("a", 8)), -1)]


def test_sums_and_extremes_of_a_field_are_those_of_the_keyed_stream():
    def last(method):
        def build(stream):
            return getattr(stream.key_by(first_of).pre_aggregate(2, 50), method)(1)

        with StreamTestHarness(build) as harness:
            harness.process_elements([(("a", n), None) for n in (3, 1, 4, 2)])
            return [record.value for record in harness.output]

    assert {method: last(method) for method in ("sum", "min", "max", "min_by", "max_by")} == {
        "sum": [("a", 4), ("a", 10)],
        "min": [("a", 1), ("a", 1)],
        "max": [("a", 3), ("a", 4)],
        "min_by": [("a", 1), ("a", 1)],
        "max_by": [("a", 3), ("a", 4)],
    }


def test_a_custom_partitioner_spreads_a_skewed_key_and_key_groups_do_not():
    env = StreamExecutionEnvironment.get_execution_environment()
    records = [("hot", i) for i in range(90)] + [("rare", i) for i in range(10)]
    stream = env.from_collection(records)
    # The number of the record goes with its key: what is frequent has all subtasks but the last.
    spread = stream.partition_custom(lambda key, n: key[1] % (n - 1) if key[0] == "hot" else n - 1, lambda r: r)
    partitioner = spread.transformation.partitioner
    counts = [0] * 4
    for record in records:
        counts[partitioner.partitioner(partitioner.key_selector(record), 4)] += 1
    env.close()
    assert counts == [30, 30, 30, 10]
    assert isinstance(stream.key_by(0).transformation.partitioner, KeyGroupPartitioner)


def test_what_cannot_be_split_in_two_is_refused():
    env = StreamExecutionEnvironment.get_execution_environment()
    keyed = env.from_collection([("a", 1)]).key_by(0).pre_aggregate()
    tumbling = TumblingEventTimeWindows.of(10)
    for call, what in [
        (lambda: keyed.window(EventTimeSessionWindows.with_gap(5)).reduce(add), "EventTimeSessionWindows"),
        (lambda: keyed.window(tumbling).trigger(CountTrigger.of(2)).reduce(add), "TumblingEventTimeWindows"),
        (lambda: keyed.window(tumbling).apply(lambda key, window, values: values), r"apply\(\)"),
        (lambda: keyed.window(tumbling).side_output_late_data(OutputTag("late")), "side output"),
        (lambda: env.from_collection([("a", 1)]).key_by(0).pre_aggregate(size=0), "0 records"),
    ]:
        with pytest.raises(InvalidJobError, match=what):
            call()
    env.close()
