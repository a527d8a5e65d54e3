"""`h5store bench`: how fast a store is read here, and what would make it faster."""

from __future__ import annotations

import dataclasses

import click

from h5store.cli.main import debug_option
from h5store.cli.options import json_option, say
from h5store.speed import measure


@click.command()
@click.argument("file")
@click.option("--batch-size", type=click.IntRange(1), default=256, show_default=True, metavar="N")
@click.option("--threads", type=click.IntRange(1, 64), help="Threads; all cores by default.")
@click.option("--cache", default="256MiB", show_default=True, metavar="SIZE",
              help="Decoded samples to keep; 0 for none.")
@json_option
@debug_option
def bench(file: str, batch_size: int, threads: int | None, cache: str, as_json: bool) -> int:
    """Time sequential, shuffled and random reading of a store, and advise on chunk, codec and cache.

    \b
    Example:
      h5store bench train.h5 --cache 0
    """
    speed = measure(file, batch_size=batch_size, threads=threads, cache=cache)
    say(dataclasses.asdict(speed), as_json, str(speed))
    return 0
