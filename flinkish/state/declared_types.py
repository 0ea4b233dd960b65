"""Types that state descriptors declare: what a snapshot keeps of them, and how it is compared with the program.

Keyed state of all backends and operator state ask `adapter` when a state that was restored is described.
"""

from __future__ import annotations

import base64
import dataclasses
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Optional

import pyarrow as pa

from flinkish.common.arrow_types import arrow_type_of
from flinkish.common.typeinfo import RowTypeInfo, TypeInformation
from flinkish.common.types import Row
from flinkish.datastream import state as api
from flinkish.errors import InvalidJobError
from flinkish.state.serializers import state_refusal


@dataclass(frozen=True)
class DeclaredType:
    """What a state descriptor said of one type: its text, and of a named row its fields, which may be
    added (they become None) and removed.  ``arrow``: an Arrow IPC schema with one field of that type, for who reads
    state as data; None: Arrow has none, or the snapshot is older."""

    text: str
    fields: tuple[tuple[str, str], ...] = ()
    arrow: Optional[bytes] = dataclasses.field(default=None, compare=False)

    @classmethod
    def of(cls, type_info: Optional[TypeInformation]) -> Optional["DeclaredType"]:
        if type_info is None:
            return None
        fields: tuple[tuple[str, str], ...] = ()
        if isinstance(type_info, RowTypeInfo):
            fields = tuple(zip(type_info.get_field_names(), map(repr, type_info.get_field_types())))
        try:
            arrow = pa.schema([pa.field("declared", arrow_type_of(type_info))]).serialize().to_pybytes()
        except InvalidJobError:
            arrow = None
        return cls(repr(type_info), fields, arrow)

    @property
    def arrow_type(self) -> Optional[pa.DataType]:
        return None if self.arrow is None else pa.ipc.read_schema(pa.py_buffer(self.arrow)).field(0).type

    def to_json(self) -> list:
        arrow = None if self.arrow is None else base64.b64encode(self.arrow).decode("ascii")
        return [self.text, [list(field) for field in self.fields], arrow]

    @classmethod
    def from_json(cls, found: Any) -> Optional["DeclaredType"]:
        if found is None:
            return None
        text, fields, *more = found
        arrow = base64.b64decode(more[0]) if more and more[0] is not None else None
        return cls(text, tuple((name, kind) for name, kind in fields), arrow)


def row_adapter(old: DeclaredType, new: DeclaredType) -> Optional[Callable[[Any], Any]]:
    """From a value saved as row type ``old`` to one of ``new``; None: there is no way.

    >>> old = DeclaredType("row<a: long>", (("a", "long"),))
    >>> new = DeclaredType("row<a: long, b: string>", (("a", "long"), ("b", "string")))
    >>> row_adapter(old, new)(Row(a=1))
    Row(a=1, b=None)
    """
    if not old.fields or not new.fields:
        return None
    was, now = dict(old.fields), dict(new.fields)
    if any(kind != was.get(name, kind) for name, kind in new.fields):
        return None
    if set(now) - set(was) and set(was) - set(now):  # may have been renamed
        return None
    names = list(now)
    old_names = list(was)

    def adapt(row: Any) -> Any:
        if not isinstance(row, Row):
            return row
        values = dict(zip(row._fields or old_names, row._values))
        kept = names if row._fields is not None else None  # positions stay positions
        return Row.of_fields(kept, [values.get(name) for name in names], row._row_kind)  # type: ignore[arg-type]

    return adapt


def infos_of(descriptor: Any) -> dict[str, Optional[TypeInformation]]:
    """What a descriptor declares: "value" (of a list: of its elements), of a map "key" too."""
    if isinstance(descriptor, api.MapStateDescriptor):
        return {"key": descriptor.key_type_info, "value": descriptor.value_type_info}
    return {"value": descriptor.type_info}


def declared_by(descriptor: Any) -> dict[str, DeclaredType]:
    declared = {role: DeclaredType.of(info) for role, info in infos_of(descriptor).items()}
    return {role: known for role, known in declared.items() if known is not None}


def adapter(
    operator: str, state: str, role: str, info: Any, old: Optional[DeclaredType], saved: Iterable[Any]
) -> Optional[Callable[[Any], Any]]:
    """What brings saved values into the form that the program declares; None: they are in it.

    Args:
        role: "key" or "value".
        info: what the program declares, None: nothing.
        old: what was declared when they were saved.
        saved: the values; the first is looked at when they were saved without a type.
    Raises:
        StateMigrationError: they do not fit.
    """
    new = DeclaredType.of(info)
    if new is None or new == old:
        return None
    why = adapt = None
    if old is None:
        mismatch = info.mismatch(next(iter(saved), None))
        why = mismatch and f"it was saved without a type: {mismatch}"
    else:
        adapt = row_adapter(old, new) if role == "value" else None
        why = adapt is None and f"its {role} was saved as {old.text}, the program declares {new.text}"
    if why:
        raise state_refusal(
            operator, state, f"its declared type {new.text} does not fit", str(why),
            "declare the old type, or give the new state another name; fields of a named row, not of rows inside of "
            "it, may be added, or removed, when the others keep their types",
            old=old and old.text, new=new.text,
        )  # fmt: skip
    return adapt
