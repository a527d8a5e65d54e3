"""Out again: the samples of a reader as .npy or .npz files, or as a plain HDF5 file. Memory stays flat."""

from __future__ import annotations

import math
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from h5store.errors import OptionError, StoreExistsError, nearest
from h5store.reader import Reader

#: Decoded bytes that are held at once.
_STEP_BYTES = 8 << 20
#: Of a plain HDF5 file: as h5store's own default.
_CHUNK_BYTES = 128 << 10


def export(reader: Reader, to: str, out: str, *, fields: Sequence[str] | None = None, overwrite: bool = False) -> str:
    """Write the samples of a reader, one array a field.

    Parameters
    ----------
    reader : Reader
    to : {"npy", "npz", "hdf5"}
        A folder with a .npy file a field; one uncompressed .npz; or an HDF5 file with a dataset a field, gzip
        compressed, text as UTF-8. A variable-length field makes two arrays: the values of all samples, one after the
        other, and ``<field>_offsets`` (n + 1,), where each begins.
    out : path
    fields : list of str, optional
        All by default.
    overwrite : bool

    Returns
    -------
    str
        `out`.

    Raises
    ------
    OptionError, StoreExistsError, FieldNotFound, OSError
    """
    writers: dict[str, Callable[[Reader, str, Sequence[str]], None]] = {"npy": _npy, "npz": _npz, "hdf5": _hdf5}
    if to not in writers:
        raise OptionError(f"to: no format {to!r}; {nearest(to, writers, 'formats')}")
    names = list(reader.schema.names if fields is None else fields)
    for name in names:
        reader[name]  # a name that is not there is an error before anything is written
    if os.path.exists(out) and not overwrite:
        raise StoreExistsError(f"{out}: is already there; replace it with overwrite=True (--overwrite), or write "
                               "elsewhere")
    aside = f"{out}.exporting"
    _remove(aside)
    try:
        writers[to](reader, aside, names)
        _remove(out)
        os.replace(aside, out)
    finally:
        _remove(aside)
    return out


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


@dataclass(frozen=True)
class _Array:
    """One array to be written."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: np.dtype
    text: bool
    pieces: Iterator[np.ndarray]


def _arrays(reader: Reader, names: Sequence[str]) -> Iterator[_Array]:
    for name in names:
        view, field, role = reader[name], reader.schema[name].seen, str(reader.schema[name].role)
        if not field.ragged:
            step = max(1, _STEP_BYTES // max(1, view.nbytes // max(1, len(view))))
            yield _Array(name, role, view.shape, view.dtype, field.text,
                         (np.ascontiguousarray(view[at:at + step], view.dtype) for at in range(0, len(view), step)))
            continue
        lengths = reader._store.lengths(name, reader.ids)
        step = max(1, _STEP_BYTES // max(1, field.nbytes * int(lengths.mean() if len(lengths) else 1)))
        yield _Array(name, role, (int(lengths.sum()), *field.shape[1:]), view.dtype, False,
                     (sample for at in range(0, len(view), step) for sample in view[at:at + step]))
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        yield _Array(f"{name}_offsets", role, offsets.shape, offsets.dtype, False, iter([offsets]))


def _write_npy(file: Any, array: _Array) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": np.lib.format.dtype_to_descr(array.dtype),
                                                "fortran_order": False, "shape": array.shape})
    for piece in array.pieces:
        file.write(piece.tobytes())


def _npy(reader: Reader, out: str, names: Sequence[str]) -> None:
    os.mkdir(out)
    for array in _arrays(reader, names):
        with open(os.path.join(out, f"{array.name}.npy"), "xb") as file:
            _write_npy(file, array)


def _npz(reader: Reader, out: str, names: Sequence[str]) -> None:
    with zipfile.ZipFile(out, "x") as archive:
        for array in _arrays(reader, names):
            with archive.open(f"{array.name}.npy", "w", force_zip64=True) as file:
                _write_npy(file, array)


def _hdf5(reader: Reader, out: str, names: Sequence[str]) -> None:
    with h5py.File(out, "x") as file:
        for array in _arrays(reader, names):
            dtype = h5py.string_dtype() if array.text else array.dtype
            sample = array.dtype.itemsize * math.prod(array.shape[1:])
            chunk = max(1, min(array.shape[0], _CHUNK_BYTES // max(1, sample)))
            dataset = file.create_dataset(array.name, array.shape, dtype, chunks=(chunk, *array.shape[1:]),
                                          compression="gzip", shuffle=not array.text)
            dataset.attrs["role"] = array.role
            at = 0
            for piece in array.pieces:
                dataset[at:at + len(piece)] = piece.astype(object) if array.text else piece
                at += len(piece)
