"""Keys and values of state as the bytes that RocksDB keeps.

A key is ``key group (2 bytes, big endian) | key | namespace``, of a window's contents ``key group | namespace | key``, so
that a window is walked from one place for each key group.  Keys and namespaces are canonical (`key_encoding`).

A value of built-in types is its pickle, protocol 5.  Any other begins with ``R``, then a pickle whose records are taken
apart as in a snapshot (`serializers`): it names its record layouts by number, and these are in the order in which
this database has met them, so they only grow.
"""

from __future__ import annotations

import pickle
from typing import Any, Iterable, Optional

from flinkish.errors import CorruptSnapshotError, FlinkishError, UserError
from flinkish.state.key_decoding import decode_key
from flinkish.state.key_encoding import encode_key
from flinkish.state.key_groups import key_group_of_encoded
from flinkish.state.serializers import LayoutReader, LayoutWriter, RecordLayout, is_built_in

_PICKLE, _RECORDS = 0x80, b"R"


def group_prefix(key_group: int) -> bytes:
    """Where the keys of a key group begin; that of the next one is where they end."""
    return key_group.to_bytes(2, "big")


def encode_entry_key(key: Any, max_parallelism: int) -> bytes:
    encoded = encode_key(key)
    return key_group_of_encoded(encoded, max_parallelism).to_bytes(2, "big") + encoded


def encode_scoped_key(scoped: tuple[Any, Any], max_parallelism: int) -> bytes:
    """``scoped``: (namespace, key)."""
    namespace, key = scoped
    return encode_entry_key(key, max_parallelism) + encode_key(namespace)


def encode_window_key(start: bytes, key: Any, max_parallelism: int) -> bytes:
    """``start``: of the window, encoded."""
    encoded = encode_key(key)
    return key_group_of_encoded(encoded, max_parallelism).to_bytes(2, "big") + start + encoded


def decode_entry_key(raw: bytes) -> Any:
    return decode_key(raw, 2)[0]


def decode_scoped_key(raw: bytes) -> tuple[Any, Any]:
    key, at = decode_key(raw, 2)
    return decode_key(raw, at)[0], key


class ValueCodec:
    """Values of one database.

    Args:
        layouts: that it has met before, in order.
        operator: for errors.
    """

    def __init__(self, operator: str, layouts: Iterable[RecordLayout] = ()):
        self.operator = operator
        self.writer = LayoutWriter()
        self.writer.layouts = list(layouts)
        self._reader: Optional[LayoutReader] = None

    def encode(self, value: Any, state: str) -> bytes:
        """Raises UserError: it cannot be pickled."""
        if is_built_in(value):
            return pickle.dumps(value, 5)
        return _RECORDS + self.dumps(value, state)

    def dumps(self, content: Any, state: str) -> bytes:
        """For `loads`: anything.  Raises UserError as `encode`."""
        try:
            return self.writer.dumps(content)
        except RecursionError:
            raise self._unpicklable(state, "a value is nested too deeply") from None
        except Exception as error:  # pickling runs code of the values' classes, which may raise anything
            raise self._unpicklable(state, f"{type(error).__name__}: {error}") from error

    def decode(self, data: bytes, state: str) -> Any:
        """Raises StateMigrationError: its class cannot take it any more."""
        if data[0] == _PICKLE:
            return pickle.loads(data)
        return self.loads(memoryview(data)[1:], state)

    def loads(self, data: Any, state: str) -> Any:
        """What `dumps` gave."""
        reader = self._reader
        if reader is None or len(reader.layouts) != len(self.writer.layouts):
            reader = self._reader = LayoutReader(self.writer.layouts)
        reader.state, reader.operator = state, self.operator
        try:
            return reader.loads(data)
        except FlinkishError:
            raise
        except Exception as error:  # a class that raises is refused by the reader
            raise CorruptSnapshotError(
                f'could not read state "{state}"',
                where=f'operator "{self.operator}"',
                why=f"{type(error).__name__}: {error}",
                do="restore from an older checkpoint or savepoint",
            ) from error

    def _unpicklable(self, state: str, why: str) -> UserError:
        return UserError(
            f'could not save state "{state}"',
            where=f'operator "{self.operator}"',
            why=why,
            do="keep plain data in state, and define its classes at the top of a module",
            state=state,
        )
