"""StateTtlConfig: when kept values expire, and how they are cleaned up."""

from __future__ import annotations

from enum import Enum
from typing import Any, Mapping, Optional

from flinkish.common.time import Duration, TimeLike, to_milliseconds
from flinkish.errors import InvalidJobError

__all__ = ["StateTtlConfig"]


class StateTtlConfig:
    """Made by ``StateTtlConfig.new_builder(ttl)…build()``."""

    class UpdateType(Enum):
        """What renews a value's time to live."""

        Disabled = 0
        OnCreateAndWrite = 1
        OnReadAndWrite = 2

    class StateVisibility(Enum):
        """Whether an expired value that is still there may be read."""

        ReturnExpiredIfNotCleanedUp = 0
        NeverReturnExpired = 1

    class TtlTimeCharacteristic(Enum):
        ProcessingTime = 0

    def __init__(
        self,
        update_type: "StateTtlConfig.UpdateType",
        state_visibility: "StateTtlConfig.StateVisibility",
        ttl_time_characteristic: "StateTtlConfig.TtlTimeCharacteristic",
        ttl: TimeLike,
        cleanup_strategies: "StateTtlConfig.CleanupStrategies",
    ):
        self._update_type = update_type
        self._state_visibility = state_visibility
        self._ttl_time_characteristic = ttl_time_characteristic
        self.ttl_ms = to_milliseconds(ttl)
        self._cleanup_strategies = cleanup_strategies
        if self.ttl_ms <= 0:
            raise InvalidJobError(f"a time to live must be above 0 ms, not {self.ttl_ms}")

    @staticmethod
    def new_builder(ttl: TimeLike) -> "StateTtlConfig.Builder":
        return StateTtlConfig.Builder(ttl)

    def get_update_type(self) -> "StateTtlConfig.UpdateType":
        return self._update_type

    def get_state_visibility(self) -> "StateTtlConfig.StateVisibility":
        return self._state_visibility

    def get_ttl(self) -> Duration:
        return Duration.of_millis(self.ttl_ms)

    def get_ttl_time_characteristic(self) -> "StateTtlConfig.TtlTimeCharacteristic":
        return self._ttl_time_characteristic

    def is_enabled(self) -> bool:
        return self._update_type is not StateTtlConfig.UpdateType.Disabled

    def get_cleanup_strategies(self) -> "StateTtlConfig.CleanupStrategies":
        return self._cleanup_strategies

    def __repr__(self) -> str:
        return f"StateTtlConfig({self.ttl_ms} ms, {self._update_type.name}, {self._state_visibility.name})"

    class Builder:
        def __init__(self, ttl: TimeLike):
            self._ttl = ttl
            self._update_type = StateTtlConfig.UpdateType.OnCreateAndWrite
            self._state_visibility = StateTtlConfig.StateVisibility.NeverReturnExpired
            self._ttl_time_characteristic = StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
            self._strategies: dict[Any, Any] = {}
            self._in_background = True

        def set_update_type(self, update_type: "StateTtlConfig.UpdateType"):
            self._update_type = update_type
            return self

        def update_ttl_on_create_and_write(self):
            return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self):
            return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

        def set_state_visibility(self, state_visibility: "StateTtlConfig.StateVisibility"):
            self._state_visibility = state_visibility
            return self

        def return_expired_if_not_cleaned_up(self):
            return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self):
            return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

        def set_ttl_time_characteristic(self, ttl_time_characteristic):
            self._ttl_time_characteristic = ttl_time_characteristic
            return self

        def use_processing_time(self):
            return self.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)

        def cleanup_full_snapshot(self):
            strategies = StateTtlConfig.CleanupStrategies
            self._strategies[strategies.Strategies.FULL_STATE_SCAN_SNAPSHOT] = strategies.EMPTY_STRATEGY
            return self

        def cleanup_incrementally(self, cleanup_size: int, run_cleanup_for_every_record: bool):
            strategies = StateTtlConfig.CleanupStrategies
            self._strategies[strategies.Strategies.INCREMENTAL_CLEANUP] = (
                strategies.IncrementalCleanupStrategy(cleanup_size, run_cleanup_for_every_record)
            )
            return self

        def cleanup_in_rocksdb_compact_filter(
            self, query_time_after_num_entries: int, periodic_compaction_time: Optional[TimeLike] = None
        ):
            strategies = StateTtlConfig.CleanupStrategies
            self._strategies[strategies.Strategies.ROCKSDB_COMPACTION_FILTER] = (
                strategies.RocksdbCompactFilterCleanupStrategy(
                    query_time_after_num_entries, periodic_compaction_time
                )
            )
            return self

        def disable_cleanup_in_background(self):
            self._in_background = False
            return self

        def set_ttl(self, ttl: TimeLike):
            self._ttl = ttl
            return self

        def build(self) -> "StateTtlConfig":
            return StateTtlConfig(
                self._update_type,
                self._state_visibility,
                self._ttl_time_characteristic,
                self._ttl,
                StateTtlConfig.CleanupStrategies(dict(self._strategies), self._in_background),
            )

    class CleanupStrategies:
        class Strategies(Enum):
            FULL_STATE_SCAN_SNAPSHOT = 0
            INCREMENTAL_CLEANUP = 1
            ROCKSDB_COMPACTION_FILTER = 2

        class CleanupStrategy:
            """Base of the strategies."""

        class EmptyCleanupStrategy(CleanupStrategy):
            """A strategy that has no settings."""

        class IncrementalCleanupStrategy(CleanupStrategy):
            def __init__(self, cleanup_size: int, run_cleanup_for_every_record: bool):
                self._cleanup_size = cleanup_size
                self._run_cleanup_for_every_record = run_cleanup_for_every_record

            def get_cleanup_size(self) -> int:
                return self._cleanup_size

            def run_cleanup_for_every_record(self) -> bool:
                return self._run_cleanup_for_every_record

        class RocksdbCompactFilterCleanupStrategy(CleanupStrategy):
            def __init__(
                self,
                query_time_after_num_entries: int,
                periodic_compaction_time: Optional[TimeLike] = None,
            ):
                self._query_time_after_num_entries = query_time_after_num_entries
                self._periodic_compaction_time = (
                    Duration.of_days(30)
                    if periodic_compaction_time is None
                    else Duration.of_millis(to_milliseconds(periodic_compaction_time))
                )

            def get_query_time_after_num_entries(self) -> int:
                return self._query_time_after_num_entries

            def get_periodic_compaction_time(self) -> Duration:
                return self._periodic_compaction_time

        EMPTY_STRATEGY = EmptyCleanupStrategy()

        def __init__(self, strategies: Mapping[Any, Any], is_cleanup_in_background: bool):
            self._strategies = strategies
            self._is_cleanup_in_background = is_cleanup_in_background

        def is_cleanup_in_background(self) -> bool:
            return self._is_cleanup_in_background

        def in_full_snapshot(self) -> bool:
            return self.Strategies.FULL_STATE_SCAN_SNAPSHOT in self._strategies

        def get_incremental_cleanup_strategy(self):
            """None when there is none; background cleanup then uses 5 entries for each access."""
            default = self.IncrementalCleanupStrategy(5, False) if self._is_cleanup_in_background else None
            return self._strategies.get(self.Strategies.INCREMENTAL_CLEANUP, default)

        def get_rocksdb_compact_filter_cleanup_strategy(self):
            default = (
                self.RocksdbCompactFilterCleanupStrategy(1000) if self._is_cleanup_in_background else None
            )
            return self._strategies.get(self.Strategies.ROCKSDB_COMPACTION_FILTER, default)
