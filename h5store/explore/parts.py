"""Samples of named parts: which of them hold a sample, and whether two hold the same one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from h5store.errors import OptionError

if TYPE_CHECKING:
    from h5store.reader import Reader

# Samples whose hash is kept. Of a longer store only hashes below a limit are: the same samples in every part, so
# that a share of the doubles is still found.
_MOST_HASHES = 2**22


class Parts:
    """Views that together a pass over `reader` compares.

    Raises
    ------
    OptionError
        A part is a view of another store.
    """

    def __init__(self, reader: Reader, parts: Mapping[str, Reader]) -> None:
        self._ids: dict[str, np.ndarray] = {}
        for name, part in parts.items():
            if part._store.fingerprint != reader._store.fingerprint:
                raise OptionError(f"stats: part {name!r} is of another store, {part.path}; expected views of "
                                  f"{reader.path}, such as split() gives")
            self._ids[str(name)] = np.unique(part.ids)
        self.sizes = {name: len(ids) for name, ids in self._ids.items()}
        total = sum(self.sizes.values())
        self.share = min(1.0, _MOST_HASHES / max(1, total))
        self._limit = np.uint64(min(int(self.share * 2**64), 2**64 - 1))
        self._lock = threading.Lock()
        self._seen: list[tuple[np.ndarray, np.ndarray]] = []
        self.digest = self._digest(reader)

    def __len__(self) -> int:
        return len(self._ids)

    def _digest(self, reader: Reader) -> str:
        """Names a choice of samples and parts."""
        digest = xxhash.xxh3_64()
        for name, ids in (("", reader._ids), *self._ids.items()):
            digest.update(f"{name}\0{-1 if ids is None else len(ids)}\0".encode())
            if ids is not None:
                digest.update(np.sort(ids).astype("<i8").data)
        return digest.hexdigest()

    def _mask(self, name: str, ids: np.ndarray) -> np.ndarray:
        mine = self._ids[name]
        at = np.searchsorted(mine, ids)
        found: np.ndarray = mine[np.minimum(at, len(mine) - 1)] == ids if len(mine) else np.zeros(len(ids), bool)
        return found

    def among(self, ids: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Name of each part, and which of `ids` it holds, bool (len(ids),)."""
        for name in self._ids:
            yield name, self._mask(name, ids)

    def anywhere(self, ids: np.ndarray) -> np.ndarray:
        """Which of `ids` any part holds."""
        out = np.zeros(len(ids), bool)
        for _, mask in self.among(ids):
            out |= mask
        return out

    def see(self, ids: np.ndarray, hashes: np.ndarray) -> None:
        """Keep the hashes of samples. Safe in threads."""
        kept = (hashes != 0) & (hashes <= self._limit)
        with self._lock:
            self._seen.append((ids[kept], hashes[kept]))

    def shared(self) -> Iterator[tuple[str, str, int, tuple[int, int]]]:
        """Two parts, how many samples of the second are in the first too, and one such pair of ids."""
        if not self._seen:
            return
        ids = np.concatenate([i for i, _ in self._seen])
        hashes = np.concatenate([h for _, h in self._seen])
        order = np.argsort(ids, kind="stable")
        ids, hashes = ids[order], hashes[order]
        held = {name: self._mask(name, ids) for name in self._ids}
        for left, right in itertools.combinations(held, 2):
            theirs, first = np.unique(hashes[held[left]], return_index=True)
            mine, mine_ids = hashes[held[right]], ids[held[right]]
            at = np.minimum(np.searchsorted(theirs, mine), max(0, len(theirs) - 1))
            double = theirs[at] == mine if len(theirs) else np.zeros(len(mine), bool)
            if double.any():
                i = int(np.flatnonzero(double)[0])
                pair = int(ids[held[left]][first[at[i]]]), int(mine_ids[i])
                yield left, right, round(int(double.sum()) / self.share), pair
