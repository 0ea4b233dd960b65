"""Who gets which saved state when an operator starts with another parallelism: plain data in and out.

Keyed state: subtask ``i`` owns a range of key groups, and gets each handle that has some of them,
narrowed to the intersection.  Every key group of every handle goes to exactly one subtask.

Operator state, by name:

* SPLIT: with the parallelism unchanged each subtask gets back what it had.  Otherwise the entries, in the
  order of the old subtasks, are cut into runs of equal length (the first ones one longer), and the next
  state begins at the subtask where the longer runs of this one ended, so that remainders do not pile up.
* UNION: all entries to all subtasks.
* BROADCAST: all subtasks had the same; subtask ``i`` gets the copy of the ``i``-th old one, modulo their number.
  Old subtasks that had finished saved none: theirs come from those that have one.

Records in flight, by edge: with the target's parallelism unchanged each subtask gets back those that were on their
way to it.  Otherwise those of a keyed edge go to all subtasks that own some of the old subtask's key groups, which
pick theirs (an edge with a custom partitioner: to all); of a global edge to the first; of others to any one.  What
was still with a sender goes to the receivers too, behind what had reached them: so all of it is processed before
anything new, and the records of one sender with one key stay in order, whatever the parallelisms.

Source: Flink's ``StateAssignmentOperation``, ``SubtaskStateMapper`` and ``RoundRobinOperatorStateRepartitioner``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Iterable, Mapping, Optional, Sequence, Union

from flinkish.datastream.partitioners import (
    CustomPartitioner,
    GlobalPartitioner,
    KeyGroupPartitioner,
    StreamPartitioner,
)
from flinkish.errors import StateMigrationError
from flinkish.messages.checkpoints import (
    Bytes,
    DistributionMode,
    IncrementalKeyedStateHandle,
    InFlightPart,
    InFlightRestore,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorSnapshot,
    OperatorStateHandle,
    OperatorSubtaskState,
)
from flinkish.state.key_groups import key_group_range

KeyedHandle = Union[KeyedStateHandle, IncrementalKeyedStateHandle]


def deal_out(snapshot: OperatorSnapshot, parallelism: int, max_parallelism: int) -> list[OperatorSubtaskState]:
    """What each of ``parallelism`` new subtasks gets of an operator's saved state.

    Raises:
        StateMigrationError: the max parallelism has changed, which moves every key to another group.
    """
    has_keyed = any(state.keyed for state in snapshot.subtasks.values())
    if has_keyed and max_parallelism != snapshot.max_parallelism:
        raise StateMigrationError(
            f'could not restore the keyed state of operator "{snapshot.name}"',
            where=f"uid {snapshot.uid or snapshot.operator_id}",
            why=f"it was saved with max parallelism {snapshot.max_parallelism}, the program has {max_parallelism}",
            do=f"call set_max_parallelism({snapshot.max_parallelism})",
            saved=snapshot.max_parallelism,
            declared=max_parallelism,
        )
    keyed = deal_out_keyed(
        [handle for _, state in sorted(snapshot.subtasks.items()) for handle in state.keyed],
        parallelism,
        max_parallelism,
    )
    operator = deal_out_operator_state(
        {index: state.operator for index, state in snapshot.subtasks.items() if state.operator is not None},
        snapshot.parallelism,
        parallelism,
    )
    return [OperatorSubtaskState(*state) for state in zip(keyed, operator)]


def deal_out_in_flight(
    parts: Iterable[tuple[Bytes, InFlightPart]],
    edge_id: int,
    partitioner: StreamPartitioner,
    pickle_partitioner: Callable[[StreamPartitioner], bytes],
    saved: tuple[int, int],
    declared: tuple[int, int],
    same_senders: bool,
) -> list[tuple[InFlightRestore, ...]]:
    """For each new subtask what it takes before anything new that comes by one edge, in this order.

    Args:
        parts: of the edge, each with its content.
        edge_id, partitioner: of the edge, in the program that goes on.
        saved, declared: parallelism and max parallelism of the target vertex.
        same_senders: the source vertex has the parallelism that it had.
    """
    parallelism = declared[0]
    keyed = isinstance(partitioner, KeyGroupPartitioner)
    unchanged = saved == declared if keyed else saved[0] == parallelism
    sieve = None
    if not unchanged and (keyed or isinstance(partitioner, CustomPartitioner)):
        sieve = pickle_partitioner(partitioner)
    ordered = sorted(parts, key=_order)
    dealt: list[list[InFlightRestore]] = [[] for _ in range(parallelism)]
    for content, part in ordered:
        sender = part.sender if unchanged and same_senders else None
        restore = InFlightRestore(edge_id, sender, content, part.offset, part.length, part.checksum, sieve)
        for index in [part.receiver] if unchanged else _takers(partitioner, part.receiver, saved, declared):
            dealt[index].append(restore)
    return [tuple(restores) for restores in dealt]


def _order(found: tuple[Bytes, InFlightPart]) -> tuple[int, bool, int, bool]:
    _, part = found
    return part.receiver, part.sender is not None, part.sender or 0, not part.sent


def _takers(
    partitioner: StreamPartitioner, receiver: int, saved: tuple[int, int], declared: tuple[int, int]
) -> Iterable[int]:
    """Which new subtasks get what was on its way to an old one."""
    parallelism, max_parallelism = declared
    if isinstance(partitioner, CustomPartitioner):
        return range(parallelism)
    if isinstance(partitioner, KeyGroupPartitioner):
        if saved[1] != max_parallelism:
            return range(parallelism)
        had = key_group_range(max_parallelism, saved[0], receiver)
        return [
            index
            for index in range(parallelism)
            if had.start < key_group_range(max_parallelism, parallelism, index).stop
            and key_group_range(max_parallelism, parallelism, index).start < had.stop
        ]
    return [0] if isinstance(partitioner, GlobalPartitioner) else [receiver % parallelism]


def deal_out_keyed(
    handles: Sequence[KeyedHandle], parallelism: int, max_parallelism: int
) -> list[tuple[KeyedHandle, ...]]:
    """For each new subtask the handles that it reads, each with the key groups to take from it."""
    dealt: list[tuple[KeyedHandle, ...]] = []
    for index in range(parallelism):
        groups = key_group_range(max_parallelism, parallelism, index)
        owned = KeyGroupRange(groups.start, groups.stop - 1)
        parts = ((handle, handle.key_groups.intersection(owned)) for handle in handles)
        dealt.append(tuple(replace(handle, key_groups=part) for handle, part in parts if part.count))
    return dealt


def deal_out_operator_state(
    saved: Mapping[int, OperatorStateHandle], old_parallelism: int, parallelism: int
) -> list[Optional[OperatorStateHandle]]:
    """For each new subtask its operator state, None when it gets none.

    Args:
        saved: by old subtask; those that had finished, or never had any, are missing.
    """
    by_name: dict[str, tuple[DistributionMode, dict[int, tuple[bytes, ...]]]] = {}
    for index, handle in sorted(saved.items()):
        for name, (mode, entries) in handle.states.items():
            by_name.setdefault(name, (mode, {}))[1][index] = entries
    dealt: list[dict[str, tuple[DistributionMode, tuple[bytes, ...]]]] = [{} for _ in range(parallelism)]
    start = 0
    for name, (mode, entries_of) in sorted(by_name.items()):
        if mode is DistributionMode.SPLIT and parallelism == old_parallelism:
            for index, entries in entries_of.items():
                dealt[index][name] = mode, entries
            continue
        everything = tuple(entry for _, entries in sorted(entries_of.items()) for entry in entries)
        if mode is DistributionMode.SPLIT:
            runs, start = _runs(everything, parallelism, start)
            for states, run in zip(dealt, runs):
                if run:
                    states[name] = mode, run
        elif mode is DistributionMode.UNION:
            for states in dealt:
                states[name] = mode, everything
        else:
            copies = [entries for _, entries in sorted(entries_of.items())]
            for index, states in enumerate(dealt):
                own = entries_of.get(index) if parallelism == old_parallelism else None
                states[name] = mode, own if own is not None else copies[index % len(copies)]
    return [OperatorStateHandle(states) if states else None for states in dealt]


def _runs(
    entries: tuple[bytes, ...], parallelism: int, start: int
) -> tuple[list[tuple[bytes, ...]], int]:
    """A run of entries for each subtask, the first for subtask ``start``; and where the next state starts."""
    base, longer = divmod(len(entries), parallelism)
    runs: list[tuple[bytes, ...]] = [()] * parallelism
    at = 0
    for position in range(parallelism):
        length = base + (position < longer)
        runs[(start + position) % parallelism] = entries[at : at + length]
        at += length
    return runs, (start + longer) % parallelism
