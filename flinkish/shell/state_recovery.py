"""Which checkpoint a job begins with, and what its checkpoints are kept in: settings and storage read in the driver.

Blocks on the storage, so it runs on the thread of who submits the job.
"""

from __future__ import annotations

import importlib.metadata
import logging
import secrets
from typing import Any, Iterable, Mapping, Optional

from flinkish.common import options
from flinkish.common.configuration import Configuration
from flinkish.common.file_system import absolute_uri
from flinkish.datastream.partitioners import CustomPartitioner
from flinkish.errors import CorruptSnapshotError, InvalidJobError
from flinkish.graph.job_graph import JobGraph
from flinkish.jobmanager.checkpoint_coordinator import CheckpointConfiguration
from flinkish.jobmanager.completed_checkpoints import CheckpointRetention
from flinkish.jobmanager.job_description import CheckpointSettings
from flinkish.jobmanager.restore_decision import adopt_max_parallelism, decide_restore
from flinkish.messages.checkpoints import JOB_MANAGER_STORAGE, CompletedCheckpoint
from flinkish.storage.checkpoint_storage import CheckpointStorage, storage_at
from flinkish.storage.ha_store import JobRecord

log = logging.getLogger(__name__)

LATEST = "latest"


def checkpoint_directory(configuration: Mapping[str, Any]) -> str:
    """URI of the folder for checkpoints; JOB_MANAGER_STORAGE: the driver's memory.

    Raises:
        InvalidJobError: there is no file system for the folder, or none is set although files are asked for.
    """
    storage = options.read(configuration, options.CHECKPOINT_STORAGE)
    directory = options.read(configuration, options.CHECKPOINT_DIRECTORY)
    if storage == "jobmanager" or (storage is None and directory is None):
        return JOB_MANAGER_STORAGE
    if directory is None:
        raise InvalidJobError(
            "could not keep checkpoints in files",
            where=options.CHECKPOINT_STORAGE.key,
            why=f"{options.CHECKPOINT_DIRECTORY.key} is not set",
            do="set it to a folder or URL that driver and slots reach",
        )
    return CheckpointStorage(directory, configuration).directory


def checkpoint_settings(
    job_graph: JobGraph, coordinated: frozenset[str], commits: bool, record: Optional[JobRecord] = None
) -> CheckpointSettings:
    """What the job's CheckpointCoordinator begins with.  ``job_graph`` takes over what max parallelism is saved.

    Args:
        coordinated: operators whose coordinators take snapshots.
        commits: a sink has a committer.
        record: where another driver has left the job, which goes before the settings.
    Raises:
        InvalidJobError: settings that cannot work.
        StateMigrationError: the program cannot go on from the checkpoint that the settings name.
        CheckpointStorageError: that one cannot be read, or the folder for new ones cannot be reached.
    """
    configuration = job_graph.configuration
    unaligned = _unaligned(job_graph)
    directory = checkpoint_directory(configuration)
    interval_ms = options.read(configuration, options.CHECKPOINTING_INTERVAL)
    savepoints = options.read(configuration, options.SAVEPOINT_DIRECTORY)
    restored: Optional[CompletedCheckpoint]
    retained: tuple[CompletedCheckpoint, ...] = ()
    unfinished: tuple[str, ...] = ()
    predecessor: Optional[str] = None
    if record is not None and record.checkpoints:
        restored, owned, retained = _restored_by_record(job_graph, record)
    else:
        if directory != JOB_MANAGER_STORAGE:  # else the job would restart for ever
            CheckpointStorage(directory, configuration).require()
        restored, owned = _find_restored(job_graph, directory)
        if restored is not None and owned and options.read(configuration, options.STATE_RECOVERY_PATH) == LATEST:
            retained, unfinished = _left_beside(restored, job_graph)
            if restored.job_id != job_graph.job_id:
                predecessor = f"{directory.rstrip('/')}/{restored.job_id}"
    return CheckpointSettings(
        CheckpointConfiguration(
            directory,
            None if savepoints is None else CheckpointStorage(savepoints, configuration).directory,
            interval_ms,
            options.read(configuration, options.CHECKPOINTING_MIN_PAUSE),
            options.read(configuration, options.CHECKPOINTING_TIMEOUT),
            options.read(configuration, options.CHECKPOINTING_MAX_CONCURRENT),
            options.read(configuration, options.CHECKPOINTING_TOLERABLE_FAILURES),
            exactly_once=options.read(configuration, options.CHECKPOINTING_MODE) == "EXACTLY_ONCE",
            unaligned=unaligned,
            aligned_timeout_ms=options.read(configuration, options.CHECKPOINTING_ALIGNED_TIMEOUT) or None,
            final_checkpoint=commits and interval_ms is not None,
            high_availability=record is not None,
            batch=options.read(configuration, options.EXECUTION_RUNTIME_MODE) == "BATCH",
        ),
        coordinated,
        run_id=secrets.token_hex(8) if record is None else record.run_id,
        retained_max=options.read(configuration, options.CHECKPOINTS_RETAINED),
        retention=CheckpointRetention[options.read(configuration, options.CHECKPOINTING_RETENTION)],
        restored=restored,
        owned=owned,
        flinkish_version=installed_version(),
        retained=retained,
        next_checkpoint_id=1 if record is None else record.next_checkpoint_id,
        unfinished=unfinished,
        predecessor=predecessor,
        claimed=_claims(configuration),
    )


def _unaligned(job_graph: JobGraph) -> bool:
    """Whether barriers may overtake records.

    Raises:
        InvalidJobError: they cannot, in this job.
    """
    configuration = job_graph.configuration
    if not options.read(configuration, options.CHECKPOINTING_UNALIGNED):
        return False
    key = options.CHECKPOINTING_UNALIGNED.key
    if options.read(configuration, options.CHECKPOINTING_MODE) != "EXACTLY_ONCE":
        log.warning("%s is left out: there is nothing to align in mode AT_LEAST_ONCE", key)
        return False
    concurrent = options.read(configuration, options.CHECKPOINTING_MAX_CONCURRENT)
    if concurrent > 1:
        raise InvalidJobError(
            "could not take unaligned checkpoints",
            where=key,
            why=f"{options.CHECKPOINTING_MAX_CONCURRENT.key} is {concurrent}: barriers cannot overtake those of "
            "another checkpoint",
            do=f"set {options.CHECKPOINTING_MAX_CONCURRENT.key} to 1",
        )
    names = {vertex.id: vertex.name for vertex in job_graph.vertices}
    custom = [edge for edge in job_graph.edges if isinstance(edge.partitioner, CustomPartitioner)]
    if custom and not options.read(configuration, options.CHECKPOINTING_FORCE_UNALIGNED):
        raise InvalidJobError(
            "could not take unaligned checkpoints",
            where=f'partition_custom() from "{names[custom[0].source_vertex_id]}" to '
            f'"{names[custom[0].target_vertex_id]}"',
            why="after a rescale the partitioner is asked again about records in flight, and nobody knows whether it "
            "gives the same answer each time",
            do=f"if it does, set {options.CHECKPOINTING_FORCE_UNALIGNED.key} to true; else {key} to false",
        )
    return True


def installed_version() -> str:
    """Of flinkish; empty where it is used from a checkout."""
    try:
        return importlib.metadata.version("flinkish")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _find_restored(job_graph: JobGraph, directory: str) -> tuple[Optional[CompletedCheckpoint], bool]:
    configuration = job_graph.configuration
    path = options.read(configuration, options.STATE_RECOVERY_PATH)
    if path is None:
        return None, False
    owned = _claims(configuration)
    if path != LATEST:
        checkpoint = load_checkpoint(path, configuration)
    else:
        found = newest_of_name(job_graph.job_name, directory, configuration)
        if found is None:
            log.info("no checkpoint to go on from, the job begins anew name=%r folder=%s", job_graph.job_name, directory)
            return None, False
        checkpoint = found
    _check_restore(job_graph, checkpoint)
    log.info(
        "job goes on from a checkpoint name=%r checkpoint=%d location=%s claimed=%s",
        job_graph.job_name, checkpoint.checkpoint_id, checkpoint.location, owned,
    )
    return checkpoint, owned


def _claims(configuration: Mapping[str, Any]) -> bool:
    """Whether the job owns what it begins from."""
    mode = options.read(configuration, options.STATE_RECOVERY_CLAIM_MODE)
    if options.read(configuration, options.STATE_RECOVERY_PATH) == LATEST:
        return mode != "NO_CLAIM"
    return mode == "CLAIM"


def _left_beside(
    newest: CompletedCheckpoint, job_graph: JobGraph
) -> tuple[tuple[CompletedCheckpoint, ...], tuple[str, ...]]:
    """What else the run that took ``newest`` has left, and who claims that one owns: the complete checkpoints before it,
    oldest first, and the locations of those which it never completed.  One of a later run may lie in the folder of a
    job that keeps its id, so none of these counts there."""
    configuration = job_graph.configuration
    storage = CheckpointStorage(options.read(configuration, options.CHECKPOINT_DIRECTORY), configuration)
    whole = [found for found in reversed(storage.list_checkpoints(newest.job_id)) if found.problem is None]
    older = _load_older((found.location for found in whole if found.checkpoint_id < newest.checkpoint_id), job_graph)
    unfinished = [] if newest.job_id == job_graph.job_id else storage.unfinished(newest.job_id)
    if older or unfinished:
        log.info(
            "job owns what the run before has left job=%s older_checkpoints=%d unfinished=%d",
            newest.job_id, len(older), len(unfinished),
        )
    return older, tuple(unfinished)


def _check_restore(job_graph: JobGraph, checkpoint: CompletedCheckpoint) -> None:
    ignore = options.read(job_graph.configuration, options.STATE_RECOVERY_IGNORE_UNCLAIMED)
    adopt_max_parallelism(job_graph, checkpoint)
    refusal = decide_restore(job_graph, checkpoint).refusal(ignore)
    if refusal is not None:
        raise refusal


def _restored_by_record(
    job_graph: JobGraph, record: JobRecord
) -> tuple[CompletedCheckpoint, bool, tuple[CompletedCheckpoint, ...]]:
    """The newest one, whether it is the job's own, and the older ones that are.  The newest one must be there: what
    it publishes may be published, so an older one would publish it again."""
    *older, newest = record.checkpoints
    checkpoint = load_checkpoint(newest, job_graph.configuration)
    _check_restore(job_graph, checkpoint)
    retained = _load_older(older, job_graph)
    log.info(
        "job is taken over name=%r checkpoint=%d location=%s retained=%d",
        job_graph.job_name, checkpoint.checkpoint_id, newest, len(retained),
    )
    return checkpoint, not checkpoint.kind.is_savepoint, retained


def _load_older(locations: Iterable[str], job_graph: JobGraph) -> tuple[CompletedCheckpoint, ...]:
    """Those of them that are still there."""
    retained = []
    for location in locations:
        try:
            retained.append(load_checkpoint(location, job_graph.configuration))
        except CorruptSnapshotError:
            log.info("an older checkpoint is gone job=%s location=%s", job_graph.job_id, location)
    return tuple(retained)


def load_checkpoint(path: Any, configuration: Optional[Mapping[str, Any]] = None) -> CompletedCheckpoint:
    """The checkpoint or savepoint at ``path``: its folder or its `_metadata`.

    Raises:
        CorruptSnapshotError: there is none, or it is not whole.
    """
    return storage_at(absolute_uri(path), configuration or Configuration()).load(path)


def newest_of_name(
    job_name: str, directory: str, configuration: Mapping[str, Any]
) -> Optional[CompletedCheckpoint]:
    """The newest complete checkpoint under ``directory`` of jobs with this name; None: there is none.

    Raises:
        InvalidJobError: checkpoints are in the driver's memory, so none is left of an earlier one.
    """
    if directory == JOB_MANAGER_STORAGE:
        raise InvalidJobError(
            "could not go on from the latest checkpoint",
            where=f"{options.STATE_RECOVERY_PATH.key}: {LATEST}",
            why="checkpoints are kept in the driver's memory, which ends with the driver",
            do=f"set {options.CHECKPOINT_DIRECTORY.key} to a folder or URL, from the first run on",
        )
    storage = CheckpointStorage(options.read(configuration, options.CHECKPOINT_DIRECTORY), configuration)
    newest: Optional[CompletedCheckpoint] = None
    for job_id in storage.job_ids():
        try:
            found, passed_over = storage.newest_complete(job_id)
        except CorruptSnapshotError as error:
            log.warning("a folder of checkpoints is passed over job=%s why=%r", job_id, error.why)
            continue
        for half in passed_over:
            if half.completed:  # then its results were published, and records after an older one are read again
                log.warning(
                    "a checkpoint is passed over, what was published since the one before it may be published twice "
                    "location=%s why=%r",
                    half.location, half.problem,
                )  # fmt: skip
            else:
                log.warning("a checkpoint is passed over location=%s why=%r", half.location, half.problem)
        if found is None or found.job_name != job_name:
            continue
        if newest is None or (found.completed_ms, found.checkpoint_id) > (newest.completed_ms, newest.checkpoint_id):
            newest = found
    return newest
