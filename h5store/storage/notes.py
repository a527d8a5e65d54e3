"""Bytes: notes, what is added to a store after sealing: saved splits, statistics. Small, checked, under a key.

A store is never changed in place. A note is written into a copy beside it, which then takes its place, so that
open readers keep the file that they opened. The seal covers schema and samples, not the notes: the same samples
are the same store with and without them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

import h5py
import numpy as np
from h5py import h5d, h5f, h5p, h5s, h5t

from h5store.errors import CorruptChunkError, FormatError, StaleStoreError
from h5store.storage import opening
from h5store.storage.chunks import checksum
from h5store.storage.layout import PRIVATE, fsync
from h5store.storage.lock import WriterLock

GROUP = f"{PRIVATE}/notes"
#: linux/fs.h: share the blocks of a file with its copy, where the file system can.
_FICLONE = 0x40049409


def keys(path: str | os.PathLike[str]) -> list[str]:
    """Keys of all notes of a store, sorted.

    Raises
    ------
    FileNotFoundError, FormatError
    """
    with _opened(path) as file:
        group = _group(file)
        return [] if group is None else sorted(unquote(name) for name in group)


def read(path: str | os.PathLike[str], key: str) -> bytes | None:
    """The note under `key`, checked; None if there is none.

    Raises
    ------
    FileNotFoundError, FormatError
    CorruptChunkError
        The note's sum differs, or it is not a plain dataset.
    """
    with _opened(path) as file:
        group = _group(file)
        if group is None or _name(key) not in group:
            return None
        where = f"{os.fspath(path)}: note {key!r}"
        try:
            found, value = _plain(group, _name(key), os.path.getsize(path))
        except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CorruptChunkError(f"{where} is damaged ({error}); write it again") from error
        if checksum(value) != found:
            raise CorruptChunkError(f"{where}: checksum differs; the file is damaged, write the note again")
        return value


def write(path: str | os.PathLike[str], notes: Mapping[str, bytes | None], *, seal: str | None = None) -> None:
    """Add, replace or (None) remove notes. All of them are there, or none, when this returns or raises.

    Parameters
    ----------
    path : str or path-like
    notes : mapping of str to bytes or None
    seal : str, optional
        That of the store which the notes are about.

    Raises
    ------
    StoreLockedError
        A writer holds the store.
    StaleStoreError
        The store at `path` is another one than `seal` says.
    FileNotFoundError, FormatError, OSError
    """
    path = os.path.abspath(os.fspath(path))
    lock = WriterLock(path)
    aside = f"{path}.noting"
    try:
        store = opening.open_store(path)
        if seal is not None and store.seal != seal:
            raise StaleStoreError(f"{path}: another store is at this path since it was read, so the notes are not "
                                  "about it; make a new Reader")
        _copy(path, aside)
        _change(aside, notes)
        shutil.copymode(path, aside)
        fsync(aside)
        os.replace(aside, path)
        fsync(os.path.dirname(path))
    finally:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        lock.release()


def warn_left_out(path: str, length: int) -> None:
    """Say by name which notes do not go into a store that samples are added to: they are about those before."""
    found = keys(path)
    if found:
        warnings.warn(f"{path}: its notes are about the {length:,} samples that it had, and are left out: "
                      f"{', '.join(map(repr, found[:5]))}{' and more' if len(found) > 5 else ''}; make them again",
                      stacklevel=5)


def problems(path: str) -> Iterator[str]:
    """What is wrong with the notes of a store, for a report."""
    try:
        for key in keys(path):
            try:
                read(path, key)
            except CorruptChunkError as error:
                yield str(error)
    except FormatError as error:
        yield str(error)


def _opened(path: str | os.PathLike[str]) -> h5py.File:
    file, _ = opening.open_hdf5(os.path.abspath(os.fspath(path)))
    return file


def _name(key: str) -> str:
    """The key as the name of an HDF5 link, which has no '/' and is not '.'."""
    return quote(key, safe=" ,:+-_=").replace(".", "%2E")


def _group(file: h5py.File) -> h5py.Group | None:
    for part in (PRIVATE, GROUP):
        link = file.get(part, getlink=True) if part in file else None
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink) or not isinstance(file[part], h5py.Group):
            raise FormatError(f"{file.filename}: {part!r} is not a group of this file; the file is damaged")
    return file[GROUP]


def _plain(group: h5py.Group, name: str, size: int) -> tuple[int, bytes]:
    """(sum, bytes) of a note: a hard link to a contiguous dataset inside this file, no longer than it."""
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise ValueError("it is a link elsewhere")
    dataset = group[name]
    creation = dataset.id.get_create_plist()
    if (creation.get_layout() != h5d.CONTIGUOUS or creation.get_external_count() or dataset.dtype != np.uint8
            or dataset.nbytes > size):
        raise ValueError("it is not a plain dataset of bytes")
    return int(dataset.attrs["sum"]), dataset[...].tobytes()


def _copy(path: str, aside: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(aside)
    with open(path, "rb") as source, open(aside, "xb") as target:
        try:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
        except OSError:
            shutil.copyfileobj(source, target, 1 << 22)


def _change(path: str, notes: Mapping[str, bytes | None]) -> None:
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_libver_bounds(h5f.LIBVER_V110, h5f.LIBVER_V110)
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    file = h5py.File(h5f.open(os.fsencode(path), h5f.ACC_RDWR, fapl=access))
    try:
        group = _group(file)
        if group is None:
            creation = h5p.create(h5p.GROUP_CREATE)
            creation.set_obj_track_times(False)
            group = h5py.Group(h5py.h5g.create(file.id, GROUP.encode(), gcpl=creation))
        for key, value in notes.items():
            if _name(key) in group:
                del group[_name(key)]
            if value is not None:
                _write(group, _name(key), value)
    finally:
        file.close()


def _write(group: h5py.Group, name: str, value: bytes) -> None:
    creation: Any = h5p.create(h5p.DATASET_CREATE)
    creation.set_layout(h5d.CONTIGUOUS)
    creation.set_obj_track_times(False)
    dataset = h5d.create(group.id, name.encode(), h5t.py_create(np.dtype("u1")), h5s.create_simple((len(value),)),
                         dcpl=creation)
    if value:
        dataset.write(h5s.ALL, h5s.ALL, np.frombuffer(value, np.uint8))
    h5py.Dataset(dataset).attrs["sum"] = np.uint64(checksum(value))
