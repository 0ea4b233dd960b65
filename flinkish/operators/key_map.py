"""A persistent map from keys to dense slots, for operators that keep state in arrays by slot.

Equal keys are those of `key_groups`: 1, 1.0 and True are one, all NaNs too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flinkish.operators.keys import key_converter
from flinkish.state.column_memo import ColumnMemo
from flinkish.state.key_groups import KeyMemo


class KeyMap:
    """``keys[slot]`` is the canonical key.

    Args:
        key_type: declared type of the keys, or None.

    >>> import pyarrow as pa
    >>> keys = KeyMap()
    >>> keys.slots(pa.array(["b", "a", "b"])), keys.slots(pa.array(["c", "a"])), keys.keys
    (array([0, 1, 0]), array([2, 1]), ['b', 'a', 'c'])
    """

    def __init__(self, key_type: Any = None):
        self._convert = key_converter(key_type)
        self.keep([])

    def __len__(self) -> int:
        return len(self.keys)

    def slot(self, key: Any) -> int:
        """Of one key, in whatever form."""
        try:
            return self._memo[key]
        except (TypeError, ValueError):
            return self._memo.compute(key)

    def slots(self, column: Any) -> np.ndarray:
        """int64 of shape ``[rows]``; a key that is new gets the next slot."""
        return self._columns.numbers(column)

    def keep(self, slots: Any) -> None:
        """Forget all keys but those of ``slots``, which become 0, 1, ... in this order."""
        self.keys: list[Any] = [self.keys[slot] for slot in slots] if len(slots) else []
        self._slots = {key: slot for slot, key in enumerate(self.keys)}
        self._memo = KeyMemo(self._slot_of, limit=1 << 22)
        self._columns = ColumnMemo(self._memo)

    def _slot_of(self, canonical: Any) -> int:
        key = self._convert(canonical)
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = len(self.keys)
            self.keys.append(key)
        return slot
