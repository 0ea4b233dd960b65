import dataclasses
import threading

import pytest

from flinkish.connectors.collection import CollectionSource
from flinkish.connectors.sequence import NumberSequenceSource
from flinkish.connectors.spi import InputStatus
from flinkish.connectors.split_assignment import index_ranges
from flinkish.errors import InvalidJobError, UnpicklableFunctionError
from flinkish.testing.spi_fakes import SourceRun
from flinkish.testing.spi_suites import BoundedSourceSuite


class TestCollectionSource(BoundedSourceSuite):
    def make_source(self):
        return CollectionSource(self.expected())

    def expected(self):
        return [(i, f"item {i}") for i in range(2_345)]


class TestCollectionSourceOfMutableItems(BoundedSourceSuite):
    def make_source(self):
        return CollectionSource(self.expected())

    def expected(self):
        return [{"id": i, "tags": [i, str(i)]} for i in range(57)]


class TestEmptyCollectionSource(BoundedSourceSuite):
    def make_source(self):
        return CollectionSource([])

    def expected(self):
        return []


class TestNumberSequenceSource(BoundedSourceSuite):
    def make_source(self):
        return NumberSequenceSource(-10, 1_500)

    def expected(self):
        return list(range(-10, 1_501))


class TestNumberSequenceOfFewerNumbersThanReaders(BoundedSourceSuite):
    def make_source(self):
        return NumberSequenceSource(7, 8)

    def expected(self):
        return [7, 8]


def test_index_ranges_cover_everything_once():
    for count in range(12):
        for parts in range(1, 5):
            ranges = index_ranges(count, parts)
            assert [i for start, end in ranges for i in range(start, end)] == list(range(count))
            sizes = [end - start for start, end in ranges]
            assert max(sizes) - min(sizes) <= 1


def test_one_reader_keeps_the_order_of_a_collection():
    run = SourceRun(CollectionSource(iter("hello")), 1).run_until_end(2)
    assert run.values == list("hello")


def test_a_generator_is_read_when_the_source_is_made():
    source = CollectionSource(i * i for i in range(4))
    assert SourceRun(source).run_until_end().values == [0, 1, 4, 9]


def test_items_do_not_change_with_the_drivers_objects_and_share_nothing():
    shared = [1]
    source = CollectionSource([shared, shared, {"a": shared}])
    shared.append(2)
    first, second, third = SourceRun(source).run_until_end().values
    assert (first, second, third) == ([1], [1], {"a": [1]})
    first.append(9)
    assert (second, third) == ([1], {"a": [1]})


def test_a_class_that_only_a_function_knows_travels():
    @dataclasses.dataclass
    class Local:
        number: int

    (value,) = SourceRun(CollectionSource([Local(3)])).run_until_end().values
    assert value.number == 3


def test_an_item_that_cannot_travel_is_refused_with_its_index():
    with pytest.raises(UnpicklableFunctionError) as caught:
        CollectionSource([1, 2, [threading.Lock()]])
    assert "item 2 of the collection" in str(caught.value)
    assert caught.value.fields["index"] == 2


def test_a_sequence_that_runs_backwards_is_refused():
    with pytest.raises(InvalidJobError, match="start 3 lies behind end 2"):
        NumberSequenceSource(3, 2)


def test_a_sequence_beyond_64_bits_is_refused():
    with pytest.raises(InvalidJobError, match="does not fit into 64 bits"):
        NumberSequenceSource(0, 2**63)


def test_sequence_gives_each_reader_neighbouring_numbers():
    run = SourceRun(NumberSequenceSource(1, 7), 3).run_until_end()
    assert [output.values for output in run.outputs] == [[1, 2, 3], [4, 5], [6, 7]]


def test_a_reader_that_waits_for_its_split_says_so():
    run = SourceRun(CollectionSource([1]))
    output = run.outputs[0]
    output.give_room(5)
    assert run.readers[0].poll_next(output) is InputStatus.NOTHING_AVAILABLE
    run.step(0, 5)
    assert run.values == [1]
