"""Bytes: one writer a store. The lock is the kernel's (flock), so a crash frees it and no setting of HDF5's matters."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket

from h5store.errors import StoreLockedError


class WriterLock:
    """Held from construction to `release`, by one process on one file system.

    Raises
    ------
    StoreLockedError
        Another writer holds it; the message says which.
    OSError
        The folder is missing or cannot be written.
    """

    def __init__(self, store: str) -> None:
        self.path = store + ".lock"
        self._pid = os.getpid()
        while True:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(self._fd, 200, 0).decode("utf-8", "replace").strip()
                os.close(self._fd)
                raise StoreLockedError(f"{store}: another writer holds the store ({holder or 'just starting'}); wait "
                                       "until it is done, or stop it") from None
            except BaseException:
                os.close(self._fd)
                raise
            if self._is_current():
                break
            os.close(self._fd)  # the former holder removed the file between our open and our lock
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Remove the lock file, then the lock. Does nothing the second time, nor in a forked child."""
        if self._fd >= 0 and self._pid == os.getpid():
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            os.close(self._fd)
            self._fd = -1
