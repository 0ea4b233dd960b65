"""ExecutionConfig: the job-wide settings as methods.  Each is a key of the Configuration."""

from __future__ import annotations

from typing import Mapping, Optional

from flinkish.common import options
from flinkish.common.configuration import Configuration
from flinkish.common.notices import warn_user
from flinkish.common.time import TimeLike, to_milliseconds
from flinkish.errors import InvalidJobError

__all__ = ["ExecutionConfig"]

MAX_PARALLELISM_LIMIT = 1 << 15


def check_parallelism(parallelism: int, max_parallelism: Optional[int] = None, what: str = "the job") -> int:
    """``parallelism`` as an int >= 1, and not above ``max_parallelism`` where that is set (> 0)."""
    if isinstance(parallelism, (bool, type)) or not hasattr(parallelism, "__index__"):
        raise InvalidJobError(
            f"could not set the parallelism of {what} to {parallelism!r}",
            where=what,
            why=f"it is a {type(parallelism).__name__}, not an int",
            do="give the number of subtasks, 1 or more",
        )
    parallelism = parallelism.__index__()
    if parallelism < 1:
        raise InvalidJobError(
            f"could not set the parallelism of {what} to {parallelism}",
            where=what,
            why="it must be at least 1",
            do="give the number of subtasks, 1 or more",
        )
    if max_parallelism is not None and 0 < max_parallelism < parallelism:
        raise InvalidJobError(
            f"could not set the parallelism of {what} to {parallelism}",
            where=what,
            why=f"its max parallelism is {max_parallelism}",
            do="lower the parallelism, or raise the max parallelism",
        )
    return parallelism


def check_max_parallelism(max_parallelism: int, what: str = "the job") -> int:
    """``max_parallelism`` as an int from 1 to 32768."""
    if isinstance(max_parallelism, (bool, type)) or not hasattr(max_parallelism, "__index__"):
        raise InvalidJobError(
            f"could not set the max parallelism of {what} to {max_parallelism!r}",
            where=what,
            why=f"it is a {type(max_parallelism).__name__}, not an int",
            do=f"give a number from 1 to {MAX_PARALLELISM_LIMIT}",
        )
    max_parallelism = max_parallelism.__index__()
    if not 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise InvalidJobError(
            f"could not set the max parallelism of {what} to {max_parallelism}",
            where=what,
            why=f"it must be from 1 to {MAX_PARALLELISM_LIMIT}",
            do=f"give a number from 1 to {MAX_PARALLELISM_LIMIT}",
        )
    return max_parallelism


class ExecutionConfig:
    """Settings of a job; what is set here ends in ``configuration``."""

    PARALLELISM_DEFAULT = -1
    PARALLELISM_UNKNOWN = -2

    def __init__(self, configuration: Optional[Configuration] = None):
        self._configuration = Configuration() if configuration is None else configuration
        self._serializers: set[str] = set()  # what was asked of Java's, which changes nothing

    def _set(self, option, value) -> "ExecutionConfig":
        self._configuration.set(option, value)
        return self

    def get_parallelism(self) -> int:
        return self._configuration.get(options.PARALLELISM_DEFAULT)

    def set_parallelism(self, parallelism: int) -> "ExecutionConfig":
        """Default parallelism of operators; -1 takes the setting back."""
        if parallelism == ExecutionConfig.PARALLELISM_DEFAULT:
            return self._set(options.PARALLELISM_DEFAULT, None)
        return self._set(
            options.PARALLELISM_DEFAULT, check_parallelism(parallelism, self.get_max_parallelism())
        )

    def get_max_parallelism(self) -> int:
        """-1: derived from the parallelism."""
        return self._configuration.get(options.PIPELINE_MAX_PARALLELISM)

    def set_max_parallelism(self, max_parallelism: int) -> "ExecutionConfig":
        check_max_parallelism(max_parallelism)
        check_parallelism(self.get_parallelism(), max_parallelism)
        return self._set(options.PIPELINE_MAX_PARALLELISM, max_parallelism)

    def set_auto_watermark_interval(self, interval: TimeLike) -> "ExecutionConfig":
        return self._set(options.PIPELINE_AUTO_WATERMARK_INTERVAL, to_milliseconds(interval))

    def get_auto_watermark_interval(self) -> int:
        return self._configuration.get(options.PIPELINE_AUTO_WATERMARK_INTERVAL)

    def set_latency_tracking_interval(self, interval: TimeLike) -> "ExecutionConfig":
        return self._set(options.LATENCY_INTERVAL, to_milliseconds(interval))

    def get_latency_tracking_interval(self) -> int:
        return self._configuration.get(options.LATENCY_INTERVAL)

    def get_task_cancellation_interval(self) -> int:
        return self._configuration.get(options.TASK_CANCELLATION_INTERVAL)

    def set_task_cancellation_interval(self, interval: TimeLike) -> "ExecutionConfig":
        return self._set(options.TASK_CANCELLATION_INTERVAL, to_milliseconds(interval))

    def get_task_cancellation_timeout(self) -> int:
        return self._configuration.get(options.TASK_CANCELLATION_TIMEOUT)

    def set_task_cancellation_timeout(self, timeout: TimeLike) -> "ExecutionConfig":
        return self._set(options.TASK_CANCELLATION_TIMEOUT, to_milliseconds(timeout))

    def enable_object_reuse(self) -> "ExecutionConfig":
        """Hand emitted values on without a copy; functions must not change what they have emitted."""
        return self._set(options.PIPELINE_OBJECT_REUSE, True)

    def disable_object_reuse(self) -> "ExecutionConfig":
        return self._set(options.PIPELINE_OBJECT_REUSE, False)

    def is_object_reuse_enabled(self) -> bool:
        return self._configuration.get(options.PIPELINE_OBJECT_REUSE)

    def enable_auto_generated_uids(self) -> "ExecutionConfig":
        return self._set(options.PIPELINE_AUTO_GENERATE_UIDS, True)

    def disable_auto_generated_uids(self) -> "ExecutionConfig":
        """Refuse operators without a uid."""
        return self._set(options.PIPELINE_AUTO_GENERATE_UIDS, False)

    def has_auto_generated_uids_enabled(self) -> bool:
        return self._configuration.get(options.PIPELINE_AUTO_GENERATE_UIDS)

    def enable_closure_cleaner(self) -> "ExecutionConfig":
        return self._set(options.PIPELINE_CLOSURE_CLEANER, True)

    def disable_closure_cleaner(self) -> "ExecutionConfig":
        return self._set(options.PIPELINE_CLOSURE_CLEANER, False)

    def is_closure_cleaner_enabled(self) -> bool:
        return self._configuration.get(options.PIPELINE_CLOSURE_CLEANER)

    # ---- serializers of Java --------------------------------------------------------------------

    def _ask(self, serializers: str, wanted: bool) -> "ExecutionConfig":
        if wanted and serializers not in self._serializers:
            warn_user(
                f"{serializers} has no effect: Python objects travel as pickle, records of a declared type in a "
                "form of its own; there are no serializers of Java"
            )
        (self._serializers.add if wanted else self._serializers.discard)(serializers)
        return self

    def enable_force_kryo(self) -> "ExecutionConfig":
        """Kept, but without effect: Kryo is a serializer of Java."""
        return self._ask("enable_force_kryo()", True)

    def disable_force_kryo(self) -> "ExecutionConfig":
        return self._ask("enable_force_kryo()", False)

    def is_force_kryo_enabled(self) -> bool:
        return "enable_force_kryo()" in self._serializers

    def enable_force_avro(self) -> "ExecutionConfig":
        """Kept, but without effect: it is about objects of Java."""
        return self._ask("enable_force_avro()", True)

    def disable_force_avro(self) -> "ExecutionConfig":
        return self._ask("enable_force_avro()", False)

    def is_force_avro_enabled(self) -> bool:
        return "enable_force_avro()" in self._serializers

    def enable_generic_types(self) -> "ExecutionConfig":
        """The default: records need no declared type."""
        return self._ask("disable_generic_types()", False)

    def disable_generic_types(self) -> "ExecutionConfig":
        """Kept, but without effect: no type goes through Kryo."""
        return self._ask("disable_generic_types()", True)

    def has_generic_types_disabled(self) -> bool:
        return "disable_generic_types()" in self._serializers

    def get_default_kryo_serializer_classes(self) -> dict[str, str]:
        """Empty: there is no Kryo."""
        return {}

    def get_registered_kryo_types(self) -> list[str]:
        """Empty: there is no Kryo."""
        return []

    def get_registered_pojo_types(self) -> list[str]:
        """Empty: there are no classes of Java."""
        return []

    def get_global_job_parameters(self) -> dict[str, str]:
        return self._configuration.get(options.PIPELINE_GLOBAL_JOB_PARAMETERS) or {}

    def set_global_job_parameters(self, global_job_parameters_dict: Mapping) -> "ExecutionConfig":
        """What ``RuntimeContext.get_job_parameter`` reads.  Text that holds "," or ":" is refused."""
        for key, value in global_job_parameters_dict.items():
            if set(f"{key}") & set(",:") or "," in f"{value}":
                raise InvalidJobError(
                    f"could not set the job parameter {key!r}",
                    why='a key must hold no "," or ":", a value no ","',
                )
        return self._set(options.PIPELINE_GLOBAL_JOB_PARAMETERS, dict(global_job_parameters_dict))

    def is_use_snapshot_compression(self) -> bool:
        return self._configuration.get(options.SNAPSHOT_COMPRESSION)

    def set_use_snapshot_compression(self, use_snapshot_compression: bool) -> "ExecutionConfig":
        return self._set(options.SNAPSHOT_COMPRESSION, use_snapshot_compression)

    def to_configuration(self) -> Configuration:
        return self._configuration

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExecutionConfig) and self._configuration == other._configuration

    def __hash__(self) -> int:
        return hash(self._configuration)
