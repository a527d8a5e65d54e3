"""Bytes: samples of one field into the caller's array. Reads positionally, checks, decodes; all in the pool.

A read is planned first (which chunks, which samples of them, where they go), then done in slices, one task
a thread. Tasks write to places of their own and never wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from h5store.errors import CorruptChunkError
from h5store.storage import codecs, pool
from h5store.storage.cache import SampleCache
from h5store.storage.chunks import ChunkTable, checksum
from h5store.storage.handles import FileSource

#: Below this many decoded bytes a second task costs more than it saves.
_WORTH_A_TASK = 256 * 1024


@dataclass
class Tasks:
    """What is still to be done for a read: in the pool, and then in the thread that waits."""

    work: list[Callable[[], None]] = field(default_factory=list)
    finish: list[Callable[[], None]] = field(default_factory=list)


class FieldBytes(Protocol):
    """One field of an open file: the fast way below, or libhdf5 in `h5store.storage.foreign`."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    def gather(self, ids: np.ndarray, out: np.ndarray, threads: int) -> Tasks: ...

    def runs(self, ranges: np.ndarray, out: np.ndarray, threads: int) -> Tasks: ...


class Pending:
    """A read that is under way. `result` waits for it; an error leaves nothing writing behind it."""

    def __init__(self, parts: Sequence[Tasks]) -> None:
        self._finish = [f for part in parts for f in part.finish]
        self._futures: list[Future[Any]] = [pool.submit(task) for part in parts for task in part.work]

    def result(self) -> None:
        pool.wait(self._futures)
        for step in self._finish:
            step()
        self._futures, self._finish = [], []

    def cancel(self) -> None:
        """Give the read up; returns when no task writes any more."""
        for future in self._futures:
            future.cancel()
        for future in self._futures:
            if not future.cancelled():
                future.exception()


_local = threading.local()


def _buffer(size: int) -> np.ndarray:
    """Room for stored bytes, this thread's own and used again."""
    have: np.ndarray | None = getattr(_local, "stored", None)
    if have is None or have.nbytes < size:
        have = _local.stored = np.empty(max(size, 1 << 16), np.uint8)
    return have[:size]


class ChunkedField:
    """A field whose chunks hold whole samples in a file that `FileSource` names.

    Parameters
    ----------
    label : str
        For errors, e.g. ``train.h5['flux']``.
    stored : dtype
        As in the file; samples come in native byte order.
    verify : bool
        Check the sum of every chunk that is read.
    """

    def __init__(self, label: str, name: str, samples: int, stored: np.dtype, shape: tuple[int, ...], *,
                 table: ChunkTable, filters: codecs.Filters, source: FileSource, cache: SampleCache,
                 verify: bool) -> None:
        self.label, self.name, self.samples = label, name, samples
        self.stored, self.dtype, self.shape = stored, stored.newbyteorder("="), shape
        self.table, self.filters, self.source, self.cache = table, filters, source, cache
        self.verify = verify and table.sums is not None
        self._chunk_shape = (table.samples, *shape)
        self._chunk_bytes = int(np.prod(self._chunk_shape, dtype=np.int64)) * stored.itemsize
        self._native = stored.isnative

    # ---- planning

    def gather(self, ids: np.ndarray, out: np.ndarray, threads: int) -> Tasks:
        """Samples `ids` (int64, in range, any order) into `out` (len(ids), *shape)."""
        chunk = ids // self.table.samples
        if self.cache.whole(self.name):
            kept, missing = self._kept(chunk)
            finish = [lambda: _take(kept, ids, out)]
            return Tasks(self._sliced(missing, self._fill, threads), finish)
        order = None
        if len(ids) > 1 and (chunk[1:] < chunk[:-1]).any():
            order = np.argsort(chunk, kind="stable")
            chunk, ids = chunk[order], ids[order]
        edges = np.flatnonzero(chunk[1:] != chunk[:-1]) + 1
        starts = np.concatenate(([0], edges, [len(ids)])) if len(ids) else np.zeros(1, np.int64)
        local = ids - chunk * self.table.samples

        def work(groups: np.ndarray) -> None:
            self._gather(groups, starts, chunk, local, order, out)

        return Tasks(self._sliced(np.arange(len(starts) - 1), work, threads))

    def runs(self, ranges: np.ndarray, out: np.ndarray, threads: int) -> Tasks:
        """Samples of the runs [lo, hi) in `ranges` (k, 2), one after the other, into `out`."""
        lo, hi = ranges[:, 0], ranges[:, 1]
        per = self.table.samples
        place = np.cumsum(hi - lo) - (hi - lo)
        first, count = lo // per, np.where(hi > lo, (hi - 1) // per - lo // per + 1, 0)
        run = np.repeat(np.arange(len(lo)), count)
        chunk = first[run] + np.arange(len(run)) - np.repeat(np.cumsum(count) - count, count)
        start = np.maximum(lo[run], chunk * per)
        stop = np.minimum(hi[run], (chunk + 1) * per)
        to = place[run] + start - lo[run]
        pieces = np.stack([chunk, start - chunk * per, stop - chunk * per, to], axis=1)
        if self.cache.whole(self.name):
            kept, missing = self._kept(chunk)
            finish = [lambda: _copy_runs(kept, lo.tolist(), hi.tolist(), place.tolist(), out)]
            return Tasks(self._sliced(missing, self._fill, threads), finish)
        return Tasks(self._sliced(pieces, lambda part: self._copy_pieces(part, out), threads))

    def _kept(self, chunk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        kept, have = self.cache.array(self.name, (self.samples, *self.shape), self.dtype, len(self.table))
        if have.all():
            return kept, chunk[:0]
        wanted = np.unique(chunk)
        return kept, wanted[~have[wanted]]

    def _sliced(self, items: np.ndarray, work: Callable[[np.ndarray], None], threads: int
                ) -> list[Callable[[], None]]:
        if not len(items):
            return []
        slices = max(1, min(threads, len(items), len(items) * self._chunk_bytes // _WORTH_A_TASK))
        return [lambda part=part: work(part) for part in np.array_split(items, slices)]  # type: ignore[misc]

    # ---- doing

    def _gather(self, groups: np.ndarray, starts: np.ndarray, chunk: np.ndarray, local: np.ndarray,
                order: np.ndarray | None, out: np.ndarray) -> None:
        first, last = int(groups[0]), int(groups[-1]) + 1
        begin = starts[first:last + 1].tolist()
        numbers = chunk[starts[first:last]].tolist()
        with self.source.lease() as fd:
            for number, s, e in zip(numbers, begin[:-1], begin[1:]):
                block = self._decoded(fd, number)
                if order is None:
                    np.take(block, local[s:e], axis=0, out=out[s:e], mode="clip")
                else:
                    out[order[s:e]] = block[local[s:e]]

    def _copy_pieces(self, pieces: np.ndarray, out: np.ndarray) -> None:
        per, have, block = self.table.samples, -1, None
        with self.source.lease() as fd:
            for chunk, start, stop, to in pieces.tolist():
                target = out[to:to + stop - start]
                if stop - start == per and self._native and chunk != have and not self._may_keep:
                    self._decode(fd, chunk, target.reshape(-1).view(np.uint8))
                    continue
                if chunk != have or block is None:
                    have, block = chunk, self._decoded(fd, chunk)
                target[...] = block[start:stop]

    def _fill(self, chunks: np.ndarray) -> None:
        """Decode chunks into the array that keeps the whole field. Twice the same chunk writes the same bytes."""
        kept, have = self.cache.array(self.name, (self.samples, *self.shape), self.dtype, len(self.table))
        per = self.table.samples
        with self.source.lease() as fd:
            for chunk in chunks.tolist():
                target = kept[chunk * per:(chunk + 1) * per]
                if len(target) == per and self._native:
                    self._decode(fd, chunk, target.reshape(-1).view(np.uint8))
                else:
                    target[...] = self._decode_scratch(fd, chunk)[:len(target)]
                have[chunk] = True

    @property
    def _may_keep(self) -> bool:
        return self.cache.holds_chunks_of(self._chunk_bytes)

    def _decoded(self, fd: int, chunk: int) -> np.ndarray:
        """A chunk to read from at once: this thread's scratch, or one that the cache keeps."""
        if not self._may_keep:
            return self._decode_scratch(fd, chunk)
        found = self.cache.get(self.name, chunk)
        if found is None:
            found = np.empty(self._chunk_shape, self.stored)
            self._decode(fd, chunk, found.reshape(-1).view(np.uint8))
            self.cache.put(self.name, chunk, found)
        return found

    def _decode_scratch(self, fd: int, chunk: int) -> np.ndarray:
        have: np.ndarray | None = getattr(_local, "chunk", None)
        if have is None or have.nbytes < self._chunk_bytes:
            have = _local.chunk = np.empty(self._chunk_bytes, np.uint8)
        flat = have[:self._chunk_bytes]
        self._decode(fd, chunk, flat)
        return flat.view(self.stored).reshape(self._chunk_shape)

    def _decode(self, fd: int, chunk: int, out: np.ndarray) -> None:
        table = self.table
        size, offset = int(table.sizes[chunk]), int(table.offsets[chunk])
        direct = not self.filters and size == self._plain_bytes(chunk)
        stored = out[:size] if direct else _buffer(size)
        self.source.read_into(fd, offset, memoryview(stored))  # type: ignore[arg-type]
        if self.verify and checksum(stored) != table.sums[chunk]:  # type: ignore[index]
            raise CorruptChunkError(f"{self._where(chunk)}: checksum differs; the file is damaged, run "
                                    f"'h5store verify {self.source.path}'")
        if direct:
            return
        filters = self.filters if table.masks is None else codecs.masked(self.filters, int(table.masks[chunk]))
        try:
            codecs.decode(filters, stored, out)
        except codecs.DecodeError as error:
            raise CorruptChunkError(f"{self._where(chunk)}: {error}; the file is damaged or was not written by "
                                    f"h5store, run 'h5store verify {self.source.path}'") from error

    def _plain_bytes(self, chunk: int) -> int:
        """Bytes of a chunk stored without filters; only a dataset without chunks ends in a shorter piece."""
        if self.table.sums is not None:
            return self._chunk_bytes
        samples = min(self.table.samples, self.samples - chunk * self.table.samples)
        return samples * (self._chunk_bytes // self.table.samples)

    def _where(self, chunk: int) -> str:
        first = chunk * self.table.samples
        last = min(first + self.table.samples, self.samples) - 1
        return f"{self.label} chunk {chunk} (samples {first}-{last})"


def _take(kept: np.ndarray, ids: np.ndarray, out: np.ndarray) -> None:
    # mode: the ids are checked already, and "raise" would go through a buffer.
    np.take(kept, ids, axis=0, out=out, mode="clip")


def _copy_runs(kept: np.ndarray, lo: list[int], hi: list[int], place: list[int], out: np.ndarray) -> None:
    for a, b, to in zip(lo, hi, place):
        out[to:to + b - a] = kept[a:b]


def stored_chunk(source: FileSource, table: ChunkTable, chunk: int, where: str) -> bytes:
    """The stored bytes of a chunk, checked, not decoded.

    Raises
    ------
    CorruptChunkError
    """
    stored = bytearray(int(table.sizes[chunk]))
    with source.lease() as fd:
        source.read_into(fd, int(table.offsets[chunk]), memoryview(stored))
    if table.sums is not None and checksum(stored) != table.sums[chunk]:
        raise CorruptChunkError(f"{where}: checksum differs; the file is damaged, run 'h5store verify {source.path}'")
    return bytes(stored)
