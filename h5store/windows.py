"""Windows of decoded samples in the order of an epoch: one is served from while the next is being read.

No thread of its own: nothing is left behind when a loop ends, fails or is interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np

from h5store.sampling.plan import Window
from h5store.storage.store import Store
from h5store.storage.tasks import Pending

Buffer = dict[str, np.ndarray]


class Windows:
    """The windows of one epoch, one after the other, in arrays that are used again where nobody holds them.

    Samples are decoded to the rows at which the epoch wants them, so that a batch is a slice of its window. What a
    batch is given out as keeps its window's memory: an array is not written to again while a slice of it lives.

    Parameters
    ----------
    store : Store
    ids : ndarray of int64, or None
        Of a view: the store's id of every position that the plan speaks of.
    fields : sequence of str
    windows : iterator of Window
    largest : int
        Samples of the largest window: arrays are made for it, whichever comes first.
    most : int
        Samples of the largest batch. So many rows lie before a window's own: there the rest of the last one is put,
        for the batch that begins in one and ends in the other.
    buffers : list of Buffer
        Arrays of an earlier epoch; what is left of this one's is put there by `close`.
    """

    def __init__(self, store: Store, ids: np.ndarray | None, fields: Sequence[str], windows: Iterator[Window],
                 largest: int, most: int, buffers: list[Buffer]) -> None:
        self._store, self._ids, self._fields, self._windows = store, ids, fields, windows
        self._largest, self._lead = largest, most
        self._home, self._spare = buffers, [buffers.pop() for _ in range(len(buffers))]
        self._now: tuple[Window, Buffer] | None = None
        self._next: tuple[Window, Buffer, Pending] | None = None
        self._more = True
        self._begin(must=True)

    def take(self, lo: int, hi: int) -> Buffer:
        """Samples at positions [lo, hi) of the epoch; positions never go back."""
        while self._now is None or hi > self._now[0].start + self._now[0].size:
            self._advance(lo)
        window, buffer = self._now
        # Half a window is time enough to read the next one into arrays that the last batch has let go of.
        self._begin(must=2 * (hi - window.start) >= window.size)
        first = self._lead - window.start
        return {name: buffer[name][first + lo:first + hi] for name in self._fields}

    def _begin(self, must: bool) -> None:
        """Start reading the next window, if arrays are free for it; `must`: into new ones otherwise."""
        if self._next is not None or not self._more:
            return
        buffer = self._free(must)
        if buffer is None:
            return
        window = next(self._windows, None)
        if window is None:
            self._more = False
            self._spare.append(buffer)
            return
        arrays = self._room(buffer, window.size)
        self._next = window, buffer, self._read(window, arrays)

    def _free(self, must: bool) -> Buffer | None:
        for i, buffer in enumerate(self._spare):
            if _unshared(buffer):
                return self._spare.pop(i)
        if must:
            self._spare.clear()  # whoever holds a slice keeps it
            return {}
        return None

    def _room(self, buffer: Buffer, rows: int) -> Buffer:
        rows += self._lead
        if any(len(buffer.get(name, ())) < rows for name in self._fields):
            buffer.clear()
            buffer.update(self._store.empty(self._fields, max(rows, self._largest + self._lead)))
        return {name: buffer[name][self._lead:rows] for name in self._fields}

    def _read(self, window: Window, arrays: Buffer) -> Pending:
        if window.ranges is None:
            return self._store.gather(window.ids if self._ids is None else self._ids[window.ids], arrays, ahead=True)
        if self._ids is not None:
            return self._store.gather(self._ids[window.ids], arrays, ahead=True)
        to = None
        if window.order is not None:
            to = np.full(int((window.ranges[:, 1] - window.ranges[:, 0]).sum()), -1)
            to[window.order] = np.arange(window.size)
        return self._store.window(window.ranges, to, lambda: window.ids, arrays)

    def _advance(self, keep: int) -> None:
        """Go on to the next window, with what the last one has from position `keep` on."""
        self._begin(must=True)
        assert self._next is not None, "a plan's windows end before its batches"
        window, buffer, pending = self._next
        pending.result()
        if self._now is not None:
            last, old = self._now
            left, end = max(0, window.start - keep), self._lead + last.size
            for name in self._fields if left else ():
                buffer[name][self._lead - left:self._lead] = old[name][end - left:end]
            self._spare.append(old)
        self._now, self._next = (window, buffer), None

    def close(self) -> None:
        """Let reads under way end, and leave the arrays to the next epoch."""
        if self._next is not None:
            self._next[2].cancel()
            self._spare.append(self._next[1])
        if self._now is not None:
            self._spare.append(self._now[1])
        self._now = self._next = None
        self._home.extend(self._spare[:2])
        self._spare = []


def _unshared(buffer: Buffer) -> bool:
    """Whether nobody but the buffer refers to its arrays; every slice of an array refers to it."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False  # counts are not exact without the GIL
    return _most_references(buffer) <= _ALONE


def _most_references(buffer: Buffer) -> int:
    return max((sys.getrefcount(array) for array in buffer.values()), default=0)


# Of an array that only its buffer refers to. Python 3.14 counts fewer than those before: calls borrow their arguments.
_ALONE = _most_references({"": np.empty(0)})
