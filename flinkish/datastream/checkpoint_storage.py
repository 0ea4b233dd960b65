"""Checkpoint storage as settings: where snapshots are kept."""

from __future__ import annotations

from typing import Any, Optional

from flinkish.common import options
from flinkish.common.config_options import ConfigOption
from flinkish.errors import InvalidJobError

__all__ = ["CheckpointStorage", "FileSystemCheckpointStorage", "JobManagerCheckpointStorage"]


class CheckpointStorage:
    """Base; `settings` are the keys of the Configuration that it stands for."""

    def __init__(self, checkpoint_path: Optional[str] = None):
        self._checkpoint_path = checkpoint_path

    def settings(self) -> dict[ConfigOption, Any]:
        return {options.CHECKPOINT_DIRECTORY: self._checkpoint_path}

    def get_checkpoint_path(self) -> Optional[str]:
        return self._checkpoint_path

    def get_savepoint_path(self) -> Optional[str]:
        return None


class JobManagerCheckpointStorage(CheckpointStorage):
    """Snapshots stay in the driver's memory: for tests and little state."""

    DEFAULT_MAX_STATE_SIZE = 5 * 1024 * 1024

    def __init__(self, checkpoint_path: Optional[str] = None, max_state_size: Optional[int] = None):
        super().__init__(checkpoint_path)
        self._max_state_size = self.DEFAULT_MAX_STATE_SIZE if max_state_size is None else max_state_size

    def settings(self) -> dict[ConfigOption, Any]:
        return {**super().settings(), options.CHECKPOINT_STORAGE: "jobmanager"}

    def get_max_state_size(self) -> int:
        return self._max_state_size


class FileSystemCheckpointStorage(CheckpointStorage):
    """Snapshots are files under a folder or URL that all hosts reach."""

    MAX_FILE_STATE_THRESHOLD = 1024 * 1024

    def __init__(
        self,
        checkpoint_path: Optional[str] = None,
        file_state_size_threshold: Optional[int] = None,
        write_buffer_size: int = -1,
    ):
        super().__init__(checkpoint_path)
        if checkpoint_path is None:
            raise InvalidJobError("a FileSystemCheckpointStorage needs a checkpoint_path")
        threshold = 20 * 1024 if file_state_size_threshold is None else file_state_size_threshold
        if not 0 <= threshold <= self.MAX_FILE_STATE_THRESHOLD:
            raise InvalidJobError(
                f"the file state size threshold cannot be {threshold}",
                why=f"it must be from 0 to {self.MAX_FILE_STATE_THRESHOLD} bytes",
            )
        self._threshold = threshold
        self._write_buffer_size = write_buffer_size

    def settings(self) -> dict[ConfigOption, Any]:
        return {**super().settings(), options.CHECKPOINT_STORAGE: "filesystem"}

    def get_min_file_size_threshold(self) -> int:
        return self._threshold

    def get_write_buffer_size(self) -> int:
        return max(self._write_buffer_size, self._threshold, 4096)
