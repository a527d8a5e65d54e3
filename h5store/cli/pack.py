"""`h5store pack`: a command for each kind of source."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.core import ParameterSource

from h5store import packing, sources
from h5store.sources.order import limited
from h5store.cli.main import Commands
from h5store.cli.options import (ROLES, chunk_of, codec_of, human, named_files, named_keys, on_error_option,
                                 pack_options, pairs, role_options, say, shape_of)
from h5store.reader import Reader

#: What makes no difference to the samples of a store, so that it must make none to its bytes.
_ASIDE = {"out", "threads", "resume", "overwrite", "append", "dry_run", "quiet", "as_json", "debug"}
_KEYS = "KEY, or NAME=KEY to name the field otherwise; several as KEY,KEY."


@click.group(cls=Commands)
def pack() -> None:
    """Pack what you have into a store, with a progress bar.

    \b
    Example:
      h5store pack arrays train.h5 --features flux=X.npy --labels y.npy
    """


def _command() -> str:
    """What was typed, without what makes no difference to the samples."""
    ctx = click.get_current_context()
    words = ["h5store", "pack", str(ctx.info_name)]
    for param in ctx.command.params:
        name = str(param.name)
        if name in _ASIDE or ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        for value in ctx.params[name] if param.multiple else [ctx.params[name]]:
            words += [str(value)] if isinstance(param, click.Argument) else [param.opts[0], str(value)]
    return shlex.join(words)


def _pack(out: str, source: Any, options: dict[str, Any], sources: Sequence[str]) -> None:
    """What every kind of pack does with its source; `sources` are its files and folders, as they were typed."""
    codec, chunk = codec_of(options["codec"]), chunk_of(options["chunk"])
    if options["dry_run"]:
        _say_preview(out, limited(source, options["limit"]) if options["limit"] else source, codec, chunk,
                     options["as_json"])
        return
    began = time.monotonic()
    packing.pack(out, source, progress=not options["quiet"], codec=codec, chunk=chunk,
                 provenance={"sources": list(sources), "command": _command()},
                 **{name: options[name] for name in ("resume", "overwrite", "append", "threads", "shuffle", "limit")})
    skipped = len(getattr(source, "skipped", ()))
    with Reader(out, cache=0) as reader:
        size = os.path.getsize(out)
        raw = sum(reader._store.mean_bytes(f.name) for f in reader.schema) * len(reader)
        text = f"{out}: {len(reader):,} samples, {human(size)} ({human(raw)} raw)\n{reader.schema!r}"
        if skipped:
            text += f"\n{skipped:,} files were left out, listed in {out}.skipped.csv"
        say({"path": out, "samples": len(reader), "bytes": size, "raw_bytes": raw, "skipped": skipped,
             "seconds": round(time.monotonic() - began, 3), "fields": [f.to_json() for f in reader.schema]},
            options["as_json"], text)


def _say_preview(out: str, source: Any, codec: Any, chunk: Any, as_json: bool) -> None:
    found = packing.preview(source, codec, chunk)
    sample = sum(f.nbytes for f in found.schema)
    raw = None if found.samples is None else sample * found.samples
    count = "an unknown number of" if found.samples is None else f"{found.samples:,}"
    lines = [f"{out}: would hold {count} samples of {human(sample)}"
             + ("" if raw is None else f", {human(raw)} raw") + f", codec {found.layout.codec}",
             repr(found.schema)]
    lines += [f"{f.name}: {found.layout.chunks[f.name]:,} samples a chunk, "
              f"{human(found.layout.chunks[f.name] * f.nbytes)}" for f in found.schema]
    if found.skipped:
        lines.append(f"{found.skipped:,} files would be left out")
    lines.append("Nothing was written.")
    fields = [{**f.to_json(), "chunk": found.layout.chunks[f.name]} for f in found.schema]
    say({"path": out, "samples": found.samples, "raw_bytes": raw, "codec": str(found.layout.codec),
         "block": found.layout.block, "fields": fields, "skipped": found.skipped}, as_json, "\n".join(lines))


def _roles(options: dict[str, Any], read: Callable[..., Any], **more: Any) -> dict[str, Any]:
    return {role: read(role, options[role], **more) for role in ROLES}


@pack.command()
@click.argument("out")
@role_options("FILE or NAME=FILE: X.npy, y.npz:arr_0, or X.dat:float32:-1x100x6 for a file without a header.")
@pack_options
def arrays(out: str, **options: Any) -> None:
    """Whole arrays into OUT, one file a field: .npy, .npz, or raw values.

    \b
    Example:
      h5store pack arrays train.h5 --features flux=X.npy --aux host=Z.npy --labels y.npz:arr_0
    """
    files = _roles(options, named_files)
    _pack(out, sources.arrays(**files), options, [path for of in files.values() if of for path in of.values()])


@pack.command()
@click.argument("out")
@click.argument("where")
@role_options(_KEYS)
@on_error_option
@pack_options
def samples(out: str, where: str, on_error: str, **options: Any) -> None:
    """One sample a file into OUT: a folder or a quoted glob of .npz or .npy files, in natural order.

    \b
    Example:
      h5store pack samples train.h5 'parts/*.npz' --features img --labels label
    """
    _pack(out, sources.samples(where, on_error=on_error, threads=options["threads"], **_roles(options, named_keys)),
          options, [where])


@pack.command()
@click.argument("out")
@click.argument("folder")
@click.option("--labels", metavar="FILE", help="A file with 'name label' a line, or CSV or TSV; FILE:COLUMN,COLUMN "
              "takes these columns. Without it, the folders are the classes.")
@click.option("--aux", metavar="COLUMNS", help="Columns of the labels file that are inputs too.")
@click.option("--weights", metavar="COLUMN", help="Column of the labels file that weighs samples.")
@click.option("--meta", metavar="COLUMNS", help="Columns of the labels file that only travel along.")
@click.option("--resize", metavar="HEIGHTxWIDTH", help="Resize; a single number is the length of the shorter side.")
@click.option("--crop", metavar="HEIGHTxWIDTH", help="Cut out of the middle, after resizing.")
@click.option("--mode", metavar="MODE", help="L, LA, RGB or RGBA; by default as the images are.")
@click.option("--store", type=click.Choice(["decoded", "encoded"]), default="decoded", show_default=True,
              help="Whether pixels are stored, or the files as they are, to be decoded when they are read.")
@on_error_option
@pack_options
def images(out: str, folder: str, on_error: str, **options: Any) -> None:
    """A folder of images into OUT, with a labels file or a folder a class.

    \b
    Example:
      h5store pack images train.h5 photos --labels labels.txt --resize 128x128
    """
    columns = {role: options[role] and [c.strip() for c in options[role].split(",")]
               for role in ("aux", "weights", "meta")}
    _pack(out, sources.images(folder, options["labels"], resize=options["resize"], crop=options["crop"],
                              mode=options["mode"], store=options["store"], on_error=on_error,
                              threads=options["threads"], **columns), options,
          [folder] + [options["labels"]] * bool(options["labels"]))


@pack.command()
@click.argument("out")
@click.argument("where")
@role_options("COLUMN, COLUMN,COLUMN, or NAME=COLUMN,COLUMN for one field that is a vector.")
@click.option("--dtype", multiple=True, metavar="COLUMN=DTYPE", help="As what to read a column, e.g. zip=text.")
@pack_options
def table(out: str, where: str, dtype: tuple[str, ...], **options: Any) -> None:
    """CSV or Parquet into OUT, one sample a row.

    \b
    Example:
      h5store pack table train.h5 data.csv --features x=a,b,c --labels y
    """
    roles = _roles(options, named_keys, vectors=True)
    _pack(out, sources.table(where, dtype=pairs("--dtype", dtype), **roles), options, [where])


@pack.command()
@click.argument("out")
@click.argument("file")
@role_options("Path of a dataset in FILE, or NAME=PATH.")
@pack_options
def hdf5(out: str, file: str, **options: Any) -> None:
    """Datasets of an HDF5 file into OUT, re-chunked by sample.

    \b
    Example:
      h5store pack hdf5 train.h5 theirs.h5 --features X --labels y
    """
    _pack(out, sources.hdf5(file, **_roles(options, named_keys)), options, [file])


@pack.command()
@click.argument("out")
@click.argument("where")
@role_options(_KEYS)
@click.option("--dtype", multiple=True, metavar="KEY=DTYPE", help="For bytes that are raw values, e.g. img=uint8.")
@click.option("--shape", multiple=True, metavar="KEY=SHAPE", help="Shape of a sample, e.g. img=28x28.")
@click.option("--resize", metavar="HEIGHTxWIDTH", help="Resize encoded images.")
@click.option("--mode", metavar="MODE", help="L, LA, RGB or RGBA, for encoded images.")
@pack_options
def tfrecord(out: str, where: str, dtype: tuple[str, ...], shape: tuple[str, ...], **options: Any) -> None:
    """TFRecord files of tf.train.Example into OUT.

    \b
    Example:
      h5store pack tfrecord train.h5 'shards/*.tfrecord' --features x --labels y
    """
    shapes = {key: shape_of(text) for key, text in pairs("--shape", shape).items()}
    _pack(out, sources.tfrecord(where, dtype=pairs("--dtype", dtype), shape=shapes, resize=options["resize"],
                                mode=options["mode"], **_roles(options, named_keys)), options, [where])
