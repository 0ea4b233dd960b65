import pytest

from flinkish.common import Configuration, options
from flinkish.common.conf_file import read_settings
from flinkish.errors import ConfigurationError


def read(text):
    return read_settings(text, "conf.yaml")


def test_nested_keys_are_joined_with_dots():
    text = """
# a comment
parallelism:
  default: 3     # why
execution:

  checkpointing:
    interval: 10 s
    # between
    mode: AT_LEAST_ONCE
  buffer-timeout: 5 ms
pipeline.name: 'it''s # one'
"""
    assert read(text) == {
        "parallelism.default": "3",
        "execution.checkpointing.interval": "10 s",
        "execution.checkpointing.mode": "AT_LEAST_ONCE",
        "execution.buffer-timeout": "5 ms",
        "pipeline.name": "it's # one",
    }


@pytest.mark.parametrize(
    "text, settings",
    [
        ("python.files:\n- a.py\n- 'b c.py'\nx: 1", {"python.files": "a.py;b c.py", "x": "1"}),
        ("python:\n  files:\n    - a.py\n    - b.py", {"python.files": "a.py;b.py"}),
        ("python.files: [a.py, 'b, c.py']", {"python.files": "a.py;b, c.py"}),
        ("python.files: []", {"python.files": ""}),
        ("a:\nb:", {}),
        ("---\na: # nothing\nb: 1", {"b": "1"}),
        ("'a.b': \"tab\\tend\"", {"a.b": "tab\tend"}),
        ("a: local[*]\nb: http://x:80", {"a": "local[*]", "b": "http://x:80"}),
        ("a: {x: 1, y: ''}", {"a.x": "1", "a.y": ""}),
        ("a: &same yes\nb: *same", {"a": "yes", "b": "yes"}),
        ("a: |\n  one\n  two", {"a": "one\ntwo"}),
        ("", {}),
    ],
)
def test_lists_quotes_and_comments_are_read_as_in_yaml(text, settings):
    assert read(text) == settings


@pytest.mark.parametrize(
    "line, text",
    [
        (2, "a: 1\n  b: 2"),
        (3, "a:\n    b: 1\n  c: 2"),
        (1, "- x"),
        (3, "a:\n  b: 1\n  - x"),
        (2, "a:\n- b: 1"),
        (2, "a:\n\tb: 1"),
        (3, "a:\n  b: 1\na.b: 2"),
        (2, "a: 1\na: 2"),
        (1, "a: 'x' y"),
        (1, 'a: "c:\\dir"'),
        (1, "a: [[x]]"),
        (2, "a: 1\n---\nb: 2"),
        (1, "nonsense"),
        (1, "c:1"),
        (1, "? [x]\n: 1"),
        (1, ": 1"),
        (1, "a: \x00"),
    ],
)
def test_what_cannot_be_read_is_refused_with_file_and_line(line, text):
    with pytest.raises(ConfigurationError) as refused:
        read(text)
    assert refused.value.where == f"conf.yaml, line {line}"
    assert refused.value.why and refused.value.do


def test_a_map_may_be_nested_in_the_file(tmp_path):
    path = tmp_path / "flinkish-conf.yaml"
    path.write_text("pipeline:\n  global-job-parameters:\n    day: 2013-01-01\n    city: New York\n")
    configuration = Configuration.from_file(path)
    expected = {"day": "2013-01-01", "city": "New York"}
    assert configuration.get(options.PIPELINE_GLOBAL_JOB_PARAMETERS) == expected
    assert options.read(dict(configuration), options.PIPELINE_GLOBAL_JOB_PARAMETERS) == expected
