import pickle
from datetime import datetime, timedelta, timezone

import pytest

from flinkish.common import Duration, Instant, Time
from flinkish.common.time import to_epoch_milliseconds, to_milliseconds
from flinkish.errors import InvalidJobError


@pytest.mark.parametrize(
    "length",
    [Time.minutes(2), Duration.of_minutes(2), timedelta(minutes=2), 120_000, "2 min", "120 s", "120000"],
)
def test_every_form_of_a_length_of_time_gives_the_same_milliseconds(length):
    assert to_milliseconds(length) == 120_000


def test_nanoseconds_are_rounded_down_to_milliseconds():
    assert Duration.of_nanos(1_999_999).to_milliseconds() == 1
    assert to_milliseconds("1999 us") == 1


@pytest.mark.parametrize("nonsense", [True, None, "soon", "5 parsecs", 1.5, object()])
def test_what_is_no_length_of_time_is_refused(nonsense):
    with pytest.raises(InvalidJobError):
        to_milliseconds(nonsense)


def test_equal_lengths_are_equal_hash_alike_and_survive_pickle():
    assert Time.seconds(1) == Time.milliseconds(1_000) == Duration.of_seconds(1)
    assert len({Time.seconds(1), Duration.of_millis(1_000)}) == 1
    assert pickle.loads(pickle.dumps(Time.days(3))) == Time.days(3)
    assert Time.seconds(1) < Time.minutes(1)


def test_an_instant_before_the_epoch_keeps_its_milliseconds():
    assert Instant.of_epoch_milli(-1) == Instant(-1, 999_000_000)
    assert Instant.of_epoch_milli(-1).to_epoch_milli() == -1


def test_points_in_time_become_utc_milliseconds():
    east = timezone(timedelta(hours=2))
    assert to_epoch_milliseconds(datetime(1970, 1, 1, 2, 0, 1, tzinfo=east)) == 1_000
    assert to_epoch_milliseconds(datetime(1969, 12, 31, 23, 59, 59)) == -1_000
    assert to_epoch_milliseconds(Instant(5, 7_000_000)) == 5_007
