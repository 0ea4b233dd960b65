"""The soak itself: who is killed where, and what it finds in results that are wrong."""

import json
import os
import random
import subprocess
import threading
from collections import Counter
from dataclasses import replace

import pytest

from tests.soak.job import KEYS, SPLITS, key_of
from tests.soak.plan import PHASES, VICTIMS, Kill, draw_plan
from tests.soak.results import Results
from tests.soak.soak import Report
from tests.soak.stops import Stops, StopServer

PER_SPLIT = 3 * KEYS


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_has_each_phase_and_each_victim_equally_often(seed):
    plan = draw_plan(random.Random(seed), 40)
    assert Counter(kill.phase for kill in plan) == dict.fromkeys(PHASES, 8)
    assert set(Counter(plan).values()) == {2} and len(set(plan)) == len(PHASES) * len(VICTIMS)
    assert plan == draw_plan(random.Random(seed), 40) != draw_plan(random.Random(seed + 1), 40)


@pytest.mark.parametrize("kills", range(1, 8))
def test_nothing_is_killed_during_a_restore_before_anything_has_failed(kills):
    for seed in range(50):
        plan = draw_plan(random.Random(seed), kills, ("slot", "driver"))
        assert len(plan) == kills and plan[0].phase != "restore"
        assert {kill.victim for kill in plan} <= {"slot", "driver"}


def lines():
    """(key, count, number) as a job publishes them that loses nothing."""
    counts = Counter()
    for number in range(PER_SPLIT * SPLITS):
        counts[key_of(number)] += 1
        yield key_of(number), counts[key_of(number)], number


def found(folder, published):
    """(lost, duplicated, wrong counts) of these lines."""
    for index in range(2):  # in two steps, as they come
        (folder / f"part-{index}").write_text("".join("%d %d %d\n" % line for line in published[index::2]))
        if index == 0:
            results = Results(folder)
            assert results.read_new() == len(published[::2])
    (folder / ".part-2").write_text("half a li")
    assert results.read_new() == results.read_new() == len(published)
    return results.lost(PER_SPLIT), results.duplicated(), dict(results.wrong_counts(PER_SPLIT))


def test_whole_results_have_nothing_wrong(tmp_path):
    published = list(lines())
    assert found(tmp_path, random.Random(0).sample(published, len(published))) == ([], [], {})


def test_a_number_that_was_lost_is_found_also_at_the_end(tmp_path):
    *rest, last = list(lines())
    del rest[7]
    assert found(tmp_path, rest)[0] == [7, last[2]]


def test_a_number_that_was_published_twice_is_found(tmp_path):
    published = list(lines())
    assert found(tmp_path, [*published, published[9]])[1:] == ([9], {published[9][:2]: 1})


def test_a_count_from_an_older_state_is_found_although_each_number_is_there_once(tmp_path):
    published = list(lines())
    key, count, number = published[-1]
    published[-1] = key, count - 1, number
    assert found(tmp_path, published) == ([], [], {(key, count - 1): 1, (key, count): -1})


def test_the_report_has_the_agreed_fields():
    report = Report(3, "local-cluster", {}, Counter({Kill("commit", "slot"): 2, Kill("restore", "driver"): 1}))
    facts = json.loads(json.dumps(report.as_json()))
    assert facts["kills"] == 3
    assert facts["kills_by_phase"] == {"running": 0, "snapshot": 0, "before-commit": 0, "commit": 2, "restore": 1}
    assert (facts["lost"], facts["duplicated"], facts["wrong_counts"]) == (0, 0, 0) and report.is_well
    report.lost = 1
    assert not report.is_well


@pytest.fixture
def stops(tmp_path):
    """(The soak's side, the job's side in driver 1.)"""
    address = f"flinkish-soak-test-{os.getpid()}"
    with StopServer(tmp_path, address) as server:
        yield server, Stops(str(tmp_path), address, driver=1)


def stop_of(server, passing):
    """Who stops while ``passing`` runs in a thread of its own; told to go on, after which that ends."""
    thread = threading.Thread(target=passing, daemon=True)
    thread.start()
    stopped = server.wait(lambda: None)
    assert thread.is_alive()
    stopped.go_on()
    thread.join(10)
    assert not thread.is_alive()
    return stopped


def test_the_first_of_a_later_deployment_stops_and_no_other(stops):
    server, job = stops
    job.pass_by("running", 4)  # nothing is armed
    server.arm("running", (1, 3))
    for attempt in (2, 3):
        job.pass_by("running", attempt)
    replace(job, driver=0).pass_by("running", 9)
    job.pass_by("snapshot", 4)
    stopped = stop_of(server, lambda: job.pass_by("running", 4, 17))
    assert (stopped.phase, stopped.pid, stopped.attempt, stopped.checkpoint_id) == ("running", os.getpid(), 4, 17)
    job.pass_by("running", 4)  # the stop has been taken


def test_a_committer_stops_in_any_attempt_of_a_driver_that_was_not_killed(stops):
    server, job = stops
    server.arm("commit", (1, 3))
    replace(job, driver=0).pass_by("commit")
    assert stop_of(server, lambda: job.pass_by("commit", None, 5)).attempt is None


def test_a_stop_is_free_again_when_who_took_it_has_ended(stops, tmp_path):
    server, job = stops
    server.arm("restore", (1, 0))
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / "armed-restore").rename(tmp_path / f"taken-{ended.pid}")
    server._arm_again()
    assert stop_of(server, lambda: job.pass_by("restore", 1)).attempt == 1
    assert [path.name for path in tmp_path.iterdir()] == []
