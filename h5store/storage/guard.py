"""Bytes: chunks that libhdf5 is to decode, tried first. What it would do with a bad stream is not to be relied on.

A stream that decodes to more than its chunk takes libhdf5 all the memory it asks for; of one that decodes to less, the
rest is whatever lay in memory. So each chunk is decoded here once, within bounds, before libhdf5 sees it.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import h5py
import numpy as np

from h5store.errors import CorruptChunkError, FormatError
from h5store.storage import codecs
from h5store.storage.handles import FileSource


def check_index(label: str, dataset: h5py.Dataset) -> None:
    """Refuse an index of chunks with a place twice, an empty chunk, or a place that is none: libhdf5 crashes on it.

    Raises
    ------
    FormatError
    """
    seen: set[tuple[int, ...]] = set()

    def odd(info: Any) -> bool | None:
        where = info.chunk_offset
        places = zip(where, dataset.chunks, dataset.shape)
        if where in seen or not info.size or any(at % chunk or at >= length for at, chunk, length in places):
            return True
        seen.add(where)
        return None

    if dataset.chunks is not None and dataset.id.get_num_chunks() and dataset.id.chunk_iter(odd):
        raise FormatError(f"{label}: HDF5's index of chunks is damaged; restore the file from a copy")


def filters_of(dataset: h5py.Dataset) -> codecs.Filters:
    """(number, values) of each filter of a dataset."""
    creation = dataset.id.get_create_plist()
    return tuple((f[0], tuple(f[2])) for f in map(creation.get_filter, range(creation.get_nfilters())))


class Guard:
    """The chunks of one dataset whose filters can be decoded here. Not safe in threads.

    Parameters
    ----------
    label : str
        For errors.
    dataset : h5py.Dataset
        Chunked.
    """

    def __init__(self, label: str, source: FileSource, dataset: h5py.Dataset, filters: codecs.Filters) -> None:
        self._label, self._source, self._filters = label, source, filters
        self._chunks, self._shape = dataset.chunks, dataset.shape
        self._bytes = math.prod(dataset.chunks) * dataset.id.get_type().get_size()
        self._good: set[tuple[int, ...]] = set()

    @classmethod
    def of(cls, label: str, source: FileSource, dataset: h5py.Dataset) -> Guard | None:
        """A guard, or None where there are no chunks, or only libhdf5 knows the filters."""
        filters = filters_of(dataset)
        known = tuple(f for f in filters if f[0] != codecs.LZF)
        if dataset.chunks is None or len(filters) - len(known) > 1 or codecs.unsupported(known) is not None:
            return None
        return cls(label, source, dataset, filters)

    def check(self, dataset: h5py.Dataset, lo: int, hi: int) -> None:
        """Try every chunk that holds a part of the samples [lo, hi).

        Raises
        ------
        CorruptChunkError
        """
        step = self._chunks[0]
        axes = [range(lo // step * step, hi, step)]
        axes += [range(0, length, chunk) for length, chunk in zip(self._shape[1:], self._chunks[1:])]
        for where in itertools.product(*axes):
            if where not in self._good:
                self._try(dataset, where)
                self._good.add(where)

    def _try(self, dataset: h5py.Dataset, where: tuple[int, ...]) -> None:
        last = min(where[0] + self._chunks[0], self._shape[0]) - 1
        told = f"{self._label} chunk at {where} (samples {where[0]}-{last})"
        # What was never written libhdf5 gives the fill value for.
        decode(told, self._source, dataset, where, self._filters, np.empty(self._bytes, np.uint8))


def decode(told: str, source: FileSource, dataset: h5py.Dataset, where: tuple[int, ...], filters: codecs.Filters,
           out: np.ndarray) -> bool:
    """Decode the chunk at `where` to `out`, uint8, without libhdf5; LZF is only tried. False if it was never written.

    Raises
    ------
    CorruptChunkError
    """
    try:
        info = dataset.id.get_chunk_info_by_coord(where)
    except (OSError, RuntimeError, ValueError) as error:
        raise CorruptChunkError(f"{told}: HDF5's index of chunks is damaged ({error}); restore the file from a copy"
                                ) from error
    if info.byte_offset is None:
        return False
    if info.size > 2 * out.nbytes + 65536:
        raise CorruptChunkError(f"{told}: {info.size:,} bytes are stored for a chunk of {out.nbytes:,}; the file is "
                                "damaged, restore it from a copy")
    try:
        filters, stored = codecs.masked(filters, info.filter_mask), read(source, info.byte_offset, info.size, told)
        if any(number == codecs.LZF for number, _ in filters):
            _try_lzf(filters, stored, out.nbytes)
        else:
            codecs.decode(filters, stored, out)
    except codecs.DecodeError as error:
        raise CorruptChunkError(f"{told}: {error}; the file is damaged, restore it from a copy") from error
    return True


def read(source: FileSource, offset: int, size: int, told: str = "") -> np.ndarray:
    """Bytes of a file, uint8.

    Raises
    ------
    CorruptChunkError
    """
    check_inside(source, offset, size, told)
    out = np.empty(size, np.uint8)
    with source.lease() as fd:
        source.read_into(fd, offset, memoryview(out))  # type: ignore[arg-type]
    return out


def check_inside(source: FileSource, offset: int, size: int, told: str = "") -> None:
    """Refuse bytes beyond the end of a file.

    Raises
    ------
    CorruptChunkError
    """
    if offset > source.identity.size or size > source.identity.size - offset:
        raise CorruptChunkError(f"{told or source.path}: {size:,} bytes at {offset:,} lie beyond the end of the file; "
                                "it was cut short or is damaged, restore it from a copy")


def _try_lzf(filters: codecs.Filters, stored: np.ndarray, nbytes: int) -> None:
    """Refuse a chunk whose LZF stream does not decode to its length; the other filters keep that, or add a sum.

    Raises
    ------
    DecodeError
    """
    if filters[-1][0] == codecs.FLETCHER32:
        filters, stored = filters[:-1], stored[:-4]
    if any(number not in (codecs.LZF, codecs.SHUFFLE) for number, _ in filters):
        raise codecs.DecodeError("filters in an order that nobody writes")
    length = _lzf_length(stored.tobytes(), nbytes)
    if length != nbytes:
        raise codecs.DecodeError(f"lzf stream decodes to {length} bytes or is malformed, the chunk holds {nbytes}")


def _lzf_length(stream: bytes, most: int) -> int:
    """Bytes that an LZF stream decodes to, or how far it could be followed, by the format of LibLZF's lzf_d.c."""
    at = length = 0
    try:
        while at < len(stream) and length <= most:
            control = stream[at]
            if control < 32:  # so many bytes as they are, and one
                at += control + 2
                length += control + 1
                continue
            copied, last = control >> 5, at + 1
            if copied == 7:
                copied, last = copied + stream[last], last + 1
            if ((control & 31) << 8) + stream[last] >= length:
                return length  # from before the beginning
            at = last + 1
            length += copied + 2
    except IndexError:
        return length - 1
    return length if at == len(stream) else -1
