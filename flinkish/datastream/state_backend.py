"""State backends as settings: where keyed state lives."""

from __future__ import annotations

from enum import Enum
from typing import Any, Optional

from flinkish.common import options
from flinkish.common.config_options import ConfigOption
from flinkish.errors import InvalidJobError

__all__ = ["EmbeddedRocksDBStateBackend", "HashMapStateBackend", "PredefinedOptions", "StateBackend"]


class StateBackend:
    """Base; `settings` are the keys of the Configuration that it stands for."""

    def settings(self) -> dict[ConfigOption, Any]:
        return {}


class HashMapStateBackend(StateBackend):
    """Python objects in the slot's memory."""

    def settings(self) -> dict[ConfigOption, Any]:
        return {options.STATE_BACKEND: "hashmap"}


class PredefinedOptions(Enum):
    DEFAULT = 0
    SPINNING_DISK_OPTIMIZED = 1
    SPINNING_DISK_OPTIMIZED_HIGH_MEM = 2
    FLASH_SSD_OPTIMIZED = 3


class EmbeddedRocksDBStateBackend(StateBackend):
    """RocksDB on the slot's disk."""

    def __init__(self, enable_incremental_checkpointing: Optional[bool] = None):
        self._incremental = enable_incremental_checkpointing
        self._paths: Optional[list[str]] = None
        self._predefined = PredefinedOptions.DEFAULT
        self._transfer_threads: int = options.ROCKSDB_TRANSFER_THREADS.read({})

    def settings(self) -> dict[ConfigOption, Any]:
        return {
            options.STATE_BACKEND: "rocksdb",
            options.ROCKSDB_INCREMENTAL: self._incremental,
            options.ROCKSDB_LOCAL_DIRECTORIES: self._paths,
            options.ROCKSDB_PREDEFINED_OPTIONS: self._predefined.name,
            options.ROCKSDB_TRANSFER_THREADS: self._transfer_threads,
        }

    def set_db_storage_paths(self, *paths: str) -> None:
        if not paths:
            raise InvalidJobError("set_db_storage_paths() needs at least one path")
        self._paths = list(paths)

    def get_db_storage_paths(self) -> Optional[list[str]]:
        return self._paths

    def is_incremental_checkpoints_enabled(self) -> bool:
        return options.ROCKSDB_INCREMENTAL.read({}) if self._incremental is None else self._incremental

    def set_predefined_options(self, options: PredefinedOptions) -> None:
        self._predefined = options

    def get_predefined_options(self) -> PredefinedOptions:
        return self._predefined

    def set_options(self, options_factory_class_name: str) -> None:
        raise InvalidJobError(
            f"could not use {options_factory_class_name!r} for the options of RocksDB",
            why="it names a class of Java, and there is no JVM in a slot",
            do="set the keys state.backend.rocksdb.* (conf/flinkish-conf.yaml), or set_predefined_options()",
        )

    def get_options(self) -> None:
        """None: options of a class of Java are refused."""
        return None

    def get_number_of_transfer_threads(self) -> int:
        return self._transfer_threads

    def set_number_of_transfer_threads(self, number_of_transfering_threads: int) -> None:
        self._transfer_threads = options.ROCKSDB_TRANSFER_THREADS.parse(number_of_transfering_threads)
