"""Keys whose class has changed between the savepoint and the program that goes on from it."""

import pytest

from flinkish.common import Types
from flinkish.datastream.functions import KeyedProcessFunction
from flinkish.datastream.state import ValueStateDescriptor
from flinkish.datastream.window import TumblingEventTimeWindows
from flinkish.common.time import Time
from flinkish.errors import StateMigrationError
from flinkish.testing import StreamTestHarness

DATACLASS = "@dataclass(frozen=True)\nclass K:\n"
NAMED_TUPLE = "class K(NamedTuple):\n"
ENUM = "import enum\nclass K({}enum.{}):\n"


class Counts(KeyedProcessFunction):
    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, context):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield count


def counted(key):
    return lambda stream: stream.key_by(key).process(Counts()).uid("counts")


def saved_and_restored(module, build, old, new, backends, parallelism=2, records=range(1, 8)):
    """What the records of the new program find, after those of the old one."""
    module(old)
    with StreamTestHarness(build, backends[0], 2) as harness:
        for record in records:
            harness.process_element(record)
        snapshot = harness.snapshot()
    module(new)
    with StreamTestHarness.restore(build, snapshot, parallelism, backends[1]) as harness:
        for record in records:
            harness.process_element(record)
        harness.snapshot()
        return [result.value for result in harness.output]


@pytest.fixture(params=[("hashmap", "rocksdb"), ("rocksdb", "hashmap"), ("rocksdb", "rocksdb")], ids="-".join)
def backends(request):
    return request.param


@pytest.mark.parametrize(
    "old, new, why",
    [
        (DATACLASS + " a: int", DATACLASS + " a: int\n b: int = 7", "now a dataclass program_of_test.K(a, b)"),
        (DATACLASS + " a: int\n b: int = 7", DATACLASS + " a: int", "now a dataclass program_of_test.K(a)"),
        (DATACLASS + " a: int\n b: int = 7", DATACLASS + " b: int\n a: int = 7", "now a dataclass program_of_test.K(b, a)"),
        (DATACLASS + " a: int", DATACLASS + " z: int", "now a dataclass program_of_test.K(z)"),
        (DATACLASS + " a: int", NAMED_TUPLE + " a: int", "now a NamedTuple"),
        (DATACLASS + " a: int", "class K(str): pass", "now no class of keys"),
        (DATACLASS + " a: int", DATACLASS + " a: str", "a was int and is now str"),
        (DATACLASS + " a: int", DATACLASS + " a: int\nNew = K\nNew.__qualname__ = 'New'", "another name of program_of_test.New"),
        (NAMED_TUPLE + " a: int", NAMED_TUPLE + " a: int\n b: int = 7", "now a NamedTuple program_of_test.K(a, b)"),
        (NAMED_TUPLE + " a: int\n b: int = 7", NAMED_TUPLE + " b: int\n a: int = 7", "now a NamedTuple program_of_test.K(b, a)"),
        (NAMED_TUPLE + " a: int", DATACLASS + " a: int", "now a dataclass"),
    ],
)  # fmt: skip
def test_keys_that_would_never_be_found_are_refused_with_both_classes(module, backends, old, new, why):
    declared = module(old)
    build = counted(lambda record: declared.K(record))
    with pytest.raises(StateMigrationError) as caught:
        saved_and_restored(module, build, old, new, backends)
    assert why in caught.value.why
    assert "program_of_test.K(a" in caught.value.why
    assert 'operator "KeyedProcess"' in caught.value.where
    assert caught.value.fields["state"] == "count"


@pytest.mark.parametrize(
    "old, new",
    [
        (DATACLASS + " a: int", DATACLASS + " a: int\n b: int = field(default=7, compare=False)"),
        (DATACLASS + " a: int", DATACLASS + " a: int | None"),
        (NAMED_TUPLE + " a: int", NAMED_TUPLE + " z: int"),
        (NAMED_TUPLE + " a: int", "K = lambda a: (a,)"),
    ],
)
def test_a_change_that_keys_are_not_found_by_is_none(module, backends, old, new):
    declared = module(old)
    build = counted(lambda record: declared.K(record))
    assert saved_and_restored(module, build, old, new, backends) == [2] * 7



def members(base, kind, **values):
    return ENUM.format(base, kind) + "".join(f" {name} = {value!r}\n" for name, value in values.items())


@pytest.mark.parametrize("base, kind", [("", "Enum"), ("", "Flag"), ("", "IntEnum"), ("str, ", "Enum")])
def test_a_member_that_came_new_is_no_change(module, backends, base, kind):
    old, new = members(base, kind, SMALL=1, BIG=2), members(base, kind, SMALL=1, BIG=2, HUGE=4)
    declared = module(old)
    build = counted(lambda record: list(declared.K)[record % 2])
    assert saved_and_restored(module, build, old, new, backends, records=range(2)) == [2] * 2


def test_keys_of_an_enum_whose_member_is_gone_are_refused(module, backends):
    old, new = members("", "Enum", SMALL=1, BIG=2), members("", "Enum", SMALL=1, LARGE=2)
    declared = module(old)
    build = counted(lambda record: list(declared.K)[record % 2])
    with pytest.raises(StateMigrationError, match="an Enum program_of_test.K.SMALL, BIG., and it has no BIG any more"):
        saved_and_restored(module, build, old, new, backends)


def test_an_enum_that_has_become_a_text_is_refused(module, backends):
    old, new = members("", "Enum", SMALL="s", BIG="b"), members("str, ", "Enum", SMALL="s", BIG="b")
    declared = module(old)
    build = counted(lambda record: list(declared.K)[record % 2])
    with pytest.raises(StateMigrationError, match="now no class of keys"):
        saved_and_restored(module, build, old, new, backends)


def test_a_class_within_the_key_counts_too(module, backends):
    declared = module(NAMED_TUPLE + " a: int")
    build = counted(lambda record: ("x", frozenset([declared.K(record)])))
    with pytest.raises(StateMigrationError, match="now a NamedTuple program_of_test.K.a, b"):
        saved_and_restored(module, build, NAMED_TUPLE + " a: int", NAMED_TUPLE + " a: int\n b: int = 7", backends)


def test_keys_of_windows_are_compared_too(module, backends):
    declared = module(NAMED_TUPLE + " a: int")

    def build(stream):
        keyed = stream.key_by(lambda record: declared.K(record))
        return keyed.window(TumblingEventTimeWindows.of(Time.seconds(1))).reduce(lambda a, b: a + b).uid("sums")

    module(NAMED_TUPLE + " a: int")
    with StreamTestHarness(build, backends[0]) as harness:
        harness.process_element(1, timestamp=10)
        snapshot = harness.snapshot()
    module(NAMED_TUPLE + " a: int\n b: int = 7")
    with pytest.raises(StateMigrationError, match="now a NamedTuple program_of_test.K.a, b"):
        StreamTestHarness.restore(build, snapshot, 1, backends[1])


def test_classes_of_restored_keys_are_saved_again(module, backends):
    """Although no record of the run between has one."""
    declared = module(NAMED_TUPLE + " a: int")
    build = counted(lambda record: declared.K(record))
    with StreamTestHarness(build, backends[0]) as harness:
        harness.process_element(1)
        snapshot = harness.snapshot()
    with StreamTestHarness.restore(build, snapshot, 3, backends[1]) as harness:
        snapshot = harness.snapshot()
    module(NAMED_TUPLE + " a: int\n b: int = 7")
    with pytest.raises(StateMigrationError, match="now a NamedTuple"):
        StreamTestHarness.restore(build, snapshot, 1, backends[0])
