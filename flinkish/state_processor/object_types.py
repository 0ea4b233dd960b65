"""Objects of a program's classes from the values of columns: the way back from the rows of states (`columns`).

In a row a struct is a `Row`, whatever it was in the job, and values that Arrow has no column for are text.  An
annotation says what the job has instead: a dataclass, a NamedTuple, an Enum, ``tuple``, ``tuple[int, str]``,
``list[Visit]``, ``Optional[UUID]``.  It is followed through the annotations of fields::

    dataclass, NamedTuple       of a struct by field name, of a dict or text that is a JSON object too; the struct has
                                all fields and no others, those with ``init=False`` it may have
    NamedTuple, tuple           of a struct or list also by position
    Enum                        of the member's name; one that is a str or a number, of its value too; a Flag of A|B
    list, set, frozenset, dict  of a list or map
    date, time, datetime, Decimal, UUID, bytes    also of their text in the rows; numbers where all the value is text
    Any, what names no type     as it is

None is a value of every type.  Values that are of the type already stay as they are.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import datetime
import decimal
import enum
import functools
import json
import operator
import types
import typing
import uuid
from typing import Any, Callable, Optional, Sequence

from flinkish.common.time import Instant
from flinkish.common.types import Row
from flinkish.errors import InvalidJobError

_UNIONS = (typing.Union, types.UnionType)

#: Takes a value, gives one of the type.  Raises ValueError that says why there is none.
Maker = Callable[[Any], Any]


class ObjectType:
    """An annotation whose names are resolved here, so that it can go to processes that do not know them."""

    def __init__(self, annotation: Any, call: str, parameter: str):
        """
        Raises:
            InvalidJobError: it is no type, or nothing can be made of it.
        """
        self.text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
        self._is_union = typing.get_origin(annotation) in _UNIONS
        try:
            _check_is_made(annotation)
            self._make = _Makers().of(annotation)
        except TypeError as error:
            raise InvalidJobError(
                f"{call} cannot use {annotation!r:.200} as {parameter}",
                why=str(error),
                do="give a dataclass, a NamedTuple, an Enum, tuple or tuple[int, str]"
                + (", or a type of flinkish.common.Types" if parameter == "key_type" else ""),
            ) from error

    def __repr__(self) -> str:
        return self.text

    def make(self, value: Any) -> Any:
        """None stays None.

        Raises:
            ValueError: there is no such value, or two, as of ``"1"`` for ``int | str``.
        """
        if type(value) is not str:
            return self._make(value)
        try:
            found = self._make(value)
        except ValueError as error:
            try:
                return self._make(json.loads(value))
            except ValueError:
                raise error from None
        if type(found) is str and self._takes_json(value):
            raise ValueError(f"it is the text {value!r:.100}, which may be a str or the text of something else")
        return found

    def _takes_json(self, text: str) -> bool:
        if not self._is_union:
            return False
        try:
            read = json.loads(text)
            self._make(read)
        except ValueError:
            return False
        return not isinstance(read, str)


def _check_is_made(annotation: Any) -> None:
    """Raises: TypeError: nothing of it can be made, where a field would only be looked at."""
    if isinstance(annotation, str):
        raise TypeError("it is a text, no class")
    if isinstance(annotation, type) and typing.get_origin(annotation) is None and annotation is not object:
        known = (*_SCALARS, *_TEXTS, tuple, list, set, frozenset, dict)
        if not (annotation in known or issubclass(annotation, enum.Enum) or _is_record(annotation)):
            raise TypeError(f"of data no objects of the class {annotation.__name__} can be made")


def _is_record(cls: Any) -> bool:
    return dataclasses.is_dataclass(cls) or issubclass(cls, tuple) and hasattr(cls, "_fields")


def _shown(value: Any) -> str:
    return f"a {type(value).__name__} {value!r:.100}"


class _Makers:
    """One maker for each class, because a class may hold itself."""

    def __init__(self) -> None:
        self._records: dict[type, _RecordMaker] = {}

    def of(self, annotation: Any) -> Maker:
        """Raises: TypeError: there is no way to make one."""
        make = self._of(annotation)
        return lambda value: None if value is None else make(value)

    def _of(self, annotation: Any) -> Maker:
        origin, args = typing.get_origin(annotation), typing.get_args(annotation)
        if isinstance(annotation, typing.NewType):
            return self._of(annotation.__supertype__)
        if origin in (typing.Annotated, typing.Final):
            return self._of(args[0])
        if origin in _UNIONS:
            return _first_of([self.of(arg) for arg in args if arg is not type(None)], str(annotation))
        cls = origin or annotation
        if cls in (object, Any, typing.Literal) or isinstance(cls, (typing.TypeVar, typing.ForwardRef, str)):
            return _as_it_is
        if not isinstance(cls, type):
            raise TypeError(f"it is {_shown(annotation)}, no type")
        if issubclass(cls, enum.Enum):
            return _member_of(cls)
        if _is_record(cls):
            return self._record_of(cls)
        if cls is tuple:
            return self._tuple_of(args)
        if cls in (list, set, frozenset):
            return _collection_of(cls, self.of(args[0]) if args else _as_it_is)
        if cls is dict:
            key, item = (self.of(args[0]), self.of(args[1])) if args else (_as_it_is, _as_it_is)
            return _dict_of(key, item)
        return _of_text(cls, _TEXTS[cls]) if cls in _TEXTS else _instance_of(cls)

    def _record_of(self, cls: type) -> "_RecordMaker":
        record = self._records.get(cls)
        if record is None:
            record = self._records[cls] = _RecordMaker(cls)
            hints = _hints_of(cls)
            record.makers = {name: self.of(hints.get(name, Any)) for name in record.fields}
        return record

    def _tuple_of(self, args: Sequence[Any]) -> Maker:
        if not args:
            return lambda value: tuple(map(_with_tuples, _elements_of(value, "tuple")))
        if args[-1] is ...:
            every = self.of(args[0])
            return lambda value: tuple(map(every, _elements_of(value, "tuple")))
        makers = [self.of(arg) for arg in args]

        def make(value: Any) -> tuple:
            elements = _elements_of(value, "tuple")
            if len(elements) != len(makers):
                raise ValueError(f"it has {len(elements)} elements, the tuple {len(makers)}")
            return tuple(_part(name, maker, part) for name, maker, part in zip(range(len(makers)), makers, elements))

        return make


class _RecordMaker:
    """Makes objects of a dataclass or NamedTuple."""

    def __init__(self, cls: Any):
        self.cls = cls
        self.makers: dict[str, Maker] = {}
        self.is_tuple = issubclass(cls, tuple)
        fields = dataclasses.fields(cls) if not self.is_tuple else ()
        self.fields = list(cls._fields) if self.is_tuple else [field.name for field in fields if field.init]
        self._computed = {field.name for field in fields if not field.init}

    def __call__(self, value: Any) -> Any:
        if type(value) is self.cls:
            return value
        found = _fields_of(_of_json(value), self.cls.__name__, self.fields if self.is_tuple else None)
        missing = [name for name in self.fields if name not in found]
        more = [name for name in found if name not in self.makers and name not in self._computed]
        if missing or more:
            named = f'has no "{missing[0]}"' if missing else f'has "{more[0]}"'
            raise ValueError(
                f"its struct {named}, the fields of {self.cls.__name__} are {', '.join(self.fields)}"
                + (f" and those of the struct {', '.join(map(str, found))}" if missing else "")
            )
        values = {name: _part(name, make, found[name]) for name, make in self.makers.items()}
        try:
            return self.cls(**values)
        except Exception as error:  # user code
            raise ValueError(f"{self.cls.__name__}() raised {type(error).__name__}: {error}") from error


def _part(name: Any, make: Maker, value: Any) -> Any:
    try:
        return make(value)
    except ValueError as error:
        raise ValueError(f'field "{name}": {error}') from error


def _fields_of(value: Any, what: str, by_position: Optional[Sequence[str]]) -> dict[str, Any]:
    if isinstance(value, Row) and value._fields is not None:
        names = list(value._fields)
        if by_position is not None and names == [f"f{index}" for index in range(len(names))]:
            names = _positions(value._values, by_position)  # as the reader shows a tuple, which it was as a key
        return dict(zip(names, value._values))
    if isinstance(value, dict):
        return value
    if by_position is not None and isinstance(value, (tuple, list, Row)):
        return dict(zip(_positions(value, by_position), value))
    raise ValueError(f"it is {_shown(value)}, no struct with the fields of {what}")


def _positions(values: Sequence[Any], names: Sequence[str]) -> list[str]:
    if len(values) != len(names):
        raise ValueError(f"it has {len(values)} fields, not {', '.join(names)}")
    return list(names)


def _hints_of(cls: Any) -> dict[str, Any]:
    """Annotations; those that cannot be resolved leave open what a field is."""
    try:
        return typing.get_type_hints(cls)
    except Exception:  # evaluating runs the user's code; a name may be missing, or stand for no type
        declared: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            declared.update(vars(base).get("__annotations__", {}))
        return {name: Any if isinstance(hint, str) else hint for name, hint in declared.items()}


# ---- values -------------------------------------------------------------------------------------


def _as_it_is(value: Any) -> Any:
    return value


def _of_json(value: Any) -> Any:
    """Of text that `columns.as_text` has made of something else; other text stays."""
    if isinstance(value, str) and value[:1] in ('"', "[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _elements_of(value: Any, what: str) -> Sequence[Any]:
    found = _of_json(value)
    if isinstance(found, (tuple, list, Row, set, frozenset)):
        return list(found)
    raise ValueError(f"it is {_shown(value)}, no {what}")


def _with_tuples(value: Any) -> Any:
    return tuple(map(_with_tuples, value)) if isinstance(value, (Row, list)) else value


def _collection_of(cls: Any, element: Maker) -> Maker:
    return lambda value: cls(map(element, _elements_of(value, cls.__name__)))


def _dict_of(key: Maker, item: Maker) -> Maker:
    def make(value: Any) -> dict:
        found = _of_json(value)
        if not isinstance(found, dict):
            raise ValueError(f"it is {_shown(value)}, no dict")
        return {name_of(name): item(part) for name, part in found.items()}

    def name_of(name: Any) -> Any:
        try:
            return key(name)
        except ValueError:
            return key(json.loads(name))  # JSON has texts only: of another key the text is JSON

    return make


def _first_of(makers: Sequence[Maker], text: str) -> Maker:
    if len(makers) == 1:
        return makers[0]

    def make(value: Any) -> Any:
        for maker in makers:
            try:
                return maker(value)
            except ValueError:
                continue
        raise ValueError(f"it is {_shown(value)}, none of {text}")

    return make


def _member_of(cls: Any) -> Maker:
    by_name = dict(cls.__members__)
    # As readers show it that do not have the class.
    by_name |= {f"<{cls.__module__}.{cls.__qualname__} {member.value!r}>": member for member in cls}
    by_value = {member.value: member for member in cls if isinstance(member, (str, int, float))}

    def find(name: Any) -> Any:
        found = by_value.get(name, by_name.get(name))
        if found is None and issubclass(cls, enum.Flag) and isinstance(name, str):
            parts = [by_name.get(part) for part in name.split("|")]
            found = None if None in parts else functools.reduce(operator.or_, parts)
        return found

    def make(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        for candidate in (value, _of_json(value)):
            if isinstance(candidate, (str, int, float)) and (found := find(candidate)) is not None:
                return found
        raise ValueError(f"it is {_shown(value)}, and the members of {cls.__name__} are {', '.join(cls.__members__)}")

    return make


def _of_text(cls: Any, parse: Callable[[str], Any]) -> Maker:
    def make(value: Any) -> Any:
        if isinstance(value, cls) and not (cls is datetime.date and isinstance(value, datetime.datetime)):
            return value
        text = _of_json(value)
        if cls is decimal.Decimal and type(text) in (int, float):  # as keys are, whose values these have
            return decimal.Decimal(text)
        if isinstance(text, str):
            try:
                return parse(text)
            except (ValueError, decimal.InvalidOperation, binascii.Error):
                pass
        raise ValueError(f"it is {_shown(value)}, no {cls.__name__}")

    return make


_SCALARS = (str, int, float, bool, datetime.timedelta, Instant, Row)
_TEXTS: dict[Any, Callable[[str], Any]] = {
    bytes: lambda text: base64.b64decode(text, validate=True),
    datetime.date: datetime.date.fromisoformat,
    datetime.datetime: datetime.datetime.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
    decimal.Decimal: decimal.Decimal,
    uuid.UUID: uuid.UUID,
}


def _instance_of(cls: type) -> Maker:
    kinds = (int, float) if cls is float else cls  # as annotations are read: an int is a float

    def make(value: Any) -> Any:
        if isinstance(value, kinds):
            return value
        raise ValueError(f"it is {_shown(value)}, no {cls.__name__}")

    return make
