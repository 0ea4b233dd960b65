"""High availability: of several drivers that run the same script one leads, the others stand by.

    job = lead(job_graph)        # waits as standby; then this driver leads, or the job has ended elsewhere
    job.record                   # what there is to go on from
    job.leadership.require()     # before anything that others see

Drivers with the same ``high-availability.cluster-id`` and storage belong together.  Leadership is of one job: of the
n-th `execute()` of that name in the script.  So each driver goes through the script, waits where another leads, takes
over when that one is gone, and passes over what has ended.

Source: Flink's ``HighAvailabilityServices`` and ``JobResultStore``; a job id that comes from the cluster id is Flink's way
in application mode.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Mapping, NoReturn, Optional, Union

from flinkish.common import options
from flinkish.common.completable_future import CompletableFuture
from flinkish.common.config_options import ConfigOption
from flinkish.common.file_system import absolute_uri, open_file_system
from flinkish.common.job_execution_result import JobExecutionResult
from flinkish.common.job_status import JobStatus
from flinkish.common.notices import notify
from flinkish.errors import (
    CheckpointStorageError,
    ExternalError,
    FlinkishError,
    InvalidJobError,
    JobCancelledError,
    LeadershipLostError,
)
from flinkish.graph.job_graph import JobGraph
from flinkish.graph.rescale_job_graph import rescale_job_graph
from flinkish.messages.checkpoints import CompletedCheckpoint, SnapshotKind
from flinkish.shell.file_lease import FileLease
from flinkish.shell.leadership import Leadership
from flinkish.shell.zookeeper_lease import ZookeeperCell, ZookeeperLease, connect
from flinkish.storage.conditional_store import FolderCell
from flinkish.storage.ha_store import HighAvailabilityStore, JobRecord

log = logging.getLogger(__name__)

_PROGRESS_S = 30
_CLUSTER_ID = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
_NAME_BYTES_MAX, _PLACE_BYTES_MAX = 255, 1_000  # a whole path may have 4,095 in Linux
_RESULT_ATTEMPTS = 5

_started: Counter = Counter()  # jobs of this process, by storage, cluster and name
_started_lock = threading.Lock()


@dataclass
class LedJob:
    """A job that this driver leads.  ``record``: as it was when this driver took over.  ``programmed``: the graph as
    the program says it, where the job goes on with another parallelism."""

    leadership: Leadership
    store: HighAvailabilityStore
    epoch: int
    record: JobRecord
    configuration: Mapping[str, Any]
    programmed: Optional[JobGraph] = None
    _ended: bool = False  # and that is stored

    @property
    def is_takeover(self) -> bool:
        """Another driver may have begun with the job."""
        return self.epoch > 1

    def with_parallelism_of_record(self, job_graph: JobGraph) -> JobGraph:
        """The program's graph with the parallelism that the job had when its leader was lost."""
        if options.read(job_graph.configuration, options.SCHEDULER_MODE) is not None:
            return job_graph  # it takes the slots that there are
        ids = {vertex.id for vertex in job_graph.vertices}
        wanted = {vertex_id: number for vertex_id, number in self.record.parallelism.items() if vertex_id in ids}
        if not wanted:
            return job_graph
        try:
            rescaled = rescale_job_graph(job_graph, wanted)
        except InvalidJobError as refusal:  # the program is not the one that was rescaled
            log.warning("job goes on with the program's parallelism name=%r why=%r", job_graph.job_name, refusal.why)
            return job_graph
        self.programmed = job_graph
        return rescaled

    def with_parallelism_of_program(self, why: FlinkishError) -> Optional[JobGraph]:
        """Once, when the other cannot be had; None: it is the program's already."""
        programmed, self.programmed = self.programmed, None
        if programmed is not None:
            log.warning("job goes on with the program's parallelism name=%r why=%r", programmed.job_name, why.why)
        return programmed

    def add_checkpoint(self, checkpoint: CompletedCheckpoint, retained_max: int, attempt: int) -> None:
        """Its metadata are durable: it is complete when this returns.

        Raises:
            LeadershipLostError: it is not, and will not be.
            CheckpointStorageError: that is not known.
        """
        if checkpoint.kind is SnapshotKind.SAVEPOINT:
            if checkpoint.commits:  # it is its user's, nobody goes on from it by itself; but what it needs must stay
                self.store.add_savepoint(self.epoch, checkpoint.location)
            return
        self.store.add_checkpoint(
            self.epoch,
            checkpoint.location,
            checkpoint.checkpoint_id,
            checkpoint.kind.is_savepoint,
            retained_max,
            attempt,
        )

    def remove_checkpoint(self, location: str) -> None:
        """It is about to be deleted.  Raises: as ``add_checkpoint``."""
        self.store.remove_checkpoint(self.epoch, location)

    def is_taken_over(self) -> bool:
        """Whether another driver has been here, whatever the clocks say.  Raises CheckpointStorageError."""
        record = self.store.read()
        return record is not None and record.epoch > self.epoch

    def store_parallelism(self, parallelism: Mapping[str, int]) -> None:
        """The job is rescaled.  If it cannot be stored, a takeover goes on with what it had before."""
        try:
            self.store.store_parallelism(self.epoch, parallelism)
        except (LeadershipLostError, CheckpointStorageError) as error:
            log.warning("could not store a parallelism job=%s error=%s", self.record.job_id, error.why)

    def resign(self) -> None:
        """Let others go on with the job, or, where the settings say so and it has ended, forget it."""
        self.leadership.resign()
        if self._ended and options.read(self.configuration, options.JOB_RESULT_STORE_DELETE_ON_COMMIT):
            try:
                _forget(self.configuration, self.record.job_id)
            except Exception as error:  # of whatever storage it is
                log.warning("the record of an ended job is left over job=%s error=%s", self.record.job_id, error)

    def store_result(self, status: str) -> bool:
        """The job has ended for good: no standby runs it again.  Whether that is durable."""
        for attempt in range(_RESULT_ATTEMPTS):
            try:
                self.leadership.require()
                self.store.store_result(self.epoch, status, time.time_ns() // 1_000_000)
                self._ended = True
                return True
            except LeadershipLostError as lost:
                log.warning("job has ended, and another driver leads it job=%s error=%s", self.record.job_id, lost.why)
                return False
            except CheckpointStorageError as failure:
                log.warning("could not store that a job has ended job=%s error=%s", self.record.job_id, failure.why)
                if attempt + 1 < _RESULT_ATTEMPTS:
                    time.sleep(2**attempt / 10)
        log.error("a standby will run a job again that has ended job=%s status=%s", self.record.job_id, status)
        return False


class EndedJob:
    """The JobHandle of a job that had ended before this driver could run it."""

    def __init__(self, record: JobRecord):
        self._record = record
        self.job_id, self.job_name = record.job_id, record.job_name

    def status(self) -> JobStatus:
        assert self._record.status is not None
        return JobStatus[self._record.status]

    def cancel(self) -> None:
        """It is over."""

    def wait(self, timeout_s: Optional[float] = None) -> JobExecutionResult:
        if self.status() is JobStatus.CANCELED:
            raise JobCancelledError(f'job "{self.job_name}" was cancelled', where=self.job_id)
        if self.status() is JobStatus.FAILED:
            raise ExternalError(
                f'job "{self.job_name}" has failed in another driver',
                where=self.job_id,
                why="the log of that driver says why",
                do=f"for another run change {options.HIGH_AVAILABILITY_CLUSTER_ID.key}",
            )
        return JobExecutionResult(self.job_id, 0, job_name=self.job_name)

    def take_savepoint(self, directory: Optional[str] = None) -> CompletableFuture[str]:
        return self._refuse()

    def take_checkpoint(self) -> CompletableFuture[str]:
        return self._refuse()

    def stop(self, drain: bool, directory: Optional[str] = None) -> CompletableFuture[str]:
        return self._refuse()

    def rescale(self, parallelism: Union[int, Mapping[str, int]]) -> CompletableFuture[None]:
        return self._refuse("rescale a job")

    def metrics(self) -> dict:
        return {}

    def accumulators(self) -> Mapping[str, bytes]:
        return {}

    def explain_watermarks(self, operator: Optional[str] = None) -> Mapping[str, Any]:
        return self._refuse("explain the watermarks of a job")

    def _refuse(self, what: str = "take a snapshot") -> NoReturn:
        why = f"the job is {self._record.status}"
        raise InvalidJobError(f"could not {what}", where=f"job {self.job_id}", why=why)


def is_enabled(configuration: Mapping[str, Any]) -> bool:
    return options.read(configuration, options.HIGH_AVAILABILITY_TYPE) != "NONE"


def next_job_id(job_name: str, configuration: Mapping[str, Any]) -> str:
    """Of the job that this process executes next under that name: the same in each driver of the cluster.

    Raises:
        InvalidJobError: settings that cannot work.
    """
    cluster = _cluster_id(configuration)
    with _started_lock:
        number = _started[cluster, job_name]
        _started[cluster, job_name] += 1
    return hashlib.sha256(f"{cluster}\0{job_name}\0{number}".encode()).hexdigest()[:32]


def lead(job_graph: JobGraph, run_id: str) -> "LedJob | EndedJob":
    """Wait until this driver leads the job, and take it over.

    Args:
        run_id: of the job's run, if nobody has led it yet.
    Raises:
        InvalidJobError: settings that cannot work.
        CheckpointStorageError, ConnectionLostError: the storage of leases and records cannot be reached.
    """
    _check_checkpoints(job_graph.configuration)
    while True:
        leadership, store = _services(job_graph)
        leadership.start()
        try:
            _stand_by(leadership, job_graph.job_name)
            assert leadership.epoch is not None
            record = store.take_over(leadership.epoch, JobRecord(job_graph.job_id, job_graph.job_name, run_id))
        except LeadershipLostError as error:  # before it had begun
            log.warning("standing by again name=%r why=%r", job_graph.job_name, error.why)
            leadership.resign()
            continue
        except BaseException:
            leadership.resign()
            raise
        if record.status is None:
            log.info(
                "leading job=%s name=%r epoch=%d checkpoint=%s",
                record.job_id, record.job_name, leadership.epoch, record.latest,
            )
            return LedJob(leadership, store, leadership.epoch, record, job_graph.configuration)
        leadership.resign()
        ended = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.ended_ms / 1_000))
        notify(
            f'Job "{record.job_name}" has ended, {record.status} at {ended}, and is not run again; for another run '
            f"change {options.HIGH_AVAILABILITY_CLUSTER_ID.key}",
            unheard=log.warning,
        )
        return EndedJob(record)


def _stand_by(leadership: Leadership, job_name: str) -> None:
    told, told_s = "", 0.0
    while not leadership.wait_granted(1):
        waits_for = leadership.describe()
        if waits_for != told or time.monotonic() - told_s > _PROGRESS_S:
            told, told_s = waits_for, time.monotonic()
            notify(f'Job "{job_name}" stands by: {waits_for}', unheard=log.warning)


# ---- settings -----------------------------------------------------------------------------------


def _services(job_graph: JobGraph) -> tuple[Leadership, HighAvailabilityStore]:
    configuration, name = job_graph.configuration, f'job "{job_graph.job_name}"'
    place = f"{_cluster_id(configuration)}/{job_graph.job_id}"
    if options.read(configuration, options.HIGH_AVAILABILITY_TYPE) == "zookeeper":
        folder = f"{_zookeeper_root(configuration)}/{place}"
        client, quorum = _connect(configuration)
        session_ms = int(client._session_timeout)  # that the server has agreed to
        lease = ZookeeperLease(client, folder)
        store = HighAvailabilityStore(ZookeeperCell(client, f"{folder}/record"), f"ZooKeeper {quorum}, {folder}")
        return Leadership(name, lease, session_ms, max(50, session_ms // 20)), store
    folder = f"{_storage_folder(configuration)}/{place}"
    return (
        Leadership(
            name,
            FileLease(FolderCell(f"{folder}/lease")),
            options.read(configuration, options.HIGH_AVAILABILITY_LEASE_DURATION),
            options.read(configuration, options.HIGH_AVAILABILITY_RETRY_PERIOD),
        ),
        HighAvailabilityStore(FolderCell(f"{folder}/record"), f"{folder}/record"),
    )


def _connect(configuration: Mapping[str, Any]) -> tuple[Any, str]:
    quorum = options.read(configuration, options.HIGH_AVAILABILITY_ZOOKEEPER_QUORUM)
    if quorum is None:
        raise _missing(options.HIGH_AVAILABILITY_ZOOKEEPER_QUORUM, "the servers of ZooKeeper, host:port,host:port")
    client = connect(
        quorum,
        options.read(configuration, options.HIGH_AVAILABILITY_ZOOKEEPER_SESSION_TIMEOUT),
        options.read(configuration, options.HIGH_AVAILABILITY_ZOOKEEPER_CONNECTION_TIMEOUT),
    )
    return client, quorum


def _zookeeper_root(configuration: Mapping[str, Any]) -> str:
    option = options.HIGH_AVAILABILITY_ZOOKEEPER_ROOT
    return _bounded(options.read(configuration, option).rstrip("/"), option)


def _forget(configuration: Mapping[str, Any], job_id: str) -> None:
    """Remove lease and record of a job that nobody leads.  Raises whatever the storage raises."""
    place = f"{_cluster_id(configuration)}/{job_id}"
    if options.read(configuration, options.HIGH_AVAILABILITY_TYPE) == "zookeeper":
        client, _ = _connect(configuration)
        try:
            client.delete(f"{_zookeeper_root(configuration)}/{place}", recursive=True)
        finally:
            client.stop()
            client.close()
    else:
        shutil.rmtree(f"{_storage_folder(configuration)}/{place}")


def _cluster_id(configuration: Mapping[str, Any]) -> str:
    cluster = options.read(configuration, options.HIGH_AVAILABILITY_CLUSTER_ID).strip("/")
    if not _CLUSTER_ID.fullmatch(cluster) or not {".", ".."}.isdisjoint(cluster.split("/")):
        raise InvalidJobError(
            f"could not use {cluster[:100]!r} as a cluster id",
            where=options.HIGH_AVAILABILITY_CLUSTER_ID.key,
            why="it names a folder: letters, digits, _ . - and / between them may stand in it",
        )
    return _bounded(cluster, options.HIGH_AVAILABILITY_CLUSTER_ID)


def _bounded(place: str, option: ConfigOption) -> str:
    """A part of the folder, or node, of lease and record.  What no file system takes would be tried again for ever."""
    sizes = [len(os.fsencode(name)) for name in place.split("/")]
    if max(sizes) > _NAME_BYTES_MAX or sum(sizes) > _PLACE_BYTES_MAX:
        raise InvalidJobError(
            f"could not keep the lease of a leader in {place[:100]!r}...",
            where=option.key,
            why=f"a name in it has {max(sizes)} bytes, at most {_NAME_BYTES_MAX} can be, and all its names together "
            f"{sum(sizes)}, at most {_PLACE_BYTES_MAX} can be",
            do="choose a shorter one",
        )
    return place


def _storage_folder(configuration: Mapping[str, Any]) -> str:
    directory = options.read(configuration, options.HIGH_AVAILABILITY_STORAGE_DIR)
    if directory is None:
        raise _missing(options.HIGH_AVAILABILITY_STORAGE_DIR, "a folder that all drivers share")
    uri = absolute_uri(directory)
    if not uri.startswith(("/", "file:")):
        raise InvalidJobError(
            "could not keep the lease of a leader there",
            where=f"{options.HIGH_AVAILABILITY_STORAGE_DIR.key}: {uri.partition('?')[0]}",
            why="a folder with hard links is needed, on a disk or on NFS, so that of two drivers one is refused",
            do="name a shared folder, or set high-availability.type to zookeeper; checkpoints may be anywhere",
        )
    return _bounded(open_file_system(uri)[1].rstrip("/"), options.HIGH_AVAILABILITY_STORAGE_DIR)


def _check_checkpoints(configuration: Mapping[str, Any]) -> None:
    in_memory = options.read(configuration, options.CHECKPOINT_STORAGE) == "jobmanager"
    if in_memory or options.read(configuration, options.CHECKPOINT_DIRECTORY) is None:
        raise _missing(
            options.CHECKPOINT_DIRECTORY,
            "a folder or URL that all drivers and slots reach (and execution.checkpointing.storage not to jobmanager)",
        )


def _missing(option: Any, what: str) -> InvalidJobError:
    return InvalidJobError(
        "could not use high availability", where=option.key, why="it is not set", do=f"set it to {what}"
    )
