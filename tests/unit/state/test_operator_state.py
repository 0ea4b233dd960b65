"""Operator state goes on with changed classes and types as keyed state does, for each of its three kinds."""

import pickle
from datetime import date

import pytest

from flinkish import ListStateDescriptor, MapStateDescriptor, Row, Types
from flinkish.errors import CorruptSnapshotError, StateMigrationError, UserError
from flinkish.messages.checkpoints import DistributionMode, OperatorStateHandle
from flinkish.state.operator_entries import encode_entries
from flinkish.state.operator_state import OperatorStateBackend
from flinkish.state.redistribution import deal_out_operator_state

LIST, UNION, BROADCAST = DistributionMode.SPLIT, DistributionMode.UNION, DistributionMode.BROADCAST
KINDS = [LIST, UNION, BROADCAST]
OLD = "@dataclass{}\nclass Visit:\n    user: str\n    count: int"


def state_of(backend, kind, type_info=None, key_type=None, name="s"):
    if kind is BROADCAST:
        return backend.get_broadcast_state(MapStateDescriptor(name, key_type, type_info))
    get = backend.get_list_state if kind is LIST else backend.get_union_list_state
    return get(ListStateDescriptor(name, type_info))


def saved(kind, values, type_info=None, key_type=None):
    """A handle of a state with these values, in a broadcast state under 0, 1, ..."""
    backend = OperatorStateBackend("op")
    state = state_of(backend, kind, type_info, key_type)
    if kind is BROADCAST:
        state.put_all(dict(enumerate(values)))
    else:
        state.update(values)
    return backend.snapshot()


def restored(kind, *handles, type_info=None, key_type=None):
    """Its values."""
    backend = OperatorStateBackend("op")
    for handle in handles:
        backend.restore(handle)
    state = state_of(backend, kind, type_info, key_type)
    return list(state.values()) if kind is BROADCAST else state.get()


def entries(handle):
    return handle.states["s"][1]


@pytest.fixture(params=KINDS, ids=["list", "union", "broadcast"])
def kind(request):
    return request.param


# ---- changed classes ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["", "(frozen=True)", "(slots=True)"])
def test_an_added_field_gets_its_default_and_a_removed_one_is_dropped(module, kind, form):
    old = module(OLD.format(form)).Visit
    handle = saved(kind, [old("x", 1), [old("y", 2)], {"k": old("z", 3)}])
    added = "\n    tags: list = field(default_factory=list)\n    n: int = 7"
    new = module(OLD.format(form) + added).Visit
    one, two, three = restored(kind, handle)
    assert (one, two, three) == (new("x", 1, [], 7), [new("y", 2, [], 7)], {"k": new("z", 3, [], 7)})
    assert one.tags is not two[0].tags
    new = module(f"@dataclass{form}\nclass Visit:\n    count: int").Visit
    one, two, three = restored(kind, handle)
    assert (one, two, three) == (new(1), [new(2)], {"k": new(3)}) and not hasattr(one, "user")


def test_named_tuples_change_in_the_same_way(module, kind):
    handle = saved(kind, [module("class Visit(NamedTuple):\n    user: str\n    count: int").Visit("x", 1)])
    new = module("class Visit(NamedTuple):\n    count: int\n    user: str\n    n: int = 7").Visit
    (found,) = restored(kind, handle)
    assert found == new(1, "x", 7) and type(found) is new


@pytest.mark.parametrize(
    "text, why",
    [
        ("    user: str\n    pages: int = 0", "count may have been renamed to pages"),
        ("    user: str\n    count: int\n    day: str", "day came new and without a default"),
    ],
)
def test_what_may_lose_data_is_refused_with_both_forms(module, kind, text, why):
    handle = saved(kind, [module(OLD.format("")).Visit("x", 1)])
    module(f"@dataclass\nclass Visit:\n{text}")
    with pytest.raises(StateMigrationError) as caught:
        restored(kind, handle)
    error = caught.value
    assert why in error.why and "program_of_test.Visit(user, count)" in error.why
    assert error.where == 'operator "op", state "s"' and "__migrate_state__" in error.do
    assert len(str(error).splitlines()) == 4 and not error.retryable


def test_a_hook_makes_the_new_object_from_the_old_fields(module, kind):
    old = module(OLD.format("")).Visit
    handle = saved(kind, [old("x", 1), old("y", 2)])
    new = module(
        "@dataclass\nclass Visit:\n    user: str\n    pages: int\n"
        "    @classmethod\n    def __migrate_state__(cls, old):\n"
        "        return cls(old['user'].upper(), old['count'] * 10)"
    ).Visit
    assert restored(kind, handle) == [new("X", 10), new("Y", 20)]


def test_a_field_of_another_type_is_refused_or_migrated(module, kind):
    handle = saved(kind, [module(OLD.format("")).Visit("x", 1)])
    text = "@dataclass\nclass Visit:\n    user: str\n    count: str"
    module(text)
    with pytest.raises(StateMigrationError, match="count was int and is now str"):
        restored(kind, handle)
    hook = "\n    @classmethod\n    def __migrate_state__(cls, old):\n        return cls(old['user'], 'one')"
    new = module(text + hook).Visit
    assert restored(kind, handle) == [new("x", "one")]


def test_a_class_that_is_gone_is_refused_and_found_by_an_alias(module, kind):
    handle = saved(kind, [module(OLD.format("")).Visit("x", 1)])
    made = module("@dataclass\nclass Renamed:\n    user: str\n    count: int")
    del made.Visit
    with pytest.raises(StateMigrationError, match="program_of_test.Visit is gone") as caught:
        restored(kind, handle)
    assert "Visit = NewName" in caught.value.do
    made.Visit = made.Renamed
    assert restored(kind, handle) == [made.Renamed("x", 1)]


def test_keys_of_a_broadcast_state_change_too(module):
    backend = OperatorStateBackend("op")
    state_of(backend, BROADCAST).put(module(OLD.format("(frozen=True)")).Visit("x", 1), "a")
    handle = backend.snapshot()
    new = module(OLD.format("(frozen=True)") + "\n    n: int = 7").Visit
    again = OperatorStateBackend("op")
    again.restore(handle)
    assert dict(state_of(again, BROADCAST).items()) == {new("x", 1, 7): "a"}


def test_entries_of_several_versions_are_dealt_out_and_read_together(module):
    old = module(OLD.format("")).Visit
    first = saved(LIST, [old("x", 1), old("y", 2)])
    second = saved(LIST, [5, module(OLD.format("") + "\n    n: int = 7").Visit("z", 3, 4)])
    new = module(OLD.format("") + "\n    n: int = 7\n    m: int = 8").Visit
    dealt = deal_out_operator_state({0: first, 1: second}, 2, 3)
    found = [value for handle in dealt for value in restored(LIST, handle)]
    assert found == [new("x", 1, 7, 8), new("y", 2, 7, 8), 5, new("z", 3, 4, 8)]


def test_a_refused_state_that_nobody_has_got_stays(module):
    handle = saved(LIST, [module(OLD.format("")).Visit("x", 1)])
    module("@dataclass\nclass Visit:\n    pages: int = 0")
    backend = OperatorStateBackend("op")
    backend.restore(handle)
    with pytest.raises(StateMigrationError):
        state_of(backend, LIST)
    assert backend.snapshot() == handle


def test_another_kind_is_refused_with_both(kind):
    other = UNION if kind is LIST else LIST
    with pytest.raises(StateMigrationError, match="its kind has changed") as caught:
        restored(other, saved(kind, [1]))
    assert (caught.value.fields["old"], caught.value.fields["new"]) == (kind.value, other.value)


# ---- declared types -----------------------------------------------------------------------------


def test_another_declared_type_is_refused_with_both(kind):
    handle = saved(kind, [1], Types.LONG(), Types.INT())
    assert restored(kind, handle, type_info=Types.LONG(), key_type=Types.INT()) == [1]
    assert restored(kind, handle) == [1]
    with pytest.raises(StateMigrationError) as caught:
        restored(kind, handle, type_info=Types.STRING(), key_type=Types.INT())
    error = caught.value
    assert "value was saved as long, the program declares string" in error.why
    assert error.where == 'operator "op", state "s"' and len(str(error).splitlines()) == 4
    assert (error.fields["old"], error.fields["new"]) == ("long", "string")


def test_another_key_type_of_a_broadcast_state_is_refused():
    handle = saved(BROADCAST, [1], Types.LONG(), Types.INT())
    with pytest.raises(StateMigrationError, match="key was saved as int, the program declares string"):
        restored(BROADCAST, handle, type_info=Types.LONG(), key_type=Types.STRING())


def test_a_type_that_is_declared_later_is_compared_with_a_value(kind):
    handle = saved(kind, [5])
    assert restored(kind, handle, type_info=Types.LONG()) == [5]
    with pytest.raises(StateMigrationError, match="saved without a type: expected"):
        restored(kind, handle, type_info=Types.STRING())


def test_named_rows_get_and_lose_fields(kind):
    row = Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()])
    handle = saved(kind, [Row(a=1, b="x")], row)
    more = Types.ROW_NAMED(["z", "a", "b"], [Types.LONG(), Types.LONG(), Types.STRING()])
    assert restored(kind, handle, type_info=more) == [Row(z=None, a=1, b="x")]
    assert restored(kind, handle, type_info=Types.ROW_NAMED(["b"], [Types.STRING()])) == [Row(b="x")]
    with pytest.raises(StateMigrationError, match="does not fit"):
        restored(kind, handle, type_info=Types.ROW_NAMED(["a", "c"], [Types.LONG(), Types.STRING()]))


# ---- the form -----------------------------------------------------------------------------------


def test_values_without_types_and_records_are_pickles_alone(kind):
    values = [("split", 5), b"state of a writer", date(2026, 1, 2), [{"a": None}]]
    handle = saved(kind, values)
    listed = list(enumerate(values)) if kind is BROADCAST else values
    assert [pickle.loads(entry) for entry in entries(handle)] == listed
    assert restored(kind, handle) == values


def test_entries_of_older_versions_are_read_and_a_class_that_is_gone_is_refused(module, kind):
    old = module(OLD.format("")).Visit
    values = [(0, old("x", 1)), (1, 5)] if kind is BROADCAST else [old("x", 1), 5]
    handle = OperatorStateHandle({"s": (kind, tuple(pickle.dumps(value, 5) for value in values))})
    assert restored(kind, handle) == [old("x", 1), 5]
    del module("").Visit
    with pytest.raises(StateMigrationError, match="program_of_test.Visit is gone"):
        restored(kind, handle)


def test_what_pickle_cannot_write_goes_along_and_records_in_it_still_change(module, kind):
    class Local:
        pass

    local = Local()
    local.visit, local.call = module(OLD.format("")).Visit("x", 1), lambda: 3
    handle = saved(kind, [local])
    new = module(OLD.format("") + "\n    n: int = 7").Visit
    (found,) = restored(kind, handle)
    assert (found.visit, found.call()) == (new("x", 1, 7), 3)


def test_a_record_whose_class_has_no_name_goes_along(module, kind):
    made = module(OLD.format(""))
    record = made.Visit("x", 1)
    made.Visit.__qualname__ = "function.<locals>.Visit"
    (found,) = restored(kind, saved(kind, [record]))
    assert (found.user, found.count) == ("x", 1)


def test_what_cannot_be_saved_at_all_is_named(kind):
    with pytest.raises(UserError, match='could not save state "s"'):
        saved(kind, [(number for number in range(3))])


def test_an_enum_member_that_is_gone_is_named(module, kind):
    handle = saved(kind, [[module("import enum\nclass Kind(enum.Enum):\n    A = 1").Kind.A]])
    module("import enum\nclass Kind(enum.Enum):\n    B = 2")
    with pytest.raises(StateMigrationError, match="program_of_test.Kind has no member A any more") as caught:
        restored(kind, handle)
    assert "Kind(A), and has now (B)" in caught.value.why and 'state "s"' in caught.value.where


def test_an_entry_that_is_damaged_is_no_fault_of_a_class(kind):
    (entry,) = entries(saved(kind, [["text"]]))
    damaged = OperatorStateHandle({"s": (kind, (entry[:-3],))})
    with pytest.raises(CorruptSnapshotError, match='could not read operator state "s"'):
        restored(kind, damaged)


def test_an_entry_of_a_newer_version_or_cut_off_is_refused(module):
    (entry,) = entries(saved(LIST, [module(OLD.format("")).Visit("x", 1)]))
    newer = OperatorStateHandle({"s": (LIST, (entry[:1] + b"\x63" + entry[2:],))})
    with pytest.raises(CorruptSnapshotError, match="version 99, this flinkish reads up to 3"):
        restored(LIST, newer)
    for length in range(1, len(entry)):
        with pytest.raises((CorruptSnapshotError, StateMigrationError)):
            restored(LIST, OperatorStateHandle({"s": (LIST, (entry[:length],))}))


def test_a_header_is_short():
    (entry,) = encode_entries([1], {}, "op", "s")
    (declared,) = entries(saved(LIST, [1], Types.LONG()))
    assert len(entry) == 5 and len(declared) - len(entry) < 50
