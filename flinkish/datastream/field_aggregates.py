"""Several built-in aggregates of fields at once, by name: what `WindowedStream.aggregate_fields` computes.

One description, two ways to run it with equal results: record by record by the `FieldAggregates` function here, or
without Python code for each record where records are columns (`operators.windowing.column_windows`).

Nulls (None) are left out, as in SQL: of nothing but nulls the count is 0 and all else None.  NaN is passed over by min
and max, and makes a sum NaN.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Union

from flinkish.common.basic_types import BasicType, BasicTypeInfo, PickledBytesTypeInfo, TypeInformation
from flinkish.common.types import Row
from flinkish.datastream.fields import Field, added, check_field, declared_field_type, get_field
from flinkish.datastream.functions import AggregateFunction, ProcessWindowFunction
from flinkish.errors import InvalidJobError

__all__ = ["AGGREGATES", "FieldAggregate", "FieldAggregates", "NamedResult"]

AGGREGATES = ("avg", "count", "max", "min", "sum")
#: Fields of a result before the aggregates, and the key's name where the key is not one named field.
WINDOW_START, WINDOW_END, KEY = "window_start", "window_end", "key"

Description = Union[str, tuple[Field, str]]


class FieldAggregate(NamedTuple):
    """``field`` None: of whole records, which can only be counted."""

    name: str
    kind: str
    field: Optional[Field]


def described(
    aggregates: Mapping[str, Description], key_name: str, record_type: Optional[TypeInformation] = None
) -> tuple[FieldAggregate, ...]:
    """What a user has written as ``name=(field, kind)`` or ``name="count"``.

    Args:
        record_type: declared type of the records, if any.
    Raises:
        InvalidJobError: says which of them cannot be computed, and why.
    """
    if not aggregates:
        raise InvalidJobError(
            "aggregate_fields() has nothing to compute", do='name an aggregate: total=("price", "sum")'
        )
    found = []
    for name, description in aggregates.items():
        call = f"aggregate_fields({name}=...)"
        if name in (key_name, WINDOW_START, WINDOW_END):
            raise InvalidJobError(f"{call} cannot have this name", why=f"the result has a field {name!r} already")
        if description == "count":
            found.append(FieldAggregate(name, "count", None))
            continue
        if not (isinstance(description, tuple) and len(description) == 2):
            raise InvalidJobError(
                f"{call} cannot use {description!r}", do='give (field, aggregate), as ("price", "sum"), or "count"'
            )
        field, kind = description
        if kind not in AGGREGATES:
            raise InvalidJobError(f"{call} knows no aggregate {kind!r}", do=f"give one of {', '.join(AGGREGATES)}")
        field_type = declared_field_type(record_type, check_field(field, call), call)
        if kind in ("sum", "avg") and not _can_be_added(field_type):
            raise InvalidJobError(
                f"{call} cannot give the {kind} of the field {field!r}",
                why=f"its declared type is {field_type}",
                do="give a field of numbers, or count, min or max",
            )
        found.append(FieldAggregate(name, kind, field))
    return tuple(found)


def _can_be_added(field_type: Optional[TypeInformation]) -> bool:
    if isinstance(field_type, BasicTypeInfo):
        return field_type.is_numeric() or field_type.basic_type is BasicType.BOOLEAN
    return field_type is None or isinstance(field_type, PickledBytesTypeInfo)  # of durations among others


class FieldAggregates(AggregateFunction):
    """An accumulator is a list with one entry for each aggregate: a count; a value, or None so far; of an average
    the tuple (sum or None, count)."""

    def __init__(self, aggregates: tuple[FieldAggregate, ...], key_field: Optional[Field]):
        self.aggregates = aggregates
        self.key_field = key_field  # None: the key is not just one field

    @property
    def key_name(self) -> str:
        return self.key_field if isinstance(self.key_field, str) else KEY

    def create_accumulator(self) -> list:
        return [_EMPTY.get(aggregate.kind) for aggregate in self.aggregates]

    def add(self, value: Any, accumulator: list) -> list:
        for position, (_, kind, field) in enumerate(self.aggregates):
            part = 1 if field is None else get_field(value, field)
            if part is None:
                continue
            if kind == "count":
                part = 1
            elif kind == "avg":
                part = (part, 1)
            elif kind == "sum" and type(part) is bool:
                part = int(part)
            accumulator[position] = _merged(kind, accumulator[position], part)
        return accumulator

    def get_result(self, accumulator: list) -> list:
        return [
            _average(*part) if aggregate.kind == "avg" else part
            for aggregate, part in zip(self.aggregates, accumulator)
        ]

    def merge(self, acc_a: list, acc_b: list) -> list:
        return [
            _merged(aggregate.kind, first, second)
            for aggregate, first, second in zip(self.aggregates, acc_a, acc_b)
        ]


class NamedResult(ProcessWindowFunction):
    """A Row of key, window and aggregates; a window without an end (global, count) has None for its bounds."""

    def __init__(self, aggregates: FieldAggregates):
        self.fields = [aggregates.key_name, WINDOW_START, WINDOW_END, *(each.name for each in aggregates.aggregates)]

    def process(self, key, context, elements):
        (values,) = elements
        window = context.window()
        bounds = getattr(window, "start", None), getattr(window, "end", None)
        yield Row.of_fields(self.fields, [key, *bounds, *values])


_EMPTY: dict[str, Any] = {"count": 0, "avg": (None, 0)}


def _merged(kind: str, first: Any, second: Any) -> Any:
    """Of two accumulators of one aggregate."""
    if kind == "count":
        return first + second
    if kind == "avg":
        return _merged("sum", first[0], second[0]), first[1] + second[1]
    if first is None or second is None:
        return second if first is None else first
    if kind == "sum":
        return added(first, second)
    is_better = second < first if kind == "min" else second > first
    return second if is_better or first != first else first


def _average(total: Any, count: int) -> Any:
    return None if total is None else total / count
