"""process with broadcast state: the second input reaches every subtask, and what it changes is the same in all.

The broadcast side reads and writes the states; the other side reads them.  With keys, the first input has keyed state
and timers; a record of the broadcast side has no key, so keyed state refuses it, and only `apply_to_keyed_state` sees
that of all keys.

Source: Flink's ``CoBroadcastWithNonKeyedOperator`` and ``CoBroadcastWithKeyedOperator``.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Optional

from flinkish.datastream.functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from flinkish.datastream.state import MapStateDescriptor, StateDescriptor
from flinkish.datastream.time_domain import TimeDomain
from flinkish.errors import InvalidJobError
from flinkish.operators.keyed_process import KeyedProcessOperatorBase
from flinkish.operators.process import ProcessOperatorBase
from flinkish.operators.timers import UnkeyedTimerService
from flinkish.operators.user_errors import bounded_repr
from flinkish.state.current_key import NoKey
from flinkish.state.operator_state import OperatorStateBackend

ELEMENTS, BROADCAST = 0, 1


#: While a record of the broadcast side is processed.
BROADCAST_KEY = NoKey(
    "a record of the broadcast side belongs to no key",
    "use it in process_element() and on_timer(), or see the state of all keys with "
    "ctx.apply_to_keyed_state(descriptor, function)",
)


class BroadcastStates:
    """The states that ``broadcast(...)`` has named, found by descriptor."""

    def __init__(self, descriptors: Iterable[MapStateDescriptor]):
        self._descriptors = tuple(descriptors)
        self._states: dict[str, Any] = {}
        self._read_only: dict[str, Any] = {}
        self._checked: dict[int, MapStateDescriptor] = {}  # kept alive, so that an id stays its own

    def open(self, operator_state: OperatorStateBackend) -> None:
        """After the restore: so those that the function never asks for are in the next snapshot too."""
        for descriptor in self._descriptors:
            state = operator_state.get_broadcast_state(descriptor)
            self._states[descriptor.name] = state
            self._read_only[descriptor.name] = state.read_only()

    def writable(self, descriptor: Any) -> Any:
        return self._states[self._name(descriptor)]

    def read_only(self, descriptor: Any) -> Any:
        return self._read_only[self._name(descriptor)]

    def _name(self, descriptor: Any) -> str:
        """Of a descriptor that is equal to one of the known."""
        if id(descriptor) not in self._checked:
            if descriptor not in self._descriptors:
                known = ", ".join(repr(known.name) for known in self._descriptors)
                raise InvalidJobError(
                    f"there is no broadcast state {bounded_repr(descriptor)}",
                    why=f"the stream was broadcast with the states {known}",
                    do="give its descriptor to broadcast(...) too, with the same name and types",
                )
            self._checked[id(descriptor)] = descriptor
        return descriptor.name


# ---- contexts -----------------------------------------------------------------------------------


class _Times:
    """One object for all records of a side; ``time`` is set for each."""

    def __init__(self, timers: Any, states: BroadcastStates):
        self.time: Optional[int] = None
        self._timers = timers
        self._states = states

    def timestamp(self):
        return self.time

    def current_processing_time(self):
        return self._timers.current_processing_time()

    def current_watermark(self):
        return self._timers.current_watermark()


class _BroadcastContext(_Times, BroadcastProcessFunction.Context):
    def get_broadcast_state(self, state_descriptor):
        return self._states.writable(state_descriptor)


class _ElementContext(_Times, BroadcastProcessFunction.ReadOnlyContext):
    def get_broadcast_state(self, state_descriptor):
        return self._states.read_only(state_descriptor)


class _KeyedBroadcastContext(_Times, KeyedBroadcastProcessFunction.Context):
    def __init__(self, timers: Any, states: BroadcastStates, backend: Any):
        super().__init__(timers, states)
        self._backend = backend

    def get_broadcast_state(self, state_descriptor):
        return self._states.writable(state_descriptor)

    def apply_to_keyed_state(self, state_descriptor, function):
        process = _state_function(state_descriptor, function)
        backend = self._backend
        state = backend.state(state_descriptor)
        try:
            for key in list(backend.tables[state_descriptor.name]):  # the function may change what is walked over
                backend.current_key = key
                process(key, state)
        finally:
            backend.current_key = BROADCAST_KEY


class _KeyedElementContext(_Times, KeyedBroadcastProcessFunction.OnTimerContext):
    """For records and, in another object, for timers; then ``domain`` is set."""

    def __init__(self, timers: Any, states: BroadcastStates, backend: Any):
        super().__init__(timers, states)
        self.domain: Optional[TimeDomain] = None
        self._backend = backend

    def get_broadcast_state(self, state_descriptor):
        return self._states.read_only(state_descriptor)

    def timer_service(self):
        return self._timers

    def get_current_key(self):
        return self._backend.current_key

    def time_domain(self):
        return self.domain


def _state_function(state_descriptor: Any, function: Any) -> Callable[[Any, Any], Any]:
    if not isinstance(state_descriptor, StateDescriptor):
        raise InvalidJobError(
            f"apply_to_keyed_state() cannot use {bounded_repr(state_descriptor)}",
            why=f"it is of type {type(state_descriptor).__name__}, not a StateDescriptor",
            do="give the descriptor that process_element() gets its state with",
        )
    process = getattr(function, "process", function)
    if isinstance(function, type) or not callable(process):
        raise InvalidJobError(
            f"apply_to_keyed_state() cannot use {bounded_repr(function)}",
            do="give a callable of (key, state), or a KeyedStateFunction",
        )
    return process


# ---- operators ----------------------------------------------------------------------------------


class _BroadcastSides(ProcessOperatorBase):
    """What both have: a function and a context for each side."""

    contexts: tuple[Any, Any]

    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        function = spec.operator.function
        self.processes = (self.own(function, "process_element"), self.own(function, "process_broadcast_element"))
        self.states = BroadcastStates(spec.operator.descriptors)

    def initialize_state(self):
        super().initialize_state()
        self.states.open(self.operator_state)


class CoBroadcastWithNonKeyedOperator(_BroadcastSides):
    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        self.timers = UnkeyedTimerService(environment.now_ms)
        self.contexts = _ElementContext(self.timers, self.states), _BroadcastContext(self.timers, self.states)

    def process_element(self, value, timestamp, input_index=0):
        yield from self.process(self.processes[input_index], value, timestamp, self.contexts[input_index])

    def generate(self, code, value, timestamp, emit, input_index=0):
        self.generate_process(code, self.processes[input_index], value, timestamp, emit, self.contexts[input_index])

    def fire(self, watermark):
        self.current_watermark = self.timers.watermark = watermark
        return None


class CoBroadcastWithKeyedOperator(_BroadcastSides, KeyedProcessOperatorBase):
    def __init__(self, spec, environment):
        super().__init__(spec, environment)
        parts = self.timers, self.states, self.backend
        self.contexts = _KeyedElementContext(*parts), _KeyedBroadcastContext(*parts)
        self.timer_context = _KeyedElementContext(*parts)

    def process_element(self, value, timestamp, input_index=0):
        if input_index == ELEMENTS:
            self.select_key(value)
        else:
            self.backend.current_key = BROADCAST_KEY
        yield from self.process(self.processes[input_index], value, timestamp, self.contexts[input_index])

    def generate(self, code, value, timestamp, emit, input_index=0):
        if input_index == ELEMENTS:
            self.generate_current_key(code, value)
        else:
            code.line(f"{code.bind('backend', self.backend)}.current_key = {code.bind('no_key', BROADCAST_KEY)}")
        self.generate_process(code, self.processes[input_index], value, timestamp, emit, self.contexts[input_index])
