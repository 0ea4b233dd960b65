"""A source of given Python objects.

The items are pickled when the source is made, so that later changes to them in the driver do not
reach the job, and no two records share a mutable part: ``[item] * 3`` gives three records of their own.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Any, Iterable, Optional, TypeVar

from flinkish.connectors.isolation import all_shareable, portable_pickle
from flinkish.connectors.spi import SourceReader, SourceReaderContext
from flinkish.connectors.split_assignment import (
    PinnedSplitSource,
    RangeSplit,
    SequentialSplitReader,
    index_ranges,
)
from flinkish.errors import InvalidJobError, UnpicklableFunctionError

T = TypeVar("T")

_CHUNK_ITEMS = 1_000


@dataclass(frozen=True)
class _Chunk:
    """Some items.  ``data`` is a pickled list, or a list of one pickle an item where they could
    otherwise share a mutable part."""

    data: Any

    def load(self) -> list[Any]:
        if isinstance(self.data, bytes):
            return pickle.loads(self.data)
        return list(map(pickle.loads, self.data))


@dataclass(frozen=True)
class CollectionSplit(RangeSplit):
    """Items ``position`` to ``end`` (exclusive) are still to be read."""


class CollectionSource(PinnedSplitSource[T, CollectionSplit]):
    """Gives the items of ``items`` in order; with several readers each gets a neighbouring range.

    >>> env.from_source(CollectionSource(range(100)), WatermarkStrategy.no_watermarks(), "numbers")

    Args:
        items: any iterable; a generator is read to its end when the source is made.
        type_info: the declared type of the records.
        fixed_parallelism: 1 keeps the order over the whole stream.
    Raises:
        UnpicklableFunctionError: an item cannot travel; names its index.
    """

    def __init__(
        self, items: Iterable[T], type_info: Any = None, fixed_parallelism: Optional[int] = None
    ):
        materialised = items_of(items, "CollectionSource()")
        self.count = len(materialised)
        self.fixed_parallelism = fixed_parallelism
        self._type_info = type_info
        self._chunks = [
            _freeze_chunk(materialised[first : first + _CHUNK_ITEMS], first)
            for first in range(0, self.count, _CHUNK_ITEMS)
        ]

    def produced_type(self) -> Any:
        return self._type_info

    def splits(self, parallelism: int) -> list[CollectionSplit]:
        ranges = index_ranges(self.count, parallelism)
        return [CollectionSplit(start, end, start) for start, end in ranges if end > start]

    def create_reader(self, context: SourceReaderContext) -> SourceReader[T, CollectionSplit]:
        return _CollectionReader(context, self._chunks)


def items_of(collection: Iterable[T], call: str) -> list[T]:
    """The items as a list; what iterating over them raises is the user's."""
    try:
        return list(collection)
    except TypeError:
        if hasattr(collection, "__iter__"):
            raise
        raise InvalidJobError(
            f"{call} cannot read a {type(collection).__name__}",
            why="it is no list and cannot be iterated",
            do="give a list, or single elements to from_elements()",
        ) from None


def _freeze_chunk(items: list[Any], first_index: int) -> _Chunk:
    if all_shareable(items):
        return _Chunk(pickle.dumps(items, 5))
    pickles = []
    for index, item in enumerate(items, first_index):
        try:
            pickles.append(portable_pickle(item))
        except Exception as error:  # pickling runs code of the user's classes
            raise UnpicklableFunctionError(
                f"could not pickle item {index} of the collection",
                where=f"an item of type {type(item).__name__}",
                why=f"{type(error).__name__}: {error}",
                do="give plain values (numbers, text, tuples, dataclasses ...), and open files, locks "
                "and connections in a function's open() instead",
                index=index,
            ) from error
    return _Chunk(pickles)


class _CollectionReader(SequentialSplitReader[Any, CollectionSplit]):
    def __init__(self, context: SourceReaderContext, chunks: list[_Chunk]):
        super().__init__(context)
        self._chunks = chunks
        self._items: list[Any] = []
        self._items_first = 0  # index of the first of ``_items``
        self._next = 0

    def open_split(self, split: CollectionSplit) -> None:
        self._next = split.position
        self._items, self._items_first = [], split.position

    def read(self, output: Any, room: int) -> bool:
        end = self._current.end
        while room > 0 and self._next < end:
            offset = self._next - self._items_first
            if offset >= len(self._items):
                chunk = self._next // _CHUNK_ITEMS
                self._items = self._chunks[chunk].load()
                self._items_first = chunk * _CHUNK_ITEMS
                offset = self._next - self._items_first
            batch = self._items[offset : offset + min(room, end - self._next)]
            output.collect_batch(batch)
            self._next += len(batch)
            room -= len(batch)
        return self._next < end

    def position(self) -> CollectionSplit:
        return replace(self._current, position=self._next)

    def close_split(self) -> None:
        self._items = []
