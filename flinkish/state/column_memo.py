"""From the values of columns to numbers, batch after batch: key groups of a writer, slots of an operator.

What is known is asked of Arrow for all rows at once (`index_in`: 20 ns a row, and 5 for each known value, since it makes
its hash table anew), so Python code runs once for a value, not once for a row.  Where more values are known than a batch
has rows, the batch is dictionary encoded first, and Python code runs for each value in the dictionary.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flinkish.common.types import Row
from flinkish.errors import UnstableKeyError

KNOWN_MAX = 1 << 16
_KNOWN_PER_ROW = 3  # above, `index_in` is slower than a dictionary


class ColumnMemo:
    """``numbers(column)[i]`` is ``memo`` of the i-th value as a Python object.

    Args:
        memo: a `KeyMemo` that gives ints; it must give the same one for a value each time.

    >>> memo = ColumnMemo({"a": 7, "b": 8})
    >>> memo.numbers(pa.array(["a", "b", "a"])).tolist(), memo.numbers(pa.array(["b"])).tolist()
    ([7, 8, 7], [8])
    """

    def __init__(self, memo: Any):
        self._memo = memo
        self._known: Optional[pa.Array] = None
        self._known_numbers = np.zeros(0, np.int64)

    def numbers(self, column: Any) -> np.ndarray:
        """int64 of shape ``[rows]``.

        Args:
            column: ``pyarrow.Array``.
        Raises:
            UnstableKeyError: values of this type cannot be keys.
        """
        kind = column.type
        if pa.types.is_dictionary(kind):
            return self._by_dictionary(column)
        if pa.types.is_nested(kind) or isinstance(column, pa.ExtensionArray):
            return self._by_value(column)
        try:
            return self._by_arrow(column)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # a type that Arrow cannot compare
            return self._by_value(column)

    def _by_arrow(self, column: Any) -> np.ndarray:
        known, kind = self._known, column.type
        if known is not None and known.type == kind and _may_be_looked_up(kind) and len(known) <= _KNOWN_PER_ROW * len(column):
            found = pc.index_in(column, value_set=known)
            if found.null_count and len(known) < KNOWN_MAX:
                self._learn(column.filter(found.is_null()).unique())
                found = pc.index_in(column, value_set=self._known)
            if not found.null_count:
                return self._known_numbers[found.to_numpy(zero_copy_only=False)]
        encoded = column.dictionary_encode()
        if known is None or known.type != kind:
            self._known, self._known_numbers = encoded.dictionary, self._by_value(encoded.dictionary)
        return self._by_dictionary(encoded)

    def _learn(self, values: Any) -> None:
        assert self._known is not None
        self._known = pa.concat_arrays([self._known, values])
        self._known_numbers = np.concatenate([self._known_numbers, self._by_value(values)])

    def _by_dictionary(self, column: Any) -> np.ndarray:
        numbers, indices = self._by_value(column.dictionary), column.indices
        if indices.null_count:
            indices = pc.fill_null(indices.cast(pa.int64()), len(numbers))
            numbers = np.append(numbers, self._number(None))
        return numbers[indices.to_numpy(zero_copy_only=False)]

    def _by_value(self, column: Any) -> np.ndarray:
        values = python_values(column)
        try:
            return np.fromiter(map(self._memo.__getitem__, values), np.int64, len(values))
        except (TypeError, ValueError):  # keys without a hash
            return np.fromiter(map(self._number, values), np.int64, len(values))

    def _number(self, value: Any) -> int:
        try:
            return self._memo[value]
        except (TypeError, ValueError):
            return self._memo.compute(value)


def _may_be_looked_up(kind: Any) -> bool:
    """Other types can be equal as Python objects and not to Arrow (-0.0 and 0.0), or Arrow is wrong (null views of
    strings are encoded as "", pyarrow 26)."""
    types = pa.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_integer(kind)


def python_values(column: Any) -> list:
    """The values as Python functions see them: a struct is a Row, the rest as ``to_pylist``."""
    try:
        values = column.to_pylist()
    except ValueError as error:  # nanoseconds, and no pandas to hold them
        raise UnstableKeyError(
            f"could not use a value of type {column.type} as a key",
            where="key_by",
            why=str(error),
            do="install pandas, or cast the column to microseconds",
            key_type=str(column.type),
        ) from error
    if pa.types.is_struct(column.type):
        return [_to_row(value, column.type) for value in values]
    return values


def _to_row(value: Any, kind: Any) -> Any:
    if value is None or not pa.types.is_struct(kind):
        return value
    names = [field.name for field in kind]
    return Row.of_fields(names, [_to_row(value[field.name], field.type) for field in kind])
