"""Kills, and sees to it that the job goes on after each."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping, Optional

from flinkish.storage.checkpoint_storage import CheckpointStorage
from tests.integration.driver_process import Driver
from tests.integration.leftovers import ancestors, carrier, marked
from tests.integration.spark_servers import SPARK_HOME
from tests.integration.waiting import wait_until
from tests.soak.job import SPLITS, Limit
from tests.soak.plan import PHASES, VICTIMS, Kill, draw_plan
from tests.soak.results import Results
from tests.soak.stops import Deployment, Stopped, StopServer

#: Who can be killed where.
VICTIMS_OF_TARGET = {"local-cluster": VICTIMS, "mini-cluster": ("slot", "driver")}
MASTER = "local-cluster[2,1,1024]"

#: How many numbers of a split may be read that are not published yet.
AHEAD = 1_000
#: From a kill until the job is at the next phase, or at its end: what it takes is a start of Spark and a restore.
DEADLINE_S = 300.0

#: Of a driver, in the story of a soak that fails.
LOG_LINES = 60

_SETTINGS = {
    "parallelism.default": 2,
    "execution.checkpointing.interval": "100 ms",
    "execution.state-recovery.path": "latest",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 1_000_000,
    "restart-strategy.fixed-delay.delay": "0 ms",
    "slot.request.timeout": "120 s",
    # Small batches: a barrier waits for a few of them.
    "taskmanager.network.max-records-per-batch": 16,
}


class SoakError(Exception):
    """The job did not go on, or has published something wrong."""


@dataclass
class Report:
    """What has come of it; ``as_json`` is what ``--json`` writes."""

    seed: int
    target: str
    settings: Mapping[str, Any]
    kills: Counter[Kill] = field(default_factory=Counter)
    records: int = 0
    lost: int = 0
    duplicated: int = 0
    wrong_counts: int = 0
    seconds: float = 0.0
    error: Optional[str] = None
    story: list[str] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        return self.error is None and not (self.lost or self.duplicated or self.wrong_counts)

    def as_json(self) -> dict[str, Any]:
        by_phase = {phase: sum(n for kill, n in self.kills.items() if kill.phase == phase) for phase in PHASES}
        by_victim = {name: sum(n for kill, n in self.kills.items() if kill.victim == name) for name in VICTIMS}
        return {
            "kills": self.kills.total(),
            "kills_by_phase": by_phase,
            "kills_by_victim": by_victim,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "wrong_counts": self.wrong_counts,
            "records": self.records,
            "seconds": round(self.seconds, 1),
            "seed": self.seed,
            "target": self.target,
            "settings": dict(self.settings),
            "error": self.error,
        }


def run_soak(
    kills: int,
    seed: int,
    target: str = "local-cluster",
    settings: Mapping[str, Any] = {},
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Run the job until so many kills have happened and all that it has read is published.

    Args:
        target: of VICTIMS_OF_TARGET.
        settings: of the job, besides what the soak needs.
        say: gets each line of the story when it happens.
    Returns:
        Also when something is wrong.
    """
    report = Report(seed, target, settings)
    # A short path, and not below a folder that many tests share: Spark's own files are there too.
    folder = Path(tempfile.mkdtemp(prefix="flinkish-soak-"))
    began_s = time.monotonic()

    def tell(line: str) -> None:
        report.story.append(f"{time.monotonic() - began_s:7.1f} s  {line}")
        say(report.story[-1])

    address = f"flinkish-soak-{secrets.token_hex(8)}"
    try:
        with StopServer(folder, address) as stops, contextlib.closing(
            _Soak(folder, address, stops, report, tell)
        ) as soak:
            try:
                soak.run(draw_plan(random.Random(seed), kills, VICTIMS_OF_TARGET[target]))
            except SoakError as error:
                report.error = str(error)
                tell(f"FAILED: {error}")
            if not report.is_well:
                report.story += soak.last_logs()
                say("\n".join(report.story[-LOG_LINES:]))
    finally:
        shutil.rmtree(folder)
        report.seconds = time.monotonic() - began_s
    return report


class _Soak:
    def __init__(
        self, folder: Path, address: str, stops: StopServer, report: Report, tell: Callable[[str], None]
    ):
        self._folder, self._address, self._stops = folder, address, stops
        self._report, self._tell = report, tell
        self._rng = random.Random(f"{report.seed} victims")
        self._results = Results(folder / "out")
        self._limit = Limit(0)
        self._drivers: list[Driver] = []
        self._deadline_s, self._awaited = 0.0, ""

    def run(self, plan: list[Kill]) -> None:
        """
        Raises:
            SoakError: see there.
        """
        self._raise_limit()
        self._start_driver()
        self._wait("the first results", lambda: self._results.numbers)
        broken, armed = (0, -1), False
        for kill, following in zip(plan, [*plan[1:], None]):
            if not armed:
                self._stops.arm(kill.phase, broken)
            stopped = self._wait_for_stop(kill)
            broken = self._newest()
            armed = following is not None and following.phase == "restore"
            if armed:  # before the kill: the job must not be faster
                self._stops.arm("restore", broken)
            self._carry_out(kill, stopped)
            if not armed:
                self._wait_for_deployment_behind(broken)
        self._finish()

    def last_logs(self) -> list[str]:
        """What the JobManagers have logged: of each driver its last lines, the newest driver last."""
        lines: list[str] = []
        for log in sorted(self._folder.glob("driver-*/log"), key=lambda log: log.stat().st_mtime):
            lines += [f"{log.parent.name}: {line}" for line in log.read_text().splitlines()[-LOG_LINES:]]
        return lines

    # ---- the job --------------------------------------------------------------------------------

    def _start_driver(self) -> None:
        report, number = self._report, len(self._drivers)
        folder = self._folder / f"driver-{number}"
        folder.mkdir()
        settings = {
            **_SETTINGS,
            "execution.checkpointing.dir": str(self._folder / "checkpoints"),
            **({"execution.target": "mini-cluster"} if report.target == "mini-cluster" else {}),
            **report.settings,
        }
        program = ("-m", "tests.soak.program", str(self._folder), self._address, str(number))
        self._drivers.append(Driver(MASTER, folder, configuration=settings, program=program))
        self._tell(f"driver {number} is process {self._driver.process.pid}")

    @property
    def _driver(self) -> Driver:
        return self._drivers[-1]

    def _raise_limit(self) -> None:
        count = self._results.read_new() // SPLITS + AHEAD
        if count > self._limit.count:
            self._limit = Limit(count)
            self._limit.write(self._folder)

    def _deployments(self) -> list[tuple[Deployment, int]]:
        """(deployment, pid of a slot) for each subtask that was opened, in this order."""
        with contextlib.suppress(FileNotFoundError):
            lines = (line.split() for line in (self._folder / "deployed").read_text().splitlines())
            return [((int(driver), int(attempt)), int(pid)) for driver, attempt, pid in lines]
        return []

    def _newest(self) -> Deployment:
        return max((deployment for deployment, _ in self._deployments()), default=(0, -1))

    def _slots(self) -> list[int]:
        """Processes of the newest deployment that live and belong to the driver."""
        newest = self._newest()
        pids = {pid for deployment, pid in self._deployments() if deployment == newest}
        return sorted(pid for pid in pids if self._driver.process.pid in ancestors(pid))

    # ---- waiting --------------------------------------------------------------------------------

    def _wait(self, awaited: str, condition: Callable[[], Any]) -> Any:
        """The first true value of ``condition``."""
        self._begin_to_wait(awaited)
        while not (found := condition()):
            self._meanwhile()
            time.sleep(0.05)
        return found

    def _wait_for_deployment_behind(self, broken: Deployment) -> None:
        self._wait(f"a deployment behind {broken}", lambda: self._newest() > broken)

    def _wait_for_stop(self, kill: Kill) -> Stopped:
        self._begin_to_wait(f"somebody in phase {kill.phase}")
        stopped = self._stops.wait(self._meanwhile)
        assert stopped.phase == kill.phase, stopped
        return stopped

    def _begin_to_wait(self, awaited: str) -> None:
        self._awaited, self._deadline_s = awaited, time.monotonic() + DEADLINE_S

    def _meanwhile(self) -> None:
        self._raise_limit()
        doubled = self._results.duplicated()
        if doubled:
            self._report.duplicated = len(doubled)
            raise SoakError(f"{len(doubled)} numbers were published more than once, the first is {doubled[0]}")
        ended = self._driver.process.poll()
        if ended is not None:
            raise SoakError(f"the driver ended with {ended} before {self._awaited}: {self._driver.errors()[-6_000:]}")
        self._check_deadline()

    def _check_deadline(self, what_is: Any = "") -> None:
        if time.monotonic() > self._deadline_s:
            what_is = what_is or self._driver.errors()[-6_000:]
            load = os.getloadavg()[0]  # a machine that is not given any time looks as if something hung
            raise SoakError(f"{self._awaited}: not within {DEADLINE_S:.0f} s (load {load:.0f}): {what_is}")

    # ---- kills ----------------------------------------------------------------------------------

    def _carry_out(self, kill: Kill, stopped: Stopped) -> None:
        if kill.phase == "before-commit":
            self._check_durable(stopped.checkpoint_id)
        described = (
            f"{kill.victim} in phase {kill.phase}, where process {stopped.pid} is; attempt {stopped.attempt}, "
            f"checkpoint {stopped.checkpoint_id}, newest deployment {self._newest()}"
        )
        victim = self._wait(f"a {kill.victim} to kill", lambda: self._kill(kill.victim, stopped.pid))
        self._report.kills[kill] += 1
        self._tell(f"kill {self._report.kills.total()}: process {victim}, {described}")
        stopped.go_on()
        if kill.victim == "driver":
            self._driver.process.wait(30)
            self._start_driver()  # at once: what the dead one has started may still be there

    def _kill(self, kind: str, stopped: int) -> int:
        """Kill what carries the slot that has stopped, or another one; 0: it has ended just now."""
        pid = self._driver.process.pid
        if kind != "driver":
            slots = self._slots()
            if not slots:
                return 0
            slot = stopped if stopped in slots and self._rng.random() < 0.5 else self._rng.choice(slots)
            try:
                pid = carrier(slot, kind)
            except (ValueError, LookupError, OSError):
                return 0
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return 0
        try:
            if pid not in marked(self._driver.mark):  # another process may have its number by now
                return 0
            signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)
        return pid

    def _check_durable(self, checkpoint_id: Optional[int]) -> None:
        storage = CheckpointStorage(self._folder / "checkpoints")
        found = (each for job_id in storage.job_ids() for each in storage.list_checkpoints(job_id))
        if not any(each.checkpoint_id == checkpoint_id and each.problem is None for each in found):
            raise SoakError(f"checkpoint {checkpoint_id} is to be published, but its metadata are not there")

    # ---- the end --------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._limit = Limit(self._limit.count, is_end=True)
        self._limit.write(self._folder)
        self._tell(f"all kills are done; the job ends after {self._limit.count} numbers of each split")
        try:
            ended = self._driver.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise SoakError(f"the job did not end within {DEADLINE_S:.0f} s") from None
        if ended != 0:
            raise SoakError(f"the job failed: {self._driver.errors()[-6_000:]}")
        self._check_results()
        self._begin_to_wait("the end of all processes, and empty folders")
        while left := self._left():
            self._check_deadline(left)
            time.sleep(0.2)

    def _check_results(self) -> None:
        results, report = self._results, self._report
        report.records = results.read_new()
        lost, duplicated = results.lost(self._limit.count), results.duplicated()
        wrong = results.wrong_counts(self._limit.count)
        report.lost, report.duplicated, report.wrong_counts = len(lost), len(duplicated), len(wrong)
        self._tell(
            f"{report.records} records; lost {lost[:20]}, duplicated {duplicated[:20]}, "
            f"wrong counts {list(wrong.items())[:20]}"
        )

    def _left(self) -> list[Any]:
        """Processes, and files of ours in the folders for temporary ones."""
        left: list[Any] = [process for driver in self._drivers for process in marked(driver.mark).items()]
        for driver in self._drivers:
            left += driver.temporary.iterdir()
            # A JVM that is killed leaves its own folders there.
            left += driver.temporary_of_executors.rglob("*flinkish*")
        return left

    def close(self) -> None:
        """Nothing of it stays."""
        for driver in self._drivers:
            driver.kill_rest()
        wait_until(lambda: not any(marked(driver.mark) for driver in self._drivers), "the end of all processes")
        for application in self._folder.glob("driver-*/application"):
            # What Spark's workers write is in Spark's own folder.
            shutil.rmtree(SPARK_HOME / "work" / application.read_text(), ignore_errors=True)
