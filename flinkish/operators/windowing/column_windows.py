"""Tumbling and sliding event-time windows over columns: built-in aggregates without Python code for each record.

The graph chooses it for a window that `can_run_on_columns`, if all inputs come as columns; then results are columns too.  All
else runs record by record in `operators.window.AlignedWindowOperator`, with the same state.

Keys have slots in arrays (`key_map`); those of which no window knows any more are forgotten when they are the most.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Callable, Iterator, Optional

import numpy as np
import pyarrow as pa

from flinkish.common.constants import WINDOW_STATE_NAME
from flinkish.datastream.field_aggregates import WINDOW_END, WINDOW_START, FieldAggregates
from flinkish.messages.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from flinkish.operators.key_map import KeyMap
from flinkish.operators.window import AlignedWindowOperator
from flinkish.operators.windowing.column_aggregates import ColumnWindow, ColumnWindowTable, wider

RESULT_ROWS_MAX = 8192  # of one batch
_SLOTS_MIN = 1024  # fewer are not worth to be sorted out


def key_column(keys: list[Any], kind: Optional[pa.DataType]) -> pa.Array:
    """Canonical keys as a column of the type that they had: as keys True, 1.0 and Decimal(1) are the int 1.

    >>> import decimal
    >>> key_column([1, 1.5, None], pa.decimal128(5, 1)).to_pylist()
    [Decimal('1.0'), Decimal('1.5'), None]
    """
    if kind is not None and pa.types.is_dictionary(kind):
        kind = kind.value_type
    convert = None if kind is None else _from_canonical(kind)
    if convert is not None:
        keys = [None if key is None else convert(key) for key in keys]
    return pa.array(keys, kind)


def _from_canonical(kind: pa.DataType) -> Optional[Callable[[Any], Any]]:
    types = pa.types
    if types.is_boolean(kind):
        return bool
    if types.is_floating(kind):
        return float
    if types.is_decimal(kind):
        return Decimal
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        parts = [(field.name, _from_canonical(field.type)) for field in fields]
        return lambda row: {
            name: value if part is None or value is None else part(value) for (name, part), value in zip(parts, row)
        }
    return None


class ColumnWindowOperator(AlignedWindowOperator):
    fires = False  # rows; see `fires_columns`
    fires_columns = True

    def __init__(self, spec: Any, environment: Any):
        super().__init__(spec, environment)
        self.function: FieldAggregates = spec.operator.function
        self.keys = KeyMap(spec.key_type)
        self._key_type: Any = None  # Arrow's
        self.windows = ColumnWindowTable(lambda: ColumnWindow(self.function, self.keys))
        self.backend.tables[WINDOW_STATE_NAME] = self.windows

    def initialize_state(self):
        super().initialize_state()
        if self.refills:  # they were kept for a lateness, and have fired
            for start in [start for start in self.windows if start <= self.refilled_limit]:
                del self.windows[start]
            self.refilled_limit = self.fired_limit
            self._to_fire, self._to_drop = sorted(self.windows), []
        for window in self.windows.values():
            window.take_restored()

    # ---- records --------------------------------------------------------------------------------

    def process_columns(self, batch: Any, timestamps: Any) -> None:
        """A RecordBatch, and event times in ms: int64 of shape ``[rows]``."""
        if timestamps is None:
            raise self.no_timestamp()
        key = batch.column(self.function.key_field)
        if self.spec.key_type is None:
            self._key_type = wider(self._key_type, key.type)
        slots = self.keys.slots(key)
        last = timestamps - (timestamps - self.offset_ms) % self.slide_ms  # starts of the latest windows
        open_to = timestamps - self.size_ms  # windows that start behind it have the record
        limit = max(self.late_limit, MIN_WATERMARK_MS)
        taken = np.zeros(len(slots), bool)
        for back in range(-(-self.size_ms // self.slide_ms)):
            starts = last - back * self.slide_ms
            wanted = (starts > open_to) & (starts > limit)
            taken |= wanted
            for start in self._distinct(starts, wanted):
                chosen = wanted & (starts == start)
                if chosen.all():
                    self._add(start, slots, batch)
                else:
                    self._add(start, slots[chosen], batch.filter(pa.array(chosen)))
        if not taken.all():
            # Between windows that slide by more than their size a record is in none, and not late.
            missed = timestamps[~taken]
            self.num_late_records_dropped += int(np.count_nonzero(missed <= self.current_watermark))

    @staticmethod
    def _distinct(starts: np.ndarray, wanted: np.ndarray) -> list[int]:
        if not wanted.all():
            starts = starts[wanted]
            if not len(starts):
                return []
        if starts[0] == starts[-1] and starts.min() == starts.max():
            return [int(starts[0])]
        return np.unique(starts).tolist()

    def _add(self, start: int, slots: np.ndarray, batch: Any) -> None:
        window = self.windows.get(start)
        if window is None:
            window = self.open_window(start)
        window.add(slots, batch, len(self.keys))

    # ---- firing ---------------------------------------------------------------------------------

    def _fire_keys(self, start: int, table: Any) -> Iterator[Any]:
        """(RecordBatch, event times)."""
        end = start + self.size_ms
        slots = table.present()
        for first in range(0, len(slots), RESULT_ROWS_MAX):
            some = slots[first : first + RESULT_ROWS_MAX]
            keys = self.keys.keys
            columns = [
                key_column([keys[slot] for slot in some.tolist()], self._key_type),
                pa.array(np.full(len(some), start)),
                pa.array(np.full(len(some), end)),
                *table.results(some),
            ]
            names = [self.function.key_name, WINDOW_START, WINDOW_END, *(each.name for each in self.function.aggregates)]
            times = np.full(len(some), min(end - 1, MAX_WATERMARK_MS))
            yield pa.RecordBatch.from_arrays(columns, names), times
        self._forget_keys()

    def _forget_keys(self) -> None:
        if len(self.keys) < _SLOTS_MIN:
            return
        used = np.zeros(len(self.keys), bool)
        for window in self.windows.values():
            used[window.present()] = True
        if 2 * np.count_nonzero(used) > len(self.keys):
            return
        slots = np.flatnonzero(used)
        for window in self.windows.values():
            window.keep(slots)
        self.keys.keep(slots.tolist())
