"""Which job a command means, and which are named when it means none."""

import pytest

from flinkish.cli.jobs import choose_job
from flinkish.errors import InvalidJobError
from flinkish.rest.client import RestClient
from flinkish.rest.registration import DriverAddress

CLIENT = RestClient(DriverAddress("127.0.0.1", 8081, ""))


def jobs(state, ids):
    return [(CLIENT, {"jid": f"{n:032x}", "name": f"{state.lower()}-{n}", "state": state}) for n in ids]


@pytest.mark.parametrize(
    "running, why",
    [
        (0, "no job runs there any more, 9 have ended"),
        (1, f'it is none of {0:032x} "running-0" (RUNNING, '),
        (5, "it is none of "),
        (7, " and 2 more"),
    ],
)
def test_when_no_job_is_meant_five_that_run_are_named_at_most(running, why):
    with pytest.raises(InvalidJobError, match="could not find the job") as raised:
        choose_job(jobs("FINISHED", range(90, 99)) + jobs("RUNNING", range(running)), "nobody", "here")
    shown = raised.value.why
    assert why in shown and "FINISHED" not in shown
    assert shown.count("RUNNING") == min(running, 5) and (" and " in shown) == (running > 5)


def test_the_job_that_runs_is_meant_before_those_of_its_name_that_have_ended():
    ended, running = jobs("FINISHED", [1]), jobs("RUNNING", [2])
    ended[0][1]["name"] = running[0][1]["name"] = "counts"
    assert choose_job(ended + running, "counts", "here") is running[0]
    assert choose_job(ended, "counts", "here") is ended[0]
