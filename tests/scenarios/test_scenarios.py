"""Runs the scripts of this folder: commands, and the effects of the JobManager's cores.

A script is a list of blocks.  A block has one command a line, a line ``----``, and what the cores
answered; a blank line ends it.  ``#`` starts a comment.  Time stands still but for ``tick``.

    launch s0 s1                         slots of one launch, a supervisor each
    supervisor s0 | register s0          they connect
    submit JOB parallelism=2 [vertices=v,w] [commits]
    deployed s0 JOB                      TasksDeployed
    task s0 JOB v/0 STATE [error]        TaskStateChanged
    complain s0 JOB about s1             SlotFailed with a lost peer
    say JOB v/0 text                     a coordinator sends to a subtask
    cancel JOB | committing JOB sink | committed JOB [error] | aborted JOB
    disconnect s0 | disconnect supervisor s0 | exit s0 STATUS | launch-ended [error]
    still s0 MS                          the loop of its process has not turned for so long
    tick MS                              MS later

FLINKISH_REWRITE=1 writes the answers into the scripts; read the diff.
"""

import os
import shlex
from pathlib import Path

import pytest

from flinkish.errors import ConnectionLostError, UserFunctionError
from flinkish.graph.job_graph import JobGraph, JobVertex, OperatorChainSpec
from flinkish.jobmanager import events as e
from flinkish.jobmanager.dispatcher import Dispatcher
from flinkish.jobmanager.job_description import JobDescription
from flinkish.jobmanager.resource_manager import ResourceManager
from flinkish.messages import control as m
from flinkish.messages.deployment import ExecutionAttemptID, SlotAddress, TaskFailure

FOLDER = Path(__file__).parent
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.txt"))


class Script:
    def __init__(self):
        self.now_ms = 0
        self.dispatcher = Dispatcher(ResourceManager(capacity=None, request_timeout_ms=5_000))
        self.names = {}  # connection -> name
        self.connections = {}  # name -> connection
        self.pids = {}
        self.launches = 0

    def run(self, command):
        name, *words = shlex.split(command)
        event = getattr(self, "do_" + name.replace("-", "_"))(*words)
        effects = self.dispatcher.step(event, self.now_ms)
        self.dispatcher.check()
        return [line for effect in effects if (line := self.show(effect))]

    def connect(self, name):
        connection = len(self.names) + 1
        self.names[connection], self.connections[name] = name, connection
        return connection

    # ---- commands

    def do_launch(self, *slots):
        self.launches += 1
        self.slots = slots
        self.dispatcher.resource_manager.capacity = len(slots)
        return e.Launched(f"L{self.launches}", tuple((i, (s,)) for i, s in enumerate(slots)))

    def do_supervisor(self, slot):
        message = m.RegisterSupervisor(
            f"L{self.launches}", self.slots.index(slot), 0, "host", 1, (slot,)
        )
        return e.SupervisorRegistered(self.connect(f"supervisor of {slot}"), message)

    def do_register(self, slot):
        pid = self.pids[slot] = self.pids.get(slot, 0) + 1
        address = SlotAddress(slot, "host", None, ("127.0.0.1", 1))
        message = m.RegisterSlot(f"L{self.launches}", slot, pid, address)
        return e.SlotRegistered(self.connect(slot), message)

    def do_submit(self, job, *options):
        given = dict(option.partition("=")[::2] for option in options)
        names = given.get("vertices", "v").split(",")
        chain = OperatorChainSpec((), (), ())
        vertices = [
            JobVertex(name, name, chain, int(given["parallelism"]), 128, "default") for name in names
        ]
        graph = JobGraph(job, job, vertices)
        operators = tuple((name, name) for name in names)
        return e.JobSubmitted(JobDescription(graph, operators, "commits" in given))

    def do_deployed(self, slot, job):
        return e.SlotSaid(self.connections[slot], m.TasksDeployed(job, 0))

    def do_task(self, slot, job, task, state, error=None):
        failure = TaskFailure(UserFunctionError(error)) if error else None
        message = m.TaskStateChanged(self.execution(job, task), state, failure)
        return e.SlotSaid(self.connections[slot], message)

    def do_complain(self, slot, job, about, peer):
        failure = TaskFailure(ConnectionLostError(f"lost the connection to {peer}"))
        executions = self.dispatcher.jobs[job].executions.values()
        in_slot = tuple(e.execution for e in executions if e.slot_id == slot)
        message = m.SlotFailed(slot, job, in_slot, failure, lost_peer=peer)
        return e.SlotSaid(self.connections[slot], message)

    def do_say(self, job, task, text):
        vertex, _, subtask = task.partition("/")
        return e.CoordinatorSaid(job, 0, vertex, int(subtask), text)

    def do_cancel(self, job):
        return e.CancelRequested(job)

    def do_committing(self, job, sink):
        return e.CommitterStarted(job, 0, sink)

    def do_committed(self, job, error=None):
        return e.Committed(job, 0, UserFunctionError(error) if error else None)

    def do_aborted(self, job):
        return e.Aborted(job, 0)

    def do_disconnect(self, *words):
        name = words[0] if len(words) == 1 else f"supervisor of {words[1]}"
        return e.Disconnected(self.connections.pop(name))

    def do_exit(self, slot, status):
        return self.report(slot, m.SlotReport(slot, self.pids[slot], 0, exit_status=int(status)))

    def do_still(self, slot, age_ms):
        return self.report(slot, m.SlotReport(slot, self.pids[slot], int(age_ms)))

    def report(self, slot, report):
        connection = self.connections[f"supervisor of {slot}"]
        return e.SupervisorReported(connection, m.SupervisorHeartbeat((report,)))

    def do_launch_ended(self, error=None):
        return e.LaunchEnded(f"L{self.launches}", ConnectionLostError(error) if error else None)

    def do_tick(self, ms):
        self.now_ms += int(ms)
        for supervisor in self.dispatcher.resource_manager.supervisors.values():
            supervisor.last_heartbeat_ms = self.now_ms
        return e.Tick()

    @staticmethod
    def execution(job, task):
        vertex, _, subtask = task.partition("/")
        return ExecutionAttemptID(job, 0, vertex, int(subtask))

    # ---- effects

    def show(self, effect):
        match effect:
            case e.ExecutionChanged():
                return ""
            case e.Send(connection, m.OperatorEvent() as event):
                return f"-> {self.names[connection]}: {event.payload!r} for {event.operator_id}"
            case e.Send(connection, m.InterruptSlot(slot, pid)):
                return f"-> {self.names[connection]}: InterruptSlot {slot}, {pid}"
            case e.Send(connection, m.KillSlot(slot, pid, reason)):
                assert pid == self.pids[slot]
                return f"-> {self.names[connection]}: KillSlot {slot}, {reason}"
            case e.Send(connection, m.ReleaseSlot(reason)):
                return f"-> {self.names[connection]}: ReleaseSlot, {reason}"
            case e.Send(connection, m.RegistrationRefused(reason)):
                return f"-> {self.names[connection]}: refused, {reason}"
            case e.Send(connection, message):
                return f"-> {self.names[connection]}: {type(message).__name__} {message.job_id}"
            case e.DeployToSlot(job, _, _, _, _, connection):
                return f"-> {self.names[connection]}: DeployTasks {job}"
            case e.JobStatusChanged(job, status, None):
                return f"job {job} is {status}"
            case e.JobStatusChanged(job, status, error):
                return f"job {job} is {status}: {error.what}" + (f", {error.why}" if error.why else "")
            case e.CloseConnection(connection, reason):
                return f"close {self.names[connection]}: {reason}"
            case e.StartCoordinators(job) | e.CommitSinks(job) | e.AbortSinks(job):
                return f"{type(effect).__name__} {job}"
            case e.Inform(text):
                return f"inform: {text}"
            case e.Warn(text):
                return f"warn: {text}"
        return type(effect).__name__


def answers(text):
    """The script again, with the answers that the cores give now."""
    script, lines, commands, skipping = Script(), [], [], False
    for line in text.splitlines():
        if skipping:
            if line.strip():
                continue
            skipping = False
        if line == "----":
            lines.append(line)
            for command in commands:
                lines += script.run(command)
            commands, skipping = [], True
            continue
        if line.strip() and not line.startswith("#"):
            commands.append(line)
        lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_cores_answer_as_the_script_says(name):
    path = FOLDER / name
    text = path.read_text()
    found = answers(text)
    if os.environ.get("FLINKISH_REWRITE"):
        path.write_text(found)
    else:
        assert found == text
