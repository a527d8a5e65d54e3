"""Bytes: what a file must hold to before anything of it is read. Every check of a file from a stranger is here.

A store is found by `h5store.storage.metadata`, so that libhdf5 never sees it; files of other programs need libhdf5,
and what could lead it astray is refused first.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import h5py
import numpy as np
from h5py import h5d, h5pl, h5z

from h5store.errors import FormatError
from h5store.schema import Field
from h5store.storage import layout as _layout
from h5store.storage.chunks import ChunkTable
from h5store.storage.codecs import NAMES
from h5store.storage.handles import FileSource
from h5store.storage.layout import FORMAT, PRIVATE, Layout
from h5store.storage.metadata import Metadata, Plain

# Class lists of millions of texts fit; what JSON makes of a stranger's 64 MiB does not take the machine down.
_MOST_SCHEMA = 64 << 20
_MOST_NESTED = 1 << 16
#: A chunk that libhdf5 would take, and decode in one piece.
_MOST_CHUNK = 2**32 - 1
#: Chunks of one sample that may never have been written.
_MOST_MISSING = 1 << 16
#: A pebibyte: what is larger is no training set but a number that somebody made up.
_MOST_DECODED = 2**50


@dataclass(frozen=True)
class StoreFile:
    """A sealed store as found: where its bytes are and what they mean."""

    source: FileSource
    layout: Layout
    tables: dict[str, ChunkTable]
    seal: str


# ---- stores of our own


def checked_store(fd: int, source: FileSource) -> StoreFile:
    """The store in an open file, after every check that needs no chunk to be read.

    That its metadata are whole, that nothing of it lies elsewhere, that its seal is the hash of its schema and chunk
    table, that the table fits the schema, and that every chunk lies inside the file.

    Raises
    ------
    FormatError
    MetadataError
    """
    path, metadata = source.path, Metadata(fd, source.identity.size)
    attributes = metadata.attributes(metadata.root)
    version = attributes.get("format_version")
    if attributes.get("format") != b"h5store" or not isinstance(version, int):
        raise FormatError(not_ours(path))
    if not 1 <= version <= FORMAT:
        raise FormatError(f"{path}: format {version}, this version of h5store reads 1 to {FORMAT}; "
                          "upgrade with: pip install -U h5store")
    schema_json = _values(source, fd, metadata, "schema", np.dtype("u1"), 1, _MOST_SCHEMA).tobytes()
    table = _values(source, fd, metadata, "chunks", np.dtype("<u8"), 2, source.identity.size)
    seal = _layout.seal_of(schema_json, table)
    if seal.encode() != attributes.get("seal"):
        raise FormatError(f"{path}: the seal differs, so the schema or the chunk table is damaged or was changed "
                          "after sealing; restore it from a copy, or save what is whole: "
                          f"h5store verify {path} --repair OUT")
    layout = checked_layout(path, schema_json)
    return StoreFile(source, layout, checked_tables(path, layout, table, source.identity.size), seal)


def not_ours(path: str) -> str:
    """What to say of an HDF5 file that is no store."""
    return (f"{path}: an HDF5 file, but not a store of h5store; read it with "
            f"h5store.Reader.from_hdf5({path!r}, features=..., labels=...)")


def _values(source: FileSource, fd: int, metadata: Metadata, name: str, dtype: np.dtype, axes: int,
            most: int) -> np.ndarray:
    found = private(metadata, name)
    if found is None or found.dtype != dtype or len(found.shape) != axes or found.nbytes > most:
        raise FormatError(f"{source.path}: '{PRIVATE}/{name}' is missing, or not a plain {dtype} dataset of {axes} "
                          "axes; the file is damaged, restore it from a copy")
    out = np.empty(found.shape, dtype)
    source.read_into(fd, found.offset, memoryview(out.reshape(-1).view(np.uint8)))  # type: ignore[arg-type]
    return out


def private(metadata: Metadata, *path: str) -> Plain | None:
    """One of the plain datasets that only h5store reads, or None.

    Raises
    ------
    MetadataError
    """
    at = metadata.find(PRIVATE, *path)
    return None if at is None else metadata.plain(at)


def salvageable_store(fd: int, source: FileSource) -> StoreFile:
    """The store in a file whose seal or metadata may be damaged, for reading what chunks are whole.

    The sum of each chunk tells whether it is: a chunk that the table places outside the file is one that is not.

    Raises
    ------
    FormatError
    MetadataError
        The schema or the chunk table cannot be found.
    """
    metadata = Metadata(fd, source.identity.size, strict=False)
    schema_json = _values(source, fd, metadata, "schema", np.dtype("u1"), 1, _MOST_SCHEMA).tobytes()
    table = _values(source, fd, metadata, "chunks", np.dtype("<u8"), 2, source.identity.size)
    size, layout = source.identity.size, checked_layout(source.path, schema_json)
    most = max((layout.chunks[f.name] * f.nbytes * 9 // 8 + 65536 for f in layout.columns), default=0)
    table[(table[:, 0] > size) | (table[:, 1] > min(size, most)) | (table[:, 0] + table[:, 1] > size)] = 0
    return StoreFile(source, layout, checked_tables(source.path, layout, table, size), "")


def checked_layout(path: str, schema_json: bytes) -> Layout:
    """The layout that a schema's JSON says, or a complaint."""
    if max(schema_json.count(b"{"), schema_json.count(b"[")) > _MOST_NESTED:
        raise FormatError(f"{path}: the schema holds more than {_MOST_NESTED:,} lists; the file is damaged, restore "
                          "it from a copy")
    return Layout.from_json(json.loads(schema_json))


def checked_tables(path: str, layout: Layout, table: np.ndarray, size: int) -> dict[str, ChunkTable]:
    """The chunk table cut into fields: as many chunks as the samples need, each inside the file and not too large."""
    counts = [layout.count(f) for f in layout.columns]
    if table.shape != (sum(counts), 3):
        raise FormatError(f"{path}: the chunk table has shape {table.shape}, {layout.length} samples make "
                          f"{(sum(counts), 3)}; the file is damaged, restore it from a copy")
    tables, at = {}, 0
    for field, count in zip(layout.columns, counts):
        tables[field.name] = _checked_table(path, layout, field, table[at:at + count], size)
        at += count
    return tables


def _checked_table(path: str, layout: Layout, field: Field, rows: np.ndarray, size: int) -> ChunkTable:
    table = ChunkTable(layout.chunks[field.name], *(np.ascontiguousarray(rows[:, i]) for i in range(3)))
    decoded = layout.chunks[field.name] * field.nbytes
    table.check(f"{path}[{field.name!r}]", size, decoded + decoded // 8 + 65536)
    return table


# ---- files of others

_plugin_lock = threading.RLock()


@contextmanager
def plugins_off() -> Iterator[None]:
    """Inside, libhdf5 loads no code from a folder, whatever HDF5_PLUGIN_PATH says. Filters that are there stay."""
    with _plugin_lock:
        paths = [h5pl.get(i) for i in range(h5pl.size())]
        for _ in paths:
            h5pl.remove(0)
        try:
            yield
        finally:
            for folder in paths:
                h5pl.append(folder)


def check_superblock(path: str, head: bytes) -> None:
    """Refuse a superblock of an old version that names a driver's block: libhdf5 makes as much room as that says.

    Raises
    ------
    FormatError
    """
    # II.A of the specification, versions 0 and 1: base address, free space, end of file, then the driver's block.
    version, width = (head[8], head[13]) if len(head) > 13 else (2, 0)
    at = (24 if version == 0 else 28) + 3 * width
    if version < 2 and head[at:at + width] != b"\xff" * width:
        raise FormatError(f"{path}: its metadata name another driver of HDF5; the file is damaged, restore it from a "
                          "copy, or if it is one part of several, copy it into one file first, e.g. with h5repack")


def check_foreign(path: str, where: str, dataset: h5py.Dataset, trust_plugins: bool) -> None:
    """Refuse a dataset that keeps its data elsewhere, needs code that is not here, or cannot be what it says.

    Raises
    ------
    FormatError
    """
    if dataset.is_virtual or dataset.external:
        raise FormatError(f"{path}: {where!r} keeps its data in other files, which are not opened; copy it into one "
                          "file first, e.g. with h5repack")
    if object_types(dataset.dtype):
        raise FormatError(f"{path}: {where!r} holds {dataset.dtype} values, references or sequences of any length, "
                          "which are not read; expected numbers or text")
    if dataset.shape is None:
        return
    if (dataset.size * dataset.dtype.itemsize > _MOST_DECODED
            or int(np.prod(dataset.shape[1:], dtype=object)) * dataset.dtype.itemsize > _MOST_CHUNK):
        raise FormatError(f"{path}: {where!r} says that it has shape {dataset.shape}, more than any file holds; the "
                          "file is damaged, restore it from a copy")
    creation = dataset.id.get_create_plist()
    if creation.get_layout() == h5d.CHUNKED:
        decoded = int(np.prod(dataset.chunks, dtype=object)) * dataset.dtype.itemsize
        if decoded > _MOST_CHUNK:
            raise FormatError(f"{path}: {where!r} says that a chunk holds {decoded:,} bytes, more than HDF5 can; the "
                              "file is damaged, restore it from a copy")
        tiles = math.prod(-(-n // c) for n, c in zip(dataset.shape[1:], dataset.chunks[1:]))
        if tiles > _MOST_MISSING and tiles > dataset.id.get_num_chunks():  # each is looked for
            raise FormatError(f"{path}: {where!r} says that a sample lies in {tiles:,} chunks, more than it holds of "
                              "all samples; the file is damaged, restore it from a copy")
    if trust_plugins:
        return
    for i in range(creation.get_nfilters()):
        number = int(creation.get_filter(i)[0])
        if not h5z.filter_avail(number):
            raise FormatError(f"{path}: {where!r} needs filter {NAMES.get(number, number)}, which is not one of "
                              "hdf5plugin's; if you trust the folder in HDF5_PLUGIN_PATH, allow code from it to be "
                              "loaded: from_hdf5(..., trust_plugins=True)")


def object_types(dtype: np.dtype) -> bool:
    """Whether values would be objects: references, or sequences of any length. Text is not meant."""
    return dtype.hasobject and h5py.check_string_dtype(dtype) is None
