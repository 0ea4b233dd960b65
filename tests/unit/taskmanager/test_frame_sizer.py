from flinkish.taskmanager.frame_sizer import FRAME_BYTES, FrameSizer, estimate_bytes


def test_small_records_fill_a_frame_by_count():
    sizer = FrameSizer(1024)
    sizer.sample(("a", 1, 2.0))
    assert sizer.records == 1024


def test_large_records_fill_a_frame_by_bytes():
    sizer = FrameSizer(1024)
    sizer.sample(("a", b"x" * 100_000))
    assert sizer.records == 2
    sizer.sample(b"x" * 10_000_000)
    assert sizer.records == 1


def test_the_size_rises_at_once_and_falls_slowly():
    sizer = FrameSizer(1024)
    sizer.observe(FRAME_BYTES, 4)
    assert sizer.records == 4
    sizer.observe(100, 100)
    assert 4 < sizer.records < 8
    for _ in range(40):
        sizer.observe(100, 100)
    assert sizer.records == 1024


def test_a_sample_does_not_overrule_what_was_measured():
    sizer = FrameSizer(1024)
    sizer.observe(30 * 1000, 1000)
    sizer.sample({"some": "record", "of": "fields", "which": "looks", "larger": 1.0})
    assert sizer.records == 1024


def test_estimates_look_one_level_deep():
    assert estimate_bytes([b"x" * 1000] * 100) > 100_000
    assert estimate_bytes({"a": "y" * 5000}) > 5000
    assert estimate_bytes(7) < 100

    class Point:
        def __init__(self):
            self.label = "z" * 3000

    assert estimate_bytes(Point()) > 3000
