"""Reads files, folders and patterns: lines of text, CSV or Parquet as columns, Avro.  Bounded: what is there
when the job starts.

    FileSource("logs/*.txt")
    FileSource("in/*.csv", format="csv", columns={"key": Types.STRING(), "n": Types.LONG()})
    FileSource("rides/", format="parquet", columns=["id", "fare"])
    FileSource.for_record_stream_format(StreamFormat.text_line_format(), "logs").build()   # PyFlink's
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Callable, Iterable, Sequence, Union

from flinkish.common.arguments import check_argument
from flinkish.connectors.files.file_system import absolute_uri, find_files
from flinkish.connectors.files.formats import (
    BulkFormat,
    FileFormat,
    FileSplit,
    StreamFormat,
)
from flinkish.connectors.spi import (
    Boundedness,
    Source,
    SourceReader,
    SourceReaderContext,
    SplitEnumerator,
    SplitEnumeratorContext,
)
from flinkish.connectors.split_assignment import OnDemandSplitEnumerator
from flinkish.errors import InvalidJobError

#: name -> class; modules are imported when they are used, for they import Arrow's.
_FORMATS = {
    "avro": "avro_format.AvroFormat",
    "csv": "csv_format.CsvFormat",
    "parquet": "formats.ParquetFormat",
    "text": "formats.TextLineFormat",
}
#: What to do about a format that is none of them.
_OTHERWISE = {
    "json": 'read lines of JSON as text: format="text", then .map(json.loads); or let Spark read them: '
    "env.from_dataframe(spark.read.json(path))",
    "orc": "let Spark read them: env.from_dataframe(spark.read.orc(path))",
}


class FileSource(Source[Any, FileSplit]):
    """Files as a stream.

    >>> env.from_source(FileSource("logs/*.txt"), WatermarkStrategy.no_watermarks(), "logs")

    Args:
        paths: one or several; local (relative to the driver's folder) or a URI of ``pyarrow.fs``.
            Slots must reach the same files.
        format: "text", "csv", "parquet", "avro" or a ``FileFormat``.
        options: of the format (``charset_name``, ``split_bytes``; ``columns``, ``timestamp_column``).
    """

    def __init__(
        self,
        paths: Union[str, Any, Iterable[Any]],
        format: Union[str, FileFormat] = "text",
        **options: Any,
    ):
        one = isinstance(paths, (str, bytes)) or not hasattr(paths, "__iter__")
        if one or hasattr(paths, "__fspath__"):
            paths = [paths]
        self.paths = [absolute_uri(path) for path in paths]
        if not self.paths:
            raise InvalidJobError("could not make a file source", why="no path was given")
        if isinstance(format, str):
            if format not in _FORMATS:
                raise InvalidJobError(
                    f'could not use the file format "{format}"',
                    why=f"known formats are {', '.join(sorted(_FORMATS))}",
                    do=_OTHERWISE.get(format, "give one of them, a FileFormat, or let Spark read the files: env.from_dataframe()"),
                )
            module, name = _FORMATS[format].split(".")
            make_format = getattr(importlib.import_module(f"flinkish.connectors.files.{module}"), name)
            self.format: FileFormat = _format_with(make_format, options)
        elif options:
            raise InvalidJobError(
                f"could not use the option {sorted(options)[0]!r}",
                why="the format is an object already",
                do="give the option to the format's constructor",
            )
        else:
            self.format = check_argument(
                format, FileFormat, "FileSource()", "format", do='give "text", "csv", "parquet", "avro" or a FileFormat'
            )
        self.gives_columns = self.format.gives_columns

    @staticmethod
    def for_record_stream_format(stream_format: StreamFormat, *paths: Any) -> "FileSourceBuilder":
        check_argument(
            stream_format,
            StreamFormat,
            "for_record_stream_format()",
            "stream_format",
            do="give for example StreamFormat.text_line_format()",
        )
        return FileSourceBuilder(stream_format, paths)

    @staticmethod
    def for_bulk_file_format(bulk_format: BulkFormat, *paths: Any) -> "FileSourceBuilder":
        check_argument(
            bulk_format,
            BulkFormat,
            "for_bulk_file_format()",
            "bulk_format",
            do="give for example ParquetFormat() (from flinkish.connectors.files import ParquetFormat)",
        )
        return FileSourceBuilder(bulk_format, paths)

    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def produced_type(self) -> Any:
        return self.format.produced_type()

    def create_enumerator(
        self, context: SplitEnumeratorContext[FileSplit]
    ) -> SplitEnumerator[FileSplit]:
        return self.restore_enumerator(context, None)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[FileSplit], state: Any
    ) -> SplitEnumerator[FileSplit]:
        parallelism = context.current_parallelism()
        return OnDemandSplitEnumerator(
            context,
            lambda: self.format.find_splits(find_files(self.paths), parallelism),
            state,
        )

    def create_reader(self, context: SourceReaderContext) -> SourceReader[Any, FileSplit]:
        return self.format.create_reader(context)


def _format_with(make_format: Callable[..., FileFormat], options: dict[str, Any]) -> FileFormat:
    known = inspect.signature(make_format).parameters
    for option in options:
        if option not in known:
            raise InvalidJobError(
                f"could not use the option {option!r}",
                where=make_format.__name__,
                why=f"its options are {', '.join(known)}",
            )
    return make_format(**options)


class FileEnumeratorProvider:
    """How files are cut into splits."""

    def __init__(self, splittable: bool):
        self.splittable = splittable

    @staticmethod
    def default_splittable_file_enumerator() -> "FileEnumeratorProvider":
        """A large file is read by several readers.  The default."""
        return FileEnumeratorProvider(True)

    @staticmethod
    def default_non_splittable_file_enumerator() -> "FileEnumeratorProvider":
        """Each file is read by one reader."""
        return FileEnumeratorProvider(False)


class FileSplitAssignerProvider:
    """Which reader gets which split."""

    @staticmethod
    def locality_aware_split_assigner() -> "FileSplitAssignerProvider":
        """Whoever asks gets the next one: slots know nothing of where blocks lie."""
        return FileSplitAssignerProvider()


class FileSourceBuilder:
    """PyFlink's way to make a ``FileSource``."""

    def __init__(self, file_format: FileFormat, paths: Sequence[Any]):
        self._format = file_format
        self._paths = [absolute_uri(path) for path in paths]

    def set_file_enumerator(self, file_enumerator: FileEnumeratorProvider) -> "FileSourceBuilder":
        check_argument(file_enumerator, FileEnumeratorProvider, "set_file_enumerator()", "file_enumerator")
        self._format = self._format.with_whole_files(not file_enumerator.splittable)
        return self

    def set_split_assigner(self, split_assigner: FileSplitAssignerProvider) -> "FileSourceBuilder":
        check_argument(split_assigner, FileSplitAssignerProvider, "set_split_assigner()", "split_assigner")
        return self

    def process_static_file_set(self) -> "FileSourceBuilder":
        """Read what is there when the job starts, then end.  The default."""
        return self

    def monitor_continuously(self, discovery_interval: Any) -> "FileSourceBuilder":
        raise InvalidJobError(
            "could not watch the folder for new files",
            why="FileSource is bounded in this version",
            do="leave monitor_continuously out, or write a Source (flinkish.connectors.spi) whose "
            "enumerator lists the folder by context.call_async(..., period_ms=...)",
        )

    def build(self) -> FileSource:
        return FileSource(self._paths, format=self._format)
