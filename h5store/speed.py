"""How fast a store is read on this machine, and what would make it faster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from h5store.errors import SourceError
from h5store.reader import Reader

#: What each way of reading is timed for, at least; the first round only warms up.
_SECONDS = 1.0


@dataclass(frozen=True)
class Speed:
    """Samples a second of one store, read in batches, and advice.

    Attributes
    ----------
    path : str
    samples, batch_size, threads : int
    cache : str
        The cache that was in use.
    rates : dict of str to float
        Samples/s: ``sequential`` (the order of the file), ``shuffled`` (``shuffle=True``), ``random`` (uniformly
        random batches by `Reader.batch`).
    advice : tuple of str
    """

    path: str
    samples: int
    batch_size: int
    threads: int
    cache: str
    rates: dict[str, float] = field(default_factory=dict)
    advice: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = (f"{self.path}: {self.samples:,} samples in batches of {self.batch_size}, {self.threads} threads, "
                f"cache {self.cache}")
        rows = [f"  {name:<10} {rate:>14,.0f} samples/s" for name, rate in self.rates.items()]
        return "\n".join([head, *rows, *(f"  advice: {text}" for text in self.advice)])


def measure(path: str | os.PathLike[str], *, batch_size: int = 256, threads: int | None = None,
            cache: Any = "256MiB", seconds: float = _SECONDS) -> Speed:
    """Read a store in the order of the file, shuffled, and at random, and time it.

    Parameters
    ----------
    path : str or path-like
    batch_size : int
        Samples a batch.
    threads : int, optional
    cache : str or int
        As for `Reader`.
    seconds : float
        Time for each way of reading, after a round that warms up. Rates on a busy machine are low ones.

    Returns
    -------
    Speed

    Raises
    ------
    FileNotFoundError, FormatError, OptionError
    SourceError
        The store has no samples.
    """
    with Reader(path, cache=cache, threads=threads) as reader:
        if not len(reader):
            raise SourceError(f"{reader.path}: no samples, so there is nothing to time")
        rng = np.random.default_rng(0)
        rates = {
            "sequential": _epochs(reader, batch_size, False, seconds),
            "shuffled": _epochs(reader, batch_size, True, seconds),
            "random": _rate(lambda: _random(reader, batch_size, rng), seconds),
        }
        return Speed(reader.path, len(reader), batch_size, reader._store.threads, str(cache), rates,
                     tuple(_advice(reader, rates)))


def _epochs(reader: Reader, batch_size: int, shuffle: bool, seconds: float) -> float:
    loader = reader.loader(batch_size=batch_size, shuffle=shuffle, seed=0)
    epoch = iter(range(10**9))

    def once() -> int:
        # A part of an epoch is enough of a large store.
        stop, samples = time.perf_counter() + 2 * seconds, 0
        for step, batch in enumerate(loader.epoch(next(epoch)), 1):
            samples = min(step * batch_size, len(reader))
            if time.perf_counter() > stop:
                break
        return samples

    return _rate(once, seconds)


def _random(reader: Reader, batch_size: int, rng: np.random.Generator) -> int:
    reader.batch(rng.integers(0, len(reader), batch_size))
    return batch_size


def _rate(work: Callable[[], int], seconds: float) -> float:
    work()
    samples, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        samples += work()
    return samples / spent


def _advice(reader: Reader, rates: dict[str, float]) -> list[str]:
    store = reader._store
    layout, raw = store.layout, sum(f.nbytes for f in reader.schema) * len(reader)
    out = []
    fits = all(store.resident(f.name) for f in reader.schema)
    if fits:
        out.append("all samples fit the cache: from the second epoch on nothing is decoded")
    elif raw <= 4 << 30:
        out.append(f"cache='{-(-raw >> 20) + 16}MiB' would hold all samples decoded, if this machine has the memory")
    if layout is None:
        return out
    if not fits and rates["random"] < rates["shuffled"] / 20:
        out.append("shuffle=True reads each chunk once; if you need uniformly random batches over more data than a "
                   "cache holds, pack with chunk='random'")
    if layout.codec.name in ("gzip", "zstd") and not fits:
        out.append(f"codec {layout.codec} makes small files; codec='lz4' decodes several times as fast")
    if layout.codec.name != "none" and store.stored_bytes and store.stored_bytes > 0.9 * raw:
        out.append("the samples hardly compress: codec=None saves the decoding")
    return out or ["nothing to change: chunks, codec and cache fit this store"]
