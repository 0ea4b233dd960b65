"""A stuck watermark explains itself: real subtasks report, the JobManager's side reads the reports."""

import pytest

from flinkish.common.watermark_explanation import WatermarkExplanation
from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.datastream.functions import CoMapFunction
from flinkish.errors import InvalidJobError
from flinkish.graph.execution_graph import ExecutionState
from flinkish.jobmanager.job_description import JobDescription
from flinkish.jobmanager.job_master import JobMaster
from flinkish.jobmanager.watermark_explanation import explain_watermarks
from flinkish.messages.control import OperatorEvent, SourceWatermarkAlignment
from flinkish.messages.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from flinkish.operators.source_alignment import SourceAlignment
from flinkish.taskmanager.watermark_report import WatermarkReporter
from flinkish.testing import StreamTestHarness
from tests.unit.operators.source_chains import SourceChain

_NEVER = {"pipeline.auto-watermark-interval": "1 h"}


def joined(one, other):
    return one.connect(other).map(Both()).uid("both").disable_chaining().map(str).name("last")


class Both(CoMapFunction):
    def map1(self, value):
        return value

    def map2(self, value):
        return value


def explain(harness, operator=None, state=ExecutionState.RUNNING, reports=None):
    master = JobMaster(JobDescription(harness._job))
    for execution in master.executions.values():
        execution.state = state
    reports = harness._core.watermarks() if reports is None else reports
    return WatermarkExplanation(explain_watermarks(master, reports, harness._clock.now_ms(), operator))


def report(harness, at_ms):
    """As once a second in a slot."""
    harness.set_processing_time(at_ms)
    return harness._core.watermarks()


def test_the_split_that_is_behind_is_named_and_since_when():
    with StreamTestHarness(joined, configuration=_NEVER) as harness:
        harness.process_watermark(5_000, input=0)
        harness.process_watermark(499, input=1)
        report(harness, 10_000)
        harness.process_watermark(9_000, input=0)
        report(harness, 30_000)
        report(harness, 75_000)
        found = explain(harness)
    assert found.watermark == 499
    (holder,) = found.held_by
    assert (holder["kind"], holder["split"], holder["watermark"], holder["since"]) == ("SPLIT", "feed", 499, 10_000)
    text = str(found)
    assert 'held back by split "feed" of Source: input 1 (1/1): 1970-01-01T00:00:00.499Z (499), for 65 s' in text
    assert text.startswith('event time of job "harness": 1970-01-01T00:00:00.499Z (499)\n')


def test_an_idle_input_holds_nothing_back_and_is_named():
    with StreamTestHarness(joined, configuration=_NEVER) as harness:
        harness.process_watermark(5_000, input=0)
        harness.process_watermark(499, input=1)
        harness.process_watermark_status(True, input=1)
        found = explain(harness)
        assert found.watermark == 5_000 and [holder["task"] for holder in found.held_by] == ["Source: input 0 (1/1)"]
        assert found.data["idle"] == ["Source: input 1 (1/1)"]
        assert "idle, so not waited for: Source: input 1 (1/1)" in str(found)
        harness.process_watermark_status(True, input=0)
        found = explain(harness)
        assert found.watermark == 5_000 and found.held_by == []
        assert "nothing holds it back" in str(found)


def test_a_reader_without_splits_is_named_with_what_it_lacks():
    chain = SourceChain()
    said = WatermarkReporter([], chain.source, lambda: ()).report(5_000)
    assert (said["source"]["assigned"], said["source"]["slowest"], said["source"]["since"]) == (0, [], 5_000)
    with StreamTestHarness(lambda stream: stream.map(str), configuration=_NEVER) as harness:
        harness.set_processing_time(7_000)
        found = explain(harness, reports={str(task): said for task in harness._core.tasks})
    assert [(holder["kind"], holder["since"]) for holder in found.held_by] == [("READER", 5_000)]
    assert "it has no split yet, for 2 s" in str(found)


def test_a_split_that_has_not_spoken_is_named():
    with StreamTestHarness(joined, configuration=_NEVER) as harness:
        harness.process_watermark(5_000, input=0)
        found = explain(harness)
    assert found.watermark == MIN_WATERMARK_MS
    assert [(holder["kind"], holder["task"]) for holder in found.held_by] == [("SPLIT", "Source: input 1 (1/1)")]
    assert "no watermark yet" in str(found)


def test_a_generator_in_mid_stream_holds_back_instead_of_the_source():
    def build(stream):
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(10).with_timestamp_assigner(lambda value: value)
        return stream.assign_timestamps_and_watermarks(strategy).name("times").rebalance().map(str)

    with StreamTestHarness(build) as harness:
        harness.process_element(500)
        harness.set_processing_time(1_000)
        found = explain(harness)
    assert found.watermark == 489
    (holder,) = found.held_by
    assert (holder["kind"], holder["operator"], holder["watermark"]) == ("GENERATOR", "times", 489)
    assert 'the watermark generator "times" of' in str(found)


def test_a_silent_source_before_a_generator_is_waited_for_and_not_called_idle():
    def build(stream):
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value: value)
        return stream.assign_timestamps_and_watermarks(strategy).name("times").rebalance().map(str)

    with StreamTestHarness(build) as harness:
        harness.process_watermark_status(idle=True)  # as of a reader that has not said anything yet
        found = explain(harness)
    assert [holder["kind"] for holder in found.held_by] == ["GENERATOR"]
    assert found.data["idle"] == []
    assert found.data["vertices"][0]["subtasks"][0]["state"] == "ACTIVE"


def test_a_paused_source_is_named_and_holds_nothing_back():
    def build(stream):
        return stream.map(str)

    strategy = WatermarkStrategy.no_watermarks().with_watermark_alignment("g", 100)
    with StreamTestHarness(build, configuration=_NEVER) as harness:
        (task,) = harness._core.tasks.values()
        task.source.alignment = SourceAlignment(task.source, strategy.alignment)
        harness.process_watermark(5_000)
        event = OperatorEvent(task.execution, task.source.operator_id, SourceWatermarkAlignment(600))
        harness._core.on_operator_event(event)
        harness._run()
        found = explain(harness)
        assert found.data["paused"] == [task.name] and found.held_by == []
        assert f"paused, so that others catch up: {task.name}" in str(found)


def test_one_operator_can_be_asked_about_by_uid_name_and_id():
    with StreamTestHarness(joined, configuration=_NEVER) as harness:
        harness.process_watermark(5, input=0)
        for operator in ("both", "last", harness._job.vertices[-1].id):
            assert [holder["task"] for holder in explain(harness, operator).held_by] == ["Source: input 1 (1/1)"]
        assert explain(harness, "Source: input 0").watermark == 5
        with pytest.raises(InvalidJobError, match='could not find the operator "nothing"'):
            explain(harness, "nothing")


def test_subtasks_that_do_not_run_or_have_not_reported_are_named():
    with StreamTestHarness(joined, configuration=_NEVER) as harness:
        found = explain(harness, reports={})
        assert found.watermark is None and {holder["kind"] for holder in found.held_by} == {"TASK"}
        assert "it has not reported yet" in str(found) and "not known yet" in str(found)
        assert "it is DEPLOYING" in str(explain(harness, state=ExecutionState.DEPLOYING))
        ended = explain(harness, state=ExecutionState.FINISHED)
        assert ended.held_by == [] and ended.watermark == MAX_WATERMARK_MS and "at its end" in str(ended)


def test_a_watermark_that_waits_behind_records_is_on_its_way():
    with StreamTestHarness(joined, configuration=_NEVER) as harness:
        harness.process_watermark(5, input=0), harness.process_watermark(9, input=1)
        before = harness._core.watermarks()
        harness.process_watermark(7, input=0)
        mixed = {**before, **{task: said for task, said in harness._core.watermarks().items() if said["source"]}}
        (holder,) = explain(harness, "both", reports=mixed).held_by
    assert (holder["kind"], holder["watermark"], holder["sent"]) == ("RECORDS", 5, 7)
    assert holder["sender"] == "Source: input 0 (1/1)"
