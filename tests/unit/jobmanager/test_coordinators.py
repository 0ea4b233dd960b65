import queue
import threading

import cloudpickle
import pytest

from flinkish.connectors.spi import Boundedness, Committer, Sink, Source, SplitEnumerator
from flinkish.errors import InvalidJobError, UserFunctionError
from flinkish.jobmanager.sink_coordinator import (
    SinkCommittablesCollector,
    WriterGateway,
    abort_sinks,
    commit_sinks,
)
from flinkish.jobmanager.source_coordinator import SourceCoordinator, enumerator_error
from flinkish.messages.control import (
    SinkPayload,
    SourceAddSplits,
    SourceCustomEvent,
    SourceNoMoreSplits,
    SourceRegister,
    SourceRequestSplit,
)
from flinkish.shell.coordinator_worker import CoordinatorWorker


class Recording(SplitEnumerator):
    def __init__(self, context):
        self.context, self.calls = context, []

    def start(self):
        self.calls.append("start")

    def add_reader(self, subtask_id):
        self.calls.append(("reader", subtask_id))

    def handle_split_request(self, subtask_id, host):
        self.context.assign_split("split", subtask_id)
        self.context.signal_no_more_splits(subtask_id)

    def handle_source_event(self, subtask_id, event):
        self.context.send_event_to_source_reader(subtask_id, event + 1)

    def close(self):
        self.calls.append("close")


class RecordingSource(Source):
    def boundedness(self):
        return Boundedness.BOUNDED

    def create_enumerator(self, context):
        self.enumerator = Recording(context)
        return self.enumerator

    def create_reader(self, context):
        raise AssertionError("readers are made in slots")


def coordinator():
    source, sent = RecordingSource(), []
    made = SourceCoordinator(source, "numbers", 2, lambda *args: sent.append(args), None)
    made.start()
    return made, source, sent


def test_an_enumerator_sees_readers_requests_and_events_and_its_answers_travel():
    made, source, sent = coordinator()
    made.handle(1, 0, SourceRegister("host"))
    assert made.current_parallelism() == 2 and list(made.registered_readers()) == [1]
    made.handle(1, 0, SourceRequestSplit("host"))
    made.handle(1, 0, SourceCustomEvent(cloudpickle.dumps(41)))
    made.close()
    made.handle(1, 0, SourceRequestSplit("host"))
    assert source.enumerator.calls == ["start", ("reader", 1), "close"]
    assert [said[:2] for said in sent] == [(1, 0)] * 3
    add, end, event = [payload for *_, payload in sent]
    assert isinstance(add, SourceAddSplits) and cloudpickle.loads(add.splits) == ["split"]
    assert end == SourceNoMoreSplits()
    assert cloudpickle.loads(event.event) == 42


def test_a_split_for_a_reader_that_has_not_registered_is_refused():
    made, _, _ = coordinator()
    with pytest.raises(InvalidJobError, match="could not give a split to reader 0"):
        made.assign_split("split", 0)


def test_the_error_of_an_enumerator_shows_the_users_traceback_first():
    try:
        raise ValueError("no such folder")
    except ValueError as error:
        shown = enumerator_error("files", error)
    assert isinstance(shown, UserFunctionError)
    assert str(shown).startswith("Traceback")
    assert str(shown).endswith('enumerator of source "files" failed in the driver')


class FakeCommitter(Committer):
    def __init__(self, sink):
        self.sink = sink

    def commit(self, committables):
        if self.sink.fails:
            raise OSError("disk full")
        self.sink.calls.append(("commit", list(committables)))

    def abort(self, committables):
        if self.sink.fails:
            raise OSError("disk gone")
        self.sink.calls.append(("abort", list(committables)))

    def close(self):
        self.sink.calls.append("close")


class FakeSink(Sink):
    def __init__(self, fails=False):
        self.calls, self.fails = [], fails

    def create_writer(self, context):
        raise AssertionError("writers are made in slots")

    def create_committer(self):
        return FakeCommitter(self)


def collected(sink, **by_subtask):
    collector = SinkCommittablesCollector("sink", "files", sink)
    for subtask, committables in by_subtask.items():
        collector.add(int(subtask[1:]), cloudpickle.dumps(committables))
    return collector


def test_committers_get_the_committables_of_all_subtasks_in_one_call():
    sink, started = FakeSink(), []
    collector = collected(sink, s1=["b"], s0=["a"])
    collector.add(1, cloudpickle.dumps(["c"]))
    assert commit_sinks([collector], started.append) is None
    assert started == ["files"]
    assert sink.calls == [("commit", ["a", "b", "c"]), "close"]


def test_after_a_failed_commit_the_sinks_behind_it_are_aborted():
    first, failing, last = FakeSink(), FakeSink(fails=True), FakeSink()
    error = commit_sinks([collected(first), collected(failing), collected(last, s0=["x"])], str)
    assert isinstance(error, UserFunctionError) and "disk full" in str(error)
    assert first.calls == [("commit", []), "close"]
    assert failing.calls == ["close"]
    assert last.calls == [("abort", ["x"]), "close"]


def test_every_sink_is_aborted_even_when_one_fails_to():
    failing, last = FakeSink(fails=True), FakeSink()
    [error] = abort_sinks([collected(failing), collected(last)], str)
    assert "disk gone" in str(error)
    assert last.calls == [("abort", []), "close"]


def test_what_subtasks_that_restart_have_handed_over_is_taken_out_and_that_of_others_stays():
    collector = collected(FakeSink(), s0=["a"], s1=["b"], s2=["c"])
    assert [cloudpickle.loads(blob) for blob in collector.take([1, 7])] == [["b"]]
    assert collector.take([1]) == []
    assert [cloudpickle.loads(blob) for blob in collector.take()] == [["a"], ["c"]] and not collector.by_subtask


def test_what_replaced_tasks_have_left_behind_is_removed_when_all_is_published():
    class Cleaning(FakeCommitter):
        def remove_leftovers(self, kept):
            self.sink.calls.append(("remove but", list(kept)))

    sink = FakeSink()
    sink.create_committer = lambda: Cleaning(sink)
    assert commit_sinks([collected(sink, s0=["a"])], str, kept={"sink": (cloudpickle.dumps(["in a savepoint"]),)}) is None
    assert sink.calls == [("commit", ["a"]), ("remove but", ["in a savepoint"]), "close"]
    sink.calls.clear()
    assert commit_sinks([collected(sink)], str) is None
    assert sink.calls == [("commit", []), "close"]


def test_values_for_writers_travel_pickled():
    sent = []
    WriterGateway(lambda *args: sent.append(args)).send_to_writer(1, {"taken": 2})
    [(subtask, payload)] = sent
    assert subtask == 1 and isinstance(payload, SinkPayload)


def test_a_worker_runs_calls_in_order_and_ends_with_the_close():
    seen, errors = [], []
    worker = CoordinatorWorker("test", errors.append)
    for number in range(5):
        worker.submit(seen.append, number)
    assert worker.close(lambda: seen.append("closed"), timeout_ms=5_000)
    assert seen == [0, 1, 2, 3, 4, "closed"] and errors == []


def test_after_the_first_error_of_a_worker_nothing_runs_but_the_close():
    seen, errors = [], []
    worker = CoordinatorWorker("test", errors.append)
    worker.submit(lambda: 1 / 0)
    worker.submit(seen.append, "never")
    assert worker.close(lambda: seen.append("closed"), timeout_ms=5_000)
    assert seen == ["closed"] and isinstance(errors[0], ZeroDivisionError) and len(errors) == 1


def test_async_calls_run_beside_the_worker_and_their_handlers_on_it():
    answers: queue.Queue = queue.Queue()
    worker = CoordinatorWorker("test worker", answers.put)

    def call():
        return threading.current_thread().name

    def handler(result, error):
        answers.put((result, error, threading.current_thread().name))

    worker.submit(worker.call_async, call, handler)
    assert answers.get(timeout=5) == ("test worker async", None, "test worker")
    worker.submit(worker.call_async, lambda: 1 / 0, handler)
    result, error, _ = answers.get(timeout=5)
    assert result is None and isinstance(error, ZeroDivisionError)
    worker.submit(worker.call_async, lambda: "again", handler, 1)
    assert [answers.get(timeout=5)[0] for _ in range(3)] == ["again"] * 3
    assert worker.close(lambda: None, timeout_ms=5_000)
