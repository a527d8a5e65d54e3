"""Bytes: one field, or one store, that lies in several places, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

from h5store.ragged import Ragged
from h5store.schema import CODE_DTYPE, Field, Schema
from h5store.storage.cache import SampleCache
from h5store.storage.fetch import FieldBytes, HeldField, expand
from h5store.storage.store import Store
from h5store.storage.tasks import Tasks


class JoinedField:
    """One field in several places, one after the other.

    Parameters
    ----------
    parts : sequence of (int, FieldBytes)
        How many of the first samples of a place count, and the place.
    """

    def __init__(self, of: Field, parts: Sequence[tuple[int, FieldBytes]]) -> None:
        self.name, self.shape, self.dtype = of.name, of.shape, of.dtype.newbyteorder("=")
        self._parts = [part for _, part in parts]
        self._edges = np.cumsum([0] + [count for count, _ in parts])
        self.samples = int(self._edges[-1])

    def gather(self, ids: np.ndarray, out: np.ndarray, to: np.ndarray | None = None) -> Tasks:
        both, part = Tasks(), np.searchsorted(self._edges, ids, side="right") - 1
        for number in np.unique(part).tolist():
            mine = np.flatnonzero(part == number)
            some = self._parts[number].gather(ids[mine] - self._edges[number], out, mine if to is None else to[mine])
            both.work += some.work
            both.then += some.then
        return both

    def runs(self, ranges: np.ndarray, out: np.ndarray, to: np.ndarray | None = None) -> Tasks:
        both = Tasks()
        lengths = ranges[:, 1] - ranges[:, 0]
        before = np.cumsum(lengths) - lengths
        for number, part in enumerate(self._parts):
            cut = np.clip(ranges, self._edges[number], self._edges[number + 1])
            mine = np.flatnonzero(cut[:, 1] > cut[:, 0])
            if not len(mine):
                continue
            cut = cut[mine]
            first = before[mine] + cut[:, 0] - ranges[mine, 0]
            rows, _ = expand(np.stack([first, first + cut[:, 1] - cut[:, 0]], axis=1), None)
            some = part.runs(cut - self._edges[number], out, rows if to is None else to[rows])
            both.work += some.work
            both.then += some.then
        return both

    def close(self) -> None:
        for part in self._parts:
            part.close()


class JoinedStore(Store):
    """Stores of the same fields, one after the other.

    Parameters
    ----------
    stores : sequence of Store
    schema : Schema
        Text fields have the classes of all stores.
    """

    def __init__(self, stores: Sequence[Store], schema: Schema) -> None:
        self.stores = list(stores)
        self._begins = np.cumsum([0] + [store.length for store in stores])
        fields = {f.name: JoinedField(f, [(s.length, _in(s, f)) for s in stores]) for f in schema if not f.ragged}
        mark = xxhash.xxh3_128_hexdigest("/".join(store.fingerprint for store in stores).encode())
        super().__init__(stores[0].source, schema, int(self._begins[-1]), min(store.block for store in stores), mark,
                         fields, SampleCache(0, {}), max(store.threads for store in stores))

    @property
    def path(self) -> str:
        return " + ".join(dict.fromkeys(store.path for store in self.stores))

    @property
    def file_bytes(self) -> int:
        return sum({store.path: store.file_bytes for store in self.stores}.values())

    @property
    def starts(self) -> np.ndarray:
        """First sample of each block, int64: where a store begins, so does a block."""
        return np.concatenate([np.arange(lo, hi, store.block) for store, lo, hi in
                               zip(self.stores, self._begins, self._begins[1:])])

    def part_of(self, ids: np.ndarray) -> np.ndarray:
        """Number of the store that holds each sample, int64."""
        return np.searchsorted(self._begins, ids, side="right") - 1

    def chunk_bytes(self, name: str) -> int | None:
        sizes = [store.chunk_bytes(name) for store in self.stores]
        return None if None in sizes else max(size for size in sizes if size is not None)

    def mean_bytes(self, name: str) -> int:
        total = sum(store.mean_bytes(name) * store.length for store in self.stores)
        return -(-total // max(1, self.length))

    def ragged(self, name: str, ids: np.ndarray) -> Ragged:
        part = self.part_of(ids)
        order = np.argsort(part, kind="stable")
        found = [self.stores[i].ragged(name, ids[part == i] - self._begins[i]) for i in np.unique(part).tolist()]
        if not found:
            return self.stores[0].ragged(name, ids)
        joined = Ragged.of(np.concatenate([some.values for some in found]),
                           np.concatenate([some.lengths for some in found]))
        return joined.take(np.argsort(order, kind="stable"))

    def lengths(self, name: str, ids: np.ndarray) -> np.ndarray:
        part, out = self.part_of(ids), np.empty(len(ids), np.int64)
        for i in np.unique(part).tolist():
            out[part == i] = self.stores[i].lengths(name, ids[part == i] - self._begins[i])
        return out

    def uncached(self) -> Store:
        return JoinedStore([store.uncached() for store in self.stores], self.schema)

    def close(self) -> None:
        for store in self.stores:
            store.close()


def _in(store: Store, field: Field) -> FieldBytes:
    """A field of one of the stores; of text whose classes have other numbers there, all its codes."""
    here = store.schema[field.name]
    if here.classes == field.classes:
        return store.field(field.name)
    out = store.empty([field.name], store.length)
    store.runs(np.array([[0, store.length]]), out).result()
    number = {text: code for code, text in enumerate(field.classes or ())}
    codes = np.array([number[text] for text in here.classes or ()] or [0], CODE_DTYPE)
    return HeldField(field.name, codes[out[field.name]])
