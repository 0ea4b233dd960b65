"""The JobManager's thread against slots that are played by a second thread, over real sockets."""

import gc
import pickle
import threading
import time
import weakref

import cloudpickle
import pytest

from flinkish.common.job_status import JobStatus
from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.connectors.spi import Boundedness, Committer, Sink, SinkCoordinator, Source, SplitEnumerator
from flinkish.datastream.transformations import SinkOperator, SourceOperator
from flinkish.errors import (
    ConnectionLostError,
    ExternalError,
    InternalError,
    JobCancelledError,
    NotEnoughSlotsError,
    SlotLostError,
    UserFunctionError,
)
from flinkish.graph.job_graph import ChainedOperator, JobGraph, JobVertex, OperatorChainSpec
from flinkish.jobmanager.launcher import Launcher
from flinkish.messages import control as m
from flinkish.messages.deployment import SlotAddress, TaskFailure
from flinkish.shell.connections import ROLE_JOB_MANAGER, connect
from flinkish.shell.event_loop import EventLoop
from flinkish.shell.job_manager import JobManager


class FakeSlots(Launcher):
    """``behave(slot, message)`` says what a slot does on StartTasks, see ``FakeSlot``."""

    def __init__(self, slots, behave=None, error=None):
        self.count, self.behave, self.error = slots, behave, error
        self.loop, self.thread, self.over = EventLoop(), None, False
        self.launches = 0

    def capacity(self):
        return self.count

    def launch(self, launches):
        self.launches += 1
        if self.error:
            return
        self.thread = threading.Thread(target=self.run, args=(launches,), daemon=True)
        self.thread.start()

    def run(self, launches):
        for launch in launches:
            supervisor = self.connect(launch, self.on_supervisor)
            supervisor.send_message(
                m.RegisterSupervisor(launch.lease, launch.task_index, 0, "host", 1, launch.slot_ids)
            )
            for slot_id in launch.slot_ids:
                FakeSlot(self, launch, slot_id)
        while not self.over:
            self.loop.run_once(1_000)
        self.loop.close()

    def connect(self, launch, on_message):
        [address] = launch.job_manager_addresses
        return connect(self.loop, address, launch.secret, ROLE_JOB_MANAGER, on_message=on_message)

    def on_supervisor(self, connection, message):
        # Who registers when all is being stopped is refused.
        if isinstance(message, (m.StopSupervisor, m.RegistrationRefused)):
            connection.close()
            self.over = True

    def stop(self, timeout_ms):
        if self.thread:
            self.thread.join(timeout_ms / 1_000)
            assert not self.thread.is_alive(), "supervisors are told to stop before the launcher is"

    def alive(self):
        return self.thread is not None and self.thread.is_alive()

    def failure(self):
        return self.error

    def describe_waiting(self):
        return ""

    def advertised_hosts(self):
        return ["127.0.0.1"]

    def bind_host(self):
        return "127.0.0.1"


class FakeSlot:
    def __init__(self, slots, launch, slot_id):
        self.slots, self.launch, self.slot_id, self.tasks = slots, launch, slot_id, ()
        self.connection = slots.connect(launch, self.on_message)
        address = SlotAddress(slot_id, "host", None, ("127.0.0.1", 1))
        self.connection.send_message(m.RegisterSlot(launch.lease, slot_id, 1, address))

    def on_message(self, connection, message):
        match message:
            case m.DeployTasks(job_id, _, attempt, tasks):
                self.tasks = tasks
                connection.send_message(m.TasksDeployed(job_id, attempt))
            case m.StartTasks():
                self.all_to("RUNNING")
                if self.slots.behave:
                    self.slots.behave(self, message)
                else:
                    self.all_to("FINISHED")
            case m.CancelTasks():
                self.all_to("CANCELED")
            case m.ReleaseSlot():
                self.connection.close()
                FakeSlot(self.slots, self.launch, self.slot_id)
            case m.OperatorEvent():
                self.slots.behave(self, message)

    def all_to(self, state, error=None):
        failure = TaskFailure(error) if error else None
        for task in self.tasks:
            self.connection.send_message(m.TaskStateChanged(task.execution, state, failure))

    def say(self, operator_id, payload):
        for task in self.tasks:
            self.connection.send_message(m.OperatorEvent(task.execution, operator_id, payload))


def graph(job_id, parallelism=1, operator=None):
    operators = (ChainedOperator(1, "op", "op", operator),) if operator else ()
    vertex = JobVertex("v", "task", OperatorChainSpec(operators, (), ()), parallelism, 128, "default")
    return JobGraph(job_id, f"job {job_id}", [vertex])


@pytest.fixture
def start():
    managers = []

    def started(slots=2, behave=None, application=False, **options):
        manager = JobManager(FakeSlots(slots, behave), slots, options.pop("configuration", {}), application)
        managers.append(manager)
        manager.start()
        return manager

    yield started
    for manager in managers:
        manager.close()


def stay(slot, message):
    """Keeps running until it is cancelled."""


def test_jobs_run_after_each_other_on_fresh_slots(start):
    manager = start(slots=2)
    for number in range(3):
        job = manager.submit(graph(f"j{number}", parallelism=2))
        assert str(job.wait(10).get_job_id()) == f"j{number}"
        assert job.status() is JobStatus.FINISHED
    assert [job["state"] for job in manager.describe()["jobs"]] == ["FINISHED"] * 3


def test_jobs_run_beside_each_other_and_one_that_fails_leaves_the_other_alone(start):
    def behave(slot, message):
        if message.job_id == "bad":
            slot.all_to("FAILED", UserFunctionError("boom"))

    manager = start(slots=2, behave=behave)
    good, bad = manager.submit(graph("good")), manager.submit(graph("bad"))
    with pytest.raises(UserFunctionError, match="boom"):
        bad.wait(10)
    assert good.status() is JobStatus.RUNNING
    good.cancel()
    with pytest.raises(JobCancelledError):
        good.wait(10)
    assert good.status() is JobStatus.CANCELED


def test_wait_says_that_the_time_was_up(start):
    job = start(behave=stay).submit(graph("j"))
    with pytest.raises(TimeoutError, match="RUNNING"):
        job.wait(0.05)


def test_in_application_mode_the_end_of_the_job_tears_everything_down(start):
    manager = start(application=True)
    job = manager.submit(graph("j"))
    job.wait(10)
    assert not manager._thread.is_alive() and not manager.launcher.thread.is_alive()
    assert manager.closed and manager.describe()["jobs"][0]["state"] == "FINISHED"


def test_closing_cancels_what_runs_and_frees_who_waits(start):
    manager = start(behave=stay)
    job = manager.submit(graph("j"))
    manager.close()
    with pytest.raises(JobCancelledError):
        job.wait(10)
    assert not manager._thread.is_alive()


def test_more_slots_than_the_cluster_has_are_refused_before_the_start():
    with pytest.raises(NotEnoughSlotsError) as refused:
        JobManager(FakeSlots(2), 3)
    assert refused.value.fields == {"needed": 3, "available": 2}


def test_a_launch_that_fails_fails_the_job_with_its_reason(start):
    error = ConnectionLostError("could not connect to the JobManager", why="tried 10.0.0.1:4711")
    manager = JobManager(FakeSlots(1, error=error), 1, application=True)
    manager.start()
    job = manager.submit(graph("j"))
    with pytest.raises(ConnectionLostError, match="10.0.0.1"):
        job.wait(10)


def test_a_slot_process_that_dies_fails_the_job(start):
    manager = start(slots=1, behave=lambda slot, message: slot.connection.close())
    job = manager.submit(graph("j"))
    with pytest.raises(SlotLostError):
        job.wait(10)


def test_metrics_of_tasks_are_kept_also_after_the_end(start):
    def behave(slot, message):
        tasks = {str(slot.tasks[0].execution): {"numRecordsIn": 7}}
        slot.connection.send_message(m.MetricsReport("j", slot.slot_id, tasks))
        slot.all_to("FINISHED")

    job = start(slots=1, behave=behave).submit(graph("j"))
    job.wait(10)
    assert list(job.metrics().values()) == [{"numRecordsIn": 7}]


class OneSplit(SplitEnumerator):
    def __init__(self, context, threads):
        self.context, self.threads = context, threads

    def handle_split_request(self, subtask_id, host):
        self.threads.append(threading.current_thread().name)
        self.context.assign_split("split", subtask_id)


class OneSplitSource(Source):
    def __init__(self):
        self.threads = []

    def __getstate__(self):
        return {}

    def boundedness(self):
        return Boundedness.BOUNDED

    def create_enumerator(self, context):
        return OneSplit(context, self.threads)

    def create_reader(self, context):
        raise AssertionError("readers are made in slots")


def test_an_enumerator_runs_on_a_thread_of_its_own_and_its_splits_reach_the_reader(start):
    def behave(slot, message):
        if isinstance(message, m.StartTasks):
            slot.say("op", m.SourceRegister("host"))
            slot.say("op", m.SourceRequestSplit("host"))
        elif isinstance(message.payload, m.SourceAddSplits):
            slot.all_to("FINISHED")

    source = OneSplitSource()
    manager = start(slots=1, behave=behave)
    manager.submit(graph("j", operator=SourceOperator(source, WatermarkStrategy.no_watermarks()))).wait(10)
    assert source.threads == ["flinkish enumerator op"]


def test_a_failing_enumerator_fails_the_job_with_the_users_traceback(start):
    class Broken(OneSplitSource):
        def create_enumerator(self, context):
            raise FileNotFoundError("no such folder")

    job = start(slots=1, behave=stay).submit(graph("j", operator=SourceOperator(Broken(), WatermarkStrategy.no_watermarks())))
    with pytest.raises(UserFunctionError, match="no such folder"):
        job.wait(10)


class Published(Committer):
    def __init__(self, sink):
        self.sink = sink

    def commit(self, committables):
        self.sink.seen.append(("commit", sorted(committables)))

    def abort(self, committables):
        self.sink.seen.append(("abort", sorted(committables)))


class Coordinating(SinkCoordinator):
    def __init__(self, context, sink):
        self.context, self.sink = context, sink

    def handle(self, subtask, attempt, payload):
        self.sink.seen.append(payload)
        self.context.send_to_writer(subtask, f"thanks for {payload}")

    def close(self, error):
        self.sink.seen.append(("closed", error))


class Publishing(Sink):
    def __init__(self):
        self.seen = []

    def __getstate__(self):
        return {}

    def create_writer(self, context):
        raise AssertionError("writers are made in slots")

    def create_committer(self):
        return Published(self)

    def create_coordinator(self, context):
        return Coordinating(context, self)


def sink_slot(end):
    def behave(slot, message):
        if isinstance(message, m.StartTasks):
            slot.say("op", m.SinkPayload(pickle.dumps("hello")))
        elif pickle.loads(message.payload.payload) == "thanks for hello":
            slot.say("op", m.SinkCommittables(cloudpickle.dumps([slot.slot_id[-1]])))
            end(slot)

    return behave


def test_sinks_talk_to_their_coordinator_and_are_committed_once_at_the_end(start):
    sink = Publishing()
    manager = start(slots=2, behave=sink_slot(lambda slot: slot.all_to("FINISHED")))
    manager.submit(graph("j", parallelism=2, operator=SinkOperator(sink))).wait(10)
    assert sink.seen == ["hello", "hello", ("commit", ["0", "1"]), ("closed", None)]


def test_a_failed_job_aborts_what_its_sinks_have_prepared(start):
    sink = Publishing()
    error = UserFunctionError("boom")
    manager = start(slots=1, behave=sink_slot(lambda slot: slot.all_to("FAILED", error)))
    job = manager.submit(graph("j", operator=SinkOperator(sink)))
    with pytest.raises(UserFunctionError) as raised:
        job.wait(10)
    assert sink.seen == ["hello", ("abort", ["0"]), ("closed", raised.value)]


class Hanging(Publishing):
    """Its committer does not return before ``end`` is set."""

    def __init__(self):
        super().__init__()
        self.begun, self.end = threading.Event(), threading.Event()

    def create_committer(self):
        self.begun.set()
        self.end.wait()
        return super().create_committer()


def hanging_job(start, end_of_slot):
    configuration = {"task.cancellation.timeout": "50 ms"}
    sink = Hanging()
    job_graph = graph("j", operator=SinkOperator(sink))
    job_graph.configuration = configuration
    manager = start(slots=1, behave=sink_slot(end_of_slot), configuration=configuration)
    job = manager.submit(job_graph)
    assert sink.begun.wait(10)
    return manager, sink, job


def test_a_committer_that_hangs_holds_the_job_until_somebody_cancels_it_and_is_named(start, caplog):
    manager, sink, job = hanging_job(start, lambda slot: slot.all_to("FINISHED"))
    with pytest.raises(TimeoutError):
        job.wait(0.3)
    assert "a committer takes long" in caplog.text and "sink='op'" in caplog.text
    job.cancel()
    with pytest.raises(ExternalError, match='the committer of sink "op" did not end') as caught:
        job.wait(10)
    assert "task.cancellation.timeout" in caught.value.why
    sink.end.set()
    manager.submit(graph("next", operator=SinkOperator(sink))).wait(10)  # its slot was given back


def test_a_committer_that_hangs_while_it_aborts_does_not_hold_the_failed_job(start, caplog):
    error = UserFunctionError("boom")
    _, sink, job = hanging_job(start, lambda slot: slot.all_to("FAILED", error))
    with pytest.raises(UserFunctionError, match="boom"):
        job.wait(10)
    assert "gave up waiting for a committer that aborts job=j sink='op'" in caplog.text
    sink.end.set()


def test_what_a_job_carried_is_not_kept_with_its_result(start):
    class Carried(OneSplitSource):
        pass

    source = Carried()
    gone = weakref.ref(source)
    job = start(slots=1).submit(graph("j", operator=SourceOperator(source, WatermarkStrategy.no_watermarks())))
    job.wait(10)
    del source
    assert wait_for(lambda: (gc.collect(), gone() is None)[1])
    assert job.status() is JobStatus.FINISHED


def wait_for(condition, timeout_s=10):
    deadline_s = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return condition()


def test_a_sink_that_refuses_is_heard_before_anything_runs(start):
    class Refusing(Publishing):
        def validate(self):
            raise FileExistsError("the folder is not empty")

    with pytest.raises(FileExistsError):
        start().submit(graph("j", operator=SinkOperator(Refusing())))


def test_a_cancelled_job_whose_slot_does_not_answer_still_ends(start):
    configuration = {"task.cancellation.timeout": "50 ms"}
    manager = start(slots=1, behave=stay, configuration=configuration)
    original = FakeSlot.on_message
    FakeSlot.on_message = lambda self, connection, message: (
        None if isinstance(message, m.CancelTasks) else original(self, connection, message)
    )
    try:
        job_graph = graph("j")
        job_graph.configuration = configuration
        job = manager.submit(job_graph)
        job.cancel()
        with pytest.raises(JobCancelledError):
            job.wait(10)
    finally:
        FakeSlot.on_message = original


def test_a_broken_rule_in_a_core_ends_all_jobs_and_the_cluster(start):
    manager = start(slots=1, behave=stay)
    job = manager.submit(graph("j"))

    def broken(event, now_ms):
        raise AssertionError("a rule is broken")

    manager._dispatcher.step = broken
    with pytest.raises(InternalError, match="a rule is broken"):
        job.wait(20)
    assert manager._closed.wait(20)
    with pytest.raises(InternalError, match="closed"):
        manager.submit(graph("k"))
