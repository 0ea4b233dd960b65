"""The Spark that carries the slots: take the one that is there, or start a fitting one.

Slots need a ``SparkContext`` only.  A ``SparkSession`` costs seconds more to start, so a job that
never touches a DataFrame goes without; one that does gets its session on top of the same context.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional

from flinkish.errors import UnsupportedSparkError
from spark_plugin.java import find_java

log = logging.getLogger(__name__)

SPARK_MASTER_KEY = "flinkish.spark.master"
#: Jobs that carry slots; each launch adds its lease.  Ctrl-C leaves them to the JobManager.
JOB_GROUP_PREFIX = "flinkish-slots-"

_LOCAL = re.compile(r"local\[\s*(\*|\d+)\s*(?:,\s*(\d+)\s*)?\]")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]")
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


# ---- contexts and sessions --------------------------------------------------------------------------


def context_of(spark: Any) -> Any:
    """The SparkContext of a session (or of itself).

    Raises:
        UnsupportedSparkError: a Spark Connect session, which has none.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise _connect_is_refused()
    return getattr(spark, "sparkContext", spark)


def active_context() -> Optional[Any]:
    """The SparkContext that lives in this process, or None."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    return context if context is not None and context._jsc is not None else None


def get_or_create_context(tasks_needed: int, configuration: Mapping[str, Any]) -> Any:
    """The active SparkContext, or a new one that has room for the slots.

    Args:
        tasks_needed: Spark tasks that the slots take.
        configuration: of the job; its ``spark.*`` keys go to the context that is started here.
    Raises:
        JavaNotFoundError: no Java, and none is running yet.
        UnsupportedSparkError: the process talks to Spark through Spark Connect.
    """
    with _lock:
        context = active_context()
        if context is None:
            _refuse_connect()
            context = _create_context(tasks_needed, configuration)
            log.info(
                "spark started version=%s master=%s application=%s",
                context.version, context.master, context.applicationId,
            )
        _leave_slots_to_the_job_manager(context)
        return context


def get_or_create_session(tasks_needed: int, configuration: Mapping[str, Any]) -> Any:
    """Like ``get_or_create_context``, as a SparkSession."""
    from pyspark.sql import SparkSession

    get_or_create_context(tasks_needed, configuration)
    return SparkSession.builder.getOrCreate()


def _create_context(tasks_needed: int, configuration: Mapping[str, Any]) -> Any:
    from pyspark import SparkConf, SparkContext

    given = {key: str(value) for key, value in configuration.items() if key.startswith("spark.")}
    asked = configuration.get(SPARK_MASTER_KEY)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has started the JVM
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    before_start = SparkConf(loadDefaults=False)
    if not submitted:
        find_java()
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
    return SparkContext(conf=conf)


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


def _refuse_connect() -> None:
    if "SPARK_REMOTE" in os.environ or "SPARK_CONNECT_MODE_ENABLED" in os.environ:
        raise _connect_is_refused()


def _connect_is_refused() -> UnsupportedSparkError:
    return UnsupportedSparkError(
        "could not start slots in this Spark session",
        why="it is a Spark Connect session; the JobManager must live in the driver",
        do="start the job with spark-submit, or with flinkish run",
    )


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
        group = store.job(job_id).jobGroup()
        if not (group.isDefined() and group.get().startswith(JOB_GROUP_PREFIX)):
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


def check_barrier_allowed(context: Any) -> None:
    """Refuse what cannot go with a stage whose tasks start together and never end.

    Raises:
        UnsupportedSparkError: dynamic allocation or speculation is on.
    """
    if is_local(context.master):  # Spark itself ignores both there
        return
    conf = context.getConf()
    for key, name in (
        ("spark.dynamicAllocation.enabled", "dynamic allocation"),
        ("spark.speculation", "speculation"),
    ):
        if conf.get(key, "false").lower() == "true":
            raise UnsupportedSparkError(
                f"could not start slots with {name}",
                where=f"Spark application {context.applicationId}, master {context.master}",
                why=f"{key} is true, and Spark runs no barrier stage beside it"
                if name == "dynamic allocation"
                else f"{key} is true, and Spark would start copies of slots that run long",
                do=f"start Spark with --conf {key}=false",
            )


# ---- the end ------------------------------------------------------------------------------------------


def shut_down(timeout_s: float = 10) -> None:
    """Stop the active SparkContext and wait until its JVM has ended, when this process started it."""
    context = active_context()
    if context is None:
        return
    gateway = context._gateway
    context.stop()
    process = getattr(gateway, "proc", None)
    if process is not None:
        gateway.shutdown()
        process.stdin.close()  # the JVM ends with it
        process.wait(timeout_s)
