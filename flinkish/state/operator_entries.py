"""Entries of operator state as bytes.  Each says itself how it is read, because it is dealt out without being read::

    pickle                                     of a state without declared types, whose values hold no records
    "E", version (1 byte), length of the header (4), header, pickle                            of all other states

The header is JSON: the types that the descriptor declared by role, and the record layouts (`serializers`) of the
snapshot, which the pickle names by number.  It is the same for all entries of one state of one snapshot.  Numbers are
little endian.  A pickle alone is also what older versions wrote of every entry: records in it are restored by name,
without being compared with their class.
"""

from __future__ import annotations

import json
import pickle
import struct
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterable, Mapping

from flinkish.errors import CorruptSnapshotError, FlinkishError, UserError
from flinkish.state.declared_types import DeclaredType
from flinkish.state.serializers import LayoutReader, LayoutWriter, RecordLayout, is_built_in

VERSION = 3  # 2 had members of Enums by value; 1 had no types of fields in record layouts

_HEADER = struct.Struct("<cBI")
_MARK = b"E"  # a pickle begins with 0x80


def encode_entries(
    entries: Iterable[Any], declared: Mapping[str, DeclaredType], operator: str, state: str
) -> tuple[bytes, ...]:
    """Raises UserError: an entry cannot be pickled."""
    layouts = LayoutWriter()
    bodies = tuple(_pickled(entry, layouts, operator, state) for entry in entries)
    if not declared and not layouts.layouts:
        return bodies
    # Who reads state as data finds the types in the values; a schema beside each entry would be larger than most.
    texts = {role: replace(one, arrow=None).to_json() for role, one in declared.items()}
    listed = [layout.to_json() for layout in layouts.layouts]
    header = json.dumps([texts, listed], separators=(",", ":")).encode()
    head = _HEADER.pack(_MARK, VERSION, len(header)) + header
    return tuple(head + body for body in bodies)


def _pickled(entry: Any, layouts: LayoutWriter, operator: str, state: str) -> bytes:
    try:
        if is_built_in(entry):  # what readers and writers keep, mostly: a fifth of the time
            return pickle.dumps(entry, 5)
        try:
            return layouts.dumps(entry)
        except (pickle.PicklingError, AttributeError, TypeError):  # a class or function without a name
            return layouts.dumps_by_value(entry)
    except Exception as error:  # pickling runs code of the user's classes
        raise UserError(
            f'could not save state "{state}"',
            where=f'operator "{operator}"',
            why=f"an entry of type {type(entry).__name__} does not pickle: {type(error).__name__}: {error}",
            do="keep plain data in state",
            state=state,
        ) from error


@dataclass
class EntryGroup:
    """Entries of one state with the same header: of one snapshot of one subtask, or of several that agree."""

    declared: Mapping[str, DeclaredType]
    layouts: LayoutReader
    values: list


def decode_entries(
    entries: Iterable[bytes],
    operator: str,
    state: str,
    layout_reader: Callable[[Iterable[RecordLayout]], LayoutReader] = LayoutReader,
) -> list[EntryGroup]:
    """Runs of entries that were saved in the same way, in order.

    Args:
        layout_reader: makes the objects; default: those of the program's classes.
    Raises:
        StateMigrationError: an entry has a class that cannot take it any more.
        CorruptSnapshotError: an entry is damaged, cut off, or of a newer version.
    """
    groups: list[EntryGroup] = []
    known: dict[bytes, tuple[Mapping[str, DeclaredType], LayoutReader]] = {}
    for entry in entries:
        try:
            header, body = _cut(entry, operator, state)
            if header not in known:
                known[header] = _read_header(header, layout_reader)
            declared, layouts = known[header]
            layouts.operator, layouts.state = operator, state
            value = layouts.loads(body)
        except FlinkishError:
            raise
        except Exception as error:  # a class that raises is refused by the reader
            why = f"an entry cannot be unpickled: {type(error).__name__}: {error}"
            raise _unreadable(operator, state, why) from error
        if not groups or groups[-1].layouts is not layouts:
            groups.append(EntryGroup(declared, layouts, []))
        groups[-1].values.append(value)
    return groups


def read_headers(
    entries: Iterable[bytes], operator: str, state: str
) -> list[tuple[Mapping[str, DeclaredType], LayoutReader]]:
    """What entries say of their types and records, each header once; nothing is unpickled.

    Raises:
        CorruptSnapshotError: an entry is damaged, cut off, or of a newer version.
    """
    found = []
    for header in dict.fromkeys(_cut(entry, operator, state)[0] for entry in entries):
        try:
            declared, layouts = _read_header(header, LayoutReader)
        except Exception as error:  # JSON that is none, or says something else
            why = f"the header of an entry cannot be read: {type(error).__name__}: {error}"
            raise _unreadable(operator, state, why) from error
        layouts.operator, layouts.state = operator, state
        found.append((declared, layouts))
    return found


def _unreadable(operator: str, state: str, why: str) -> CorruptSnapshotError:
    return CorruptSnapshotError(
        f'could not read operator state "{state}"',
        where=f'operator "{operator}"',
        why=why,
        do="restore from another checkpoint or savepoint",
        state=state,
    )


def _cut(entry: bytes, operator: str, state: str) -> tuple[bytes, bytes]:
    """Header, empty for a pickle alone, and pickle."""
    if entry[:1] != _MARK:
        return b"", entry
    where = f'operator "{operator}", state "{state}"'
    if len(entry) > 1 and entry[1] > VERSION:
        raise CorruptSnapshotError(
            "could not read operator state of a newer flinkish",
            where=where,
            why=f"its format has version {entry[1]}, this flinkish reads up to {VERSION}",
            do="restore with the flinkish that has written it, or a newer one",
        )
    length = _HEADER.unpack_from(entry)[2] if len(entry) >= _HEADER.size else 0
    start = _HEADER.size + length
    if not length or start >= len(entry):
        raise CorruptSnapshotError(
            "could not read operator state",
            where=where,
            why=f"an entry of {len(entry)} bytes is cut off",
            do="restore from another checkpoint or savepoint",
        )
    return entry[_HEADER.size : start], entry[start:]


def _read_header(
    header: bytes, layout_reader: Callable[[Iterable[RecordLayout]], LayoutReader]
) -> tuple[Mapping[str, DeclaredType], LayoutReader]:
    texts, listed = json.loads(header) if header else ({}, [])
    declared = {role: DeclaredType.from_json(found) for role, found in texts.items()}
    return (
        {role: known for role, known in declared.items() if known is not None},
        layout_reader(map(RecordLayout.from_json, listed)),
    )
