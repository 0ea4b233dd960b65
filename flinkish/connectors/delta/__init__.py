"""Delta tables as sinks; needs the extra ``delta``."""

from typing import TYPE_CHECKING

from flinkish.common._lazy import lazy_exports

if TYPE_CHECKING:  # what `lazy_exports` does, for type checkers and editors
    from flinkish.connectors.delta.delta_sink import DeltaSink as DeltaSink

_EXPORTS = {"delta_sink": ["DeltaSink"]}

__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
