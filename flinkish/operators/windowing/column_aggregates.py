"""What a window of columns keeps: for each aggregate an array by slot (`key_map`), numbers where it can.

Numbers are added in the order in which they come, so float sums are those of a loop to the last bit.  Sums of ints that
could leave 64 bits, and values that are no numbers (decimals, texts, times), are folded as Python objects: slowly, and
exactly.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import numpy as np
import pyarrow as pa

from flinkish.datastream.field_aggregates import FieldAggregate, FieldAggregates
from flinkish.datastream.fields import added
from flinkish.errors import UserError
from flinkish.operators.columns import column_values
from flinkish.state.heap import WindowTable

_INT_MAX = (1 << 63) - 1
_FOLDS = {"sum": np.add, "avg": np.add, "min": np.fmin, "max": np.fmax}


class ColumnWindow:
    """Keys and accumulators of one window.  To a state backend it is a dict from key to accumulator, in the form of
    `FieldAggregates`, so that savepoints of rows and of columns are the same."""

    def __init__(self, function: FieldAggregates, keys: Any):
        self._function, self._keys = function, keys
        self.rows = np.zeros(0, np.int64)  # records by slot; 0: the window has not got this key
        self.columns = [_Column(each) for each in function.aggregates if each.field is not None]
        self._restored: dict[Any, list] = {}

    def add(self, slots: np.ndarray, batch: Any, capacity: int) -> None:
        self._grow(capacity)
        self.rows += np.bincount(slots, minlength=len(self.rows))
        for column in self.columns:
            column.add(slots, batch.column(column.aggregate.field))

    def present(self) -> np.ndarray:
        """Slots of the keys that the window has."""
        return np.flatnonzero(self.rows)

    def keep(self, slots: np.ndarray) -> None:
        """As `KeyMap.keep`."""
        self._grow(len(self._keys))
        self.rows = self.rows[slots]
        for column in self.columns:
            column.keep(slots)

    def results(self, slots: np.ndarray) -> list[Any]:
        """Arrow arrays, one for each aggregate."""
        columns = iter(self.columns)
        return [
            pa.array(self.rows[slots]) if each.field is None else next(columns).result(slots)
            for each in self._function.aggregates
        ]

    def _grow(self, capacity: int) -> None:
        if capacity > len(self.rows):
            size = max(capacity, 2 * len(self.rows), 16)
            self.rows = _grown(self.rows, size, 0)
            for column in self.columns:
                column.grow(size)

    # ---- a dict to the backend ------------------------------------------------------------------

    def __len__(self) -> int:
        return int(np.count_nonzero(self.rows)) + len(self._restored)

    def __iter__(self):
        return map(self._keys.keys.__getitem__, self.present().tolist())

    def values(self) -> Any:
        slots = self.present()
        columns = iter(self.columns)
        return map(list, zip(*[
            self.rows[slots].tolist() if each.field is None else next(columns).entries(slots)
            for each in self._function.aggregates
        ]))  # fmt: skip

    def __setitem__(self, key: Any, accumulator: list) -> None:
        """A restored entry; `take_restored` follows."""
        self._restored[key] = accumulator

    def take_restored(self) -> None:
        slots = np.fromiter(map(self._keys.slot, self._restored), np.int64, len(self._restored))
        self._grow(len(self._keys))
        columns = iter(self.columns)
        self.rows[slots] = 1  # at least, when nothing counts records
        for each, entries in zip(self._function.aggregates, zip(*self._restored.values())):
            if each.field is None:
                self.rows[slots] = entries
            else:
                next(columns).load(slots, entries)
        self._restored = {}


class ColumnWindowTable(WindowTable):
    """Window start -> `ColumnWindow`."""

    def __init__(self, make: Callable[[], ColumnWindow]):
        super().__init__()
        self._make = make

    def open(self, start: Any) -> Any:
        window = self[start] = self._make()
        return window


class _Column:
    """One aggregate of one field.  ``values[slot]`` counts where ``seen[slot]``, the values that were not null, is above 0."""

    def __init__(self, aggregate: FieldAggregate):
        self.aggregate = aggregate
        self.seen = np.zeros(0, np.int64)
        self.values: Optional[np.ndarray] = None  # its dtype comes with the first values
        self.type: Any = None  # Arrow's, of the field
        self._bound = 0  # no sum is beyond it

    def grow(self, size: int) -> None:
        self.seen = _grown(self.seen, size, 0)
        if self.values is not None:
            self.values = _grown(self.values, size, self._identity(self.values.dtype))

    def keep(self, slots: np.ndarray) -> None:
        self.seen = self.seen[slots]
        if self.values is not None:
            self.values = self.values[slots]

    def add(self, slots: np.ndarray, column: Any) -> None:
        self.type = wider(self.type, column.type)
        if column.null_count:
            slots = slots[column.is_valid().to_numpy(zero_copy_only=False)]
            column = column.drop_null()
        if self.aggregate.kind != "count" and len(column):
            if pa.types.is_boolean(column.type) and self.aggregate.kind in ("sum", "avg"):
                column = column.cast(pa.int64())
            self._fold(slots, _numbers(column))
        self.seen += np.bincount(slots, minlength=len(self.seen))

    def _fold(self, slots: np.ndarray, values: np.ndarray) -> None:
        self._prepare(values)
        folded = self.values
        assert folded is not None
        if folded.dtype != object:
            with np.errstate(invalid="ignore"):  # inf and -inf make a NaN, as in a loop
                _FOLDS[self.aggregate.kind].at(folded, slots, values)
            return
        kind, seen = self.aggregate.kind, self.seen > 0
        for slot, value in zip(slots.tolist(), values.tolist()):
            if not seen[slot]:
                folded[slot], seen[slot] = value, True
                continue
            known = folded[slot]
            if kind in ("sum", "avg"):
                folded[slot] = added(known, value)
            elif (value < known if kind == "min" else value > known) or known != known:
                folded[slot] = value

    def _prepare(self, values: np.ndarray) -> None:
        """Have an array that can take ``values``."""
        if self.values is None:
            self.values = np.full(len(self.seen), self._identity(values.dtype), values.dtype)
        elif self.values.dtype != values.dtype:
            self.values = self.values.astype(object)
        if self.values.dtype == np.int64 and self.aggregate.kind in ("sum", "avg"):
            self._bound += max(abs(int(values.min())), abs(int(values.max()))) * len(values)
            if self._bound > _INT_MAX:
                self.values = self.values.astype(object)

    def _identity(self, dtype: Any) -> Any:
        """What a slot has before its first value."""
        if dtype == object:
            return None
        if self.aggregate.kind in ("sum", "avg"):
            return 0
        if dtype == np.float64:
            return np.nan
        limits = np.iinfo(np.int64)
        return limits.max if self.aggregate.kind == "min" else limits.min

    # ---- out ------------------------------------------------------------------------------------

    def entries(self, slots: np.ndarray) -> list:
        """Parts of accumulators."""
        seen = self.seen[slots].tolist()
        if self.aggregate.kind == "count":
            return seen
        values = self._python_values(slots, seen)
        return list(zip(values, seen)) if self.aggregate.kind == "avg" else values

    def _python_values(self, slots: np.ndarray, seen: list) -> list:
        if self.values is None:
            return [None] * len(slots)
        return [value if count else None for value, count in zip(self.values[slots].tolist(), seen)]

    def load(self, slots: np.ndarray, entries: Sequence[Any]) -> None:
        if self.aggregate.kind == "count":
            self.seen[slots] = entries
            return
        if self.aggregate.kind == "avg":
            self.seen[slots] = [count for _, count in entries]
            entries = [total for total, _ in entries]
        else:
            self.seen[slots] = [entry is not None for entry in entries]
        found = [(slot, entry) for slot, entry in zip(slots.tolist(), entries) if entry is not None]
        if found:
            values = _array_of([entry for _, entry in found])
            self._prepare(values)
            assert self.values is not None
            self.values[[slot for slot, _ in found]] = values

    def result(self, slots: np.ndarray) -> Any:
        seen = self.seen[slots]
        kind, values = self.aggregate.kind, self.values
        if kind == "count":
            return pa.array(seen)
        if kind == "avg":
            pairs = zip(self._python_values(slots, seen.tolist()), seen.tolist())
            averages = [None if total is None else total / count for total, count in pairs]
            is_number = self.type is None or _is_number(self.type)
            return pa.array(averages, pa.float64()) if is_number else pa.array(averages)
        if values is not None and values.dtype != object:
            return pa.array(values[slots], mask=None if seen.all() else seen == 0)
        found = self._python_values(slots, seen.tolist())
        try:
            return pa.array(found, self._result_type())
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise UserError(
                f'could not give the {kind} "{self.aggregate.name}" as a column of {self._result_type()}',
                why=str(error),
                do="cast the field to a wider type (double, or a decimal) at the source",
            ) from error

    def _result_type(self) -> Any:
        if self.type is None or pa.types.is_null(self.type):
            return None
        if self.aggregate.kind != "sum":
            return self.type
        if pa.types.is_decimal256(self.type):
            return pa.decimal256(76, self.type.scale)
        if _is_decimal(self.type):
            return pa.decimal128(38, self.type.scale)
        if pa.types.is_floating(self.type):
            return pa.float64()
        return pa.int64() if _is_number(self.type) else None


def wider(known: Any, kind: Any) -> Any:
    """Arrow's type of values of both; batches of one stream may differ (a union of sources)."""
    if known is None or kind.equals(known):
        return kind
    both = [pa.schema([("", known)]), pa.schema([("", kind)])]
    try:
        return pa.unify_schemas(both, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return known


def _numbers(column: Any) -> np.ndarray:
    """int64 or float64 where the values are such numbers, else Python objects."""
    kind = column.type
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(kind):
        return column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return _objects(column_values(column))


def _array_of(values: list) -> np.ndarray:
    """As `_numbers`, of Python values."""
    kinds = set(map(type, values))
    if kinds == {float}:
        return np.array(values)
    if kinds == {int} and -_INT_MAX <= min(values) and max(values) <= _INT_MAX:
        return np.array(values, np.int64)
    return _objects(values)


def _objects(values: list) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _is_decimal(kind: Any) -> bool:
    return kind is not None and pa.types.is_decimal(kind)


def _is_number(kind: Any) -> bool:
    """Of ints, floats, booleans or only nulls."""
    types = pa.types
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_null(kind)


def _grown(array: np.ndarray, size: int, fill: Any) -> np.ndarray:
    grown = np.full(size, fill, array.dtype)
    grown[: len(array)] = array
    return grown
