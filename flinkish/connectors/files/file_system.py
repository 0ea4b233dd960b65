"""Paths to files: local ones and those of any store that ``pyarrow.fs`` knows (s3, gs, hdfs ...)."""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
from dataclasses import dataclass
from typing import Any, Iterator, Sequence
from urllib.parse import quote, urlsplit

from pyarrow import fs

from flinkish.common.file_system import absolute_uri, open_file_system
from flinkish.errors import ExternalError, InvalidJobError

__all__ = ["FoundFile", "absolute_uri", "find_files", "open_file_system"]

_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class FoundFile:
    """``uri`` opens it again in another process; ``path`` is its path inside the file system."""

    uri: str
    path: str
    size: int


def find_files(uris: Sequence[str]) -> list[FoundFile]:
    """Files behind paths, folders (with their subfolders) and patterns (``*``, ``?``, ``[]``, ``**``).

    An entry that is there as it is written is no pattern.  Names that begin with ``.`` or ``_`` are
    hidden, as Hadoop and Spark have it, unless a path names such a file itself.  Links are followed, but
    not back into a folder that they lie in.  Sorted by path within each entry of ``uris``.

    Raises:
        InvalidJobError: an entry leads to no file.
        ExternalError: a folder cannot be listed.
    """
    found: list[FoundFile] = []
    for uri in uris:
        system, path = open_file_system(uri)
        try:
            files = _find(system, path)
        except (OSError, UnicodeError) as error:
            raise ExternalError(
                f"could not list the files of {uri}",
                why=f"{type(error).__name__}: {error}",
                do="see whether this user may read the folder and all below it, and whether names are UTF-8",
            ) from error
        if files is None:
            raise InvalidJobError(
                f"could not find {uri}", why="there is no such file or folder", do="check the path"
            )
        for info in sorted(files, key=lambda file: file.path):
            found.append(FoundFile(uri_of(info.path, uri), info.path, info.size))
    return found


def uri_of(path: str, uri: str) -> str:
    """What opens ``path``, which was found in the file system of ``uri``, in another process.

    >>> uri_of("bucket/in/a b#1.txt", "s3://bucket/in?region=eu-west-1")
    's3://bucket/in/a%20b%231.txt?region=eu-west-1'
    >>> uri_of("/in/a b.txt", "hdfs://host:9000/in"), uri_of("/in/a b.txt", "file:///in")
    ('hdfs://host:9000/in/a%20b.txt', '/in/a b.txt')
    """
    parts = urlsplit(uri)
    if uri.startswith("/") or parts.scheme == "file":
        return path
    if not path.startswith("/"):  # it begins with the bucket, which is the URI's authority
        path = path.partition("/")[2]
    return parts._replace(path="/" + quote(path.lstrip("/"))).geturl()


def _find(system: fs.FileSystem, path: str) -> Any:
    info = system.get_file_info(path)
    if info.type == fs.FileType.NotFound and _GLOB.search(path):
        parts = path.split("/")
        first = next(i for i, part in enumerate(parts) if _GLOB.search(part))
        base, pattern = "/".join(parts[:first]) or "/", parts[first:]
        return [
            info
            for info in _files(system, base, recursive=len(pattern) > 1)
            if _matches(_below(info.path, base), pattern)
            and not _hidden(_below(info.path, base))
        ] or None
    if info.type == fs.FileType.File:
        return [info]
    if info.type != fs.FileType.Directory:
        return None
    files = _files(system, path, recursive=True)
    return [child for child in files if not _hidden(_below(child.path, path))]


def _files(system: fs.FileSystem, folder: str, recursive: bool) -> list[fs.FileInfo]:
    if isinstance(system, fs.LocalFileSystem):
        return list(_local_files(folder, recursive, ()))
    selector = fs.FileSelector(folder, allow_not_found=True, recursive=recursive)
    return [info for info in system.get_file_info(selector) if info.type == fs.FileType.File]


def _local_files(folder: str, recursive: bool, above: tuple[Any, ...]) -> Iterator[fs.FileInfo]:
    """pyarrow follows a link to a folder above 40 times.  ``above``: the folders that this one lies in."""
    try:
        status = os.stat(folder)
        entries = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    above = (*above, (status.st_dev, status.st_ino))
    for name in entries:
        path = os.path.join(folder, name)
        try:
            status = os.stat(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):  # a link that leads nowhere, a file just deleted
                continue
            raise
        if stat.S_ISREG(status.st_mode):
            name.encode()  # pyarrow opens no other names
            yield fs.FileInfo(path, fs.FileType.File, size=status.st_size)
        elif recursive and stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) not in above:
            yield from _local_files(path, recursive, above)


def _below(path: str, base: str) -> list[str]:
    return path[len(base.rstrip("/")) :].strip("/").split("/")


def _hidden(parts: list[str]) -> bool:
    return any(part.startswith((".", "_")) for part in parts)


def _matches(parts: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[skip:], pattern[1:]) for skip in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
