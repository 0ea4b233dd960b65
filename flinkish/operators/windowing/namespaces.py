"""Windows as namespaces of state and timers: canonical keys, as a backend can encode them (`state.key_encoding`), and
quicker to hash than the objects that user code sees."""

from __future__ import annotations

import io
from typing import Any, Iterable

from flinkish.common.constants import MAX_LONG_VALUE
from flinkish.common.serializer import TypeSerializer
from flinkish.datastream.time_window import (
    CountWindow,
    CountWindowSerializer,
    GlobalWindow,
    GlobalWindowSerializer,
    TimeWindow,
    TimeWindowSerializer,
    Window,
)
from flinkish.datastream.window_assigners import WindowAssigner


class WindowNamespaces:
    """``of(window)`` is the namespace of a window, ``window(namespace)`` the way back.  By the window's serializer; the
    built-in windows have shorter ways."""

    def __init__(self, serializer: TypeSerializer):
        self._serializer = serializer

    def of(self, window: Any) -> Any:
        out = io.BytesIO()
        self._serializer.serialize(window, out)
        return out.getvalue()

    def window(self, namespace: Any) -> Any:
        return self._serializer.deserialize(io.BytesIO(namespace))

    def last_instant(self, namespace: Any) -> int:
        """``max_timestamp()`` of its window."""
        return self.window(namespace).max_timestamp()


class TimeWindowNamespaces(WindowNamespaces):
    def of(self, window: TimeWindow) -> tuple[int, int]:
        return window.start, window.end

    def window(self, namespace: tuple[int, int]) -> TimeWindow:
        return TimeWindow(*namespace)

    def last_instant(self, namespace: tuple[int, int]) -> int:
        return min(namespace[1] - 1, MAX_LONG_VALUE)


class CountWindowNamespaces(WindowNamespaces):
    def of(self, window: CountWindow) -> int:
        return window.id

    def window(self, namespace: int) -> CountWindow:
        return CountWindow(namespace)


class GlobalWindowNamespaces(WindowNamespaces):
    def of(self, window: GlobalWindow) -> int:
        return 0

    def window(self, namespace: int) -> GlobalWindow:
        return GlobalWindow.get()


_BUILT_IN: dict[type, type[WindowNamespaces]] = {
    TimeWindowSerializer: TimeWindowNamespaces,
    CountWindowSerializer: CountWindowNamespaces,
    GlobalWindowSerializer: GlobalWindowNamespaces,
}


def namespaces_of(serializer: TypeSerializer) -> WindowNamespaces:
    return _BUILT_IN.get(type(serializer), WindowNamespaces)(serializer)


def checked_windows(windows: Any, assigner: WindowAssigner) -> Iterable[Window]:
    """What an assigner of the user's gave; bounds of time windows become ints."""
    where = f"{type(assigner).__name__}.assign_windows()"
    try:
        found = tuple(windows)
    except TypeError:
        raise TypeError(f"{where} must return a list of windows, not {windows!r}") from None
    for window in found:
        if not isinstance(window, Window):
            raise TypeError(f"{where} must return windows, not {window!r}")
        if isinstance(window, TimeWindow) and not (type(window.start) is type(window.end) is int):
            try:
                window.start, window.end = window.start.__index__(), window.end.__index__()
            except AttributeError:
                raise TypeError(f"{where} must return windows with ints of ms as bounds, not {window!r}") from None
    return found
