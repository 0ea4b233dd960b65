"""Keys of map states and broadcast states, before and after a restore."""

import math

import pytest

from flinkish.common import Types
from flinkish.common.time import Time
from flinkish.datastream.functions import BroadcastProcessFunction, KeyedProcessFunction
from flinkish.datastream.state import MapStateDescriptor, StateTtlConfig
from flinkish.testing import StreamTestHarness


class Words(KeyedProcessFunction):
    def __init__(self, expires):
        self.descriptor = MapStateDescriptor("words", Types.DOUBLE(), Types.STRING())
        if expires:
            self.descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())

    def open(self, context):
        self.words = context.get_map_state(self.descriptor)

    def process_element(self, word, context):
        yield self.words.get(float("nan")), self.words.contains(float("nan")), len(list(self.words.keys()))
        if word == "gone":
            self.words.remove(float("nan"))
        else:
            self.words.put(float("nan"), word)
            self.words.put_all({math.inf - math.inf: word, 1.5: word})
            assert [key for key in self.words.keys() if math.isnan(key)]


@pytest.mark.parametrize("expires", [False, True])
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_all_nans_are_one_key_of_a_map_also_after_a_restore(backend, expires):
    def build(stream):
        return stream.key_by(lambda word: 0).process(Words(expires)).uid("words")

    with StreamTestHarness(build, backend) as harness:
        harness.process_elements([("one", 0), ("two", 0)])
        snapshot = harness.snapshot()
        found = [record.value for record in harness.output]
    with StreamTestHarness.restore(build, snapshot, 1, backend) as harness:
        harness.process_elements([("gone", 0), ("four", 0)])
        found += [record.value for record in harness.output]
    assert found == [(None, False, 0), ("one", True, 2), ("two", True, 2), (None, False, 1)]


RULES = MapStateDescriptor("rules", Types.DOUBLE(), Types.STRING())


class Rules(BroadcastProcessFunction):
    def process_element(self, value, context):
        rules = context.get_broadcast_state(RULES)
        yield rules.get(float("nan")), rules.contains(float("nan")), len(list(rules.items()))

    def process_broadcast_element(self, rule, context):
        rules = context.get_broadcast_state(RULES)
        if rule == "gone":
            rules.remove(float("nan"))
        else:
            rules.put(float("nan"), rule)
            rules.put_all({-float("nan"): rule})


def test_all_nans_are_one_key_of_a_broadcast_state_also_after_a_restore():
    def build(stream, rules):
        return stream.connect(rules.broadcast(RULES)).process(Rules()).uid("rules")

    with StreamTestHarness(build) as harness:
        for rule in ("one", "two"):
            harness.process_element(rule, input=1)
        snapshot = harness.snapshot()
    with StreamTestHarness.restore(build, snapshot, 2) as harness:
        harness.process_element("word")
        for rule in ("three", "gone"):
            harness.process_element(rule, input=1)
            harness.process_element("word")
        assert [record.value for record in harness.output] == [("two", True, 1), ("three", True, 1), (None, False, 0)]
