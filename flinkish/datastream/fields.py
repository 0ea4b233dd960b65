"""One field of a record, whatever kind of record it is.

A field is a position (tuples, lists, Rows, dataclasses) or a name (dicts, Rows, NamedTuples,
dataclasses, objects with attributes).  A number, a text or a date is a record of one field, at
position 0.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import itertools
import reprlib
from decimal import Context, Decimal
from numbers import Number
from typing import Any, Optional, Sequence, Union

from flinkish.common.typeinfo import BasicTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation
from flinkish.common.types import Row
from flinkish.common.user_traceback import is_raised_by_user_code
from flinkish.errors import InvalidJobError, UserError

Field = Union[int, str]

#: Records of one field, at position 0.
_SINGLE_VALUES = (Number, Decimal, str, bytes, datetime.date, datetime.time, datetime.timedelta)

_LABELS_MAX = 30


def check_field(field: Any, what: str) -> Field:
    """``field`` when it is a name or a position >= 0."""
    if isinstance(field, str) or (isinstance(field, int) and not isinstance(field, bool) and field >= 0):
        return field
    raise InvalidJobError(
        f"{what} cannot use the field {field!r}", do="give a position from 0 on, or a field name"
    )


def declared_field_type(
    record_type: Optional[TypeInformation], field: Field, what: str
) -> Optional[TypeInformation]:
    """Declared type of a field; None when nothing is declared.

    Raises:
        InvalidJobError: the declared record has no such field."""
    if isinstance(record_type, (RowTypeInfo, TupleTypeInfo)):
        try:
            return record_type.field_type(field)
        except InvalidJobError as error:
            raise InvalidJobError(
                f"{what} cannot use the field {field!r}", why=f"{error.what}; {error.why}"
            ) from None
    if isinstance(record_type, BasicTypeInfo):
        if field != 0:
            raise InvalidJobError(
                f"{what} cannot use the field {field!r}",
                why=f"the declared type is {record_type}, which has no fields",
                do="use position 0",
            )
        return record_type
    return None


#: More digits than decimals of 256 bits have, so that their sums are exact, and an end where exponents are huge.
_EXACT = Context(prec=200)


def added(first: Any, second: Any) -> Any:
    """``first + second``; of decimals all digits, as Java's ``BigDecimal`` (Python alone keeps 28).

    >>> added(Decimal("12345678901234567890"), Decimal("1E-10"))
    Decimal('12345678901234567890.0000000001')
    """
    total = first + second
    return _EXACT.add(first, second) if type(total) is Decimal else total


def get_field(record: Any, field: Field) -> Any:
    if isinstance(field, int):
        if isinstance(record, (tuple, list, Row)):
            return record[field]
        if dataclasses.is_dataclass(record):
            return getattr(record, _name_at(record, field))
        if field == 0 and isinstance(record, _SINGLE_VALUES):
            return record
    elif isinstance(record, (dict, Row)):
        return record[field]
    elif hasattr(record, field):
        return getattr(record, field)
    raise TypeError(f"a {type(record).__name__} has no field {field!r}: {record!r:.200}")


def require_field(record: Any, field: Field, what: str) -> None:
    """Refuse a record that `get_field` finds no ``field`` in.

    Raises:
        UserError: names the record and the fields that it has."""
    try:
        get_field(record, field)
    except (LookupError, TypeError, ValueError, UserError) as error:
        if is_raised_by_user_code(error):  # a property of the record
            raise
        labels = _labels(record)
        raise UserError(
            f"{what} cannot use the field {field!r}",
            why=f"the record {reprlib.repr(record)} has no such field; its fields are {', '.join(labels)}"
            if labels
            else f"the record {reprlib.repr(record)} is a {type(record).__name__}, which has no fields",
            do="give one of them" if labels else "use position 0, or map() it to a tuple before",
        ) from error


def _labels(record: Any) -> list[str]:
    """The fields of a record, as far as they are known; each as it is written in the program."""
    if isinstance(record, dict):
        return [reprlib.repr(key) for key in itertools.islice(record, _LABELS_MAX)]
    names: Sequence[str] = ()
    if isinstance(record, Row):
        names = record.get_field_names() or ()
    elif hasattr(record, "_fields"):
        names = record._fields
    elif dataclasses.is_dataclass(record):
        names = [each.name for each in dataclasses.fields(record)]
    elif not isinstance(record, (tuple, list, *_SINGLE_VALUES)):
        names = list(getattr(record, "__dict__", ()))
    if not names and isinstance(record, (tuple, list, Row)):
        return [str(position) for position in range(min(len(record), _LABELS_MAX))]
    return [repr(name) for name in names[:_LABELS_MAX]]


def with_field(record: Any, field: Field, value: Any) -> Any:
    """A copy of ``record`` with one field replaced; ``record`` itself stays as it is."""
    if isinstance(record, tuple):
        if hasattr(record, "_replace"):
            name = field if isinstance(field, str) else record._fields[field]  # type: ignore[attr-defined]
            return record._replace(**{name: value})  # type: ignore[attr-defined]
        return (*record[:field], value, *record[field + 1 :])  # type: ignore[index,misc,operator]
    if isinstance(record, (list, dict)):
        changed = record.copy()
        changed[field] = value  # type: ignore[index,call-overload]
        return changed
    if isinstance(record, Row):
        changed_row = copy.copy(record)
        changed_row[field] = value
        return changed_row
    if isinstance(record, _SINGLE_VALUES):
        return value
    changed = copy.copy(record)
    name = field if isinstance(field, str) else _name_at(record, field)
    object.__setattr__(changed, name, value)  # also where the dataclass is frozen
    return changed


def _name_at(record: Any, position: int) -> str:
    return dataclasses.fields(record)[position].name


class FieldSelector:
    """Key selector of one field; pickles, and tells the runtime which field it is."""

    def __init__(self, field: Field):
        self.field = field

    def __call__(self, record: Any) -> Any:
        if type(record) is tuple:
            return record[self.field]  # type: ignore[index]
        return get_field(record, self.field)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FieldSelector) and self.field == other.field

    def __hash__(self) -> int:
        return hash(self.field)

    def __repr__(self) -> str:
        return f"field {self.field!r}"


class Projection:
    """The function of ``project``: some fields of a record, in a new order.

    A tuple stays a tuple, a Row keeps its names, a dict its keys."""

    def __init__(self, fields: tuple[Field, ...]):
        self.fields = fields

    def __call__(self, record: Any) -> Any:
        values = [get_field(record, field) for field in self.fields]
        if isinstance(record, Row):
            names = record.get_field_names()
            if names is None:
                return Row(*values)
            chosen = [names[field] if isinstance(field, int) else field for field in self.fields]
            return Row.of_fields(chosen, values, record.get_row_kind())
        if isinstance(record, dict):
            return dict(zip(self.fields, values))
        return values if isinstance(record, list) else tuple(values)

    def output_type(self, record_type: Optional[TypeInformation]) -> Optional[TypeInformation]:
        types = [declared_field_type(record_type, field, "project") for field in self.fields]
        if isinstance(record_type, RowTypeInfo):
            names = record_type.get_field_names()
            chosen = [names[field] if isinstance(field, int) else field for field in self.fields]
            return RowTypeInfo(types, chosen)  # type: ignore[arg-type]
        if isinstance(record_type, TupleTypeInfo):
            return TupleTypeInfo(types)  # type: ignore[arg-type]
        return None
