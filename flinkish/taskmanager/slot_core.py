"""All subtasks of one slot: gives them turns, and tells the JobManager what becomes of them.

A slot serves one job at a time.  Tasks come and go by attempts (``deployed_tasks``): one that restarts all follows
``dispose``, one that restarts some of them comes *beside* the others, and replaces tasks that are over::

    nothing --deploy--> deployed --start--> running --(its end, or cancel)--> over --replaced, dispose--> nothing

The core owns no thread and no socket.  The shell calls ``on_frame`` and the other ``on_…`` methods
with what arrived, then ``run_round`` until that returns False, then waits for a descriptor, a
frame or the next deadline.

Checkpoints: ``on_trigger_checkpoint`` to a subtask; when it has taken its snapshot the listener gets that,
stores it, and says ``snapshot_stored`` or ``snapshot_failed``; then the JobManager hears of it.

Subtasks of one slot feed each other by hand-over.  None of them blocks, so no order of turns can
lock them up; the order is that of the records' way, so that a record that meets an idle slot is
through all of its subtasks, and on its way to the next slot, in one round.
"""

from __future__ import annotations

from typing import Any, Callable, Collection, Iterable, Optional, Union

from flinkish.errors import CheckpointFailedError, FlinkishError
from flinkish.messages.checkpoints import (
    Bytes,
    CheckpointAborted,
    CheckpointComplete,
    CheckpointFailureReason,
    DeclineCheckpoint,
    InFlightHandle,
    InFlightPart,
    NotifyEndOfData,
    TriggerCheckpoint,
)
from flinkish.messages.control import DeployTasks, OperatorEvent, SinkCommittables
from flinkish.messages.deployment import ExecutionAttemptID, TaskFailure
from flinkish.messages.elements import CheckpointBarrier
from flinkish.operators.output import open_inline
from flinkish.operators.snapshots import TaskSnapshot
from flinkish.taskmanager.deployed_tasks import ChainFactory, DeployedTasks, SlotServices
from flinkish.taskmanager.in_flight import InFlightData
from flinkish.taskmanager.outstanding_snapshots import KeyedHandles, OutstandingSnapshots
from flinkish.taskmanager.task import TURN_NS, Task

ROUND_NS = 2_000_000  # between two rounds the shell drains the sockets, so a round must stay short
TURN_NS_MIN = 200_000
SOCKET_RETRY_MS = 10


class SlotCore:
    """The data plane of one slot.

    Args:
        slot_id, host: names of this slot and its machine, as in ``SlotAddress``.
        now_ms: processing time.
        transport: ``for_attempt(attempt)`` gives that of ``DeployedTasks``; what is sent there may be gathered until
            ``flush()``.
        listener: ``task_state_changed(execution, state, failure)``, ``operator_event(event)``,
            ``checkpoint_message(message)`` (to the JobManager), ``store_snapshot(snapshot)``, which writes or
            freezes keyed state before it returns, ``store_in_flight(execution, checkpoint_id, options, data, parts)``,
            ``drop_snapshot(execution, checkpoint_id)`` of one that is not wanted any more, and ``wakeup()``, which any thread may call.
        clock_ns: measures turns, monotonic.
        rng_seed: for partitioners that draw lots.
        chain_factory: makes a chain from (spec, environment, writers, fused);
            ``operators.chain.OperatorChain`` when None.
        open_content: as in ``TaskEnvironment``.
        materialiser: gives that of ``TaskEnvironment``, for a job id.
    """

    def __init__(
        self,
        slot_id: str,
        host: str,
        now_ms: Callable[[], int],
        transport: Any,
        listener: Any,
        *,
        clock_ns: Callable[[], int],
        rng_seed: int = 0,
        chain_factory: Optional[ChainFactory] = None,
        open_content: Callable[[Bytes], Any] = open_inline,
        materialiser: Callable[[str], Any] = lambda job_id: None,
    ):
        self.slot_id = slot_id
        self.now_ms = now_ms
        self.transport = transport
        self.listener = listener
        self.frames_dropped = 0
        self.events_dropped = 0
        self.tasks: dict[ExecutionAttemptID, Task] = {}
        self._snapshots: dict[ExecutionAttemptID, OutstandingSnapshots] = {}
        self._attempts: dict[int, DeployedTasks] = {}
        self._order: list[Task] = []
        self._wanting = 0  # subtasks that wanted to go on after the last round
        self._services = SlotServices(
            slot_id,
            host,
            now_ms,
            clock_ns,
            listener,
            rng_seed,
            chain_factory,
            open_content,
            materialiser,
            self._task_changed,
            self._snapshot_taken,
            self._in_flight_taken,
            self._declined,
            self._end_of_data,
        )

    # ---- tasks come and go ----------------------------------------------------------------------

    def deploy(self, deploy: DeployTasks) -> bool:
        """Build the subtasks of an attempt; user objects are unpickled, but no user function runs yet.

        The shell has put ``main_classes`` and ``sys_path`` in place before.

        Returns:
            Whether all could be built; for those that could not, FAILED has been reported.
        """
        assert deploy.beside or not self.tasks, f"slot {self.slot_id} is in use"
        assert deploy.attempt not in self._attempts
        self._forget({(task.execution.vertex_id, task.execution.subtask_index) for task in deploy.tasks})
        deployed = DeployedTasks(deploy, self._services, self.transport.for_attempt(deploy.attempt))
        self._attempts[deploy.attempt] = deployed
        self._tasks_changed()
        return deployed.is_complete

    def _forget(self, subtasks: set[tuple[str, int]]) -> None:
        """Others take their place; an attempt that all of its tasks have left is gone."""
        for attempt, deployed in list(self._attempts.items()):
            deployed.forget(subtasks)
            if not deployed.tasks:
                del self._attempts[attempt]
        before = set(self.tasks.values())
        self._tasks_changed()
        assert all(task.is_over for task in before.difference(self._order)), "two attempts at a subtask at once"

    def _tasks_changed(self) -> None:
        self._order = [task for deployed in self._attempts.values() for task in deployed.order]
        self.tasks = {task.execution: task for task in self._order}

    @property
    def attempts(self) -> frozenset[int]:
        """Those that have tasks here."""
        return frozenset(self._attempts)

    def tasks_of(self, attempt: int) -> list[Task]:
        """In the order of the records' way."""
        return self._attempts[attempt].order if attempt in self._attempts else []

    def start(self, attempt: int) -> None:
        """Open the operators of the attempt's subtasks, receivers first."""
        for task in reversed(self.tasks_of(attempt)):
            if task.state == "DEPLOYING":
                task.start()

    def cancel(self, executions: Collection[ExecutionAttemptID]) -> None:
        """End those of these subtasks that are not over; their operators are closed when this returns."""
        for task in self._order:
            if task.execution in executions:
                task.cancel()

    def dispose(self) -> None:
        """End all and forget them; what still arrives for them is dropped."""
        self.cancel(self.tasks)
        self._snapshots.clear()
        self._attempts.clear()
        self._tasks_changed()

    @property
    def is_over(self) -> bool:
        """Whether every subtask has ended in some way."""
        return all([task.is_over for task in self._order])

    # ---- what arrives ---------------------------------------------------------------------------

    def on_frame(
        self, attempt: int, peer_slot: str, kind: int, channel_id: int, payload: bytes | memoryview
    ) -> None:
        """A frame of a peer's task of that attempt.  One for a channel that is not there (late, stale) is dropped."""
        deployed = self._attempts.get(attempt)
        if deployed is None or not deployed.on_frame(peer_slot, kind, channel_id, payload):
            self.frames_dropped += 1

    def on_operator_event(self, event: OperatorEvent) -> None:
        """From a coordinator; handed to the operator in its subtask's next turn."""
        task = self.tasks.get(event.execution)
        if task is None or task.is_over:
            self.events_dropped += 1
        else:
            task.handle_operator_event(event.operator_id, event.payload)

    def on_peer_lost(self, attempt: int, peer_slot: str, error: Optional[BaseException]) -> None:
        """The connection of an attempt to a peer is gone: subtasks that still need it fail."""
        if attempt in self._attempts:
            self._attempts[attempt].on_peer_lost(peer_slot, error)

    # ---- checkpoints ----------------------------------------------------------------------------

    def on_trigger_checkpoint(self, trigger: TriggerCheckpoint) -> None:
        """The JobManager wants a barrier from this subtask."""
        task = self.tasks.get(trigger.execution)
        if task is None or task.state != "RUNNING":
            over = task is None or task.is_over or task.state == "CANCELING"
            reason = CheckpointFailureReason.TASK_CLOSING if over else CheckpointFailureReason.TASK_NOT_READY
            self._decline(trigger.execution, trigger.checkpoint_id, reason)
        else:
            task.deliver(CheckpointBarrier(trigger.checkpoint_id, trigger.timestamp_ms, trigger.options))

    def on_checkpoint_notice(self, notice: Union[CheckpointComplete, CheckpointAborted]) -> None:
        """What became of a checkpoint of the job."""
        for task in self._order:
            if task.is_over:
                continue
            if isinstance(notice, CheckpointAborted):
                self._drop(task, notice.checkpoint_id)
            task.deliver(notice)

    def snapshot_stored(
        self,
        execution: ExecutionAttemptID,
        checkpoint_id: int,
        keyed: KeyedHandles,
        async_ms: int = 0,
        uploaded_bytes: int = 0,
    ) -> None:
        """All of a snapshot is durable.

        Args:
            keyed: handles by operator id.
        """
        outstanding = self._snapshots.get(execution)
        if outstanding is not None:
            self._say(execution, outstanding.stored(checkpoint_id, keyed, async_ms, uploaded_bytes))

    def in_flight_stored(
        self, execution: ExecutionAttemptID, checkpoint_id: int, content: Bytes, parts: tuple[InFlightPart, ...]
    ) -> None:
        """What a barrier has overtaken is durable."""
        outstanding = self._snapshots.get(execution)
        if outstanding is not None:
            self._say(execution, outstanding.in_flight_stored(checkpoint_id, (InFlightHandle(content, parts),)))

    def snapshot_failed(self, execution: ExecutionAttemptID, checkpoint_id: int, error: FlinkishError) -> None:
        """A snapshot could not be stored."""
        outstanding = self._snapshots.get(execution)
        if outstanding is not None:
            self._say(execution, outstanding.failed(checkpoint_id, TaskFailure(error)))

    def _say(self, execution: ExecutionAttemptID, messages: Iterable[Any]) -> None:
        for message in messages:
            self.listener.checkpoint_message(message)
        if execution in self.tasks:
            self.tasks[execution].unstored = len(self._snapshots[execution])

    def _snapshot_taken(self, task: Task, snapshot: TaskSnapshot) -> None:
        outstanding = self._snapshots.setdefault(task.execution, OutstandingSnapshots())
        outstanding.taken(snapshot)
        task.unstored = len(outstanding)
        self.listener.store_snapshot(snapshot)

    def _in_flight_taken(self, task: Task, data: InFlightData) -> None:
        outstanding = self._snapshots.get(task.execution)
        if outstanding is None or data.checkpoint_id not in outstanding:
            return  # given up meanwhile
        if data.dropped:
            self._drop(task, data.checkpoint_id)
            return
        if data.error is not None:
            self.listener.drop_snapshot(task.execution, data.checkpoint_id)
            self.snapshot_failed(task.execution, data.checkpoint_id, data.error)
            return
        content, parts = data.content()
        if parts:
            self.listener.store_in_flight(task.execution, data.checkpoint_id, data.options, content, parts)
        else:
            self._say(task.execution, outstanding.in_flight_stored(data.checkpoint_id, ()))

    def _drop(self, task: Task, checkpoint_id: int) -> None:
        outstanding = self._snapshots.get(task.execution)
        if outstanding is not None and checkpoint_id in outstanding:
            self.listener.drop_snapshot(task.execution, checkpoint_id)
            self._say(task.execution, outstanding.given_up(checkpoint_id))

    def _declined(self, task: Task, checkpoint_id: int, reason: CheckpointFailureReason) -> None:
        self._decline(task.execution, checkpoint_id, reason, f'task "{task.name}"')

    def _decline(
        self, execution: ExecutionAttemptID, checkpoint_id: int, reason: CheckpointFailureReason, where: str = ""
    ) -> None:
        failure = TaskFailure(
            CheckpointFailedError(
                f"could not take part in checkpoint {checkpoint_id}",
                where=where or f"subtask {execution}",
                why=reason.value,
            )
        )
        self.listener.checkpoint_message(DeclineCheckpoint(execution, checkpoint_id, failure, reason))

    def _end_of_data(self, task: Task) -> None:
        self.listener.checkpoint_message(NotifyEndOfData(task.execution))

    def _forget_snapshots(self, task: Task) -> None:
        """The task is over.  What its sinks have prepared and no acknowledgement has taken goes the way of a job
        without checkpoints, if it has ended well."""
        outstanding = self._snapshots.pop(task.execution, None)
        if outstanding is None:
            return
        for checkpoint_id in outstanding.ids():
            self.listener.drop_snapshot(task.execution, checkpoint_id)
        if task.state == "FINISHED":
            for operator_id, committables in outstanding.left_over.items():
                event = OperatorEvent(task.execution, operator_id, SinkCommittables(committables))
                self.listener.operator_event(event)

    # ---- work -----------------------------------------------------------------------------------

    def run_round(self, look: bool = True) -> bool:
        """Give each subtask a turn, then move outputs.

        Args:
            look: sources that had nothing are asked again; False: only those that were told to
                (``Task.look``), which is enough after a wait for their descriptors.
        Returns:
            Whether there is more to do at once.
        """
        budget_ns = max(TURN_NS_MIN, min(TURN_NS, ROUND_NS // max(1, self._wanting)))
        running = [task for task in self._order if task.state == "RUNNING"]
        for task in running:
            if look:
                task.look()
            try:
                due = task.needs_turn()
            except BaseException as error:  # sources and sinks of users are asked
                task.fail(error)
                continue
            if due and not task.run_turn(budget_ns):
                self.transport.flush()  # it will make no more for a while: nothing to gather
        self._wanting = 0
        for task in running:
            if task.state == "RUNNING":
                task.move_outputs()
                try:
                    self._wanting += task.wants_turn()
                except BaseException as error:
                    task.fail(error)
        return self._wanting > 0

    def next_deadline_ms(self) -> Optional[int]:
        """Processing time at which a round is due although nothing arrives."""
        first = self.now_ms() + SOCKET_RETRY_MS if self.waits_for_socket() else None
        for task in self._order:
            try:
                deadline = task.next_deadline_ms()
            except BaseException as error:
                task.fail(error)
                continue
            if deadline is not None and (first is None or deadline < first):
                first = deadline
        return first

    def descriptors(self) -> dict[int, tuple[str, Task]]:
        """Descriptors whose readiness calls for a round: ``"r"`` or ``"w"``, and the subtask that waits."""
        waited: dict[int, tuple[str, Task]] = {}
        for task in self._order:
            try:
                found = task.descriptors()
            except BaseException as error:
                task.fail(error)
                continue
            for descriptor, events in found.items():
                waited[descriptor] = events, task
        return waited

    def chains(self) -> list[Any]:
        """The operator chains of all subtasks, in the order of the records' way."""
        return [task.chain for task in self._order]

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Figures of each subtask, by ``str(execution)``."""
        return {str(task.execution): task.metrics() for task in self._order}

    def accumulators(self) -> dict[str, dict[str, Any]]:
        """Of each subtask that has some, by ``str(execution)``."""
        found = {str(task.execution): task.chain.environment.accumulators for task in self._order}
        return {name: accumulators for name, accumulators in found.items() if accumulators}

    def watermarks(self) -> dict[str, dict[str, Any]]:
        """How far event time is in each subtask that runs, by ``str(execution)``."""
        return {str(task.execution): task.watermarks() for task in self._order if task.state == "RUNNING"}

    def waits_for_socket(self) -> bool:
        """Whether records wait only because a connection holds too many bytes: the shell may not
        call when it has drained, so a deadline makes sure."""
        for task in self._order:
            if task.state == "RUNNING" and task.waits_to_send:
                for writer in task.writers:
                    for channel in writer.channels:
                        if not channel.is_empty and channel.waits_for_socket:
                            return True
        return False

    def _task_changed(self, task: Task, state: str, error: Optional[FlinkishError]) -> None:
        if state == "CANCELING":
            return  # the JobManager asked for it; only the end is news
        if task.is_over:
            self._forget_snapshots(task)
        failure = None if error is None else TaskFailure(error)
        self.listener.task_state_changed(task.execution, state, failure)

