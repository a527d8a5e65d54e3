"""One call from a source to a sealed store: `pack`."""

from __future__ import annotations

import os
import warnings
from typing import Any

from h5store.errors import SourceError
from h5store.sources.base import Source, as_source
from h5store.sources.block import Block
from h5store.storage.journal import Journal
from h5store.storage.layout import DEFAULT_CHUNK
from h5store.storage.opening import journal_path, store_path
from h5store.writer import Writer


def pack(path: str | os.PathLike[str], source: Any = None, *, features: Any = None, aux: Any = None,
         labels: Any = None, weights: Any = None, meta: Any = None, progress: bool = True, resume: bool = False,
         overwrite: bool = False, append: bool = False, codec: Any = "lz4", chunk: Any = DEFAULT_CHUNK,
         threads: int | None = None) -> None:
    """Pack arrays, or a source, into a store, with a progress bar.

    Parameters
    ----------
    path : str or path-like
        The store to make.
    source : source, mapping of str to array, or iterable of dicts, optional
        Where samples come from, if the roles do not hold them. The roles then name its fields.
    features, aux, labels, weights, meta : array_like, or mapping of str to array_like; or str, or list of str
        Arrays or memory maps (n, *sample_shape), same n everywhere; a bare array names the field after its role.
        With a `source`: names of its fields.
    progress : bool
        Show a bar on standard error.
    resume : bool
        Go on from an interrupted pack of the same source: samples that are committed are skipped. A pack that was
        finished is left as it is.
    overwrite, append, codec, chunk, threads
        As for `Writer`.

    Raises
    ------
    StoreExistsError, StoreLockedError, SchemaError, SourceError, OptionError, OSError
        Before anything is made at `path`, or with all committed samples kept for ``resume=True``.
    """
    path = store_path(path)
    taken = as_source(source, {"features": features, "aux": aux, "labels": labels, "weights": weights, "meta": meta})
    anew = not (resume or overwrite or append) and _abandoned(path)
    with Writer(path, resume=resume, overwrite=overwrite or anew, append=append, codec=codec, chunk=chunk,
                threads=threads, schema=taken.schema) as writer:
        writer.origin = "pack"
        _fill(writer, taken, len(writer) - writer.base_length, progress)


def _abandoned(path: str) -> bool:
    """Whether only the journal of an earlier pack is in the way: this one has the same samples, from the start."""
    journal = journal_path(path)
    if os.path.exists(path) or not os.path.exists(journal):
        return False
    opened = Journal.open(journal, look=True)
    if opened is None:
        return True
    opened.close()
    if opened.header.get("origin") != "pack" or opened.header.get("base"):
        return False
    if opened.length:
        warnings.warn(f"{path}: packing anew; {opened.length:,} samples that an interrupted pack had committed are "
                      "packed again. With resume=True it goes on from them", stacklevel=3)
    return True


def _fill(writer: Writer, source: Source, start: int, progress: bool) -> None:
    from tqdm.auto import tqdm

    total = source.length
    if total is not None and start > total:
        raise SourceError(f"{source.name}: has {total:,} samples, but {start:,} are packed already; it is not the "
                          "source that was being packed")
    with tqdm(total=total, initial=start, unit=" samples", unit_scale=True, disable=not progress,
              desc=os.path.basename(writer.path)) as bar:
        for roles in source.blocks(start):
            block = Block(roles, writer.schema, source.name)
            writer.write(block)
            bar.update(len(block))
    if writer.schema is None:
        raise SourceError(f"{source.name}: no samples, so the fields are not known; nothing was written")
