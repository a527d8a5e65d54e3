"""One call from a source to a sealed store: `pack`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from h5store.errors import JournalError, SourceError, StoreExistsError
from h5store.schema import Schema
from h5store.sources.base import Source, as_source
from h5store.sources.block import Block
from h5store.sources.files import write_skipped
from h5store.sources.hdf5 import StoreSource
from h5store.sources.order import Shuffled, limited, scattered
from h5store.storage.codecs import Codec
from h5store.storage.journal import Journal
from h5store.storage.layout import DEFAULT_CHUNK, Layout, parse_chunk
from h5store.storage.opening import journal_path, store_path
from h5store.storage.store import Store
from h5store.writer import Writer


def pack(path: str | os.PathLike[str], source: Any = None, *, features: Any = None, aux: Any = None,
         labels: Any = None, weights: Any = None, meta: Any = None, progress: bool = True, resume: bool = False,
         overwrite: bool = False, append: bool = False, codec: Any = "lz4", chunk: Any = DEFAULT_CHUNK,
         threads: int | None = None, shuffle: int | None = None, limit: int | None = None,
         provenance: Mapping[str, Any] | None = None) -> None:
    """Pack arrays, or a source, into a store, with a progress bar.

    Parameters
    ----------
    path : str or path-like
        The store to make.
    source : source, mapping of str to array, or iterable of dicts, optional
        Where samples come from, if the roles do not hold them: one of `h5store.sources`; or arrays by name or an
        iterable of dicts, whose fields the roles then name.
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
    shuffle : int, optional
        A seed: samples are stored in a random order, and where each was in the source is in the meta field
        ``source_index``. Memory stays bounded. What can only be read in order (generators, compressed .npz, tables) is
        packed in order first, into ``path + ".unshuffled"``, which is removed at the end.
    limit : int, optional
        Pack the first samples only; of a folder of files, those of the first files.
    provenance
        As for `Writer`.

    Raises
    ------
    StoreExistsError, StoreLockedError, SchemaError, SourceError, OptionError, OSError
        Before anything is made at `path`, or with all committed samples kept for ``resume=True``.

    Notes
    -----
    Files that a source was told to skip are listed in ``path + ".skipped.csv"``.
    """
    path = store_path(path)
    Codec.parse(codec), parse_chunk(chunk)  # before any sample is read
    taken = as_source(source, {"features": features, "aux": aux, "labels": labels, "weights": weights, "meta": meta})
    if os.path.isdir(path):
        raise StoreExistsError(f"{path}: a folder is here, expected the path of a file; write elsewhere")
    if os.path.exists(path) and not (resume or overwrite or append):
        raise StoreExistsError(f"{path}: a file is already here; replace it with overwrite=True, add to it with "
                               "append=True, or write elsewhere")
    if limit is not None:
        taken = limited(taken, limit)
    if shuffle is not None:
        if resume and os.path.exists(path) and not os.path.exists(journal_path(path)):
            return  # finished; what its order was made from is gone
        taken = _shuffled(taken, path, shuffle, progress, resume, threads)
    if hasattr(taken, "prepare"):
        taken.prepare(progress)
    origin = "pack" if shuffle is None else f"pack, shuffle={shuffle} of {taken.length} samples"
    if resume:
        _check_origin(path, origin)
    anew = not (resume or overwrite or append) and _abandoned(path)
    # What is added to a store is checked block by block: that names the sample and the value that do not fit.
    begun = (append or resume) and (os.path.exists(path) or os.path.exists(journal_path(path)))
    schema = None if begun else taken.schema
    try:
        with Writer(path, resume=resume, overwrite=overwrite or anew, append=append, codec=codec, chunk=chunk,
                    threads=threads, schema=schema, provenance=provenance) as writer:
            writer.origin = origin
            _fill(writer, taken, len(writer) - writer.base_length, progress)
    finally:
        _list_skipped(path, taken)
    if shuffle is not None and os.path.exists(_unshuffled(path)):
        os.unlink(_unshuffled(path))


def _unshuffled(path: str) -> str:
    return f"{path}.unshuffled"


def _shuffled(source: Source, path: str, seed: int, progress: bool, resume: bool, threads: int | None) -> Shuffled:
    """The source in random order; packed in its own order first if it cannot be read in any other."""
    if not scattered(source):
        aside = _unshuffled(path)
        if not (resume and os.path.exists(aside)):
            pack(aside, source, progress=progress, resume=resume, overwrite=not resume, threads=threads)
        source = StoreSource(Store.open(aside, cache=0, threads=threads), source.name)
    return Shuffled(source, seed)


def _check_origin(path: str, origin: str) -> None:
    """A pack goes on in the order in which it was begun, or the file would hold some samples twice."""
    journal = journal_path(path)
    opened = Journal.open(journal, look=True) if os.path.exists(journal) else None
    if opened is not None:
        opened.close()
        there = str(opened.header.get("origin"))
        if there.startswith("pack") and there != origin:
            raise JournalError(f"{path}: was begun by {there}, and this is {origin}; go on with the same, or begin "
                               "anew with overwrite=True")


def _list_skipped(path: str, source: Any) -> None:
    listed = f"{path}.skipped.csv"
    if getattr(source, "skipped", None):
        write_skipped(listed, source.skipped)
    elif os.path.exists(listed):
        os.unlink(listed)


@dataclass(frozen=True)
class Preview:
    """What `pack` would make of a source.

    Attributes
    ----------
    samples : int or None
        None where only reading the source tells.
    layout : Layout
        Fields, chunks and codec.
    skipped : int
        Files that would be left out, as far as looking at them tells.
    """

    samples: int | None
    layout: Layout
    skipped: int

    @property
    def schema(self) -> Schema:
        return self.layout.schema


def preview(source: Source, codec: Any = "lz4", chunk: Any = DEFAULT_CHUNK) -> Preview:
    """What `pack` would make of a source. Reads no more of it than tells its fields.

    Raises
    ------
    SourceError, SchemaError, OptionError
    """
    Codec.parse(codec), parse_chunk(chunk)
    schema = source.schema
    if schema is None:
        first = next(iter(source.blocks()), None)
        if first is None:
            raise _nothing(source)
        schema = Block(first, None, source.name).schema
    return Preview(source.length, Layout.plan(schema, codec, chunk), len(getattr(source, "skipped", ())))


def _nothing(source: Source) -> SourceError:
    return SourceError(f"{source.name}: no samples, so the fields are not known; nothing was written")


def _abandoned(path: str) -> bool:
    """Whether only the journal of an earlier pack is in the way: this one has the same samples, from the start."""
    journal = journal_path(path)
    if os.path.exists(path) or not os.path.exists(journal):
        return False
    opened = Journal.open(journal, look=True)
    if opened is None:
        return True
    opened.close()
    if not str(opened.header.get("origin")).startswith("pack") or opened.header.get("base"):
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
                          "source that was being packed: go on with that, or begin anew with overwrite=True")
    with tqdm(total=total, initial=start, unit=" samples", unit_scale=True, disable=not progress,
              desc=os.path.basename(writer.path)) as bar:
        blocks = source.blocks(start)
        try:
            for roles in blocks:
                block = Block(roles, writer.schema, source.name)
                writer.write(block)
                bar.update(len(block))
        finally:
            if hasattr(blocks, "close"):
                blocks.close()  # a generator lets go of its files now, not when its traceback is forgotten
    if writer.schema is None:
        raise _nothing(source)
