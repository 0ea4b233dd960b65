"""Whether a message is what its class says, before a core works with it.

Who sends one has proved the secret, so this is not against an attacker, whose pickle could run what it
likes: it is so that a slot of another version, or one whose memory user code has damaged, costs its own
connection and not the JobManager with all of its jobs.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, Callable

from flinkish.errors import FlinkishError
from flinkish.messages import checkpoints, control

#: The longest name or text: the dumped stacks of a slot have up to 64 kB, a user's traceback may have more.
TEXT_CHARACTERS_MAX = 1 << 20
#: The most entries of a tuple or mapping.
ENTRIES_MAX = 100_000
_INT_MAX = 2**63

_Check = Callable[[Any, str], None]


class MessageRefused(ValueError):
    """A message has a field of another type or size than its class says."""


def check_message(message: Any) -> None:
    """Compare a message of ``messages.control`` or ``messages.checkpoints`` with its annotations, through tuples,
    mappings and records.

    Raises:
        MessageRefused: names the field.

    >>> check_message(control.PeerHello("job", 0, "slot"))
    >>> check_message(control.PeerHello("job", "first", "slot"))
    Traceback (most recent call last):
        ...
    flinkish.messages.checks.MessageRefused: PeerHello.attempt is a str, not int
    """
    cls = type(message)
    if cls.__module__ not in (control.__name__, checkpoints.__name__) or not dataclasses.is_dataclass(cls):
        raise MessageRefused(f"a {cls.__name__} is no message")
    _record_check(cls)(message, cls.__name__)


@functools.lru_cache(maxsize=None)
def _record_check(cls: type) -> _Check:
    # ``deployment`` names classes of ``checkpoints``, which imports it.
    hints = typing.get_type_hints(cls, localns=vars(checkpoints))
    checks = [(field.name, _check_of(hints[field.name])) for field in dataclasses.fields(cls)]

    def check(value: Any, name: str) -> None:
        _expect(value, cls, name)
        fields = vars(value)
        for field, check_field in checks:
            if field not in fields:
                raise MessageRefused(f"{name}.{field} is missing")
            check_field(fields[field], f"{name}.{field}")

    return check


def _check_of(hint: Any) -> _Check:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value, name: None
    if origin is typing.Union or origin is types.UnionType:
        inner = [argument for argument in arguments if argument is not type(None)]
        if len(inner) == 1:
            check_inner = _check_of(inner[0])
            return lambda value, name: None if value is None else check_inner(value, name)
        return functools.partial(_check_union, {cls: _check_of(cls) for cls in inner})
    if origin is typing.Literal:
        return functools.partial(_check_choice, arguments)
    if origin is tuple and arguments[-1] is ...:
        return functools.partial(_check_entries, _check_of(arguments[0]))
    if origin is tuple:
        return functools.partial(_check_tuple, [_check_of(argument) for argument in arguments])
    if origin is Mapping:
        return functools.partial(_check_mapping, _check_of(arguments[0]), _check_of(arguments[1]))
    if hint is FlinkishError:
        return _check_error
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return functools.partial(_check_atom, hint)
    if dataclasses.is_dataclass(hint):
        return _record_check(typing.cast(type, hint))
    assert hint in (bool, bytes, int, str), f"a message has a field of type {hint}"
    return functools.partial(_check_atom, hint)


def _check_atom(cls: type, value: Any, name: str) -> None:
    _expect(value, cls, name)
    if cls is str and len(value) > TEXT_CHARACTERS_MAX:
        raise MessageRefused(f"{name} has {len(value)} characters, at most {TEXT_CHARACTERS_MAX} are allowed")
    if cls is int and not -_INT_MAX <= value < _INT_MAX:
        raise MessageRefused(f"{name} does not fit into 64 bits")


def _check_error(value: Any, name: str) -> None:
    if not isinstance(value, FlinkishError):
        raise MessageRefused(f"{name} is a {type(value).__name__}, not a FlinkishError")


def _check_union(checks: dict[type, _Check], value: Any, name: str) -> None:
    if type(value) not in checks:
        known = " or ".join(cls.__name__ for cls in checks)
        raise MessageRefused(f"{name} is a {type(value).__name__}, not {known}")
    checks[type(value)](value, name)


def _check_choice(choices: tuple, value: Any, name: str) -> None:
    if type(value) is not str or value not in choices:
        raise MessageRefused(f"{name} is none of {', '.join(choices)}")


def _check_entries(check: _Check, value: Any, name: str) -> None:
    _expect(value, tuple, name)
    _bound(value, name)
    for entry in value:
        check(entry, f"an entry of {name}")


def _check_tuple(checks: list, value: Any, name: str) -> None:
    _expect(value, tuple, name)
    if len(value) != len(checks):
        raise MessageRefused(f"{name} has {len(value)} entries, not {len(checks)}")
    for entry, check in zip(value, checks):
        check(entry, f"an entry of {name}")


def _check_mapping(check_key: _Check, check_value: _Check, value: Any, name: str) -> None:
    _expect(value, dict, name)
    _bound(value, name)
    for key, entry in value.items():
        check_key(key, f"a key of {name}")
        check_value(entry, f"a value of {name}")


def _expect(value: Any, cls: type, name: str) -> None:
    if type(value) is not cls:
        raise MessageRefused(f"{name} is a {type(value).__name__}, not {cls.__name__}")


def _bound(value: Any, name: str) -> None:
    if len(value) > ENTRIES_MAX:
        raise MessageRefused(f"{name} has {len(value)} entries, at most {ENTRIES_MAX} are allowed")
