"""Bytes: one digest of all that is not a chunk: HDF5's metadata, the schema, the notes, and the gaps between them.

Chunks have sums of their own. With this digest, which lies in the file in 16 bytes of its own, no byte of a store
can change without `verify` seeing it, not even one that nobody reads.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator

import numpy as np
import xxhash

from h5store.errors import FormatError
from h5store.storage.chunks import ChunkTable
from h5store.storage.handles import FileSource, Identity
from h5store.storage.layout import REST_BYTES
from h5store.storage.metadata import Metadata, MetadataError
from h5store.storage.validate import checked_store, private

_PIECE = 1 << 20


def spans(size: int, tables: Iterable[ChunkTable], hole: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """[lo, hi) of a file's bytes that belong to no chunk and do not lie in `hole`, in order."""
    taken = [np.array([hole], np.uint64)]
    taken += [np.stack([t.offsets, t.offsets + t.sizes], axis=1) for t in tables]
    edges = np.concatenate(taken)
    edges = edges[np.argsort(edges[:, 0], kind="stable")]
    ends = np.maximum.accumulate(edges[:, 1])
    lo = np.concatenate([np.zeros(1, np.uint64), ends])
    hi = np.concatenate([edges[:, 0], np.array([size], np.uint64)])
    some = hi > lo
    yield from zip(lo[some].tolist(), hi[some].tolist())


def digest(fd: int, source: FileSource, tables: Iterable[ChunkTable], hole: tuple[int, int]) -> bytes:
    """XXH3-128 over every span: its two ends as uint64, then its bytes.

    Raises
    ------
    CorruptChunkError
    """
    found, buffer = xxhash.xxh3_128(), bytearray(_PIECE)
    for lo, hi in spans(source.identity.size, tables, hole):
        found.update(struct.pack("<2Q", lo, hi))
        for at in range(lo, hi, _PIECE):
            piece = memoryview(buffer)[:min(_PIECE, hi - at)]
            source.read_into(fd, at, piece)
            found.update(piece)
    return found.digest()


def place(fd: int, size: int) -> tuple[int, int] | None:
    """[lo, hi) of the digest in the file; None where there is none."""
    found = private(Metadata(fd, size), "rest")
    if found is None or found.nbytes != REST_BYTES:
        return None
    return found.offset, found.offset + REST_BYTES


def refresh(path: str) -> None:
    """Write the digest into a store that nobody reads yet, and fsync it: the last step of making a file.

    Raises
    ------
    FormatError
        What is at `path` is not a whole store.
    OSError
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        source = FileSource(path, Identity.of(os.fstat(fd)))
        tables = checked_store(fd, source).tables.values()
        hole = place(fd, source.identity.size)
        if hole is None:
            raise FormatError(f"{path}: has no room for the digest of what is not a chunk")
        value = digest(fd, source, tables, hole)
        done = 0
        while done < len(value):
            done += os.pwrite(fd, value[done:], hole[0] + done)
        os.fsync(fd)
    finally:
        os.close(fd)


def problems(fd: int, source: FileSource, tables: Iterable[ChunkTable]) -> Iterator[str]:
    """What is wrong with the bytes that are no chunk's, for a report."""
    try:
        hole = place(fd, source.identity.size)
    except MetadataError as error:
        yield f"HDF5's metadata are damaged: {error}"
        return
    if hole is None:
        yield "there is no digest of the bytes that are no chunk's, so they were not checked"
    elif os.pread(fd, REST_BYTES, hole[0]) != digest(fd, source, tables, hole):
        yield ("bytes outside the chunks have changed (HDF5's own metadata, notes, or a gap between them); samples and "
               "labels are checked on their own")
