"""Sources: event times, watermarks per split, idleness, and the order of records and watermarks."""

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest

from flinkish.common.watermark_strategy import WatermarkGenerator, WatermarkStrategy
from flinkish.connectors.spi import InputStatus
from flinkish.datastream.partitioners import KeyGroupPartitioner
from flinkish.datastream.transformations import ColumnsToRowsOperator, MapOperator
from flinkish.errors import UserError, UserFunctionError
from flinkish.messages.control import (
    SourceCustomEvent,
    SourceNoMoreSplits,
    SourceRegister,
    SourceRequestSplit,
)
from flinkish.messages.elements import MAX_WATERMARK_MS, Watermark, WatermarkStatus
from flinkish.operators.watermarks import checked_timestamp
from tests.unit.operators.source_chains import SourceChain, bounded, split


@pytest.fixture(params=[True, False], ids=["fused", "interpreted"])
def fused(request):
    return request.param


# ---- life ---------------------------------------------------------------------------------------


def test_a_reader_registers_starts_and_gets_its_events(fused):
    chain = SourceChain(fused=fused)
    assert chain.chain.number_of_inputs == 0
    assert chain.events == [("id-0", SourceRegister("host"))] and chain.reader.log == ["start"]
    chain.assign("p0", "p1").event(SourceCustomEvent(cloudpickle.dumps("hi"))).event(SourceNoMoreSplits())
    chain.reader.context.send_split_request()
    chain.reader.context.send_source_event({"n": 1})
    assert chain.events[1] == ("id-0", SourceRequestSplit("host"))
    assert cloudpickle.loads(chain.events[2][1].event) == {"n": 1}
    chain.close()
    assert chain.reader.log == ["start", ["p0", "p1"], "hi", "no more", "close"]


def test_collected_records_reach_the_chain_in_order(fused):
    def poll(output):
        assert output.room == 10
        output.collect("a")
        output.collect("b", 5)
        output.collect_batch(["c", "d"])
        output.collect_batch(["e"], [7])
        output.collect_batch([])
        assert output.room == 5

    chain = SourceChain(None, MapOperator(str.upper), fused=fused).poll(poll, room=10)
    assert chain.output == [("A", None), ("B", 5), ("C", None), ("D", None), ("E", 7)]
    assert chain.poll().status_of_poll is InputStatus.NOTHING_AVAILABLE


def test_records_without_times_carry_no_list_of_times():
    chain = SourceChain()
    chain.reader.script.append(lambda output: output.collect_batch([1, 2]))
    chain.source.poll(10)
    (batch,) = chain.source.take()
    assert batch.values == [1, 2] and batch.timestamps is None


def test_a_reader_may_collect_more_than_the_room_and_room_never_goes_below_nothing():
    def poll(output):
        output.collect_batch(list(range(20)))
        assert output.room == 0

    assert len(SourceChain().poll(poll, room=10).values) == 20


def test_errors_of_a_reader_name_the_source(fused):
    def broken(output):
        raise ValueError("boom")

    with pytest.raises(UserFunctionError, match='"SourceOperator 0"(.|\n)*poll_next'):
        SourceChain(fused=fused).poll(broken)
    with pytest.raises(UserError, match="poll_next returned 'more'"):
        SourceChain(fused=fused).poll(lambda output: "more")


def test_an_error_of_the_timestamp_assigner_names_the_record(fused):
    for assign in (lambda v: 1 // v, lambda v, given: 1 // v):
        for poll in (lambda o: o.collect_batch([1, 0]), lambda o: [o.collect(1), o.collect(0)] and None):
            strategy = bounded().with_timestamp_assigner(assign)
            with pytest.raises(UserFunctionError) as caught:
                SourceChain(strategy, fused=fused).poll(poll)
            assert caught.value.fields["record"] == "0" and "timestamp assigner" in str(caught.value)


@pytest.mark.parametrize("batch", [True, False])
def test_an_event_time_of_a_source_is_an_int_or_refused_with_its_record(fused, batch):
    def give(*times):
        def poll(output):
            if batch:
                output.collect_batch(["a"] * len(times), list(times))
            else:
                for time in times:
                    output.collect("a", time)

        return SourceChain(None, MapOperator(str.upper), fused=fused).poll(poll).output

    found = give(5, np.int64(7), None)
    assert found == [("A", 5), ("A", 7), ("A", None)] and type(found[1][1]) is int
    for wrong in (1.5, 2.0, "5", True, 2**63):
        with pytest.raises(UserFunctionError, match="an event time must (be an int|lie).*\\n.*timestamp on record 'a'"):
            give(5, wrong)


def test_an_error_of_a_timestamp_assigner_without_a_call_shows_the_line_of_the_user():
    strategy = bounded().with_timestamp_assigner(lambda v: v["the time"])
    with pytest.raises(UserFunctionError) as caught:
        SourceChain(strategy).poll(lambda output: output.collect_batch([{"the time": 1}, {}]))
    assert caught.value.fields["record"] == "{}" and 'with_timestamp_assigner(lambda v: v["the time"])' in str(caught.value)


def test_a_time_of_a_batch_that_is_no_int_names_its_record():
    strategy = bounded().with_timestamp_assigner(lambda v: v)
    with pytest.raises(UserFunctionError, match="must be an int of milliseconds") as caught:
        SourceChain(strategy).poll(lambda output: output.collect_batch([1, 2.5, 3]))
    assert caught.value.fields["record"] == "2.5"


def test_an_error_in_a_key_selector_behind_a_source_names_the_record(fused):
    def key_of(value):
        return 1 // value

    def generate(code, value, timestamp):
        code.line(code.select_key(key_of, value))

    def emit(value, timestamp):
        key_of(value)

    chain = SourceChain(partitioner=KeyGroupPartitioner(key_of), fused=fused)
    chain.writers[0].generate, chain.writers[0].emit = generate, emit
    chain.chain.open()  # again, now with that writer
    chain.reader = chain.source.reader
    with pytest.raises(UserFunctionError, match="key selector on record 0"):
        chain.poll(lambda output: output.collect_batch([1, 0]))


def test_several_consumers_of_a_source_do_not_share_what_can_change(fused):
    def spoil(value):
        value.append("spoilt")
        return value

    chain = SourceChain(None, MapOperator(spoil), edges=[(0, 1)], outputs=[(0,), (1,)], fused=fused)
    chain.poll(lambda output: output.collect_batch([[1], [2]]))
    assert [[v for v, _ in w.elements] for w in chain.writers] == [
        [[1], [2]], [[1, "spoilt"], [2, "spoilt"]]
    ]  # fmt: skip


def test_what_a_source_hands_over_is_not_copied(fused):
    record = {"a": 1}
    chain = SourceChain(fused=fused).poll(lambda output: output.collect_batch([record]))
    assert chain.values[0] is record


# ---- event time ---------------------------------------------------------------------------------


def test_an_assigner_replaces_the_times_of_the_source(fused):
    strategy = bounded().with_timestamp_assigner(lambda v, given: v * 10 + (given or 0))
    chain = SourceChain(strategy, fused=fused)
    chain.poll(lambda o: [o.collect_batch([1, 2], [5, 6]), o.collect(3), o.collect(np.int64(4))] and None)
    assert chain.output == [(1, 15), (2, 26), (3, 30), (4, 40)]
    assert all(type(time) is int for _, time in chain.output)


def test_watermarks_are_periodic_and_come_after_the_records_they_cover(fused):
    chain = SourceChain(bounded(2), fused=fused)
    assert chain.chain.next_processing_time() == 200
    chain.poll(lambda o: o.collect_batch(["a", "b"], [10, 8]))
    assert chain.marks == []
    chain.tick()
    assert chain.output[2:] == [Watermark(7)]
    chain.tick()
    assert chain.marks == [Watermark(7)]


def test_a_periodic_watermark_does_not_overtake_what_has_not_been_processed(fused):
    chain = SourceChain(bounded(), fused=fused)
    chain.reader.script += [lambda o: o.collect_batch([1, 2], [10, 20])]
    chain.source.poll(100)
    (batch,) = chain.source.take()
    chain.run(chain.chain.process_batch(0, batch, 0, 1))
    chain.tick()
    assert chain.output == [(1, 10)]
    chain.run(chain.chain.process_batch(0, batch, 1, 2))
    assert chain.output == [(1, 10), (2, 20)]
    chain.poll()
    assert chain.output[2:] == [Watermark(19)]
    chain.reader.script += [lambda o: o.collect(3, 30)]
    chain.source.poll(100)  # collected, not even taken
    chain.tick()
    assert chain.output[3:] == []
    chain.drain()
    assert chain.output[3:] == [(3, 30), Watermark(29)]


def test_a_generator_that_emits_at_once_cuts_the_batch(fused):
    class Each(WatermarkGenerator):
        def on_event(self, event, event_timestamp, output):
            output.emit_watermark(event_timestamp)

        def on_periodic_emit(self, output):
            pass

    chain = SourceChain(WatermarkStrategy.for_generator(Each), fused=fused)
    chain.poll(lambda output: output.collect_batch(["a", "b", "c"], [1, 5, 3]))
    assert chain.output == [("a", 1), Watermark(1), ("b", 5), Watermark(5), ("c", 3)]


def test_a_reader_may_make_its_own_watermarks_and_status(fused):
    chain = SourceChain(fused=fused)
    chain.poll(lambda o: [o.collect("a", 1), o.emit_watermark(5), o.mark_idle(), o.mark_idle()] and None)
    assert chain.output == [("a", 1), Watermark(5), WatermarkStatus(True)]
    chain.poll(lambda o: [o.collect("b", 6), o.emit_watermark(4), o.emit_watermark(8)] and None)
    assert chain.output[3:] == [WatermarkStatus(False), ("b", 6), Watermark(8)]


def test_the_last_watermark_and_the_end_come_from_the_task(fused):
    chain = SourceChain(bounded(), MapOperator(str), fused=fused)
    chain.watermark(MAX_WATERMARK_MS).end()
    assert chain.output == [Watermark(MAX_WATERMARK_MS)]


def test_an_interval_of_zero_makes_no_periodic_watermarks(fused):
    chain = SourceChain(bounded(), fused=fused, configuration={"pipeline.auto-watermark-interval": 0})
    assert chain.chain.next_processing_time() is None


# ---- splits -------------------------------------------------------------------------------------


def test_the_watermark_waits_for_the_slowest_split(fused):
    chain = SourceChain(bounded(), fused=fused).assign("p0", "p1")
    chain.poll(split("p0", 1000)).tick().tick()
    assert chain.marks == []  # p1 has not spoken
    chain.poll(split("p1", 500)).tick()
    assert chain.marks == [Watermark(499)]
    chain.poll(split("p1", 2000)).tick()
    assert chain.marks == [Watermark(499), Watermark(999)]


def test_a_split_found_later_counts_from_the_moment_it_is_assigned(fused):
    chain = SourceChain(bounded(), fused=fused).assign("p0")
    chain.poll(split("p0", 100)).tick()
    chain.assign("p2").poll(split("p0", 900)).tick()
    assert chain.marks == [Watermark(99)]
    chain.poll(split("p2", 500)).tick()
    assert chain.marks == [Watermark(99), Watermark(499)]


def test_a_finished_split_no_longer_holds_the_watermark_back(fused):
    chain = SourceChain(bounded(), fused=fused).assign("p0", "p1")
    chain.poll(split("p0", 1000), split("p1", 10)).poll().tick()
    assert chain.marks == [Watermark(9)]
    chain.poll(lambda output: output.release_output_for_split("p1"))
    assert chain.marks == [Watermark(9), Watermark(999)]


def test_a_silent_split_is_idle_after_the_timeout_and_holds_nothing_back(fused):
    chain = SourceChain(bounded().with_idleness(300), fused=fused).assign("p0", "p1")
    for time in (100, 200, 300, 400):
        chain.poll(split("p0", time)).tick()
    marks = [Watermark(299), Watermark(399)]
    assert chain.marks == marks
    chain.poll(split("p1", 250), split("p0", 500)).poll().tick()
    assert chain.marks == marks  # p1 is back, behind
    chain.poll(split("p1", 450)).tick()
    assert chain.marks == [*marks, Watermark(449)]


def test_time_without_room_downstream_is_not_silence(fused):
    """FLINK-35886: nothing is read then, whatever the split has."""
    chain = SourceChain(bounded().with_idleness(300), fused=fused).assign("p0")
    chain.poll(split("p0", 1, 2)).tick()
    chain.environment.blocked_ms = lambda: 10_000
    chain.time(10_300)
    assert chain.marks == [Watermark(1)]
    chain.tick()
    assert chain.marks == [Watermark(1), WatermarkStatus(True)]


def test_a_silent_split_is_idle_also_while_others_always_have_records_on_their_way(fused):
    chain = SourceChain(bounded().with_idleness(300), fused=fused).assign("p0", "p1")
    for time in (100, 200, 300, 400):
        chain.reader.script.append(split("p0", time))
        chain.source.poll(100)
        chain.tick()
    chain.drain()
    assert chain.marks == [Watermark(299), Watermark(399)]


def test_a_reader_whose_splits_are_all_idle_is_idle(fused):
    chain = SourceChain(bounded().with_idleness(300), fused=fused).assign("p0", "p1")
    chain.poll(split("p0", 100), split("p1", 50)).poll()
    for _ in range(4):
        chain.tick()
    assert chain.marks == [Watermark(49), Watermark(99), WatermarkStatus(True)]
    chain.poll(split("p0", 200)).tick()
    assert chain.marks[3:] == [WatermarkStatus(False), Watermark(199)]


def test_a_reader_without_splits_becomes_idle_and_wakes_up_with_its_first_split(fused):
    chain = SourceChain(bounded(), fused=fused).tick()
    assert chain.marks == []
    chain.tick()
    assert chain.marks == [WatermarkStatus(True)]
    chain.assign("p0").poll()
    chain.poll(split("p0", 10)).tick()
    assert chain.marks == [WatermarkStatus(True), WatermarkStatus(False), Watermark(9)]


def test_a_reader_that_waits_for_a_split_it_asked_for_is_not_idle(fused):
    chain = SourceChain(bounded(), fused=fused)
    chain.reader.context.send_split_request()
    chain.tick().tick().tick()
    assert chain.marks == []
    chain.event(SourceNoMoreSplits()).tick().tick()
    assert chain.marks == [WatermarkStatus(True)]


# ---- columns ------------------------------------------------------------------------------------


BATCH = pa.record_batch({"t": pa.array([3_000, 1_500], pa.timestamp("us")), "n": [1, 2]})


def test_columns_go_to_a_writer_as_they_are_with_times_from_a_column(fused):
    strategy = bounded().with_timestamp_assigner("t")
    chain = SourceChain(strategy, columns=True, fused=fused)
    chain.poll(lambda output: output.collect_columns(BATCH)).tick()
    (columns, times), mark = chain.output
    assert columns is BATCH and times.tolist() == [3, 1] and times.dtype == np.int64
    assert mark == Watermark(2)


def test_columns_become_rows_for_a_chained_operator(fused):
    strategy = bounded().with_timestamp_assigner(lambda row: row.n * 100)
    operators = (ColumnsToRowsOperator(), MapOperator(lambda row: row["n"]))
    chain = SourceChain(strategy, *operators, columns=True, fused=fused)
    chain.poll(lambda output: output.collect_columns(BATCH)).tick()
    assert chain.output == [(1, 100), (2, 200), Watermark(199)]


@pytest.mark.parametrize("times", [pa.array([7, 8]), np.array([7, 8]), np.array([7, 8], "i4")], ids=repr)
def test_columns_come_with_times_as_a_numpy_or_an_arrow_array(fused, times):
    chain = SourceChain(bounded(), columns=True, fused=fused)
    chain.poll(lambda output: output.collect_columns(BATCH, times)).tick()
    (_, got), _ = chain.output
    assert got.tolist() == [7, 8] and got.dtype == np.int64


@pytest.mark.parametrize("times, why", [
    (pa.array([7, None]), "1 nulls"), (np.array([7.5, 8]), "float64"), (pa.array(["7", "8"]), "string"),
    (np.array([7]), "shape"),
])  # fmt: skip
def test_times_that_do_not_fit_the_columns_are_refused(fused, times, why):
    with pytest.raises(UserFunctionError, match=why):
        SourceChain(bounded(), columns=True, fused=fused).poll(lambda o: o.collect_columns(BATCH, times))


def test_a_null_is_no_event_time(fused):
    chain = SourceChain(bounded().with_timestamp_assigner("t"), columns=True, fused=fused)
    with pytest.raises(UserFunctionError, match="1 nulls"):
        batch = pa.record_batch({"t": pa.array([1, None], pa.int64())})
        chain.poll(lambda output: output.collect_columns(batch))


def test_columns_of_a_source_that_did_not_say_so_are_refused(fused):
    with pytest.raises(UserError, match="gives_columns"):
        SourceChain(fused=fused).poll(lambda output: output.collect_columns(BATCH))


def test_times_before_the_epoch_round_down():
    from flinkish.operators.column_times import column_times

    for unit, value, expected in [("us", -1, -1), ("ns", -1, -1), ("s", -1, -1000), ("ms", -5, -5)]:
        column = pa.array([value], pa.timestamp(unit, "UTC"))
        assert column_times(pa.record_batch({"t": column}), "t").tolist() == [expected]


def test_an_event_time_must_fit_in_64_bits():
    assert checked_timestamp(2**63 - 1) == 2**63 - 1
    for timestamp in (2**63, -(2**63), -(2**63) - 1):
        with pytest.raises(ValueError, match="must lie between"):
            checked_timestamp(timestamp)
