"""Key groups: which subtask owns a key, the same answer in every process, run and Python version.

A key group is a hash of the key's encoding (``key_encoding``) modulo the max parallelism; a
subtask owns a range of groups.  ``hash()`` is never used: it differs between processes.

Source: Flink's ``KeyGroupRangeAssignment`` and ``MathUtils.murmurHash``.
"""

from __future__ import annotations

from array import array
from typing import Any, Callable, Optional
from zlib import crc32

import numpy as np
import pyarrow as pa

from flinkish.errors import InvalidJobError
from flinkish.state.column_memo import ColumnMemo
from flinkish.state.key_encoding import (
    NAN,
    canonical_and_storable,
    canonical_key,
    encode_key,
    with_operator,
)

__all__ = [
    "NAN",
    "KeyMemo",
    "canonical_key",
    "default_max_parallelism",
    "encode_key",
    "key_group",
    "key_group_of_encoded",
    "key_group_range",
    "key_groups_of_canonical",
    "key_groups_of_column",
    "subtask_for_key_group",
    "with_operator",
]

DEFAULT_LOWER_BOUND_MAX_PARALLELISM = 1 << 7
UPPER_BOUND_MAX_PARALLELISM = 1 << 15


def key_group(canonical: Any, max_parallelism: int) -> int:
    """The group of a canonical key, 0 <= group < max_parallelism.

    >>> key_group("a", 128), key_group(canonical_key(1.0), 128) == key_group(1, 128)
    (80, True)
    """
    return key_group_of_encoded(encode_key(canonical), max_parallelism)


def key_group_of_encoded(encoded: bytes, max_parallelism: int) -> int:
    """The group of the key that `encode_key` has given ``encoded`` for."""
    # crc32 alone keeps similar keys in similar groups (it is linear); this is murmur's end mix.
    h = crc32(encoded)
    h ^= h >> 16
    h = h * 0x85EBCA6B & 0xFFFFFFFF
    h ^= h >> 13
    h = h * 0xC2B2AE35 & 0xFFFFFFFF
    h ^= h >> 16
    return h % max_parallelism


def key_group_range(max_parallelism: int, parallelism: int, index: int) -> range:
    """The groups that subtask ``index`` of ``parallelism`` owns.

    >>> [key_group_range(128, 3, i) for i in range(3)]
    [range(0, 43), range(43, 86), range(86, 128)]
    """
    start = (index * max_parallelism + parallelism - 1) // parallelism
    end = ((index + 1) * max_parallelism - 1) // parallelism
    return range(start, end + 1)


def subtask_for_key_group(group: int, max_parallelism: int, parallelism: int) -> int:
    """The subtask that owns ``group``.

    >>> subtask_for_key_group(43, 128, 3)
    1
    """
    return group * parallelism // max_parallelism


def default_max_parallelism(parallelism: int) -> int:
    """Max parallelism of an operator for which the user set none.

    >>> default_max_parallelism(4), default_max_parallelism(200)
    (128, 512)
    """
    wanted = parallelism + parallelism // 2
    power = 1 << max(wanted - 1, 0).bit_length()
    return min(max(power, DEFAULT_LOWER_BOUND_MAX_PARALLELISM), UPPER_BOUND_MAX_PARALLELISM)


def check_parallelism(max_parallelism: int, parallelism: int, operator: str) -> None:
    """Refuse a max parallelism that key groups cannot have, or that is below the parallelism."""
    if not 0 < max_parallelism <= UPPER_BOUND_MAX_PARALLELISM:
        raise InvalidJobError(
            f"could not give max parallelism {max_parallelism} to an operator",
            where=f'operator "{operator}"',
            why=f"it must lie between 1 and {UPPER_BOUND_MAX_PARALLELISM}",
            do="change set_max_parallelism or pipeline.max-parallelism",
        )
    if parallelism > max_parallelism:
        raise InvalidJobError(
            f"could not give parallelism {parallelism} to an operator",
            where=f'operator "{operator}"',
            why=f"its max parallelism is {max_parallelism}",
            do="lower the parallelism, or raise set_max_parallelism (state that was saved with "
            "another max parallelism can then not be restored)",
        )


class KeyMemo(dict):
    """``memo[key]`` is ``factory(canonical_key(key))``, remembered.

    A hit costs one dict look-up, by Python's own ``==``, which agrees with the canonical form; keys
    for which it would not (NaN, a Row, an ambiguous local time) are computed each time.  A key
    without a hash (a list; a signalling Decimal NaN) makes ``memo[key]`` raise TypeError or
    ValueError: the caller then asks ``compute``, which accepts or refuses it in our words::

        try:
            channel = memo[key]
        except (TypeError, ValueError):
            channel = memo.compute(key)

    Args:
        factory: gives the value of a canonical key, e.g. the channel, or the canonical key itself.
        limit: entries kept; when full the memo starts anew (an LRU costs more than it saves).
        classes: gets the NamedTuples, dataclasses and Enums that keys consist of.

    >>> memo = KeyMemo(lambda key: key)
    >>> memo[(1.0, True)], memo[1, 1]
    ((1, 1), (1, 1))
    """

    __slots__ = ("factory", "limit", "classes")

    def __init__(
        self, factory: Callable[[Any], Any], limit: int = 65_536, classes: Optional[dict[type, None]] = None
    ):
        super().__init__()
        self.factory = factory
        self.limit = limit
        self.classes = classes

    def __missing__(self, key: Any) -> Any:
        canonical, storable = canonical_and_storable(key, self.classes)
        value = self.factory(canonical)
        if storable:
            if len(self) >= self.limit:
                self.clear()
            self[key] = value
        return value

    def compute(self, key: Any) -> Any:
        """The value without a look: for keys that have no hash."""
        return self.factory(canonical_and_storable(key, self.classes)[0])


# ---- many keys at once --------------------------------------------------------------------------


def key_groups_of_canonical(keys: list, max_parallelism: int) -> np.ndarray:
    """``key_group`` of each canonical key: int32 of shape ``[n]``.

    For str keys 0.3 microseconds a key, for ints 0.1, instead of 1.4: the hash runs in C over all of
    them, the end mix in numpy.
    """
    kinds = set(map(type, keys))
    crcs: Optional[np.ndarray] = None
    if kinds == {str}:
        crcs = _crcs_of_texts(keys)
    elif kinds == {int}:
        try:
            return _groups_of_ints(np.array(array("q", keys)), max_parallelism)
        except OverflowError:
            pass  # an int beyond 64 bits is encoded otherwise
    if crcs is None:
        crcs = np.fromiter(map(crc32, map(encode_key, keys)), dtype=np.uint32, count=len(keys))
    return _groups_of_crcs(crcs, max_parallelism)


def _crcs_of_texts(keys: list) -> Optional[np.ndarray]:
    """crc32 of what `encode_key` gives: the tag and length first, computed once for each length."""
    crcs = np.empty(len(keys), dtype=np.uint32)
    prefixes: dict[int, int] = {}
    for start in range(0, len(keys), _CHUNK):
        try:
            texts = list(map(str.encode, keys[start : start + _CHUNK]))
        except UnicodeEncodeError:  # a lone surrogate
            return None
        lengths = list(map(len, texts))
        for length in set(lengths) - prefixes.keys():
            prefixes[length] = crc32(encode_key("x" * length)[: -length or None])
        starts = map(prefixes.__getitem__, lengths)
        crcs[start : start + len(texts)] = np.fromiter(map(crc32, texts, starts), np.uint32, len(texts))
    return crcs


_CHUNK = 1 << 14  # texts at once: they fit into the cache


# ---- columns ------------------------------------------------------------------------------------


def key_groups_of_column(
    column: Any, max_parallelism: int, memo: Optional[ColumnMemo] = None
) -> np.ndarray:
    """Key groups of a whole column, equal to those of its values as Python objects.

    Args:
        column: ``pyarrow.Array`` or ``ChunkedArray``, n values.
        max_parallelism: groups there are.
        memo: from value to group, kept by the caller over batches (of ``lambda key: key_group(key,
            max_parallelism)``).
    Returns:
        int32 array of shape ``[n]``.
    Raises:
        UnstableKeyError: values of this type cannot be keys (a list, a map).
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
    kind = column.type
    if pa.types.is_integer(kind) and column.null_count == 0 and len(column):
        ints = column.to_numpy(zero_copy_only=False)
        if ints.dtype != np.uint64 or ints.max() < 1 << 63:
            return _groups_of_ints(ints, max_parallelism)
    if memo is None:
        memo = ColumnMemo(KeyMemo(lambda key: key_group(key, max_parallelism), limit=max(len(column), 1)))
    return memo.numbers(column).astype(np.int32)


_CRC_TABLE = np.array(
    [crc32(bytes([byte])) ^ crc32(b"\0") for byte in range(256)], dtype=np.uint32
)
_CRC_OF_INT_TAG = np.uint32(crc32(b"i") ^ 0xFFFFFFFF)


def _groups_of_ints(ints: np.ndarray, max_parallelism: int) -> np.ndarray:
    """``key_group`` of each int64: the same crc32 of the same nine bytes, a byte of all at a time.

    57 ns a value instead of 3,000; columns of distinct ids gain nothing from a dictionary.
    """
    data = ints.astype(">i8").view(np.uint8).reshape(-1, 8)
    crc = np.full(len(ints), _CRC_OF_INT_TAG, dtype=np.uint32)
    for position in range(8):
        crc = _CRC_TABLE[(crc ^ data[:, position]) & 0xFF] ^ (crc >> np.uint32(8))
    return _groups_of_crcs(crc ^ np.uint32(0xFFFFFFFF), max_parallelism)


def _groups_of_crcs(crcs: np.ndarray, max_parallelism: int) -> np.ndarray:
    h = crcs ^ (crcs >> np.uint32(16))
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return (h % np.uint32(max_parallelism)).astype(np.int32)
