"""What a contender is, and how one pass over it is timed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from benchlib.workloads import Block, Data

BATCH = 256
RANDOM_BATCHES = 200  # batches in a pass of random access
PROOF_SEED = 0  # the round that proves a contender and warms the page cache; timed rounds count from 1


class Contender(Protocol):
    """Someone who serves batches of a workload: `prepare` is not timed, `epoch` is drained by the clock."""

    name: str
    access: str  # "shuffled": every sample once; "random": the ids of `batch_ids`, in their order

    def prepare(self, data: Data, threads: int) -> int:
        """Make or open the files; returns their size in bytes."""

    def epoch(self, seed: int) -> Iterable[Any]:
        """Batches of whatever the contender serves by nature, another order for another seed.

        Ids that `batch_ids` draws may be drawn in the call, before the clock starts; whatever else there is
        to do belongs to the iteration, which is timed.
        """

    def fields(self, batch: Any) -> Block:
        """A batch as field name -> numpy array."""

    def close(self) -> None:
        """Let go of memory and files."""


class Unavailable(Exception):
    """A contender's package is not installed; the message names it."""


def batch_ids(access: str, samples: int, seed: int) -> list[np.ndarray]:
    """The ids of one pass, batch by batch, the same for every contender at a seed.

    "shuffled": a full permutation; "random": `RANDOM_BATCHES` uniform draws, none twice in a batch.
    """
    rng = np.random.default_rng(seed)
    if access == "random":
        return [rng.choice(samples, min(BATCH, samples), replace=False) for _ in range(RANDOM_BATCHES)]
    order = rng.permutation(samples)
    return [order[start:start + BATCH] for start in range(0, samples, BATCH)]


@dataclass(frozen=True)
class Limit:
    """Where an epoch is left, if not at its end: after `seconds` (but two batches at least) or `batches`."""

    seconds: float = float("inf")
    batches: int | None = None


@dataclass(frozen=True)
class Drained:
    """One timed pass: seconds on the clock and of the processor, what was served, whether to the end."""

    seconds: float
    cpu_seconds: float
    samples: int
    batches: int
    whole: bool

    @property
    def rate(self) -> float:
        return self.samples / self.seconds


def first_array(batch: Any) -> Any:
    """Any one array of a batch, whatever nesting of tuples and dicts it lies in."""
    while isinstance(batch, (tuple, list, dict)):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return batch


def drain(contender: Contender, seed: int, limit: Limit) -> Drained:
    """Take batches as fast as they come and do nothing with them."""
    samples = batches = 0
    whole = True
    epoch = contender.epoch(seed)
    start, cpu_start = time.perf_counter(), time.process_time()
    for batch in epoch:
        samples += len(first_array(batch))
        batches += 1
        if batches == limit.batches or (batches > 1 and time.perf_counter() - start > limit.seconds):
            whole = False
            break
    return Drained(time.perf_counter() - start, time.process_time() - cpu_start, samples, batches, whole)
