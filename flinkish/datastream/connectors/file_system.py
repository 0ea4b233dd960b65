"""File sources and sinks, of ``flinkish.connectors.files``."""

from flinkish.connectors.files.file_sink import FileSink
from flinkish.connectors.files.file_source import FileSource, FileSourceBuilder
from flinkish.connectors.files.formats import BulkFormat, StreamFormat

__all__ = ["BulkFormat", "FileSink", "FileSource", "FileSourceBuilder", "StreamFormat"]
