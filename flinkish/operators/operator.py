"""Runtime operators: what a node of a chain does with a record, a watermark and the clock.

Each operator has two forms that must behave the same:

* ``process_element`` is the reference: a generator that the interpreted chain runs record by record,
* ``generate`` writes the same as statements into the fused loop.

Life: made -> ``initialize_state`` -> ``open`` -> records, watermarks, clock, snapshots -> ``finish`` (only at
a good end) -> ``close`` (always).  Everything runs on the slot's mailbox thread.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Callable, Iterable, Iterator, Optional

from flinkish.common import options as config
from flinkish.common.user_traceback import let_pass
from flinkish.datastream.function_adapters import (
    CallableKeyedProcessFunction,
    CallableProcessFunction,
    CallableProcessJoinFunction,
    CallableWindowFunction,
    function_place,
)
from flinkish.datastream.functions import (
    CheckpointedFunction,
    CheckpointListener,
    Function,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    ReduceFunctionWrapper,
)
from flinkish.datastream.output_tag import OutputTag
from flinkish.errors import InvalidJobError, StateMigrationError, UserError, UserFunctionError
from flinkish.graph.job_graph import ChainedOperator
from flinkish.messages.checkpoints import (
    Bytes,
    CheckpointOptions,
    InlineBytes,
    KeyedStateHandle,
    KeyGroupRange,
)
from flinkish.messages.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from flinkish.operators.codegen import CodeWriter
from flinkish.operators.keys import canonical_memo, key_function
from flinkish.operators.output import TaskEnvironment
from flinkish.operators.runtime_context import StreamingRuntimeContext
from flinkish.operators.snapshots import KeyedStateToWrite, OperatorPart
from flinkish.operators.timers import EVENT_TIMERS, KeyedTimerService
from flinkish.operators.user_errors import bounded_repr, user_error
from flinkish.state.changelog import ChangelogKeyedStateBackend, files_in_order
from flinkish.state.current_key import without_key
from flinkish.state.declared_types import DeclaredType
from flinkish.state.heap import HeapKeyedStateBackend
from flinkish.state.key_groups import key_group_range
from flinkish.state.keyed_files import KeyedHandle, is_canonical
from flinkish.state.keyed_snapshot import COMPRESSION, KeyedSnapshotReader, StateEntries
from flinkish.state.operator_state import OperatorStateBackend

#: An item that a firing operator hands to its outputs: (what user code gave, timestamp).  None: a timer
#: or window, which counts like a record, because its user code takes time also when it gives nothing.
Item = Optional[tuple[Any, Optional[int]]]

#: Properties of the saved event timers: how far event time was, and `ChainedOperator.timed_by`.
WATERMARK, TIMED_BY = "watermark", "timed_by"

_END = object()

#: Their one method only calls the user's callable with the same arguments.
_WRAPPERS = (
    ReduceFunctionWrapper,
    CallableProcessFunction,
    CallableProcessJoinFunction,
    CallableKeyedProcessFunction,
    CallableWindowFunction,
)


class RuntimeOperator:
    """Base of all operators that records pass through."""

    #: One record can give more than one: the loop may have to stop in the middle.
    expanding = False
    #: State may still reach what is emitted, so it is fixed at emission even for a chained neighbour.
    keeps_emitted = False
    #: What it emits when it fires may be ``(tag, value)``.
    tagged_results = False
    #: `fire` can have output.
    fires = False
    #: What `fire` gives are (column batch, event times).
    fires_columns = False
    #: What the API calls a plain callable in this place.
    function_role = "the function"

    def __init__(self, spec: ChainedOperator, environment: TaskEnvironment):
        self.spec = spec
        self.name = spec.name
        self.environment = environment
        self.metric_group = environment.metric_group.add_group(spec.name)
        self.current_watermark = MIN_WATERMARK_MS
        self.output: Any = None  # set by the chain: where the interpreted form emits
        self.functions: list[Function] = []
        self.selectors = spec.key_selectors
        self.operator_state = OperatorStateBackend(spec.name)
        self.backend: Any = None
        if spec.is_keyed:
            self.backend = create_keyed_backend(spec.name, environment)
            self.backend.key_type = DeclaredType.of(spec.key_type)
            self.memo = canonical_memo(spec.key_type, self.backend.key_classes.seen)
            self._key_functions = [selector and key_function(selector) for selector in self.selectors]

    # ---- life -----------------------------------------------------------------------------------

    def own(self, function: Any, method: str) -> Callable[..., Any]:
        """The callable of a user function: its ``method`` if it has one, or itself.  Functions are
        opened and closed with the operator.  The API's wrappers of plain callables are taken off."""
        if type(function) in _WRAPPERS:
            return function._func
        if isinstance(function, Function):
            if all(function is not known for known in self.functions):
                self.functions.append(function)
        elif callable(function):
            return function
        bound = getattr(function, method, None)
        if bound is None:
            raise InvalidJobError(
                f'operator "{self.name}" cannot use {bounded_repr(function)}',
                why=f"a {type(function).__qualname__} has no method {method} and cannot be called",
            )
        return bound

    def open(self) -> None:
        context = self.runtime_context()
        for function in self.functions:
            self.call(function.open, context, role="open")

    def close(self) -> None:
        """Close all functions; raises the first failure after all have been closed."""
        failure: Optional[BaseException] = None
        with without_key(self.backend):
            for function in reversed(self.functions):
                try:
                    self.call(function.close, role="close")
                except BaseException as error:
                    failure = failure or error
        if self.backend is not None:
            try:
                self.backend.close()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def finish(self) -> Iterator[None]:
        """The input has ended well and every watermark has passed.  Yields while it waits for room."""
        yield from ()

    def runtime_context(self) -> StreamingRuntimeContext:
        return StreamingRuntimeContext(self.environment, self.spec, self.backend, self.metric_group)

    # ---- checkpoints ----------------------------------------------------------------------------

    def initialize_state(self) -> None:
        """Take over what was saved, before `open`."""
        restore = self.environment.restore
        if restore is not None:
            for saved in restore.operators.get(self.spec.operator_id, ()):
                for handle in saved.keyed:
                    self._restore_handle(handle)
                if saved.operator is not None:
                    self.operator_state.restore(saved.operator)
        checkpointed = [function for function in self.functions if isinstance(function, CheckpointedFunction)]
        if checkpointed:
            context = _InitializationContext(self)
            for function in checkpointed:
                self.call(function.initialize_state, context, role="initialize_state")

    def _restore_handle(self, handle: KeyedHandle) -> None:
        check_handle(self.name, handle, self.backend is not None, self.environment.state_backend)
        if not is_canonical(handle):
            self.backend.restore_incremental(handle, self.environment.open_content)
            return
        *before, last = [handle.content] if isinstance(handle, KeyedStateHandle) else files_in_order(handle)
        for content in before:
            self._restore_file(content, handle.key_groups, self.backend.restore)
        self._restore_file(last, handle.key_groups, self.restore_keyed)
        self.backend.restored(handle)

    def _restore_file(
        self, content: Bytes, key_groups: KeyGroupRange, restore: Callable[[KeyedSnapshotReader, KeyGroupRange], None]
    ) -> None:
        source = self.environment.open_content(content)
        try:
            name = "inline state" if isinstance(content, InlineBytes) else content.uri
            restore(KeyedSnapshotReader(source, name, self.name), key_groups)
        finally:
            if not isinstance(source, bytes):
                source.close()

    def restore_keyed(self, reader: KeyedSnapshotReader, key_groups: KeyGroupRange) -> None:
        """Take over the part of one handle; called for each."""
        self.backend.restore(reader, key_groups)

    def finish_key(self) -> Optional[Iterator[Item]]:
        """In a batch job: all records of the current key have come.  What is still to be said of it; items only from an
        operator that `fires`."""
        return None

    def forget_key(self) -> None:
        """In a batch job: the state of the current key is not needed any more."""
        self.backend.clear()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Optional[Iterator[Item]]:
        """The barrier is about to go on: give what must go before it.  Items only from an operator that
        `fires`."""
        return None

    def snapshot_state(self, context: "SnapshotContext") -> OperatorPart:
        """The synchronous part, behind the barrier; nothing is emitted."""
        with without_key(self.backend):
            for function in self.functions:
                if isinstance(function, CheckpointedFunction):
                    self.call(function.snapshot_state, context, role="snapshot_state")
        keyed = self._keyed_part(context)
        return OperatorPart(self.spec.operator_id, keyed, self.operator_state.snapshot())

    def _keyed_part(self, context: "SnapshotContext") -> Optional[KeyedStateToWrite]:
        if self.backend is None or not self.saves_keyed_state:
            return None
        groups, max_parallelism = owned_key_groups(self.environment), self.environment.max_parallelism
        compressed = config.read(self.environment.configuration, config.SNAPSHOT_COMPRESSION)
        compression = COMPRESSION if compressed else None
        backend, checkpoint_id = self.backend, context.get_checkpoint_id()
        if backend.is_database and backend.is_open:
            changes = None
            if context.may_share_files and backend.can_give_changes:
                changes = backend.changes(checkpoint_id)
            beside = list(self.states_beside_backend())
            states: Any = lambda: beside  # noqa: E731
            if changes is None:
                frozen = backend.freeze()
                states = lambda: itertools.chain(frozen.states(), beside)  # noqa: E731
            return KeyedStateToWrite(
                self.name, states, 0, groups, max_parallelism, stands_still=True, changes=changes,
                compression=compression,
            )  # fmt: skip
        timers = self.num_event_time_timers + self.num_processing_time_timers
        entries, states = self.num_keyed_state_entries, self.keyed_states
        addition = backend.add_to_log(checkpoint_id) if context.may_share_files else None
        if addition is not None:
            entries = addition.num_entries
            states = lambda: itertools.chain(addition.states(), self.states_beside_backend())  # noqa: E731
        return KeyedStateToWrite(
            self.name, states, entries + timers, groups, max_parallelism, addition=addition, compression=compression
        )

    @property
    def saves_keyed_state(self) -> bool:
        return bool(self.backend.tables)

    def keyed_states(self) -> Iterator[StateEntries]:
        """All that belongs to a key, as it is now."""
        yield from self.backend.snapshot_states()
        yield from self.states_beside_backend()

    def states_beside_backend(self) -> Iterator[StateEntries]:
        """What belongs to a key and is not in the backend."""
        yield from ()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if self.backend is not None:
            self.backend.checkpoint_completed(checkpoint_id)
        with without_key(self.backend):
            for listener in self.checkpoint_listeners():
                self.call(listener.notify_checkpoint_complete, checkpoint_id, role="notify_checkpoint_complete")

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        if self.backend is not None:
            self.backend.checkpoint_aborted(checkpoint_id)
        with without_key(self.backend):
            for listener in self.checkpoint_listeners():
                self.call(listener.notify_checkpoint_aborted, checkpoint_id, role="notify_checkpoint_aborted")

    def checkpoint_listeners(self) -> list[Any]:
        return [function for function in self.functions if isinstance(function, CheckpointListener)]

    # ---- records --------------------------------------------------------------------------------

    def process_element(self, value: Any, timestamp: Optional[int], input_index: int = 0) -> Iterator[None]:
        raise NotImplementedError

    def generate(
        self, code: CodeWriter, value: str, timestamp: Optional[str], emit: Any, input_index: int = 0
    ) -> None:
        """Write the statements of `process_element` for the variables named ``value`` and ``timestamp``
        (None: this batch has no timestamps).

        ``emit(value, timestamp, owned=False)`` writes what follows for an output record; ``owned``:
        nobody but the record itself can reach the value.  ``emit.result(value, timestamp)`` does for
        what a process function yielded, which may be ``(tag, value)``.  Each is called once."""
        raise NotImplementedError

    # ---- keys -----------------------------------------------------------------------------------

    @property
    def needs_key(self) -> bool:
        """Whether a map or another function that is not a process function may use keyed state: then it has
        asked for it in ``open`` or ``initialize_state``, and its key must be set for each record."""
        return self.backend is not None and any(
            type(function).open is not Function.open or isinstance(function, CheckpointedFunction)
            for function in self.functions
        )

    def select_key(self, value: Any, input_index: int = 0) -> Any:
        """Canonical key of a record, made the current one."""
        key = self.call(self._key_functions[input_index], value, record=value, role="key selector")
        try:
            canonical = self.memo[key]
        except (TypeError, ValueError):
            canonical = self.call(self.memo.compute, key, record=value, role="key selector")
        except BaseException as error:
            let_pass(error)
            raise self.error(error, value, "key selector") from error
        self.backend.current_key = canonical
        return canonical

    def generate_key(self, code: CodeWriter, value: str, input_index: int = 0) -> str:
        """Statements of `select_key` without the last one; the variable with the key."""
        with code.blame(self, "key selector", value):
            return code.canonical_key(
                self.selectors[input_index], value, self.memo, self.spec.key_type is not None
            )

    def generate_current_key(self, code: CodeWriter, value: str, input_index: int = 0) -> str:
        key = self.generate_key(code, value, input_index)
        code.line(f"{code.bind('backend', self.backend)}.current_key = {key}")
        return key

    # ---- time -----------------------------------------------------------------------------------

    def fire(self, watermark: int) -> Optional[Iterator[Item]]:
        """The watermark has reached this operator; the items that it causes, or None for nothing."""
        self.current_watermark = watermark
        return None

    def fire_processing_time(self, now_ms: int) -> Optional[Iterator[Item]]:
        return None

    @property
    def next_processing_time(self) -> Optional[int]:
        return None

    def forwards_watermark(self, watermark: int) -> bool:
        """False: this operator makes its own, or sends this one on later."""
        return True

    def forwards_watermark_status(self, idle: bool) -> bool:
        """The same of a status."""
        return True

    def before_idle(self) -> Optional[Iterator[Item]]:
        """The stream is about to become idle, and event time goes on without it: give what must go before that.  Items
        only from an operator that `fires`."""
        return None

    # ---- figures --------------------------------------------------------------------------------

    num_event_time_timers = 0
    num_processing_time_timers = 0

    @property
    def num_keyed_state_entries(self) -> int:
        return 0 if self.backend is None else self.backend.num_entries

    def metrics(self) -> dict[str, int]:
        return {}

    # ---- user code ------------------------------------------------------------------------------

    def call(self, function: Callable[..., Any], *args: Any, record: Any = _END, role: str = "") -> Any:
        """Call user code outside of a fused loop; what it raises becomes a UserFunctionError."""
        try:
            return function(*args)
        except BaseException as error:
            let_pass(error)
            raise self.error(error, record, role) from error

    def iterate(
        self,
        results: Optional[Iterable[Any]],
        record: Any = _END,
        role: str = "",
        function: Any = None,
    ) -> Iterator[Any]:
        """What user code returned, one by one; it may be a generator, which runs here.

        Args:
            function: that returned it; None: the one of ``role``, or the window function."""
        if results is None:
            return
        try:
            for result in results:
                yield result
        except BaseException as error:
            let_pass(error)
            if function is None:
                function = getattr(self, role or "window_function", None) or self.spec.operator.function
            explained = self.explain_results(error, results, function)
            raise self.error(explained, record, role) from error

    def explain_results(self, error: BaseException, results: Any, function: Any) -> BaseException:
        """``error`` of iterating over ``results``; when these cannot be iterated over, a TypeError that
        names the function which returned them: no line of it is in the traceback."""
        iterable = hasattr(type(results), "__iter__") or hasattr(type(results), "__getitem__")
        if iterable or not isinstance(error, TypeError):
            return error
        name, place = function_place(function)
        role = self.function_role
        if isinstance(getattr(function, "__self__", None), Function):
            role = function.__name__
        return TypeError(
            f"{error}: {role} must return an iterable or yield: return [x] "
            f"({', '.join(filter(None, (name, place)))})"
        )

    def error(self, error: BaseException, record: Any = _END, role: str = "") -> BaseException:
        """What to raise for ``error`` of user code in this operator."""
        records = () if record is _END else (record,)
        found = user_error(error, self.name, self.environment, role, *records)
        if type(found) is UserFunctionError or not isinstance(found, UserError) or "operator" in found.fields:
            return found
        # A connector's refusal of a record or an option says everything but whose it is.
        subtask = f"{self.environment.subtask_index} of {self.environment.parallelism}"
        where = ", ".join(filter(None, (f'operator "{self.name}", subtask {subtask}', found.where)))
        fields = {**found.fields, "operator": self.name}
        return type(found)(found.what, where=where, why=found.why, do=found.do, **fields)


class KeyedOperator(RuntimeOperator):
    """An operator whose inputs are keyed: state and timers belong to the key of the record."""

    def __init__(self, spec: ChainedOperator, environment: TaskEnvironment):
        super().__init__(spec, environment)
        self.timers = KeyedTimerService(self.backend, environment.now_ms)
        self._is_restored = False

    # ---- checkpoints ----------------------------------------------------------------------------

    saves_keyed_state = True  # timers, and how far event time has come

    def states_beside_backend(self) -> Iterator[StateEntries]:
        for entries in self.timers.snapshot_states():
            entries.meta = self.backend.with_keys(entries.meta)
            if entries.meta.name == EVENT_TIMERS:
                properties = {WATERMARK: self.current_watermark, TIMED_BY: sorted(self.spec.timed_by)}
                entries.meta = replace(entries.meta, properties=properties)
            yield entries

    def restore_keyed(self, reader: KeyedSnapshotReader, key_groups: KeyGroupRange) -> None:
        """Event time goes on from where it was: what was late stays late, and no window fires again.  It begins anew,
        as in Flink, after a drain, for the end of time was not that of the data; and where something new upstream makes
        event time, for the watermark that was reached says nothing about its records."""
        super().restore_keyed(reader, key_groups)
        self.timers.restore(reader, key_groups)
        meta = reader.states.get(EVENT_TIMERS)
        watermark = MIN_WATERMARK_MS if meta is None else int(meta.properties[WATERMARK])
        timed_by = self.spec.timed_by
        known = timed_by if meta is None else meta.properties.get(TIMED_BY, timed_by)
        if watermark == MAX_WATERMARK_MS or not timed_by.issubset(known):
            watermark = MIN_WATERMARK_MS
        if self._is_restored:  # old subtasks that were not equally far: the least, so that nothing is skipped
            watermark = min(watermark, self.current_watermark)
        self._is_restored = True
        self.current_watermark = self.timers.watermark = watermark

    # ---- batch jobs -----------------------------------------------------------------------------

    def finish_key(self) -> Optional[Iterator[Item]]:
        """All timers of the key fire, at the end of event time; what they register is ignored, as in Flink, where a
        timer that registers itself anew would never end."""
        timers = self.timers
        return self._fire_all() if timers.event_time or timers.processing_time else None

    def _fire_all(self) -> Iterator[Item]:
        timers = self.timers
        self.current_watermark = timers.watermark = MAX_WATERMARK_MS
        queues = timers.event_time, timers.processing_time
        for queue in queues:
            queue.quiesce()
        yield from self.fire_event_timers(MAX_WATERMARK_MS)
        yield from self.fire_processing_timers(MAX_WATERMARK_MS)
        for queue in queues:
            queue.resume()
        self.current_watermark = timers.watermark = MIN_WATERMARK_MS

    # ---- timers ---------------------------------------------------------------------------------

    def fire(self, watermark: int) -> Optional[Iterator[Item]]:
        self.current_watermark = self.timers.watermark = watermark
        next_time = self.timers.event_time.next_time
        if next_time is None or next_time > watermark:
            return None
        return self.fire_event_timers(watermark)

    def fire_event_timers(self, watermark: int) -> Iterator[Item]:
        raise NotImplementedError

    def fire_processing_time(self, now_ms: int) -> Optional[Iterator[Item]]:
        limit = now_ms - self.timers.delay_ms
        next_time = self.timers.processing_time.next_time
        if next_time is None or next_time > limit:
            return None
        return self.fire_processing_timers(limit)

    def fire_processing_timers(self, limit: int) -> Iterator[Item]:
        """Those at or below ``limit``."""
        raise NotImplementedError

    @property
    def next_processing_time(self) -> Optional[int]:
        next_time = self.timers.processing_time.next_time
        return None if next_time is None else next_time + self.timers.delay_ms

    # ---- figures --------------------------------------------------------------------------------

    @property
    def num_event_time_timers(self) -> int:  # type: ignore[override]
        return len(self.timers.event_time)

    @property
    def num_processing_time_timers(self) -> int:  # type: ignore[override]
        return len(self.timers.processing_time)


def check_handle(name: str, handle: KeyedHandle, is_keyed: bool, state_backend: str) -> None:
    """Refuse keyed state of the operator ``name`` that it cannot take, whatever is in it."""
    if not is_canonical(handle) and handle.backend != state_backend:
        raise StateMigrationError(
            f'could not restore the keyed state of operator "{name}"',
            why=f"it was saved in the own format of the backend {handle.backend}, this job runs {state_backend}",
            do="restore from a savepoint, which every backend can read, or run with the old backend",
        )
    if not is_keyed:
        raise StateMigrationError(
            f'could not restore the keyed state of operator "{name}"',
            why="the operator has no key any more",
            do="give it another uid, and restore with allow_non_restored_state",
        )


def owned_key_groups(environment: TaskEnvironment) -> KeyGroupRange:
    groups = key_group_range(environment.max_parallelism, environment.parallelism, environment.subtask_index)
    return KeyGroupRange(groups.start, groups.stop - 1)


def create_keyed_backend(operator: str, environment: TaskEnvironment) -> HeapKeyedStateBackend:
    """What ``state.backend.type`` and ``state.changelog.enabled`` say, for one operator of a subtask."""
    if environment.is_batch:  # state of one key at a time, and no checkpoints
        return HeapKeyedStateBackend(operator, environment.now_ms)
    groups, max_parallelism = owned_key_groups(environment), environment.max_parallelism
    configuration, materialiser = environment.configuration, environment.materialiser
    if environment.state_backend == "rocksdb":
        from flinkish.state.rocksdb import RocksDBKeyedStateBackend  # its package is needed by those who choose it only

        return RocksDBKeyedStateBackend(
            operator, environment.now_ms, configuration, groups, max_parallelism, materialiser
        )
    if materialiser is not None and config.read(configuration, config.CHANGELOG_ENABLED):
        return ChangelogKeyedStateBackend(
            operator, environment.now_ms, configuration, groups, max_parallelism, materialiser
        )
    return HeapKeyedStateBackend(operator, environment.now_ms)


class SnapshotContext(FunctionSnapshotContext):
    """``options``: None: as for a savepoint."""

    def __init__(self, checkpoint_id: int, timestamp_ms: int, options: Optional[CheckpointOptions] = None):
        self._checkpoint_id, self._timestamp_ms, self.options = checkpoint_id, timestamp_ms, options

    def get_checkpoint_id(self):
        return self._checkpoint_id

    def get_checkpoint_timestamp(self):
        return self._timestamp_ms

    @property
    def may_share_files(self) -> bool:
        """The snapshot may refer to files that other checkpoints use too."""
        options = self.options
        return options is not None and not options.kind.is_savepoint and not options.is_inline


class _InitializationContext(FunctionInitializationContext):
    def __init__(self, operator: RuntimeOperator):
        self._operator = operator

    def is_restored(self):
        return self._operator.environment.restore is not None

    def get_restored_checkpoint_id(self):
        restore = self._operator.environment.restore
        return None if restore is None else restore.checkpoint_id

    def get_operator_state_store(self):
        return self._operator.operator_state

    def get_keyed_state_store(self):
        return self._operator.runtime_context()


def side_output(result: Any) -> Optional[OutputTag]:
    """The tag when ``result`` is ``(tag, value)``, as in the fused test."""
    if type(result) is tuple and len(result) == 2 and type(result[0]) is OutputTag:
        return result[0]
    return None


def is_end(watermark: int) -> bool:
    return watermark >= MAX_WATERMARK_MS
