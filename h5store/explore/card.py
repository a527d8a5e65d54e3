"""The cards that a notebook shows: of a reader, a field, a loader, a report and of statistics."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from h5store.errors import H5StoreError
from h5store.explore import html
from h5store.explore.facts import Facts, facts_of, human, shape_text
from h5store.explore.html import card, escape, head, part, table
from h5store.explore.preview import BUDGET, Budget, class_counts, histogram, is_classed, preview, scalars
from h5store.schema import Field, Role

if TYPE_CHECKING:
    from h5store.explore.stats import Stats
    from h5store.reader import Reader

#: Fields, pictures of fields, fields whose classes are counted, and classes of each.
_FIELDS, _PREVIEWS, _COUNTED, _CLASSES = 24, 6, 4, 10
#: Rows of a table of statistics.
_ROWS = 40


def reader_card(reader: Reader) -> str:
    """The card of a store, or of a view of one. Reads a bounded number of bytes."""
    facts = facts_of(reader, _FIELDS, splits=True)
    budget, fields = Budget(), list(reader.schema)[:_FIELDS]
    looks, pictures = [], 0
    for f in fields:
        look = preview(reader, f, budget) if pictures < _PREVIEWS else ""
        pictures += bool(look)
        looks.append(look)
    parts = [head(os.path.basename(reader.path), facts.summary, reader.path), _fields(fields, facts, looks)]
    if len(reader.schema) > _FIELDS:
        more = len(reader.schema) - _FIELDS
        parts.append(f'<div class="h5s-dim">and {more:,} more fields ({facts.roles} in all)</div>')
    parts += _values(reader, [f for f in reader.schema if not f.shape], budget)
    for split in facts.splits:
        known = [(name, count) for name, count in split.items() if count is not None]
        parts.append(part("saved split", html.counts(known[:_CLASSES], len(known), sum(n for _, n in known))) if known
                     else part("saved split: ", escape(", ".join(split), 200)))
    return card(*parts)


def _fields(fields: list[Field], facts: Facts, looks: list[str]) -> str:
    columns = ["field", "role", "sample", "dtype"]
    rows = [[f"<b>{escape(f.name)}</b>", escape(f.role), escape(shape_text(f.shape)),
             f"text, {len(f.classes or ()):,} classes" if f.text else escape(f.dtype.name)] for f in fields]
    if facts.codec:
        columns += ["chunk", "stored", "of raw"]
        for f, row in zip(fields, rows):
            stored = facts.stored[f.name]
            chunk = facts.chunks[f.name]
            row += [f"{chunk:,} {'value' if f.ragged else 'sample'}{'s' * (chunk > 1)}", human(stored),
                    f"{stored / max(1, facts.raw_of[f.name]):.2f}"]
    return table(columns, rows, ("chunk", "stored", "of raw"), looks)


def _values(reader: Reader, fields: list[Field], budget: Budget) -> list[str]:
    """Class counts and histograms: of labels first, then of other scalars."""
    out: list[str] = []
    # Labels and text are small and are what people ask for; whatever the pictures have used, they get a share.
    budget.left = max(budget.left, BUDGET // 4)
    ordered = [f for f in fields if f.role is Role.LABELS] + [f for f in fields if f.role is not Role.LABELS]
    for f in ordered[:_COUNTED]:
        try:
            seen = scalars(reader, f, budget)
        except (H5StoreError, OSError) as error:
            out.append(part(f"{escape(f.role)} <b>{escape(f.name)}</b>: ",
                            f'<span class="h5s-bad">cannot be read: {escape(error, 300)}</span>'))
            continue
        if seen is None:
            continue
        some = "" if seen.whole else f"in {len(seen.values):,} of {seen.of:,} samples, spread evenly"
        if is_classed(f):
            items, classes = class_counts(f, seen, _CLASSES)
            title = f"{escape(f.role)} <b>{escape(f.name)}</b>, {classes:,} class{'es' * (classes != 1)}"
            out.append(part(title, html.counts(items, classes, len(seen.values), some)))
        else:
            out.append(part(f"{escape(f.role)} <b>{escape(f.name)}</b> {escape(some, 100)} ",
                            f'<span class="h5s-look">{histogram(seen)}</span>'))
    return out


def field_card(reader: Reader, field: Field) -> str:
    """The card of one field of a reader."""
    facts = facts_of(reader)
    name = "text" if field.text else field.dtype.name
    text = f"{field.role}, {len(reader):,} samples of {shape_text(field.shape)}, {name}"
    parts = [head(field.name, text, reader.path)]
    look = preview(reader, field, Budget())
    if look:
        parts.append(f'<div class="h5s-look">{look}</div>')
    if field.name in facts.stored:
        stored = facts.stored[field.name]
        ratio = stored / max(1, facts.raw_of[field.name])
        parts.append(f'<div class="h5s-dim">stored as {human(stored)}, {ratio:.2f} of raw, in chunks'
                     f" of {facts.chunks[field.name]:,} {'values' if field.ragged else 'samples'}</div>")
    if not field.shape:
        parts += _values(reader, [field], Budget())
    return card(*parts)


def loader_card(loader: Any) -> str:
    """The card of a loader: how it goes through the samples."""
    plan, reader = loader.plan, loader.reader
    rows = [["steps an epoch", f"{len(loader):,}"], ["batch", f"{plan.batch_size:,} samples"],
            ["order", escape(plan.describe(), 120)], ["seed", escape(loader.seed)],
            ["last batch", "left out if not full" if plan.drop_last else "may be shorter"],
            ["position", f"epoch {loader.epoch_number}, step {loader.step}"]]
    if plan.world_size > 1:
        rows.append(["share", f"rank {plan.rank} of {plan.world_size}"])
    fed = [[f"<b>{escape(f.name)}</b>", escape(f.role), escape(f"{plan.batch_size} × {shape_text(f.shape)}" if f.shape
            else plan.batch_size), "int64 codes of text" if f.text else escape(f.dtype.name)]
           for f in reader.model_fields()[:_FIELDS]]
    more = len(reader.model_fields()) - _FIELDS
    parts = [head(f"batches of {os.path.basename(reader.path)}", f"{len(reader):,} samples"), table(["", ""], rows),
             part("each batch", table(["field", "role", "shape", "dtype"], fed))]
    if more > 0:
        parts.append(f'<div class="h5s-dim">and {more:,} more fields</div>')
    return card(*parts)


def report_card(report: Any) -> str:
    """The card of what `verify` found."""
    state = "whole" if report.ok else f"{len(report.problems):,} problems"
    parts = [head(os.path.basename(report.path), f"{report.samples:,} samples, {state}", report.path)]
    if report.problems:
        lines = "".join(f"<div class=\"h5s-bad\">{escape(p, 400)}</div>" for p in report.problems[:_CLASSES])
        parts.append(lines)
        if len(report.problems) > _CLASSES:
            parts.append(f'<div class="h5s-dim">and {len(report.problems) - _CLASSES:,} more</div>')
    if report.nonfinite:
        rows = [[f"<b>{escape(name)}</b>", f"{found.values:,}", escape(", ".join(map(str, found.samples)), 200)]
                for name, found in list(report.nonfinite.items())[:_FIELDS]]
        parts.append(part("NaN and infinite values: stored exactly, and what a loss of NaN comes from",
                          table(["field", "values", "first samples"], rows, ("values",))))
    return card(*parts)


def stats_card(stats: Stats) -> str:
    """The card of statistics: what to look at first, then the table."""
    parts = [head(f"statistics of {os.path.basename(stats.path)}", f"{stats.samples:,} samples", stats.path)]
    if stats.warnings:
        lines = "".join(f"<div>⚠ {escape(text, 400)}</div>" for text in stats.warnings[:_CLASSES])
        more = len(stats.warnings) - _CLASSES
        parts.append(part("to look at", lines + (f"<div>and {more:,} more</div>" if more > 0 else "")))
    columns = ["field", "mean", "std", "min", "1%", "50%", "99%", "max", "nan", "zero"]
    rows: list[list[str]] = []
    for f in list(stats.values())[:_ROWS]:
        for c, row in enumerate(f.rows()):
            if f.moments is not None and len(rows) < _ROWS:
                name = f"<b>{escape(f.name)}</b>" + (f"[{c}]" if len(f.mean) > 1 else "")
                if len(f.name) < 20:
                    name = f'<span style="white-space:nowrap">{name}</span>'
                rows.append([name] + [f"{row[k]:.4g}" for k in columns[1:-2]]
                            + [f"{row[k]:.1%}" if row[k] else "0" for k in columns[-2:]])
    parts.append(part("", table(columns, rows, columns[1:])))
    total = sum(len(f.mean) for f in stats.values() if f.moments is not None)
    if total > len(rows):
        parts.append(f'<div class="h5s-dim">and {total - len(rows):,} more rows: to_frame() has all</div>')
    for f in list(stats.values())[:_ROWS]:
        if f.classes is not None and (f.dtype == "text" or f.dtype.startswith(("int", "uint", "bool"))):
            parts.append(part(f"{escape(f.role)} <b>{escape(f.name)}</b>, {len(f.classes):,} classes",
                              html.counts(_in_order(f.classes)[:_CLASSES], len(f.classes), stats.samples)))
    return card(*parts)


def _in_order(classes: dict[Any, int]) -> list[tuple[Any, int]]:
    """Few classes in the order of their names, many by how frequent they are."""
    items = list(classes.items())
    return sorted(items, key=lambda item: (isinstance(item[0], str), item[0])) if len(items) <= _CLASSES else items
