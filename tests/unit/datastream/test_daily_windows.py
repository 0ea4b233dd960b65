"""Days of a time zone, where clocks change too."""

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkish.common.time import to_epoch_milliseconds
from flinkish.datastream.window import DailyEventTimeWindows, DailyProcessingTimeWindows
from flinkish.errors import InvalidJobError

HOUR = 3_600_000
ZONES = ["Europe/Berlin", "America/New_York", "Asia/Beirut", "Pacific/Apia", "Australia/Lord_Howe", "UTC"]


def day_of(zone, *instant, start="00:00"):
    """The day that holds a local instant: its first and last instant, local."""
    tz = ZoneInfo(zone)
    time = to_epoch_milliseconds(datetime(*instant, tzinfo=tz))
    (window,) = DailyEventTimeWindows.of(zone, start).assign_windows(None, time, None)
    first, last = (datetime.fromtimestamp(ms / 1000, tz).isoformat() for ms in (window.start, window.end - 1))
    return first[:16], last[:16], (window.end - window.start) / HOUR


@pytest.mark.parametrize(
    "zone, instant, expected",
    [
        ("Europe/Berlin", (2024, 1, 15, 12), ("2024-01-15T00:00", "2024-01-15T23:59", 24)),
        ("Europe/Berlin", (2024, 3, 31, 12), ("2024-03-31T00:00", "2024-03-31T23:59", 23)),
        ("Europe/Berlin", (2024, 10, 27, 12), ("2024-10-27T00:00", "2024-10-27T23:59", 25)),
        ("Europe/Berlin", (1969, 7, 20, 22), ("1969-07-20T00:00", "1969-07-20T23:59", 24)),
        # Midnight is jumped over: the day begins at one o'clock.
        ("Asia/Beirut", (2024, 3, 31, 0, 30), ("2024-03-31T01:00", "2024-03-31T23:59", 23)),
        # A whole day is jumped over.
        ("Pacific/Apia", (2011, 12, 31, 12), ("2011-12-31T00:00", "2011-12-31T23:59", 24)),
        ("Australia/Lord_Howe", (2024, 4, 7, 12), ("2024-04-07T00:00", "2024-04-07T23:59", 24.5)),
    ],
)
def test_a_day_lasts_from_one_local_midnight_to_the_next(zone, instant, expected):
    assert day_of(zone, *instant) == expected


def test_a_day_may_begin_at_another_time():
    assert day_of("Europe/Berlin", 2024, 3, 31, 5, start="06:00") == ("2024-03-30T06:00", "2024-03-31T05:59", 23)
    assert day_of("Europe/Berlin", 2024, 3, 31, 6, start="06:00") == ("2024-03-31T06:00", "2024-04-01T05:59", 24)


@given(
    zone=st.sampled_from(ZONES),
    hour=st.integers(0, 23),
    around=st.datetimes(datetime(1980, 1, 1), datetime(2037, 1, 1)),
    steps=st.lists(st.integers(-40 * HOUR, 40 * HOUR), min_size=1, max_size=8),
)
def test_days_tile_time_and_begin_when_the_clock_says_so(zone, hour, around, steps):
    assigner, tz = DailyEventTimeWindows.of(zone, f"{hour:02}:00"), ZoneInfo(zone)
    time = to_epoch_milliseconds(around.replace(tzinfo=timezone.utc))
    for step in steps:
        time += step
        (window,) = assigner.assign_windows(None, time, None)
        assert window.start <= time < window.end
        (before,) = assigner.assign_windows(None, window.start - 1, None)
        assert before.end == window.start
        begin = datetime.fromtimestamp(window.start / 1000, tz)
        jumped = datetime.fromtimestamp(window.start / 1000 - 1, tz).utcoffset() != begin.utcoffset()
        assert (begin.hour, begin.minute) == (hour, 0) or jumped


@pytest.mark.parametrize(
    "zone, start, instant, expected",
    [
        ("Europe/Berlin", "02:30", (2024, 3, 31, 12), ("2024-03-31T03:00", "2024-04-01T02:29", 23.5)),
        ("Europe/Berlin", "02:30", (2024, 10, 27, 12), ("2024-10-27T02:30", "2024-10-28T02:29", 25)),
        ("Australia/Lord_Howe", "02:15", (2024, 10, 6, 12), ("2024-10-06T02:30", "2024-10-07T02:14", 23.75)),
        ("Pacific/Apia", "06:00", (2011, 12, 31, 12), ("2011-12-31T06:00", "2012-01-01T05:59", 24)),
        ("Pacific/Apia", "06:00", (2011, 12, 31, 3), ("2011-12-31T00:00", "2011-12-31T05:59", 6)),
    ],
)
def test_where_clocks_jump_over_its_beginning_a_day_begins_when_they_do(zone, start, instant, expected):
    assert day_of(zone, *instant, start=start) == expected


def test_days_by_the_clock():
    class Context:
        def get_current_processing_time(self):
            return to_epoch_milliseconds(datetime(2024, 1, 1, 23, 30, tzinfo=timezone.utc))

    (window,) = DailyProcessingTimeWindows.of("Europe/Berlin").assign_windows(None, None, Context())
    assert window.start == to_epoch_milliseconds(datetime(2024, 1, 1, 23, tzinfo=timezone.utc))


def test_what_is_no_time_zone_or_no_time_is_refused():
    with pytest.raises(InvalidJobError, match="Europe/Berln"):
        DailyEventTimeWindows.of("Europe/Berln")
    with pytest.raises(InvalidJobError, match="time zone of its own"):
        DailyEventTimeWindows.of("UTC", datetime(2024, 1, 1, tzinfo=timezone.utc).timetz())
    with pytest.raises(InvalidJobError, match="years 1 to 9999"):
        DailyEventTimeWindows.of(timezone(timedelta(hours=1))).assign_windows(None, 2**62, None)
