"""Bytes: text of files that others wrote, read without libhdf5, which believes what a heap says of itself.

Text of any length is a descriptor of 16 bytes a value, which names an object of a "global heap" in the same file
(HDF5 File Format Specification, section III.E).
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator

import h5py
import numpy as np
from h5py import h5d, h5t

from h5store.errors import CorruptChunkError, FormatError
from h5store.storage import codecs
from h5store.storage.guard import check_inside, decode, filters_of, read
from h5store.storage.handles import FileSource

_DESCRIPTOR = np.dtype([("length", "<u4"), ("heap", "<u8"), ("index", "<u4")])
_PIECE_BYTES = 1 << 20
#: libhdf5 makes heaps of 4 KiB, or as large as one object.
_MOST_HEAP = 256 << 20
#: Heaps that are kept, and bytes of them that are read for each text beside the file once or a few times.
_KEPT_HEAPS, _MOST_A_TEXT = 4 << 20, 64 << 10
#: Chunks of text, or texts without chunks, that may never have been written.
_MOST_MISSING = 1 << 16


def text_bands(dataset: h5py.Dataset, source: FileSource) -> Iterator[tuple[int, np.ndarray]] | None:
    """(first sample, bytes objects (m, *shape)) of a text dataset, piece by piece; None if libhdf5 is to read it.

    Raises
    ------
    FormatError
        Text of any length that only libhdf5 could read.
    CorruptChunkError
        While iterating.
    """
    kind, creation = dataset.id.get_type(), dataset.id.get_create_plist()
    varies = kind.is_variable_str()
    filters = filters_of(dataset)
    reason = codecs.unsupported(filters)
    if varies and dataset.file.id.get_create_plist().get_sizes() != (8, 8):
        reason = "addresses are not of 8 bytes"
    if dataset.size == 0:
        return iter(())
    bands = None
    if reason is None:
        dtype = _DESCRIPTOR if varies else np.dtype(f"S{kind.get_size()}")
        if creation.get_layout() == h5d.CHUNKED:
            bands = _chunked(dataset, source, dtype, filters)
        elif creation.get_layout() == h5d.CONTIGUOUS and dataset.id.get_offset() is not None:
            bands = _contiguous(dataset, source, dtype)
        reason = "it lies inside the file's metadata, or was never written"
    if not varies:
        return None if bands is None else _fixed(bands, kind.get_strpad())
    if bands is None:
        raise FormatError(f"{source.path}: {dataset.name!r} is text of any length that only libhdf5 can read "
                          f"({reason}), which is not safe; copy the file first: h5repack -f GZIP=4 -l CHUNK=1024 A B")
    return _texts(bands, source, dataset.file.userblock_size)


def check_count(path: str, dataset: h5py.Dataset) -> None:
    """Refuse a text dataset that says it has far more values than it holds: all of them are read on opening.

    Raises
    ------
    FormatError
    """
    if dataset.chunks is not None:
        said, what = math.prod(-(-n // c) for n, c in zip(dataset.shape, dataset.chunks)), "chunks"
        there = dataset.id.get_num_chunks()
    else:
        said, what = dataset.size, "values"
        there = dataset.id.get_storage_size() // dataset.id.get_type().get_size()
    if said > there + _MOST_MISSING:
        raise FormatError(f"{path}: {dataset.name!r} says that it has {said:,} {what} of text, and holds {there:,}; "
                          "the file is damaged, restore it from a copy")


def _fixed(bands: Iterator[tuple[int, np.ndarray]], padding: int) -> Iterator[tuple[int, np.ndarray]]:
    """Texts of one length without what fills them up: NULs by numpy itself, or what is behind the first, or blanks."""
    for lo, band in bands:
        if padding == h5t.STR_NULLPAD:
            yield lo, band
            continue
        texts = np.empty(band.size, object)
        for i, text in enumerate(band.reshape(-1).tolist()):
            texts[i] = text.rstrip(b" ") if padding == h5t.STR_SPACEPAD else text.split(b"\0", 1)[0]
        yield lo, texts.reshape(band.shape)


def _contiguous(dataset: h5py.Dataset, source: FileSource, dtype: np.dtype) -> Iterator[tuple[int, np.ndarray]]:
    row = dtype.itemsize * (dataset.size // len(dataset))
    check_inside(source, dataset.id.get_offset(), row * len(dataset))
    step = max(1, _PIECE_BYTES // row)
    for lo in range(0, len(dataset), step):
        count = min(step, len(dataset) - lo)
        raw = read(source, dataset.id.get_offset() + lo * row, count * row)
        yield lo, raw.view(dtype).reshape(count, *dataset.shape[1:])


def _chunked(dataset: h5py.Dataset, source: FileSource, dtype: np.dtype, filters: codecs.Filters
             ) -> Iterator[tuple[int, np.ndarray]]:
    label, chunks = f"{source.path}[{dataset.name!r}]", dataset.chunks
    for lo in range(0, len(dataset), chunks[0]):
        out = np.zeros((min(chunks[0], len(dataset) - lo), *dataset.shape[1:]), dtype)
        for inner in itertools.product(*(range(0, n, c) for n, c in zip(dataset.shape[1:], chunks[1:]))):
            told = f"{label} chunk at {(lo, *inner)} (samples {lo}-{lo + len(out) - 1})"
            tile = np.empty(chunks, dtype)
            if not decode(told, source, dataset, (lo, *inner), filters, tile.reshape(-1).view(np.uint8)):
                continue  # never written: empty texts
            place = tuple(slice(at, at + c) for at, c in zip((0, *inner), chunks))
            out[place] = tile[tuple(slice(0, n) for n in out[place].shape)]
        yield lo, out


def _texts(bands: Iterator[tuple[int, np.ndarray]], source: FileSource, base: int
           ) -> Iterator[tuple[int, np.ndarray]]:
    heaps, kept = dict[int, tuple[int, dict[int, bytes]]](), 0
    to_give, to_read = source.identity.size, 8 * source.identity.size
    for lo, band in bands:
        texts = np.empty(band.size, object)
        for i, (length, heap, index) in enumerate(band.reshape(-1).tolist()):
            if not length or not heap:
                texts[i] = b""
                continue
            to_give, to_read = to_give - length, to_read + _MOST_A_TEXT
            if heap not in heaps:
                heaps[heap] = _heap(source, heap + base)
                kept += heaps[heap][0]
                to_read -= heaps[heap][0]
                while kept > _KEPT_HEAPS and len(heaps) > 1:  # values lie in the order of their heaps, but for a few
                    kept -= heaps.pop(next(iter(heaps)))[0]
            if to_give < 0 or to_read < 0:
                raise CorruptChunkError(f"{source.path}: its texts overlap, or lie so far from each other that each "
                                        f"takes more than {_MOST_A_TEXT:,} bytes to read; the file is damaged, "
                                        "restore it from a copy")
            found = heaps[heap][1].get(index)
            if found is None or len(found) < length:
                raise CorruptChunkError(f"{source.path}: text {index} of the heap at byte {heap:,} is missing or "
                                        "short; the file is damaged, restore it from a copy")
            texts[i] = found[:length]
        yield lo, texts.reshape(band.shape)


def _heap(source: FileSource, address: int) -> tuple[int, dict[int, bytes]]:
    """(size, index -> bytes) of the objects of a global heap collection."""
    damaged = f"{source.path}: no heap of texts at byte {address:,}; the file is damaged, restore it from a copy"
    if address > source.identity.size - 16:
        raise CorruptChunkError(damaged)
    mark, version, size = struct.unpack("<4sB3xQ", read(source, address, 16).tobytes())
    if mark != b"GCOL" or version != 1 or not 16 <= size <= min(_MOST_HEAP, source.identity.size - address):
        raise CorruptChunkError(damaged)
    raw, at, out = read(source, address, size).tobytes(), 16, {}
    while at + 16 <= size:
        index, _, length = struct.unpack_from("<HH4xQ", raw, at)
        if index == 0 or length > size - at - 16:  # 0: the room that is left
            break
        out[index] = raw[at + 16:at + 16 + length]
        at += 16 + (length + 7) // 8 * 8
    return size, out
