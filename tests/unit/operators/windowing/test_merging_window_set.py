"""Which windows of a key are open, and where their content is."""

from hypothesis import given
from hypothesis import strategies as st

from flinkish.datastream.time_window import TimeWindow, TimeWindowSerializer
from flinkish.datastream.window import EventTimeSessionWindows
from flinkish.operators.windowing.merging_window_set import MergingWindowSet
from flinkish.operators.windowing.namespaces import TimeWindowNamespaces

NAMESPACES = TimeWindowNamespaces(TimeWindowSerializer())


class Own(EventTimeSessionWindows):
    """As sessions, by ``merge_windows``."""

    def merge_windows(self, windows, callback):
        super().merge_windows(windows, callback)


def sessions():
    return MergingWindowSet(EventTimeSessionWindows(3), NAMESPACES)


def test_a_window_alone_is_its_own_state_window():
    mapping = {}
    assert sessions().add(mapping, TimeWindow(0, 4)) == ((0, 4), [])
    assert mapping == {(0, 4): (0, 4)}


def test_a_window_inside_another_changes_nothing():
    for windows in (sessions(), MergingWindowSet(Own(3), NAMESPACES)):
        mapping = {(0, 9): (0, 4)}
        assert windows.add(mapping, TimeWindow(2, 5)) == ((0, 9), [])
        assert windows.add(mapping, TimeWindow(0, 9)) == ((0, 9), [])
        assert mapping == {(0, 9): (0, 4)}


def test_windows_that_one_bridges_keep_the_first_ones_state():
    mapping = {(20, 25): (20, 25), (0, 5): (0, 3), (40, 45): (40, 45)}
    result, (merge,) = sessions().add(mapping, TimeWindow(4, 21))
    assert result == (0, 25)
    assert merge == ((0, 25), [(0, 5), (20, 25)], (0, 3), [(20, 25)])
    assert mapping == {(40, 45): (40, 45), (0, 25): (0, 3)}


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), max_size=12))
def test_the_short_way_of_sessions_is_that_of_any_assigner(windows):
    short, long = {}, {}
    short_set, long_set = sessions(), MergingWindowSet(Own(3), NAMESPACES)
    for start, length in windows:
        window = TimeWindow(start, start + length)
        assert short_set.add(short, window) == long_set.add(long, window)
        assert short == long
        assert len(set(short.values())) == len(short)
