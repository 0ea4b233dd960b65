"""Messages between JobManager, supervisors and slots.  Frozen; each goes as one pickled frame over
a connection that has proved the secret.

Way of an attempt, as seen by one slot; the tasks of an attempt are all of the job, or those of the pipelined regions
that restart, beside tasks of earlier attempts::

    JobManager                         slot
      DeployTasks          ->            builds tasks, opens connections to its peers
                           <-          TasksDeployed         (or TaskStateChanged FAILED)
      StartTasks (when all slots of the attempt are deployed)
                           ->            opens the operators: user code runs from here on
                           <-          TaskStateChanged RUNNING, then FINISHED / FAILED / CANCELED
      CancelTasks          ->            stops the tasks that it names, closes their operators
                           <-          TaskStateChanged CANCELED for each
      ReleaseSlot          ->            the job is over; the process ends with exit code 0, and its
                                         supervisor starts a fresh one, which registers anew
                           <-          SlotFailed whenever the process ends otherwise and can still say so
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Mapping, Optional

from flinkish.messages.deployment import (
    ExecutionAttemptID,
    SlotAddress,
    TaskDeploymentDescriptor,
    TaskFailure,
)

PROTOCOL_VERSION = 1


# ---- supervisor <-> JobManager ------------------------------------------------------------------


@dataclass(frozen=True)
class RegisterSupervisor:
    """First message of a supervisor.  ``lease`` names the launch; one registration a
    (lease, task_index) wins.  ``host`` and ``executor_id`` ("" where there is none) are for people."""

    lease: str
    task_index: int
    spark_attempt: int
    host: str
    pid: int
    slot_ids: tuple[str, ...]
    protocol_version: int = PROTOCOL_VERSION
    executor_id: str = ""


@dataclass(frozen=True)
class SlotReport:
    """State of one slot process as its supervisor sees it.  ``progress_age_ms``: since the mailbox
    loop last turned; ``exit_status`` of the process that has just ended (negative: of that signal), else
    None; ``ended_by_supervisor``: it has killed that process; ``do``: advice, where there is some."""

    slot_id: str
    pid: int
    progress_age_ms: int
    exit_status: Optional[int] = None
    detail: str = ""
    ended_by_supervisor: bool = False
    do: str = ""


@dataclass(frozen=True)
class SupervisorHeartbeat:
    reports: tuple[SlotReport, ...]


@dataclass(frozen=True)
class Heartbeat:
    """From the JobManager, so that the other side notices when it is gone."""


@dataclass(frozen=True)
class StopSupervisor:
    """End the slots in order and return, which ends the Spark task."""

    reason: str = ""


@dataclass(frozen=True)
class InterruptSlot:
    """Raise TaskCancelled in the user code that process ``pid`` of the slot runs, if it runs any."""

    slot_id: str
    pid: int


@dataclass(frozen=True)
class KillSlot:
    """Dump the stacks of process ``pid`` of the slot, then kill it (a replacement starts).  Nothing happens when
    another process serves the slot by then: that one may have been given to the next job."""

    slot_id: str
    pid: int
    reason: str


# ---- slot <-> JobManager ------------------------------------------------------------------------


@dataclass(frozen=True)
class RegisterSlot:
    lease: str
    slot_id: str
    pid: int
    address: SlotAddress
    protocol_version: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class RegistrationRefused:
    """The other side must exit."""

    reason: str


@dataclass(frozen=True)
class DeployTasks:
    """``main_classes``: cloudpickle of {name: class} that ``__main__`` of the driver defines, put
    into the slot's ``__main__`` before anything else is unpickled.  ``sys_path``: entries of the
    driver that the slot adds when they exist.  ``configuration``: the job's, as a dict of strings.
    ``initial_credits``: frames that each channel may send at once.
    ``beside``: what the slot has of earlier attempts goes on, but for the tasks that these replace, which have ended;
    else the slot is empty, or what it had is over.
    ``final_checkpoint``: sinks publish by checkpoints, so a subtask at the end of its data stays, as RUNNING,
    until one whose barrier it has passed after that is complete (FLIP-147)."""

    job_id: str
    job_name: str
    attempt: int
    tasks: tuple[TaskDeploymentDescriptor, ...]
    peers: Mapping[str, SlotAddress]
    configuration: Mapping[str, Any]
    main_classes: bytes
    sys_path: tuple[str, ...]
    initial_credits: int
    final_checkpoint: bool = False
    beside: bool = False


@dataclass(frozen=True)
class TasksDeployed:
    job_id: str
    attempt: int


@dataclass(frozen=True)
class StartTasks:
    job_id: str
    attempt: int


@dataclass(frozen=True)
class CancelTasks:
    job_id: str
    executions: tuple[ExecutionAttemptID, ...]


@dataclass(frozen=True)
class ReleaseSlot:
    reason: str = ""


@dataclass(frozen=True)
class TaskStateChanged:
    """``state`` is the name of a ``graph.execution_graph.ExecutionState``."""

    execution: ExecutionAttemptID
    state: Literal["INITIALIZING", "RUNNING", "FINISHED", "CANCELED", "FAILED"]
    failure: Optional[TaskFailure] = None


@dataclass(frozen=True)
class SlotFailed:
    """The connection to ``lost_peer`` is gone; or, without it, the process is about to end: this says why before
    its tasks become FAILED or CANCELED.  ``executions``: those that end with it."""

    slot_id: str
    job_id: str
    executions: tuple[ExecutionAttemptID, ...]
    failure: TaskFailure
    lost_peer: Optional[str] = None


@dataclass(frozen=True)
class OperatorEvent:
    """From an operator of a subtask to its coordinator, or back.

    Payloads of a source operator: see ``SourceRegister`` to ``SourceWatermarkAlignment`` below; of a sink:
    ``SinkCommittables`` and ``SinkPayload``."""

    execution: ExecutionAttemptID
    operator_id: str
    payload: Any


@dataclass(frozen=True)
class SourceRegister:
    host: str


@dataclass(frozen=True)
class SourceRequestSplit:
    host: str


@dataclass(frozen=True)
class SourceAddSplits:
    splits: bytes  # cloudpickle of a list of splits


@dataclass(frozen=True)
class SourceNoMoreSplits:
    pass


@dataclass(frozen=True)
class SourceCustomEvent:
    event: bytes  # cloudpickle


@dataclass(frozen=True)
class SourceReportedWatermark:
    """How far a reader has got, to the JobMaster (Flink's ``ReportedWatermarkEvent``).  MAX_WATERMARK_MS: it is idle,
    or at its end."""

    watermark_ms: int


@dataclass(frozen=True)
class SourceWatermarkAlignment:
    """How far a reader may get (Flink's ``WatermarkAlignmentEvent``)."""

    max_watermark_ms: int


@dataclass(frozen=True)
class SinkCommittables:
    """``checkpoint_id`` None: at the end of input."""

    committables: bytes  # cloudpickle of a list
    checkpoint_id: Optional[int] = None


@dataclass(frozen=True)
class SinkPayload:
    payload: bytes  # pickle


@dataclass(frozen=True)
class MetricsReport:
    """Once a second.  ``tasks``: str(execution) -> metric name -> value, see
    ``flinkish.metrics.names``.  ``watermarks``: str(execution) -> what ``WatermarkReporter.report`` says.
    ``accumulators``: str(execution) -> pickle of name -> Accumulator; the last report of a subtask comes before its
    TaskStateChanged FINISHED."""

    job_id: str
    slot_id: str
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    watermarks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    accumulators: Mapping[str, bytes] = field(default_factory=dict)


# ---- slot <-> slot -------------------------------------------------------------------------------


@dataclass(frozen=True)
class PeerHello:
    """First message on a connection for records, from the slot that opened it and sends on it.
    Credits flow back on the same connection."""

    job_id: str
    attempt: int
    slot_id: str
