"""The driver's side of one job: what its slots are sent, its coordinators, its committers.

Made by who submits the job, on that thread, so that what is wrong with the user's code (a capture
that does not pickle, a sink that refuses) is raised there.  From ``attach`` on it belongs to the
JobManager's thread.  User code runs on threads of its own: one for each source's enumerator, one
for all committers.  Only sink coordinators run on the JobManager's thread, as their SPI says.
"""

from __future__ import annotations

import logging
import pickle
from typing import Any, Callable, Optional

from flinkish.common import options
from flinkish.connectors.spi import Sink, SinkCoordinator
from flinkish.datastream.transformations import SinkOperator, SourceOperator
from flinkish.errors import FlinkishError, InvalidJobError
from flinkish.graph.execution_graph import build_deployments
from flinkish.graph.job_graph import ChainedOperator, JobGraph, JobVertex
from flinkish.graph.chain_pickling import main_module_classes, pickle_chains
from flinkish.jobmanager.events import Aborted, Committed, CommitterStarted, CoordinatorFailed, CoordinatorSaid
from flinkish.jobmanager.job_master import JobDescription
from flinkish.jobmanager.sink_coordinator import (
    SinkCommittablesCollector,
    WriterGateway,
    abort_sinks,
    commit_sinks,
)
from flinkish.jobmanager.source_coordinator import SourceCoordinator, enumerator_error, user_error
from flinkish.messages.control import DeployTasks, OperatorEvent, SinkCommittables, SinkPayload
from flinkish.messages.deployment import SlotAddress, TaskDeploymentDescriptor
from flinkish.shell.coordinator_worker import CoordinatorWorker
from flinkish.shell.module_path import driver_sys_path

log = logging.getLogger(__name__)

Operators = list[tuple[JobVertex, ChainedOperator]]


class JobRuntime:
    """See the module.

    Raises:
        InvalidJobError: something in the job cannot be sent to a slot, or a sink refuses.
    """

    def __init__(self, job_graph: JobGraph):
        self.job_graph = job_graph
        self.job_id, self.job_name = job_graph.job_id, job_graph.job_name
        self._configuration = job_graph.configuration
        operators = [(vertex, op) for vertex in job_graph.vertices for op in vertex.chain.operators]
        self._sources: Operators = [
            (vertex, op) for vertex, op in operators if isinstance(op.operator, SourceOperator)
        ]
        self._sinks: Operators = [
            (vertex, op)
            for vertex, op in operators
            if isinstance(op.operator, SinkOperator) and isinstance(op.operator.sink, Sink)
        ]
        self._chains = pickle_chains(job_graph)
        for _, op in self._sinks:  # last, because it may make the folder
            _validate(op.operator.sink, op.name)
        self._main_classes = main_module_classes()
        self._attempt = 0
        self._deployments: dict[str, tuple[TaskDeploymentDescriptor, ...]] = {}
        self._post: Optional[Callable[[Any], None]] = None
        self._before_attach: list[Any] = []
        self._workers: dict[str, CoordinatorWorker] = {}
        self._source_coordinators: dict[str, SourceCoordinator] = {}
        self._collectors = {
            op.operator_id: SinkCommittablesCollector(op.name, op.operator.sink)
            for _, op in self._sinks
            if type(op.operator.sink).create_committer is not Sink.create_committer
        }
        self._committer_worker: Optional[CoordinatorWorker] = None
        self._sink_coordinators: dict[str, SinkCoordinator] = {}
        for _, op in self._sinks:
            gateway = WriterGateway(self._sender(op.operator_id))
            coordinator = op.operator.sink.create_coordinator(gateway)
            if coordinator is not None:
                self._sink_coordinators[op.operator_id] = coordinator
        self.description = JobDescription(
            job_graph,
            operators=tuple((op.operator_id, vertex.id) for vertex, op in operators),
            commits=bool(self._collectors),
            cancellation_interval_ms=options.read(
                self._configuration, options.TASK_CANCELLATION_INTERVAL
            ),
            cancellation_timeout_ms=options.read(
                self._configuration, options.TASK_CANCELLATION_TIMEOUT
            ),
            slot_request_timeout_ms=(
                options.read(self._configuration, options.SLOT_REQUEST_TIMEOUT)
                if options.SLOT_REQUEST_TIMEOUT.key in self._configuration
                else None
            ),
        )

    def attach(self, post: Callable[[Any], None]) -> None:
        """``post`` gives an event to the JobManager's cores; any thread may call it."""
        if self._collectors:  # now: no thread can be started while the interpreter exits
            self._committer_worker = CoordinatorWorker(
                f"flinkish committer {self.job_name}", self._committer_failed
            )
        self._post = post
        for event in self._before_attach:
            post(event)

    def _say(self, event: Any) -> None:
        if self._post is None:
            self._before_attach.append(event)
        else:
            self._post(event)

    def _sender(self, operator_id: str) -> Callable[[int, Any], None]:
        def send(subtask: int, payload: Any) -> None:
            self._say(CoordinatorSaid(self.job_id, self._attempt, operator_id, subtask, payload))

        return send

    # ---- slots ----------------------------------------------------------------------------------

    def deployment(self, attempt: int, index: int, slots: tuple[SlotAddress, ...]) -> DeployTasks:
        """What ``slots[index]`` is told to run."""
        if index == 0:
            self._deployments = build_deployments(
                self.job_graph, attempt, [slot.slot_id for slot in slots], self._chains
            )
        return DeployTasks(
            job_id=self.job_id,
            job_name=self.job_name,
            attempt=attempt,
            tasks=self._deployments[slots[index].slot_id],
            peers={slot.slot_id: slot for slot in slots},
            configuration=dict(self._configuration),
            main_classes=self._main_classes,
            sys_path=driver_sys_path(self._configuration),
            initial_credits=options.read(self._configuration, options.CREDITS_PER_CHANNEL),
        )

    # ---- coordinators ---------------------------------------------------------------------------

    def start_coordinators(self, attempt: int) -> None:
        self._attempt = attempt
        for vertex, op in self._sources:
            worker = CoordinatorWorker(
                f"flinkish enumerator {op.name}", self._enumerator_failed(op.name)
            )
            coordinator = SourceCoordinator(
                op.operator.source,
                op.name,
                vertex.parallelism,
                self._sender(op.operator_id),
                worker.call_async,
            )
            self._workers[op.operator_id] = worker
            self._source_coordinators[op.operator_id] = coordinator
            worker.submit(coordinator.start)

    def to_coordinator(self, event: OperatorEvent) -> None:
        """What an operator has sent.  Raises what a sink coordinator raises."""
        payload, subtask = event.payload, event.execution.subtask_index
        if isinstance(payload, SinkCommittables):
            collector = self._collectors.get(event.operator_id)
            if collector is not None:
                collector.add(subtask, payload.committables)
        elif isinstance(payload, SinkPayload):
            coordinator = self._sink_coordinators.get(event.operator_id)
            if coordinator is not None:
                coordinator.handle(subtask, event.execution.attempt, pickle.loads(payload.payload))
        elif event.operator_id in self._source_coordinators:
            self._workers[event.operator_id].submit(
                self._source_coordinators[event.operator_id].handle, subtask, payload
            )
        else:
            log.warning(
                "operator event dropped job=%s operator=%s type=%s",
                self.job_id, event.operator_id, type(payload).__name__,
            )

    def _enumerator_failed(self, name: str) -> Callable[[BaseException], None]:
        def failed(error: BaseException) -> None:
            self._say(CoordinatorFailed(self.job_id, self._attempt, enumerator_error(name, error)))

        return failed

    def explain(self, error: BaseException) -> FlinkishError:
        """What the job fails with when something of it raised ``error`` on the JobManager's thread."""
        return user_error(f'a part of job "{self.job_name}" failed in the driver', error)

    def close_coordinators(self, error: Optional[FlinkishError]) -> None:
        """The job has ended.  Does not wait for user code."""
        sources, self._source_coordinators = self._source_coordinators, {}
        for operator_id, coordinator in sources.items():
            self._workers.pop(operator_id).close(coordinator.close)
        sinks, self._sink_coordinators = self._sink_coordinators, {}
        for sink_coordinator in sinks.values():
            try:
                sink_coordinator.close(error)
            except Exception:
                log.exception("sink coordinator failed to close job=%s", self.job_id)
        if self._committer_worker is not None:
            self._committer_worker.close(_nothing)
            self._committer_worker = None

    # ---- committers -----------------------------------------------------------------------------

    def commit(self, attempt: int) -> None:
        """Publish, on the committers' thread; ``Committed`` follows."""
        assert self._committer_worker is not None
        self._committer_worker.submit(self._commit, attempt)

    def abort(self, attempt: int) -> None:
        """Remove what was prepared, on the committers' thread; ``Aborted`` follows."""
        assert self._committer_worker is not None
        self._committer_worker.submit(self._abort, attempt)

    def _commit(self, attempt: int) -> None:
        error = commit_sinks(list(self._collectors.values()), self._committer_started(attempt))
        self._say(Committed(self.job_id, attempt, error))

    def _abort(self, attempt: int) -> None:
        for failure in abort_sinks(list(self._collectors.values()), self._committer_started(attempt)):
            log.warning("could not abort job=%s error=%s", self.job_id, failure)
        self._say(Aborted(self.job_id, attempt))

    def _committer_started(self, attempt: int) -> Callable[[str], None]:
        return lambda sink: self._say(CommitterStarted(self.job_id, attempt, sink))

    def _committer_failed(self, error: BaseException) -> None:
        """Not in a committer (its errors are told by Committed), but around it."""
        explained = user_error(f'a committer of job "{self.job_name}" failed in the driver', error)
        self._say(Committed(self.job_id, self._attempt, explained))
        self._say(Aborted(self.job_id, self._attempt))


def _validate(sink: Sink, operator_name: str) -> None:
    """A refusal of the sink names the operator, which the sink does not know."""
    try:
        sink.validate()
    except InvalidJobError as error:
        error.where = error.where or f'operator "{operator_name}"'
        raise


def _nothing() -> None:
    """What is left to do when the committers' thread ends."""
