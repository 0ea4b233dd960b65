"""How state is written so that changed code can read it.

Built-in values are written as they are.  Objects of dataclasses (frozen and with slots too) and
NamedTuples are written as the values of their fields, beside one ``RecordLayout`` for each class: its
name, field names and their types as text (``field_types``).  That holds wherever such an object lies:
as a value, in a list state, in a dict, in another record.  Members of an Enum go by their names, so that
others may come before them, whatever ``auto()`` numbers them then; those of one that is a str or a number by
their values.  All other objects go by pickle, protocol 5, under the name of their class.

When they are read, the layout is compared with the class of that name as it is now::

    same fields and types                     the object, its ``__init__`` is not called
    class has a classmethod __migrate_state__ it is called with {old field: value} and returns the object
    fields were added, all with a default     the default (a default_factory is called for each object)
    fields were removed                       their values are dropped; refused where keys of a map become equal by that
    some added and some removed               refused: they may have been renamed, and dropping would lose them
    fields were added without a default       refused
    a field has another type                  refused, unless each value of the old type is one of the new type
    an Enum has no such member any more       refused; an alias (``OLD = NEW``) leads to the new one
    the class is gone                         refused; an alias at its old place (``Old = New``) leads to the new one

A hook in full::

    @dataclass
    class Visit:
        user: str
        pages: int  # was "count" before

        @classmethod
        def __migrate_state__(cls, old: dict[str, Any]) -> "Visit":
            return cls(old["user"], old["count"])

It stands on the class, because a class travels to the slots with the job, also from ``__main__``, and
because values of a reduce or a window have a class but no descriptor.

Defaults of the old class are not kept: an object was saved with all of its values.  Types of fields are
compared as they are declared, values are not looked at; layouts of older versions have none, and what an
annotation leaves open fits everything.  Types that a state descriptor declares are compared too
(``declared_types``).
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import operator
import pickle
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence

import cloudpickle

from flinkish.common.plain_classes import default_maker, is_made_plainly, is_plain, is_told_by_name, member_names, own_pickling
from flinkish.common.types import Row, RowKind
from flinkish.common.user_traceback import message_of
from flinkish.errors import InternalError, StateMigrationError
from flinkish.state.failed_calls import failed_call
from flinkish.state.field_types import field_types, fits

MIGRATION_HOOK = "__migrate_state__"


@dataclass(frozen=True)
class RecordLayout:
    """What one class looked like: its fields in order, those that had no value in the objects, and the types
    of ``fields``, empty in files of older versions.  Of an Enum the fields are its members."""

    kind: str  # "dataclass", "namedtuple", "enum"; of keys also "flag"
    module: str
    qualname: str
    fields: tuple[str, ...]
    unset: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.module}.{self.qualname}"

    def to_json(self) -> list:
        return [self.kind, self.module, self.qualname, list(self.fields), list(self.unset), list(self.types)]

    @classmethod
    def from_json(cls, found: Any) -> "RecordLayout":
        kind, module, qualname, fields, unset, *types = found
        return cls(kind, module, qualname, tuple(fields), tuple(unset), *map(tuple, types))


# ---- writing ------------------------------------------------------------------------------------


class RecordForm:
    """How objects of one class are taken apart: ``values(obj)`` is the tuple of its fields, or None when
    the object has more or fewer than them."""

    __slots__ = ("cls", "kind", "fields", "values", "in_dict")

    def __init__(self, cls: type, kind: str, fields: tuple[str, ...], in_dict: bool):
        self.cls, self.kind, self.fields, self.in_dict = cls, kind, fields, in_dict
        if kind == "namedtuple":
            self.values: Callable[[Any], Optional[tuple]] = tuple
        elif in_dict:
            self.values = _values_in_dict(fields)
        else:
            self.values = _values_in_slots(fields)

    def parts(self, obj: Any) -> tuple[tuple, tuple[str, ...], Optional[dict]]:
        """Values, the fields without one, and what else the object has: of an object that has not just
        its fields."""
        if self.in_dict:
            content = obj.__dict__
            unset = tuple(name for name in self.fields if name not in content)
            extra = {name: value for name, value in content.items() if name not in self.fields} or None
        else:
            unset, extra = tuple(name for name in self.fields if not hasattr(obj, name)), None
        return tuple(getattr(obj, name) for name in self.fields if name not in unset), unset, extra


def _values_in_dict(fields: tuple[str, ...]) -> Callable[[Any], Optional[tuple]]:
    count = len(fields)
    get = _getter(operator.itemgetter, fields)

    def values(obj: Any) -> Optional[tuple]:
        content = obj.__dict__
        if len(content) != count:
            return None
        try:
            return get(content)
        except KeyError:
            return None

    return values


def _values_in_slots(fields: tuple[str, ...]) -> Callable[[Any], Optional[tuple]]:
    get = _getter(operator.attrgetter, fields)

    def values(obj: Any) -> Optional[tuple]:
        try:
            return get(obj)
        except AttributeError:
            return None

    return values


def _getter(make: Any, fields: tuple[str, ...]) -> Callable[[Any], tuple]:
    if len(fields) > 1:
        return make(*fields)
    if not fields:
        return lambda obj: ()
    get = make(fields[0])
    return lambda obj: (get(obj),)


def record_form(cls: type) -> Optional[RecordForm]:
    """None for a class that is no record, or that pickles in a way of its own."""
    if issubclass(cls, tuple):
        fields = getattr(cls, "_fields", None)
        if cls.__bases__ != (tuple,) or fields is None or not is_plain(cls):
            return None
        return RecordForm(cls, "namedtuple", tuple(fields), False)
    if "__dataclass_fields__" not in cls.__dict__:  # a plain subclass may add attributes that nobody declared
        return None
    fields = tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]
    if is_plain(cls):
        return RecordForm(cls, "dataclass", fields, True)
    if _has_fields_in_slots(cls, fields):
        return RecordForm(cls, "dataclass", fields, False)
    return None


def _has_fields_in_slots(cls: type, fields: tuple[str, ...]) -> bool:
    if cls.__dictoffset__ or not is_made_plainly(cls):
        return False
    slots: list[str] = []
    for base in cls.__mro__[:-1]:
        own = base.__dict__.get("__slots__", ())
        slots += [own] if isinstance(own, str) else own
    if not set(slots) - {"__weakref__"} <= set(fields):
        return False
    # A frozen dataclass with slots gets these two from the dataclasses module; they do what slots need.
    generated = (getattr(dataclasses, "_dataclass_getstate", None), getattr(dataclasses, "_dataclass_setstate", None))
    if (cls.__dict__.get("__getstate__"), cls.__dict__.get("__setstate__")) == generated:
        return cls.__reduce_ex__ is object.__reduce_ex__ and cls.__reduce__ is object.__reduce__
    return not own_pickling(cls)


class LayoutWriter:
    """The layouts of one snapshot, numbered as their classes are met."""

    def __init__(self) -> None:
        self.layouts: list[RecordLayout] = []
        self._numbers: dict[tuple, int] = {}
        self._forms: dict[type, Optional[RecordForm]] = {}

    def form_of(self, cls: type) -> Optional[RecordForm]:
        try:
            return self._forms[cls]
        except KeyError:
            form = self._forms[cls] = record_form(cls)
            return form

    def number(self, form: RecordForm, unset: tuple[str, ...] = ()) -> int:
        key = form.cls, unset
        number = self._numbers.get(key)
        if number is None:
            cls = form.cls
            fields = tuple(name for name in form.fields if name not in unset)
            layout = RecordLayout(
                form.kind, cls.__module__, cls.__qualname__, fields, unset, field_types(cls, fields)
            )
            number = self._numbers[key] = self._add(layout, cls)
        return number

    def _number_of_enum(self, cls: Any) -> int:
        number = self._numbers.get((cls,))
        if number is None:
            layout = RecordLayout("enum", cls.__module__, cls.__qualname__, member_names(cls))
            number = self._numbers[(cls,)] = self._add(layout, cls)
        return number

    def _add(self, layout: RecordLayout, cls: type) -> int:
        if _find(layout) is not cls:
            why = "cannot be found under this name"
            if "<locals>" in layout.qualname:
                why = "is defined inside a function, where nobody who restores it can find it"
            raise pickle.PicklingError(f"{layout.name} {why}: define the class at the top of a module")
        self.layouts.append(layout)
        return len(self.layouts) - 1

    def dumps(self, content: Any) -> bytes:
        out = io.BytesIO()
        _StatePickler(out, self).dump(content)
        return out.getvalue()

    def dumps_by_value(self, content: Any) -> bytes:
        """Of what `dumps` refuses: functions and classes that have no name go along (cloudpickle)."""
        out = io.BytesIO()
        _ByValuePickler(out, self).dump(content)
        return out.getvalue()

    def reduce(self, obj: Any) -> Any:
        """How pickle shall take ``obj`` apart; NotImplemented: in its own way."""
        cls = type(obj)
        if cls is Row:
            return restore_row, (obj._fields, obj._values, obj._row_kind.value)
        form = self.form_of(cls)
        if form is None:
            return (restore_member, (self._number_of_enum(cls), obj._name_)) if is_told_by_name(cls) else NotImplemented
        if form.kind == "namedtuple":
            return restore_tuple, (self.number(form), tuple(obj))
        values = form.values(obj)
        unset: tuple[str, ...] = ()
        extra = None
        if values is None:
            values, unset, extra = form.parts(obj)
        # The object is made before its fields, so that they may lead back to it.
        number = self.number(form, unset)
        return new_record, (number,), (number, values, extra), None, None, set_record


class _StatePickler(pickle.Pickler):
    def __init__(self, out: Any, layouts: LayoutWriter):
        super().__init__(out, 5)
        self._layouts = layouts

    def reducer_override(self, obj: Any) -> Any:
        """Called by pickle for each object that is not of a built-in type."""
        return self._layouts.reduce(obj)


class _ByValuePickler(cloudpickle.Pickler):
    def __init__(self, out: Any, layouts: LayoutWriter):
        super().__init__(out, 5)
        self._layouts = layouts

    def reducer_override(self, obj: Any) -> Any:
        try:
            reduced = self._layouts.reduce(obj)
        except pickle.PicklingError:  # a record whose class is found under no name: it goes along
            reduced = NotImplemented
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


_ATOMS = frozenset((int, float, str, bytes, bool, type(None)))


def is_built_in(value: Any) -> bool:
    """Whether it holds nothing but built-in objects, which a pickle keeps as they are."""
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind is tuple or kind is list:
        return _ATOMS.issuperset(map(type, value))
    if kind is dict:
        return _ATOMS.issuperset(map(type, value)) and _ATOMS.issuperset(map(type, value.values()))
    return False


# What the pickles call; the reader of a snapshot puts its own in their place.


def restore_row(fields: Optional[Sequence[str]], values: list, kind: int) -> Row:
    return Row.of_fields(fields, values, _ROW_KINDS[kind])  # type: ignore[arg-type]


def new_record(number: int) -> Any:
    raise InternalError("a record of a snapshot was read without its layouts")


def set_record(record: Any, state: tuple) -> None:
    raise InternalError("a record of a snapshot was read without its layouts")


def restore_tuple(number: int, values: tuple) -> Any:
    raise InternalError("a record of a snapshot was read without its layouts")


def restore_member(number: int, name: str) -> Any:
    raise InternalError("a record of a snapshot was read without its layouts")


_ROW_KINDS = tuple(RowKind)


# ---- reading ------------------------------------------------------------------------------------


class LayoutReader:
    """Makes objects from the layouts of one snapshot.  Refusals name ``state`` and ``operator``, which
    the caller sets before it reads."""

    def __init__(self, layouts: Iterable[RecordLayout]):
        self.layouts = tuple(layouts)
        self.state = self.operator = ""
        self._builders: dict[int, RecordBuilder] = {}
        self._calls: dict[str, Callable] = {
            "restore_row": restore_row,
            "new_record": lambda number: self.builder(number).new(),
            "set_record": lambda record, state: self.builder(state[0]).fill(record, state[1], state[2]),
            "restore_tuple": lambda number, values: self.builder(number).make(values),
            "restore_member": lambda number, name: self.member(self._layout(number), name),
        }

    def _layout(self, number: int) -> RecordLayout:
        if not 0 <= number < len(self.layouts):
            raise pickle.UnpicklingError(f"there is no record layout {number}")
        return self.layouts[number]

    def builder(self, number: int) -> "RecordBuilder":
        builder = self._builders.get(number)
        if builder is None:
            builder = self._builders[number] = RecordBuilder(self._layout(number), self)
        return builder

    def refusals(self) -> Iterator[tuple[StateMigrationError, Optional[str]]]:
        """What of these layouts would be refused, without a value: why, and of an Enum the member that a value must be
        for that, None: any value is."""
        for number, layout in enumerate(self.layouts):
            member = None
            try:
                if layout.kind != "enum":
                    self.builder(number)
                    continue
                self._class_of(layout)
                for member in layout.fields:
                    self.member(layout, member)
            except StateMigrationError as error:
                yield error, member
            except Exception as error:  # looking for a class imports its module, which runs the user's code
                reason = f"{type(error).__name__}: {message_of(error)}".rstrip(": ")
                why = f"importing {layout.module} to look for {layout.name} raised {reason}"
                yield self.refusal(f"{layout.name} cannot be found", why, "correct the module"), None

    def _class_of(self, layout: RecordLayout) -> Any:
        return self.find(layout.module, layout.qualname, lambda module, name: _find(layout, strict=True))

    def member(self, layout: RecordLayout, name: str) -> Any:
        """Of an Enum, by the name that it had or has as an alias."""
        cls = self._class_of(layout)
        members = getattr(cls, "__members__", {})
        if name not in members:
            raise self.refusal(
                f"{layout.name} has no member {name} any more",
                f"it was saved as an Enum {layout.name}{_listed(layout.fields)}, and "
                + (f"has now {_listed(tuple(members))}" if members else "is none any more"),
                f"keep the member, or leave its name as an alias of the one in its place: {name} = the value of that",
                old=layout,
                new=layout.name,
            )
        return members[name]

    def loads(self, data: bytes) -> Any:
        """
        Raises:
            StateMigrationError: a class of the program cannot take what it was saved with, or raises.
            Exception: whatever pickle raises of damaged bytes.
        """
        try:
            return _StateUnpickler(io.BytesIO(data), self).load()
        except StateMigrationError:
            raise
        except Exception as error:  # unpickling imports modules and runs code of the values' classes
            failed = failed_call(data, self.find)
            if failed is None:
                raise
            reason = f"{type(error).__name__}: {message_of(error)}".rstrip(": ")
            why = f"{failed.call} raised when a value was unpickled: {reason}"
            raise self.refusal(failed.what, why, failed.do) from error

    def find(self, module: str, name: str, find_class: Callable[[str, str], Any]) -> Any:
        if module == __name__ and name in self._calls:
            return self._calls[name]
        try:
            return find_class(module, name)
        except (ImportError, AttributeError) as error:
            if isinstance(error, ImportError) and not f"{module}.".startswith(f"{error.name}."):
                raise self.refusal(
                    f"{module}.{name} cannot be imported",
                    f"its values have the class {module}.{name}, and importing {module} raised "
                    f"{type(error).__name__}: {error}",
                    "install what is missing, or correct the module",
                ) from error
            raise self.refusal(
                f"{module}.{name} is gone",
                f"its values have the class {module}.{name}, which the program does not have ({error})",
                f"keep the class, or leave an alias at its old place: {name} = NewName",
                old=f"{module}.{name}",
                new=None,
            ) from error

    def refusal(self, what: str, why: str, do: str, **fields: Any) -> StateMigrationError:
        return state_refusal(self.operator, self.state, what, why, do, **fields)


def state_refusal(operator: str, state: str, what: str, why: str, do: str, **fields: Any) -> StateMigrationError:
    """``state`` empty: that of any of the operator's states, where it is not known which."""
    named = f'state "{state}"' if state else ""
    where = ", ".join(filter(None, (operator and f'operator "{operator}"', named)))
    if operator:
        fields["operator"] = operator
    return StateMigrationError(
        f"could not restore {named or 'state'}: {what}", where=where, why=why, do=do, state=state, **fields
    )


class _StateUnpickler(pickle.Unpickler):
    def __init__(self, data: Any, layouts: LayoutReader):
        super().__init__(data)
        self._layouts = layouts

    def find_class(self, module: str, name: str) -> Any:
        return self._layouts.find(module, name, super().find_class)


class RecordBuilder:
    """Makes the objects of one layout, in the form that their class has now.

    Raises:
        StateMigrationError: layout and class do not go together.
    """

    def __init__(self, layout: RecordLayout, reader: LayoutReader):
        self.layout, self._reader = layout, reader
        cls = reader._class_of(layout)
        form = record_form(cls) if isinstance(cls, type) else None
        if form is None or form.kind != layout.kind:
            raise self._refusal(
                f"as a {layout.kind} {layout.name}{_listed(layout.fields)}, and {layout.name} "
                f"{_what_is_no_record(cls) if form is None else f'is now a {form.kind}'}",
                f"keep it a {layout.kind} that pickles as just its fields",
            )
        self.cls, self.form = cls, form
        self.migrate: Optional[Callable[[dict], Any]] = None
        self._defaults: list[tuple[str, Callable[[], Any]]] = []
        self._same = form.fields == layout.fields
        types = dict(zip(form.fields, field_types(cls, form.fields)))
        changed = [
            f"{name} was {old} and is now {types[name]}"
            for name, old in zip(layout.fields, layout.types)
            if name in types and not fits(old, types[name])
        ]
        if changed or set(form.fields) != {*layout.fields, *layout.unset}:
            self._compare(changed)
        self.make_many = self._choose_make_many()

    def _compare(self, changed: list[str]) -> None:
        layout, form = self.layout, self.form
        known = {*layout.fields, *layout.unset}
        added = [name for name in form.fields if name not in known]
        removed = [name for name in layout.fields if name not in form.fields]
        hook = getattr(self.cls, MIGRATION_HOOK, None)
        if hook is not None:
            self.migrate = hook
            return
        if changed:
            raise self._refusal(
                f"as {layout.name}{_listed(layout.fields)}, and fields have other types: {'; '.join(changed)}",
                f"restore the old type, or give the class a classmethod {MIGRATION_HOOK}(cls, old), which gets "
                "the old fields as a dict and returns the object",
            )
        defaults = _defaults(self.cls, form.kind)
        needed = [name for name in added if name not in defaults]
        if needed or (added and removed):
            why = f"as {layout.name}{_listed(layout.fields)}, and the class has now {_listed(form.fields)}: "
            if removed:
                why += f"{', '.join(removed)} may have been renamed to {', '.join(added)}"
            else:
                why += f"{', '.join(needed)} came new and without a default"
            raise self._refusal(
                why,
                f"give the class a classmethod {MIGRATION_HOOK}(cls, old), which gets the old fields as a dict "
                "and returns the object" + ("" if removed else ", or give new fields a default"),
            )
        self._defaults = [(name, defaults[name]) for name in added]

    def _refusal(self, why: str, do: str) -> StateMigrationError:
        return self._reader.refusal(
            f"{self.layout.name} has changed", f"it was saved {why}", do, old=self.layout, new=self.layout.name
        )

    # ---- one ------------------------------------------------------------------------------------

    def new(self) -> Any:
        return object.__new__(self.cls)

    def fill(self, record: Any, values: tuple, extra: Optional[dict]) -> None:
        """Give ``record``, made by `new`, its fields."""
        if self.migrate is not None:
            made = self._migrated(dict(zip(self.layout.fields, values), **(extra or {})))
            content = {name: getattr(made, name) for name in self.form.fields if hasattr(made, name)}
            if self.form.in_dict:
                content.update(made.__dict__)
        else:
            content = self._content(values)
            if extra:
                content.update(extra)
        self._put(record, content)

    def _put(self, record: Any, content: dict) -> None:
        put = object.__setattr__  # also where the class is frozen
        if self.form.in_dict:
            put(record, "__dict__", content)
        else:
            for name, value in content.items():
                put(record, name, value)

    def make(self, values: tuple) -> Any:
        """An object that has just its fields."""
        return self.make_many([values])[0]

    def _content(self, values: tuple) -> dict:
        """Field name -> value, in the order and with the fields of the class as it is now."""
        if self._same:
            return dict(zip(self.layout.fields, values))
        old = dict(zip(self.layout.fields, values))
        for name, default in self._defaults:
            try:
                old[name] = default()
            except Exception as error:
                raise self._refusal(
                    f"as {self.layout.name}{_listed(self.layout.fields)}, and the default of the new field {name} "
                    f"raised {type(error).__name__}: {message_of(error)}",
                    "correct the default_factory",
                ) from error
        return {name: old[name] for name in self.form.fields if name in old}

    def _migrated(self, old: dict) -> Any:
        try:
            made = self.migrate(old)  # type: ignore[misc]
        except Exception as error:
            raise self._refusal(
                f"as {self.layout.name}{_listed(self.layout.fields)}, and {MIGRATION_HOOK} raised "
                f"{type(error).__name__}: {error}",
                "correct the hook",
            ) from error
        if type(made) is not self.cls:
            raise self._refusal(
                f"as {self.layout.name}{_listed(self.layout.fields)}, and {MIGRATION_HOOK} returned a "
                f"{type(made).__qualname__}",
                f"return a {self.cls.__qualname__}",
            )
        return made

    # ---- many -----------------------------------------------------------------------------------

    def _choose_make_many(self) -> Callable[[Iterable[tuple]], list]:
        if self.migrate is not None:
            fields = self.layout.fields
            return lambda rows: [self._migrated(dict(zip(fields, values))) for values in rows]
        if self.form.kind == "namedtuple":
            new = tuple.__new__
            if self._same:
                return lambda rows: [new(self.cls, values) for values in rows]
            return lambda rows: [new(self.cls, self._content(values).values()) for values in rows]
        return self._objects

    def _objects(self, rows: Iterable[tuple]) -> list:
        objects, new, cls = [], object.__new__, self.cls
        if self._same and self.form.in_dict:  # 0.4 instead of 0.7 microseconds an object
            put, fields = object.__setattr__, self.layout.fields
            for values in rows:
                record = new(cls)
                put(record, "__dict__", dict(zip(fields, values)))
                objects.append(record)
            return objects
        for values in rows:
            record = new(cls)
            self._put(record, self._content(values))
            objects.append(record)
        return objects


def _what_is_no_record(cls: Any) -> str:
    """Of what `record_form` says None."""
    if not isinstance(cls, type):
        return f"is now no class, but {cls!r:.100}"
    own = own_pickling(cls)
    if own:
        return f"pickles now in a way of its own ({', '.join(own)})"
    if "__dataclass_fields__" in cls.__dict__:
        return "holds now more than its fields: its own __new__, slots that are no fields, or a base written in C"
    return "is now neither a dataclass nor a NamedTuple"


def _find(layout: RecordLayout, strict: bool = False) -> Any:
    """What stands at the place of the layout's class: None if there is nothing, or with ``strict`` an
    AttributeError or ImportError."""
    try:
        found: Any = importlib.import_module(layout.module)
        for part in layout.qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        if strict:
            raise
        return None
    return found


def _defaults(cls: Any, kind: str) -> dict[str, Callable[[], Any]]:
    if kind == "namedtuple":
        return {name: _constant(value) for name, value in cls._field_defaults.items()}
    found: dict[str, Callable[[], Any]] = {}
    for field in dataclasses.fields(cls):
        make = default_maker(field)
        if make is not None:
            found[field.name] = make
    return found


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _listed(fields: Sequence[str]) -> str:
    return f"({', '.join(fields)})"
