"""Random clusters and jobs against the whole Dispatcher: its invariants hold after every step, and
once the world behaves again every job ends and every slot is free."""

import random
from collections import deque
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis.strategies import integers

from flinkish.datastream.partitioners import ForwardPartitioner, RebalancePartitioner
from flinkish.errors import ConnectionLostError, ExternalError, UserFunctionError
from flinkish.graph.job_graph import ChainedOperator, JobEdge, JobGraph, JobVertex, OperatorChainSpec
from flinkish.jobmanager import events as e
from flinkish.jobmanager.checkpoint_coordinator import CheckpointConfiguration
from flinkish.jobmanager.dispatcher import Dispatcher
from flinkish.jobmanager.job_description import CheckpointSettings, JobDescription
from flinkish.jobmanager.job_master import Closing
from flinkish.jobmanager.reactive_scaling import ReactiveScaling
from flinkish.jobmanager.resource_manager import ResourceManager, SlotState
from flinkish.jobmanager.restart_strategy import ExponentialDelayRestart, FixedDelayRestart, NoRestart
from flinkish.messages import checkpoints as c
from flinkish.messages import control as m
from flinkish.messages.deployment import ExecutionAttemptID, SlotAddress, TaskFailure

OVER = ("FINISHED", "CANCELED", "FAILED")


@dataclass
class Process:
    """A slot process and the tasks that it runs, each of them by vertex and subtask."""

    connection: int
    pid: int
    job_id: str = ""
    attempt: int = -1  # of the tasks deployed last
    tasks: dict = field(default_factory=dict)
    attempts: dict = field(default_factory=dict)  # of each task
    to_acknowledge: deque = field(default_factory=deque)  # (vertex, subtask, checkpoint id)
    end_of_data: set = field(default_factory=set)  # tasks that wait for a checkpoint
    told_to_end: str = ""

    def set_all(self, keys, old, new):
        for key in keys:
            if self.tasks[key] in old:
                self.tasks[key] = new


class World:
    """Slots and supervisors that do what the messages say, or, with ``chaos``, something else."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.slots = [f"s{i}" for i in range(self.rng.randint(1, 4))]
        self.dispatcher = Dispatcher(
            ResourceManager(capacity=len(self.slots), request_timeout_ms=3_000),
            rng=random.Random(seed),
            archive_size=3,
        )
        self.connections = 0
        self.process = {}  # slot -> Process
        self.supervisor = {}  # slot -> connection
        self.given_up = set()  # supervisors that Spark has given up, until they are launched again
        self.ended = {}
        self.submitted = 0
        self.chaos = True
        self.pids = 0
        self.answers = deque()  # of the shell's threads
        self.requests = set()  # snapshots, and rescalings with an id below 0, that somebody waits for
        self.durable = set()  # (job, checkpoint id)
        self.restarts = 0
        self.restarts_of_regions = 0
        self.rescales = 0
        self.step(e.Launched("L", tuple((i, (s,)) for i, s in enumerate(self.slots))))

    def step(self, event):
        effects = self.dispatcher.step(event, self.now_ms)
        self.dispatcher.check()
        for effect in effects:
            self.carry_out(effect)

    def connect(self):
        self.connections += 1
        return self.connections

    def process_at(self, connection):
        return next((process for process in self.process.values() if process.connection == connection), None)

    def carry_out(self, effect):
        match effect:
            case e.DeployToSlot(job_id, attempt, index, slots, beside, connection):
                process = self.process_at(connection)
                if process is None:
                    return
                executions = self.dispatcher.jobs[job_id].executions
                deployed = {
                    key: "DEPLOYING"
                    for key, execution in executions.items()
                    if execution.slot_id == slots[index].slot_id and (beside is None or key in beside)
                }
                assert deployed, "nothing to run there"
                before = [state for key, state in process.tasks.items() if beside is None or key in deployed]
                assert set(before) <= set(OVER), "two attempts at a task run at once"
                assert all(executions[key].execution.attempt == attempt for key in deployed)
                if beside is None:
                    process.tasks.clear()
                process.job_id, process.attempt = job_id, attempt
                process.tasks.update(deployed)
                process.attempts.update(dict.fromkeys(deployed, attempt))
                process.to_acknowledge = deque(to for to in process.to_acknowledge if to[:2] not in deployed)
                process.end_of_data = {waits for waits in process.end_of_data if waits[0] not in deployed}
                if beside is None:
                    process.to_acknowledge.clear()
                    process.end_of_data.clear()
                    self.restarts += attempt > 0 and index == 0
                else:
                    self.restarts_of_regions += 1
            case e.Send(connection, message):
                self.receive(connection, message)
            case e.CloseConnection(connection):
                self.process = {s: p for s, p in self.process.items() if p.connection != connection}
                self.supervisor = {s: number for s, number in self.supervisor.items() if number != connection}
            case e.LaunchSupervisors(tasks):
                self.given_up.difference_update(tasks)
            case e.JobStatusChanged(job_id, status, _):
                assert job_id not in self.ended, "a job ends once"
                if status in OVER:
                    self.ended[job_id] = status
            case e.CommitSinks(job_id, attempt):
                self.answers.append(e.Committed(job_id, attempt))
            case e.AbortSinks(job_id, attempt):
                self.answers.append(e.Aborted(job_id, attempt))
            case e.CheckpointEffect(job_id, order):
                self.carry_out_order(job_id, order)
            case e.SnapshotResult(request_id):
                self.requests.remove(request_id)  # once
            case e.RescaleResult(request_id, error):
                self.requests.remove(request_id)
                self.rescales += error is None
            case e.JobRescaled(job_id, graph):
                running = [p for p in self.process.values() if p.job_id == job_id and not set(p.tasks.values()) <= set(OVER)]
                assert not running, "a job becomes another one while its tasks run"
                assert graph.vertices[0].parallelism <= len(self.slots)

    def carry_out_order(self, job_id, order):
        fails = self.chaos and self.rng.random() < 0.2
        error = ExternalError("a service is down") if fails else None
        answers = []
        match order:
            case e.SnapshotCoordinators(_, checkpoint_id, operators):
                answers = [e.CoordinatorSnapshotted(checkpoint_id, name, b"s", error) for name in operators]
            case e.StoreMetadata(checkpoint):
                if error is None:
                    self.durable.add((job_id, checkpoint.checkpoint_id))
                answers = [e.MetadataStored(checkpoint.checkpoint_id, error)]
            case e.CommitCheckpoint(commit):
                assert (job_id, commit.checkpoint_id) in self.durable, "published before it was durable"
                answers = [e.CheckpointCommitted(commit.run_id, commit.checkpoint_id, error)]
        self.answers += [e.CheckpointEvent(job_id, answer) for answer in answers]

    def receive(self, connection, message):
        process = self.process_at(connection)
        match message:
            case m.KillSlot(slot_id, pid):
                if slot_id in self.process and self.process[slot_id].pid == pid:
                    self.process[slot_id].told_to_end = "killed"
            case _ if process is None:
                return
            case m.ReleaseSlot():
                process.told_to_end = "released"
            case m.StartTasks(_, attempt):
                started = [key for key in process.tasks if process.attempts[key] == attempt]
                process.set_all(started, ("DEPLOYING",), "INITIALIZING")
            case m.CancelTasks(_, executions):
                keys = [(id_.vertex_id, id_.subtask_index) for id_ in executions]
                assert [self.execution(process, key) for key in keys] == list(executions)
                process.set_all(keys, ("DEPLOYING", "INITIALIZING", "RUNNING"), "CANCELING")
            case c.TriggerCheckpoint(execution, checkpoint_id):
                # Barriers reach every task that runs, in whatever slot.
                for other in self.process.values():
                    if other.job_id == execution.job_id:
                        for key, state in other.tasks.items():
                            entry = (*key, checkpoint_id)
                            if state == "RUNNING" and entry not in other.to_acknowledge:
                                other.to_acknowledge.append(entry)
            case c.CheckpointComplete(_, checkpoint_id):
                for key, after in list(process.end_of_data):
                    if checkpoint_id > after and process.tasks[key] == "RUNNING":
                        process.end_of_data.discard((key, after))
                        self.change(process, key, "FINISHED")

    # ---- what may happen next

    def submit(self):
        self.submitted += 1
        job_id = f"j{self.submitted}"
        names = ("v", "w")[: self.rng.randint(1, 2)]
        parallelism = {name: self.rng.randint(1, len(self.slots)) for name in names}
        edges = []
        kind = self.rng.choice(("rebalance", "forward", "none")) if "w" in names else "none"
        if kind == "forward":
            parallelism["w"] = parallelism["v"]
        if kind != "none":
            partitioner = ForwardPartitioner() if kind == "forward" else RebalancePartitioner()
            edges.append(JobEdge(1, "v", "w", 0, partitioner))
        vertices = [
            JobVertex(
                name,
                name,
                OperatorChainSpec((ChainedOperator(0, f"op-{name}", name, None),), (), ()),
                parallelism[name],
                128,
                "default",
                [edge for edge in edges if edge.target_vertex_id == name],
                [edge for edge in edges if edge.source_vertex_id == name],
            )
            for name in names
        ]
        commits = self.rng.random() < 0.5
        interval_ms = self.rng.choice((None, 50, 300))
        restart = self.rng.choice(
            (NoRestart(), FixedDelayRestart(2, 200), FixedDelayRestart(3, 0), ExponentialDelayRestart(10, 500))
        )
        settings = CheckpointSettings(
            CheckpointConfiguration(
                "file:/chk", interval_ms=interval_ms, tolerable_failures=3,
                timeout_ms=2_000, final_checkpoint=commits and interval_ms is not None,
            ),
            frozenset({"op-v"} if self.rng.random() < 0.5 else ()),
            run_id="r",
        )  # fmt: skip
        reactive = ReactiveScaling(300, 200, 100) if self.rng.random() < 0.2 else None
        description = JobDescription(
            JobGraph(job_id, job_id, vertices),
            tuple((f"op-{name}", name) for name in names),
            commits,
            checkpoints=settings,
            restart_strategy=restart,
            reactive=reactive,
            region_failover=reactive is None and self.rng.random() < 0.6,
        )
        self.step(e.JobSubmitted(description))

    def connect_something(self):
        for slot in self.rng.sample(self.slots, len(self.slots)):
            index = self.slots.index(slot)
            if index in self.given_up:
                continue
            if slot not in self.supervisor:
                connection = self.supervisor[slot] = self.connect()
                message = m.RegisterSupervisor("L", index, 0, "host", 1, (slot,))
                self.step(e.SupervisorRegistered(connection, message))
                return
            if slot not in self.process:
                self.pids += 1
                process = self.process[slot] = Process(self.connect(), self.pids)
                address = SlotAddress(slot, "host", None, ("127.0.0.1", 1))
                message = m.RegisterSlot("L", slot, self.pids, address)
                self.step(e.SlotRegistered(process.connection, message))
                return

    def end_process(self, slot):
        process = self.process.pop(slot)
        events = [e.Disconnected(process.connection)]
        if slot in self.supervisor:
            report = m.SlotReport(slot, process.pid, 0, exit_status=self.rng.choice((0, -9)))
            message = m.SupervisorHeartbeat((report,))
            events.append(e.SupervisorReported(self.supervisor[slot], message))
        self.rng.shuffle(events)
        for event in events:
            self.step(event)

    def live(self):
        """One slot does what it has been told."""
        if not self.process:
            return
        slot = self.rng.choice(sorted(self.process))
        process = self.process[slot]
        if process.told_to_end:
            self.end_process(slot)
            return
        states = set(process.tasks.values())
        if "DEPLOYING" in states and self.rng.random() < 0.5:
            self.step(e.SlotSaid(process.connection, m.TasksDeployed(process.job_id, process.attempt)))
        if process.to_acknowledge and self.rng.random() < 0.7:
            self.acknowledge(process)
            return
        movable = sorted(
            key
            for key, state in process.tasks.items()
            if state in _NEXT and all(key != waiting for waiting, _ in process.end_of_data)
        )
        if not movable:
            return
        key = self.rng.choice(movable)
        state = _NEXT[process.tasks[key]]
        if self.chaos and state in ("RUNNING", "FINISHED") and self.rng.random() < 0.2:
            self.change(process, key, "FAILED", TaskFailure(UserFunctionError("boom")))
        elif state == "FINISHED" and self.waits_for_checkpoint(process):
            last = max((id_ for *_, id_ in process.to_acknowledge), default=0)
            process.end_of_data.add((key, max(last, self.last_id(process.job_id))))
            self.step(e.SlotSaid(process.connection, c.NotifyEndOfData(self.execution(process, key))))
        else:
            self.change(process, key, state)

    def last_id(self, job_id):
        return self.dispatcher.jobs[job_id].checkpoints.next_checkpoint_id - 1

    def waits_for_checkpoint(self, process):
        job = self.dispatcher.jobs.get(process.job_id)
        return job is not None and job.checkpoints.configuration.final_checkpoint

    def execution(self, process, key):
        return ExecutionAttemptID(process.job_id, process.attempts[key], *key)

    def change(self, process, key, state, failure=None):
        process.tasks[key] = state
        message = m.TaskStateChanged(self.execution(process, key), state, failure)
        self.step(e.SlotSaid(process.connection, message))

    def acknowledge(self, process):
        vertex, subtask, checkpoint_id = process.to_acknowledge.popleft()
        if process.tasks.get((vertex, subtask)) != "RUNNING":
            return
        execution = self.execution(process, (vertex, subtask))
        if self.chaos and self.rng.random() < 0.1:
            message = c.DeclineCheckpoint(execution, checkpoint_id, TaskFailure(UserFunctionError("no")))
        else:
            commits = process.job_id in self.dispatcher.jobs and self.dispatcher.jobs[process.job_id].job.commits
            message = c.AcknowledgeCheckpoint(
                execution, checkpoint_id, c.SubtaskState(committables={f"op-{vertex}": b"x"} if commits else {})
            )
        self.step(e.SlotSaid(process.connection, message))

    def answer(self):
        """One of the shell's threads is ready."""
        if self.answers:
            self.step(self.answers.popleft())

    def request_snapshot(self):
        if self.submitted:
            request_id = len(self.requests) + 1_000 * self.pids + self.now_ms * 10_000
            kind = self.rng.choice(list(c.SnapshotKind))
            if request_id not in self.requests:
                self.requests.add(request_id)
                job_id = f"j{self.rng.randint(1, self.submitted)}"
                self.step(e.CheckpointEvent(job_id, e.SnapshotRequested(request_id, kind, "file:/sav")))

    def request_rescale(self):
        """Of a job that runs, or has ended, or is in whatever state."""
        if self.submitted:
            request_id = -2 - len(self.requests) - 1_000 * self.pids - self.now_ms * 10_000
            if request_id not in self.requests:
                self.requests.add(request_id)
                job_id = f"j{self.rng.randint(1, self.submitted)}"
                parallelism = self.rng.randint(1, len(self.slots) + 1)
                wanted = parallelism if self.rng.random() < 0.7 else {"v": parallelism}
                self.step(e.RescaleRequested(job_id, request_id, wanted))

    def tick(self):
        self.now_ms += self.rng.choice((10, 100, 1_000))
        for connection in self.supervisor.values():
            self.step(e.SupervisorReported(connection, m.SupervisorHeartbeat(())))
        self.step(e.Tick(late_ms=self.rng.choice((0, 0, 500))))

    def break_something(self):
        choice = self.rng.random()
        if choice < 0.4 and self.process:
            self.end_process(self.rng.choice(sorted(self.process)))
        elif choice < 0.5 and self.supervisor:
            slot = self.rng.choice(sorted(self.supervisor))
            index = self.slots.index(slot)
            if self.rng.random() < 0.5:
                self.step(e.Disconnected(self.supervisor.pop(slot)))
            if self.rng.random() < 0.5:
                self.supervisor.pop(slot, None)
                self.given_up.add(index)
                self.step(e.SupervisorEnded(index, ConnectionLostError("given up")))
        elif choice < 0.6 and self.dispatcher.jobs:
            self.step(e.CancelRequested(self.rng.choice(sorted(self.dispatcher.jobs))))
        elif choice < 0.8 and self.process and self.dispatcher.jobs:
            slot = self.rng.choice(sorted(self.process))
            process = self.process[slot]
            failure = TaskFailure(ConnectionLostError("lost"))
            lost_peer = self.rng.choice((None, *self.slots))
            unended = [key for key, state in process.tasks.items() if state not in OVER]
            if lost_peer is None:
                process.told_to_end = "by itself"
            else:
                unended = unended[: self.rng.randint(0, len(unended))]
            failed = tuple(self.execution(process, key) for key in unended)
            self.step(e.SlotSaid(process.connection, m.SlotFailed(slot, process.job_id, failed, failure, lost_peer)))
            for key in unended if lost_peer is not None else ():
                if process.tasks.get(key) not in (None, *OVER):
                    self.change(process, key, "FAILED", failure)
        elif choice < 0.9 and self.dispatcher.jobs:
            job_id = self.rng.choice(sorted(self.dispatcher.jobs))
            attempt = self.dispatcher.jobs[job_id].coordinators_attempt
            self.step(e.CoordinatorFailed(job_id, attempt, UserFunctionError("enumerator")))


_NEXT = {"INITIALIZING": "RUNNING", "RUNNING": "FINISHED", "CANCELING": "CANCELED"}


@given(seed=integers(0, 2**32 - 1))
def test_whatever_happens_the_rules_hold_and_once_it_stops_every_job_ends_and_every_slot_is_free(seed):
    world = World(seed)
    actions = [world.connect_something, *[world.live] * 4, world.answer, world.answer]
    for _ in range(350):
        others = [world.tick, world.submit, world.break_something, world.request_snapshot, world.request_rescale]
        world.rng.choice([*actions, *others])()
    world.chaos = False
    for _ in range(4_000):
        if not world.dispatcher.jobs:
            break
        world.rng.choice([*actions, world.tick])()
    assert not world.dispatcher.jobs, [job.describe() for job in world.dispatcher.jobs.values()]
    assert len(world.ended) == world.submitted
    assert not world.requests, "somebody waits for a snapshot or a rescaling for ever"
    for _ in range(300):
        world.rng.choice([*actions, world.tick])()
    states = {slot.state for slot in world.dispatcher.resource_manager.slots.values()}
    assert states == {SlotState.FREE}


def test_these_worlds_do_restart_and_rescale_jobs_and_publish_checkpoints():
    restarts = regions = durable = publishing = rescales = 0
    for seed in range(40):
        world = World(seed)
        actions = [world.connect_something, *[world.live] * 4, world.answer, world.answer]
        for _ in range(350):
            others = [world.tick, world.submit, world.break_something, world.request_rescale]
            world.rng.choice([*actions, *others])()
            publishing += any(job.closing is Closing.PUBLISHING for job in world.dispatcher.jobs.values())
        restarts, durable = restarts + world.restarts, durable + len(world.durable)
        rescales, regions = rescales + world.rescales, regions + world.restarts_of_regions
    seen = (restarts, regions, durable, publishing, rescales)
    assert restarts > 10 and regions > 5 and durable > 10 and publishing > 0 and rescales > 1, seen
