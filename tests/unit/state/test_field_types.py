"""Types of fields as text: one spelling for what means the same, and no change where one cannot be sure."""

import abc
import enum
import typing
from dataclasses import dataclass, make_dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Callable, Dict, Generic, List, Literal, NamedTuple, NewType, Optional, Sequence, Tuple, Union

import numpy as np
import pytest

from flinkish.state.field_types import field_types, fits

T = typing.TypeVar("T")
UserId = NewType("UserId", int)
Tree = Union[int, List["Tree"]]
HERE = __name__


class Color(enum.Enum):
    RED = 1


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...


class Circle(Shape):
    def area(self):
        return 1


class Named(typing.Protocol):
    name: str


class Box(Generic[T]):
    pass


class Movie(typing.TypedDict):
    title: str


def text_of(annotation):
    return field_types(make_dataclass("Record", [("f", annotation)], namespace={"__module__": HERE}), ("f",))[0]


@pytest.mark.parametrize(
    "annotation, text",
    [
        (int, "int"),
        ("int", "int"),
        ("'int'", "int"),
        (None, "None"),
        (Optional[int], "int | None"),
        ("Optional[int]", "int | None"),
        ("int | None", "int | None"),
        (Union[int, str, None], "int | str | None"),
        (Optional["Color"], f"{HERE}.Color | None"),
        (List[int], "list[int]"),
        ("typing.List[int]", "list[int]"),
        (list, "list"),
        (List, "list"),
        (Dict[str, "list[Optional[int]]"], "dict[str, list[int | None]]"),
        (Tuple[int, ...], "tuple[int, ...]"),
        (Color, f"{HERE}.Color"),
        ("Color", f"{HERE}.Color"),
        (Circle, f"{HERE}.Circle"),
        (Decimal, "decimal.Decimal"),
        (np.float64, "numpy.float64"),
        (Box[int], f"{HERE}.Box[int]"),
        (Movie, "dict"),
        (UserId, "int"),
        (Literal["a", 1, None], "str | int | None"),
        (typing.Annotated[int, "of a user"], "int"),
        (typing.Final[int], "int"),
        (Tree, "int | list[int | list[Any]]"),
        # What is left open, or cannot be known.
        (Any, "Any"),
        (object, "Any"),
        (T, "Any"),
        (Shape, "Any"),
        (Named, "Any"),
        (Sequence[int], "Any"),
        (Callable[[int], str], "Any"),
        ("Nowhere", "Any"),
        ("Nowhere.Inner", "Any"),
        ("list[Nowhere]", "list[Any]"),
        ("Optional[Nowhere]", "Any | None"),
        ("not a type", "Any"),
        ("1 / 0", "Any"),
        (3, "Any"),
    ],
)
def test_a_type_has_one_spelling(annotation, text):
    assert text_of(annotation) == text


def test_text_names_what_its_module_has_and_in_a_script_what_is_built_in(script):
    text = "from __future__ import annotations\nfrom decimal import Decimal as D\n"
    made = script(text + "@dataclass\nclass Visit:\n    n: Optional[List[int]]\n    d: D\n    own: Visit")
    expected = ("list[int] | None", "decimal.Decimal", "program_of_test.Visit")
    assert field_types(made.Visit, ("n", "d", "own")) == expected
    del made.D
    assert field_types(made.Visit, ("d", "n")) == ("Any", "list[int] | None")


def test_named_tuples_and_inherited_fields_have_types_too():
    class Point(NamedTuple):
        x: int
        y: "str"

    @dataclass
    class Base:
        x: int

    @dataclass
    class Derived(Base):
        y: "Color"

    assert field_types(Point, ("x", "y")) == ("int", "str")
    assert field_types(Derived, ("x", "y")) == ("int", f"{HERE}.Color")


@pytest.mark.parametrize(
    "old, new",
    [
        (int, Optional[int]),
        (Union[int, str], Union[str, int, None]),
        (bool, int),
        (datetime, date),
        (Circle, Shape),
        (Shape, Circle),
        (list, List[int]),
        (List[int], list),
        (List[int], List[Any]),
        (List[int], Sequence[str]),
        (Tuple[int, ...], Tuple[int, int]),
        (Any, int),
        (int, Any),
        ("Nowhere", str),
        (Tree, "Tree"),
        (Dict[str, Tree], Dict[str, "Tree"]),
        (Box, Box[int]),
    ],
)
def test_what_is_the_same_or_wider_or_unknown_fits(old, new):
    assert fits(text_of(old), text_of(new))


@pytest.mark.parametrize(
    "old, new",
    [
        (int, str),
        (int, float),
        (int, bool),
        (Optional[int], int),
        (Union[int, str], int),
        (List[int], List[str]),
        (list, dict),
        (Dict[str, int], Dict[str, float]),
        (Tuple[int, str], Tuple[int]),
        (Color, int),
        (Decimal, float),
        (date, datetime),
        (Circle, Color),
    ],
)
def test_another_or_a_narrower_type_does_not_fit(old, new):
    assert not fits(text_of(old), text_of(new))


def test_a_class_that_has_moved_or_has_an_alias_at_its_old_place_is_the_same(module):
    assert fits("old.place.Color", f"{HERE}.Color") and fits("list[a.B]", "list[c.B]")
    assert not fits("program_of_test.Old", "program_of_test.New")
    made = module("class New:\n    pass")
    made.Old = made.New
    assert fits("program_of_test.Old", "program_of_test.New")
