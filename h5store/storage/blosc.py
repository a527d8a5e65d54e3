"""Bytes: Blosc 1 chunks, by the entry points of c-blosc in the filter library that hdf5plugin ships.

numcodecs wraps the same library, but takes 3 µs a call and cannot decode a part of a chunk. The format is
c-blosc's README_CHUNK_FORMAT: 16 bytes of header (version, codec version, flags, type size, then decoded
size, block size and stored size as uint32), the start of every block, and the blocks.
"""

from __future__ import annotations

import ctypes
import glob
import importlib
import importlib.util
import math
import os
import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np

#: A block that decodes alone: one sample of a light curve, a few dozen of a table. docs/decisions.md.
_BLOCK_BYTES = 4096
_LARGEST_BLOCK = 256 * 1024
#: Up to here c-blosc splits a block into one stream a byte, and makes blocks of at least 64 KiB.
_SPLIT = 16
_LARGEST_TYPE = 255
#: Type size of bytes, which are not shuffled: one that c-blosc does not split by, so that blocks are as asked for.
_PLAIN = 32
LEVEL = 5
_HEADER = struct.Struct("<BBBBIII")
_INT = struct.Struct("<i")


PartDecoder = Callable[[memoryview, int, Iterable[int], Iterable[int], int], bool]


def numcodecs(name: str) -> Any:
    """A module of numcodecs, imported when it is needed: it takes a quarter of all that `import h5store` takes."""
    return importlib.import_module(f"numcodecs.{name}")


class BloscError(ValueError):
    """A chunk that Blosc does not decode to what was expected."""


def type_size(itemsize: int, shape: tuple[int, ...]) -> int:
    """Bytes that the shuffle takes for one element.

    The trailing axes of a sample together, while they fit: a table is then shuffled column by column, which
    packs better, and blocks may be as small as a sample, so that one decodes alone. Bytes are not shuffled.
    """
    if itemsize == 1:
        return _PLAIN
    size = itemsize
    for axis in reversed(shape):
        if size * axis > _LARGEST_TYPE:
            break
        size *= axis
    return size if size > _SPLIT else itemsize


def encode(chunk: np.ndarray, typesize: int) -> bytes:
    """One chunk (samples, *shape). Call it off the main thread, where numcodecs uses one thread and no globals."""
    sample = chunk.nbytes // len(chunk)
    if typesize <= _SPLIT:
        block = 0  # c-blosc knows best
    elif sample <= _LARGEST_BLOCK:
        block = max(1, _BLOCK_BYTES // sample) * sample
    else:
        block = _LARGEST_BLOCK // typesize * typesize
    flat = chunk.reshape(-1).view(np.uint8)
    if chunk.nbytes % typesize == 0:
        flat = flat.view(f"V{typesize}")
    made: bytes = numcodecs("blosc").compress(flat, b"lz4", LEVEL, int(typesize != _PLAIN), block)
    return made


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """hdf5plugin's Blosc filter, without importing hdf5plugin; None where it does not export c-blosc."""
    spec, pointer = importlib.util.find_spec("hdf5plugin"), ctypes.c_void_p
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in glob.glob(os.path.join(folder, "plugins", "libh5blosc.*")):
            try:
                library = ctypes.CDLL(path)
                library.blosc_decompress_ctx.argtypes = pointer, pointer, ctypes.c_size_t, ctypes.c_int
                library.LZ4_decompress_safe.argtypes = pointer, pointer, ctypes.c_int, ctypes.c_int
                library.blosc_getitem.argtypes = pointer, ctypes.c_int, ctypes.c_int, pointer
            except (OSError, AttributeError):
                continue
            return library
    return None


def check_header(stored: memoryview, nbytes: int) -> int:
    """The type size of a chunk whose header agrees with what is known of it.

    Raises
    ------
    BloscError
    """
    if len(stored) < 16:
        raise BloscError(f"a Blosc chunk of {len(stored)} bytes has no header")
    version, _, flags, typesize, decoded, block, size = _HEADER.unpack_from(stored)
    if decoded != nbytes:
        raise BloscError(f"Blosc says {decoded} bytes, the chunk holds {nbytes}")
    # Flag 2: stored as it is. Otherwise the starts of the blocks follow the header.
    starts = 0 if flags & 2 or not block else 4 * math.ceil(decoded / block)
    if size != len(stored) or not 1 <= version <= 2 or not typesize or not block or 16 + starts > size:
        raise BloscError("the Blosc header is malformed")
    return typesize  # type: ignore[no-any-return]


def decode(stored: memoryview, address: int, out: int, nbytes: int) -> None:
    """Decode a chunk, `stored` at `address`, to memory at `out`; exactly `nbytes` are written.

    Raises
    ------
    BloscError
    """
    check_header(stored, nbytes)
    found = library()
    if found is None:
        target = (ctypes.c_uint8 * nbytes).from_address(out)
        try:
            numcodecs("blosc").decompress(stored, np.ctypeslib.as_array(target))
        except (RuntimeError, ValueError) as error:
            raise BloscError(f"Blosc stream does not decode ({error})") from error
    elif found.blosc_decompress_ctx(address, out, nbytes, 1) != nbytes:
        raise BloscError("Blosc stream does not decode")


def has_small_blocks(values: tuple[int, ...]) -> bool:
    """Whether the filter's values are of chunks with blocks so small that a sample is worth decoding alone.

    Elements of up to 16 bytes are split into streams, and c-blosc makes such blocks of 64 KiB at least.
    """
    return len(values) > 2 and values[2] > _SPLIT


def part_decoder(nbytes: int, row: int) -> PartDecoder | None:
    """Decodes single samples of `row` bytes out of chunks of `nbytes`; None where c-blosc is missing.

    Called with the stored bytes, their address, which samples, the rows they go to, and the address of row 0. It
    gives False for a chunk whose elements do not divide a sample, and raises `BloscError`.
    """
    found = library()
    if found is None:
        return None
    getitem, unpack = found.blosc_getitem, _HEADER.unpack_from

    def decode(stored: memoryview, address: int, samples: Iterable[int], rows: Iterable[int], base: int) -> bool:
        if len(stored) < 16:
            check_header(stored, nbytes)
        _, _, _, typesize, decoded, block, size = unpack(stored)
        if decoded != nbytes or size != len(stored) or not typesize or not block or 16 - 4 * (-decoded // block) > size:
            check_header(stored, nbytes)  # says what is wrong
            return False
        if row % typesize:
            return False
        items = row // typesize
        for sample, to in zip(samples, rows):
            if to >= 0 and getitem(address, sample * items, items, base + to * row) != row:
                raise BloscError("Blosc stream does not decode")
        return True

    return decode


def blocks(stored: memoryview, nbytes: int, sample: int) -> list[tuple[int, int]] | None:
    """(offset, size) of every sample's block in a chunk that is not shuffled and has a block a sample, or None.

    Raises
    ------
    BloscError
    """
    if len(stored) < 16:
        raise BloscError(f"a Blosc chunk of {len(stored)} bytes has no header")
    _, _, flags, _, decoded, block, size = _HEADER.unpack_from(stored)
    count = nbytes // sample
    if decoded != nbytes or size != len(stored) or 16 + 4 * count > size:
        check_header(stored, nbytes)  # says what is wrong; a chunk may also just have fewer blocks
        return None
    if flags & 2:  # stored as it is
        return [(at, sample) for at in range(16, 16 + nbytes, sample)] if size == 16 + nbytes else None
    # Bits: 0 and 2 shuffled by bytes or bits, 4 not split into streams, 5 to 7 the codec, 1 for LZ4.
    if flags & 5 or not flags & 16 or flags >> 5 != 1 or block != sample:
        return None
    found = []
    last = size - 4
    for start in struct.unpack_from(f"<{count}i", stored, 16):
        if not 16 <= start <= last:
            raise BloscError("a Blosc block lies outside its chunk")
        (length,) = _INT.unpack_from(stored, start)
        if not 0 < length <= sample or length > last - start:
            raise BloscError("a Blosc block lies outside its chunk")
        found.append((start + 4, length))
    return found


def block_decoder() -> Callable[[int, int, int, int], None] | None:
    """Decodes a block from `blocks`: (its address, where to, its size, decoded size); None where c-blosc is missing."""
    found = library()
    if found is None:
        return None
    lz4, move = found.LZ4_decompress_safe, ctypes.memmove

    def decode_block(address: int, out: int, size: int, nbytes: int) -> None:
        if size == nbytes:  # a block that did not shrink is stored as it is
            move(out, address, nbytes)
        elif lz4(address, out, size, nbytes) != nbytes:
            raise BloscError("an LZ4 block does not decode")

    return decode_block
