"""ORC files of a file sink."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from flinkish.common.arrow_types import arrow_schema_of
from flinkish.common.typeinfo import RowTypeInfo
from flinkish.connectors.files.orc_part import OrcPart
from flinkish.connectors.formats.csv_rows import check_row_type
from flinkish.datastream.formats.parquet import known_options

__all__ = ["OrcBulkWriters"]

_COMPRESSIONS = {"none": "uncompressed"}
_KNOWN = {
    "orc.compress": ("compression", lambda value: _COMPRESSIONS.get(str(value).lower(), str(value).lower())),
    "orc.compress.size": ("compression_block_size", int),
    "orc.stripe.size": ("stripe_size", int),
    "orc.row.index.stride": ("row_index_stride", int),
}


class OrcBulkWriters:
    """ORC files for ``FileSink.for_bulk_format``."""

    @staticmethod
    def for_row_type(
        row_type: RowTypeInfo,
        writer_properties: Optional[Mapping[str, Any]] = None,
        hadoop_config: Optional[Mapping[str, Any]] = None,
    ) -> OrcPart:
        """
        Args:
            row_type: of the records, ``Types.ROW_NAMED``.
            writer_properties: ``orc.compress`` ("ZLIB" when it is not given), ``orc.compress.size``,
                ``orc.stripe.size``, ``orc.row.index.stride``.
            hadoop_config: the same keys.
        """
        schema = arrow_schema_of(check_row_type(row_type, "OrcBulkWriters.for_row_type()"))
        given = {**(hadoop_config or {}), **(writer_properties or {})}
        return OrcPart(schema, **known_options(given, _KNOWN, "OrcBulkWriters.for_row_type()"))
