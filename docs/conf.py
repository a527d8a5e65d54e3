"""Sphinx settings: Markdown pages, and the reference from the docstrings. Built by scripts/docs.sh."""

import re
from typing import Any

from h5store import __version__

project = "h5store"
author = "h5store developers"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]
exclude_patterns = ["images", "_build"]
source_suffix = {".md": "markdown"}
html_theme = "alabaster"
html_theme_options = {
    "description": "Pack arrays once, train as fast as from memory.",
    "page_width": "1080px",
    "fixed_sidebar": True,
}
html_show_sourcelink = False

# Headings of all pages can be linked to: [text](page.md#heading).
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"
# Members are listed by autodoc itself, once.
numpydoc_show_class_members = False
autosummary_generate = False


def spare_shapes(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Let ``(n, *shape)`` in docstrings be a shape, where reStructuredText would see emphasis begin."""
    lines[:] = [re.sub(r"(?<=, )\*(?=\w)", r"\\*", line) for line in lines]


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", spare_shapes, priority=400)
