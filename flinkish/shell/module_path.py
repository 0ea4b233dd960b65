"""Where the driver finds modules: slots look there too, so that a checkout needs no installation."""

from __future__ import annotations

import os
import sys
from typing import Any, Mapping

from flinkish.common import options


def driver_sys_path(configuration: Mapping[str, Any] = {}) -> tuple[str, ...]:
    """The driver's ``sys.path``, absolute, and the folders of ``python.files``."""
    added = []
    for name in options.read(configuration, options.PYTHON_FILES) or ():
        added.append(os.path.dirname(os.path.abspath(name)) if name.endswith(".py") else name)
    entries = (os.path.abspath(entry or ".") for entry in [*sys.path, *added])
    return tuple(dict.fromkeys(entry for entry in entries if os.path.exists(entry)))
