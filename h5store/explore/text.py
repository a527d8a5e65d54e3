"""Plain text: what fits a terminal 100 columns wide, whatever the names hold."""

from __future__ import annotations

import os
import unicodedata
from typing import TYPE_CHECKING

import numpy as np

from h5store.explore.facts import facts_of, human, shape_text

if TYPE_CHECKING:
    from h5store.explore.stats import Stats
    from h5store.reader import Reader

WIDTH = 100
#: Lines of fields; the rest is a number.
_LINES = 24
_NAME = 32


def clean(text: str) -> str:
    """Text on one line: what would move the cursor or hide itself is written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def width(text: str) -> int:
    """Columns that a terminal takes for cleaned text."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, most: int) -> str:
    """Cleaned text of at most `most` columns, shortened at its end."""
    text = clean(text)
    if width(text) <= most:
        return text
    while text and width(text) > most - 1:
        text = text[:-1]
    return text + "…"


def padded(text: str, columns: int) -> str:
    """Cut or filled up to exactly `columns` columns."""
    text = cut(text, columns)
    return text + " " * (columns - width(text))


def reader_text(reader: Reader) -> str:
    """The repr of a reader."""
    facts = facts_of(reader)
    lines = [cut(f"<h5store.Reader {os.path.basename(reader.path)!r}: {facts.summary}>", WIDTH)]
    shown = list(reader.schema)[:_LINES]
    names = min(_NAME, max(width(clean(f.name)) for f in shown))
    for f in shown:
        kind = f"text, {len(f.classes or ()):,} classes" if f.text else f.dtype.name
        stored = facts.stored.get(f.name)
        size = "" if stored is None else f"  {human(stored):>10}"
        lines.append(cut(f"{padded(f.name, names)}  {f.role!s:<8}  {padded(kind, 22)}  "
                         f"{padded(shape_text(f.shape), 26)}{size}", WIDTH).rstrip())
    if len(reader.schema) > _LINES:
        lines.append(f"and {len(reader.schema) - _LINES:,} more fields")
    return "\n".join(lines)


def stats_text(stats: Stats) -> str:
    """The repr of statistics: a table, then the warnings."""
    columns = ("count", "mean", "std", "min", "50%", "max", "nan", "zero")
    rows = [(f.name if len(f.shape) == 0 or len(f.mean if f.moments else ()) < 2 else f"{f.name}[{c}]", row)
            for f in _first(stats) for c, row in enumerate(f.rows())]
    lines = [f"<h5store.Stats of {stats.samples:,} samples of {cut(os.path.basename(stats.path), 50)}>"]
    names = min(20, max([width(clean(name)) for name, _ in rows[:_LINES]], default=5))
    lines.append(" " * names + "".join(f" {name:>9}" for name in columns))
    for name, row in rows[:_LINES]:
        lines.append(padded(name, names) + "".join(f" {_number(row.get(c)):>9}" for c in columns))
    total = sum(len(f.mean) if f.moments else 1 for f in stats.values())
    if total > _LINES:
        lines.append(f"and {total - _LINES:,} more rows; to_frame() has all")
    for text in stats.warnings:
        lines.append(cut(f"! {text}", 2 * WIDTH))
    return "\n".join(lines)


def _first(stats: Stats) -> list:
    return list(stats.values())[:_LINES]


def _number(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}" if value < 10**7 else f"{value:.2e}"
    size = abs(float(value))  # type: ignore[arg-type]
    return f"{value:.3g}" if size < 1e-3 else f"{value:.2e}" if 1e5 <= size < np.inf else f"{value:.4g}"
