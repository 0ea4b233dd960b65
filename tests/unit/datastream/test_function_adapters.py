import collections
import functools
import operator
from unittest.mock import Mock

import numpy as np
import pytest

from flinkish.datastream import StreamExecutionEnvironment
from flinkish.datastream.function_adapters import function_place, keyed_process_function_of
from flinkish.datastream.functions import (
    CoMapFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
    SinkFunction,
)
from flinkish.datastream.window import TumblingEventTimeWindows
from flinkish.errors import InvalidJobError

WINDOW = TumblingEventTimeWindows.of(1_000)


def explode(*values):
    yield from values


class Exploding:
    def __call__(self, value):
        yield value


class ExplodingMap(MapFunction):
    map = explode


class ExplodingFilter(FilterFunction):
    filter = explode


class ExplodingReduce(ReduceFunction):
    reduce = explode


class ExplodingSelector(KeySelector):
    get_key = explode


class ExplodingSink(SinkFunction):
    invoke = explode


class ExplodingCoMap(CoMapFunction):
    map2 = explode

    def map1(self, value):
        return value


@pytest.fixture
def stream():
    return StreamExecutionEnvironment.get_execution_environment().from_collection([1])


@pytest.mark.parametrize("func", [explode, functools.partial(explode, 1), Exploding(), ExplodingMap()])
def test_map_refuses_a_generator_function_and_names_flat_map(stream, func):
    with pytest.raises(InvalidJobError, match=r"map\(\) cannot use the generator function") as refused:
        stream.map(func)
    assert "use flat_map(), which takes generators, or return one value" in refused.value.do


def test_what_gives_one_value_refuses_generator_functions(stream):
    keyed = stream.key_by(lambda n: n)
    windowed = keyed.window(TumblingEventTimeWindows.of(1_000))
    for call in (
        lambda: stream.filter(explode),
        lambda: stream.filter(ExplodingFilter()),
        lambda: stream.key_by(explode),
        lambda: stream.key_by(ExplodingSelector()),
        lambda: stream.partition_custom(explode, lambda n: n),
        lambda: stream.add_sink(explode),
        lambda: stream.add_sink(ExplodingSink()),
        lambda: keyed.reduce(explode),
        lambda: keyed.reduce(ExplodingReduce()),
        lambda: windowed.reduce(ExplodingReduce()),
        lambda: stream.connect(stream).map((explode, str)),
        lambda: stream.connect(stream).map(ExplodingCoMap()),
    ):
        with pytest.raises(InvalidJobError, match="cannot use the generator function '.*explode'") as refused:
            call()
        assert "return one value instead of yielding" in refused.value.do


def test_what_gives_many_values_takes_generator_functions(stream):
    class Many(FlatMapFunction):
        flat_map = explode

    stream.flat_map(explode)
    stream.flat_map(Many())
    stream.process(explode)
    stream.connect(stream).flat_map((explode, explode))


# ---- parameters ---------------------------------------------------------------------------------


def two(first, second):
    return first


class NoContext(ProcessFunction):
    def process_element(self, value):
        yield value


class ShortTimer(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value

    def on_timer(self, timestamp):
        yield timestamp


class TwoCalled:
    def __call__(self, first, second):
        return first


def decorated(function):
    @functools.wraps(function)
    def with_one_more(value):
        return function(value, 1)

    return with_one_more


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda s: s.map(two), "two"),
        (lambda s: s.map(lambda x, y: 1), "<lambda>"),
        (lambda s: s.map(TwoCalled()), "TwoCalled"),
        (lambda s: s.map(functools.partial(two)), "two"),
        (lambda s: s.filter(lambda: True), "<lambda>"),
        (lambda s: s.flat_map(two), "two"),
        (lambda s: s.process(lambda value: [value]), "<lambda>"),
        (lambda s: s.process(NoContext()), "NoContext.process_element"),
        (lambda s: s.key_by(two), "two"),
        (lambda s: s.key_by(len).process(NoContext()), "NoContext.process_element"),
        (lambda s: s.key_by(len).process(ShortTimer()), "ShortTimer.on_timer"),
        (lambda s: s.key_by(len).reduce(lambda a: a), "<lambda>"),
        (lambda s: s.key_by(len).window(WINDOW).apply(two), "two"),
        (lambda s: s.partition_custom(lambda key: 0, len), "<lambda>"),
        (lambda s: s.connect(s).map((len, two)), "two"),
        (lambda s: s.connect(s).flat_map((two, len)), "two"),
        (lambda s: s.add_sink(two), "two"),
    ],
)
def test_a_function_with_other_parameters_is_refused_with_its_file_and_line(stream, call, name):
    with pytest.raises(InvalidJobError, match="and its parameters are") as caught:
        call(stream)
    assert caught.value.what.endswith(f"() cannot use {name}")
    assert caught.value.where.startswith(f'File "{__file__}", line ')
    assert caught.value.do.startswith("give it the parameters (")


@pytest.mark.parametrize(
    "func",
    [
        str, int, dict, len, max, print, operator.itemgetter(0), operator.neg, np.sqrt, np.add, np.int64,
        functools.partial(two, 1), functools.partial(two, second=2), lambda *values: values, decorated(two),
        lambda x, y=2: x, lambda x, **options: x, functools.lru_cache(str), functools.lru_cache(len), "a".join,
        [].append, collections.Counter, type("Named", (), {"__init__": lambda self, x: None}), Mock(),
    ],
)  # fmt: skip
def test_what_can_be_called_with_one_argument_or_does_not_say_is_taken(stream, func):
    stream.map(func)
    stream.flat_map(func)
    stream.filter(func)
    stream.key_by(func)
    stream.add_sink(func)


def test_the_place_of_a_function_is_found_through_adapters():
    def own(value, ctx):
        return []

    line = own.__code__.co_firstlineno
    expected = ("own", f'File "{__file__}", line {line}')
    assert function_place(own) == expected
    assert function_place(functools.partial(own, 1)) == expected
    assert function_place(keyed_process_function_of(own).process_element) == expected
    name, place = function_place(keyed_process_function_of(NoContextNeeded()).process_element)
    assert name == "NoContextNeeded.process_element" and place.startswith(f'File "{__file__}"')
    assert function_place(str) == ("str", "")


class NoContextNeeded(ProcessFunction):
    def process_element(self, value, ctx=None):
        yield value
