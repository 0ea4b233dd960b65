"""TypeSerializer: writes values of one type to a byte stream and reads them back."""

from __future__ import annotations

import abc
from typing import Any, BinaryIO, Generic, TypeVar

T = TypeVar("T")

__all__ = ["TypeSerializer", "VoidNamespaceSerializer"]


class TypeSerializer(abc.ABC, Generic[T]):
    """Equal serializers write the same bytes."""

    @abc.abstractmethod
    def serialize(self, element: T, stream: BinaryIO) -> None: ...

    @abc.abstractmethod
    def deserialize(self, stream: BinaryIO) -> T: ...

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(type(self).__name__)


class VoidNamespaceSerializer(TypeSerializer[Any]):
    """Of the namespace that stands for "no window"."""

    def serialize(self, element: Any, stream: BinaryIO) -> None:
        stream.write(b"\0")

    def deserialize(self, stream: BinaryIO) -> None:
        stream.read(1)
