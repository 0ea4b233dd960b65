"""A checkpoint of a real slot process: taken while records flow, written by a forked child, and restored."""

from __future__ import annotations

import os
import pickle
import signal
from dataclasses import dataclass, replace
from typing import Optional

import cloudpickle

from flinkish import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor, WatermarkStrategy
from flinkish.connectors.spi import (
    Boundedness,
    InputStatus,
    Sink,
    SinkWriter,
    Source,
    SourceReader,
    SourceSplit,
)
from flinkish.datastream.functions import CheckpointListener
from flinkish.graph.execution_graph import build_deployments, pickle_chains
from flinkish.graph.job_graph_generator import create_job_graph
from flinkish.jobmanager.checkpoint_plan import checkpointed_vertices
from flinkish.jobmanager.pending_checkpoint import PendingCheckpoint
from flinkish.jobmanager.restore_decision import deal_out_checkpoint
from flinkish.messages.checkpoints import (
    AcknowledgeCheckpoint,
    CheckpointComplete,
    CheckpointOptions,
    CompletedCheckpoint,
    DeclineCheckpoint,
    FileHandle,
    SnapshotKind,
    TriggerCheckpoint,
)
from flinkish.messages.control import (
    CancelTasks,
    DeployTasks,
    OperatorEvent,
    ReleaseSlot,
    SinkPayload,
    SourceAddSplits,
    SourceRegister,
    StartTasks,
    TasksDeployed,
    TaskStateChanged,
)
from flinkish.storage.checkpoint_storage import CheckpointStorage
from tests.integration.test_slot_process import job_manager  # noqa: F401

KEYS = 4_000  # more than are written between two records
LIMIT = 5 * KEYS


@dataclass(frozen=True)
class Numbers(SourceSplit):
    position: int = 0

    def split_id(self):
        return "numbers"


class NumberReader(SourceReader, CheckpointListener):
    """A few numbers each millisecond, so that a checkpoint finds it on its way."""

    poll_interval_ms = 1

    def __init__(self):
        self.split: Optional[Numbers] = None

    def add_splits(self, splits):
        (self.split,) = splits

    def poll_next(self, output):
        if self.split is None:
            return InputStatus.NOTHING_AVAILABLE
        at = self.split.position
        end = min(LIMIT, at + min(60, output.room))
        if end > at:
            output.collect_batch(list(range(at, end)))
            self.split = Numbers(end)
        return InputStatus.NOTHING_AVAILABLE

    def snapshot_state(self, checkpoint_id):
        return [self.split]

    def notify_checkpoint_complete(self, checkpoint_id): ...


class NumberSource(Source):
    fixed_parallelism = 1

    def boundedness(self):
        return Boundedness.CONTINUOUS_UNBOUNDED

    def create_enumerator(self, context):
        raise AssertionError("the test assigns the split")

    def create_reader(self, context):
        return NumberReader()


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.state = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value, ctx):
        count = (self.state.value() or 0) + 1
        self.state.update(count)
        yield value, count


class TellingWriter(SinkWriter, CheckpointListener):
    def __init__(self, context):
        self.context = context
        self.last = None

    def write(self, value, timestamp_ms, watermark_ms):
        if value[0] % KEYS == 0 or value[0] == LIMIT - 1:
            self.context.send_to_coordinator(value)

    def notify_checkpoint_complete(self, checkpoint_id):
        self.context.send_to_coordinator(("complete", checkpoint_id))


class TellingSink(Sink):
    def create_writer(self, context):
        return TellingWriter(context)


def the_job():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    stream = env.from_source(NumberSource(), WatermarkStrategy.no_watermarks(), "numbers")
    stream.key_by(lambda number: number % KEYS).process(Count()).sink_to(TellingSink())
    return create_job_graph(env.get_stream_graph("job"))


class Driver:
    """As much of a JobMaster as the test needs."""

    def __init__(self, manager):
        self.manager = manager
        self.job = the_job()
        self.connection, self.registration = manager.registered("a")
        self.attempt = -1
        self.executions = {}

    def run_attempt(self, checkpoint=None):
        self.attempt += 1
        tasks = build_deployments(self.job, self.attempt, ["a"], pickle_chains(self.job))["a"]
        dealt = {} if checkpoint is None else deal_out_checkpoint(self.job, checkpoint)
        tasks = tuple(
            replace(task, restore=dealt.get((task.execution.vertex_id, task.execution.subtask_index)))
            for task in tasks
        )
        self.executions = {task.task_name: task.execution for task in tasks}
        self.connection.send_message(
            DeployTasks(self.job.job_id, "job", self.attempt, tasks, {}, self.job.configuration, b"", (), 4)
        )
        self.manager.until(lambda: self.said(TasksDeployed))
        self.connection.send_message(StartTasks(self.job.job_id, self.attempt))
        self.manager.until(lambda: len(self.states("RUNNING")) == len(tasks))
        if checkpoint is None:
            (register,) = [event for event in self.said(OperatorEvent) if isinstance(event.payload, SourceRegister)]
            splits = SourceAddSplits(cloudpickle.dumps([Numbers()]))
            self.connection.send_message(OperatorEvent(register.execution, register.operator_id, splits))

    def end_attempt(self):
        self.connection.send_message(CancelTasks(self.job.job_id, tuple(self.executions.values())))
        self.manager.until(lambda: len(self.states("CANCELED")) == len(self.executions))

    def said(self, kind):
        def attempt_of(message):
            return message.attempt if hasattr(message, "attempt") else message.execution.attempt

        return [m for m in self.manager.said if isinstance(m, kind) and attempt_of(m) == self.attempt]

    def states(self, state):
        return [change for change in self.said(TaskStateChanged) if change.state == state]

    def told(self):
        return [
            pickle.loads(event.payload.payload)
            for event in self.said(OperatorEvent)
            if isinstance(event.payload, SinkPayload)
        ]

    def trigger(self, checkpoint_id, location):
        options = CheckpointOptions(SnapshotKind.CHECKPOINT, location, location)
        source = next(e for name, e in self.executions.items() if "numbers" in name)
        self.connection.send_message(TriggerCheckpoint(source, checkpoint_id, 0, options))

    def checkpoint(self, checkpoint_id, location):
        """Take it, wait for it, and read its metadata back from the storage."""
        self.trigger(checkpoint_id, location)
        self.manager.until(lambda: len(self.acknowledged(checkpoint_id)) == len(self.executions))
        pending = PendingCheckpoint(
            checkpoint_id, SnapshotKind.CHECKPOINT, location, 0, 0, [], set(), set(), frozenset(), frozenset(),
            states={message.execution: message.state for message in self.acknowledged(checkpoint_id)},
        )  # fmt: skip
        storage = CheckpointStorage(os.path.dirname(location))
        completed = CompletedCheckpoint(
            self.job.job_id, "job", "run", checkpoint_id, 0, 0, SnapshotKind.CHECKPOINT, location,
            pending.operator_snapshots(checkpointed_vertices(self.job)),
        )  # fmt: skip
        storage.store_metadata(completed)
        self.connection.send_message(CheckpointComplete(self.job.job_id, checkpoint_id))
        return storage.load(location)

    def acknowledged(self, checkpoint_id):
        return [m for m in self.said(AcknowledgeCheckpoint) if m.checkpoint_id == checkpoint_id]


def test_a_job_goes_on_from_a_checkpoint_that_was_taken_on_its_way(job_manager, tmp_path):  # noqa: F811
    job_manager.supervise("a")
    driver = Driver(job_manager)
    driver.run_attempt()
    job_manager.until(lambda: (2 * KEYS, 3) in driver.told())
    checkpoint = driver.checkpoint(1, str(tmp_path / "chk-1"))
    handles = [h for o in checkpoint.operators.values() for s in o.subtasks.values() for h in s.keyed]
    assert handles and all(isinstance(handle.content, FileHandle) for handle in handles)
    job_manager.until(lambda: ("complete", 1) in driver.told())
    driver.end_attempt()

    driver.run_attempt(checkpoint)
    job_manager.until(lambda: any(number == LIMIT - 1 for number, _ in driver.told()))
    found = dict(driver.told())
    assert found[LIMIT - 1] == LIMIT // KEYS  # exact: each number once
    assert min(found) >= 2 * KEYS  # it did not begin anew
    second = driver.checkpoint(2, str(tmp_path / "chk-2"))
    assert second.checkpoint_id == 2
    driver.connection.send_message(ReleaseSlot())
    job_manager.registered("a", times=2)


def test_a_snapshot_that_can_not_be_stored_is_declined_and_the_task_goes_on(job_manager, tmp_path):  # noqa: F811
    job_manager.supervise("a")
    driver = Driver(job_manager)
    driver.run_attempt()
    job_manager.until(lambda: (KEYS, 2) in driver.told())
    (tmp_path / "chk-1").write_text("a file is in the way")
    driver.trigger(1, str(tmp_path / "chk-1"))
    job_manager.until(lambda: driver.said(DeclineCheckpoint))
    (declined,) = driver.said(DeclineCheckpoint)
    assert "chk-1" in str(declined.failure.error)
    job_manager.until(lambda: any(number == LIMIT - 1 for number, _ in driver.told()))
    driver.checkpoint(2, str(tmp_path / "chk-2"))
    driver.end_attempt()


def test_a_slot_that_is_killed_while_it_snapshots_leaves_no_child(job_manager, tmp_path):  # noqa: F811
    job_manager.supervise("a")
    driver = Driver(job_manager)
    driver.run_attempt()
    job_manager.until(lambda: (KEYS, 2) in driver.told())
    driver.trigger(1, str(tmp_path / "chk-1"))
    os.kill(driver.registration.pid, signal.SIGKILL)
    job_manager.registered("a", times=2)  # that nothing is left is the fixture's business
