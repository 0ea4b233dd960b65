"""Checkpoints of jobs under heavy backpressure, whose barriers overtake records."""

import time
from collections import defaultdict
from pathlib import Path

import pytest

from flinkish.common.job_status import JobStatus
from flinkish.connectors.files import FileSink
from flinkish.datastream.functions import KeyedProcessFunction
from flinkish.datastream.state import ValueStateDescriptor
from flinkish.errors import InvalidJobError, StateMigrationError
from flinkish.messages.checkpoints import InFlightRestore
from flinkish.operators.output import open_inline
from flinkish.storage.checkpoint_storage import CheckpointStorage
from flinkish.taskmanager.in_flight import element_of, read_frames
from flinkish.testing.mini_cluster import MiniCluster
from tests.integration.recovery_program import Faulty
from tests.integration.running_jobs import all_tasks_run
from tests.integration.waiting import wait_until

KEYS = 5
RESCALED = 6_000
SETTINGS = {
    "execution.checkpointing.interval": "100 ms",
    "execution.checkpointing.unaligned.enabled": "true",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.delay": "0 ms",
    "taskmanager.network.max-records-per-batch": 64,
}


@pytest.fixture(scope="module")
def cluster():
    with MiniCluster(slots=3) as cluster:
        yield cluster


class CountInOrder(KeyedProcessFunction):
    """(key, count, number); fails when a number of a key does not come in its order."""

    def __init__(self, passing):
        self.passing = passing

    def open(self, context):
        self.seen = context.get_state(ValueStateDescriptor("seen"))

    def process_element(self, number, ctx):
        count, last = self.seen.value() or (0, 0)
        assert number > last, f"{number} comes after {last}"
        self.passing(number)
        self.seen.update((count + 1, number))
        yield number % KEYS, count + 1, number


def build(env, folder, records, pause_s=0.0005):
    """A fast source, whose numbers are one split, and behind it what is slow and keeps the order of each key."""
    numbers = env.from_sequence(1, records).uid("numbers")
    if records != RESCALED:  # where the first run has parallelism 1, and so one split
        numbers.set_parallelism(1)
    counts = (
        numbers
        .key_by(lambda number: number % KEYS)
        .process(CountInOrder(Faulty(folder, pause_s))).uid("counts")
    )  # fmt: skip
    sink = FileSink.for_row_format(str(folder / "out"), lambda found: " ".join(map(str, found))).build()
    counts.sink_to(sink).uid("files")


def published(folder: Path):
    """key -> (count, number) in the order of counts."""
    found = defaultdict(list)
    for file in (folder / "out").glob("part-*"):
        for line in file.read_text().splitlines():
            key, count, number = map(int, line.split())
            found[key].append((count, number))
    return {key: sorted(pairs) for key, pairs in found.items()}


def expected(records):
    numbers = defaultdict(list)
    for number in range(1, records + 1):
        numbers[number % KEYS].append(number)
    return {key: list(enumerate(those, 1)) for key, those in numbers.items()}


def in_flight(checkpoint):
    """Records that the barriers of a checkpoint have overtaken."""
    records = []
    for vertex in checkpoint.in_flight:
        for handles in vertex.by_subtask.values():
            for handle in handles:
                content = handle.content
                data = Path(content.uri.removeprefix("file://")).read_bytes() if hasattr(content, "uri") else None
                for part in handle.parts:
                    place = InFlightRestore(0, None, content, part.offset, part.length, part.checksum)
                    for frame in read_frames(data or open_inline(content), place):
                        records += getattr(element_of(frame), "values", [])
    return records


def newest(folder, job_id):
    return CheckpointStorage(folder / "checkpoints").newest_complete(job_id)[0]


def run(cluster, folder, records, **settings):
    """Until a checkpoint is there that has what ``wanted`` asks for; cancelled then, and its checkpoint returned."""
    wanted = settings.pop("wanted")
    env = cluster.get_execution_environment(
        {**SETTINGS, "execution.checkpointing.dir": str(folder / "checkpoints"), **settings}
    )
    build(env, folder, records)
    client = env.execute_async("unaligned")
    found = []

    def is_there():
        assert client.status in (JobStatus.INITIALIZING, JobStatus.CREATED, JobStatus.RUNNING), client.status
        checkpoint = newest(folder, client.job_id)
        if checkpoint is not None and wanted(checkpoint):
            found.append(checkpoint)
        return bool(found)

    wait_until(is_there, "a checkpoint as wanted")
    client.cancel().result(30_000)
    return newest(folder, client.job_id)


def test_barriers_overtake_what_an_aligned_checkpoint_would_wait_for(cluster, tmp_path):
    overtaken = {}
    for name, settings in (
        ("unaligned", {}),
        ("patient", {"execution.checkpointing.aligned-checkpoint-timeout": "10 min"}),
        ("soon", {"execution.checkpointing.aligned-checkpoint-timeout": "1 ms"}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        checkpoint = run(cluster, folder, 50_000, wanted=lambda checkpoint: checkpoint.checkpoint_id >= 2, **settings)
        overtaken[name] = len(in_flight(checkpoint))
    # Four batches of 64 are with the receiver and two with the sender; so many records later would it be aligned.
    assert overtaken["unaligned"] >= 200 and overtaken["soon"] >= 200
    assert overtaken["patient"] == 0


def test_a_job_goes_on_from_unaligned_checkpoints_with_other_parallelisms(cluster, tmp_path):
    records, location = RESCALED, None
    for parallelism in (1, 3):
        settings = {"parallelism.default": parallelism}
        if location is not None:
            settings["execution.state-recovery.path"] = location
        checkpoint = run(cluster, tmp_path, records, wanted=lambda found: len(in_flight(found)) > 200, **settings)
        location = checkpoint.location
    env = cluster.get_execution_environment(
        {**SETTINGS, "parallelism.default": 2, "execution.state-recovery.path": location}
    )
    build(env, tmp_path, records, pause_s=0.0)
    env.execute("unaligned")
    assert published(tmp_path) == expected(records)


@pytest.mark.parametrize("timeout", ["0 ms", "20 ms"])
def test_after_failures_each_record_is_counted_once_and_in_order(cluster, tmp_path, timeout):
    (tmp_path / "faults").write_text("700 raise\n1400 kill-slot\n2100 raise\n")
    env = cluster.get_execution_environment(
        {
            **SETTINGS,
            "execution.checkpointing.interval": "30 ms",
            "execution.checkpointing.aligned-checkpoint-timeout": timeout,
            "restart-strategy.fixed-delay.attempts": 3,
            "parallelism.default": 2,
        }
    )
    build(env, tmp_path, 3_000)
    client = env.execute_async("unaligned")
    client.wait(60_000)
    assert published(tmp_path) == expected(3_000)
    job = client._handle.describe()
    assert job["restarts"] == 3 and job["checkpoints"]["counts"]["completed"] > 3


KB = 1 << 10
LARGE = 24


def payload(number, sizes):
    return number.to_bytes(1, "big") * sizes[number % len(sizes)]


class ExaminesLarge(KeyedProcessFunction):
    """(number, how many of its size came, whether it is intact), slowly."""

    def __init__(self, sizes, pause_s):
        self.sizes, self.pause_s = sizes, pause_s

    def open(self, context):
        self.seen = context.get_state(ValueStateDescriptor("seen"))

    def process_element(self, record, ctx):
        time.sleep(self.pause_s)
        number, content = record
        self.seen.update((self.seen.value() or 0) + 1)
        yield number, self.seen.value(), content == payload(number, self.sizes)


@pytest.mark.parametrize("sizes", [(32 * KB - 1, 32 * KB, 230 * KB), (32 * KB, 64 * KB * KB)], ids=["kilobytes", "64 MB"])
def test_b26_large_records_in_flight_come_back_intact(cluster, tmp_path, sizes):
    """Case B26 of the given semantics; that they pass over every edge is shown in test_data_plane_stress.py."""

    def run_large(parallelism, pause_s, **settings):
        env = cluster.get_execution_environment(
            {
                **SETTINGS,
                "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
                "execution.checkpointing.interval": "10 min",  # none but those that are asked for
                "taskmanager.network.max-records-per-batch": 1,
                "parallelism.default": parallelism,
                **settings,
            }
        )
        numbers = env.from_sequence(1, LARGE).uid("numbers").set_parallelism(1)
        large = numbers.map(lambda number: (number, payload(number, sizes))).uid("large").set_parallelism(1)
        keyed = large.key_by(lambda record: record[0] % len(sizes))
        examined = keyed.process(ExaminesLarge(sizes, pause_s)).uid("examined")
        sink = FileSink.for_row_format(str(tmp_path / "out"), lambda found: " ".join(map(str, found))).build()
        examined.sink_to(sink).uid("files")
        return env.execute_async("large")

    client = run_large(1, 0.2)

    def a_record_of_each_size_is_in_flight():
        client.trigger_checkpoint().result(30_000)
        checkpoint = newest(tmp_path, client.job_id)
        records = in_flight(checkpoint)
        assert all(content == payload(number, sizes) for number, content in records)
        return {len(content) for _, content in records} == set(sizes) and checkpoint.location

    wait_until(lambda: all_tasks_run(client), "all tasks run")
    location = wait_until(a_record_of_each_size_is_in_flight, "a checkpoint with a record of each size in flight")
    client.cancel().result(30_000)
    run_large(3, 0.0, **{"execution.state-recovery.path": location}).wait(60_000)
    results = [line.split() for file in (tmp_path / "out").glob("part-*") for line in file.read_text().splitlines()]
    assert sorted(int(number) for number, _, _ in results) == list(range(1, LARGE + 1))
    assert {intact for _, _, intact in results} == {"True"}
    counts = list(range(1, LARGE // len(sizes) + 1))
    assert sorted(int(count) for _, count, _ in results) == sorted(counts * len(sizes))


def test_savepoints_are_aligned_and_restore_everywhere(cluster, tmp_path):
    env = cluster.get_execution_environment(SETTINGS)
    build(env, tmp_path, 50_000)
    client = env.execute_async("unaligned")
    wait_until(lambda: published(tmp_path), "results")
    location = client.trigger_savepoint(str(tmp_path / "savepoints")).result(30_000)
    client.cancel().result(30_000)
    assert CheckpointStorage(tmp_path).load(location).in_flight == ()


def test_where_barriers_cannot_overtake_is_said_before_the_job_starts(cluster, tmp_path):
    env = cluster.get_execution_environment({**SETTINGS, "execution.checkpointing.max-concurrent-checkpoints": 2})
    build(env, tmp_path, 10)
    with pytest.raises(InvalidJobError, match="max-concurrent-checkpoints is 2"):
        env.execute()
    env = cluster.get_execution_environment(SETTINGS)
    custom = env.from_sequence(1, 10).partition_custom(lambda key, count: key % count, lambda number: number)
    custom.map(lambda number: number).print()
    with pytest.raises(InvalidJobError, match="unaligned.forced"):
        env.execute()


def test_a_program_without_the_connection_of_records_in_flight_is_refused(cluster, tmp_path):
    checkpoint = run(cluster, tmp_path, 50_000, wanted=in_flight)
    env = cluster.get_execution_environment({**SETTINGS, "execution.state-recovery.path": checkpoint.location})
    counts = (
        env.from_sequence(1, 10).uid("numbers").map(lambda number: number).disable_chaining().uid("between")
        .key_by(lambda number: number % KEYS).process(CountInOrder(time.sleep)).uid("counts")
    )  # fmt: skip
    sink = FileSink.for_row_format(str(tmp_path / "out"), str).build()
    counts.sink_to(sink).uid("files")
    with pytest.raises(StateMigrationError, match="does not have this connection"):
        env.execute()
