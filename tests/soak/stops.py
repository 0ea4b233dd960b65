"""Where the job stops for its killer.

The code of the job says at each phase that it is there.  While the soak has armed that phase, the first subtask (or
committer) that comes by takes the one stop that there is, tells the soak who it is, and waits: until it is killed, or
told to go on because another process was.
"""

from __future__ import annotations

import json
import os
import select
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

from tests.integration.leftovers import lives

#: (Number of the driver since the soak began, attempt of the job in it): the later one is higher.
Deployment = tuple[int, int]

_GOES_ON = b"."


@dataclass(frozen=True)
class Stops:
    """The job's side; pickles.

    Args:
        folder: of the soak.
        address: of its socket, an abstract one.
        driver: number of the driver that runs the job.
    """

    folder: str
    address: str
    driver: int

    def deployed(self, attempt: int) -> None:
        """A subtask is opened in this process."""
        with open(f"{self.folder}/deployed", "a") as file:  # one write of one line: subtasks do not mix
            file.write(f"{self.driver} {attempt} {os.getpid()}\n")

    def pass_by(self, phase: str, attempt: Optional[int] = None, checkpoint_id: Optional[int] = None) -> None:
        """Waits if the soak wants this phase of a later deployment than the one that it has broken.

        Args:
            attempt: of the job; None: it is not known here, any one of this driver will do.
        """
        armed = f"{self.folder}/armed-{phase}"
        try:
            with open(armed) as file:
                broken: Deployment = tuple(json.load(file))
        except FileNotFoundError:
            return
        if (self.driver < broken[0]) if attempt is None else ((self.driver, attempt) <= broken):
            return
        try:
            os.rename(armed, f"{self.folder}/taken-{os.getpid()}")
        except FileNotFoundError:
            return  # another one was faster
        with socket.socket(socket.AF_UNIX) as soak:
            soak.connect(f"\0{self.address}")
            facts = {"phase": phase, "pid": os.getpid(), "attempt": attempt, "checkpoint_id": checkpoint_id}
            soak.sendall(json.dumps(facts).encode() + b"\n")
            soak.recv(1)  # an end without a word: the soak is gone


@dataclass(frozen=True)
class Stopped:
    """Who waits in which phase."""

    phase: str
    pid: int
    attempt: Optional[int]
    checkpoint_id: Optional[int]
    connection: socket.socket

    def go_on(self) -> None:
        with self.connection:
            try:
                self.connection.sendall(_GOES_ON)
            except ConnectionError:
                return  # it was the one that was killed


class StopServer:
    """The soak's side, for ``with``."""

    def __init__(self, folder: Path, address: str):
        self._folder = folder
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{address}")
        self._listener.listen()
        self._phase = ""

    def __enter__(self) -> "StopServer":
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._listener.close()

    def arm(self, phase: str, broken: Deployment) -> None:
        """Have the next one stop that comes by in ``phase``, of a deployment behind ``broken``."""
        hidden = self._folder / f".armed-{phase}"
        hidden.write_text(json.dumps(broken))
        hidden.rename(self._folder / f"armed-{phase}")  # nobody reads half of it
        self._phase = phase

    def wait(self, meanwhile: Callable[[], None], pause_s: float = 0.1) -> Stopped:
        """Who stops next.  ``meanwhile`` is called again and again, and raises what ends the wait."""
        while True:
            while not select.select([self._listener], [], [], pause_s)[0]:
                meanwhile()
                self._arm_again()
            connection, _ = self._listener.accept()
            with connection.makefile("rb") as lines:
                facts = lines.readline()
            if facts:
                for taken in self._folder.glob("taken-*"):
                    taken.unlink()
                return Stopped(**json.loads(facts), connection=connection)
            connection.close()  # it has ended before it could say anything

    def _arm_again(self) -> None:
        """Who took the stop has ended, with what an earlier kill has torn down, before it said so."""
        for taken in self._folder.glob("taken-*"):
            if not lives(int(taken.name.partition("-")[2])):
                taken.rename(self._folder / f"armed-{self._phase}")
