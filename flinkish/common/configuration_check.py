"""What is wrong with the settings of a job, before anything is launched.

Refused are a known key with a value that it cannot have, and an unknown key of our own (``flinkish.*``).  What
has no effect, and what is probably mistyped, gives a warning.  Keys of the user's own, of Spark and of other parts of
Flink are nobody's concern.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from typing import Any, Mapping

from flinkish.common import options
from flinkish.errors import ConfigurationError, InvalidJobError

__all__ = ["check_configuration", "check_master", "look_for_mistakes"]

MINI_CLUSTER = "mini-cluster"
_OWN = "flinkish."
_NEAR = 0.85
#: Keys of Flink's that look like a mistyped one of ours.
_FLINK_KEYS = {
    "execution.buffer-timeout.enabled",
    "execution.checkpointing.async",
    "state.backend.rocksdb.checkpoint.restore.threads",
    "state.backend.rocksdb.log.dir",
    "task.cancellation.timers.timeout",
}
#: Flink's keys for checkpoints and state that change nothing here, by how they begin, and why.
_WITHOUT_EFFECT = {
    "execution.checkpointing.": {
        "interval-during-backlog": "no source here says that it works off a backlog",
        "create-subdir": "the checkpoints of a job always lie in a folder with its id",
        "local-backup.enabled": "state is restored from execution.checkpointing.dir",
        "local-backup.dirs": "state is restored from execution.checkpointing.dir",
        "data-inline-threshold": "up to 20 kB of a snapshot travel in the acknowledgement",
        "write-buffer-size": "snapshots are written in blocks of 128 kB",
        "checkpoints-after-tasks-finish": "checkpoints always go on",
        "checkpoints-after-tasks-finish.enabled": "checkpoints always go on",
        "cleaner.parallel-mode": "files are deleted one after the other, beside everything else",
        "unaligned.interruptible-timers.enabled": "barriers pass between two records, outputs may be overdrawn",
        "unaligned.max-subtasks-per-channel-state-file": "each subtask has one content, small ones without a file",
        "unaligned.during-recovery.enabled": "it is always so",
        "unaligned.recover-output-on-downstream.enabled": "it is always so",
        "recover-without-channel-state.checkpoint-id": "records in flight are never left out",
        "file-merging.enabled": "each subtask writes one file an operator, small ones none",
        "file-merging.across-checkpoint-boundary": "files are not merged",
        "file-merging.max-file-size": "files are not merged",
        "file-merging.max-space-amplification": "files are not merged",
        "file-merging.max-subtasks-per-file": "files are not merged",
        "file-merging.pool-blocking": "files are not merged",
    },
    "state.backend.rocksdb.": {
        "memory.managed": "databases always share what taskmanager.memory.managed.size gives the slot",
        "memory.fixed-per-tm": "each slot has a budget of its own (state.backend.rocksdb.memory.fixed-per-slot)",
        "block.cache-size": "the databases of a slot share one cache, which its budget bounds",
        "writebuffer.size": "the databases of a slot share their write buffers, which its budget bounds",
    },
    "state.backend.": {"local-recovery": "state is restored from execution.checkpointing.dir"},
}
_OF_STATE = ("execution.checkpointing.", "state.backend.")
_OLDER_KEYS = {key for option in options.ALL_OPTIONS.values() for key in option.older_keys}
_MASTER = re.compile(
    r"local|local\[\s*(\*|\d+)\s*(,\s*\d+\s*)?\]|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|spark://.+|yarn|k8s://.+|sc://.+"
)
_MASTERS = (
    "local, local[N], local[*], local[N,F], local-cluster[N,CORES,MB], spark://..., yarn, k8s://..., "
    "sc://... (Spark Connect)"
)


def check_configuration(settings: Mapping[str, Any], where: str = "the configuration of the job") -> list[str]:
    """Check the settings of a job.

    Args:
        where: they come from, for an error.
    Returns:
        Warnings, one text each.
    Raises:
        InvalidJobError: they cannot work; mostly as a ConfigurationError.
    """
    errors, warnings = look_for_mistakes(settings)
    if errors:
        errors[0].where = errors[0].where or where
        raise errors[0]
    return warnings


def look_for_mistakes(
    settings: Mapping[str, Any], strangers: bool = False
) -> tuple[list[InvalidJobError], list[str]]:
    """All that ``check_configuration`` would raise, one after the other, and its warnings.

    strangers: warn also of the keys that are nobody's concern, except for those of Spark.
    """
    errors: list[InvalidJobError] = []
    warnings: list[str] = []
    values: dict[str, Any] = {}
    for key in sorted(settings):
        try:
            warnings += _check_key(key, strangers)
        except InvalidJobError as error:
            errors.append(error)
    for key, option in options.ALL_OPTIONS.items():
        if option.text_in(settings) is None:
            continue
        try:
            values[key] = option.read(settings)
            _check_value(key, values[key])
        except InvalidJobError as error:
            errors.append(error)
    return errors, warnings + _unused_warnings(values)


def _check_value(key: str, value: Any) -> None:
    """Refuse what an option takes and nothing here can do."""
    if key == options.SPARK_MASTER.key:
        check_master(value, key)
    if key == options.STATE_BACKEND.key:
        check_state_backend(value)


def check_state_backend(backend: str) -> None:
    """Refuse one whose package is missing in this process."""
    if backend == "rocksdb" and importlib.util.find_spec("rocksdict") is None:
        raise ConfigurationError(
            'could not use state backend "rocksdb"',
            where=options.STATE_BACKEND.key,
            why="the package rocksdict is not installed",
            do='pip install "flinkish[rocksdb]", here and where the slots run',
        )


def check_master(master: str, where: str) -> None:
    """Refuse what is no Spark master.  ``where``: the option or key that says it.

    Raises:
        ConfigurationError: it has none of the known forms."""
    if _MASTER.fullmatch(master.strip()):
        return
    on_command_line = where.startswith("-")
    known = _MASTERS + (f", {MINI_CLUSTER}" if on_command_line else "")
    near = difflib.get_close_matches(master.strip().lower(), [MINI_CLUSTER, "local", "yarn"], 1, 0.7)
    if not near:
        do = f"give one of {known}"
    elif near == [MINI_CLUSTER] and not on_command_line:
        do = f"set {options.EXECUTION_TARGET.key} to {MINI_CLUSTER}"
    else:
        do = f'did you mean "{near[0]}"?'
    raise ConfigurationError(
        f'could not use "{master}" as master', where=where, why=f"the known forms are {known}", do=do
    )


def _check_key(key: str, strangers: bool) -> list[str]:
    """A warning when the key is probably mistyped, or a stranger."""
    if key in options.ALL_OPTIONS or key in _OLDER_KEYS or key.startswith("spark."):
        return []
    if any(option.kind == "map" and key.startswith(known + ".") for known, option in options.ALL_OPTIONS.items()):
        return []
    for start, reasons in _WITHOUT_EFFECT.items():
        why = reasons.get(key.removeprefix(start)) if key.startswith(start) else None
        if why is not None:
            return [f'the setting "{key}" has no effect: {why}']
    if not key.startswith(_OWN):
        near = [] if key in _FLINK_KEYS else difflib.get_close_matches(key, options.ALL_OPTIONS, 1, _NEAR)
        if near:
            return [f'the setting "{key}" has no effect; did you mean "{near[0]}"?']
        if key.startswith(_OF_STATE):
            return [f'the setting "{key}" has no effect']
        return [f'the setting "{key}" has no effect, unless the job itself reads it'] if strangers else []
    own = [known for known in options.ALL_OPTIONS if known.startswith(_OWN)]
    nearest = difflib.get_close_matches(key, own, 1, 0.0)[0]
    do = f'did you mean "{nearest}"?'
    if key.startswith("flinkish.spark."):
        do += f' Settings of Spark go without "{_OWN}": {key[len(_OWN):]}'
    raise ConfigurationError(
        f'there is no setting "{key}"', why=f'keys that begin with "{_OWN}" are {", ".join(own)}', do=do
    )


def _unused_warnings(values: Mapping[str, Any]) -> list[str]:
    unused = [
        key
        for key, value in values.items()
        if key in options.NOT_USED_YET and value != options.ALL_OPTIONS[key].default
    ]
    return [f"this version does not use {', '.join(unused)}"] if unused else []
