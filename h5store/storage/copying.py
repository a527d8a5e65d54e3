"""Bytes: samples out of chunks of one field into the caller's rows. Reads positionally, checks, decodes.

What is as expected is done by the kernel of `h5store.storage.native`; the rest, and all where there is none, by Python.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from h5store.errors import CorruptChunkError
from h5store.storage import blosc, codecs, native
from h5store.storage.cache import SampleCache
from h5store.storage.chunks import ChunkTable, checksum
from h5store.storage.handles import FileSource


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
_Place = Sequence[int]


class Chunks:
    """The chunks of one field in a file that `FileSource` names; each holds whole samples.

    Parameters
    ----------
    label, name : str
        For errors, e.g. ``train.h5['flux']``, and for the cache.
    samples : int
        Of the field.
    stored : dtype
        As in the file; samples come in native byte order.
    verify : bool
        Check the sum of every chunk that is read.
    of : str
        What `samples` counts, for errors.
    """

    def __init__(self, label: str, name: str, samples: int, stored: np.dtype, shape: tuple[int, ...], *,
                 table: ChunkTable, filters: codecs.Filters, source: FileSource, verify: bool,
                 of: str = "samples") -> None:
        self.of = of
        self.label, self.name, self.samples, self.stored = label, name, samples, stored
        self.table, self.filters, self.source = table, filters, source
        self.verify = verify and table.sums is not None
        self.shape = (table.samples, *shape)
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * stored.itemsize
        self.row = self.nbytes // table.samples
        self._native = stored.isnative
        self._alone = self._native and codecs.plain_blocks(filters)
        self._blosc = len(filters) == 1 and filters[0][0] == codecs.BLOSC and table.masks is None
        self._parts = self._native and self._blosc and blosc.has_small_blocks(filters[0][1])
        self._few = table.samples // 4 if self._parts else 0
        self._kernel: native.Kernel | None = None
        plain = not filters and table.sums is not None
        if (plain or self._blosc) and self._native and table.masks is None:
            self._kernel = native.kernel(row=self.row, nbytes=self.nbytes, few=self._few, verify=self.verify,
                                         blosc=self._blosc, alone=self._alone)

    def pieces(self, chunk: np.ndarray, start: np.ndarray, stop: np.ndarray, at: np.ndarray) -> np.ndarray:
        """What `copy` is to do: uint64, shape (k, 7), with where each chunk lies and its sum."""
        table = self.table
        found = np.empty((len(chunk), 7), np.uint64)
        for i, column in enumerate((chunk, start, stop, at, table.offsets[chunk], table.sizes[chunk])):
            found[:, i] = column
        found[:, 6] = 0 if table.sums is None else table.sums[chunk]
        return found

    def copy(self, pieces: np.ndarray, pick: np.ndarray | None, to: np.ndarray | None, out: np.ndarray,
             cache: SampleCache | None = None) -> None:
        """Samples to rows of `out`, for each of the pieces (chunk, start, stop, at, ...).

        Those from start to stop of the chunk; with `pick`, samples ``pick[start:stop]`` of it. They go to the rows
        from `at` on; with `to`, to the rows ``to[at:at + stop - start]``, where those of -1 are left out. `cache`
        keeps decoded chunks.

        Raises
        ------
        CorruptChunkError, StaleStoreError, OSError
        """
        assert out.flags.c_contiguous and out.dtype.itemsize == self.stored.itemsize, "written to by address"
        if to is not None:
            to = np.ascontiguousarray(to, np.int64)  # as the kernel takes it
        kernel = self._kernel if cache is None else None
        with self.source.lease() as fd:
            done = 0
            while kernel is not None and done < len(pieces):
                _, _, stored = _room.for_stored(int(pieces[done:, 5].max()))
                _, room, scratch = _room.for_chunk(self.nbytes)
                done += kernel(fd, pieces[done:], pick, to, out, stored, len(_room.stored[1]), scratch)
                # One that is not as expected: Python knows what is wrong with it.
                self._copy(fd, pieces[done:done + 1], pick, to, out, cache)
                done += 1
            self._copy(fd, pieces[done:], pick, to, out, cache)

    def _copy(self, fd: int, pieces: np.ndarray, pick: np.ndarray | None, to: np.ndarray | None, out: np.ndarray,
              cache: SampleCache | None) -> None:
        if not len(pieces):
            return
        per, row, have, block = self.table.samples, self.row, -1, None
        flat = out.reshape(-1).view(np.uint8)
        base = flat.ctypes.data
        # Python's own ints: a numpy scalar costs as much as a short read.
        first = int(pieces[0, 1])
        picked = None if pick is None else pick[first:int(pieces[-1, 2])].tolist()
        for chunk, start, stop, at, *place in pieces.tolist():
            count = stop - start
            if picked is None and to is None and count == per and self._native:
                self._decode(fd, chunk, place, flat, base, at * row)
                continue
            rows = range(at, at + count) if to is None else to[at:at + count].tolist()
            samples = range(start, stop) if picked is None else picked[start - first:stop - first]
            few = picked is not None and count <= self._few
            if cache is None and (few or self._alone) and self._copy_alone(fd, chunk, place, samples, rows, base, few):
                continue
            if chunk != have or block is None:
                have, block = chunk, self._decoded(fd, chunk, place, cache)
            if count == 1:
                if rows[0] >= 0:
                    out[rows[0]] = block[samples[0]]
            elif picked is not None:
                _scatter(block[samples], out, at, to)
            else:
                _scatter(block[start:stop], out, at, to)

    def _copy_alone(self, fd: int, chunk: int, place: _Place, samples: Sequence[int], rows: Sequence[int],
                    base: int, few: bool) -> bool:
        """Copy samples without decoding their whole chunk, if that can be done.

        `few`: they are picked here and there, each worth a call. Of a run, each would decode its neighbours again.
        """
        row = self.row
        blocks = blosc.block_decoder() if self._alone else None
        part = blosc.part_decoder(self.nbytes, row) if few else None
        if blocks is None and part is None:
            return False
        stored, address = self._stored(fd, chunk, place)
        try:
            found = blosc.blocks(stored, self.nbytes, row) if blocks is not None else None
            if blocks is not None and found is not None:
                for sample, at in zip(samples, rows):
                    if at >= 0:
                        blocks(address + found[sample][0], base + at * row, found[sample][1], row)
                return True
            return part is not None and part(stored, address, samples, rows, base)
        except blosc.BloscError as error:
            raise self._corrupt(chunk, error) from error

    def _decoded(self, fd: int, chunk: int, place: _Place, cache: SampleCache | None) -> np.ndarray:
        """A chunk to read from at once: in this thread's scratch, or kept by the cache."""
        if cache is None:
            array, _, address = _room.for_chunk(self.nbytes)
            self._decode(fd, chunk, place, array, address, 0)
            return array[:self.nbytes].view(self.stored).reshape(self.shape)
        found = cache.get(self.name, chunk)
        if found is None:
            found = np.empty(self.shape, self.stored)
            flat = found.reshape(-1).view(np.uint8)
            self._decode(fd, chunk, place, flat, flat.ctypes.data, 0)
            cache.put(self.name, chunk, found)
        return found

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
                blosc.decode(stored, address, base + at, self.nbytes)
            else:
                mask = 0 if self.table.masks is None else int(self.table.masks[chunk])
                codecs.decode(codecs.masked(self.filters, mask), np.frombuffer(stored, np.uint8),
                              flat[at:at + self.nbytes])
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
            raise CorruptChunkError(f"{self._where(chunk)}: checksum differs; the file is damaged, run "
                                    f"'h5store verify {self.source.path}'")

    def _corrupt(self, chunk: int, error: Exception) -> CorruptChunkError:
        return CorruptChunkError(f"{self._where(chunk)}: {error}; the file is damaged or was not written by h5store, "
                                 f"run 'h5store verify {self.source.path}'")

    def _plain_bytes(self, chunk: int) -> int:
        """Bytes of a chunk stored without filters; only a dataset without chunks ends in a shorter piece."""
        if self.table.sums is not None:
            return self.nbytes
        samples = min(self.table.samples, self.samples - chunk * self.table.samples)
        return samples * (self.nbytes // self.table.samples)

    def _where(self, chunk: int) -> str:
        first = chunk * self.table.samples
        last = min(first + self.table.samples, self.samples) - 1
        return f"{self.label} chunk {chunk} ({self.of} {first}-{last})"


def _scatter(samples: np.ndarray, out: np.ndarray, at: int, to: np.ndarray | None) -> None:
    """Samples to the rows of `out` from `at` on, or ``to[at:]``; those whose row is -1 are left out."""
    if to is None:
        out[at:at + len(samples)] = samples
        return
    rows = to[at:at + len(samples)]
    if rows.min() < 0:
        samples, rows = samples[rows >= 0], rows[rows >= 0]
    out[rows] = samples
