"""``python -m tests.simulation --seeds N [--first-seed M] [--world NAME]``: every world from N seeds.

Exit 0 and a count, or 1 and the first seed that fails with its story.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Optional, Sequence

from tests.simulation.worlds import WORLDS, first_failure


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=2_000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--world", choices=sorted(WORLDS), action="append", help="default: all")
    options = parser.parse_args(arguments)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for name in options.world or sorted(WORLDS):
        begun = time.monotonic()
        failure = first_failure(WORLDS[name], seeds)
        if failure is not None:
            seed, story = failure
            print(story)
            print(f"{name}: seed {seed} failed; again with --world {name} --first-seed {seed} --seeds 1")
            return 1
        print(f"{name}: {len(seeds)} seeds, {time.monotonic() - begun:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
