"""Files as sources and sinks: ``FileSource``, ``FileSink``, ``ParquetSink`` and their formats.

The names that PyFlink has are also at its paths (``flinkish.datastream.connectors.file_system``).
"""

from typing import TYPE_CHECKING

from flinkish.common._lazy import lazy_exports

if TYPE_CHECKING:  # what `lazy_exports` does, for type checkers and editors
    from flinkish.connectors.files.avro_format import AvroFormat as AvroFormat, AvroPart as AvroPart
    from flinkish.connectors.files.csv_format import CsvFormat as CsvFormat, CsvPart as CsvPart
    from flinkish.connectors.files.file_sink import FileSink as FileSink, ParquetSink as ParquetSink
    from flinkish.connectors.files.file_source import FileSource as FileSource
    from flinkish.connectors.files.formats import (
        FileFormat as FileFormat,
        ParquetFormat as ParquetFormat,
        TextLineFormat as TextLineFormat,
    )
    from flinkish.connectors.files.orc_part import OrcPart as OrcPart
    from flinkish.connectors.files.part_writer import (
        ParquetPart as ParquetPart,
        PartFormat as PartFormat,
        TextPart as TextPart,
    )

_EXPORTS = {
    "avro_format": ["AvroFormat", "AvroPart"],
    "csv_format": ["CsvFormat", "CsvPart"],
    "file_sink": ["FileSink", "ParquetSink"],
    "file_source": ["FileSource"],
    "formats": ["FileFormat", "ParquetFormat", "TextLineFormat"],
    "orc_part": ["OrcPart"],
    "part_writer": ["ParquetPart", "PartFormat", "TextPart"],
}

__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
