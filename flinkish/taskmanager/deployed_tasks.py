"""The subtasks that one attempt has in a slot: builds them and their channels, and routes frames to these.

A slot may have tasks of several attempts of its job side by side: those of regions that a restart has left alone,
and those that it has replaced.  Regions exchange nothing, so each attempt has its own channels, and its own connections
(``transport``): a frame that a task of an older attempt has still sent never meets a channel of a newer one,
although both have the same number.
"""

from __future__ import annotations

import random
import traceback
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Optional

from flinkish.common import options
from flinkish.errors import ConnectionLostError, FlinkishError, InternalError
from flinkish.graph.chain_pickling import unpickle_chain
from flinkish.messages.checkpoints import Bytes, CheckpointFailureReason
from flinkish.messages.control import DeployTasks, OperatorEvent
from flinkish.messages.deployment import (
    ExecutionAttemptID,
    OutputDescriptor,
    TaskDeploymentDescriptor,
    TaskFailure,
)
from flinkish.metrics.groups import OperatorMetricGroup
from flinkish.operators.output import TaskEnvironment
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
from flinkish.taskmanager.record_writer import ChannelWriter, create_record_writer
from flinkish.taskmanager.task import Task

ChainFactory = Callable[..., Any]


@dataclass(frozen=True)
class SlotServices:
    """What a slot gives to its tasks.  The first ones are as in ``SlotCore``; the last five hear of each task."""

    slot_id: str
    host: str
    now_ms: Callable[[], int]
    clock_ns: Callable[[], int]
    listener: Any
    rng_seed: int
    chain_factory: Optional[ChainFactory]
    open_content: Callable[[Bytes], Any]
    materialiser: Callable[[str], Any]
    task_changed: Callable[[Task, str, Optional[FlinkishError]], None]
    snapshot_taken: Callable[[Task, TaskSnapshot], None]
    in_flight_taken: Callable[[Task, InFlightData], None]
    declined: Callable[[Task, int, CheckpointFailureReason], None]
    end_of_data: Callable[[Task], None]


class DeployedTasks:
    """See the module.  User objects are unpickled here, but no user function runs yet.

    Args:
        transport: of this attempt: ``send(peer_slot, kind, channel_id, buffers)`` and ``pending_bytes(peer_slot)``.
    """

    def __init__(self, deploy: DeployTasks, services: SlotServices, transport: Any):
        self._deploy, self._services, self._transport = deploy, services, transport
        self.attempt = deploy.attempt
        self.inputs: dict[int, InputChannel] = {}
        self.outputs: dict[int, OutputChannel] = {}
        self._input_tasks: dict[int, ExecutionAttemptID] = {}
        self._output_tasks: dict[int, ExecutionAttemptID] = {}
        self.tasks: dict[ExecutionAttemptID, Task] = {}
        gates = {task.execution: self._build_gates(task) for task in deploy.tasks}
        for descriptor in deploy.tasks:
            task = self._build_task(descriptor, gates[descriptor.execution])
            if task is None:
                for gate in gates[descriptor.execution]:
                    gate.close()
            else:
                self.tasks[descriptor.execution] = task
        #: In the order of the records' way.
        self.order = self._in_order_of_flow()

    @property
    def is_complete(self) -> bool:
        """Whether all could be built; for those that could not, FAILED has been reported."""
        return len(self.tasks) == len(self._deploy.tasks)

    def forget(self, subtasks: Iterable[tuple[str, int]]) -> None:
        """These have been replaced; what still arrives for them is dropped."""
        replaced = {
            execution
            for execution in (task.execution for task in self._deploy.tasks)
            if (execution.vertex_id, execution.subtask_index) in subtasks
        }
        self.order = [task for task in self.order if task.execution not in replaced]
        self.tasks = {task.execution: task for task in self.order}
        channels: dict[int, Any]
        for channels, owners in ((self.inputs, self._input_tasks), (self.outputs, self._output_tasks)):
            for channel_id in [number for number, owner in owners.items() if owner in replaced]:
                del channels[channel_id], owners[channel_id]

    # ---- what arrives ---------------------------------------------------------------------------

    def on_frame(self, peer_slot: str, kind: int, channel_id: int, payload: bytes | memoryview) -> bool:
        """A frame of a peer.  False: it is for a channel that is not there, or over."""
        credit = kind == wire.CREDIT
        channel: Any = (self.outputs if credit else self.inputs).get(channel_id)
        if channel is None or channel.peer_slot != peer_slot:
            return False
        try:
            if credit:
                channel.ledger.give_back(wire.decode_credit(payload))
            elif channel.closed:
                return False
            else:
                channel.receive_frame(kind, payload)
        except Exception as error:
            owner = (self._output_tasks if credit else self._input_tasks)[channel_id]
            if owner in self.tasks:
                self.tasks[owner].fail(error)
        return True

    def on_peer_lost(self, peer_slot: str, error: Optional[BaseException]) -> None:
        """The connection to a peer is gone: subtasks that still need it fail."""
        needing: list[ExecutionAttemptID] = []
        for channel in self.inputs.values():
            if channel.peer_slot == peer_slot and not channel.ended:
                needing.append(self._input_tasks[channel.channel_id])
        for output in self.outputs.values():
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

    # ---- building -------------------------------------------------------------------------------

    def _build_gates(self, descriptor: TaskDeploymentDescriptor) -> list[InputGate]:
        gates: dict[int, InputGate] = {}
        for input_ in descriptor.inputs:
            gate = gates.get(input_.edge.input_index)
            if gate is None:
                gate = gates[input_.edge.input_index] = InputGate(input_.edge.input_index)
            for end in input_.channels:
                local = end.peer_slot == self._services.slot_id
                channel = InputChannel(
                    end.channel_id,
                    end.peer_subtask,
                    end.peer_slot,
                    gate,
                    len(gate.channels),
                    CreditLedger(self._deploy.initial_credits),
                    None if local else self._transport,
                    input_.edge,
                )
                gate.channels.append(channel)
                self.inputs[end.channel_id] = channel
                self._input_tasks[end.channel_id] = descriptor.execution
        for gate in gates.values():
            gate.seal()
        return [gates[index] for index in sorted(gates)]

    def _build_task(self, descriptor: TaskDeploymentDescriptor, gates: list[InputGate]) -> Optional[Task]:
        try:
            configuration = self._deploy.configuration
            spec = unpickle_chain(descriptor.chain, descriptor.task_name, self._services.slot_id)
            environment = self._environment(descriptor)
            outputs = {output.edge.edge_id: output for output in descriptor.outputs}
            writers = {
                edge.edge_id: self._build_writer(
                    edge, outputs[edge.edge_id], descriptor, _explaining(spec, edge, environment)
                )
                for edge in spec.outputs
            }
            factory = self._services.chain_factory
            if factory is None:
                from flinkish.operators.chain import OperatorChain as factory
            chain = factory(
                spec, environment, writers, options.read(configuration, options.FUSED_CHAINS)
            )
            task = Task(
                descriptor,
                chain,
                gates,
                list(writers.values()),
                self._services.now_ms,
                self._services.clock_ns,
                self._services.task_changed,
                self._services.snapshot_taken,
                self._services.in_flight_taken,
                self._services.declined,
                self._services.end_of_data,
                self._deploy.final_checkpoint,
                lambda: self._read_replay(descriptor),
            )
            environment.blocked_ms = task.times.blocked_ms
            return task
        except BaseException as error:
            if isinstance(error, FlinkishError):
                failure = error
            else:
                failure = InternalError(
                    "could not build a subtask",
                    where=f'task "{descriptor.task_name}", slot {self._services.slot_id}',
                    why=f"{type(error).__name__}: {error}",
                    do="check that the slots have the modules and versions of the driver",
                    traceback_text=traceback.format_exc(),
                )
            self._services.listener.task_state_changed(descriptor.execution, "FAILED", TaskFailure(failure))
            return None

    def _read_replay(self, descriptor: TaskDeploymentDescriptor) -> Iterable[Replayed]:
        restore = descriptor.restore
        if restore is None or not restore.in_flight:
            return ()
        edges = {input_.edge.edge_id: input_.edge for input_ in descriptor.inputs}
        subtask = (descriptor.execution.subtask_index, descriptor.parallelism, descriptor.max_parallelism)
        return read_replay(restore.in_flight, edges, subtask, self._services.open_content)

    def _build_writer(
        self,
        edge: Any,
        output: OutputDescriptor,
        descriptor: TaskDeploymentDescriptor,
        explain: Callable[[BaseException], BaseException],
    ) -> ChannelWriter:
        from flinkish.operators.copying import freeze

        configuration = self._deploy.configuration
        sizer = FrameSizer(options.read(configuration, options.MAX_RECORDS_PER_BATCH))
        pending_bytes_max = options.read(configuration, options.MAX_PENDING_BYTES)
        channels: list[OutputChannel] = []
        for end in sorted(output.channels, key=lambda end: end.peer_subtask):
            channel: OutputChannel
            if end.peer_slot == self._services.slot_id:
                receiver = self.inputs[end.channel_id]
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
                    CreditLedger(self._deploy.initial_credits),
                    sizer,
                    self._transport,
                    pending_bytes_max,
                    explain,
                )
            channels.append(channel)
            self.outputs[end.channel_id] = channel
            self._output_tasks[end.channel_id] = descriptor.execution
        execution = descriptor.execution
        rng = random.Random(
            f"{self._services.rng_seed}/{execution.vertex_id}/{execution.subtask_index}/{edge.edge_id}"
        )
        reuse = options.read(configuration, options.PIPELINE_OBJECT_REUSE)
        timeout_ms = options.read(configuration, options.EXECUTION_BUFFER_TIMEOUT)
        writer = create_record_writer(
            edge, channels, sizer, rng, (lambda value: value) if reuse else freeze, timeout_ms
        )
        writer.edge = output.edge
        return writer

    def _environment(self, descriptor: TaskDeploymentDescriptor) -> TaskEnvironment:
        execution, configuration = descriptor.execution, self._deploy.configuration

        def send_event(operator_id: str, payload: Any) -> None:
            self._services.listener.operator_event(OperatorEvent(execution, operator_id, payload))

        return TaskEnvironment(
            job_id=self._deploy.job_id,
            job_name=self._deploy.job_name,
            task_name=descriptor.task_name,
            subtask_index=execution.subtask_index,
            parallelism=descriptor.parallelism,
            max_parallelism=descriptor.max_parallelism,
            attempt=self._deploy.attempt,
            host=self._services.host,
            configuration=configuration,
            now_ms=self._services.now_ms,
            metric_group=OperatorMetricGroup(self._services.now_ms),
            send_event=send_event,
            wakeup=self._services.listener.wakeup,
            object_reuse=options.read(configuration, options.PIPELINE_OBJECT_REUSE),
            state_backend=options.read(configuration, options.STATE_BACKEND),
            job_parameters=options.read(configuration, options.PIPELINE_GLOBAL_JOB_PARAMETERS)
            or {},
            restore=descriptor.restore,
            open_content=self._services.open_content,
            materialiser=self._services.materialiser(self._deploy.job_id),
            final_checkpoint=self._deploy.final_checkpoint,
        )

    def _in_order_of_flow(self) -> list[Task]:
        """Senders before receivers, as far as they are in this slot; else in the given order."""
        senders: dict[ExecutionAttemptID, set[ExecutionAttemptID]] = {}
        for descriptor in self._deploy.tasks:
            for output in descriptor.outputs:
                for end in output.channels:
                    receiver = self._input_tasks.get(end.channel_id)
                    if receiver is not None:
                        senders.setdefault(receiver, set()).add(descriptor.execution)
        ordered: list[ExecutionAttemptID] = []
        waiting = [descriptor.execution for descriptor in self._deploy.tasks]
        while waiting:
            placed = set(ordered)
            free = [e for e in waiting if senders.get(e, set()) <= placed] or waiting[:1]
            ordered += free
            waiting = [e for e in waiting if e not in set(free)]
        return [self.tasks[execution] for execution in ordered if execution in self.tasks]


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
