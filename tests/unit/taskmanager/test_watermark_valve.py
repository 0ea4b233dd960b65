import pytest

from flinkish.messages.elements import MAX_WATERMARK_MS, Watermark, WatermarkStatus
from flinkish.taskmanager.watermark_valve import WatermarkValve

IDLE, ACTIVE = WatermarkStatus(True), WatermarkStatus(False)


def play(channels, *moves):
    """Moves are (channel, watermark) or (channel, "idle" | "active"); gives the output of each."""
    valve = WatermarkValve(channels)
    outputs = []
    for channel, what in moves:
        if what in ("idle", "active"):
            outputs.append(valve.status(channel, what == "idle"))
        else:
            outputs.append(valve.watermark(channel, what))
        valve.check()
    return outputs


def test_the_output_is_the_minimum_and_never_goes_back():
    assert play(2, (0, 5), (1, 3), (1, 2), (1, 3), (1, 7), (0, 6)) == [
        [], [Watermark(3)], [], [], [Watermark(5)], [Watermark(6)],
    ]  # fmt: skip


def test_an_idle_channel_lets_the_minimum_rise():
    assert play(2, (0, 5), (1, 3), (1, "idle"), (0, 8)) == [
        [], [Watermark(3)], [Watermark(5)], [Watermark(8)],
    ]  # fmt: skip


@pytest.mark.parametrize("first", [0, 1])
def test_b10_when_all_become_idle_the_largest_watermark_comes_out_in_any_order(first):
    valve = WatermarkValve(2)
    out = []
    for channel, timestamp in ((0, 5), (1, 4)) if first == 0 else ((1, 4), (0, 5)):
        out += valve.watermark(channel, timestamp) + valve.status(channel, idle=True)
    assert out[-2:] == [Watermark(5), IDLE] if first else out[-1] == IDLE
    assert [w for w in out if w == Watermark(5)] == [Watermark(5)]
    assert valve.output_watermark == 5
    # Input 2 comes back with 4: ACTIVE, but no regression; then 6 aligns it at once.
    assert valve.status(1, idle=False) == [ACTIVE]
    assert valve.watermark(1, 4) == []
    assert valve.watermark(1, 6) == [Watermark(6)]


def test_b10_both_watermarks_first_then_both_orders_of_idleness():
    for order in ((0, 1), (1, 0)):
        valve = WatermarkValve(2)
        out = valve.watermark(0, 5) + valve.watermark(1, 4)
        for channel in order:
            out += valve.status(channel, idle=True)
        assert out == [Watermark(4), Watermark(5), IDLE], order


def test_a_channel_that_comes_back_is_realigned_at_once():
    """FLINK-40475: its watermark is ahead already, and it is the only active one."""
    assert play(2, (0, 3), (1, 10), (1, "idle"), (0, "idle"), (1, "active"), (1, 11)) == [
        [], [Watermark(3)], [], [Watermark(10), IDLE], [ACTIVE], [Watermark(11)],
    ]  # fmt: skip
    # Channel 0 (at 3) is idle, 1 (at 10) comes back while 2 (at 5) is active: nothing stalls.
    idle = ((1, "idle"), (0, "idle"), (2, "idle"))
    assert play(3, (0, 3), (1, 10), (2, 5), *idle, (1, "active"))[-2:] == [
        [Watermark(10), IDLE], [ACTIVE],
    ]  # fmt: skip


def test_a_channel_that_lags_after_idleness_does_not_hold_the_output_back():
    lagging = ((1, 4), (1, "idle"), (0, 9), (1, "active"), (1, 7), (0, 12), (1, 12))
    assert play(2, (0, 5), *lagging) == [
        [], [Watermark(4)], [Watermark(5)], [Watermark(9)], [], [], [Watermark(12)], [],
    ]  # fmt: skip


def test_watermarks_of_an_idle_channel_and_repeated_statuses_have_no_effect():
    assert play(1, (0, "idle"), (0, "idle"), (0, 7), (0, "active"), (0, "active"), (0, 8)) == [
        [IDLE], [], [], [ACTIVE], [], [Watermark(8)],
    ]  # fmt: skip


def test_the_end_of_event_time_comes_out_only_when_every_channel_has_finished():
    assert play(2, (0, 5), (1, 3), (0, MAX_WATERMARK_MS), (1, 9), (1, MAX_WATERMARK_MS)) == [
        [], [Watermark(3)], [], [Watermark(9)], [Watermark(MAX_WATERMARK_MS)],
    ]  # fmt: skip


def test_a_finished_channel_beside_an_idle_one_does_not_end_event_time():
    """FLINK-38477: what the idle channel sends later must not be late."""
    assert play(
        2, (0, 5), (0, MAX_WATERMARK_MS), (1, "idle"), (1, "active"), (1, 6), (1, MAX_WATERMARK_MS)
    ) == [[], [], [Watermark(5), IDLE], [ACTIVE], [Watermark(6)], [Watermark(MAX_WATERMARK_MS)]]


def test_a_channel_that_ends_while_idle_still_ends_event_time():
    assert play(1, (0, 5), (0, "idle"), (0, MAX_WATERMARK_MS)) == [
        [Watermark(5)], [IDLE], [ACTIVE, Watermark(MAX_WATERMARK_MS)],
    ]  # fmt: skip
    valve = WatermarkValve(1)
    assert valve.finish(0) == [Watermark(MAX_WATERMARK_MS)]
    assert valve.finish(0) == valve.watermark(0, 3) == valve.status(0, True) == []
