"""Schemas: records to bytes and back, as connectors use them."""

from __future__ import annotations

import abc
import codecs
from typing import Any, BinaryIO, Generic, Optional, TypeVar

from flinkish.common.typeinfo import TypeInformation, Types
from flinkish.errors import InvalidJobError

T = TypeVar("T")

__all__ = [
    "BulkWriterFactory",
    "ByteArraySchema",
    "DeserializationSchema",
    "Encoder",
    "RowDataBulkWriterFactory",
    "RowFieldExtractorSchema",
    "SerializationSchema",
    "SimpleStringSchema",
]


class SerializationSchema(abc.ABC, Generic[T]):
    """Turns a record into bytes."""

    def open(self) -> None:
        """Called once in the slot, before the first record."""

    @abc.abstractmethod
    def serialize(self, element: T) -> bytes: ...


class DeserializationSchema(abc.ABC, Generic[T]):
    """Turns bytes into a record."""

    def open(self) -> None:
        """Called once in the slot, before the first record."""

    @abc.abstractmethod
    def deserialize(self, message: bytes) -> Optional[T]:
        """None drops the message."""

    def is_end_of_stream(self, next_element: T) -> bool:
        """True ends the input before ``next_element``."""
        return False

    def get_produced_type(self) -> Optional[TypeInformation]:
        return None


class SimpleStringSchema(SerializationSchema[str], DeserializationSchema[str]):
    """Text."""

    def __init__(self, charset: str = "UTF-8"):
        self.charset = _codec(charset)

    def serialize(self, element: str) -> bytes:
        return element.encode(self.charset)

    def deserialize(self, message: bytes) -> str:
        return str(message, self.charset)

    def get_produced_type(self) -> TypeInformation:
        return Types.STRING()


class ByteArraySchema(SerializationSchema[bytes], DeserializationSchema[bytes]):
    """Bytes as they are."""

    def serialize(self, element: bytes) -> bytes:
        return bytes(element)

    def deserialize(self, message: bytes) -> bytes:
        return bytes(message)

    def get_produced_type(self) -> TypeInformation:
        return Types.PRIMITIVE_ARRAY(Types.BYTE())


class RowFieldExtractorSchema(SerializationSchema[Any]):
    """The bytes (or text) of one field of a row."""

    def __init__(self, field_index: int):
        if field_index < 0:
            raise InvalidJobError(f"a field index must be at least 0, not {field_index}")
        self.field_index = field_index

    def serialize(self, element: Any) -> bytes:
        value = element[self.field_index]
        if value is None:
            return b""
        return value.encode("utf-8") if isinstance(value, str) else bytes(value)


class BulkWriterFactory(abc.ABC):
    """How a file sink writes its files: ``FileSink.for_bulk_format(path, factory)``.

    Made by ``CsvBulkWriters``, ``ParquetBulkWriters``, ``AvroBulkWriters`` ...; write your own as a
    ``flinkish.connectors.files.PartFormat``."""


class RowDataBulkWriterFactory(BulkWriterFactory):
    """One whose records have columns."""

    @abc.abstractmethod
    def get_row_type(self) -> TypeInformation:
        """The ``Types.ROW_NAMED`` of the columns."""


class Encoder(abc.ABC, Generic[T]):
    """Writes records to a file, one after another."""

    @abc.abstractmethod
    def encode(self, element: T, stream: BinaryIO) -> None: ...

    @staticmethod
    def simple_string_encoder(charset_name: str = "UTF-8") -> "Encoder":
        """``str(record)`` and a line feed."""
        return SimpleStringEncoder(charset_name)


class SimpleStringEncoder(Encoder[Any]):
    """A file sink writes records of a declared type in Flink's form (``flinkish.common.flink_text``)."""

    def __init__(self, charset_name: str):
        self.charset = _codec(charset_name)

    def encode(self, element: Any, stream: BinaryIO) -> None:
        stream.write(f"{element}\n".encode(self.charset))


def _codec(charset: str) -> str:
    try:
        return codecs.lookup(charset).name
    except LookupError as error:
        raise InvalidJobError(f"there is no charset {charset!r}") from error
