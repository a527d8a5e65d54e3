"""Bytes: file handles of this process, opened on demand, shared by readers, capped, never inherited.

A local file is one kind of source: `FileSource` is all that the floors above know of where bytes come from.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from h5store.errors import CorruptChunkError, StaleStoreError

#: Open files kept by one process. Well below the usual limit of 1024 descriptors.
CAP = 128


@dataclass(frozen=True)
class Identity:
    """What tells a file from another one that has taken its path."""

    device: int
    inode: int
    size: int
    changed: int  # numbers of inodes are used again

    @classmethod
    def of(cls, stat: os.stat_result) -> Identity:
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


@dataclass(frozen=True)
class FileSource:
    """Bytes of one local file, as it was when it was opened."""

    path: str
    identity: Identity

    @contextmanager
    def lease(self) -> Iterator[int]:
        """A file descriptor that stays open inside the ``with``. Read it with `read_into` only.

        Raises
        ------
        StaleStoreError
            Another file is at the path now, or none.
        """
        handle = _cache().take(self)
        try:
            yield handle.fd
        finally:
            _cache().give(self, handle)

    def hold(self) -> None:
        """Open the file now, so that what replaces it later is not read: the handle stays on the old one."""
        with self.lease():
            pass

    def read_into(self, fd: int, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` from `offset`; positional, so that threads and forks do not disturb each other.

        Raises
        ------
        CorruptChunkError
            The file ends before.
        """
        want = len(buffer)
        done = os.preadv(fd, [buffer], offset)
        while done < want:
            got = os.preadv(fd, [buffer[done:]], offset + done)
            if got == 0:
                raise CorruptChunkError(
                    f"{self.path}: the file ends at byte {offset + done:,}, expected {offset + want:,}; it was "
                    "cut short after it was opened, restore it from a copy"
                )
            done += got


@dataclass
class _Handle:
    fd: int
    users: int = 0


class _HandleCache:
    """Least recently used handles of one process. Safe in threads."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._open: OrderedDict[FileSource, _Handle] = OrderedDict()

    def take(self, source: FileSource) -> _Handle:
        with self._lock:
            handle = self._open.get(source)
            if handle is None:
                handle = self._open[source] = _Handle(_open_same(source))
            self._open.move_to_end(source)
            handle.users += 1
            self._trim()
            return handle

    def give(self, source: FileSource, handle: _Handle) -> None:
        with self._lock:
            handle.users -= 1
            if handle.users == 0 and self._open.get(source) is not handle:
                os.close(handle.fd)  # dropped while in use
            self._trim()

    def drop(self, source: FileSource) -> None:
        with self._lock:
            handle = self._open.pop(source, None)
            if handle is not None and handle.users == 0:
                os.close(handle.fd)

    def close_all(self) -> None:
        for handle in self._open.values():
            os.close(handle.fd)
        self._open.clear()

    def _trim(self) -> None:
        for source in [s for s, h in self._open.items() if h.users == 0][:max(0, len(self._open) - CAP)]:
            os.close(self._open.pop(source).fd)


def _open_same(source: FileSource) -> int:
    try:
        fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StaleStoreError(f"{source.path}: the store cannot be opened again ({error.strerror}); it was moved or "
                              "removed since this reader was made, make a new Reader") from error
    if Identity.of(os.fstat(fd)) != source.identity:
        os.close(fd)
        raise StaleStoreError(f"{source.path}: another file is at this path since this reader was made (written anew, "
                              "or changed in length); make a new Reader")
    return fd


_caches: dict[int, _HandleCache] = {}


def _cache() -> _HandleCache:
    pid = os.getpid()
    cache = _caches.get(pid)
    if cache is None:
        cache = _caches.setdefault(pid, _HandleCache())
    return cache


def _forget_parent() -> None:
    # Locks may be held by threads that a fork did not copy: nothing of the parent's is touched but its descriptors.
    for cache in _caches.values():
        cache.close_all()
    _caches.clear()


os.register_at_fork(after_in_child=_forget_parent)


def drop(source: FileSource) -> None:
    """Close this process's handle of a source now, or as soon as nobody reads through it."""
    _cache().drop(source)
