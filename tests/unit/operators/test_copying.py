import collections
import dataclasses
import datetime as dt
import decimal
import enum
import pickle
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from flinkish.common.types import Row, RowKind
from flinkish.datastream.output_tag import OutputTag
from flinkish.operators.copying import ATOMS, freeze


class Color(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: object
    y: object


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: object
    b: object = 2


@dataclasses.dataclass
class Mutable:
    a: object


class Plain:
    def __init__(self, items):
        self.items = items

    def __eq__(self, other):
        return type(other) is Plain and self.items == other.items


class IntWithAttributes(int):
    pass


class ListSubclass(list):
    pass


IMMUTABLE = [
    1, 1.5, True, None, "text", b"bytes", 2j, ..., range(3), int, len, decimal.Decimal("1.0"),
    dt.date(2024, 1, 2), dt.datetime(2024, 1, 2, tzinfo=dt.timezone.utc), dt.time(1), dt.timedelta(1),
    Color.RED, (), (1, "a"), (1, ("a", (None, b""))), frozenset({1, (2, 3)}),
    Point(1, "a"), Frozen(1, ("x", Frozen(2))), np.int64(3), np.float32(1.5), np.datetime64("2024-01-01"),
    pd.Timestamp("2024-01-01"), pd.NaT, pd.NA, pa.array([1]), pa.scalar(1), pa.schema([]),
    pa.record_batch({"a": [1]}), OutputTag("late"), (OutputTag("late"), 1), tuple(range(20)), (1,),
    (1, 2, 3, 4), (1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6),
]  # fmt: skip


@pytest.mark.parametrize("value", IMMUTABLE, ids=lambda value: repr(value)[:40])
def test_a_value_that_cannot_change_is_returned_itself(value):
    assert freeze(value) is value


MUTABLE = [
    [], [1, 2], [[1], {"a": [2]}], {}, {"a": 1}, {"a": {"b": [1]}}, {(1, 2): [3]}, set(), {1, 2},
    bytearray(b"ab"), collections.deque([1, [2]], maxlen=5), collections.OrderedDict(b=1, a=[2]),
    collections.Counter("aab"), collections.defaultdict(list, {"a": [1]}),
    ([1], 2), (1, (2, [3])), ({"a": 1},), (1, {2}),
    Point([1], 2), Frozen([1]), Mutable([1]), Mutable(1), Plain([1]), Row(1, [2]), Row(a=1, b={"c": [1]}),
    Row.of_kind(RowKind.DELETE, 1, 2), ListSubclass([1, [2]]),
    np.arange(4).reshape(2, 2), np.array([[1], {"a": 2}], dtype=object), np.zeros(2, "i4,f8"),
    pd.DataFrame({"a": [1, 2]}), pd.Series([[1], [2]]),
    {"when": dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc), "price": decimal.Decimal("1.10")},
]  # fmt: skip


def same(a, b):
    return pickle.dumps(a) == pickle.dumps(b) if not isinstance(a, Plain) else a == b


@pytest.mark.parametrize("value", MUTABLE, ids=lambda value: repr(value)[:40])
def test_a_value_that_can_change_is_copied_with_its_type_and_content(value):
    copied = freeze(value)
    assert copied is not value
    assert type(copied) is type(value)
    assert repr(copied) == repr(value) or same(copied, value)


def mutable_parts(value, found=None):
    """ids of all objects inside ``value`` that can change."""
    found = {} if found is None else found
    if id(value) in found:
        return found
    if isinstance(value, (list, dict, set, bytearray, collections.deque, Row, Mutable, Plain, np.ndarray)):
        found[id(value)] = value
    if isinstance(value, dict):
        for key, item in value.items():
            mutable_parts(key, found), mutable_parts(item, found)
    elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        for item in value:
            mutable_parts(item, found)
    elif isinstance(value, (Frozen, Mutable, Plain)):
        for item in vars(value).values():
            mutable_parts(item, found)
    elif isinstance(value, Row):
        mutable_parts(value._values, found)
    elif isinstance(value, np.ndarray) and value.dtype.hasobject:
        for item in value.flat:
            mutable_parts(item, found)
    return found


@pytest.mark.parametrize("value", MUTABLE, ids=lambda value: repr(value)[:40])
def test_a_copy_shares_nothing_that_can_change_with_the_original(value):
    assert not mutable_parts(value).keys() & mutable_parts(freeze(value)).keys()


def test_shared_and_cyclic_references_inside_a_value_are_kept():
    shared = {"n": 1}
    a, b = freeze((shared, shared))
    assert a is b and a is not shared
    first, second = freeze([shared, shared])
    assert first is second
    cyclic = [1]
    cyclic.append(cyclic)
    copied = freeze(cyclic)
    assert copied is not cyclic and copied[1] is copied
    tied = ([],)
    tied[0].append(tied)
    copied = freeze(tied)
    assert copied[0] is not tied[0] and copied[0][0] is copied
    looped = Frozen(None)
    object.__setattr__(looped, "a", looped)
    assert freeze(looped).a is not looped


def test_an_attribute_beside_the_fields_of_a_frozen_dataclass_can_change():
    value = Frozen(1)
    object.__setattr__(value, "extra", [1])
    copied = freeze(value)
    assert copied is not value and copied.extra is not value.extra


def test_a_subclass_of_an_immutable_type_may_have_attributes_and_is_copied():
    value = IntWithAttributes(3)
    value.seen = [1]
    copied = freeze(value)
    assert type(copied) is IntWithAttributes and copied == 3
    assert copied.seen == [1] and copied.seen is not value.seen


def test_a_value_of_a_class_inside_a_function_is_copied_though_it_does_not_pickle():
    class Local:
        def __init__(self):
            self.items = [1]

    value = Local()
    copied = freeze(value)
    assert type(copied) is Local and copied.items == [1] and copied.items is not value.items


def test_a_value_that_cannot_be_copied_is_refused_with_advice():
    generator = (i for i in range(3))
    with pytest.raises(TypeError, match="pipeline.object-reuse"):
        freeze([generator])


def test_a_generator_is_refused_with_advice_about_flat_map():
    def numbers():
        yield 1

    with pytest.raises(TypeError, match="generator .*numbers.* flat_map takes generators"):
        freeze(numbers())


def test_an_unhashable_or_huge_value_does_not_disturb_the_table_of_types():
    before = len(ATOMS)
    for i in range(50):
        cls = type(f"Made{i}", (), {})
        freeze(cls())
    assert len(ATOMS) == before


def test_a_memoryview_or_array_of_atoms_keeps_its_dtype_and_order():
    value = np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3))
    copied = freeze(value)
    assert copied.dtype == value.dtype and copied.flags.f_contiguous
    value[0, 0] = 9
    assert copied[0, 0] == 0
