"""``flinkish doctor``: tries, in seconds, what the current Spark allows, and says what will not work.

    from spark_plugin import doctor
    doctor.examine(spark)          # in a notebook: findings that show as text

The examination starts a few tasks where slots would live and lets them do what slots do: reach the
driver, reach each other, write to the disk and to the checkpoint storage.  What it finds is judged in
``doctor_findings``; what runs in the tasks is ``doctor_probe``.  It leaves nothing behind and ends in
time whatever hangs: tasks have a deadline of their own, what may hang in a library runs in a child
process, and the Spark job is cancelled at the end.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import logging
import os
import platform
import secrets
import selectors
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional

import flinkish
from flinkish.common import options
from flinkish.common.configuration_check import look_for_mistakes
from flinkish.connectors.files.file_system import absolute_uri
from flinkish.errors import ConfigurationError, FlinkishError, JavaNotFoundError
from spark_plugin import doctor_probe, session
from spark_plugin.classic_application import ClassicApplication
from spark_plugin.connect_application import stop_session
from spark_plugin.doctor_findings import DriverFacts, Finding, Findings, judge, spark_kind
from spark_plugin.java import find_java
from spark_plugin.launch_mode import create_launcher
from spark_plugin.launcher import SparkLauncher, application_of, explain_failure
from spark_plugin.spark_application import SparkApplication, TaskMain

__all__ = ["examine", "examine_master"]

log = logging.getLogger(__name__)

BUDGET_S = 10.0
_CONNECT_TIMEOUT_S = 2.0
# Tasks that cannot reach the driver are not waited for longer than their attempt takes.
_MISSING_TASKS_S = _CONNECT_TIMEOUT_S + 0.5
_END_S = 2.0  # of the budget, for tasks to end and reports to come
_REMOVE_S = 30.0
_START_S = 120.0
_EXECUTORS_S = 30.0
_NEXT_EXECUTOR_S = 3.0  # a busy cluster grants them later, then fewer are tried
_TASKS_WHERE_UNKNOWN, _TASKS_MIN, _TASKS_MAX = 2, 8, 64
_POLL_S = 0.05
_MODULES = ("flinkish", "pyarrow")
_MIB = 1 << 20


def examine(
    spark: Any, configuration: Optional[Mapping[str, Any]] = None, timeout_s: float = BUDGET_S
) -> Findings:
    """Examine a Spark that is up.

    Args:
        spark: a SparkSession (classic or Connect) or a SparkContext.
        configuration: of the jobs that will run (launch mode, checkpoint folder, slots per task).
        timeout_s: tasks that Spark has not started by then count as failed, and so does a check inside
            a task that takes longer.  On a quiet machine an examination takes two to five seconds; what
            hangs in several places costs up to twice this time, and half a minute more where dynamic allocation
            starts executors for the tasks.
    """
    settings = _settings(configuration)
    mistakes, warnings = look_for_mistakes(settings, strangers=True)
    if mistakes:
        return Findings.of_errors("settings", mistakes)
    try:
        application = application_of(spark)
    except FlinkishError as error:
        return Findings.of_errors("Spark", [error])
    launcher, refusal = _launcher(application, settings)
    if refusal is not None and application.allocates_dynamically():
        launcher = None  # what stands in would only wait for executors
    tasks = 0 if launcher is None else _tasks_to_start(application, timeout_s / 3)
    wait_s = timeout_s + (_EXECUTORS_S if application.allocates_dynamically() else 0)
    facts = replace(
        _driver_facts(application, settings),
        settings_warnings=warnings,
        refusal=refusal,
        budget_s=wait_s,
        asked=tasks,
    )
    source, token = inspect.getsource(doctor_probe), secrets.token_hex(16)
    storage = _CheckpointStorage(source, facts.storage_uri, token, timeout_s / 2)
    try:
        facts = replace(facts, storage_failure=storage.prepare())
        if launcher is None or not tasks:
            return judge(facts, [])
        with _Meeting(launcher.bind_host(), token, tasks) as meeting:
            addresses = [(host, meeting.port) for host in launcher.advertised_hosts()]
            assignment = {
                "token": token,
                "driver_addresses": addresses,
                "budget_s": timeout_s - _END_S,
                "connect_timeout_s": _CONNECT_TIMEOUT_S,
                "sys_path": _paths(),
                "modules": _MODULES,
                "local_folders": [None],
                "storage": storage.assignment(),
                "source": source,
            }
            job = _Job(application, assignment, tasks, launcher.together)
            deadline_s = time.monotonic() + wait_s
            try:
                meeting.hold(job.ended, deadline_s)
                if not meeting.over and application.runs_tasks(job.name):  # Python starts slowly there
                    meeting.hold(job.ended, deadline_s + timeout_s)
            finally:
                job.end()
        facts = replace(
            facts,
            barrier=launcher.together,
            together_ms=meeting.together_ms,
            job_failure=job.failure,
            addresses=[f"{host}:{port}" for host, port in addresses],
        )
        reports = {**job.reports, **meeting.reports}
        return judge(facts, [reports[index] for index in sorted(reports)])
    finally:
        storage.remove()


def examine_master(settings: Mapping[str, Any], timeout_s: float = BUDGET_S) -> Findings:
    """Start Spark as a job with these settings would (a session, where it is Spark Connect), examine it, and stop it.

    A Spark that cannot be started is a finding, not an error.

    Raises:
        ConfigurationError: the configuration file is not there, or no YAML.
    """
    settings = _settings(settings)
    mistakes, _ = look_for_mistakes(settings)
    if mistakes:
        return Findings.of_errors("settings", mistakes)
    found: dict[str, Finding] = {}
    try:
        connect = session.connect_url(settings) is not None
        if not connect:
            java = find_java()
            found["Java"] = Finding("Java", "ok", f"Java {java.version} at {java.path}")
    except ConfigurationError as error:
        return Findings.of_errors("settings", [error])
    except JavaNotFoundError as error:
        return Findings.of_errors("Java", [error])
    spark = None
    try:
        spark = _start_spark(settings if connect else _with_quick_start(settings))
        if spark is None:
            late = Finding("Spark", "fail", f"it did not start within {_START_S:.0f} s", "look at Spark's log")
            return Findings((*found.values(), late))
        if not session.is_connect(spark):
            _wait_for_first_executors(ClassicApplication(spark))
        findings = examine(spark, settings, timeout_s)
    except FlinkishError as error:
        return Findings((*found.values(), *Findings.of_errors("Spark", [error]).lines))
    finally:
        if session.is_connect(spark):
            stop_session(spark)
        session.shut_down()
    return Findings(tuple(found.get(line.check, line) for line in findings.lines))


def _wait_for_first_executors(application: ClassicApplication) -> None:
    if application.allocates_dynamically():
        return  # they come when tasks wait
    context = application.context
    session.wait_for_task_slots(context, None, int(_EXECUTORS_S * 1000), _NEXT_EXECUTOR_S)
    _executors_come(application, min(_TASKS_MIN, session.task_slots(context)), _EXECUTORS_S)


def _with_quick_start(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The examination ends before the code that a JVM compiles thoroughly is run often."""
    driver, executor = "spark.driver.extraJavaOptions", "spark.executor.defaultJavaOptions"
    return {
        **settings,
        driver: f"{session.QUICK_START} {settings.get(driver, '')}".strip(),
        executor: settings.get(executor, session.QUICK_START),
    }


def _start_spark(settings: Mapping[str, Any]) -> Any:
    """The SparkContext or Spark Connect session; None: it did not start in time.  Ctrl-C ends the wait."""
    result: list[Any] = []

    def start() -> None:
        try:
            result.append(session.get_or_create(2, settings))
        except BaseException as error:  # raised in the thread that waits
            result.append(error)

    thread = threading.Thread(target=start, name="flinkish doctor starts Spark", daemon=True)
    thread.start()
    thread.join(_START_S)
    if result and isinstance(result[0], BaseException):
        raise result[0]
    return result[0] if result else None


# ---- what the driver knows ----------------------------------------------------------------------------


def _settings(configuration: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    from flinkish.datastream import StreamExecutionEnvironment

    env = StreamExecutionEnvironment.get_execution_environment(configuration or {})
    return env.get_configuration().to_dict()


def _launcher(
    application: SparkApplication, settings: Mapping[str, Any]
) -> tuple[Optional[SparkLauncher], Optional[tuple[str, str, str]]]:
    """What would launch the slots, and why it refuses; then the other launch mode stands in, if that is
    allowed, so that the other checks can be tried."""
    refusal: Optional[tuple[str, str, str]] = None
    for mode in (options.read(settings, options.LAUNCH_MODE), "independent"):
        try:
            return create_launcher(application, 0, {**settings, options.LAUNCH_MODE.key: mode}), refusal
        except FlinkishError as error:
            refusal = refusal or (error.what, error.why, error.do)
    return None, refusal


def _driver_facts(application: SparkApplication, settings: Mapping[str, Any]) -> DriverFacts:
    uri = options.read(settings, options.CHECKPOINT_DIRECTORY)
    connect = not isinstance(application, ClassicApplication)
    facts = DriverFacts(
        spark_version=importlib.metadata.version("pyspark"),
        master=application.master,
        settings=len(settings),
        kind=spark_kind(application.master, connect, _tags(application), os.environ),
        python=platform.python_version(),
        modules={name: doctor_probe.version_of(name, [*sys.path, *_paths()]) for name in _MODULES},
        slots_total=None if application.allocates_dynamically() else application.task_slots(),
        slots_per_task=options.read(settings, options.NUM_TASK_SLOTS),
        storage_uri=None if uri is None else absolute_uri(uri),
        memory_overhead_bytes=_memory_overhead_bytes(application),
    )
    if not isinstance(application, ClassicApplication):
        return facts
    context = application.context
    running = [stage for stage in session.running_stages(context) if stage.tasks]
    return replace(
        facts,
        spark_version=context.version,
        java=f"Java {context._jvm.java.lang.System.getProperty('java.version')} runs the driver",
        slots_busy=sum(stage.tasks for stage in running),
        holders=[f'stage {stage.stage_id} of "{stage.description}" runs {stage.tasks}' for stage in running],
        tasks_per_executor=-(-session.registered_task_slots(context) // max(1, _executors(context))),
    )


def _tags(application: SparkApplication) -> dict[str, str]:
    """Those settings by which Databricks is known."""
    keys = [f"spark.databricks.clusterUsageTags.{name}" for name in ("clusterId", "dataSecurityMode")]
    return {key: value for key in keys if (value := application.setting(key))}


def _executors(context: Any) -> int:
    """Without the driver, except where it runs the tasks itself."""
    known = context._jsc.sc().getExecutorMemoryStatus().size()
    return known if session.is_local(context.master) else known - 1


def _memory_overhead_bytes(application: SparkApplication) -> Optional[int]:
    """What a container of the executor has beside the heap; None where nothing limits it."""
    if not application.master.startswith(("yarn", "k8s:")):
        return None
    heap_mib = _mebibytes(application.setting("spark.executor.memory", "1g"))
    given = application.setting("spark.executor.memoryOverhead")
    if given:
        return _mebibytes(given) * _MIB
    factor = float(application.setting("spark.executor.memoryOverheadFactor", "0.1"))
    return max(384, int(heap_mib * factor)) * _MIB


def _mebibytes(text: str) -> int:
    """A memory size in Spark's notation; without a unit it is MiB.

    >>> _mebibytes("2g"), _mebibytes("384"), _mebibytes("512mb")
    (2048, 384, 512)
    """
    digits = text.strip().lower().rstrip("kmgtb")
    unit = text.strip().lower()[len(digits) :].rstrip("b") or "m"
    return int(float(digits) * {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024**2}[unit])


def _paths() -> list[str]:
    """Where slots look for modules beside what their Python has; see ``launcher``."""
    return [str(Path(flinkish.__file__).resolve().parent.parent)]


def _tasks_to_start(application: SparkApplication, timeout_s: float) -> int:
    """One for each executor at least, as far as cores are free.

    Waits some time until executors have registered, because Spark lets a barrier stage that comes too
    early wait long; where not all come, one task must do."""
    total = None if application.allocates_dynamically() else application.task_slots()
    wanted = _TASKS_WHERE_UNKNOWN
    if total is not None:
        wanted = min(total, _TASKS_MIN)
        if isinstance(application, ClassicApplication):
            busy = sum(stage.tasks for stage in session.running_stages(application.context))
            free = max(0, total - busy)
            wanted = min(free, _TASKS_MAX, max(_TASKS_MIN, _executors(application.context)))
    return wanted if _executors_come(application, wanted, timeout_s) else 1


def _executors_come(application: SparkApplication, tasks: int, timeout_s: float) -> bool:
    """Wait until executors for so many tasks have registered.  Those of dynamic allocation come when the
    tasks wait."""
    if application.allocates_dynamically():
        return True
    give_up = threading.Event()
    timer = threading.Timer(timeout_s, give_up.set)
    timer.start()
    try:
        return application.wait_for_executors(tasks, give_up)
    finally:
        timer.cancel()
        timer.join()


class _CheckpointStorage:
    """The driver's part of the check of checkpoint storage."""

    def __init__(self, source: str, uri: Optional[str], token: str, timeout_s: float):
        self._source, self._uri, self._timeout_s = source, uri, timeout_s
        self._folder = f".flinkish-doctor-{token[:12]}"
        self._made: Optional[str] = None

    def prepare(self) -> str:
        """The failure, "" when there was none."""
        if self._uri is None:
            return ""
        answer = self._run("prepare", self._timeout_s)
        self._made = answer.get("made")
        return answer["failure"]

    def assignment(self) -> Optional[dict]:
        return None if self._made is None else {"uri": self._uri, "folder": self._folder}

    def remove(self) -> None:
        if self._made is not None:
            answer = self._run("remove", _REMOVE_S, made=self._made)
            if answer["failure"]:
                log.warning(
                    "could not remove what the check of the storage wrote uri=%s folder=%s reason=%r",
                    self._uri, self._folder, answer["failure"],
                )  # fmt: skip

    def _run(self, action: str, timeout_s: float, **more: Any) -> dict:
        arguments = {"action": action, "uri": self._uri, "folder": self._folder, **more}
        return doctor_probe.run_storage_process(self._source, arguments, timeout_s)


# ---- the tasks ------------------------------------------------------------------------------------------


class _Job:
    """The Spark job of the examination, in a thread of its own."""

    def __init__(self, application: SparkApplication, assignment: dict, tasks: int, together: bool):
        self.reports: dict[int, dict] = {}
        self.failure = ""
        self.ended = threading.Event()
        self.name = f"flinkish-doctor-{assignment['token'][:12]}"
        self._application, self._cancelled = application, False
        self._thread = threading.Thread(
            target=self._run, args=(assignment, tasks, together), name=self.name, daemon=True
        )
        self._thread.start()

    def _run(self, assignment: dict, tasks: int, together: bool) -> None:
        application = self._application
        try:
            main = _task_main(assignment)
            for index, report, _ in application.run_tasks(self.name, "flinkish doctor", tasks, main, together):
                self.reports[index] = json.loads(report)
        except Exception as error:  # a finding
            if not self._cancelled:
                reason = explain_failure(str(error), application)
                self.failure = f"{reason.what}: {reason.why}"
        finally:
            self.ended.set()

    def end(self) -> None:
        """Wait a little for it, then cancel it."""
        if not self.ended.wait(_END_S):
            self._cancelled = True
            self._application.cancel(self.name)
            self.ended.wait(_END_S)


def _task_main(assignment: dict) -> TaskMain:
    text = json.dumps(assignment)

    def task_main() -> Iterator[tuple[int, str, bool]]:
        """Travels by value, with the text of the module, so it needs no flinkish there."""
        import json

        from pyspark import TaskContext

        task = json.loads(text)
        index = TaskContext.get().partitionId()
        namespace = {"__name__": "doctor_probe"}
        exec(compile(task["source"], "doctor_probe.py", "exec"), namespace)
        yield index, json.dumps(namespace["probe"]({**task, "index": index})), False

    return task_main


class _Meeting:
    """Where the tasks report: a port that is open during the examination; see ``doctor_probe``."""

    def __init__(self, host: str, token: str, expected: int):
        self.reports: dict[int, dict] = {}
        self.together_ms: Optional[int] = None
        self.over = False
        self._token, self._expected = token, expected
        self._members: dict[socket.socket, int] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._data: dict[socket.socket, bytearray] = {}
        self._introduced = False
        self._began_s = time.monotonic()
        self._first_s: Optional[float] = None
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> "_Meeting":
        return self

    def __exit__(self, *_: Any) -> None:
        for sock in list(self._data):
            self._close(sock)
        self._selector.close()
        self._listener.close()

    def hold(self, job_ended: threading.Event, deadline_s: float) -> None:
        """Until each task that has come has reported, or nobody will come any more: then it is over."""
        while time.monotonic() < deadline_s:
            ended = job_ended.is_set()  # before the look at the sockets: what a task sent is there
            for key, _ in self._selector.select(_POLL_S):
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._receive(key.fileobj)
            if not self._introduced and (ended or self._all_here()):
                self._introduced = True
                for member in list(self._members):
                    self._introduce(member)
            if self._introduced and set(self._members.values()) <= set(self.reports):
                for member in list(self._members):
                    self._send(member, {})
                self.over = True
                return

    def _all_here(self) -> bool:
        if len(self._members) == self._expected:
            self.together_ms = int((time.monotonic() - self._began_s) * 1000)
            return True
        return self._first_s is not None and time.monotonic() - self._first_s > _MISSING_TASKS_S

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        if len(self._data) > self._expected + _TASKS_MAX:
            sock.close()
            return
        sock.setblocking(False)
        self._data[sock] = bytearray()
        self._selector.register(sock, selectors.EVENT_READ)

    def _receive(self, sock: Any) -> None:
        data = self._data[sock]
        try:
            part = sock.recv(65536)
            data += part
            if not part or len(data) > doctor_probe.LINE_BYTES_MAX:
                raise doctor_probe.ProtocolError("closed, or too long")
            while b"\n" in data:
                line, _, rest = bytes(data).partition(b"\n")
                data[:] = rest
                self._take(sock, doctor_probe.parse_line(line, self._token))
        except (OSError, doctor_probe.ProtocolError) as error:
            log.info("the doctor's port dropped a connection reason=%r", str(error))
            self._close(sock)

    def _take(self, sock: socket.socket, message: dict) -> None:
        if "report" in message:
            self.reports[message["report"]["index"]] = message["report"]
            return
        self._send(sock, {"time_ms": time.time() * 1000})
        self._members[sock] = message["index"]
        self._addresses[message["index"]] = message["address"]
        self._first_s = self._first_s or time.monotonic()
        if self._introduced:
            self._introduce(sock)

    def _introduce(self, sock: socket.socket) -> None:
        peers = [{"index": index, "address": address} for index, address in sorted(self._addresses.items())]
        self._send(sock, {"peers": peers})

    def _send(self, sock: socket.socket, message: dict) -> None:
        try:
            doctor_probe.send_line(sock, self._token, message)
        except OSError:  # also a full buffer: a task that reads nothing
            self._close(sock)

    def _close(self, sock: socket.socket) -> None:
        if self._data.pop(sock, None) is not None:
            self._selector.unregister(sock)
        self._members.pop(sock, None)
        sock.close()
