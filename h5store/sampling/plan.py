"""Pure arithmetic: which samples each rank serves in which step. No I/O, no fields, no state."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from h5store.errors import OptionError, SelectionError
from h5store.sampling.order import Grid, Ids, Order, Span, Window, epoch_order, window_counts

__all__ = ["EpochPlan", "Window"]

Spans = tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """The batches of every epoch, as a function of (seed, epoch, step).

    Parameters
    ----------
    n : int
        Number of samples.
    batch_size : int
        Samples a rank serves in one step.
    shuffle : True, "full" or False
        True: blocks in random order, and the samples of `window` blocks at a time in random order, so that
        each block is read once. "full": an exact uniform permutation. False: the order of the file.
    seed : int
        Together with the epoch decides the order.
    block : int
        Samples that are cheap to read together; the last block may be shorter.
    window : int
        Blocks whose samples are mixed. Windows of an epoch differ by one block at most, but for the first, which is
        an eighth as large: an epoch begins the sooner.
    starts : array_like of int, optional
        First sample of each block, where blocks differ in size. Replaces `block`.
    drop_last : bool
        Serve full batches only. Which samples are left over differs from epoch to epoch, if shuffled.
    rank, world_size : int
        This process, and how many share the epoch.
    spans : iterable of (lo, hi), optional
        Positions of the epoch still to be served, ascending; all of them by default. See `after`.
    where : str
        What errors start with: the file whose samples these are.

    Raises
    ------
    OptionError
        For a value out of range, or fewer samples than ranks.

    Notes
    -----
    The positions to be served, N of them, are divided into one contiguous part for each rank; parts differ by
    one sample at most. All ranks take the same number of steps. With `drop_last` those are
    (N // world_size) // batch_size full batches; without, every sample is served exactly once: batches are
    full until each further step must be left one sample, so that a rank with one sample less ends in a
    shorter batch.

    One case cannot be met so: a rank that has fewer samples than there are steps (`batch_size=1` and parts
    that differ, or `spans` of fewer positions than ranks). That rank repeats its last sample once, or, having
    none, one of the samples left.

    Equal plans give equal orders on every machine. Immutable, hence safe in threads; memory does not grow
    with n but for shuffle="full" (4 bytes a sample) and `starts`.
    """

    n: int
    batch_size: int
    shuffle: bool | str
    seed: int
    block: int
    window: int
    starts: Ids | None = field(default=None, compare=False, repr=False)
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    spans: Spans = None  # type: ignore[assignment]  # None is replaced by all positions
    where: str = field(default="loader", compare=False, repr=False)
    _grid: Grid = field(init=False, repr=False)
    _mine: Spans = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, least in (("n", 0), ("batch_size", 1), ("seed", 0), ("block", 1), ("window", 1),
                            ("rank", 0), ("world_size", 1)):
            self._set(name, _whole(self.where, name, getattr(self, name), least))
        if self.rank >= self.world_size:
            raise OptionError(f"{self.where}: rank={self.rank}, expected an int from 0 to {self.world_size - 1} for "
                              f"world_size={self.world_size}")
        self._set("shuffle", _shuffle(self.where, self.shuffle))
        if not isinstance(self.drop_last, (bool, np.bool_)):
            raise OptionError(f"{self.where}: drop_last={self.drop_last!r}, expected True or False")
        self._set("drop_last", bool(self.drop_last))
        if self.starts is not None:
            self._set("starts", _starts(self.starts, self.n))
        edges = None if self.starts is None else np.append(self.starts, self.n)
        self._set("_grid", Grid(self.n, self.block, edges))
        self._set("spans", _spans(self.spans, self.n))
        if 0 < self.n < self.world_size:
            raise OptionError(f"{self.where}: world_size={self.world_size} is more than there are samples, "
                              f"{self.n}; use at most {self.n} ranks")
        self._set("_mine", self._sequence())

    def __len__(self) -> int:
        """Steps of an epoch, the same on every rank."""
        left = _total(self.spans)
        if self.drop_last:
            return left // self.world_size // self.batch_size
        return -(-(-(-left // self.world_size)) // self.batch_size)

    def bounds(self, step: int) -> Span:
        """Positions [a, b) that a step takes of this rank's own sequence, the one that `windows` serves.

        Raises
        ------
        IndexError
            For a step outside [0, len(plan)).
        """
        step = self._checked(step, len(self) - 1)
        size = _total(self._mine)
        return self._done(size, step), self._done(size, step + 1)

    def batch(self, epoch: int, step: int) -> Ids:
        """Sample ids of one batch of this rank, shape (m,) with 1 <= m <= batch_size.

        Raises
        ------
        IndexError
            For a step outside [0, len(plan)).
        """
        spans = _cut(self._mine, *self.bounds(step))
        order = self._order(epoch)
        return np.concatenate([order.ids(lo, hi) for lo, hi in spans])

    def windows(self, epoch: int, start_step: int = 0) -> Iterator[Window]:
        """What this rank reads, in order, from the first sample of `start_step` on.

        The `ids` of all windows, one after the other, are this rank's sequence from `bounds(start_step)[0]`
        on, and the slices `bounds(step)` of that sequence are its batches. Blocks of which no sample is
        needed are left out.

        Raises
        ------
        IndexError
            For a step outside [0, len(plan)]; len(plan) itself leaves nothing to read.
        """
        start_step = self._checked(start_step, len(self))
        if start_step == len(self):
            return iter(())
        begin = self.bounds(start_step)[0]
        return self._order(epoch).windows(_cut(self._mine, begin, _total(self._mine)), begin)

    def after(self, step: int) -> Spans:
        """Positions that no rank has served when every rank has taken `step` steps.

        A plan that differs only in `spans` (these), `batch_size`, `rank` and `world_size` goes on with
        exactly the samples not yet seen in this epoch. With `drop_last` those include what this plan would
        drop.

        Raises
        ------
        IndexError
            For a step outside [0, len(plan)].
        """
        step = self._checked(step, len(self))
        rest: list[Span] = []
        for rank in range(self.world_size):
            lo, hi = self._part(rank)
            size = hi - lo if self.drop_last else max(hi - lo, len(self))
            rest += _cut(self.spans, lo + self._done(size, step), hi)
        return _joined(rest)

    def describe(self) -> str:
        """One line for a repr, such as 'windowed shuffle: 15 windows of 256 blocks x 54 samples'."""
        if self.shuffle is False:
            return "file order"
        if self.shuffle == "full":
            return "full shuffle"
        if self.n == 0:
            return "windowed shuffle: no samples"
        blocks = self._grid.count
        lead, windows = window_counts(blocks, self.window)
        most = lead if windows == 1 else -(-(blocks - lead) // (windows - 1))
        size = f"{self.block}" if self.starts is None else f"about {round(self.n / blocks)}"
        return (f"windowed shuffle: {windows} window{'s' * (windows > 1)} of {most} block{'s' * (most > 1)} x {size} "
                "samples")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _checked(self, step: int, last: int) -> int:
        if not 0 <= operator.index(step) <= last:
            raise SelectionError(f"{self.where}: no step {step}; expected an int from 0 to {last}, an epoch has "
                                 f"{len(self)} steps")
        return operator.index(step)

    def _order(self, epoch: int) -> Order:
        return epoch_order(self._grid, self.shuffle, self.window, self.seed, _whole(self.where, "epoch", epoch, 0))

    def _part(self, rank: int) -> Span:
        left = _total(self.spans)
        return rank * left // self.world_size, (rank + 1) * left // self.world_size

    def _sequence(self) -> Spans:
        lo, hi = self._part(self.rank)
        if self.drop_last:
            return _cut(self.spans, lo, lo + len(self) * self.batch_size)
        mine = _cut(self.spans, lo, hi)
        if hi - lo < len(self):
            last = max(hi, 1)  # a part may be empty where fewer positions than ranks are left
            mine += _cut(self.spans, last - 1, last)
        return mine

    def _done(self, size: int, step: int) -> int:
        """Samples of a rank's `size` that are served before `step`."""
        full = step * self.batch_size
        return full if self.drop_last else min(full, size - (len(self) - step))


def _total(spans: Iterable[Span]) -> int:
    return sum(hi - lo for lo, hi in spans)


def _cut(spans: Iterable[Span], a: int, b: int) -> Spans:
    """Places [a, b) of the positions in `spans`, laid end to end."""
    out, at = [], 0
    for lo, hi in spans:
        first, last = lo + max(a - at, 0), lo + min(b - at, hi - lo)
        if first < last:
            out.append((first, last))
        at += hi - lo
    return tuple(out)


def _joined(spans: Iterable[Span]) -> Spans:
    out: list[Span] = []
    for lo, hi in spans:
        if out and out[-1][1] == lo:
            out[-1] = (out[-1][0], hi)
        elif lo < hi:
            out.append((lo, hi))
    return tuple(out)


def _whole(where: str, name: str, value: Any, least: int) -> int:
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise OptionError(f"{where}: {name}={value!r}, expected an int of at least {least}")
    return number


def _shuffle(where: str, value: Any) -> bool | str:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, str) and value == "full":
        return "full"
    raise OptionError(f"{where}: shuffle={value!r}, expected True, 'full' or False")


def _starts(value: Any, n: int) -> Ids:
    where = "EpochPlan: 'starts' does not cut the samples into blocks"
    starts = np.array(value)
    if starts.ndim != 1 or (starts.size and starts.dtype.kind not in "iu"):
        raise OptionError(f"{where}; expected ints of shape (blocks,), "
                          f"got {starts.dtype} of shape {starts.shape}")
    starts = starts.astype(np.int64)
    if starts.size == 0 and n == 0:
        return starts
    if starts.size == 0 or starts[0] != 0 or starts[-1] >= n:
        ends = f"{starts[0]} to {starts[-1]}" if starts.size else "none"
        raise OptionError(f"{where}; expected the first to be 0 and all below n={n}, got {ends}")
    steps = np.flatnonzero(starts[1:] <= starts[:-1])
    if steps.size:
        k = int(steps[0])
        raise OptionError(f"{where}; expected ascending values, got {starts[k]}, {starts[k + 1]} from {k} on")
    starts.flags.writeable = False
    return starts


def _spans(value: Any, n: int) -> Spans:
    if value is None:
        return _joined([(0, n)])
    where = "EpochPlan: 'spans' are not positions still to be served"
    try:
        spans = [(operator.index(lo), operator.index(hi)) for lo, hi in value]
    except (TypeError, ValueError) as error:
        raise OptionError(f"{where}; expected pairs of ints (lo, hi), got {value!r}") from error
    at = 0
    for lo, hi in spans:
        if not at <= lo <= hi <= n:
            raise OptionError(f"{where}; expected ascending, disjoint ranges within [0, {n}], "
                              f"got ({lo}, {hi}) after position {at}")
        at = hi
    return _joined(spans)
