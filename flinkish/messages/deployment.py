"""How the JobManager tells a slot what to run: frozen plain data.

A job attempt has one number space for channels: ``channel_id`` is unique among all physical
channels of the attempt, so that a frame needs no other address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Mapping, Optional

from flinkish.errors import FlinkishError

if TYPE_CHECKING:  # that module needs this one
    from flinkish.messages.checkpoints import InFlightRestore, OperatorSubtaskState


@dataclass(frozen=True, order=True)
class ExecutionAttemptID:
    """One try at one subtask.  ``attempt`` counts the job's attempts, from 0: a task that a restart leaves alone keeps
    its number, and those that restart get the newest."""

    job_id: str
    attempt: int
    vertex_id: str
    subtask_index: int

    def __str__(self) -> str:
        return f"{self.job_id[:8]}-{self.vertex_id[:8]}_{self.subtask_index}_{self.attempt}"


@dataclass(frozen=True)
class ChannelDescriptor:
    """The other end of one channel: which subtask, in which slot."""

    channel_id: int
    peer_subtask: int
    peer_slot: str


@dataclass(frozen=True)
class EdgeDescriptor:
    """One job edge.  ``input_index`` 0 or 1 tells apart the inputs of a two-input operator; a union is several
    edges with the same index.  ``partitioner``: its name.  ``unaligned``: whether barriers may overtake on it."""

    edge_id: int
    source_vertex: str
    target_vertex: str
    input_index: int
    partitioner: str
    unaligned: bool


@dataclass(frozen=True)
class InputDescriptor:
    """One job edge that ends here."""

    edge: EdgeDescriptor
    channels: tuple[ChannelDescriptor, ...]


@dataclass(frozen=True)
class OutputDescriptor:
    """One job edge that starts here; its partitioner, node and tag are in the chain."""

    edge: EdgeDescriptor
    channels: tuple[ChannelDescriptor, ...]


@dataclass(frozen=True)
class TaskRestore:
    """Where a subtask goes on: what it gets of checkpoint ``checkpoint_id``, dealt out already.

    ``operators``: by operator id, the parts of which it reads the key groups that they name; one without
    state is missing.  ``finished``: all subtasks of the vertex had finished before that checkpoint, so this
    one has nothing to do but to end its outputs: no operator is opened, no input is read.
    ``in_flight``: in the order in which it is taken."""

    checkpoint_id: int
    operators: "Mapping[str, tuple[OperatorSubtaskState, ...]]"
    in_flight: "tuple[InFlightRestore, ...]" = ()
    finished: bool = False


@dataclass(frozen=True)
class TaskDeploymentDescriptor:
    """One subtask.

    ``chain`` is a cloudpickle of ``flinkish.graph.job_graph.OperatorChainSpec``: the operators with the
    user's functions.  It is unpickled only after the connection has proved the secret.
    ``restore`` None: there is no checkpoint, it begins anew.
    """

    execution: ExecutionAttemptID
    task_name: str
    parallelism: int
    max_parallelism: int
    chain: bytes
    inputs: tuple[InputDescriptor, ...]
    outputs: tuple[OutputDescriptor, ...]
    restore: Optional[TaskRestore] = None


@dataclass(frozen=True)
class SlotAddress:
    """Where a slot listens for records: both forms; peers on the same host use the Unix socket."""

    slot_id: str
    host: str  # a name of the machine, equal on one machine only (boot id + network namespace)
    unix_path: Optional[str]
    tcp: tuple[str, int]


@dataclass(frozen=True)
class TaskFailure:
    """Why a subtask failed.  ``error`` is a FlinkishError and pickles."""

    error: FlinkishError
