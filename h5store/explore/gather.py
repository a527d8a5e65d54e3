"""The pass that makes `Stats`: every piece is looked at once, in the pool, and forgotten."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from h5store.errors import OptionError
from h5store.explore.findings import warnings_of
from h5store.explore.jagged import Jagged
from h5store.explore.parts import Parts
from h5store.explore.sample import Counts, Strata, counted, kept_values, picked, quantiles, strata_of
from h5store.explore.stats import FieldStats, Stats
from h5store.moments import Moments, by_channel, channel_axis, channels_of, moments_of
from h5store.schema import Field, Role
from h5store.splits import part_names
from h5store.storage import notes
from h5store.stream import stream

if TYPE_CHECKING:
    from h5store.reader import Reader

#: Pieces whose moments are kept apart before they are merged.
_MERGE = 256


@dataclass
class _Piece:
    """What one piece adds."""

    moments: dict[str, Moments] = field(default_factory=dict)
    values: dict[str, np.ndarray] = field(default_factory=dict)
    counts: dict[str, dict[str, dict[Any, int]]] = field(default_factory=dict)


def gathered(reader: Reader, parts: Mapping[str, Reader] | None, progress: bool, save: bool) -> Stats:
    """Statistics of a reader: those kept in the store, or new ones.

    Raises
    ------
    OptionError, CorruptChunkError, OSError
    """
    ours = reader._store.layout is not None
    if save and not ours:
        raise OptionError(f"{reader.path}: save=True needs a store of h5store's own; this file was written by others "
                          "and is not changed; leave save out, or pack it first")
    if parts is None and ours and reader._ids is None:
        # The parts of the split that was saved last under its names; several splits overlap by intention.
        saved = part_names(reader.path)
        parts = {name: reader.split(name) for name in saved[-1]} if saved else None
    of = Parts(reader, parts or {})
    key = f"stats:{of.digest}"
    known = notes.read(reader.path, key) if ours else None
    found = Stats.from_note(reader.path, known) if known is not None else None
    if found is None or found.fingerprint != reader._store.fingerprint:
        found, known = _passed(reader, of, progress), None
    if save and known is None:
        notes.write(reader.path, {key: found.to_note()}, seal=reader._store.fingerprint)
        reader._store.renew()
    return found


def _passed(reader: Reader, parts: Parts, progress: bool) -> Stats:
    fields = list(reader.schema)
    numeric = [f for f in fields if not f.text and not f.ragged]
    jagged = Jagged(reader, [f for f in fields if f.ragged])
    classed = [f for f in fields if not f.shape and (f.text or f.role is Role.LABELS)]
    inputs = [f.name for f in reader.schema.of(Role.FEATURES, Role.AUX) if not f.ragged]
    kept = kept_values([*numeric, *jagged.columns])
    jagged.measure(kept, hashed=bool(parts))
    strata = {f.name: strata_of(f, len(reader), kept) for f in numeric}

    def work(start: int, ids: np.ndarray, arrays: Mapping[str, np.ndarray]) -> _Piece:
        piece = _Piece()
        for f in numeric:
            piece.moments[f.name] = moments_of(by_channel(f, arrays[f.name]))
            piece.values[f.name] = picked(f, strata[f.name], start, arrays[f.name])
        for f in classed:
            values = arrays[f.name]
            piece.counts[f.name] = {"": counted(values),
                                    **{name: counted(values[mine]) for name, mine in parts.among(ids)}}
        if parts:
            begun = jagged.digests(start, len(ids))
            parts.see(ids, _hashes([arrays[name] for name in inputs], parts.anywhere(ids), begun))
        return piece

    total = _Total([f for f in fields if not f.ragged], numeric, classed, parts)
    names = [f.name for f in fields if not f.ragged]
    if names:
        for piece in stream(reader, names, work, progress=progress):
            total.add(piece)
    elif len(reader):
        total.add(work(0, np.sort(reader.ids), {}))
    found = {**total.fields(strata), **jagged.found}
    found = {f.name: found[f.name] for f in fields}
    return Stats(reader.path, len(reader), reader._store.fingerprint, found, parts.sizes,
                 warnings_of(reader, found, parts), kept)


def _hashes(arrays: list[np.ndarray], wanted: np.ndarray, begun: list[int]) -> np.ndarray:
    """XXH3-64 of the inputs of each wanted sample, going on from `begun`, uint64 (samples,); 0 for the others."""
    out = np.zeros(len(wanted), np.uint64)
    rows = [np.ascontiguousarray(a).reshape(len(a), -1).view(np.uint8) for a in arrays]
    for i in np.flatnonzero(wanted).tolist():
        digest = begun[i]
        for row in rows:
            digest = xxhash.xxh3_64_intdigest(row[i].data, digest)
        out[i] = digest
    return out


class _Total:
    """What all pieces so far add up to."""

    def __init__(self, fields: list[Field], numeric: list[Field], classed: list[Field], parts: Parts) -> None:
        self._fields = fields
        self._moments: dict[str, list[Moments]] = {f.name: [Moments.none(channels_of(f))] for f in numeric}
        self._values: dict[str, list[np.ndarray]] = {f.name: [] for f in numeric}
        self._counts = {f.name: {part: Counts() for part in ("", *parts.sizes)} for f in classed}

    def add(self, piece: _Piece) -> None:
        for name, moments in piece.moments.items():
            kept = self._moments[name]
            kept.append(moments)
            if len(kept) > _MERGE:
                self._moments[name] = [Moments.merged(kept)]
        for name, values in piece.values.items():
            self._values[name].append(values)
        for name, by_part in piece.counts.items():
            for part, counts in by_part.items():
                self._counts[name][part].add(counts)

    def fields(self, strata: Mapping[str, Strata]) -> dict[str, FieldStats]:
        out = {}
        for f in self._fields:
            parts = {part: _named(f, counts) for part, counts in self._counts.get(f.name, {}).items()}
            every = parts.pop("", None)
            moments = values = None
            if f.name in self._moments:
                moments = Moments.merged(self._moments[f.name])
                rows = self._values[f.name] or [np.empty((0, channels_of(f)))]
                values = quantiles(np.concatenate(rows))
            out[f.name] = FieldStats(f.name, f.role, "text" if f.text else f.dtype.name, f.shape, channel_axis(f.shape),
                                     moments, values, every,
                                     {part: counts for part, counts in parts.items() if counts is not None})
        return out


def _named(f: Field, counts: Counts) -> dict[Any, int] | None:
    """Classes by their name, the most frequent first; codes outside the class list keep their number."""
    if counts.found is None:
        return None
    names = f.classes or ()
    ordered = sorted(counts.found.items(), key=lambda item: (-item[1], math.isnan(item[0]), item[0]))
    if not f.text:
        return dict(ordered)
    return {names[int(code)] if 0 <= code < len(names) else int(code): count for code, count in ordered}
