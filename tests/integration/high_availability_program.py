"""The job of recovery_program, for several drivers that stand by for each other.

    python -m tests.integration.high_availability_program FOLDER KEY=VALUE...

Says on standard output when it stands by, and at the end how the job has ended: ``finished``, or the error's first line.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Mapping

from flinkish.common import Configuration
from flinkish.common.notices import listen
from flinkish.datastream import StreamExecutionEnvironment
from flinkish.errors import FlinkishError
from tests.integration.recovery_program import build

RECORDS = 5_000


class SlowUntilTold:
    """Passes records on, few of them until there is ``FOLDER/go``: so the job does not end before the test wants."""

    def __init__(self, folder: Path):
        self.path, self.told = str(folder / "go"), False

    def __call__(self, record: int) -> int:
        self.told = self.told or os.path.exists(self.path)
        if not self.told:
            time.sleep(0.01)
        return record


def main(folder: str, settings: Mapping[str, Any]) -> None:
    listen(lambda text: print(text, flush=True))
    configuration = Configuration({"execution.target": "mini-cluster", "parallelism.default": 2, **settings})
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    build(env, Path(folder), RECORDS, passing=SlowUntilTold(Path(folder)))
    try:
        env.execute("recovery")
    except FlinkishError as error:
        print(f"{type(error).__name__}: {error.what}", flush=True)
        raise SystemExit(1) from None
    print("finished", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], dict(argument.split("=", 1) for argument in sys.argv[2:]))
