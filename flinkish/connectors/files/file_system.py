"""Paths to files: local ones and those of any store that ``pyarrow.fs`` knows (s3, gs, hdfs ...)."""

from __future__ import annotations

import fnmatch
import os
import re
from dataclasses import dataclass
from typing import Any, Sequence

import pyarrow as pa
from pyarrow import fs

from flinkish.errors import InvalidJobError

_GLOB = re.compile(r"[*?\[]")


def absolute_uri(path: Any) -> str:
    """``path`` in a form that means the same in each process: slots have other working folders."""
    text = os.fspath(path)
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    if not text:
        raise InvalidJobError("could not use an empty path", do="name a file or a folder")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
        return text
    return os.path.abspath(os.path.expanduser(text))


def open_file_system(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system of ``uri`` and the path inside it."""
    if uri.startswith("/"):
        return fs.LocalFileSystem(), uri
    try:
        return fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError) as error:
        raise InvalidJobError(
            f"could not open {uri}",
            why=f"{type(error).__name__}: {error}",
            do="give a local path, or a URI that pyarrow.fs knows, such as s3://bucket/folder",
        ) from error


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
