"""What user code may ask of the subtask that it runs in: `Function.open`, readers and writers."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from flinkish.connectors.spi import SubtaskContext
from flinkish.datastream.functions import RuntimeContext
from flinkish.errors import UserError
from flinkish.graph.job_graph import ChainedOperator
from flinkish.operators.output import TaskEnvironment
from flinkish.state.heap import HeapKeyedStateBackend, StateStore


class OperatorSubtaskContext(SubtaskContext):
    """Answers for one operator of a subtask; the contexts of readers and writers add what is theirs."""

    def __init__(self, operator: Any):
        self._operator = operator
        self._environment: TaskEnvironment = operator.environment

    def index_of_subtask(self) -> int:
        return self._environment.subtask_index

    def current_parallelism(self) -> int:
        return self._environment.parallelism

    def configuration(self) -> Mapping[str, Any]:
        return self._environment.configuration

    def metric_group(self) -> Any:
        return self._operator.metric_group

    def accumulators(self) -> dict[str, Any]:
        return self._environment.accumulators


class StreamingRuntimeContext(StateStore, RuntimeContext):
    """What `Function.open` gets: the subtask's facts, and the operator's keyed state if it has any."""

    def __init__(
        self,
        environment: TaskEnvironment,
        spec: ChainedOperator,
        backend: Optional[HeapKeyedStateBackend],
        metric_group: Any,
    ):
        super().__init__(backend)  # type: ignore[arg-type]
        self._environment = environment
        self._spec = spec
        self._metric_group = metric_group

    def get_task_name(self) -> str:
        return self._environment.task_name

    def get_number_of_parallel_subtasks(self) -> int:
        return self._environment.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        return self._environment.max_parallelism

    def get_index_of_this_subtask(self) -> int:
        return self._environment.subtask_index

    def get_attempt_number(self) -> int:
        return self._environment.attempt

    def get_task_name_with_subtasks(self) -> str:
        e = self._environment
        return f"{e.task_name} ({e.subtask_index + 1}/{e.parallelism})"

    def get_job_parameter(self, key: str, default_value: Optional[str] = None) -> Optional[str]:
        return self._environment.job_parameters.get(key, default_value)

    def get_metrics_group(self) -> Any:
        return self._metric_group

    def _accumulators(self) -> dict[str, Any]:
        return self._environment.accumulators

    def get_job_id(self) -> str:
        return self._environment.job_id

    def _get(self, descriptor: Any, kind: type) -> Any:
        if self._backend is None:
            raise UserError(
                f'state "{getattr(descriptor, "name", descriptor)}" needs a key',
                where=f'operator "{self._spec.name}"',
                why="keyed state belongs to the key of a record, and this stream has no key",
                do="call key_by(...) before this operator",
            )
        return super()._get(descriptor, kind)
