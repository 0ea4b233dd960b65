"""What users test their jobs, sources and sinks with; it ships with the package."""

from typing import TYPE_CHECKING

from flinkish.common._lazy import lazy_exports

if TYPE_CHECKING:  # what `lazy_exports` does, for type checkers and editors
    from flinkish.messages.elements import Watermark as Watermark
    from flinkish.testing.manual_clock import ManualClock as ManualClock
    from flinkish.testing.mini_cluster import MiniCluster as MiniCluster
    from flinkish.testing.stream_test_harness import (
        StreamRecord as StreamRecord,
        StreamTestHarness as StreamTestHarness,
    )

__all__, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "flinkish.messages.elements": ["Watermark"],
        "manual_clock": ["ManualClock"],
        "mini_cluster": ["MiniCluster"],
        "stream_test_harness": ["StreamRecord", "StreamTestHarness"],
    },
)
