"""`h5store split`: named parts that are kept in the store."""

from __future__ import annotations

import click

from h5store.cli.main import debug_option
from h5store.cli.options import json_option, pairs, say
from h5store.reader import Reader


@click.command()
@click.argument("file")
@click.option("--parts", required=True, metavar="NAME=SHARE,...",
              help="Names and shares, such as train=0.8,val=0.2, or numbers of samples.")
@click.option("--by", metavar="FIELD", help="Divide each class of this field in the same shares.")
@click.option("--groups", metavar="FIELD", help="Keep samples with the same value of this field in one part.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@json_option
@debug_option
def split(file: str, parts: str, by: str | None, groups: str | None, seed: int, as_json: bool) -> None:
    """Divide a store into named parts and keep them in it: Reader(FILE).split("train") finds them again.

    \b
    Example:
      h5store split train.h5 --by class --parts train=0.8,val=0.2
    """
    shares = {name.strip(): _share(value) for name, value in pairs("--parts", parts.split(",")).items()}
    with Reader(file, cache=0) as reader:
        made = reader.split(shares, by=by, groups=groups, seed=seed, save=True)
        counts = {name: len(part) for name, part in made.items()}
    say({"path": file, "parts": counts}, as_json,
        "\n".join([f"{file}: kept in the store", *(f"  {name}: {count:,} samples" for name, count in counts.items())]))


def _share(text: str) -> float | int:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise click.UsageError(f"--parts: {text!r} is no share; expected such as train=0.8,val=0.2") from None
