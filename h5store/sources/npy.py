"""Sources: the .npy format and arrays without a header. Nothing is ever unpickled."""

from __future__ import annotations

import ast
import functools
import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from h5store.errors import SourceError

MAGIC = b"\x93NUMPY"
#: numpy itself reads headers up to this length; longer ones could keep the parser busy for minutes.
MOST_HEADER = 10_000
#: Bytes that hold the header of nearly every file.
FIRST = 256


class Unreadable(Exception):
    """Why one file, or one member of an archive, gives no array."""


@dataclass(frozen=True)
class Header:
    """What a .npy header says; the values begin `size` bytes after its start."""

    dtype: np.dtype
    shape: tuple[int, ...]
    fortran: bool
    size: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def header_size(data: bytes) -> int:
    """Bytes up to the first value, from the first 12 bytes of the format.

    Raises
    ------
    Unreadable
    """
    if data[:6] != MAGIC or len(data) < 12:
        raise Unreadable("not a .npy array" if data else "it is empty")
    # https://numpy.org/neps/nep-0001-npy-format.html: two bytes of length in version 1, four in 2 and 3.
    wide = data[6] > 1
    size = (12 if wide else 10) + int.from_bytes(data[8:12] if wide else data[8:10], "little")
    if size > MOST_HEADER:
        raise Unreadable(f"its header takes {size:,} bytes, expected at most {MOST_HEADER:,}")
    return size


@functools.lru_cache(maxsize=4096)
def parse(data: bytes) -> Header:
    """Read a whole header, its first `header_size` bytes.

    Raises
    ------
    Unreadable
        Malformed, cut short, or an array of Python objects.
    """
    size = header_size(data)
    if len(data) < size:
        raise Unreadable("it is cut short in its header")
    try:
        said = ast.literal_eval(data[12 if data[6] > 1 else 10:size].decode("utf-8" if data[6] > 2 else "latin-1"))
        dtype = np.lib.format.descr_to_dtype(said["descr"])
        shape, fortran = tuple(map(int, said["shape"])), bool(said["fortran_order"])
    except Exception as error:
        raise Unreadable(f"its .npy header is malformed ({type(error).__name__}: {error})") from error
    if dtype.hasobject:
        raise Unreadable(
            f"it has dtype {dtype}: its values are pickled Python objects, and unpickling runs whatever code the file "
            "holds, so that is never done; where you trust it, load it yourself and pack what it holds: text as str, "
            "ragged samples as a list of arrays, or pad them to one shape and save that")
    return Header(dtype, shape, fortran, size)


def open_npy(path: str) -> np.ndarray:
    """The array of a .npy file, mapped, not read.

    Raises
    ------
    FileNotFoundError
    SourceError
        Not a .npy file, cut short, or one that would have to be unpickled.
    """
    with open(path, "rb") as file:
        head = file.read(MOST_HEADER)
    try:
        header = parse(head[:header_size(head)])
    except Unreadable as error:
        raise SourceError(f"{path}: {error}") from error
    return mapped(path, header.dtype, header.shape, header.size, "F" if header.fortran else "C")


def mapped(path: str, dtype: np.dtype, shape: tuple[int, ...], offset: int, order: Any = "C") -> np.ndarray:
    """Values in a file as a read-only memory map.

    Raises
    ------
    SourceError
        The file ends before they do.
    """
    need, have = offset + math.prod(shape) * dtype.itemsize, os.path.getsize(path)
    if have < need:
        raise SourceError(f"{path}: is cut short: {dtype.name} of shape {shape} ends at byte {need:,}, the file has "
                          f"{have:,}")
    if not math.prod(shape):
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", offset, shape, order)


def open_raw(path: str, dtype: Any, shape: Any, offset: int = 0) -> np.ndarray:
    """Values of a file without a header, mapped.

    Parameters
    ----------
    shape : tuple of int, or path of a .npy file that holds it, or None
        Samples first; -1 for as many as the file holds. None: the shape array beside the file,
        ``X.shape.npy``, ``X.dat.shape.npy`` or ``X_shape.npy``.

    Raises
    ------
    FileNotFoundError, SourceError
    """
    try:
        kind = np.dtype(dtype)
    except TypeError as error:
        raise SourceError(f"{path}: {dtype!r} is not a dtype ({error}); e.g. float32") from error
    if kind.hasobject:
        raise SourceError(f"{path}: dtype {kind} cannot be read from raw bytes; e.g. float32")
    size = os.path.getsize(path)
    lengths = _saved_shape(path) if shape is None else shape
    if isinstance(lengths, (str, os.PathLike)):
        lengths = open_npy(os.fspath(lengths)).ravel().tolist()
    lengths = tuple(int(s) for s in np.atleast_1d(lengths))
    one = math.prod(lengths[1:]) * kind.itemsize
    if lengths[:1] == (-1,) and min(lengths[1:], default=1) > 0:
        if (size - offset) % one:
            raise SourceError(f"{path}: holds {size - offset:,} bytes, no whole number of samples of {one:,} bytes "
                              f"({kind.name} {lengths[1:]}); check dtype and shape")
        lengths = ((size - offset) // one, *lengths[1:])
    if not lengths or min(lengths) < 0:
        raise SourceError(f"{path}: shape {lengths} is not one; expected (samples, ...), -1 first for as many as the "
                          "file holds")
    need = offset + lengths[0] * one
    if size != need:
        raise SourceError(f"{path}: has {size:,} bytes, but {kind.name} of shape {lengths} takes {need:,}; check dtype "
                          "and shape, -1 first takes as many samples as the file holds")
    return mapped(path, kind, lengths, offset)


def _saved_shape(path: str) -> str:
    stem = os.path.splitext(path)[0]
    names = [f"{stem}.shape.npy", f"{path}.shape.npy", f"{stem}_shape.npy"]
    found = next((n for n in names if os.path.exists(n)), None)
    if found is None:
        raise SourceError(f"{path}: a raw file says nothing of its shape; give it, e.g. (-1, 100, 6), or save it "
                          f"beside the file: numpy.save({os.path.basename(names[0])!r}, array.shape)")
    return found
