"""``python -m tests.simulation``: what it says, and that processes change nothing of it."""

import pytest

from tests.simulation import command
from tests.simulation.worlds import WORLDS


class Fails:
    """Breaks at seed 47, and at later ones."""

    def __init__(self, seed):
        self.seed = seed

    def run(self):
        if self.seed in (47, 53, 90):
            raise AssertionError("broken")

    def story(self):
        return [f"this is seed {self.seed}"]


def test_the_first_seed_that_fails_is_told_with_its_story(monkeypatch, capsys):
    monkeypatch.setitem(WORLDS, "fails", Fails)
    assert command.main(["--world", "fails", "--seeds", "100", "--processes", "1"]) == 1
    story, error, again = capsys.readouterr().out.splitlines()
    assert (story, error) == ("this is seed 47", "seed 47: AssertionError: broken")
    assert again == "fails: seed 47 failed; again with --world fails --first-seed 47 --seeds 1"
    assert command.main(["--world", "fails", "--seeds", "40", "--processes", "1"]) == 0
    assert capsys.readouterr().out.startswith("fails: 40 seeds, ")


@pytest.mark.parametrize("processes", [1, 2])
def test_processes_share_the_seeds(processes, capsys):
    assert command.main(["--world", "leaders", "--first-seed", "7", "--seeds", "41", "--processes", str(processes)]) == 0
    assert capsys.readouterr().out.startswith("leaders: 41 seeds, ")


def test_each_seed_of_each_world_is_run_once_and_worlds_advance_together():
    tasks = command.tasks_of(["a", "b"], 5, 2 * command.SEEDS_AT_A_TIME + 1)
    for world in "ab":
        ranges = [range(task.first_seed, task.first_seed + task.seeds) for task in tasks if task.world == world]
        seeds = [seed for some in ranges for seed in some]
        assert seeds == list(range(5, 5 + 2 * command.SEEDS_AT_A_TIME + 1))
    assert [task.world for task in tasks] == ["a", "b"] * 3


def test_progress_says_how_long_it_will_take():
    progress = command.Progress(worlds=2, seeds=1_000)
    progress.add(command.Task("a", 0, 100))
    progress.add(command.Task("b", 0, 100))
    assert progress.text(20.0) == "100 of 1,000 seeds, 200 ms each, 20 s gone, about 3 min left"
