"""A small value that is replaced only by who has read its newest version: *compare and set*.

Of two processes that replace the same version one is refused, so no update is lost.  That is all that an
election of leaders and the record of a job need of a shared storage.

``FolderCell`` keeps it in a folder that all drivers share (POSIX, also NFS)::

    <folder>/v-<version>                    whole: written beside, synced, and linked to its name
    <folder>/.v-<version>.<random>.tmp      on its way, or left by a process that was killed

Making a *link* fails where its name is there, for one of any number of processes, also on NFS, where renaming would
replace.  The newest versions are kept, so the number that a process wants to make is either there, or has never been,
or is far behind the newest.  The last is so where a process was stopped for long, and it takes its own back.
"""

from __future__ import annotations

import os
import re
import secrets
from typing import Optional, Protocol

_KEPT = 20
_VERSION = re.compile(r"v-([0-9]{1,18})")
_UNFINISHED = re.compile(r"\.v-([0-9]{1,18})\.[0-9a-f]+\.tmp")


class ConditionalCell(Protocol):
    """One value.  Both methods block, and may raise whatever the store raises; after that a value that was to be
    written may be there or not."""

    def read(self) -> tuple[Optional[bytes], int]:
        """The value and its version; (None, 0): there has never been one."""

    def replace(self, value: bytes, version: int) -> Optional[int]:
        """Write ``value`` in place of version ``version``, durably.  Its version; None: refused."""


class FolderCell:
    """See the module.  ``folder`` may be missing; it is made with the first value."""

    def __init__(self, folder: str):
        self.folder = folder

    def read(self) -> tuple[Optional[bytes], int]:
        while True:
            newest = self._newest()
            if newest == 0:
                return None, 0
            try:
                with open(self._path(newest), "rb") as file:
                    return file.read(), newest
            except FileNotFoundError:
                continue  # many newer ones have come meanwhile

    def replace(self, value: bytes, version: int) -> Optional[int]:
        new = version + 1
        try:
            if not self._make(value, new):
                return None
        except OSError as error:  # names the folder, and no file that has another name at each try
            raise OSError(error.errno, error.strerror, self.folder) from error
        newest = self._newest()
        if new <= newest - _KEPT:
            _remove(self._path(new))
            raise OSError(f"version {new} of {self.folder} was made long ago, by whom is not known")
        self._prune(newest)
        return new

    def _make(self, value: bytes, version: int) -> bool:
        """Whether ``version`` is the one that this call has made; False: it was there."""
        os.makedirs(self.folder, exist_ok=True)
        unfinished = f"{self.folder}/.v-{version}.{secrets.token_hex(8)}.tmp"
        file = open(unfinished, "xb")
        try:
            with file:
                file.write(value)
                file.flush()
                os.fsync(file.fileno())
            if not _link(unfinished, self._path(version)):
                return False
        finally:  # also where the disk is full
            os.unlink(unfinished)
        _sync_folder(self.folder)
        return True

    def _newest(self) -> int:
        return max(self._versions(_VERSION), default=0)

    def _versions(self, pattern: re.Pattern) -> dict[int, str]:
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return {}
        return {int(match[1]): match[0] for match in map(pattern.fullmatch, names) if match}

    def _prune(self, newest: int) -> None:
        for pattern in (_VERSION, _UNFINISHED):
            for version, name in self._versions(pattern).items():
                if version <= newest - _KEPT:
                    _remove(f"{self.folder}/{name}")

    def _path(self, version: int) -> str:
        return f"{self.folder}/v-{version}"


def _link(path: str, name: str) -> bool:
    """Whether ``path`` has got ``name``; False: it was there."""
    try:
        os.link(path, name)
    except FileExistsError:
        # A repeated request of NFS meets the link that the first one has made.
        return os.stat(path).st_nlink == 2
    return True


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return  # another process prunes too


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
