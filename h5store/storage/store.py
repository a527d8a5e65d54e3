"""Bytes: an open store, whatever wrote it: a schema, a length, and one reader of bytes a field."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from h5store.errors import CorruptChunkError, StaleStoreError
from h5store.ragged import Ragged
from h5store.schema import Field, Schema, ends_of
from h5store.storage import handles, pool
from h5store.storage.cache import SampleCache, parse_bytes
from h5store.storage.chunks import ChunkTable
from h5store.storage.fetch import ChunkedField, FieldBytes
from h5store.storage.handles import FileSource
from h5store.storage.layout import Layout
from h5store.storage.opening import StoreFile, open_store
from h5store.storage.tasks import Pending

# Enough for most tables and label fields to be decoded once; small beside a training process.
DEFAULT_CACHE = "256MiB"
# Each is lost only to a store that is replaced within the milliseconds of opening it.
_TRIES = 10


class Store:
    """Fields of one file, ready to be read. Safe in threads and after a fork.

    Attributes
    ----------
    fingerprint : str
        Differs between files that differ.
    layout : Layout or None
        None for a file that others wrote.
    block : int
        Samples that are cheap to read together.
    """

    def __init__(self, source: FileSource, schema: Schema, length: int, block: int, fingerprint: str,
                 fields: Mapping[str, FieldBytes], cache: SampleCache, threads: int,
                 layout: Layout | None = None, stored_bytes: int | None = None) -> None:
        self.source, self.schema, self.length, self.block = source, schema, length, block
        self.fingerprint, self.layout, self.threads, self.cache = fingerprint, layout, threads, cache
        self.stored_bytes = stored_bytes
        self._fields = fields

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, cache: Any = DEFAULT_CACHE, threads: int | None = None,
             verify: bool = True) -> Store:
        """Open a store of this library's own.

        Raises
        ------
        FileNotFoundError, FormatError, OptionError
        """
        budget, count = parse_bytes(cache or 0, "cache"), pool.thread_count(threads)
        return cls.of(_held(os.fsdecode(path)), budget, count, verify)

    @classmethod
    def of(cls, file: StoreFile, budget: int, threads: int, verify: bool = True) -> Store:
        """A store that was opened already."""
        layout = file.layout
        kept = SampleCache(budget, {f.name: f.nbytes * layout.rows(f) for f in layout.columns})
        fields = {
            f.name: ChunkedField(f"{file.source.path}[{f.name!r}]", f.name, layout.rows(f), f.dtype, f.shape,
                                 table=file.tables[f.name], filters=layout.filters(f), source=file.source,
                                 cache=kept, verify=verify, of=layout.of(f))
            for f in layout.columns}
        stored = sum(int(t.sizes.sum()) for t in file.tables.values())
        return cls(file.source, layout.schema, layout.length, _block(layout), file.seal, fields, kept, threads, layout,
                   stored)

    @property
    def path(self) -> str:
        return self.source.path

    @property
    def file_bytes(self) -> int:
        """Size of the file, as it was when it was opened."""
        return self.source.identity.size

    @property
    def starts(self) -> np.ndarray | None:
        """First sample of each block, where they are not all of `block` samples."""
        return None

    def field(self, name: str) -> FieldBytes:
        """What reads the bytes of a field of fixed shape."""
        return self._fields[name]

    def table(self, name: str) -> ChunkTable:
        """The chunk table of a field of a store of this library's own."""
        return self._chunked(name).table

    def chunk_bytes(self, name: str) -> int | None:
        """Bytes that reading one sample of a field may decode; None where only libhdf5 knows."""
        field = self._fields[name]
        if not isinstance(field, ChunkedField):
            return None
        return field.table.samples * self.schema[name].nbytes

    def rows(self, column: Field) -> int:
        """Length of a column: of the values of a variable-length field, those of all samples."""
        return self.length if self.layout is None else self.layout.rows(column)

    def empty(self, names: Sequence[str], samples: int) -> dict[str, np.ndarray]:
        """An uninitialised array (samples, *shape) for each field."""
        return {n: np.empty((samples, *self._fields[n].shape), self._fields[n].dtype) for n in names}

    def ragged(self, name: str, ids: np.ndarray) -> Ragged:
        """Samples `ids` (int64, in range) of a variable-length field.

        Raises
        ------
        CorruptChunkError
            A chunk's sum differs, or where the samples end makes no sense.
        """
        lo, hi = self._edges(name, ids)
        out = self.empty([name], int((hi - lo).sum()))
        # In the order of the file, so that no chunk is decoded twice.
        order = np.argsort(lo, kind="stable")
        if (order[1:] > order[:-1]).all():
            self.runs(np.stack([lo, hi], axis=1), out).result()
            return Ragged.of(out[name], hi - lo)
        self.runs(np.stack([lo, hi], axis=1)[order], out).result()
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return Ragged.of(out[name], (hi - lo)[order]).take(back)

    def lengths(self, name: str, ids: np.ndarray) -> np.ndarray:
        """Lengths of the samples `ids` of a variable-length field, int64."""
        lo, hi = self._edges(name, ids)
        return hi - lo

    def _edges(self, name: str, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where samples begin and end among the values of their field, int64."""
        ends = ends_of(name)
        edges = np.zeros((2, len(ids)), np.uint64)
        some = ids > 0
        before = np.zeros(int(some.sum()), np.uint64)
        self.gather(ids, {ends: edges[1]}).result()
        self.gather(ids[some] - 1, {ends: before}).result()
        edges[0, some] = before
        total = self._values(name)
        if (edges[0] > edges[1]).any() or edges[1].max(initial=0) > total:
            raise CorruptChunkError(f"{self.path}[{name!r}]: where its samples end does not fit its {total:,} values; "
                                    f"the file is damaged, run 'h5store verify {self.path}'")
        lo, hi = edges.astype(np.int64)
        return lo, hi

    def mean_bytes(self, name: str) -> int:
        """Decoded bytes of a sample of a field, on average if they differ."""
        field = self.schema[name]
        if not field.ragged:
            return field.nbytes
        return -(-field.nbytes * self._values(name) // max(1, self.length))

    def _values(self, name: str) -> int:
        """Rows of values of a variable-length field, of all samples."""
        assert self.layout is not None
        return self.layout.totals.get(name, 0)

    def gather(self, ids: np.ndarray, out: Mapping[str, np.ndarray], *, ahead: bool = False) -> Pending:
        """Begin to read samples `ids` (int64, in range) into the arrays of `out`, by field name."""
        ascending, order = None, None
        parts = []
        for name, array in out.items():
            if self.resident(name):  # an array, of which any order is as good
                parts.append(self._fields[name].gather(ids, array))
                continue
            if ascending is None:
                if (ids[1:] < ids[:-1]).any():
                    order = np.argsort(ids)
                ascending = ids if order is None else ids[order]
            parts.append(self._fields[name].gather(ascending, array, order))
        return Pending(parts, self.threads, ahead=ahead)

    def runs(self, ranges: np.ndarray, out: Mapping[str, np.ndarray]) -> Pending:
        """Begin to read runs [lo, hi) of samples, shape (k, 2), one after the other into the arrays of `out`."""
        return Pending([self._fields[name].runs(ranges, array) for name, array in out.items()], self.threads)

    def window(self, ranges: np.ndarray, to: np.ndarray | None, ids: Callable[[], np.ndarray],
               out: Mapping[str, np.ndarray]) -> Pending:
        """Begin to read runs of samples ahead, into the rows `to` of the arrays of `out`; -1: left out.

        `ids` gives the same samples in the order of the rows: what the cache holds is quickest taken so.
        """
        order = None
        parts = []
        for name, array in out.items():
            if self.resident(name):
                order = ids() if order is None else order
                parts.append(self._fields[name].gather(order, array))
            else:
                parts.append(self._fields[name].runs(ranges, array, to))
        return Pending(parts, self.threads, ahead=True)

    def resident(self, name: str) -> bool:
        """Whether the cache keeps a field whole, so that it is decoded once."""
        field = self._fields[name]
        return isinstance(field, ChunkedField) and field.resident

    def _chunked(self, name: str) -> ChunkedField:
        field = self._fields[name]
        assert isinstance(field, ChunkedField)
        return field

    def renew(self) -> None:
        """Go on with the file that is at the path now: the same samples, after a note was added.

        Raises
        ------
        StaleStoreError
            It holds other samples.
        """
        fresh = _held(self.path)
        if fresh.seal != self.fingerprint:
            raise StaleStoreError(f"{self.path}: another store is at this path now; make a new Reader")
        handles.drop(self.source)
        for field in self._fields.values():
            assert isinstance(field, ChunkedField)
            field.chunks.source = fresh.source  # the seal is over the chunk table too: every chunk lies where it lay
        self.source = fresh.source

    def uncached(self) -> Store:
        """The same open file, of which nothing is kept that was decoded: for one pass over more than memory holds."""
        same = copy.copy(self)
        same.cache = SampleCache(0, {})
        same._fields = {name: copy.copy(field) for name, field in self._fields.items()}
        for field in same._fields.values():
            if isinstance(field, ChunkedField):
                field.cache = same.cache
        return same

    def close(self) -> None:
        """Let go of the file and of what is cached. The store opens them again when it is read."""
        for field in self._fields.values():
            field.close()
        handles.drop(self.source)
        self.cache.clear()


def _block(layout: Layout) -> int:
    """Samples that are cheap to read together: of variable-length fields, as many as fill a chunk of the largest."""
    most = [layout.length * layout.chunks[f.name] // max(1, layout.rows(f.columns[0]))
            for f in layout.schema if f.ragged]
    return layout.block * max(1, min(most, default=0) // layout.block)


def _held(path: str) -> StoreFile:
    """An open store and a handle on the same file, also while writers put one store after the other at its path."""
    for _ in range(_TRIES - 1):
        file = open_store(path)
        with contextlib.suppress(StaleStoreError):
            file.source.hold()
            return file
    file = open_store(path)
    file.source.hold()
    return file
