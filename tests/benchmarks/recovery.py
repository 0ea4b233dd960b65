"""How long a job without state is away after a failure: from the failure until all of its tasks run again.

The failure's time is taken where it happens: in the user function right before it raises, or right before the
kill.  Each is repeated in one job of two slots, the restart strategy waits for nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Iterator

from flinkish.connectors.discarding import DiscardingSink
from flinkish.jobmanager.relaunch_backoff import YOUNG_MS as RELAUNCH_YOUNG_MS
from flinkish.shell.supervisor import YOUNG_MS as SLOT_YOUNG_MS
from tests.benchmarks.report import Row, median, spread

SLOTS = 2
_TIMEOUT_S = 180.0
_POLL_S = 0.002
#: Between two kills: what dies sooner after its start is started again later each time.
_YOUNG_S = max(young_ms / 1000 for young_ms in (RELAUNCH_YOUNG_MS, SLOT_YOUNG_MS)) + 0.5
_SETTINGS = {
    "execution.checkpointing.interval": "200 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 1_000,
    "restart-strategy.fixed-delay.delay": "0 ms",
    "slot.request.timeout": "180 s",
    "parallelism.default": SLOTS,
}


class RaisesOnRequest:
    """Passes records on; raises when the file ``raise`` is there, and writes when that was."""

    def __init__(self, folder: str):
        self.folder = folder

    def __call__(self, record: int) -> int:
        time.sleep(0.001)  # the cores are for the recovery
        try:
            os.remove(f"{self.folder}/raise")
        except FileNotFoundError:
            return record
        with open(f"{self.folder}/raised.new", "w") as out:
            out.write(repr(time.time()))
        os.replace(f"{self.folder}/raised.new", f"{self.folder}/raised")
        raise ValueError("on request")


class _Job:
    def __init__(self, cluster: Any, folder: str):
        self.cluster, self.folder = cluster, folder
        env = cluster.get_execution_environment(_SETTINGS)
        numbers = env.from_sequence(0, 2**62).map(RaisesOnRequest(folder))
        numbers.key_by(lambda number: number % 64).map(lambda number: number).sink_to(DiscardingSink())
        self.client = env.execute_async("recovery")
        self.wait_until(lambda: self.runs(0))

    def wait_until(self, condition: Callable[[], Any]) -> Any:
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not (found := condition()):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the job is not where it should be: {self.describe()}")
            time.sleep(_POLL_S)
        return found

    def describe(self) -> dict:
        return self.client._handle.describe()

    def runs(self, restarts: int) -> bool:
        job = self.describe()
        return job["restarts"] >= restarts and set(job["status-counts"]) == {"RUNNING"}

    def measure(self, fail: "Callable[[_Job], float]", settle_s: float) -> float:
        """Seconds; ``fail`` gives the time of the failure, which comes ``settle_s`` after the last recovery."""
        time.sleep(settle_s)
        restarts = self.describe()["restarts"]
        failed_s = fail(self)
        self.wait_until(lambda: self.runs(restarts + 1))
        return time.time() - failed_s

    def slots(self) -> list[int]:
        held = [slot for slot in self.cluster.describe()["slots"] if slot["job"] == self.client.job_id]
        return [slot["pid"] for slot in held if slot["pid"]]

    def supervisors(self) -> list[int]:
        return [each["pid"] for each in self.cluster.describe()["taskmanagers"]]


def _raise(job: _Job) -> float:
    Path(job.folder, "raise").touch()
    raised = Path(job.folder, "raised")
    job.wait_until(raised.exists)
    failed_s = float(raised.read_text())
    raised.unlink()
    return failed_s


def _kill(pid: int) -> float:
    failed_s = time.time()
    os.kill(pid, signal.SIGKILL)
    return failed_s


@contextlib.contextmanager
def _mini_cluster() -> Iterator[Any]:
    from flinkish.testing import MiniCluster

    with MiniCluster(slots=SLOTS) as cluster:
        yield cluster


def _spark(mode: str) -> Callable[[], Any]:
    @contextlib.contextmanager
    def opened() -> Iterator[Any]:
        from spark_plugin import session
        from spark_plugin.session_cluster import SessionCluster

        spark = {"flinkish.spark.master": f"local-cluster[{SLOTS},1,1024]", "spark.executor.memory": "512m"}
        context = session.get_or_create_context(SLOTS, spark)
        configuration = {"flinkish.launch-mode": mode, "slot.request.timeout": "180 s"}
        with SessionCluster(context, slots=SLOTS, configuration=configuration) as cluster:
            yield cluster
        session.shut_down()

    return opened


def _kill_slot(job: _Job) -> float:
    return _kill(job.slots()[0])


def _kill_worker(job: _Job) -> float:
    return _kill(job.supervisors()[0])


#: Name -> (what carries the slots, how it fails, seconds between failures).
RECOVERY: dict[str, tuple[Callable[[], Any], Callable[[_Job], float], float]] = {
    "recovery-user-exception": (_mini_cluster, _raise, 0.5),
    "recovery-slot": (_mini_cluster, _kill_slot, _YOUNG_S),
    "recovery-worker-barrier": (_spark("barrier"), _kill_worker, _YOUNG_S),
    "recovery-worker-independent": (_spark("independent"), _kill_worker, _YOUNG_S),
}


def measure_recovery(name: str, repeats: int) -> Row:
    """Median and [least, most] seconds of so many failures of one job."""
    open_cluster, fail, settle_s = RECOVERY[name]
    with tempfile.TemporaryDirectory(prefix="flinkish-benchmark-") as folder, open_cluster() as cluster:
        job = _Job(cluster, folder)
        seconds = [job.measure(fail, settle_s) for _ in range(repeats)]
        job.client.cancel().result()
    return {
        "workload": name,
        "system": "flinkish",
        "seconds": median(seconds, 3),
        "seconds_spread": spread(seconds, 3),
        "runs": len(seconds),
    }
