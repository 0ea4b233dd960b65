"""print, collect and discarding sinks: what comes back to the driver."""

import dataclasses

import cloudpickle
import pyarrow as pa
import pytest

from flinkish.connectors.collect_sink import CollectSink
from flinkish.connectors.discarding import DiscardingSink
from flinkish.connectors.print_sink import PrintSink
from flinkish.errors import ExternalError
from flinkish.testing.spi_fakes import SinkRun


def test_print_sink_prints_plain_values_at_parallelism_1(capsys):
    run = SinkRun(PrintSink())
    run.write([1, "two", None, (3, "x")])
    run.finish()
    assert capsys.readouterr().out == "1\ntwo\nNone\n(3, 'x')\n"


def test_print_sink_names_the_subtask_as_flink_does(capsys):
    run = SinkRun(PrintSink(), parallelism=2)
    run.write(["a"], subtask=0)
    run.write(["b"], subtask=1)
    run.finish()
    assert sorted(capsys.readouterr().out.splitlines()) == ["1> a", "2> b"]


def test_print_sink_puts_its_identifier_first(capsys):
    for parallelism, line in ((1, "rides> a\n"), (2, "rides:1> a\n")):
        run = SinkRun(PrintSink("rides"), parallelism=parallelism)
        run.write(["a"])
        run.finish()
        assert capsys.readouterr().out == line


def test_print_sink_to_stderr(capsys):
    run = SinkRun(PrintSink(to_stderr=True))
    run.write([1])
    run.finish()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "1\n")


def test_print_writer_stops_when_the_driver_has_not_printed():
    run = SinkRun(PrintSink())
    writer = run.writers[0]
    batches = 0
    while writer.has_room:
        writer.write(batches, None, 0)
        writer.flush(False)
        batches += 1
        assert batches < 100
    assert len(run.contexts[0].sent) == batches
    run.writers[0].handle_coordinator_event(0)  # of attempt 0
    assert writer.has_room
    run.fail()


def test_collect_sink_gives_the_records_of_each_subtask_in_order():
    sink = CollectSink(batch_records=3)
    run = SinkRun(sink, parallelism=2)
    run.write(list(range(10)), subtask=0)
    run.write(list("abc"), subtask=1)
    run.finish()
    values = list(sink.results())
    assert [v for v in values if isinstance(v, int)] == list(range(10))
    assert [v for v in values if isinstance(v, str)] == list("abc")


def test_collect_sink_fixes_values_when_they_are_written():
    sink = CollectSink()
    run = SinkRun(sink)
    value = [1]
    run.write([value])
    value.append(2)
    run.write([value])
    run.finish()
    assert list(sink.results()) == [[1], [1, 2]]


def test_collect_writer_stops_until_the_driver_has_taken_a_batch():
    sink = CollectSink(window_batches=2)
    run = SinkRun(sink)
    writer = run.writers[0]
    for i in range(2):
        assert writer.has_room
        run.write([i])
        writer.flush(False)
    run.deliver()
    assert not writer.has_room
    results = sink.results()
    assert next(results) == 0
    run.deliver()
    assert writer.has_room
    run.finish()
    assert list(results) == [1]


def test_large_records_travel_one_by_one_and_few_at_a_time():
    sink = CollectSink()
    run = SinkRun(sink)
    writer = run.writers[0]
    large = [bytes([i]) * (5 << 20) for i in range(4)]
    run.write(large)
    assert not writer.has_room, "8 MiB are on their way"
    writer.flush(False)
    assert [sum(map(len, batch)) >> 20 for batch in run.contexts[0].sent] == [5, 5, 5, 5]
    run.deliver()
    results = sink.results()
    assert [next(results) for _ in range(3)] == large[:3]
    run.deliver()
    assert writer.has_room, "5 MiB are left"
    run.finish()
    assert list(results) == large[3:]


def test_records_of_a_writer_that_restarts_come_again_and_those_of_others_stay():
    sink = CollectSink(window_batches=1)
    run = SinkRun(sink, parallelism=2)
    for subtask in range(2):
        run.write([f"of {subtask}"], subtask)
        run.writers[subtask].flush(False)
    run.deliver()
    run.coordinator.subtask_reset(1)
    run.coordinator.handle(1, 1, [cloudpickle.dumps(["of 1 again"])])
    results = sink.results()
    assert [next(results), next(results)] == ["of 0", "of 1 again"]
    run.deliver()
    assert run.writers[0].has_room, "its batch was taken"
    run.coordinator.subtask_reset(1)
    with pytest.raises(ExternalError, match="restarted from its beginning"):
        next(results)


def test_collect_results_raise_the_jobs_error_behind_its_records():
    sink = CollectSink()
    run = SinkRun(sink)
    run.write([1])
    run.writers[0].flush(False)
    run.deliver()
    run.fail(ValueError("broken"))
    results = sink.results()
    assert next(results) == 1
    with pytest.raises(ValueError, match="broken"):
        next(results)


def test_closing_collect_results_frees_writers_and_cancels_the_job():
    sink = CollectSink(window_batches=1)
    run = SinkRun(sink)
    cancelled = []
    with sink.results() as results:
        results.on_close = lambda: cancelled.append(True)
        run.write([1])
        run.writers[0].flush(False)
        run.deliver()
        assert not run.writers[0].has_room
    run.deliver()
    assert run.writers[0].has_room and cancelled == [True]
    assert list(results) == []


def test_collect_sink_carries_local_classes():
    @dataclasses.dataclass
    class Local:
        number: int

    sink = CollectSink()
    run = SinkRun(sink)
    run.writers[0].write(Local(4), None, 0)
    run.finish()
    assert [value.number for value in sink.results()] == [4]


def test_discarding_sink_takes_rows_and_columns():
    run = SinkRun(DiscardingSink())
    run.write([1, 2])
    run.writers[0].write(3, None, 0)
    run.writers[0].write_columns(pa.RecordBatch.from_pydict({"a": [1]}), None, 0)
    run.finish()
