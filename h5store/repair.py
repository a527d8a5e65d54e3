"""Salvage: samples of a damaged store that are whole in every field, into a new one. The old file stays as it is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

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
    whole, damaged = np.ones(store.length, bool), []
    for f in store.schema:
        for where, lo, part in chunks_of(store, f):
            if not isinstance(part, np.ndarray):
                damaged.append(where)
                whole[where.first:where.last + 1] = False
            elif f.text:
                fits = (part >= 0) & (part < len(f.classes or ()))
                whole[lo:lo + len(part)] &= fits.reshape(len(part), -1).all(axis=1)
    return whole, tuple(damaged)


def copy(store: Store, ids: np.ndarray, to: str | os.PathLike[str], threads: int | None) -> None:
    """Write samples `ids`, ascending, into a new store with the fields, codec and block of the old one."""
    layout = store.layout
    assert layout is not None
    schema = Schema(tuple(replace(f, classes=None) for f in store.schema))
    with Writer(to, codec=layout.codec, chunk=layout.block, threads=threads, schema=schema) as writer:
        for piece in _pieces(store.schema, ids):
            out = store.empty(store.schema.names, len(piece))
            store.gather(piece, out).result()
            roles: dict[str, dict[str, np.ndarray]] = {str(role): {} for role in Role}
            for f in store.schema:
                values = out[f.name]
                roles[str(f.role)][f.name] = np.array(f.classes or ("",), dtype=str)[values] if f.text else values
            writer.append(**{role: fields for role, fields in roles.items() if fields})


def _pieces(fields: Iterable[Field], ids: np.ndarray) -> Iterator[np.ndarray]:
    step = max(1, _PIECE_BYTES // max(1, sum(f.nbytes for f in fields)))
    for lo in range(0, len(ids), step):
        yield ids[lo:lo + step]
