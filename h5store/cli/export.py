"""`h5store export`: samples out of a store, for other tools."""

from __future__ import annotations

import os

import click

from h5store.cli.main import debug_option
from h5store.cli.options import json_option, say
from h5store.export import export as export_samples
from h5store.reader import Reader

#: Where samples go if nothing is said: beside the store.
_OUT = {"npy": "{stem}.npy", "npz": "{stem}.npz", "hdf5": "{stem}.plain.h5"}


@click.command()
@click.argument("file")
@click.option("--to", required=True, type=click.Choice(list(_OUT)),
              help="A folder of .npy files, one .npz file, or an HDF5 file that needs no plugins.")
@click.option("--out", metavar="PATH", help="Where to; by default beside FILE: train.npy/, train.npz, train.plain.h5.")
@click.option("--fields", metavar="FIELD,FIELD", help="Only these fields.")
@click.option("--split", "part", metavar="NAME", help="Only the samples of a saved part; see h5store split.")
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
@json_option
@debug_option
def export(file: str, to: str, out: str | None, fields: str | None, part: str | None, overwrite: bool,
           as_json: bool) -> None:
    """Write the samples of a store as .npy, .npz or plain HDF5. Memory stays flat.

    \b
    Example:
      h5store export train.h5 --to npz
    """
    target = out or _OUT[to].format(stem=os.path.splitext(file)[0] + (f".{part}" if part else ""))
    with Reader(file, cache=0) as reader:
        chosen = reader.split(part) if part else reader
        names = [name.strip() for name in fields.split(",")] if fields else None
        export_samples(chosen, to, target, fields=names, overwrite=overwrite)
        say({"path": target, "samples": len(chosen), "fields": names or list(reader.schema.names)}, as_json,
            f"{target}: {len(chosen):,} samples of {', '.join(names or reader.schema.names)}")
