"""Bytes: the journal of a store that is being written. What `commit` has returned from survives a crash.

A journal is a header and frames, each with a number, a length and a checksum, appended and fsynced one at a
time. So only the last frame can be torn; everything before it was promised to somebody. A frame holds what
was added since the one before: whole chunks, encoded as they will be sealed, and the raw samples beyond the
last whole chunk. docs/format.md has the layout.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from h5store.errors import JournalError
from h5store.schema import dumps
from h5store.storage.chunks import checksum
from h5store.storage.layout import fsync

VERSION = 1
MAGIC = b"HSJF"
_FRAME = struct.Struct("<4sIQQQ")  # magic, version, number, payload length, XXH3-64 of number, length, payload
_META = struct.Struct("<I")


@dataclass
class FieldLog:
    """Where one field's committed bytes lie in the journal."""

    offsets: array[int] = field(default_factory=lambda: array("Q"))
    sizes: array[int] = field(default_factory=lambda: array("Q"))
    sums: array[int] = field(default_factory=lambda: array("Q"))
    #: (offset, bytes) of raw samples beyond the last whole chunk.
    rows: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Entry:
    """What one commit adds to one field: whole chunks, then raw samples."""

    chunks: Sequence[bytes]
    rows: bytes


class Journal:
    """The journal at `path`, open for appending. One writer at a time holds it; see `h5store.storage.lock`."""

    def __init__(self, path: str, fd: int, header: Mapping[str, Any]) -> None:
        self._fd, self._end, self._number = fd, 0, 0
        self.path, self.length = path, 0
        self.classes: dict[str, list[str]] = {}
        self._begin(header)

    def _begin(self, header: Mapping[str, Any]) -> None:
        self.header = header
        self.fields: dict[str, FieldLog] = {name: FieldLog() for name in header["fields"]}

    @classmethod
    def create(cls, path: str, header: Mapping[str, Any]) -> Journal:
        """Start a journal; it is on disk, with its header, when this returns."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        journal = cls(path, fd, header)
        try:
            journal._write_frame([dumps(header)])
            fsync(os.path.dirname(path))
        except BaseException:
            journal.close()
            os.unlink(path)
            raise
        return journal

    @classmethod
    def open(cls, path: str, *, look: bool = False) -> Journal | None:
        """Go on from a journal; None if not even its header was completed, so that nothing was promised.

        Parameters
        ----------
        path : str
        look : bool
            Change nothing: a writer may be at work on it.

        Raises
        ------
        JournalError
            Not a journal, damaged before its last frame, or of a version that is not known.
        """
        journal = cls(path, os.open(path, (os.O_RDONLY if look else os.O_RDWR) | os.O_CLOEXEC), {"fields": ()})
        fd = journal._fd
        try:
            frames = _frames(path, fd)
            first = next(frames, None)
            if first is None:
                _refuse_stranger(path, fd)
                journal.close()
                return None
            journal._begin(json.loads(os.pread(fd, first[1], first[0])))
            journal._end, journal._number = first[0] + first[1], 1
            for start, size in frames:
                journal._replay(start, size)
                journal._end, journal._number = start + size, journal._number + 1
            if not look:
                os.ftruncate(fd, journal._end)  # the torn frame nobody was told of
            return journal
        except BaseException:
            journal.close()
            raise

    @staticmethod
    def discard(path: str) -> None:
        """Remove a journal, whatever its state; but nothing that is none.

        Raises
        ------
        JournalError
        """
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _refuse_stranger(path, fd)
        finally:
            os.close(fd)
        os.unlink(path)

    def commit(self, length: int, entries: Mapping[str, Entry], classes: Mapping[str, Sequence[str]]) -> None:
        """Append a frame and fsync it. On an error the journal is as before and can be committed to again.

        Raises
        ------
        OSError
            With the errno of the failed call, e.g. ENOSPC.
        """
        meta = dumps({
            "length": length,
            "chunks": {name: [len(c) for c in e.chunks] for name, e in entries.items() if e.chunks},
            "rows": {name: len(e.rows) for name, e in entries.items() if e.rows},
            "classes": {name: list(new) for name, new in classes.items() if new},
        })
        blobs: list[bytes] = [_META.pack(len(meta)), meta]
        for name in self.fields:
            blobs += [*entries[name].chunks, entries[name].rows]
        start = self._write_frame(blobs) + _FRAME.size
        self._apply(json.loads(meta), start + _META.size + len(meta), entries)

    def read(self, offset: int, size: int) -> bytes:
        """Committed bytes, for sealing.

        Raises
        ------
        JournalError
        """
        data = os.pread(self._fd, size, offset)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), offset + len(data))
            if not more:
                raise JournalError(f"{self.path}: ends at byte {offset + len(data):,}, expected {offset + size:,}; "
                                   "it was cut while it was in use; pack again with overwrite=True")
            data += more
        return data

    def chunk(self, name: str, i: int) -> bytes:
        """Stored bytes of the field's i-th whole chunk in the journal, checked."""
        log = self.fields[name]
        data = self.read(log.offsets[i], log.sizes[i])
        if checksum(data) != log.sums[i]:
            raise JournalError(f"{self.path}: chunk {i} of field {name!r} is damaged: its checksum differs; the disk "
                               "or memory lost it after it was written; pack again with overwrite=True")
        return data

    def rows(self, name: str) -> bytes:
        """Raw samples beyond the field's last whole chunk."""
        return b"".join(self.read(offset, size) for offset, size in self.fields[name].rows)

    @property
    def size(self) -> int:
        return self._end

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()

    def _write_frame(self, blobs: Sequence[bytes]) -> int:
        """Append one frame; returns where it starts."""
        size = sum(map(len, blobs))
        numbers = struct.pack("<QQ", self._number, size)
        digest = xxhash.xxh3_64(numbers)
        for blob in blobs:
            digest.update(blob)
        start = self._end
        head = _FRAME.pack(MAGIC, VERSION, self._number, size, digest.intdigest())
        try:
            _write_all(self._fd, [head, *blobs], start)
            os.fsync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, start)
            raise OSError(error.errno, f"{error.strerror}; the samples since the last commit are not on disk yet: make "
                          "room and commit again, or go on later with resume=True", self.path) from error
        self._end, self._number = start + _FRAME.size + size, self._number + 1
        return start

    def _replay(self, start: int, size: int) -> None:
        (length,) = _META.unpack(self.read(start, _META.size))
        meta = json.loads(self.read(start + _META.size, length))
        self._apply(meta, start + _META.size + length, None)

    def _apply(self, meta: Mapping[str, Any], at: int, entries: Mapping[str, Entry] | None) -> None:
        for name, log in self.fields.items():
            chunks = meta["chunks"].get(name, ())
            if chunks:
                log.rows.clear()  # they are part of the first whole chunk now
            for i, size in enumerate(chunks):
                log.offsets.append(at)
                log.sizes.append(size)
                log.sums.append(checksum(entries[name].chunks[i] if entries else self.read(at, size)))
                at += size
            rows = meta["rows"].get(name, 0)
            if rows:
                log.rows.append((at, rows))
                at += rows
        for name, new in meta["classes"].items():
            self.classes.setdefault(name, []).extend(new)
        self.length = meta["length"]


def _frames(path: str, fd: int) -> Iterator[tuple[int, int]]:
    """(payload offset, payload length) of every whole frame, in order, from the start."""
    size, at, number = os.fstat(fd).st_size, 0, 0
    while at + _FRAME.size <= size:
        head = os.pread(fd, _FRAME.size, at)
        magic, version, found, length, digest = _FRAME.unpack(head)
        if magic == MAGIC and version > VERSION and number == 0:  # later on it would be damage
            raise JournalError(f"{path}: journal version {version}, this version of h5store reads {VERSION}; finish it "
                               "with the version that began it, or upgrade")
        start = at + _FRAME.size
        whole = (magic == MAGIC and version == VERSION and found == number and length <= size - start
                 and _digest(fd, number, start, length) == digest)
        if not whole:
            _refuse_damage(path, fd, at, number, size)
            return
        yield start, length
        at, number = start + length, number + 1


def _refuse_stranger(path: str, fd: int) -> None:
    """A header that was cut short begins like one, or was never written to the disk and is zeros."""
    if not MAGIC.startswith(os.pread(fd, len(MAGIC), 0).rstrip(b"\0")):
        raise JournalError(f"{path}: is not a journal, and a journal is to be there; move it away or write elsewhere")


def _digest(fd: int, number: int, start: int, length: int) -> int:
    digest = xxhash.xxh3_64(struct.pack("<QQ", number, length))
    done = 0
    while done < length:
        piece = os.pread(fd, min(1 << 22, length - done), start + done)
        if not piece:
            break
        digest.update(piece)
        done += len(piece)
    return digest.intdigest()


def _refuse_damage(path: str, fd: int, at: int, number: int, size: int) -> None:
    """A torn frame is the last one. If a whole frame follows a bad one, committed samples are damaged."""
    step, carry, base = 1 << 22, b"", at + 1
    position = base
    while position < size:
        piece = carry + os.pread(fd, step, position)
        begin = position - len(carry)
        found = piece.find(MAGIC)
        while found >= 0:
            if _is_later_frame(fd, begin + found, number, size):
                raise JournalError(
                    f"{path}: frame {number} at byte {at:,} is damaged, and whole frames follow it, so samples that "
                    "were committed are lost; keep a copy of this file and pack again with overwrite=True")
            found = piece.find(MAGIC, found + 1)
        carry = piece[-(len(MAGIC) - 1):]
        position += step


def _is_later_frame(fd: int, at: int, number: int, size: int) -> bool:
    head = os.pread(fd, _FRAME.size, at)
    if len(head) < _FRAME.size:
        return False
    magic, version, found, length, digest = _FRAME.unpack(head)
    start = at + _FRAME.size
    return bool(version == VERSION and found > number and length <= size - start
                and _digest(fd, found, start, length) == digest)


def _write_all(fd: int, blobs: Sequence[bytes], offset: int) -> None:
    """Positional write of all bytes; a short write is gone on from."""
    views = [memoryview(b) for b in blobs if len(b)]
    while views:
        done = os.pwritev(fd, views[:512], offset)
        offset += done
        while views and done >= len(views[0]):
            done -= len(views.pop(0))
        if done:
            views[0] = views[0][done:]
