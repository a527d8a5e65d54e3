"""Bytes: open a store, believing nothing. libhdf5 reads two small plain datasets; the rest is arithmetic.

What the file says is checked before it is used: that it is whole, that its seal is the hash of its schema
and chunk table, and that every chunk lies inside it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from h5py import h5d

from h5store.errors import FormatError, H5StoreError, nearest
from h5store.schema import Field
from h5store.storage import layout as _layout
from h5store.storage.chunks import ChunkTable
from h5store.storage.handles import FileSource, Identity
from h5store.storage.layout import FORMAT, PRIVATE, SIGNATURE, Layout

#: What other files start with, for an error that helps.
_KNOWN = {b"PK\x03\x04": "a zip archive such as .npz", b"\x93NUMPY": "a .npy array",
          b"\x1f\x8b": "gzip data", b"PAR1": "a Parquet table"}


@dataclass(frozen=True)
class StoreFile:
    """A sealed store as found: where its bytes are and what they mean."""

    source: FileSource
    layout: Layout
    tables: dict[str, ChunkTable]
    seal: str


def journal_path(path: str) -> str:
    """The journal of a store that is being written lies beside it."""
    return path + ".journal"


def stat(path: str) -> os.stat_result:
    """
    Raises
    ------
    FileNotFoundError, FormatError
        Nothing there, or only the journal of a store that was not finished.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        if os.path.exists(journal_path(path)):
            raise FormatError(f"{path}: not finished; its journal is beside it, so it is still being written or was "
                              f"interrupted; run the writer again with resume=True") from None
        folder, name = os.path.split(path)
        try:
            near = [n for n in os.listdir(folder or ".") if not n.startswith(".")]
        except OSError:
            near = []
        raise FileNotFoundError(f"{path}: no such file; {nearest(name, near, 'files beside it')}") from None
    if os.path.isdir(path):
        raise FormatError(f"{path}: is a folder, expected an HDF5 file")
    return found


def open_hdf5(path: str) -> tuple[h5py.File, FileSource]:
    """Open an HDF5 file for reading, with errors that say what is wrong with it."""
    found = stat(path)
    with open(path, "rb") as file:
        head = file.read(8)
    if head != SIGNATURE:
        # HDF5 also allows a user block before the signature, at 512 and its doublings.
        if not head.startswith(tuple(_KNOWN)) and found.st_size > 512 and h5py.is_hdf5(path):
            head = SIGNATURE
    if head != SIGNATURE:
        looks = next((f"it looks like {text}" for magic, text in _KNOWN.items() if head.startswith(magic)),
                     "it is empty" if not head else "its first bytes are not HDF5's")
        raise FormatError(f"{path}: not an HDF5 file, {looks}; expected a store; pack it first: h5store.pack(...)")
    try:
        # locking: a reader never waits for, nor stops, anybody; stores are replaced whole, not changed.
        file = h5py.File(path, "r", locking=False, rdcc_nbytes=0)
    except OSError as error:
        what = "cut short" if "truncated" in str(error) else "damaged"
        raise FormatError(f"{path}: {what} ({_reason(error)}); restore it from a copy, or pack it again") from error
    return file, FileSource(path, Identity.of(found))


def _reason(error: Exception) -> str:
    text = str(error)
    return text[text.find("(") + 1:].rstrip(")") if "(" in text else text


def open_store(path: str) -> StoreFile:
    """Open and validate a sealed store.

    Raises
    ------
    FileNotFoundError
    FormatError
        Not HDF5, not a store, newer than this version, cut short, damaged, or not finished.
    """
    path = os.path.abspath(os.fspath(path))
    file, source = open_hdf5(path)
    try:
        return _read(file, source)
    except (H5StoreError, FileNotFoundError):
        raise
    except Exception as error:  # whatever libhdf5 or json make of damaged metadata
        raise FormatError(f"{path}: damaged ({type(error).__name__}: {error}); restore it from a copy") from error
    finally:
        file.close()


def _read(file: h5py.File, source: FileSource) -> StoreFile:
    path = source.path
    kind, version = _attribute(file, "format"), file.attrs.get("format_version")
    if kind != "h5store" or version is None:
        raise FormatError(f"{path}: an HDF5 file, but not a store of h5store; read it with "
                          f"h5store.Reader.from_hdf5({path!r}, features=..., labels=...)")
    if not 1 <= int(version) <= FORMAT:
        raise FormatError(f"{path}: format {int(version)}, this version of h5store reads 1 to {FORMAT}; "
                          "upgrade with: pip install -U h5store")
    schema_json = _plain(file, "schema", np.dtype("u1"), source).tobytes()
    table = _plain(file, "chunks", np.dtype("<u8"), source)
    seal = _layout.seal_of(schema_json, table)
    if seal != _attribute(file, "seal"):
        raise FormatError(f"{path}: the seal differs, so the schema or the chunk table is damaged or was changed "
                          f"after sealing; restore it from a copy, or see what is whole: h5store verify {path}")
    layout = Layout.from_json(json.loads(schema_json))
    counts = [layout.count(f) for f in layout.schema]
    if table.shape != (sum(counts), 3):
        raise FormatError(f"{path}: the chunk table has shape {table.shape}, {layout.length} samples make "
                          f"{(sum(counts), 3)}; the file is damaged")
    tables, at = {}, 0
    for field, count in zip(layout.schema, counts):
        tables[field.name] = _checked_table(path, layout, field, table[at:at + count], source.identity.size)
        at += count
    return StoreFile(source, layout, tables, seal)


def _checked_table(path: str, layout: Layout, field: Field, rows: np.ndarray, size: int) -> ChunkTable:
    table = ChunkTable(layout.chunks[field.name], *(np.ascontiguousarray(rows[:, i]) for i in range(3)))
    decoded = layout.chunks[field.name] * field.nbytes
    table.check(f"{path}[{field.name!r}]", size, decoded + decoded // 8 + 65536)
    return table


def _attribute(file: h5py.File, name: str) -> str | None:
    if name not in file.attrs:
        return None
    identity = file.attrs.get_id(name)
    if identity.dtype.kind != "S" or identity.shape != () or identity.dtype.itemsize > 64:
        return None
    value = file.attrs[name]
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)


def _plain(file: h5py.File, name: str, dtype: np.dtype, source: FileSource) -> np.ndarray:
    """Read one of our own datasets: hard link, contiguous, inside this file, no longer than it."""
    where = f"{PRIVATE}/{name}"
    for part in (PRIVATE, where):
        if not isinstance(file.get(part, getlink=True), h5py.HardLink):
            raise FormatError(f"{source.path}: {part!r} is missing or a link elsewhere; the file is damaged")
    dataset = file[where]
    plain = isinstance(dataset, h5py.Dataset)
    if plain:
        creation = dataset.id.get_create_plist()
        plain = (creation.get_layout() == h5d.CONTIGUOUS and creation.get_external_count() == 0
                 and dataset.dtype == dtype and dataset.nbytes <= source.identity.size)
    if not plain:
        raise FormatError(f"{source.path}: {where!r} is not a plain {dtype} dataset; the file is damaged")
    out: Any = dataset[...]
    return out  # type: ignore[no-any-return]
