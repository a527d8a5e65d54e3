"""Out again: the samples of a reader as .npy or .npz files, or as a plain HDF5 file. Memory stays flat."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import h5py
import numpy as np

from h5store.errors import OptionError, StoreExistsError, nearest
from h5store.reader import Reader

#: Decoded bytes that are held at once.
_STEP_BYTES = 8 << 20


def export(reader: Reader, to: str, out: str, *, fields: Sequence[str] | None = None, overwrite: bool = False) -> str:
    """Write the samples of a reader, one array a field.

    Parameters
    ----------
    reader : Reader
    to : {"npy", "npz", "hdf5"}
        A folder with a .npy file a field; one uncompressed .npz; or an HDF5 file with a dataset a field, gzip
        compressed, text as UTF-8.
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


def _pieces(reader: Reader, name: str) -> Iterator[tuple[int, np.ndarray]]:
    """(first sample, samples) of a field, in order."""
    view = reader[name]
    step = max(1, _STEP_BYTES // max(1, view.nbytes // max(1, len(view))))
    for start in range(0, len(view), step):
        yield start, np.ascontiguousarray(view[start:start + step], view.dtype)


def _write_npy(file: Any, reader: Reader, name: str) -> None:
    view = reader[name]
    np.lib.format.write_array_header_1_0(file, {"descr": np.lib.format.dtype_to_descr(view.dtype),
                                                "fortran_order": False, "shape": view.shape})
    for _, samples in _pieces(reader, name):
        file.write(samples.tobytes())


def _npy(reader: Reader, out: str, names: Sequence[str]) -> None:
    os.mkdir(out)
    for name in names:
        with open(os.path.join(out, f"{name}.npy"), "xb") as file:
            _write_npy(file, reader, name)


def _npz(reader: Reader, out: str, names: Sequence[str]) -> None:
    with zipfile.ZipFile(out, "x") as archive:
        for name in names:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                _write_npy(file, reader, name)


def _hdf5(reader: Reader, out: str, names: Sequence[str]) -> None:
    with h5py.File(out, "x") as file:
        for name in names:
            view, field = reader[name], reader.schema[name]
            dtype = h5py.string_dtype() if field.text else view.dtype
            chunk = max(1, min(len(view), (128 << 10) // max(1, field.nbytes)))
            dataset = file.create_dataset(name, view.shape, dtype, chunks=(chunk, *field.shape), compression="gzip",
                                          shuffle=not field.text)
            dataset.attrs["role"] = str(field.role)
            for start, samples in _pieces(reader, name):
                dataset[start:start + len(samples)] = samples.astype(object) if field.text else samples
