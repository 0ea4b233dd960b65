"""CheckpointConfig: when and how checkpoints are taken.  Each setting is a key of the Configuration."""

from __future__ import annotations

from typing import Optional

from flinkish.common import options
from flinkish.common.arguments import check_argument
from flinkish.common.config_options import ConfigOption
from flinkish.common.configuration import Configuration
from flinkish.common.time import Duration, TimeLike, to_milliseconds
from flinkish.datastream.checkpoint_storage import CheckpointStorage, FileSystemCheckpointStorage
from flinkish.datastream.checkpointing_mode import CheckpointingMode
from flinkish.datastream.externalized_checkpoint_retention import (
    ExternalizedCheckpointCleanup,
    ExternalizedCheckpointRetention,
)
from flinkish.errors import InvalidJobError

__all__ = ["CheckpointConfig", "ExternalizedCheckpointCleanup"]


class CheckpointConfig:
    """Made by ``env.get_checkpoint_config()``."""

    DEFAULT_MODE = CheckpointingMode.EXACTLY_ONCE
    DEFAULT_TIMEOUT = 10 * 60 * 1_000
    DEFAULT_MIN_PAUSE_BETWEEN_CHECKPOINTS = 0
    DEFAULT_MAX_CONCURRENT_CHECKPOINTS = 1

    def __init__(self, configuration: Optional[Configuration] = None):
        self._configuration = Configuration() if configuration is None else configuration

    def _set(self, option: ConfigOption, value) -> "CheckpointConfig":
        self._configuration.set(option, value)
        return self

    def is_checkpointing_enabled(self) -> bool:
        return self.get_checkpoint_interval() > 0

    def get_checkpointing_mode(self) -> CheckpointingMode:
        return CheckpointingMode[self._configuration.get(options.CHECKPOINTING_MODE)]

    def set_checkpointing_mode(self, checkpointing_mode: CheckpointingMode) -> "CheckpointConfig":
        check_argument(
            checkpointing_mode, CheckpointingMode, "set_checkpointing_mode()", "checkpointing_mode"
        )
        return self._set(options.CHECKPOINTING_MODE, checkpointing_mode.name)

    def get_checkpoint_interval(self) -> int:
        """Milliseconds; -1 when there are no periodic checkpoints."""
        interval = self._configuration.get(options.CHECKPOINTING_INTERVAL)
        return -1 if interval is None else interval

    def set_checkpoint_interval(self, checkpoint_interval: TimeLike) -> "CheckpointConfig":
        interval_ms = to_milliseconds(checkpoint_interval)
        if interval_ms < 10:
            raise InvalidJobError(f"a checkpoint interval must be at least 10 ms, not {interval_ms}")
        return self._set(options.CHECKPOINTING_INTERVAL, interval_ms)

    def get_checkpoint_timeout(self) -> int:
        return self._configuration.get(options.CHECKPOINTING_TIMEOUT)

    def set_checkpoint_timeout(self, checkpoint_timeout: TimeLike) -> "CheckpointConfig":
        timeout_ms = to_milliseconds(checkpoint_timeout)
        if timeout_ms < 10:
            raise InvalidJobError(f"a checkpoint timeout must be at least 10 ms, not {timeout_ms}")
        return self._set(options.CHECKPOINTING_TIMEOUT, timeout_ms)

    def get_min_pause_between_checkpoints(self) -> int:
        return self._configuration.get(options.CHECKPOINTING_MIN_PAUSE)

    def set_min_pause_between_checkpoints(
        self, min_pause_between_checkpoints: TimeLike
    ) -> "CheckpointConfig":
        return self._set(options.CHECKPOINTING_MIN_PAUSE, to_milliseconds(min_pause_between_checkpoints))

    def get_max_concurrent_checkpoints(self) -> int:
        return self._configuration.get(options.CHECKPOINTING_MAX_CONCURRENT)

    def set_max_concurrent_checkpoints(self, max_concurrent_checkpoints: int) -> "CheckpointConfig":
        return self._set(options.CHECKPOINTING_MAX_CONCURRENT, max_concurrent_checkpoints)

    def is_fail_on_checkpointing_errors(self) -> bool:
        return self.get_tolerable_checkpoint_failure_number() == 0

    def set_fail_on_checkpointing_errors(self, fail_on_checkpointing_errors: bool) -> "CheckpointConfig":
        return self.set_tolerable_checkpoint_failure_number(0 if fail_on_checkpointing_errors else 2**31 - 1)

    def get_tolerable_checkpoint_failure_number(self) -> int:
        return self._configuration.get(options.CHECKPOINTING_TOLERABLE_FAILURES)

    def set_tolerable_checkpoint_failure_number(
        self, tolerable_checkpoint_failure_number: int
    ) -> "CheckpointConfig":
        return self._set(options.CHECKPOINTING_TOLERABLE_FAILURES, tolerable_checkpoint_failure_number)

    def set_externalized_checkpoint_retention(
        self, retention_mode: ExternalizedCheckpointRetention
    ) -> "CheckpointConfig":
        check_argument(
            retention_mode,
            ExternalizedCheckpointRetention,
            "set_externalized_checkpoint_retention()",
            "retention_mode",
        )
        return self._set(options.CHECKPOINTING_RETENTION, retention_mode.name)

    def is_externalized_checkpoints_enabled(self) -> bool:
        return (
            self.get_externalized_checkpoint_retention()
            is not ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
        )

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention:
        return ExternalizedCheckpointRetention[self._configuration.get(options.CHECKPOINTING_RETENTION)]

    # ---- what PyFlink 1.x has -------------------------------------------------------------------

    def enable_externalized_checkpoints(self, cleanup_mode: ExternalizedCheckpointCleanup) -> "CheckpointConfig":
        return self.set_externalized_checkpoint_retention(cleanup_mode)

    def set_externalized_checkpoint_cleanup(self, cleanup_mode: ExternalizedCheckpointCleanup) -> "CheckpointConfig":
        return self.set_externalized_checkpoint_retention(cleanup_mode)

    def get_externalized_checkpoint_cleanup(self) -> ExternalizedCheckpointCleanup:
        return self.get_externalized_checkpoint_retention()

    def set_checkpoint_storage(self, storage: CheckpointStorage) -> "CheckpointConfig":
        check_argument(
            storage,
            CheckpointStorage,
            "set_checkpoint_storage()",
            "storage",
            "give FileSystemCheckpointStorage(path) or JobManagerCheckpointStorage(), or call set_checkpoint_storage_dir(path)",
        )
        for option, value in storage.settings().items():
            self._configuration.set(option, value)
        return self

    def set_checkpoint_storage_dir(self, checkpoint_path: str) -> "CheckpointConfig":
        check_argument(checkpoint_path, str, "set_checkpoint_storage_dir()", "checkpoint_path", "give a folder or URL")
        return self.set_checkpoint_storage(FileSystemCheckpointStorage(checkpoint_path))

    # ---- unaligned checkpoints ------------------------------------------------------------------

    def is_unaligned_checkpoints_enabled(self) -> bool:
        return self._configuration.get(options.CHECKPOINTING_UNALIGNED)

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> "CheckpointConfig":
        return self._set(options.CHECKPOINTING_UNALIGNED, enabled)

    def disable_unaligned_checkpoints(self) -> "CheckpointConfig":
        return self.enable_unaligned_checkpoints(False)

    def set_aligned_checkpoint_timeout(self, alignment_timeout: TimeLike) -> "CheckpointConfig":
        return self._set(options.CHECKPOINTING_ALIGNED_TIMEOUT, to_milliseconds(alignment_timeout))

    def get_aligned_checkpoint_timeout(self) -> Duration:
        return Duration.of_millis(self._configuration.get(options.CHECKPOINTING_ALIGNED_TIMEOUT))

    def set_alignment_timeout(self, alignment_timeout: TimeLike) -> "CheckpointConfig":
        """The older name of `set_aligned_checkpoint_timeout`."""
        return self.set_aligned_checkpoint_timeout(alignment_timeout)

    def get_alignment_timeout(self) -> Duration:
        return self.get_aligned_checkpoint_timeout()

    def set_force_unaligned_checkpoints(self, force_unaligned_checkpoints: bool = True) -> "CheckpointConfig":
        return self._set(options.CHECKPOINTING_FORCE_UNALIGNED, force_unaligned_checkpoints)

    def is_force_unaligned_checkpoints(self) -> bool:
        return self._configuration.get(options.CHECKPOINTING_FORCE_UNALIGNED)
