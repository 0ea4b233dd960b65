"""Frames survive any cut of the byte stream, and too large ones are refused before memory is taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkish.shell.framing import SMALL_FRAME, FrameDecoder, FrameTooLargeError, header

FRAMES = st.lists(
    st.tuples(
        st.integers(0, 255),
        st.integers(0, 2**32 - 1),
        st.one_of(st.integers(0, 40), st.sampled_from([SMALL_FRAME, SMALL_FRAME + 1, SMALL_FRAME * 2, 70_000])),
    ),
    max_size=8,
)


def feed(decoder, data, cuts, scratch_bytes=32 * 1024):
    scratch = memoryview(bytearray(scratch_bytes))
    frames, position, cut = [], 0, 0
    while position < len(data):
        buffer = decoder.next_buffer(scratch)
        assert len(buffer) > 0
        count = min(len(buffer), cuts[cut % len(cuts)], len(data) - position)
        cut += 1
        buffer[:count] = data[position : position + count]
        position += count
        frames += decoder.received(scratch, count)
    return frames


@given(FRAMES, st.lists(st.one_of(st.integers(1, 12), st.integers(1_000, 50_000)), min_size=1, max_size=5))
def test_frames_come_out_as_they_went_in_whatever_the_cuts(shapes, cuts):
    frames = [(kind, channel, (bytes(range(256)) * (size // 256 + 1))[:size]) for kind, channel, size in shapes]
    data = b"".join(header(kind, channel, len(payload)) + payload for kind, channel, payload in frames)
    decoder = FrameDecoder()
    assert feed(decoder, data, cuts) == frames
    assert decoder.buffered_bytes == 0


def test_a_payload_stays_what_it_was_when_the_buffer_is_used_again():
    decoder = FrameDecoder()
    first = feed(decoder, header(1, 1, 3) + b"abc", [100])
    feed(decoder, header(1, 1, 3) + b"xyz", [100])
    assert first == [(1, 1, b"abc")]


def test_a_frame_above_the_limit_is_refused_from_its_header():
    decoder = FrameDecoder(max_payload=4096)
    with pytest.raises(FrameTooLargeError, match="4097"):
        feed(decoder, header(1, 1, 4097), [9])
    assert decoder.buffered_bytes == 0


def test_the_limit_may_change_between_two_frames_of_one_read():
    decoder = FrameDecoder(max_payload=4)
    scratch = memoryview(bytearray(1000))
    data = header(1, 0, 4) + b"aaaa" + header(2, 0, 10) + b"b" * 10
    decoder.next_buffer(scratch)[: len(data)] = data
    frames = decoder.received(scratch, len(data))
    assert next(frames)[0] == 1
    decoder.max_payload = 10
    assert next(frames)[0] == 2
