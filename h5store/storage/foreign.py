"""Bytes: HDF5 files that others wrote. The fast way where chunks hold whole samples, libhdf5 where not.

The slow way is also the reference: what the fast way returns is what h5py returns.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5t

from h5store.errors import (CorruptChunkError, FieldNotFound, FormatError, H5StoreError, SchemaError, SlowPathWarning,
                            StaleStoreError, nearest)
from h5store.schema import CODE_DTYPE, Field, Schema, checked_dtype
from h5store.storage import codecs, handles, pool
from h5store.storage.cache import SampleCache, parse_bytes
from h5store.storage.chunks import ChunkTable
from h5store.storage.fetch import ChunkedField, FieldBytes, HeldField, expand
from h5store.storage.guard import Guard, check_index, filters_of
from h5store.storage.handles import FileSource, Identity
from h5store.storage.heap import check_count, text_bands
from h5store.storage.layout import PRIVATE
from h5store.storage.opening import hdf5_file, open_hdf5
from h5store.storage.store import DEFAULT_CACHE, Store
from h5store.storage.tasks import Tasks
from h5store.storage.validate import check_foreign, plugins_off

#: Samples that are read together from a dataset without chunks.
_PIECE_BYTES = 128 * 1024
_SCAN, _SCAN_BYTES = 1 << 16, 8 << 20
#: Objects that are looked at for an error's list of names; soft links followed to one dataset.
_MOST_LISTED, _MOST_HOPS = 1000, 16


def open_foreign(path: str | os.PathLike[str], roles: Mapping[str, Any], *, cache: Any = DEFAULT_CACHE,
                 threads: int | None = None, trust_plugins: bool = False) -> Store:
    """Open datasets of any HDF5 file as the fields of a store. Nothing is copied.

    Parameters
    ----------
    roles : mapping of role to str, list of str, or mapping of field name to dataset path
    trust_plugins : bool
        Let libhdf5 load filters from the folders that HDF5_PLUGIN_PATH names.

    Raises
    ------
    FileNotFoundError, FormatError, FieldNotFound, SchemaError
    """
    budget, count = parse_bytes(cache or 0, "cache"), pool.thread_count(threads)
    with plugins_off():  # it asks for its filters, and libhdf5 would look for them in the folders first
        import hdf5plugin  # noqa: F401  its filters are the ones that are known

    file, source = open_hdf5(os.path.abspath(os.fsdecode(path)))
    try:
        with file, contextlib.nullcontext() if trust_plugins else plugins_off():
            found = _found(file, roles, source.path, trust_plugins)
            store, reasons = _store(found, source, budget, count)
    except (H5StoreError, FileNotFoundError):
        handles.drop(source)
        raise
    except Exception as error:  # whatever libhdf5 makes of damaged metadata
        handles.drop(source)
        told = f"{type(error).__name__}: {error}"
        raise FormatError(f"{source.path}: damaged ({told}); restore it from a copy") from error
    if reasons:
        _tell(source.path, reasons)
        _open_here(source)
    source.hold()
    return store


def _store(found: Mapping[str, tuple[str, h5py.Dataset]], source: FileSource, budget: int, threads: int
           ) -> tuple[Store, dict[str, str]]:
    """The store, and why which datasets are read through libhdf5."""
    length = len(next(iter(found.values()))[1])
    codes = {name: _text_codes(dataset, source) for name, (_, dataset) in found.items()}
    schema = Schema(tuple(_field(name, role, dataset, codes[name]) for name, (role, dataset) in found.items()))
    kept = SampleCache(budget, {f.name: f.nbytes * length for f in schema if not f.text})
    fields: dict[str, FieldBytes] = {}
    reasons = {}
    for field in schema:
        dataset, text = found[field.name][1], codes[field.name]
        # Of text the codes are held, 4 bytes a value.
        opened = HeldField(field.name, text[1]) if text is not None else _fast(field, dataset, source, kept)
        if isinstance(opened, str):
            if length:
                reasons[dataset.name] = opened
            label = f"{source.path}[{dataset.name!r}]"
            check_index(label, dataset)
            guard = Guard.of(label, source, dataset)
            fields[field.name] = SlowField(field, dataset.name, dataset.chunks, source, guard)
        else:
            fields[field.name] = opened
    blocks = [f.table.samples for f in fields.values() if isinstance(f, ChunkedField)]
    largest = max(schema, key=lambda f: f.nbytes)
    block = max(blocks, default=max(1, _PIECE_BYTES // max(1, largest.nbytes)))
    mark = f"{source.identity.size}-{os.stat(source.path).st_mtime_ns}"
    return Store(source, schema, length, block, mark, fields, kept, threads), reasons


def _tell(path: str, reasons: Mapping[str, str]) -> None:
    """Warn where somebody outside of this package asked for the file."""
    level, frame = 1, sys._getframe().f_back
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "h5store":
        level, frame = level + 1, frame.f_back
    told = "; ".join(f"{name!r}: {reason}" for name, reason in list(reasons.items())[:5])
    warnings.warn(f"{path}: read through libhdf5, one thread at a time: {told}. To read at full speed, pack it once "
                  "with h5store.pack", SlowPathWarning, stacklevel=level + 1)


def _found(file: h5py.File, roles: Mapping[str, Any], path: str, trust_plugins: bool
           ) -> dict[str, tuple[str, h5py.Dataset]]:
    """Field name -> (role, dataset), all of one length."""
    found: dict[str, tuple[str, h5py.Dataset]] = {}
    for role, name, where in _wanted(roles):
        if name in found:
            raise SchemaError(f"{path}: two fields are named {name!r}; give names: {role}={{'name': 'path'}}")
        found[name] = role, _dataset(file, where, path, trust_plugins)
    if not found:
        raise SchemaError(f"{path}: no dataset named; give features=, labels= or another role; "
                          f"{nearest('', _datasets(file), 'datasets')}")
    lengths = {name: dataset.shape[0] for name, (_, dataset) in found.items()}
    if len(set(lengths.values())) > 1:
        raise SchemaError(f"{path}: datasets have different lengths: {lengths}; expected one sample axis, the first, "
                          "in each")
    return found


def _wanted(roles: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    out = []
    for role, value in roles.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            out += [(role, name, where) for name, where in value.items()]
        else:
            out += [(role, w.strip("/").replace("/", "."), w) for w in ([value] if isinstance(value, str) else value)]
    return out


def _datasets(file: h5py.File) -> list[str]:
    """Paths of datasets, for an error; not all of a file that has very many. A stranger's groups may go in circles."""
    names: list[str] = []
    seen, todo = 0, [file["/"]]
    for group in todo:
        for name in list(group)[:_MOST_LISTED]:
            seen += 1
            if seen > _MOST_LISTED:
                return names
            if isinstance(group.get(name, getlink=True), h5py.HardLink) and name != PRIVATE:
                item = group[name]
                if isinstance(item, h5py.Dataset):
                    names.append(item.name.lstrip("/"))
                elif isinstance(item, h5py.Group):
                    todo.append(item)
    return names


def _dataset(file: h5py.File, where: str, path: str, trust_plugins: bool) -> h5py.Dataset:
    """A dataset of this very file: no link or storage elsewhere is followed."""
    parts, at, hops = [p for p in where.split("/") if p], file["/"], 0
    while parts:
        part = parts.pop(0)
        link = at.get(part, getlink=True) if isinstance(at, h5py.Group) else None
        if isinstance(link, h5py.ExternalLink):
            raise FormatError(f"{path}: {where!r} is a link to another file, {link.filename!r}, which is not followed; "
                              "open that file instead")
        if isinstance(link, h5py.SoftLink):
            # Followed by hand: on its way libhdf5 would follow an external link, too.
            hops += 1
            if hops > _MOST_HOPS:
                raise FormatError(f"{path}: the links of {where!r} go in a circle; name the dataset itself")
            parts = [p for p in link.path.split("/") if p] + parts
            at = file["/"] if link.path.startswith("/") else at
        elif link is None:
            raise FieldNotFound(f"{path}: no dataset {where!r}; {nearest(where, _datasets(file), 'datasets')}")
        else:
            at = at[part]
    if not isinstance(at, h5py.Dataset):
        raise FieldNotFound(f"{path}: {where!r} is a group; {nearest(where, _datasets(file), 'datasets')}")
    check_foreign(path, where, at, trust_plugins)
    if at.shape is None or at.ndim == 0:
        raise SchemaError(f"{path}: {where!r} is a scalar, expected samples along the first axis")
    return at


def _field(name: str, role: str, dataset: h5py.Dataset, text: tuple[tuple[str, ...], np.ndarray] | None) -> Field:
    if text is not None:
        return Field(name, role, np.dtype(str), dataset.shape[1:], text[0])  # type: ignore[arg-type]
    return Field(name, role, checked_dtype(name, dataset.dtype), dataset.shape[1:])  # type: ignore[arg-type]


def _by_libhdf5(dataset: h5py.Dataset) -> Iterator[tuple[int, np.ndarray]]:
    step = max(1, min(_SCAN, _SCAN_BYTES // max(1, dataset.size // max(1, len(dataset)) * dataset.dtype.itemsize)))
    return ((start, dataset[start:start + step]) for start in range(0, len(dataset), step))


def _text_codes(dataset: h5py.Dataset, source: FileSource) -> tuple[tuple[str, ...], np.ndarray] | None:
    """(sorted classes, codes) of a text dataset, in one pass over it; None if it is not text."""
    if h5py.check_string_dtype(dataset.dtype) is None:
        return None
    check_count(source.path, dataset)
    known: dict[str, int] = {}
    codes = np.zeros(dataset.shape, CODE_DTYPE)
    bands = text_bands(dataset, source)
    for start, raw in _by_libhdf5(dataset) if bands is None else bands:
        try:
            texts = [t.decode("utf-8") if isinstance(t, bytes) else str(t) for t in raw.reshape(-1)]
        except UnicodeDecodeError as error:
            raise FormatError(f"{source.path}: {dataset.name!r} holds text that is not UTF-8 ({error})") from error
        part = [known.setdefault(t, len(known)) for t in texts]
        codes[start:start + len(raw)] = np.array(part, CODE_DTYPE).reshape(raw.shape)
    classes = tuple(sorted(known))
    place = np.zeros(max(1, len(classes)), CODE_DTYPE)
    for i, text in enumerate(classes):
        place[known[text]] = i
    return classes, place[codes]


def _fast(field: Field, dataset: h5py.Dataset, source: FileSource, cache: SampleCache) -> ChunkedField | str:
    """A reader that needs no libhdf5, or why there is none."""
    creation = dataset.id.get_create_plist()
    stored = dataset.dtype
    if dataset.id.get_type() != h5t.py_create(stored, logical=True):
        return "its HDF5 type is not quite numpy's"
    if dataset.file.userblock_size:
        return "the file has a user block"
    filters = filters_of(dataset)
    if creation.get_layout() == h5d.CHUNKED:
        if dataset.chunks[1:] != dataset.shape[1:]:
            return f"its chunks {dataset.chunks} cut samples of shape {dataset.shape[1:]} apart"
        reason = codecs.unsupported(filters)
        table = _indexed(dataset) if reason is None else None
        if table is None:
            return reason or "some of its chunks were never written"
    else:
        if creation.get_layout() != h5d.CONTIGUOUS or dataset.id.get_offset() is None:
            return "it is stored inside the file's metadata, or was never written"
        table = _cut(dataset.id.get_offset(), len(dataset), field.nbytes)
    label = f"{source.path}[{dataset.name!r}]"
    table.check(label, source.identity.size, 2 * table.samples * field.nbytes + 65536)
    return ChunkedField(label, field.name, len(dataset), stored, field.shape, table=table, filters=filters,
                        source=source, cache=cache, verify=False)


def _indexed(dataset: h5py.Dataset) -> ChunkTable | None:
    samples = dataset.chunks[0]
    count = -(-len(dataset) // samples)
    if dataset.id.get_num_chunks() != count:  # before making room for as many as a stranger says
        return None
    offsets, sizes = np.zeros(count, "<u8"), np.zeros(count, "<u8")
    masks = np.zeros(count, "<u4")

    def place(info: Any) -> None:
        i = info.chunk_offset[0] // samples
        if i < count:
            offsets[i], sizes[i], masks[i] = info.byte_offset, info.size, info.filter_mask

    dataset.id.chunk_iter(place)
    if not sizes.all():
        return None
    return ChunkTable(samples, offsets, sizes, None, masks if masks.any() else None)


def _cut(offset: int, length: int, sample_bytes: int) -> ChunkTable:
    """A dataset without chunks, cut into pieces of our own."""
    samples = max(1, _PIECE_BYTES // max(1, sample_bytes))
    starts = np.arange(0, length, samples, dtype=np.uint64)
    sizes = np.minimum(np.uint64(samples), np.uint64(length) - starts) * np.uint64(sample_bytes)
    return ChunkTable(samples, starts * np.uint64(sample_bytes) + np.uint64(offset), sizes)


_files: dict[tuple[int, FileSource], h5py.File] = {}
_files_lock = threading.Lock()


def _new_lock() -> None:
    global _files_lock
    _files_lock = threading.Lock()  # a thread that the fork did not copy may have held the old one


os.register_at_fork(after_in_child=_new_lock)


def drop(source: FileSource) -> None:
    """Close what reading through libhdf5 has opened of a file. Reading opens it again."""
    with _files_lock:
        file = _files.pop((os.getpid(), source), None)
    if file is not None:
        file.close()


def _open_here(source: FileSource) -> h5py.File:
    """This process's open file of a source. Who reads it keeps a reference: closing drops only ours.

    Raises
    ------
    StaleStoreError
    """
    # Keyed by process: an HDF5 file that was opened before a fork must not be read after it.
    key = os.getpid(), source
    with _files_lock:
        if key not in _files:
            with source.lease():  # the file is still the one that was opened
                file = hdf5_file(source.path, keep=True)
            if Identity.of(os.fstat(file.id.get_vfd_handle())) != source.identity:
                file.close()
                raise StaleStoreError(f"{source.path}: another file is at this path since this reader was made; make "
                                      "a new Reader")
            _files[key] = file
        return _files[key]


class SlowField:
    """One dataset through h5py: any filter, any chunks. The twin that the fast way is held against."""

    def __init__(self, field: Field, where: str, chunks: Sequence[int] | None, source: FileSource,
                 guard: Guard | None) -> None:
        self.name, self.shape, self.dtype = field.name, field.shape, field.dtype.newbyteorder("=")
        self._where, self._source, self._guard = where, source, guard
        self._samples = chunks[0] if chunks else max(1, _PIECE_BYTES // max(1, field.nbytes))

    def gather(self, ids: np.ndarray, out: np.ndarray, to: np.ndarray | None = None) -> Tasks:
        return Tasks([lambda: self._read(ids, out, to)])

    def runs(self, ranges: np.ndarray, out: np.ndarray, to: np.ndarray | None = None) -> Tasks:
        ids, to = expand(ranges, to)
        return self.gather(ids, out, to)

    def _read(self, ids: np.ndarray, out: np.ndarray, to: np.ndarray | None) -> None:
        """A slice of each chunk that holds any of the samples: h5py's own lists of ids are quadratic."""
        file = _open_here(self._source)
        dataset = self._by_libhdf5(lambda: file[self._where], "it")
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        edges = np.flatnonzero(np.diff(ordered // self._samples)) + 1
        for part in np.split(np.arange(len(ids)), edges):
            if len(part):
                lo, hi = int(ordered[part[0]]), int(ordered[part[-1]]) + 1
                rows = order[part] if to is None else to[order[part]]
                if self._guard is not None:
                    self._guard.check(dataset, lo, hi)
                found = self._by_libhdf5(lambda: dataset[lo:hi], f"samples {lo}-{hi - 1}")
                out[rows] = found[ordered[part] - lo]

    def _by_libhdf5(self, read: Callable[[], Any], what: str) -> Any:
        try:
            return read()
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            raise CorruptChunkError(f"{self._source.path}[{self._where!r}]: libhdf5 cannot read {what} ({error}); the "
                                    "file is damaged or was cut short, restore it from a copy") from error

    def close(self) -> None:
        with _files_lock:
            _files.pop((os.getpid(), self._source), None)
