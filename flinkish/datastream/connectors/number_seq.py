"""NumberSequenceSource, of ``flinkish.connectors.sequence``."""

from flinkish.connectors.sequence import NumberSequenceSource

__all__ = ["NumberSequenceSource"]
