"""The files that Spark wrote of DataFrames: who uses them, and when they go.  See ``dataframe``."""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any, Optional

from flinkish.shell.process import host_identity
from spark_plugin.spark_application import SparkApplication

log = logging.getLogger(__name__)

_PREFIX = "flinkish-dataframe-"
_OWNER_FILE = "owner.json"


class DataFrameFiles:
    """A temporary folder with a count of its users: the source object, and each job that reads it.

    Args:
        parent: the folder to make it in; None: the temporary folder.
        application: the Spark that writes the files, and removes them at its end where it is this process's.
    """

    def __init__(self, parent: Optional[str], application: Optional[SparkApplication] = None):
        self.folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        self.application = application
        self._users = 1
        self._dropped = False
        # Finalizers run at any moment, also in a thread that holds it.
        self._lock = threading.RLock()
        _stagings[self.folder] = self
        if parent is not None:
            Path(self.folder).chmod(0o770)  # executors may run as another user of the group
        Path(self.folder, _OWNER_FILE).write_text(json.dumps(_owner(os.getpid())))
        if application is not None:
            application.remove_at_end(self.folder)

    def acquire(self) -> None:
        with self._lock:
            self._users += 1

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            unused = self._users <= 0
        if unused:
            self.remove()

    def drop(self) -> None:
        """No job will start to read it; those that read it now still do."""
        with self._lock:
            first, self._dropped = not self._dropped, True
        if first:
            self.release()

    def remove(self) -> None:
        if _stagings.pop(self.folder, None) is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


_stagings: dict[str, DataFrameFiles] = {}


def files_in(folder: str) -> Optional[DataFrameFiles]:
    """The files that this process has in ``folder``, if they are still there."""
    return _stagings.get(folder)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stagings.clear)  # they are the parent's


@atexit.register
def _remove_all() -> None:
    for staging in list(_stagings.values()):
        staging.remove()


def drop_dataframes(identity: str) -> None:
    """Remove what was written of the DataFrames of a Spark, once no job reads it any more."""
    for staging in list(_stagings.values()):
        if staging.application is not None and staging.application.identity == identity:
            staging.drop()


def remove_stale(parent: Optional[str]) -> None:
    """Remove folders of DataFrames whose Spark has been stopped or, in ``parent``, whose driver on this
    machine has ended without doing so."""
    for staging in list(_stagings.values()):
        if staging.application is not None and not staging.application.is_alive():
            staging.drop()
    for folder in Path(parent or tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            owner = json.loads((folder / _OWNER_FILE).read_text())
            left = owner["place"] == _place() and owner != _owner(owner["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # just being made or removed, or another user's
        if left:
            log.info("removing the files of a driver that has ended pid=%d folder=%s", owner["pid"], folder)
            shutil.rmtree(folder, ignore_errors=True)


def _owner(pid: int) -> dict[str, Any]:
    """What tells the process ``pid`` from any other, also from a later one of the same number."""
    started: Optional[str] = None
    try:
        # The name of the program, in brackets, may hold blanks and brackets; field 22 is the start.
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        if not os.path.exists("/proc/self/stat"):  # a system without /proc
            try:
                os.kill(pid, 0)
                started = "some time"
            except ProcessLookupError:
                pass
            except PermissionError:
                started = "some time"
    return {"place": _place(), "pid": pid, "started": started}


def _place() -> str:
    """Where a process number means the same: machine since its start, container, user."""
    try:
        return f"{host_identity()}/pid{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return host_identity()
