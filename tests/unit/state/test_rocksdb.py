"""The RocksDB backend's bases, changes and folders; what it keeps is compared with the heap in tests/property."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from flinkish.common.time import Time
from flinkish.datastream.state import ListStateDescriptor, StateTtlConfig, ValueStateDescriptor
from flinkish.datastream.window import TumblingEventTimeWindows
from flinkish.errors import CorruptSnapshotError, ResourceError, StateMigrationError, UserError
from flinkish.messages.checkpoints import InlineBytes
from flinkish.state import rocksdb, rocksdb_snapshots
from flinkish.state.bases import RETRY_MS
from flinkish.state.key_groups import key_group
from flinkish.state.rocksdb_snapshots import SST_END, Materialisation, content_address
from flinkish.testing import StreamTestHarness
from tests.rocksdb_states import (
    HALVES,
    MAX_PARALLELISM,
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

KEYS = range(60)


@pytest.fixture(autouse=True)
def caches():
    with tiny_caches(changes_bytes=200):
        yield


@pytest.fixture
def materialiser(tmp_path):
    return StepMaterialiser(tmp_path)


@pytest.fixture
def make():
    made = []

    def make_backend(*args, **kwargs):
        made.append(rocksdb_backend(*args, **kwargs))
        return made[-1]

    yield make_backend
    for backend in made:
        backend.close()


def put(backend, keys=KEYS, value="old"):
    state = backend.state(ValueStateDescriptor("v"))
    for key in keys:
        backend.current_key = key
        state.update((value, key))
    for table in backend.tables.values():
        table.trim()


def expected(value="old", keys=KEYS):
    return {"v": {key: (value, key) for key in keys}}


def with_base(backend, materialiser, **put_args):
    put(backend, **put_args)
    backend.between_batches()
    materialiser.run_all()
    return backend


def files(materialiser):
    return {path.name for path in Path(materialiser.shared_location).glob("*")}


def test_deletions_alone_are_written_when_there_are_too_many(make, materialiser, monkeypatch):
    """After a restore nothing is known of the size of entries, and there is none to learn it from."""
    backend = make(materialiser)
    put(backend)
    backend.tables["v"].write()
    backend.between_batches()
    materialiser.run_all()
    again = make(materialiser)
    again.restore_incremental(incremental(backend), opener(materialiser))
    state, measure = again.state(ValueStateDescriptor("v")), rocksdb.RocksDBKeyedStateBackend.measure

    def measure_some(backend, table, keys):
        assert keys, "nothing is learned, and nothing written, for ever"
        measure(backend, table, keys)

    monkeypatch.setattr(rocksdb.RocksDBKeyedStateBackend, "measure", measure_some)
    for again.current_key in KEYS:
        state.clear()
    assert contents(again) == {}


def test_entries_and_windows_are_counted_and_not_estimated():
    """Although some were written, changed and deleted since."""

    def build(stream):
        keyed = stream.key_by(lambda value: value % 7)
        return keyed.window(TumblingEventTimeWindows.of(Time.seconds(1))).reduce(lambda a, b: a + b).uid("sums")

    counts = []
    for backend in ("hashmap", "rocksdb"):
        with StreamTestHarness(build, backend) as harness:
            for value in (*range(100), *range(40)):
                harness.process_element(value, timestamp=50 * value)
            snapshot = harness.snapshot()
        with StreamTestHarness.restore(build, snapshot, 2, backend) as harness:
            harness.process_watermark(2_000)
            for value in range(70, 90):
                harness.process_element(value, timestamp=50 * value)
            counts.append((harness.num_event_time_timers(), harness.num_keyed_state_entries()))
    assert counts == [(21, 21)] * 2


# ---- bases --------------------------------------------------------------------------------------


def test_a_snapshot_refers_to_the_files_of_its_base_and_has_what_came_later(make, materialiser):
    backend = with_base(make(materialiser), materialiser)
    put(backend, [3, 100], "new")
    handle = incremental(backend)
    assert [name.partition(".")[2] for name in handle.shared if "MANIFEST" not in name] == ["sst"]
    assert sorted(handle.private) == ["CURRENT", "changes", "rocksdict-config.json"]
    again = make(materialiser)
    again.restore_incremental(handle, opener(materialiser))
    assert contents(again) == {"v": {**expected()["v"], 3: ("new", 3), 100: ("new", 100)}}


def test_files_that_are_stored_are_not_stored_again(make, materialiser):
    backend = with_base(make(materialiser), materialiser)
    first = incremental(backend)
    with_base(backend, materialiser, keys=range(100, 160))
    second = incremental(backend)
    assert set(second.shared) & set(first.shared) >= {name for name in first.shared if name.endswith(".sst")}
    assert backend.changes(2).uploaded_bytes == 0, "counted once"


def test_a_restored_database_goes_on_with_the_files_that_it_came_from(make, materialiser):
    handle = incremental(with_base(make(materialiser), materialiser))
    again = make(materialiser)
    again.restore_incremental(handle, opener(materialiser))
    assert incremental(again).shared == handle.shared
    with_base(again, materialiser, keys=range(100, 160))
    assert {name: file for name, file in incremental(again).shared.items() if name in handle.shared and ".sst" in name}


def test_files_of_another_job_are_read_and_not_referred_to(make, materialiser, tmp_path):
    handle = incremental(with_base(make(materialiser), materialiser))
    other = StepMaterialiser(tmp_path / "other")
    again = make(other)
    again.restore_incremental(handle, opener(materialiser))
    assert contents(again) == expected()
    assert not again.can_give_changes
    again.between_batches()
    other.run_all()
    assert again.can_give_changes
    assert all(file.uri.startswith(other.shared_location) for file in incremental(again).shared.values())


def test_a_base_that_could_not_be_stored_costs_nothing_and_is_made_later(make, materialiser, caplog):
    now = [0]
    backend = make(materialiser, now_ms=lambda: now[0])
    storage, materialiser.storage = materialiser.storage, None
    with_base(backend, materialiser)
    assert "could not store a base of keyed state operator=op failure=1" in caplog.text
    materialiser.storage = storage
    handle = incremental(backend)
    assert handle.shared == {}
    backend.between_batches()
    assert not materialiser.waiting, "not at once"
    again = make(materialiser)
    again.restore_incremental(handle, opener(materialiser))
    assert contents(again) == expected()
    now[0] = RETRY_MS
    backend.between_batches()
    materialiser.run_all()
    assert incremental(backend).shared


def test_when_too_much_changes_while_a_base_is_made_the_next_one_follows_at_once(make, materialiser, monkeypatch):
    backend = make(materialiser)
    put(backend)
    backend.between_batches()
    monkeypatch.setattr(rocksdb, "CHANGES_BYTES_MAX", 300)
    put(backend, value="new")
    assert not backend.can_give_changes
    materialiser.run_all()
    assert not backend.can_give_changes, "the base lacks what was forgotten"
    stored = files(materialiser)
    backend.between_batches()
    materialiser.run_all()
    assert backend.can_give_changes
    again = make(materialiser)
    again.restore_incremental(incremental(backend), opener(materialiser))
    assert contents(again) == expected("new")
    assert {name for name in stored if name.endswith(".sst")} <= files(materialiser)


def test_files_that_no_snapshot_has_referred_to_are_deleted_and_others_are_not(make, materialiser):
    backend = with_base(make(materialiser), materialiser)
    unreferenced = {name for name in files(materialiser) if name.endswith(".manifest")}
    with_base(backend, materialiser, keys=range(100, 160))
    referred = {Path(file.uri).name for file in incremental(backend).shared.values()}
    with_base(backend, materialiser, keys=range(200, 260))
    with_base(backend, materialiser, keys=range(300, 360))
    assert unreferenced & files(materialiser) == set()
    assert referred <= files(materialiser)


def test_a_base_that_only_a_checkpoint_which_was_given_up_referred_to_is_deleted(make, materialiser):
    backend = with_base(make(materialiser), materialiser)
    manifests = [{Path(file.uri).name for name, file in incremental(backend, 1).shared.items() if "MANIFEST" in name}]
    backend.checkpoint_completed(1)
    for checkpoint_id, keys in (2, range(100, 160)), (3, range(200, 260)):
        with_base(backend, materialiser, keys=keys)
        shared = incremental(backend, checkpoint_id).shared
        manifests.append({Path(file.uri).name for name, file in shared.items() if "MANIFEST" in name})
    assert set.union(*manifests) <= files(materialiser)
    backend.checkpoint_aborted(2)
    assert not manifests[1] & files(materialiser)
    backend.close()
    assert manifests[0] | manifests[2] <= files(materialiser), "of a complete one, and of one that may be yet"


def test_whole_files_of_a_compaction_under_way_are_stored_ahead(make, materialiser):
    backend = with_base(make(materialiser), materialiser)
    database = Path(backend.folder) / "db"
    content = max(database.glob("*.sst"), key=lambda path: path.stat().st_size).read_bytes() + SST_END
    (database / "900001.sst").write_bytes(content)
    (database / "900002.sst").write_bytes(content[:-1])
    (database / "900003.sst").write_bytes(b"")
    address = f"{content_address(str(database / '900001.sst'))}.sst"

    before = files(materialiser)
    with_base(backend, materialiser, keys=range(100, 160))
    (stored,) = [name for name in files(materialiser) - before if str(len(content)) in name]
    assert stored.endswith(f"-{address}")
    address = stored
    handle = incremental(backend)
    assert "900001.sst" not in handle.shared, "the database does not know it yet"
    inode = Path(materialiser.shared_location, address).stat().st_ino

    with_base(backend, materialiser, keys=range(200, 260))
    assert Path(materialiser.shared_location, address).stat().st_ino == inode, "stored once"

    (database / "900001.sst").unlink()  # the compaction was given up
    with_base(backend, materialiser, keys=range(300, 360))
    assert address not in files(materialiser)


def test_a_file_that_was_stored_ahead_is_not_stored_again_when_the_database_has_it(make, materialiser, monkeypatch):
    backend = with_base(make(materialiser), materialiser)
    hashed = []

    def address(path):
        hashed.append(Path(path).name)
        return content_address(path)

    monkeypatch.setattr(rocksdb_snapshots, "content_address", address)
    unknown = set()

    class Database:
        """The real one, which does not know some of its files yet."""

        def live_files(self):
            return [file for file in backend._db.live_files() if file["name"].lstrip("/") not in unknown]

    put(backend, range(100, 160))
    for table in backend.tables.values():
        table.write()
    column = backend.families["v"].column
    column.flush(True)
    folder = str(Path(backend.folder) / "db")
    newest = max(path.name for path in Path(folder).glob("*.sst"))
    unknown.add(newest)
    first = Materialisation(Database(), folder, [], backend._stored)
    base = first.run(materialiser.storage, materialiser.shared_location)
    assert list(base.ahead) == [newest] and newest not in base.shared
    unknown.clear()
    hashed.clear()
    second = Materialisation(Database(), folder, [], base)
    assert second.run(materialiser.storage, materialiser.shared_location).shared[newest] == base.ahead[newest]
    assert newest not in hashed


def test_with_a_changelog_a_base_is_made_after_some_time_too(make, materialiser, monkeypatch):
    monkeypatch.setattr(rocksdb, "CHANGES_BYTES", 1 << 20)
    now = [0]
    settings = {"state.changelog.enabled": "true", "state.changelog.periodic-materialize.interval": "1 min"}
    for configuration, bases in (settings, 1), ({}, 0):
        backend = make(materialiser, now_ms=lambda: now[0], **configuration)
        put(backend)
        backend.between_batches()
        assert not materialiser.waiting
        now[0] += 60_000
        backend.between_batches()
        assert len(materialiser.waiting) == bases
        materialiser.run_all()


def test_each_half_of_the_key_groups_gets_its_own_entries_and_both_make_the_whole(make, materialiser):
    backend = with_base(make(materialiser), materialiser)
    put(backend, range(100, 130))
    assert len(backend.changes(1).written) > 10
    handle, found = incremental(backend), []
    for half in HALVES:
        part = make(key_groups=half)
        part.restore_incremental(replace(handle, key_groups=half), opener(materialiser))
        found.append(contents(part)["v"])
    assert all(found) and not found[0].keys() & found[1].keys()
    assert {**found[0], **found[1]} == expected(keys=[*KEYS, *range(100, 130)])["v"]


def test_what_was_deleted_stays_deleted_through_a_full_snapshot_and_the_heap(make):
    backend = make()
    put(backend)
    state = backend.state(ValueStateDescriptor("v"))
    for key in range(0, 60, 2):
        backend.current_key = key
        state.clear()
    middle = from_canonical(canonical(backend), heap())
    assert contents(middle) == expected(keys=range(1, 60, 2))
    assert contents(from_canonical(canonical(middle), make())) == expected(keys=range(1, 60, 2))


@pytest.mark.parametrize("canonical_first", [True, False])
def test_what_one_half_has_deleted_does_not_come_back_from_the_files_of_the_other(make, materialiser, canonical_first):
    """Of two that were restored from the same files, one has deleted its entries and saved itself without files, the
    other still refers to them."""
    files = incremental(with_base(make(materialiser), materialiser))
    kept, emptied = [make(materialiser, half) for half in HALVES]
    for part in kept, emptied:
        part.restore_incremental(replace(files, key_groups=part.key_groups), opener(materialiser))
    for table in emptied.tables.values():
        table.clear()
    whole = make(materialiser)
    if canonical_first:
        from_canonical(canonical(emptied, HALVES[1]), whole)
    whole.restore_incremental(incremental(kept), opener(materialiser))
    if not canonical_first:
        from_canonical(canonical(emptied, HALVES[1]), whole)
    assert contents(whole) == contents(kept)
    whole.between_batches()
    materialiser.run_all()
    assert whole.can_give_changes
    again = make(materialiser)
    again.restore_incremental(incremental(whole), opener(materialiser))
    assert contents(again) == contents(kept)


# ---- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:50], lambda data: data[:60] + b"x" + data[61:]])
def test_a_damaged_changes_file_is_refused(make, materialiser, damage):
    handle = incremental(with_base(make(materialiser), materialiser))
    damaged = {**handle.private, "changes": InlineBytes(damage(handle.private["changes"].data))}
    with pytest.raises(CorruptSnapshotError, match="changes file"):
        make().restore_incremental(replace(handle, private=damaged), opener(materialiser))


def test_a_file_of_the_base_that_is_gone_is_named(make, materialiser):
    handle = incremental(with_base(make(materialiser), materialiser))
    gone = next(file for name, file in handle.shared.items() if name.endswith(".sst"))
    Path(gone.uri).unlink()
    with pytest.raises(CorruptSnapshotError, match=Path(gone.uri).name):
        make().restore_incremental(handle, opener(materialiser))


def test_a_state_of_another_kind_is_refused(make, materialiser):
    handle = incremental(with_base(make(materialiser), materialiser))
    again = make()
    again.restore_incremental(handle, opener(materialiser))
    with pytest.raises(StateMigrationError, match="its kind has changed"):
        again.state(ListStateDescriptor("v"))


def test_a_record_whose_field_has_another_type_is_refused_or_migrated(make, materialiser, module):
    text = "@dataclass\nclass Visit:\n    n: {}"
    backend = with_base(make(materialiser), materialiser, value=module(text.format("int")).Visit(1))
    put(backend, [100], backend.state(ValueStateDescriptor("v")).value()[0])
    handle = incremental(backend)
    again = make(materialiser)
    again.restore_incremental(handle, opener(materialiser))
    module(text.format("str"))
    with pytest.raises(StateMigrationError, match="n was int and is now str"):
        contents(again)
    hook = "\n    @classmethod\n    def __migrate_state__(cls, old):\n        return cls(str(old['n']))"
    new = module(text.format("str") + hook).Visit
    again = make(materialiser)
    again.restore_incremental(handle, opener(materialiser))
    assert contents(again) == expected(new("1"), [*KEYS, 100])


@pytest.mark.parametrize("dirty", [False, True])
def test_an_enum_member_that_is_gone_is_no_damage(make, materialiser, module, dirty):
    text = "import enum\nclass Kind(enum.Enum):\n    A = 1\n    B = 2"
    value = [module(text).Kind.B]
    backend = make(materialiser)
    if dirty:
        backend.current_key = 3
        backend.state(ValueStateDescriptor("v")).update(value)
    else:
        with_base(backend, materialiser, value=value)
    handle = incremental(backend)
    module("import enum\nclass Kind(enum.Enum):\n    A = 1")
    again = make(materialiser)
    with pytest.raises(StateMigrationError, match='state "v": program_of_test.Kind has no member B any more') as caught:
        again.restore_incremental(handle, opener(materialiser))
        contents(again)
    assert caught.value.where == 'operator "op", state "v"' and "Kind(A, B), and has now (A)" in caught.value.why


@pytest.mark.parametrize("kind", ["Enum", "Flag"])
def test_a_key_that_was_an_enum_member_and_is_gone_is_named(make, materialiser, module, kind):
    text = f"import enum\nclass Kind(enum.{kind}):\n    A = 1"
    key = module(text + "\n    B = 2").Kind.B
    backend = make(materialiser)
    backend.current_key = key
    backend.state(ValueStateDescriptor("v")).update(1)
    handle = incremental(with_base(backend, materialiser))  # whose keys push that one to the disk
    module(text)
    again = make(materialiser)
    again.restore_incremental(handle, opener(materialiser))
    with pytest.raises(StateMigrationError, match="could not restore a key: program_of_test.Kind has no member"):
        contents(again)


def test_a_value_that_cannot_be_pickled_names_state_and_operator(make):
    backend = make()
    state = backend.state(ValueStateDescriptor("locks"))
    with pytest.raises(UserError, match='could not save state "locks"') as refused:
        for key in KEYS:
            backend.current_key = key
            state.update(threading.Lock())
            backend.tables["locks"].trim()
    assert refused.value.where == 'operator "op"'


def test_a_dirty_value_that_cannot_be_pickled_is_told_at_the_barrier(make, materialiser):
    backend = with_base(make(materialiser), materialiser)
    backend.current_key = 3
    backend.state(ValueStateDescriptor("v")).update(threading.Lock())
    with pytest.raises(UserError, match='could not save state "v"'):
        backend.changes(1)


# ---- memory, disk, time -------------------------------------------------------------------------


def test_state_that_fits_into_the_cache_takes_no_disk(make):
    backend = make()
    put(backend, range(2))
    assert not backend.is_open and contents(backend) == expected(keys=range(2))


def test_the_caches_stay_within_their_bounds(make):
    backend = make()
    put(backend)
    table = backend.tables["v"]
    for key in KEYS:
        assert table.get(key) == ("old", key)
    assert table.num_dirty <= table.dirty_max
    assert len(table._young) + len(table._old) <= 2 * (table.clean_max + 1)


def test_all_operators_of_a_slot_share_one_cache_and_one_budget_of_write_buffers(make):
    one, other = make(), make()
    assert one.memory is other.memory
    assert one.memory.block_cache_bytes + one.memory.object_cache_bytes == 4 << 20
    put(one)
    before = one.memory.objects_of_table()
    put(other)
    assert one.memory.objects_of_table() < before
    other.close()
    assert one.memory.objects_of_table() == before


def test_options_are_those_of_the_configuration_also_after_a_restore(make, materialiser):
    handle = incremental(with_base(make(materialiser), materialiser))
    for style, name in ("LEVEL", "kCompactionStyleLevel"), ("UNIVERSAL", "kCompactionStyleUniversal"):
        again = make(**{"state.backend.rocksdb.compaction.style": style})
        again.restore_incremental(handle, opener(materialiser))
        newest = max(Path(again.folder, "db").glob("OPTIONS-*"))
        assert newest.read_text().count(f"compaction_style={name}") == 2, "the default column family and the state's"


def test_closing_removes_the_folder_once(make):
    backend = make()
    put(backend)
    folder = Path(backend.folder)
    assert folder.exists()
    backend.close()
    backend.close()
    assert not folder.exists()


def test_what_has_expired_goes_without_being_read(make):
    now = [0]
    backend = make(now_ms=lambda: now[0])
    descriptor = ValueStateDescriptor("v")
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.minutes(1)).build())
    state = backend.state(descriptor)
    for key in KEYS:
        backend.current_key = key
        state.update(key)
    backend.between_batches()
    now[0] = 30_000
    backend.current_key = 7
    state.update("young")
    now[0] = 61_000
    for _ in range(20):
        backend.between_batches()
    assert contents(backend) == {"v": {7: ("young", 30_000)}}



@pytest.mark.parametrize("dirty_max", [4, 1_000])  # with a database, and without one
def test_what_is_renewed_while_a_sweep_is_under_way_stays(make, dirty_max):
    with tiny_caches(dirty=dirty_max):
        now = [0]
        backend = make(now_ms=lambda: now[0])
        descriptor = ListStateDescriptor("l")
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.minutes(1)).build())
        state, keys = backend.state(descriptor), range(600)

        def each(*changes):
            for backend.current_key in keys:
                for change in changes:
                    change()
            backend.between_batches()

        each(lambda: state.add("old"))
        now[0] = 30_000
        each(lambda: state.add("kept so far"))  # a sweep begins
        now[0] = 59_000
        each(state.clear, lambda: state.add("new"))
        now[0] = 61_000
        for _ in range(20):
            backend.between_batches()
        assert contents(backend)["l"] == {key: [("new", 59_000)] for key in keys}


def test_a_walk_gives_what_is_there_when_it_comes_to_it(make):
    backend = make()
    table = backend.table("t")
    for key in range(50):
        table[key] = "old"
    table.write()
    walk, seen = table.items(), {}
    first, _ = next(walk)
    others = [key for key in range(50) if key != first]
    for key in others[:20]:
        del table[key]
    for key in others[20:]:
        table[key] = "new"
    table.write()
    for key in range(1_000, 1_050):  # nothing of them is in a cache any more
        table[key] = table.get(key, "other")
    table.write()
    seen.update(walk)
    assert {key: value for key, value in seen.items() if key < 1_000} == dict.fromkeys(others[20:], "new")


def test_of_a_window_a_small_part_and_one_with_files_are_put_together(make, materialiser):
    def keys(groups, count):
        return [key for key in range(2_000) if groups.start <= key_group(key, MAX_PARALLELISM) <= groups.end][:count]

    def part(groups, count):
        backend = make(materialiser, groups)
        window = backend.window_table("w").open(1_000)
        window.update(dict.fromkeys(keys(groups, count), "value"))
        return backend, window

    small, _ = part(HALVES[0], 3)
    large, window = part(HALVES[1], 200)
    window.write()
    large.between_batches()
    materialiser.run_all()
    whole = make(materialiser)
    whole.window_table("w")
    for backend in small, large:
        whole.restore_incremental(incremental(backend), opener(materialiser))
    assert set(dict(whole.tables["w"][1_000].items())) == {*keys(HALVES[0], 3), *keys(HALVES[1], 200)}


def test_a_write_that_fails_says_where_and_what_to_do(make):
    backend = make()
    put(backend)
    for table in backend.tables.values():
        table.write()
    backend._db.close()  # as a full disk, it refuses every write
    with pytest.raises(ResourceError, match="could not write to a RocksDB database") as refused:
        put(backend, value="new")
    assert backend.folder in refused.value.where and "state.backend.rocksdb.localdir" in refused.value.do
