"""The Spark that carries the slots: take the one that is there, or start a fitting one.

Slots need a ``SparkContext`` only.  A ``SparkSession`` costs seconds more to start, so a job that
never touches a DataFrame goes without; one that does gets its session on top of the same context.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Optional

from flinkish.common.driver_only import check_in_driver
from flinkish.common.notices import notify
from flinkish.errors import ConfigurationError, FlinkishError, ResourceError, UnsupportedSparkError
from spark_plugin.java import find_java
from spark_plugin.master_check import check_master_works, without_parameters
from spark_plugin.spark_errors import fold_spark_error

log = logging.getLogger(__name__)

SPARK_MASTER_KEY = "flinkish.spark.master"
REMOTE_KEY, REMOTE_VARIABLE = "spark.remote", "SPARK_REMOTE"  # Spark's own
#: For a JVM that lives shortly: the quick compiler halves what its start costs (20 to 11 CPU seconds,
#: measured with pyspark 4.3).  Where DataFrame jobs run too, the other one pays off.
QUICK_START = "-XX:TieredStopAtLevel=1"
#: Jobs that carry slots; each launch adds its lease.  Ctrl-C leaves them to the JobManager.
JOB_GROUP_PREFIX = "flinkish-slots-"

_LOCAL = re.compile(r"local\[\s*(\*|\d+)\s*(?:,\s*(\d+)\s*)?\]")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]")
#: Executors of one application start together; one that comes later than this waits for cores.
NEXT_EXECUTOR_S = 10.0
_WAIT_NOTICE_S = 5.0
_EXECUTORS_POLL_S = 0.1
_lock = threading.Lock()


# ---- masters: plain text in, plain data out -------------------------------------------------------


def is_local(master: str) -> bool:
    """Whether driver and tasks share one JVM.

    >>> is_local("local[2]"), is_local("local-cluster[2,1,1024]")
    (True, False)
    """
    return master == "local" or _LOCAL.fullmatch(master) is not None


def is_on_this_machine(master: str) -> bool:
    """Whether all tasks run on the driver's machine."""
    return is_local(master) or _LOCAL_CLUSTER.fullmatch(master) is not None


def choose_master(asked: Optional[str], found: Optional[str], cores: int, tasks: int) -> str:
    """The master of a session that we start.

    Args:
        asked: ``flinkish.spark.master``.
        found: ``spark.master`` as spark-submit or its files say.
        cores: of this machine.
        tasks: Spark tasks that the slots take.
    Returns:
        What was asked for; ``local[*]``, which is also spark-submit's default, becomes as wide as
        the slots need with one more core, so that DataFrame jobs run beside them.

    >>> choose_master(None, "local[*]", cores=2, tasks=3)
    'local[4]'
    >>> choose_master(None, "local[2]", cores=8, tasks=3)
    'local[2]'
    """
    master = asked or found or "local[*]"
    match = _LOCAL.fullmatch(master)
    if match is None or match[1] != "*":
        return master
    threads = max(cores, tasks + 1)
    return f"local[{threads},{match[2]}]" if match[2] else f"local[{threads}]"


def task_slots_of_master(master: str, task_cpus: int, cores: int) -> Optional[int]:
    """Tasks that run at once under ``master``; None where only the running cluster knows.

    >>> task_slots_of_master("local-cluster[2,3,1024]", task_cpus=2, cores=8)
    2
    >>> task_slots_of_master("local[*]", task_cpus=1, cores=8)
    8
    """
    if master == "local":
        return 1 // task_cpus
    if match := _LOCAL.fullmatch(master):
        return (cores if match[1] == "*" else int(match[1])) // task_cpus
    if match := _LOCAL_CLUSTER.fullmatch(master):
        return int(match[1]) * (int(match[2]) // task_cpus)
    return None


def connect_url(configuration: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Optional[str]:
    """The Spark Connect that is asked for: by a master ``sc://...``, by Spark's key ``spark.remote``, else by
    ``SPARK_REMOTE``.

    Returns:
        None: none is; "": this process uses Spark Connect, PySpark may know which.
    Raises:
        ConfigurationError: a master and another Spark Connect are, which PySpark refuses too.

    >>> connect_url({"flinkish.spark.master": "sc://a:15002"}, {"SPARK_REMOTE": "sc://b"})
    'sc://a:15002'
    >>> connect_url({"flinkish.spark.master": "local[2]"}, {}) is None
    True
    """
    master, given = (str(configuration.get(key) or "").strip() for key in (SPARK_MASTER_KEY, REMOTE_KEY))
    if master.startswith("sc://") and given in ("", master):
        return master
    name, remote = (REMOTE_KEY, given) if given else (REMOTE_VARIABLE, environ.get(REMOTE_VARIABLE, ""))
    if master and remote:
        raise ConfigurationError(
            "could not choose between two Sparks",
            where=f"{SPARK_MASTER_KEY} (--master) and {name}",
            why=f"one is {without_parameters(master)}, the other {without_parameters(remote)}",
            do="take one of them away",
        )
    return remote or ("" if "SPARK_CONNECT_MODE_ENABLED" in environ else None)


# ---- contexts and sessions --------------------------------------------------------------------------


def context_of(spark: Any) -> Any:
    """The SparkContext of a session (or of itself).

    Raises:
        UnsupportedSparkError: a Spark Connect session, which has none.
    """
    if is_connect(spark):
        raise UnsupportedSparkError(
            "could not use this Spark session",
            why="it is a Spark Connect session, which has no SparkContext",
            do="make a classic session: spark-submit, or flinkish run",
        )
    return getattr(spark, "sparkContext", spark)


def is_connect(spark: Any) -> bool:
    """Whether it is a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def active_context() -> Optional[Any]:
    """The SparkContext that lives in this process, or None."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    # While it starts it has no `_jsc` yet, and the handler of Ctrl-C may ask.
    return context if getattr(context, "_jsc", None) is not None else None


def active_connect_session() -> Optional[Any]:
    """The Spark Connect session that this process has made, or None."""
    module = sys.modules.get("pyspark.sql.connect.session")  # nobody has made one without it
    if module is None:
        return None
    from pyspark.errors import PySparkRuntimeError

    try:
        return module.SparkSession.active()
    except PySparkRuntimeError:
        return None


def get_or_create_context(tasks_needed: int, configuration: Mapping[str, Any]) -> Any:
    """The active SparkContext, or a new one that has room for the slots.

    Args:
        tasks_needed: Spark tasks that the slots take.
        configuration: of the job; its ``spark.*`` keys go to the context that is started here.
    Raises:
        JavaNotFoundError: no Java, and none is running yet.
        UnsupportedSparkError, ConnectionLostError: of ``check_master_works``.
        ResourceError: Spark did not start for another reason.
    """
    with _lock:
        context = active_context()
        if context is None:
            context = _start_context(tasks_needed, configuration)
            log.info(
                "spark started version=%s master=%s application=%s",
                context.version, context.master, context.applicationId,
            )
        _leave_slots_to_the_job_manager(context)
        return context


def get_or_create(tasks_needed: int, configuration: Mapping[str, Any]) -> Any:
    """The Spark of this process: its Spark Connect session, else its SparkContext, else a new one of what
    ``connect_url`` or ``get_or_create_context`` says.

    Raises:
        ConfigurationError: of ``connect_url``; else as ``get_or_create_context``.
    """
    spark = active_connect_session()
    if spark is None:
        url = connect_url(configuration) if active_context() is None else None
        if url is None:
            return get_or_create_context(tasks_needed, configuration)
        with _lock:
            spark = _start_connect_session(url, configuration)
    context = active_context()
    if context is not None:  # remote("local"): the server is this process
        _leave_slots_to_the_job_manager(context)
    return spark


def _start_connect_session(url: str, configuration: Mapping[str, Any]) -> Any:
    check_in_driver("start Spark")
    given = {key: str(value) for key, value in configuration.items() if key.startswith("spark.")}
    do = "correct the address, sc://HOST:PORT, or the settings that begin with spark."
    try:
        if url.startswith("local"):  # the server is to start here
            find_java()
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        check_master_works(url)
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.config(map=given)
        return (builder.remote(url) if url else builder).getOrCreate()
    except FlinkishError:
        raise
    except Exception as error:
        raise ResourceError(
            "could not start a session of Spark Connect",
            where=without_parameters(url) or "this process",
            why=fold_spark_error(str(error)),
            do="pip install 'flinkish[connect]'" if isinstance(error, ImportError) else do,
        ) from error


def get_or_create_session(tasks_needed: int, configuration: Mapping[str, Any]) -> Any:
    """Like ``get_or_create_context``, as a SparkSession."""
    from pyspark.sql import SparkSession

    get_or_create_context(tasks_needed, configuration)
    return SparkSession.builder.getOrCreate()


def _start_context(tasks_needed: int, configuration: Mapping[str, Any]) -> Any:
    check_in_driver("start Spark")
    try:
        return _create_context(tasks_needed, configuration)
    except FlinkishError:
        raise
    except Exception as error:
        asked = configuration.get(SPARK_MASTER_KEY)
        text = str(error)
        raise ResourceError(
            "could not start Spark",
            where=f"master {asked}" if asked else "this process",
            why="its JVM has ended; what it wrote stands above this" if "JAVA_GATEWAY_EXITED" in text
            else fold_spark_error(text),
            do="correct the master, or the settings that begin with spark.",
        ) from error  # fmt: skip


def _create_context(tasks_needed: int, configuration: Mapping[str, Any]) -> Any:
    from pyspark import SparkConf, SparkContext

    given = {key: str(value) for key, value in configuration.items() if key.startswith("spark.")}
    asked = configuration.get(SPARK_MASTER_KEY)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has started the JVM
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    before_start = SparkConf(loadDefaults=False)
    if not submitted:
        find_java()
        check_master_works(str(asked or ""))
        # Read when the JVM starts, so they cannot wait for the context.
        quiet = Path(__file__).with_name("log4j2-quiet.properties").as_uri()
        options = f"-Dlog4j2.configurationFile={quiet} {given.get('spark.driver.extraJavaOptions', '')}"
        for key, value in given.items():
            before_start.set(key, value)
        before_start.set("spark.driver.extraJavaOptions", options.strip())
        if asked:
            before_start.set("spark.master", str(asked))
    # PySpark 4 imports pandas at its first call and warns of pandas 3; nothing here hands it pandas.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    with _ctrl_c_later():
        _forget_settings_of_the_last_context(given)
        SparkContext._ensure_initialized(conf=before_start)
    conf = SparkConf()  # what spark-submit, its files and PYSPARK_SUBMIT_ARGS say
    for key, value in given.items():
        if submitted or key != "spark.driver.extraJavaOptions":
            conf.set(key, value)
    cores = SparkContext._jvm.java.lang.Runtime.getRuntime().availableProcessors()
    task_cpus = int(conf.get("spark.task.cpus", "1"))
    master = choose_master(asked, conf.get("spark.master", None), cores, tasks_needed * task_cpus)
    conf.setMaster(master)
    if not submitted:
        if conf.get("spark.app.name", "pyspark-shell") == "pyspark-shell":
            conf.setAppName("flinkish")
        _set_defaults(conf, given, master)
    try:
        return SparkContext(conf=conf)
    except KeyboardInterrupt:
        _end_jvm()  # it goes on to make the context, which would be in the way of the next
        raise


#: Of contexts that this process has made: what the JVM was started with stays in its system properties.
_given_to_jvm: set[str] = set()


def _forget_settings_of_the_last_context(given: Mapping[str, str]) -> None:
    """A JVM that has carried a context before has that one's settings as defaults: those that are not ``given``
    now must go."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        for key in sorted(_given_to_jvm - given.keys()):
            SparkContext._jvm.java.lang.System.clearProperty(key)
    _given_to_jvm.clear()
    _given_to_jvm.update(given)


@contextlib.contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """A Ctrl-C takes effect after the block: one while PySpark waits for its new JVM takes the folder from it in
    which it is to say its port, and then that JVM never ends."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    pressed: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda signum, frame: pressed.append((signum, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        before(*pressed[0])


def _set_defaults(conf: Any, given: Mapping[str, str], master: str) -> None:
    """Settings of a context that belongs to us, unless the user has set them."""
    # A stage of slots never ends, so its progress bar would stay on the terminal.
    if "spark.ui.showConsoleProgress" not in given:
        conf.set("spark.ui.showConsoleProgress", "false")
    if is_on_this_machine(master):
        conf.setIfMissing("spark.ui.enabled", "false")
        # Works without a network and with any host name.
        if "SPARK_LOCAL_IP" not in os.environ:
            conf.setIfMissing("spark.driver.host", "127.0.0.1")
            conf.setIfMissing("spark.driver.bindAddress", "127.0.0.1")


def _leave_slots_to_the_job_manager(context: Any) -> None:
    """Make Ctrl-C cancel all Spark jobs but those that carry slots.

    PySpark's own handler cancels every job, which kills slots before ``close()`` of user functions
    could run; the JobManager stops them in order after the KeyboardInterrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    current = signal.getsignal(signal.SIGINT)
    if getattr(current, "__qualname__", "") != "SparkContext._do_init.<locals>.signal_handler":
        return

    def interrupt(signum: int, frame: Any) -> None:
        if active_context() is context:
            cancel_other_jobs(context)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)


def cancel_other_jobs(context: Any) -> None:
    """Cancel each active Spark job that carries no slots."""
    store = context._jsc.sc().statusStore()
    for job_id in context.statusTracker().getActiveJobsIds():
        job = store.job(job_id)
        # Spark Connect, whose server may be this process, has the name in a tag.
        if JOB_GROUP_PREFIX not in f"{job.jobGroup().toString()} {job.jobTags().toString()}":
            context._jsc.sc().cancelJob(job_id)


# ---- what a context can carry -----------------------------------------------------------------------


def task_slots(context: Any) -> int:
    """Tasks that the cluster runs at once, those in use included."""
    task_cpus = int(context.getConf().get("spark.task.cpus", "1"))
    cores = context._jvm.java.lang.Runtime.getRuntime().availableProcessors()
    counted = task_slots_of_master(context.master, task_cpus, cores)
    return registered_task_slots(context) if counted is None else counted


def registered_task_slots(context: Any) -> int:
    """Tasks that the executors which have registered run at once: what Spark checks a barrier stage
    against."""
    scala_context = context._jsc.sc()
    profile = scala_context.resourceProfileManager().defaultResourceProfile()
    return scala_context.maxNumConcurrentTasks(profile)


def wait_for_task_slots(
    context: Any, wanted: Optional[int], timeout_ms: int, next_executor_s: Optional[float] = None
) -> None:
    """Wait until executors for ``wanted`` tasks have registered; None: for as many as Spark was asked for.
    Returns earlier when the cluster seems to have no more: none at all after ``timeout_ms``, no further one
    for ``next_executor_s`` (None: ``NEXT_EXECUTOR_S``).

    An application is up before its executors are, and what a standalone master, YARN or Kubernetes will
    grant is known only when they register.  Where the master's text says how many there will be, the
    JobManager waits, not we."""
    settings = context.getConf()
    task_cpus = int(settings.get("spark.task.cpus", "1"))
    if task_slots_of_master(context.master, task_cpus, cores=1) is not None:
        return
    if wanted is None:
        wanted = task_slots_asked_for(context.master, task_cpus, settings.get)
    wait_until_registered(
        lambda: registered_task_slots(context),
        sys.maxsize if wanted is None else wanted,
        timeout_ms,
        f"master {context.master}",
        lambda: (NEXT_EXECUTOR_S if next_executor_s is None else next_executor_s) - _newest_executor_age_s(context),
    )


def task_slots_asked_for(
    master: str, task_cpus: int, setting: Callable[[str, Optional[str]], Optional[str]]
) -> Optional[int]:
    """Tasks that all executors would run at once if the cluster gave as many as its settings ask for; None:
    they say no number, so a standalone cluster gives all it has.

    >>> task_slots_asked_for("spark://h:7077", 2, {"spark.cores.max": "6"}.get)
    3
    >>> task_slots_asked_for("yarn", 1, {"spark.executor.instances": "3", "spark.executor.cores": "2"}.get)
    6
    """
    if master.startswith("spark:"):
        cores = setting("spark.cores.max", None)
        return int(cores) // task_cpus if cores else None
    executors = int(setting("spark.executor.instances", None) or 2)
    return executors * (int(setting("spark.executor.cores", None) or 1) // task_cpus)


def wait_until_registered(
    count: Callable[[], int],
    wanted: int,
    timeout_ms: int,
    where: str,
    next_executor_s: Callable[[], float] = lambda: NEXT_EXECUTOR_S,
) -> None:
    """As ``wait_for_task_slots``; ``count`` says for how many tasks executors have registered, ``where`` is
    for the user, ``next_executor_s`` is asked when one has come."""
    began_s, told, seen = time.monotonic(), False, 0
    deadline_s = began_s + timeout_ms / 1000
    while (registered := count()) < wanted and (now_s := time.monotonic()) < deadline_s:
        if registered > seen:
            seen, deadline_s = registered, now_s + next_executor_s()
        elif not told and now_s - began_s > _WAIT_NOTICE_S:
            told = True
            asked = f"for {wanted} tasks" if wanted < sys.maxsize else "of all workers"
            notify(f"Waiting for executors {asked}, have them for {registered} ({where})", unheard=log.warning)
        time.sleep(_EXECUTORS_POLL_S)


def _newest_executor_age_s(context: Any) -> float:
    known = context._jsc.sc().statusStore().executorList(True)
    executors = [known.apply(index) for index in range(known.size())]
    added_ms = [executor.addTime().getTime() for executor in executors if executor.id() != "driver"]
    return time.time() - max(added_ms) / 1000 if added_ms else 0.0  # 0: the list is a moment late


@dataclass(frozen=True)
class RunningStage:
    stage_id: int
    job_group: str
    description: str
    tasks: int  # that run now


def running_stages(context: Any) -> list[RunningStage]:
    """Stages that run or wait for cores, from the scheduler itself: what the status tracker says of
    running tasks can be ten seconds old."""
    stages = []
    for manager in _task_set_managers(context._jsc.sc().taskScheduler().rootPool()):
        task_set = manager.taskSet()
        properties = task_set.properties()
        group = properties.getProperty("spark.jobGroup.id") if properties is not None else None
        text = properties.getProperty("spark.job.description") if properties is not None else None
        stage_id = task_set.stageId()
        if not text:
            info = context.statusTracker().getStageInfo(stage_id)
            text = info.name if info is not None else "a job without a name"
        stages.append(RunningStage(stage_id, group or "", text, manager.runningTasks()))
    return stages


def _task_set_managers(schedulable: Any) -> Iterator[Any]:
    queue = schedulable.schedulableQueue()
    if queue is None:
        yield schedulable
    else:
        for inner in queue.toArray():
            yield from _task_set_managers(inner)


def advertised_hosts(context: Any) -> list[str]:
    """Where executors find the driver, likeliest first."""
    if is_on_this_machine(context.master):
        return ["127.0.0.1"]
    conf = context.getConf()
    hosts = [conf.get("spark.driver.host"), conf.get("spark.driver.bindAddress", None)]
    return list(dict.fromkeys(host for host in hosts if host and host != "0.0.0.0"))


def bind_host(context: Any) -> str:
    """The address of this machine that those hosts lead to."""
    if is_on_this_machine(context.master):
        return "127.0.0.1"
    conf = context.getConf()
    return conf.get("spark.driver.bindAddress", None) or conf.get("spark.driver.host")


# ---- the end ------------------------------------------------------------------------------------------


def shut_down(timeout_s: float = 10) -> None:
    """Stop the active SparkContext and wait until its JVM has ended, when this process started it."""
    context = active_context()
    if context is None:
        return
    context.stop()
    _end_jvm(timeout_s)


def _end_jvm(timeout_s: float = 10) -> None:
    """If this process started it, so that the next context gets a new one."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    process.stdin.close()  # the JVM ends with it
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        log.warning("the JVM of Spark did not end, killing it pid=%d", process.pid)
        process.kill()
        process.wait(timeout_s)
