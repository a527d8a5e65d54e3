"""`h5store info` and `h5store show`: what a store holds."""

from __future__ import annotations

import os
from typing import Any

import click
import numpy as np

from h5store.cli.main import debug_option
from h5store.cli.options import human, json_option, say
from h5store.reader import Reader
from h5store.schema import Field, Role
from h5store.storage.store import Store

#: Classes that `info` prints; --json has them all.
_SHOWN = 20
#: Whole numbers are classes if there are no more of them than this.
_MOST_CLASSES = 10_000
_STEP = 1 << 16


@click.command()
@click.argument("file")
@json_option
@debug_option
def info(file: str, as_json: bool) -> None:
    """Fields, chunks, codec, size and counts per class of a store.

    \b
    Example:
      h5store info train.h5
    """
    store = Store.open(file, cache=0)
    store.close()
    layout = store.layout
    assert layout is not None
    fields = []
    with Reader(file, cache=0) as reader:
        for f in store.schema:
            fields.append({**f.to_json(), "chunk": layout.chunks[f.name],
                           "stored_bytes": sum(int(store.table(c.name).sizes.sum()) for c in f.columns),
                           "raw_bytes": sum(c.nbytes * layout.rows(c) for c in f.columns),
                           "counts": _counts(reader, f)})
    size, raw = store.source.identity.size, sum(d["raw_bytes"] for d in fields)
    data = {"path": store.path, "samples": store.length, "bytes": size, "raw_bytes": raw,
            "ratio": round(size / raw, 4) if raw else None, "codec": str(layout.codec), "block": layout.block,
            "fields": fields}
    say(data, as_json, _info_text(data, [f for f in store.schema]))


def _counts(reader: Reader, field: Field) -> dict[str, int] | None:
    """Samples of each class: of text, and of whole numbers that are labels."""
    if field.shape or not (field.text or (field.role is Role.LABELS and field.dtype.kind in "iub")):
        return None
    counts: dict[Any, int] = dict.fromkeys(field.classes or (), 0)
    for start in range(0, len(reader), _STEP):
        values, numbers = np.unique(reader[field.name][start:start + _STEP], return_counts=True)
        for value, number in zip(values.tolist(), numbers.tolist()):
            counts[value] = counts.get(value, 0) + number
        if not field.text and len(counts) > _MOST_CLASSES:
            return None
    return {str(value): counts[value] for value in sorted(counts)}


def _info_text(data: dict[str, Any], schema: list[Field]) -> str:
    lines = [f"{data['path']}: {data['samples']:,} samples, {human(data['bytes'])}, {human(data['raw_bytes'])} raw"
             + (f", {data['ratio']:.2f} of raw" if data["ratio"] else "") + f", codec {data['codec']}"]
    rows = [("field", "role", "sample", "chunk", "stored", "ratio")]
    for f, d in zip(schema, data["fields"]):
        ratio = f"{d['stored_bytes'] / d['raw_bytes']:.2f}" if d["raw_bytes"] else "-"
        rows.append((f.name, str(f.role), f.describe(), f"{d['chunk']:,}", human(d["stored_bytes"]), ratio))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    for d in data["fields"]:
        if d["counts"]:
            shown = [f"{value!r}: {number:,}" for value, number in list(d["counts"].items())[:_SHOWN]]
            more = f", and {len(d['counts']) - _SHOWN:,} more" if len(d["counts"]) > _SHOWN else ""
            lines.append(f"{d['name']}: {len(d['counts']):,} classes: {', '.join(shown)}{more}")
    return "\n".join(lines)


@click.command()
@click.argument("file")
@click.argument("ids", nargs=-1, type=int, metavar="[ID]...")
@click.option("--fields", metavar="FIELD,FIELD", help="Only these fields.")
@json_option
@debug_option
def show(file: str, ids: tuple[int, ...], fields: str | None, as_json: bool) -> None:
    """Samples of a store by position; the first three by default. Negative ones, after --, count from the end.

    \b
    Example:
      h5store show train.h5 0 41
    """
    with Reader(file, cache=0) as reader:
        wanted = list(ids) or list(range(min(3, len(reader))))
        names = [name.strip() for name in fields.split(",")] if fields else None
        found = reader.take(np.array(wanted, np.int64), names)
        width = max((len(name) for name in found), default=0)
        lines = []
        for i, number in enumerate(wanted):
            lines.append(f"sample {number}")
            for name, values in found.items():
                told = np.array2string(np.asarray(values[i]), threshold=12, edgeitems=2, precision=4)
                lines.append(f"  {name:<{width}}  {reader.schema[name].describe()}  "
                             + told.replace("\n", os.linesep + " " * (width + 4)))
        data = [{"id": number, **{name: values[i].tolist() for name, values in found.items()}}
                for i, number in enumerate(wanted)]
        say(data, as_json, "\n".join(lines))
