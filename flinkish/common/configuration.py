"""Configuration: settings by key, as text, with typed access."""

from __future__ import annotations

import base64
import os
from collections.abc import MutableMapping, Set
from typing import Any, Iterator, Mapping, Optional, Union

from flinkish.common.conf_file import read_settings
from flinkish.common.config_options import ConfigOption, parse_list, to_text
from flinkish.errors import ConfigurationError

__all__ = ["Configuration"]

CONF_DIR_VARIABLE = "FLINKISH_CONF_DIR"
CONF_FILE_NAME = "flinkish-conf.yaml"


class Configuration(MutableMapping):
    """A dict of text by key that also speaks PyFlink's typed getters and setters.

    >>> conf = Configuration({"parallelism.default": 4})
    >>> conf["parallelism.default"], conf.get_integer("parallelism.default", 1)
    ('4', 4)

    Unlike a dict, `get` takes a ``ConfigOption`` too and then returns its typed value or default.
    """

    def __init__(self, other: Optional[Mapping[str, Any]] = None):
        self._values: dict[str, str] = {}
        if other is not None:
            self.update(other)

    @classmethod
    def from_dict(cls, map: Mapping[str, Any]) -> "Configuration":
        return cls(map)

    @classmethod
    def from_file(cls, path: Union[str, os.PathLike]) -> "Configuration":
        """Read a YAML file; nested keys are joined with dots."""
        with open(path, encoding="utf-8-sig") as file:
            return cls(read_settings(file.read(), os.fspath(path)))

    @classmethod
    def load_global(cls) -> "Configuration":
        """Settings of the folder that FLINKISH_CONF_DIR names; empty when it is not set."""
        folder = os.environ.get(CONF_DIR_VARIABLE)
        if not folder:
            return cls()
        path = os.path.join(folder, CONF_FILE_NAME)
        if not os.path.exists(path):
            raise ConfigurationError(
                f"there is no {CONF_FILE_NAME} in {folder}",
                why=f"the environment variable {CONF_DIR_VARIABLE} names this folder",
                do="correct the variable or unset it",
            )
        return cls.from_file(path)

    # ---- as a dict ------------------------------------------------------------------------------

    def __getitem__(self, key: Union[str, ConfigOption]) -> Any:
        if isinstance(key, ConfigOption):
            return key.read(self._values)
        return self._values[key]

    def __setitem__(self, key: Union[str, ConfigOption], value: Any) -> None:
        if isinstance(key, ConfigOption):
            key.parse(value)
            if key.kind == "duration" and isinstance(value, int):
                value = f"{value} ms"
            key = key.key
        self._values[key] = to_text(value)

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        if isinstance(key, ConfigOption):
            return key.text_in(self._values) is not None
        return key in self._values

    def get(self, key: Union[str, ConfigOption], default: Any = None) -> Any:
        """Typed value of an option (or its default), or text of a key (or ``default``)."""
        if isinstance(key, ConfigOption):
            value = key.read(self._values)
            return default if default is not None and key.text_in(self._values) is None else value
        return self._values.get(key, default)

    def set(self, key: Union[str, ConfigOption], value: Any) -> "Configuration":
        """Set one value; refused at once when it cannot be one of the option.  None removes it."""
        if value is None:
            for name in (key.key, *key.older_keys) if isinstance(key, ConfigOption) else (key,):
                self._values.pop(name, None)
        else:
            self[key] = value
        return self

    # ---- as in PyFlink --------------------------------------------------------------------------

    def _typed(self, key: str, kind: str, default: Any) -> Any:
        value = self._values.get(key)
        return default if value is None else ConfigOption(key, kind).parse(value)

    def get_string(self, key: str, default_value: Optional[str]) -> Optional[str]:
        return self._values.get(key, default_value)

    def set_string(self, key: str, value: str) -> "Configuration":
        return self.set(key, value)

    def get_integer(self, key: str, default_value: Optional[int]) -> Optional[int]:
        return self._typed(key, "int", default_value)

    def set_integer(self, key: str, value: int) -> "Configuration":
        return self.set(key, value)

    def get_boolean(self, key: str, default_value: Optional[bool]) -> Optional[bool]:
        return self._typed(key, "boolean", default_value)

    def set_boolean(self, key: str, value: bool) -> "Configuration":
        return self.set(key, value)

    def get_float(self, key: str, default_value: Optional[float]) -> Optional[float]:
        return self._typed(key, "float", default_value)

    def set_float(self, key: str, value: float) -> "Configuration":
        return self.set(key, value)

    def get_bytearray(self, key: str, default_value: Optional[bytearray]) -> Optional[bytearray]:
        value = self._values.get(key)
        return default_value if value is None else bytearray(base64.b64decode(value))

    def set_bytearray(self, key: str, value: bytearray) -> "Configuration":
        return self.set(key, base64.b64encode(value).decode("ascii"))

    @staticmethod
    def parse_list_value(value: str) -> list[str]:
        return parse_list(value) if value else []

    def key_set(self) -> Set[str]:
        return set(self._values)

    def contains_key(self, key: str) -> bool:
        return key in self._values

    def add_all(self, other: Mapping[str, Any], prefix: Optional[str] = None) -> "Configuration":
        for key, value in other.items():
            self[(prefix or "") + key] = value
        return self

    def add_all_to_dict(self, target_dict: dict) -> None:
        target_dict.update(self._values)

    def to_dict(self) -> dict[str, str]:
        return dict(self._values)

    def remove_config(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def copy(self) -> "Configuration":
        return Configuration(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self._values == other._values

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __str__(self) -> str:
        return f"{{{', '.join(f'{key}={value}' for key, value in self._values.items())}}}"

    def __repr__(self) -> str:
        return f"Configuration({self._values!r})"
