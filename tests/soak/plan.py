"""Who is killed, and in which phase of the job: from a seed."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Sequence

#: Of a job and its checkpoints: at a record; in a task that has yet to acknowledge; behind durable metadata, before the
#: committer is asked; when a checkpoint is published in part; in a task that is deployed and does not run yet.
PHASES = ("running", "snapshot", "before-commit", "commit", "restore")
#: The Python process of a slot, the one that carries the slots of a Spark task, its JVM, and the process of the script.
VICTIMS = ("slot", "worker", "executor", "driver")


@dataclass(frozen=True)
class Kill:
    phase: str
    victim: str


def draw_plan(rng: random.Random, kills: int, victims: Sequence[str] = VICTIMS) -> list[Kill]:
    """So many kills.  Each phase comes as often as any other (one more at most), and so do its victims.

    The first is not in phase "restore": there is nothing to restore from before the first failure.

    >>> {kill.phase for kill in draw_plan(random.Random(0), 5)} == set(PHASES)
    True
    """
    phases: list[str] = []
    while len(phases) < kills:
        phases += rng.sample(PHASES, min(len(PHASES), kills - len(phases)))
    if kills > 1 and phases[0] == "restore":
        phases[:2] = phases[1], phases[0]
    elif phases == ["restore"]:
        phases = ["running"]
    of_phase = {phase: itertools.cycle(rng.sample(victims, len(victims))) for phase in PHASES}
    return [Kill(phase, next(of_phase[phase])) for phase in phases]
