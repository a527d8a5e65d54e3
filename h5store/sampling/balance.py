"""Pure arithmetic: class-balanced draws. Sees labels as plain arrays, never a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h5store.errors import OptionError

__all__ = ["balanced_order"]


def balanced_order(labels: ArrayLike, *, seed: int, epoch: int, size: int | None = None,
                   weights: Mapping[Any, float] | ArrayLike | None = None) -> NDArray[np.int64]:
    """Draw samples such that each class comes with the same, or a given, probability.

    Parameters
    ----------
    labels : array_like, shape (n,)
        Class of each sample: numbers or text.
    seed, epoch : int
        Decide the draws.
    size : int, optional
        How many to draw; as many as there are samples by default.
    weights : mapping of class to float, or array_like in ascending order of the classes, optional
        Relative probability of each class; equal by default. A class of weight 0 is never drawn.

    Returns
    -------
    ndarray of int64, shape (size,)
        Sample ids. No sample comes again before all of its class have come; each pass over a class is
        shuffled anew.

    Raises
    ------
    OptionError
    """
    labels = np.asarray(labels)
    size = labels.size if size is None else size
    for name, value in (("seed", seed), ("epoch", epoch), ("size", size)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
            raise OptionError(f"balance: {name}={value!r}, expected an int of at least 0")
    if labels.ndim != 1 or (labels.size == 0 and size > 0):
        raise OptionError(f"balance: the classes have shape {labels.shape}, expected (n,) with n > 0: one a sample")
    if size == 0:
        return np.empty(0, np.int64)
    classes, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([int(seed), int(epoch)])))
    drawn = rng.choice(len(classes), size=size, p=_probabilities(classes, weights))
    members = np.split(np.argsort(codes, kind="stable"), np.cumsum(counts)[:-1])
    places = np.split(np.argsort(drawn, kind="stable"),
                      np.cumsum(np.bincount(drawn, minlength=len(classes)))[:-1])
    ids = np.empty(size, np.int64)
    for own, place in zip(members, places):
        passes = np.tile(own, (-(-len(place) // len(own)), 1))
        ids[place] = rng.permuted(passes, axis=1).ravel()[:len(place)]
    return ids


def _probabilities(classes: NDArray[Any],
                   weights: Mapping[Any, float] | ArrayLike | None) -> NDArray[np.float64]:
    names = classes.tolist()
    if weights is None:
        return np.full(len(names), 1 / len(names))
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            raise OptionError(f"odds: they are not of the classes; expected {names[:5]!r} "
                              f"({len(names)} classes), got {list(weights)[:5]!r} ({len(weights)})")
        weights = [weights[name] for name in names]
    array = np.asarray(weights, np.float64)
    if array.shape != (len(names),) or not np.isfinite(array).all() or array.min() < 0 or array.max() == 0:
        raise OptionError(f"odds: expected {len(names)} finite numbers >= 0, one a class and not all 0, got "
                          f"{weights!r}")
    return array / array.sum()
