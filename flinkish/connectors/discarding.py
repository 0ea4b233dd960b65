"""A sink that throws everything away, for benchmarks and for jobs with another effect."""

from __future__ import annotations

from typing import Any, Optional

from flinkish.connectors.spi import Sink, SinkWriter, WriterInitContext


class _DiscardingWriter(SinkWriter[Any]):
    keeps_values = False

    def write(self, value: Any, timestamp_ms: Optional[int], watermark_ms: int) -> None:
        """Nothing is kept."""

    def write_batch(self, values: Any, timestamps_ms: Any, watermark_ms: int) -> None:
        """Nothing is kept."""

    def write_columns(self, columns: Any, timestamps_ms: Any, watermark_ms: int) -> None:
        """Nothing is kept."""


class DiscardingSink(Sink[Any]):
    """Takes rows and columns, keeps none.

    >>> stream.sink_to(DiscardingSink())
    """

    takes_columns = True

    def create_writer(self, context: WriterInitContext) -> SinkWriter[Any]:
        return _DiscardingWriter()
