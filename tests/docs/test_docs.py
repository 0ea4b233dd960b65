"""The code of the documentation runs, and prints what the page says."""

import contextlib
import io
import pathlib
import re
import sys
import types

import pytest

DOCS = pathlib.Path(__file__).resolve().parents[2] / "flinkish" / "docs"
#: Pages whose code runs from top to bottom in one namespace; behind ``#`` the one section of which it does.
PAGES = [
    "async.md", "batch.md", "formats.md", "joins.md", "skew.md", "state.md#Keys and values that are objects",
    "windows.md", "time.md",
]  # fmt: skip

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_prints_what_stands_below_it(page, monkeypatch):
    page, _, section = page.partition("#")
    text = (DOCS / page).read_text()
    start = text.index(f"\n## {section}\n") if section else 0
    end = text.find("\n## ", start + 1) if section else -1
    main = types.ModuleType("__main__")  # by which classes of a script are found
    monkeypatch.setitem(sys.modules, "__main__", main)
    namespace = vars(main)
    printed, blocks = "", 0
    for match in _BLOCK.finditer(text, start, len(text) if end < 0 else end):
        kind, content = match.groups()
        if kind == "python":
            out = io.StringIO()
            line = text[: match.start(2)].count("\n")
            with contextlib.redirect_stdout(out):
                exec(compile("\n" * line + content, str(DOCS / page), "exec"), namespace)  # lines as on the page
            printed, blocks = out.getvalue(), blocks + 1
        elif kind == "text":
            assert printed == content, f"{page}, line {text[: match.start()].count(chr(10)) + 1}"
    assert blocks
