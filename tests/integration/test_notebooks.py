"""Each notebook runs from top to bottom in a fresh kernel."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient

CHECKOUT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((CHECKOUT / "notebooks").glob("*.ipynb"))


def texts(notebook):
    """What the cells printed and showed."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                continue
            yield output.get("text") or output.get("data", {}).get("text/plain", "")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")])))
    assert "python3" in KernelSpecManager().find_kernel_specs()
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()
    shown = "\n".join(texts(notebook))
    assert "'to': Word(text='to', count=2)" in shown, "a class of a cell works as a record"
    assert "328,521 flights departed, 8,255 were cancelled, 4,387 alerts" in shown
    assert shown.index("ZeroDivisionError") < shown.index("subtask"), "the user's traceback comes first"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
