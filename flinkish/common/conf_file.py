"""Reads a configuration file: YAML, with nested keys joined by dots and lists by ";", as Flink does it::

    execution:
      buffer-timeout: 50 ms        # execution.buffer-timeout: 50 ms
    python.files: [a.py, b.py]     # python.files: a.py;b.py
"""

from __future__ import annotations

from typing import Iterator

import yaml

from flinkish.errors import ConfigurationError

__all__ = ["read_settings"]


def read_settings(text: str, file: str) -> dict[str, str]:
    """Settings by their joined keys; a key without a value is left out.  ``file``: its name, for errors.

    Raises:
        ConfigurationError: this is no YAML, not of keys and values, or a key is given twice.

    >>> read_settings("a: {b: 1}\\na.c:\\n- x\\n- 'y z'", "c.yaml")
    {'a.b': '1', 'a.c': 'x;y z'}
    """
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _refused(file, mark.line if mark else 0, error.problem or str(error)) from None
    except yaml.YAMLError as error:
        raise _refused(file, 0, str(error)) from None
    settings: dict[str, str] = {}
    lines: dict[str, int] = {}
    if root is not None:
        for key, value, line in _flat(root, "", file):
            if key in lines:
                raise _refused(file, line, f'"{key}" is given in line {lines[key] + 1} already')
            lines[key] = line
            settings[key] = value
    return settings


def _flat(node: yaml.Node, key: str, file: str) -> Iterator[tuple[str, str, int]]:
    line = node.start_mark.line
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if not isinstance(name, yaml.ScalarNode) or not name.value:
                raise _refused(file, name.start_mark.line, "a key must be a plain text")
            yield from _flat(value, f"{key}.{name.value}" if key else name.value, file)
    elif not key:
        raise _refused(file, line, "it is no `key: value`")
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            if not isinstance(item, yaml.ScalarNode):
                raise _refused(file, item.start_mark.line, f'the list "{key}" may hold plain values only')
        yield key, ";".join(item.value for item in node.value), line
    elif node.value or node.style:  # an empty plain scalar is YAML's null
        yield key, node.value, line


def _refused(file: str, line: int, why: str) -> ConfigurationError:
    return ConfigurationError(
        "could not read the configuration",
        where=f"{file}, line {line + 1}",
        why=why,
        do="write YAML of keys and values, with values in quotes where they hold special characters",
    )
