"""Statistics of variable-length fields: of all their values, one sample after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from h5store.explore.sample import Strata, quantiles
from h5store.explore.stats import FieldStats
from h5store.moments import Moments, by_channel, channel_axis, channels_of, moments_of
from h5store.ragged import Ragged
from h5store.schema import Field, Role

if TYPE_CHECKING:
    from h5store.reader import Reader

#: Bytes of values that are read at once.
_PIECE = 4 * 2**20
#: Samples whose lengths are read at once.
_SAMPLES = 65_536


class Jagged:
    """The variable-length fields of a reader. Encoded images are bytes that mean nothing one by one: not measured."""

    def __init__(self, reader: Reader, fields: list[Field]) -> None:
        self._store, self._fields = reader._store.uncached() if fields else reader._store, fields
        self._ids = np.sort(reader.ids) if fields else np.empty(0, np.int64)
        self._digests: np.ndarray | None = None
        self.columns = [f.columns[0] for f in fields if f.encoded is None]
        self.found: dict[str, FieldStats] = {}

    def measure(self, kept: int, *, hashed: bool) -> None:
        """Gather the statistics; and digests of the inputs among these fields, if they are to be `hashed`.

        Raises
        ------
        CorruptChunkError
        """
        for f in self._fields:
            fed = hashed and f.role in (Role.FEATURES, Role.AUX)
            if f.encoded is not None and not fed:
                self.found[f.name] = FieldStats(f.name, f.role, "encoded images", f.shape)
                continue
            self._one(f, kept, fed)

    def _one(self, f: Field, kept: int, fed: bool) -> None:
        column = f.columns[0]
        inner = int(np.prod(column.shape, dtype=np.int64)) // channels_of(column)
        total = sum(int(self._store.lengths(f.name, self._ids[lo:lo + _SAMPLES]).sum())
                    for lo in range(0, len(self._ids), _SAMPLES))
        strata = Strata(total * inner, kept)
        moments, values, at = [Moments.none(channels_of(column))], [], 0
        for start, piece in self._pieces(f):
            rows = by_channel(column, piece.values)
            if f.encoded is None:
                moments.append(moments_of(rows))
                some = strata.pick(at, rows)
                values.append(np.abs(some) if some.dtype.kind == "c" else some)
            if fed:
                self._digest(start, piece)
            at += len(rows)
        measured = f.encoded is None
        if not measured:
            self.found[f.name] = FieldStats(f.name, f.role, "encoded images", f.shape)
            return
        every = np.concatenate(values) if values else np.empty((0, channels_of(column)))
        self.found[f.name] = FieldStats(f.name, f.role, f.dtype.name, f.shape, channel_axis(f.shape),
                                        Moments.merged(moments), quantiles(every))

    def _pieces(self, f: Field) -> Iterator[tuple[int, Ragged]]:
        each = max(1, min(_SAMPLES, _PIECE // max(1, self._store.mean_bytes(f.name))))
        for lo in range(0, len(self._ids), each):
            yield lo, self._store.ragged(f.name, self._ids[lo:lo + each])

    def _digest(self, start: int, piece: Ragged) -> None:
        if self._digests is None:
            self._digests = np.zeros(len(self._ids), np.uint64)
        for i, sample in enumerate(piece, start):
            raw = np.ascontiguousarray(sample).reshape(-1).view(np.uint8)
            self._digests[i] = xxhash.xxh3_64_intdigest(raw.data, int(self._digests[i]))

    def digests(self, start: int, count: int) -> list[int]:
        """What the inputs among these fields hash to so far, of samples by their position in the pass."""
        return [0] * count if self._digests is None else self._digests[start:start + count].tolist()
