"""ConfigOption: the key, type, default and meaning of one setting.

An option reads its value from text (a file, ``--conf``) and from Python values alike.  Durations
read as int milliseconds, memory sizes as int bytes.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Callable, Generic, Mapping, Optional, TypeVar

from flinkish.common.time import Duration, Time, to_milliseconds
from flinkish.errors import ConfigurationError, InvalidJobError

T = TypeVar("T")

__all__ = ["ConfigOption", "ConfigOptions", "parse_memory_size"]

_BYTES = {
    "": 1,
    "b": 1,
    "bytes": 1,
    "k": 1 << 10,
    "kb": 1 << 10,
    "kibibytes": 1 << 10,
    "m": 1 << 20,
    "mb": 1 << 20,
    "mebibytes": 1 << 20,
    "g": 1 << 30,
    "gb": 1 << 30,
    "gibibytes": 1 << 30,
    "t": 1 << 40,
    "tb": 1 << 40,
    "tebibytes": 1 << 40,
}
_MEMORY = re.compile(r"\s*(\d+)\s*([A-Za-z]*)\s*")


def parse_memory_size(value: Any) -> int:
    """Bytes of Flink's form of a memory size; units are powers of 1024.

    >>> parse_memory_size("2 mb")
    2097152
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if hasattr(value, "get_bytes"):  # MemorySize
        return value.get_bytes()
    match = _MEMORY.fullmatch(str(value))
    unit = _BYTES.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f'{value!r} is not a memory size such as "64 kb" or "1 mb"')
    return int(match[1]) * unit


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f'{value!r} is neither "true" nor "false"')
    return text == "true"


def _integer(value: Any) -> int:
    if not isinstance(value, str):
        return value.__index__()
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{value!r} is no whole number") from None


def parse_list(value: Any, separator: str = ";") -> list[str]:
    r"""A list from a list, or from text: ``a;b``, or a list of YAML: ``[a, b]`` or ``- a\n- b``.

    >>> parse_list("a;b"), parse_list("[a, 'b']"), parse_list("- a\n- b")
    (['a', 'b'], ['a', 'b'], ['a', 'b'])
    """
    if isinstance(value, (list, tuple)):
        return [str(item) for item in value]
    text = str(value).strip()
    if text.startswith("- "):
        return [line.strip().removeprefix("- ").strip().strip("'\"") for line in text.splitlines() if line.strip()]
    if text.startswith("[") and text.endswith("]"):
        text, separator = text[1:-1], ","
    return [part.strip().strip("'\"") for part in text.split(separator) if part.strip()]


def parse_map(value: Any) -> dict[str, str]:
    """A dict from a mapping, or from text: ``a:1,b:2``."""
    if isinstance(value, Mapping):
        return {str(key): str(item) for key, item in value.items()}
    pairs = (part.partition(":") for part in str(value).strip().strip("{}").split(",") if part.strip())
    return {key.strip(): item.strip() for key, _, item in pairs}


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "boolean": _boolean,
    "int": _integer,
    "long": _integer,
    "float": float,
    "double": float,
    "ratio": float,
    "string": str,
    "duration": to_milliseconds,
    "memory": parse_memory_size,
    "list": parse_list,
    "map": parse_map,
}


def _word(value: Any) -> str:
    """What is compared of a choice."""
    return str(value).strip().lower().replace("_", "-")


def to_text(value: Any) -> str:
    """How a value stands in a configuration file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (Time, Duration, timedelta)):
        return f"{to_milliseconds(value)} ms"
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return ";".join(map(to_text, value))
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{to_text(item)}" for key, item in value.items())
    if hasattr(value, "get_bytes"):
        return f"{value.get_bytes()} b"
    return str(value)


@dataclass(frozen=True)
class ConfigOption(Generic[T]):
    """One setting.

    ``kind``: boolean, int, long, float, double, ratio (a float from 0 to 1), string, duration (ms), memory (bytes),
    list, map.  ``choices``: allowed values, of a string; in any letter case, with - or _.  ``aliases``: other words
    for choices, as (word, choice).  ``minimum``, ``maximum``: smallest and largest allowed number.
    ``older_keys``: other spellings (Flink 1.x), which count where the key itself is not set.
    """

    key: str
    kind: str = "string"
    default: Optional[T] = None
    description: str = ""
    choices: tuple[str, ...] = ()
    minimum: Optional[int] = None
    maximum: Optional[int] = None
    older_keys: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()

    def default_value(self) -> Optional[T]:
        return self.default

    def has_default_value(self) -> bool:
        return self.default is not None

    def with_description(self, description: str) -> "ConfigOption[T]":
        return replace(self, description=description)

    def parse(self, value: Any) -> T:
        """The typed value of ``value``, which is text or already typed.

        Raises:
            ConfigurationError: it cannot be one, or is outside of what is allowed.
        """
        try:
            parsed = _PARSERS[self.kind](value)
        except (ValueError, TypeError, AttributeError, OverflowError, InvalidJobError) as error:
            raise ConfigurationError(
                f'option "{self.key}" cannot be {value!r}',
                why=getattr(error, "why", "") or str(error),
                do=f"give a value of type {self.kind}"
                + (f", for example {self.default_text()}" if self.default is not None else ""),
            ) from error
        if self.choices:
            words = {_word(choice): choice for choice in self.choices} | dict(self.aliases)
            choice = words.get(_word(parsed))
            if choice is None:
                raise ConfigurationError(
                    f'option "{self.key}" cannot be {value!r}',
                    why="it has other values",
                    do=f"choose one of {', '.join(self.choices)}",
                )
            return choice  # type: ignore[return-value]
        self._check_limits(value, parsed)
        return parsed

    def _check_limits(self, value: Any, parsed: Any) -> None:
        minimum, maximum = (0, 1) if self.kind == "ratio" else (self.minimum, self.maximum)
        # NaN is neither below nor above anything: so it is asked whether the number lies within.
        if (minimum is None or parsed >= minimum) and (maximum is None or parsed <= maximum):
            return
        what = f'option "{self.key}" cannot be {value!r}'
        if maximum is not None:
            limits = f"at most {maximum}" if minimum is None else f"from {minimum} to {maximum}"
            raise ConfigurationError(what, why=f"it is a number {limits}", do=f"give a number {limits}")
        raise ConfigurationError(what, why=f"the smallest value is {minimum}", do=f"give {minimum} or more")

    def read(self, mapping: Mapping[str, Any]) -> T:
        """Value in ``mapping`` (keys as text), or the default."""
        value = self.text_in(mapping)
        return self.default if value is None else self.parse(value)  # type: ignore[return-value]

    def text_in(self, mapping: Mapping[str, Any]) -> Any:
        """What ``mapping`` holds for it, or None.  A map may also stand as one key for each entry:
        ``KEY.entry``."""
        value = next((mapping[key] for key in (self.key, *self.older_keys) if mapping.get(key) is not None), None)
        if value is None and self.kind == "map":
            prefix = self.key + "."
            value = {key[len(prefix) :]: mapping[key] for key in mapping if key.startswith(prefix)} or None
        return value

    def default_text(self) -> str:
        """The default as it stands in a configuration file; empty when there is none."""
        if self.default is None:
            return ""
        if self.kind == "duration":
            return f"{self.default} ms"
        if self.kind == "memory":
            size: int = self.default  # type: ignore[assignment]
            for unit, factor in (("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10)):
                if size and size % factor == 0:
                    return f"{size // factor} {unit}"
            return f"{size} b"
        return to_text(self.default)


class ConfigOptions:
    """Starts the definition of an option: ``ConfigOptions.key("k").int_type().default_value(3)``."""

    def __init__(self, key: str):
        self._key = key

    @staticmethod
    def key(key: str) -> "ConfigOptions.OptionBuilder":
        return ConfigOptions.OptionBuilder(key)

    class OptionBuilder:
        def __init__(self, key: str):
            self._key = key

        def _typed(self, kind: str) -> "ConfigOptions.TypedConfigOptionBuilder":
            return ConfigOptions.TypedConfigOptionBuilder(self._key, kind)

        def boolean_type(self):
            return self._typed("boolean")

        def int_type(self):
            return self._typed("int")

        def long_type(self):
            return self._typed("long")

        def float_type(self):
            return self._typed("float")

        def double_type(self):
            return self._typed("double")

        def string_type(self):
            return self._typed("string")

        def duration_type(self):
            return self._typed("duration")

        def memory_type(self):
            return self._typed("memory")

        def map_type(self):
            return self._typed("map")

    class TypedConfigOptionBuilder:
        def __init__(self, key: str, kind: str):
            self._key, self._kind = key, kind

        def as_list(self) -> "ConfigOptions.TypedConfigOptionBuilder":
            self._kind = "list"
            return self

        def default_value(self, value: Any) -> ConfigOption:
            option: ConfigOption = ConfigOption(self._key, self._kind)
            return replace(option, default=option.parse(value))

        def no_default_value(self) -> ConfigOption:
            return ConfigOption(self._key, self._kind)
