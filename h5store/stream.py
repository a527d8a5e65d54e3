"""One pass over the samples of a reader: pieces in the order of the file, read ahead and worked on in the pool.

Memory does not grow with the store: two windows of pieces, of which nothing is kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np

from h5store.moments import Moments, by_channel, channels_of, moments_of
from h5store.schema import Schema
from h5store.storage import pool
from h5store.storage.tasks import Pending
from h5store.storage.store import Store

# Bytes that `work` is called with: below 2 MiB its calls cost more than its arithmetic on small fields.
_PIECE = 2**22
#: Pieces of a window at least, so that a read has chunks enough to share among threads.
_PIECES = 2

T = TypeVar("T")
Arrays = Mapping[str, np.ndarray]


class Samples(Protocol):
    """What a pass needs of a `Reader`."""

    _store: Store
    _ids: np.ndarray | None

    @property
    def path(self) -> str: ...

    @property
    def schema(self) -> Schema: ...

    def __len__(self) -> int: ...


def stream(reader: Samples, names: Sequence[str], work: Callable[[int, np.ndarray, Arrays], T], *,
           progress: bool = False) -> Iterator[T]:
    """Results of `work` on every piece of the samples, in the order of the file.

    Parameters
    ----------
    reader : Reader
    names : sequence of str
        Fields to read.
    work : callable
        Called in the pool as ``work(start, ids, arrays)``: the first sample's position in this pass; ids int64 (m,),
        ascending; arrays by field name, each (m, *field.shape), text as codes. It must not keep the arrays: they
        are used again.
    progress : bool
        Show a bar on standard error.

    Yields
    ------
    What `work` returns. The pieces are the same whatever the number of threads.

    Raises
    ------
    CorruptChunkError
    """
    from tqdm.auto import tqdm

    store = reader._store.uncached()
    ids = None if reader._ids is None else np.sort(reader._ids)
    sample = sum(store.schema[name].nbytes for name in names)
    # Whole blocks: the end of a piece in the middle of a chunk would decode the chunk twice.
    piece = store.block * max(1, _PIECE // max(1, sample * store.block))
    window = piece * max(_PIECES, store.threads)
    ahead = _Windows(store, names, ids, len(reader), window)
    with tqdm(total=len(reader), unit=" samples", unit_scale=True, disable=not progress,
              desc=os.path.basename(reader.path)) as bar:
        try:
            for lo, arrays in ahead:
                count = len(arrays[names[0]]) if names else 0
                pieces = [(a, min(a + piece, count)) for a in range(0, count, piece)]

                def part(mine: list[tuple[int, int]], lo: int = lo, arrays: Arrays = arrays) -> list[T]:
                    return [work(lo + a, np.arange(lo + a, lo + b) if ids is None else ids[lo + a:lo + b],
                                 {name: array[a:b] for name, array in arrays.items()}) for a, b in mine]

                # One task a thread, not one a piece: more would run beside each other and share the cores' caches.
                share = -(-len(pieces) // store.threads)
                tasks = [pool.submit(part, pieces[i:i + share]) for i in range(0, len(pieces), share)]
                for found in pool.wait(tasks):
                    yield from found
                bar.update(count)
        finally:
            ahead.close()


class _Windows:
    """Windows of samples, the next one being read while one is worked on."""

    def __init__(self, store: Store, names: Sequence[str], ids: np.ndarray | None, length: int, window: int) -> None:
        self._store, self._ids, self._length, self._window = store, ids, length, window
        self._rooms = [store.empty(names, min(window, length)) for _ in range(2)]
        self._next: tuple[int, dict[str, np.ndarray], Pending] | None = None

    def __iter__(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        for number, lo in enumerate(range(0, self._length, self._window)):
            now, self._next = self._next or self._begin(0, 0), None
            now[2].result()
            if lo + self._window < self._length:
                self._next = self._begin(lo + self._window, number + 1)
            yield lo, now[1]

    def _begin(self, lo: int, number: int) -> tuple[int, dict[str, np.ndarray], Pending]:
        hi = min(lo + self._window, self._length)
        out = {name: room[:hi - lo] for name, room in self._rooms[number % 2].items()}
        if self._ids is None:
            return lo, out, self._store.runs(np.array([[lo, hi]]), out)
        return lo, out, self._store.gather(self._ids[lo:hi], out)

    def close(self) -> None:
        """Let a read under way end: it writes into this pass's arrays."""
        if self._next is not None:
            self._next[2].cancel()
            self._next = None


def measure(reader: Samples, names: Sequence[str], *, progress: bool = False) -> dict[str, Moments]:
    """Moments of each channel of fields, in one pass.

    Parameters
    ----------
    reader : Reader
    names : sequence of str
        Fields that are not text. Channels are those of `h5store.moments.channel_axis`.
    progress : bool

    Returns
    -------
    dict of str to Moments

    Raises
    ------
    CorruptChunkError
    """
    fields = [reader.schema[name] for name in names]

    def work(start: int, ids: np.ndarray, arrays: Arrays) -> dict[str, Moments]:
        return {f.name: moments_of(by_channel(f, arrays[f.name])) for f in fields}

    return merged_by_field(stream(reader, names, work, progress=progress), {f.name: channels_of(f) for f in fields})


def merged_by_field(parts: Iterator[dict[str, Moments]], channels: Mapping[str, int]) -> dict[str, Moments]:
    """Moments of all pieces; merged now and then, so that memory does not grow with their number."""
    kept: dict[str, list[Moments]] = {name: [Moments.none(count)] for name, count in channels.items()}
    for part in parts:
        for name, found in part.items():
            kept[name].append(found)
            if len(kept[name]) > 256:
                kept[name] = [Moments.merged(kept[name])]
    return {name: Moments.merged(found) for name, found in kept.items()}
