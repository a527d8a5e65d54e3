"""Sources: datasets of an HDF5 file that something else wrote, re-chunked by sample when packed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from h5store.errors import SlowPathWarning
from h5store.schema import Schema
from h5store.sources.base import BLOCK_BYTES
from h5store.storage.foreign import drop, open_foreign
from h5store.storage.store import Store


def hdf5(path: Any, *, features: Any = None, aux: Any = None, labels: Any = None, weights: Any = None,
         meta: Any = None) -> StoreSource:
    """Datasets of any HDF5 file.

    Parameters
    ----------
    path : path-like
    features, aux, labels, weights, meta : str, list of str, or mapping of field name to path of a dataset

    Raises
    ------
    FileNotFoundError, FormatError, FieldNotFound, SchemaError

    Examples
    --------
    >>> import h5py, numpy as np, h5store
    >>> with h5py.File("theirs.h5", "w") as file:
    ...     file["X"], file["y"] = np.zeros((20, 3)), np.arange(20)
    >>> h5store.pack("ours.h5", h5store.sources.hdf5("theirs.h5", features="X", labels="y"), progress=False)
    """
    roles = {"features": features, "aux": aux, "labels": labels, "weights": weights, "meta": meta}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)  # packing is the way out that it points to
        store = open_foreign(path, roles, cache=0)
    return StoreSource(store, os.fspath(path))


class StoreSource:
    """Samples of an open store, this library's own or not."""

    def __init__(self, store: Store, name: str) -> None:
        self.name, self._store = name, store
        self.schema: Schema = store.schema.with_classes({f.name: None for f in store.schema})  # type: ignore[misc]
        self.length: int | None = store.length
        self.step = max(1, BLOCK_BYTES // max(1, sum(f.nbytes for f in store.schema)))
        self.close()

    def blocks(self, start: int = 0) -> Iterator[dict[str, dict[str, Any]]]:
        try:
            for lo in range(start, self._store.length, self.step):
                yield self.runs(np.array([[lo, min(lo + self.step, self._store.length)]]))
        finally:
            self.close()

    def runs(self, ranges: np.ndarray) -> dict[str, dict[str, Any]]:
        """One block of the runs [lo, hi) of samples, one after the other."""
        values = self._store.empty(self._store.schema.names, int((ranges[:, 1] - ranges[:, 0]).sum()))
        self._store.runs(ranges, values).result()
        out: dict[str, dict[str, Any]] = {}
        for f in self._store.schema:
            array = values[f.name]
            out.setdefault(str(f.role), {})[f.name] = (np.array(f.classes or ("",), object)[array] if f.text
                                                       else array)
        return out

    def close(self) -> None:
        """Let go of the file; reading opens it again."""
        self._store.close()
        drop(self._store.source)
