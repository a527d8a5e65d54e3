"""Pure arithmetic: orders beside the plan's own: drawn by class or weight, or gathered by length."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import ArrayLike

from h5store.errors import OptionError
from h5store.sampling.balance import balanced_order
from h5store.sampling.order import Ids, draw
from h5store.sampling.plan import EpochPlan

_DRAWN, _BUCKETS = 4, 5  # tags of random streams, beside those of h5store.sampling.order

#: Batches among which samples of like length are gathered: enough that lengths are alike, few enough to stay mixed.
_TOGETHER = 32


class Choice(Protocol):
    """Which samples a batch holds, where that is not the plan's affair alone."""

    #: Differs between choices that differ; part of a loader's state.
    mark: str

    def ids(self, plan: EpochPlan, epoch: int, step: int) -> Ids: ...


class Balanced:
    """Each class is drawn equally often, or as often as `odds` say.

    Parameters
    ----------
    labels : array_like, shape (n,)
        Class of each sample.
    odds : mapping of class to float, optional

    Raises
    ------
    OptionError
    """

    def __init__(self, labels: ArrayLike, odds: Mapping[Any, float] | None = None) -> None:
        self._labels = np.asarray(labels)
        self._odds = odds
        balanced_order(self._labels, seed=0, epoch=0, size=min(1, self._labels.size), weights=odds)
        self.mark = f"balanced:{_digest(self._labels)}:{odds!r}"
        self._order = lru_cache(maxsize=1)(self._draw)

    def _draw(self, seed: int, epoch: int) -> Ids:
        return balanced_order(self._labels, seed=seed, epoch=epoch, weights=self._odds)

    def ids(self, plan: EpochPlan, epoch: int, step: int) -> Ids:
        return self._order(plan.seed, epoch)[plan.batch(epoch, step)]

    def __reduce__(self) -> Any:
        return type(self), (self._labels, self._odds)


class Weighted:
    """Samples are drawn with replacement, each as often as its weight says.

    Parameters
    ----------
    weights : array_like, shape (n,)
        Finite, not negative, not all 0.

    Raises
    ------
    OptionError
    """

    def __init__(self, weights: ArrayLike, n: int) -> None:
        given = np.asarray(weights, np.float64)
        if given.shape != (n,):
            raise OptionError(f"odds: weights have shape {given.shape}, expected ({n},): one a sample")
        bad = np.flatnonzero(~np.isfinite(given) | (given < 0))
        if len(bad) or not given.sum() > 0:
            told = f"sample {bad[0]} has {given[bad[0]]}" if len(bad) else "all are 0"
            raise OptionError(f"odds: weights are finite and not negative, and not all 0; {told}")
        self._weights = given
        self._edges = np.cumsum(given) / given.sum()
        self._edges[-1] = 1.0
        self.mark = f"weighted:{_digest(given)}"
        self._order = lru_cache(maxsize=1)(self._draw)

    def _draw(self, seed: int, epoch: int) -> Ids:
        places = draw(seed, epoch, _DRAWN).random(len(self._edges))
        return np.searchsorted(self._edges, places, side="right").astype(np.int64)

    def ids(self, plan: EpochPlan, epoch: int, step: int) -> Ids:
        return self._order(plan.seed, epoch)[plan.batch(epoch, step)]

    def __reduce__(self) -> Any:
        return type(self), (self._weights, len(self._weights))


class Bucketed:
    """The plan's samples, each once; those of neighbouring batches change places so that lengths in a batch are alike.

    Parameters
    ----------
    lengths : array_like of int, shape (n,)
    """

    def __init__(self, lengths: ArrayLike) -> None:
        self._lengths = np.asarray(lengths)
        self.mark = f"bucketed:{_digest(self._lengths)}"
        self._group = lru_cache(maxsize=2)(self._gathered)

    def _gathered(self, plan: EpochPlan, epoch: int, group: int) -> dict[int, Ids]:
        steps = np.arange(group * _TOGETHER, min((group + 1) * _TOGETHER, len(plan)))
        parts = [plan.batch(epoch, int(step)) for step in steps]
        ids = np.concatenate(parts)
        ids = ids[np.argsort(self._lengths[ids], kind="stable")]
        out, at = {}, 0
        # Short ones must not always come first.
        for i in draw(plan.seed, epoch, _BUCKETS, group).permutation(len(steps)).tolist():
            out[int(steps[i])] = ids[at:at + len(parts[i])]
            at += len(parts[i])
        return out

    def ids(self, plan: EpochPlan, epoch: int, step: int) -> Ids:
        return self._group(plan, epoch, step // _TOGETHER)[step]

    def __reduce__(self) -> Any:
        return type(self), (self._lengths,)


def _digest(values: np.ndarray) -> str:
    raw = values.tobytes() if values.dtype != object else repr(values.tolist()).encode()
    return xxhash.xxh3_64_hexdigest(raw)
