"""The soak of kills (``python -m tests.soak``), short: a job is killed in each phase and publishes each record once."""

from __future__ import annotations

import pytest

from tests.soak.plan import PHASES
from tests.soak.soak import run_soak


def survive(kills, seed, target="local-cluster", settings={}):
    report = run_soak(kills, seed, target, settings, print)
    assert report.is_well, "\n".join(report.story)
    facts = report.as_json()
    assert facts["kills"] == kills and set(facts["kills_by_phase"].values()) == {kills // len(PHASES)}
    return facts


CHANGELOG = {"state.changelog.enabled": "true", "state.changelog.periodic-materialize.interval": "1 s"}
ROCKSDB_UNALIGNED = {"state.backend.type": "rocksdb", "execution.checkpointing.unaligned.enabled": "true"}


@pytest.mark.parametrize(
    "settings",
    [pytest.param({}, marks=pytest.mark.soak), pytest.param(CHANGELOG, marks=pytest.mark.soak), ROCKSDB_UNALIGNED],
)
def test_a_job_on_a_mini_cluster_survives_kills_in_each_phase(settings):
    survive(5, seed=16, target="mini-cluster", settings=settings)


@pytest.mark.soak
def test_a_job_on_local_cluster_survives_kills_in_each_phase():
    facts = survive(5, seed=27)
    assert 0 not in facts["kills_by_victim"].values()


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("unaligned", ["false", "true"])
def test_a_job_on_local_cluster_survives_a_hundred_kills(backend, unaligned):
    survive(100, 0, settings={"state.backend.type": backend, "execution.checkpointing.unaligned.enabled": unaligned})


def test_a_soak_whose_job_fails_says_why_and_leaves_nothing():
    report = run_soak(5, 0, "mini-cluster", {"execution.checkpointing.interval": "often"})
    assert not report.is_well and report.as_json()["kills"] == 0
    assert "the driver ended with 1 before the first results" in report.error and "often" in report.error
