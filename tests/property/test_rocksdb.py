"""The RocksDB backend does what the heap backend does, through any order of records, evictions, bases, snapshots."""

import copy
import random
import tempfile
from dataclasses import dataclass, replace

import pytest
from hypothesis import given

from flinkish.common.types import Row
from flinkish.datastream import functions as f
from flinkish.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from flinkish.state.key_decoding import decode_key
from flinkish.state.key_groups import canonical_key, encode_key
from tests.property.test_keys import keys as any_keys
from tests.rocksdb_states import (
    FAST_DISK,
    HALVES,
    StepMaterialiser,
    canonical,
    contents,
    from_canonical,
    heap,
    incremental,
    opener,
    rocksdb_backend,
    tiny_caches,
)


@dataclass
class Visit:
    user: str
    pages: list


class Collect(f.AggregateFunction):
    def create_accumulator(self):
        return ()

    def add(self, value, accumulator):
        return (*accumulator, value)

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a + b


KEYS = [1, "a", "b", ("t", 2), None, 0.5, *range(10, 40)]
STATE_OPS = (
    "value", "update", "clear", "add", "add_all", "list", "list_update", "put", "put_all", "remove", "items", "reduce",
    "aggregate", "scoped", "scoped_clear",
)  # fmt: skip
BETWEEN = ("batch",) * 6 + ("step",) * 6 + ("incremental", "incremental", "split", "full", "through heap")


def steps_of(rng):
    for _ in range(400):
        chance = rng.random()
        if chance < 0.8:
            yield rng.choice(STATE_OPS), rng.choice(KEYS), value_of(rng)
        elif chance < 0.9:
            yield ("window" if rng.random() < 0.9 else "fire"), rng.randrange(3), rng.choice(KEYS)
        else:
            yield (rng.choice(BETWEEN),)


def value_of(rng):
    match rng.randrange(5):
        case 0: return rng.randrange(-5, 5)
        case 1: return rng.choice("xyz")
        case 2: return rng.randrange(3), rng.choice("xy")
        case 3: return Visit(rng.choice("uv"), [rng.randrange(3)])
        case _: return Row(a=rng.randrange(3))


class Side:
    """One backend with a state of every kind; ``do`` gives what user code sees."""

    def __init__(self, backend):
        self.backend = backend
        self.scope = type("Scope", (), {"current_key": None})()
        self.windows = backend.window_table("windows") if "windows" not in backend.tables else backend.tables["windows"]
        self.asked = None

    def ask(self):
        if self.asked is None:
            state = self.backend.state
            self.asked = {
                "v": state(ValueStateDescriptor("v")), "l": state(ListStateDescriptor("l")),
                "m": state(MapStateDescriptor("m")), "a": state(AggregatingStateDescriptor("a", Collect())),
                "r": state(ReducingStateDescriptor("r", lambda one, other: (one, other)[:1])),
                "s": state(ValueStateDescriptor("s"), self.scope, "window/"),
            }  # fmt: skip
        return self.asked

    def do(self, op, key, value):
        value = copy.deepcopy(value)
        s = self.ask()
        self.backend.current_key = key
        self.scope.current_key = (str(value)[:1], key)
        match op:
            case "value": return s["v"].value()
            case "update": s["v"].update(value)
            case "clear": s["v"].clear(); s["l"].clear(); s["m"].clear(); s["r"].clear(); s["a"].clear()
            case "add": s["l"].add(value)
            case "add_all": s["l"].add_all([value, 1])
            case "list": return s["l"].get()
            case "list_update": s["l"].update([value] if value else [])
            case "put": s["m"].put(str(value), value)
            case "put_all": s["m"].put_all({1: value, 2: value})
            case "remove": s["m"].remove(1); s["m"].remove(2)
            case "items": return sorted(map(repr, s["m"].items()))
            case "reduce": s["r"].add((value,)); return s["r"].get()
            case "aggregate": s["a"].add(value); return s["a"].get()
            case "scoped": before = s["s"].value(); s["s"].update(value); return before
            case "scoped_clear": s["s"].clear()
            case "window":
                start = key * 10
                table = self.windows.get(start)
                if table is None:
                    table = self.windows.open(start)
                found = table.get(value)
                found = [] if found is None else found
                found.append(len(found))
                table[value] = found
                return list(found)
            case "fire":
                if key * 10 in self.windows:
                    return sorted(map(repr, self.windows.pop(key * 10).items()))


@pytest.mark.parametrize("seed", range(5))
def test_rocksdb_does_what_heap_does_through_evictions_bases_and_snapshots(seed):
    with tiny_caches(changes_bytes=400), tempfile.TemporaryDirectory(dir=FAST_DISK) as folder:
        materialiser = StepMaterialiser(folder)
        expected, found = Side(heap()), Side(rocksdb_backend(materialiser))
        try:
            for number, step in enumerate(steps_of(random.Random(seed))):
                if len(step) == 3:
                    assert expected.do(*step) == found.do(*step), f"step {number}: {step}"
                elif step[0] == "batch":
                    found.backend.between_batches()
                elif step[0] == "step":
                    materialiser.step()
                else:
                    found = through(step[0], found, materialiser)
            assert contents(found.backend) == contents(expected.backend)
        finally:
            found.backend.close()


def through(way, side, materialiser):
    """The same state in a backend that was restored."""
    old = side.backend
    if way == "through heap":
        middle = from_canonical(canonical(old), Side(heap()).backend)
        new = Side(rocksdb_backend(materialiser))
        from_canonical(canonical(middle), new.backend)
    elif way == "full" or not old.can_give_changes:
        new = Side(rocksdb_backend(materialiser))
        from_canonical(canonical(old), new.backend)
    elif way == "incremental":
        new = Side(rocksdb_backend(materialiser))
        new.backend.restore_incremental(incremental(old), opener(materialiser))
    else:  # to two subtasks, and back to one
        handle, parts = incremental(old), []
        for half in HALVES:
            part = Side(rocksdb_backend(StepMaterialiser(materialiser.storage.directory), half))
            part.backend.restore_incremental(replace(handle, key_groups=half), opener(materialiser))
            parts.append(part)
        new = Side(rocksdb_backend(materialiser))
        for half, part in zip(HALVES, parts):
            part.backend.between_batches()
            part.backend._materialiser.run_all()
            if part.backend.can_give_changes:
                new.backend.restore_incremental(incremental(part.backend), opener(materialiser))
            else:
                from_canonical(canonical(part.backend, half), new.backend)
            part.backend.close()
    old.close()
    return new


@given(any_keys)
def test_keys_come_back_from_their_bytes(key):
    key = canonical_key(key)
    encoded = encode_key(key)
    decoded, end = decode_key(encoded + b"rest")
    assert end == len(encoded)
    assert encode_key(decoded) == encoded
    assert type(decoded) is type(key) and decoded == key


