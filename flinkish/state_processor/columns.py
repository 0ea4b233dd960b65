"""Values of state as Arrow columns, and back.

A column gets the type that the state's descriptor declared, else the one that the snapshot's writer has seen in all
values (`state.value_columns.column_form`), else it is text: a ``str`` as it is, anything else as JSON, in which
tuples and sets are lists, records and Rows are objects, bytes are base64, members of an Enum their names, and what
JSON does not know is its ``repr``.  Text is for people, for ``from_json`` and for `object_types`; it does not tell
``"1"`` from ``1``.  A column that is text of something else says so (`is_made_text`).  Half of a surrogate pair,
which Arrow's strings cannot have, is shown as Python escapes it, ``\\ud83d``.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import uuid
from typing import Any, Callable, Iterable, Optional, Sequence

import pyarrow as pa

from flinkish.common.arrow_types import instant_count
from flinkish.common.time import Instant
from flinkish.common.types import Row
from flinkish.errors import UserError
from flinkish.state.serializers import LayoutReader, RecordLayout
from flinkish.state.value_columns import ANYTHING

TEXT = pa.string()

_SCALARS = {
    "q": pa.int64(),
    "d": pa.float64(),
    "b": pa.bool_(),
    "s": pa.string(),
    "y": pa.binary(),
    "n": pa.string(),
}


def arrow_type_of_form(form: Any) -> Optional[pa.DataType]:
    """None: the values have no common type that Arrow has.

    >>> arrow_type_of_form(["t", ["s", "q"]])
    StructType(struct<f0: string, f1: int64>)
    """
    if form == ANYTHING:
        return None
    if isinstance(form, str):
        return _SCALARS[form]
    tag, *parts = form
    if tag in "tr":
        types = [arrow_type_of_form(part) for part in parts[-1]]
        names = [f"f{index}" for index in range(len(types))] if tag == "t" else parts[0]
        return None if None in types else pa.struct(list(zip(names, types)))
    types = [arrow_type_of_form(part) for part in parts]
    if None in types:
        return None
    return pa.list_(types[0]) if tag == "l" else pa.map_(*types)


_MADE_TEXT = {b"flinkish.text": b"of other values"}


def made_text(name: str) -> pa.Field:
    """A column of text that stands for other values."""
    return pa.field(name, TEXT, metadata=_MADE_TEXT)


def is_made_text(field: pa.Field) -> bool:
    return dict(field.metadata or {}).items() >= _MADE_TEXT.items()


# ---- to Arrow -----------------------------------------------------------------------------------


def to_column(values: Sequence[Any], type_: pa.DataType, state: str, column: str) -> pa.Array:
    """Values of state as a column.

    Raises:
        UserError: a value is not of the type.
    """
    if pa.types.is_string(type_):
        return pa.array([None if value is None else as_text(value) for value in values], type_)
    convert = _to_arrow(type_)
    if convert is _whole and set(map(type, values)) <= {int, type(None)}:
        convert = None
    try:
        return pa.array(values if convert is None else [convert(value) for value in values], type_)
    except (pa.ArrowException, TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise UserError(
            f'could not read the {column} of state "{state}" as {type_}',
            why=f"{type(error).__name__}: {error}",
            do="ask for this column as a string, which takes every value",
            state=state,
        ) from error


def _to_arrow(type_: pa.DataType) -> Optional[Callable[[Any], Any]]:
    """None: pyarrow takes the values as they are."""
    if pa.types.is_struct(type_):
        fields = [(field.name, _to_arrow(field.type) or _same) for field in type_]
        return lambda value: _to_struct(value, fields)
    if pa.types.is_list(type_):
        convert = _to_arrow(type_.value_type)
        return convert and (lambda value: None if value is None else [convert(part) for part in value])
    if pa.types.is_map(type_):
        key, item = _to_arrow(type_.key_type) or _same, _to_arrow(type_.item_type) or _same
        return lambda value: None if value is None else [(key(k), item(v)) for k, v in value.items()]
    if pa.types.is_string(type_):
        return lambda value: None if value is None else as_text(value)
    if pa.types.is_timestamp(type_):
        return lambda value: instant_count(value, type_) if isinstance(value, Instant) else value
    return _whole if pa.types.is_integer(type_) else None


def _whole(value: Any) -> Any:
    """pyarrow makes 1 of 1.5 without a word."""
    if value is not None and int(value) != value:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _same(value: Any) -> Any:
    return value


def _to_struct(value: Any, fields: list[tuple[str, Callable[[Any], Any]]]) -> Optional[dict]:
    if value is None:
        return None
    if isinstance(value, Row):
        found = dict(zip(value._fields, value._values)) if value._fields is not None else list(value._values)
    elif isinstance(value, dict):
        found = value
    elif isinstance(value, (tuple, list)):
        found = list(value)
    else:
        found = {name: getattr(value, name) for name, _ in fields}
    if len(found) != len(fields):
        raise ValueError(f"{value!r:.200} has {len(found)} fields, not {len(fields)}")
    values = found if isinstance(found, list) else [found[name] for name, _ in fields]
    return {name: convert(part) for (name, convert), part in zip(fields, values)}


def as_text(value: Any) -> str:
    """
    >>> as_text("a"), as_text(("a", 1)), as_text({"k": None})
    ('a', '["a", 1]', '{"k": null}')
    """
    text = value if isinstance(value, str) else json.dumps(_jsonable(value), ensure_ascii=False)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _jsonable(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Row):
        if value._fields is None:
            return [_jsonable(part) for part in value._values]
        return {name: _jsonable(part) for name, part in zip(value._fields, value._values)}
    if isinstance(value, dict):
        return {key if isinstance(key, str) else as_text(key): _jsonable(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [_jsonable(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_jsonable(part) for part in value), key=repr)
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    if isinstance(value, enum.Enum) and value._name_ is not None:
        return value._name_
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, Instant):
        seconds = datetime.datetime.fromtimestamp(value.seconds, datetime.timezone.utc).isoformat()
        return f"{seconds.partition('+')[0]}.{value.nanos:09}+00:00"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return repr(value)


# ---- from Arrow ---------------------------------------------------------------------------------


def to_values(column: Any) -> list:
    """Python's values of a column: a struct is a Row, a map a dict, the rest as ``to_pylist``."""
    convert = _to_python(column.type)
    values = column.to_pylist()
    return values if convert is None else [convert(value) for value in values]


def _to_python(type_: pa.DataType) -> Optional[Callable[[Any], Any]]:
    if pa.types.is_struct(type_):
        names = [field.name for field in type_]
        parts = [(field.name, _to_python(field.type) or _same) for field in type_]
        return lambda value: (
            None if value is None else Row.of_fields(names, [part(value[name]) for name, part in parts])
        )
    if pa.types.is_map(type_):
        key, item = _to_python(type_.key_type) or _same, _to_python(type_.item_type) or _same
        return lambda value: None if value is None else {key(k): item(v) for k, v in value}
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        convert = _to_python(type_.value_type)
        return convert and (lambda value: None if value is None else [convert(part) for part in value])
    return None


# ---- values whose classes are not here ----------------------------------------------------------


class Record(dict):
    """A saved dataclass or NamedTuple by field name: its class is not needed to read it."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


class DataLayoutReader(LayoutReader):
    """Makes a `Record` of every record, the name of a member of an Enum, and of objects whose class cannot be imported
    one that says its name."""

    def __init__(self, layouts: Iterable[RecordLayout] = ()):
        super().__init__(layouts)

    def builder(self, number: int) -> Any:
        return _RecordBuilder(self._layout(number).fields)

    def member(self, layout: RecordLayout, name: str) -> str:
        return name

    def find(self, module: str, name: str, find_class: Callable[[str, str], Any]) -> Any:
        if (module, name) in (("flinkish.state.serializers", call) for call in self._calls):
            return super().find(module, name, find_class)
        try:
            return find_class(module, name)
        except (ImportError, AttributeError):
            return type(name.rpartition(".")[2], (_Unknown,), {"__module__": module, "__qualname__": name})


class _RecordBuilder:
    def __init__(self, fields: tuple[str, ...]):
        self._fields = fields

    def new(self) -> Record:
        return Record()

    def fill(self, record: Record, values: tuple, extra: Optional[dict]) -> None:
        record.update(zip(self._fields, values), **(extra or {}))

    def make(self, values: tuple) -> Record:
        return Record(zip(self._fields, values))

    def make_many(self, rows: Iterable[tuple]) -> list[Record]:
        return [Record(zip(self._fields, values)) for values in rows]


class _Unknown:
    """Takes whatever pickle gives an object."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "_Unknown":
        self = super().__new__(cls)
        self.__dict__["args"] = args
        return self

    def __init__(self, *args: Any, **kwargs: Any):
        """The arguments are kept by ``__new__``."""

    def __setstate__(self, state: Any) -> None:
        self.__dict__["state"] = state

    # Of a class that is a list or a dict.

    def append(self, element: Any) -> None:
        self.__dict__.setdefault("elements", []).append(element)

    def extend(self, elements: Iterable[Any]) -> None:
        self.__dict__.setdefault("elements", []).extend(elements)

    def __setitem__(self, key: Any, element: Any) -> None:
        self.__dict__.setdefault("entries", {})[key] = element

    def __repr__(self) -> str:
        cls, parts = type(self), dict(self.__dict__)
        args = parts.pop("args", ())
        shown = [*map(repr, args), *(repr(part) for part in parts.values() if part is not None)]
        return f"<{cls.__module__}.{cls.__qualname__} {', '.join(shown)}>"
