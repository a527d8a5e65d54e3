"""Bytes: a store that is still being written, as far as it is committed. Reads the journal, and changes nothing.

The writer's lock is not taken and no file is written to, so that watching disturbs nobody. A journal holds whole
chunks, then the raw samples beyond them; a store that is added to holds what was there before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from h5store.errors import FormatError, JournalError, StaleStoreError
from h5store.schema import Field
from h5store.storage import opening, pool
from h5store.storage.cache import SampleCache, parse_bytes
from h5store.storage.chunks import ChunkTable
from h5store.storage.fetch import ChunkedField, FieldBytes, HeldField
from h5store.storage.handles import FileSource, Identity
from h5store.storage.joined import JoinedField
from h5store.storage.journal import FieldLog, Journal
from h5store.storage.layout import Layout
from h5store.storage.store import Store
from h5store.storage.validate import StoreFile

# A frame that is being completed at that moment may look damaged; it does not twice.
_TRIES = 5


@dataclass(frozen=True)
class JournalSource(FileSource):
    """A journal as a source of bytes. It grows, so it is known by its inode, and is kept open until `close`."""

    _open: list[int] = field(default_factory=list, compare=False)

    @contextmanager
    def lease(self) -> Iterator[int]:
        if not self._open:
            self._open.append(self._again())
        yield self._open[0]

    def _again(self) -> int:
        gone = (f"{self.path}: the journal is gone since this reader was made: the store was sealed or begun anew; "
                "make a new Reader, or refresh() this one")
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise StaleStoreError(gone) from None
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) != (self.identity.device, self.identity.inode):
            os.close(fd)
            raise StaleStoreError(gone)
        return fd

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())

    def __del__(self) -> None:
        self.close()


class GrowingStore(Store):
    """What is committed of a store, as it was when it was opened."""

    _journal: JournalSource
    _kept: SampleCache
    _where: str

    @property
    def path(self) -> str:
        return self._where

    def close(self) -> None:
        super().close()
        self._kept.clear()
        self._journal.close()


def open_growing(path: str | os.PathLike[str], *, cache: Any, threads: int | None, verify: bool) -> Store:
    """What is committed of a store that is being written; the sealed store, if nobody writes.

    Raises
    ------
    FileNotFoundError
        There is neither a journal nor a store.
    FormatError
        The writer has not committed anything yet.
    JournalError
        The journal is damaged.
    """
    where = opening.store_path(path)
    budget, count = parse_bytes(cache or 0, "cache"), pool.thread_count(threads)
    for left in reversed(range(_TRIES)):
        try:
            journal = Journal.open(opening.journal_path(where), look=True)
        except FileNotFoundError:  # sealed, or never begun
            return Store.open(path, cache=cache, threads=threads, verify=verify)
        except JournalError:
            if left:
                continue
            raise
        if journal is None:
            raise FormatError(f"{where}: its writer has not committed any samples yet; try again later")
        try:
            return _store(where, journal, budget, count, verify)
        except StaleStoreError:
            if not left:
                raise
        finally:
            journal.close()
    raise AssertionError("unreachable")


def _store(where: str, journal: Journal, budget: int, threads: int, verify: bool) -> GrowingStore:
    found = os.stat(journal.path) if os.path.exists(journal.path) else None
    if found is None or not os.path.samestat(found, os.fstat(journal.fileno())):
        raise StaleStoreError(f"{where}: was sealed or begun anew while it was opened; try again")
    source = JournalSource(journal.path, Identity.of(found))
    layout = Layout.from_json(journal.header["layout"])
    base = opening.open_store(where) if journal.header["base"] is not None else None
    if base is not None and base.seal != journal.header["base"]:
        raise StaleStoreError(f"{where}: was sealed while it was opened; try again")
    length = journal.length or (base.layout.length if base is not None else 0)
    classes = {f.name: (*(f.classes or ()), *journal.classes.get(f.name, ())) for f in layout.schema if f.text}
    # Nothing is kept whole: it grows. Chunks of the two files have the same numbers, so each has a cache of its own.
    kept = SampleCache(budget // 2, {}), SampleCache(budget // 2, {})
    fields = {c.name: _column(layout, c, journal, source, base, kept, verify) for c in layout.columns}
    layout = layout.finished(length, classes, {f.name: fields[f.name].samples for f in layout.schema if f.ragged})
    seal = base.seal if base is not None else ""
    store = GrowingStore(base.source if base is not None else source, layout.schema, length, layout.block,
                         f"{seal}@{found.st_dev}:{found.st_ino}", fields, kept[0], threads, layout)
    store._journal, store._kept, store._where = source, kept[1], where
    source.hold()
    if base is not None:
        base.source.hold()
    return store


def _column(layout: Layout, f: Field, journal: Journal, source: JournalSource, base: StoreFile | None,
            kept: tuple[SampleCache, SampleCache], verify: bool) -> JoinedField:
    per, log = layout.chunks[f.name], journal.fields[f.name]
    parts: list[tuple[int, FieldBytes]] = []

    def chunked(table: ChunkTable, of: FileSource, samples: int, cache: SampleCache) -> ChunkedField:
        return ChunkedField(f"{of.path}[{f.name!r}]", f.name, samples, f.dtype, f.shape, table=table,
                            filters=layout.filters(f), source=of, cache=cache, verify=verify, of=layout.of(f))

    if base is not None:
        # Of the store that is added to, the last chunk counts until the journal has it filled up.
        there = base.layout.rows(f)
        before = there // per * per if log.offsets else there
        if before:
            parts.append((before, chunked(base.tables[f.name], base.source, there, kept[0])))
    if log.offsets:
        parts.append((len(log.offsets) * per, chunked(_table(per, log), source, len(log.offsets) * per, kept[1])))
    rows = np.frombuffer(journal.rows(f.name), f.dtype).reshape(-1, *f.shape)
    parts.append((len(rows), HeldField(f.name, rows)))
    return JoinedField(f, parts)


def _table(per: int, log: FieldLog) -> ChunkTable:
    return ChunkTable(per, *(np.array(column, np.uint64) for column in (log.offsets, log.sizes, log.sums)))
