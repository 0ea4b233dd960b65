import random

import pytest

from flinkish.errors import ConnectionLostError, InvalidJobError, UserFunctionError
from flinkish.jobmanager.recovery import PROGRESS_MS, Recovery
from flinkish.jobmanager.restart_strategy import FixedDelayRestart, NoRestart


TASKS = frozenset({("v", 0)})


def recovery(attempts=2, delay=100, timeout_ms=1_000):
    return Recovery(FixedDelayRestart(attempts, delay), timeout_ms, random.Random(1))


def fail(core, error, now_ms=0, consequence=False):
    core.failed(error, now_ms, attempt=0, consequence=consequence)
    allowed = core.may_restart(now_ms)
    core.check()
    return allowed


def test_a_job_may_restart_as_often_as_its_strategy_says():
    core = recovery(attempts=2)
    assert [fail(core, UserFunctionError("boom")) for _ in range(3)] == [True, True, False]
    assert core.cause.fields["not_restarted"] == "fixed-delay allows 2 restarts, this is failure 3"
    assert [entry.error.what for entry in core.exceptions.entries] == ["boom"] * 3


@pytest.mark.parametrize(
    "strategy, error", [(NoRestart(), UserFunctionError("x")), (FixedDelayRestart(9), InvalidJobError("x"))]
)
def test_without_a_strategy_or_with_an_error_that_stays_there_is_no_restart(strategy, error):
    core = Recovery(strategy, 1_000, random.Random(1))
    assert not fail(core, error)


def test_the_next_attempt_waits_for_the_delay_the_end_of_tasks_and_the_checkpoint():
    core = recovery(delay=100)
    fail(core, UserFunctionError("boom"), now_ms=50)
    assert core.plan_restart(50, TASKS) == 100
    waiting = core.next_attempt
    assert not waiting.is_ready(150), "tasks run"
    waiting.tasks_ended = waiting.restore_known = True
    assert not waiting.is_ready(149) and waiting.is_ready(150)
    # It fails once more, before it is deployed: all but the tasks begins anew, the clock of recovery too.
    fail(core, UserFunctionError("again"), now_ms=140)
    assert core.plan_another_restart(140) == 100
    assert (waiting.due_ms, waiting.restore_known, waiting.tasks_ended) == (240, False, True)
    assert core.began_ms == 50 and not core.is_too_late(1_239) and core.is_too_late(1_240)


def test_a_consequence_gives_way_to_the_first_failure_that_is_none():
    core = recovery()
    first, second = ConnectionLostError("peer gone"), ConnectionLostError("other peer gone")
    third = UserFunctionError("boom")
    fail(core, first, consequence=True)
    assert not core.improve_cause(second, consequence=True, task=None)
    assert core.improve_cause(third, consequence=False, task="map (1/2)") and core.cause is third
    assert not core.improve_cause(UserFunctionError("late"), consequence=False, task=None)
    [entry] = core.exceptions.entries
    assert (entry.error, entry.task) == (third, "map (1/2)")


def test_a_recovery_that_takes_long_says_so_again_and_again_until_it_ends():
    core = recovery(timeout_ms=60_000)
    core.begin(0, 500)
    assert not core.take_progress(500 + PROGRESS_MS - 1)
    assert core.take_progress(500 + PROGRESS_MS) and not core.take_progress(500 + PROGRESS_MS)
    core.forgive(1_000)  # the JobManager's own delay
    assert not core.is_too_late(61_499) and core.is_too_late(61_500)
    core.end()
    assert not core.is_too_late(10**9) and not core.take_progress(10**9)


def test_a_rescaling_has_a_deadline_and_no_cause():
    core = recovery(timeout_ms=1_000)
    core.plan_rescaling(10, TASKS)
    core.check()
    assert core.cause is None and core.next_attempt.due_ms == 10 and core.is_too_late(1_010)
