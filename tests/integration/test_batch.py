"""A batch job on slot processes."""

import warnings

from flinkish.datastream.execution_mode import RuntimeExecutionMode
from flinkish.datastream.functions import KeyedBroadcastProcessFunction
from flinkish.datastream.state import MapStateDescriptor, ValueStateDescriptor

NAMES = MapStateDescriptor("names")
COUNT = 6_000
SETTINGS = {
    "parallelism.default": 2,
    "execution.checkpointing.interval": "100 ms",
    "execution.sorted-inputs.memory": "64 kb",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.delay": "0 ms",
}


class Named(KeyedBroadcastProcessFunction):
    """Fails in its first attempt, behind half of the records of a key."""

    def open(self, runtime_context):
        self.attempt = runtime_context.get_attempt_number()
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))

    def process_element(self, value, ctx):
        key, number = value
        self.seen.update((self.seen.value() or 0) + 1)
        if self.attempt == 0 and self.seen.value() == 30:
            raise RuntimeError("the first attempt")
        ctx.timer_service().register_event_time_timer(0)
        yield ctx.get_broadcast_state(NAMES)[key % 3], number

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(NAMES).put(*value)

    def on_timer(self, timestamp, ctx):
        yield "keys", self.seen.value()


def test_an_automatic_batch_fails_begins_anew_and_gives_final_results(cluster):
    """Sorted in files, with a broadcast side, two shuffles, and an interval of checkpoints that has no effect."""
    env = cluster.get_execution_environment(SETTINGS)
    env.set_runtime_mode(RuntimeExecutionMode.AUTOMATIC)
    names = env.from_collection([(0, "zero"), (1, "one"), (2, "two")]).broadcast(NAMES)
    numbers = env.from_sequence(1, COUNT).map(lambda number: (number % 100, number))
    named = numbers.key_by(lambda value: value[0]).connect(names).process(Named())
    sums = named.key_by(lambda value: value[0]).reduce(lambda one, other: (one[0], one[1] + other[1]))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with sums.execute_and_collect() as results:
            found = list(results)
    assert any("a batch job takes no checkpoints" in str(warning.message) for warning in told)
    expected = {"keys": COUNT}
    for number in range(1, COUNT + 1):
        name = ("zero", "one", "two")[number % 100 % 3]
        expected[name] = expected.get(name, 0) + number
    assert sorted(found) == sorted(expected.items())
