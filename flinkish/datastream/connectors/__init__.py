"""Connectors under PyFlink's module paths: thin re-exports of ``flinkish.connectors``."""

from typing import TYPE_CHECKING

from flinkish.common._lazy import lazy_exports

if TYPE_CHECKING:  # what `lazy_exports` does, for type checkers and editors
    from flinkish.datastream.connectors.base import (
        DeliveryGuarantee as DeliveryGuarantee,
        Sink as Sink,
        Source as Source,
    )
    from flinkish.datastream.connectors.file_system import (
        BucketAssigner as BucketAssigner,
        FileEnumeratorProvider as FileEnumeratorProvider,
        FileSink as FileSink,
        FileSource as FileSource,
        FileSourceBuilder as FileSourceBuilder,
        FileSplitAssignerProvider as FileSplitAssignerProvider,
        OutputFileConfig as OutputFileConfig,
        RollingPolicy as RollingPolicy,
        StreamFormat as StreamFormat,
    )
    from flinkish.datastream.connectors.number_seq import (
        NumberSequenceSource as NumberSequenceSource,
    )

_EXPORTS = {
    "base": ["DeliveryGuarantee", "Sink", "Source"],
    "file_system": [
        "BucketAssigner",
        "FileEnumeratorProvider",
        "FileSink",
        "FileSource",
        "FileSourceBuilder",
        "FileSplitAssignerProvider",
        "OutputFileConfig",
        "RollingPolicy",
        "StreamFormat",
    ],
    "number_seq": ["NumberSequenceSource"],
}

__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
