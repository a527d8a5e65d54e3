"""A store times a plan: batches in the order of an `EpochPlan`, read ahead in the pool.

While batches are drawn from one window of decoded samples, the next is being read. No thread of its own:
nothing is left behind when a loop ends, fails or is interrupted.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import xxhash

from h5store.errors import OptionError, SchemaError
from h5store.position import Position
from h5store.sampling.plan import EpochPlan, Window
from h5store.schema import Field
from h5store.storage.cache import parse_bytes
from h5store.storage.fetch import Pending
from h5store.storage.store import Store

# Two windows are in memory at a time. 32 MiB holds some 250 blocks of the default size, enough to mix a file
# that is sorted by class, and both windows stay under 100 MB. docs/decisions.md.
DEFAULT_WINDOW = "32MiB"
#: Fewer blocks than this do not mix, however large they are.
_LEAST_BLOCKS = 8
# Batches smaller than this are filled several at a time, and are parts of one array: for a table, what Python does
# for each batch costs more than its copy.
_SLAB_BYTES = 1 << 20


class Samples(Protocol):
    """What a loader needs of a `Reader`."""

    _store: Store
    _ids: np.ndarray | None

    @property
    def path(self) -> str: ...

    def __len__(self) -> int: ...

    def model_fields(self) -> tuple[Field, ...]: ...

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
                 rank: int = 0, world_size: int = 1, drop_last: bool = False, window: Any = DEFAULT_WINDOW) -> None:
        self._fields = tuple(f.name for f in reader.model_fields())
        if seed is None and shuffle is not False and world_size > 1:
            raise OptionError(f"{reader.path}: a shuffled loader with world_size={world_size} needs seed=: without it "
                              "every rank would draw an order of its own")
        self.reader = reader
        self.seed = secrets.randbits(32) if seed is None else seed
        self.epoch_number = self.step = 0
        block, starts = self._blocks(shuffle)
        sample = sum(f.nbytes for f in reader.model_fields())
        blocks = max(_LEAST_BLOCKS, parse_bytes(window, "window") // max(1, sample * block))
        self.plan = EpochPlan(n=len(reader), batch_size=batch_size, shuffle=shuffle, seed=self.seed, block=block,
                              starts=starts, window=blocks, drop_last=drop_last, rank=rank, world_size=world_size)
        self._slab = max(1, _SLAB_BYTES // max(1, sample * self.plan.batch_size))
        self._rest: EpochPlan | None = None  # of the current epoch, after a change of world_size
        self._buffers: list[dict[str, np.ndarray]] = []

    def _blocks(self, shuffle: bool | str) -> tuple[int, np.ndarray | None]:
        """Samples a block; of a view, where each block begins among its ids."""
        store, ids = self.reader._store, self.reader._ids
        # A shuffled view is read in the order of the file, whatever order its ids are in.
        self._ids = np.sort(ids) if ids is not None and shuffle is True else ids
        if self._ids is None or shuffle is not True or not len(self._ids):
            return store.block, None
        number = self._ids // store.block
        return store.block, np.concatenate(([0], np.flatnonzero(number[1:] != number[:-1]) + 1))

    def __len__(self) -> int:
        """Steps of an epoch."""
        return len(self.plan)

    @property
    def batch_size(self) -> int:
        return self.plan.batch_size

    def __repr__(self) -> str:
        plan = self.plan
        share = f", rank {plan.rank} of {plan.world_size}" if plan.world_size > 1 else ""
        return (f"<h5store.Loader {os.path.basename(self.reader.path)!r}: {len(self):,} batches of {plan.batch_size}, "
                f"{plan.describe()}, seed {self.seed}{share}>")

    # ---- batches

    def batch(self, epoch: int, step: int) -> tuple[Any, ...]:
        """One batch, read on its own: what `epoch` serves at that step.

        Raises
        ------
        IndexError
        """
        ids = self.ids(self.plan, epoch, step)
        out = self.reader._store.empty(self._fields, len(ids))
        self.reader._store.gather(ids, out).result()
        return self.reader.pack_batch(out)

    def ids(self, plan: EpochPlan, epoch: int, step: int) -> np.ndarray:
        """Positions in the file of the samples of one batch, int64."""
        ids = plan.batch(epoch, step)
        return ids if self._ids is None else self._ids[ids]

    def read(self, ids: np.ndarray, out: Mapping[str, np.ndarray]) -> None:
        """Read the samples at `ids`, positions in the file, into arrays of `shapes`, by field name."""
        self.reader._store.gather(ids, out).result()

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

    def _batches(self, plan: EpochPlan, epoch: int, start: int) -> Iterator[tuple[Any, ...]]:
        if not len(plan):
            raise SchemaError(f"{self.reader.path}: no batches: {len(self.reader)} samples in batches of "
                              f"{plan.batch_size}{' with drop_last=True' if plan.drop_last else ''}")
        pool = _Ahead(self, plan.windows(epoch, start), self._buffers)
        return self._serve(plan, pool, start, os.getpid())

    def _serve(self, plan: EpochPlan, pool: _Ahead, start: int, pid: int) -> Iterator[tuple[Any, ...]]:
        try:
            _same_process(pid)
            for first in range(start, len(plan), self._slab):
                bounds = [plan.bounds(step) for step in range(first, min(first + self._slab, len(plan)))]
                base, end = bounds[0][0], bounds[-1][1]
                out = self.reader._store.empty(self._fields, end - base)
                pool.fill(base, end, out)
                for lo, hi in bounds:
                    yield self.reader.pack_batch({name: array[lo - base:hi - base] for name, array in out.items()})
                    _same_process(pid)
        finally:
            if os.getpid() == pid:
                pool.close()

    def _fingerprint(self) -> str:
        mark = self.reader._store.fingerprint
        if self._ids is None:
            return mark
        return f"{mark}/{xxhash.xxh3_64_hexdigest(self._ids.tobytes())}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_buffers": []}


def _same_process(pid: int) -> None:
    if os.getpid() != pid:
        raise RuntimeError("a loader's iterator does not survive a fork; make a new one in the child")


class _Ready(NamedTuple):
    """A window, its samples' ids in the order of the epoch where they are needed, and its decoded samples."""

    window: Window
    ids: np.ndarray | None
    buffer: dict[str, np.ndarray]
    kept: dict[str, np.ndarray]  # of whole fields, by sample id


class _Ahead:
    """Windows of decoded samples: one that batches are drawn from, one that is being read.

    Fields that the cache keeps whole are not copied into windows; their samples are only brought into the cache.
    """

    def __init__(self, loader: Loader, windows: Iterator[Window], buffers: list[dict[str, np.ndarray]]) -> None:
        self._store, self._ids, self._windows = loader.reader._store, loader._ids, windows
        self._kept = [n for n in loader._fields if self._store.resident(n)]
        self._pooled = [n for n in loader._fields if n not in self._kept]
        # Fresh pages cost more than decoding, so the next epoch uses the same arrays; a second iterator has its own.
        self._home, self._buffers = buffers, [buffers.pop() if buffers else {} for _ in range(2)]
        self._now: _Ready | None = None
        self._next: tuple[_Ready, list[Pending]] | None = None
        self._begin()

    def _begin(self) -> None:
        """Start reading the next window into the buffer that is free."""
        window = next(self._windows, None)
        if window is None:
            return
        ids = None
        if self._kept or window.ranges is None or self._ids is not None:
            ids = window.ids if self._ids is None else self._ids[window.ids]
        ready = _Ready(window, ids, self._buffers.pop(), {})
        pending: list[Pending] = []
        self._next = ready, pending
        if self._kept:
            assert ids is not None
            read, arrays = self._store.warm(ids, self._kept)
            pending.append(read)
            ready.kept.update(arrays)
        if self._pooled:
            pending.append(self._read(window, ids, ready.buffer))

    def _read(self, window: Window, ids: np.ndarray | None, buffer: dict[str, np.ndarray]) -> Pending:
        if window.ranges is None:
            assert ids is not None
            return self._store.gather(ids, self._room(buffer, len(ids)))
        rows = int((window.ranges[:, 1] - window.ranges[:, 0]).sum())
        arrays = self._room(buffer, rows)
        if self._ids is None:
            return self._store.runs(window.ranges, arrays)
        return self._store.gather(
            np.concatenate([self._ids[lo:hi] for lo, hi in window.ranges.tolist()]), arrays)

    def _room(self, buffer: dict[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
        if any(len(buffer.get(name, ())) < rows for name in self._pooled):
            buffer.clear()
            buffer.update(self._store.empty(self._pooled, rows))
        return {name: buffer[name][:rows] for name in self._pooled}

    def fill(self, lo: int, hi: int, out: dict[str, np.ndarray]) -> None:
        """Samples at positions [lo, hi) of the epoch into `out`; positions never go back."""
        done = 0
        while lo + done < hi:
            while self._now is None or lo + done >= self._now.window.start + self._now.window.size:
                self._advance()
            first = lo + done - self._now.window.start
            count = min(hi - lo - done, self._now.window.size - first)
            for name, array in out.items():
                self._copy(self._now, name, first, array[done:done + count])
            done += count

    def _copy(self, ready: _Ready, name: str, first: int, target: np.ndarray) -> None:
        """Samples of a window from its `first` on. The ids are right, and "raise" would go through a buffer."""
        part = slice(first, first + len(target))
        if name in self._kept:
            assert ready.ids is not None
            np.take(ready.kept[name], ready.ids[part], axis=0, out=target, mode="clip")
        elif ready.window.order is None:
            target[...] = ready.buffer[name][part]
        else:
            np.take(ready.buffer[name], ready.window.order[part], axis=0, out=target, mode="clip")

    def _advance(self) -> None:
        assert self._next is not None, "a plan's windows end before its batches"
        if self._now is not None:
            self._buffers.append(self._now.buffer)
            self._now = None
        ready, pending = self._next
        for read in pending:
            read.result()
        self._now, self._next = ready, None
        self._begin()

    def close(self) -> None:
        """Let reads under way end, and give the arrays back."""
        if self._next is not None:
            for read in self._next[1]:
                read.cancel()
            self._buffers.append(self._next[0].buffer)
        if self._now is not None:
            self._buffers.append(self._now.buffer)
        self._now = self._next = None
        self._home.extend(self._buffers)
        del self._home[2:]
        self._buffers = []
