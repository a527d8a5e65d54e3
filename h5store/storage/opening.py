"""Bytes: open a file, and say what it is if it is no store. What must hold of it is in `h5store.storage.validate`."""

from __future__ import annotations

import os
from stat import S_ISREG

import h5py

from h5store.errors import CorruptChunkError, FormatError, nearest
from h5store.storage.handles import FileSource, Identity
from h5store.storage.metadata import SIGNATURE, CutShort, OtherLayout
from h5store.storage.validate import StoreFile, check_superblock, checked_store, not_ours, salvageable_store

#: What other files start with, for an error that helps.
_KNOWN = {b"PK\x03\x04": "a zip archive such as .npz", b"\x93NUMPY": "a .npy array",
          b"\x1f\x8b": "gzip data", b"PAR1": "a Parquet table"}


def store_path(path: str | os.PathLike[str]) -> str:
    """Where a store is to be written: absolute; of a symbolic link, what it points to, so that it stays a link."""
    path = os.path.abspath(os.fsdecode(path))
    return os.path.realpath(path) if os.path.islink(path) else path


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
        if os.path.exists(journal_path(store_path(path))):
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
    if not S_ISREG(found.st_mode):  # opening a pipe would wait for somebody to write to it
        raise FormatError(f"{path}: is not a regular file, expected an HDF5 file")
    return found


def open_hdf5(path: str) -> tuple[h5py.File, FileSource]:
    """Open an HDF5 file for reading, with errors that say what is wrong with it."""
    found = stat(path)
    with open(path, "rb") as opened:
        at = _signed(path, opened.fileno(), found.st_size)
        check_superblock(path, os.pread(opened.fileno(), 128, at))
    try:
        file = hdf5_file(path, keep=False)
    except OSError as error:
        what = "cut short" if "truncated" in str(error) else "damaged"
        raise FormatError(f"{path}: {what} ({_reason(error)}); restore it from a copy, or pack it again") from error
    return file, FileSource(path, Identity.of(found))


def hdf5_file(path: str, *, keep: bool) -> h5py.File:
    """Open a file by libhdf5, which wants it opened as this process has it open already: locked or not.

    A short look never waits for, nor stops, anybody. A file that is kept open is locked as h5py does it if nobody
    says otherwise, so that one may open it beside us; who holds it for writing is read all the same.
    """
    error: OSError | None = None
    for locking in (None, False, True) if keep else (False, None, True):
        try:
            return h5py.File(path, "r", locking=locking)
        except OSError as raised:
            error = error or raised
    assert error is not None
    raise error


def _signed(path: str, fd: int, size: int) -> int:
    """Where HDF5's signature is: at 0, or later, after a user block.

    Raises
    ------
    FormatError
    """
    head = os.pread(fd, len(SIGNATURE), 0)
    if head == SIGNATURE:
        return 0
    # HDF5 also allows a user block before the signature, at 512 and its doublings.
    places = (512 << i for i in range(max(0, size.bit_length() - 9)))
    at = next((at for at in places if os.pread(fd, len(SIGNATURE), at) == SIGNATURE), 0)
    if at and not head.startswith(tuple(_KNOWN)):
        return at
    looks = next((f"it looks like {text}" for magic, text in _KNOWN.items() if head.startswith(magic)),
                 "it is empty" if not head else "its first bytes are not HDF5's")
    raise FormatError(f"{path}: not an HDF5 file, {looks}; expected a store; pack it first: h5store.pack(...)")


def _reason(error: Exception) -> str:
    text = str(error)
    return text[text.find("(") + 1:].rstrip(")") if "(" in text else text


def open_store(path: str) -> StoreFile:
    """Open and validate a sealed store. libhdf5 has no part in it.

    Raises
    ------
    FileNotFoundError
    FormatError
        Not HDF5, not a store, newer than this version, cut short, damaged, or not finished.
    """
    path = os.path.abspath(os.fsdecode(path))
    stat(path)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _signed(path, fd, os.fstat(fd).st_size):
            raise FormatError(not_ours(path))
        return checked_store(fd, FileSource(path, Identity.of(os.fstat(fd))))
    except OtherLayout as error:
        raise FormatError(f"{not_ours(path)}. If it was one, it is damaged ({error})") from error
    except CutShort as error:
        raise FormatError(f"{path}: cut short ({error}); restore it from a copy, or pack it again") from error
    except (FormatError, CorruptChunkError):
        raise
    except Exception as error:  # whatever json and numpy make of damaged metadata
        raise FormatError(f"{path}: damaged ({type(error).__name__}: {error}); restore it from a copy") from error
    finally:
        os.close(fd)


def open_damaged(path: str | os.PathLike[str], why: FormatError) -> StoreFile:
    """Open what is left of a store that `open_store` refused, to salvage what is whole.

    Raises
    ------
    FormatError
        Its schema or its chunk table cannot be found: `why` is the cause.
    """
    path = os.path.abspath(os.fsdecode(path))
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return salvageable_store(fd, FileSource(path, Identity.of(os.fstat(fd))))
    except Exception as error:
        raise FormatError(f"{why}. Nothing can be salvaged: {error}") from why
    finally:
        os.close(fd)
