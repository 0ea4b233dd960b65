"""A CheckpointCoordinator among tasks, coordinators, committers and storage, where all of them fail.

Subtasks of the last vertex count records and prepare what they have counted since the last barrier; what is
published must be each number once and in order, whatever happens.  The shell around the core is a set
of queues, each in order and none in step with another: one towards each task and one back, one for storage, one for
committers, one for coordinators.  The driver may die between any two effects; all that is left then is
the storage, and a new one starts from it.  Messages to tasks may be lost; one from a task is lost only with its
connection, so the task fails too (that is TCP); messages may come twice.

All subtasks have keyed state of their key groups, entries of list state, which are never lost or doubled as long as
nobody finishes, and a broadcast state.  When no task runs, vertices before the last may get another parallelism.  What
a subtask goes on from is what ``decide_restore`` and ``deal_out_checkpoint`` say.

Users take savepoints and delete them.  When the driver has died, or the job has ended, a *new job* may begin from any
savepoint that a user knows of, or from a checkpoint that is left.  What counts as published is then what was so when
that snapshot was stored: with what the snapshot has prepared it must be each number once, so nothing of that may have
been aborted in between, whatever the old job did.

What must hold is checked where it happens, by the world's own books and not by the core's.
"""

from __future__ import annotations

import pickle
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Optional

from flinkish.common.job_status import JobStatus
from flinkish.datastream.partitioners import ForwardPartitioner, RebalancePartitioner
from flinkish.errors import ExternalError, UserFunctionError
from flinkish.graph.execution_graph import connections
from flinkish.graph.job_graph import ChainedOperator, JobEdge, JobGraph, JobVertex, OperatorChainSpec
from flinkish.jobmanager import events as e
from flinkish.jobmanager.checkpoint_coordinator import CheckpointConfiguration, CheckpointCoordinator
from flinkish.jobmanager.checkpoint_plan import checkpointed_vertices
from flinkish.jobmanager.completed_checkpoints import CheckpointRetention, CompletedCheckpoints
from flinkish.jobmanager.failover_regions import FailoverRegions
from flinkish.jobmanager.restore_decision import decide_restore, deal_out_checkpoint
from flinkish.messages import checkpoints as m
from flinkish.messages.deployment import ExecutionAttemptID, TaskFailure, TaskRestore
from flinkish.state.key_groups import key_group_range

JOBS = "jkl"  # one after another
TICK_MS = 10
STEPS = 220
STEPS_OF_NEW_JOB = 150
NEVER_MS = 10**9
TICKS_TO_HEAL = 400
CALM_MS = 600  # after the last fault; by then what it has left behind has timed out
TOKENS = 5  # entries of list state of a vertex
RULES = (m.DistributionMode.BROADCAST, (b"rules",))
HEALED = "-- no more faults"
DRIVER_DIES = "-- the driver dies"

_Subtask = tuple[str, int]
#: What a sink has prepared: run, attempt, subtask, from which record, to which.
_Prepared = tuple[str, int, int, int, int]


@dataclass(frozen=True)
class History:
    """What had been published when a snapshot was stored; what it has prepared itself follows."""

    published: dict[int, int]
    published_ids: frozenset[tuple[str, int]]


@dataclass
class Task:
    """One execution: what it knows dies with it."""

    execution: ExecutionAttemptID
    before: list[_Subtask]  # those that send to it
    count: int  # records so far
    limit: int  # where its data end
    prepared: int  # up to which record
    tokens: tuple[bytes, ...]  # its entries of list state
    was_finished: bool = False  # with all of its vertex, before the checkpoint from which it goes on
    inbox: deque = field(default_factory=deque)
    outbox: deque = field(default_factory=deque)
    triggered: dict[int, m.CheckpointOptions] = field(default_factory=dict)  # barriers that may come
    passed: dict[int, m.CheckpointOptions] = field(default_factory=dict)  # barriers handed on
    given_up: set[int] = field(default_factory=set)
    unsent: list[tuple[int, int]] = field(default_factory=list)  # prepared ranges
    files: dict[str, m.FileHandle] = field(default_factory=dict)  # shared ones, by name
    ended: bool = False  # all of its data are counted
    ended_after: Optional[int] = None  # the last checkpoint it passed before that
    finished: bool = False
    suspended: Optional[int] = None  # by this stopping savepoint
    broken: bool = False  # its connection is gone, and soon that is known

    @property
    def subtask(self) -> _Subtask:
        return self.execution.vertex_id, self.execution.subtask_index

    @property
    def is_over(self) -> bool:
        """Nothing of it can fail any more."""
        return self.finished and not self.outbox


class CheckpointWorld:
    """``coordinator`` and ``completed``: classes under test."""

    def __init__(
        self,
        seed: int,
        coordinator: type[CheckpointCoordinator] = CheckpointCoordinator,
        completed: type[CompletedCheckpoints] = CompletedCheckpoints,
    ):
        self.rng = rng = random.Random(seed)
        self.classes = coordinator, completed
        self.now_ms = 0
        self.chaos = True
        self.healed_ms: Optional[int] = None
        self.harshness = rng.choice((0.3, 1.0, 3.0))
        self.log: list[tuple[int, Any]] = []
        self.graph = self._random_graph()
        self.last_vertex = self.graph.vertices[-1].id
        self.commits = rng.random() < 0.8  # the sink has a committer
        self.bounded = rng.random() < 0.5
        self.coordinated = frozenset({"op-v0"} if rng.random() < 0.6 else ())
        self.configuration = CheckpointConfiguration(
            "file:/chk",
            savepoint_directory="file:/sav" if rng.random() < 0.8 else None,
            # Where it is never over, the end of all data brings the only checkpoint that nobody has asked for.
            interval_ms=rng.choice((20, 50, 100, NEVER_MS) if self.commits and self.bounded else (20, 50, 100)),
            min_pause_ms=rng.choice((0, 0, 30)),
            timeout_ms=rng.choice((60, 200)),
            max_concurrent=rng.choice((1, 1, 2, 3)),
            tolerable_failures=rng.choice((0, 1, 5)),
            unaligned=rng.random() < 0.3,
            final_checkpoint=self.commits,
        )
        self.commits_slowly = rng.random() < 0.3
        self.retained_max = rng.choice((1, 1, 2, 3))
        self.retention = rng.choice(list(CheckpointRetention))
        # the outside, which no crash of ours touches
        self.files: set[str] = set()
        self.metadata: dict[str, m.CompletedCheckpoint] = {}
        self.durable: set[int] = set()
        self.published: dict[int, int] = {}  # subtask of the sink -> records
        self.published_ids: set[tuple[str, int]] = set()
        self.prepared: set[_Prepared] = set()  # and not published
        self.removed: set[_Prepared] = set()  # prepared and then aborted
        self.histories: dict[str, History] = {}  # by location
        self.known: set[str] = set()  # locations of savepoints of which users have been told
        # the driver and its slots
        self.number = 0  # of the job
        self.job_begun = 0  # in the log
        self.origin: Optional[m.CompletedCheckpoint] = None  # of another job
        self.attempt = -1
        self.tasks: dict[_Subtask, Task] = {}
        self.gone: list[Task] = []
        self.finished_for_good = False
        self.requests = 0
        self._start_driver()

    def _random_graph(self) -> JobGraph:
        rng = self.rng
        max_parallelism = rng.choice((3, 4, 128))
        count = rng.choice((1, 2, 2, 3))
        names = [f"v{index}" for index in range(count)]
        parallelism = [rng.randint(1, 2) for _ in names]
        edges = []
        for index in range(1, count):
            equal = parallelism[index] == parallelism[index - 1]
            partitioner = ForwardPartitioner() if equal and rng.random() < 0.5 else RebalancePartitioner()
            edges.append(JobEdge(index, names[index - 1], names[index], 0, partitioner))
        vertices = []
        for index, name in enumerate(names):
            operator = ChainedOperator(index, f"op-{name}", name, None)  # type: ignore[arg-type]
            vertices.append(
                JobVertex(
                    name,
                    name,
                    OperatorChainSpec((operator,), (), ()),
                    parallelism[index],
                    max_parallelism,
                    "default",
                    [edge for edge in edges if edge.target_vertex_id == name],
                    [edge for edge in edges if edge.source_vertex_id == name],
                )
            )
        return JobGraph(JOBS[0] * 32, "simulated", vertices)

    def _rescale_something(self) -> None:
        """A vertex whose edges allow it.  The subtasks of the last one publish what they count, so they stay."""
        free = [
            vertex
            for vertex in self.graph.vertices[:-1]
            if not any(edge.partitioner.pointwise for edge in (*vertex.inputs, *vertex.outputs))
        ]
        if free:
            vertex = self.rng.choice(free)
            vertex.parallelism = self.rng.randint(1, 3)
            self.log.append((self.now_ms, f"-- {vertex.id} gets parallelism {vertex.parallelism}"))

    def fault(self, chance: float) -> bool:
        return self.chaos and self.rng.random() < chance * self.harshness

    # ---- the job --------------------------------------------------------------------------------

    @property
    def job_id(self) -> str:
        return self.graph.job_id

    @property
    def run_id(self) -> str:
        return f"r{self.number + 1}"

    @property
    def own(self) -> list[m.CompletedCheckpoint]:
        """What this job has stored, oldest first."""
        found = [checkpoint for checkpoint in self.metadata.values() if checkpoint.job_id == self.job_id]
        return sorted(found, key=lambda checkpoint: checkpoint.checkpoint_id)

    def some_origin(self, retained: bool) -> Optional[m.CompletedCheckpoint]:
        """What a new job may begin from, if there are more jobs to come."""
        known = [self.metadata[location] for location in sorted(self.known)]
        left = [checkpoint for checkpoint in self.own if not checkpoint.kind.is_savepoint] if retained else []
        if left and self.rng.random() < 0.8:
            known = left
        return self.rng.choice(known) if known and self.number + 1 < len(JOBS) else None

    def start_job(self, origin: m.CompletedCheckpoint) -> None:
        """Another job, of the same program, and another run of it."""
        self.number, self.origin, self.job_begun = self.number + 1, origin, len(self.log)
        self.graph.job_id = JOBS[self.number] * 32
        history = self.histories[origin.location]
        self.published, self.published_ids = dict(history.published), set(history.published_ids)
        self.log.append((self.now_ms, f"-- a new job goes on from {origin.location}, after {self.published}"))
        self.durable = set()
        self.attempt = -1
        self.tasks.clear()
        self.gone.clear()
        self.chaos, self.healed_ms = True, None
        self._start_driver()

    # ---- the driver -----------------------------------------------------------------------------

    def _start_driver(self) -> None:
        """A new process: nothing but the storage is left."""
        self.events: deque = deque()
        self.storing: deque = deque()
        self.committing: deque = deque()
        self.coordinating: deque = deque()
        self.storage_steps = 0  # taken
        self.storage_orders = 0  # given
        self.answered: set[int] = set()
        self.asked: set[int] = set()
        self.held: set[int] = set()  # checkpoints whose coordinators' events are held
        self.stop_asked = False
        self.first_attempt = self.attempt + 1
        self.failures = 0  # of checkpoints, since one was complete or tasks began to run
        self.restoring: Optional[m.CompletedCheckpoint] = None
        self.deployed_ms: Optional[int] = None
        self.recover_ms: Optional[int] = self.now_ms
        self.all_run = False
        self.ended_early: list[m.NotifyEndOfData] = []
        self.stopped: deque = deque()  # executions of which the core has not heard
        if self.rng.random() < 0.5:
            self._rescale_something()
        self.regions = FailoverRegions(self.graph)
        coordinator, completed = self.classes
        store = completed(self.job_id, self.retained_max, self.retention, claimed=False)
        own = [checkpoint for checkpoint in self.own if checkpoint.kind is not m.SnapshotKind.SAVEPOINT]
        for checkpoint in own:
            store.restore(checkpoint, owned=True)
        if not own and self.origin is not None:
            store.restore(self.origin, owned=False)
        folder = f"{self.job_id}/chk-"
        ids = [int(uri.split("-")[1].split("/")[0]) for uri in self.files if folder in uri]
        ids += self.durable  # the job's record counts them, also those that users have deleted
        ids += [self.origin.checkpoint_id] if self.origin is not None else []
        self.core = coordinator(
            self.job_id,
            "simulated",
            self.run_id,
            checkpointed_vertices(self.graph, self.coordinated),
            self.configuration,
            store,
            next_checkpoint_id=1 + max(ids, default=0),
        )

    def step_core(self, event: Any) -> None:
        self.log.append((self.now_ms, event))
        effects = self.core.step(event, self.now_ms)
        if effects or not isinstance(event, e.Tick):
            self.core.check()
        self.check_step(event, effects)
        for effect in effects:
            if self.fault(0.004):
                self.crash_driver()
                return
            self.log.append((self.now_ms, effect))
            self.carry_out(effect)
        self.tell_stopped()

    def tell_stopped(self) -> None:
        if self.stopped:
            self.step_core(e.TasksStopped(self.stopped.popleft()))

    def crash_driver(self) -> None:
        self.log.append((self.now_ms, DRIVER_DIES))
        if self.storing and self.rng.random() < 0.5:  # what it was at may have got through
            self.store_something(answer=False)
        origin = self.some_origin(retained=False) if self.rng.random() < 0.3 else None
        if origin is not None:
            self.start_job(origin)
            return
        self.tasks.clear()
        self.gone.clear()
        self._start_driver()

    def carry_out(self, effect: Any) -> None:
        match effect:
            case e.SendToExecution(message):
                task = self.tasks.get((message.execution.vertex_id, message.execution.subtask_index))
                assert task is not None and task.execution == message.execution, "nobody is there"
                if self.coordinated:
                    assert message.checkpoint_id in self.held, "before the coordinators have their snapshot"
                self.send(task, message)
            case e.SendToAllTasks(message):
                if isinstance(message, m.CheckpointComplete):
                    assert message.checkpoint_id in self.durable, "told before it was durable"
                for task in list(self.tasks.values()):
                    if not task.finished and not task.broken:
                        self.send(task, message)
            case e.StoreMetadata(checkpoint):
                self.check_complete(checkpoint)
                self.histories[checkpoint.location] = History(dict(self.published), frozenset(self.published_ids))
                self.order_storage(effect)
            case e.DiscardCheckpoint(_, location):
                found = self.metadata.get(location)
                assert location not in self.known, "it is its user's"
                assert found is None or found.job_id == self.job_id, "it is another job's"
                self.order_storage(effect)
            case e.DiscardFiles():
                self.order_storage(effect)
            case e.SweepSharedFiles():
                assert not self.tasks, "tasks may refer to what is swept"
                # What there is now; it is deleted beside the next tasks.
                self.order_storage((effect, {uri for uri in self.files if f"/{self.job_id}/shared/" in uri}))
            case e.CommitCheckpoint(commit):
                durable = any(commit in checkpoint.commits for checkpoint in self.metadata.values())
                assert durable, "to be published before it was durable"
                assert not any(isinstance(order, e.CommitCheckpoint) for order, _ in self.committing)
                self.committing.append((effect, 0))
            case e.AbortCommittables():
                self.committing.append((effect, self.storage_orders))
            case e.SnapshotCoordinators(_, checkpoint_id, operators):
                assert not self.held, "two at a time"
                self.held.add(checkpoint_id)
                self.coordinating += [(checkpoint_id, operator) for operator in operators]
            case e.ReleaseCoordinators(_, checkpoint_id):
                self.held.remove(checkpoint_id)
            case e.SnapshotResult(request_id, location, error):
                assert request_id in self.asked - self.answered, "answered twice"
                assert (location is None) != (error is None)
                if location is None:
                    location = error.fields.get("location")  # it is complete, only the job has not stopped
                if location is not None:
                    assert location in self.metadata, "nothing is there"
                    if self.metadata[location].kind.is_savepoint:
                        self.known.add(location)
                self.answered.add(request_id)
                self.stop_asked = self.stop_asked and len(self.asked) > len(self.answered)
            case e.FailJob(error):
                calm = self.healed_ms is not None and self.now_ms > self.healed_ms + CALM_MS
                assert not calm, f"fails without a fault: {error}"
                if isinstance(error, UserFunctionError) or error.what.startswith("too many checkpoints"):
                    tolerable = self.configuration.tolerable_failures
                    assert self.failures > tolerable, f"fails after {self.failures} checkpoints in a row that failed"
                self.fail_tasks(frozenset(self.tasks))
            case e.RestoreFrom(checkpoint):
                self.check_restored(checkpoint)
                if checkpoint is not None:
                    self.check_restorable(checkpoint)
                self.restoring, self.deployed_ms = checkpoint, self.now_ms + 10
                self.deploy()

    def order_storage(self, effect: Any) -> None:
        self.storage_orders += 1
        self.storing.append(effect)

    def send(self, task: Task, message: Any) -> None:
        if not self.fault(0.02):
            task.inbox.append(message)
        elif not isinstance(message, m.TriggerCheckpoint):  # nobody says it again
            self.break_connection(task)

    # ---- what must hold -------------------------------------------------------------------------

    def check_step(self, event: Any, effects: list) -> None:
        """A savepoint of a job that goes on changes nothing else, whether it is complete or fails."""
        match event:
            case e.MetadataStored(checkpoint_id, None):
                complete = next((known for known in self.own if known.checkpoint_id == checkpoint_id), None)
                if complete is not None and complete.kind is m.SnapshotKind.SAVEPOINT:
                    for effect in effects:
                        assert not isinstance(
                            effect, (e.SendToAllTasks, e.CommitCheckpoint, e.DiscardCheckpoint, e.DiscardFiles)
                        ), f"a savepoint is complete, and: {effect}"
        by_task = isinstance(event, (m.DeclineCheckpoint, e.TaskFinished))
        counted = ("gave up checkpoint", "gave up savepoint") if by_task else ("gave up checkpoint",)
        for effect in effects:
            if isinstance(effect, e.Warn) and effect.text.startswith(counted):
                self.failures += 1
            elif isinstance(effect, e.Inform) and effect.text.startswith("completed"):
                self.failures = 0

    def check_complete(self, checkpoint: m.CompletedCheckpoint) -> None:
        """It has one acknowledgement of each execution that runs, and of its own attempt."""
        for vertex in self.graph.vertices:
            snapshot = checkpoint.operators[f"op-{vertex.id}"]
            assert (snapshot.parallelism, snapshot.max_parallelism) == (vertex.parallelism, vertex.max_parallelism)
            for index in range(vertex.parallelism):
                if index not in snapshot.subtasks:
                    assert index in snapshot.finished_subtasks, f"{vertex.id} {index} is missing"
                    continue
                task = self.tasks[vertex.id, index]
                (entry,) = snapshot.subtasks[index].operator.states["count"][1]  # type: ignore[union-attr]
                execution, checkpoint_id, _ = pickle.loads(entry)
                assert (execution, checkpoint_id) == (task.execution, checkpoint.checkpoint_id), "of another"
            if self.coordinated and vertex.id == "v0":
                assert snapshot.coordinator == b"%d" % checkpoint.checkpoint_id
        assert checkpoint.checkpoint_id not in self.held
        assert checkpoint.checkpoint_id not in self.durable, "an id was used twice"
        assert (self.run_id, checkpoint.checkpoint_id) not in self.published_ids, "an id was published and used again"

    def check_files(self) -> None:
        for location, checkpoint in self.metadata.items():
            for uri in _uris(checkpoint):
                assert uri in self.files, f"{location} needs {uri}, which was discarded"

    def check_restored(self, checkpoint: Optional[m.CompletedCheckpoint]) -> None:
        newest = max(
            (known.checkpoint_id for known in self.own if known.kind is not m.SnapshotKind.SAVEPOINT),
            default=0 if self.origin is None else self.origin.checkpoint_id,
        )
        found = checkpoint.checkpoint_id if checkpoint is not None else 0
        assert found == newest or newest in self.expected_to_go, f"restored from {found}, {newest} is there"
        if checkpoint is not None:
            assert checkpoint.location in self.metadata
        if self.commits:
            for index in range(self.graph.vertices[-1].parallelism):
                counted = _count_in(checkpoint, self.last_vertex, index)
                assert self.published.get(index, 0) >= counted, "goes on before all is published"
                survivor = self.tasks.get((self.last_vertex, index))
                if survivor is None:
                    assert self.published.get(index, 0) == counted, "published and then counted again"

    def check_restorable(self, checkpoint: m.CompletedCheckpoint) -> None:
        """The same program, so nothing is missing or new."""
        decision = decide_restore(self.graph, checkpoint)
        assert decision.refusal(ignore_unclaimed=False) is None
        assert len(decision.matched) == len(self.graph.vertices) and not decision.missing + decision.added

    def check_dealt(self, checkpoint: m.CompletedCheckpoint, dealt: dict[_Subtask, TaskRestore]) -> None:
        """Each key group and each list entry that was saved comes to one subtask, whose it is."""
        for vertex in self.graph.vertices:
            operator_id = f"op-{vertex.id}"
            snapshot = checkpoint.operators[operator_id]
            saved = [_contents(state) for state in snapshot.subtasks.values()]
            given = []
            for index in range(vertex.parallelism):
                restore = dealt[vertex.id, index]
                state = _state_in(restore, operator_id)
                groups = key_group_range(vertex.max_parallelism, vertex.parallelism, index)
                assert all(group in groups for handle in state.keyed for group in _groups_of(handle)), "not its own"
                assert not saved or state.operator is not None and state.operator.states["rules"] == RULES
                given.append(_contents(state))
                assert not restore.finished or all(
                    self.bounded and _count_in(checkpoint, vertex.id, old) == _limit(vertex.id)
                    for old in range(snapshot.parallelism)
                ), f"{vertex.id} goes on as finished, and has data left"
            assert sum(given, Counter()) == sum(saved, Counter()), f"{vertex.id} {index}: lost, or dealt out twice"

    @property
    def expected_to_go(self) -> set[int]:
        """Checkpoints that are durable and about to be discarded."""
        going = {effect.location for effect in self.storing if isinstance(effect, e.DiscardCheckpoint)}
        return {
            checkpoint.checkpoint_id for checkpoint in self.own if checkpoint.location in going
        }

    # ---- moves of the driver's workers ----------------------------------------------------------

    def store_something(self, answer: bool = True) -> None:
        if not self.storing:
            return
        effect = self.storing.popleft()
        self.storage_steps += 1
        match effect:
            case e.StoreMetadata(checkpoint):
                fails = self.fault(0.06)
                if not fails or self.rng.random() < 0.5:  # an error may come after all was done
                    self.metadata[checkpoint.location] = checkpoint
                    self.durable.add(checkpoint.checkpoint_id)
                error = ExternalError("storage is down") if fails else None
                if answer:
                    self.events.append(e.MetadataStored(checkpoint.checkpoint_id, error))
            case e.DiscardCheckpoint(_, location):
                gone = self.metadata.pop(location, None)
                if gone is not None:
                    self.durable.discard(gone.checkpoint_id)
                self.files = {uri for uri in self.files if not uri.startswith(location + "/")}
            case e.DiscardFiles(_, uris):
                self.files -= set(uris)
            case (e.SweepSharedFiles(), found):
                used = {uri for checkpoint in self.metadata.values() for uri in _uris(checkpoint)}
                unused = (found & self.files) - used
                assert self.has_lost_messages or not unused, f"left behind, and known: {sorted(unused)}"
                self.files -= unused
        self.check_files()

    def commit_something(self) -> None:
        if not self.committing or (self.commits_slowly and self.chaos and self.rng.random() < 0.8):
            return
        effect, after = self.committing[0]
        if self.storage_steps < after:
            return
        self.committing.popleft()
        if isinstance(effect, e.AbortCommittables):
            for blobs in effect.committables.values():
                for blob in blobs:
                    for prepared in pickle.loads(blob):
                        self.removed.add(prepared)
            return
        commit = effect.commit
        error = None
        if self.fault(0.06):
            error = ExternalError("the service is down")
        if error is None or self.rng.random() < 0.5:  # it may be published and nobody knows
            self.publish(commit)
        self.events.append(e.CheckpointCommitted(commit.run_id, commit.checkpoint_id, error))

    def publish(self, commit: m.CheckpointCommit) -> None:
        name = commit.run_id, commit.checkpoint_id
        if name in self.published_ids:
            return
        assert all(old < name for old in self.published_ids), "published out of order"
        self.published_ids.add(name)
        for blobs in commit.committables.values():
            for blob in blobs:
                for prepared in pickle.loads(blob):
                    _, _, index, start, end = prepared
                    assert prepared not in self.removed, f"{prepared} was aborted before"
                    assert start == self.published.get(index, 0), (
                        f"subtask {index}: {start}-{end} published after {self.published.get(index, 0)}"
                    )
                    self.published[index] = end
                    self.prepared.discard(prepared)

    def remove_leftovers(self) -> None:
        """As a JobMaster has the sinks do when all tasks of an attempt have ended."""
        kept: set[_Prepared] = set()
        for blobs in self.core.committables.kept().values():
            kept.update(prepared for blob in blobs for prepared in pickle.loads(blob))
        mine = {found for found in self.prepared if found[0] == self.run_id and found[1] >= self.first_attempt}
        self.removed |= mine - kept

    def coordinate_something(self) -> None:
        if not self.coordinating:
            return
        checkpoint_id, operator = self.coordinating.popleft()
        if self.fault(0.04):
            error = UserFunctionError("enumerator")
            self.events.append(e.CoordinatorSnapshotted(checkpoint_id, operator, error=error))
            return
        answer = e.CoordinatorSnapshotted(checkpoint_id, operator, b"%d" % checkpoint_id)
        self.events += [answer] * (2 if self.fault(0.1) else 1)

    def handle_event(self) -> None:
        if not self.events:
            return
        event = self.events.popleft()
        if isinstance(event, m.NotifyEndOfData) and not self.all_run:
            self.ended_early.append(event)  # a JobMaster holds it until all tasks run
        else:
            self.step_core(event)

    # ---- tasks ----------------------------------------------------------------------------------

    def deploy(self) -> None:
        self.attempt += 1
        checkpoint = self.restoring
        dealt: dict[_Subtask, TaskRestore] = {}
        if checkpoint is not None:
            dealt = deal_out_checkpoint(self.graph, checkpoint)
            self.check_dealt(checkpoint, dealt)
        for vertex in self.graph.vertices:
            for index in range(vertex.parallelism):
                key = vertex.id, index
                if key in self.tasks:
                    continue  # of a region that goes on
                before = []
                for edge in vertex.inputs:
                    sources = self.graph.vertices[int(edge.source_vertex_id[1:])].parallelism
                    for source, target in connections(edge.partitioner.pointwise, sources, vertex.parallelism):
                        if target == index:
                            before.append((edge.source_vertex_id, source))
                execution = ExecutionAttemptID(self.job_id, self.attempt, vertex.id, index)
                limit = _limit(vertex.id) if self.bounded else 10**9
                if checkpoint is None:
                    tokens = tuple(b"%d" % number for number in range(index, TOKENS, vertex.parallelism))
                    self.tasks[key] = Task(execution, before, 0, limit, 0, tokens)
                    continue
                state = _state_in(dealt[key], f"op-{vertex.id}")
                states = state.operator.states if state.operator is not None else {}
                counts = [pickle.loads(entry)[2] for entry in states.get("count", (None, ()))[1]]
                same = checkpoint.operators[f"op-{vertex.id}"].parallelism == vertex.parallelism
                # Who had finished before has counted all there is; of what is dealt out anew no subtask has its own.
                count = max(counts, default=limit if same else 0)
                tokens = states.get("tokens", (None, ()))[1]
                task = Task(execution, before, count, limit, count, tokens, dealt[key].finished)
                task.ended = task.was_finished
                self.tasks[key] = task
                for keyed in state.keyed:
                    task.files.update(getattr(keyed, "shared", {}))

    def tasks_run(self) -> None:
        if self.deployed_ms is None or self.now_ms < self.deployed_ms:
            return
        self.deployed_ms, self.all_run = None, True
        self.failures = 0
        finished = frozenset(task.execution for task in self.tasks.values() if task.finished)
        executions = tuple(task.execution for task in self.tasks.values())
        self.step_core(e.TasksRunning(self.attempt, executions, finished))
        self.events.extendleft(reversed(self.ended_early))
        self.ended_early.clear()

    def recover(self) -> None:
        if self.recover_ms is not None and self.now_ms >= self.recover_ms:
            self.recover_ms = None
            if not self.tasks:
                self.remove_leftovers()
            if not self.tasks and self.fault(0.5):
                self._rescale_something()
                self.regions = FailoverRegions(self.graph)
                self.core.vertices = checkpointed_vertices(self.graph, self.coordinated)
            self.step_core(e.Recover(whole=not self.tasks))

    def fail_tasks(self, subtasks: frozenset[_Subtask]) -> None:
        """They are gone, at once: what a JobMaster waits for has happened."""
        stopped = []
        for subtask in sorted(subtasks):
            task = self.tasks.pop(subtask, None)
            if task is not None:
                stopped.append(task.execution)
                self.gone.append(task)  # what it has sent may still arrive
        self.gone = self.gone[-6:]
        self.all_run = False
        self.deployed_ms, self.recover_ms = None, self.now_ms + self.rng.choice((0, 20, 50))
        self.stopped.append(frozenset(stopped))

    def fail_something(self) -> None:
        alive = sorted(subtask for subtask, task in self.tasks.items() if not task.is_over)
        if not alive or (self.deployed_ms is None and self.recover_ms is not None):
            return
        failed = self.rng.choice(alive)
        self.log.append((self.now_ms, f"-- {failed} fails"))
        self.fail_tasks(self.regions.tasks_to_restart([failed]))
        self.tell_stopped()

    def task_receives(self, task: Task) -> None:
        if not task.inbox:
            return
        message = task.inbox.popleft()
        match message:
            case m.TriggerCheckpoint(_, checkpoint_id, _, options):
                if checkpoint_id not in task.given_up:
                    task.triggered[checkpoint_id] = options
            case m.CheckpointAborted(_, checkpoint_id):
                task.given_up.add(checkpoint_id)
                if task.suspended == checkpoint_id:
                    task.suspended = None
            case m.CheckpointComplete(_, checkpoint_id):
                after_the_end = task.ended_after is not None and checkpoint_id > task.ended_after
                if task.suspended == checkpoint_id or (after_the_end and checkpoint_id in task.passed):
                    self.finish(task)

    def finish(self, task: Task) -> None:
        if not task.finished:
            task.finished = True
            self.log.append((self.now_ms, f"-- {task.subtask} has finished"))
            task.outbox.append(e.TaskFinished(task.execution))

    def task_goes_on(self, task: Task) -> None:
        if task.was_finished:
            self.finish(task)
        if task.finished or task.suspended is not None:
            return
        due = self.barriers(task)
        if due and self.rng.random() < 0.7:
            checkpoint_id = min(due)
            self.snapshot(task, checkpoint_id, due[checkpoint_id])
        elif task.count < task.limit:
            task.count = min(task.limit, task.count + self.rng.randint(1, 3))
        elif not task.ended and all(self.is_ended(before, task) for before in task.before):
            self.end(task)
            if not self.commits:
                self.finish(task)

    def end(self, task: Task) -> None:
        task.ended, task.ended_after = True, max(task.passed, default=0)
        task.outbox.append(m.NotifyEndOfData(task.execution))

    def is_ended(self, before: _Subtask, task: Task) -> bool:
        """Whether ``task`` has read all data of one that sends to it, and so the barriers before their end."""
        sender = self.tasks.get(before)
        if sender is None or not (sender.ended or sender.finished):
            return False
        last = sender.ended_after or 0
        return last <= max(task.passed, default=0) or last in task.given_up

    def barriers(self, task: Task) -> dict[int, m.CheckpointOptions]:
        """Those that this task may pass now: it was told to, or has one from each that sends to it."""
        due = {n: options for n, options in task.triggered.items() if n not in task.passed}
        senders = [self.tasks[key] for key in task.before if key in self.tasks]
        alive = [sender for sender in senders if not sender.finished]
        if alive and len(senders) == len(task.before):
            for n, options in alive[0].passed.items():
                if n not in task.passed and all(n in sender.passed for sender in alive):
                    due[n] = options
        newest = max(task.passed, default=0)
        return {n: options for n, options in due.items() if n > newest}

    def snapshot(self, task: Task, checkpoint_id: int, options: m.CheckpointOptions) -> None:
        task.passed[checkpoint_id] = options
        if self.commits and task.execution.vertex_id == self.last_vertex and task.count > task.prepared:
            task.unsent.append((task.prepared, task.count))
            task.prepared = task.count
        if options.kind.stops:
            task.suspended = checkpoint_id
        if options.kind is m.SnapshotKind.SAVEPOINT_TERMINATE and not task.ended:
            self.end(task)
        if checkpoint_id in task.given_up:
            task.suspended = None
            return
        if self.fault(0.04):
            failure = TaskFailure(UserFunctionError("cannot be pickled"))
            reason = self.rng.choice((m.CheckpointFailureReason.DECLINED, m.CheckpointFailureReason.TASK_NOT_READY))
            task.outbox.append(m.DeclineCheckpoint(task.execution, checkpoint_id, failure, reason))
            return
        task.outbox.append(
            m.AcknowledgeCheckpoint(task.execution, checkpoint_id, self.state_of(task, checkpoint_id, options))
        )

    def state_of(self, task: Task, checkpoint_id: int, options: m.CheckpointOptions) -> m.SubtaskState:
        vertex_id, index = task.subtask
        operator_id = f"op-{vertex_id}"
        entry = pickle.dumps((task.execution, checkpoint_id, task.count))
        split = m.DistributionMode.SPLIT
        operator = m.OperatorStateHandle({"count": (split, (entry,)), "rules": RULES, "tokens": (split, task.tokens)})
        (vertex,) = [vertex for vertex in self.graph.vertices if vertex.id == vertex_id]
        owned = key_group_range(vertex.max_parallelism, vertex.parallelism, index)
        groups = m.KeyGroupRange(owned.start, owned.stop - 1)
        private = m.FileHandle(f"{options.location}/{vertex_id}-{index}-{task.execution.attempt}", 10)
        self.files.add(private.uri)
        keyed: Any = m.KeyedStateHandle(groups, private)
        if not options.kind.is_savepoint:
            if len(task.files) > 2 or (task.files and self.rng.random() < 0.3):  # compaction
                del task.files[self.rng.choice(sorted(task.files))]
            if self.rng.random() < 0.6 or not task.files:
                name = f"{vertex_id}-{index}-{task.execution.attempt}-{checkpoint_id}.sst"
                task.files[name] = m.FileHandle(f"{options.shared_location}/{name}", 100)
                self.files.add(task.files[name].uri)
            keyed = m.IncrementalKeyedStateHandle(
                groups, "rocksdb", "b", checkpoint_id, dict(task.files), {"MANIFEST": private}
            )
        committables = {}
        if task.unsent:
            prepared = [(self.run_id, task.execution.attempt, index, start, end) for start, end in task.unsent]
            committables[operator_id] = pickle.dumps(prepared)
            self.prepared.update(prepared)
            task.unsent = []
        return m.SubtaskState(
            {operator_id: m.OperatorSubtaskState((keyed,), operator)},
            committables=committables,
            finished=task.ended,
        )

    def task_says(self, task: Task) -> None:
        if not task.outbox or task.broken:
            return
        if self.fault(0.01):
            self.break_connection(task)
            return
        message = task.outbox.popleft()
        if self.fault(0.05):  # it comes again, later
            task.outbox.insert(self.rng.randint(0, len(task.outbox)), message)
            if self.rng.random() < 0.5:
                task.outbox.append(message)
        if isinstance(message, e.TaskFinished) and self.tasks.get(task.subtask) is not task:
            return  # a JobMaster knows that it is cancelled
        self.events.append(message)

    def break_connection(self, task: Task) -> None:
        self.log.append((self.now_ms, f"-- the connection of {task.subtask} breaks"))
        task.broken = True

    def some_task(self) -> None:
        if not self.tasks:
            return
        task = self.tasks[self.rng.choice(sorted(self.tasks))]
        for move in (self.task_receives, self.task_goes_on, self.task_says):
            if self.rng.random() < 0.7:
                move(task)

    def some_task_that_is_gone(self) -> None:
        if self.gone:
            self.task_says(self.rng.choice(self.gone))

    # ---- the user, time -------------------------------------------------------------------------

    def ask(self) -> None:
        if self.stop_asked:
            return
        self.requests += 1
        stops = self.rng.choice((m.SnapshotKind.SAVEPOINT_SUSPEND, m.SnapshotKind.SAVEPOINT_TERMINATE))
        savepoint = m.SnapshotKind.SAVEPOINT
        kind = self.rng.choice((m.SnapshotKind.CHECKPOINT, savepoint, savepoint, stops))
        self.stop_asked = kind.stops
        self.asked.add(self.requests)
        directory = self.rng.choice((None, "file:/own/"))
        self.step_core(e.SnapshotRequested(self.requests, kind, directory))

    def delete_savepoint(self) -> None:
        """One that no job needs for its next restart."""
        free = [
            location
            for location in sorted(self.known)
            if self.metadata[location].kind is m.SnapshotKind.SAVEPOINT
            and (self.origin is None or self.origin.location != location)
        ]
        if free:
            location = self.rng.choice(free)
            self.log.append((self.now_ms, f"-- the user deletes {location}"))
            self.known.remove(location)
            del self.metadata[location]
            self.files = {uri for uri in self.files if not uri.startswith(location + "/")}
            self.check_files()

    def tick(self) -> None:
        self.now_ms += TICK_MS
        late_ms = self.rng.choice((0, 0, 0, 40)) if self.chaos else 0
        broken = [subtask for subtask, task in self.tasks.items() if task.broken and not task.is_over]
        if broken:
            self.fail_tasks(self.regions.tasks_to_restart(broken))
            self.tell_stopped()
        self.recover()
        self.tasks_run()
        self.step_core(e.Tick(late_ms=late_ms))

    # ---- a run ----------------------------------------------------------------------------------

    def run(self) -> None:
        self.run_job(STEPS)
        while (origin := self.some_origin(retained=True)) is not None:
            self.start_job(origin)
            self.run_job(STEPS_OF_NEW_JOB)

    def run_job(self, steps: int) -> None:
        moves = (
            self.some_task, self.some_task, self.some_task, self.some_task, self.handle_event, self.handle_event,
            self.handle_event, self.store_something, self.store_something, self.commit_something,
            self.coordinate_something, self.tick, self.tick,
        )  # fmt: skip
        for _ in range(steps):
            chance = self.rng.random()
            if self.fault(0.004):
                self.fail_something()
            elif self.origin is not None and self.durable and self.fault(0.03):
                self.crash_driver()  # who takes over knows what the job has stored, and not where it began
            elif chance < 0.014:
                self.ask()
            elif chance < 0.017:
                self.delete_savepoint()
            elif chance < 0.045:
                self.some_task_that_is_gone()
            else:
                self.rng.choice(moves)()
        self.heal()

    def heal(self) -> None:
        """No more faults: a checkpoint is complete within a bounded time, or a bounded job ends."""
        self.chaos = False
        self.healed_ms = self.now_ms
        self.log.append((self.now_ms, HEALED))
        goal = self.core.completed_count + 2
        core = self.core
        for _ in range(TICKS_TO_HEAL):
            self.tick()
            self.drain()
            if self.is_done and not self.events and not self.core.has_unpublished:
                break
            if not self.bounded and not self.stop_asked and core.completed_count >= goal:
                break
        else:
            raise AssertionError(f"no progress: {self.core.describe()}")
        self.finish_job()

    @property
    def is_done(self) -> bool:
        total = sum(vertex.parallelism for vertex in self.graph.vertices)
        return len(self.tasks) == total and all(task.finished for task in self.tasks.values())

    def drain(self) -> None:
        """All that can move, does, some times over."""
        for _ in range(3):
            for key in sorted(self.tasks):
                for move in (self.task_receives, self.task_goes_on, self.task_says):
                    task = self.tasks.get(key)
                    if task is not None:
                        move(task)
            while self.events or self.storing or self.coordinating or self.committing:
                self.handle_event()
                self.store_something()
                self.coordinate_something()
                self.commit_something()

    def finish_job(self) -> None:
        done = self.is_done
        status = "FINISHED" if done else self.rng.choice(("CANCELED", "FAILED"))
        unheard = frozenset(subtask for subtask, task in self.tasks.items() if task.outbox)
        if unheard:
            self.fail_tasks(unheard)
            self.tell_stopped()
        self.tasks.clear()  # the job ends behind the last of them
        retains = self.retention.retains(JobStatus[status]) or self.core.has_unpublished
        self.step_core(e.JobEnding(status))
        if not done:
            self.remove_leftovers()
        while self.storing or self.committing:
            self.store_something()
            self.commit_something()
        assert self.answered == self.asked, "somebody waits for ever"
        assert not self.held, "events of coordinators are held for ever"
        if done and self.bounded and self.commits:
            for index in range(self.graph.vertices[-1].parallelism):
                stopped = any(checkpoint.kind.stops for checkpoint in self.own)
                assert stopped or self.published.get(index, 0) == _limit(self.last_vertex), f"{self.published}: not all is published"
        kept = [checkpoint for checkpoint in self.own if not checkpoint.kind.is_savepoint]
        assert retains or not kept, "checkpoints were left"
        if not kept:
            assert not any(uri.startswith(f"file:/chk/{self.job_id}/") for uri in self.files), "files were left"
        needed = {uri for checkpoint in kept for uri in _uris(checkpoint)}
        shared = {uri for uri in self.files if f"/{self.job_id}/shared/" in uri}
        assert shared <= needed, f"left behind: {sorted(shared - needed)}"

    @property
    def has_lost_messages(self) -> bool:
        """Files that only a lost message has named are found by sweeping."""
        log = self.log[self.job_begun :]
        return any(isinstance(event, e.TasksStopped) or event == DRIVER_DIES for _, event in log)

    def story(self) -> list[str]:
        """Ticks on which nothing follows are left out."""
        told = [
            (now_ms, entry)
            for (now_ms, entry), (_, following) in zip(self.log, [*self.log[1:], (0, None)])
            if not (isinstance(entry, e.Tick) and isinstance(following, e.Tick))
        ]
        return [f"{now_ms:6} {entry if isinstance(entry, str) else _short(entry)}" for now_ms, entry in told[-120:]]


def _short(event: Any) -> str:
    text = repr(event)
    for letter in JOBS:
        text = text.replace(letter * 32, letter)
    return text if len(text) <= 160 else f"{text[:157]}..."


def _uris(checkpoint: m.CompletedCheckpoint) -> list[str]:
    uris = []
    for operator in checkpoint.operators.values():
        for saved in operator.subtasks.values():
            for keyed in saved.keyed:
                if isinstance(keyed, m.IncrementalKeyedStateHandle):
                    uris += [file.uri for file in (*keyed.shared.values(), *keyed.private.values())]  # type: ignore[union-attr]
                else:
                    uris.append(keyed.content.uri)  # type: ignore[union-attr]
    return uris


def _state_in(restore: TaskRestore, operator_id: str) -> m.OperatorSubtaskState:
    (state,) = restore.operators.get(operator_id, (m.OperatorSubtaskState(),))
    return state


def _groups_of(handle: Any) -> range:
    return range(handle.key_groups.start, handle.key_groups.end + 1)


def _contents(state: m.OperatorSubtaskState) -> Counter:
    """Its key groups, each with the file that has it, and its entries of list state."""
    contents: Counter = Counter()
    for handle in state.keyed:
        content = handle.private["MANIFEST"] if isinstance(handle, m.IncrementalKeyedStateHandle) else handle.content
        contents.update((content, group) for group in _groups_of(handle))
    for name, (mode, entries) in (state.operator.states if state.operator is not None else {}).items():
        if mode is m.DistributionMode.SPLIT:
            contents.update((name, entry) for entry in entries)
    return contents


def _limit(vertex_id: str) -> int:
    """Where the data of a subtask end; sources end first, and then others must be triggered."""
    return 12 if vertex_id == "v0" else 30


def _count_in(checkpoint: Optional[m.CompletedCheckpoint], vertex_id: str, index: int) -> int:
    """How far this subtask had counted; one that had finished before has counted all there is."""
    if checkpoint is None:
        return 0
    snapshot = checkpoint.operators[f"op-{vertex_id}"]
    if index not in snapshot.subtasks:
        assert index in snapshot.finished_subtasks
        return _limit(vertex_id)
    (entry,) = snapshot.subtasks[index].operator.states["count"][1]  # type: ignore[union-attr]
    return pickle.loads(entry)[2]
