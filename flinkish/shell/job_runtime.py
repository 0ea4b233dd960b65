"""The driver's side of one job: what its slots are sent, its coordinators, its committers, its checkpoints' files.

Made by who submits the job, on that thread, so that what is wrong with the user's code (a capture
that does not pickle, a sink that refuses) is raised there.  From ``attach`` on it belongs to the
JobManager's thread.  User code runs on threads of its own: one for each source's enumerator, one
for all committers.  Only sink coordinators run on the JobManager's thread, as their SPI says.  The checkpoint
storage has a thread too (``checkpoint_files``).

What a coordinator sends carries the attempt of the execution that it is for, so what was meant for one that has ended
is dropped.
"""

from __future__ import annotations

import logging
import pickle
import threading
from dataclasses import replace
from typing import Any, Callable, Mapping, Optional, Sequence

from flinkish.common import options
from flinkish.connectors.spi import Sink, SinkCoordinator
from flinkish.datastream.transformations import SinkOperator, SourceOperator
from flinkish.errors import CorruptSnapshotError, FlinkishError, InvalidJobError, LeadershipLostError
from flinkish.graph.execution_graph import build_deployments
from flinkish.graph.job_graph import ChainedOperator, JobGraph, JobVertex
from flinkish.graph.chain_pickling import main_module_classes, pickle_chains
from flinkish.jobmanager.events import (
    AbortCommittables,
    Aborted,
    CheckpointCommitted,
    CheckpointEvent,
    CommitCheckpoint,
    Committed,
    CommitterStarted,
    CoordinatorFailed,
    CoordinatorSaid,
    CoordinatorSnapshotted,
    DiscardCheckpoint,
    DiscardFiles,
    NotifyCoordinators,
    SnapshotCoordinators,
    StoreJobResult,
    StoreMetadata,
    SweepSharedFiles,
)
from flinkish.jobmanager.failover_regions import FailoverRegions, Subtask
from flinkish.jobmanager.job_description import JobDescription
from flinkish.jobmanager.reactive_scaling import ReactiveScaling
from flinkish.jobmanager.restart_strategy import NoRestart, create_restart_strategy
from flinkish.jobmanager.restore_decision import deal_out_checkpoint
from flinkish.jobmanager.sink_coordinator import (
    Blobs,
    SinkCommittablesCollector,
    WriterGateway,
    abort_committables,
    abort_sinks,
    commit_checkpoint,
    commit_sinks,
)
from flinkish.jobmanager.source_coordinator import SourceCoordinator, enumerator_error, user_error
from flinkish.messages.checkpoints import CheckpointCommit, CompletedCheckpoint
from flinkish.messages.control import DeployTasks, OperatorEvent, SinkCommittables, SinkPayload
from flinkish.messages.deployment import SlotAddress, TaskDeploymentDescriptor
from flinkish.shell.checkpoint_files import CheckpointFiles
from flinkish.shell.coordinator_worker import CoordinatorWorker
from flinkish.shell.high_availability import LedJob
from flinkish.shell.module_path import driver_sys_path
from flinkish.shell.state_recovery import checkpoint_settings, load_checkpoint

log = logging.getLogger(__name__)

_COMMITTERS_END_S = 5

Operators = list[tuple[JobVertex, ChainedOperator]]


class JobRuntime:
    """See the module.

    Raises:
        InvalidJobError: something in the job cannot be sent to a slot, or a sink refuses.
        StateMigrationError: the job cannot go on from the checkpoint that its settings name.
        CheckpointStorageError: that one cannot be read.

    ``led``: where other drivers stand by; None: there are none.
    """

    def __init__(self, job_graph: JobGraph, led: Optional[LedJob] = None):
        self.job_graph = job_graph
        self.job_id, self.job_name = job_graph.job_id, job_graph.job_name
        self._configuration = job_graph.configuration
        operators = [(vertex, op) for vertex in job_graph.vertices for op in vertex.chain.operators]
        self._sources = _sources_of(job_graph)
        self._sinks = _sinks_of(job_graph)
        commits = any(_commits(op.operator.sink) for _, op in self._sinks)
        settings = checkpoint_settings(
            job_graph,
            frozenset(op.operator_id for _, op in self._sources),
            commits,
            None if led is None else led.record,
        )
        self.led = led
        self._chains = pickle_chains(job_graph)
        sinks = {op.operator_id: op.operator.sink.for_operator(self.job_id, op.operator_id) for _, op in self._sinks}
        if settings.restored is None:
            _refuse_sinks_that_replace_each_other([(op.name, sinks[op.operator_id]) for _, op in self._sinks])
        for _, op in self._sinks:  # last, because it may make the folder
            _validate(sinks[op.operator_id], op.name, settings.restored is not None)
        self._checkpointing = settings.configuration.interval_ms is not None
        self._final_checkpoint = settings.configuration.final_checkpoint
        self._needs_committers = commits or bool(settings.restored and settings.restored.commits)
        self._main_classes = main_module_classes()
        self._attempt = first_attempt = 0 if led is None else led.record.attempt + 1
        self._deployments: dict[str, tuple[TaskDeploymentDescriptor, ...]] = {}
        self._deployments_of = -1  # the attempt that those are of
        self._post: Optional[Callable[[Any], None]] = None
        self._before_attach: list[Any] = []
        self._workers: dict[str, CoordinatorWorker] = {}
        self._source_coordinators: dict[str, SourceCoordinator] = {}
        self._checkpoint: Optional[CompletedCheckpoint] = None  # that the attempt goes on from
        self._collectors = {
            op.operator_id: SinkCommittablesCollector(op.operator_id, op.name, sinks[op.operator_id])
            for _, op in self._sinks
            if _commits(op.operator.sink)
        }
        self._files = CheckpointFiles(
            self.job_id,
            self.job_name,
            settings.configuration.directory,
            self._configuration,
            self._say_to_checkpoints,
            led,
            settings.retained_max,
        )
        self._committer_worker: Optional[CoordinatorWorker] = None
        self._sink_coordinators: dict[str, SinkCoordinator] = {}
        for _, op in self._sinks:
            gateway = WriterGateway(self._sender_to_writers(op.operator_id))
            coordinator = op.operator.sink.create_coordinator(gateway)
            if coordinator is not None:
                self._sink_coordinators[op.operator_id] = coordinator
        reactive = _reactive_scaling(self._configuration)
        restart_strategy = create_restart_strategy(self._configuration, self._checkpointing)
        # What is rescaled by itself restarts as a whole, as with Flink's adaptive scheduler.
        region_failover = reactive is None and options.read(self._configuration, options.FAILOVER_STRATEGY) == "region"
        self._tracks_splits = region_failover and not isinstance(restart_strategy, NoRestart)
        self.description = JobDescription(
            job_graph,
            operators=tuple((op.operator_id, vertex.id) for vertex, op in operators),
            commits=bool(self._collectors),
            checkpoints=settings,
            restart_strategy=restart_strategy,
            recovery_timeout_ms=options.read(self._configuration, options.RECOVERY_TIMEOUT),
            region_failover=region_failover,
            reactive=reactive,
            first_attempt=first_attempt,
            alignments={
                op.operator_id: op.operator.watermark_strategy.alignment
                for _, op in self._sources
                if op.operator.watermark_strategy.alignment is not None
            },
            cancellation_interval_ms=options.read(
                self._configuration, options.TASK_CANCELLATION_INTERVAL
            ),
            cancellation_timeout_ms=options.read(
                self._configuration, options.TASK_CANCELLATION_TIMEOUT
            ),
            slot_request_timeout_ms=(
                options.read(self._configuration, options.SLOT_REQUEST_TIMEOUT)
                if options.SLOT_REQUEST_TIMEOUT.text_in(self._configuration) is not None
                else None
            ),
        )

    def attach(self, post: Callable[[Any], None]) -> None:
        """``post`` gives an event to the JobManager's cores; any thread may call it."""
        if self._needs_committers:  # now: no thread can be started while the interpreter exits
            self._committer_worker = CoordinatorWorker(
                f"flinkish committer {self.job_name}", self._committer_failed
            )
        self._files.start()
        if self.led is not None and self.led.is_takeover:  # now: none of our tasks runs yet
            self._as_leader(self._remove_leftovers, self.led.record.savepoints)
        self._post = post
        for event in self._before_attach:
            post(event)

    def _say(self, event: Any) -> None:
        if self._post is None:
            self._before_attach.append(event)
        else:
            self._post(event)

    def _say_to_checkpoints(self, event: Any) -> None:
        self._say(CheckpointEvent(self.job_id, event))

    def _sender_to_readers(self, operator_id: str) -> Callable[[int, int, Any], None]:
        def send(subtask: int, attempt: int, payload: Any) -> None:
            self._say(CoordinatorSaid(self.job_id, attempt, operator_id, subtask, payload))

        return send

    def _sender_to_writers(self, operator_id: str) -> Callable[[int, Any], None]:
        """A sink's coordinator lives as long as the job, and speaks to whoever writes now."""

        def send(subtask: int, payload: Any) -> None:
            self._say(CoordinatorSaid(self.job_id, None, operator_id, subtask, payload))

        return send

    # ---- slots ----------------------------------------------------------------------------------

    def rescale(self, job_graph: JobGraph) -> None:
        """From the next attempt on the job is this one, which differs from the one before in its parallelism only."""
        self.job_graph, self._sources, self._sinks = job_graph, _sources_of(job_graph), _sinks_of(job_graph)
        if self.led is not None:
            parallelism = {vertex.id: vertex.parallelism for vertex in job_graph.vertices}
            self._files.after(self.led.store_parallelism, parallelism)

    def deployment(
        self, attempt: int, index: int, slots: tuple[SlotAddress, ...], beside: Optional[frozenset[Subtask]]
    ) -> DeployTasks:
        """What ``slots[index]`` is told to run.  ``beside``: these subtasks, beside what it runs; None: all."""
        if attempt != self._deployments_of:
            self._deployments = self._build_deployments(attempt, slots)
            self._deployments_of = attempt
        tasks = self._deployments[slots[index].slot_id]
        if beside is not None:
            tasks = tuple(
                task for task in tasks if (task.execution.vertex_id, task.execution.subtask_index) in beside
            )
        return DeployTasks(
            job_id=self.job_id,
            job_name=self.job_name,
            attempt=attempt,
            tasks=tasks,
            peers={slot.slot_id: slot for slot in slots},
            configuration=dict(self._configuration),
            main_classes=self._main_classes,
            sys_path=driver_sys_path(self._configuration),
            initial_credits=options.read(self._configuration, options.CREDITS_PER_CHANNEL),
            final_checkpoint=self._final_checkpoint,
            beside=beside is not None,
        )

    def _build_deployments(
        self, attempt: int, slots: tuple[SlotAddress, ...]
    ) -> dict[str, tuple[TaskDeploymentDescriptor, ...]]:
        deployments = build_deployments(
            self.job_graph, attempt, [slot.slot_id for slot in slots], self._chains
        )
        if self._checkpoint is None:
            return deployments
        dealt = deal_out_checkpoint(self.job_graph, self._checkpoint)
        return {
            slot_id: tuple(
                replace(task, restore=dealt[task.execution.vertex_id, task.execution.subtask_index])
                for task in tasks
            )
            for slot_id, tasks in deployments.items()
        }

    # ---- coordinators ---------------------------------------------------------------------------

    def start_coordinators(self, attempt: int, checkpoint: Optional[CompletedCheckpoint]) -> None:
        """Those of sources; what they saved in ``checkpoint`` is where they go on."""
        self.stop_coordinators()
        self._attempt = self._files.attempt = attempt
        self._checkpoint = checkpoint
        saved = {} if checkpoint is None else checkpoint.operators
        tracks_splits = self._tracks_splits and len(FailoverRegions(self.job_graph).regions) > 1
        for vertex, op in self._sources:
            worker = CoordinatorWorker(
                f"flinkish enumerator {op.name}", self._enumerator_failed(op.name, attempt)
            )
            snapshot = saved.get(op.operator_id)
            coordinator = SourceCoordinator(
                op.operator.source,
                op.name,
                vertex.parallelism,
                self._sender_to_readers(op.operator_id),
                worker.call_async,
                None if snapshot is None else snapshot.coordinator,
                tracks_splits=tracks_splits,
            )
            self._workers[op.operator_id] = worker
            self._source_coordinators[op.operator_id] = coordinator
            worker.submit(coordinator.start)
        self._reset_writers(None)

    def reset_subtasks(
        self, attempt: int, subtasks: frozenset[Subtask], checkpoint: Optional[CompletedCheckpoint]
    ) -> None:
        """These have ended and go on from ``checkpoint`` with this attempt; all others, and the coordinators, run on."""
        self._attempt = self._files.attempt = attempt
        self._checkpoint = checkpoint
        checkpoint_id = 0 if checkpoint is None else checkpoint.checkpoint_id
        for vertex, op in self._sources:
            coordinator = self._source_coordinators[op.operator_id]
            for index in _indices(vertex, subtasks):
                self._workers[op.operator_id].submit(coordinator.reset_subtask, index, checkpoint_id)
        self._reset_writers(subtasks)
        for vertex, op in self._sinks:
            collector = self._collectors.get(op.operator_id)
            if collector is not None and (handed_over := collector.take(_indices(vertex, subtasks))):
                blobs = {op.operator_id: tuple(handed_over)}
                self._on_committers(self._abort_committables, blobs, attempt)

    def _reset_writers(self, subtasks: Optional[frozenset[Subtask]]) -> None:
        """``subtasks``: that begin again; None: all."""
        for vertex, op in self._sinks:
            coordinator = self._sink_coordinators.get(op.operator_id)
            if coordinator is not None:
                for index in range(vertex.parallelism) if subtasks is None else _indices(vertex, subtasks):
                    coordinator.subtask_reset(index)

    def stop_coordinators(self) -> None:
        """Those of sources.  Does not wait for user code."""
        sources, self._source_coordinators = self._source_coordinators, {}
        for operator_id, coordinator in sources.items():
            self._workers.pop(operator_id).close(coordinator.close)

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
                self._source_coordinators[event.operator_id].handle, subtask, event.execution.attempt, payload
            )
        else:
            log.warning(
                "operator event dropped job=%s operator=%s type=%s",
                self.job_id, event.operator_id, type(payload).__name__,
            )

    def _enumerator_failed(self, name: str, attempt: int) -> Callable[[BaseException], None]:
        def failed(error: BaseException) -> None:
            self._say(CoordinatorFailed(self.job_id, attempt, enumerator_error(name, error)))

        return failed

    def explain(self, error: BaseException) -> FlinkishError:
        """What the job fails with when something of it raised ``error`` on the JobManager's thread."""
        return user_error(f'a part of job "{self.job_name}" failed in the driver', error)

    def close_coordinators(self, error: Optional[FlinkishError]) -> Optional[threading.Thread]:
        """The job has ended.  Does not wait for user code, nor for the thread that it returns, on which the checkpoint
        storage does what it has been told."""
        self.stop_coordinators()
        sinks, self._sink_coordinators = self._sink_coordinators, {}
        for sink_coordinator in sinks.values():
            try:
                sink_coordinator.close(error)
            except Exception:
                log.exception("sink coordinator failed to close job=%s", self.job_id)
        committers = self._committer_worker
        if committers is not None:
            # Behind what the storage has yet to do, for committables are aborted after that.
            self._files.after(committers.close, _nothing)
        if self.led is not None:  # behind the result, so that who takes over finds it
            self._files.after(self._resign)
        return self._files.close()

    # ---- high availability ----------------------------------------------------------------------

    def on_leadership_lost(self, listener: Callable[[FlinkishError], None]) -> None:
        """``listener`` gets the error on another thread; never where no other drivers stand by."""
        if self.led is not None:
            self.led.leadership.on_lost(listener)

    def withdraw(self) -> None:
        """Instead of ``attach``: this driver cannot run the job after all."""
        if self.led is not None:
            self.led.leadership.resign()

    def _resign(self) -> None:
        assert self.led is not None
        if self._committer_worker is not None:  # what they are at is done as leader, if it ends in time
            self._committer_worker.thread.join(_COMMITTERS_END_S)
        self.led.resign()

    def _as_leader(self, call: Callable[..., None], *args: Any) -> None:
        """On the committers' thread."""
        if self.led is not None:
            try:
                self.led.leadership.require()
            except LeadershipLostError as error:
                log.warning("a committer is not called any more job=%s error=%s", self.job_id, error.why)
                return
        call(*args)

    # ---- checkpoints ----------------------------------------------------------------------------

    def carry_out(self, effect: Any) -> None:
        """An order of the job's CheckpointCoordinator; its answer comes as a CheckpointEvent."""
        match effect:
            case SnapshotCoordinators(_, checkpoint_id, operator_ids):
                for operator_id in operator_ids:
                    coordinator = self._source_coordinators[operator_id]
                    self._workers[operator_id].submit(
                        self._snapshot_coordinator, operator_id, coordinator, checkpoint_id
                    )
            case NotifyCoordinators(_, checkpoint_id, complete):
                for operator_id, coordinator in self._source_coordinators.items() if complete else ():
                    self._workers[operator_id].submit(coordinator.notify_checkpoint_complete, checkpoint_id)
            case StoreMetadata() | StoreJobResult() | DiscardCheckpoint() | DiscardFiles() | SweepSharedFiles():
                self._files.carry_out(effect)
            case CommitCheckpoint(commit):
                self._on_committers(self._commit_checkpoint, commit, self._attempt)
            case AbortCommittables(_, committables):
                self._files.after(
                    self._on_committers, self._abort_committables, committables, self._attempt
                )
            case _:
                raise AssertionError(f"unknown order {effect!r}")

    def _snapshot_coordinator(
        self, operator_id: str, coordinator: SourceCoordinator, checkpoint_id: int
    ) -> None:
        """On the coordinator's thread.  Its failure costs the checkpoint, as in Flink."""
        try:
            answer = CoordinatorSnapshotted(checkpoint_id, operator_id, coordinator.snapshot(checkpoint_id))
        except Exception as error:  # user code
            failure = enumerator_error(coordinator.name, error)
            answer = CoordinatorSnapshotted(checkpoint_id, operator_id, error=failure)
        self._say_to_checkpoints(answer)

    def _on_committers(self, call: Callable[..., None], *args: Any) -> None:
        assert self._committer_worker is not None, "no sink commits"
        self._committer_worker.submit(self._as_leader, call, *args)

    def _commit_checkpoint(self, commit: CheckpointCommit, attempt: int) -> None:
        unknown = sorted(commit.committables.keys() - self._collectors.keys())
        if unknown:  # the user has allowed that
            log.warning(
                "what a checkpoint publishes is dropped, its sinks are gone job=%s checkpoint=%d operators=%s",
                commit.job_id, commit.checkpoint_id, ",".join(unknown),
            )
        error = commit_checkpoint(self._collectors, commit, self._committer_started(attempt))
        self._say_to_checkpoints(CheckpointCommitted(commit.run_id, commit.checkpoint_id, error))

    def _abort_committables(self, committables: Blobs, attempt: int) -> None:
        self._tell_not_aborted(
            abort_committables(self._collectors, committables, self._committer_started(attempt))
        )

    # ---- committers -----------------------------------------------------------------------------

    def commit(self, attempt: int, prepared: Blobs, kept: Optional[Blobs]) -> None:
        """Publish what no checkpoint has published, on the committers' thread; ``Committed`` follows."""
        self._on_committers(self._commit, attempt, prepared, kept)

    def abort(self, attempt: int, kept: Blobs) -> None:
        """Remove what was prepared, on the committers' thread; ``Aborted`` follows."""
        self._on_committers(self._abort, attempt, kept)

    def _commit(self, attempt: int, prepared: Blobs, kept: Optional[Blobs]) -> None:
        error = commit_sinks(
            list(self._collectors.values()),
            self._committer_started(attempt),
            prepared,
            by_checkpoints=self._final_checkpoint,
            kept=kept,
        )
        self._say(Committed(self.job_id, attempt, error))

    def _abort(self, attempt: int, kept: Blobs) -> None:
        self._tell_not_aborted(
            abort_sinks(list(self._collectors.values()), self._committer_started(attempt), kept)
        )
        self._say(Aborted(self.job_id, attempt))

    def _remove_leftovers(self, savepoints: Sequence[str]) -> None:
        """What slots of another driver have left.  Those that still run write what nobody publishes."""
        restored = self.description.checkpoints.restored
        needed = [] if restored is None else [restored]
        for location in savepoints:
            try:
                needed.append(load_checkpoint(location, self._configuration))
            except CorruptSnapshotError:
                log.info("a savepoint is gone job=%s location=%s", self.job_id, location)
            except FlinkishError as error:
                log.warning("what another driver has left over stays job=%s error=%s", self.job_id, error)
                return
        kept: dict[str, tuple[bytes, ...]] = {}
        for commit in (commit for checkpoint in needed for commit in checkpoint.commits):
            for operator_id, blobs in commit.committables.items():
                kept[operator_id] = (*kept.get(operator_id, ()), *blobs)
        self._tell_not_aborted(abort_sinks(list(self._collectors.values()), lambda sink: None, kept))

    def _tell_not_aborted(self, failures: list[FlinkishError]) -> None:
        for failure in failures:
            log.warning("could not abort job=%s error=%s", self.job_id, failure)

    def _committer_started(self, attempt: int) -> Callable[[str], None]:
        return lambda sink: self._say(CommitterStarted(self.job_id, attempt, sink))

    def _committer_failed(self, error: BaseException) -> None:
        """Not in a committer (its errors are told by Committed), but around it."""
        explained = user_error(f'a committer of job "{self.job_name}" failed in the driver', error)
        self._say(Committed(self.job_id, self._attempt, explained))
        self._say(Aborted(self.job_id, self._attempt))


def _reactive_scaling(configuration: Mapping[str, Any]) -> Optional[ReactiveScaling]:
    if options.read(configuration, options.SCHEDULER_MODE) is None:
        return None
    return ReactiveScaling(
        options.read(configuration, options.EXECUTING_STABILIZATION_TIMEOUT),
        options.read(configuration, options.SUBMISSION_STABILIZATION_TIMEOUT),
        options.read(configuration, options.COOLDOWN_AFTER_RESCALING),
    )


def _sources_of(job_graph: JobGraph) -> Operators:
    return [
        (vertex, op)
        for vertex in job_graph.vertices
        for op in vertex.chain.operators
        if isinstance(op.operator, SourceOperator)
    ]


def _sinks_of(job_graph: JobGraph) -> Operators:
    return [
        (vertex, op)
        for vertex in job_graph.vertices
        for op in vertex.chain.operators
        if isinstance(op.operator, SinkOperator) and isinstance(op.operator.sink, Sink)
    ]


def _indices(vertex: JobVertex, subtasks: frozenset[Subtask]) -> list[int]:
    return [index for index in range(vertex.parallelism) if (vertex.id, index) in subtasks]


def _commits(sink: Sink) -> bool:
    return type(sink).create_committer is not Sink.create_committer


def _validate(sink: Sink, operator_name: str, restored: bool) -> None:
    """A refusal of the sink names the operator, which the sink does not know."""
    try:
        if restored:
            sink.validate_restored()
        else:
            sink.validate()
    except InvalidJobError as error:
        error.where = error.where or f'operator "{operator_name}"'
        raise


def _refuse_sinks_that_replace_each_other(sinks: list[tuple[str, Sink]]) -> None:
    """Each with its operator's name.  The first commit of one would remove what another has published."""
    by_folder: dict[str, list[tuple[str, bool]]] = {}
    for name, sink in sinks:
        written = sink.written_folder()
        if written is not None:
            by_folder.setdefault(written[0], []).append((name, written[1]))
    for folder, writers in by_folder.items():
        if len(writers) > 1 and any(replaces for _, replaces in writers):
            names = ", ".join(f'"{name}"' for name, _ in writers)
            raise InvalidJobError(
                "could not replace what a folder holds",
                where=f"operators {names}",
                why=f"{len(writers)} sinks of the job write to {folder.partition(':')[2]}, and one that overwrites it "
                "would remove what the others have published",
                do="give each its own folder, or leave overwrite out and begin with an empty one",
            )


def _nothing() -> None:
    """What is left to do when the committers' thread ends."""
