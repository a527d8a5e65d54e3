"""Bytes: encode and decode one chunk by the filters HDF5 names, outside libhdf5 and its lock.

A pipeline is what HDF5 keeps with a dataset: filter ids with their client values, in the order in which
they were applied. Numbers and formats are those of the HDF Group's list of registered filters.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from isal import isal_zlib

from h5store.errors import OptionError, nearest
from h5store.storage import blosc
from h5store.storage.blosc import numcodecs

DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3
LZF, BLOSC, LZ4, ZSTD = 32000, 32001, 32004, 32015
NAMES = {DEFLATE: "gzip", SHUFFLE: "shuffle", FLETCHER32: "fletcher32", 4: "szip", LZF: "lzf",
         BLOSC: "blosc", LZ4: "lz4", 32008: "bitshuffle", ZSTD: "zstd", 32026: "blosc2"}
COMPRESSORS = frozenset({DEFLATE, BLOSC, LZ4, ZSTD})

#: (filter id, client values) in the order of writing.
Filters = tuple[tuple[int, tuple[int, ...]], ...]

#: name -> (default level, lowest, highest); None: the codec has no levels.
LEVELS: dict[str, tuple[int, int, int] | None] = {
    "lz4": None,
    "gzip": (4, 1, 9),   # 4 is h5py's default; 9 costs three times the time for 1 % of size
    "zstd": (3, 1, 22),  # 3 is zstd's own default
    "none": None,
}


class DecodeError(ValueError):
    """Stored bytes do not decode to a chunk. Callers add file, field and samples."""


@dataclass(frozen=True)
class Codec:
    """A codec as a person names it: ``"lz4"``, ``"gzip"``, ``"gzip:9"``, ``("zstd", 19)``, None."""

    name: str
    level: int | None

    @classmethod
    def parse(cls, spec: Any) -> Codec:
        """
        Raises
        ------
        OptionError
            Unknown name, or a level outside the codec's range.
        """
        if isinstance(spec, Codec):
            return spec
        name, level = spec if isinstance(spec, (tuple, list)) and len(spec) == 2 else (spec, None)
        if name is None:
            name = "none"
        if isinstance(name, str) and ":" in name and level is None:
            name, _, level = name.partition(":")
        if not isinstance(name, str) or name.lower() not in LEVELS:
            raise OptionError(f"codec: no codec {name!r}; {nearest(name, LEVELS, 'codecs')} (or None)")
        name = name.lower()
        limits = LEVELS[name]
        if limits is None:
            if level is not None:
                raise OptionError(f"codec: {name!r} has no levels, got {level!r}; write codec={name!r}")
            return cls(name, None)
        default, low, high = limits
        try:
            number = default if level is None else int(str(level))  # int() takes 4.7 and True
        except (TypeError, ValueError):
            number = low - 1
        if not low <= number <= high:
            raise OptionError(f"codec: {name!r} takes a level from {low} to {high}, got {level!r}")
        return cls(name, number)

    def __str__(self) -> str:
        return self.name if self.level is None else f"{self.name}:{self.level}"

    def filters(self, itemsize: int, shape: tuple[int, ...]) -> Filters:
        """The HDF5 pipeline that stores samples of this shape, with elements of `itemsize` bytes."""
        if self.name == "none":
            return ()
        if self.name == "lz4":
            # Blosc's container: shuffles in the same pass, which numpy or a second filter do not.
            typesize = blosc.type_size(itemsize, shape)
            return ((BLOSC, (2, 2, typesize, 0, blosc.LEVEL, int(itemsize > 1), 1)),)
        shuffle = ((SHUFFLE, (itemsize,)),) if itemsize > 1 else ()
        last = DEFLATE if self.name == "gzip" else ZSTD
        return (*shuffle, (last, (self.level or 0,)))


def unsupported(filters: Filters) -> str | None:
    """Why a pipeline cannot be decoded here, or None. Such a dataset is read through libhdf5."""
    for number, _ in filters:
        if number not in _DECODERS:
            return f"filter {NAMES.get(number, number)} is decoded by libhdf5 only"
    if sum(number in COMPRESSORS for number, _ in filters) > 1:
        return "two compressors in one pipeline are decoded by libhdf5 only"
    return None


def plain_blocks(filters: Filters) -> bool:
    """Whether chunks are Blosc's alone and not shuffled, so that their blocks may be decoded to where they go."""
    return len(filters) == 1 and filters[0][0] == BLOSC and len(filters[0][1]) > 5 and not filters[0][1][5]


def masked(filters: Filters, mask: int) -> Filters:
    """The filters that were applied to a chunk whose filter mask is `mask` (bit i: filter i skipped)."""
    return tuple(f for i, f in enumerate(filters) if not mask >> i & 1) if mask else filters


def encode(filters: Filters, chunk: np.ndarray) -> bytes:
    """Encode one C-contiguous chunk. Same chunk, same bytes. Runs outside the GIL for the most part.

    Call it off the main thread: there, numcodecs hands Blosc its own threads, whose blocks come in any order.
    """
    data: Any = chunk
    if not filters:
        return data.tobytes()
    for number, values in filters:
        data = _ENCODERS[number](data, values)
    return bytes(data)


def decode(filters: Filters, stored: np.ndarray, out: np.ndarray) -> None:
    """Decode one chunk into `out`, never writing past it.

    Parameters
    ----------
    stored : ndarray of uint8, shape (stored size,)
        A private buffer: it may be written to.
    out : ndarray of uint8, shape (chunk bytes,), C-contiguous

    Raises
    ------
    DecodeError
        The stream is malformed, or decodes to another length than the chunk's.
    """
    if not filters:
        if stored.nbytes != out.nbytes:
            raise DecodeError(f"{stored.nbytes} bytes are stored, the chunk holds {out.nbytes}")
        out[:] = stored
        return
    data = stored
    for i in range(len(filters) - 1, -1, -1):
        number, values = filters[i]
        target = out if i == 0 else _scratch(_encoded_size(filters[:i], out.nbytes, filters[i], data.nbytes), i)
        try:
            _DECODERS[number](data, values, target)
        except DecodeError:
            raise
        except Exception as error:  # each library raises its own kinds
            raise DecodeError(f"{NAMES[number]} stream does not decode ({error})") from error
        data = target


def _encoded_size(before: Filters, chunk: int, last: tuple[int, tuple[int, ...]], stored: int) -> int:
    """Bytes that the filters `before` made of a chunk, and which `last` made `stored` bytes of."""
    if any(number in COMPRESSORS for number, _ in before):
        return max(0, stored - 4 * (last[0] == FLETCHER32))  # `last` is no compressor, so it tells
    return chunk + 4 * sum(number == FLETCHER32 for number, _ in before)


_local = threading.local()


def _scratch(size: int, stage: int) -> np.ndarray:
    """A buffer of this thread's own: fresh pages cost more than decoding does."""
    buffers: dict[int, np.ndarray] = _local.__dict__.setdefault("buffers", {})
    have = buffers.get(stage)
    if have is None or have.nbytes < size:
        have = buffers[stage] = np.empty(size, np.uint8)
    return have[:size]


def _check(ok: bool, text: str) -> None:
    if not ok:
        raise DecodeError(text)


def _encode_blosc(data: np.ndarray, values: tuple[int, ...]) -> bytes:
    return blosc.encode(data, values[2])


def _decode_blosc(data: np.ndarray, values: tuple[int, ...], out: np.ndarray) -> None:
    blosc.decode(data.data, data.ctypes.data, out.ctypes.data, out.nbytes)


def _decode_lz4(data: np.ndarray, values: tuple[int, ...], out: np.ndarray) -> None:
    # HDF5's LZ4 filter: uint64 size and uint32 block size, then per block a uint32 length, all big-endian.
    _check(data.nbytes >= 12, f"an LZ4 chunk of {data.nbytes} bytes has no header")
    total, block = struct.unpack_from(">QI", data.data, 0)
    _check(total == out.nbytes, f"LZ4 says {total} bytes, the chunk holds {out.nbytes}")
    _check(block > 0, "LZ4 block size is 0")
    if not data.flags.writeable:
        data = data.copy()
    at, done = 12, 0
    while done < total:
        size = min(block, total - done)
        _check(at + 4 <= data.nbytes, "LZ4 stream ends early")
        (length,) = struct.unpack_from(">I", data.data, at)
        _check(0 < length <= data.nbytes - at - 4, "LZ4 stream ends early")
        if length == size:  # a block that did not shrink is stored as it is
            out[done:done + size] = data[at + 4:at + 4 + size]
        else:
            struct.pack_into("<I", data.data, at, size)  # numcodecs wants the decoded size before the block
            numcodecs("lz4").decompress(data[at:at + 4 + length], out[done:done + size])
        at, done = at + 4 + length, done + size


def _encode_zstd(data: np.ndarray, values: tuple[int, ...]) -> bytes:
    return numcodecs("zstd").compress(data.reshape(-1), values[0])  # type: ignore[no-any-return]


def _decode_zstd(data: np.ndarray, values: tuple[int, ...], out: np.ndarray) -> None:
    size = _zstd_size(data)
    _check(size == out.nbytes, f"zstd says {size} bytes, the chunk holds {out.nbytes}")
    numcodecs("zstd").decompress(data, out)


def _zstd_size(data: np.ndarray) -> int | None:
    """Content size of a zstd frame, RFC 8878 section 3.1.1.1; None where the frame does not say."""
    _check(data.nbytes >= 6 and bytes(data[:4]) == b"\x28\xb5\x2f\xfd", "zstd frame has no magic number")
    descriptor = int(data[4])
    flag, single = descriptor >> 6, descriptor >> 5 & 1
    width = (1, 2, 4, 8)[flag] if flag or single else 0
    at = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    if not width or data.nbytes < at + width:
        return None
    return int.from_bytes(bytes(data[at:at + width]), "little") + 256 * (width == 2)


def _encode_deflate(data: Any, values: tuple[int, ...]) -> bytes:
    return zlib.compress(data, values[0])


def _decode_deflate(data: np.ndarray, values: tuple[int, ...], out: np.ndarray) -> None:
    stream = isal_zlib.decompressobj()
    # One byte more than fits: a stream that would decode longer is seen, not decoded.
    decoded = stream.decompress(data, out.nbytes + 1)
    _check(len(decoded) == out.nbytes and stream.eof,
           f"gzip stream decodes to {len(decoded)}{'' if stream.eof else ' or more'} bytes, "
           f"the chunk holds {out.nbytes}")
    out[:] = np.frombuffer(decoded, np.uint8)


def _encode_shuffle(data: np.ndarray, values: tuple[int, ...]) -> np.ndarray:
    return np.asarray(numcodecs("shuffle").Shuffle(values[0]).encode(data.reshape(-1).view(np.uint8)))


def _decode_shuffle(data: np.ndarray, values: tuple[int, ...], out: np.ndarray) -> None:
    if not values or values[0] <= 1:
        out[:] = data
        return
    whole = out.nbytes // values[0] * values[0]
    numcodecs("shuffle").Shuffle(values[0]).decode(data[:whole], out[:whole])
    out[whole:] = data[whole:]


def _decode_fletcher32(data: np.ndarray, values: tuple[int, ...], out: np.ndarray) -> None:
    _check(data.nbytes == out.nbytes + 4, "fletcher32 chunk has another length")
    out[:] = np.frombuffer(numcodecs("fletcher32").Fletcher32().decode(data), np.uint8)


_Encoder = Callable[[Any, tuple[int, ...]], Any]
_Decoder = Callable[[np.ndarray, tuple[int, ...], np.ndarray], None]
_ENCODERS: dict[int, _Encoder] = {
    BLOSC: _encode_blosc, ZSTD: _encode_zstd, DEFLATE: _encode_deflate, SHUFFLE: _encode_shuffle,
}
_DECODERS: dict[int, _Decoder] = {
    BLOSC: _decode_blosc, LZ4: _decode_lz4, ZSTD: _decode_zstd, DEFLATE: _decode_deflate,
    SHUFFLE: _decode_shuffle, FLETCHER32: _decode_fletcher32,
}
