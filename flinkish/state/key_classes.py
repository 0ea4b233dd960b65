"""Classes that the keys of an operator have: what a snapshot says of them, and whether their keys are still found.

State is found by the encoding of its key (`key_encoding`).  A key of another form is another key, in another key group:
state of the old ones would be there and never found, so what cannot be found is refused, as in Flink, whose key
serializers may not be migrated either.  A key is found by

* a frozen dataclass: its name, the names of its compared fields in order, and their values,
* a NamedTuple: the values of its fields by position,
* an Enum: its name and the member's; a Flag: its name and the value.

Types of fields are compared as those of other records in state are (`serializers`).
"""

from __future__ import annotations

import enum
import pkgutil
from typing import Any, Iterable, Optional

from flinkish.common.plain_classes import member_names
from flinkish.errors import StateMigrationError
from flinkish.state.canonical_key import dataclass_plan
from flinkish.state.declared_types import DeclaredType
from flinkish.state.field_types import field_types, fits
from flinkish.state.keyed_snapshot import StateMeta
from flinkish.state.serializers import RecordLayout


class KeyClasses:
    """Those of the keys of one operator in one subtask.

    ``seen`` is filled by the operator's `KeyMemo`; what was restored stays, because state of those keys does.
    """

    def __init__(self, operator: str):
        self.seen: dict[type, None] = {}
        self._operator = operator
        self._described = 0
        self._layouts: dict[str, RecordLayout] = {}

    def layouts(self) -> tuple[RecordLayout, ...]:
        """For a snapshot, in the order in which the classes were met."""
        if self._described < len(self.seen):
            for cls in list(self.seen)[self._described :]:
                layout = _layout_of(cls)
                # What has no name (a class of a function) is not found by one again, so it is not compared.
                if layout is not None and _found(layout) is cls:
                    self._layouts[layout.name] = layout
            self._described = len(self.seen)
        return tuple(self._layouts.values())

    def check(self, meta: StateMeta, key_type: Optional[DeclaredType]) -> None:
        """Whether state of the keys that ``meta`` describes is found by those of the program; their classes are kept, for the
        next snapshot.

        Args:
            key_type: what ``key_by`` declares of them.
        Raises:
            StateMigrationError: keys of another type or class lie in other key groups, or are other keys: all state
                would be there and never found.
        """
        self._keep(meta.key_classes, meta.name)
        if meta.key_type is None or key_type is None or meta.key_type == key_type:
            return
        old, new = meta.key_type.text, key_type.text
        raise StateMigrationError(
            f'could not restore the keyed state of operator "{self._operator}": the type of its keys has changed',
            where=f'operator "{self._operator}", state "{meta.name}"',
            why=f"key_by declared {old} when it was saved, the program declares {new}",
            do="declare the old key type, or give the operator another uid, and restore with "
            "allow_non_restored_state",
            operator=self._operator, old=old, new=new,
        )  # fmt: skip

    def _keep(self, layouts: Iterable[RecordLayout], state: str) -> None:
        """Raises: StateMigrationError: keys of a class as it was are not found by one as it is."""
        for layout in layouts:
            if self._layouts.get(layout.name) == layout:
                continue
            why = _why_not_found(layout)
            if why is not None:
                raise StateMigrationError(
                    f'could not restore the keyed state of operator "{self._operator}": the class of its keys has changed',
                    where=f'operator "{self._operator}", state "{state}"',
                    why=f"keys were saved as {_described(layout)}, {why}, so state of these keys would never be found",
                    do="keep the class of the keys as it was, or give the operator another uid, and restore with "
                    "allow_non_restored_state; state_processor reads the state of the old keys and writes it for new ones",
                    operator=self._operator, state=state, old=layout, new=_layout_of(_found(layout)),
                )  # fmt: skip
            self._layouts[layout.name] = layout


def _found(layout: RecordLayout) -> Any:
    try:
        return pkgutil.resolve_name(f"{layout.module}:{layout.qualname}")
    except (ImportError, AttributeError, ValueError):
        return None


def _layout_of(cls: Any) -> Optional[RecordLayout]:
    """None: nothing of ``cls`` can change that keys are found by."""
    if not isinstance(cls, type):
        return None
    name = cls.__module__, cls.__qualname__
    if issubclass(cls, enum.Enum):
        if cls.__eq__ is not object.__eq__:  # a str or an int, whose keys are its values
            return None
        kind, fields = ("flag", ()) if issubclass(cls, enum.Flag) else ("enum", member_names(cls))
        return RecordLayout(kind, *name, fields)
    if issubclass(cls, tuple):
        fields = getattr(cls, "_fields", None)
        return None if fields is None else RecordLayout("namedtuple", *name, fields, (), field_types(cls, fields))
    plan = dataclass_plan(cls)
    return plan and RecordLayout("dataclass", *name, plan.compared, (), field_types(cls, plan.compared))


def _why_not_found(old: RecordLayout) -> Optional[str]:
    found = _found(old)
    if found is None:
        # Keys of a NamedTuple have the fields' values and nothing of the class.
        return None if old.kind == "namedtuple" else f"and {old.name} is gone"
    new = _layout_of(found)
    if new is None or new.kind != old.kind:
        if old.kind == "namedtuple" and new is None:
            return None
        return f"and {old.name} is now {'no class of keys' if new is None else _described(new)}"
    if new.name != old.name and old.kind != "namedtuple":
        return f"and {old.name} is now another name of {new.name}"
    if old.kind == "enum":
        gone = [member for member in old.fields if member not in new.fields]
        return f"and it has no {', '.join(gone)} any more" if gone else None
    if len(new.fields) != len(old.fields) or (
        old.fields != new.fields and (old.kind == "dataclass" or set(old.fields) == set(new.fields))
    ):
        return f"and it is now {_described(new)}"
    changed = [
        f"{name} was {was} and is now {now}"
        for name, was, now in zip(old.fields, old.types, new.types)
        if not fits(was, now)
    ]
    return f"and fields have other types: {'; '.join(changed)}" if changed else None


def _described(layout: RecordLayout) -> str:
    article = {"enum": "an Enum", "flag": "a Flag", "namedtuple": "a NamedTuple", "dataclass": "a dataclass"}
    return f"{article[layout.kind]} {layout.name}({', '.join(layout.fields)})"
