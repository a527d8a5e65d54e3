"""HTML without scripts: escaped text, one style sheet, tables and bars.

Colours are those of the text around: JupyterLab, VS Code and static pages each set one for light and for dark, and
tints are parts of it. So the card is readable on whatever it is put.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from h5store.explore.text import clean

#: Characters of an untrusted text, such as a field's name.
_MOST = 60

_STYLE = """
.h5s{color:var(--jp-content-font-color1,var(--vscode-foreground,inherit));font-size:13px;line-height:1.4;max-width:980px}
.h5s-head{margin:2px 0 6px}
.h5s-head b{font-size:14px}
.h5s-dim{opacity:.68}
.h5s-bad{color:#d64545}
.h5s table.h5s-t{border-collapse:collapse;margin:0;width:100%;font-size:13px;border:none}
.h5s table.h5s-t th,.h5s table.h5s-t td{text-align:left;vertical-align:top;padding:3px 10px 3px 0;border:none;\
background:none;white-space:normal;max-width:none;overflow-wrap:anywhere}
.h5s table.h5s-t th{font-weight:600;opacity:.68;border-bottom:1px solid rgba(128,128,128,.45)}
.h5s table.h5s-t td.h5s-n,.h5s table.h5s-t th.h5s-n{text-align:right;white-space:nowrap;overflow-wrap:normal}
.h5s table.h5s-t tr{background:none}
.h5s-look img{image-rendering:pixelated;margin:0 4px 4px 0;border-radius:2px;vertical-align:middle;\
outline:1px solid rgba(128,128,128,.35);max-width:none;display:inline-block}
.h5s-look svg{margin:0 8px 4px 0}
.h5s-part{margin-top:8px}
.h5s-bar{display:inline-block;height:10px;background:#3f8fd2;border-radius:2px;vertical-align:middle;margin-right:6px}
""".strip()


def escape(value: object, most: int = _MOST) -> str:
    """Text for HTML: on one line, of at most `most` characters, without meaning as markup."""
    text = clean(str(value)[:most + 1])
    return html.escape(text if len(text) <= most else text[:most - 1] + "…", quote=True)


def card(*parts: str) -> str:
    """Parts in one box with the style sheet."""
    return f'<div class="h5s"><style>{_STYLE}</style>{"".join(parts)}</div>'


def head(title: object, text: str, detail: str = "") -> str:
    below = f'<div class="h5s-dim">{escape(detail, 300)}</div>' if detail else ""
    return f'<div class="h5s-head"><b>{escape(title)}</b> · {escape(text, 300)}{below}</div>'


def part(title: str, inside: str) -> str:
    return f'<div class="h5s-part"><span class="h5s-dim">{title}</span>{inside}</div>'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = (),
          under: Sequence[str] = ()) -> str:
    """A table of cells that are HTML already; `under` gives a line below each row, if not empty."""
    mark = [' class="h5s-n"' if name in numbers else "" for name in columns]
    lines = ["".join(f"<th{m}>{escape(name)}</th>" for name, m in zip(columns, mark))] if any(columns) else []
    for i, row in enumerate(rows):
        lines.append("".join(f"<td{m}>{cell}</td>" for cell, m in zip(row, mark)))
        if i < len(under) and under[i]:
            lines.append(f'<td colspan="{len(columns)}" class="h5s-look">{under[i]}</td>')
    return '<table class="h5s-t">' + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def counts(shown: Sequence[tuple[object, int]], classes: int, total: int, note: str = "") -> str:
    """Names with a bar and a number each; the rest of all classes as a number."""
    largest = max((count for _, count in shown), default=1)
    rows = [(escape(name, 40), f'<span class="h5s-bar" style="width:{max(1, round(160 * count / largest))}px"></span>'
             f"{count:,} <span class=\"h5s-dim\">{count / max(1, total):.1%}</span>") for name, count in shown]
    body = "".join(f'<tr><td>{name}</td><td style="white-space:nowrap">{bar}</td></tr>' for name, bar in rows)
    more = f"and {classes - len(shown):,} more" if classes > len(shown) else ""
    tail = "; ".join(text for text in (more, note) if text)
    below = f'<div class="h5s-dim">{escape(tail, 200)}</div>' if tail else ""
    return f'<table class="h5s-t" style="width:auto">{body}</table>{below}'
