"""`h5store stats`: what the values of a store are like."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import click

from h5store.cli.main import debug_option
from h5store.cli.options import json_option, say
from h5store.reader import Reader


@click.command()
@click.argument("file")
@click.option("--save", is_flag=True, help="Keep the statistics in the store: the next time nothing is read.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@json_option
@debug_option
def stats(file: str, save: bool, quiet: bool, as_json: bool) -> None:
    """Statistics of every field, and warnings of what may spoil a training.

    \b
    Example:
      h5store stats train.h5
    """
    with Reader(file, cache=0) as reader:
        found = reader.stats(progress=not quiet, save=save)
        data = {"path": file, "fields": {name: [_plain(row) for row in found[name].rows()] for name in found},
                "warnings": list(found.warnings)}
        text = "\n".join([repr(found), *(w for w in found.warnings if w not in repr(found))])
    say(data, as_json, text)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row as JSON has it: None for what is no number."""
    out = {}
    for name, value in row.items():
        number = value.item() if hasattr(value, "item") else value
        out[name] = None if isinstance(number, float) and not math.isfinite(number) else number
    return out
