"""The simulated worlds: each is a core with all that is around it, made from one seed.

A new core adds its world to ``WORLDS``; ``python -m tests.simulation`` and the nightly run take it from there.
"""

from __future__ import annotations

from typing import Callable, Iterable, Optional, Protocol

from tests.simulation.barrier_world import BarrierWorld
from tests.simulation.checkpoint_world import CheckpointWorld
from tests.simulation.unaligned_world import UnalignedWorld
from tests.simulation.leader_world import LeaderWorld
from tests.simulation.region_world import RegionWorld


class World(Protocol):
    def run(self) -> None:
        """Faults, then healing.

        Raises:
            AssertionError: something unsafe has happened, or there is no progress after healing.
        """

    def story(self) -> Iterable[str]:
        """What has happened so far, one line each."""


WORLDS: dict[str, Callable[[int], World]] = {
    "barriers": BarrierWorld,
    "checkpoints": CheckpointWorld,
    "leaders": LeaderWorld,
    "regions": RegionWorld,
    "unaligned": UnalignedWorld,
}


def first_failure(make: Callable[[int], World], seeds: Iterable[int]) -> Optional[tuple[int, str]]:
    """The first seed whose world breaks, and its story; None: all are well."""
    for seed in seeds:
        world = make(seed)
        try:
            world.run()
        except Exception as error:  # a core may also break by a KeyError, and that is as bad
            return seed, "\n".join([*world.story(), f"seed {seed}: {type(error).__name__}: {error}"])
    return None
