"""Keys: the canonical form that stands for all keys that are equal.

One documented rule: **keys that a dict would merge are one key, and all NaNs are one key**, also
inside tuples, frozensets, dataclasses and Rows.  ``canonical_key`` gives the one form that stands
for all of them; state, timers, memos and columns use that form, so nothing depends on which of
the equal forms came first::

    given                                                   canonical
    1, True, 1.0, Decimal("1.0"), Fraction(1), complex(1),
        numpy.int8(1), an IntEnum of value 1                1
    0.5, Decimal("0.50"), numpy.float32(0.5)                0.5
    Decimal("0.10"), Fraction(1, 10)                        Decimal("0.1")
    0.0, -0.0, False                                        0
    any NaN: float, Decimal, complex, numpy                 NAN (one object, also after pickle)
    None, pandas.NA, pandas.NaT, numpy.datetime64("NaT")    None
    str, its subclasses, numpy.str_, a str Enum             str
    bytes, read-only memoryview, numpy.bytes_               bytes
    tuple, NamedTuple                                       tuple of canonical parts
    frozenset                                               frozenset of canonical parts
    aware datetime, pandas.Timestamp                        datetime in UTC: equal instants are one
    naive datetime, numpy.datetime64                        naive datetime
    date, time, timedelta, UUID                             the same, of the exact type
    Enum, Flag                                              the member (encoded by class and name)
    frozen dataclass                                        the same class, canonical fields
    Row                                                     a Row of canonical fields, names sorted

Numbers: an integral value is an int; else a value that a float holds exactly is a float; else a
Decimal without trailing zeros, or a Fraction.  So every int is its own canonical form, which
generated code relies on, and 1e300 is an int.

Two points where Python's ``==`` is not an equivalence, and what is done:

* In the hour that a clock is set back, Python calls two datetimes of one zone equal although they
  are an hour apart (it ignores ``fold``).  Keys are instants: they are two keys.
* ``compare=False`` fields of a dataclass take no part, and are reset to their default.

Everything else is refused (``UnstableKeyError``): lists, dicts, sets and arrays can change; an
object with the default hash is known only to its own process; a class with an ``__eq__`` of its
own may call things equal whose encodings differ.

``NAN`` is a float that equals itself, so that dicts, tuples and dataclasses find it again; ask
``math.isnan``, not ``key != key``.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import uuid
from decimal import Decimal
from fractions import Fraction
from typing import Any, Callable, Optional

import numpy as np

from flinkish.common.plain_classes import default_maker
from flinkish.common.types import Row
from flinkish.errors import UnstableKeyError

_DIGITS_MAX = 4_000  # of a number; keeps Decimal("1E+999999999") from filling the memory
_MICROSECOND = dt.timedelta(microseconds=1)
_DAY_US = 86_400_000_000


class _NotANumber(float):
    """The one NaN key: equal to itself only, and one object per process, also after pickle."""

    __slots__ = ()

    def __eq__(self, other: Any) -> bool:
        return self is other

    def __ne__(self, other: Any) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return 0x7FF8

    def __reduce__(self) -> str:
        return "NAN"

    def __copy__(self) -> "_NotANumber":
        return self

    def __deepcopy__(self, memo: dict) -> "_NotANumber":
        return self

    def __reduce_ex__(self, protocol: Any) -> str:
        return "NAN"


NAN = _NotANumber("nan")


class _Notes:
    """Of one walk: whether the key object must not be kept by a ``KeyMemo``, and the user's classes that it
    has met."""

    __slots__ = ("unstorable", "classes")

    def __init__(self, classes: Optional[dict[type, None]] = None) -> None:
        self.unstorable = False
        self.classes = {} if classes is None else classes


def map_key(key: Any) -> Any:
    """The key of a map state or broadcast state.  Two NaNs are two keys of a dict, and one that was restored is none that
    the program has; in Flink all are one."""
    return NAN if isinstance(key, float) and key != key else key


# ---- refusals -----------------------------------------------------------------------------------


def _refuse(key: Any, why: str, do: str) -> UnstableKeyError:
    cls = type(key)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    return UnstableKeyError(
        f"could not use a {name} as a key", where="key_by", why=why, do=do, key_type=name
    )


def with_operator(
    error: UnstableKeyError, operator: str, subtask: Optional[int] = None
) -> UnstableKeyError:
    """The same refusal, naming the operator whose key selector made the key."""
    where = f'key_by of operator "{operator}"'
    if subtask is not None:
        where += f", subtask {subtask}"
    fields = {**error.fields, "operator": operator}
    return UnstableKeyError(error.what, where=where, why=error.why, do=error.do, **fields)


def refuse_unknown(key: Any) -> UnstableKeyError:
    cls = type(key)
    if isinstance(key, (list, bytearray, memoryview)):
        to = "tuple" if isinstance(key, list) else "bytes"
        return _refuse(key, "it can change after it was used", f"key by {to}(...) instead")
    if isinstance(key, dict):
        return _refuse(key, "it can change after it was used", "key by some of its values, or by "
                       "tuple(sorted(d.items()))")
    if isinstance(key, (set, np.ndarray)):
        to = "frozenset" if isinstance(key, set) else "tuple"
        return _refuse(key, "it can change after it was used", f"key by {to}(...) instead")
    if dataclasses.is_dataclass(key) and not isinstance(key, type):
        if not cls.__dataclass_params__.frozen:
            return _refuse(key, "it can change after it was used",
                           "declare it @dataclass(frozen=True), or key by a tuple of its fields")
        return _refuse(key, "its __eq__ is not the one that dataclass makes, so equal keys may "
                       "differ in their fields", "key by a tuple of the fields that count")
    if isinstance(key, type) or callable(key):
        return _refuse(key, "it is known by its address, which differs in each process",
                       "key by its name, a str")
    if cls.__hash__ is None:
        return _refuse(key, "it has no hash, so it can change after it was used",
                       "key by a tuple of the fields that count")
    if cls.__hash__ is object.__hash__:
        return _refuse(key, "it has the default hash, its address, which differs in each process",
                       "key by a str, a number or a tuple of its fields, or make its class a "
                       "@dataclass(frozen=True)")
    return _refuse(key, "its class defines equality itself, and flinkish knows no encoding that "
                   "is the same for equal keys in each process",
                   "key by a str, a number or a tuple of its fields, or make its class a "
                   "@dataclass(frozen=True)")


# ---- canonical form -----------------------------------------------------------------------------


def canonical_key(key: Any) -> Any:
    """The form that stands for ``key`` and everything equal to it.

    Raises:
        UnstableKeyError: the key has no encoding that is the same in each process.

    >>> canonical_key((True, 2.0, "a"))
    (1, 2, 'a')
    """
    cls = type(key)
    if cls is str:
        return key
    return _canonical(key, _Notes())


def canonical_and_storable(key: Any, classes: Optional[dict[type, None]] = None) -> tuple[Any, bool]:
    """The canonical form, and whether a memo may keep the key object itself: it never changes, and
    whatever equals it has the same canonical form.

    Args:
        classes: gets the NamedTuples, dataclasses and Enums that the key consists of.
    """
    cls = type(key)
    if cls is str:
        return key, True
    if cls is tuple and _PLAIN.issuperset(map(type, key)):  # 0.5 instead of 2 microseconds
        return key, True
    note = _Notes(classes)
    canonical = _canonical(key, note)
    return canonical, not note.unstorable


_PLAIN = frozenset((str, bytes, type(None)))  # always in canonical form


def _canonical(key: Any, note: _Notes) -> Any:
    handler = _EXACT.get(type(key))
    if handler is not None:
        return handler(key, note)
    return _canonical_by_family(key, note)


def _same(key: Any, note: _Notes) -> Any:
    return key


def _float(key: float, note: _Notes) -> Any:
    if key != key:
        note.unstorable = True
        return NAN
    if key.is_integer():
        return int(key)
    return key


def _decimal(key: Decimal, note: _Notes) -> Any:
    sign, digits, exponent = key.as_tuple()
    if not isinstance(exponent, int):
        if exponent == "F":
            return float("-inf") if sign else float("inf")
        note.unstorable = True
        return NAN
    end = len(digits)
    while end > 1 and digits[end - 1] == 0:
        end -= 1
        exponent += 1
    if digits[:end] == (0,):
        return 0
    digits = digits[:end]
    if end + max(exponent, 0) > _DIGITS_MAX or exponent < -_DIGITS_MAX:
        raise _refuse_digits(key)
    if exponent >= 0:
        return int(Decimal((sign, digits, exponent)))
    exact = Decimal((sign, digits, exponent))
    as_float = float(exact)
    # from_float and == are exact, whatever the precision of the context.
    return as_float if Decimal.from_float(as_float) == exact else exact


def _fraction(key: Fraction, note: _Notes) -> Any:
    numerator, denominator = key.numerator, key.denominator
    if denominator == 1:
        return numerator
    twos = fives = 0
    rest = denominator
    while rest % 2 == 0:
        rest //= 2
        twos += 1
    while rest % 5 == 0:
        rest //= 5
        fives += 1
    if rest != 1:  # neither a float nor a decimal
        return key if type(key) is Fraction else Fraction(numerator, denominator)
    places = max(twos, fives)
    if places > _DIGITS_MAX:
        raise _refuse_digits(key)
    scaled = numerator * (10**places // denominator)
    try:
        digits = tuple(map(int, str(abs(scaled))))
    except ValueError:  # beyond sys.get_int_max_str_digits
        raise _refuse_digits(key) from None
    return _decimal(Decimal((int(scaled < 0), digits, -places)), note)


def _refuse_digits(key: Any) -> UnstableKeyError:
    return _refuse(key, f"it has more than {_DIGITS_MAX} digits", "key by its text, a str")


def _complex(key: complex, note: _Notes) -> Any:
    if key != key:
        note.unstorable = True
        return NAN
    if key.imag == 0:
        return _float(key.real, note)
    return complex(key.real + 0.0, key.imag)  # + 0.0: no -0.0 in the real part


def _tuple(key: tuple, note: _Notes) -> Any:
    parts = [_canonical(part, note) for part in key]
    for part, old in zip(parts, key):
        if part is not old:
            return tuple(parts)
    return key


def _frozenset(key: frozenset, note: _Notes) -> Any:
    return frozenset([_canonical(part, note) for part in frozenset.__iter__(key)])


def _datetime(key: dt.datetime, note: _Notes) -> Any:
    nanosecond = getattr(key, "nanosecond", None)
    if nanosecond is not None:  # pandas.Timestamp, which is a datetime
        if nanosecond:
            return key if key.tzinfo is None else key.tz_convert("UTC")  # type: ignore[attr-defined]
        key = key.to_pydatetime()  # type: ignore[attr-defined]
    offset = key.utcoffset()
    if offset is None:
        if type(key) is dt.datetime and key.tzinfo is None and not key.fold:
            return key
        return dt.datetime(key.year, key.month, key.day, key.hour, key.minute, key.second,
                           key.microsecond)
    if type(key.tzinfo) is not dt.timezone and key.replace(fold=not key.fold).utcoffset() != offset:
        note.unstorable = True  # a dict would merge it with the instant an hour away
    naive = dt.datetime(key.year, key.month, key.day, key.hour, key.minute, key.second,
                        key.microsecond)
    try:
        return (naive - offset).replace(tzinfo=dt.timezone.utc)
    except OverflowError:
        raise _refuse(key, "its instant lies outside the years 1 to 9999 in UTC",
                      "key by its naive form, or by a timestamp, an int") from None


def _date(key: dt.date, note: _Notes) -> Any:
    return key if type(key) is dt.date else dt.date(key.year, key.month, key.day)


def _time(key: dt.time, note: _Notes) -> Any:
    offset = key.utcoffset()
    if offset is None:
        return dt.time(key.hour, key.minute, key.second, key.microsecond)
    micros = time_of_day_us(key) - offset // _MICROSECOND
    # Python compares the time of day less the offset, which may lie outside the day.
    zone_us = 0
    if micros < 0:
        zone_us = _DAY_US - 1
    elif micros >= _DAY_US:
        zone_us = 1 - _DAY_US
    local = micros + zone_us
    seconds, microsecond = divmod(local, 1_000_000)
    zone = dt.timezone(dt.timedelta(microseconds=zone_us)) if zone_us else dt.timezone.utc
    return dt.time(seconds // 3600, seconds // 60 % 60, seconds % 60, microsecond, zone)


def time_of_day_us(key: dt.time) -> int:
    return ((key.hour * 60 + key.minute) * 60 + key.second) * 1_000_000 + key.microsecond


def _timedelta(key: dt.timedelta, note: _Notes) -> Any:
    if getattr(key, "nanoseconds", 0) or type(key) is dt.timedelta:  # pandas.Timedelta has them
        return key
    return dt.timedelta(key.days, key.seconds, key.microseconds)


def _uuid(key: uuid.UUID, note: _Notes) -> Any:
    return key if type(key) is uuid.UUID else uuid.UUID(int=key.int)


def _memoryview(key: memoryview, note: _Notes) -> Any:
    note.unstorable = True
    if key.readonly and key.format == "B" and key.ndim == 1:
        return key.tobytes()
    raise refuse_unknown(key)


def _numpy_scalar(key: Any, note: _Notes) -> Any:
    if isinstance(key, np.bool_):
        return int(key)
    if isinstance(key, np.datetime64):
        return _numpy_time(key, note)
    if isinstance(key, np.timedelta64):
        return _numpy_duration(key, note)
    if isinstance(key, np.integer):
        return int(key)
    if isinstance(key, np.floating):
        as_float = float(key)
        if as_float != as_float or as_float == key:
            return _float(as_float, note)
        return _fraction(Fraction(*key.as_integer_ratio()), note)  # numpy.longdouble
    if isinstance(key, np.complexfloating):
        if key.imag == 0:
            return _numpy_scalar(key.real, note)
        as_complex = complex(key)
        if as_complex != as_complex or as_complex == key:
            return _complex(as_complex, note)
    raise refuse_unknown(key)


def _numpy_time(key: Any, note: _Notes) -> Any:
    if np.isnat(key):
        note.unstorable = True
        return None
    micros = key.astype("datetime64[us]")
    value = micros.item()
    if micros != key or not isinstance(value, dt.datetime):
        return _precise(key)
    return value


def _numpy_duration(key: Any, note: _Notes) -> Any:
    if np.isnat(key):
        note.unstorable = True
        return None
    if np.datetime_data(key)[0] in ("generic", "Y", "M"):
        raise _refuse(key, "its unit has no fixed length", "key by an int")
    micros = key.astype("timedelta64[us]")
    value = micros.item()
    if micros != key or not isinstance(value, dt.timedelta):
        return _precise(key)
    return value


def _precise(key: Any) -> Any:
    if np.datetime_data(key)[0] == "ns":
        import pandas  # slow to import, and hardly any job has such keys

        return (pandas.Timestamp if isinstance(key, np.datetime64) else pandas.Timedelta)(key)
    raise _refuse(key, "it is finer than a microsecond, or lies outside the years 1 to 9999",
                  "key by its int form: key.astype('int64')")


# ---- families: subclasses, enums, dataclasses, rows ---------------------------------------------


def _canonical_by_family(key: Any, note: _Notes) -> Any:
    cls = type(key)
    if isinstance(key, np.generic) and not isinstance(key, (str, bytes)):
        return _numpy_scalar(key, note)
    for base, plain, handler in _SUBCLASSES:
        if issubclass(cls, base):
            if base is dt.datetime and cls.__name__ == "NaTType":
                note.unstorable = True
                return None
            if cls.__eq__ is not base.__eq__ and not _is_library_type(cls):
                raise refuse_unknown(key)
            if base is tuple:
                note.classes[cls] = None
            return handler(plain(key), note)
    if isinstance(key, enum.Enum):
        if cls.__eq__ is object.__eq__:
            note.classes[cls] = None
            return key
        raise refuse_unknown(key)
    if cls.__name__ == "NAType" and cls.__module__.startswith("pandas."):
        note.unstorable = True
        return None
    if issubclass(cls, Row) and cls.__eq__ is Row.__eq__:
        note.unstorable = True  # mutable
        return _canonical_row(key, note)
    plan = dataclass_plan(cls)
    if plan is not None:
        note.classes[cls] = None
        return plan.canonical(key, note)
    raise refuse_unknown(key)


def _is_library_type(cls: type) -> bool:
    """numpy.str_, numpy.bytes_, numpy.float64 and pandas' times define ``==`` as their base does."""
    return cls.__module__.partition(".")[0] in ("numpy", "pandas")


def _canonical_row(key: Row, note: _Notes) -> Row:
    """A copy; with names, in the order of the names, because Rows are equal in any order."""
    values = [_canonical(value, note) for value in key]
    names = key.get_field_names()
    if names is not None:
        order = sorted(range(len(names)), key=lambda i: str(names[i]))
        values = [values[i] for i in order]
        names = [names[i] for i in order]
    row = Row(*values)
    if names is not None:
        row.set_field_names(names)
    row.set_row_kind(key.get_row_kind())
    return row


class _DataclassPlan:
    """How keys of one frozen dataclass are normalised: which fields count, what the rest becomes."""

    __slots__ = ("cls", "compared", "reset")

    def __init__(self, cls: type, compared: tuple[str, ...]):
        self.cls = cls
        self.compared = compared
        self.reset = tuple(f for f in dataclasses.fields(cls) if f.name not in compared)

    def canonical(self, key: Any, note: _Notes) -> Any:
        changes = {}
        for name in self.compared:
            old = getattr(key, name)
            new = _canonical(old, note)
            if new is not old:
                changes[name] = new
        for field in self.reset:
            changes[field.name] = dataclass_default(field)
        if not changes:
            return key
        result = object.__new__(self.cls)
        for name in self.compared:
            object.__setattr__(result, name, changes.get(name, getattr(key, name)))
        for field in self.reset:
            object.__setattr__(result, field.name, changes[field.name])
        return result


def dataclass_default(field: dataclasses.Field) -> Any:
    make = default_maker(field)
    return None if make is None else make()


_plans: dict[type, Optional[_DataclassPlan]] = {}


def dataclass_plan(cls: type) -> Optional[_DataclassPlan]:
    try:
        return _plans[cls]
    except KeyError:
        plan = _plans[cls] = _make_dataclass_plan(cls)
        return plan


def _make_dataclass_plan(cls: type) -> Optional[_DataclassPlan]:
    owner = next((base for base in cls.__mro__ if "__eq__" in base.__dict__), object)
    params = owner.__dict__.get("__dataclass_params__")
    if params is None or not params.frozen or not params.eq:
        return None
    fields = dataclasses.fields(owner)
    # An __eq__ that the user wrote looks different from the one that dataclass makes for the
    # same fields (the text of that one differs between Python versions, so make it here).
    probe = dataclasses.make_dataclass(
        owner.__name__,
        [(f.name, Any, dataclasses.field(compare=f.compare, kw_only=True)) for f in fields],
        frozen=True,
    )
    made, found = probe.__eq__.__code__, getattr(owner.__eq__, "__code__", None)
    if found is None or (made.co_code, made.co_names) != (found.co_code, found.co_names):
        return None
    return _DataclassPlan(cls, tuple(f.name for f in fields if f.compare))


_EXACT: dict[type, Callable[[Any, _Notes], Any]] = {
    type(None): _same,
    str: _same,
    bytes: _same,
    bool: lambda key, note: 1 if key else 0,
    int: _same,
    float: _float,
    _NotANumber: _same,
    Decimal: _decimal,
    Fraction: _fraction,
    complex: _complex,
    tuple: _tuple,
    frozenset: _frozenset,
    dt.datetime: _datetime,
    dt.date: _date,
    dt.time: _time,
    dt.timedelta: _timedelta,
    uuid.UUID: _uuid,
    memoryview: _memoryview,
}

# A subclass is taken as its base when it kept the base's ``==``: (base, to the exact type, handler).
_SUBCLASSES: tuple[tuple[type, Callable[[Any], Any], Callable[[Any, _Notes], Any]], ...] = (
    (str, str.__str__, _same),
    (bytes, lambda key: bytes.__getitem__(key, slice(None)), _same),
    (int, int.__int__, _same),
    (float, float.__float__, _float),
    (complex, lambda key: complex(key.real, key.imag), _complex),
    (tuple, lambda key: tuple.__getitem__(key, slice(None)), _tuple),
    (frozenset, lambda key: frozenset(frozenset.__iter__(key)), _frozenset),
    (Decimal, lambda key: Decimal(key.as_tuple()), _decimal),
    (Fraction, lambda key: Fraction(key.numerator, key.denominator), _fraction),
    (dt.datetime, lambda key: key, _datetime),
    (dt.date, lambda key: key, _date),
    (dt.time, lambda key: key, _time),
    (dt.timedelta, lambda key: key, _timedelta),
    (uuid.UUID, lambda key: key, _uuid),
)
