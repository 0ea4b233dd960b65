"""Row: the record with field names, of the Table API and of column batches."""

from __future__ import annotations

from enum import Enum
from typing import Any, Iterator, Optional, Sequence

__all__ = ["Row", "RowKind"]


class RowKind(Enum):
    """What a row says about a result: new, taken back, replaced, gone."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    def __str__(self):
        return ("+I", "-U", "+U", "-D")[self.value]


_INSERT = RowKind.INSERT


class Row:
    """Values in order, with or without field names.

    Fields can be read by position, by name and as attributes:

    >>> row = Row(name="Alice", age=11)
    >>> row[0], row["age"], row.name, "age" in row
    ('Alice', 11, 'Alice', True)

    A row of names is a template for rows:

    >>> Person = Row("name", "age")
    >>> Person("Alice", 11)
    Row(name='Alice', age=11)
    """

    __slots__ = ("_values", "_fields", "_row_kind")

    def __init__(self, *args: Any, **kwargs: Any):
        if args and kwargs:
            raise ValueError("a Row takes either values or name=value pairs, not both")
        if kwargs:
            self._fields: Optional[list] = list(kwargs)
            self._values = list(kwargs.values())
        else:
            self._fields = None
            self._values = list(args)
        self._row_kind = _INSERT

    # ---- making ---------------------------------------------------------------------------------

    @staticmethod
    def of_kind(row_kind: RowKind, *args: Any, **kwargs: Any) -> "Row":
        row = Row(*args, **kwargs)
        row._row_kind = row_kind
        return row

    @staticmethod
    def of_fields(field_names: Sequence[str], values: Sequence[Any], row_kind: RowKind = _INSERT) -> "Row":
        """A named row from two sequences; the fastest way to make many.

        ``field_names`` is shared, not copied: rows of one batch hold the same list."""
        row = _new(Row)
        row._fields = field_names  # type: ignore[assignment]
        row._values = list(values)
        row._row_kind = row_kind
        return row

    @staticmethod
    def many_of_fields(
        field_names: Optional[Sequence[str]], contents: list[list], row_kinds: Optional[list[int]] = None
    ) -> list["Row"]:
        """Rows that share ``field_names`` and own the lists of ``contents``; without ``row_kinds`` (values
        of RowKind) all are inserts."""
        rows = []
        for values in contents:
            row = _new(Row)
            row._fields = field_names  # type: ignore[assignment]
            row._values = values
            row._row_kind = _INSERT
            rows.append(row)
        if row_kinds is not None:
            for row, kind in zip(rows, row_kinds):
                row._row_kind = _KINDS[kind]
        return rows

    def __call__(self, *args: Any) -> "Row":
        """A new row whose field names are the values of this one."""
        if len(args) > len(self._values):
            raise ValueError(f"{self!r} has {len(self._values)} fields, got {len(args)} values")
        return Row.of_fields(list(self._values), args, self._row_kind)

    # ---- kind and names -------------------------------------------------------------------------

    def get_row_kind(self) -> RowKind:
        return self._row_kind

    def set_row_kind(self, row_kind: RowKind) -> None:
        self._row_kind = row_kind

    def set_field_names(self, field_names: Sequence[str]) -> None:
        self._fields = list(field_names)

    def get_field_names(self) -> Optional[list]:
        """The names in order, or None."""
        return None if self._fields is None else list(self._fields)

    def get_fields_by_names(self, names: Sequence[str]) -> list:
        """Values of the fields ``names``, in that order; all values of a row without names."""
        if self._fields is None:
            return self._values
        return [self._values[self._position(name)] for name in names]

    def as_dict(self, recursive: bool = False) -> dict:
        """Names to values.  ``recursive``: rows inside lists, dicts and rows too."""
        if self._fields is None:
            raise TypeError("a Row without field names cannot become a dict")
        if not recursive:
            return dict(zip(self._fields, self._values))
        return {name: _plain(value) for name, value in zip(self._fields, self._values)}

    # ---- fields ---------------------------------------------------------------------------------

    def _position(self, name: Any) -> int:
        if self._fields is None:
            raise KeyError(f"{name!r}: this row has no field names")
        try:
            return self._fields.index(name)
        except ValueError:
            raise KeyError(f"{name!r}: the fields are {list(self._fields)}") from None

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, (int, slice)):
            return self._values[item]
        return self._values[self._position(item)]

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, (int, slice)):
            self._values[key] = value
        else:
            self._values[self._position(key)] = value

    def __getattr__(self, item: str) -> Any:
        if item.startswith("_") or self._fields is None or item not in self._fields:
            raise AttributeError(item)
        return self._values[self._fields.index(item)]

    def __contains__(self, item: Any) -> bool:
        return item in (self._values if self._fields is None else self._fields)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    # ---- value ----------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        """Same kind and the same values; with names, whatever the order of the fields."""
        if not isinstance(other, Row) or self._row_kind is not other._row_kind:
            return False
        if self._fields is None or other._fields is None:
            return self._fields is other._fields and self._values == other._values
        if self._fields == other._fields:
            return self._values == other._values
        return len(self._fields) == len(other._fields) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        if self._fields is None:
            return hash(tuple(self._values))
        return hash(frozenset(zip(self._fields, self._values)))

    def __reduce__(self):
        return _create_row, (self._fields, self._values, self._row_kind.value)

    def __repr__(self) -> str:
        if self._fields is None:
            return f"<Row({', '.join(map(repr, self._values))})>"
        return f"Row({', '.join(f'{n}={v!r}' for n, v in zip(self._fields, self._values))})"


_new = object.__new__
_KINDS = tuple(RowKind)


def _create_row(fields: Optional[list], values: Sequence[Any], row_kind: int = 0) -> Row:
    row = _new(Row)
    row._fields = fields
    row._values = list(values)
    row._row_kind = _KINDS[row_kind]
    return row


def _plain(value: Any) -> Any:
    if isinstance(value, Row):
        return value.as_dict(True)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
