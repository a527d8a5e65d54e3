"""Bytes: samples of one field into the caller's array. Reads positionally, checks, decodes; all in the pool.

A read is planned first (which chunks, which samples of them, where they go), then done in slices, one task
a thread. Tasks write to places of their own and never wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from h5store.storage import codecs
from h5store.storage.cache import SampleCache
from h5store.storage.chunks import ChunkTable
from h5store.storage.copying import Chunks
from h5store.storage.handles import FileSource
from h5store.storage.tasks import Task, Tasks

#: Decoded bytes of one task: enough to be worth the handing over, little enough to share out evenly.
_TASK_BYTES = 1 << 20
# Chunks up to this size are done in a few microseconds each: threads would only wait for each other.
_BRIEF_BYTES = 32 * 1024


class FieldBytes(Protocol):
    """One field of an open file: the fast way below, or libhdf5 in `h5store.storage.foreign`."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    def gather(self, ids: np.ndarray, out: np.ndarray, to: np.ndarray | None = None) -> Tasks:
        """Samples `ids` (int64, in range, ascending) into the rows `to` of `out`; in order where that is None."""
        ...

    def runs(self, ranges: np.ndarray, out: np.ndarray, to: np.ndarray | None = None) -> Tasks:
        """Samples of the runs [lo, hi) in `ranges` (k, 2), one after the other, likewise. A row of -1 is left out."""
        ...

    def close(self) -> None:
        """Let go of what this field alone holds; reading opens it again."""
        ...


class HeldField:
    """A field whose samples are in memory.

    Parameters
    ----------
    rows : ndarray, shape (samples, *shape)
    """

    def __init__(self, name: str, rows: np.ndarray) -> None:
        self.name, self.dtype, self.shape, self._rows = name, rows.dtype, rows.shape[1:], rows

    def gather(self, ids: np.ndarray, out: np.ndarray, to: np.ndarray | None = None) -> Tasks:
        def put() -> None:
            out[slice(None) if to is None else to] = self._rows[ids]

        return Tasks([put])

    def runs(self, ranges: np.ndarray, out: np.ndarray, to: np.ndarray | None = None) -> Tasks:
        ids, to = expand(ranges, to)
        return self.gather(ids, out, to)

    def close(self) -> None:
        pass


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
    of : str
        What `samples` counts, for errors: of a variable-length field, values.
    """

    def __init__(self, label: str, name: str, samples: int, stored: np.dtype, shape: tuple[int, ...], *,
                 table: ChunkTable, filters: codecs.Filters, source: FileSource, cache: SampleCache,
                 verify: bool, of: str = "samples") -> None:
        self.name, self.samples = name, samples
        self.stored, self.dtype, self.shape = stored, stored.newbyteorder("="), shape
        self.table, self.cache = table, cache
        self.chunks = Chunks(label, name, samples, stored, shape, table=table, filters=filters, source=source,
                             verify=verify, of=of)

    # ---- planning

    def gather(self, ids: np.ndarray, out: np.ndarray, to: np.ndarray | None = None) -> Tasks:
        chunk = ids // self.table.samples
        if self.resident:
            array, filled = self._kept()
            return Tasks(self._missing(array, filled, chunk), self._takes(array, ids, out, to))
        edges = np.flatnonzero(chunk[1:] != chunk[:-1]) + 1
        starts = np.concatenate(([0], edges, [len(ids)])) if len(ids) else np.zeros(1, np.int64)
        local = ids - chunk * self.table.samples
        pieces = self.chunks.pieces(chunk[starts[:-1]], starts[:-1], starts[1:], starts[:-1])
        cache = self.cache if self.cache.holds_chunks_of(self.chunks.nbytes) else None
        return Tasks(self._sliced(pieces, lambda part: self.chunks.copy(part, local, to, out, cache)),
                     brief=self.chunks.nbytes < _BRIEF_BYTES)

    def runs(self, ranges: np.ndarray, out: np.ndarray, to: np.ndarray | None = None) -> Tasks:
        if self.resident:
            ids, to = expand(ranges, to)
            return self.gather(ids, out, to)
        lo, hi = ranges[:, 0], ranges[:, 1]
        per = self.table.samples
        place = np.cumsum(hi - lo) - (hi - lo)
        first, count = lo // per, np.where(hi > lo, (hi - 1) // per - lo // per + 1, 0)
        run = np.repeat(np.arange(len(lo)), count)
        chunk = first[run] + np.arange(len(run)) - np.repeat(np.cumsum(count) - count, count)
        start = np.maximum(lo[run], chunk * per)
        stop = np.minimum(hi[run], (chunk + 1) * per)
        at = place[run] + start - lo[run]
        pieces = self.chunks.pieces(chunk, start - chunk * per, stop - chunk * per, at)
        return Tasks(self._sliced(pieces, lambda part: self.chunks.copy(part, None, to, out)))

    @property
    def resident(self) -> bool:
        """Whether the cache keeps this field as one array, filled chunk by chunk."""
        return self.cache.whole(self.name)

    def _kept(self) -> tuple[np.ndarray, np.ndarray]:
        # A read asks once: another thread may empty the cache at any time, and then this pair is the read's own.
        return self.cache.array(self.name, (self.samples, *self.shape), self.dtype, len(self.table))

    def _missing(self, array: np.ndarray, filled: np.ndarray, chunk: np.ndarray) -> list[Task]:
        """Tasks that decode those of these chunks that are not in the array yet."""
        if filled.all():
            return []
        wanted = np.zeros(len(filled), bool)
        wanted[chunk] = True
        return self._sliced(np.flatnonzero(wanted & ~filled), lambda part: self._fill(array, filled, part))

    def _takes(self, array: np.ndarray, ids: np.ndarray, out: np.ndarray, to: np.ndarray | None) -> list[Task]:
        def take(part: slice) -> None:
            if to is None:
                # mode: the ids are checked already, and "raise" would go through a buffer.
                np.take(array, ids[part], axis=0, out=out[part], mode="clip")
            else:
                out[to[part]] = array[ids[part]]

        step = max(1, _TASK_BYTES // self.chunks.row)
        return [lambda part=slice(i, i + step): take(part) for i in range(0, len(ids), step)]  # type: ignore[misc]

    def _sliced(self, items: np.ndarray, work: Callable[[np.ndarray], None]) -> list[Task]:
        if not len(items):
            return []
        slices = min(len(items), -(-len(items) * self.chunks.nbytes // _TASK_BYTES))
        if slices == 1:
            return [lambda: work(items)]
        return [lambda part=part: work(part) for part in np.array_split(items, slices)]  # type: ignore[misc]

    def close(self) -> None:
        pass  # the handle and the cache are the store's

    def _fill(self, kept: np.ndarray, filled: np.ndarray, chunks: np.ndarray) -> None:
        """Decode chunks into the array that keeps the whole field. Twice the same chunk writes the same bytes."""
        first = chunks * self.table.samples
        count = np.minimum(self.samples - first, self.table.samples)
        self.chunks.copy(self.chunks.pieces(chunks, np.zeros_like(chunks), count, first), None, None, kept)
        filled[chunks] = True


def expand(ranges: np.ndarray, to: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Ids of runs [lo, hi), one after the other, and their rows, without those that are left out."""
    lengths = ranges[:, 1] - ranges[:, 0]
    shifts = ranges[:, 0] - (np.cumsum(lengths) - lengths)
    ids = np.arange(lengths.sum()) + np.repeat(shifts, lengths)
    if to is None or not len(to) or to.min() >= 0:
        return ids, to
    return ids[to >= 0], to[to >= 0]
