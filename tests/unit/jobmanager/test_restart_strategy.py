import random

import pytest

from flinkish.common.restart_strategy import RestartStrategies
from flinkish.jobmanager.restart_strategy import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
    create_restart_strategy,
)

RNG = random.Random(0)


def fails(strategy, now_ms):
    strategy.failed(now_ms, RNG)
    return strategy.delay_ms(now_ms) if strategy.can_restart(now_ms) else None


def test_none_never_restarts():
    assert fails(NoRestart(), 0) is None


def test_fixed_delay_restarts_so_many_times_in_the_whole_life_of_the_job():
    strategy = FixedDelayRestart(attempts=2, delay=500)
    assert [fails(strategy, 10**9 * day) for day in range(3)] == [500, 500, None]
    assert strategy.describe() == "fixed-delay allows 2 restarts, this is failure 3"


def test_failure_rate_restarts_while_failures_are_rare_enough():
    strategy = FailureRateRestart(failures_max=2, interval_ms=1_000, delay=7)
    assert [fails(strategy, now_ms) for now_ms in (0, 900)] == [7, 7]
    assert fails(strategy, 1_001) == 7  # the first is out of the interval
    assert fails(strategy, 1_002) is None  # 900, 1001, 1002
    assert "the last 3 came within 102 ms" in strategy.describe()


def test_failure_rate_counts_a_failure_at_the_very_end_of_the_interval():
    strategy = FailureRateRestart(failures_max=1, interval_ms=1_000, delay=7)
    assert fails(strategy, 0) == 7
    assert fails(strategy, 1_000) is None


def test_exponential_delay_grows_up_to_its_maximum():
    strategy = ExponentialDelayRestart(1_000, 3_000, 1.5, jitter_factor=0)
    now_ms, delays = 0, []
    for _ in range(5):
        delays.append(fails(strategy, now_ms))
        now_ms += delays[-1] + 1
    assert delays == [1_000, 1_500, 2_250, 3_000, 3_000]


def test_exponential_delay_takes_failures_before_the_restart_as_one():
    strategy = ExponentialDelayRestart(jitter_factor=0)
    assert strategy.failed(0, RNG) and strategy.delay_ms(0) == 1_000
    assert not strategy.failed(400, RNG) and strategy.delay_ms(400) == 600
    assert strategy.attempts == 1
    assert strategy.failed(1_001, RNG) and strategy.delay_ms(1_001) == 1_500


def test_exponential_delay_begins_anew_after_a_long_time_without_failure():
    strategy = ExponentialDelayRestart(reset_threshold_ms=10_000, jitter_factor=0, attempts_before_reset=2)
    assert fails(strategy, 0) == 1_000
    assert fails(strategy, 2_000) == 1_500  # restart at 3500
    assert fails(strategy, 13_499) is None  # 9999 ms after it
    strategy = ExponentialDelayRestart(reset_threshold_ms=10_000, jitter_factor=0, attempts_before_reset=2)
    assert fails(strategy, 0) == 1_000
    assert fails(strategy, 2_000) == 1_500
    assert fails(strategy, 13_500) == 1_000
    assert strategy.attempts == 1


def test_exponential_delay_has_jitter_of_a_tenth_but_is_never_below_the_first_delay():
    strategy = ExponentialDelayRestart(1_000, 60_000, 2.0, jitter_factor=0.1)
    delays = []
    for seed in range(300):
        strategy.attempts, strategy.restart_ms = 3, None
        strategy.failed(0, random.Random(seed))
        delays.append(strategy.delay_ms(0))
    assert min(delays) >= 7_200 and max(delays) <= 8_800 and len(set(delays)) > 100
    strategy.attempts, strategy.restart_ms = 0, None
    assert {fails(ExponentialDelayRestart(), 0) >= 1_000 for _ in range(50)} == {True}


@pytest.mark.parametrize("multiplier", [1.0, 1.5, 1e6])
def test_exponential_delay_survives_any_number_of_failures(multiplier):
    strategy = ExponentialDelayRestart(1_000, 60_000, multiplier, jitter_factor=0.1)
    strategy.attempts = 10**6
    assert fails(strategy, 0) == pytest.approx(1_000 if multiplier == 1 else 60_000, rel=0.1)


def test_the_default_depends_on_checkpointing():
    assert create_restart_strategy({}, checkpointing=False) == NoRestart()
    assert create_restart_strategy({}, checkpointing=True) == ExponentialDelayRestart(
        1_000, 60_000, 1.5, 3_600_000, 0.1, 2**31 - 1
    )


def test_strategies_come_from_the_settings_that_users_write():
    def strategy(of):
        return create_restart_strategy({option.key: value for option, value in of.settings().items()}, True)

    assert strategy(RestartStrategies.no_restart()) == NoRestart()
    assert strategy(RestartStrategies.fixed_delay_restart(3, 200)) == FixedDelayRestart(3, 200)
    assert strategy(RestartStrategies.failure_rate_restart(3, 1_000, 5)) == FailureRateRestart(3, 1_000, 5)
    settings = {
        "restart-strategy.type": "exponential-delay",
        "restart-strategy.exponential-delay.initial-backoff": "2 min",
        "restart-strategy.exponential-delay.attempts-before-reset-backoff": "4",
    }
    assert create_restart_strategy(settings, False) == ExponentialDelayRestart(
        120_000, 120_000, attempts_before_reset=4
    )
