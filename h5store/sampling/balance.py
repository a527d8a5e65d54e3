"""Pure arithmetic: class-balanced draws and weights. Sees labels as plain arrays, never a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h5store.errors import OptionError

__all__ = ["balanced_order", "class_weights"]

Class = TypeVar("Class")


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
            raise OptionError(f"balanced_order: {name!r} is out of range; expected an int >= 0, "
                              f"got {value!r}")
    if labels.ndim != 1 or (labels.size == 0 and size > 0):
        raise OptionError(f"balanced_order: 'labels' has shape {labels.shape}, expected (n,) with n > 0")
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


@overload
def class_weights(counts: Mapping[Class, int]) -> dict[Class, float]: ...


@overload
def class_weights(counts: ArrayLike) -> NDArray[np.float64]: ...


def class_weights(counts: Any) -> Any:
    """Weights that make every class count the same in a loss.

    Parameters
    ----------
    counts : mapping of class to int, or array_like of int, shape (k,)
        Number of samples of each class.

    Returns
    -------
    dict of class to float, or ndarray of float64, shape (k,)
        n / (k * count), where n is the sum of the counts. Their mean over the samples is 1.

    Raises
    ------
    OptionError
        For a class without samples.

    Notes
    -----
    The formula is that of ``class_weight="balanced"`` in scikit-learn, after King and Zeng 2001, "Logistic
    regression in rare events data".
    """
    if isinstance(counts, Mapping):
        return dict(zip(counts, class_weights(list(counts.values())).tolist()))
    array = np.asarray(counts)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu" or array.min() < 1:
        raise OptionError("class_weights: 'counts' are not sizes of classes; expected ints >= 1 of shape "
                          f"(k,), got {counts!r}; leave out classes without samples")
    return array.sum() / (len(array) * array)


def _probabilities(classes: NDArray[Any],
                   weights: Mapping[Any, float] | ArrayLike | None) -> NDArray[np.float64]:
    names = classes.tolist()
    if weights is None:
        return np.full(len(names), 1 / len(names))
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            raise OptionError(f"balanced_order: 'weights' are not of the classes; expected {names[:5]!r} "
                              f"({len(names)} classes), got {list(weights)[:5]!r} ({len(weights)})")
        weights = [weights[name] for name in names]
    array = np.asarray(weights, np.float64)
    if array.shape != (len(names),) or not np.isfinite(array).all() or array.min() < 0 or array.max() == 0:
        raise OptionError(f"balanced_order: 'weights' are not probabilities; expected {len(names)} finite "
                          f"numbers >= 0, not all 0, got {weights!r}")
    return array / array.sum()
