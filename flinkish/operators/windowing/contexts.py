"""What assigners, triggers, evictors and window functions see.  One object of each for all windows of an operator: the
`WindowScope` says which window and key it speaks of."""

from __future__ import annotations

from typing import Any, Sequence

from flinkish.datastream.evictors import Evictor
from flinkish.datastream.functions import KeyedStateStore, ProcessWindowFunction
from flinkish.datastream.time_window import TimeWindow, Window
from flinkish.datastream.triggers import Trigger
from flinkish.datastream.window_assigners import WindowAssigner
from flinkish.errors import UserError
from flinkish.operators.windowing.merging_state import merge_namespaces
from flinkish.state.current_key import NO_KEY
from flinkish.state.heap import StateStore

#: Prefixes of state names, so that states of different owners may be called the same.
WINDOW_STATE, TRIGGER_STATE = "window/", "trigger/"


class WindowScope:
    """The current window.  ``current_key`` is (namespace, key), as states and timers of windows are kept."""

    __slots__ = ("current_key", "window")

    def __init__(self) -> None:
        self.current_key: Any = NO_KEY
        self.window: Any = None

    def enter(self, key: Any, window: Window, namespace: Any) -> None:
        self.window = window
        self.current_key = namespace, key


class WindowContext(ProcessWindowFunction.Context):
    """Of window functions."""

    def __init__(self, operator: Any, scope: WindowScope, merging: bool = False):
        self._operator, self._scope = operator, scope
        self._window_state = StateStore(operator.backend, scope, WINDOW_STATE)
        if merging:
            self._window_state = _NoWindowState(operator.backend, scope, WINDOW_STATE)
        self._global_state = StateStore(operator.backend)  # the same as of the runtime context in open()

    def window(self) -> Any:
        return self._scope.window

    def current_processing_time(self) -> int:
        return self._operator.environment.now_ms()

    def current_watermark(self) -> int:
        return self._operator.current_watermark

    def window_state(self) -> KeyedStateStore:
        return self._window_state

    def global_state(self) -> KeyedStateStore:
        return self._global_state


class _NoWindowState(StateStore):
    """Flink's rule: nobody could say what becomes of such state when windows merge."""

    def _get(self, descriptor: Any, kind: type) -> Any:
        raise UserError(
            f'could not give the state "{getattr(descriptor, "name", descriptor)}" of a window',
            where=f'operator "{self._backend.operator}"',
            why="windows that merge, such as sessions, have no state of their own",
            do="use global_state(), which belongs to the key, or keep it in the accumulator of an aggregate",
        )


class AssignerContext(WindowAssigner.WindowAssignerContext):
    def __init__(self, operator: Any):
        self._now_ms, self._runtime_context = operator.environment.now_ms, operator.runtime_context()

    def get_current_processing_time(self) -> int:
        return self._now_ms()

    def get_runtime_context(self) -> Any:
        return self._runtime_context


class EvictorContext(Evictor.EvictorContext):
    def __init__(self, operator: Any):
        self._operator = operator

    def get_current_processing_time(self) -> int:
        return self._operator.environment.now_ms()

    def get_metric_group(self) -> Any:
        return self._operator.metric_group

    def get_current_watermark(self) -> int:
        return self._operator.current_watermark


class TriggerContext(Trigger.OnMergeContext):
    """``merged``: namespaces of the windows that become the current one, while a trigger's ``on_merge`` runs."""

    def __init__(self, operator: Any, scope: WindowScope):
        self._backend, self._scope = operator.backend, scope
        self._metric_group, self._now_ms = operator.metric_group, operator.environment.now_ms
        self._timers = operator.timers
        self._states: dict[str, tuple[Any, Any]] = {}  # name -> (descriptor, state)
        self.merged: Sequence[Any] = ()

    def get_current_processing_time(self) -> int:
        return self._now_ms()

    def get_metric_group(self) -> Any:
        return self._metric_group

    def get_current_watermark(self) -> int:
        return self._timers.watermark

    def register_processing_time_timer(self, time: int) -> None:
        self._timers.register_processing_time_timer(time)

    def register_event_time_timer(self, time: int) -> None:
        self._timers.register_event_time_timer(time)

    def delete_processing_time_timer(self, time: int) -> None:
        self._timers.delete_processing_time_timer(time)

    def delete_event_time_timer(self, time: int) -> None:
        self._timers.delete_event_time_timer(time)

    def get_partitioned_state(self, state_descriptor: Any) -> Any:
        known = self._states.get(state_descriptor.name)
        if known is not None and known[0] is state_descriptor:
            return known[1]
        state = self._backend.state(state_descriptor, self._scope, TRIGGER_STATE)
        self._states[state_descriptor.name] = state_descriptor, state
        return state

    def merge_partitioned_state(self, state_descriptor: Any) -> None:
        state = self.get_partitioned_state(state_descriptor)
        if self.merged:
            table = self._backend.tables[TRIGGER_STATE + state_descriptor.name]
            namespace, key = self._scope.current_key
            merge_namespaces(table, state_descriptor, state, self._scope, namespace, self.merged, key)


class FiredWindow:
    """Stands for the record in the error of a window."""

    __slots__ = ("key", "window")

    def __init__(self, key: Any, window: Window):
        self.key, self.window = key, window

    def __repr__(self) -> str:
        window = self.window
        shown = f"[{window.start}, {window.end})" if isinstance(window, TimeWindow) else repr(window)
        return f"<window {shown} of key {self.key!r}>"
