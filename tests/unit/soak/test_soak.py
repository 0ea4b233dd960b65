"""The soak itself: who is killed where, and what it finds in results that are wrong."""

import json
import random
from collections import Counter

import pytest

from tests.soak.job import KEYS, SPLITS, key_of
from tests.soak.plan import PHASES, VICTIMS, Kill, draw_plan
from tests.soak.results import Results
from tests.soak.soak import Report

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
