"""Credits of a channel over a slow network: never negative, never lost."""

from hypothesis import given
from hypothesis import strategies as st

from flinkish.messages.elements import MAX_WATERMARK_MS, Watermark
from flinkish.taskmanager.credit_ledger import CreditLedger
from flinkish.taskmanager.watermark_valve import WatermarkValve


@given(
    window=st.integers(1, 5),
    batch=st.integers(1, 5),
    moves=st.lists(st.sampled_from(["send", "arrive", "take", "credit"]), max_size=200),
)
def test_two_ledgers_of_one_channel_agree_whatever_the_delays(window, batch, moves):
    sender, receiver = CreditLedger(window), CreditLedger(window)
    flying, queued, owed, returning = 0, 0, 0, []
    returned_at = min(batch, window)
    for move in moves + ["arrive", "take"] * window + ["credit"] * window:
        if move == "send" and sender.available:
            sender.take()
            flying += 1
        elif move == "arrive" and flying:
            receiver.take()  # asserts that the peer had the credit
            flying -= 1
            queued += 1
        elif move == "take" and queued:
            receiver.give_back(1)
            queued -= 1
            owed += 1
            if owed >= returned_at:
                returning.append(owed)
                owed = 0
        elif move == "credit" and returning:
            sender.give_back(returning.pop(0))
        sender.check()
        receiver.check()
        assert receiver.available >= sender.available
        assert sender.held == flying + queued + owed + sum(returning)
    assert sender.available == window - owed  # all but what is owed has come home
    assert owed < returned_at


@given(
    channels=st.integers(1, 4),
    moves=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.one_of(st.integers(0, 20), st.sampled_from(["idle", "active", "finish"])),
        ),
        max_size=60,
    ),
)
def test_the_watermark_valve_never_goes_back_and_never_waits_for_nobody(channels, moves):
    valve = WatermarkValve(channels)
    last, idle = [None] * channels, [False] * channels
    finished = [False] * channels
    output, output_idle = None, False
    for channel, what in moves:
        channel %= channels
        if what == "finish":
            out = valve.finish(channel)
            finished[channel] = True
        elif isinstance(what, str):
            out = valve.status(channel, what == "idle")
            if not finished[channel]:
                idle[channel] = what == "idle"
        else:
            out = valve.watermark(channel, what)
            if not idle[channel] and not finished[channel]:
                last[channel] = max(what, last[channel] if last[channel] is not None else what)
        valve.check()
        for event in out:
            if isinstance(event, Watermark):
                assert not output_idle, "no watermark while idle"
                assert output is None or event.timestamp > output
                output = event.timestamp
            else:
                assert event.idle != output_idle
                output_idle = event.idle
        if all(finished):
            assert output == MAX_WATERMARK_MS
            continue
        assert output != MAX_WATERMARK_MS
        active = [i for i in range(channels) if not idle[i] and not finished[i]]
        assert output_idle == (not active)
        known = [last[i] for i in active]
        if active and None not in known:
            # Those behind the output do not hold it back; with none ahead it stands still.
            aligned = [w for w in known if output is None or w >= output]
            assert output is not None and (not aligned or output == min(aligned))
        elif not active:
            heard = [w for w in last if w is not None]
            assert not heard or output >= max(heard)
