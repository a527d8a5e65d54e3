"""The documentation cannot rot: its code runs, its errors are those of the code, its links lead somewhere."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
MINE = [DOCS / f"{name}.md" for name in ("index", "writing", "packing", "training", "exploring", "moving", "hdf5")]
# Commands that the tests may run; others install things or start servers.
SAFE = {"h5store", "h5ls", "h5dump", "python"}
#: What a block needs beside what the README's blocks may need.
NEEDS = {"to_frame": "pandas", "plot_": "matplotlib", "import torch": "torch", "import tensorflow": "tensorflow",
         "sources.table": "pyarrow", "sources.images": "PIL", "pack images": "PIL", "pack table": "pyarrow",
         "pack tfrecord": "tensorflow"}


def readme() -> ModuleType:
    """The README's test: how Markdown becomes a script is written there."""
    path = Path(__file__).with_name("test_readme.py")
    spec = importlib.util.spec_from_file_location("readme_for_docs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.NEEDS.update({word: (need,) for word, need in NEEDS.items()})
    return module


@pytest.mark.parametrize("page", MINE, ids=lambda page: page.stem)
@pytest.mark.timeout(240)
def test_every_block_of_a_guide_runs(page: Path, run_python: Callable[..., str], tmp_path: Path) -> None:
    markdown = page.read_text("utf-8")
    tester = readme()
    script, blocks = tester.as_script(markdown)
    assert blocks > 0
    (tmp_path / "page.py").write_text(script, "utf-8")
    run_python("import os, runpy; os.environ['MPLBACKEND'] = 'Agg'; runpy.run_path('page.py', run_name='__main__')",
               timeout=200)
    for line in "".join(re.findall(r"^```sh\n(.*?)^```$", markdown, flags=re.M | re.S)).splitlines():
        words = [word for word in shlex.split(line.partition("#")[0]) if not re.match(r"[A-Z0-9_]+=", word)]
        if words and words[0] in SAFE and shutil.which(words[0], path=search_path()) and tester.runnable(line):
            subprocess.run(line, shell=True, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL, timeout=60,
                           env={**os.environ, "PATH": search_path()})


def search_path() -> str:
    """The commands of this interpreter's environment first."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def spoken() -> str:
    """All text in the package's sources; what an f-string puts in is '…'."""
    said = []
    for file in (ROOT / "h5store").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                said.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                said.append(node.value)
    return "\n".join(said)


def headings() -> list[str]:
    """Errors of our own that troubleshooting names: between the headings of opening and of training."""
    text = (DOCS / "troubleshooting.md").read_text("utf-8")
    ours = text[text.index("## Opening"):text.index("## Other tools")]
    return [line for line in re.findall(r"^### (.*)$", ours, flags=re.M)
            if line not in ("loss: nan", "It is slow, and SlowPathWarning was shown")]


def test_troubleshooting_quotes_errors_that_there_are() -> None:
    said = spoken()
    assert len(headings()) > 15
    missing = [line for line in headings()
               if not all(part.strip() in said for part in line.split("…") if len(part.strip()) > 3)]
    assert not missing, missing


def test_links_and_pictures_lead_somewhere() -> None:
    broken = [f"{page.name}: {target}" for page in PAGES
              for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
              if not (page.parent / target).exists()]
    assert not broken, broken


def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    for module in ("sphinx", "myst_parser", "numpydoc"):
        pytest.importorskip(module)
    done = subprocess.run([sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d",
                           str(tmp_path / "trees"), str(DOCS), str(tmp_path / "html")],
                          cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "html" / "api.html").read_text("utf-8")
    for name in ("h5store.pack", "h5store.Writer.append", "h5store.Reader.take", "h5store.Reader.stats",
                 "h5store.errors.CorruptChunkError"):
        assert f'id="{name}"' in reference, name
