"""Pure arithmetic: which sample stands at which position of an epoch. Knows no ranks, steps or files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Span = tuple[int, int]

# One tag per kind of draw. SeedSequence pads with zeros, so that (seed, epoch, tag) and (seed, epoch, tag, 0)
# are one stream: only the tag keeps two kinds apart.
FULL, BLOCKS, WINDOW = 1, 2, 3

# Up to here an exact permutation of the blocks takes 0.5 MB and about a millisecond an epoch.
EXACT_BLOCKS = 65_536

ROUNDS = 8


def draw(*key: int) -> np.random.Generator:
    """The random stream of a key: PCG64 named outright, so that a new numpy default changes nothing."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


@dataclass(frozen=True, slots=True)
class Grid:
    """How `n` samples lie in blocks: all of `block` samples but the last, or between given `edges`."""

    n: int
    block: int
    edges: Ids | None = field(default=None, compare=False, repr=False)
    digest: bytes = field(init=False, repr=False)  # stands for the edges in comparisons and cache keys

    def __post_init__(self) -> None:
        raw = b""
        if self.edges is not None:
            import hashlib  # takes OpenSSL along, and few plans have edges

            raw = hashlib.blake2b(self.edges.tobytes()).digest()
        object.__setattr__(self, "digest", raw)

    @property
    def count(self) -> int:
        """Number of blocks."""
        return -(-self.n // self.block) if self.edges is None else len(self.edges) - 1

    def bounds(self, blocks: Ids) -> tuple[Ids, Ids]:
        """First sample of each of `blocks`, and the one after its last."""
        if self.edges is None:
            return blocks * self.block, np.minimum((blocks + 1) * self.block, self.n)
        return self.edges[blocks], self.edges[blocks + 1]


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """What is read at once, and the order in which its samples are served.

    Attributes
    ----------
    start : int
        Position, in the rank's own sequence, of the first sample served from this window.
    size : int
        Number of samples served from it.
    ranges : ndarray of int64, shape (k, 2), or None
        Runs [lo, hi) of sample ids to read, in this order, into a pool of sum(hi - lo) rows. None when the
        samples are scattered: take `ids` then.
    order : ndarray of int64, shape (size,), or None
        Pool row of each sample served. None: the rows as they were read. May be read-only.
    """

    start: int
    size: int
    ranges: Ids | None
    order: Ids | None
    scattered: Ids | None = field(default=None, repr=False)

    @property
    def ids(self) -> Ids:
        """Sample ids in the order of the epoch, shape (size,)."""
        if self.ranges is None:
            return np.empty(0, np.int64) if self.scattered is None else self.scattered
        lengths = self.ranges[:, 1] - self.ranges[:, 0]
        shifts = self.ranges[:, 0] - (np.cumsum(lengths) - lengths)
        pool = np.arange(lengths.sum()) + np.repeat(shifts, lengths)
        return pool if self.order is None else pool[self.order]


class ExactPermutation:
    """A uniform permutation of range(n), held as an array."""

    def __init__(self, n: int, *key: int) -> None:
        self._values = draw(*key).permutation(n).astype(np.int64, copy=False)

    def __call__(self, positions: Ids) -> Ids:
        """Values at `positions`."""
        return self._values[positions]

    def where(self, value: int) -> int:
        """Position of `value`."""
        return int(np.flatnonzero(self._values == value)[0])


class KeyedPermutation:
    """A pseudo-random permutation of range(n) that is computed where it is asked for: no array of n.

    Notes
    -----
    A Feistel network over pairs (left, right) in [0, a) x [0, b), with modular addition for XOR (Black and
    Rogaway 2002, "Ciphers with arbitrary finite domains", their generalised Feistel construction). a * b is
    at most n + sqrt(n) + 1, so walking the cycle until the value is below n hardly ever takes a second turn.
    The round function is the finaliser of SplitMix64 (Steele, Lea and Flood 2014).
    """

    def __init__(self, n: int, *key: int) -> None:
        self._n = n
        self._a = np.uint64(max(1, int(np.ceil(np.sqrt(n)))))
        self._b = np.uint64(max(1, -(-n // int(self._a))))
        self._keys = np.random.SeedSequence(key).generate_state(ROUNDS, np.uint64)

    def __call__(self, positions: Ids) -> Ids:
        """Values at `positions`."""
        return self._walk(np.asarray(positions), forward=True)

    def where(self, value: int) -> int:
        """Position of `value`."""
        return int(self._walk(np.array([value]), forward=False)[0])

    def _walk(self, values: Ids, *, forward: bool) -> Ids:
        out = self._turn(values.astype(np.uint64), forward)
        outside = np.flatnonzero(out >= self._n)
        while outside.size:
            out[outside] = self._turn(out[outside], forward)
            outside = outside[out[outside] >= self._n]
        return out.astype(np.int64)

    def _turn(self, values: NDArray[np.uint64], forward: bool) -> NDArray[np.uint64]:
        halves, sizes = [values // self._b, values % self._b], (self._a, self._b)
        rounds = range(ROUNDS) if forward else range(ROUNDS - 1, -1, -1)
        for i in rounds:
            side, size = i % 2, sizes[i % 2]
            shift = _mixed(halves[1 - side] + self._keys[i]) % size
            halves[side] = (halves[side] + (shift if forward else size - shift)) % size
        return halves[0] * self._b + halves[1]


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Order(ABC):
    """The order of one epoch, cut into windows of neighbouring positions."""

    @abstractmethod
    def locate(self, position: int) -> int:
        """Window that holds `position`."""

    @abstractmethod
    def start(self, w: int) -> int:
        """First position of window `w`; that of the window after the last is n."""

    @abstractmethod
    def ids(self, lo: int, hi: int) -> Ids:
        """Sample ids at the positions [lo, hi)."""

    @abstractmethod
    def window(self, w: int, spans: Sequence[Span], start: int) -> Window:
        """Window `w`, of which the positions in `spans` are served, the first as the rank's `start`."""

    def pieces(self, spans: Iterable[Span]) -> Iterator[tuple[int, Span]]:
        """Cut spans of positions where windows end."""
        for lo, hi in spans:
            while lo < hi:
                w = self.locate(lo)
                end = min(hi, self.start(w + 1))
                yield w, (lo, end)
                lo = end

    def windows(self, spans: Iterable[Span], start: int) -> Iterator[Window]:
        """What to read for `spans`; neighbouring spans in one window share it, so that it is read once.

        A sample that a rank repeats is in a window of its own: no window holds one twice.
        """
        for (w, _), group in groupby(self._turns(spans), key=lambda turn: turn[:2]):
            window = self.window(w, [span for _, _, span in group], start)
            start += window.size
            yield window

    def _turns(self, spans: Iterable[Span]) -> Iterator[tuple[int, int, Span]]:
        """Pieces, with how often they went back before."""
        back, end = 0, 0
        for w, (lo, hi) in self.pieces(spans):
            back += lo < end
            end = hi
            yield w, back, (lo, hi)


class FileOrder(Order):
    """The samples as they lie, windows ending where blocks end, so that no chunk is decoded twice."""

    def __init__(self, grid: Grid, window: int) -> None:
        self._n, self._stride = grid.n, grid.block * window
        self._cuts = None if grid.edges is None else np.append(grid.edges[:-1:window], grid.n)

    def locate(self, position: int) -> int:
        if self._cuts is None:
            return position // self._stride
        return int(np.searchsorted(self._cuts, position, side="right")) - 1

    def start(self, w: int) -> int:
        return min(w * self._stride, self._n) if self._cuts is None else int(self._cuts[w])

    def ids(self, lo: int, hi: int) -> Ids:
        return np.arange(lo, hi)

    def window(self, w: int, spans: Sequence[Span], start: int) -> Window:
        ranges = np.array(spans, np.int64)
        return Window(start, int((ranges[:, 1] - ranges[:, 0]).sum()), ranges, None)


class FullOrder(Order):
    """An exact uniform permutation of all samples; a window is as many of them as a pool would hold."""

    def __init__(self, grid: Grid, window: int, seed: int, epoch: int) -> None:
        self._n, self._stride = grid.n, window * -(-grid.n // grid.count)
        self._values = full_permutation(grid.n, seed, epoch)

    def locate(self, position: int) -> int:
        return position // self._stride

    def start(self, w: int) -> int:
        return min(w * self._stride, self._n)

    def ids(self, lo: int, hi: int) -> Ids:
        return self._values[lo:hi].astype(np.int64)

    def window(self, w: int, spans: Sequence[Span], start: int) -> Window:
        ids = np.concatenate([self.ids(lo, hi) for lo, hi in spans])
        return Window(start, len(ids), None, None, ids)


class WindowedOrder(Order):
    """Blocks in random order, `window` of them at a time, and the samples of each window in random order."""

    def __init__(self, grid: Grid, window: int, seed: int, epoch: int) -> None:
        self._grid, self._seed, self._epoch = grid, seed, epoch
        self._lead, self._count = window_counts(grid.count, window)
        kind = ExactPermutation if grid.count <= EXACT_BLOCKS else KeyedPermutation
        self._block_at = kind(grid.count, seed, epoch, BLOCKS)
        if grid.edges is None:
            self._missing = grid.count * grid.block - grid.n
            self._short = self._block_at.where(grid.count - 1)  # where the shorter last block fell
        else:
            lo, hi = grid.bounds(self._block_at(np.arange(grid.count)))
            after = np.append(0, np.cumsum(hi - lo))
            self._starts = after[[self._first(w) for w in range(self._count + 1)]]

    def locate(self, position: int) -> int:
        grid = self._grid
        if grid.edges is not None:
            return int(np.searchsorted(self._starts, position, side="right")) - 1
        if position >= self._short * grid.block:
            position += self._missing
        block = position // grid.block
        if block < self._lead:
            return 0
        return 1 + ((block - self._lead + 1) * (self._count - 1) - 1) // (grid.count - self._lead)

    def start(self, w: int) -> int:
        if self._grid.edges is not None:
            return int(self._starts[w])
        first = self._first(w)
        return first * self._grid.block - (self._missing if self._short < first else 0)

    def ids(self, lo: int, hi: int) -> Ids:
        parts = [np.empty(0, np.int64)]
        for w, (a, b) in self.pieces([(lo, hi)]):
            first, last = self._pool(w)
            before = np.cumsum(last - first) - (last - first)
            rows = self._rows(w)[a - self.start(w):b - self.start(w)]
            owner = np.searchsorted(before, rows, side="right") - 1
            parts.append(first[owner] + rows - before[owner])
        return np.concatenate(parts)

    def window(self, w: int, spans: Sequence[Span], start: int) -> Window:
        rows, origin = self._rows(w), self.start(w)
        picked = [rows[lo - origin:hi - origin] for lo, hi in spans]
        order = picked[0] if len(picked) == 1 else np.concatenate(picked)
        lo, hi = self._pool(w)
        if len(order) < len(rows):
            lo, hi, order = _needed(lo, hi, order)
        gaps = np.flatnonzero(lo[1:] != hi[:-1])
        ranges = np.stack([lo[np.append(0, gaps + 1)], hi[np.append(gaps, -1)]], axis=1)
        return Window(start, len(order), ranges, order)

    def _first(self, w: int) -> int:
        # All but the first differ by one block at most: a small last window would mix badly.
        if w == 0:
            return 0
        return self._lead + (w - 1) * (self._grid.count - self._lead) // max(1, self._count - 1)

    def _pool(self, w: int) -> tuple[Ids, Ids]:
        # Read in the order of the file; the random order is that of the rows.
        blocks = self._block_at(np.arange(self._first(w), self._first(w + 1)))
        return self._grid.bounds(np.sort(blocks))

    def _rows(self, w: int) -> Ids:
        return window_permutation(self.start(w + 1) - self.start(w), self._seed, self._epoch, w)


def window_counts(blocks: int, window: int) -> tuple[int, int]:
    """(blocks in the first window, number of windows) of a windowed shuffle.

    The first is an eighth of a window: so much sooner is an epoch's first batch there. What fits one window is one.
    """
    if blocks <= window:
        return blocks, min(1, blocks)
    lead = max(1, window // 8)
    return lead, 1 - (lead - blocks) // window


def _needed(lo: Ids, hi: Ids, order: Ids) -> tuple[Ids, Ids, Ids]:
    """Leave out the blocks of which no row is served."""
    sizes = hi - lo
    owner = np.repeat(np.arange(len(sizes)), sizes)[order]
    used = np.zeros(len(sizes), bool)
    used[owner] = True
    skipped = np.cumsum(np.where(used, 0, sizes))
    return lo[used], hi[used], order - skipped[owner]


@lru_cache(maxsize=4)  # one for each of a few readers at work; a window's rows are 8 bytes a sample
def window_permutation(size: int, seed: int, epoch: int, w: int) -> Ids:
    """Order of the rows of window `w`; read-only, because it is shared."""
    rows = draw(seed, epoch, WINDOW, w).permutation(size).astype(np.int64, copy=False)
    rows.flags.writeable = False
    return rows


@lru_cache(maxsize=1)  # the last one only: it is the one array as long as the data
def full_permutation(n: int, seed: int, epoch: int) -> NDArray[np.integer[Any]]:
    """Order of a fully shuffled epoch, in 4 bytes a sample where they do; read-only."""
    ids: NDArray[np.integer[Any]] = np.arange(n, dtype="uint32" if n <= 2**32 else "int64")
    draw(seed, epoch, FULL).shuffle(ids)
    ids.flags.writeable = False
    return ids


@lru_cache(maxsize=4)
def _windowed(grid: Grid, window: int, seed: int, epoch: int) -> WindowedOrder:
    return WindowedOrder(grid, window, seed, epoch)


def epoch_order(grid: Grid, shuffle: bool | str, window: int, seed: int, epoch: int) -> Order:
    """The order of an epoch of `grid` (not empty); immutable, and safe in threads."""
    if shuffle == "full":
        return FullOrder(grid, window, seed, epoch)
    return _windowed(grid, window, seed, epoch) if shuffle else FileOrder(grid, window)
