"""Sources: the first samples of another source, or its samples in a random order that is recorded."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from h5store.errors import OptionError, SchemaError
from h5store.sampling.plan import EpochPlan
from h5store.schema import Field, Role, Schema
from h5store.sources.base import BLOCK_BYTES, Source
from h5store.sources.files import FileSource, Skipped
from h5store.sources.hdf5 import StoreSource

#: Name of the meta field that says which sample of the source a sample is.
INDEX = "source_index"
# Samples that are mixed at once, decoded, out of all parts of the source; what a shuffled pack holds in memory.
_WINDOW_BYTES = 64 << 20
#: Samples that stay together until they are mixed: fewer cost requests, more mix less.
_RUN_BYTES = 64 << 10

Roles = dict[str, dict[str, Any]]


def whole(name: str, value: Any, least: int) -> int:
    """
    Raises
    ------
    OptionError
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise OptionError(f"{name}: expected an int of at least {least}, got {value!r}")
    return number


def limited(source: Source, limit: Any) -> Source:
    """The first samples of a source; of files, the samples of the first files.

    Raises
    ------
    OptionError
    """
    most = whole("limit", limit, 1)
    if isinstance(source, FileSource):
        source.cut(most)
        return source
    return Limited(source, most)


class Limited:
    """The first samples of a source."""

    def __init__(self, source: Source, most: int) -> None:
        self._source, self._most = source, most
        self.name = source.name
        self.schema: Schema | None = source.schema
        self.length: int | None = None if source.length is None else min(source.length, most)

    def blocks(self, start: int = 0) -> Iterator[Roles]:
        left = self._most - start
        if left > 0:
            for roles in self._source.blocks(start):
                size = _size(roles)
                yield _cut(roles, slice(0, left)) if size > left else roles  # type: ignore[misc]
                left -= size
                if left <= 0:
                    break

    def runs(self, ranges: np.ndarray) -> Roles:
        return self._source.runs(ranges)  # type: ignore[attr-defined,no-any-return]

    @property
    def scattered(self) -> bool:
        """Whether samples can be read in any order."""
        return getattr(self._source, "scattered", False)


def scattered(source: Source) -> bool:
    """Whether a source can be shuffled as it is; else it is packed first, in its own order."""
    return isinstance(source, (FileSource, StoreSource)) or getattr(source, "scattered", False)


class Shuffled:
    """The samples of a source in a random order, that of each in the meta field ``source_index``.

    Parameters
    ----------
    source : FileSource, StoreSource or ArraySource
    seed : int

    Notes
    -----
    Files come in a uniformly random order. Of other sources, runs of a few samples from all parts of the source are
    mixed in windows of 64 MiB, so that it is read in large pieces and memory does not grow with it. The order depends
    on the seed, the number of samples and their size alone.
    """

    def __init__(self, source: Any, seed: int) -> None:
        self._source, self._seed = source, whole("shuffle", seed, 0)
        self.name = source.name
        self._plan: EpochPlan | None = None

    @property
    def schema(self) -> Schema:
        schema = self._source.schema
        if INDEX in schema:
            raise SchemaError(f"{self.name}: has a field {INDEX!r} already, the name of the one that records the "
                              "shuffled order; give it another name")
        return Schema((*schema, Field(INDEX, Role.META, np.dtype(np.int64))))

    @property
    def length(self) -> int | None:
        return self._source.length  # type: ignore[no-any-return]

    @property
    def skipped(self) -> list[Skipped]:
        return getattr(self._source, "skipped", [])

    def prepare(self, progress: bool = False) -> None:
        if hasattr(self._source, "prepare"):
            self._source.prepare(progress)

    def blocks(self, start: int = 0) -> Iterator[Roles]:
        if isinstance(self._source, FileSource):
            return self._source.ordered(start, self._file_ids(), INDEX)
        return self._mixed(start)

    def _file_ids(self) -> Iterator[np.ndarray]:
        source = self._source
        plan = EpochPlan(n=source.length, batch_size=source.step, shuffle="full", seed=self._seed, block=1, window=1)
        return (plan.batch(0, step) for step in range(len(plan)))

    def _mixed(self, start: int) -> Iterator[Roles]:
        sample = max(1, sum(f.nbytes for f in self.schema))
        block = max(1, _RUN_BYTES // sample)
        plan = EpochPlan(n=self.length or 0, batch_size=1, shuffle=True, seed=self._seed, block=block,
                         window=max(2, _WINDOW_BYTES // (block * sample)))
        step = max(1, BLOCK_BYTES // sample)
        try:
            yield from self._windows(plan, start, step)
        finally:
            if isinstance(self._source, StoreSource):
                self._source.close()

    def _windows(self, plan: EpochPlan, start: int, step: int) -> Iterator[Roles]:
        for window in plan.windows(0, min(start, len(plan))):
            ranges = np.zeros((0, 2), np.int64) if window.ranges is None else window.ranges
            held = self._source.runs(ranges)
            ids = np.concatenate([np.arange(lo, hi) for lo, hi in ranges.tolist()])
            order = np.arange(len(ids)) if window.order is None else window.order
            for at in range(0, len(order), step):
                chosen = order[at:at + step]
                roles = _cut(held, chosen)
                roles.setdefault("meta", {})[INDEX] = ids[chosen]
                yield roles


def _size(roles: Mapping[str, Mapping[str, Any]]) -> int:
    return next(len(values) for fields in roles.values() for values in fields.values())


def _cut(roles: Mapping[str, Mapping[str, Any]], chosen: Any) -> Roles:
    return {role: {name: values[chosen] for name, values in fields.items()} for role, fields in roles.items()}
