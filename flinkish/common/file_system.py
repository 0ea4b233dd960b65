"""Paths to files: local ones and those of any store that ``pyarrow.fs`` knows (s3, gs, hdfs ...)."""

from __future__ import annotations

import os
import re
from typing import Any, Mapping, Optional
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from flinkish.errors import InvalidJobError

#: Flink's keys of the S3 file systems -> arguments of ``pyarrow.fs.S3FileSystem``.
S3_OPTIONS = {
    "s3.access-key": "access_key",
    "s3.secret-key": "secret_key",
    "s3.endpoint": "endpoint_override",
    "s3.endpoint.region": "region",
}


def absolute_uri(path: Any) -> str:
    """``path`` in a form that means the same in each process: slots have other working folders."""
    try:
        text = os.fspath(path)
    except TypeError:
        raise InvalidJobError(
            f"could not use {path!r} as a path",
            why=f"it is a {type(path).__name__}",
            do="give a str or a pathlib.Path",
        ) from None
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    if not text:
        raise InvalidJobError("could not use an empty path", do="name a file or a folder")
    if "\0" in text or not _is_unicode(text):
        raise InvalidJobError(
            f"could not use the path {text!r}",
            why="it holds a NUL" if "\0" in text else "it is no UTF-8, which pyarrow.fs wants of paths",
            do="rename the file or folder",
        )
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
        return text
    return os.path.abspath(os.path.expanduser(text))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a file name of other bytes, as Python reads it
        return False
    return True


def open_file_system(
    uri: str, configuration: Optional[Mapping[str, Any]] = None
) -> tuple[fs.FileSystem, str]:
    """The file system of ``uri`` and the path inside it.

    Args:
        configuration: may have Flink's ``s3.endpoint``, ``s3.access-key``, ``s3.secret-key`` and
            ``s3.endpoint.region``; a URI says the same in its query (``?endpoint_override=...&region=...``),
            which comes first.
    """
    if uri.startswith("/"):
        return fs.LocalFileSystem(), uri
    try:
        options = _s3_options(configuration) if uri.startswith("s3://") else {}
        if options and "?" not in uri and "@" not in uri:
            return fs.S3FileSystem(**options), uri[len("s3://") :]
        return fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidJobError(
            f"could not open {without_secrets(uri)}",
            why=f"{type(error).__name__}: {error}".replace(uri, without_secrets(uri)),
            do="give a local path, or a URI that pyarrow.fs knows, such as s3://bucket/folder",
        ) from error


def _s3_options(configuration: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    options = {
        argument: str(configuration[key])
        for key, argument in S3_OPTIONS.items()
        if configuration and configuration.get(key)
    }
    scheme, found, address = options.get("endpoint_override", "").partition("://")
    if found:
        options.update(scheme=scheme, endpoint_override=address)
    return options


def without_secrets(uri: str) -> str:
    """The URI without its query and without user and password, for names and messages.

    >>> without_secrets("s3://key:secret@bucket/checkpoints?endpoint_override=localhost:9000")
    's3://bucket/checkpoints'
    """
    if uri.startswith("/"):
        return uri
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
