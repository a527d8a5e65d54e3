"""The first noun of the card: `Writer` takes blocks of samples and seals them into a store."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from h5store.errors import JournalError, OptionError, SchemaError, StoreExistsError, StoreLockedError
from h5store.schema import ENDS_DTYPE, Schema, ends_of
from h5store.sources.block import Block
from h5store.sources.text import Vocabulary
from h5store.storage import origin
from h5store.storage.codecs import Codec
from h5store.storage.journal import Journal
from h5store.storage.layout import DEFAULT_CHUNK, FORMAT, Layout, parse_chunk
from h5store.storage.lock import WriterLock
from h5store.storage.notes import warn_left_out
from h5store.storage.opening import journal_path, store_path
from h5store.storage.pool import thread_count
from h5store.storage.sealing import Base, seal
from h5store.storage.tail import Tail

#: Samples are taken in from large arrays in pieces of this size, so that memory stays flat.
_PIECE_BYTES = 8 << 20
# Small appends share a commit: an fsync takes milliseconds. Whichever comes first; commit() waits for neither.
_COMMIT_BYTES = 32 << 20
_COMMIT_SECONDS = 1.0


class Writer:
    """Write a store: `append` blocks of samples, `commit` now and then, `close` to seal.

    Parameters
    ----------
    path : str or path-like
        The store. Nothing is there until it is sealed; until then the samples are in ``path + ".journal"``.
        A symbolic link stays one: what it points to is written.
    resume : bool
        Go on from a journal that an interrupted writer left, or from a finished store. ``len(writer)`` says
        how many samples are there already. Starts anew where there is nothing.
    overwrite : bool
        Replace what is at `path`. The old store stays whole, and is what readers see, until the new one is sealed.
    append : bool
        Add to a sealed store, or begin one. The store is rewritten beside the old one and takes its place on sealing.
    codec : {"lz4", "gzip", "zstd", None}, or "gzip:9", or ("zstd", 19)
        "lz4" (with byte shuffle) reads fastest; "zstd" makes the smallest file; "gzip" is read by tools without
        plugins. Opening with `append` or `resume` keeps the store's own.
    chunk : str or int
        Size of the chunks of the largest field, e.g. ``"128KiB"``; or samples a chunk; or ``"random"``, small
        chunks for uniformly random reading of data that no cache holds. At most 64 MiB.
    threads : int, optional
        Encoding threads; all cores by default.
    schema : Schema, optional
        The fields; taken from the first block by default.

    Raises
    ------
    StoreExistsError, StoreLockedError, OptionError, SchemaError, JournalError, FormatError

    Notes
    -----
    The same samples make the same file, byte for byte, however they were cut into appends, whatever was
    interrupted and resumed. Not safe in threads: one thread appends. A forked child cannot write. An exception
    inside the ``with`` block seals nothing and keeps the journal.
    """

    #: Who writes, kept in the journal: an unfinished `pack` may be begun anew, since it has its samples still.
    origin = "writer"
    _closed = True  # until the lock is ours, there is nothing to close

    def __init__(self, path: str | os.PathLike[str], *, resume: bool = False, overwrite: bool = False,
                 append: bool = False, codec: Any = "lz4", chunk: Any = DEFAULT_CHUNK,
                 threads: int | None = None, schema: Schema | None = None,
                 provenance: Mapping[str, Any] | None = None) -> None:
        self.path, self._pid = store_path(path), os.getpid()
        self._options = Codec.parse(codec), chunk
        parse_chunk(chunk)
        self._threads = thread_count(threads)
        self._provenance = origin.of(provenance)
        if overwrite and append:
            raise OptionError(f"{self.path}: overwrite=True and append=True exclude each other; choose one")
        layout = self._plan(schema) if schema is not None else None
        if os.path.isdir(self.path):
            raise StoreExistsError(f"{self.path}: a folder is here, expected the path of a file; write elsewhere")
        self._journal: Journal | None = None
        self._base: Base | None = None
        #: Samples of the store that is added to; 0 for a new one. Those after them come from this writer's source.
        self.base_length = 0
        self._layout: Layout | None = None
        self._tails: dict[str, Tail] = {}
        self._vocabularies: dict[str, Vocabulary] = {}
        self._totals: dict[str, int] = {}  # values of each variable-length field
        self._length = self._committed = 0
        self._torn = self._overdue = False
        self._lock = WriterLock(self.path)
        try:
            self._begin(resume, overwrite, append)
            if layout is not None:
                self._adopt(layout)
        except BaseException:
            self._release()
            raise
        self._closed = False
        self._last_commit = time.monotonic()

    # ---- beginning

    def _begin(self, resume: bool, overwrite: bool, append: bool) -> None:
        journal = journal_path(self.path)
        if os.path.exists(journal):
            if resume:
                self._journal = Journal.open(journal)
            elif not overwrite:
                anew = ("remove the journal to give them up" if os.path.exists(self.path)
                        else "begin anew with overwrite=True")
                raise StoreExistsError(
                    f"{self.path}: an unfinished store is here, its journal {journal} holds committed samples; go on "
                    f"from them with {'append=True, ' if append else ''}resume=True, or {anew}")
            if self._journal is None:
                Journal.discard(journal)
        if self._journal is not None:
            self._resume(self._journal)
        elif os.path.exists(self.path) and not overwrite:
            if not (append or resume):
                raise StoreExistsError(f"{self.path}: a file is already here; replace it with overwrite=True, add to "
                                       "it with append=True, or write elsewhere")
            self._set_base(Base(self.path))
            self.base_length = self._committed if append else 0

    def _resume(self, journal: Journal) -> None:
        header = journal.header
        if header["layout"]["format"] != FORMAT:
            raise JournalError(f"{journal.path}: is of a store of format {header['layout']['format']}, this version of "
                               f"h5store writes {FORMAT}; finish it with the version that began it")
        layout = Layout.from_json(header["layout"])
        self.base_length = header["before"]
        if header["base"] is not None:
            base = Base(self.path)
            self._set_base(base)
            if base.file.seal != header["base"]:
                if not base.made_from(journal):
                    raise JournalError(f"{self.path}: is not the store that its journal was adding to; put that store "
                                       f"back, or move {journal.path} away")
                # Sealed just before the interruption: only the journal was left to be removed.
                journal.close()
                os.unlink(journal.path)
                self._journal = None
                return
        self._build(layout)
        for name, new in journal.classes.items():
            self._vocabularies[name].extend(new)
        for name, tail in self._tails.items():
            held = journal.rows(name)
            if self._base is not None and not journal.fields[name].offsets:
                held = self._base.rows(tail.field) + held
            tail.restore(held)
        self._totals = {name: self._whole(name, journal) + self._tails[name].filled for name in self._totals}
        # A journal without a commit knows no length; what it adds to is there all the same.
        self._length = self._committed = journal.length or self._committed

    def _whole(self, name: str, journal: Journal) -> int:
        """Values of a variable-length field in whole chunks, of the base and of the journal."""
        assert self._layout is not None
        per = self._layout.chunks[name]
        before = self._base.layout.totals[name] // per if self._base is not None else 0
        return (before + len(journal.fields[name].offsets)) * per

    def _set_base(self, base: Base) -> None:
        self._base = base
        self._build(base.layout)
        for column in base.layout.columns:
            self._tails[column.name].restore(base.rows(column))
        self._totals = dict(base.layout.totals)
        self._length = self._committed = base.layout.length

    def _adopt(self, layout: Layout) -> None:
        """Take a schema, or check it against the one that is there."""
        if self._layout is None:
            self._build(layout)
        else:
            told = self._layout.schema.mismatch(layout.schema)
            if told:
                raise SchemaError(f"{self.path}: the fields differ from the store's: {told}; nothing is cast "
                                  "in silence: give the same fields, converted with .astype() if need be")

    def _plan(self, schema: Schema) -> Layout:
        return replace(Layout.plan(schema, *self._options), provenance=self._provenance)

    def _build(self, layout: Layout) -> None:
        self._layout = layout
        self._tails = {c.name: Tail(c, layout.chunks[c.name], layout.filters(c), self._threads) for c in layout.columns}
        self._totals = {f.name: 0 for f in layout.schema if f.ragged}
        self._vocabularies = {f.name: Vocabulary(f.name, f.classes or ()) for f in layout.schema if f.text}

    # ---- the card

    def __len__(self) -> int:
        """Committed samples: those that a crash cannot lose. A resumed script goes on from here."""
        return self._committed

    @property
    def schema(self) -> Schema | None:
        """The fields; None before the first block decides them."""
        return None if self._layout is None else self._layout.schema

    def append(self, *, features: Any = None, aux: Any = None, labels: Any = None, weights: Any = None,
               meta: Any = None) -> None:
        """Add a block of samples: for each role an array (n, *sample_shape), or a dict of them by field name.

        Parameters
        ----------
        features, aux, labels, weights, meta : array_like, or mapping of str to array_like
            Same n everywhere. A bare array names the field after its role. Memory maps and anything with
            shape, dtype and slicing are read piece by piece.

        Raises
        ------
        SchemaError
            Names, shapes, dtypes or lengths that differ from the store's. Nothing of the block is written.
        OSError
            The journal cannot be written, with the errno of the failed call. Nothing of the block is taken, unless
            it is larger than some MiB: then the writer must be opened again with ``resume=True``.
        """
        self._check_open()
        self.write(Block({"features": features, "aux": aux, "labels": labels, "weights": weights, "meta": meta},
                         self.schema))

    def write(self, block: Block) -> None:
        """Add a block that was checked against `schema`."""
        self._check_open()
        if self._overdue:
            self._commit()
        decides = self._layout is None
        if decides:
            self._build(self._plan(block.schema))
        try:
            self._take(block)
        except BaseException:
            if self._torn:
                self._release()  # it cannot go on; another can, from the journal
            elif decides:  # the block was refused: it has not decided the fields
                self._layout, self._tails, self._vocabularies, self._totals = None, {}, {}, {}
            raise

    def _take(self, block: Block) -> None:
        layout = self._layout
        assert layout is not None
        for name, vocabulary in self._vocabularies.items():
            vocabulary.check(block.values[name], self._length)
        step = max(1, _PIECE_BYTES // max(1, block.sample_bytes))
        step = max(1, step // layout.block) * layout.block
        for start in range(0, len(block), step):
            stop = min(start + step, len(block))
            pieces = {f.name: block.part(f.name, start, stop) for f in layout.schema if not f.ragged}
            for name, total in self._totals.items():
                made = block.ragged_part(name, start, stop)
                pieces[name], pieces[ends_of(name)] = made.values, (made.offsets[1:] + total).astype(ENDS_DTYPE)
            # Torn until the block is in with all its fields: an interruption must not commit a part of it.
            self._torn = True
            for name, samples in pieces.items():
                codes = self._vocabularies[name].codes(samples) if name in self._vocabularies else samples
                self._tails[name].add(codes)
            self._length += stop - start
            for name in self._totals:
                self._totals[name] += len(pieces[name])
            block.release()
            self._torn = stop < len(block)
            self._commit_if_due()

    def _commit_if_due(self) -> None:
        waited = time.monotonic() - self._last_commit
        if waited >= _COMMIT_SECONDS or sum(t.pending_bytes for t in self._tails.values()) >= _COMMIT_BYTES:
            try:
                self._commit()
            except OSError:
                if self._torn:
                    raise
                # The block is taken, so this append must not fail: the next call does, and takes nothing.
                self._overdue = True

    def commit(self) -> None:
        """Write what was appended to the journal; it is on disk when this returns.

        Raises
        ------
        OSError
            With the errno of the failed call. The samples are kept: make room and commit again.
        """
        self._check_open()
        self._commit()

    def _commit(self) -> None:
        self._last_commit = time.monotonic()
        if self._length == self._committed:
            return
        if self._journal is None:
            self._journal = self._start_journal()
        # An interruption between the journal and the tails would have the next commit write the same again.
        torn, self._torn = self._torn, True
        try:
            self._journal.commit(self._length, {name: tail.entry() for name, tail in self._tails.items()},
                                 {name: v.new for name, v in self._vocabularies.items()})
        except OSError:
            self._torn = torn
            raise
        for tail in self._tails.values():
            tail.committed()
        for vocabulary in self._vocabularies.values():
            vocabulary.committed()
        self._committed = self._length
        self._torn, self._overdue = torn, False

    def _start_journal(self) -> Journal:
        assert self._layout is not None
        return Journal.create(journal_path(self.path), {
            "layout": self._layout.to_json(), "fields": [c.name for c in self._layout.columns],
            "base": self._base.file.seal if self._base else None, "before": self.base_length, "origin": self.origin})

    def close(self) -> None:
        """Seal: everything that was appended becomes the store, in one step. Does nothing the second time.

        Raises
        ------
        SchemaError
            Nothing was appended and no schema given.
        OSError
            E.g. ENOSPC. The journal is kept; go on with ``resume=True``.
        """
        if self._closed and not self._torn:
            return
        self._check_open()
        try:
            if self._layout is None:
                raise SchemaError(f"{self.path}: no samples were appended, so the fields are not known; nothing was "
                                  "written. For an empty store give schema=")
            self._commit()
            if self._journal is not None or self._base is None:
                self._seal()
        finally:
            self._release()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        # The block failed: what it appended is kept for resume=True, and its own exception is the one to see.
        if not self._torn and not self._closed and self._pid == os.getpid():
            with contextlib.suppress(Exception):
                self._commit()
        self._release()

    def __del__(self) -> None:
        if not self._closed and self._pid == os.getpid():
            if self._length > (self._base.layout.length if self._base is not None else 0):
                warnings.warn(f"{self.path}: a Writer was lost without close(), so nothing was sealed; "
                              f"{self._committed:,} of {self._length:,} samples are kept for resume=True", stacklevel=2)
            self._release()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._committed:,} samples committed"
        return f"<h5store.Writer {self.path!r}, {state}>"

    def _seal(self) -> None:
        assert self._layout is not None
        orders = {name: v.sorted() for name, v in self._vocabularies.items()}
        layout = self._layout.finished(self._length, {name: classes for name, (classes, _) in orders.items()},
                                       self._totals)
        if self._base is not None:
            warn_left_out(self.path, self._base.layout.length)
        seal(self.path, layout, self._base, self._journal, self._tails,
             {name: mapping for name, (_, mapping) in orders.items()})

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise StoreLockedError(f"{self.path}: process {self._pid} holds this writer, and a forked child cannot "
                                   "write; send the samples to the parent")
        if self._torn:
            self._release()
            raise JournalError(f"{self.path}: an append was interrupted half-way, so this writer cannot go on; open it "
                               f"again with resume=True: {self._committed:,} samples are committed")
        if self._closed:
            raise ValueError(f"{self.path}: the writer is closed; open it again with append=True or resume=True")

    def _release(self) -> None:
        self._closed = True
        for held in (self._journal, self._base):
            if held is not None:
                held.close()
        self._lock.release()
