"""Sources and sinks.  ``spi`` is how users write theirs; ``files`` and ``delta`` have packages of their own."""

from typing import TYPE_CHECKING

from flinkish.common._lazy import lazy_exports

if TYPE_CHECKING:  # what `lazy_exports` does, for type checkers and editors
    from flinkish.connectors.collection import CollectionSource as CollectionSource
    from flinkish.connectors.discarding import DiscardingSink as DiscardingSink
    from flinkish.connectors.function_source import FunctionSource as FunctionSource
    from flinkish.connectors.print_sink import PrintSink as PrintSink
    from flinkish.connectors.socket_text import (
        SocketTextSink as SocketTextSink,
        SocketTextSource as SocketTextSource,
    )

_EXPORTS = {
    "collection": ["CollectionSource"],
    "discarding": ["DiscardingSink"],
    "function_source": ["FunctionSource"],
    "print_sink": ["PrintSink"],
    "socket_text": ["SocketTextSink", "SocketTextSource"],
}

__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
