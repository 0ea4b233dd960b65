"""What an operator chain needs from the task that runs it.

The chain knows nothing of channels and sockets: the task hands it one ``RecordWriter`` per output
edge and a ``TaskEnvironment``.  Implementations are in ``flinkish.taskmanager``.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional

from flinkish.common import options
from flinkish.errors import ConfigurationError
from flinkish.messages.checkpoints import Bytes, InlineBytes
from flinkish.messages.deployment import TaskRestore
from flinkish.metrics.groups import OperatorMetricGroup
from flinkish.metrics.metricbase import MetricGroup


class RecordWriter(abc.ABC):
    """Takes the records that leave a chain by one edge, and spreads them over its channels.

    A writer holds one open buffer per channel.  ``emit`` appends; the task seals and sends.
    """

    @property
    @abc.abstractmethod
    def room(self) -> int:
        """Records that every channel can surely still take, may be <= 0.  The chain stops taking
        records when it is; a record in the middle of its output may overdraw."""

    @property
    @abc.abstractmethod
    def records_out(self) -> int:
        """Records that have been emitted."""

    @abc.abstractmethod
    def emit(self, value: Any, timestamp: Optional[int]) -> None:
        """Append one record.  The value must be one that nobody changes any more."""

    @abc.abstractmethod
    def emit_batch(self, values: list, timestamps: Optional[list]) -> None:
        """Append many; same contract."""

    @abc.abstractmethod
    def emit_columns(self, columns: Any, timestamps: Any) -> None: ...

    @abc.abstractmethod
    def emit_watermark(self, timestamp: int) -> None:
        """Seal what is open on every channel, and put the watermark behind it."""

    @abc.abstractmethod
    def emit_watermark_status(self, idle: bool) -> None: ...

    @abc.abstractmethod
    def emit_latency_marker(self, marker: Any) -> None: ...

    @abc.abstractmethod
    def generate(self, code: Any, value: str, timestamp: Optional[str]) -> None:
        """Write the statements of ``emit`` for the variables named ``value`` and ``timestamp`` (None:
        this batch has no timestamps) into ``code`` (``operators.codegen.CodeWriter``), so that a fused
        loop calls nothing."""


def open_inline(content: Bytes) -> Any:
    """``TaskEnvironment.open_content`` where no storage is: what lies in messages only."""
    if isinstance(content, InlineBytes):
        return content.data
    raise ConfigurationError(
        "could not read saved state",
        where=content.uri,
        why="the state lies in a file, and no checkpoint storage is configured here",
        do="set execution.checkpointing.dir, for a StreamTestHarness in its configuration={...}",
    )


@dataclass
class TaskEnvironment:
    """What every operator of a subtask may ask.

    ``now_ms``: processing time.  ``send_event(operator_id, payload)``: to the operator's coordinator.
    ``wakeup()``: have this subtask run soon; any thread may call it.  ``metric_group``: of the
    subtask; each operator has its own below it.  ``restore``: what it goes on from.
    ``open_content(content)``: bytes of saved state, or a file that can seek and wants to be closed.
    ``final_checkpoint``: as in ``DeployTasks``.  ``materialiser``: stores files of a state backend between
    checkpoints (``flinkish.state.bases.Materialiser``); None: no checkpoint of the job needs any.
    """

    job_id: str
    job_name: str
    task_name: str
    subtask_index: int
    parallelism: int
    max_parallelism: int
    attempt: int
    host: str
    configuration: Mapping[str, Any]
    now_ms: Callable[[], int]
    send_event: Callable[[str, Any], None]
    wakeup: Callable[[], None]
    metric_group: MetricGroup = field(default_factory=OperatorMetricGroup)
    object_reuse: bool = False
    state_backend: str = "hashmap"
    job_parameters: Mapping[str, str] = field(default_factory=dict)
    restore: Optional[TaskRestore] = None
    open_content: Callable[[Bytes], Any] = open_inline
    final_checkpoint: bool = False
    materialiser: Any = None
    #: By name; made by functions (``flinkish.common.accumulators``), read when the subtask has ended.
    accumulators: dict[str, Any] = field(default_factory=dict)
    #: How long the subtask has been backpressured so far, ms; set by its task.
    blocked_ms: Callable[[], int] = lambda: 0
    #: Makes what runs the calls of asynchronous functions, as ``operators.async_io.call_runner``; None: that one.
    create_call_runner: Optional[Callable[..., Any]] = None
    #: Gets (tag id, value, timestamp) of side outputs that nobody has asked for; None drops them.
    collect_side_output: Optional[Callable[[str, Any, Optional[int]], None]] = None

    @property
    def is_batch(self) -> bool:
        """Whether the job runs in BATCH mode; the graph has decided for AUTOMATIC."""
        return options.read(self.configuration, options.EXECUTION_RUNTIME_MODE) == "BATCH"
