"""One form for entries of a state that subtasks have saved in different ones.

A state is brought into the form that the program declares when it is asked for.  Where that is while a record or a
window is processed, some subtasks may have asked for it before a snapshot and others not, so their parts differ in
their rows' fields or in whether they have a time to live.  A rescaled subtask gets parts of several.

The common form has all that either has: the time of the last access, and all fields.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Optional

from flinkish.state.declared_types import DeclaredType, row_adapter
from flinkish.state.keyed_snapshot import StateKind, StateMeta
from flinkish.state.serializers import state_refusal
from flinkish.state.ttl import stamped


def common_form(operator: str, one: StateMeta, other: StateMeta) -> StateMeta:
    """What both can be brought into (`into_form`).

    Raises:
        StateMigrationError: there is none.
    """
    if one.kind is not other.kind or one.namespaced != other.namespaced:
        raise _refusal(operator, one, f"{one.kind.value} and {other.kind.value}", "kinds")
    declared = {}
    for role in one.declared.keys() & other.declared.keys():  # else nothing is known of some
        old, new = one.declared[role], other.declared[role]
        wider = _wider(role, old, new)
        if wider is None:
            raise _refusal(operator, one, f"{role} {old.text} and {role} {new.text}", "types")
        declared[role] = wider
    return replace(one, declared=declared, ttl=one.ttl or other.ttl, key_type=one.key_type or other.key_type)


def into_form(saved: StateMeta, common: StateMeta, now_ms: Callable[[], int]) -> Optional[Callable[[Any], Any]]:
    """What brings an entry of ``saved`` into the form ``common``; None: it is in it."""
    old, new = saved.declared.get("value"), common.declared.get("value")
    adapt = None if old is None or new is None or old == new else row_adapter(old, new)
    stamps = saved.ttl is None and common.ttl is not None
    if adapt is None and not stamps:
        return None
    kind, change = saved.kind, adapt if adapt is None or saved.ttl is None else adapted_value(adapt)

    def bring(entry: Any) -> Any:
        entry = entry if change is None else adapted(kind, change, entry)
        return stamped(kind, entry, now_ms()) if stamps else entry

    return bring


def adapted_value(adapt: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Of a value with its last access."""
    return lambda part: (adapt(part[0]), part[1])


def adapted(kind: StateKind, adapt: Callable[[Any], Any], entry: Any) -> Any:
    if kind is StateKind.MAP:
        return {key: adapt(value) for key, value in entry.items()}
    return list(map(adapt, entry)) if kind is StateKind.LIST else adapt(entry)


def _wider(role: str, one: DeclaredType, other: DeclaredType) -> Optional[DeclaredType]:
    """The one with all fields of both."""
    if one == other:
        return one
    if role != "value":
        return None
    narrow, wide = (one, other) if len(one.fields) <= len(other.fields) else (other, one)
    return wide if row_adapter(narrow, wide) is not None else None


def _refusal(operator: str, meta: StateMeta, forms: str, what: str) -> Exception:
    return state_refusal(
        operator, meta.name, f"its subtasks have saved it with different {what}", f"there are {forms}",
        "go back to a savepoint that is older than the change, or give the operator another uid, and restore with "
        "allow_non_restored_state",
    )  # fmt: skip
