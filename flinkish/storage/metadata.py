"""``_metadata``: what a checkpoint or savepoint consists of, as one JSON document.

Written last, so a folder that has a whole one is a whole checkpoint.  Files that lie in the folder itself
are named relative to it, so a savepoint's folder can be moved or copied; others (shared files) by URI.
Bytes are base64.  The last member, ``"crc32":"<8 digits>"``, is the checksum of all bytes before the comma in
front of it, and every version from 2 on ends so; version 1 ended with ``"end":true``, which told a document that
was cut off, but none that was damaged.  A newer version is refused with both numbers; fields that this version does
not know are not.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
from typing import Any, Callable, Mapping
from zlib import crc32

from flinkish.errors import CorruptSnapshotError
from flinkish.messages.checkpoints import (
    Bytes,
    CheckpointCommit,
    CompletedCheckpoint,
    DistributionMode,
    FileHandle,
    IncrementalKeyedStateHandle,
    InFlightHandle,
    InFlightPart,
    InlineBytes,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorSnapshot,
    OperatorStateHandle,
    OperatorSubtaskState,
    SnapshotKind,
    VertexInFlight,
)
from flinkish.messages.deployment import EdgeDescriptor

FORMAT = "flinkish-checkpoint"
VERSION = 2  # 1 had no checksum
#: How each document begins, and those of Flink (``Checkpoints.HEADER_MAGIC_NUMBER``).
_HEAD = b'{"format":"%s"' % FORMAT.encode()
_FLINK_HEAD = bytes.fromhex("4960672d")


def encode_metadata(checkpoint: CompletedCheckpoint) -> bytes:
    """The document of ``checkpoint``; its ``location`` is where it will lie."""
    files = _Files(checkpoint.location)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "flinkish": checkpoint.flinkish_version,
        "job_id": checkpoint.job_id,
        "job_name": checkpoint.job_name,
        "run_id": checkpoint.run_id,
        "checkpoint_id": checkpoint.checkpoint_id,
        "timestamp_ms": checkpoint.timestamp_ms,
        "completed_ms": checkpoint.completed_ms,
        "kind": checkpoint.kind.value,
        "operators": [_operator_to_json(operator, files) for operator in checkpoint.operators.values()],
        "in_flight": [_vertex_to_json(vertex, files) for vertex in checkpoint.in_flight],
        "commits": [_commit_to_json(commit) for commit in checkpoint.commits],
    }
    data = json.dumps(document, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return data[:-1] + _end(data[:-1])


def _end(data: bytes) -> bytes:
    """What follows on ``data``, the document without its last bracket."""
    return b',"crc32":"%08x"}' % crc32(data)


_END_SIZE = len(_end(b""))


def decode_metadata(data: bytes, location: str) -> CompletedCheckpoint:
    """The checkpoint whose document lies in the folder ``location``.

    Raises:
        CorruptSnapshotError: the document is cut off, damaged or of a newer version.
    """
    try:
        document = json.loads(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise _corrupt(location, _why_no_document(data, error)) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _corrupt(location, f"{_NOT_OURS}: it is JSON without format {FORMAT}")
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise _corrupt(location, f"it has the unknown version {version!r:.100}")
    if version > 1 and data[-_END_SIZE:] != _end(data[:-_END_SIZE]):
        raise _corrupt(location, f"it is cut off or damaged, it has {len(data)} bytes: its checksum is wrong")
    if version > VERSION:
        raise CorruptSnapshotError(
            "could not read the metadata of a newer flinkish",
            where=f"{location}/_metadata",
            why=f"it has version {version}, this flinkish reads up to {VERSION}",
            do="restore with the flinkish that has written it, or a newer one",
            version=version,
        )
    try:
        if version == 1 and document["end"] is not True:
            raise ValueError("it has no end")
        return _checkpoint_from_json(document, _Files(location))
    except KeyError as error:
        raise _corrupt(location, f"it is damaged: {error} is missing") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise _corrupt(location, f"it is damaged: {error}") from error


_NOT_OURS = "it is not a metadata file of flinkish"


def _why_no_document(data: bytes, error: Exception) -> str:
    if not data:
        return f"{_NOT_OURS}: it is empty"
    if data.startswith(_HEAD) or _HEAD.startswith(data):
        return f"it is cut off or damaged, it has {len(data)} bytes: {error}"
    if data.startswith(_FLINK_HEAD):
        return f"{_NOT_OURS} but of Apache Flink, whose checkpoints cannot be read"
    return f"{_NOT_OURS}: it begins with {data[:16]!r}"


def _corrupt(location: str, why: str) -> CorruptSnapshotError:
    return CorruptSnapshotError(
        "could not read the metadata of a checkpoint",
        where=f"{location}/_metadata",
        why=why,
        do="restore from another checkpoint or savepoint",
    )


def _checkpoint_from_json(document: Mapping[str, Any], files: "_Files") -> CompletedCheckpoint:
    operators = [_operator_from_json(operator, files) for operator in document["operators"]]
    return CompletedCheckpoint(
        job_id=_typed(document["job_id"], str),
        job_name=_typed(document["job_name"], str),
        run_id=_typed(document["run_id"], str),
        checkpoint_id=_typed(document["checkpoint_id"], int),
        timestamp_ms=_typed(document["timestamp_ms"], int),
        completed_ms=_typed(document["completed_ms"], int),
        kind=SnapshotKind(document["kind"]),
        location=files.location,
        operators={operator.operator_id: operator for operator in operators},
        in_flight=tuple(_vertex_from_json(vertex, files) for vertex in document["in_flight"]),
        commits=tuple(map(_commit_from_json, document["commits"])),
        flinkish_version=_typed(document["flinkish"], str),
    )


# ---- operators ----------------------------------------------------------------------------------


def _operator_to_json(operator: OperatorSnapshot, files: "_Files") -> dict:
    return {
        "operator_id": operator.operator_id,
        "uid": operator.uid,
        "name": operator.name,
        "parallelism": operator.parallelism,
        "max_parallelism": operator.max_parallelism,
        "subtasks": _by_index(operator.subtasks, lambda state: _subtask_to_json(state, files)),
        "finished_subtasks": sorted(operator.finished_subtasks),
        "coordinator": None if operator.coordinator is None else _base64(operator.coordinator),
    }


def _operator_from_json(found: Mapping[str, Any], files: "_Files") -> OperatorSnapshot:
    return OperatorSnapshot(
        operator_id=_typed(found["operator_id"], str),
        uid=None if found["uid"] is None else _typed(found["uid"], str),
        name=_typed(found["name"], str),
        parallelism=_typed(found["parallelism"], int),
        max_parallelism=_typed(found["max_parallelism"], int),
        subtasks=_from_index(found["subtasks"], lambda state: _subtask_from_json(state, files)),
        finished_subtasks=frozenset(_typed(index, int) for index in found["finished_subtasks"]),
        coordinator=None if found["coordinator"] is None else _bytes(found["coordinator"]),
    )


def _subtask_to_json(state: OperatorSubtaskState, files: "_Files") -> dict:
    operator = None
    if state.operator is not None:
        operator = {
            name: [mode.value, list(map(_base64, entries))]
            for name, (mode, entries) in state.operator.states.items()
        }
    return {"keyed": [_keyed_to_json(handle, files) for handle in state.keyed], "operator": operator}


def _subtask_from_json(found: Mapping[str, Any], files: "_Files") -> OperatorSubtaskState:
    operator = None
    if found["operator"] is not None:
        operator = OperatorStateHandle(
            {
                name: (DistributionMode(mode), tuple(map(_bytes, entries)))
                for name, (mode, entries) in found["operator"].items()
            }
        )
    return OperatorSubtaskState(tuple(_keyed_from_json(handle, files) for handle in found["keyed"]), operator)


def _keyed_to_json(handle: Any, files: "_Files") -> dict:
    groups = [handle.key_groups.start, handle.key_groups.end]
    if isinstance(handle, KeyedStateHandle):
        return {"key_groups": groups, "content": files.to_json(handle.content)}
    return {
        "key_groups": groups,
        "backend": handle.backend,
        "backend_id": handle.backend_id,
        "checkpoint_id": handle.checkpoint_id,
        "shared": {name: files.to_json(part) for name, part in handle.shared.items()},
        "private": {name: files.to_json(part) for name, part in handle.private.items()},
    }


def _keyed_from_json(
    found: Mapping[str, Any], files: "_Files"
) -> KeyedStateHandle | IncrementalKeyedStateHandle:
    start, end = found["key_groups"]
    groups = KeyGroupRange(_typed(start, int), _typed(end, int))
    if "content" in found:
        return KeyedStateHandle(groups, files.from_json(found["content"]))
    return IncrementalKeyedStateHandle(
        key_groups=groups,
        backend=_typed(found["backend"], str),
        backend_id=_typed(found["backend_id"], str),
        checkpoint_id=_typed(found["checkpoint_id"], int),
        shared={_file_name(name): files.file_from_json(part) for name, part in found["shared"].items()},
        private={_file_name(name): files.from_json(part) for name, part in found["private"].items()},
    )


def _vertex_to_json(vertex: VertexInFlight, files: "_Files") -> dict:
    return {
        "vertex_id": vertex.vertex_id,
        "by_subtask": _by_index(
            vertex.by_subtask,
            lambda handles: [
                {"content": files.to_json(handle.content), "parts": [_part_to_json(part) for part in handle.parts]}
                for handle in handles
            ],
        ),
    }


def _vertex_from_json(found: Mapping[str, Any], files: "_Files") -> VertexInFlight:
    def handles(listed: Any) -> tuple[InFlightHandle, ...]:
        return tuple(
            InFlightHandle(files.from_json(handle["content"]), tuple(map(_part_from_json, handle["parts"])))
            for handle in listed
        )

    return VertexInFlight(_typed(found["vertex_id"], str), _from_index(found["by_subtask"], handles))


def _part_to_json(part: InFlightPart) -> list:
    return [
        dataclasses.astuple(part.edge), part.sender, part.receiver, part.sent, part.offset, part.length, part.checksum
    ]  # fmt: skip


def _part_from_json(found: Any) -> InFlightPart:
    edge, sender, receiver, sent, offset, length, checksum = found
    edge_id, source, target, input_index, partitioner, unaligned = edge
    return InFlightPart(
        EdgeDescriptor(
            _typed(edge_id, int),
            _typed(source, str),
            _typed(target, str),
            _typed(input_index, int),
            _typed(partitioner, str),
            _typed(unaligned, bool),
        ),
        None if sender is None else _typed(sender, int),
        _typed(receiver, int),
        _typed(sent, bool),
        _typed(offset, int),
        _typed(length, int),
        _typed(checksum, int),
    )


def _commit_to_json(commit: CheckpointCommit) -> dict:
    return {
        "job_id": commit.job_id,
        "run_id": commit.run_id,
        "checkpoint_id": commit.checkpoint_id,
        "committables": {operator: list(map(_base64, parts)) for operator, parts in commit.committables.items()},
    }


def _commit_from_json(found: Mapping[str, Any]) -> CheckpointCommit:
    return CheckpointCommit(
        job_id=_typed(found["job_id"], str),
        run_id=_typed(found["run_id"], str),
        checkpoint_id=_typed(found["checkpoint_id"], int),
        committables={operator: tuple(map(_bytes, parts)) for operator, parts in found["committables"].items()},
    )


# ---- files and values ---------------------------------------------------------------------------


class _Files:
    """Handles as JSON: a name below ``location``, a URI, or the bytes themselves."""

    def __init__(self, location: str):
        self.location = location.rstrip("/")

    def to_json(self, content: Bytes) -> dict:
        if isinstance(content, InlineBytes):
            return {"bytes": _base64(content.data)}
        folder, slash, name = content.uri.rpartition("/")
        if slash and folder == self.location:
            return {"file": name, "size": content.size}
        return {"uri": content.uri, "size": content.size}

    def from_json(self, found: Mapping[str, Any]) -> Bytes:
        return InlineBytes(_bytes(found["bytes"])) if "bytes" in found else self.file_from_json(found)

    def file_from_json(self, found: Mapping[str, Any]) -> FileHandle:
        size = _typed(found["size"], int)
        if size < 0:
            raise ValueError(f"a file of {size} bytes")
        if "file" in found:
            return FileHandle(f"{self.location}/{_file_name(found['file'])}", size)
        uri = _typed(found["uri"], str)
        if ".." in uri.split("/"):
            raise ValueError(f"{uri!r} leads out of its folder")
        return FileHandle(uri, size)


def _file_name(name: Any) -> str:
    if _typed(name, str) in ("", ".", "..") or "/" in name or "\0" in name or len(name) > 1024:
        raise ValueError(f"{name[:100]!r} is no name of a file")
    return name


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: Any) -> bytes:
    try:
        return base64.b64decode(_typed(text, str), validate=True)
    except binascii.Error as error:
        raise ValueError(f"bytes are not base64: {error}") from None


def _by_index(values: Mapping[int, Any], to_json: Callable[[Any], Any]) -> list:
    return [[index, to_json(value)] for index, value in sorted(values.items())]


def _from_index(found: Any, from_json: Callable[[Any], Any]) -> dict[int, Any]:
    return {_typed(index, int): from_json(value) for index, value in found}


def _typed(value: Any, cls: type) -> Any:
    if type(value) is not cls:
        raise TypeError(f"{value!r:.100} is a {type(value).__name__}, not a {cls.__name__}")
    return value
