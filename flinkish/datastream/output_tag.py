"""OutputTag: the name of a side output."""

from __future__ import annotations

from typing import Any, Generic, Optional, TypeVar

from flinkish.errors import InvalidJobError

T = TypeVar("T")

__all__ = ["OutputTag"]


class OutputTag(Generic[T]):
    """Names a side output; two tags with the same id are the same output.

    A process function yields ``tag, value`` for it; ``stream.get_side_output(tag)`` reads it.
    """

    __slots__ = ("tag_id", "type_info", "_hash")

    def __init__(self, tag_id: str, type_info: Optional[Any] = None):
        if not isinstance(tag_id, str) or not tag_id:
            raise InvalidJobError(f"an OutputTag needs a name, got {tag_id!r}")
        self.tag_id = tag_id
        self.type_info = type_info
        self._hash = hash(tag_id)

    def get_id(self) -> str:
        return self.tag_id

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, OutputTag) and self.tag_id == other.tag_id)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self):  # the hash of a str differs from process to process
        return OutputTag, (self.tag_id, self.type_info)

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r})"
