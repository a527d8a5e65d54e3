"""Read a whole store and say what is wrong with it: sums, lengths, codes, and that HDF5 sees the same bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import h5py
import numpy as np

from h5store.errors import CorruptChunkError
from h5store.schema import Field
from h5store.storage import notes
from h5store.storage.layout import dataset_path
from h5store.storage.store import Store

#: Chunks that are read at once.
_STEP = 64
#: Samples that a report names of each field.
_NAMED = 10


@dataclass(frozen=True)
class NonFinite:
    """NaN and infinity in one field: how many values, in which samples (the first ten)."""

    values: int
    samples: tuple[int, ...]


@dataclass(frozen=True)
class Report:
    """What `verify` found.

    Attributes
    ----------
    path : str
    samples : int
    problems : tuple of str
        What is damaged, each with field, chunk and samples. Empty for a whole store.
    nonfinite : dict of str to NonFinite
        Fields that hold NaN or infinity. They are stored exactly, and are what a loss of NaN comes from.
    """

    path: str
    samples: int
    problems: tuple[str, ...]
    nonfinite: dict[str, NonFinite] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the store is whole. Non-finite values are no damage."""
        return not self.problems

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.samples:,} samples, {'whole' if self.ok else f'{len(self.problems)} problems'}"]
        lines += [f"  {p}" for p in self.problems]
        for name, found in self.nonfinite.items():
            more = ", ..." if len(found.samples) == _NAMED else ""
            lines.append(f"  field {name!r}: {found.values:,} non-finite values, in samples "
                         f"{', '.join(map(str, found.samples))}{more}")
        return "\n".join(lines)


def verify(path: str | os.PathLike[str], *, threads: int | None = None) -> Report:
    """Read every chunk of a store and check it.

    Parameters
    ----------
    path : str or path-like
    threads : int, optional

    Returns
    -------
    Report
        Its `ok` tells whether the store is whole; it lists NaN and infinities too.

    Raises
    ------
    FileNotFoundError, FormatError
        The file cannot be opened as a store at all.
    """
    store = Store.open(path, cache=0, threads=threads)
    problems = [*_index_problems(store), *notes.problems(store.path)]
    nonfinite = {}
    for f in store.schema:
        values, samples = 0, list[int]()
        for first, part in _parts(store, f, problems):
            if f.text and part.size and not 0 <= int(part.min()) <= int(part.max()) < len(f.classes or ()):
                problems.append(f"field {f.name!r} samples {first}-{first + len(part) - 1}: a code is outside the "
                                f"{len(f.classes or ())} classes")
            if f.dtype.kind in "fc":
                bad = ~np.isfinite(part.reshape(len(part), -1))
                values += int(bad.sum())
                samples += (np.flatnonzero(bad.any(axis=1))[:_NAMED] + first).tolist()
        if values:
            nonfinite[f.name] = NonFinite(values, tuple(samples[:_NAMED]))
    store.close()
    return Report(store.path, store.length, tuple(problems), nonfinite)


def _parts(store: Store, f: Field, problems: list[str]) -> Iterator[tuple[int, np.ndarray]]:
    """(first sample, samples) of what can be read of a field; chunks that cannot go into `problems`."""
    assert store.layout is not None
    per = store.layout.chunks[f.name]
    for lo in range(0, store.length, per * _STEP):
        hi = min(lo + per * _STEP, store.length)
        try:
            yield lo, _read(store, f, lo, hi)
        except CorruptChunkError:
            for a in range(lo, hi, per):
                try:
                    yield a, _read(store, f, a, min(a + per, hi))
                except CorruptChunkError as error:
                    problems.append(str(error))


def _read(store: Store, f: Field, lo: int, hi: int) -> np.ndarray:
    out = store.empty([f.name], hi - lo)
    store.runs(np.array([[lo, hi]]), out).result()
    return out[f.name]


def _index_problems(store: Store) -> Iterator[str]:
    """Where HDF5's own index would lead other tools to other bytes than the chunk table leads us."""
    layout, source = store.layout, store.source
    assert layout is not None
    with h5py.File(source.path, "r", locking=False) as file:
        for f in layout.schema:
            where = dataset_path(f)
            dataset = file.get(where) if isinstance(file.get(where, getlink=True), h5py.HardLink) else None
            if not isinstance(dataset, h5py.Dataset) or dataset.is_virtual or dataset.external:
                yield f"field {f.name!r}: {where!r} is not a dataset of this file"
                continue
            shape = (layout.length, *f.shape)
            if dataset.shape != shape or dataset.chunks != layout.chunk_shape(f) or dataset.dtype != f.dtype:
                yield (f"field {f.name!r}: the dataset is {dataset.dtype} {dataset.shape} in chunks {dataset.chunks}, "
                       f"expected {f.dtype} {shape} in chunks {layout.chunk_shape(f)}")
                continue
            found: dict[int, tuple[int, int]] = {}
            dataset.id.chunk_iter(lambda c, found=found, per=layout.chunks[f.name]: found.update(  # type: ignore[misc]
                {c.chunk_offset[0] // per: (c.byte_offset, c.size)}))
            table = store.table(f.name)
            for i in range(len(table)):
                if found.get(i) != (int(table.offsets[i]), int(table.sizes[i])):
                    yield (f"field {f.name!r} chunk {i}: HDF5's index says bytes {found.get(i)}, the chunk table "
                           f"{(int(table.offsets[i]), int(table.sizes[i]))}")
                    break
