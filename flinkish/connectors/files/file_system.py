"""Files behind paths, folders and patterns."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import Any, Sequence

from pyarrow import fs

from flinkish.common.file_system import absolute_uri, open_file_system
from flinkish.errors import InvalidJobError

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

    Names that begin with ``.`` or ``_`` are hidden, as Hadoop and Spark have it, unless a path names
    such a file itself.  Sorted by path within each entry of ``uris``.

    Raises:
        InvalidJobError: an entry leads to no file.
    """
    found: list[FoundFile] = []
    for uri in uris:
        system, path = open_file_system(uri)
        scheme = uri[: len(uri) - len(path)] if uri.endswith(path) else None
        files = _find(system, path)
        if files is None:
            raise InvalidJobError(
                f"could not find {uri}", why="there is no such file or folder", do="check the path"
            )
        for info in sorted(files, key=lambda file: file.path):
            name = info.path if scheme is None else scheme + info.path
            found.append(FoundFile(name, info.path, info.size))
    return found


def _find(system: fs.FileSystem, path: str) -> Any:
    if _GLOB.search(path):
        parts = path.split("/")
        first = next(i for i, part in enumerate(parts) if _GLOB.search(part))
        base, pattern = "/".join(parts[:first]) or "/", parts[first:]
        selector = fs.FileSelector(base, allow_not_found=True, recursive=len(pattern) > 1)
        return [
            info
            for info in system.get_file_info(selector)
            if info.type == fs.FileType.File
            and _matches(_below(info.path, base), pattern)
            and not _hidden(_below(info.path, base))
        ] or None
    info = system.get_file_info(path)
    if info.type == fs.FileType.File:
        return [info]
    if info.type != fs.FileType.Directory:
        return None
    return [
        child
        for child in system.get_file_info(fs.FileSelector(path, recursive=True))
        if child.type == fs.FileType.File and not _hidden(_below(child.path, path))
    ]


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
