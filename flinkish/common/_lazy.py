"""Packages that import their modules when a name is first used.

A slot starts in a fraction of the time when ``import flinkish.datastream.transformations`` does not
load the whole API, and modules of a package may import each other freely.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Callable, Mapping, Sequence


def lazy_exports(
    package: str, exports: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: name of the package.
        exports: module (relative to ``package``, or absolute with a dot) to the names it provides.
    """
    module_of = {name: module for module, names in exports.items() for name in names}
    public = sorted(module_of)

    def __getattr__(name: str) -> Any:
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        path = module if "." in module else f"{package}.{module}"
        value = getattr(importlib.import_module(path), name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *public})

    return public, __getattr__, __dir__
