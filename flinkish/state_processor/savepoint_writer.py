"""Builds a savepoint from rows, so that a job starts with state that it has not made itself.

    rows = OperatorTransformation.bootstrap_with(table)          # pyarrow.Table, or a list of dicts
    counts = rows.key_by("word").transform(
        KeyedStateBootstrap(ValueStateDescriptor("count", Types.LONG()), value="n")
    )
    (SavepointWriter.new_savepoint(max_parallelism=128)
        .with_operator("counts", counts)
        .write("/savepoints/bootstrap"))

The job that restores it gives its operator the same uid, key and max parallelism.  Structs become Rows; what is an
object of a class in the job is named by its class (``key_type=``, ``value_type=``: `object_types`).  A large DataFrame
goes by ``spark_plugin.state_data.write_savepoint``, which has tasks do what `SubtaskFiles` does.

Source of the names: Flink's State Processor API.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence, Union

import pyarrow as pa

from flinkish.common.arguments import check_argument
from flinkish.common.file_system import absolute_uri
from flinkish.common.notices import warn_user
from flinkish.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from flinkish.common.types import Row
from flinkish.datastream import state as api
from flinkish.errors import CorruptSnapshotError, FlinkishError, InvalidJobError, UserError
from flinkish.graph.stream_graph_generator import operator_id_of_uid
from flinkish.messages.checkpoints import (
    Bytes,
    CheckpointCommit,
    CompletedCheckpoint,
    FileHandle,
    IncrementalKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorSnapshot,
    OperatorSubtaskState,
    SnapshotKind,
    VertexInFlight,
)
from flinkish.operators.keys import canonical_memo
from flinkish.state.changelog import LOG_BACKEND
from flinkish.state.declared_types import DeclaredType
from flinkish.state.heap import HeapKeyedStateBackend
from flinkish.state.key_groups import (
    UPPER_BOUND_MAX_PARALLELISM,
    key_group_range,
    key_groups_of_canonical,
    subtask_for_key_group,
)
from flinkish.state.keyed_snapshot import write_keyed_snapshot
from flinkish.state_processor.columns import is_made_text, to_values
from flinkish.state_processor.object_types import ObjectType
from flinkish.state_processor.savepoint_reader import storage_settings
from flinkish.storage.checkpoint_storage import CheckpointStorage

#: What of a row: a column, several (a Row of them; for a key a tuple), or a callable that gets the whole Row.
Selector = Union[str, Sequence[str], Callable[[Row], Any]]


@dataclass(frozen=True)
class OperatorIdentifier:
    """Which operator of the job gets the state."""

    operator_id: str
    uid: Optional[str]

    @classmethod
    def for_uid(cls, uid: str) -> "OperatorIdentifier":
        check_argument(uid, str, "OperatorIdentifier.for_uid()", "uid", do="give the uid of the job's operator")
        return cls(operator_id_of_uid(uid), uid)

    @classmethod
    def for_uid_hash(cls, uid_hash: str) -> "OperatorIdentifier":
        """As the job gives it to ``set_uid_hash``, or the ``operator_id`` of a savepoint."""
        check_argument(uid_hash, str, "OperatorIdentifier.for_uid_hash()", "uid_hash")
        return cls(uid_hash.lower(), None)

    @property
    def shown(self) -> str:
        return self.uid or self.operator_id


def _identified(given: Any, call: str) -> OperatorIdentifier:
    if isinstance(given, str):
        return OperatorIdentifier.for_uid(given)
    do = "give the operator's uid, or OperatorIdentifier.for_uid_hash(...)"
    return check_argument(given, (OperatorIdentifier, str), call, "identifier", do=do)


@dataclass(frozen=True)
class KeyedStateBootstrap:
    """Which part of a row goes into which state.

    A value state takes one row a key, and a null value is none.  A list state adds each row, a map state takes one
    row a key and ``map_key``; reducing and aggregating states add the value, by the function of the descriptor.

    Args:
        state: descriptor, as the job's function makes it; a name alone is that of a value state.  Reduce on a keyed
            stream keeps its value in "_op_state".
        value: columns, or a callable that gets the whole Row; ``map_key`` too.
        value_type: a class of the job that values (of a list its elements) are objects of, or another annotation
            (`object_types`); ``map_key_type`` too.  Types of Flink are the descriptor's.
    """

    state: Union[api.StateDescriptor, str]
    value: Selector
    map_key: Optional[Selector] = None
    value_type: Any = None
    map_key_type: Any = None

    @property
    def descriptor(self) -> Any:
        return api.ValueStateDescriptor(self.state) if isinstance(self.state, str) else self.state

    def __post_init__(self) -> None:
        kinds = (api.StateDescriptor, str)
        check_argument(self.state, kinds, "KeyedStateBootstrap()", "state", do="give a state descriptor, or a name")
        check_selector(self.value, "KeyedStateBootstrap()", "value")
        if self.map_key is not None:
            check_selector(self.map_key, "KeyedStateBootstrap()", "map_key")
        for name in ("value_type", "map_key_type"):
            object.__setattr__(self, name, _annotated(getattr(self, name), "KeyedStateBootstrap()", name))
        if self.map_key_type is not None and self.map_key is None:
            raise InvalidJobError(
                f'could not bootstrap state "{self.descriptor.name}"', why="there is a map_key_type and no map_key"
            )
        if isinstance(self.descriptor, api.MapStateDescriptor) != (self.map_key is not None):
            raise InvalidJobError(
                f'could not bootstrap state "{self.descriptor.name}"',
                why="a map state needs map_key" if self.map_key is None else "only a map state has a map_key",
            )


def _annotated(given: Any, call: str, parameter: str) -> Optional[ObjectType]:
    if isinstance(given, TypeInformation):
        raise InvalidJobError(
            f"{call} cannot use {given} as {parameter}",
            why="types of flinkish.common.Types are those that the job's descriptor declares",
            do="give it to the descriptor, as ValueStateDescriptor(name, type)",
        )
    return given if given is None or isinstance(given, ObjectType) else ObjectType(given, call, parameter)


def key_type_of(given: Any, call: str) -> Union[TypeInformation, ObjectType, None]:
    """Raises: InvalidJobError: it is neither a type of Flink nor a class or annotation."""
    if given is None or isinstance(given, (TypeInformation, ObjectType)):
        return given
    return ObjectType(given, call, "key_type")


@dataclass(frozen=True)
class BootstrapTransformation:
    """Rows that become the keyed state of one operator."""

    table: pa.Table
    key: Selector
    key_type: Any
    states: tuple[KeyedStateBootstrap, ...]


class OperatorTransformation:
    """``bootstrap_with(rows).key_by(...).transform(...)``"""

    @staticmethod
    def bootstrap_with(rows: Union[pa.Table, Iterable[Mapping[str, Any]]]) -> "OneInputOperatorTransformation":
        return OneInputOperatorTransformation(
            rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows))
        )


class OneInputOperatorTransformation:
    def __init__(self, table: pa.Table):
        self._table = table

    def key_by(self, key: Selector, key_type: Any = None) -> "KeyedOperatorTransformation":
        """
        Args:
            key: what the job's ``key_by`` gives for such a record.
            key_type: as there.  Where the job has none, and its keys are objects of a frozen dataclass, members of an
                Enum or tuples: the class, ``tuple``, or another annotation (`object_types`).
        """
        check_selector(key, "key_by()", "key")
        return KeyedOperatorTransformation(self._table, key, key_type_of(key_type, "key_by()"))


class KeyedOperatorTransformation:
    def __init__(self, table: pa.Table, key: Selector, key_type: Any):
        self._table, self._key, self._key_type = table, key, key_type

    def transform(self, *states: KeyedStateBootstrap) -> BootstrapTransformation:
        check_bootstraps(states, "transform()")
        return BootstrapTransformation(self._table, self._key, self._key_type, states)


class SavepointWriter:
    """A savepoint to be, made by `new_savepoint` or `from_existing_savepoint`."""

    def __init__(
        self, max_parallelism: int, configuration: Mapping[str, str], base: Optional[CompletedCheckpoint] = None
    ):
        check_argument(max_parallelism, int, "SavepointWriter.new_savepoint()", "max_parallelism")
        if not 0 < max_parallelism <= UPPER_BOUND_MAX_PARALLELISM:
            raise InvalidJobError(
                "could not write a savepoint",
                why=f"the max parallelism {max_parallelism} is not in 1 to {UPPER_BOUND_MAX_PARALLELISM}",
            )
        self._max_parallelism, self._configuration, self._base = max_parallelism, configuration, base
        self._operators: dict[str, OperatorSnapshot] = dict(base.operators) if base is not None else {}
        self._bootstraps: dict[str, BootstrapTransformation] = {}

    @classmethod
    def new_savepoint(
        cls, max_parallelism: int = 128, configuration: Optional[Mapping[str, Any]] = None
    ) -> "SavepointWriter":
        """
        Args:
            max_parallelism: of the job's operators.  It cannot be changed later: every key has its group by it.
            configuration: with Flink's ``s3.*`` keys; default: ``flinkish-conf.yaml``.
        """
        return cls(max_parallelism, storage_settings(configuration))

    @classmethod
    def from_existing_savepoint(
        cls, path: Any, configuration: Optional[Mapping[str, Any]] = None
    ) -> "SavepointWriter":
        """One that takes the operators of another savepoint along; their files are copied.

        Raises:
            CorruptSnapshotError: there is none at ``path``.
        """
        settings = storage_settings(configuration)
        base = CheckpointStorage(path, settings).load(path)
        groups = [operator.max_parallelism for operator in base.operators.values()]
        return cls(max(groups, default=128), settings, base)

    def remove_operator(self, identifier: Union[OperatorIdentifier, str]) -> "SavepointWriter":
        """What there is of it is left out; nothing when there is none.  A str is a uid, as in all calls."""
        identifier = _identified(identifier, "remove_operator()")
        self._check_settled(identifier, "remove")
        self._operators.pop(identifier.operator_id, None)
        self._bootstraps.pop(identifier.operator_id, None)
        return self

    def change_operator_identifier(
        self, old: Union[OperatorIdentifier, str], new: Union[OperatorIdentifier, str]
    ) -> "SavepointWriter":
        """The state of ``old`` is that of ``new`` from now on.

        Raises:
            InvalidJobError: there is none of ``old``, or one of ``new`` already.
        """
        call = "change_operator_identifier()"
        old, new = _identified(old, call), _identified(new, call)
        found = self._operators.get(old.operator_id)
        if found is None:
            names = ", ".join(operator.uid or operator.operator_id for operator in self._operators.values())
            raise InvalidJobError(
                f'could not change the identifier of operator "{old.shown}"',
                why=f"there is none, the savepoint has {names or 'no operator'}",
                do="name one of these, by OperatorIdentifier.for_uid_hash where it has no uid",
            )
        self._check_free(new)
        self._check_settled(old, "change the identifier of")
        del self._operators[old.operator_id]
        self._operators[new.operator_id] = replace(found, operator_id=new.operator_id, uid=new.uid)
        if old.operator_id in self._bootstraps:
            self._bootstraps[new.operator_id] = self._bootstraps.pop(old.operator_id)
        if self._base is not None:
            self._base = replace(
                self._base, commits=tuple(_commit_of(commit, old, new) for commit in self._base.commits)
            )
        return self

    def with_operator(
        self, identifier: Union[OperatorIdentifier, str], transformation: BootstrapTransformation
    ) -> "SavepointWriter":
        """Add an operator, whose rows this process turns into state when it writes."""
        identifier = _identified(identifier, "with_operator()")
        check_argument(
            transformation, BootstrapTransformation, "with_operator()", "transformation",
            do="give OperatorTransformation.bootstrap_with(rows).key_by(...).transform(...)",
        )  # fmt: skip
        self._add(identifier, {}, self._max_parallelism, 1)
        self._bootstraps[identifier.operator_id] = transformation
        columns = {field.name: field for field in transformation.table.schema}
        warn_of_untyped(identifier.shown, columns, transformation.key, transformation.key_type, transformation.states)
        return self

    def with_keyed_files(
        self,
        identifier: OperatorIdentifier,
        handles: Mapping[int, KeyedStateHandle],
        max_parallelism: int,
        parallelism: int,
    ) -> "SavepointWriter":
        """Add an operator whose keyed state `SubtaskFiles` has written already, by subtask."""
        states = {index: OperatorSubtaskState((handle,)) for index, handle in handles.items()}
        self._add(identifier, states, max_parallelism, parallelism)
        return self

    def _add(
        self,
        identifier: OperatorIdentifier,
        states: Mapping[int, OperatorSubtaskState],
        max_parallelism: int,
        parallelism: int,
    ) -> None:
        self._check_free(identifier)
        self._operators[identifier.operator_id] = OperatorSnapshot(
            identifier.operator_id, identifier.uid, identifier.shown, parallelism, max_parallelism, states
        )

    def _check_settled(self, identifier: OperatorIdentifier, what: str) -> None:
        """Records in flight are dealt out to the subtasks of the task that its first operator names."""
        overtaken = self._base.in_flight if self._base is not None else ()
        edges = {part.edge for v in overtaken for handles in v.by_subtask.values() for h in handles for part in h.parts}
        if any(identifier.operator_id in (edge.source_vertex, edge.target_vertex) for edge in edges):
            raise InvalidJobError(
                f'could not {what} operator "{identifier.shown}"',
                where=self._base.location if self._base is not None else "",
                why="the checkpoint is unaligned, and has records in flight from or to it",
                do="take a savepoint, which is always aligned, and begin with that",
            )

    def _check_free(self, identifier: OperatorIdentifier) -> None:
        if identifier.operator_id in self._operators:
            raise InvalidJobError(
                f'could not add operator "{identifier.shown}" to the savepoint',
                why="the savepoint has state of it already",
                do="call remove_operator first",
            )

    def write(self, path: Any) -> str:
        """Write it; its folder, for ``execution.state-recovery.path``.

        Raises:
            UserError: a key has two values, a value is not of its type or cannot be saved.
            CheckpointStorageError: there is a savepoint already, or the folder cannot be written.
        """
        uri = absolute_uri(path)
        storage = CheckpointStorage(uri, self._configuration)
        location = storage.directory
        check_free(uri, self._configuration)
        storage.create_folder(location)
        copy = _copier(storage, location)
        operators = {operator_id: _copied(operator, copy) for operator_id, operator in self._operators.items()}
        for operator_id, bootstrap in self._bootstraps.items():
            operator = operators[operator_id]
            files = SubtaskFiles(
                uri, self._configuration, operator.name, bootstrap.states, bootstrap.key,
                bootstrap.key_type, operator.max_parallelism, 1,
            )  # fmt: skip
            handle = files.write(0, bootstrap.table.to_batches())
            operators[operator_id] = replace(operator, subtasks={0: OperatorSubtaskState((handle,))})
        now_ms = time.time_ns() // 1_000_000
        if self._base is not None:
            in_flight = tuple(_copied_in_flight(overtaken, copy) for overtaken in self._base.in_flight)
            savepoint = replace(
                self._base, location=location, operators=operators, in_flight=in_flight, kind=SnapshotKind.SAVEPOINT
            )
        else:
            savepoint = CompletedCheckpoint(
                secrets.token_hex(16), "bootstrap", secrets.token_hex(8), 1, now_ms, now_ms,
                SnapshotKind.SAVEPOINT, location, operators,
            )  # fmt: skip
        storage.store_metadata(savepoint)
        return location


def check_free(uri: str, configuration: Mapping[str, str]) -> None:
    """Raises: InvalidJobError: a savepoint is there already."""
    try:
        location = CheckpointStorage(uri, configuration).load(uri).location
    except CorruptSnapshotError:
        return
    raise InvalidJobError(
        "could not write a savepoint", where=location, why="there is one already", do="name a new folder"
    )


def _copier(storage: CheckpointStorage, location: str) -> Callable[[Bytes], Bytes]:
    """Copies a file into the folder of the new savepoint."""

    def copy(content: Bytes) -> Bytes:
        if not isinstance(content, FileHandle) or content.uri.rpartition("/")[0] == location:
            return content
        with storage.open_file(content) as source, storage.create_file(location) as target:
            while chunk := source.read(1 << 20):
                target.write(chunk)
        return target.close()

    return copy


def _copied(operator: OperatorSnapshot, copy: Callable[[Bytes], Bytes]) -> OperatorSnapshot:
    def copy_keyed(handle: Union[KeyedStateHandle, IncrementalKeyedStateHandle]) -> Any:
        if isinstance(handle, KeyedStateHandle):
            return replace(handle, content=copy(handle.content))
        if handle.backend != LOG_BACKEND:
            raise UserError(
                f'could not take the keyed state of operator "{operator.name}" along',
                why=f"it is an incremental checkpoint, in the own format of the backend {handle.backend}",
                do="take a canonical savepoint, and begin with that",
            )
        files = {name: copy(content) for name, content in {**handle.shared, **handle.private}.items()}
        return replace(handle, shared={}, private=files)

    subtasks = {
        index: replace(state, keyed=tuple(map(copy_keyed, state.keyed)))
        for index, state in operator.subtasks.items()
    }
    return replace(operator, subtasks=subtasks)


def _commit_of(commit: CheckpointCommit, old: OperatorIdentifier, new: OperatorIdentifier) -> CheckpointCommit:
    """What is still to be published, by the sink of another identifier."""
    committables = {
        new.operator_id if operator_id == old.operator_id else operator_id: prepared
        for operator_id, prepared in commit.committables.items()
    }
    return replace(commit, committables=committables)


def _copied_in_flight(overtaken: VertexInFlight, copy: Callable[[Bytes], Bytes]) -> VertexInFlight:
    by_subtask = {
        index: tuple(replace(handle, content=copy(handle.content)) for handle in handles)
        for index, handles in overtaken.by_subtask.items()
    }
    return replace(overtaken, by_subtask=by_subtask)


# ---- rows to files ------------------------------------------------------------------------------


@dataclass(frozen=True)
class SubtaskFiles:
    """Turns the rows of one operator into the files of its subtasks.  Travels to other processes.

    Args:
        uri: of the savepoint's folder.
        configuration: see `storage_settings`.
    """

    uri: str
    configuration: Mapping[str, str]
    operator: str
    states: Sequence[KeyedStateBootstrap]
    key: Selector
    key_type: Any
    max_parallelism: int
    parallelism: int

    def subtasks_of(self, rows: pa.RecordBatch) -> list[int]:
        """For each row which subtask has its key."""
        groups = key_groups_of_canonical(self._keys(rows), self.max_parallelism).tolist()
        return [subtask_for_key_group(group, self.max_parallelism, self.parallelism) for group in groups]

    def write(self, subtask: int, batches: Iterable[pa.RecordBatch]) -> KeyedStateHandle:
        """The file of one subtask, from all of its rows; they are in memory as state meanwhile.

        Raises:
            UserError: a key has two values, or a value is not of its type or cannot be saved.
        """
        backend = HeapKeyedStateBackend(self.operator, lambda: time.time_ns() // 1_000_000)
        backend.key_type = DeclaredType.of(None if isinstance(self.key_type, ObjectType) else self.key_type)
        targets = [_Target(bootstrap, backend, self.operator) for bootstrap in self.states]
        for rows in batches:
            keys = self._keys(rows, backend.key_classes.seen)
            for target in targets:
                target.take(keys, rows)
        groups = key_group_range(self.max_parallelism, self.parallelism, subtask)
        owned = KeyGroupRange(groups.start, groups.stop - 1)
        storage = CheckpointStorage(self.uri, self.configuration)
        with storage.create_file(storage.directory) as out:
            write_keyed_snapshot(
                out,
                backend.snapshot_states(),
                owned,
                self.max_parallelism,
                operator=self.operator,  # type: ignore[arg-type]
            )
        return KeyedStateHandle(owned, out.close())

    def _keys(self, rows: pa.RecordBatch, classes: Optional[dict[type, None]] = None) -> list[Any]:
        """``classes``: as for `KeyMemo`."""
        by_name = isinstance(self.key_type, ObjectType)
        keys = _selected(rows, self.key, _as_row if by_name else tuple)
        if by_name:
            keys = _made(keys, self.key_type, "a key", self.operator)
        else:
            keys = _typed(keys, self.key_type, f'a key of operator "{self.operator}"')
        memo = canonical_memo(None if by_name else self.key_type, classes)
        return [_canonical(memo, key) for key in keys]


def _canonical(memo: Any, key: Any) -> Any:
    try:
        return memo[key]
    except (TypeError, ValueError):
        return memo.compute(key)


class _Target:
    """One state of a backend that rows go into."""

    def __init__(self, bootstrap: KeyedStateBootstrap, backend: HeapKeyedStateBackend, operator: str):
        self._bootstrap, self._backend, self._operator = bootstrap, backend, operator
        descriptor = self._descriptor = bootstrap.descriptor
        self._state = backend.state(descriptor)
        self._type = descriptor.type_info
        if isinstance(descriptor, api.MapStateDescriptor):
            self._type = descriptor.value_type_info
        elif isinstance(descriptor, api.AggregatingStateDescriptor):
            self._type = None  # that of the accumulator, and inputs come
        self._table = backend.tables[descriptor.name]

    def take(self, keys: list[Any], rows: pa.RecordBatch) -> None:
        bootstrap = self._bootstrap
        values = _selected(rows, bootstrap.value, _as_row)
        values = _made(values, bootstrap.value_type, self._where("value"), self._operator)
        values = _typed(values, self._type, self._where("value"))
        backend, state, descriptor = self._backend, self._state, self._descriptor
        if isinstance(descriptor, api.MapStateDescriptor):
            assert bootstrap.map_key is not None
            by_name = bootstrap.map_key_type is not None
            map_keys = _selected(rows, bootstrap.map_key, _as_row if by_name else tuple)
            map_keys = _made(map_keys, bootstrap.map_key_type, self._where("map_key"), self._operator)
            map_keys = _typed(map_keys, descriptor.key_type_info, self._where("map_key"))
            for backend.current_key, map_key, value in zip(keys, map_keys, values):
                try:
                    again = state.contains(map_key)
                    state.put(map_key, value)
                except TypeError as error:
                    raise UserError(
                        f"could not bootstrap {self._where('map_key')}",
                        where=f'operator "{self._operator}"',
                        why=f"{map_key!r:.200} of the key {backend.current_key!r:.200} cannot be a map's key: {error}",
                        do="make it a value that can be hashed, as a tuple of a list: map_key may be a callable",
                    ) from error
                if again:
                    key = backend.current_key
                    raise self._twice(f"the key {key!r:.200} and the map key {map_key!r:.200}", "an entry of a map", "")
        elif isinstance(descriptor, api.ValueStateDescriptor):
            for key, value in zip(keys, values):
                if value is None:
                    continue
                if key in self._table:
                    raise self._twice(f"the key {key!r:.200}", "a value state", ", or make it a list state")
                backend.current_key = key
                state.update(value)
        else:
            for backend.current_key, value in zip(keys, values):
                self._add(state, value)

    def _add(self, state: Any, value: Any) -> None:
        try:
            state.add(value)
        except FlinkishError:
            raise
        except Exception as error:  # user code
            raise UserError(
                f"could not bootstrap {self._where('value')}",
                where=f'operator "{self._operator}"',
                why=f"its function raised {type(error).__name__}: {error} on {value!r:.200}",
            ) from error

    def _twice(self, key: str, what: str, other_way: str) -> UserError:
        """Rows have no order, so neither may win."""
        return UserError(
            f'could not bootstrap state "{self._descriptor.name}"',
            where=f'operator "{self._operator}"',
            why=f"there are two rows of {key}, and {what} has one value",
            do=f"aggregate the rows first{other_way}",
        )

    def _where(self, part: str) -> str:
        return f'the {part} of state "{self._descriptor.name}"'


def _made(values: list[Any], object_type: Optional[ObjectType], what: str, operator: str) -> list[Any]:
    """Objects of the class that the user has named."""
    if object_type is None:
        return values
    made, make = [], object_type.make
    for value in values:
        try:
            made.append(make(value))
        except ValueError as error:
            raise UserError(
                f"could not bootstrap {what}",
                where=f'operator "{operator}"',
                why=f"of {value!r:.200} no {object_type} can be made: {error}",
                do="give the columns the names and types of the fields, or a callable that makes the object of a row",
            ) from error
    return made


def _typed(values: list[Any], type_info: Any, what: str) -> list[Any]:
    """In the form of the declared type, checked."""
    if type_info is None:
        return values
    convert = type_info.converter()
    typed = []
    for value in values:
        try:
            found = value if convert is None or value is None else convert(value)
            why = type_info.mismatch(found)
        except (TypeError, ValueError) as error:
            why = str(error)
        if why:
            raise UserError(
                f"could not bootstrap {what}",
                why=f"{value!r:.200} is not of the declared type {type_info}: {why}",
                do="cast the column, or declare the type that it has",
            )
        typed.append(found)
    return typed


def _as_row(names: Sequence[str], values: tuple) -> Row:
    return Row.of_fields(list(names), values)


def _selected(rows: pa.RecordBatch, selector: Selector, make: Any) -> list[Any]:
    """What ``selector`` takes of each row; several columns by ``make``: tuple or `_as_row`."""
    if isinstance(selector, str):
        return to_values(_column(rows, selector))
    if callable(selector):
        return list(_called(selector, _row_values(rows, rows.schema.names)))
    if make is tuple:
        return list(zip(*(to_values(_column(rows, name)) for name in selector)))
    return list(_row_values(rows, list(selector)))


def _called(selector: Callable[[Row], Any], rows: Iterable[Row]) -> Iterator[Any]:
    for row in rows:
        try:
            yield selector(row)
        except Exception as error:  # user code
            raise UserError(
                "could not build state from a row",
                where=f"row {row!r:.200}",
                why=f"{getattr(selector, '__name__', 'its selector')} raised {type(error).__name__}: {error}",
                do="look which columns the rows have, and of what types",
            ) from error


def check_bootstraps(states: Sequence[Any], call: str) -> None:
    """Raises: InvalidJobError: one is none, there is none, or there are two of one state."""
    for state in states:
        check_argument(state, KeyedStateBootstrap, call, "a state", do="give KeyedStateBootstrap(descriptor, column)")
    names = [state.descriptor.name for state in states]
    if len(set(names)) != len(names) or not names:
        raise InvalidJobError(
            f"{call} cannot use {', '.join(names) or 'nothing'} as states",
            why="a state is there twice" if names else "an operator without a state has nothing to begin with",
            do="give a KeyedStateBootstrap for each state",
        )


def warn_of_untyped(
    operator: str, columns: Mapping[str, pa.Field], key: Selector, key_type: Any, states: Sequence[KeyedStateBootstrap]
) -> None:
    """Where state would silently be of another type than the job's: it is not found, or not what its code expects.

    Args:
        columns: of the rows, by name.
    """
    if key_type is None:
        _warn_of(columns, key, f'the key of operator "{operator}"', "key_type")
    for state in states:
        descriptor = state.descriptor
        is_map = isinstance(descriptor, api.MapStateDescriptor)
        declared = descriptor.value_type_info if is_map else descriptor.type_info
        title = f'state "{descriptor.name}" of operator "{operator}"'
        takes_inputs = isinstance(descriptor, api.AggregatingStateDescriptor)
        if state.value_type is None and _is_open(declared) and not takes_inputs:
            _warn_of(columns, state.value, f"the value of {title}", "value_type")
        if is_map and state.map_key_type is None and _is_open(descriptor.key_type_info):
            _warn_of(columns, state.map_key, f"the map_key of {title}", "map_key_type")


def _is_open(type_info: Optional[TypeInformation]) -> bool:
    return type_info is None or isinstance(type_info, PickledBytesTypeInfo)


def _warn_of(columns: Mapping[str, pa.Field], selector: Any, what: str, parameter: str) -> None:
    if callable(selector):
        return
    for name in (selector,) if isinstance(selector, str) else selector:
        column = columns.get(name)
        if column is None:
            continue  # refused when it is read
        if is_made_text(column):
            warn_user(
                f'{what} is a str: the column "{name}" is the text of other values, which the reader had no type for. '
                f"A job whose values are no texts wants {parameter}= (their class), or a callable that makes them of "
                "a row, or rows that were read with a schema"
            )
        elif has_struct(column.type):
            warn_user(
                f'{what} is a Row, of a struct in the column "{name}". A job that has tuples or objects of a class '
                f"there wants {parameter}= (tuple, or the class); {parameter}=Row says that it has Rows"
            )


def has_struct(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return True
    return any(has_struct(type_.field(index).type) for index in range(type_.num_fields))


def check_selector(selector: Any, call: str, parameter: str) -> None:
    """Raises: InvalidJobError: it is none."""
    if callable(selector) or (selector and isinstance(selector, str)):
        return
    if isinstance(selector, (list, tuple)) and selector and all(isinstance(name, str) for name in selector):
        return
    raise InvalidJobError(
        f"{call} cannot use {selector!r:.100} as {parameter}",
        do="give the name of a column, a list of some, or a callable that gets a Row",
    )


def check_columns(names: Sequence[str], *selectors: Selector) -> None:
    """Raises: InvalidJobError: a selector names a column that is not there, or that is there twice."""
    for selector in selectors:
        for name in () if callable(selector) else (selector,) if isinstance(selector, str) else selector:
            if list(names).count(name) != 1:
                raise InvalidJobError(
                    f"could not find the column {name!r}",
                    where="the rows of a savepoint",
                    why=f"they have {', '.join(names)}" if name not in names else "there are several of this name",
                    do="name another column, or rename those of the rows",
                )


def _row_values(rows: pa.RecordBatch, names: Sequence[str]) -> Iterator[Row]:
    columns = [to_values(_column(rows, name)) for name in names]
    return (_as_row(names, values) for values in zip(*columns))


def _column(rows: pa.RecordBatch, name: str) -> pa.Array:
    check_columns(rows.schema.names, name)
    return rows.column(rows.schema.get_field_index(name))
