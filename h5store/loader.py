"""A store times a plan: batches in the order of an `EpochPlan`, read ahead in the pool."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import xxhash

from h5store.encoded import read_loose
from h5store.errors import OptionError, SchemaError
from h5store.position import Position, step_ranges
from h5store.ragged import Ragged
from h5store.sampling.drawing import Choice
from h5store.sampling.plan import EpochPlan
from h5store.schema import Field, Schema
from h5store.storage.cache import parse_bytes
from h5store.storage.store import Store
from h5store.windows import Windows

# Two windows are in memory at a time. 32 MiB holds some 250 blocks of the default size, enough to mix a file
# that is sorted by class, and both windows stay under 100 MB. docs/decisions.md.
DEFAULT_WINDOW = "32MiB"
#: Fewer blocks than this do not mix, however large they are.
_LEAST_BLOCKS = 8


class Samples(Protocol):
    """What a loader needs of a `Reader`."""

    _store: Store
    _ids: np.ndarray | None

    @property
    def path(self) -> str: ...

    def __len__(self) -> int: ...

    def model_fields(self) -> tuple[Field, ...]: ...

    @property
    def schema(self) -> Schema: ...

    def pack_batch(self, values: Mapping[str, np.ndarray]) -> tuple[Any, ...]: ...

    def batch(self, ids: Any) -> tuple[Any, ...]: ...


class Loader(Position):
    """Batches of a reader's samples, epoch by epoch.

    Parameters
    ----------
    reader : Reader
    batch_size : int
    shuffle : True, "full" or False
        True mixes windows of randomly chosen blocks, at full speed; "full" is an exact uniform permutation;
        False is the order of the reader.
    seed : int, optional
        Decides every epoch's order. Drawn at random if None, and shown in the repr.
    rank, world_size : int
        This process and how many share the epoch. Each sample is served once, by one of them, and all take the same
        number of steps.
    drop_last : bool
        Leave out a last batch that is not full.
    window : str or int
        Bytes of decoded samples that `shuffle=True` mixes. Two windows are in memory.
    choice : Choice, optional
        Which samples a batch holds, if not those of the plan; see `h5store.sampling.drawing`.

    Raises
    ------
    OptionError, SchemaError

    Notes
    -----
    The order is a function of (seed, epoch) and of the file's blocks: neither threads nor processes change it.
    Iterating ``for batch in loader`` serves the rest of the current epoch and moves on to the next; `state_dict`
    tells where it is.
    """

    def __init__(self, reader: Samples, *, batch_size: int, shuffle: bool | str = True, seed: int | None = None,
                 rank: int = 0, world_size: int = 1, drop_last: bool = False, window: Any = DEFAULT_WINDOW,
                 choice: Choice | None = None) -> None:
        self._fields = tuple(f.name for f in reader.model_fields() if not f.ragged)
        self._choice = choice
        if seed is None and (shuffle is not False or choice is not None) and world_size > 1:
            raise OptionError(f"{reader.path}: a shuffled loader with world_size={world_size} needs seed=: without it "
                              "every rank would draw an order of its own")
        self.reader = reader
        self.seed = secrets.randbits(32) if seed is None else seed
        self.epoch_number = self.step = 0
        block, starts = self._blocks(shuffle)
        sample = sum(reader._store.mean_bytes(f.name) for f in reader.model_fields())
        self._ragged = tuple(f.name for f in reader.model_fields() if f.ragged)
        blocks = max(_LEAST_BLOCKS, parse_bytes(window, "window") // max(1, sample * block))
        self.plan = EpochPlan(n=len(reader), batch_size=batch_size, shuffle=shuffle, seed=self.seed, block=block,
                              starts=starts, window=blocks, drop_last=drop_last, rank=rank, world_size=world_size,
                              where=reader.path)
        self._rest: EpochPlan | None = None  # of the current epoch, after a change of world_size
        self._buffers: list[dict[str, np.ndarray]] = []

    def _blocks(self, shuffle: bool | str) -> tuple[int, np.ndarray | None]:
        """Samples a block; of a view, where each block begins among its ids."""
        store, ids = self.reader._store, self.reader._ids
        # A shuffled view is read in the order of the file, whatever order its ids are in.
        self._ids = np.sort(ids) if ids is not None and shuffle is True else ids
        if self._ids is None or shuffle is not True or not len(self._ids):
            return store.block, store.starts
        starts = store.starts
        number = self._ids // store.block if starts is None else np.searchsorted(starts, self._ids, side="right")
        return store.block, np.concatenate(([0], np.flatnonzero(number[1:] != number[:-1]) + 1))

    def __len__(self) -> int:
        """Steps of an epoch."""
        return len(self.plan)

    @property
    def batch_size(self) -> int:
        """Samples of a batch; the last one may have fewer."""
        return self.plan.batch_size

    def __repr__(self) -> str:
        plan = self.plan
        share = f", rank {plan.rank} of {plan.world_size}" if plan.world_size > 1 else ""
        return (f"<h5store.Loader {os.path.basename(self.reader.path)!r}: {len(self):,} batches of {plan.batch_size}, "
                f"{plan.describe()}, seed {self.seed}{share}>")

    def _repr_html_(self) -> str:
        from h5store.explore.card import loader_card

        return loader_card(self)

    # ---- batches

    def batch(self, epoch: int, step: int) -> tuple[Any, ...]:
        """One batch, read on its own: what `epoch` serves at that step.

        Raises
        ------
        IndexError
        """
        return self.reader.pack_batch(self.values(self.ids(self.plan, epoch, step)))

    def values(self, ids: np.ndarray) -> dict[str, Any]:
        """Stored values of the samples at `ids`, positions in the file, by field name."""
        out: dict[str, Any] = self.reader._store.empty(self._fields, len(ids))
        self.read(ids, out)
        return out | self.ragged_values(ids)

    def ragged_values(self, ids: np.ndarray) -> dict[str, Ragged]:
        """Of the variable-length fields only."""
        return {name: read_loose(self.reader._store, name, ids) for name in self._ragged}

    def ids(self, plan: EpochPlan, epoch: int, step: int) -> np.ndarray:
        """Positions in the file of the samples of one batch, int64."""
        ids = plan.batch(epoch, step) if self._choice is None else self._choice.ids(plan, epoch, step)
        return ids if self._ids is None else self._ids[ids]

    def read(self, ids: np.ndarray, out: Mapping[str, np.ndarray]) -> None:
        """Read the samples at `ids`, positions in the file, into arrays of `shapes`, by field name."""
        self.reader._store.gather(ids, out).result()

    def blank(self, length: int) -> dict[str, Any]:
        """Stored values of one sample of zeros; of variable-length fields, of this length."""
        fields = {f.name: f for f in self.reader.model_fields()}
        seen = {f.name: f.seen for f in fields.values() if f.encoded is not None}
        out: dict[str, Any] = {name: np.zeros(shape, dtype) for name, (shape, dtype) in self.shapes(1).items()}
        out |= {name: np.zeros((1, *f.shape), f.dtype) for name, f in seen.items()}
        return out | {name: Ragged.of(np.zeros((length, *fields[name].shape[1:]), fields[name].dtype), [length])
                      for name in self._ragged if name not in seen}

    def shapes(self, samples: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of each field's array of so many samples."""
        return {name: ((samples, *a.shape[1:]), a.dtype)
                for name, a in self.reader._store.empty(self._fields, 0).items()}

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Any, ...]]:
        """The batches of one epoch from step `start` on, each what ``Reader.batch`` gives.

        Raises
        ------
        IndexError, CorruptChunkError

        Notes
        -----
        An iterator belongs to the process and the thread that made it.
        """
        return self._batches(self.plan, epoch, start)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        epoch, start = self.epoch_number, self.step
        for step, batch in enumerate(self._batches(self.current, epoch, start), start + 1):
            self.advance(step)
            yield batch

    def need_batches(self, plan: EpochPlan | None = None) -> None:
        """
        Raises
        ------
        SchemaError
            There is nothing to feed.
        """
        plan, samples = plan or self.plan, len(self.reader)
        if not len(plan):
            mend = (f"in batches of {plan.batch_size} with drop_last=True; leave drop_last out, or take smaller batches"
                    if samples else "in this reader; write some, or select others")
            raise SchemaError(f"{self.reader.path}: no batches to feed: {samples} samples {mend}")

    def _batches(self, plan: EpochPlan, epoch: int, start: int) -> Iterator[tuple[Any, ...]]:
        self.need_batches(plan)
        if self._ragged or self._choice is not None:
            return self._by_ids(plan, epoch, start, os.getpid())
        windows = Windows(self.reader._store, self._ids, self._fields, plan.windows(epoch, start),
                          min(plan.window * plan.block, plan.n), min(plan.batch_size, plan.n), self._buffers)
        return self._serve(plan, windows, start, os.getpid())

    def _serve(self, plan: EpochPlan, windows: Windows, start: int, pid: int) -> Iterator[tuple[Any, ...]]:
        try:
            for step in range(start, len(plan)):
                _same_process(pid)
                yield self.reader.pack_batch(windows.take(*plan.bounds(step)))
        finally:
            if os.getpid() == pid:
                windows.close()

    def _by_ids(self, plan: EpochPlan, epoch: int, start: int, pid: int) -> Iterator[tuple[Any, ...]]:
        """Batches whose samples are read by id, the steps of about a window at a time, so that blocks are read once."""
        for first, stop in step_ranges(plan, epoch, start):
            parts = [self.ids(plan, epoch, step) for step in range(first, stop)]
            values, at = self.values(np.concatenate(parts)), 0
            for part in parts:
                _same_process(pid)
                yield self.reader.pack_batch({name: a[at:at + len(part)] for name, a in values.items()})
                at += len(part)

    def _fingerprint(self) -> str:
        mark = self.reader._store.fingerprint + (f"/{self._choice.mark}" if self._choice is not None else "")
        if self._ids is None:
            return mark
        return f"{mark}/{xxhash.xxh3_64_hexdigest(self._ids.tobytes())}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_buffers": []}


def _same_process(pid: int) -> None:
    if os.getpid() != pid:
        raise RuntimeError("a loader's iterator does not survive a fork; make a new one in the child")
