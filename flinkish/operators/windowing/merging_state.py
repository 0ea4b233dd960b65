"""What becomes of a trigger's state when windows merge."""

from __future__ import annotations

from typing import Any, Sequence

from flinkish.datastream import state as api
from flinkish.errors import InvalidJobError

_MISSING = object()


def merge_namespaces(
    table: Any, descriptor: Any, state: Any, scope: Any, target: Any, sources: Sequence[Any], key: Any
) -> None:
    """Move what ``sources`` (namespaces) have of ``key`` to ``target``.

    Raises:
        InvalidJobError: the state has no rule for it (values and maps)."""
    if isinstance(descriptor, api.AggregatingStateDescriptor):
        _merge_accumulators(table, descriptor, target, sources, key)
        return
    if not isinstance(descriptor, (api.ReducingStateDescriptor, api.ListStateDescriptor)):
        raise InvalidJobError(
            f'could not merge the state "{descriptor.name}" of a trigger',
            why=f"a {type(descriptor).__name__} says nothing of how two values become one",
            do="use a reducing, aggregating or list state, or merge it in on_merge() yourself",
        )
    here = scope.current_key
    found = []
    for source in sources:
        if source != target:
            scope.current_key = source, key
            found.append(state.get())
            state.clear()
    scope.current_key = here
    for value in found:
        if isinstance(descriptor, api.ListStateDescriptor):
            state.add_all(value)
        elif value is not None:
            state.add(value)


def _merge_accumulators(table: Any, descriptor: Any, target: Any, sources: Sequence[Any], key: Any) -> None:
    """By the table: what the state gives is the result, not the accumulator."""
    if descriptor.ttl_config is not None and descriptor.ttl_config.is_enabled():
        raise InvalidJobError(
            f'could not merge the state "{descriptor.name}" of a trigger',
            why="it has a time to live",
            do="leave it out: state of a window goes when the window goes",
        )
    merge = descriptor.agg_function.merge
    merged = table.get((target, key), _MISSING)
    for source in sources:
        if source == target:
            continue
        accumulator = table.pop((source, key), _MISSING)
        if accumulator is not _MISSING:
            merged = accumulator if merged is _MISSING else merge(merged, accumulator)
    if merged is not _MISSING:
        table[target, key] = merged
