"""Saved splits: which sample is in which part, kept in the store as a note under the names of the parts."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from h5store.errors import CorruptChunkError, SplitError, nearest
from h5store.schema import dumps
from h5store.storage import notes

_PREFIX = "split:"
_HEAD = struct.Struct("<I")


def save_split(path: str, length: int, parts: Mapping[str, np.ndarray], how: Mapping[str, Any], *, seal: str) -> None:
    """Write the parts of a split (file positions of each) into the store at `path`.

    Raises
    ------
    SplitError
        One of the names is saved as a part of another split.
    StoreLockedError, StaleStoreError, OSError
    """
    names = list(parts)
    for key in notes.keys(path):
        theirs = _names(key)
        shared = [name for name in names if name in theirs]
        if shared and set(theirs) != set(names):
            raise SplitError(f"{path}: part {shared[0]!r} is saved already, of a split into "
                             f"{', '.join(map(repr, theirs))}; mixed with another split its samples would overlap; "
                             "save under other names")
        if shared and key != _key(names):
            notes.write(path, {key: None}, seal=seal)
    # 0: in no part. Parts are numbered from 1.
    codes = np.zeros(length, "<u1" if len(names) < 256 else "<u4")
    for number, ids in enumerate(parts.values(), 1):
        codes[ids] = number
    head = dumps({"parts": names, "length": length, "width": codes.itemsize, "how": dict(how)})
    notes.write(path, {_key(names): _HEAD.pack(len(head)) + head + zlib.compress(codes.tobytes(), 1)}, seal=seal)


def saved_part(path: str, name: str, length: int) -> np.ndarray:
    """File positions of a saved part, ascending int64.

    Raises
    ------
    SplitError
        No part of that name is saved.
    CorruptChunkError
    """
    known: list[str] = []
    for key in notes.keys(path):
        names = _names(key)
        known += names
        if name in names:
            return np.flatnonzero(_codes(path, key, length) == _number(path, key, name))
    raise SplitError(f"{path}: no saved part {name!r}; {nearest(name, known, 'saved parts')}; make one with "
                     "split({...}, save=True)")


def part_names(path: str) -> list[list[str]]:
    """Names of the parts of each saved split."""
    return [names for names in map(_names, notes.keys(path)) if names]


def part_sizes(path: str, names: list[str], length: int) -> dict[str, int]:
    """Samples of each part of a saved split.

    Raises
    ------
    CorruptChunkError
    """
    counts = np.bincount(_codes(path, _key(names), length), minlength=len(names) + 1)
    return dict(zip(names, counts[1:].tolist()))


def _key(names: list[str]) -> str:
    return _PREFIX + dumps(names).decode()


def _names(key: str) -> list[str]:
    """Parts that a note's key names; none if it is no split."""
    names: list[str] = json.loads(key[len(_PREFIX):]) if key.startswith(_PREFIX) else []
    return names


def _number(path: str, key: str, name: str) -> int:
    return _names(key).index(name) + 1


def _codes(path: str, key: str, length: int) -> np.ndarray:
    note = notes.read(path, key)
    assert note is not None
    (size,) = _HEAD.unpack_from(note)
    head = json.loads(note[_HEAD.size:_HEAD.size + size])
    unpacker = zlib.decompressobj()
    codes = unpacker.decompress(note[_HEAD.size + size:], length * head["width"] + 1)
    if head["length"] != length or len(codes) != length * head["width"]:
        raise CorruptChunkError(f"{path}: saved split {_names(key)} is of {head['length']} samples, the store has "
                                f"{length}; save the split again")
    return np.frombuffer(codes, f"<u{head['width']}")
