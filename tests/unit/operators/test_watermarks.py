import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkish.operators.watermarks import CombinedWatermark, IdleTimer, checked_timestamp


def test_no_part_means_no_watermark_and_no_idleness():
    combined = CombinedWatermark()
    assert combined.watermark == -(2**63) and not combined.idle
    assert not combined.remove("unknown")


def test_a_part_that_is_taken_away_no_longer_counts():
    combined = CombinedWatermark("ab")
    combined.update("a", 10)
    assert not combined.update("b", 3) or combined.watermark == 3
    assert combined.remove("b") and combined.watermark == 10


@given(st.lists(st.tuples(st.integers(0, 2), st.one_of(st.integers(0, 9), st.booleans()))))
def test_the_combined_watermark_never_goes_back_and_never_passes_an_active_part(steps):
    combined, marks, idle = CombinedWatermark(range(3)), [-(2**63)] * 3, [False] * 3
    for part, step in steps:
        before = combined.watermark
        if isinstance(step, bool):
            idle[part] = step
            went_up = combined.set_idle(part, step)
        else:
            marks[part], idle[part] = max(marks[part], step), False
            went_up = combined.update(part, step)
        active = [mark for mark, is_idle in zip(marks, idle) if not is_idle]
        assert combined.idle == (not active)
        assert combined.watermark == max(before, min(active) if active else max(marks))
        assert went_up == (combined.watermark > before)


@given(st.permutations(range(3)), st.lists(st.integers(0, 9), min_size=3, max_size=3))
def test_when_all_go_idle_the_result_does_not_depend_on_the_order(order, marks):
    combined = CombinedWatermark(range(3))
    for part, mark in enumerate(marks):
        combined.update(part, mark)
    for part in order:
        combined.set_idle(part, True)
    assert combined.watermark == max(marks)


def test_silence_is_counted_from_the_last_record():
    timer = IdleTimer(100)
    assert [timer.check(n, t) for n, t in [(0, 0), (1, 90), (1, 180), (1, 190), (2, 300)]] == [
        False, False, False, True, False
    ]  # fmt: skip
    timer.restart()
    assert not timer.check(2, 500) and timer.check(2, 600)


def test_event_times_are_whole_milliseconds():
    import numpy as np

    assert checked_timestamp(np.int32(5)) == 5 and type(checked_timestamp(np.int32(5))) is int
    for wrong in (1.5, "1", None, True):
        with pytest.raises(TypeError, match="milliseconds"):
            checked_timestamp(wrong)
