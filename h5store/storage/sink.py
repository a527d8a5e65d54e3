"""Bytes: the file that libhdf5 writes through while a store is sealed. A call that fails is kept, not shown to it.

After a failed write libhdf5 keeps the file's ids, complains again when the interpreter ends, and tells no errno. So it
goes on writing into nothing, closes in peace, and `check` raises what the system said.
"""

from __future__ import annotations

import os


class Sink:
    """A new file at `path`, as h5py's ``fileobj`` driver wants it. One thread at a time.

    Raises
    ------
    OSError
        The file cannot be made, or is there already.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._at = 0
        self._error: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (os.fstat(self._fd).st_size if whence == os.SEEK_END else 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:
        done = os.preadv(self._fd, [buffer], self._at)
        self._at += done
        return done

    def write(self, data: memoryview) -> int:
        left = memoryview(data).cast("B")
        size, at = len(left), self._at
        try:
            while len(left) and self._error is None:
                done = os.pwrite(self._fd, left, at)
                left, at = left[done:], at + done
        except OSError as error:
            self._error = error
        self._at += size
        return size

    def truncate(self, size: int) -> int:
        try:
            if self._error is None:
                os.ftruncate(self._fd, size)
        except OSError as error:
            self._error = error
        return size

    def flush(self) -> None:
        """Nothing is held back."""

    def check(self) -> None:
        """
        Raises
        ------
        OSError
            With the errno of the first call that failed.
        """
        if self._error is not None:
            raise OSError(self._error.errno, self._error.strerror)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
