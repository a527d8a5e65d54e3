"""The notebooks run from their first cell to their last, twice in one folder, and hold no outputs in git."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

INLINE = "module://matplotlib_inline.backend_inline"
FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
BOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
NEEDS = {"keras": "keras", "sklearn": "sklearn", "matplotlib": "matplotlib", "to_frame": "pandas",
         "plot_": "matplotlib"}


def cells(name: str) -> list[dict[str, Any]]:
    return json.loads((FOLDER / name).read_text("utf-8"))["cells"]


def code(name: str) -> str:
    return "\n".join("".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "code")


def execute(name: str, folder: Path) -> Any:
    """Run a notebook in a kernel of its own; gives it with its outputs."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    for word, module in NEEDS.items():
        if word in code(name):
            pytest.importorskip(module)
    book = nbformat.read(FOLDER / name, as_version=4)
    client = nbclient.NotebookClient(book, timeout=110, kernel_name="python3",
                                     resources={"metadata": {"path": str(folder)}})
    client.execute(env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "MPLBACKEND": INLINE})
    return book


def test_there_are_three() -> None:
    assert BOOKS == ["01_write.ipynb", "02_train.ipynb", "03_explore.ipynb"]


@pytest.mark.parametrize("name", BOOKS)
def test_they_are_clean(name: str) -> None:
    for cell in cells(name):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    assert not re.search(r"/(home|root|tmp|work)/", (FOLDER / name).read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", BOOKS)
def test_they_run_and_run_again_in_the_same_folder(name: str, tmp_path: Path) -> None:
    book = execute(name, tmp_path)
    shown = [output for cell in book.cells for output in cell.get("outputs", [])]
    cards = [o for o in shown if "h5s" in o.get("data", {}).get("text/html", "")]
    pictures = [o for o in shown if "image/png" in o.get("data", {})]
    assert cards
    assert pictures or name == "01_write.ipynb"
    if name == "01_write.ipynb":  # the others pack as this one does, and take their time
        execute(name, tmp_path)
