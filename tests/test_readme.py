"""The README's Python runs as it stands, block after block, in one process."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
# What a block needs that may be missing, by the words that tell.
NEEDS = {
    "keras": ("keras", "tensorflow"),
    "to_tf": ("tensorflow",),
    "to_torch": ("torch",),
    "to_grain": ("grain",),
    "parts=parts": ("keras", "tensorflow"),  # goes on from the block that trains
}


def has(module: str) -> bool:
    """Whether a module can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


def runnable(block: str) -> bool:
    """Whether everything that a block needs is here."""
    return all(has(module) for word, modules in NEEDS.items() if word in block for module in modules)


def as_script(markdown: str) -> tuple[str, int]:
    """Blank all but the runnable blocks, so that errors tell the README's lines; also how many blocks."""
    script = ["\n"] * (markdown.count("\n") + 1)
    blocks = 0
    for match in re.finditer(r"^```python\n(.*?)^```$", markdown, flags=re.MULTILINE | re.DOTALL):
        if runnable(match[1]):
            first = markdown.count("\n", 0, match.start(1))
            lines = match[1].splitlines(keepends=True)
            script[first:first + len(lines)] = lines
            blocks += 1
    return "".join(script), blocks


def test_every_block_runs(run_python: Callable[..., str], tmp_path: Path) -> None:
    script, blocks = as_script(README.read_text("utf-8"))
    assert blocks > 0
    (tmp_path / "readme.py").write_text(script, "utf-8")
    run_python("import runpy; runpy.run_path('readme.py', run_name='__main__')")


def test_errors_tell_the_line_of_the_readme() -> None:
    markdown = "Words.\n\n```python\nx = 1\ny = 2\n```\n\n```sh\nls\n```\n\n```python\nz = 3\n```\n"
    script, blocks = as_script(markdown)
    code = [(number, line) for number, line in enumerate(script.splitlines(), 1) if line]
    assert blocks == 2
    assert code == [(4, "x = 1"), (5, "y = 2"), (13, "z = 3")]
