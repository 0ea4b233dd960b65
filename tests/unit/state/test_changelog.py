"""Heap state with a changelog: what tables note, which files a checkpoint has, bases, restores, what is kept and what
not.  Any order of all that is in tests/property."""

from dataclasses import replace

import pytest

from flinkish.common.time import Time
from flinkish.common.typeinfo import Types
from flinkish.common.types import Row
from flinkish.datastream.state import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from flinkish.errors import CheckpointStorageError
from flinkish.messages.checkpoints import FileHandle, InlineBytes, KeyedStateHandle
from flinkish.state import changelog
from flinkish.state.bases import RETRY_MS
from flinkish.state.changelog import ChangelogTable, ChangelogWindowTable
from flinkish.state.key_groups import key_group
from tests.changelog_states import SharedFolder, changelog_backend, from_log, take, written
from tests.rocksdb_states import (
    HALVES,
    MAX_PARALLELISM,
    StepMaterialiser,
    canonical,
    contents,
    from_canonical,
    heap,
    rocksdb_backend,
    tiny_caches,
)

KEYS = range(60)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(changelog, "CHANGES_BYTES_MIN", 0)


@pytest.fixture
def shared():
    return SharedFolder()


def put(backend, keys=KEYS, value="old"):
    state = backend.state(ValueStateDescriptor("v"))
    for key in keys:
        backend.current_key = key
        state.update((value, key))


def clear(backend, keys):
    state = backend.state(ValueStateDescriptor("v"))
    for key in keys:
        backend.current_key = key
        state.clear()


def expected(changed=(), gone=(), keys=KEYS):
    return {"v": {key: ("new" if key in changed else "old", key) for key in keys if key not in gone}}


def names(handle):
    return [int(name) for name in (*handle.shared, *handle.private)]


def with_base(shared, **options):
    backend = changelog_backend(shared, **options)
    put(backend)
    take(backend, shared, 1)
    return backend


# ---- tables -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, noted",
    [
        (lambda table: table.__setitem__("a", 2), {"a"}),
        (lambda table: table.pop("a"), {"a"}),
        (lambda table: table.pop("x", None), set()),
        (lambda table: table.__delitem__("b"), {"b"}),
        (lambda table: table.popitem(), {"b"}),
        (lambda table: table.setdefault("a", 3), set()),
        (lambda table: table.setdefault("x", 3), {"x"}),
        (lambda table: table.update({"a": 1, "x": 2}), {"a", "x"}),
        (lambda table: table.__ior__({"x": 2}), {"x"}),
        (lambda table: table.clear(), {"a", "b"}),
        (lambda table: (table.get("a"), table["b"], "a" in table, list(table.items())), set()),
    ],
)
def test_a_table_does_what_a_dict_does_and_notes_the_keys(change, noted):
    plain, table = {"a": 1, "b": 1}, ChangelogTable()
    table.update(plain)
    table.take_changes()
    change(plain)
    change(table)
    assert table == plain
    assert set(table.take_changes().keys.get(None, ())) == noted and not table.take_changes()


def test_a_table_of_windows_notes_keys_by_window_and_windows_that_are_dropped():
    table = ChangelogWindowTable()
    table.open(0)["a"] = 1
    table.open(10)["b"] = 2
    changes = table.take_changes()
    assert changes.keys == {0: {"a": None}, 10: {"b": None}} and not changes.dropped
    table.pop(0)
    table.open(0)["c"] = 3
    table[10] = {"d": 4}
    table.pop(99, None)
    changes = table.take_changes()
    assert changes.keys == {0: {"c": None}, 10: {"d": None}} and set(changes.dropped) == {0, 10}
    assert not table.take_changes() and table == {0: {"c": 3}, 10: {"d": 4}}


# ---- checkpoints --------------------------------------------------------------------------------


def test_the_first_checkpoint_has_all_entries_and_later_ones_what_has_changed(shared):
    backend = with_base(shared)
    put(backend, [3, 100], "new")
    clear(backend, [7])
    second = backend.add_to_log(2)
    assert second.num_entries == 3
    data = written(second)
    second.stored(shared.store(data))
    handle = take(backend, shared, 3)
    assert names(handle) == [1, 2, 3]
    assert all(len(file) < len(shared.files["/shared/1"]) for uri, file in shared.files.items() if uri != "/shared/1")
    assert contents(from_log(handle, shared, heap())) == expected([3, 100], [7], [*KEYS, 100])


def test_what_fits_into_the_message_is_told_again_by_the_next_checkpoint(shared):
    backend = with_base(shared)
    for checkpoint_id, key in ((2, 3), (3, 4)):
        put(backend, [key], "new")
        handle = take(backend, shared, checkpoint_id, inline=True)
        assert names(handle) == [1, checkpoint_id] and len(handle.private) == 1
    assert contents(from_log(handle, shared, heap())) == expected([3, 4])


def test_state_that_fits_into_the_message_is_a_canonical_file_as_without_a_changelog(shared):
    backend = changelog_backend(shared)
    put(backend, [1])
    handle = take(backend, shared, 1, inline=True)
    assert isinstance(handle, KeyedStateHandle)
    assert contents(from_canonical(handle.content.data, heap())) == expected(keys=[1])


def test_a_checkpoint_that_is_not_stored_yet_is_told_again_by_the_next(shared):
    backend = with_base(shared)
    put(backend, [3], "new")
    waits = backend.add_to_log(2)
    data = written(waits)
    put(backend, [4], "new")
    handle = take(backend, shared, 3)
    assert names(handle) == [1, 3] and contents(from_log(handle, shared, heap())) == expected([3, 4])
    waits.stored(shared.store(data))
    assert names(take(backend, shared, 4)) == [1, 3, 4], "the JobManager may delete what the third does not refer to"


def test_when_half_of_the_entries_have_changed_all_are_stored(shared):
    backend = with_base(shared)
    put(backend, range(40), "new")
    handle = take(backend, shared, 2)
    assert names(handle) == [2] and contents(from_log(handle, shared, heap())) == expected(range(40))


def test_a_key_that_changes_ten_times_is_stored_once(shared):
    backend = with_base(shared)
    for _ in range(10):
        put(backend, [3], "new")
    assert backend.add_to_log(2).num_entries == 1


def test_a_change_in_place_is_kept_only_when_it_is_told(shared):
    backend = changelog_backend(shared)
    state = backend.state(ValueStateDescriptor("v"))
    for key in KEYS:
        backend.current_key = key
        state.update([key])
    take(backend, shared, 1)
    for key, told in ((1, True), (2, False)):
        backend.current_key = key
        state.value().append("in place")
        if told:
            state.update(state.value())
    found = contents(from_log(take(backend, shared, 2), shared, heap()))["v"]
    assert found[1] == [1, "in place"] and found[2] == [2]


def test_lists_and_maps_tell_what_their_methods_change(shared):
    backend = changelog_backend(shared)
    words, counts = backend.state(ListStateDescriptor("l")), backend.state(MapStateDescriptor("m"))
    for key in KEYS:
        backend.current_key = key
        words.add("first")
        counts.put("first", 1)
        counts.put("second", 2)
    take(backend, shared, 1)
    backend.current_key = 3
    words.add("second")
    counts.remove("first")
    backend.current_key = 4
    words.add_all(["third"])
    counts.put_all({"third": 3})
    backend.current_key = 5
    words.clear()
    counts.clear()
    found = contents(from_log(take(backend, shared, 2), shared, heap()))
    assert found == contents(backend)
    assert found["l"][3] == ["first", "second"] and found["m"][4] == {"first": 1, "second": 2, "third": 3}


# ---- bases --------------------------------------------------------------------------------------


def test_a_base_takes_the_place_of_what_is_older_and_what_changed_meanwhile_lies_behind_it(shared, monkeypatch):
    monkeypatch.setattr(changelog, "CHANGES_BYTES_MIN", 1 << 20)
    monkeypatch.setattr(changelog, "FILES_MAX", 3)
    backend = with_base(shared)
    for checkpoint_id in (2, 3, 4):
        backend.between_batches()
        assert not shared.waiting
        put(backend, range(10 * checkpoint_id, 10 * checkpoint_id + 10), "new")
        take(backend, shared, checkpoint_id)
    backend.between_batches()
    put(backend, [50], "new")
    during = take(backend, shared, 5)
    assert len(names(during)) == 5, "it refers to what is stored"
    shared.step()
    handle = take(backend, shared, 6)
    assert len(names(handle)) == 3, "base, what the fifth had, its own"
    for taken in (during, handle):
        assert contents(from_log(taken, shared, heap())) == expected(range(20, 51))


def test_a_base_is_made_when_the_changes_are_as_large(shared):
    backend, checkpoint_id = with_base(shared), 1
    while not shared.waiting:
        checkpoint_id += 1
        put(backend, range(10), "new")
        take(backend, shared, checkpoint_id)
        backend.between_batches()
    base, *changes = (file.content.size for file in backend.log.files)
    assert sum(changes[:-1]) <= base < sum(changes)


def test_the_bytes_of_a_base_are_counted_with_the_next_checkpoint(shared):
    backend = with_base(shared, **{"state.changelog.periodic-materialize.interval": "0 ms"})
    put(backend, [1], "new")
    take(backend, shared, 2)
    backend.between_batches()
    shared.step()
    assert backend.add_to_log(3).uploaded_bytes == backend.log.files[0].content.size
    assert backend.add_to_log(4).uploaded_bytes == 0


def test_a_base_that_could_not_be_stored_costs_nothing(shared, caplog):
    backend = with_base(shared, **{"state.changelog.periodic-materialize.interval": "0 ms"})
    put(backend, [1], "new")
    take(backend, shared, 2)
    backend.between_batches()
    shared.fails = True
    shared.step()
    assert "could not store a base of keyed state operator=op failure=1" in caplog.text
    put(backend, [2], "new")
    handle = take(backend, shared, 3)
    assert names(handle) == [1, 2, 4] and contents(from_log(handle, shared, heap())) == expected([1, 2])
    backend.between_batches()
    assert not shared.waiting, "not at once"


def test_a_base_that_fails_behind_the_end_of_its_task_is_not_told(shared, tmp_path, caplog):
    materialiser = StepMaterialiser(tmp_path)
    with tiny_caches():
        rocksdb = rocksdb_backend(materialiser)
        put(rocksdb)
        rocksdb.between_batches()
        put(rocksdb, KEYS[:9], "new")
        rocksdb.between_batches()
    changelog = with_base(shared, **{"state.changelog.periodic-materialize.interval": "0 ms"})
    put(changelog, [1], "new")
    take(changelog, shared, 2)
    changelog.between_batches()
    assert shared.waiting and materialiser.waiting
    rocksdb.close()  # its folder is gone
    changelog.close()
    shared.fails = True
    shared.step()
    materialiser.run_all()
    assert "could not store" not in caplog.text


@pytest.mark.parametrize("backend_class", ["changelog", "rocksdb"])
def test_bases_that_fail_again_and_again_fail_the_checkpoint_and_the_next_batch(shared, tmp_path, backend_class):
    settings = {"state.changelog.enabled": "true", "state.changelog.periodic-materialize.interval": "0 ms"}
    now = [0]
    if backend_class == "changelog":
        backend = changelog_backend(shared, now_ms=lambda: now[0], **settings)
        put(backend)
        take(backend, shared, 1)
        shared.fails, step, snapshot = True, shared.step, lambda number: take(backend, shared, number)
    else:
        (tmp_path / "job").write_text("no folder can be made here")
        materialiser = StepMaterialiser(tmp_path)
        backend = rocksdb_backend(materialiser, now_ms=lambda: now[0], **settings)
        step, snapshot = materialiser.run_all, backend.changes
    for number in range(4):
        snapshot(2 + number)
        with tiny_caches():
            put(backend, KEYS[:9], f"new {number}")
            backend.between_batches()
        step()
        now[0] += RETRY_MS
    for ask in (lambda: snapshot(9), backend.between_batches):
        with pytest.raises(CheckpointStorageError, match="4 failed in a row, state.changelog.max-failures-allowed is 3"):
            ask()
    backend.close()


@pytest.mark.parametrize("target", ["changelog", "hashmap", "rocksdb"])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("change", ["field", "ttl"])
def test_subtasks_whose_logs_have_a_state_in_different_forms_are_brought_into_one(shared, change, first, target):
    """One has asked for it since the program changed, so the base and the changes of its log have the new form; the other
    has only restored it."""
    old = ValueStateDescriptor("v", Types.ROW_NAMED(["a"], [Types.LONG()]))
    new = ValueStateDescriptor("v", Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()]))
    if change == "ttl":
        new = ValueStateDescriptor("v", Types.ROW_NAMED(["a"], [Types.LONG()]))
        new.enable_time_to_live(StateTtlConfig.new_builder(Time.minutes(1)).build())
    handles = []
    for index, half in enumerate(HALVES):
        keys = [key for key in KEYS if key_group(key, MAX_PARALLELISM) in half]
        backend = changelog_backend(shared, key_groups=half)
        state = backend.state(old)
        for backend.current_key in keys:
            state.update(Row(a=backend.current_key))
        handle = take(backend, shared, 1)
        backend = from_log(handle, shared, changelog_backend(shared, key_groups=half))
        if index == first:
            state = backend.state(new)
            take(backend, shared, 2)
            backend.current_key, gone = keys[:2]
            state.update(Row(a=-1) if change == "ttl" else Row(a=-1, b="x"))
            backend.current_key = gone
            state.clear()
        handles.append(take(backend, shared, 3))
        assert len(names(handles[-1])) == 2
    makes = {"changelog": lambda: changelog_backend(shared), "hashmap": heap, "rocksdb": rocksdb_backend}
    restored = makes[target]()
    for handle in handles:
        from_log(handle, shared, restored)
    state = restored.state(new)
    values = {}
    for restored.current_key in KEYS:
        values[restored.current_key] = state.value()
    expected = {key: Row(a=key) if change == "ttl" else Row(a=key, b=None) for key in KEYS}
    own = [key for key in KEYS if key_group(key, MAX_PARALLELISM) in HALVES[first]]
    expected[own[0]], expected[own[1]] = Row(a=-1) if change == "ttl" else Row(a=-1, b="x"), None
    assert values == expected
    restored.close()


def test_a_base_that_only_a_checkpoint_which_was_given_up_referred_to_is_deleted(shared):
    backend = with_base(shared, **{"state.changelog.periodic-materialize.interval": "0 ms"})
    backend.checkpoint_completed(1)
    bases = []
    for checkpoint_id in (2, 3, 4):
        put(backend, [checkpoint_id], "new")
        take(backend, shared, checkpoint_id, inline=True)
        backend.between_batches()
        shared.step()
        bases.append(backend.log.files[0].content.uri)
    # The third refers to the first of the bases, the fourth to the second.
    assert set(bases) <= set(shared.files)
    backend.checkpoint_aborted(3)
    assert bases[0] not in shared.files and set(bases[1:]) <= set(shared.files)
    backend.checkpoint_completed(4)
    backend.close()
    assert bases[1] in shared.files, "the JobManager's"
    assert bases[2] not in shared.files, "no checkpoint has referred to it"
    assert "/shared/1" in shared.files


# ---- restoring ----------------------------------------------------------------------------------


def logged(shared):
    backend = with_base(shared)
    put(backend, [3, 100], "new")
    clear(backend, [7])
    return take(backend, shared, 2)


def test_a_restored_subtask_goes_on_with_the_files_that_it_came_from(shared):
    again = from_log(logged(shared), shared, changelog_backend(shared))
    put(again, [5], "new")
    handle = take(again, shared, 3)
    assert [file.uri for _, file in sorted(handle.shared.items())] == ["/shared/1", "/shared/2", "/shared/3"]
    assert contents(from_log(handle, shared, heap())) == expected([3, 5, 100], [7], [*KEYS, 100])


def test_what_was_in_the_message_is_told_again_after_a_restore(shared):
    backend = with_base(shared)
    put(backend, [3], "new")
    again = from_log(take(backend, shared, 2, inline=True), shared, changelog_backend(shared))
    handle = take(again, shared, 3)
    assert contents(from_log(handle, shared, heap())) == expected([3])


def test_files_of_another_job_are_read_and_not_referred_to(shared):
    other = SharedFolder()
    other.shared_location = "/other"
    again = from_log(logged(shared), shared, changelog_backend(other))
    handle = take(again, other, 1)
    assert all(file.uri.startswith("/other/") for file in handle.shared.values())
    assert contents(from_log(handle, other, heap())) == expected([3, 100], [7], [*KEYS, 100])


def test_each_half_of_the_key_groups_gets_its_own_entries_and_both_make_the_whole(shared):
    handle, found, halves = logged(shared), {}, []
    for half in HALVES:
        part = from_log(replace(handle, key_groups=half), shared, changelog_backend(shared, half))
        halves.append(take(part, shared, 3))
        found.update(contents(part)["v"])
    assert {"v": found} == expected([3, 100], [7], [*KEYS, 100])
    both = changelog_backend(shared)
    for half in halves:
        from_log(half, shared, both)
    assert {"v": found} == contents(both)
    assert names(take(both, shared, 4)) == [1], "two logs are not one: all entries are stored"


def test_rocksdb_reads_it_too(shared):
    with tiny_caches():
        backend = from_log(logged(shared), shared, rocksdb_backend())
        assert contents(backend) == expected([3, 100], [7], [*KEYS, 100])
        backend.close()


def test_windows_that_were_dropped_stay_so_on_each_backend(shared):
    def windows(backend):
        return backend.tables["windows"] if "windows" in backend.tables else backend.window_table("windows")

    backend = changelog_backend(shared)
    table = windows(backend)
    for start in (0, 10, 20):
        contents_of = table.open(start)
        for key in KEYS:
            contents_of[key] = [start]
    take(backend, shared, 1)
    table.pop(0)
    table.pop(10)
    table.open(10)["late"] = [11]
    del table[20][5]
    handle = take(backend, shared, 2)
    assert names(handle) == [1, 2]
    expected = contents(backend)
    with tiny_caches():
        for new in (heap(), changelog_backend(shared), rocksdb_backend()):
            windows(new)
            assert contents(from_log(handle, shared, new)) == expected
            new.close()
    assert contents(from_log(handle, shared, heap())) == expected, "also where the operator keeps no windows any more"


@pytest.mark.parametrize("order", [1, -1])
def test_a_window_that_one_subtask_has_dropped_and_another_has_not_is_the_others(shared, order):
    handles, kept = [], {}
    for half, drops in zip(HALVES, (True, False)):
        backend = changelog_backend(shared, half)
        table = backend.tables["windows"]
        for start in (0, 10):
            contents_of = table.open(start)
            for key in KEYS:
                if key_group(key, MAX_PARALLELISM) in half:
                    contents_of[key] = [start]
        take(backend, shared, 1)
        if drops:
            table.pop(0)
        else:
            table[10].popitem()
        handles.append(take(backend, shared, 2))
        assert len(names(handles[-1])) == 2
        kept.update(contents(backend)["windows"])
    with tiny_caches():
        for both in (heap(), changelog_backend(shared), rocksdb_backend()):
            if "windows" not in both.tables:
                both.window_table("windows")
            for handle in handles[::order]:
                from_log(handle, shared, both)
            assert contents(both)["windows"] == kept
            both.close()
    plain = heap()
    for handle in handles[::order]:
        from_log(handle, shared, plain)
    assert contents(plain)["windows"] == kept


def test_a_time_to_live_is_kept_and_one_that_is_new_changes_all_entries(shared):
    now = [5]
    backend = changelog_backend(shared, now_ms=lambda: now[0])
    put(backend)
    handle = take(backend, shared, 1)
    descriptor = ValueStateDescriptor("v")
    config = StateTtlConfig.new_builder(Time.minutes(1)).cleanup_incrementally(10, True).build()
    descriptor.enable_time_to_live(config)
    again = from_log(handle, shared, changelog_backend(shared, now_ms=lambda: now[0]))
    state = again.state(descriptor)
    first = take(again, shared, 2)
    now[0] = 30_000
    again.current_key = 7
    state.update("young")
    second = take(again, shared, 3)
    assert len(names(second)) == len(names(first)) + 1
    now[0] = 70_000
    again.current_key = 7
    now[0] = 70_001  # from here on what was due then goes, at every record
    for _ in KEYS:
        again.current_key = 7
    third = take(again, shared, 4)
    for taken in (first, second, third):
        restored = from_log(taken, shared, changelog_backend(shared, now_ms=lambda: now[0]))
        assert restored.state(descriptor) is not None
        assert len(contents(restored)["v"]) == (1 if taken is third else len(KEYS))
        assert contents(restored)["v"][7] == (("old", 7), 5) if taken is first else ("young", 30_000)


def test_a_full_snapshot_of_it_is_canonical(shared):
    backend = from_log(logged(shared), shared, changelog_backend(shared))
    assert contents(from_canonical(canonical(backend), heap())) == expected([3, 100], [7], [*KEYS, 100])


def test_a_file_of_a_checkpoint_that_nobody_wants_any_more_is_used_or_deleted(shared):
    backend = with_base(shared)
    put(backend, [3], "new")
    addition = backend.add_to_log(2)
    data = written(addition)
    backend.checkpoint_aborted(2)
    addition.stored(shared.store(data))
    handle = take(backend, shared, 3)
    assert names(handle) == [1, 2, 3] and isinstance(handle.shared["0000000002"], FileHandle)
    put(backend, [4], "new")
    older = backend.add_to_log(4)
    data = written(older)
    take(backend, shared, 5)
    backend.checkpoint_aborted(4)
    older.stored(shared.store(data))
    assert f"/shared/{shared._number}" not in shared.files


def test_nothing_changes_by_a_content_in_the_message(shared):
    backend = with_base(shared)
    files = list(backend.log.files)
    put(backend, [3], "new")
    backend.add_to_log(2).stored(InlineBytes(b""))
    assert backend.log.files == files and backend.log.num_changes == 1
