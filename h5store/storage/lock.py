"""Bytes: one writer a store. The lock is the kernel's (flock), so a crash frees it and no setting of HDF5's matters."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import weakref

from h5store.errors import StoreLockedError


class WriterLock:
    """Held from construction to `release`, by one process on one file system. Losing the object releases it.

    Raises
    ------
    StoreLockedError
        Another writer holds it; the message says which.
    OSError
        The folder is missing or cannot be written, or its file system has no locks.
    """

    def __init__(self, store: str) -> None:
        self.path, self._pid, self._fd = store + ".lock", os.getpid(), -1
        while self._fd < 0:
            fd = _open(self.path)
            try:
                _lock(fd, store)
                if self._is_current(fd):  # else its former holder removed it between our open and our lock
                    self._fd = fd
            finally:
                if self._fd < 0:
                    os.close(fd)
        _held.add(self)
        # A full disk has no room for the name; it is for people only, the lock is the kernel's.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, _me().encode(), 0)

    def _is_current(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self.path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Remove the lock file, then the lock. Does nothing the second time, nor in a forked child."""
        if self._fd >= 0 and self._pid == os.getpid():
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.release()

    def forget(self) -> None:
        """Close a forked child's copy: while it is open, the lock would outlive the parent that holds it."""
        os.close(self._fd)
        self._fd = -1


def _me() -> str:
    return f"process {os.getpid()} on {os.uname().nodename}"


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "no such folder to write a store in; make it first",
                                os.path.dirname(path)) from None


def _lock(fd: int, store: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 200, 0).decode("utf-8", "replace").strip()
        if holder == _me():
            raise StoreLockedError(f"{store}: a Writer of this process holds the store; close() it to seal what it "
                                   "has, or lose it (del) to keep its journal for resume=True") from None
        raise StoreLockedError(f"{store}: another writer holds the store ({holder or 'just starting'}); wait "
                               "until it is done, or stop it") from None
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: its file system cannot lock files (flock), so a second writer "
                      "would not be noticed; write to a local disk and move the store", store) from error


_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _forget_parent() -> None:
    for lock in list(_held):
        if lock._fd >= 0:
            lock.forget()


os.register_at_fork(after_in_child=_forget_parent)
