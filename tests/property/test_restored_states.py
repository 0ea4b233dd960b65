"""A keyed process function with all kinds of state and timers, restored at random moments, against a slow model."""

import datetime as dt
import enum
import random
from collections import namedtuple
from dataclasses import dataclass
from decimal import Decimal

import pytest

from flinkish.common.types import Row
from flinkish.datastream.functions import KeyedProcessFunction
from flinkish.datastream.state import StateTtlConfig, ValueStateDescriptor
from flinkish.state.key_groups import canonical_key
from tests.property import test_ttl as ttl
from tests.restored_harness import COUNTED, observed, restored_harness, seeds, timer_counts

STEPS = 100


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


@dataclass(frozen=True)
class Place:
    number: int
    what: object


@dataclass
class Tree:
    name: str
    parts: list


Point = namedtuple("Point", "x y")
NAN = float("nan")
BERLIN = dt.timezone(dt.timedelta(hours=1))

#: Each is one key, by any of its names.
KEYS = [
    [1, True, 1.0, Decimal("1.00")], [NAN, -NAN, Decimal("NaN")], [None], ["a"], [("t", NAN)], [Colour.RED],
    [0, 0.0, -0.0, False], [2**70, 2.0**70], [2**63 - 1], [-(2**63)], [""], [b"a"], [b""], ["a\0b"], ["\ud83d"],
    [Colour.BLUE], [("t", 1), ("t", 1.0)], [()], [((),)], [Point(1, None), (1, None)], [frozenset([1, 2])],
    [Place(1, "x"), Place(1.0, "x")], [Place(1, None)], [dt.date(2024, 1, 1)], [dt.datetime(2024, 1, 1)],
    [dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc), dt.datetime(2024, 1, 1, 1, tzinfo=BERLIN)],
    [dt.timedelta(days=-1)], [Decimal("0.10"), Decimal("0.1")], [float("inf")], [-1e-320], [Row(a=1)],
]  # fmt: skip
VALUES = [
    1, -5, 2**70, 1.5, True, "", "x", b"", "\ud83d", [], {}, [[]], (1, (2,)), {"a": {"b": [None]}}, Colour.BLUE,
    Place(1, "x"), Tree("n", [1, Tree("m", [])]), Decimal("1.50"), dt.date(2020, 2, 2), float("inf"), frozenset([3]),
    Point(1, 2), Row(a=1, b=[None]),
]  # fmt: skip
STATES = "value", "list", "map", "reduce", "aggregate"
OPERATIONS = {
    "value": ["write", "write", "get", "clear"],
    "list": ["write", "write", "write", "replace", "get", "clear"],
    "map": ["write", "write", "write", "replace", "remove", "get", "contains", "length", "keys", "items", "clear"],
    "reduce": ["write", "write", "get", "clear"],
    "aggregate": ["write", "write", "get", "clear"],
    "EVENT_TIME": ["register", "register", "delete"],
    "PROCESSING_TIME": ["register", "register", "delete"],
}


def shown(found):
    """Maps have no order."""
    return sorted(map(repr, found.items())) if isinstance(found, dict) else repr(found)


def comes_again(timestamp):
    return timestamp + 3 if timestamp % 4 == 0 else None


class AllStates(KeyedProcessFunction):
    """Does what each `record` says."""

    def __init__(self, ttl_config):
        self.ttl_config = ttl_config

    def open(self, runtime_context):
        asks = {
            "value": runtime_context.get_state, "list": runtime_context.get_list_state,
            "map": runtime_context.get_map_state, "reduce": runtime_context.get_reducing_state,
            "aggregate": runtime_context.get_aggregating_state,
        }  # fmt: skip
        self.states = {}
        for kind, ask in asks.items():
            descriptor = ttl.make(kind, kind)
            if self.ttl_config is not None:
                descriptor.enable_time_to_live(self.ttl_config)
            self.states[kind] = ask(descriptor)
        self.records = runtime_context.get_state(ValueStateDescriptor("records"))  # without a time to live

    def process_element(self, value, ctx):
        _, kind, step = value
        self.records.update((self.records.value() or 0) + 1)
        if kind in STATES:
            yield kind, shown(ttl.apply(kind, self.states[kind], step)), self.records.value()
            return
        service, (operation, _, time, _) = ctx.timer_service(), step
        getattr(service, f"{operation}_{kind.lower()}_timer")(time)

    def on_timer(self, timestamp, ctx):
        domain, again = ctx.time_domain().name, comes_again(timestamp)
        if again is not None:
            getattr(ctx.timer_service(), f"register_{domain.lower()}_timer")(again)
        found = [shown(ttl.apply(kind, self.states[kind], ("get", None, 1, None))) for kind in STATES]
        yield domain, timestamp, repr(ctx.get_current_key()), found, self.records.value()


class Forever(ttl.Model):
    """Of a state without a time to live."""

    def _living(self, cell):
        return True


class Model:
    def __init__(self, ttl_config):
        renews = ttl_config is not None and ttl_config.get_update_type() is StateTtlConfig.UpdateType.OnReadAndWrite
        self.states = {kind: (Forever if ttl_config is None else ttl.Model)(kind, renews, False) for kind in STATES}
        self.records = {}  # by key
        self.timers = {"EVENT_TIME": set(), "PROCESSING_TIME": set()}  # (time, key)

    def process_elements(self, records):
        return [result for record, _ in records for result in self.process_element(record)]

    def process_element(self, record):
        _, kind, step = record
        operation, key, part, _ = step
        self.records[key] = self.records.get(key, 0) + 1
        if kind in STATES:
            return [(kind, shown(self.states[kind].apply(step)), self.records[key])]
        if operation == "register":
            self.timers[kind].add((part, key))
        else:
            self.timers[kind].discard((part, key))
        return []

    def fire(self, domain, until):
        timers, output = self.timers[domain], []
        while timers and min(timers)[0] <= until:
            time, key = min(timers)
            timers.remove((time, key))
            if comes_again(time) is not None:
                timers.add((comes_again(time), key))
            found = [shown(self.states[kind].apply(("get", key, 1, None))) for kind in STATES]
            output.append((domain, time, repr(canonical_key(KEYS[key][0])), found, self.records[key]))
        return output

    def process_watermark(self, ms):
        return self.fire("EVENT_TIME", ms)

    def set_processing_time(self, ms):
        for state in self.states.values():
            state.now = ms
        return self.fire("PROCESSING_TIME", ms)

    def num_entries(self):
        """Without a time to live: how many expired ones there are is nobody's business."""
        return len(self.records) + sum(len({cell[0] for cell in state.cells}) for state in self.states.values())


def ttl_config_of(rng):
    if rng.random() < 0.3:
        return None
    builder = StateTtlConfig.new_builder(ttl.TTL)
    if rng.random() < 0.5:
        builder.update_ttl_on_read_and_write()
    match rng.randrange(5):
        case 0: builder.disable_cleanup_in_background()
        case 1: builder.cleanup_full_snapshot()
        case 2: builder.cleanup_incrementally(rng.choice([1, 3, 50]), rng.random() < 0.5)
        case 3: builder.cleanup_in_rocksdb_compact_filter(10)
    return builder.build()


def record(rng, number, kind, operation, part=0):
    """(key, kind, (operation, number of the key, part or time, value))"""
    return rng.choice(KEYS[number]), kind, (operation, number, part, rng.choice(VALUES))


def steps(rng):
    """Calls of a harness: (method, argument)."""
    times = {"EVENT_TIME": 0, "PROCESSING_TIME": 0}
    for _ in range(STEPS):
        chance = rng.random()
        if chance < 0.02:  # of a table that is restored in the midst of it, only deletions are dirty
            kind, numbers = rng.choice(STATES), rng.sample(range(len(KEYS)), len(KEYS))
            yield "process_elements", [(record(rng, number, kind, "write"), None) for number in numbers]
            for number in numbers:
                yield "process_element", record(rng, number, kind, "clear")
        elif chance < 0.85:
            kind = rng.choice(list(OPERATIONS))
            number = rng.randrange(len(KEYS)) if rng.random() < 0.4 else rng.randrange(6)
            part = rng.randrange(4) if kind in STATES else times[kind] + rng.randint(1, 20)
            yield "process_element", record(rng, number, kind, rng.choice(OPERATIONS[kind]), part)
        elif chance < 0.93:
            times["EVENT_TIME"] += rng.randint(0, 12)
            yield "process_watermark", times["EVENT_TIME"]
        else:
            times["PROCESSING_TIME"] += rng.randint(0, 8)
            yield "set_processing_time", times["PROCESSING_TIME"]


@pytest.mark.parametrize("seed", seeds(16, 300))
def test_all_states_and_timers_restored_at_random_moments_are_as_in_the_model(seed):
    rng = random.Random(f"states {seed}")
    config = ttl_config_of(rng)
    model = Model(config)
    with restored_harness(lambda s: s.key_by(lambda r: r[0]).process(AllStates(config)), f"states {seed}") as restored:
        for number, (method, argument) in enumerate(steps(rng)):
            getattr(restored.harness, method)(argument)
            expected = [(value, _timestamp(value)) for value in getattr(model, method)(argument)]
            place = f"seed {seed}, step {number}: {method}({argument!r})"
            assert observed(restored.harness)[0] == sorted(map(repr, expected)), place
            restored.maybe_cut()
            assert observed(restored.harness)[0] == [], f"restored after {place}"
            assert timer_counts(restored.harness) == tuple(map(len, model.timers.values())), place
            if config is None and rng.random() < COUNTED:
                assert restored.harness.num_keyed_state_entries() == model.num_entries(), place


def _timestamp(value):
    """Timers of event time give it to what they send; records have none here."""
    return value[1] if value[0] == "EVENT_TIME" else None
