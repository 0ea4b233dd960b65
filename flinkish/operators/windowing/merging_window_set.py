"""MergingWindowSet: the windows of one key that are open, and where each has its content.

States of a window: *in flight* (a key of the mapping), then *merged* into another or *retired*.  Its content lies under
its *state window*, the namespace of one of the windows that it was made of, so that a session which grows moves no
state.  Invariants: state windows are different; each belongs to one window in flight.

The mapping is a dict, window -> state window, both as namespaces; the operator keeps it in keyed state.

Source: Flink's ``MergingWindowSet``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from flinkish.datastream.window_assigners import MergingWindowAssigner, SessionWindowAssigner
from flinkish.operators.windowing.namespaces import TimeWindowNamespaces, WindowNamespaces


class Merge(NamedTuple):
    """``merged`` windows, which were in flight, have become ``result``.  Its content goes on under ``state_window``;
    that of ``merged_state_windows`` is to be added to it."""

    result: Any
    merged: list[Any]
    state_window: Any
    merged_state_windows: list[Any]


class MergingWindowSet:
    """Of one assigner; the mapping is an argument, one for each key."""

    def __init__(self, assigner: MergingWindowAssigner, namespaces: WindowNamespaces):
        self._assigner, self._namespaces = assigner, namespaces
        plain = getattr(type(assigner), "merge_windows", None) is SessionWindowAssigner.merge_windows
        self._is_sessions = plain and isinstance(namespaces, TimeWindowNamespaces)

    def add(self, mapping: dict, window: Any) -> tuple[Any, list[Merge]]:
        """Add a window: the one in flight that holds it now, and what has merged for it.

        >>> from flinkish.datastream.window import EventTimeSessionWindows, TimeWindow, TimeWindowSerializer
        >>> windows = MergingWindowSet(EventTimeSessionWindows(5), TimeWindowNamespaces(TimeWindowSerializer()))
        >>> windows.add(mapping := {(0, 5): (0, 5)}, TimeWindow(3, 8))
        ((0, 8), [Merge(result=(0, 8), merged=[(0, 5)], state_window=(0, 5), merged_state_windows=[])])
        >>> mapping
        {(0, 8): (0, 5)}
        """
        if self._is_sessions:
            return self._add_session(mapping, window.start, window.end)
        added = self._namespaces.of(window)
        groups: list[tuple[list, Any]] = []
        open_windows = [self._namespaces.window(known) for known in mapping]
        self._assigner.merge_windows([*open_windows, window], _Collect(groups))
        result, is_merged = added, False
        merges: list[Merge] = []
        for group, cover in groups:
            merged = [self._namespaces.of(one) for one in group]
            if added in merged:
                merged.remove(added)
                is_merged, result = True, self._namespaces.of(cover)
            merged = [one for one in dict.fromkeys(merged) if one in mapping]
            if merged:
                self._merge(mapping, self._namespaces.of(cover), merged, merges)
            elif is_merged:
                mapping.setdefault(result, result)
        if not is_merged:
            mapping.setdefault(added, added)
        return result, merges

    def _add_session(self, mapping: dict, start: int, end: int) -> tuple[Any, list[Merge]]:
        """As above for windows that overlap or touch, without making objects: windows in flight do neither among
        each other."""
        merged = None
        for known in mapping:
            if known[0] <= end and known[1] >= start:
                if merged is None:
                    merged = [known]
                else:
                    merged.append(known)
        if merged is None:
            mapping[start, end] = start, end
            return (start, end), []
        if len(merged) == 1:
            (known,) = merged
            if known[0] <= start and known[1] >= end:
                return known, []
        else:
            merged.sort()
        result = min(start, merged[0][0]), max(end, merged[-1][1])
        merges: list[Merge] = []
        self._merge(mapping, result, merged, merges)
        return result, merges

    @staticmethod
    def _merge(mapping: dict, result: Any, merged: list, merges: list[Merge]) -> None:
        state_windows = [mapping.pop(one) for one in merged]
        mapping[result] = state_windows[0]
        if merged != [result]:
            merges.append(Merge(result, merged, state_windows[0], state_windows[1:]))


class _Collect(MergingWindowAssigner.MergeCallback):
    def __init__(self, groups: list):
        self._groups = groups

    def merge(self, to_be_merged: Any, merge_result: Any) -> None:
        self._groups.append((list(to_be_merged), merge_result))
