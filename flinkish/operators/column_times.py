"""Event times of records in columns: given beside them, or in one of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def given_times(times: Any, rows: int) -> np.ndarray:
    """Event times in ms that a reader has collected beside ``rows`` rows, from a numpy or Arrow array.

    Raises:
        ValueError: some are missing.
        TypeError: they are no whole numbers."""
    if isinstance(times, (pa.Array, pa.ChunkedArray)):
        found = _arrow_times(times, "the event times")
    else:
        found = np.asarray(times)
        if found.dtype.kind not in "iu":
            raise TypeError(f"the event times are of type {found.dtype}, not int64")
    if found.shape != (rows,):
        raise ValueError(f"{rows} rows came with event times of shape {found.shape}")
    return found.astype(np.int64, copy=False)


def column_times(columns: pa.RecordBatch, field: Any) -> np.ndarray:
    """Event times in ms from a column of ints (ms) or timestamps (without zone: UTC).

    Raises:
        ValueError: the column holds nulls, which are no time.
        TypeError: it is of another type."""
    return _arrow_times(columns.column(field), f"the event time column {field!r}")


def _arrow_times(column: Any, name: str) -> np.ndarray:
    if column.null_count:
        raise ValueError(f"{name}: there are {column.null_count} nulls")
    if pa.types.is_timestamp(column.type):
        per_ms = {"s": 1_000, "ms": 1, "us": -1_000, "ns": -1_000_000}[column.type.unit]
        times = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return times * per_ms if per_ms > 0 else times // -per_ms
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    raise TypeError(f"{name}: the type is {column.type}, not int or timestamp")
