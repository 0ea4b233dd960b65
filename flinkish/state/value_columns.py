"""A list of values as a few long pieces, which pickle and compress well: what blocks of a snapshot hold.

Values of one type lie in a column of that type; tuples, dataclasses, NamedTuples and Rows fall into a
column for each field; lists and dicts into their lengths and one column of all that they hold.  Whatever
is mixed stays a list of objects.  Forms, with their tag first::

    ("n", count)             None
    ("b", bytes)             bool
    ("q", width, bytes)      int, little endian, 1, 2, 4 or 8 bytes each
    ("d", bytes)             float, 8 bytes each
    ("s", text)              str, with NUL between them
    ("t", count, columns)    tuples of one length
    ("l", lengths, column)   lists
    ("m", lengths, keys, values)   dicts
    ("r", layout, count, columns)   records (`flinkish.state.serializers`)
    ("w", names, kinds, count, columns)   Rows
    ("o", list)              anything

An object that stands twice in one value (``(a, a)``) is one object afterwards: what can change is taken
apart only where it stands alone, as a value or as an element of a list state, and all of a block is one
pickle.  Two *elements* of a list, or values of two keys, may become separate objects, as they do in any
backend that keeps them as bytes.
"""

from __future__ import annotations

import itertools
from array import array
from typing import Any, Callable, Iterable, Optional

import numpy as np

from flinkish.common.types import Row
from flinkish.state.serializers import LayoutReader, LayoutWriter

_DEPTH_MAX = 4
_FIELDS_MAX = 64
_WIDTHS = ((1, "<i1"), (2, "<i2"), (4, "<i4"), (8, "<i8"))
_TYPES = dict(_WIDTHS)


def encode_column(values: list, layouts: LayoutWriter, depth: int = 0, alone: bool = True) -> tuple:
    """A tuple for `LayoutWriter.dumps`; `decode_column` gives equal values of the same types.

    Args:
        depth: how many columns lie around this one.
        alone: no other column holds parts of the same values.
    """
    kinds = set(map(type, values))
    if len(kinds) != 1:
        return ("n", 0) if not values else ("o", values)
    (kind,) = kinds
    column: Optional[tuple] = None
    if kind is str:
        text = "\0".join(values)
        if text.count("\0") == len(values) - 1:
            column = "s", text
    elif kind is int:
        column = _encode_ints(values)
    elif kind is float:
        column = "d", np.array(array("d", values)).astype("<f8").tobytes()
    elif kind is type(None):
        column = "n", len(values)
    elif kind is bool:
        column = "b", bytes(values)
    elif depth < _DEPTH_MAX:
        if kind is tuple:
            column = _encode_tuples(values, layouts, depth)
        elif issubclass(kind, tuple):
            column = _encode_records(kind, values, layouts, depth)
        elif not alone or _share(values):
            column = None
        elif kind is list:
            column = _encode_lists(values, layouts, depth)
        elif kind is dict:
            column = _encode_dicts(values, layouts, depth)
        elif kind is Row:
            column = _encode_rows(values, layouts, depth)
        else:
            column = _encode_records(kind, values, layouts, depth)
    return ("o", values) if column is None else column


def _encode_ints(values: list) -> Optional[tuple]:
    try:
        numbers = np.array(array("q", values))
    except OverflowError:
        return None
    low, high = int(numbers.min()), int(numbers.max())
    for width, name in _WIDTHS:
        if -(1 << 8 * width - 1) <= low and high < 1 << 8 * width - 1:
            return "q", width, numbers.astype(name).tobytes()
    raise AssertionError("an int64 has at most 8 bytes")


def _encode_tuples(values: list, layouts: LayoutWriter, depth: int) -> Optional[tuple]:
    width = len(values[0])
    if not 0 < width <= _FIELDS_MAX or len(set(map(len, values))) != 1:
        return None
    return "t", len(values), _encode_fields(values, layouts, depth)


def _encode_fields(rows: Iterable[tuple], layouts: LayoutWriter, depth: int) -> list[tuple]:
    return [encode_column(list(column), layouts, depth + 1, alone=False) for column in zip(*rows)]


def _encode_lists(values: list, layouts: LayoutWriter, depth: int) -> Optional[tuple]:
    content = list(itertools.chain.from_iterable(values))
    return "l", _encode_ints(list(map(len, values))), encode_column(content, layouts, depth + 1)


def _encode_dicts(values: list, layouts: LayoutWriter, depth: int) -> Optional[tuple]:
    keys = list(itertools.chain.from_iterable(values))
    content = list(itertools.chain.from_iterable(map(dict.values, values)))
    return (
        "m",
        _encode_ints(list(map(len, values))),
        encode_column(keys, layouts, depth + 1),
        encode_column(content, layouts, depth + 1),
    )


def _encode_rows(values: list, layouts: LayoutWriter, depth: int) -> Optional[tuple]:
    names = values[0]._fields
    width = len(values[0]._values)
    if not 0 < width <= _FIELDS_MAX or _share([value._values for value in values]):
        return None
    kinds = bytearray()
    for value in values:
        if len(value._values) != width or (value._fields is not names and value._fields != names):
            return None
        kinds.append(value._row_kind.value)
    columns = _encode_fields([value._values for value in values], layouts, depth)
    return "w", None if names is None else list(names), bytes(kinds) if any(kinds) else None, len(values), columns


def _encode_records(kind: type, values: list, layouts: LayoutWriter, depth: int) -> Optional[tuple]:
    form = layouts.form_of(kind)
    if form is None or not 0 < len(form.fields) <= _FIELDS_MAX:
        return None
    rows = list(map(form.values, values))
    if None in rows:  # an object with more or fewer than its fields
        return None
    return "r", layouts.number(form), len(values), _encode_fields(rows, layouts, depth)  # type: ignore[arg-type]


def _share(values: list) -> bool:
    """One object stands in two places, and must be one afterwards."""
    return len(set(map(id, values))) != len(values)


# ---- reading ------------------------------------------------------------------------------------


def decode_column(column: Any, layouts: LayoutReader) -> list:
    """The values of `encode_column`.

    Raises:
        ValueError, TypeError, KeyError: the column is not one.
    """
    return _DECODERS[column[0]](layouts, *column[1:])


def _decode_nones(layouts: LayoutReader, count: int) -> list:
    return [None] * count


def _decode_bools(layouts: LayoutReader, data: bytes) -> list:
    return np.frombuffer(data, dtype=np.bool_).tolist()


def _decode_ints(layouts: LayoutReader, width: int, data: bytes) -> list:
    return np.frombuffer(data, dtype=_TYPES[width]).tolist()


def _decode_floats(layouts: LayoutReader, data: bytes) -> list:
    return np.frombuffer(data, dtype="<f8").tolist()


def _decode_texts(layouts: LayoutReader, text: str) -> list:
    return text.split("\0")


def _decode_tuples(layouts: LayoutReader, count: int, columns: list) -> list:
    return list(zip(*_decode_fields(layouts, count, columns)))


def _decode_fields(layouts: LayoutReader, count: int, columns: list) -> list[list]:
    decoded = [decode_column(column, layouts) for column in columns]
    if any(len(column) != count for column in decoded):
        raise ValueError(f"columns of {sorted(set(map(len, decoded)))} values, not {count}")
    return decoded


def _decode_lists(layouts: LayoutReader, lengths: tuple, column: tuple) -> list:
    content = decode_column(column, layouts)
    return [content[start:end] for start, end in _ranges(layouts, lengths, len(content))]


def _decode_dicts(layouts: LayoutReader, lengths: tuple, keys: tuple, values: tuple) -> list:
    all_keys, content = decode_column(keys, layouts), decode_column(values, layouts)
    ranges = _ranges(layouts, lengths, len(content))
    return [dict(zip(all_keys[start:end], content[start:end])) for start, end in ranges]


def _ranges(layouts: LayoutReader, lengths: tuple, count: int) -> Iterable[tuple[int, int]]:
    ends = list(itertools.accumulate(decode_column(lengths, layouts)))
    if ends and ends[-1] != count:
        raise ValueError(f"lengths of {ends[-1]} values, not {count}")
    return zip([0, *ends], ends)


def _decode_rows(
    layouts: LayoutReader, names: Optional[list], kinds: Optional[bytes], count: int, columns: list
) -> list:
    rows = zip(*_decode_fields(layouts, count, columns))
    return Row.many_of_fields(names, list(map(list, rows)), None if kinds is None else list(kinds))


def _decode_records(layouts: LayoutReader, number: int, count: int, columns: list) -> list:
    rows = zip(*_decode_fields(layouts, count, columns))
    return layouts.builder(number).make_many(rows)


def _decode_objects(layouts: LayoutReader, values: list) -> list:
    return values


_DECODERS: dict[str, Callable[..., list]] = {
    "n": _decode_nones,
    "b": _decode_bools,
    "q": _decode_ints,
    "d": _decode_floats,
    "s": _decode_texts,
    "t": _decode_tuples,
    "l": _decode_lists,
    "m": _decode_dicts,
    "w": _decode_rows,
    "r": _decode_records,
    "o": _decode_objects,
}
