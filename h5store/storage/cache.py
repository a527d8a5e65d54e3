"""Bytes: decoded samples kept in memory under one budget of bytes.

Two kinds, by what fits. A field that fits whole lives in one array, filled chunk by chunk on demand, so
that reading it again is a plain gather. Of a field that does not, the chunks used last are kept.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

from h5store.errors import OptionError

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def parse_bytes(value: Any, what: str) -> int:
    """``"256MiB"``, ``"1.5GB"`` or a number of bytes, as an int.

    Raises
    ------
    OptionError
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]?i?b?)\s*", str(value), re.IGNORECASE)
    unit = match.group(2).lower() if match else None
    if match is None or isinstance(value, bool) or unit not in _UNITS:
        raise OptionError(f"{what}: expected a size such as '256MiB' or a number of bytes, got {value!r}")
    return int(float(match.group(1)) * _UNITS[unit])


class SampleCache:
    """Decoded samples of one store in one process. Safe in threads; empty after a fork.

    Parameters
    ----------
    budget : int
        Bytes; 0 keeps nothing.
    field_bytes : mapping of str to int
        Decoded size of every field. The smallest are kept whole first: labels and scalars are asked for with
        every batch and cost least.
    """

    def __init__(self, budget: int, field_bytes: Mapping[str, int]) -> None:
        self.budget = budget
        self._whole: set[str] = set()
        left = budget
        for name, size in sorted(field_bytes.items(), key=lambda item: item[1]):
            if size <= left:
                self._whole.add(name)
                left -= size
        self._chunk_budget = left
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._arrays: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._chunks: OrderedDict[tuple[str, int], np.ndarray] = OrderedDict()
        self._used = 0

    def whole(self, name: str) -> bool:
        """Whether the field is to be kept as one array."""
        return name in self._whole

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype, chunks: int) -> tuple[np.ndarray, np.ndarray]:
        """The field's array (samples, *shape) and which of its chunks are filled, a bool array."""
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            if name not in self._arrays:
                self._arrays[name] = np.empty(shape, dtype), np.zeros(chunks, bool)
            return self._arrays[name]

    def get(self, name: str, chunk: int) -> np.ndarray | None:
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            found = self._chunks.get((name, chunk))
            if found is not None:
                self._chunks.move_to_end((name, chunk))
            return found

    def put(self, name: str, chunk: int, samples: np.ndarray) -> None:
        """Keep a decoded chunk, dropping those used longest ago. The array is not written to any more."""
        if samples.nbytes > self._chunk_budget:
            return
        with self._lock:
            if (name, chunk) in self._chunks:
                return
            self._chunks[name, chunk] = samples
            self._used += samples.nbytes
            while self._used > self._chunk_budget:
                self._used -= self._chunks.popitem(last=False)[1].nbytes

    def holds_chunks_of(self, samples_bytes: int) -> bool:
        """Whether a chunk of this size can be kept at all."""
        return 0 < samples_bytes <= self._chunk_budget

    def clear(self) -> None:
        self._reset()
