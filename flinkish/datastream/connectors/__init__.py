"""Connectors under PyFlink's module paths: thin re-exports of ``flinkish.connectors``."""

from typing import TYPE_CHECKING

from flinkish.common._lazy import lazy_exports

if TYPE_CHECKING:  # what `lazy_exports` does, for type checkers and editors
    from flinkish.datastream.connectors.base import (
        DeliveryGuarantee as DeliveryGuarantee,
        Sink as Sink,
        Source as Source,
    )

_EXPORTS = {"base": ["DeliveryGuarantee", "Sink", "Source"]}

__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
