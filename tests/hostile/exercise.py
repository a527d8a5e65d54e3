"""Open a file that is not to be trusted by every door, read what it gives, and say what came of it."""

from __future__ import annotations

import warnings

import h5store
from h5store.errors import H5StoreError

#: Samples that are read at most: files say any length.
_MOST = 5000


def as_store(path: str) -> str:
    """"read", or the name of the error; whatever else is raised passes."""
    try:
        with h5store.Reader(path, cache=0, threads=1) as reader:
            reader.take(range(min(_MOST, len(reader))))
            for field in reader.schema:
                reader[field.name][:3]
        report = h5store.verify(path, threads=1)
        return "read" if report.ok else f"damaged: {report.problems[0]}"
    except (H5StoreError, FileNotFoundError) as error:
        return f"{type(error).__name__}: {error}"


def as_foreign(path: str, name: str = "X") -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with h5store.Reader.from_hdf5(path, features=name, cache=0, threads=1) as reader:
                for lo in range(0, min(_MOST, len(reader)), 64):
                    reader.take(range(lo, min(lo + 64, len(reader))))
        return "read"
    except (H5StoreError, FileNotFoundError) as error:
        return f"{type(error).__name__}: {error}"
