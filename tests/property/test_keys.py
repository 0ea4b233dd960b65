"""Keys equal in Python are one key; rows and columns agree."""

import datetime as dt
import math
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from flinkish.common.types import Row
from flinkish.state.key_groups import (
    NAN,
    KeyMemo,
    canonical_key,
    encode_key,
    key_group,
    key_groups_of_column,
)

def _hashable(key):
    try:
        hash(key)
    except TypeError:  # a signalling NaN
        return False
    return True


ZONES = st.timezones() | st.builds(dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23)))
small_numbers = st.integers(-3, 3)
numbers = st.one_of(
    small_numbers, st.integers(), st.booleans(), st.floats(), st.floats(width=32).map(np.float32),
    st.decimals(allow_nan=True, places=3), st.decimals(), st.fractions(max_denominator=50),
    small_numbers.map(float), small_numbers.map(Decimal), small_numbers.map(np.int16),
    small_numbers.map(lambda n: Fraction(n, 4)), small_numbers.map(lambda n: Decimal(n) / 4),
    small_numbers.map(lambda n: n / 4), small_numbers.map(complex), st.sampled_from([-0.0, np.bool_(True)]),
).filter(lambda n: not isinstance(n, Decimal) or not n.is_finite() or abs(n.adjusted()) < 3000)
dates = st.dates(dt.date(2023, 12, 30), dt.date(2024, 1, 3))
times = st.times() | st.builds(
    dt.time, st.integers(0, 23), st.just(30),
    tzinfo=st.integers(-23, 23).map(lambda h: dt.timezone(dt.timedelta(hours=h))),
)
datetimes = st.datetimes(dt.datetime(2000, 1, 1), dt.datetime(2030, 1, 1), timezones=st.none() | ZONES)
atoms = st.one_of(
    numbers, st.none(), st.text(max_size=3), st.binary(max_size=3), dates, times, datetimes, st.timedeltas(),
    st.uuids(), st.sampled_from(["a", b"a", "1", np.str_("a")]),
)
keys = st.recursive(
    atoms,
    lambda inner: st.lists(inner, max_size=3).map(tuple)
    | st.lists(inner.filter(_hashable), max_size=3).map(frozenset)
    | st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(lambda d: Row(**d)),
    max_leaves=5,
)


def _merged(one, other):
    try:
        return len({one: 1, other: 2}) == 1
    except TypeError:  # no hash; or numpy's scalar and Decimal, which older numpy does not compare
        return _hashable(one) and _hashable(other) and float(one) == float(other)


def code_of(key):
    return encode_key(canonical_key(key))


def described(form):
    """Value and type of each part, whatever the order in a set."""
    if isinstance(form, tuple):
        return tuple(map(described, form))
    if isinstance(form, frozenset):
        return "frozenset", sorted(map(repr, map(described, form)))
    if isinstance(form, Row):
        return "Row", form.get_field_names(), form.get_row_kind(), tuple(map(described, form))
    return repr(form)


@given(keys, keys)
def test_encodings_are_equal_exactly_when_canonical_forms_are(one, other):
    a, b = canonical_key(one), canonical_key(other)
    assert (a == b) == (encode_key(a) == encode_key(b))
    if a == b:
        assert hash(a) == hash(b) and key_group(a, 128) == key_group(b, 128)


@given(numbers, numbers)
def test_numbers_that_a_dict_would_merge_are_one_key(one, other):
    if _merged(one, other):
        assert code_of(one) == code_of(other)
        assert described(canonical_key(one)) == described(canonical_key(other))
    elif NAN not in (canonical_key(one), canonical_key(other)):
        assert code_of(one) != code_of(other)


@given(datetimes.filter(lambda d: d.tzinfo), ZONES)
def test_one_instant_in_two_zones_is_one_key(instant, zone):
    there = instant.astimezone(zone)
    assert code_of(instant) == code_of(there)
    assert canonical_key(instant) == canonical_key(there)


@given(times, times)
def test_times_of_day_that_are_equal_are_one_key(one, other):
    assert (one == other) == (code_of(one) == code_of(other))
    if one == other:
        assert described(canonical_key(one)) == described(canonical_key(other))


@given(keys)
def test_a_canonical_key_is_a_fixed_point_that_survives_pickle(key):
    form = canonical_key(key)
    assert described(canonical_key(form)) == described(form)
    again = pickle.loads(pickle.dumps(form))
    assert again == form and hash(again) == hash(form) and encode_key(again) == encode_key(form)


@given(st.lists(keys, max_size=30))
def test_a_memo_gives_what_no_memo_gives_in_any_order(sequence):
    memo = KeyMemo(lambda key: key, limit=5)
    for key in sequence:
        try:
            found = memo[key]
        except (TypeError, ValueError):
            found = memo.compute(key)
        assert described(found) == described(canonical_key(key))


@given(keys, keys)
def test_no_encoding_is_the_beginning_of_another(one, other):
    a, b = code_of(one), code_of(other)
    assert a == b or not (a.startswith(b) or b.startswith(a))


def test_nan_is_one_key_wherever_it_stands():
    for nan in (math.nan, Decimal("nan"), np.float32("nan"), float("nan")):
        assert canonical_key(nan) is NAN
        assert code_of((nan, (nan, frozenset([nan])))) == code_of((NAN, (NAN, frozenset([NAN]))))


# ---- columns ------------------------------------------------------------------------------------

_fields = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats() | small_numbers.map(float),
    pa.float32(): st.floats(width=32),
    pa.string(): st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    pa.binary(): st.binary(max_size=4),
    pa.decimal128(12, 3): st.decimals(-(10**8), 10**8, places=3),
    pa.date32(): dates,
    pa.time64("us"): st.times(),
    pa.duration("us"): st.timedeltas(dt.timedelta(days=-1000), dt.timedelta(days=1000)),
    pa.timestamp("us"): st.integers(0, 2 * 10**15),
    pa.timestamp("ns"): st.integers(0, 2 * 10**18),
    pa.timestamp("ms", "Europe/Berlin"): st.integers(0, 2 * 10**12),
    pa.timestamp("ns", "America/New_York"): st.integers(0, 2 * 10**18),
}


@st.composite
def columns(draw):
    kind = draw(st.sampled_from(list(_fields)))
    values = draw(st.lists(st.none() | _fields[kind], max_size=20))
    column = pa.array(values, kind)
    if draw(st.booleans()):
        other = draw(st.sampled_from(list(_fields)))
        others = draw(st.lists(st.none() | _fields[other], min_size=len(values), max_size=len(values)))
        mask = pa.array(draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))), pa.bool_())
        column = pa.StructArray.from_arrays([column, pa.array(others, other)], ["b", "a"], mask=mask)
    elif draw(st.booleans()):
        column = column.dictionary_encode()
    if len(values) > 2 and draw(st.booleans()):
        column = column[1:-1]
    return column


def _row(value):
    if isinstance(value, dict):
        return Row.of_fields(list(value), [_row(item) for item in value.values()])
    return value


@given(columns(), st.sampled_from([1, 7, 128, 32768]))
def test_rows_and_columns_have_equal_key_groups(column, max_parallelism):
    by_row = [key_group(canonical_key(_row(v)), max_parallelism) for v in column.to_pylist()]
    assert key_groups_of_column(column, max_parallelism).tolist() == by_row


@given(st.integers() | st.integers(0, 1_000).map(lambda bits: 1 << bits) | st.floats(1e30, 1.7e308).map(int))
def test_an_int_is_its_own_canonical_form(key):
    """Generated loops take ints as they are."""
    assert canonical_key(key) is key and canonical_key(-key) == -key
    assert type(canonical_key(Decimal(key))) is int
