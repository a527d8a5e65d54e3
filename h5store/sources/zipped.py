"""Sources: members of .npz archives, streamed block by block, or all at once where they are small."""

from __future__ import annotations

import contextlib
import io
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from isal import isal_zlib

from h5store.errors import SourceError, nearest
from h5store.sources.npy import FIRST, Header, Unreadable, header_size, parse

_PIECE = 1 << 18
# https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, sections 4.3.7, 4.3.12, 4.3.16 and 4.5.3
_LOCAL = struct.Struct("<4s22xHH")
_CENTRAL = struct.Struct("<4s4xHHHHIIIHHH8xI")
_END = struct.Struct("<4s6xHII")
_WIDE = 0xFFFFFFFF
STORED, DEFLATED = 0, 8
_BROKEN: Any = isal_zlib.error
_METHOD = "compression method {} is not numpy's; save it again with numpy.savez_compressed"


@dataclass(frozen=True)
class Member:
    """One member of a zip archive, as its directory tells."""

    method: int
    crc: int
    packed: int
    size: int
    at: int  # of its local header


def directory(data: bytes) -> dict[str, Member]:
    """Arrays of an archive by name.

    Raises
    ------
    Unreadable
    """
    end = data.rfind(b"PK\5\6")
    if end < 0 or end + _END.size > len(data):
        raise Unreadable("it is empty" if not data else "not a .npz archive, or cut short")
    _, count, size, at = _END.unpack_from(data, end)
    if count == 0xFFFF or at == _WIDE or at + size > end:
        raise Unreadable("")  # ZIP64, long comments and self-extracting archives are zipfile's to read
    members = {}
    for _ in range(count):
        (magic, flags, method, _, _, crc, packed, full, name, extra, comment, local) = _CENTRAL.unpack_from(data, at)
        if magic != b"PK\1\2" or flags & 1 or _WIDE in (packed, full, local):
            raise Unreadable("")
        at += _CENTRAL.size
        if data.endswith(b".npy", at, at + name):
            members[data[at:at + name - 4].decode("utf-8", "replace")] = Member(method, crc, packed, full, local)
        at += name + extra + comment
    return members


class Archive:
    """A .npz file held in memory, for the small ones: one read, one pass over its directory.

    Raises
    ------
    Unreadable
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        try:
            self.members = directory(data)
        except (Unreadable, struct.error) as error:
            self.members = _by_zipfile(io.BytesIO(data), str(error))

    def header(self, key: str) -> Header:
        """Dtype and shape of a member, from as few bytes as hold them."""
        return self._parsed(self._bytes(self.members[key], FIRST), key)

    def array(self, key: str) -> np.ndarray:
        """A member, its checksum compared. It may share the archive's memory, read-only."""
        member = self.members[key]
        data = self._bytes(member, None)
        if len(data) != member.size or isal_zlib.crc32(data) != member.crc:
            raise Unreadable(f"member {key!r} is damaged: its checksum differs")
        header = self._parsed(data, key)
        if len(data) - header.size < header.nbytes:
            raise Unreadable(f"member {key!r} is cut short")
        flat = np.frombuffer(data, header.dtype, header.nbytes // max(1, header.dtype.itemsize), header.size)
        return flat.reshape(header.shape, order="F" if header.fortran else "C")

    def _parsed(self, data: bytes, key: str) -> Header:
        try:
            return parse(bytes(data[:header_size(data)]))
        except Unreadable as error:
            raise Unreadable(f"member {key!r}: {error}") from error

    def _bytes(self, member: Member, most: int | None) -> bytes:
        head = self._data[member.at:member.at + _LOCAL.size]
        magic, name, extra = _LOCAL.unpack(head) if len(head) == _LOCAL.size else (b"", 0, 0)
        start = member.at + _LOCAL.size + name + extra
        if magic != b"PK\3\4" or start + member.packed > len(self._data):
            raise Unreadable("a member lies outside the archive; it is cut short or damaged")
        if member.method == STORED:
            return self._data[start:start + (member.packed if most is None else min(most, member.packed))]
        packed = self._data[start:start + member.packed]
        if member.method != DEFLATED:
            raise Unreadable(_METHOD.format(member.method))
        try:
            if most is None:
                return isal_zlib.decompress(packed, -15, member.size)  # type: ignore[no-any-return]
            return isal_zlib.decompressobj(-15).decompress(packed, most)  # type: ignore[no-any-return]
        except _BROKEN as error:
            raise Unreadable(f"it is damaged ({error})") from error


def npz_members(path: str) -> dict[str, Member]:
    """Arrays of a .npz file by name.

    Raises
    ------
    FileNotFoundError, Unreadable
    """
    with open(path, "rb") as file:
        return _by_zipfile(file, "")


def member_header(path: str, member: Member) -> Header:
    """Dtype and shape of an array of a .npz file.

    Raises
    ------
    Unreadable
    """
    stream = _Stream(path, member)
    stream.close()
    return stream.header


def _by_zipfile(file: Any, why: str) -> dict[str, Member]:
    import zipfile

    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError) as error:
        raise Unreadable(why or f"not a .npz archive, or cut short ({error})") from error
    if any(info.flag_bits & 1 for info in infos):
        raise Unreadable("it is encrypted; save it again without a password")
    return {i.filename.removesuffix(".npy"): Member(i.compress_type, i.CRC, i.compress_size, i.file_size,
                                                    i.header_offset)
            for i in infos if i.filename.endswith(".npy")}


class NpzMember(Sequence[Any]):
    """One array of a .npz file as an array of samples to be sliced; forward slices never hold it whole.

    Parameters
    ----------
    path : str
    key : str, optional
        Name of the array; that of the only one by default.

    Attributes
    ----------
    shape, dtype

    Raises
    ------
    FileNotFoundError
    SourceError
        No such member, damage, or an array that would have to be unpickled.

    Notes
    -----
    Slices are read in order of the file; going back starts it over. A Fortran-ordered array does not lie in order of
    its samples, so it is unpacked once into a temporary file. Not safe in threads.
    """

    def __init__(self, path: str, key: str | None = None) -> None:
        self.path = path
        try:
            members = npz_members(path)
        except Unreadable as error:
            raise SourceError(f"{path}: {error}") from error
        if key is None and len(members) != 1:
            raise SourceError(f"{path}: holds {len(members)} arrays, say which, as {path}:NAME; "
                              f"{nearest('', members, 'arrays')}")
        self.key = next(iter(members)) if key is None else key
        if self.key not in members:
            raise SourceError(f"{path}: no array {self.key!r}; {nearest(self.key, members, 'arrays')}")
        self._member = members[self.key]
        self._stream: _Stream | None = None
        with self._told():
            self.header = self._rewound().header
        self.shape, self.dtype = self.header.shape, self.header.dtype
        self._unpacked: np.ndarray | None = None
        if not self.shape:
            raise SourceError(f"{path}: array {self.key!r} is a scalar, expected samples along the first axis")

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except Unreadable as error:
            self.close()
            raise SourceError(f"{self.path}: array {self.key!r}: {error}") from error

    def _rewound(self) -> _Stream:
        self.close()
        self._stream, self._at = _Stream(self.path, self._member), 0
        return self._stream

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        if self.header.fortran and len(self.shape) > 1:
            return self._spooled()[key]
        if not isinstance(key, slice):
            return self[:][key]
        start, stop, step = key.indices(len(self))
        if step != 1:
            return self[:][key]
        out = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        if out.nbytes:
            with self._told():
                self._fill(start, out)
        return out

    def _fill(self, start: int, out: np.ndarray) -> None:
        stream = self._stream
        if stream is None or start < self._at:
            stream = self._rewound()
        skip = (start - self._at) * (out.nbytes // len(out))
        scratch = memoryview(bytearray(min(_PIECE, skip)))
        while skip:
            stream.readinto(scratch[:skip])
            skip -= min(skip, len(scratch))
        stream.readinto(out.reshape(-1).view(np.uint8).data)
        self._at = start + len(out)
        if self._at == len(self):
            stream.finish()
            self.close()

    def _spooled(self) -> np.ndarray:
        """All of it, mapped from a temporary file that has no name."""
        if self._unpacked is None:
            import tempfile

            with self._told(), tempfile.TemporaryFile() as spool:
                stream = self._rewound()
                for done in range(0, self.header.nbytes, _PIECE):
                    piece = memoryview(bytearray(min(_PIECE, self.header.nbytes - done)))
                    stream.readinto(piece)
                    spool.write(piece)
                stream.finish()
                self.close()
                spool.flush()
                self._unpacked = (np.memmap(spool, self.dtype, "r", 0, self.shape, "F") if self.header.nbytes
                                  else np.empty(self.shape, self.dtype))
        return self._unpacked

    def close(self) -> None:
        """Let go of the file; the next slice opens it again."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class _Stream:
    """The bytes of one member, in order; its .npy header is read first."""

    def __init__(self, path: str, member: Member) -> None:
        self._member, self._left, self._crc = member, member.packed, 0
        self._held = memoryview(b"")
        self._file = open(path, "rb", buffering=0)
        try:
            self._file.seek(member.at)
            try:
                magic, name, extra = _LOCAL.unpack(self._file.read(_LOCAL.size))
            except struct.error as error:
                raise Unreadable("it is cut short") from error
            if magic != b"PK\3\4" or member.method not in (STORED, DEFLATED):
                raise Unreadable(_METHOD.format(member.method) if magic == b"PK\3\4" else "it is damaged")
            self._file.seek(name + extra, os.SEEK_CUR)
            self._inflate = isal_zlib.decompressobj(-15) if member.method == DEFLATED else None
            first = bytearray(12)
            self.readinto(memoryview(first))
            rest = bytearray(header_size(bytes(first)) - len(first))
            self.readinto(memoryview(rest))
            self.header = parse(bytes(first + rest))
            if member.size - self.header.size < self.header.nbytes:
                raise Unreadable(f"it is cut short: {member.size - self.header.size:,} bytes, its header says "
                                 f"{self.header.nbytes:,}")
        except BaseException:
            self._file.close()
            raise

    def _packed(self) -> bytes:
        piece = self._file.read(min(_PIECE, self._left))
        self._left -= len(piece)
        return piece

    def _more(self) -> bytes:
        """The next piece; empty at the end."""
        if self._inflate is None:
            piece = self._packed()
        else:
            piece = b""
            while not piece and not self._inflate.eof:
                packed = self._inflate.unconsumed_tail or self._packed()
                try:
                    piece = self._inflate.decompress(packed, 4 * _PIECE)
                except _BROKEN as error:
                    raise Unreadable(f"it is damaged ({error})") from error
                if not packed and not piece:
                    break
        self._crc = isal_zlib.crc32(piece, self._crc)
        return piece

    def readinto(self, out: memoryview) -> None:
        """Fill `out` with the next bytes.

        Raises
        ------
        Unreadable
        """
        at = 0
        while at < len(out):
            if not self._held:
                self._held = memoryview(self._more())
                if not self._held:
                    raise Unreadable("it is cut short")
            step = min(len(out) - at, len(self._held))
            out[at:at + step] = self._held[:step]
            self._held = self._held[step:]
            at += step

    def finish(self) -> None:
        """Compare the checksum, after the last value.

        Raises
        ------
        Unreadable
        """
        while self._more():
            pass
        if self._crc != self._member.crc:
            raise Unreadable("it is damaged: its checksum differs; copy the file again")

    def close(self) -> None:
        self._file.close()
