"""Salvage: samples of a damaged store that are whole in every field, into a new one. The old file stays as it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from h5store.errors import CorruptChunkError
from h5store.schema import Field, Role, Schema
from h5store.storage.store import Store
from h5store.writer import Writer

#: Samples are copied in pieces of this size.
_PIECE_BYTES = 8 << 20


@dataclass(frozen=True)
class Damage:
    """A chunk of a field that is not what was written, and the samples that it holds, the last one included."""

    field: str
    chunk: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"field {self.field!r} chunk {self.chunk} (samples {self.first}-{self.last})"


def chunks_of(store: Store, f: Field) -> Iterator[tuple[Damage, int, np.ndarray | CorruptChunkError]]:
    """(what it would be if it were damaged, first sample, samples or what is wrong) of every chunk of a field."""
    table = store.table(f.name)
    for i in range(len(table)):
        lo, hi = i * table.samples, min((i + 1) * table.samples, store.rows(f))
        out = store.empty([f.name], hi - lo)
        where = Damage(f.name, i, lo, hi - 1)
        try:
            store.runs(np.array([[lo, hi]]), out).result()
            yield where, lo, out[f.name]
        except CorruptChunkError as error:
            yield where, lo, error


def whole_samples(store: Store) -> tuple[np.ndarray, tuple[Damage, ...]]:
    """Which samples are whole in every field, a bool array; and the chunks that are lost."""
    whole, damaged = np.ones(store.length, bool), list[Damage]()
    for f in store.schema:
        if f.ragged:
            _whole_ragged(store, f, whole, damaged)
            continue
        for where, lo, part in chunks_of(store, f):
            if not isinstance(part, np.ndarray):
                damaged.append(where)
                whole[where.first:where.last + 1] = False
            elif f.text:
                fits = (part >= 0) & (part < len(f.classes or ()))
                whole[lo:lo + len(part)] &= fits.reshape(len(part), -1).all(axis=1)
    return whole, tuple(damaged)


def _whole_ragged(store: Store, f: Field, whole: np.ndarray, damaged: list[Damage]) -> None:
    values, ends = f.columns
    edges, known = np.zeros(store.length + 1, np.uint64), np.ones(store.length + 1, bool)
    for where, lo, part in chunks_of(store, ends):
        if isinstance(part, np.ndarray):
            edges[lo + 1:lo + 1 + len(part)] = part
        else:
            damaged.append(where)
            known[where.first + 1:where.last + 2] = False
    whole &= known[:-1] & known[1:] & (edges[:-1] <= edges[1:]) & (edges[1:] <= store.rows(values))
    for where, lo, part in chunks_of(store, values):
        if not isinstance(part, np.ndarray):
            damaged.append(samples_of(store, f, where))
            whole &= (edges[1:] <= where.first) | (edges[:-1] > where.last) | (edges[:-1] == edges[1:])


def samples_of(store: Store, f: Field, where: Damage) -> Damage:
    """A damaged chunk of the values of a variable-length field, with the samples that it holds a part of.

    What is known of where samples end decides: a damaged chunk of those counts to the sample before it.
    """
    ends = np.zeros(store.length, np.uint64)
    for _, lo, part in chunks_of(store, f.columns[1]):
        if isinstance(part, np.ndarray):
            ends[lo:lo + len(part)] = part
    ends = np.maximum.accumulate(ends)
    first, last = np.searchsorted(ends, [where.first, where.last], side="right").tolist()
    return replace(where, first=first, last=min(last, store.length - 1))


def copy(store: Store, ids: np.ndarray, to: str | os.PathLike[str], threads: int | None) -> None:
    """Write samples `ids`, ascending, into a new store with the fields, codec and block of the old one."""
    layout = store.layout
    assert layout is not None
    schema = Schema(tuple(replace(f, classes=None) for f in store.schema))
    with Writer(to, codec=layout.codec, chunk=layout.block, threads=threads, schema=schema) as writer:
        for piece in _pieces(store, ids):
            out = store.empty([f.name for f in store.schema if not f.ragged], len(piece))
            store.gather(piece, out).result()
            roles: dict[str, dict[str, Any]] = {str(role): {} for role in Role}
            for f in store.schema:
                values = list(store.ragged(f.name, piece)) if f.ragged else out[f.name]
                roles[str(f.role)][f.name] = np.array(f.classes or ("",), dtype=str)[values] if f.text else values
            writer.append(**{role: fields for role, fields in roles.items() if fields})


def _pieces(store: Store, ids: np.ndarray) -> Iterator[np.ndarray]:
    step = max(1, _PIECE_BYTES // max(1, sum(store.mean_bytes(f.name) for f in store.schema)))
    for lo in range(0, len(ids), step):
        yield ids[lo:lo + step]
