"""Bytes: the loop over chunks as machine code, `kernel.c`, where it was compiled when h5store was installed.

Python takes some 10 µs for every chunk beside its decoding, and holds the GIL meanwhile. docs/decisions.md has what
was tried before.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
from functools import lru_cache
from typing import Any

import numpy as np

from h5store.storage import blosc

_ADDRESS = ctypes.c_void_p


class Job(ctypes.Structure):
    """What the kernel knows of a field, as in `kernel.c`."""

    _fields_ = [*((name, _ADDRESS) for name in ("xxh3", "begin", "reset", "update", "digest", "end", "decompress",
                                                "getitem", "lz4")),
                *((name, ctypes.c_int64) for name in ("row", "nbytes", "few", "verify", "blosc", "alone"))]


class Kernel:
    """The kernel for one field.

    Parameters
    ----------
    row, nbytes : int
        Bytes of a sample and of a decoded chunk.
    few : int
        Up to so many samples of a chunk are decoded one by one.
    verify, blosc, alone : bool
        Check sums; chunks are Blosc's, not stored plainly; their samples may be blocks that are not shuffled.
    """

    def __init__(self, copy: Any, functions: tuple[int, ...], *, row: int, nbytes: int, few: int, verify: bool,
                 blosc: bool, alone: bool) -> None:
        self._copy = copy
        self._job = Job(*functions, row, nbytes, few, verify, blosc, alone)
        self._address = ctypes.addressof(self._job)

    def __call__(self, fd: int, pieces: np.ndarray, pick: np.ndarray | None, to: np.ndarray | None, out: np.ndarray,
                 stored: int, capacity: int, scratch: int) -> int:
        """How many of `pieces` (chunk, start, stop, at, offset, size, sum), uint64, were done.

        `pick` and `to` are int64, `stored` and `scratch` addresses of memory, all as `kernel.c` says.
        """
        return self._copy(self._address, fd, len(pieces), _address(pieces), pick if pick is None else _address(pick),
                          to if to is None else _address(to), _address(out), stored, capacity, scratch)  # type: ignore


def present() -> bool:
    """Whether the kernel was compiled, and finds what it calls."""
    return _library() is not None


def kernel(**field: Any) -> Kernel | None:
    """The kernel for a field, see `Kernel`; None where it cannot be had."""
    found = _library()
    return None if found is None else Kernel(*found, **field)


def _address(array: np.ndarray) -> int:
    # Twice as quick as array.ctypes.data.
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]


def _quickest(library: ctypes.CDLL, name: str) -> Any:
    """A function of xxHash: on x86 there is one beside it that takes what the processor has."""
    return getattr(library, f"{name}_dispatch", None) or getattr(library, name)


@lru_cache(maxsize=1)
def _library() -> tuple[Any, tuple[int, ...]] | None:
    """The kernel and the addresses of the functions that it calls; None where one is not to be had."""
    found, other = blosc.library(), importlib.util.find_spec("xxhash._xxhash")
    made = glob.glob(os.path.join(os.path.dirname(__file__), "_kernel*.so"))
    if found is None or other is None or other.origin is None or not made:
        return None
    try:
        copy, xxh = ctypes.CDLL(made[0]).h5store_copy, ctypes.CDLL(other.origin)
        sums = (_quickest(xxh, "XXH3_64bits"), xxh.XXH3_createState, xxh.XXH3_64bits_reset,
                _quickest(xxh, "XXH3_64bits_update"), xxh.XXH3_64bits_digest, xxh.XXH3_freeState)
    except (OSError, AttributeError):
        return None
    copy.restype, number = ctypes.c_int64, ctypes.c_int64
    copy.argtypes = (_ADDRESS, ctypes.c_int, number, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, number, _ADDRESS)
    functions = *sums, found.blosc_decompress_ctx, found.blosc_getitem, found.LZ4_decompress_safe
    return copy, tuple(ctypes.cast(function, _ADDRESS).value or 0 for function in functions)
