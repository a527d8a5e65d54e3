"""Sources: a folder of per-sample .npz or .npy files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from h5store.errors import SchemaError, SourceError, nearest
from h5store.schema import checked_dtype, is_text
from h5store.sources.files import FileSource, Signature
from h5store.sources.listing import existing, find
from h5store.sources.npy import FIRST, Header, Unreadable, header_size, parse
from h5store.sources.zipped import Archive, npz_members, member_header

#: Files up to this size are read whole even where only their headers are asked for.
_SMALL = 1 << 16


def samples(where: Any, *, features: Any = None, aux: Any = None, labels: Any = None, weights: Any = None,
            meta: Any = None, on_error: str = "stop", threads: int | None = None) -> Samples:
    """One sample a file: a folder, a glob or a list of .npz or .npy files.

    Parameters
    ----------
    where : path-like, glob, or list of paths
        A folder's files, with those of its subfolders, come in natural order (2 before 10), on every machine the same;
        a list stays as it is. Hidden files are no data.
    features, aux, labels, weights, meta : str, list of str, or mapping of field name to key
        Keys of the .npz files. A .npy file has one array, for one field of any name.
    on_error : {"stop", "skip"}
        What happens to files that cannot be read, lack a key or differ in shape or dtype from most: nothing is packed
        and all of them are named, or they are left out and listed.
    threads : int, optional

    Raises
    ------
    FileNotFoundError, SourceError, OptionError

    Examples
    --------
    >>> import numpy as np, os, h5store
    >>> os.mkdir("parts")
    >>> for i in range(12):
    ...     np.savez(f"parts/{i}.npz", img=np.full((4, 4), i), label=i % 3)
    >>> h5store.pack("parts.h5", h5store.sources.samples("parts", features="img", labels="label"), progress=False)
    >>> with h5store.Reader("parts.h5") as reader:
    ...     reader["label"][:5].tolist()
    [0, 1, 2, 0, 1]
    """
    keys = named_keys({"features": features, "aux": aux, "labels": labels, "weights": weights, "meta": meta})
    name = os.fspath(where) if isinstance(where, (str, os.PathLike)) else f"{len(list(where))} files"
    files = find(where, (".npz", ".npy"), ".npz or .npy files")
    if not keys:
        known = sorted(_keys(existing(files[0])))
        raise SourceError(f"{name}: no fields named; say which keys are what, e.g. features={known[0]!r}; "
                          f"{nearest('', known, f'keys of {os.path.basename(files[0])}')}")
    return Samples(name, files, keys, on_error, threads)


def named_keys(roles: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """(role, field name, key or list of keys) of what the role arguments name."""
    out: list[tuple[str, str, Any]] = []
    for role, value in roles.items():
        if isinstance(value, Mapping):
            out += [(role, name, key) for name, key in value.items()]
        elif value is not None:
            out += [(role, key, key) for key in ([value] if isinstance(value, str) else value)]
    return out


class Samples(FileSource):
    """Files of one sample each, arrays by key."""

    def __init__(self, name: str, files: Sequence[str], keys: Sequence[tuple[str, str, str]], on_error: str = "stop",
                 threads: int | None = None) -> None:
        super().__init__(name, files, [(role, field) for role, field, _ in keys], None, on_error, threads)
        self._keys = [key for _, _, key in keys]

    def look(self, path: str) -> Signature:
        if not path.endswith(".npz"):
            return (_signed(self._one(path), _npy_header(path)),)
        if os.path.getsize(path) > _SMALL:
            members = npz_members(path)
            self._check_keys(members)
            headers = [member_header(path, members[key]) for key in self._keys]
        else:
            archive = Archive(_bytes(path))
            self._check_keys(archive.members)
            headers = [archive.header(key) for key in self._keys]
        return tuple(_signed(key, header) for key, header in zip(self._keys, headers))

    def load(self, path: str) -> list[np.ndarray]:
        data = _bytes(path)
        if path.endswith(".npz"):
            archive = Archive(data)
            self._check_keys(archive.members)
            return [archive.array(key) for key in self._keys]
        header = parse(data[:header_size(data)])
        if len(data) < header.size + header.nbytes:
            raise Unreadable("it is cut short")
        flat = np.frombuffer(data, header.dtype, header.nbytes // max(1, header.dtype.itemsize), header.size)
        return [flat.reshape(header.shape, order="F" if header.fortran else "C")]

    def _check_keys(self, members: Mapping[str, Any]) -> None:
        missing = [key for key in self._keys if key not in members]
        if missing:
            raise Unreadable(f"no {', '.join(map(repr, missing))}; {nearest(missing[0], members, 'its keys')}")

    def _one(self, path: str) -> str:
        if len(self._keys) > 1:
            raise Unreadable(f"a .npy file has one array, and {len(self._keys)} fields are asked of it: "
                             f"{', '.join(map(repr, self._keys))}")
        return self._keys[0]


def _signed(key: str, header: Header) -> tuple[Any, tuple[int, ...]]:
    if is_text(header.dtype):
        return None, header.shape
    try:
        return checked_dtype(key, header.dtype), header.shape
    except SchemaError as error:
        raise Unreadable(str(error)) from error


def _bytes(path: str) -> bytes:
    # Half the time of a file object, and small files are all overhead.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = [os.read(fd, _SMALL)]
        if len(pieces[0]) == _SMALL:
            while piece := os.read(fd, 1 << 24):
                pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(fd)


def _npy_header(path: str) -> Header:
    with open(path, "rb") as file:
        head = file.read(FIRST)
        need = header_size(head)
        header = parse((head + file.read(max(0, need - len(head))))[:need])
    if os.path.getsize(path) < header.size + header.nbytes:
        raise Unreadable("it is cut short")
    return header


def _keys(path: str) -> list[str]:
    try:
        return list(npz_members(path)) if path.endswith(".npz") else ["x"]
    except Unreadable as error:
        raise SourceError(f"{path}: {error}") from error
