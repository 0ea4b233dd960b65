"""Random clusters and jobs against the whole Dispatcher: its invariants hold after every step, and
once the world behaves again every job ends and every slot is free."""

import random

from hypothesis import given
from hypothesis.strategies import integers

from flinkish.errors import ConnectionLostError, UserFunctionError
from flinkish.graph.job_graph import JobGraph, JobVertex, OperatorChainSpec
from flinkish.jobmanager import events as e
from flinkish.jobmanager.dispatcher import Dispatcher
from flinkish.jobmanager.job_master import JobDescription
from flinkish.jobmanager.resource_manager import ResourceManager, SlotState
from flinkish.messages import control as m
from flinkish.messages.deployment import ExecutionAttemptID, SlotAddress, TaskFailure


class World:
    """Slots and supervisors that do what the messages say, or, with ``chaos``, something else."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.slots = [f"s{i}" for i in range(self.rng.randint(1, 4))]
        self.dispatcher = Dispatcher(
            ResourceManager(capacity=len(self.slots), request_timeout_ms=3_000), archive_size=3
        )
        self.connections = 0
        self.process = {}  # slot -> [connection, pid, {(job, vertex, subtask): state}]
        self.supervisor = {}  # slot -> connection
        self.given_up = set()  # supervisors that Spark has given up, until they are launched again
        self.ended = {}
        self.submitted = 0
        self.chaos = True
        self.pids = 0
        self.step(e.Launched("L", tuple((i, (s,)) for i, s in enumerate(self.slots))))

    def step(self, event):
        effects = self.dispatcher.step(event, self.now_ms)
        self.dispatcher.check()
        for effect in effects:
            self.carry_out(effect)

    def connect(self):
        self.connections += 1
        return self.connections

    def slot_of(self, connection):
        for slot, process in self.process.items():
            if process[0] == connection:
                return slot
        return None

    def carry_out(self, effect):
        match effect:
            case e.DeployToSlot(job_id, _, index, slots, connection):
                slot = self.slot_of(connection)
                if slot is None:
                    return
                for (vertex, subtask), execution in self.dispatcher.jobs[job_id].executions.items():
                    if execution.slot_id == slots[index].slot_id:
                        self.process[slot][2][job_id, vertex, subtask] = "DEPLOYING"
            case e.Send(connection, m.ReleaseSlot()):
                slot = self.slot_of(connection)
                if slot is not None:
                    self.process[slot].append("released")
            case e.Send(connection, m.StartTasks()):
                self.set_all(connection, ("DEPLOYING",), "INITIALIZING")
            case e.Send(connection, m.CancelTasks()):
                self.set_all(connection, ("DEPLOYING", "INITIALIZING", "RUNNING"), "CANCELING")
            case e.Send(_, m.KillSlot(slot_id, pid)):
                if slot_id in self.process and self.process[slot_id][1] == pid:
                    self.process[slot_id].append("killed")
            case e.CloseConnection(connection):
                slot = self.slot_of(connection)
                if slot is not None:
                    del self.process[slot]
                for name, number in list(self.supervisor.items()):
                    if number == connection:
                        del self.supervisor[name]
            case e.LaunchSupervisors(tasks):
                self.given_up.difference_update(tasks)
            case e.JobStatusChanged(job_id, status, _):
                assert job_id not in self.ended, "a job ends once"
                if status in ("FINISHED", "FAILED", "CANCELED"):
                    self.ended[job_id] = status

    def set_all(self, connection, old, new):
        slot = self.slot_of(connection)
        for key, state in list(self.process[slot][2].items()) if slot else ():
            if state in old:
                self.process[slot][2][key] = new

    # ---- what may happen next

    def submit(self):
        self.submitted += 1
        job_id = f"j{self.submitted}"
        chain = OperatorChainSpec((), (), ())
        vertices = [
            JobVertex(name, name, chain, self.rng.randint(1, len(self.slots)), 128, "default")
            for name in ("v", "w")[: self.rng.randint(1, 2)]
        ]
        commits = self.rng.random() < 0.5
        self.step(e.JobSubmitted(JobDescription(JobGraph(job_id, job_id, vertices), (), commits)))

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
                self.process[slot] = [self.connect(), self.pids, {}]
                address = SlotAddress(slot, "host", None, ("127.0.0.1", 1))
                message = m.RegisterSlot("L", slot, self.pids, address)
                self.step(e.SlotRegistered(self.process[slot][0], message))
                return

    def end_process(self, slot):
        connection, pid, _ = self.process.pop(slot)[:3]
        events = [e.Disconnected(connection)]
        if slot in self.supervisor:
            report = m.SlotReport(slot, pid, 0, exit_status=self.rng.choice((0, -9)))
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
        connection, _, tasks = self.process[slot][:3]
        if len(self.process[slot]) > 3:
            self.end_process(slot)
            return
        states = set(tasks.values())
        if "DEPLOYING" in states and not states - {"DEPLOYING"}:
            job_id = next(iter(tasks))[0]
            self.step(e.SlotSaid(connection, m.TasksDeployed(job_id, 0)))
        movable = sorted(key for key, state in tasks.items() if state in _NEXT)
        if not movable:
            return
        key = self.rng.choice(movable)
        state = tasks[key] = self.rng.choice(_NEXT[tasks[key]])
        failure = None
        if self.chaos and state in ("RUNNING", "FINISHED") and self.rng.random() < 0.1:
            state = tasks[key] = "FAILED"
            failure = TaskFailure(UserFunctionError("boom"))
        execution = ExecutionAttemptID(key[0], 0, key[1], key[2])
        self.step(e.SlotSaid(connection, m.TaskStateChanged(execution, state, failure)))

    def coordinators(self):
        for job_id, master in list(self.dispatcher.jobs.items()):
            if master.closing is not None:
                committing = master.closing.name == "COMMITTING"
                self.step(e.Committed(job_id, 0) if committing else e.Aborted(job_id, 0))
                return

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
        elif choice < 0.7 and self.dispatcher.jobs:
            self.step(e.CancelRequested(self.rng.choice(sorted(self.dispatcher.jobs))))
        elif choice < 0.8 and self.process and self.dispatcher.jobs:
            slot = self.rng.choice(sorted(self.process))
            job_id = self.rng.choice(sorted(self.dispatcher.jobs))
            failure = TaskFailure(ConnectionLostError("lost"))
            message = m.SlotFailed(slot, job_id, 0, failure, lost_peer=self.rng.choice(self.slots))
            self.step(e.SlotSaid(self.process[slot][0], message))
        elif choice < 0.9 and self.dispatcher.jobs:
            job_id = self.rng.choice(sorted(self.dispatcher.jobs))
            self.step(e.CoordinatorFailed(job_id, 0, UserFunctionError("enumerator")))


_NEXT = {
    "INITIALIZING": ("RUNNING",),
    "RUNNING": ("FINISHED",),
    "CANCELING": ("CANCELED",),
}


@given(seed=integers(0, 2**32 - 1))
def test_whatever_happens_the_rules_hold_and_once_it_stops_every_job_ends_and_every_slot_is_free(seed):
    world = World(seed)
    actions = [world.connect_something, world.live, world.live, world.live, world.coordinators]
    for _ in range(250):
        world.rng.choice([*actions, world.tick, world.submit, world.break_something])()
    world.chaos = False
    for _ in range(2_000):
        if not world.dispatcher.jobs:
            break
        world.rng.choice([*actions, world.tick])()
    assert not world.dispatcher.jobs, [job.describe() for job in world.dispatcher.jobs.values()]
    assert len(world.ended) == world.submitted
    for _ in range(300):
        world.rng.choice([*actions, world.tick])()
    states = {slot.state for slot in world.dispatcher.resource_manager.slots.values()}
    assert states == {SlotState.FREE}
