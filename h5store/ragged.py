"""Samples of different lengths in two arrays: the values of all, one after the other, and where each begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Ragged:
    """Samples of a variable-length field.

    Attributes
    ----------
    values : ndarray, shape (total, *inner)
    offsets : ndarray of int64, shape (n + 1,)
        Sample i is ``values[offsets[i]:offsets[i + 1]]``.
    """

    values: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, lengths: Any) -> Ragged:
        return cls(values, np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))))

    @property
    def lengths(self) -> np.ndarray:
        """Length of each sample, int64 (n,)."""
        return np.diff(self.offsets)

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, key: Any) -> Any:
        """One sample, as a view; or of a slice, a `Ragged` on the same values."""
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, stop, step))
            edges = self.offsets[start:max(start, stop) + 1]
            return Ragged(self.values[edges[0]:edges[-1]], edges - edges[0])
        if not -len(self) <= key < len(self):
            raise IndexError(f"sample {key} is out of range, there are {len(self)}")
        key %= len(self)
        return self.values[self.offsets[key]:self.offsets[key + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[i] for i in range(len(self)))

    def take(self, rows: np.ndarray) -> Ragged:
        """Samples by position, in any order."""
        lengths = self.lengths[rows]
        return Ragged.of(self.values[expand(self.offsets[:-1][rows], lengths)], lengths)

    def padded(self, length: int | None = None, value: Any = 0) -> np.ndarray:
        """One array (n, length, *inner): each sample from its start, `value` after its end.

        Parameters
        ----------
        length : int, optional
            That of the longest sample by default. What is beyond it is cut off.
        value : scalar
        """
        lengths = self.lengths
        longest = int(lengths.max(initial=0)) if length is None else length
        out = np.full((len(self), longest, *self.values.shape[1:]), value, self.values.dtype)
        inside = np.arange(longest) < lengths[:, None]
        if length is None or longest >= int(lengths.max(initial=0)):
            out[inside] = self.values
        else:
            out[inside] = self.values[expand(self.offsets[:-1], np.minimum(lengths, longest))]
        return out

    def mask(self, length: int | None = None) -> np.ndarray:
        """Which places of `padded` hold values, bool (n, length)."""
        lengths = self.lengths
        return np.arange(int(lengths.max(initial=0)) if length is None else length) < lengths[:, None]


def expand(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Positions of runs, one after the other: starts[i], starts[i] + 1, ... ; lengths[i] of each."""
    before = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)
