"""`h5store verify`, `fingerprint`, `doctor`: whether a store is whole, what it is, how this machine serves it."""

from __future__ import annotations

import dataclasses

import click

from h5store.cli.main import debug_option
from h5store.cli.options import json_option, say
from h5store.doctor import doctor as examine
from h5store.identity import fingerprint as fingerprint_of
from h5store.verify import verify as verify_store


@click.command()
@click.argument("file")
@click.option("--repair", metavar="OUT", help="Write the samples that are whole in every field into a new store.")
@click.option("--hdf5", is_flag=True, help="Also have HDF5 tell whether other tools see the same bytes.")
@json_option
@debug_option
def verify(file: str, repair: str | None, hdf5: bool, as_json: bool) -> int:
    """Read every chunk of a store and compare its checksum; list NaN and infinity. Exit code 1 if it is damaged.

    The store itself is never changed.

    \b
    Examples:
      h5store verify train.h5
      h5store verify train.h5 --repair saved.h5
    """
    report = verify_store(file, repair=repair, hdf5=hdf5)
    say({**dataclasses.asdict(report), "ok": report.ok}, as_json, str(report))
    return 0 if report.ok else 1


@click.command()
@click.argument("file")
@click.option("--sha256", is_flag=True, help="Take SHA-256, which forgeries do not pass, instead of XXH3-128.")
@json_option
@debug_option
def fingerprint(file: str, sha256: bool, as_json: bool) -> int:
    """A fingerprint of a store's samples: the same for the same samples, whatever chunks and codec hold them.

    \b
    Example:
      h5store fingerprint train.h5 --sha256
    """
    found = fingerprint_of(file, algorithm="sha256" if sha256 else "xxh3")
    say({"path": file, "fingerprint": found}, as_json, found)
    return 0


@click.command()
@click.argument("file", required=False)
@json_option
@debug_option
def doctor(file: str | None, as_json: bool) -> int:
    """Versions, filters, locks, file system, limits and speed of the disk here, and what to change.

    \b
    Example:
      h5store doctor train.h5
    """
    diagnosis = examine(file)
    say({**dataclasses.asdict(diagnosis), "ok": diagnosis.ok}, as_json, str(diagnosis))
    return 0
