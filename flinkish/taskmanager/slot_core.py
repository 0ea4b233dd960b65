"""All subtasks of one slot: builds them, routes frames to their channels, gives them turns.

A slot runs one attempt of one job at a time::

    empty --deploy--> deployed --start--> running --(all subtasks over)--> over --dispose--> empty
                          \\________________cancel________________/

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

import random
import traceback
from typing import Any, Callable, Iterable, Optional, Union

from flinkish.common import options
from flinkish.errors import CheckpointFailedError, ConnectionLostError, FlinkishError, InternalError
from flinkish.graph.chain_pickling import unpickle_chain
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
from flinkish.messages.deployment import (
    ExecutionAttemptID,
    OutputDescriptor,
    TaskDeploymentDescriptor,
    TaskFailure,
)
from flinkish.messages.elements import CheckpointBarrier
from flinkish.metrics.groups import OperatorMetricGroup
from flinkish.operators.output import TaskEnvironment, open_inline
from flinkish.operators.snapshots import TaskSnapshot
from flinkish.operators.user_errors import travel_error
from flinkish.taskmanager import wire
from flinkish.taskmanager.credit_ledger import CreditLedger
from flinkish.taskmanager.frame_sizer import FrameSizer
from flinkish.taskmanager.in_flight import InFlightData, Replayed, read_replay
from flinkish.taskmanager.input_channel import InputChannel
from flinkish.taskmanager.input_gate import InputGate
from flinkish.taskmanager.output_channel import (
    LocalOutputChannel,
    OutputChannel,
    RemoteOutputChannel,
)
from flinkish.taskmanager.outstanding_snapshots import KeyedHandles, OutstandingSnapshots
from flinkish.taskmanager.record_writer import ChannelWriter, create_record_writer
from flinkish.taskmanager.task import TURN_NS, Task

ROUND_NS = 2_000_000  # between two rounds the shell drains the sockets, so a round must stay short
TURN_NS_MIN = 200_000
SOCKET_RETRY_MS = 10

ChainFactory = Callable[..., Any]


class SlotCore:
    """The data plane of one slot.

    Args:
        slot_id, host: names of this slot and its machine, as in ``SlotAddress``.
        now_ms: processing time.
        transport: ``send(peer_slot, kind, channel_id, buffers)``, which may gather frames until ``flush()``,
            and ``pending_bytes(peer_slot)``.
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
        self.host = host
        self.now_ms = now_ms
        self.transport = transport
        self.listener = listener
        self.rng_seed = rng_seed
        self.clock_ns = clock_ns
        self.chain_factory = chain_factory
        self.open_content, self.materialiser = open_content, materialiser
        self.frames_dropped = 0
        self.events_dropped = 0
        self.tasks: dict[ExecutionAttemptID, Task] = {}
        self._snapshots: dict[ExecutionAttemptID, OutstandingSnapshots] = {}
        self._order: list[Task] = []
        self._inputs: dict[int, InputChannel] = {}
        self._outputs: dict[int, OutputChannel] = {}
        self._input_tasks: dict[int, ExecutionAttemptID] = {}
        self._output_tasks: dict[int, ExecutionAttemptID] = {}
        self._wanting = 0  # subtasks that wanted to go on after the last round

    # ---- life of an attempt ---------------------------------------------------------------------

    def deploy(self, deploy: DeployTasks) -> bool:
        """Build the subtasks; user objects are unpickled, but no user function runs yet.

        The shell has put ``main_classes`` and ``sys_path`` in place before.

        Returns:
            Whether all could be built; for those that could not, FAILED has been reported.
        """
        assert not self.tasks and not self._inputs, f"slot {self.slot_id} is in use"
        gates = {task.execution: self._build_gates(task, deploy) for task in deploy.tasks}
        good = True
        for descriptor in deploy.tasks:
            task = self._build_task(descriptor, deploy, gates[descriptor.execution])
            if task is None:
                good = False
                for gate in gates[descriptor.execution]:
                    gate.close()
            else:
                self.tasks[descriptor.execution] = task
        self._order = self._in_order_of_flow(deploy.tasks)
        return good

    def start(self) -> None:
        """Open the operators of all subtasks, receivers first."""
        for task in reversed(self._order):
            if task.state == "DEPLOYING":
                task.start()

    def cancel(self) -> None:
        """End all subtasks that are not over; their operators are closed when this returns."""
        for task in self._order:
            task.cancel()

    def dispose(self) -> None:
        """Forget the attempt; what still arrives for it is dropped."""
        self.cancel()
        self.tasks.clear()
        self._snapshots.clear()
        self._order.clear()
        self._inputs.clear()
        self._outputs.clear()
        self._input_tasks.clear()
        self._output_tasks.clear()

    @property
    def is_over(self) -> bool:
        """Whether every subtask has ended in some way."""
        return all([task.is_over for task in self._order])

    # ---- what arrives ---------------------------------------------------------------------------

    def on_frame(
        self, peer_slot: str, kind: int, channel_id: int, payload: bytes | memoryview
    ) -> None:
        """A frame of a peer.  One for a channel that is not there (late, stale) is dropped."""
        credit = kind == wire.CREDIT
        channel: Any = (self._outputs if credit else self._inputs).get(channel_id)
        if channel is None or channel.peer_slot != peer_slot:
            self.frames_dropped += 1
            return
        try:
            if credit:
                channel.ledger.give_back(wire.decode_credit(payload))
            elif channel.closed:
                self.frames_dropped += 1
            else:
                channel.receive_frame(kind, payload)
        except Exception as error:
            owner = (self._output_tasks if credit else self._input_tasks)[channel_id]
            if owner in self.tasks:
                self.tasks[owner].fail(error)

    def on_operator_event(self, event: OperatorEvent) -> None:
        """From a coordinator; handed to the operator in its subtask's next turn."""
        task = self.tasks.get(event.execution)
        if task is None or task.is_over:
            self.events_dropped += 1
        else:
            task.handle_operator_event(event.operator_id, event.payload)

    def on_peer_lost(self, peer_slot: str, error: Optional[BaseException]) -> None:
        """The connection to a peer is gone: subtasks that still need it fail."""
        needing: list[ExecutionAttemptID] = []
        for channel in self._inputs.values():
            if channel.peer_slot == peer_slot and not channel.ended:
                needing.append(self._input_tasks[channel.channel_id])
        for output in self._outputs.values():
            if output.peer_slot == peer_slot and not (output.ended and output.is_empty):
                needing.append(self._output_tasks[output.channel_id])
        for execution in sorted(set(needing)):
            task = self.tasks.get(execution)
            if task is not None and not task.is_over:
                task.fail(
                    ConnectionLostError(
                        f'lost the connection to slot "{peer_slot}"',
                        where=f'task "{task.name}"',
                        why=str(error) if error is not None else "the peer closed it",
                        peer_slot=peer_slot,
                    )
                )

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
        """What became of a checkpoint of this attempt."""
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

    # ---- building -------------------------------------------------------------------------------

    def _build_gates(
        self, descriptor: TaskDeploymentDescriptor, deploy: DeployTasks
    ) -> list[InputGate]:
        gates: dict[int, InputGate] = {}
        for input_ in descriptor.inputs:
            gate = gates.get(input_.edge.input_index)
            if gate is None:
                gate = gates[input_.edge.input_index] = InputGate(input_.edge.input_index)
            for end in input_.channels:
                local = end.peer_slot == self.slot_id
                channel = InputChannel(
                    end.channel_id,
                    end.peer_subtask,
                    end.peer_slot,
                    gate,
                    len(gate.channels),
                    CreditLedger(deploy.initial_credits),
                    None if local else self.transport,
                    input_.edge,
                )
                gate.channels.append(channel)
                self._inputs[end.channel_id] = channel
                self._input_tasks[end.channel_id] = descriptor.execution
        for gate in gates.values():
            gate.seal()
        return [gates[index] for index in sorted(gates)]

    def _build_task(
        self, descriptor: TaskDeploymentDescriptor, deploy: DeployTasks, gates: list[InputGate]
    ) -> Optional[Task]:
        try:
            configuration = deploy.configuration
            spec = unpickle_chain(descriptor.chain, descriptor.task_name, self.slot_id)
            environment = self._environment(descriptor, deploy)
            outputs = {output.edge.edge_id: output for output in descriptor.outputs}
            writers = {
                edge.edge_id: self._build_writer(
                    edge, outputs[edge.edge_id], descriptor, deploy, _explaining(spec, edge, environment)
                )
                for edge in spec.outputs
            }
            factory = self.chain_factory
            if factory is None:
                from flinkish.operators.chain import OperatorChain as factory
            chain = factory(
                spec, environment, writers, options.read(configuration, options.FUSED_CHAINS)
            )
            return Task(
                descriptor,
                chain,
                gates,
                list(writers.values()),
                self.now_ms,
                self.clock_ns,
                self._task_changed,
                self._snapshot_taken,
                self._in_flight_taken,
                self._declined,
                self._end_of_data,
                deploy.final_checkpoint,
                lambda: self._read_replay(descriptor),
            )
        except BaseException as error:
            if isinstance(error, FlinkishError):
                failure = error
            else:
                failure = InternalError(
                    "could not build a subtask",
                    where=f'task "{descriptor.task_name}", slot {self.slot_id}',
                    why=f"{type(error).__name__}: {error}",
                    do="check that the slots have the modules and versions of the driver",
                    traceback_text=traceback.format_exc(),
                )
            self.listener.task_state_changed(descriptor.execution, "FAILED", TaskFailure(failure))
            return None

    def _read_replay(self, descriptor: TaskDeploymentDescriptor) -> Iterable[Replayed]:
        restore = descriptor.restore
        if restore is None or not restore.in_flight:
            return ()
        edges = {input_.edge.edge_id: input_.edge for input_ in descriptor.inputs}
        subtask = (descriptor.execution.subtask_index, descriptor.parallelism, descriptor.max_parallelism)
        return read_replay(restore.in_flight, edges, subtask, self.open_content)

    def _build_writer(
        self,
        edge: Any,
        output: OutputDescriptor,
        descriptor: TaskDeploymentDescriptor,
        deploy: DeployTasks,
        explain: Callable[[BaseException], BaseException],
    ) -> ChannelWriter:
        from flinkish.operators.copying import freeze

        configuration = deploy.configuration
        sizer = FrameSizer(options.read(configuration, options.MAX_RECORDS_PER_BATCH))
        pending_bytes_max = options.read(configuration, options.MAX_PENDING_BYTES)
        channels: list[OutputChannel] = []
        for end in sorted(output.channels, key=lambda end: end.peer_subtask):
            channel: OutputChannel
            if end.peer_slot == self.slot_id:
                receiver = self._inputs[end.channel_id]
                channel = LocalOutputChannel(
                    end.channel_id,
                    end.peer_subtask,
                    end.peer_slot,
                    receiver.ledger,
                    sizer,
                    receiver,
                )
            else:
                channel = RemoteOutputChannel(
                    end.channel_id,
                    end.peer_subtask,
                    end.peer_slot,
                    CreditLedger(deploy.initial_credits),
                    sizer,
                    self.transport,
                    pending_bytes_max,
                    explain,
                )
            channels.append(channel)
            self._outputs[end.channel_id] = channel
            self._output_tasks[end.channel_id] = descriptor.execution
        execution = descriptor.execution
        rng = random.Random(
            f"{self.rng_seed}/{execution.vertex_id}/{execution.subtask_index}/{edge.edge_id}"
        )
        reuse = options.read(configuration, options.PIPELINE_OBJECT_REUSE)
        timeout_ms = options.read(configuration, options.EXECUTION_BUFFER_TIMEOUT)
        writer = create_record_writer(
            edge, channels, sizer, rng, (lambda value: value) if reuse else freeze, timeout_ms
        )
        writer.edge = output.edge
        return writer

    def _environment(
        self, descriptor: TaskDeploymentDescriptor, deploy: DeployTasks
    ) -> TaskEnvironment:
        execution, configuration = descriptor.execution, deploy.configuration

        def send_event(operator_id: str, payload: Any) -> None:
            self.listener.operator_event(OperatorEvent(execution, operator_id, payload))

        return TaskEnvironment(
            job_id=deploy.job_id,
            job_name=deploy.job_name,
            task_name=descriptor.task_name,
            subtask_index=execution.subtask_index,
            parallelism=descriptor.parallelism,
            max_parallelism=descriptor.max_parallelism,
            attempt=deploy.attempt,
            host=self.host,
            configuration=configuration,
            now_ms=self.now_ms,
            metric_group=OperatorMetricGroup(self.now_ms),
            send_event=send_event,
            wakeup=self.listener.wakeup,
            object_reuse=options.read(configuration, options.PIPELINE_OBJECT_REUSE),
            state_backend=options.read(configuration, options.STATE_BACKEND),
            job_parameters=options.read(configuration, options.PIPELINE_GLOBAL_JOB_PARAMETERS)
            or {},
            restore=descriptor.restore,
            open_content=self.open_content,
            materialiser=self.materialiser(deploy.job_id),
            final_checkpoint=deploy.final_checkpoint,
        )

    def _in_order_of_flow(self, descriptors: tuple[TaskDeploymentDescriptor, ...]) -> list[Task]:
        """Senders before receivers, as far as they are in this slot; else in the given order."""
        senders: dict[ExecutionAttemptID, set[ExecutionAttemptID]] = {}
        for descriptor in descriptors:
            for output in descriptor.outputs:
                for end in output.channels:
                    receiver = self._input_tasks.get(end.channel_id)
                    if receiver is not None:
                        senders.setdefault(receiver, set()).add(descriptor.execution)
        ordered: list[ExecutionAttemptID] = []
        waiting = [descriptor.execution for descriptor in descriptors]
        while waiting:
            placed = set(ordered)
            free = [e for e in waiting if senders.get(e, set()) <= placed] or waiting[:1]
            ordered += free
            waiting = [e for e in waiting if e not in set(free)]
        return [self.tasks[execution] for execution in ordered if execution in self.tasks]

    def _task_changed(self, task: Task, state: str, error: Optional[FlinkishError]) -> None:
        if state == "CANCELING":
            return  # the JobManager asked for it; only the end is news
        if task.is_over:
            self._forget_snapshots(task)
        failure = None if error is None else TaskFailure(error)
        self.listener.task_state_changed(task.execution, state, failure)


def _explaining(
    spec: Any, edge: Any, environment: TaskEnvironment
) -> Callable[[BaseException], BaseException]:
    """Names the operator in the error of a record that cannot leave by ``edge``."""

    def explain(error: BaseException) -> BaseException:
        for chained in getattr(spec, "operators", ()):  # a `testing.scripted_chain` has none
            if chained.node_id == edge.source_id:
                return travel_error(error, chained.name, environment, "output")
        return error

    return explain
