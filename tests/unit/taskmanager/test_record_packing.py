"""Batches of one class travel as plain contents, and come back as they were."""

import copyreg
import enum
import pickle
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from flinkish.common.types import Row, RowKind
from flinkish.taskmanager import wire
from flinkish.taskmanager.record_packing import pack


@dataclass
class Reading:
    key: str
    value: Any = 0


@dataclass(frozen=True)
class Frozen:
    key: str
    tags: list = field(default_factory=list)


class Point(NamedTuple):
    x: int
    y: Any = None


class Level(enum.IntEnum):
    LOW = 1


def travel(values, timestamps=None):
    batch = wire.decode_rows(b"".join(wire.encode_rows(values, timestamps)))
    assert batch.timestamps == timestamps
    return batch.values


def row(kind, **fields):
    return Row.of_kind(kind, **fields)


@pytest.mark.parametrize("timestamps", [None, [1, 2], [None, 2]])
@pytest.mark.parametrize(
    "values",
    [
        [Reading("a", 1), Reading("b", Level.LOW)],
        [Frozen("a"), Frozen("b", [1, [2]])],
        [Point(1), Point(2, (3, Point(4)))],
        [Row(1, "a"), Row(2, None)],
        [row(RowKind.INSERT, a=1, b=[Row(2)]), row(RowKind.DELETE, a=2, b=None)],
    ],
)
def test_they_are_packed_and_come_back_with_their_types(values, timestamps):
    assert pack(values) is not None
    got = travel(values, timestamps)
    assert got == values and repr(got) == repr(values)
    assert [type(value) for value in got] == [type(value) for value in values]


def test_what_was_set_beside_the_fields_travels_too():
    values = [Reading("a"), Reading("b")]
    values[1].extra = "more"
    assert travel(values)[1].extra == "more"


def test_rows_own_their_values_after_the_way():
    first, second = travel([Row(a=1), Row(a=2)])
    first["a"] = 5
    first.set_field_names(["z"])
    assert (first.z, second.a) == (5, 2)


def test_one_object_at_two_places_stays_one():
    reading = Reading("a")
    first, second, third = travel([reading, reading, Reading("a")])
    assert first is second and third is not first


@dataclass
class OwnState:
    a: int

    def __getstate__(self):
        return {"a": self.a + 1}


@dataclass
class OwnReduce:
    a: int

    def __reduce__(self):
        return OwnReduce, (self.a + 1,)


@dataclass
class OwnSetState:
    a: int

    def __setstate__(self, state):
        self.a = state["a"] + 1


@dataclass
class Slots:
    __slots__ = ("a",)
    a: int


@dataclass
class SlotsBelow(Slots):
    b: int = 0


@dataclass
class DictOfItsOwn(dict):
    a: int = 0


@dataclass
class Registered:
    a: int


copyreg.pickle(Registered, lambda value: (Registered, (value.a + 1,)))


class Wider(Point):
    """Has a __dict__ beside its elements."""


def with_item(kind):
    value = kind(1)
    value["k"] = 2
    return value


def wider(note):
    value = Wider(1)
    value.note = note
    return value


@pytest.mark.parametrize(
    "values",
    [
        [OwnState(1), OwnState(2)],
        [OwnReduce(1), OwnReduce(2)],
        [OwnSetState(1), OwnSetState(2)],
        [Slots(1), Slots(2)],
        [SlotsBelow(1, 2), SlotsBelow(3, 4)],
        [with_item(DictOfItsOwn), with_item(DictOfItsOwn)],
        [Registered(1), Registered(2)],
        [wider(1), wider(2)],
        [Reading("a"), Point(1)],
        [Row(a=1), Row(b=1)],
        [Row(a=1), Row(1)],
        [(1, 2), (3, 4)],
        [Level.LOW, Level.LOW],
        [ValueError("a"), ValueError("b")],
        [Reading("a")],
    ],
    ids=lambda values: type(values[0]).__name__,
)
def test_what_has_a_pickling_of_its_own_is_left_to_pickle(values):
    assert pack(values) is None
    expected = pickle.loads(pickle.dumps(values, 5))
    got = travel(values)
    assert repr(got) == repr(expected)
    assert [vars(value) if hasattr(value, "__dict__") else None for value in got] == [
        vars(value) if hasattr(value, "__dict__") else None for value in expected
    ]


def test_a_class_that_was_made_in_a_function_travels_along():
    @dataclass
    class Local:
        a: int

    first, second = travel([Local(1), Local(2)])
    assert type(first) is type(second) is Local and (first.a, second.a) == (1, 2)
