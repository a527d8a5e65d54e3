"""Read a whole store and say what is wrong with it: sums, lengths, codes, every byte, and samples to be saved."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from h5store.errors import CorruptChunkError, FormatError, StoreExistsError
from h5store.hdf5view import problems as index_problems
from h5store.repair import Damage, chunks_of, copy, samples_of, whole_samples
from h5store.schema import Field
from h5store.storage import notes, pool, rest
from h5store.storage.opening import open_damaged
from h5store.storage.store import Store
from h5store.stream import stream

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
    damaged : tuple of Damage
        Chunks that are lost.
    repaired : str or None
        The new store that a repair made.
    salvaged : int
        Samples in it: those that are whole in every field, in the order of the file.
    """

    path: str
    samples: int
    problems: tuple[str, ...]
    nonfinite: dict[str, NonFinite] = field(default_factory=dict)
    damaged: tuple[Damage, ...] = ()
    repaired: str | None = None
    salvaged: int = 0

    @property
    def ok(self) -> bool:
        """Whether the store is whole. Non-finite values are no damage."""
        return not self.problems

    def _repr_html_(self) -> str:
        from h5store.explore.card import report_card

        return report_card(self)

    def __str__(self) -> str:
        state = "whole" if self.ok else f"{len(self.problems)} problem{'s' * (len(self.problems) > 1)}"
        lines = [f"{self.path}: {self.samples:,} samples, {state}"]
        lines += [f"  {p}" for p in self.problems]
        for name, found in self.nonfinite.items():
            more = ", ..." if len(found.samples) == _NAMED else ""
            lines.append(f"  field {name!r}: {found.values:,} non-finite values, in samples "
                         f"{', '.join(map(str, found.samples))}{more}")
        if self.repaired is not None:
            lines.append(f"  {self.salvaged:,} samples that are whole are in {self.repaired}; "
                         f"{self.samples - self.salvaged:,} are left out")
        return "\n".join(lines)


def verify(path: str | os.PathLike[str], *, threads: int | None = None,
           repair: str | os.PathLike[str] | None = None, hdf5: bool = False) -> Report:
    """Read every chunk of a store, and every other byte, and check it. The store is not changed.

    Parameters
    ----------
    path : str or path-like
    threads : int, optional
    repair : str or path-like, optional
        Make a new store there of the samples that are whole in every field. It is made of a store that cannot be
        opened any more, too, as long as its schema and its chunk table are found.
    hdf5 : bool
        Also have libhdf5, in a process of its own, tell whether other tools are led to the same bytes. It finds
        what was forged, or written by a faulty HDF5; damage is found without it.

    Returns
    -------
    Report
        Its `ok` tells whether the store is whole; it lists NaN and infinities too.

    Raises
    ------
    FileNotFoundError, FormatError
        The file cannot be opened as a store at all.
    StoreExistsError
        Something is where the repaired store is to be.
    """
    if repair is not None:
        return _repaired(path, repair, threads)
    store = Store.open(path, cache=0, threads=threads)
    try:
        found = _report(store)
        return replace(found, problems=(*found.problems, *index_problems(store.path))) if hdf5 and found.ok else found
    finally:
        store.close()


def _repaired(path: str | os.PathLike[str], to: str | os.PathLike[str], threads: int | None) -> Report:
    to = os.path.abspath(os.fsdecode(to))
    if os.path.exists(to):
        raise StoreExistsError(f"{to}: a file is already here, and a repair replaces nothing; name another")
    told: str | None = None
    try:
        store = Store.open(path, cache=0, threads=threads)
    except FormatError as error:
        store, told = Store.of(open_damaged(path, error), 0, pool.thread_count(threads)), str(error)
    try:
        whole, damaged = whole_samples(store)
        found = _report(store) if told is None else Report(
            store.path, store.length, (told, *(f"{d} is lost" for d in damaged)), damaged=damaged)
        copy(store, np.flatnonzero(whole), to, threads)
        return replace(found, repaired=to, salvaged=int(whole.sum()))
    finally:
        store.close()


def _report(store: Store) -> Report:
    problems, damaged, nonfinite = list(_structure_problems(store)), list[Damage](), dict[str, NonFinite]()
    try:
        fixed = [f.name for f in store.schema if not f.ragged]
        pieces = stream(_All(store), fixed, _Check(store).piece) if fixed else ()
        findings = [found for piece in pieces for found in piece]
        findings += [found for f in store.schema if f.ragged for found in _ragged(store, f)]
    except CorruptChunkError:
        # Read again, chunk by chunk, to tell which are damaged. A whole store is read once, at full speed.
        findings = list(_chunkwise(store, problems, damaged))
    for name, text, found in findings:
        if text:
            problems.append(text)
        if found is not None:
            have = nonfinite.get(name, NonFinite(0, ()))
            nonfinite[name] = NonFinite(have.values + found.values, (have.samples + found.samples)[:_NAMED])
    return Report(store.path, store.length, tuple(problems), nonfinite, tuple(damaged))


#: (field, problem or "", non-finite values or None)
_Finding = tuple[str, str, "NonFinite | None"]


class _All:
    """Every sample of a store, as `stream` wants a reader."""

    def __init__(self, store: Store) -> None:
        self._store, self.path, self.schema = store, store.path, store.schema
        self._ids: np.ndarray | None = None

    def __len__(self) -> int:
        return self._store.length


class _Check:
    """What is looked for in decoded samples."""

    def __init__(self, store: Store) -> None:
        self._fields = [f for f in store.schema if not f.ragged and (f.text or f.dtype.kind in "fc")]

    def piece(self, start: int, ids: np.ndarray, arrays: Mapping[str, np.ndarray]) -> list[_Finding]:
        return [found for f in self._fields for found in _values_of(f, start, arrays[f.name])]


def _values_of(f: Field, first: int, part: np.ndarray) -> list[_Finding]:
    """Codes that no class has, and non-finite values, of samples from `first` on."""
    if not part.size:
        return []
    if f.text:
        classes = len(f.classes or ())
        if 0 <= int(part.min()) and int(part.max()) < classes:
            return []
        return [(f.name, f"field {f.name!r} samples {first}-{first + len(part) - 1}: a code is outside the {classes} "
                         "classes", None)]
    with np.errstate(all="ignore"):
        if np.isfinite(part.sum()):  # a sum takes no memory, and any NaN or infinity is in it
            return []
    bad = ~np.isfinite(part.reshape(len(part), -1))
    if not bad.any():
        return []
    samples = np.flatnonzero(bad.any(axis=1))[:_NAMED] + first
    return [(f.name, "", NonFinite(int(bad.sum()), tuple(samples.tolist())))]


def _columns(store: Store) -> tuple[Field, ...]:
    assert store.layout is not None
    return store.layout.columns


def _ragged(store: Store, f: Field) -> Iterator[_Finding]:
    """Of a variable-length field: ends that go back or beyond the values, and samples with non-finite values.

    Raises
    ------
    CorruptChunkError
    """
    values, ends = f.columns
    last, total = 0, store.rows(values)
    for _, lo, part in chunks_of(store, ends):
        if isinstance(part, Exception):
            raise part
        steps = np.diff(part.astype(np.int64), prepend=last)
        if len(part) and (steps.min() < 0 or int(part[-1]) > total):
            where = f"field {f.name!r} samples {lo}-{lo + len(part) - 1}"
            yield f.name, f"{where}: where they end goes back or too far", None
            return
        last = int(part[-1]) if len(part) else last
    if last != total:
        yield f.name, f"field {f.name!r}: its samples end at value {last:,}, there are {total:,}", None
    for _, lo, part in chunks_of(store, values):
        if isinstance(part, Exception):
            raise part
        for name, text, found in _values_of(values, lo, part) if f.dtype.kind in "fc" else ():
            yield name, text, found and NonFinite(found.values, ())


def _chunkwise(store: Store, problems: list[str], damaged: list[Damage]) -> Iterator[_Finding]:
    for f in _columns(store):
        for chunk, lo, part in chunks_of(store, f):
            if isinstance(part, np.ndarray):
                yield from _values_of(f, lo, part) if f.text or f.dtype.kind in "fc" else ()
                continue
            problems.append(str(part))
            if f.name in store.schema and store.schema[f.name].ragged:
                chunk = samples_of(store, store.schema[f.name], chunk)
                problems[-1] += f"; the values are of samples {chunk.first}-{chunk.last}"
            damaged.append(chunk)


def _structure_problems(store: Store) -> Iterator[str]:
    """What is wrong beside the chunks: notes, and any other byte."""
    with store.source.lease() as fd:
        other = list(rest.problems(fd, store.source, (store.table(f.name) for f in _columns(store))))
    yield from notes.problems(store.path)
    yield from other
