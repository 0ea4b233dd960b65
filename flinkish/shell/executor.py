"""From a StreamGraph to a running job: which cluster, how many slots, and who cleans up.

    execution.target     where slots run                          they live
    spark-application    tasks of the Spark application           for this one job
    spark-session        tasks of the Spark application           until Spark stops or the process ends
    mini-cluster         processes of this machine, no JVM        for this one job

An explicit cluster (``MiniCluster``, ``SessionCluster``) goes before the target.  What is wrong with
the job itself is found before anything is launched.  With high availability (``high_availability``) a driver waits
here while another one leads.
"""

from __future__ import annotations

import secrets
import threading
from typing import Any, Mapping, Optional, Protocol

from flinkish.common import options
from flinkish.common.job_client import JobClient
from flinkish.common.notices import notify
from flinkish.errors import NotEnoughSlotsError
from flinkish.graph.execution_graph import slots_needed
from flinkish.graph.job_graph_generator import create_job_graph
from flinkish.graph.stream_graph import StreamGraph
from flinkish.jobmanager.launcher import Launcher
from flinkish.shell.high_availability import EndedJob, is_enabled, lead, next_job_id
from flinkish.shell.job_manager import JobManager
from flinkish.shell.job_runtime import JobRuntime
from flinkish.shell.local_launcher import LocalLauncher, local_configuration

_sessions: dict[str, Any] = {}  # SessionClusters by the identity of their Spark application
_sessions_lock = threading.Lock()


class Cluster(Protocol):
    """Slots that stay up for several jobs."""

    def submit(
        self, stream_graph: StreamGraph, configuration: Optional[Mapping[str, Any]] = None
    ) -> JobClient: ...


def execute_async(
    stream_graph: StreamGraph,
    configuration: Mapping[str, Any],
    spark: Any = None,
    cluster: Optional[Cluster] = None,
) -> JobClient:
    """Start a job and return at once.

    Args:
        configuration: the environment's; picks the cluster and sets its timeouts.
        spark: a SparkSession (classic or Connect) or SparkContext; None: the active one, or a new one.
    Raises:
        InvalidJobError: the job cannot run as it is.
        NotEnoughSlotsError: the cluster has fewer slots than the job needs.
        UnsupportedSparkError, JavaNotFoundError: there is no Spark that could carry it.
    """
    if cluster is not None:
        return cluster.submit(stream_graph, configuration)
    runtime = prepare(stream_graph)
    if isinstance(runtime, EndedJob):
        return JobClient(runtime)
    try:
        try:
            return _submit(runtime, configuration, spark)
        except NotEnoughSlotsError as error:
            programmed = None if runtime.led is None else runtime.led.with_parallelism_of_program(error)
            if programmed is None:
                raise
            return _submit(JobRuntime(programmed, runtime.led), configuration, spark)
    except BaseException:
        runtime.withdraw()
        raise


def _submit(runtime: JobRuntime, configuration: Mapping[str, Any], spark: Any) -> JobClient:
    needed = slots_needed(runtime.job_graph)
    target = options.read(configuration, options.EXECUTION_TARGET)
    if target == "spark-session":
        cluster = _session_cluster(needed, configuration, spark)
        return JobClient(cluster.job_manager.submit(runtime))
    launcher: Launcher
    if target == "mini-cluster":
        slots = max(needed, options.read(configuration, options.NUM_TASK_SLOTS))
        launcher, configuration = LocalLauncher(slots), local_configuration(slots, configuration)
    else:
        launcher = _spark_launcher(needed, configuration, spark)
        slots = _slots_of(launcher, needed, configuration)
    manager = JobManager(launcher, slots, configuration, application=True)
    try:
        manager.start()
        return JobClient(manager.submit(runtime))
    except BaseException:  # a Ctrl-C too: only its job would end it
        manager.close()
        raise


def _slots_of(launcher: Launcher, needed: int, configuration: Mapping[str, Any]) -> int:
    """Slots for an application: what its job needs; in reactive mode all but those of one task, which stays free for
    DataFrame jobs."""
    capacity = launcher.capacity()
    if options.read(configuration, options.SCHEDULER_MODE) is None or capacity is None:
        return needed
    return max(min(needed, capacity), capacity - options.read(configuration, options.NUM_TASK_SLOTS))


def prepare(stream_graph: StreamGraph, slots: Optional[int] = None) -> "JobRuntime | EndedJob":
    """What can be checked and made of a job without a cluster.  With high availability it waits until this driver
    leads; an EndedJob is over already.  ``slots``: that there are at most."""
    if not is_enabled(stream_graph.configuration):
        return JobRuntime(create_job_graph(stream_graph))
    job_id = next_job_id(stream_graph.job_name, stream_graph.configuration)
    job_graph = create_job_graph(stream_graph, job_id)
    led = lead(job_graph, secrets.token_hex(8))
    if isinstance(led, EndedJob):
        return led
    try:
        job_graph = led.with_parallelism_of_record(job_graph)
        needed = slots_needed(job_graph)
        if slots is not None and needed > slots:
            why = f"{needed} slots are needed, the cluster has {slots}"
            job_graph = led.with_parallelism_of_program(NotEnoughSlotsError("", why=why)) or job_graph
        return JobRuntime(job_graph, led)
    except BaseException:
        led.leadership.resign()
        raise


def _spark_launcher(needed: int, configuration: Mapping[str, Any], spark: Any) -> Launcher:
    # Only here, so that jobs on local processes need no pyspark.
    from spark_plugin.launch_mode import create_launcher

    if spark is None:
        spark = _spark(needed, configuration)
    return create_launcher(spark, needed, configuration)


def _session_cluster(needed: int, configuration: Mapping[str, Any], spark: Any) -> Any:
    """The SessionCluster of the Spark application; the first job starts it.

    It takes all task slots but one, which stays free for DataFrame jobs, and never fewer than that
    first job needs."""
    from spark_plugin.launch_mode import create_launcher
    from spark_plugin.launcher import application_of
    from spark_plugin.session_cluster import SessionCluster

    with _sessions_lock:
        spark = spark if spark is not None else _spark(needed, configuration)
        application = application_of(spark)
        cluster = _sessions.get(application.identity)
        if cluster is None or cluster.job_manager.closed:
            per_task = options.read(configuration, options.NUM_TASK_SLOTS)
            launcher = create_launcher(application, needed, configuration)
            if not application.allocates_dynamically():
                timeout_ms = options.read(configuration, options.SLOT_REQUEST_TIMEOUT)
                application.wait_for_task_slots(None, timeout_ms)
            capacity = launcher.capacity()
            slots = needed if capacity is None else max(needed, capacity - per_task)
            cluster = SessionCluster(spark, slots, configuration)
            _sessions[application.identity] = cluster.start()
        return cluster


def _spark(needed: int, configuration: Mapping[str, Any]) -> Any:
    from spark_plugin.session import active_connect_session, active_context, get_or_create

    if active_connect_session() is None and active_context() is None:
        notify("Starting Spark ...")
    per_task = options.read(configuration, options.NUM_TASK_SLOTS)
    return get_or_create(-(-needed // per_task), configuration)
