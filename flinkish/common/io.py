"""InputFormat: what ``env.create_input`` reads."""

from __future__ import annotations

import abc
from typing import Any

__all__ = ["InputFormat"]


class InputFormat(abc.ABC):
    """A description of bounded input (Flink's base of such formats wraps a Java object; this one makes a source)."""

    @abc.abstractmethod
    def create_source(self) -> Any:
        """The ``flinkish.connectors.spi.Source`` that reads it."""
