"""What makes a record fixed at emission: `freeze`.

A record counts as emitted with the value that it has at that moment.  User code may go on with the
object (a reduce that adds to its accumulator, a map that fills the same list again), while the
emitted record still lies in an output buffer.  `freeze` returns the value itself when nobody can
change it, and otherwise an isolated copy of the same type and value: it keeps shared and cyclic
references inside the value, and it shares nothing that can change with the original.

A fused loop asks the common questions inline (`CodeWriter.freeze`) and calls nothing for atoms and
for tuples of atoms.  Measured (CPython 3.11, 1,000 values, best of 500, the bare loop taken off):

    int 35 ns, (str, int) 87 ns, (str, int, int) 116 ns inline; by a loop over the elements 150-200 ns,
    by a set of their types or a C-level all() 250-500 ns, by a memo of the tuple of types 400-590 ns;
    list of three atoms 0.3 us, dict or Row of four 0.65 us, what is nested deeper by a pickle round
    trip 1.6-2 us and more.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import ipaddress
import pathlib
import pickle
import re
import types
import uuid
import zoneinfo
from typing import Any, Callable

import numpy as np

from flinkish.common.types import Row
from flinkish.common.user_traceback import is_raised_by_user_code, message_of
from flinkish.datastream.output_tag import OutputTag

#: Types whose instances nobody can change, exactly these types.  Grows with the types that `freeze`
#: meets (enums, numpy scalars, Arrow arrays ...), so that the inline test finds them next time.
ATOMS: set[type] = {
    int, float, complex, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented),
    range, type, object,
    decimal.Decimal, fractions.Fraction, uuid.UUID, re.Pattern,
    dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone, zoneinfo.ZoneInfo,
    types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.CodeType,
    ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network,
    pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath,
}  # fmt: skip

#: Longest tuple whose elements the fused loop tests inline.
INLINE_ELEMENTS_MAX = 5

_PANDAS_SCALARS = {"Timestamp", "Timedelta", "NaTType", "Period", "Interval", "NAType"}
_PYARROW_MODULES = ("pyarrow.lib", "pyarrow.compute")
_PYARROW_MUTABLE = {"Buffer", "ResizableBuffer"}


def freeze(value: Any) -> Any:
    """The value itself if it cannot change, else an isolated copy that keeps type and value.

    >>> pair = ("a", [1])
    >>> frozen = freeze(pair)
    >>> pair[1].append(2)
    >>> frozen
    ('a', [1])
    >>> freeze("atom") is freeze("atom")
    True
    """
    cls = type(value)
    if cls in ATOMS:
        return value
    return _COPIERS[cls](value)


# ---- one copier for each type -------------------------------------------------------------------


def _round_trip(value: Any) -> Any:
    """Copy of any object graph.  Pickle runs in C and is what an exchange does to the value anyway;
    what it cannot name (classes and functions defined inside functions) deepcopy still can."""
    try:
        return pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception as pickle_error:  # pickling runs code of the value's classes, which may raise anything
        if isinstance(value, types.GeneratorType):
            raise TypeError(
                f"the generator {value.__qualname__} was emitted as a record, and nothing iterates over it; "
                f"map and its like give one value for each record, flat_map takes generators"
            ) from None
        try:
            return copy.deepcopy(value)
        except Exception as error:  # and so does copying
            raised_by_user = [e for e in (pickle_error, error) if is_raised_by_user_code(e)]
            raise TypeError(
                f"a value of type {type(value).__qualname__} was emitted that can change and that can "
                f"be neither pickled ({message_of(pickle_error)}) nor copied ({message_of(error)}); emit plain "
                f"data, or set pipeline.object-reuse when nothing changes it after emission"
            ) from (raised_by_user[0] if raised_by_user else None)  # both reasons are in the text


def _atoms_only(values: Any) -> bool:
    for value in values:
        if type(value) not in ATOMS and not _is_immutable(value):
            return False
    return True


def _is_immutable(value: Any) -> bool:
    """Only for types whose immutability the type and the elements decide, without copying."""
    cls = type(value)
    if cls in ATOMS:
        return True
    if cls is tuple or cls is frozenset:
        return _atoms_only(value)  # ends: only a part that can change can lead back to its owner
    judge = _JUDGES.get(_COPIERS[cls])  # the look-up decides about the type, and may add it to ATOMS
    return cls in ATOMS or (judge is not None and judge(value))


def _freeze_tuple(value: tuple) -> tuple:
    for element in value:
        if type(element) not in ATOMS and not _is_immutable(element):
            return _copy_flat(value, lambda elements: tuple(elements))
    return value


def _copy_flat(value: Any, make: Callable[[list], Any]) -> Any:
    """Copy a sequence one level deep where its parts are atoms or plain containers of atoms: half the
    cost of a round trip.  Anything deeper, or an element that stands in it twice, goes by pickle."""
    copies = []
    seen = set()
    for element in value:
        cls = type(element)
        if cls not in ATOMS and not _is_immutable(element):
            if id(element) in seen:
                return _round_trip(value)
            seen.add(id(element))
            if cls is list and _atoms_only(element):
                element = element[:]
            elif cls is dict and _atoms_only(element.values()) and _atoms_only(element):
                element = element.copy()
            elif cls is set and _atoms_only(element):
                element = element.copy()
            else:
                return _round_trip(value)
        copies.append(element)
    return make(copies)


def _freeze_list(value: list) -> list:
    for element in value:
        if type(element) not in ATOMS:
            return _copy_flat(value, lambda elements: elements)
    return value[:]


def _freeze_dict(value: dict) -> dict:
    if _atoms_only(value.values()) and _atoms_only(value):
        return value.copy()
    return _round_trip(value)


def _freeze_set(value: set) -> set:
    return value.copy() if _atoms_only(value) else _round_trip(value)


def _freeze_frozenset(value: frozenset) -> frozenset:
    return value if _atoms_only(value) else _round_trip(value)


def _freeze_row(value: Row) -> Row:
    values, fields = value._values, value._fields
    for element in values:
        if type(element) not in ATOMS and not _is_immutable(element):
            return _round_trip(value)
    row = Row.__new__(Row)
    row._values = values[:]
    row._fields = fields  # replaced by set_field_names, never changed
    row._row_kind = value._row_kind
    return row


def _freeze_namedtuple(value: tuple) -> tuple:
    return value if _atoms_only(value) else _round_trip(value)


def _freeze_deque(value: collections.deque) -> collections.deque:
    return value.copy() if _atoms_only(value) else _round_trip(value)


def _freeze_array(value: np.ndarray) -> np.ndarray:
    if value.dtype.hasobject:
        return _round_trip(value)
    return value.copy(order="K")


def _identity(value: Any) -> Any:
    return value


def _frozen_dataclass(cls: type) -> Callable[[Any], Any]:
    """A frozen dataclass is as fixed as its fields; an attribute beside the fields can change."""
    names = tuple(field.name for field in dataclasses.fields(cls))

    def is_fixed(value: Any) -> bool:
        attributes = getattr(value, "__dict__", None)
        if attributes is not None and len(attributes) > len(names):
            return False
        try:
            for name in names:
                element = getattr(value, name)
                if type(element) not in ATOMS and not _is_immutable(element):
                    return False
        except (AttributeError, RecursionError):  # not initialised, or made part of itself
            return False
        return True

    def freeze_dataclass(value: Any) -> Any:
        return value if is_fixed(value) else _round_trip(value)

    _JUDGES[freeze_dataclass] = is_fixed
    return freeze_dataclass


def _has_dict(cls: type) -> bool:
    return cls.__dictoffset__ != 0


def _is_plain_namedtuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields") and not _has_dict(cls)


def _is_atom_type(cls: type) -> bool:
    """Types that are immutable as a kind.  Subclasses by users are not: they may have attributes."""
    module = cls.__module__ or ""
    if issubclass(cls, (type, enum.Enum)):
        return True
    if issubclass(cls, np.generic) and module == "numpy":
        return cls is not np.void and cls is not np.object_
    if module.split(".")[0] == "pandas" and cls.__name__ in _PANDAS_SCALARS:
        return True
    if module in _PYARROW_MODULES:
        return cls.__name__ not in _PYARROW_MUTABLE
    if issubclass(cls, np.dtype):
        return True
    if issubclass(cls, dt.tzinfo):  # pytz, dateutil: immutable by the protocol
        return True
    return False


class _Copiers(dict):
    """type -> how to freeze a value of exactly that type; made at first sight."""

    def __missing__(self, cls: type) -> Callable[[Any], Any]:
        if _is_atom_type(cls):
            ATOMS.add(cls)
            copier: Callable[[Any], Any] = _identity
        elif _is_plain_namedtuple(cls):
            copier = _freeze_namedtuple
        elif (
            dataclasses.is_dataclass(cls)
            and "__dataclass_params__" in cls.__dict__
            and cls.__dataclass_params__.frozen
        ):
            copier = _frozen_dataclass(cls)
        else:
            copier = _round_trip
        if len(self) > 10_000:  # classes made again and again must not pile up
            for known in [known for known in self if known not in _FIXED_COPIERS]:
                _JUDGES.pop(self.pop(known), None)
                ATOMS.discard(known)
        self[cls] = copier
        return copier


_FIXED_COPIERS = {
    tuple: _freeze_tuple,
    list: _freeze_list,
    dict: _freeze_dict,
    set: _freeze_set,
    frozenset: _freeze_frozenset,
    bytearray: bytearray.copy,
    Row: _freeze_row,
    collections.deque: _freeze_deque,
    OutputTag: _identity,  # not an atom: the inline test sorts out (tag, value) by it
    np.ndarray: _freeze_array,
}
#: For copiers that return the value itself when its parts are fixed: whether they are.
_JUDGES: dict[Callable, Callable[[Any], bool]] = {
    _freeze_namedtuple: _atoms_only,
    _identity: lambda value: True,
}
_COPIERS = _Copiers(_FIXED_COPIERS)
