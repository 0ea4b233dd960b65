"""Folders for state on the disk of one process, and who removes them.

Each process makes one folder ``flinkish-state-<pid>-...`` in its temporary folder when it first needs disk, with its
identity in it; folders on other disks (``state.backend.rocksdb.localdir``) are named there too.  It goes when

* the process has closed what lies in it, or
* its supervisor sees the process end, also by SIGKILL (`remove_folders_of`), or
* the next supervisor or user of disk on that machine finds that its owner has ended (`remove_stale`).
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Optional, Sequence

log = logging.getLogger(__name__)

_PREFIX = "flinkish-state-"
_OWNER = "owner.json"


class LocalFolders:
    """Of one process.  ``make`` gives a new folder for one user; ``remove`` ends it, and with the last one the
    process's own."""

    def __init__(self) -> None:
        self._pid = 0
        self._home: Optional[Path] = None
        self._places: list[str] = []
        self._used: set[str] = set()

    def make(self, directories: Sequence[str] = ()) -> str:
        """A new empty folder.

        Args:
            directories: the disks to choose from, in turn; none: the temporary folder.
        Raises:
            OSError: it could not be made.
        """
        if self._home is None or self._pid != os.getpid():  # a forked child owns nothing of its parent's
            remove_stale()
            self._pid, self._places, self._used = os.getpid(), [], set()
            self._home = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{self._pid}-"))  # mode 0700
            self._write_owner()
        parent = str(self._home)
        if directories:
            directory = os.path.abspath(directories[len(self._used) % len(directories)])
            os.makedirs(directory, exist_ok=True)
            parent = os.path.join(directory, self._home.name)
            if parent not in self._places:
                self._places.append(parent)
                self._write_owner()  # first, so that it is found whatever happens
                os.makedirs(parent, mode=0o700, exist_ok=True)
        folder = tempfile.mkdtemp(prefix="db-", dir=parent)
        self._used.add(folder)
        return folder

    def remove(self, folder: str) -> None:
        """What does not go (another user's mount, a full disk) is swept later."""
        shutil.rmtree(folder, ignore_errors=True)
        self._used.discard(folder)
        if not self._used and self._home is not None and self._pid == os.getpid():
            _remove(self._home)
            self._home = None

    def _write_owner(self) -> None:
        assert self._home is not None
        text = json.dumps({"owner": _identity(self._pid), "places": self._places})
        beside = self._home / (_OWNER + ".new")
        beside.write_text(text)
        os.replace(beside, self._home / _OWNER)


#: Of this process.
LOCAL_FOLDERS = LocalFolders()


def remove_folders_of(pid: int) -> None:
    """The process ``pid`` has ended."""
    for folder in _folders(f"{_PREFIX}{pid}-*"):
        found = _owner_of(folder)
        if found is not None and found["owner"] != _identity(pid):
            _remove(folder)


def remove_stale() -> None:
    """Folders whose processes have ended on this machine."""
    for folder in _folders(f"{_PREFIX}*"):
        found = _owner_of(folder)
        if found is None or found["owner"]["place"] != _place():
            continue  # just being made or removed, another user's, or another container's
        if found["owner"] != _identity(found["owner"]["pid"]):
            log.info("removing state of a process that has ended folder=%s", folder)
            _remove(folder)


def _folders(pattern: str) -> list[Path]:
    try:
        return list(Path(tempfile.gettempdir()).glob(pattern))
    except OSError as error:  # no descriptor is free, say: a later sweep finds them
        log.warning("could not look for folders of state error=%s", error)
        return []


def _remove(folder: Path) -> None:
    found = _owner_of(folder)
    for place in [] if found is None else found["places"]:
        if os.path.basename(place) == folder.name:
            shutil.rmtree(place, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _owner_of(folder: Path) -> Optional[dict[str, Any]]:
    try:
        found = json.loads((folder / _OWNER).read_text())
        return found if {"owner", "places"} <= found.keys() and {"pid", "place"} <= found["owner"].keys() else None
    except (OSError, ValueError, AttributeError):
        return None


def _identity(pid: int) -> dict[str, Any]:
    """What tells a process from any other, also from a later one of the same number."""
    started: Optional[str] = None
    try:
        # The name of the program, in brackets, may hold blanks and brackets; field 22 is the start, 3 the state.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        started = None if fields[0] in "ZX" else fields[19]
    except OSError:
        pass
    return {"pid": pid, "started": started, "place": _place()}


def _place() -> str:
    """Machine and process namespace: numbers of processes mean nothing elsewhere."""
    try:
        return f"{os.uname().nodename} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return os.uname().nodename
