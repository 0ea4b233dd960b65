"""Operator state: lists and maps of one operator that belong to no key.

A list state is dealt out anew when the parallelism changes, entry by entry (SPLIT), or whole to every subtask
(UNION); a broadcast state is the same map in every subtask.  It lies on the heap for every backend, as in
Flink, and goes into the acknowledgement: each entry is written for itself, so that it can be dealt out without
being read (`operator_entries`).  Classes and declared types may change as those of keyed state may.
"""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Mapping, NoReturn, Optional

from flinkish.datastream import state as api
from flinkish.errors import InvalidJobError, UserError
from flinkish.messages.checkpoints import DistributionMode, OperatorStateHandle
from flinkish.state.canonical_key import map_key
from flinkish.state.declared_types import DeclaredType, adapter, declared_by, infos_of
from flinkish.state.operator_entries import decode_entries, encode_entries
from flinkish.state.serializers import state_refusal

#: What users call them.
KINDS = {
    DistributionMode.SPLIT: "a list state",
    DistributionMode.UNION: "a union list state",
    DistributionMode.BROADCAST: "a broadcast state",
}


class OperatorStateBackend(api.OperatorStateStore):
    """All operator state of one operator in one subtask.

    Order: made -> `restore` -> states are asked for.  A restored state that nobody asks for stays, and is in the
    next snapshot again, as in Flink.
    """

    def __init__(self, operator: str):
        self.operator = operator
        self._states: dict[str, tuple[DistributionMode, Any, Any]] = {}  # mode, descriptor, state
        self._declared: dict[str, dict[str, DeclaredType]] = {}  # by state and role
        self._restored: dict[str, tuple[DistributionMode, tuple[bytes, ...]]] = {}

    def restore(self, handle: OperatorStateHandle) -> None:
        for name, (mode, entries) in handle.states.items():
            known = self._restored.get(name)
            self._restored[name] = mode, entries if known is None else known[1] + entries

    def restored_names(self) -> list[str]:
        return sorted(self._restored)

    # ---- states ---------------------------------------------------------------------------------

    def get_list_state(self, state_descriptor: api.ListStateDescriptor) -> "OperatorListState":
        return self._state(state_descriptor, DistributionMode.SPLIT, api.ListStateDescriptor)

    def get_union_list_state(self, state_descriptor: api.ListStateDescriptor) -> "OperatorListState":
        return self._state(state_descriptor, DistributionMode.UNION, api.ListStateDescriptor)

    def get_broadcast_state(self, state_descriptor: api.MapStateDescriptor) -> "OperatorBroadcastState":
        return self._state(state_descriptor, DistributionMode.BROADCAST, api.MapStateDescriptor)

    def _state(self, descriptor: Any, mode: DistributionMode, kind: type) -> Any:
        where = f'operator "{self.operator}"'
        if not isinstance(descriptor, kind):
            raise InvalidJobError(f"could not get state: {descriptor!r} is not a {kind.__name__}", where=where)
        if descriptor.ttl_config is not None:
            raise InvalidJobError(
                f'state "{descriptor.name}" has a time to live, which operator state has not', where=where
            )
        name = descriptor.name
        known = self._states.get(name)
        if known is not None:
            if known[0] is not mode or known[1] != descriptor:
                raise InvalidJobError(
                    f'state "{name}" was described twice',
                    where=where,
                    why=f"first as {KINDS[known[0]]} by {known[1]!r}, then as {KINDS[mode]} by {descriptor!r}",
                    do="give each state its own name",
                )
            return known[2]
        entries = self._entries_of(descriptor, mode)
        state = OperatorListState(entries) if mode is not DistributionMode.BROADCAST else OperatorBroadcastState(entries)
        self._states[name] = mode, descriptor, state
        self._declared[name] = declared_by(descriptor)
        return state

    def _entries_of(self, descriptor: Any, mode: DistributionMode) -> list:
        """What was restored, in the form that the program's classes and the descriptor have now."""
        name = descriptor.name
        saved_mode, entries = self._restored.get(name, (mode, ()))
        if saved_mode is not mode:
            raise state_refusal(
                self.operator, name, "its kind has changed",
                f"it was saved as {KINDS[saved_mode]}, the program asks for {KINDS[mode]}",
                "give the new state another name", old=saved_mode.value, new=mode.value,
            )  # fmt: skip
        restored: list = []
        of_map = mode is DistributionMode.BROADCAST
        for group in decode_entries(entries, self.operator, name):
            values = group.values
            for role, info in infos_of(descriptor).items():
                position = 0 if role == "key" else 1
                parts = (value[position] for value in values) if of_map else values
                adapt = adapter(self.operator, name, role, info, group.declared.get(role), parts)
                if adapt is not None:  # of values only
                    values = [(key, adapt(value)) for key, value in values] if of_map else list(map(adapt, values))
            restored += values
        self._restored.pop(name, None)
        return restored

    # ---- snapshots ------------------------------------------------------------------------------

    def snapshot(self) -> Optional[OperatorStateHandle]:
        """A copy of everything as it is now; None when there is no state.

        Raises:
            UserError: an entry cannot be pickled.
        """
        states = dict(self._restored)
        for name, (mode, _, state) in self._states.items():
            states[name] = mode, encode_entries(state.entries(), self._declared[name], self.operator, name)
        return OperatorStateHandle(states) if states else None


class OperatorListState(api.ListState):
    def __init__(self, entries: list):
        self._entries = entries

    def entries(self) -> Iterable[Any]:
        return self._entries

    def get(self) -> list:
        """A new list, so that the state may be changed while it is walked."""
        return list(self._entries)

    def add(self, value) -> None:
        self._entries.append(value)

    def add_all(self, values: Iterable) -> None:
        self._entries.extend(values)

    def update(self, values: Iterable) -> None:
        self._entries = list(values)

    def clear(self) -> None:
        self._entries = []


class _ReadableBroadcastState(api.ReadOnlyBroadcastState):
    def __init__(self, entries: dict):
        self._map = entries

    def get(self, key):
        return self._map.get(map_key(key))

    def contains(self, key) -> bool:
        return map_key(key) in self._map

    def items(self) -> Iterator:
        return iter(list(self._map.items()))

    def keys(self) -> Iterator:
        return iter(list(self._map))

    def values(self) -> Iterator:
        return iter(list(self._map.values()))

    def is_empty(self) -> bool:
        return not self._map


class ReadOnlyOperatorBroadcastState(_ReadableBroadcastState):
    """A broadcast state as the side sees it that must not change it."""

    def _refuse(self, *args: Any) -> NoReturn:
        raise UserError(
            "broadcast state cannot be changed here",
            why="only the broadcast side gives all subtasks the same records, so only its changes are the same in all",
            do="change it in process_broadcast_element(); what belongs to a key goes into keyed state",
        )

    put = put_all = remove = clear = __setitem__ = __delitem__ = _refuse


class OperatorBroadcastState(_ReadableBroadcastState, api.BroadcastState):
    """Entries are (key, value)."""

    def __init__(self, entries: Iterable[tuple[Any, Any]]):
        super().__init__({})
        self.put_all(dict(entries))

    def entries(self) -> Iterable[Any]:
        return self._map.items()

    def read_only(self) -> ReadOnlyOperatorBroadcastState:
        """Shows this state as it is at each moment."""
        return ReadOnlyOperatorBroadcastState(self._map)

    def put(self, key, value) -> None:
        self._map[map_key(key)] = value

    def put_all(self, dict_value: Mapping) -> None:
        for key, value in dict(dict_value).items():
            self.put(key, value)

    def remove(self, key) -> None:
        self._map.pop(map_key(key), None)

    def clear(self) -> None:
        self._map.clear()
