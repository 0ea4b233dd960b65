"""Saved state of operators beside a program that may go on from it: what the driver can tell before the program runs.

Of files only what they say of themselves is read, no entries.  What is compared is compared by the code of the slots::

    here                                                      not here, but when a state is opened or a value read
    what the records of state looked like, and their classes  kinds and types that descriptors declare
    declared type and classes of keys                         states that nobody asks for any more
    the form of windows, the backend of incremental files     objects that are no records, records in flight
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence

from flinkish.common import options
from flinkish.datastream.transformations import WindowOperator
from flinkish.errors import CheckpointStorageError, FlinkishError, StateMigrationError
from flinkish.graph.job_graph import ChainedOperator
from flinkish.messages.checkpoints import DistributionMode, KeyedStateHandle, OperatorSnapshot
from flinkish.operators.factory import window_operator_class
from flinkish.operators.operator import check_handle
from flinkish.operators.timers import EVENT_TIMERS
from flinkish.operators.windowing.base import FORM, check_form
from flinkish.state.declared_types import DeclaredType
from flinkish.state.key_classes import KeyClasses
from flinkish.state.keyed_files import KeyedFooter, KeyedHandle, is_canonical, read_footer
from flinkish.state.keyed_snapshot import StateKind, StateMeta
from flinkish.state.operator_entries import read_headers
from flinkish.state.operator_state import KINDS
from flinkish.state.serializers import LayoutReader, RecordLayout
from flinkish.storage.checkpoint_storage import CheckpointStorage

_FILES_AT_ONCE = 16

#: Of states that are no state of keys, what their entries are called.
_BESIDE_KEYS = (StateKind.TIMERS, StateKind.DELETIONS)


@dataclass(frozen=True)
class Misfit:
    """Why saved state cannot be taken over.  ``when``: it is refused only then; empty: at the restore, for sure."""

    error: FlinkishError
    when: str = ""

    def __str__(self) -> str:
        return f"{self.error}\n  when: {self.when}" if self.when else str(self.error)


@dataclass
class OperatorCheck:
    """``states``: a line for each; ``misfits``: by their text."""

    states: list[str] = field(default_factory=list)
    misfits: dict[str, Misfit] = field(default_factory=dict)

    def add(self, error: FlinkishError, when: str = "") -> None:
        misfit = Misfit(error, when)
        self.misfits.setdefault(str(misfit), misfit)


class StateCheck:
    """
    Args:
        configuration: of the job.
    """

    def __init__(self, storage: CheckpointStorage, configuration: Mapping[str, Any]):
        self._storage = storage
        self._backend: str = options.read(configuration, options.STATE_BACKEND)
        self._is_batch = options.read(configuration, options.EXECUTION_RUNTIME_MODE) == "BATCH"

    def examine(
        self, operators: Iterable[tuple[Optional[ChainedOperator], OperatorSnapshot]]
    ) -> dict[str, OperatorCheck]:
        """By operator id.

        Args:
            operators: those of the program with what is saved for them; None: it has none for that, and nothing is
                compared.
        """
        with ThreadPoolExecutor(_FILES_AT_ONCE) as readers:
            begun = [
                (operator, saved, [(handle, self._read(readers, handle, saved.name)) for handle in _handles_of(saved)])
                for operator, saved in operators
            ]
            return {saved.operator_id: self._examine(operator, saved, files) for operator, saved, files in begun}

    def _read(self, readers: ThreadPoolExecutor, handle: KeyedHandle, name: str) -> Optional[Future]:
        """None: nobody can read it without the package of another backend."""
        readable = is_canonical(handle) or handle.backend == self._backend  # type: ignore[union-attr]
        return readers.submit(read_footer, self._storage, handle, name) if readable else None

    def _examine(
        self,
        operator: Optional[ChainedOperator],
        saved: OperatorSnapshot,
        files: Sequence[tuple[KeyedHandle, Optional[Future]]],
    ) -> OperatorCheck:
        check = OperatorCheck()
        footers: list[tuple[KeyedHandle, KeyedFooter]] = []
        for handle, footer in files:
            try:
                if operator is not None:
                    check_handle(operator.name, handle, operator.is_keyed, self._backend)
                if footer is not None:
                    footers.append((handle, footer.result()))
            except StateMigrationError as error:
                check.add(error)
            except CheckpointStorageError as error:
                error.where = ", ".join(filter(None, (f'operator "{saved.name}"', error.where)))
                check.add(error)
        check.states += _keyed_lines(footers)
        if operator is not None:
            self._compare_keyed(check, operator, footers)
        _examine_operator_state(check, operator, saved)
        return check

    def _compare_keyed(
        self, check: OperatorCheck, operator: ChainedOperator, footers: Sequence[tuple[KeyedHandle, KeyedFooter]]
    ) -> None:
        key_type, keys = DeclaredType.of(operator.key_type), KeyClasses(operator.name)
        of_keys = set()
        for _, footer in footers:
            for part in _by_key_class(footer):
                try:
                    keys.check(part, key_type)
                except StateMigrationError as error:
                    error.where = f'operator "{operator.name}"'  # the same for each of its states
                    of_keys.add(error.fields["old"])
                    check.add(error)
            form = self._form(operator)
            timers = footer.states.get(EVENT_TIMERS)
            if form is not None and timers is not None and FORM in timers.properties:
                try:
                    check_form(operator.name, timers.properties[FORM], form)
                except StateMigrationError as error:
                    check.add(error)
        refused = {layout.name for layout in of_keys if isinstance(layout, RecordLayout)}
        for canonical, when in ((True, ""), (False, "a value of it is read; the database may have none any more")):
            of_form = [footer for handle, footer in footers if is_canonical(handle) is canonical]
            layouts = dict.fromkeys(layout for footer in of_form for layout in footer.layouts)
            reader = LayoutReader(layout for layout in layouts if layout.name not in refused)
            reader.operator, reader.state = operator.name, _only_state(of_form)
            _compare_layouts(check, reader, when)

    def _form(self, operator: ChainedOperator) -> Optional[Mapping[str, str]]:
        description = operator.operator
        if not isinstance(description, WindowOperator):
            return None
        return window_operator_class(description, self._is_batch).form(description)


def _handles_of(saved: OperatorSnapshot) -> list[KeyedHandle]:
    return [handle for _, state in sorted(saved.subtasks.items()) for handle in state.keyed]


def _by_key_class(footer: KeyedFooter) -> Iterator[StateMeta]:
    """What it says of keys, each class for itself: the first that is refused is not all."""
    for meta in footer.described:
        yield replace(meta, key_classes=())
        for layout in meta.key_classes:
            yield replace(meta, key_type=None, key_classes=(layout,))


def _compare_layouts(check: OperatorCheck, reader: LayoutReader, when: str) -> None:
    for error, member in reader.refusals():
        check.add(error, when if member is None else f"a value that is {member} is read; there may be none")


def _only_state(footers: Iterable[KeyedFooter]) -> str:
    """The name of the state that all records must be of; empty: there are several."""
    names = {meta.name for footer in footers for meta in footer.described if meta.kind not in _BESIDE_KEYS}
    return names.pop() if len(names) == 1 else ""


def _examine_operator_state(check: OperatorCheck, operator: Optional[ChainedOperator], saved: OperatorSnapshot) -> None:
    lines: dict[str, list] = {}  # mode, text of the types, entries, bytes
    name = saved.name if operator is None else operator.name
    for _, subtask in sorted(saved.subtasks.items()):
        for state, (mode, entries) in (subtask.operator.states if subtask.operator is not None else {}).items():
            try:
                headers = read_headers(entries, name, state)
            except CheckpointStorageError as error:
                check.add(error, "the program asks for the state")
                continue
            line = lines.setdefault(state, [mode, "", 0, 0])
            for declared, reader in headers:
                line[1] = line[1] or _types_text(declared)
                if operator is not None:
                    _compare_layouts(check, reader, "the program asks for the state")
            if mode is not DistributionMode.BROADCAST or not line[2]:  # all subtasks have the same
                line[2] += len(entries)
                line[3] += sum(map(len, entries))
    for state, (mode, types, count, size) in sorted(lines.items()):
        check.states.append(f'state "{state}": {KINDS[mode]}{types}, {_count(count)}, {size} bytes')


# ---- lines for people ---------------------------------------------------------------------------


def _keyed_lines(footers: Sequence[tuple[KeyedHandle, KeyedFooter]]) -> Iterator[str]:
    metas = [meta for _, footer in footers for meta in footer.states.values()]
    key_types = dict.fromkeys(meta.key_type.text for meta in metas if meta.key_type is not None)
    classes = dict.fromkeys(
        f"{layout.name}({', '.join(layout.fields)})" for meta in metas for layout in meta.key_classes
    )
    if key_types or classes:
        declared = f"of type {', '.join(key_types)}" if key_types else "without a declared type"
        yield f"keys: {declared}" + (f", classes {', '.join(classes)}" if classes else "")
    at_most = "" if all(isinstance(handle, KeyedStateHandle) for handle, _ in footers) else "at most "
    for name in sorted({meta.name for meta in metas}):
        meta = next(meta for meta in metas if meta.name == name)
        of_files = [footer for _, footer in footers if name in footer.entries]
        count = sum(footer.entries[name] for footer in of_files)
        if meta.kind is StateKind.TIMERS and of_files and not count:
            continue
        text = "timers" if meta.kind is StateKind.TIMERS else f"a {meta.kind.value} state"
        text += (" of windows" if meta.namespaced else "") + _types_text(meta.declared)
        if meta.ttl is not None:
            text += f", time to live {meta.ttl['ttl_ms']} ms"
        if of_files:
            text += f", {at_most}{_count(count)}, {sum(footer.stored[name] for footer in of_files)} bytes"
        yield f'state "{name}": {text}'


def _types_text(declared: Mapping[str, DeclaredType]) -> str:
    texts = [declared[role].text for role in ("key", "value") if role in declared]
    return f" of {' to '.join(texts)}" if texts else ""


def _count(entries: int) -> str:
    return f"{entries} entries" if entries != 1 else "1 entry"
