"""Keyed and operator state of a savepoint or checkpoint as rows.

    reader = SavepointReader.read("s3://bucket/savepoints/savepoint-9f3c-...")
    reader.states_table()                                      # what there is
    reader.read_table(operator_uid="counts", state_name="count")   # a pyarrow.Table of its rows

A row is one value: of a list state one for each element, of a map state one for each entry.  A large savepoint is
read in parts: `plan` cuts it by key groups, `read_part` reads one, in any process that reaches the files.

Source of the names: Flink's State Processor API.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Iterator, Mapping, Optional, Sequence

import pyarrow as pa

from flinkish.common.configuration import Configuration
from flinkish.common.file_system import S3_OPTIONS, absolute_uri
from flinkish.errors import InvalidJobError, UserError
from flinkish.messages.checkpoints import (
    CompletedCheckpoint,
    DistributionMode,
    KeyGroupRange,
    OperatorSnapshot,
    size_of,
)
from flinkish.state.keyed_files import KeyedFooter, KeyedHandle, OpenedKeyedFiles, is_canonical, read_footer
from flinkish.state.keyed_snapshot import EntryBlock, StateKind, StateMeta
from flinkish.state.operator_entries import decode_entries
from flinkish.state.serializers import LayoutWriter
from flinkish.state.ttl import bare, last_accesses
from flinkish.state.value_columns import ANYTHING, column_form, encode_column, merge_forms
from flinkish.state_processor.columns import (
    TEXT,
    DataLayoutReader,
    Record,
    arrow_type_of_form,
    made_text,
    to_column,
)
from flinkish.storage.checkpoint_storage import CheckpointStorage

#: What one part of a plan reads at most, unless one key group has more.
PART_BYTES = 64 << 20
_FOOTERS_AT_ONCE = 16
_ROWS_AT_ONCE = 50_000
_DEPTH_MAX = 4  # of records in records that have types: one may hold itself

#: Operator state by how it is dealt out; keyed state has the names of `StateKind`.
_OPERATOR_KINDS = {
    DistributionMode.SPLIT: "OPERATOR_LIST",
    DistributionMode.UNION: "UNION_LIST",
    DistributionMode.BROADCAST: "BROADCAST",
}

_TIME = pa.timestamp("us", "UTC")
TTL_TYPE = pa.struct([("ttl_ms", pa.int64()), ("last_access", _TIME), ("expires_at", _TIME)])

#: Columns of the rows; those of type None take the type of the state that is read, TEXT when several are.
COLUMNS: dict[str, Optional[pa.DataType]] = {
    "operator_uid": TEXT,
    "operator_name": TEXT,
    "operator_id": TEXT,
    "state_name": TEXT,
    "state_kind": TEXT,
    "subtask": pa.int32(),  # of operator state
    "key_group": pa.int32(),  # of keyed state
    "key": None,
    "namespace": None,  # of window state: the start of windows that all keys share, else (start, end), a number ...
    "map_key": None,  # of an entry of a map or broadcast state
    "position": pa.int32(),  # of an element of a list
    "value": None,
    "ttl": TTL_TYPE,
}


@dataclass(frozen=True)
class StateInfo:
    """One state of one operator.  ``types``: of "key", "namespace", "map_key" and "value", where they have one;
    ``ttl``: see `StateTtl.describe`."""

    operator_uid: Optional[str]
    operator_name: str
    operator_id: str
    state_name: str
    state_kind: str
    types: Mapping[str, pa.DataType]
    ttl: Optional[Mapping[str, Any]]
    num_entries: int  # with a changelog at most
    stored_bytes: int
    parallelism: int
    max_parallelism: int

    @property
    def title(self) -> str:
        return f'"{self.state_name}" of {self.operator_uid or self.operator_name}'


@dataclass(frozen=True)
class ReadUnit:
    """A part of one operator's state: a range of key groups of one file, or operator state of one subtask."""

    operator_uid: Optional[str]
    operator_name: str
    operator_id: str
    state_names: tuple[str, ...]
    handle: Optional[KeyedHandle] = None
    subtask: int = 0
    mode: DistributionMode = DistributionMode.SPLIT
    entries: tuple[bytes, ...] = ()
    size: int = 0


@dataclass(frozen=True)
class ReadPart:
    """What is read, and how the storage is reached: goes to another process by pickle."""

    uri: str
    configuration: Mapping[str, str]
    units: tuple[ReadUnit, ...]


def storage_settings(configuration: Optional[Mapping[str, Any]]) -> dict[str, str]:
    """What of a configuration the storage needs; None: of ``flinkish-conf.yaml``."""
    settings = Configuration.load_global() if configuration is None else configuration
    return {key: str(settings[key]) for key in S3_OPTIONS if settings.get(key)}


class SavepointReader:
    """State of one savepoint, or of a checkpoint in the canonical format, also one with a changelog.

    Args:
        checkpoint: what its metadata say.
        uri: of its folder, as the user gave it: it may say how the storage is reached.
        configuration: see `storage_settings`.
    """

    def __init__(self, checkpoint: CompletedCheckpoint, uri: str, configuration: Mapping[str, str]):
        self.checkpoint, self._uri, self._configuration = checkpoint, uri, configuration
        self._storage = CheckpointStorage(uri, configuration)
        self._infos: Optional[list[StateInfo]] = None

    @classmethod
    def read(cls, path: Any, configuration: Optional[Mapping[str, Any]] = None) -> "SavepointReader":
        """
        Args:
            path: folder of the savepoint or its ``_metadata``.
            configuration: with Flink's ``s3.*`` keys; default: ``flinkish-conf.yaml``.
        Raises:
            CorruptSnapshotError: there is none, or it is not whole.
            CheckpointStorageError: it cannot be read.
        """
        uri, settings = absolute_uri(path), storage_settings(configuration)
        return cls(CheckpointStorage(uri, settings).load(uri), uri, settings)

    # ---- what there is --------------------------------------------------------------------------

    def states(self) -> list[StateInfo]:
        """All states, by operator and name; footers of all files are read.

        Raises:
            UserError: some are in the own format of a backend.
        """
        if self._infos is None:
            self._infos = []
            with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as readers:
                for operator in self.checkpoint.operators.values():
                    footers = readers.map(partial(read_footer, self._storage), self._canonical_handles(operator))
                    self._infos += _keyed_infos(operator, list(footers))
                    self._infos += _operator_infos(operator)
            self._infos.sort(key=lambda info: (info.operator_uid or info.operator_name, info.state_name))
        return self._infos

    def states_table(self) -> pa.Table:
        """`states` for people: one row for each state, types as text."""
        infos = self.states()
        names = ["operator_uid", "operator_name", "operator_id", "state_name", "state_kind"]
        columns: dict[str, Any] = {name: pa.array([getattr(info, name) for info in infos], TEXT) for name in names}
        for name in ("key", "map_key", "value"):
            columns[f"{name}_type"] = pa.array([_shown(info.types.get(name)) for info in infos], TEXT)
        columns["ttl_ms"] = pa.array([info.ttl and info.ttl["ttl_ms"] for info in infos], pa.int64())
        for name in ("num_entries", "stored_bytes", "parallelism", "max_parallelism"):
            columns[name] = pa.array([getattr(info, name) for info in infos], pa.int64())
        return pa.table(columns)

    def select(
        self,
        operator_uid: Optional[str] = None,
        operator_name: Optional[str] = None,
        state_name: Optional[str] = None,
    ) -> list[StateInfo]:
        """The states that fit all that is given.

        Raises:
            UserError: none does; lists what there is.
        """
        found = [
            info
            for info in self.states()
            if (operator_uid is None or info.operator_uid == operator_uid)
            and (operator_name is None or info.operator_name == operator_name)
            and (state_name is None or info.state_name == state_name)
        ]
        asked = [
            f"{what} {value!r}"
            for what, value in (("uid", operator_uid), ("operator", operator_name), ("state", state_name))
            if value is not None
        ]
        if not found and asked:
            listed = ", ".join(info.title for info in self.states())
            raise UserError(
                f"could not find state of {', '.join(asked)}",
                where=self.checkpoint.location,
                why=f"it has {listed or 'no state'}",
                do="name one of these" if listed else "",
            )
        return found

    # ---- rows -----------------------------------------------------------------------------------

    def schema(self, infos: Sequence[StateInfo]) -> pa.Schema:
        """Of the rows of these states: typed where all have the same type, else text (`columns.is_made_text`)."""
        fields = []
        for name, type_ in COLUMNS.items():
            if type_ is None:
                there = infos if name != "map_key" else [i for i in infos if i.state_kind in ("MAP", "BROADCAST")]
                types = {info.types.get(name) for info in there} - ({None} if name == "namespace" else set())
                type_ = TEXT if not types else next(iter(types)) if len(types) == 1 else None
            fields.append(made_text(name) if type_ is None else pa.field(name, type_))
        return pa.schema(fields)

    def plan(self, infos: Sequence[StateInfo], part_bytes: int = PART_BYTES) -> list[ReadPart]:
        """What is to be read for these states, cut by key groups into parts of about ``part_bytes``."""
        wanted: dict[str, set[str]] = {}
        for info in infos:
            wanted.setdefault(info.operator_id, set()).add(info.state_name)
        units: list[ReadUnit] = []
        for operator in self.checkpoint.operators.values():
            names = wanted.get(operator.operator_id)
            if names:
                units += self._keyed_units(operator, tuple(sorted(names)), part_bytes)
                units += _operator_units(operator, names)
        parts: list[list[ReadUnit]] = []
        room = 0
        for unit in units:
            if not parts or unit.size > room:
                parts.append([])
                room = part_bytes
            parts[-1].append(unit)
            room -= unit.size
        return [ReadPart(self._uri, self._configuration, tuple(part)) for part in parts]

    def read_table(
        self,
        operator_uid: Optional[str] = None,
        operator_name: Optional[str] = None,
        state_name: Optional[str] = None,
        schema: Optional[pa.Schema] = None,
    ) -> pa.Table:
        """All rows of the states that fit, in memory.

        Args:
            schema: the columns to read, with types to read them as; default: all, see `schema`.
        """
        infos = self.select(operator_uid, operator_name, state_name)
        schema = self.schema(infos) if schema is None else schema
        batches = [batch for part in self.plan(infos) for batch in read_part(part, schema)]
        return pa.Table.from_batches(batches, schema)

    # ---- inside ---------------------------------------------------------------------------------

    def _canonical_handles(self, operator: OperatorSnapshot) -> list[KeyedHandle]:
        handles = []
        for _, state in sorted(operator.subtasks.items()):
            for handle in state.keyed:
                if not is_canonical(handle):
                    raise UserError(
                        f'could not read the keyed state of operator "{operator.name}" as data',
                        where=self.checkpoint.location,
                        why=f"it is an incremental checkpoint, in the own format of the backend {handle.backend}",
                        do="take a canonical savepoint (flinkish savepoint, or trigger_savepoint) and read that",
                    )
                handles.append(handle)
        return handles

    def _keyed_units(
        self, operator: OperatorSnapshot, names: tuple[str, ...], part_bytes: int
    ) -> Iterator[ReadUnit]:
        for handle in self._canonical_handles(operator):
            groups, size = handle.key_groups, size_of(handle)
            pieces = max(1, min(groups.count, -(-size // part_bytes)))
            for index in range(pieces):
                start = groups.start + index * groups.count // pieces
                end = groups.start + (index + 1) * groups.count // pieces - 1
                part = replace(handle, key_groups=KeyGroupRange(start, end))
                yield ReadUnit(*_identity(operator), names, part, size=size // pieces)


def _shown(type_: Optional[pa.DataType]) -> Optional[str]:
    return None if type_ is None else str(type_)


def _identity(operator: OperatorSnapshot) -> tuple[Optional[str], str, str]:
    return operator.uid, operator.name, operator.operator_id


# ---- types --------------------------------------------------------------------------------------


def _keyed_infos(operator: OperatorSnapshot, footers: Sequence[KeyedFooter]) -> Iterator[StateInfo]:
    for name in sorted({name for footer in footers for name in footer.states}):
        metas = [footer.states[name] for footer in footers if name in footer.states]
        yield StateInfo(
            *_identity(operator), name, metas[0].kind.value, _keyed_types(metas),
            next((meta.ttl for meta in metas if meta.ttl is not None), None),
            sum(footer.entries.get(name, 0) for footer in footers),
            sum(footer.stored.get(name, 0) for footer in footers),
            operator.parallelism, operator.max_parallelism,
        )  # fmt: skip


def _keyed_types(metas: Sequence[StateMeta]) -> dict[str, pa.DataType]:
    forms: dict[str, Any] = {}
    for meta in metas:
        for role, form in _forms_of(meta).items():
            forms[role] = merge_forms(forms.get(role, "n"), form)
    types = {role: arrow_type_of_form(form) for role, form in forms.items()}
    for role, declared in metas[0].declared.items():
        if all(meta.declared.get(role) == declared for meta in metas):
            column = "map_key" if role == "key" else role
            types[column] = declared.arrow_type or types.get(column)
    return {role: type_ for role, type_ in types.items() if type_ is not None}


def _forms_of(meta: StateMeta) -> dict[str, Any]:
    """Of the parts that are columns.  Subtasks may have saved a state with and without a time to live."""
    forms = dict(meta.forms)
    value: Any = forms.pop("value", "n")
    if meta.kind is StateKind.LIST:
        value = _part(value, "l", 1)
    elif meta.kind is StateKind.MAP:
        forms["map_key"], value = _part(value, "m", 1), _part(value, "m", 2)
    if meta.ttl is not None:
        value = _part(value, "t", 1)
        value = value[0] if isinstance(value, list) else value
    return {**forms, "value": value}


def _part(form: Any, tag: str, index: int) -> Any:
    """Of what a form says of its parts; of nothing nothing is known yet."""
    if isinstance(form, list) and form[0] == tag:
        return form[index]
    return "n" if form == "n" else ANYTHING


def _operator_infos(operator: OperatorSnapshot) -> Iterator[StateInfo]:
    units = list(_operator_units(operator, None))
    for name in sorted({unit.state_names[0] for unit in units}):
        of_state = [unit for unit in units if unit.state_names[0] == name]
        values = [value for unit in of_state for value in _entries_of(unit)]
        parts = {"value": values}
        if of_state[0].mode is DistributionMode.BROADCAST:
            parts = {"map_key": [key for key, _ in values], "value": [value for _, value in values]}
        types = {role: arrow_type_of_form(_form_of_values(column)) for role, column in parts.items()}
        yield StateInfo(
            *_identity(operator), name, _OPERATOR_KINDS[of_state[0].mode],
            {role: type_ for role, type_ in types.items() if type_ is not None}, None,
            len(values), sum(unit.size for unit in of_state), operator.parallelism, operator.max_parallelism,
        )  # fmt: skip


def _form_of_values(values: list, depth: int = 0) -> Any:
    """What `column_form` says of a file; records of one class have their fields here."""
    if depth < _DEPTH_MAX and set(map(type, values)) == {Record} and len(set(map(tuple, values))) == 1 and values[0]:
        parts = [_form_of_values([record[name] for record in values], depth + 1) for name in values[0]]
        return ["r", list(values[0]), parts]
    layouts = LayoutWriter()
    return column_form(encode_column(values, layouts), layouts)


def _operator_units(operator: OperatorSnapshot, names: Optional[set[str]]) -> Iterator[ReadUnit]:
    """Of a broadcast state one copy: all subtasks have the same."""
    seen: set[str] = set()
    for index, state in sorted(operator.subtasks.items()):
        for name, (mode, entries) in (state.operator.states if state.operator is not None else {}).items():
            if (names is not None and name not in names) or (mode is DistributionMode.BROADCAST and name in seen):
                continue
            seen.add(name)
            size = sum(map(len, entries))
            yield ReadUnit(*_identity(operator), (name,), None, index, mode, tuple(entries), size)


def _entries_of(unit: ReadUnit) -> list[Any]:
    groups = decode_entries(unit.entries, unit.operator_name, unit.state_names[0], DataLayoutReader)
    return [value for group in groups for value in group.values]


# ---- rows ---------------------------------------------------------------------------------------


def read_part(part: ReadPart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one part of a plan.

    Args:
        schema: some of COLUMNS, in any order, each with the type to read it as.
    Raises:
        InvalidJobError: there is no such column.
        UserError: a value is not of the type.
        CorruptSnapshotError, CheckpointStorageError: a file cannot be read.
    """
    unknown = [name for name in schema.names if name not in COLUMNS]
    if unknown:
        raise InvalidJobError(
            f"could not read the column {unknown[0]!r} of state", why=f"there are {', '.join(COLUMNS)}"
        )
    storage = CheckpointStorage(part.uri, part.configuration)
    for unit in part.units:
        if unit.handle is None:
            yield from _Rows(unit, unit.state_names[0], _OPERATOR_KINDS[unit.mode]).of_entries(schema)
            continue
        with OpenedKeyedFiles(storage, unit.handle, DataLayoutReader) as reader:
            for name in unit.state_names:
                meta = reader.states.get(name)
                if meta is None:
                    continue
                rows = _Rows(unit, name, meta.kind.value)
                for block in reader.read(name, unit.handle.key_groups):
                    yield from rows.of_block(meta, block, schema)


class _Rows:
    def __init__(self, unit: ReadUnit, state_name: str, kind: str):
        self._unit, self._name = unit, state_name
        self._fixed = {
            "operator_uid": unit.operator_uid,
            "operator_name": unit.operator_name,
            "operator_id": unit.operator_id,
            "state_name": state_name,
            "state_kind": kind,
        }

    def of_entries(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        values = _entries_of(self._unit)
        columns: dict[str, list] = {"subtask": [self._unit.subtask] * len(values), "value": values}
        if self._unit.mode is DistributionMode.BROADCAST:
            columns["map_key"] = [key for key, _ in values]
            columns["value"] = [value for _, value in values]
            del columns["subtask"]
        else:
            columns["position"] = list(range(len(values)))
        yield from self._batches(columns, len(values), schema)

    def of_block(self, meta: StateMeta, block: EntryBlock, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Several rows for an entry that is a list or a map."""
        groups, keys = block.groups.tolist(), block.keys
        names = block.namespaces if block.namespaces is not None else [None] * len(keys)
        columns: dict[str, list] = {
            name: [] for name in ("key_group", "key", "namespace", "map_key", "position", "value")
        }
        times: list[int] = []
        for group, key, namespace, entry in zip(groups, keys, names, block.values):
            if meta.ttl is not None:
                times += last_accesses(meta.kind, entry)
                entry = bare(meta.kind, entry)
            if meta.kind is StateKind.LIST:
                values, map_keys, positions = entry, [None] * len(entry), list(range(len(entry)))
            elif meta.kind is StateKind.MAP:
                values, map_keys, positions = list(entry.values()), list(entry), [None] * len(entry)
            else:
                values, map_keys, positions = [entry], [None], [None]
            count = len(values)
            columns["key_group"] += [group] * count
            columns["key"] += [key] * count
            columns["namespace"] += [namespace] * count
            columns["map_key"] += map_keys
            columns["position"] += positions
            columns["value"] += values
        if meta.ttl is not None:
            ttl_ms = int(meta.ttl["ttl_ms"])
            columns["ttl"] = [
                {"ttl_ms": ttl_ms, "last_access": time * 1_000, "expires_at": (time + ttl_ms) * 1_000}
                for time in times
            ]
        yield from self._batches(columns, len(columns["value"]), schema)

    def _batches(self, columns: dict[str, list], count: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for start in range(0, count, _ROWS_AT_ONCE):
            end = min(start + _ROWS_AT_ONCE, count)
            arrays = []
            for field_ in schema:
                if field_.name in self._fixed:
                    arrays.append(pa.repeat(pa.scalar(self._fixed[field_.name], field_.type), end - start))
                elif field_.name in columns:
                    values = columns[field_.name][start:end]
                    arrays.append(to_column(values, field_.type, self._name, field_.name))
                else:
                    arrays.append(pa.nulls(end - start, field_.type))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
