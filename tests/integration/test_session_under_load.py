"""Many jobs in one session: each ends in its own way, they wait in order, and nothing piles up."""

import gc
import glob
import itertools
import os
import signal
import tempfile
import threading
from collections import Counter
from pathlib import Path

import pytest

from flinkish.errors import NotEnoughSlotsError, SlotLostError, UserFunctionError
from flinkish.testing.mini_cluster import MiniCluster
from tests.integration.leftovers import ancestors, children, descendants
from tests.integration.running_jobs import MB, memory_bytes
from tests.integration.waiting import wait_until

HEARTBEAT_TIMEOUT_MS = 4_000
CLUSTER = {
    "slots": 3,
    "configuration": {
        "slot.request.timeout": "120 s",
        "heartbeat.interval": "200 ms",
        "heartbeat.timeout": f"{HEARTBEAT_TIMEOUT_MS} ms",
    },
}


# ---- ten jobs -----------------------------------------------------------------------------------


# Functions of these jobs are nested ones, which travel by value: no slot imports this module.


def gate(path, closed_at):
    """A named pipe: the function stands still there at one record until ``open_gate(path)``."""
    os.mkfifo(path)
    path = str(path)

    def pass_gate(number):
        if number == closed_at:
            with open(path) as pipe:
                pipe.read(1)
        return number

    return pass_gate


def open_gate(path):
    with open(path, "w") as pipe:
        pipe.write("\n")


def writes_name(name, path):
    """A function that shows in a file when the job runs, once a record."""
    path = str(path)

    def write(number):
        with open(path, "a") as file:
            file.write(f"{name}\n")
        return number

    return write


def start(cluster, name, parallelism, *functions):
    """A job of the numbers below 10; gives its results, which know the job."""
    env = cluster.get_execution_environment({"parallelism.default": parallelism})
    stream = env.from_sequence(0, 9)
    for function in functions:
        stream = stream.map(function)
    return stream.execute_and_collect(name)


def jobs_by_name(cluster):
    return {job["name"]: job for job in cluster.describe()["jobs"]}


def held_by(cluster, job):
    return {slot["id"]: slot for slot in cluster.describe()["slots"] if slot["job"] == job["jid"]}


def run_ten_jobs(cluster, tmp_path, one_by_one):
    """One slow, one failing, eight good; all but the slow one take ``one_by_one`` slots, all that it leaves.

    Returns:
        the results of the slow one, which stands still at ``tmp_path / "gate"``."""
    started = tmp_path / "started"
    slow = start(cluster, "slow", 1, gate(tmp_path / "gate", closed_at=5))
    wait_until(lambda: held_by(cluster, jobs_by_name(cluster)["slow"]), "a slot for the slow job")
    before = held_by(cluster, jobs_by_name(cluster)["slow"])
    names = [f"job {number}" for number in range(9)]
    bad = names[4]
    results = {
        name: start(cluster, name, one_by_one, writes_name(name, started), lambda n, bad=name == bad: -n // (1 - bad))
        for name in names
    }
    for name, result in results.items():
        with result:
            if name == bad:
                with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
                    list(result)
            else:
                assert sorted(result) == list(range(-9, 1))
    order = [name for name, _ in itertools.groupby(started.read_text().splitlines())]
    assert order == names, "they start in the order in which they came"
    jobs = jobs_by_name(cluster)
    states = {name: job["state"] for name, job in jobs.items()}
    assert states == {"slow": "RUNNING", **dict.fromkeys(names, "FINISHED"), bad: "FAILED"}
    after = held_by(cluster, jobs["slow"])
    assert len(after) == 1 and {s: after[s]["pid"] for s in after} == {s: before[s]["pid"] for s in before}
    return slow


def test_ten_jobs_share_a_session_and_each_ends_in_its_own_way(cluster, tmp_path, caplog):
    slow = run_ten_jobs(cluster, tmp_path, one_by_one=2)
    # It has stood still all the time. That fails nothing, but it is told, once.
    job = jobs_by_name(cluster)["slow"]

    def told():
        return [line for line in caplog.messages if "a slot stands still" in line and f"job={job['jid']}" in line]

    wait_until(told, "a warning")
    [slot] = held_by(cluster, job).values()
    assert f"slot={slot['id']} pid={slot['pid']}" in told()[0] and "Map" in told()[0]
    assert slot["progress-age-ms"] > HEARTBEAT_TIMEOUT_MS
    assert jobs_by_name(cluster)["slow"]["state"] == "RUNNING"
    open_gate(tmp_path / "gate")
    with slow:
        assert sorted(slow) == list(range(10))
    assert len(told()) == 1


def test_a_job_says_what_it_waits_for_and_waits_as_long_as_it_says_itself(cluster, tmp_path):
    holder = start(cluster, "holder", 3, gate(tmp_path / "gate", closed_at=0))
    wait_until(lambda: len(held_by(cluster, jobs_by_name(cluster)["holder"])) == 3, "all slots for one job")
    env = cluster.get_execution_environment({"parallelism.default": 2, "slot.request.timeout": "1 s"})
    env.from_sequence(0, 9).print()
    hasty = env.execute_async("hasty")
    patient = start(cluster, "patient", 1)
    jid = jobs_by_name(cluster)["holder"]["jid"]
    holders = f'the cluster has 3 slots: 3 held by job "holder" ({jid})'
    assert jobs_by_name(cluster)["hasty"]["waits-for"].startswith(f"it needs 2 slots, {holders}")
    with pytest.raises(TimeoutError, match="waits for slots: it needs 2 slots"):
        hasty.wait(10)
    with pytest.raises(NotEnoughSlotsError, match="could not get 2 slots in 1") as refused:
        hasty.wait(60_000)
    assert holders in refused.value.why
    open_gate(tmp_path / "gate")
    with holder, patient:
        assert sorted(holder) == sorted(patient) == list(range(10))


def test_a_slot_that_the_system_has_stopped_is_lost_and_the_next_job_gets_another(cluster, bell):
    env = cluster.get_execution_environment()
    env.from_sequence(0, 2**60).map(bell.at_first_record()).filter(lambda n: n < 0).print()
    client = env.execute_async("stopped")
    bell.wait(3)
    victim = cluster.describe()["slots"][1]
    os.kill(victim["pid"], signal.SIGSTOP)
    with pytest.raises(SlotLostError) as caught:
        client.wait(60_000)
    assert caught.value.what == f"lost slot {victim['id']}"
    assert "it was stopped (SIGSTOP) for" in caught.value.why and "heartbeat.timeout" in caught.value.why
    with start(cluster, "next", 3) as results:
        assert sorted(results) == list(range(10))


# ---- a hundred jobs -----------------------------------------------------------------------------

KEPT = 10  # jobs that the archive holds here, so that it is full before we count


def run_jobs(cluster, parallelism, count):
    for number in range(count):
        failing = number % 10 == 5
        with start(cluster, f"job {number}", parallelism, lambda n, bad=failing: n // 0 if bad else n) as results:
            if failing:
                with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
                    list(results)
            else:
                assert sorted(results) == list(range(10))


def all_free(cluster):
    wait_until(lambda: {slot["state"] for slot in cluster.describe()["slots"]} == {"FREE"}, "free slots")


def descriptors(pid="self"):
    """How many of each kind: "socket", "pipe", "anon_inode", "/memfd", or the path."""
    kinds = Counter()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            kinds[os.readlink(descriptor).partition(":")[0]] += 1
        except FileNotFoundError:
            continue  # the one that lists the folder
    return kinds


def unix_sockets(pids):
    """Abstract names that slots of these processes have."""
    names = (line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines())
    return {name for name in names if name.startswith("@flinkish-") and int(name.split("-")[1]) in pids}


def driver_holds():
    gc.collect()
    kinds = (f"{type(thing).__module__}.{type(thing).__name__}" for thing in gc.get_objects())
    return {
        "threads": Counter(thread.name for thread in threading.enumerate() if "flinkish" in thread.name),
        "descriptors": descriptors(),
        "objects": Counter(kind for kind in kinds if kind.startswith("flinkish.")),
        "files": set(glob.glob(os.path.join(tempfile.gettempdir(), "flinkish*"))),
    }


def wait_until_no_more(look, before):
    """Threads of user code end soon after a job.  Objects of earlier tests may go meanwhile, and the last events,
    which the JobManager remembers, are not the same: a few more of a kind are no growth."""

    def more():
        now = look()
        objects = now.pop("objects") - before["objects"]
        grown = {kind: count for kind, count in objects.items() if count >= 10}
        opened = now.pop("descriptors") - before["descriptors"]  # some thread may have had a file of /proc open before
        return grown, opened, {what: (there, before[what]) for what, there in now.items() if there != before[what]}

    try:
        wait_until(lambda: not any(more()), "what was there before, and no more")
    except AssertionError as error:
        raise AssertionError(f"{error}: {more()}") from None


def test_a_hundred_jobs_leave_nothing_behind():
    outside, others = children(), driver_holds()
    with MiniCluster(slots=2) as cluster:
        cluster.job_manager._dispatcher.archive_size = KEPT
        run_jobs(cluster, 2, 2 * KEPT)
        all_free(cluster)
        [server] = children() - outside

        def look():
            return {**driver_holds(), "children": children() - outside, "server": descriptors(server), "slots": len(descendants(server))}

        before, rss_before, server_before = look(), memory_bytes("self"), memory_bytes(server)
        assert before["slots"] == 2
        kept = {kind.rpartition(".")[2]: count for kind, count in (before["objects"] - others["objects"]).items()}
        assert kept["ManagedJob"] == KEPT and not kept.keys() & {"JobMaster", "JobRuntime", "JobGraph"}, kept
        run_jobs(cluster, 2, 100)
        all_free(cluster)
        wait_until_no_more(look, before)
        assert memory_bytes("self") - rss_before < 4 * MB, "50 kB, where nothing else runs in this process"
        assert memory_bytes(server) - server_before < 1 * MB
        assert len(cluster.describe()["jobs"]) == KEPT
        slots = descendants(server)
        assert len(unix_sockets(slots)) == 2
    assert children() <= outside and not slots & descendants() and not unix_sockets(slots)
    assert driver_holds()["files"] == others["files"]


# ---- on Spark -----------------------------------------------------------------------------------


@pytest.mark.launch
def test_a_session_on_spark_runs_ten_jobs_and_loses_nothing_over_twenty(spark_of_tests, no_jobs_left, tmp_path):
    from spark_plugin.session_cluster import SessionCluster

    context = spark_of_tests.context_for("local[4]")
    with SessionCluster(context, slots=2, configuration={"slot.request.timeout": "180 s"}) as cluster:
        slow = run_ten_jobs(cluster, tmp_path, one_by_one=1)
        open_gate(tmp_path / "gate")
        with slow:
            assert sorted(slow) == list(range(10))
        cluster.job_manager._dispatcher.archive_size = KEPT
        run_jobs(cluster, 2, KEPT)
        all_free(cluster)
        servers = sorted({next(ancestors(slot["pid"])) for slot in cluster.describe()["slots"]})
        workers = [next(ancestors(server)) for server in servers]

        def look():
            return {
                **driver_holds(),
                "servers": [(descriptors(pid), len(descendants(pid))) for pid in servers],
                "supervisors": [(descriptors(pid), len(descendants(pid))) for pid in workers],
            }

        before, rss_before = look(), sum(map(memory_bytes, (*workers, *servers)))
        assert [count for _, count in before["supervisors"]] == [2, 2], "a slot each, and what forks it"
        run_jobs(cluster, 2, 20)
        all_free(cluster)
        wait_until_no_more(look, before)
        assert sum(map(memory_bytes, (*workers, *servers))) - rss_before < 4 * MB
        slots = {slot["pid"] for slot in cluster.describe()["slots"]}
        assert len(unix_sockets(slots)) == 2
    wait_until(lambda: not unix_sockets(slots), "the end of the slots' sockets")
    wait_until(lambda: not {*slots, *servers} & descendants(), "the end of slots and servers")
