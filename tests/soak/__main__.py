"""``python -m tests.soak --kills N --seed N [--json FILE]``: exit 0 and what was counted, or 1 and the story."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any, Optional, Sequence

from tests.soak.soak import VICTIMS_OF_TARGET, run_soak


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=sorted(VICTIMS_OF_TARGET), default="local-cluster")
    parser.add_argument("--state-backend", choices=["hashmap", "rocksdb"], default="hashmap")
    parser.add_argument("--unaligned", action="store_true", help="barriers overtake records")
    parser.add_argument("-D", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="of the job")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the result goes")
    options = parser.parse_args(arguments)
    # As ctrl-C does: nothing that was started may stay behind.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    settings: dict[str, Any] = {"state.backend.type": options.state_backend}
    if options.unaligned:
        settings["execution.checkpointing.unaligned.enabled"] = "true"
    settings.update(setting.split("=", 1) for setting in options.settings)
    print(f"seed {options.seed}, {options.kills} kills, {options.target}, {settings}", flush=True)
    report = run_soak(options.kills, options.seed, options.target, settings, lambda line: print(line, flush=True))
    result = report.as_json()
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    return 0 if report.is_well else 1


if __name__ == "__main__":
    sys.exit(main())
