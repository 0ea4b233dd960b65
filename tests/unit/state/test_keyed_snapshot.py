"""The canonical file of keyed state: what goes in comes out, a range of key groups too, and damage is told."""

import base64
import dataclasses
import datetime as dt
import io
import json
import math
import os
import select
import signal
import struct
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pytest

from flinkish.common.types import Row, RowKind
from flinkish.datastream.time_window import TimeWindow
from flinkish.errors import CorruptSnapshotError, InternalError, StateMigrationError, UserError
from flinkish.messages.checkpoints import KeyGroupRange
from flinkish.state import keyed_snapshot
from flinkish.state.canonical_key import NAN
from flinkish.state.key_groups import key_group
from flinkish.state.keyed_snapshot import (
    KeyedSnapshotReader,
    KeyedSnapshotWriter,
    StateEntries,
    StateKind,
    StateMeta,
    write_keyed_snapshot,
)

ALL = KeyGroupRange(0, 127)
META = StateMeta("s", StateKind.VALUE)


@dataclass
class Reading:
    key: str
    value: Any = 0


@dataclass(frozen=True)
class Frozen:
    key: str
    tags: list = field(default_factory=list)


@dataclass(slots=True)
class Slotted:
    a: int
    b: Any = None


@dataclass(frozen=True, slots=True)
class FrozenSlotted:
    a: int
    b: Any = None


class Point(NamedTuple):
    x: int
    y: Any = None


@dataclass
class Node:
    name: str
    parent: Any = None
    children: list = field(default_factory=list)


@dataclass
class OwnPickling:
    a: int

    def __reduce__(self):
        return OwnPickling, (self.a + 1,)


def snapshot(keys, values, namespaces=None, compression=None, meta=META, key_groups=ALL):
    out = io.BytesIO()
    entries = StateEntries(meta, keys, values, namespaces)
    size = write_keyed_snapshot(out, [entries], key_groups, 128, compression, "op")
    assert size == len(out.getvalue())
    return out.getvalue()


def values_of(data, key_groups=None, name="s"):
    found = {}
    for block in KeyedSnapshotReader(data).read(name, key_groups):
        assert [key_group(key, 128) for key in block.keys] == block.groups.tolist()
        found.update(zip(block.keys, block.values))
    return found


def sorted_snapshot(keys, values):
    """As a backend writes it that keeps its entries by key group."""
    by_group = sorted(zip(keys, values), key=lambda entry: key_group(entry[0], 128))
    out = io.BytesIO()
    writer = KeyedSnapshotWriter(out, ALL, 128)
    groups = np.array([key_group(key, 128) for key, _ in by_group], dtype=np.int32)
    writer.write_sorted(META, groups, *map(list, zip(*by_group)))
    writer.close()
    return out.getvalue()


@pytest.fixture(params=[snapshot, sorted_snapshot], ids=["a table", "sorted entries"])
def there_and_back(request):
    """Values under int keys, by either way of writing."""

    def travel(values):
        back = values_of(request.param(list(range(len(values))), values))
        return [back[i] for i in range(len(values))]

    return travel


KEYS = {
    "str": ["", "a", "ü" * 40, "x" * 200, "with\0nul", "\ud800"],
    "text": [f"user-{i}" for i in range(300)],
    "int": [0, -1, 5, 2**63 - 1, -(2**63)],
    "long int": [2**70, 3],
    "float": [0.5, 1e300, float("inf")],
    "nan": [NAN],
    "none": [None],
    "tuple": [("a", 1), ("b", 2), ("b", None), (NAN, ())],
    "mixed": ["a", 1, b"a", None, ("a",), Decimal("0.1"), dt.date(2020, 1, 1), uuid.UUID(int=7), frozenset({1})],
    "dataclass": [FrozenSlotted(1, "x"), FrozenSlotted(2, NAN)],
    "row": [Row(a=1, b="x"), Row(2)],
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_keys_of_all_kinds_come_back_equal_in_type_and_value(keys, compression):
    found = values_of(snapshot(keys, list(range(len(keys))), compression=compression))
    assert found == {key: i for i, key in enumerate(keys)}
    assert {(type(key), repr(key)) for key in found} == {(type(key), repr(key)) for key in keys}


def test_the_nan_key_is_the_one_nan_key_again():
    (key,) = values_of(snapshot([NAN], [1]))
    assert key is NAN


EQUAL = {
    "ints": [0, 1, -128, 127],
    "wide ints": [0, 300, -70_000, 2**40],
    "beyond 64 bits": [2**64, 1],
    "bools": [True, False],
    "int and bool": [1, True, 0, False],
    "floats": [0.0, -0.0, 1.5, math.inf],
    "texts": ["", "a", "\0", "ü\ud800"],
    "only the empty text": [""],
    "nones": [None, None],
    "none among ints": [1, None],
    "tuples": [(1, "a"), (2, "b")],
    "tuples of other lengths": [(1,), (1, 2), ()],
    "empty tuples": [(), ()],
    "nested tuples": [((1, (2, "x")), None), ((3, (4, "y")), 1.5)],
    "lists": [[1, 2], [], [3]],
    "empty lists": [[], []],
    "lists of lists": [[[1], []], [[2, 3]]],
    "dicts": [{"a": 1, "b": 2}, {}, {"c": 3}],
    "dicts of what not": [{(1, 2): [1], None: {2}}],
    "rows": [Row(a=1, b="x"), Row(a=2, b=None)],
    "rows without names": [Row(1, "a"), Row(2, "b")],
    "rows of kinds": [Row.of_kind(RowKind.DELETE, a=1), Row(a=2)],
    "rows of other fields": [Row(a=1), Row(b=1), Row(1, 2), Row()],
    "dataclass": [Reading("a", 1), Reading("b", [1])],
    "frozen": [Frozen("a"), Frozen("b", [1, [2]])],
    "slots": [Slotted(1, "x"), Slotted(2)],
    "frozen slots": [FrozenSlotted(1, "x"), FrozenSlotted(2)],
    "named tuple": [Point(1), Point(2, (3, Point(4)))],
    "records in records": [Reading("a", Frozen("b", [Point(1, Slotted(2))])), Reading("c", {"k": Reading("d")})],
    "mixed records": [Reading("a"), Frozen("b"), 1, "x"],
    "time windows": [TimeWindow(0, 10), TimeWindow(10, 20)],
    # B28
    "nested": [
        ([Row(a=1, b="x", c=None), Row(a=2, b="y", c=1.5)], {"k": (Decimal("1.10"), b"\0\xff")}),
        ([], {"t": (dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2))), bytearray(b"x"))}),
    ],
    "numpy": [np.int64(1), np.float32(0.5)],
}


@pytest.mark.parametrize("values", EQUAL.values(), ids=EQUAL)
def test_values_come_back_equal_in_type_and_value(values, there_and_back):
    back = there_and_back(values)
    assert back == values
    assert [(type(value), repr(value)) for value in back] == [(type(value), repr(value)) for value in values]


def test_nan_values_come_back_as_nan(there_and_back):
    one, two, none = there_and_back([math.nan, (math.nan, 1), None])
    assert type(one) is float and math.isnan(one) and math.isnan(two[0]) and none is None


def test_an_object_that_stands_twice_in_a_value_is_one_object_afterwards(there_and_back):
    shared = [1]
    record = Reading("a", shared)
    values = [(shared, shared, record, record), ([2], [2], Reading("b"), Reading("b"))]
    (first, second, third, fourth), (fifth, sixth, *_) = there_and_back(values)
    assert first is second and third is fourth and third.value is first
    assert fifth is not sixth
    # The same inside a list state, where elements are taken apart.
    for value in ([shared, shared], [record, record], [(shared, shared)], [Frozen("a", [shared, shared])]):
        (back,) = there_and_back([value])
        one, two = back if len(back) == 2 else back[0] if type(back[0]) is tuple else back[0].tags
        assert back == value and one is two


def test_values_of_two_keys_that_are_one_object_come_back_equal(there_and_back):
    shared = [1, 2]
    assert there_and_back([shared, shared]) == [[1, 2], [1, 2]]


def test_records_that_lead_back_to_themselves_come_back_so(there_and_back):
    root = Node("root")
    root.children = [Node("a", root), Node("b", root)]
    back, _ = there_and_back([root, 1])
    assert [child.name for child in back.children] == ["a", "b"]
    assert all(child.parent is back for child in back.children)


def test_attributes_that_are_no_fields_come_along_and_fields_without_value_stay_without(there_and_back):
    more, fewer = Reading("a", 1), Reading("b", 2)
    more.note = "n"
    del fewer.__dict__["value"]
    unset = Slotted(1)
    del unset.b
    back = there_and_back([more, fewer, unset])
    assert back[0] == more and back[0].note == "n"
    assert back[1].__dict__ == {"key": "b"}
    assert back[2].a == 1 and not hasattr(back[2], "b")


def test_a_class_that_pickles_in_its_own_way_does_so(there_and_back):
    assert there_and_back([OwnPickling(1), OwnPickling(5)]) == [OwnPickling(2), OwnPickling(6)]


def test_init_is_not_called(monkeypatch):
    data = snapshot(["k"], [Reading("a", 1)])
    monkeypatch.setattr(Reading, "__init__", None)
    assert values_of(data)["k"].key == "a"


def test_namespaces_stay_with_their_entries():
    keys = [f"k{i % 50}" for i in range(200)]
    namespaces = [i // 50 * 1000 for i in range(200)]
    meta = StateMeta("s", StateKind.LIST, namespaced=True)
    reader = KeyedSnapshotReader(snapshot(keys, [[i] for i in range(200)], namespaces, meta=meta))
    found = {
        (key, namespace): value
        for block in reader.read("s")
        for key, namespace, value in zip(block.keys, block.namespaces, block.values)
    }
    assert found == {(key, namespace): [i] for i, (key, namespace) in enumerate(zip(keys, namespaces))}
    assert reader.states == {"s": meta} and reader.num_entries("s") == 200


def test_within_a_key_group_entries_keep_their_order():
    keys = [f"k{i}" for i in range(2_000)]
    seen = {}
    for block in KeyedSnapshotReader(snapshot(keys, list(range(2_000)))).read("s"):
        for group, value in zip(block.groups.tolist(), block.values):
            assert value > seen.get(group, -1)
            seen[group] = value
    assert len(seen) == 128


def test_a_range_of_key_groups_is_read_without_the_rest(monkeypatch):
    monkeypatch.setattr(keyed_snapshot, "BLOCK_BYTES", 2_000)
    keys = [f"k{i}" for i in range(20_000)]
    data = bytearray(snapshot(keys, list(range(20_000))))
    footer = json.loads(footer_of(data))
    blocks = footer["states"][0]["blocks"]
    assert len(blocks) > 40
    wanted = KeyGroupRange(30, 40)
    for offset, length, _, first, last, _, _ in blocks:
        if last < wanted.start or first > wanted.end:
            data[offset : offset + length] = b"\xff" * length  # reading it would fail
    expected = {key: i for i, key in enumerate(keys) if 30 <= key_group(key, 128) <= 40}
    assert values_of(bytes(data), wanted) == expected
    assert values_of(bytes(data), KeyGroupRange(5, 4)) == {}
    with pytest.raises(CorruptSnapshotError):
        values_of(bytes(data))


def footer_of(data):
    length, _, _ = struct.unpack("<QI4s", data[-16:])
    return bytes(data[-16 - length : -16])


def test_blocks_stay_small_whatever_the_entries(there_and_back):
    values = ["x" * 100] * 3_000 + ["y" * 300_000] * 6 + ["z" * 3_000_000]
    data = snapshot(list(range(len(values))), values)
    blocks = json.loads(footer_of(data))["states"][0]["blocks"]
    sizes = sorted(block[6] for block in blocks)
    assert sizes[-1] > 3_000_000 and all(size <= 1 << 20 for size in sizes[:-1])
    assert sum(block[5] for block in blocks) == len(values)
    assert there_and_back(values) == values


def test_compression_makes_a_smaller_file_of_the_same_entries():
    keys = [f"user-{i}" for i in range(5_000)]
    plain, packed = (snapshot(keys, [0] * 5_000, compression=how) for how in (None, "zstd"))
    assert len(packed) < len(plain) / 2
    assert values_of(packed) == values_of(plain)


def test_states_without_entries_are_known():
    meta = dataclasses.replace(META, properties={"watermark": -(2**63)})
    reader = KeyedSnapshotReader(snapshot([], [], meta=meta))
    assert reader.states == {"s": meta} and list(reader.read("s")) == [] and list(reader.read("other")) == []


def test_a_key_outside_of_the_subtask_is_an_error_of_ours():
    with pytest.raises(InternalError, match="by key group"):
        snapshot(["a"], [1], key_groups=KeyGroupRange(0, 10))  # its group is 80
    writer = KeyedSnapshotWriter(io.BytesIO(), ALL, 128)
    writer.write_sorted(META, np.array([5], dtype=np.int32), [1], [1])
    with pytest.raises(InternalError, match="by key group"):
        writer.write_sorted(META, np.array([4], dtype=np.int32), [2], [1])


def test_a_file_that_can_seek_is_read_like_bytes(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(snapshot(["a", "b"], [1, 2]))
    with open(path, "rb") as file:
        assert {k for b in KeyedSnapshotReader(file, str(path)).read("s") for k in b.keys} == {"a", "b"}


def test_a_value_that_cannot_be_pickled_is_refused_by_state_and_operator():
    def local():
        @dataclass
        class Local:
            a: int

        return Local

    for value, why in [((i for i in ()), "generator"), (local()(1), "define the class at the top of a module")]:
        with pytest.raises(UserError, match='could not save state "s"') as caught:
            snapshot(["a"], [[value, 1]])
        assert caught.value.where == 'operator "op"' and why in caught.value.why


def test_blocks_that_adjoin_are_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(keyed_snapshot, "BLOCK_BYTES", 2_000)

    class Counting(io.BytesIO):
        reads = 0

        def read(self, size=-1):
            self.reads += 1
            return super().read(size)

    file = Counting(snapshot(list(range(20_000)), list(range(20_000))))
    reader = KeyedSnapshotReader(file)
    opened = file.reads
    assert len(list(reader.read("s"))) > 20 and file.reads == opened + 1
    monkeypatch.setattr(keyed_snapshot, "_READ_BYTES", 10_000)
    assert sum(len(block.keys) for block in reader.read("s")) == 20_000 and file.reads > opened + 5


def test_a_forked_child_writes_the_same_file(tmp_path):
    """Heap checkpoints are written so; Arrow's threads of the parent do not exist in the child."""
    keys, values = [f"user-{i}" for i in range(100_000)], [(i, "x") for i in range(100_000)]
    expected = snapshot(keys, values, compression="zstd")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            (tmp_path / "file").write_bytes(snapshot(keys, values, compression="zstd"))
            status = 0
        finally:
            os._exit(status)
    ended = os.pidfd_open(child)
    if not select.select([ended], [], [], 60)[0]:
        os.kill(child, signal.SIGKILL)
    os.close(ended)
    assert os.waitpid(child, 0) == (child, 0)
    assert (tmp_path / "file").read_bytes() == expected


# ---- damage -------------------------------------------------------------------------------------


def test_every_cut_and_every_flipped_byte_is_told():
    data = snapshot([f"k{i}" for i in range(40)], list(range(40)), compression="zstd")
    expected = values_of(data)
    assert len(expected) == 40
    for size in range(len(data)):
        with pytest.raises(CorruptSnapshotError) as caught:
            values_of(data[:size])
        assert "inline state, offset" in caught.value.where
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x55
        with pytest.raises(CorruptSnapshotError):
            values_of(bytes(damaged))


def test_the_error_has_path_and_offset():
    data = bytearray(snapshot(["a"], [1]))
    data[10] ^= 1
    with pytest.raises(CorruptSnapshotError) as caught:
        list(KeyedSnapshotReader(bytes(data), "/chk-3/file").read("s"))
    assert str(caught.value).splitlines()[:2] == [
        "could not read keyed state",
        "  where: /chk-3/file, offset 6",
    ]
    assert not caught.value.retryable and len(str(caught.value).splitlines()) == 4


def test_a_newer_version_is_refused_with_both_numbers():
    data = bytearray(snapshot(["a"], [1]))
    data[4:6] = struct.pack("<H", 7)
    with pytest.raises(CorruptSnapshotError, match="version 7, this flinkish reads up to 4"):
        KeyedSnapshotReader(bytes(data))


#: Two values of a state with the declared type LONG, as the first version has written them.
VERSION_1 = base64.b64decode(
    b"RkxLUwEAgAWVNAAAAAAAAAAoQwhQAAAAaQAAAJRDCAEAAAABAAAAlE6MAXOUjANhAGKUhpSMAXGUSwFDAgEClIeUdJQueyJvcGVy"
    b"YXRvciI6Im9wIiwibWF4X3BhcmFsbGVsaXNtIjoxMjgsImtleV9ncm91cHMiOlswLDEyN10sImNvbXByZXNzaW9uIjpudWxsLCJs"
    b"YXlvdXRzIjpbXSwic3RhdGVzIjpbeyJuYW1lIjoicyIsImtpbmQiOiJWQUxVRSIsIm5hbWVzcGFjZWQiOmZhbHNlLCJkZWNsYXJl"
    b"ZCI6eyJ2YWx1ZSI6WyJsb25nIixbXV19LCJ0dGwiOm51bGwsInByb3BlcnRpZXMiOnt9LCJibG9ja3MiOltbNiw2MywxNjI3MTU2"
    b"MzQzLDgwLDEwNSwyLDYzXV19XX37AAAAAAAAAAMXmeJTS0xG"
)


def test_a_file_of_the_first_version_is_read():
    reader = KeyedSnapshotReader(VERSION_1)
    (block,) = reader.read("s")
    assert dict(zip(block.keys, block.values)) == {"a": 1, "b": 2}
    meta = reader.states["s"]
    assert meta.declared["value"].text == "long" and meta.declared["value"].arrow_type is None and not meta.forms


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.update(max_parallelism=0),
        lambda f: f.update(compression="marshal"),
        lambda f: f.update(states=[{}]),
        lambda f: f["states"][0]["blocks"][0].__setitem__(0, 10**9),
        lambda f: f["states"][0]["blocks"][0].__setitem__(4, 500),
        lambda f: f["states"][0].update(kind="NOVEL"),
        lambda f: f.pop("layouts"),
    ],
)
def test_a_footer_that_names_what_cannot_be_is_refused(change):
    data = snapshot(["a"], [1])
    footer = json.loads(footer_of(data))
    body = data[: len(data) - 16 - len(footer_of(data))]
    change(footer)
    text = json.dumps(footer).encode()
    with pytest.raises(CorruptSnapshotError, match="the footer is not one"):
        KeyedSnapshotReader(body + text + struct.pack("<QI4s", len(text), crc32(text), b"SKLF"))


# ---- changed classes ----------------------------------------------------------------------------


OLD = "@dataclass{}\nclass Visit:\n    user: str\n    count: int"
FORMS = ["", "(frozen=True)", "(slots=True)", "(frozen=True, slots=True)"]


def saved(module, text=OLD.format("")):
    old = module(text).Visit
    # At the top of a column, inside a list, among others: the three ways in which a record is written.
    return snapshot(["a", "b", "c"], [old("x", 1), [old("y", 2)], 3]), snapshot(["a"], [old("x", 1)])


def restored(data):
    mixed, column = data
    found = values_of(mixed)
    assert found["c"] == 3
    (only,) = values_of(column).values()
    assert only == found["a"]
    return found["a"], found["b"][0]


@pytest.mark.parametrize("form", FORMS)
def test_an_added_field_gets_its_default_and_a_removed_one_is_dropped(module, form):
    data = saved(module, OLD.format(form))
    added = "\n    tags: list = field(default_factory=list)\n    n: int = 7"
    new = module(OLD.format(form) + added).Visit
    one, two = restored(data)
    assert (one, two) == (new("x", 1, [], 7), new("y", 2, [], 7))
    assert one.tags is not two.tags and list(dataclasses.asdict(one)) == ["user", "count", "tags", "n"]
    new = module(f"@dataclass{form}\nclass Visit:\n    count: int").Visit
    assert restored(data) == (new(1), new(2))
    new = module(f"@dataclass{form}\nclass Visit:\n    count: int\n    user: str").Visit  # another order
    assert restored(data) == (new(1, "x"), new(2, "y"))


def test_named_tuples_change_in_the_same_way(module):
    data = saved(module, "class Visit(NamedTuple):\n    user: str\n    count: int")
    new = module("class Visit(NamedTuple):\n    count: int\n    user: str\n    n: int = 7").Visit
    assert restored(data) == (new(1, "x", 7), new(2, "y", 7))
    assert type(restored(data)[0]) is new


@pytest.mark.parametrize(
    "text, why",
    [
        ("    user: str\n    pages: int", "count may have been renamed to pages"),
        ("    user: str\n    pages: int = 0", "count may have been renamed to pages"),
        ("    user: str\n    count: int\n    day: str", "day came new and without a default"),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_what_may_lose_data_is_refused_with_both_forms(module, text, why, form):
    data = saved(module, OLD.format(form))
    module(f"@dataclass{form}\nclass Visit:\n{text}")
    with pytest.raises(StateMigrationError) as caught:
        values_of(data[1])
    error = caught.value
    assert why in error.why and "program_of_test.Visit(user, count)" in error.why
    assert error.where == 'operator "op", state "s"' and "__migrate_state__" in error.do
    assert len(str(error).splitlines()) == 4 and not error.retryable


@pytest.mark.parametrize("form", FORMS)
def test_a_hook_makes_the_new_object_from_the_old_fields(module, form):
    data = saved(module, OLD.format(form))
    new = module(
        f"@dataclass{form}\nclass Visit:\n    user: str\n    pages: int\n"
        "    @classmethod\n    def __migrate_state__(cls, old):\n"
        "        return cls(old['user'].upper(), old['count'] * 10)"
    ).Visit
    assert restored(data) == (new("X", 10), new("Y", 20))


@pytest.mark.parametrize("form", ["", "(frozen=True)"])
def test_a_class_that_travelled_by_value_changes_in_the_same_way(script, form):
    data = saved(script, OLD.format(form))
    new = script(OLD.format(form) + "\n    tags: list = field(default_factory=list)\n    n: int = 7").Visit
    assert dataclasses.fields(new)[0].default is not dataclasses.MISSING, "it is a copy"
    assert restored(data) == (new("x", 1, [], 7), new("y", 2, [], 7))
    script(OLD.format(form) + "\n    day: float")
    with pytest.raises(StateMigrationError, match="day came new and without a default"):
        restored(data)
    script(OLD.format(form).replace("int", "str"))
    with pytest.raises(StateMigrationError, match="count was int and is now str"):
        restored(data)


@pytest.mark.parametrize("head", [*(f"@dataclass{form}\nclass Visit:" for form in FORMS), "class Visit(NamedTuple):"])
def test_a_field_of_another_type_is_refused_or_migrated(module, head):
    data = saved(module, head + "\n    user: str\n    count: int")
    text = head + "\n    user: str\n    count: list[str]"
    module(text + "\n    n: int = 7")
    for part in data:
        with pytest.raises(StateMigrationError) as caught:
            values_of(part)
        error = caught.value
        assert error.why == (
            "it was saved as program_of_test.Visit(user, count), and fields have other types: "
            "count was int and is now list[str]"
        )
        assert error.where == 'operator "op", state "s"' and "__migrate_state__" in error.do
    hook = (
        "    @classmethod\n    def __migrate_state__(cls, old):\n"
        "        return cls(old['user'], [str(old['count'])])"
    )
    new = module(f"{text}\n{hook}").Visit
    assert restored(data) == (new("x", ["1"]), new("y", ["2"]))


def test_fields_that_are_declared_otherwise_and_mean_the_same_are_no_change(module):
    data = saved(module)
    imports = "from __future__ import annotations\nfrom typing import Optional\n"
    made = module(imports + OLD.format("").replace("int", "Optional[int]"))
    assert restored(data) == (made.Visit("x", 1), made.Visit("y", 2))


def test_a_file_whose_layouts_have_no_types_is_read(module):
    """As version 2 has written it."""
    data = saved(module)[1]
    footer = json.loads(footer_of(data))
    assert footer["layouts"][0].pop() == ["str", "int"]
    text = json.dumps(footer).encode()
    body = data[:4] + struct.pack("<H", 2) + data[6 : len(data) - 16 - len(footer_of(data))]
    new = module(OLD.format("").replace("int", "float")).Visit
    found = values_of(body + text + struct.pack("<QI4s", len(text), crc32(text), b"SKLF"))
    assert found == {"a": new("x", 1)}


def test_a_hook_is_not_asked_when_nothing_has_changed(module):
    text = OLD.format("") + "\n    @classmethod\n    def __migrate_state__(cls, old):\n        raise AssertionError"
    assert restored(saved(module, text))[0].count == 1


@pytest.mark.parametrize("body, why", [("return 1", "returned a int"), ("return old['nothing']", "raised KeyError")])
def test_a_hook_that_fails_is_named(module, body, why):
    data = saved(module)
    hook = f"    @classmethod\n    def __migrate_state__(cls, old):\n        {body}"
    module("@dataclass\nclass Visit:\n    pages: int\n" + hook)
    for part in data:
        with pytest.raises(StateMigrationError, match=f"__migrate_state__ {why}"):
            values_of(part)


def test_keys_of_a_map_that_become_equal_are_refused_and_none_takes_the_place_of_the_other(module):
    old = module("@dataclass(frozen=True)\nclass Visit:\n    user: str\n    count: int").Visit
    apart, clash = {old("x", 1): "a", old("y", 1): "b"}, {old("x", 1): "a", old("x", 2): "b"}
    data = [snapshot(["k", "l"], [part, {old("z", 1): "c"}]) for part in (apart, clash)]
    new = module("@dataclass(frozen=True)\nclass Visit:\n    user: str").Visit
    assert values_of(data[0])["k"] == {new("x"): "a", new("y"): "b"}
    with pytest.raises(StateMigrationError, match="keys of a map are equal now that were different"):
        values_of(data[1])


def test_a_class_that_is_gone_is_refused_and_found_by_an_alias(module):
    data = saved(module)
    made = module("")
    new = module("@dataclass\nclass Renamed:\n    user: str\n    count: int").Renamed
    del made.Visit
    with pytest.raises(StateMigrationError, match="program_of_test.Visit is gone") as caught:
        values_of(data[0])
    assert "Visit = NewName" in caught.value.do
    made.Visit = new
    assert restored(data) == (new("x", 1), new("y", 2))


def test_a_plain_class_that_is_gone_is_refused_too(module):
    data = snapshot(["k"], [module("class Plain:\n    pass").Plain()])
    del module("").Plain
    with pytest.raises(StateMigrationError, match="program_of_test.Plain is gone"):
        values_of(data)


def test_a_dataclass_that_has_become_something_else_is_refused(module):
    data = saved(module)
    module("class Visit(NamedTuple):\n    user: str\n    count: int")
    with pytest.raises(StateMigrationError, match="saved as a dataclass .* is now a namedtuple"):
        values_of(data[0])
    module("Visit = 3")
    with pytest.raises(StateMigrationError, match="is now no class, but 3"):
        values_of(data[0])
    module("class Visit:\n    pass")
    with pytest.raises(StateMigrationError, match="is now neither a dataclass nor a NamedTuple"):
        values_of(data[0])


@pytest.mark.parametrize("form", FORMS)
def test_a_dataclass_that_pickles_in_a_way_of_its_own_now_is_refused_with_what_makes_it_so(module, form):
    data = saved(module, OLD.format(form))
    module(OLD.format(form) + "\n    def __reduce__(self):\n        return Visit, (self.user, self.count)")
    for part in data:
        with pytest.raises(StateMigrationError) as caught:
            values_of(part)
        assert "Visit(user, count), and program_of_test.Visit pickles now in a way of its own (__red" in caught.value.why
    module("@dataclass\nclass Visit(dict):\n    user: str\n    count: int")
    with pytest.raises(StateMigrationError, match="a base written in C"):
        values_of(data[0])


def test_a_dataclass_that_has_lost_its_own_pickling_takes_attributes_and_nothing_else(module):
    own = "\n    def __getstate__(self):\n        return {}\n    def __setstate__(self, state):\n        pass"
    same, other = (
        snapshot(["k"], [[module(OLD.format("") + own.format(state)).Visit("x", 1)]])
        for state in ("self.__dict__", "[self.user, self.count]")
    )
    new = module(OLD.format("")).Visit
    assert values_of(same) == {"k": [new("x", 1)]}
    with pytest.raises(StateMigrationError, match="Visit cannot take what it was saved with") as caught:
        values_of(other)
    assert "setting the attributes of program_of_test.Visit with ['x', 1] raised" in caught.value.why


TREE = """
@dataclass
class Node:
    name: str
    parent: Any = None
    children: list = field(default_factory=list)
def make(name):
    root = Node(name)
    root.children.append(Node(name + "-child", root))
    return root
"""


def test_a_value_that_its_parts_lead_back_to_is_one_object(module):
    make = module(TREE).make
    nested, itself = {"all": []}, [1]
    nested["all"].append(nested)
    itself.append(itself)
    tables = [make("a"), make("b")], [[make("a")], [make("b")]], [{"k": make("a")}, {"k": make("b")}]
    for values in tables:
        for name, tree in values_of(snapshot(list("ab"), values)).items():
            tree = tree["k"] if type(tree) is dict else tree[0] if type(tree) is list else tree
            assert tree.children[0].parent is tree and tree.name == name
    found = values_of(snapshot(["k"], [nested]))["k"]
    assert found["all"][0] is found
    found = values_of(snapshot(["k"], [itself]))["k"]
    assert found[1] is found and found[0] == 1


_ENUM = "import enum\nclass Kind(enum.Enum):\n"


@pytest.mark.parametrize("new", ["    A = 1\n    NEW = 2\n    B = 3", "    A = 1\n    C = 2\n    B = C"])
def test_a_member_of_an_enum_is_found_by_its_name_or_by_that_of_its_alias(module, new):
    value = module(_ENUM + "    A = 1\n    B = 2").Kind.B
    data = [snapshot(["k"], [part]) for part in ([value], value, {value: (value, 1)})]
    kind = module(_ENUM + new).Kind
    found = kind.__members__["B"]
    assert [values_of(part)["k"] for part in data] == [[found], found, {found: (found, 1)}]


@pytest.mark.parametrize(
    "more",
    [
        "    @property\n    def name(self):\n        return self._name_.title()",
        "    @property\n    def value(self):\n        return str(self._value_)",
    ],
)
def test_members_of_an_enum_that_shows_them_otherwise_are_found_by_their_own_names(module, more):
    kind = module(_ENUM + "    A = 1\n    B = 2\n" + more).Kind
    assert values_of(snapshot([kind.A, "k"], [kind.B, [kind.A]])) == {kind.A: kind.B, "k": [kind.A]}


def test_an_enum_without_the_member_or_that_is_none_any_more_is_refused(module):
    data = snapshot(["k"], [module(_ENUM + "    A = 1\n    B = 2").Kind.B])
    for new, why in (("    A = 1", "has now (A)"), ("    pass\nKind = 3", "is none any more")):
        module(_ENUM + new)
        with pytest.raises(StateMigrationError, match="program_of_test.Kind has no member B any more") as caught:
            values_of(data)
        assert caught.value.why == f"it was saved as an Enum program_of_test.Kind(A, B), and {why}"


_RAISING = {
    "an enum of numbers": (
        "import enum\nclass Kind(enum.IntEnum):\n    A = 1\n    B = 2\ndef make(): return Kind.B",
        "import enum\nclass Kind(enum.IntEnum):\n    A = 1",
        "program_of_test.Kind has no member 2 any more",
        "program_of_test.Kind(2) raised when a value was unpickled: ValueError: 2 is not a valid Kind",
    ),
    "__setstate__": (
        "class Own:\n    def __init__(self): self.a = 1\ndef make(): return Own()",
        "class Own:\n    def __setstate__(self, state): state['b']",
        "program_of_test.Own cannot take what it was saved with",
        "__setstate__ of program_of_test.Own with {'a': 1} raised when a value was unpickled: KeyError: 'b'",
    ),
    "__new__": (
        "class Own:\n    def __reduce__(self): return Own, (1, 'x')\ndef make(): return Own()",
        "class Own:\n    def __new__(cls, *given): return given[2]",
        "program_of_test.Own cannot be made",
        "program_of_test.Own(1, 'x') raised when a value was unpickled: IndexError: tuple index out of range",
    ),
    "__hash__": (
        "@dataclass(frozen=True)\nclass Own:\n    a: int\ndef make(): return {(Own(1), 2): 3}, {Own(2)}",
        "@dataclass\nclass Own:\n    a: int",
        "program_of_test.Own has no hash any more",
        "__hash__ of program_of_test.Own raised when a value was unpickled: TypeError: unhashable type: 'Own'",
    ),
    "__hash__ of a dict's keys": (
        "@dataclass(frozen=True)\nclass Own:\n    a: int\ndef make(): return {Own(1): 3}",
        "@dataclass(frozen=True)\nclass Own:\n    a: int\n    def __hash__(self): raise ValueError('nohash')",
        "its values cannot be made: ValueError: nohash",
        "the class of a key raised when a dict was made of its entries",
    ),
    "a dict of one's own": (
        "class Own(dict): pass\ndef make(): return Own(a=1)",
        "class Own(dict):\n    def __setitem__(self, key, value): raise ValueError(key)",
        "program_of_test.Own cannot take what it was saved with",
        "filling a program_of_test.Own raised when a value was unpickled: ValueError: a",
    ),
    "a default": (
        "@dataclass\nclass Own:\n    a: int\ndef make(): return Own(1)",
        "@dataclass\nclass Own:\n    a: int\n    b: int = field(default_factory=lambda: {}['b'])",
        "program_of_test.Own has changed",
        "it was saved as program_of_test.Own(a), and the default of the new field b raised KeyError: 'b'",
    ),
}


@pytest.mark.parametrize("old, new, what, why", _RAISING.values(), ids=_RAISING)
def test_a_class_that_raises_is_no_damage_and_is_named_with_the_value(module, old, new, what, why):
    data = snapshot(["k"], [[module(old).make()]]), snapshot(["k"], [module(old).make()])
    module(new)
    for part in data:
        with pytest.raises(StateMigrationError) as caught:
            values_of(part)
        assert what in caught.value.what and caught.value.why == why
        assert caught.value.where == 'operator "op", state "s"'


def test_writing_imports_nothing_which_every_forked_child_would_do_anew(run_python):
    ended = run_python(
        "-c",
        "import io, sys\n"
        "import flinkish.shell.snapshot_executor\n"
        "from flinkish.messages.checkpoints import KeyGroupRange\n"
        "from flinkish.state.keyed_snapshot import StateEntries, StateKind, StateMeta, write_keyed_snapshot\n"
        "keys = [f'user-{i}' for i in range(3_000)]\n"
        "values = [(i, i / 8, key, [i], {key: i}) for i, key in enumerate(keys)]\n"
        "before = set(sys.modules)\n"
        "entries = StateEntries(StateMeta('s', StateKind.VALUE), keys, values)\n"
        "write_keyed_snapshot(io.BytesIO(), [entries], KeyGroupRange(0, 127), 128)\n"
        "print(sorted(set(sys.modules) - before))\n",
    )
    assert (ended.returncode, ended.stdout) == (0, "[]\n"), ended.stderr
