"""Formats and redistribution of checkpoints, for anything that can be saved."""

import io

from hypothesis import given, settings
from hypothesis import strategies as st

from flinkish.messages.checkpoints import (
    CompletedCheckpoint,
    DistributionMode,
    FileHandle,
    InlineBytes,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorSnapshot,
    OperatorStateHandle,
    OperatorSubtaskState,
)
from flinkish.operators.timers import KeyedTimerService
from flinkish.state.heap import HeapKeyedStateBackend, WindowTable
from flinkish.state.key_groups import canonical_key, key_group, key_group_range, key_groups_of_canonical
from flinkish.state.keyed_snapshot import KeyedSnapshotReader, write_keyed_snapshot
from flinkish.state.redistribution import deal_out, deal_out_keyed, deal_out_operator_state
from flinkish.storage.metadata import decode_metadata, encode_metadata

# ---- metadata -----------------------------------------------------------------------------------

#: Built from the annotations, so that a field which the format forgets is found.
st.register_type_strategy(InlineBytes, st.builds(InlineBytes, st.binary(max_size=20)))
FILES = st.builds(
    FileHandle,
    st.one_of(
        st.uuids().map(lambda name: f"s3://bucket/dir/job/chk-1/{name}"),
        st.uuids().map(lambda name: f"s3://bucket/dir/job/shared/{name}"),
        st.uuids().map(lambda name: f"/elsewhere/{name}"),
    ),
    st.integers(0, 2**60),
)
st.register_type_strategy(FileHandle, FILES)


NAMES = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=8)


@st.composite
def checkpoints(draw):
    listed = draw(st.lists(st.from_type(OperatorSnapshot), max_size=3))
    operators = {operator.operator_id: operator for operator in listed}
    return draw(
        st.builds(
            CompletedCheckpoint,
            operators=st.just(operators),
            location=st.sampled_from(["s3://bucket/dir/job/chk-1", "/dir/job/chk-1"]),
        )
    )


def _plain_names(handle):
    return all("/" not in name and "\0" not in name and name not in ("", ".", "..") for name in names_of(handle))


def names_of(checkpoint):
    for operator in checkpoint.operators.values():
        for state in operator.subtasks.values():
            for handle in state.keyed:
                if not isinstance(handle, KeyedStateHandle):
                    yield from (*handle.shared, *handle.private)


@settings(max_examples=60, deadline=None)
@given(checkpoints().filter(_plain_names))
def test_metadata_come_back_as_they_were(checkpoint):
    assert decode_metadata(encode_metadata(checkpoint), checkpoint.location) == checkpoint


# ---- redistribution -----------------------------------------------------------------------------

PARALLELISMS = st.integers(1, 64)


def groups_of(handle):
    return range(handle.key_groups.start, handle.key_groups.end + 1)


@settings(max_examples=100, deadline=None)
@given(st.lists(PARALLELISMS, min_size=2, max_size=5), st.sampled_from([64, 100, 128, 4096]))
def test_each_key_group_goes_to_its_owner_once_over_chains_of_rescales(parallelisms, max_parallelism):
    handles = []
    for index in range(parallelisms[0]):
        groups = key_group_range(max_parallelism, parallelisms[0], index)
        handles.append(KeyedStateHandle(KeyGroupRange(groups.start, groups.stop - 1), InlineBytes(bytes([index]))))
    origin = {group: handle.content for handle in handles for group in groups_of(handle)}
    for parallelism in parallelisms[1:]:
        dealt = deal_out_keyed(handles, parallelism, max_parallelism)
        seen = {}
        for index, parts in enumerate(dealt):
            owned = key_group_range(max_parallelism, parallelism, index)
            for part in parts:
                assert part.key_groups.count > 0
                for group in groups_of(part):
                    assert group in owned and group not in seen
                    seen[group] = part.content
        assert seen == origin
        handles = [part for parts in dealt for part in parts]  # as a restore that fails before its first checkpoint


ENTRIES = st.lists(st.lists(st.integers(0, 10**6), max_size=6), min_size=1, max_size=64)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(NAMES, ENTRIES, min_size=1, max_size=3), st.lists(PARALLELISMS, min_size=1, max_size=4))
def test_split_state_is_a_partition_over_chains_of_rescales(states, parallelisms):
    old = max(map(len, states.values()))
    saved = {}
    for index in range(old):
        entries = {
            name: (DistributionMode.SPLIT, tuple(b"%d" % n for n in lists[index]))
            for name, lists in states.items()
            if index < len(lists)
        }
        saved[index] = OperatorStateHandle(entries)
    expected = {name: sorted(b"%d" % n for part in lists for n in part) for name, lists in states.items()}
    for parallelism in parallelisms:
        dealt = deal_out_operator_state(saved, old, parallelism)
        assert len(dealt) == parallelism
        counts = {name: [0] * parallelism for name in states}
        found = {name: [] for name in states}
        for index, handle in enumerate(dealt):
            for name, (mode, entries) in (handle.states if handle else {}).items():
                assert mode is DistributionMode.SPLIT
                counts[name][index] = len(entries)
                found[name] += entries
        assert {name: sorted(entries) for name, entries in found.items()} == expected
        if parallelism == old:
            before = {index: handle.states for index, handle in saved.items() if handle.states}
            assert {index: handle.states for index, handle in enumerate(dealt) if handle} == before
        else:
            totals = [sum(column) for column in zip(*counts.values())]
            assert max(totals) - min(totals) <= 1  # remainders of several states do not pile up
        saved, old = {index: handle for index, handle in enumerate(dealt) if handle}, parallelism


@settings(max_examples=100, deadline=None)
@given(PARALLELISMS, st.lists(PARALLELISMS, min_size=1, max_size=3), st.data())
def test_union_goes_to_all_and_each_subtask_has_one_copy_of_broadcast(old, parallelisms, data):
    finished = data.draw(st.sets(st.integers(0, old - 1), max_size=old - 1))
    broadcast = (DistributionMode.BROADCAST, (b"{r: 1}",))
    saved = {
        index: OperatorStateHandle({"u": (DistributionMode.UNION, (b"%d" % index,)), "b": broadcast})
        for index in range(old)
        if index not in finished
    }
    everything = tuple(b"%d" % index for index in range(old) if index not in finished)
    for parallelism in parallelisms:
        dealt = deal_out_operator_state(saved, old, parallelism)
        assert [handle.states for handle in dealt] == [
            {"u": (DistributionMode.UNION, everything), "b": broadcast}
        ] * parallelism


# ---- keys and tables ----------------------------------------------------------------------------

ATOMS = st.one_of(
    st.text(max_size=200), st.integers(), st.floats(), st.binary(max_size=8), st.none(), st.booleans(),
    st.decimals(allow_nan=True, allow_infinity=True, places=3), st.datetimes(), st.dates(),
)  # fmt: skip
KEYS = st.one_of(ATOMS, st.tuples(ATOMS, ATOMS)).map(canonical_key)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.lists(st.text(), max_size=20), st.lists(st.integers(), max_size=20), st.lists(KEYS, max_size=20)))
def test_key_groups_of_many_keys_are_those_of_each(keys):
    keys = [canonical_key(key) for key in keys]
    assert key_groups_of_canonical(keys, 300).tolist() == [key_group(key, 300) for key in keys]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(KEYS, VALUES, max_size=30),
    st.dictionaries(st.integers(-5, 5), st.dictionaries(KEYS, VALUES, min_size=1, max_size=10), max_size=3),
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), KEYS), max_size=20),
    st.lists(st.integers(1, 16), min_size=1, max_size=3),
)
def test_state_windows_and_timers_survive_rescales(table, windows, timers, parallelisms):
    """B23: each entry once, at the subtask that owns its key, equal in type and value."""
    states, services = [(HeapKeyedStateBackend("op"))], [KeyedTimerService(None, int)]
    states[0].table("t").update(table)
    states[0].tables["w"] = WindowTable(windows)
    for timestamp, key in timers:
        services[0].event_time.register(timestamp, key)
        services[0].processing_time.register(timestamp, key)
    old = 1
    for parallelism in [*parallelisms, 1]:
        subtasks = {}
        for index, (backend, service) in enumerate(zip(states, services)):
            groups = key_group_range(128, old, index)
            owned = KeyGroupRange(groups.start, groups.stop - 1)
            out = io.BytesIO()
            entries = [*backend.snapshot_states(), *service.snapshot_states()]
            write_keyed_snapshot(out, entries, owned, 128, "zstd", "op")
            subtasks[index] = OperatorSubtaskState((KeyedStateHandle(owned, InlineBytes(out.getvalue())),))
        dealt = deal_out(OperatorSnapshot("id", None, "op", old, 128, subtasks), parallelism, 128)
        states, services = [], []
        for state in dealt:
            backend, service = HeapKeyedStateBackend("op"), KeyedTimerService(None, int)
            backend.tables["w"] = WindowTable()
            for handle in state.keyed:
                reader = KeyedSnapshotReader(handle.content.data)
                backend.restore(reader, handle.key_groups)
                service.restore(reader, handle.key_groups)
            service.event_time.check()
            states.append(backend)
            services.append(service)
        old = parallelism
    assert states[0].tables["t"] == table
    assert sorted(map(repr, states[0].tables["t"].items())) == sorted(map(repr, table.items()))
    assert states[0].tables["w"] == windows
    for queue in (services[0].event_time, services[0].processing_time):
        assert set(queue.timers()) == set(timers) and len(queue) == len(set(timers))
