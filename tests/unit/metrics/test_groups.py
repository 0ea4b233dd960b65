import threading
from fractions import Fraction

import numpy as np
import pytest

from flinkish.errors import UserError
from flinkish.metrics import MetricGroup
from flinkish.metrics.groups import OperatorMetricGroup


def test_a_group_gives_one_metric_for_one_name_and_lists_all_with_their_path():
    now = [0]
    group = OperatorMetricGroup(lambda: now[0])
    assert isinstance(group, MetricGroup)
    group.counter("seen").inc(3)
    group.counter("seen").dec()
    group.add_group("topic", "flights").counter("seen").inc()
    group.gauge("size", lambda: 7)
    meter = group.meter("rate")
    meter.mark_event(10)
    now[0] = 5_000
    for value in (4, 2, 6):
        group.distribution("delay").update(value)
    assert group.snapshot() == {
        "seen": 2,
        "topic.flights.seen": 1,
        "size": 7,
        "rate": {"count": 10, "rate": 2.0},
        "delay": {"count": 3, "sum": 12, "min": 2, "max": 6, "mean": 4.0},
    }


def test_a_meter_forgets_what_lies_before_its_time_span():
    now = [0]
    meter = OperatorMetricGroup(lambda: now[0]).meter("rate", 10)
    meter.mark_event(100)
    for second in range(1, 31):
        now[0] = second * 1_000
        meter.get_rate()
    assert meter.get_rate() == 0.0


def test_a_gauge_that_fails_says_so_and_spares_the_others():
    group = OperatorMetricGroup()
    group.gauge("bad", lambda: 1 / 0)
    group.counter("good")
    assert group.snapshot() == {"bad": "ZeroDivisionError: division by zero", "good": 0}


def test_one_name_cannot_be_two_kinds_of_metric():
    group = OperatorMetricGroup()
    group.counter("x")
    for make in (group.meter, group.histogram, lambda name: group.gauge(name, int)):
        with pytest.raises(UserError, match="'x'(.|\n)*a SimpleCounter of that name"):
            make("x")
    group.gauge("size", lambda: 1)
    group.gauge("size", lambda: 2)
    assert group.snapshot() == {"x": 0, "size": 2}


@pytest.mark.parametrize(
    "make",
    [
        lambda group: group.counter(5),
        lambda group: group.add_group("a", 5),
        lambda group: group.gauge("x", 5),
        lambda group: group.meter("x", 0),
        lambda group: group.meter("x", "60"),
        lambda group: group.histogram("x", -1),
    ],
)
def test_arguments_that_would_fail_when_figures_are_collected_are_refused(make):
    with pytest.raises(UserError, match="cannot use"):
        make(OperatorMetricGroup())


def test_what_a_gauge_returns_is_a_number_or_short_text_so_that_a_report_always_travels():
    group = OperatorMetricGroup()
    group.gauge("lock", threading.Lock)
    group.gauge("long", lambda: "x" * 10_000)
    group.gauge("numpy", lambda: np.int64(7))
    group.gauge("share", lambda: Fraction(1, 2))
    group.gauge("none", lambda: None)
    figures = group.snapshot()
    assert figures.pop("lock").startswith("<unlocked _thread.lock")
    assert len(figures.pop("long")) == 200
    assert figures == {"numpy": 7, "share": 0.5, "none": None}
    assert type(figures["numpy"]) is int


def test_a_histogram_tells_how_the_newest_values_are_spread():
    group = OperatorMetricGroup()
    histogram = group.histogram("size", window_size=100)
    assert group.snapshot()["size"] == {"count": 0, "min": 0, "max": 0}
    for value in [1_000_000, *range(1, 101)]:
        histogram.update(value)
    found = histogram.get_statistics()
    assert histogram.get_count() == 101 and found.size() == 100 and found.get_values() == list(range(1, 101))
    assert (found.get_min(), found.get_max(), found.get_mean()) == (1, 100, 50.5)
    assert found.get_std_dev() == pytest.approx(29.011, abs=1e-3)
    # by (n + 1) * share, as Apache Commons Math: 50.5 lies between the 50th and the 51st
    quantiles = [found.get_quantile(share) for share in (0, 0.5, 0.95, 0.99, 1)]
    assert quantiles == pytest.approx([1, 50.5, 95.95, 99.99, 100])
    assert group.snapshot()["size"]["median"] == 50.5 and group.histogram("size") is histogram
    with pytest.raises(UserError, match="a SimpleHistogram of that name"):
        group.counter("size")
