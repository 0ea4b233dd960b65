"""A driver of the soak's job; it may be killed, and started again.  Its log, and the id of its
application, are files in ``FOLDER/driver-NUMBER``.

    python -m tests.soak.program FOLDER ADDRESS NUMBER CONFIGURATION     (see ``Stops``; JSON)
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from flinkish.datastream import StreamExecutionEnvironment
from spark_plugin import session
from tests.soak.job import NAME, build
from tests.soak.stops import Stops


def main(folder: str, address: str, number: str, configuration: str) -> None:
    own = Path(folder, f"driver-{number}")
    logging.basicConfig(filename=own / "log", level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    env = StreamExecutionEnvironment.get_execution_environment(json.loads(configuration))
    build(env, Path(folder), Stops(folder, address, int(number)))
    client = env.execute_async(NAME)
    context = session.active_context()
    if context is not None:
        (own / "application").write_text(context.applicationId)
    client.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
