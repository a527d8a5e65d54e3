"""Bytes: samples of one field into the caller's array. Reads positionally, checks, decodes; all in the pool.

A read is planned first (which chunks, which samples of them, where they go), then done in slices, one task
a thread. Tasks write to places of their own and never wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Protocol

import numpy as np

from h5store.errors import CorruptChunkError
from h5store.storage import blosc, codecs
from h5store.storage.cache import SampleCache
from h5store.storage.chunks import ChunkTable, checksum, checksum_of
from h5store.storage.handles import FileSource
from h5store.storage.tasks import Task, Tasks

#: Decoded bytes of one task: enough to be worth the handing over, little enough to share out evenly.
_TASK_BYTES = 1 << 20
# Reading and decoding a chunk up to this size takes no longer than the Python around it, which runs in one thread.
_BRIEF_BYTES = 32 * 1024
# Samples from this size on are read straight to their rows, many in one call; smaller ones are quicker copied. The
# kernel takes 1024 buffers at most (IOV_MAX).
_SPREAD_BYTES = 16 * 1024
_MOST_ROWS = 1024


class FieldBytes(Protocol):
    """One field of an open file: the fast way below, or libhdf5 in `h5store.storage.foreign`."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    def gather(self, ids: np.ndarray, out: np.ndarray, to: np.ndarray | None = None) -> Tasks:
        """Samples `ids` (int64, in range, any order) into the rows `to` of `out`; in order where that is None."""
        ...

    def runs(self, ranges: np.ndarray, out: np.ndarray, to: np.ndarray | None = None) -> Tasks:
        """Samples of the runs [lo, hi) in `ranges` (k, 2), one after the other, likewise. A row of -1 is left out."""
        ...

    def close(self) -> None:
        """Let go of what this field alone holds; reading opens it again."""
        ...


class _Room(threading.local):
    """Buffers of one thread, used again and again: fresh pages cost more than decoding does."""

    def __init__(self) -> None:
        self.stored = self.chunk = _buffer(1 << 17)

    def for_stored(self, size: int) -> tuple[np.ndarray, memoryview, int]:
        if len(self.stored[1]) < size:
            self.stored = _buffer(size)
        return self.stored

    def for_chunk(self, size: int) -> tuple[np.ndarray, memoryview, int]:
        # Never the same as the stored bytes: one is decoded into the other.
        if self.chunk is self.stored or len(self.chunk[1]) < size:
            self.chunk = _buffer(size)
        return self.chunk


def _buffer(size: int) -> tuple[np.ndarray, memoryview, int]:
    """An array of bytes, and what C functions want of it; asking numpy for the address takes a microsecond."""
    array = np.empty(size, np.uint8)
    return array, array.data, array.ctypes.data


_room = _Room()

#: (offset, stored size, sum) of a chunk.
_Place = tuple[int, int, int]


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
        self._row = self._chunk_bytes // table.samples
        self._native = stored.isnative
        self._alone = self._native and codecs.plain_blocks(filters)
        self._blosc = len(filters) == 1 and filters[0][0] == codecs.BLOSC and table.masks is None
        self._parts = self._native and self._blosc and blosc.has_small_blocks(filters[0][1])

    # ---- planning

    def gather(self, ids: np.ndarray, out: np.ndarray, to: np.ndarray | None = None) -> Tasks:
        chunk = ids // self.table.samples
        if self.resident:
            array, filled = self._kept()
            return Tasks(self._missing(array, filled, chunk), self._takes(array, ids, out, to))
        if len(ids) > 1 and (chunk[1:] < chunk[:-1]).any():
            order = np.argsort(chunk, kind="stable")
            chunk, ids, to = chunk[order], ids[order], order if to is None else to[order]
        edges = np.flatnonzero(chunk[1:] != chunk[:-1]) + 1
        starts = np.concatenate(([0], edges, [len(ids)])) if len(ids) else np.zeros(1, np.int64)
        local = ids - chunk * self.table.samples

        def work(groups: np.ndarray) -> None:
            self._gather(groups, starts, chunk, local, to, out)

        return Tasks(self._sliced(np.arange(len(starts) - 1), work), brief=self._chunk_bytes < _BRIEF_BYTES)

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
        pieces = np.stack([chunk, start - chunk * per, stop - chunk * per, at], axis=1)
        return Tasks(self._sliced(pieces, lambda part: self._copy_pieces(part, out, to)))

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

        step = max(1, _TASK_BYTES // self._row)
        return [lambda part=slice(i, i + step): take(part) for i in range(0, len(ids), step)]  # type: ignore[misc]

    def _sliced(self, items: np.ndarray, work: Callable[[np.ndarray], None]) -> list[Task]:
        if not len(items):
            return []
        slices = min(len(items), -(-len(items) * self._chunk_bytes // _TASK_BYTES))
        return [lambda part=part: work(part) for part in np.array_split(items, slices)]  # type: ignore[misc]

    def close(self) -> None:
        pass  # the handle and the cache are the store's

    # ---- doing

    def _places(self, chunks: np.ndarray) -> Iterator[_Place]:
        """Where chunks lie, as Python's own ints: numpy's scalars would cost as much as a read."""
        table = self.table
        sums = repeat(0) if table.sums is None else table.sums[chunks].tolist()
        return zip(table.offsets[chunks].tolist(), table.sizes[chunks].tolist(), sums)

    def _gather(self, groups: np.ndarray, starts: np.ndarray, chunk: np.ndarray, local: np.ndarray,
                to: np.ndarray | None, out: np.ndarray) -> None:
        first, last = int(groups[0]), int(groups[-1]) + 1
        edges = starts[first:last + 1].tolist()
        numbers = chunk[starts[first:last]]
        begin, end = edges[0], edges[-1]
        # Python's own ints: a numpy scalar costs as much as a short read.
        samples = local[begin:end].tolist()
        rows = list(range(begin, end)) if to is None else to[begin:end].tolist()
        part, few = self._part_decoder()
        flat = out.reshape(-1).view(np.uint8)
        base, row = flat.ctypes.data, self._row
        with self.source.lease() as fd:
            for number, place, s, e in zip(numbers.tolist(), self._places(numbers), edges[:-1], edges[1:]):
                s, e = s - begin, e - begin
                if self.table.samples == 1 and e - s == 1 and self._native:
                    self._decode(fd, number, place, flat, base, rows[s] * row)
                    continue
                if part is not None and e - s <= few and self._decode_some(
                        part, fd, number, place, samples[s:e], rows[s:e], base):
                    continue
                block = self._decoded(fd, number, place)
                if e - s == 1:
                    out[rows[s]] = block[samples[s]]
                elif to is None:
                    np.take(block, samples[s:e], axis=0, out=out[begin + s:begin + e], mode="clip")
                else:
                    out[rows[s:e]] = block[samples[s:e]]

    def _part_decoder(self) -> tuple[blosc.PartDecoder | None, int]:
        """What decodes single samples of a chunk, and up to how many of them that is worth it."""
        if not self._parts or self._may_keep:
            return None, 0
        return blosc.part_decoder(self._chunk_bytes, self._row), self.table.samples // 4

    def _decode_some(self, decode: blosc.PartDecoder, fd: int, chunk: int, place: _Place, samples: list[int],
                     rows: list[int], base: int) -> bool:
        """Decode single samples of a chunk to rows of the array at `base`, if its blocks allow it."""
        stored, address = self._stored(fd, chunk, place)
        try:
            return decode(stored, address, samples, rows, base)
        except blosc.BloscError as error:
            raise self._corrupt(chunk, error) from error

    def _copy_pieces(self, pieces: np.ndarray, out: np.ndarray, to: np.ndarray | None) -> None:
        per, row, have, block = self.table.samples, self._row, -1, None
        flat = out.reshape(-1).view(np.uint8)
        base = flat.ctypes.data
        view = flat.data
        alone = blosc.block_decoder() if self._alone and to is not None else None
        spread = not self.filters and to is not None and self._native and row >= _SPREAD_BYTES and per <= _MOST_ROWS
        with self.source.lease() as fd:
            for (chunk, start, stop, at), place in zip(pieces.tolist(), self._places(pieces[:, 0])):
                if to is None and stop - start == per and self._native:
                    self._decode(fd, chunk, place, flat, base, at * row)
                    continue
                if alone is not None:
                    rows = to[at:at + stop - start].tolist()  # type: ignore[index]
                    if self._decode_alone(alone, fd, chunk, place, start, rows, base):
                        continue
                elif spread and stop - start == per:
                    rows = to[at:at + per].tolist()  # type: ignore[index]
                    if min(rows) >= 0 and place[1] == self._chunk_bytes:
                        self._read_rows(fd, chunk, place, [view[r * row:(r + 1) * row] for r in rows])
                        continue
                if chunk != have or block is None:
                    have, block = chunk, self._decode_scratch(fd, chunk, place)
                if to is None:
                    out[at:at + stop - start] = block[start:stop]
                else:
                    _scatter(block[start:stop], out, to[at:at + stop - start])

    def _read_rows(self, fd: int, chunk: int, place: _Place, rows: list[memoryview]) -> None:
        """Read a chunk without filters straight to its samples' rows."""
        self.source.read_rows(fd, place[0], rows)
        if self.verify and checksum_of(rows) != place[2]:
            raise self._corrupt_sum(chunk)

    def _decode_alone(self, decode: Callable[[int, int, int, int], None], fd: int, chunk: int, place: _Place,
                      start: int, rows: list[int], base: int) -> bool:
        """Decode samples of a chunk, from `start` on, straight to rows of the array at `base`, if each is a block."""
        stored, address = self._stored(fd, chunk, place)
        row = self._row
        try:
            found = blosc.blocks(stored, self._chunk_bytes, row)
            if found is None:
                return False
            for (offset, size), at in zip(found[start:start + len(rows)], rows):
                if at >= 0:
                    decode(address + offset, base + at * row, size, row)
        except blosc.BloscError as error:
            raise self._corrupt(chunk, error) from error
        return True

    def _fill(self, kept: np.ndarray, filled: np.ndarray, chunks: np.ndarray) -> None:
        """Decode chunks into the array that keeps the whole field. Twice the same chunk writes the same bytes."""
        per = self.table.samples
        flat = kept.reshape(-1).view(np.uint8)
        base = flat.ctypes.data
        with self.source.lease() as fd:
            for chunk, place in zip(chunks.tolist(), self._places(chunks)):
                if (chunk + 1) * per <= self.samples and self._native:
                    self._decode(fd, chunk, place, flat, base, chunk * self._chunk_bytes)
                else:
                    target = kept[chunk * per:(chunk + 1) * per]
                    target[...] = self._decode_scratch(fd, chunk, place)[:len(target)]
                filled[chunk] = True

    @property
    def _may_keep(self) -> bool:
        return self.cache.holds_chunks_of(self._chunk_bytes)

    def _decoded(self, fd: int, chunk: int, place: _Place) -> np.ndarray:
        """A chunk to read from at once: this thread's scratch, or one that the cache keeps."""
        if not self._may_keep:
            return self._decode_scratch(fd, chunk, place)
        found = self.cache.get(self.name, chunk)
        if found is None:
            found = np.empty(self._chunk_shape, self.stored)
            flat = found.reshape(-1).view(np.uint8)
            self._decode(fd, chunk, place, flat, flat.ctypes.data, 0)
            self.cache.put(self.name, chunk, found)
        return found

    def _decode_scratch(self, fd: int, chunk: int, place: _Place) -> np.ndarray:
        array, _, address = _room.for_chunk(self._chunk_bytes)
        self._decode(fd, chunk, place, array, address, 0)
        return array[:self._chunk_bytes].view(self.stored).reshape(self._chunk_shape)

    def _decode(self, fd: int, chunk: int, place: _Place, flat: np.ndarray, base: int, at: int) -> None:
        """Decode a whole chunk to byte `at` of `flat`, whose memory begins at `base`."""
        size = place[1]
        if not self.filters and size == self._plain_bytes(chunk):
            target = flat.data[at:at + size]
            self.source.read_into(fd, place[0], target)
            self._check_sum(chunk, target, place[2])
            return
        stored, address = self._stored(fd, chunk, place)
        try:
            if self._blosc:
                blosc.decode(stored, address, base + at, self._chunk_bytes)
            else:
                mask = 0 if self.table.masks is None else int(self.table.masks[chunk])
                codecs.decode(codecs.masked(self.filters, mask), np.frombuffer(stored, np.uint8),
                              flat[at:at + self._chunk_bytes])
        except (blosc.BloscError, codecs.DecodeError) as error:
            raise self._corrupt(chunk, error) from error

    def _stored(self, fd: int, chunk: int, place: _Place) -> tuple[memoryview, int]:
        """The stored bytes of a chunk in this thread's buffer, checked, and their address."""
        _, view, address = _room.for_stored(place[1])
        stored = view[:place[1]]
        self.source.read_into(fd, place[0], stored)
        self._check_sum(chunk, stored, place[2])
        return stored, address

    def _check_sum(self, chunk: int, stored: memoryview, expected: int) -> None:
        if self.verify and checksum(stored) != expected:
            raise self._corrupt_sum(chunk)

    def _corrupt_sum(self, chunk: int) -> CorruptChunkError:
        return CorruptChunkError(f"{self._where(chunk)}: checksum differs; the file is damaged, run "
                                 f"'h5store verify {self.source.path}'")

    def _corrupt(self, chunk: int, error: Exception) -> CorruptChunkError:
        return CorruptChunkError(f"{self._where(chunk)}: {error}; the file is damaged or was not written by h5store, "
                                 f"run 'h5store verify {self.source.path}'")

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


def _scatter(samples: np.ndarray, out: np.ndarray, to: np.ndarray) -> None:
    """Samples to rows of `out`; those whose row is -1 are left out."""
    if to.min() < 0:
        samples, to = samples[to >= 0], to[to >= 0]
    out[to] = samples


def expand(ranges: np.ndarray, to: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Ids of runs [lo, hi), one after the other, and their rows, without those that are left out."""
    lengths = ranges[:, 1] - ranges[:, 0]
    shifts = ranges[:, 0] - (np.cumsum(lengths) - lengths)
    ids = np.arange(lengths.sum()) + np.repeat(shifts, lengths)
    if to is None or not len(to) or to.min() >= 0:
        return ids, to
    return ids[to >= 0], to[to >= 0]
