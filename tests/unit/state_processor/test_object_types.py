"""Objects of a program's classes from rows, and from the text of rows."""

import datetime
import decimal
import enum
import pickle
import uuid
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NewType, Optional, Union

import cloudpickle
import pytest

from flinkish.common.types import Row
from flinkish.errors import InvalidJobError
from flinkish.state_processor.columns import as_text
from flinkish.state_processor.object_types import ObjectType


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Size(str, enum.Enum):
    SMALL = "s"
    LARGE = "l"


class Point(NamedTuple):
    x: int
    y: float


@dataclass(frozen=True)
class Key:
    name: str
    colour: Colour
    day: Optional[datetime.date]
    id: uuid.UUID
    price: decimal.Decimal
    points: tuple[Point, ...]
    content: bytes


@dataclass
class Node:
    value: int
    next: Optional["Node"] = None
    doubled: int = field(init=False)

    def __post_init__(self):
        if self.value < 0:
            raise RuntimeError("negative")
        self.doubled = 2 * self.value


@dataclass
class Open:
    what: Any
    missing: "NoSuchName"  # noqa: F821


UserId = NewType("UserId", int)
KEY = Key(
    "a", Colour.RED, datetime.date(2020, 2, 29), uuid.UUID(int=7), decimal.Decimal("0.10"), (Point(1, 2.0),), b"x"
)


def made(annotation, value):
    return pickle.loads(cloudpickle.dumps(ObjectType(annotation, "key_by()", "key_type"))).make(value)


@pytest.mark.parametrize(
    "annotation, value, expected",
    [
        (Point, Row(y=2.0, x=1), Point(1, 2.0)),
        (Point, Row(f0=1, f1=2.0), Point(1, 2.0)),
        (Point, (1, 2), Point(1, 2)),
        (Key, as_text(KEY), KEY),
        (Key, KEY, KEY),
        (Node, Row(value=1, next=Row(value=2, next=None), doubled=5), Node(1, Node(2))),
        (Open, Row(what=[1], missing="x"), Open([1], "x")),
        (tuple, Row(f0=1, f1=Row(f0=b"x", f1=None)), (1, (b"x", None))),
        (tuple, '["a", [1, 2.5]]', ("a", (1, 2.5))),
        (tuple[int, Colour], Row(f0=1, f1="BLUE"), (1, Colour.BLUE)),
        (Optional[Point], None, None),
        (list[Point], [Row(x=1, y=2.0)], [Point(1, 2.0)]),
        (frozenset[int], "[2, 1]", frozenset([1, 2])),
        (dict[datetime.date, UserId], as_text({datetime.date(2020, 1, 1): 5}), {datetime.date(2020, 1, 1): 5}),
        (Union[Point, tuple], "[1, 2, 3]", (1, 2, 3)),
        (Colour, "RED", Colour.RED),
        (Colour, as_text(Colour.RED), Colour.RED),
        (Colour, f'"<{Colour.__module__}.Colour 1>"', Colour.RED),  # whose class the reader could not import
        (Size, "s", Size.SMALL),
        (Size, "LARGE", Size.LARGE),
        (datetime.datetime, as_text(datetime.datetime(2020, 1, 1)), datetime.datetime(2020, 1, 1)),
        (decimal.Decimal, "0.10", decimal.Decimal("0.10")),
        (decimal.Decimal, 0.5, decimal.Decimal("0.5")),
        (int, str(1 << 70), 1 << 70),
        (float, "1.5", 1.5),
        (float, 2, 2),
        (str, "1", "1"),
        (Union[int, str], "a", "a"),
        (Row, Row(a=1), Row(a=1)),
    ],
)
def test_an_annotation_says_what_is_made(annotation, value, expected):
    found = made(annotation, value)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    "annotation, value, why",
    [
        (Point, Row(x=1), 'its struct has no "y", the fields of Point are x, y and those of the struct x'),
        (Point, Row(x=1, y=2.0, z=3), 'its struct has "z"'),
        (Point, (1,), "it has 1 fields, not x, y"),
        (Point, Row(x="1", y=2.0), "field \"x\": it is a str '1', no int"),
        (Point, 5, "it is a int 5, no struct"),
        (Node, Row(value=1, next=Row(value="x", next=None)), 'field "next": field "value"'),
        (Node, Row(value=-1, next=None), r"Node\(\) raised RuntimeError: negative"),
        (Colour, "GREEN", "the members of Colour are RED, BLUE"),
        (tuple[int, str], Row(f0=1), "it has 1 elements, the tuple 2"),
        (tuple, "x", "no tuple"),
        (datetime.date, datetime.datetime(2020, 1, 1), "no date"),
        (uuid.UUID, "x", "no UUID"),
        (dict[str, int], [1], "no dict"),
        (Union[int, Point], "x", "none of"),
        (Union[int, str], "1", "may be a str or the text of something else"),
    ],
)
def test_what_is_not_of_the_type_is_refused_with_the_field(annotation, value, why):
    with pytest.raises(ValueError, match=why):
        made(annotation, value)


@pytest.mark.parametrize("annotation", ["Point", 5, object(), [int], as_text, pickle.Pickler])
def test_what_is_no_type_or_cannot_be_made_is_refused_at_once(annotation):
    with pytest.raises(InvalidJobError, match="key_by.. cannot use .* as key_type"):
        ObjectType(annotation, "key_by()", "key_type")
