"""Bytes: as much of HDF5's own format as finding a store's plain datasets takes, without libhdf5.

A file from a stranger is read by this module first, and a store is opened by nothing else: every length is bounded
before it is believed, every block's checksum is compared, and no link leaves the file. Section numbers are those
of the "HDF5 File Format Specification, Version 3.0".
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_UNDEFINED = 2**64 - 1
# The header of our own objects takes some hundred bytes. A stranger's may not cost us time or memory.
_MOST_HEADER = 256 * 1024
_MOST_BLOCKS = 64

_DATASPACE, _LINK_INFO, _DATATYPE, _EXTERNAL, _LINK, _LAYOUT, _FILTERS = 0x01, 0x02, 0x03, 0x07, 0x06, 0x08, 0x0B
_ATTRIBUTE, _CONTINUATION, _ATTRIBUTE_INFO = 0x0C, 0x10, 0x15
_SHARED = 0x02


class MetadataError(ValueError):
    """Metadata that are damaged, or not what a store holds. Callers add the file."""


class CutShort(MetadataError):
    """The file ends before its metadata say."""


class OtherLayout(MetadataError):
    """A valid start of an HDF5 file, but not as a store's is written."""


@dataclass(frozen=True)
class Plain:
    """A dataset whose values lie in one piece: where, and of what."""

    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


class Metadata:
    """The objects of one open file, by address.

    Parameters
    ----------
    fd : int
        Read positionally; stays the caller's.
    size : int
        Bytes of the file.
    strict : bool
        False, for salvaging, makes do with sums and lengths that differ: what is found proves itself later.

    Raises
    ------
    MetadataError
    """

    def __init__(self, fd: int, size: int, *, strict: bool = True) -> None:
        self._fd, self.size, self._strict = fd, size, strict
        self._known: dict[int, list[tuple[int, int, bytes]]] = {}
        head = self._read(0, 48)
        # II.A, superblock version 3: what the library bounds of a store make, with 8-byte offsets and lengths.
        if head[:8] != SIGNATURE or head[8] != 3 or head[9:11] != b"\x08\x08":
            raise OtherLayout("no superblock of version 3 at the start")
        self._compare(head, "superblock")
        base, _, end, self.root = struct.unpack_from("<4Q", head, 12)
        if base:
            raise OtherLayout("the file has a user block")
        if end > size and strict:
            raise CutShort(f"the file has {size:,} bytes, its metadata say {end:,}")
        if end < size and strict:
            raise MetadataError(f"the file has {size:,} bytes, its metadata say {end:,}: something was added to it")

    def _read(self, offset: int, count: int) -> bytes:
        if offset > self.size or count > self.size - offset:
            raise CutShort(f"bytes {offset:,} to {offset + count:,} lie beyond the end, {self.size:,}")
        data = b""
        while len(data) < count:
            more = os.pread(self._fd, count - len(data), offset + len(data))
            if not more:
                raise CutShort(f"the file ends at byte {offset + len(data):,}")
            data += more
        return data

    def _compare(self, block: bytes, what: str) -> None:
        if self._strict and lookup3(block[:-4]) != int.from_bytes(block[-4:], "little"):
            raise MetadataError(f"the checksum of the {what} differs")

    # ---- IV.A.1.b, object headers of version 2

    def _messages(self, address: int) -> list[tuple[int, int, bytes]]:
        """(type, flags, body) of an object's messages, its continuation blocks included."""
        if address not in self._known:
            self._known[address] = self._parse(address)
        return self._known[address]

    def _parse(self, address: int) -> list[tuple[int, int, bytes]]:
        head = self._read(address, min(64, max(0, self.size - address)))
        if head[:4] != b"OHDR" or len(head) < 16 or head[4] != 2:
            raise MetadataError(f"no object header at byte {address:,}")
        flags, at = head[5], 6 + 16 * (head[5] >> 5 & 1) + 4 * (head[5] >> 4 & 1)
        width = 1 << (flags & 3)
        length = int.from_bytes(head[at:at + width], "little")
        out: list[tuple[int, int, bytes]] = []
        todo, total = [(address, at + width + length + 4, at + width)], 0
        for number, (begin, count, skip) in enumerate(todo):
            total += count
            if number >= _MOST_BLOCKS or total > _MOST_HEADER:
                raise MetadataError(f"the object header at byte {address:,} is larger than any of a store's")
            block = self._read(begin, count)
            self._compare(block, f"object header at byte {address:,}")
            if number and block[:4] != b"OCHK":
                raise MetadataError(f"no continuation block at byte {begin:,}")
            for kind, marks, body in _split(block[skip:-4], bool(flags & 4)):
                if kind == _CONTINUATION:
                    more, size = _unpack("<2Q", body)
                    todo.append((more, max(8, size), 4))
                else:
                    out.append((kind, marks, body))
        return out

    def _only(self, address: int, kind: int) -> bytes | None:
        """The body of an object's one message of a kind; None without one."""
        found = [(marks, body) for other, marks, body in self._messages(address) if other == kind]
        if not found:
            return None
        if len(found) > 1 or found[0][0] & _SHARED:
            raise MetadataError(f"the object at byte {address:,} has its message {kind} elsewhere, or twice")
        return found[0][1]

    def links(self, address: int) -> dict[str, int]:
        """Name -> address of what a group holds. Hard links only: any other kind is refused.

        Raises
        ------
        MetadataError
        """
        out: dict[str, int] = {}
        for kind, marks, body in self._messages(address):
            if kind == _LINK:
                name, target = _link(body)
                if marks & _SHARED or name in out:
                    raise MetadataError(f"two links are named {name!r}, or one is shared")
                out[name] = target
            elif kind == _LINK_INFO:
                at = 2 + 8 * (body[1] & 1) if len(body) > 1 else 0
                if _unpack("<Q", body[at:at + 8]) != (_UNDEFINED,):
                    raise MetadataError(f"the group at byte {address:,} holds more links than a store has")
        return out

    def find(self, *path: str) -> int | None:
        """The address of an object by the names of the links from the root group to it; None if there is none.

        Raises
        ------
        MetadataError
        """
        at: int | None = self.root
        for name in path:
            at = None if at is None else self.links(at).get(name)
        return at

    def attributes(self, address: int) -> dict[str, int | bytes]:
        """Attributes that are one unsigned integer or one fixed text; others are left out."""
        out: dict[str, int | bytes] = {}
        for kind, marks, body in self._messages(address):
            if kind == _ATTRIBUTE and not marks & _SHARED:
                found = _attribute(body)
                if found is not None:
                    out[found[0]] = found[1]
        return out

    def plain(self, address: int) -> Plain:
        """A dataset that is one piece of this file, of unsigned bytes or 64-bit integers.

        Raises
        ------
        MetadataError
        """
        space, kind, layout = (self._only(address, k) for k in (_DATASPACE, _DATATYPE, _LAYOUT))
        if space is None or kind is None or layout is None:
            raise MetadataError(f"the object at byte {address:,} is no dataset")
        if self._only(address, _EXTERNAL) is not None or self._only(address, _FILTERS) is not None:
            raise MetadataError(f"the dataset at byte {address:,} is filtered, or keeps its values in other files")
        # IV.A.2.i, data layout: class 1 is contiguous, written alike in versions 3 and 4.
        if len(layout) < 18 or layout[0] not in (3, 4) or layout[1] != 1:
            raise MetadataError(f"the dataset at byte {address:,} is not stored in one piece")
        offset, nbytes = struct.unpack_from("<2Q", layout, 2)
        found = Plain(_unsigned(kind), _shape(space), offset)
        if found.nbytes == 0:
            return Plain(found.dtype, found.shape, 0)
        if found.nbytes != nbytes or offset > self.size or nbytes > self.size - offset:
            raise MetadataError(f"the dataset at byte {address:,} says {found.nbytes:,} bytes, {nbytes:,} are there")
        return found


def _unpack(form: str, data: bytes) -> tuple[int, ...]:
    if len(data) < struct.calcsize(form):
        raise MetadataError("a message ends early")
    return struct.unpack_from(form, data)


def _split(data: bytes, ordered: bool) -> Iterator[tuple[int, int, bytes]]:
    """Messages of one block; what is left behind the last one is a gap."""
    at, head = 0, 6 if ordered else 4
    while at + head <= len(data):
        kind, size, marks = struct.unpack_from("<BHB", data, at)
        at += head
        if size > len(data) - at:
            raise MetadataError("a message is longer than its block")
        yield kind, marks, data[at:at + size]
        at += size


def _link(body: bytes) -> tuple[str, int]:
    """IV.A.2.g, link message."""
    if len(body) < 2 or body[0] != 1:
        raise MetadataError("a link message is not of version 1")
    flags, at = body[1], 2
    if flags & 8:
        if body[at:at + 1] != b"\0":
            raise MetadataError("a link leads elsewhere; a store has hard links only")
        at += 1
    at += 8 * (flags >> 2 & 1) + (flags >> 4 & 1)
    width = 1 << (flags & 3)
    length = int.from_bytes(body[at:at + width], "little")
    at += width
    if at + length + 8 > len(body):
        raise MetadataError("a link message ends early")
    return body[at:at + length].decode("utf-8", "replace"), struct.unpack_from("<Q", body, at + length)[0]


def _attribute(body: bytes) -> tuple[str, int | bytes] | None:
    """IV.A.2.m, attribute message of version 3: a scalar of at most 64 bytes, or None."""
    if len(body) < 9 or body[0] != 3 or body[1]:
        return None
    name, kind, space = struct.unpack_from("<3H", body, 2)
    parts = [body[9:9 + name], body[9 + name:9 + name + kind], body[9 + name + kind:9 + name + kind + space]]
    if len(parts[1]) < 8 or _shape(parts[2]) != ():
        return None
    size = int.from_bytes(parts[1][4:8], "little")
    value = body[9 + name + kind + space:][:size]
    if size > 64 or len(value) != size:
        return None
    text = parts[0].rstrip(b"\0").decode("utf-8", "replace")
    if parts[1][0] & 15 == 3:
        return text, value.rstrip(b"\0")
    return (text, int.from_bytes(value, "little")) if parts[1][0] & 15 == 0 else None


def _shape(body: bytes) -> tuple[int, ...]:
    """IV.A.2.b, dataspace message of version 2."""
    if len(body) < 4 or body[0] != 2 or body[1] > 32 or len(body) < 4 + 8 * body[1] or body[3] > 1:
        raise MetadataError("a dataspace is not simple")
    return struct.unpack_from(f"<{body[1]}Q", body, 4)


def _unsigned(body: bytes) -> np.dtype:
    """IV.A.2.d, datatype message: little-endian unsigned integers of all their bits."""
    if len(body) >= 12 and body[0] & 15 == 0 and not body[1] & 9:
        size, first, bits = struct.unpack_from("<I2H", body, 4)
        if size in (1, 8) and first == 0 and bits == 8 * size:
            return np.dtype(f"<u{size}")
    raise MetadataError("a dataset is not of unsigned integers")


def lookup3(data: bytes) -> int:
    """Bob Jenkins' lookup3 ("hashlittle", initial value 0), the checksum of HDF5's metadata (section III.A)."""
    a = b = c = (0xDEADBEEF + len(data)) & 0xFFFFFFFF
    whole = max(0, (len(data) - 1) // 12)
    words = struct.unpack_from(f"<{3 * whole}I", data)
    for i in range(0, 3 * whole, 3):
        a, b, c = _mix((a + words[i]) & 0xFFFFFFFF, (b + words[i + 1]) & 0xFFFFFFFF, (c + words[i + 2]) & 0xFFFFFFFF)
    tail = data[12 * whole:]
    if not tail:
        return c
    x, y, z = struct.unpack("<3I", tail.ljust(12, b"\0"))
    return _final((a + x) & 0xFFFFFFFF, (b + y) & 0xFFFFFFFF, (c + z) & 0xFFFFFFFF)


def _turn(x: int, k: int) -> int:
    return (x << k | x >> 32 - k) & 0xFFFFFFFF


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    mask = 0xFFFFFFFF
    a, c = ((a - c) & mask) ^ _turn(c, 4), (c + b) & mask
    b, a = ((b - a) & mask) ^ _turn(a, 6), (a + c) & mask
    c, b = ((c - b) & mask) ^ _turn(b, 8), (b + a) & mask
    a, c = ((a - c) & mask) ^ _turn(c, 16), (c + b) & mask
    b, a = ((b - a) & mask) ^ _turn(a, 19), (a + c) & mask
    c, b = ((c - b) & mask) ^ _turn(b, 4), (b + a) & mask
    return a, b, c


def _final(a: int, b: int, c: int) -> int:
    mask = 0xFFFFFFFF
    c = ((c ^ b) - _turn(b, 14)) & mask
    a = ((a ^ c) - _turn(c, 11)) & mask
    b = ((b ^ a) - _turn(a, 25)) & mask
    c = ((c ^ b) - _turn(b, 16)) & mask
    a = ((a ^ c) - _turn(c, 4)) & mask
    b = ((b ^ a) - _turn(a, 14)) & mask
    return ((c ^ b) - _turn(b, 24)) & mask
