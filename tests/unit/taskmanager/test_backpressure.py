from flinkish.taskmanager.backpressure import BACKPRESSURED, BUSY, IDLE, TaskTimes


def test_the_three_rates_add_up_to_a_second():
    times = TaskTimes(now_ns=5)
    times.switch(BUSY, 200_000_005)
    times.switch(BACKPRESSURED, 500_000_005)
    times.switch(IDLE, 1_000_000_005)
    rates = times.rates(2_000_000_005)
    assert rates == {
        "busyTimeMsPerSecond": 150,
        "idleTimeMsPerSecond": 600,
        "backPressuredTimeMsPerSecond": 250,
    }
    assert sum(rates.values()) == 1000
    assert times.blocked_ms() == 500


def test_rates_are_of_the_last_interval_and_totals_of_all():
    times = TaskTimes(now_ns=0)
    times.switch(BUSY, 0)
    times.rates(1_000_000_000)
    times.switch(IDLE, 1_000_000_000)
    assert times.rates(2_000_000_000)["idleTimeMsPerSecond"] == 1000
    assert times.totals()["accumulateBusyTimeMs"] == 1000


def test_two_reports_in_a_row_give_the_same_rates():
    times = TaskTimes(now_ns=0)
    times.switch(BUSY, 0)
    first = times.rates(1_000_000_000)
    assert times.rates(1_000_000_010) == first


def test_the_first_report_has_rates_too_however_early_it_is():
    times = TaskTimes(now_ns=0)
    times.switch(BUSY, 1_000_000)
    first = times.rates(4_000_000)
    assert (first["busyTimeMsPerSecond"], first["idleTimeMsPerSecond"]) == (750, 250)
    assert times.rates(5_000_000) == first, "the next one is not of a millisecond"
