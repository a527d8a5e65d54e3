"""`h5store verify`: whether a store is whole."""

from __future__ import annotations

import dataclasses

import click

from h5store.cli.main import debug_option
from h5store.cli.options import json_option, say
from h5store.verify import verify as verify_store


@click.command()
@click.argument("file")
@json_option
@debug_option
def verify(file: str, as_json: bool) -> int:
    """Read every chunk of a store and compare its checksum; list NaN and infinity. Exit code 1 if it is damaged.

    \b
    Example:
      h5store verify train.h5
    """
    report = verify_store(file)
    say({**dataclasses.asdict(report), "ok": report.ok}, as_json, str(report))
    return 0 if report.ok else 1
