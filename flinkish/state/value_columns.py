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
pickle.  Nor is taken apart what its parts lead back to (a tree whose nodes know their parents).  Two *elements*
of a list, or values of two keys, may become separate objects, as they do in any backend that keeps them as bytes.
"""

from __future__ import annotations

import functools
import gc
import itertools
import types
from array import array
from typing import Any, Callable, Iterable, Iterator, Optional

import numpy as np
import pyarrow as pa

from flinkish.common.types import Row
from flinkish.state.serializers import LayoutReader, LayoutWriter

_DEPTH_MAX = 4
_FIELDS_MAX = 64
_CHUNK = 1 << 16
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
        column = _floats(np.array(array("d", values)))
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
        if column is not None and not issubclass(kind, tuple) and _lead_back(_whole_parts(column), values):
            column = None
    return ("o", values) if column is None else column


def _whole_parts(column: Any) -> Iterator[list]:
    """What lies in an encoded column as it is."""
    tag = column[0]
    if tag == "o":
        yield column[1]
    elif tag == "m":
        yield from _whole_parts(column[2])
        yield from _whole_parts(column[3])
    elif tag == "l":
        yield from _whole_parts(column[2])
    elif tag in ("t", "r", "w"):
        for part in column[-1]:
            yield from _whole_parts(part)


def _lead_back(parts: Iterable[Iterable], values: list) -> bool:
    """Whether anything in ``parts`` leads to one of ``values``.  It is C code that looks at what leads nowhere, numbers
    and texts: 25 ns each."""
    level = list(filter(gc.is_tracked, itertools.chain.from_iterable(parts)))
    if not level:
        return False
    wanted, seen = set(map(id, values)), set(map(id, level))
    if not wanted.isdisjoint(seen):
        return True
    while level:
        found: list = []
        for start in range(0, len(level), _CHUNK):
            found += filter(gc.is_tracked, gc.get_referents(*level[start : start + _CHUNK]))
        level = []
        for part in found:
            if id(part) in wanted:
                return True
            if id(part) not in seen and not isinstance(part, _BY_NAME):
                seen.add(id(part))
                level.append(part)
    return False


#: What is pickled as a name, so that what it leads to does not matter.
_BY_NAME = (type, types.ModuleType, types.FunctionType)


def _encode_ints(values: list) -> Optional[tuple]:
    try:
        return _ints(np.array(array("q", values)))
    except OverflowError:
        return None


def _floats(numbers: np.ndarray) -> tuple:
    return "d", numbers.astype("<f8").tobytes()


def _ints(numbers: np.ndarray) -> tuple:
    low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
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
    ids = np.fromiter(map(id, values), dtype=np.int64, count=len(values))
    return len(np.unique(ids)) != len(values)


# ---- what a column holds ------------------------------------------------------------------------

#: Of values that have no common type, or one without a name here.
ANYTHING = "o"
_SCALARS = {str: "s", int: "q", float: "d", bool: "b", bytes: "y", type(None): "n"}


def column_form(column: tuple, layouts: LayoutWriter) -> Any:
    """The type of all values of an encoded column, as JSON: the tags above, with those of the parts::

        "n" "b" "q" "d" "s", "y" (bytes), ["t", [form, ...]], ["l", form], ["m", key, value],
        ["r", [field, ...], [form, ...]], ANYTHING

    >>> column_form(encode_column([("a", 1), ("b", 2)], LayoutWriter()), LayoutWriter())
    ['t', ['s', 'q']]
    """
    tag = column[0]
    if tag == "o":
        return _form_of_objects(column[1])
    if tag == "t":
        return ["t", [column_form(part, layouts) for part in column[2]]]
    if tag == "l":
        return ["l", column_form(column[2], layouts)]
    if tag == "m":
        return ["m", column_form(column[2], layouts), column_form(column[3], layouts)]
    if tag == "r":
        fields = list(layouts.layouts[column[1]].fields)
        return ["r", fields, [column_form(part, layouts) for part in column[3]]]
    if tag == "w":
        parts = [column_form(part, layouts) for part in column[4]]
        return ["t", parts] if column[1] is None else ["r", column[1], parts]
    return tag


def _form_of_objects(values: Iterable[Any]) -> Any:
    """Of values that stayed objects: one level of lists and dicts is looked into."""
    values = [value for value in values if value is not None]
    kinds = set(map(type, values))
    if not kinds:
        return "n"
    if len(kinds) > 1:
        return ANYTHING
    (kind,) = kinds
    if kind is list:
        return ["l", _form_of_scalars(itertools.chain.from_iterable(values))]
    if kind is dict:
        keys, content = itertools.chain.from_iterable(values), itertools.chain.from_iterable(map(dict.values, values))
        return ["m", _form_of_scalars(keys), _form_of_scalars(content)]
    return _form_of_scalars(values)


def _form_of_scalars(values: Iterable[Any]) -> Any:
    values = list(values)
    forms = [_SCALARS.get(kind, ANYTHING) for kind in set(map(type, values))]
    form = functools.reduce(merge_forms, forms, "n")
    if form == "q" and not all(value is None or -(1 << 63) <= value < 1 << 63 for value in values):
        return ANYTHING
    return form


def merge_forms(one: Any, other: Any) -> Any:
    """The form of what has either form.

    >>> merge_forms(["l", "n"], ["l", "q"]), merge_forms("q", "s")
    (['l', 'q'], 'o')
    """
    if one == other or other == "n":
        return one
    if one == "n":
        return other
    if type(one) is list and type(other) is list and one[0] == other[0]:
        if one[0] == "l":
            return ["l", merge_forms(one[1], other[1])]
        if one[0] == "m":
            return ["m", merge_forms(one[1], other[1]), merge_forms(one[2], other[2])]
        if one[:-1] == other[:-1] and len(one[-1]) == len(other[-1]):
            return [*one[:-1], list(map(merge_forms, one[-1], other[-1]))]
    return ANYTHING


# ---- whole tables -------------------------------------------------------------------------------


class TableColumn:
    """All values of a table, to be brought into another order and encoded piece by piece.

    Values are turned into numbers and bytes in the order of the table, which is most often the order in
    which they lie in memory, and those are sorted.  Encoding sorted objects instead reads each from a
    place of its own: 1 M str keys with int values took 1.7 to 2.4 s instead of 0.8.
    """

    def sorted(self, order: np.ndarray) -> "TableColumn":
        """Takes the place of this one, which must not be used any more."""
        raise NotImplementedError

    def encode(self, start: int, end: int) -> tuple:
        """What `encode_column` gives for these values."""
        raise NotImplementedError


def table_column(values: list, layouts: LayoutWriter, depth: int = 0) -> TableColumn:
    kinds = set(map(type, values))
    column: Optional[TableColumn] = None
    if len(kinds) == 1:
        (kind,) = kinds
        if kind is int:
            column = _Numbers.of("q", values)
        elif kind is float:
            column = _Numbers.of("d", values)
        elif kind is str:
            column = _Texts.of(values)
        elif kind is tuple and depth < _DEPTH_MAX:
            width = len(values[0])
            if 0 < width <= _FIELDS_MAX and len(set(map(len, values))) == 1:
                columns = [table_column(list(part), layouts, depth + 1) for part in zip(*values)]
                column = _Fields(("t",), columns)
        elif depth == 0 and kind not in (list, dict, Row):
            column = _records(kind, values, layouts)
    return column or _Objects(values, layouts, depth)


def _records(kind: type, values: list, layouts: LayoutWriter) -> Optional[TableColumn]:
    form = layouts.form_of(kind)
    if form is None or not 0 < len(form.fields) <= _FIELDS_MAX:
        return None
    fields: list[list] = [[] for _ in form.fields]
    for start in range(0, len(values), _CHUNK):
        rows = list(map(form.values, values[start : start + _CHUNK]))
        if None in rows:
            return None
        for field, part in zip(fields, zip(*rows)):  # type: ignore[arg-type]
            field += part
    columns = [table_column(field, layouts, 1) for field in fields]
    if form.kind != "namedtuple":
        parts = (field for field, column in zip(fields, columns) if isinstance(column, (_Fields, _Objects)))
        if _lead_back(parts, values):
            return None
    return _Fields(("r", layouts.number(form)), columns)


class _Numbers(TableColumn):
    def __init__(self, tag: str, numbers: np.ndarray):
        self._tag, self._numbers = tag, numbers

    @classmethod
    def of(cls, tag: str, values: list) -> Optional["_Numbers"]:
        try:
            return cls(tag, np.array(array(tag, values)))
        except OverflowError:
            return None

    def sorted(self, order: np.ndarray) -> TableColumn:
        return _Numbers(self._tag, self._numbers[order])

    def encode(self, start: int, end: int) -> tuple:
        return (_ints if self._tag == "q" else _floats)(self._numbers[start:end])


class _Texts(TableColumn):
    """UTF-8, each with a NUL behind it, and where each begins."""

    def __init__(self, texts: pa.LargeBinaryArray):
        self._texts = texts

    @classmethod
    def of(cls, values: list) -> Optional["_Texts"]:
        parts: list[bytes] = []
        lengths: list[np.ndarray] = []
        try:
            for start in range(0, len(values), _CHUNK):
                texts = list(map(str.encode, values[start : start + _CHUNK]))
                data = b"\0".join(texts)
                if data.count(b"\0") != len(texts) - 1:
                    return None
                parts += data, b"\0"
                lengths.append(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)))
        except UnicodeEncodeError:  # a lone surrogate
            return None
        offsets = np.zeros(len(values) + 1, dtype=np.int64)
        np.cumsum(np.concatenate(lengths) + 1, out=offsets[1:])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(parts))]
        return cls(pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(values), buffers))

    def sorted(self, order: np.ndarray) -> TableColumn:
        # Not by pa.array, which imports pandas: each child did so anew, 0.4 s of CPU in every snapshot.
        buffers = [None, pa.py_buffer(order.astype(np.int64, copy=False))]
        return _Texts(self._texts.take(pa.Array.from_buffers(pa.int64(), len(order), buffers)))

    def encode(self, start: int, end: int) -> tuple:
        _, offsets, data = self._texts.buffers()
        first, last = np.frombuffer(offsets, dtype=np.int64)[[start, end]].tolist()
        return "s", str(data[first : last - 1], "utf-8")


class _Fields(TableColumn):
    def __init__(self, head: tuple, columns: list[TableColumn]):
        self._head, self._columns = head, columns

    def sorted(self, order: np.ndarray) -> TableColumn:
        for position, column in enumerate(self._columns):
            self._columns[position] = column.sorted(order)
        return self

    def encode(self, start: int, end: int) -> tuple:
        return *self._head, end - start, [column.encode(start, end) for column in self._columns]


class _Objects(TableColumn):
    def __init__(self, values: list, layouts: LayoutWriter, depth: int):
        # np.array(values) would look into lists and tuples.
        self._objects = np.fromiter(values, dtype=object, count=len(values))
        self._layouts, self._depth = layouts, depth

    def sorted(self, order: np.ndarray) -> TableColumn:
        self._objects = self._objects[order]
        return self

    def encode(self, start: int, end: int) -> tuple:
        return encode_column(self._objects[start:end].tolist(), self._layouts, self._depth, alone=self._depth == 0)


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
    found = [dict(zip(all_keys[start:end], content[start:end])) for start, end in ranges]
    if sum(map(len, found)) != len(content):
        raise layouts.refusal(
            "keys of a map are equal now that were different",
            "their class has lost a field that told them apart, or compares other fields than before, and one entry "
            "would take the place of the other",
            "keep the field, or give the state another name",
        )
    return found


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
