"""Any picklable value, any split into frames: what arrives is what was sent."""

import datetime as dt
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from flinkish.common.types import Row
from flinkish.taskmanager import wire

atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.decimals(allow_nan=False),
    st.datetimes(timezones=st.just(dt.timezone.utc)),
    st.datetimes(),
    st.dates(),
    st.timedeltas(),
    st.fractions(),
)
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.lists(inner, max_size=3).map(lambda fields: Row(*fields)),
    ),
    max_leaves=8,
)
timestamps = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers())


def typed(value):
    """A value with the types of all its parts, so that 1, 1.0, True and Decimal(1) differ."""
    if isinstance(value, (list, tuple)):
        return type(value), [typed(part) for part in value]
    if isinstance(value, dict):
        return dict, [(typed(key), typed(part)) for key, part in value.items()]
    if isinstance(value, Row):
        return Row, [typed(part) for part in value]
    if isinstance(value, (float, Decimal)):
        return type(value), repr(value)
    return type(value), value


@given(
    records=st.lists(st.tuples(values, timestamps), min_size=1, max_size=20),
    timed=st.booleans(),
    size=st.integers(1, 20),
)
def test_any_split_into_frames_gives_the_same_records(records, timed, size):
    sent = [value for value, _ in records]
    times = [timestamp for _, timestamp in records] if timed else None
    got, got_times = [], []
    for start in range(0, len(sent), size):
        part = times[start : start + size] if times is not None else None
        batch = wire.decode_rows(b"".join(wire.encode_rows(sent[start : start + size], part)))
        got += batch.values
        got_times += batch.timestamps if batch.timestamps is not None else [None] * len(batch)
    assert [typed(value) for value in got] == [typed(value) for value in sent]
    assert got_times == (times or [None] * len(sent))
