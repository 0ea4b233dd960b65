"""RestartStrategies: what happens after a failure, as settings."""

from __future__ import annotations

from typing import Any, Optional

from flinkish.common import options
from flinkish.common.config_options import ConfigOption
from flinkish.common.time import Time, TimeLike, to_milliseconds

__all__ = ["RestartStrategies", "RestartStrategyConfiguration"]


class RestartStrategyConfiguration:
    """Base; `settings` are the keys of the Configuration that it stands for."""

    def settings(self) -> dict[ConfigOption, Any]:
        return {}

    def get_description(self) -> str:
        return "Cluster level default restart strategy"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.settings() == other.settings()  # type: ignore[union-attr]

    def __hash__(self) -> int:
        return hash((type(self).__name__, tuple(self.settings().items())))

    def __repr__(self) -> str:
        return self.get_description()


class RestartStrategies:
    class NoRestartStrategyConfiguration(RestartStrategyConfiguration):
        def settings(self) -> dict[ConfigOption, Any]:
            return {options.RESTART_STRATEGY: "none"}

        def get_description(self) -> str:
            return "Restart deactivated."

    class FixedDelayRestartStrategyConfiguration(RestartStrategyConfiguration):
        def __init__(
            self,
            restart_attempts: int = 1,
            delay_between_attempts_interval: TimeLike = 1_000,
        ):
            self._attempts = restart_attempts
            self._delay_ms = to_milliseconds(delay_between_attempts_interval)

        def get_restart_attempts(self) -> int:
            return self._attempts

        def get_delay_between_attempts_interval(self) -> Time:
            return Time(self._delay_ms)

        def settings(self) -> dict[ConfigOption, Any]:
            return {
                options.RESTART_STRATEGY: "fixed-delay",
                options.RESTART_FIXED_DELAY_ATTEMPTS: self._attempts,
                options.RESTART_FIXED_DELAY_DELAY: self._delay_ms,
            }

        def get_description(self) -> str:
            return f"Restart with fixed delay ({self._delay_ms} ms). #{self._attempts} restart attempts."

    class FailureRateRestartStrategyConfiguration(RestartStrategyConfiguration):
        def __init__(
            self,
            max_failure_rate: int = 1,
            failure_interval: TimeLike = 60_000,
            delay_between_attempts_interval: TimeLike = 1_000,
        ):
            self._max_failures = max_failure_rate
            self._interval_ms = to_milliseconds(failure_interval)
            self._delay_ms = to_milliseconds(delay_between_attempts_interval)

        def get_max_failure_rate(self) -> int:
            return self._max_failures

        def get_failure_interval(self) -> Time:
            return Time(self._interval_ms)

        def get_delay_between_attempts_interval(self) -> Time:
            return Time(self._delay_ms)

        def settings(self) -> dict[ConfigOption, Any]:
            return {
                options.RESTART_STRATEGY: "failure-rate",
                options.RESTART_FAILURE_RATE_MAX: self._max_failures,
                options.RESTART_FAILURE_RATE_INTERVAL: self._interval_ms,
                options.RESTART_FAILURE_RATE_DELAY: self._delay_ms,
            }

        def get_description(self) -> str:
            return (
                f"Failure rate restart with maximum of {self._max_failures} failures within interval "
                f"{self._interval_ms} ms and fixed delay {self._delay_ms} ms."
            )

    class FallbackRestartStrategyConfiguration(RestartStrategyConfiguration):
        """As the cluster says."""

    @staticmethod
    def no_restart() -> RestartStrategyConfiguration:
        return RestartStrategies.NoRestartStrategyConfiguration()

    @staticmethod
    def fall_back_restart() -> RestartStrategyConfiguration:
        return RestartStrategies.FallbackRestartStrategyConfiguration()

    @staticmethod
    def fixed_delay_restart(
        restart_attempts: int, delay_between_attempts: TimeLike
    ) -> RestartStrategyConfiguration:
        return RestartStrategies.FixedDelayRestartStrategyConfiguration(
            restart_attempts, delay_between_attempts
        )

    @staticmethod
    def failure_rate_restart(
        failure_rate: int, failure_interval: TimeLike, delay_interval: Optional[TimeLike] = None
    ) -> RestartStrategyConfiguration:
        return RestartStrategies.FailureRateRestartStrategyConfiguration(
            failure_rate, failure_interval, 1_000 if delay_interval is None else delay_interval
        )
