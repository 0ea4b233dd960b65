import functools

import pytest

from flinkish.datastream import StreamExecutionEnvironment
from flinkish.datastream.functions import (
    CoMapFunction,
    FilterFunction,
    FlatMapFunction,
    KeySelector,
    MapFunction,
    ReduceFunction,
    SinkFunction,
)
from flinkish.datastream.window import TumblingEventTimeWindows
from flinkish.errors import InvalidJobError


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
