"""States with a time to live against a slow model that keeps every write in a list."""

from hypothesis import given, settings
from hypothesis import strategies as st

from flinkish.datastream import functions as f
from flinkish.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flinkish.state.heap import HeapKeyedStateBackend
from tests.rocksdb_states import rocksdb_backend, tiny_caches

TTL = 10


class Joined(f.AggregateFunction):
    def create_accumulator(self):
        return ""

    def add(self, value, accumulator):
        return accumulator + str(value)

    def get_result(self, accumulator):
        return "=" + accumulator

    def merge(self, a, b):
        return a + b


class Model:
    """Cells of one state: each is one value with its last access.  A value, a reduced or aggregated state is one
    cell a key, a list one for each element, a map one for each entry."""

    def __init__(self, kind, renews, shows):
        self.kind, self.renews, self.shows = kind, renews, shows
        self.cells = []  # [key, part, value, time], in the order of writing
        self.now = 0

    def _cells(self, key, part=None):
        return [cell for cell in self.cells if cell[0] == key and (part is None or cell[1] == part)]

    def _drop(self, cells):
        self.cells = [cell for cell in self.cells if not any(cell is gone for gone in cells)]

    def _living(self, cell):
        return self.now - cell[3] < TTL

    def read(self, key, part=None):
        found = self._cells(key, part)
        shown = [cell for cell in found if self.shows or self._living(cell)]
        self._drop([cell for cell in found if not self._living(cell)])
        if self.renews:
            for cell in self._cells(key, part):
                cell[3] = self.now
        return [(cell[1], cell[2]) for cell in shown]

    def length(self, key):
        return sum(self.shows or self._living(cell) for cell in self._cells(key))

    def write(self, key, part, value):
        for cell in self._cells(key, part):
            cell[2:] = [value, self.now]
            return
        self.cells.append([key, part, value, self.now])

    def apply(self, step):
        operation, key, part, value = step
        if operation == "clear":
            self._drop(self._cells(key))
        elif self.kind == "value":
            if operation == "write":
                self.write(key, 0, value)
            else:
                return [value for _, value in self.read(key)]
        elif self.kind in ("reduce", "aggregate"):
            if operation != "write":
                prefix = "=" if self.kind == "aggregate" else ""
                return [prefix + value for _, value in self.read(key)]
            living = [cell for cell in self._cells(key) if self._living(cell)]
            self.write(key, 0, (living[0][2] if living else "") + str(value))
        elif self.kind == "list":
            if operation == "write":
                self.cells.append([key, 0, value, self.now])
            elif operation == "replace":
                self._drop(self._cells(key))
                self.cells += [[key, 0, value, self.now], [key, 0, part, self.now]]
            else:
                return [value for _, value in self.read(key)]
        elif operation == "write":
            self.write(key, part, value)
        elif operation == "replace":
            self.write(key, part, value)
            self.write(key, part + 1, value)
        elif operation == "remove":
            self._drop(self._cells(key, part))
        elif operation == "get":
            return [value for _, value in self.read(key, part)]
        elif operation == "contains":
            return bool(self.read(key, part))
        elif operation == "length":
            return self.length(key)
        elif operation == "keys":
            return dict.fromkeys(part for part, _ in self.read(key))
        else:
            return dict(self.read(key))
        return None


def apply(kind, state, step):
    operation, _, part, value = step
    if operation == "clear":
        return state.clear()
    if kind == "value":
        return state.update(value) if operation == "write" else _listed(state.value())
    if kind in ("reduce", "aggregate"):
        return state.add(str(value)) if operation == "write" else _listed(state.get())
    if kind == "list":
        if operation == "write":
            return state.add(value)
        return state.update([value, part]) if operation == "replace" else state.get()
    if operation == "write":
        return state.put(part, value)
    if operation == "replace":
        return state.put_all({part: value, part + 1: value})
    if operation == "remove":
        return state.remove(part)
    if operation == "get":
        return _listed(state.get(part))
    if operation == "contains":
        return state.contains(part)
    if operation == "length":
        assert state.is_empty() == (not len(state))
        return len(state)
    if operation == "keys":
        return dict.fromkeys(state.keys())
    return dict(state.items())


def _listed(value):
    return [] if value is None else [value]


def make(kind, name="s"):
    return {
        "value": lambda: ValueStateDescriptor(name),
        "list": lambda: ListStateDescriptor(name),
        "map": lambda: MapStateDescriptor(name),
        "reduce": lambda: ReducingStateDescriptor(name, lambda a, b: a + b),
        "aggregate": lambda: AggregatingStateDescriptor(name, Joined()),
    }[kind]()


KINDS = st.sampled_from(["value", "list", "map", "reduce", "aggregate"])
OPERATIONS = st.sampled_from(
    ["write", "write", "replace", "remove", "get", "contains", "length", "keys", "items", "clear"]
)
STEPS = st.lists(
    st.one_of(
        st.tuples(OPERATIONS, st.integers(0, 3), st.integers(0, 2), st.integers(1, 9)),
        st.integers(1, 12),  # the clock goes on
    ),
    min_size=1,
    max_size=60,
)


CLEANUPS = st.sampled_from([0, 1, 3, 50])


def config(renews, shows, cleanup):
    builder = StateTtlConfig.new_builder(TTL).disable_cleanup_in_background()
    if renews:
        builder.update_ttl_on_read_and_write()
    if shows:  # when it is cleaned up is nobody's business, so the model knows what is shown only without
        builder.return_expired_if_not_cleaned_up()
    elif cleanup:
        builder.cleanup_incrementally(cleanup, cleanup == 3)
    return builder.build()


def compare(kind, steps, ttl, make_backend, between):
    """Run ``steps`` on a state and on the model, and ``between(backend, state)`` after each; what is left."""
    updates, visibilities = StateTtlConfig.UpdateType, StateTtlConfig.StateVisibility
    model = Model(
        kind,
        ttl.get_update_type() is updates.OnReadAndWrite,
        ttl.get_state_visibility() is visibilities.ReturnExpiredIfNotCleanedUp,
    )
    backend = make_backend(lambda: model.now)
    descriptor = make(kind)
    descriptor.enable_time_to_live(ttl)
    state = backend.state(descriptor)
    for step in steps:
        if isinstance(step, int):
            model.now += step
            continue
        backend.current_key = step[1]
        expected, got = model.apply(step), apply(kind, state, step)
        assert got == expected, step
        between(backend, state)
    return model, backend, state


@settings(max_examples=150, deadline=None)
@given(kind=KINDS, steps=STEPS, renews=st.booleans(), shows=st.booleans(), cleanup=CLEANUPS)
def test_every_read_is_as_in_the_model(kind, steps, renews, shows, cleanup):
    def check(backend, state):
        if state.cleanup is not None:
            state.cleanup.check()

    ttl = config(renews, shows, cleanup)
    model, backend, state = compare(kind, steps, ttl, lambda now_ms: HeapKeyedStateBackend("op", now_ms), check)
    if state.cleanup is not None:  # in the end all goes, a few entries an access
        model.now += 2 * TTL
        backend.current_key = "other"
        for _ in range(6):  # the first one sees only that something is due
            model.now += 1
            state.clear()
        assert not backend.tables["s"]


@settings(max_examples=20, deadline=None)
@given(kind=KINDS, steps=STEPS, renews=st.booleans(), shows=st.booleans())
def test_every_read_is_as_in_the_model_with_rocksdb(kind, steps, renews, shows):
    def write(backend, state):
        backend.tables["s"].write()

    made = []

    def make_backend(now_ms):
        made.append(rocksdb_backend(now_ms=now_ms))
        return made[0]

    try:
        with tiny_caches():
            compare(kind, steps, config(renews, shows, 0), make_backend, write)
    finally:
        made[0].close()
