"""Bytes: notes, what is added to a store after sealing: saved splits, statistics. Small, checked, under a key.

A store is never changed in place. A note is written into a copy beside it, which then takes its place, so that
open readers keep the file that they opened. The seal covers schema and samples, not the notes: the same samples
are the same store with and without them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import struct
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5f, h5p, h5s, h5t

from h5store.errors import CorruptChunkError, FormatError, StaleStoreError
from h5store.schema import dumps
from h5store.storage import opening, rest
from h5store.storage.chunks import checksum
from h5store.storage.layout import PRIVATE, fsync
from h5store.storage.lock import WriterLock
from h5store.storage.metadata import Metadata
from h5store.storage.validate import private

# One dataset for all: of more than eight links HDF5 makes an index that only libhdf5 reads.
DATASET = f"{PRIVATE}/notes"
_HEAD = struct.Struct("<2Q")
#: linux/fs.h: share the blocks of a file with its copy, where the file system can.
_FICLONE = 0x40049409


def keys(path: str | os.PathLike[str]) -> list[str]:
    """Keys of all notes of a store, sorted.

    Raises
    ------
    FileNotFoundError, FormatError
    """
    with _opened(path) as (_, index):
        return sorted(index)


def read(path: str | os.PathLike[str], key: str) -> bytes | None:
    """The note under `key`, checked; None if there is none.

    Raises
    ------
    FileNotFoundError, FormatError
    CorruptChunkError
        The note's sum differs.
    """
    with _opened(path) as (fd, index):
        if key not in index:
            return None
        offset, size, sum_ = index[key]
        value = os.pread(fd, size, offset)
        if len(value) != size or checksum(value) != sum_:
            raise CorruptChunkError(f"{os.fspath(path)}: note {key!r}: checksum differs; the file is damaged, write "
                                    "the note again")
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
        rest.refresh(aside)
        shutil.copymode(path, aside)
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


#: Key -> (offset in the file, bytes, XXH3-64).
_Index = Mapping[str, tuple[int, int, int]]


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[int, _Index]]:
    """The file and where its notes are, without libhdf5.

    Raises
    ------
    FileNotFoundError, FormatError
    """
    where = os.path.abspath(os.fsdecode(path))
    opening.stat(where)
    fd = os.open(where, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            index = _index(fd)
        except (ValueError, KeyError, TypeError) as error:  # MetadataError among them
            raise FormatError(f"{where}: its notes are damaged ({error}); restore it from a copy") from error
        yield fd, index
    finally:
        os.close(fd)


def _index(fd: int) -> _Index:
    found = private(Metadata(fd, os.fstat(fd).st_size), "notes")
    if found is None:
        return {}
    head = os.pread(fd, min(_HEAD.size, found.nbytes), found.offset)
    size, sum_ = _HEAD.unpack(head.ljust(_HEAD.size, b"\0"))
    raw = os.pread(fd, min(size, found.nbytes), found.offset + _HEAD.size)
    if found.dtype != np.uint8 or len(raw) != size or checksum(raw) != sum_:
        raise ValueError("the checksum of their index differs")
    out, at = {}, found.offset + _HEAD.size + size
    for key, (length, note) in json.loads(raw).items():
        if not 0 <= length <= found.offset + found.nbytes - at:
            raise ValueError(f"note {key!r} is longer than all of them")
        out[key] = at, length, note
        at += length
    return out


def _packed(notes: Mapping[str, bytes]) -> bytes:
    """Length and sum of an index, the index as JSON, the notes in its order."""
    ordered = sorted(notes.items())
    index = dumps({key: [len(value), checksum(value)] for key, value in ordered})
    return b"".join([_HEAD.pack(len(index), checksum(index)), index, *(value for _, value in ordered)])


def _copy(path: str, aside: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(aside)
    with open(path, "rb") as source, open(aside, "xb") as target:
        try:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
        except OSError:
            shutil.copyfileobj(source, target, 1 << 22)


def _change(path: str, notes: Mapping[str, bytes | None]) -> None:
    kept = {key: value for key in keys(path) if key not in notes and (value := read(path, key)) is not None}
    data = _packed({**kept, **{key: value for key, value in notes.items() if value is not None}})
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_libver_bounds(h5f.LIBVER_V110, h5f.LIBVER_V110)
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    with h5py.File(h5f.open(os.fsencode(path), h5f.ACC_RDWR, fapl=access)) as file:
        if DATASET in file:
            del file[DATASET]
        creation: Any = h5p.create(h5p.DATASET_CREATE)
        creation.set_layout(h5d.CONTIGUOUS)
        creation.set_obj_track_times(False)
        dataset = h5d.create(file.id, DATASET.encode(), h5t.py_create(np.dtype("u1")), h5s.create_simple((len(data),)),
                             dcpl=creation)
        dataset.write(h5s.ALL, h5s.ALL, np.frombuffer(data, np.uint8))
