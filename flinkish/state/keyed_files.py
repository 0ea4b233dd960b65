"""Files of keyed state in the canonical format, opened for who is no slot; and what all files, also those of a backend,
say without their entries being read."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping, Union

from flinkish.messages.checkpoints import Bytes, IncrementalKeyedStateHandle, InlineBytes, KeyedStateHandle
from flinkish.state.changelog import LOG_BACKEND, files_in_order
from flinkish.state.changelog_reader import ChangelogReader
from flinkish.state.keyed_snapshot import KeyedSnapshotReader, StateMeta
from flinkish.state.serializers import LayoutReader, RecordLayout
from flinkish.storage.checkpoint_storage import CheckpointStorage

KeyedHandle = Union[KeyedStateHandle, IncrementalKeyedStateHandle]


def is_canonical(handle: KeyedHandle) -> bool:
    return isinstance(handle, KeyedStateHandle) or handle.backend == LOG_BACKEND


class OpenedKeyedFiles:
    """The canonical file or files of a handle, for a ``with``."""

    def __init__(
        self,
        storage: CheckpointStorage,
        handle: KeyedHandle,
        layout_reader: Callable[[Iterable[RecordLayout]], LayoutReader] = LayoutReader,
    ):
        self._storage, self._handle, self._layout_reader = storage, handle, layout_reader
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Union[KeyedSnapshotReader, ChangelogReader]:
        with contextlib.ExitStack() as opened:
            if isinstance(self._handle, KeyedStateHandle):
                reader: Any = self._read(opened, self._handle.content)
            else:
                reader = ChangelogReader([self._read(opened, content) for content in files_in_order(self._handle)])
            self._open = opened.pop_all()
            return reader

    def _read(self, opened: contextlib.ExitStack, content: Bytes) -> KeyedSnapshotReader:
        if isinstance(content, InlineBytes):
            return KeyedSnapshotReader(content.data, layout_reader=self._layout_reader)
        source = opened.enter_context(self._storage.open_file(content))
        return KeyedSnapshotReader(source, content.uri, layout_reader=self._layout_reader)

    def __exit__(self, *exc: Any) -> None:
        self._open.close()


@dataclass(frozen=True)
class KeyedFooter:
    """What one handle says of its states.

    ``described``: each state as often as a file describes it, oldest first; ``states``: as it is restored, by name;
    ``entries`` (with a changelog at most so many) and ``stored`` bytes: by name, empty in the own format of a backend,
    which does not know them.  ``layouts``: of the records in it; in that format also of records that are gone."""

    described: tuple[StateMeta, ...]
    states: Mapping[str, StateMeta]
    layouts: tuple[RecordLayout, ...]
    entries: Mapping[str, int]
    stored: Mapping[str, int]


def read_footer(storage: CheckpointStorage, handle: KeyedHandle, operator: str = "") -> KeyedFooter:
    """
    Args:
        operator: for errors.
    Raises:
        CorruptSnapshotError: a file is damaged or gone.
        CheckpointStorageError: it cannot be read.
    """
    if not is_canonical(handle):
        return _footer_of_backend(storage, handle, operator)  # type: ignore[arg-type]
    with OpenedKeyedFiles(storage, handle) as reader:
        files = reader.files if isinstance(reader, ChangelogReader) else (reader,)
        return KeyedFooter(
            tuple(meta for file in files for meta in file.states.values()),
            reader.states,
            tuple(dict.fromkeys(layout for file in files for layout in file.layouts)),
            {name: reader.num_entries(name) for name in reader.states},
            {name: reader.stored_bytes(name) for name in reader.states},
        )


def _footer_of_backend(storage: CheckpointStorage, handle: IncrementalKeyedStateHandle, operator: str) -> KeyedFooter:
    from flinkish.state.rocksdb_snapshots import Restorer  # its package is needed by those who choose it only

    restorer = Restorer(operator, handle, storage.read)
    for file in handle.shared.values():  # there, and as long as it was
        storage.open_file(file).close()
    states = tuple(described.meta for described in restorer.states)
    return KeyedFooter(states, {meta.name: meta for meta in states}, tuple(restorer.layouts), {}, {})
