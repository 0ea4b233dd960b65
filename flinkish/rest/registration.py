"""How programs of the same user on the same machine find a driver: by a small file with its address and token.

The files lie in a folder that only the user may enter, ``/tmp/flinkish-UID`` or what the environment variable
FLINKISH_RUN_DIR names; a folder or file of somebody else is not trusted.  A driver holds a lock on its file while it
lives, so a file without a lock is left over from one that was killed: who finds it removes it, and an empty folder.
(A process id would not do: it may have been given to another program, or be one of another container.)  Those who
look are the command line and, when they have lost their driver, the fork servers on that machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import stat
from dataclasses import dataclass
from typing import Optional

from flinkish.errors import ExternalError

RUN_DIR_VARIABLE = "FLINKISH_RUN_DIR"
FORMAT, VERSION = "flinkish-driver", 1

_SUFFIX = ".json"
_BYTES_MAX = 4096


@dataclass(frozen=True)
class DriverAddress:
    """``host`` and ``port`` of its REST; ``pid``: for people."""

    host: str
    port: int
    token: str
    pid: int = 0

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def run_folder() -> str:
    # Not TMPDIR: the driver's is often not the one of who looks for it.
    return os.environ.get(RUN_DIR_VARIABLE) or f"/tmp/flinkish-{os.geteuid()}"


class Registration:
    """The file of a driver, from now on until ``close``.

    Raises:
        ExternalError: the folder is somebody else's.
        OSError: the file cannot be written.
    """

    def __init__(self, driver: DriverAddress):
        document = {"format": FORMAT, "version": VERSION, **vars(driver)}
        while True:
            folder = _make_folder()
            self._path = f"{folder}/{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
            try:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # the last driver that has left has just taken the folder along
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            if os.fstat(self._descriptor).st_nlink:
                break
            os.close(self._descriptor)  # somebody took it for one that was left over
        os.write(self._descriptor, json.dumps(document).encode())

    def close(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._descriptor)
        _remove_if_empty(os.path.dirname(self._path))

    def leave_to_parent(self) -> None:
        """In a process that was forked off: the lock is the parent's alone."""
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, self._descriptor, inheritable=False)
        os.close(null)


def find_drivers() -> list[DriverAddress]:
    """Drivers of this user that live; what dead ones have left is removed.

    Raises:
        ExternalError: the folder is somebody else's.
    """
    folder = run_folder()
    try:
        _check_folder(folder)
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    found = [_read(f"{folder}/{name}") for name in names if name.endswith(_SUFFIX)]
    _remove_if_empty(folder)
    return [driver for driver in found if driver is not None]


def _make_folder() -> str:
    folder = run_folder()
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    with contextlib.suppress(FileNotFoundError):  # it has gone again; who makes a file in it finds out
        _check_folder(folder)
    return folder


def _remove_if_empty(folder: str) -> None:
    """A driver that is about to write a file there makes it again."""
    with contextlib.suppress(OSError):  # others have files there
        os.rmdir(folder)


def _check_folder(folder: str) -> None:
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ExternalError(
            "could not use the folder in which drivers are found",
            where=folder,
            why="it must be a folder of this user's alone (mode 0700), for the tokens in it let one change jobs",
            do=f"remove it if it is not yours, or name another one by the environment variable {RUN_DIR_VARIABLE}",
        )


def _read(path: str) -> Optional[DriverAddress]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None  # it has just gone, or is none of ours
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _decode(os.read(descriptor, _BYTES_MAX))
        with contextlib.suppress(FileNotFoundError):  # another one was faster
            os.unlink(path)
        return None
    finally:
        os.close(descriptor)


def _decode(data: bytes) -> Optional[DriverAddress]:
    """None: it is being written, or is of a version that is not known here."""
    try:
        document = json.loads(data)
        if (document.pop("format"), document.pop("version")) != (FORMAT, VERSION):
            return None
        return DriverAddress(**document)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
