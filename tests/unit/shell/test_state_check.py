"""The dry run of a restore: saved state beside the classes, keys and windows of a program that does not run."""

import enum
import sys
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest

from flinkish.cli import main
from flinkish.common.typeinfo import Types
from flinkish.datastream import StreamExecutionEnvironment
from flinkish.datastream.functions import BroadcastProcessFunction, KeyedProcessFunction
from flinkish.datastream.state import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from flinkish.datastream.window import EventTimeSessionWindows, TumblingEventTimeWindows
from flinkish.messages.checkpoints import FileHandle, IncrementalKeyedStateHandle, KeyedStateHandle
from flinkish.shell import snapshot_executor
from flinkish.shell.savepoints import RestoreCheck
from flinkish.storage.checkpoint_storage import CheckpointStorage
from flinkish.testing import StreamTestHarness
from tests.rocksdb_states import FAST_DISK, tiny_caches

IGNORE = {"execution.state-recovery.ignore-unclaimed-state": "true"}  # source and sink of the harness
FITS = "fits as far as this can be told before it runs"


@dataclass
class Visit:
    user: str
    pages: int


class Color(enum.Enum):
    RED = 1
    GREEN = 2


class Car(NamedTuple):
    plate: str
    color: Color


class Visits(KeyedProcessFunction):
    def open(self, context):
        self.visit = context.get_state(ValueStateDescriptor("visit"))
        self.colors = context.get_list_state(ListStateDescriptor("colors"))
        sums = MapStateDescriptor("sums", Types.STRING(), Types.LONG())
        sums.enable_time_to_live(StateTtlConfig.new_builder(1_000).build())
        self.sums = context.get_map_state(sums)

    def process_element(self, value, ctx):
        self.visit.update(Visit(str(value), 1))
        self.colors.add(Color.GREEN)
        self.sums.put("a", 1)
        yield value


def visits(stream):
    return stream.key_by(lambda value: value % 3, Types.LONG()).process(Visits()).uid("visits")


def cars(stream):
    return stream.key_by(lambda value: Car(str(value), Color.RED)).reduce(lambda one, other: other).uid("cars")


def stored(checkpoint, folder):
    storage = folder if isinstance(folder, CheckpointStorage) else CheckpointStorage(folder)
    storage.create_folder(storage.directory + "/savepoint-1")
    storage.store_metadata(replace(checkpoint, location=f"{storage.directory}/savepoint-1"))
    return f"{storage.directory}/savepoint-1"


def saved(build, folder, **options):
    """A savepoint of ``build``."""
    with StreamTestHarness(build, parallelism=2, **options) as harness:
        harness.process_elements([(number, number) for number in range(6)])
        return stored(harness.snapshot(), folder)


def check(location, build, configuration=None):
    """Exit code, and what is shown."""
    env = StreamExecutionEnvironment.get_execution_environment({**IGNORE, **(configuration or {})})
    build(env.from_collection([1, 2, 3])).print()
    shown = []
    with pytest.raises(SystemExit) as ended:
        RestoreCheck(location, {}, shown.append).submit(env.get_stream_graph("job"))
    return ended.value.code, "\n".join(shown)


def change(monkeypatch, cls):
    """Have ``cls`` stand in the place of the class of its name."""
    cls.__qualname__, cls.__module__ = cls.__name__, __name__
    monkeypatch.setattr(sys.modules[__name__], cls.__name__, cls)


def changed_visit():
    @dataclass
    class Visit:
        user: str
        pages: str

    return Visit


def checkpoint_options(kind, folder):
    options = {"execution.checkpointing.dir": str(folder / "checkpoints")}
    if kind == "changelog":
        options["state.changelog.enabled"] = "true"
    if FAST_DISK is not None:
        options["state.backend.rocksdb.localdir"] = FAST_DISK
    return {"state_backend": "rocksdb" if kind == "rocksdb" else "hashmap", "configuration": options}


@pytest.fixture(params=["savepoint", "checkpoint", "changelog", "rocksdb"])
def kind_and_location(request, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot_executor, "INLINE_BYTES_MAX", 100)
    if request.param == "savepoint":
        return request.param, saved(visits, tmp_path)
    options = checkpoint_options(request.param, tmp_path)
    with tiny_caches(1), StreamTestHarness(visits, **options) as harness:
        for numbers in (range(6), range(3)):
            harness.process_elements([(number, number) for number in numbers])
            checkpoint = harness.checkpoint()
        return request.param, stored(checkpoint, tmp_path)


def test_states_are_told_and_a_changed_class_is_refused_whatever_keeps_the_state(kind_and_location, monkeypatch):
    kind, location = kind_and_location
    settings = {"state.backend.type": "rocksdb" if kind == "rocksdb" else "hashmap"}
    code, shown = check(location, visits, settings)
    assert code == 0 and shown.splitlines()[-1].startswith(f'job "job" {FITS}')
    assert "kinds and declared types of states are compared when they are opened" in shown
    assert "keys: of type long\n" in shown
    count = {"changelog": ", at most ", "rocksdb": ""}.get(kind, ", 3 entries")
    assert f'state "visit": a VALUE state{count}' in shown and f'state "colors": a LIST state{count}' in shown
    assert f'state "sums": a MAP state of string to long, time to live 1000 ms{count}' in shown

    change(monkeypatch, changed_visit())
    code, shown = check(location, visits, settings)
    assert code == 1
    assert f"could not restore state: {__name__}.Visit has changed" in shown and "pages was int and is now str" in shown
    if kind == "rocksdb":  # layouts outlive their values there
        assert "IN DOUBT" in shown and "when: a value of it is read" in shown and "REFUSED" not in shown
        assert shown.endswith("may be refused later: see what is in doubt")
    else:
        assert "REFUSED" in shown and shown.endswith('job "job" cannot go on from it: 1 refusal')


def test_no_entry_is_read(tmp_path, monkeypatch):
    location = saved(visits, tmp_path)
    monkeypatch.setattr("flinkish.state.keyed_snapshot.KeyedSnapshotReader.read", None)
    monkeypatch.setattr("flinkish.state.serializers.LayoutReader.loads", None)
    assert check(location, visits)[0] == 0


def test_the_class_that_is_gone_and_a_module_that_raises_are_refused(tmp_path, monkeypatch):
    location = saved(visits, tmp_path)
    monkeypatch.delattr(sys.modules[__name__], "Visit")
    code, shown = check(location, visits)
    assert code == 1 and f"{__name__}.Visit is gone" in shown

    def raises(name):
        raise ValueError("no such day")

    monkeypatch.setattr("flinkish.state.serializers.importlib.import_module", raises)
    code, shown = check(location, visits)
    assert code == 1 and f"importing {__name__} to look for {__name__}.Visit raised ValueError: no such day" in shown


def test_an_enum_whose_member_is_gone_is_in_doubt_because_nobody_knows_whether_it_was_saved(tmp_path, monkeypatch):
    location = saved(visits, tmp_path)
    change(monkeypatch, enum.Enum("Color", {"RED": 1}))
    code, shown = check(location, visits)
    assert code == 1 and f"{__name__}.Color has no member GREEN any more" in shown
    assert "when: a value that is GREEN is read; there may be none" in shown and "REFUSED" not in shown


def test_keys_that_would_never_be_found_are_refused_once(tmp_path, monkeypatch):
    location = saved(cars, tmp_path)
    code, shown = check(location, cars)
    assert code == 0
    assert f"keys: without a declared type, classes {__name__}.Car(plate, color), {__name__}.Color(RED, GREEN)" in shown
    change(monkeypatch, NamedTuple("Car", [("plate", int), ("color", Color)]))
    change(monkeypatch, enum.Enum("Color", {"GREEN": 2}))
    code, shown = check(location, cars)
    assert code == 1 and shown.endswith("cannot go on from it: 2 refusals")
    assert shown.count("the class of its keys has changed") == 2
    assert "plate was str and is now int" in shown and "it has no RED any more" in shown

    def by_text(stream):
        return stream.key_by(str, Types.STRING()).process(Visits()).uid("visits")

    code, shown = check(saved(visits, tmp_path / "visits"), by_text)
    assert code == 1 and "key_by declared long when it was saved, the program declares string" in shown
    code, shown = check(f"{tmp_path}/visits/savepoint-1", lambda stream: stream.map(str).uid("visits"))
    assert code == 1 and "the operator has no key any more" in shown


def windows(assigner):
    return lambda stream: (
        stream.key_by(lambda value: value % 3).window(assigner).reduce(lambda one, other: one + other).uid("sums")
    )


def test_windows_that_are_kept_in_another_form_are_refused(tmp_path):
    location = saved(windows(TumblingEventTimeWindows.of(40)), tmp_path)
    assert check(location, windows(TumblingEventTimeWindows.of(40)))[0] == 0
    code, shown = check(location, windows(TumblingEventTimeWindows.of(50)))
    assert code == 1 and 'could not restore the windows of operator' in shown and "size: 40 ms -> 50 ms" in shown
    code, shown = check(location, windows(EventTimeSessionWindows.with_gap(40)))
    assert code == 1 and "kept: for all keys together -> for each key" in shown


RULES = MapStateDescriptor("rules", Types.STRING(), Types.PICKLED_BYTE_ARRAY())


class Rules(BroadcastProcessFunction):
    def process_element(self, value, ctx):
        yield value

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put(str(value), Visit("u", value))


def test_records_in_operator_state_are_compared(tmp_path, monkeypatch):
    def build(stream, rules):
        return stream.connect(rules.broadcast(RULES)).process(Rules()).uid("rules")

    with StreamTestHarness(build, parallelism=2) as harness:
        harness.process_element(1, input=1)
        location = stored(harness.snapshot(), tmp_path)

    def program(stream):
        return build(stream, stream)

    code, shown = check(location, program)
    assert code == 0 and 'state "rules": a broadcast state of string to object, 1 entry' in shown
    change(monkeypatch, changed_visit())
    code, shown = check(location, program)
    assert code == 1 and 'could not restore state "rules"' in shown and "pages was int and is now str" in shown
    assert "when: the program asks for the state" in shown


def with_keyed(checkpoint, change_handle):
    operators = {
        id_: replace(
            operator,
            subtasks={
                index: replace(state, keyed=tuple(map(change_handle, state.keyed)))
                for index, state in operator.subtasks.items()
            },
        )
        for id_, operator in checkpoint.operators.items()
    }
    return replace(checkpoint, operators=operators)


def in_file(handle, storage, location):
    return replace(handle, content=storage.write(location, handle.content.data))


@pytest.mark.parametrize("damage, why", [
    (lambda data: data[:-20], "were written"),
    (lambda data: data[:-20] + bytes(4) + data[-16:], "the checksum of the footer is wrong"),
])  # fmt: skip
def test_a_damaged_file_is_reported_with_its_operator(tmp_path, damage, why):
    files = CheckpointStorage(tmp_path / "files")
    with StreamTestHarness(visits) as harness:
        harness.process_elements([(number, number) for number in range(6)])
        snapshot = with_keyed(harness.snapshot(), lambda handle: in_file(handle, files, files.directory))
    location = stored(snapshot, tmp_path)
    assert check(location, visits)[0] == 0
    (path,) = (tmp_path / "files").iterdir()
    path.write_bytes(damage(path.read_bytes()))
    code, shown = check(location, visits)
    assert code == 1 and "REFUSED" in shown and why in shown
    assert str(path) in shown and 'operator "KeyedProcess"' in shown


def test_files_of_a_database_must_be_there_and_belong_to_the_backend_of_the_job(tmp_path):
    with tiny_caches(1), StreamTestHarness(visits, **checkpoint_options("rocksdb", tmp_path)) as harness:
        harness.process_elements([(number, number) for number in range(6)])
        checkpoint = harness.checkpoint()
    location = stored(checkpoint, tmp_path)
    assert check(location, visits, {"state.backend.type": "rocksdb"})[0] == 0
    code, shown = check(location, visits)
    assert code == 1 and "own format of the backend rocksdb, this job runs hashmap" in shown

    def without_file(handle):
        assert isinstance(handle, IncrementalKeyedStateHandle) and not isinstance(handle, KeyedStateHandle)
        return replace(handle, shared={"1.sst": FileHandle(f"{tmp_path}/gone.sst", 7)})

    def of_database(handle):
        return without_file(handle) if isinstance(handle, IncrementalKeyedStateHandle) else handle

    location = stored(with_keyed(checkpoint, of_database), tmp_path / "gone")
    code, shown = check(location, visits, {"state.backend.type": "rocksdb"})
    assert code == 1 and "it is gone" in shown and "gone.sst" in shown


@pytest.fixture
def s3(tmp_path):
    """Settings of an S3 server in this process, and a savepoint there whose state is in files."""
    from moto.server import ThreadedMotoServer
    from pyarrow import fs

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        settings = {
            "s3.access-key": "k", "s3.secret-key": "s3cr3t", "s3.endpoint": f"http://{host}:{port}",
            "s3.endpoint.region": "us-east-1",
        }  # fmt: skip
        fs.S3FileSystem(
            access_key="k", secret_key="s3cr3t", endpoint_override=f"{host}:{port}", scheme="http", region="us-east-1",
            allow_bucket_creation=True,
        ).create_dir("bucket")  # fmt: skip
        storage = CheckpointStorage("s3://bucket/savepoints", settings)
        with StreamTestHarness(visits) as harness:
            harness.process_elements([(number, number) for number in range(6)])
            snapshot = harness.snapshot()
        location = f"{storage.directory}/savepoint-1"
        yield settings, stored(with_keyed(snapshot, lambda handle: in_file(handle, storage, location)), storage)
    finally:
        server.stop()


SCRIPT = f"""
from flinkish.datastream import StreamExecutionEnvironment
from {__name__} import visits
env = StreamExecutionEnvironment.get_execution_environment()
visits(env.from_collection([1, 2, 3])).print()
env.execute("job")
"""


def test_state_in_s3_is_reached_by_the_configuration_file_or_the_uri_and_no_secret_is_shown(
    s3, tmp_path, monkeypatch, capsys
):
    settings, location = s3
    (tmp_path / "flinkish-conf.yaml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
    (tmp_path / "job.py").write_text(SCRIPT)
    by_uri = location.replace("://", "://k:s3cr3t@") + (
        f"?endpoint_override={settings['s3.endpoint'].removeprefix('http://')}&scheme=http&region=us-east-1"
    )
    ignore = "execution.state-recovery.ignore-unclaimed-state=true"
    for path in by_uri, location:
        if path is location:
            monkeypatch.setenv("FLINKISH_CONF_DIR", str(tmp_path))
        assert main(["savepoint", "check", "-D", ignore, path, str(tmp_path / "job.py")]) == 0
        shown = capsys.readouterr()
        assert 'state "visit": a VALUE state, 3 entries' in shown.out
        assert location in shown.out and "s3cr3t" not in shown.out + shown.err
    assert main(["savepoint", "list", "s3://bucket/savepoints"]) == 0
    assert location in capsys.readouterr().out
    change(monkeypatch, changed_visit())
    assert main(["savepoint", "check", "-D", ignore, location, str(tmp_path / "job.py")]) == 1
    shown = capsys.readouterr()
    assert "REFUSED" in shown.out and "s3cr3t" not in shown.out + shown.err
