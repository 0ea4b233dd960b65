"""State: what a keyed function remembers for each key, and how it is described.

A descriptor needs a name; the type is optional, as records need none.  Values read from state must
be written back by ``update`` or ``put`` after they were changed.
"""

from __future__ import annotations

import abc
from typing import Any, Callable, Generic, Iterable, Iterator, Mapping, Optional, TypeVar

from flinkish.datastream.state_ttl_config import StateTtlConfig
from flinkish.errors import InvalidJobError

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
OUT = TypeVar("OUT")

__all__ = [
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AppendingState",
    "BroadcastState",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "MergingState",
    "OperatorStateStore",
    "ReadOnlyBroadcastState",
    "ReducingState",
    "ReducingStateDescriptor",
    "State",
    "StateDescriptor",
    "StateTtlConfig",
    "ValueState",
    "ValueStateDescriptor",
]


# ---- states -------------------------------------------------------------------------------------


class State(abc.ABC):
    @abc.abstractmethod
    def clear(self) -> None:
        """Forget what is kept for the current key."""


class ValueState(State, Generic[T]):
    """One value."""

    @abc.abstractmethod
    def value(self) -> Optional[T]:
        """None when nothing is kept."""

    @abc.abstractmethod
    def update(self, value: T) -> None:
        """None clears."""


class AppendingState(State, Generic[IN, OUT]):
    @abc.abstractmethod
    def get(self) -> OUT: ...

    @abc.abstractmethod
    def add(self, value: IN) -> None: ...


class MergingState(AppendingState[IN, OUT]):
    """State that can be merged when windows merge."""


class ReducingState(MergingState[T, T]):
    """The values added, reduced to one."""


class AggregatingState(MergingState[IN, OUT]):
    """The values added, aggregated."""


class ListState(MergingState[T, Iterable[T]]):
    @abc.abstractmethod
    def update(self, values: Iterable[T]) -> None:
        """Replace the whole list."""

    @abc.abstractmethod
    def add_all(self, values: Iterable[T]) -> None: ...

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class _ReadableMap(State, Generic[K, V]):
    @abc.abstractmethod
    def get(self, key: K) -> Optional[V]:
        """None when the key is not kept."""

    @abc.abstractmethod
    def contains(self, key: K) -> bool: ...

    @abc.abstractmethod
    def items(self) -> Iterable[tuple[K, V]]: ...

    @abc.abstractmethod
    def keys(self) -> Iterable[K]: ...

    @abc.abstractmethod
    def values(self) -> Iterable[V]: ...

    @abc.abstractmethod
    def is_empty(self) -> bool: ...

    def __getitem__(self, key: K) -> Optional[V]:
        return self.get(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())


class _WritableMap(_ReadableMap[K, V]):
    @abc.abstractmethod
    def put(self, key: K, value: V) -> None: ...

    @abc.abstractmethod
    def put_all(self, dict_value: Mapping[K, V]) -> None: ...

    @abc.abstractmethod
    def remove(self, key: K) -> None: ...

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)


class MapState(_WritableMap[K, V]):
    """A map for each key."""


class ReadOnlyBroadcastState(_ReadableMap[K, V]):
    """A map that is the same in all subtasks, seen from the side that must not change it."""


class BroadcastState(ReadOnlyBroadcastState[K, V], _WritableMap[K, V]):
    """A map that is the same in all subtasks, because each makes the same changes to it."""


class OperatorStateStore(abc.ABC):
    """State of one subtask of an operator, without a key."""

    @abc.abstractmethod
    def get_broadcast_state(self, state_descriptor: "MapStateDescriptor") -> BroadcastState:
        """A map that is the same in all subtasks; after a restore each has a copy."""

    @abc.abstractmethod
    def get_list_state(self, state_descriptor: "ListStateDescriptor") -> "ListState":
        """A list.  After a restore with another parallelism its entries are spread over the subtasks."""

    @abc.abstractmethod
    def get_union_list_state(self, state_descriptor: "ListStateDescriptor") -> "ListState":
        """A list.  After a restore each subtask has the entries of all, and keeps what is its own."""


# ---- descriptors --------------------------------------------------------------------------------


class StateDescriptor(Generic[T]):
    """Names a state within its operator."""

    def __init__(self, name: str, type_info: Any = None):
        if not isinstance(name, str) or not name:
            raise InvalidJobError(f"a state needs a name, got {name!r}")
        _check_type(name, type_info)
        self.name = name
        self.type_info = type_info
        self.ttl_config: Optional[StateTtlConfig] = None

    def get_name(self) -> str:
        return self.name

    def get_type_info(self) -> Any:
        return self.type_info

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        self.ttl_config = ttl_config

    def _identity(self) -> tuple:
        return type(self), self.name, self.type_info

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, StateDescriptor) and self._identity() == other._identity())

    def __hash__(self) -> int:
        return hash((type(self), self.name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def _check_type(name: str, type_info: Any) -> None:
    from flinkish.common.typeinfo import TypeInformation

    if type_info is not None and not isinstance(type_info, TypeInformation):
        raise InvalidJobError(
            f'state "{name}" has no usable type',
            why=f"{type_info!r} is not a TypeInformation",
            do="give for example Types.LONG(), or leave the type out",
        )


class ValueStateDescriptor(StateDescriptor[T]):
    def __init__(self, name: str, value_type_info: Any = None):
        super().__init__(name, value_type_info)


class ListStateDescriptor(StateDescriptor[T]):
    """``type_info`` is the type of the elements."""

    def __init__(self, name: str, elem_type_info: Any = None):
        super().__init__(name, elem_type_info)


class MapStateDescriptor(StateDescriptor[T]):
    def __init__(self, name: str, key_type_info: Any = None, value_type_info: Any = None):
        super().__init__(name, key_type_info)
        _check_type(name, value_type_info)
        self.key_type_info = key_type_info
        self.value_type_info = value_type_info

    def _identity(self) -> tuple:
        return type(self), self.name, self.key_type_info, self.value_type_info


class ReducingStateDescriptor(StateDescriptor[T]):
    def __init__(self, name: str, reduce_function: Any, type_info: Any = None):
        super().__init__(name, type_info)
        from flinkish.datastream.functions import ReduceFunction, ReduceFunctionWrapper

        if not isinstance(reduce_function, ReduceFunction):
            _check_callable(name, reduce_function, "ReduceFunction")
            reduce_function = ReduceFunctionWrapper(reduce_function)
        self.reduce_function = reduce_function

    def get_reduce_function(self) -> Any:
        return self.reduce_function


class AggregatingStateDescriptor(StateDescriptor[T]):
    """``type_info`` is the type of the accumulator."""

    def __init__(self, name: str, agg_function: Any, state_type_info: Any = None):
        super().__init__(name, state_type_info)
        from flinkish.datastream.functions import AggregateFunction

        if not isinstance(agg_function, AggregateFunction):
            raise InvalidJobError(f'state "{name}" needs an AggregateFunction, got {agg_function!r}')
        self.agg_function = agg_function

    def get_agg_function(self) -> Any:
        return self.agg_function


def _check_callable(name: str, function: Callable, what: str) -> None:
    if not callable(function):
        raise InvalidJobError(f'state "{name}" needs a {what} or a callable, got {function!r}')
