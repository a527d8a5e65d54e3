"""Pure arithmetic: which samples go into which part. Sees labels as plain arrays, never a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h5store.errors import SplitError

__all__ = ["kfold", "split_ids"]

Ids = NDArray[np.int64]

# Fractions such as 0.7 + 0.2 + 0.1 miss 1 by a last bit, and float32 ones by more.
_ROUNDING = 1e-6


def split_ids(n: int, parts: Mapping[str, float], *, by: ArrayLike | None = None,
              groups: ArrayLike | None = None, seed: int = 0) -> dict[str, Ids]:
    """Divide the samples 0..n-1 at random into named parts.

    Parameters
    ----------
    n : int
        Number of samples.
    parts : mapping of str to float, or of str to int
        Share of each part, as fractions that add up to 1 at most or as numbers of samples. Samples beyond
        the sum are left unused.
    by : array_like, shape (n,), optional
        Class of each sample. Every class is divided as the whole is, to within one sample in each part.
    groups : array_like, shape (n,), optional
        Group of each sample, such as a patient. A group is never divided, so that sizes are approximate.
    seed : int
        Decides who goes where; sizes do not depend on it without `groups`.

    Returns
    -------
    dict of str to ndarray of int64
        Ascending sample ids, in the order of `parts`.

    Raises
    ------
    SplitError
        For shares that are not fractions or counts of `n`, a part that would be empty, arrays that are not of
        shape (n,), a class of fewer samples than there are parts, or fewer groups than parts.

    Notes
    -----
    Rounding is by the largest remainder, first of the sizes of the parts and then of each class, in such a
    way that both add up. With `groups`, the largest groups are placed first, each where it brings the parts
    nearest to their sizes (of every class, if `by` is given as well).
    """
    n = _count("n", n)
    sizes = _sizes(n, parts)
    chosen = _assign(n, sizes, by, groups, seed)
    return {name: np.flatnonzero(chosen == i) for i, name in enumerate(parts)}


def kfold(n: int, k: int, *, by: ArrayLike | None = None, groups: ArrayLike | None = None,
          seed: int = 0) -> list[tuple[Ids, Ids]]:
    """Divide the samples 0..n-1 into k folds, each of them once the validation part.

    Parameters
    ----------
    n, k : int
        Number of samples, and of folds (2 at least).
    by, groups, seed
        As in `split_ids`.

    Returns
    -------
    list of (train_ids, val_ids)
        Ascending sample ids, int64. The k validation parts hold each sample once.

    Raises
    ------
    SplitError
        As in `split_ids`, a fold taking the place of a part.
    """
    n, k = _count("n", n), _count("k", k)
    if not 2 <= k <= n:
        raise SplitError(f"kfold: cannot make k={k} folds of n={n} samples; expected k in [2, n]")
    sizes = np.append(n // k + (np.arange(k) < n % k), 0)
    chosen = _assign(n, sizes, by, groups, seed)
    return [(np.flatnonzero(chosen != i), np.flatnonzero(chosen == i)) for i in range(k)]


def _assign(n: int, sizes: Ids, by: ArrayLike | None, groups: ArrayLike | None, seed: int) -> Ids:
    """Part of each sample; the last of `sizes` is of the samples left unused."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(_count("seed", seed))))
    parts = len(sizes) - 1
    codes = np.zeros(n, np.int64) if by is None else _codes("by", by, n)
    counts = np.bincount(codes)
    if by is not None and counts.min() < parts:
        raise SplitError(_too_rare(np.unique(np.asarray(by)), counts, parts))
    if groups is None:
        return _dealt(codes, _rounded(counts, sizes), rng)
    owners = _codes("groups", groups, n)
    if owners.max() + 1 < parts:
        raise SplitError(f"split: too few groups; expected at least one for each of {parts} parts, got "
                         f"{owners.max() + 1}; use fewer parts or finer groups")
    return _grouped(codes, np.outer(counts, sizes / n).astype(np.float64), owners, rng)


def _too_rare(classes: NDArray[Any], counts: Ids, parts: int) -> str:
    rare = np.flatnonzero(counts < parts).tolist()
    shown = ", ".join(f"{classes.tolist()[c]!r} ({counts[c]})" for c in rare[:5])
    more = f" and {len(rare) - 5} more" if len(rare) > 5 else ""
    return (f"split: classes of 'by' with fewer samples than the {parts} parts: {shown}{more}; merge or "
            "leave out these classes, use fewer parts, or split without 'by'")


def _dealt(codes: Ids, table: Ids, rng: np.random.Generator) -> Ids:
    """Deal the samples of each class, in random order, by the numbers of `table` (classes, parts)."""
    order = rng.permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    chosen = np.empty(len(codes), np.int64)
    chosen[order] = np.repeat(np.tile(np.arange(table.shape[1]), len(table)), table.ravel())
    return chosen


def _rounded(counts: Ids, sizes: Ids) -> Ids:
    """Whole numbers (classes, parts) next to counts * sizes / n, with `counts` and `sizes` as their sums."""
    quota, n = np.outer(counts, sizes), int(counts.sum())
    table, rest = quota // n, quota % n  # in whole numbers: no remainder is lost to rounding
    up = np.zeros(table.shape, bool)
    owed = np.zeros(len(sizes), np.int64)
    for c, left in enumerate(counts - table.sum(axis=1)):
        # The largest remainder, counting what a part missed in the classes before.
        owed += rest[c]
        first = np.lexsort((-rest[c], -owed, rest[c] == 0))[:left]
        up[c, first] = True
        owed[first] -= n
    _settle(up, rest, sizes - table.sum(axis=0))
    return table + up


def _settle(up: NDArray[np.bool_], rest: Ids, wanted: Ids) -> None:
    """Move single samples between parts within a class, until each part is rounded up `wanted` times.

    An entry is never a whole sample off its quota. Such a table exists (Bacharach 1966, "Matrix rounding
    problems"), and chains of moves from a part with too many to one with too few lead there.
    """
    while np.any(up.sum(axis=0) != wanted):
        surplus = up.sum(axis=0) - wanted
        reached = {int(np.argmax(surplus)): -1}
        queue = list(reached)
        for i in queue:
            movable = (up[:, i, None] & ~up & (rest > 0)).any(axis=0)
            fresh = [int(j) for j in np.flatnonzero(movable) if j not in reached]
            reached.update(dict.fromkeys(fresh, i))
            queue += fresh
        j = next(part for part in queue if surplus[part] < 0)
        while reached[j] >= 0:
            i = reached[j]
            able = np.flatnonzero(up[:, i] & ~up[:, j] & (rest[:, j] > 0))
            c = able[np.argmin(rest[able, i] - rest[able, j])]
            up[c, i], up[c, j] = False, True
            j = i


def _grouped(codes: Ids, target: NDArray[np.float64], groups: Ids, rng: np.random.Generator) -> Ids:
    """Place whole groups, the largest first, where they bring parts nearest to `target` (classes, parts)."""
    members = np.argsort(groups, kind="stable")
    lengths = np.bincount(groups)
    ends = np.cumsum(lengths)
    shuffled = rng.permutation(len(lengths))
    missing = target.copy()
    weight = 1 / np.maximum(missing, 1)
    empty = np.arange(target.shape[1]) < target.shape[1] - 1  # the last part, unused samples, may stay so
    barred = target.sum(axis=0) == 0
    chosen = np.empty(len(codes), np.int64)
    for done, g in enumerate(shuffled[np.argsort(-lengths[shuffled], kind="stable")]):
        ids = members[ends[g] - lengths[g]:ends[g]]
        classes, held = np.unique(codes[ids], return_counts=True)
        # Growth of the squared distance to the target, over the target: large groups spread as small ones do.
        growth = (held[:, None] * (held[:, None] - 2 * missing[classes]) * weight[classes]).sum(axis=0)
        last_chance = len(lengths) - done <= np.count_nonzero(empty)
        best = int(np.argmin(np.where(~empty if last_chance else barred, np.inf, growth)))
        missing[classes, best] -= held
        empty[best] = False
        chosen[ids] = best
    return chosen


def _sizes(n: int, parts: Mapping[str, float]) -> Ids:
    """Number of samples of each part, and after them of those left unused."""
    if not isinstance(parts, Mapping) or not parts:
        raise SplitError("split: no parts; expected a dict such as {'train': 0.8, 'val': 0.2}, "
                         f"got {parts!r}")
    kinds = {_kind(name, share) for name, share in parts.items()}
    if len(kinds) > 1:
        raise SplitError(f"split: fractions and counts are mixed; expected shares such as 0.8, or whole "
                         f"numbers, got {dict(parts)!r}")
    if kinds == {"count"}:
        total = sum(int(share) for share in parts.values())
        if total > n:
            raise SplitError(f"split: the parts ask for {total} samples, there are {n}; ask for fewer, or give "
                             "fractions")
        sizes = np.array([*parts.values(), n - total], np.int64)
    else:
        sizes = _fractions(n, np.array(list(parts.values()), np.float64))
    for name, size in zip(parts, sizes):
        if size == 0:
            raise SplitError(f"split: part {name!r} would be empty: {parts[name]!r} of {n} samples; use "
                             "larger shares, fewer parts or more data")
    return sizes


def _fractions(n: int, shares: NDArray[np.float64]) -> Ids:
    total = shares.sum()
    if total > 1 + _ROUNDING:
        raise SplitError(f"split: the fractions add up to {total:.6g}; expected 1 at most: make them smaller, "
                         "or give counts of samples")
    whole = total > 1 - _ROUNDING
    exact = n * np.append(shares / total if whole else shares, 0 if whole else 1 - total)
    sizes = np.floor(exact).astype(np.int64)
    sizes[np.argsort(sizes - exact, kind="stable")[:n - sizes.sum()]] += 1
    return sizes


def _kind(name: str, share: Any) -> str:
    if isinstance(share, (int, np.integer)) and not isinstance(share, bool) and share >= 0:
        return "count"
    if isinstance(share, (float, np.floating)) and 0 <= share <= 1 + _ROUNDING:
        return "fraction"
    raise SplitError(f"split: part {name!r} has no valid share; expected a fraction in (0, 1] or a count of "
                     f"samples, got {share!r}")


def _codes(name: str, values: ArrayLike, n: int) -> Ids:
    """Number the distinct values."""
    array = np.asarray(values)
    if array.shape != (n,):
        raise SplitError(f"split: {name!r} has shape {array.shape}, expected ({n},): one value a sample")
    try:
        return np.unique(array, return_inverse=True)[1].astype(np.int64, copy=False)
    except TypeError as error:
        raise SplitError(f"split: the values of {name!r} cannot be compared; expected one type, got dtype "
                         f"{array.dtype} ({error}); convert them, e.g. to text with .astype(str)") from error


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise SplitError(f"split: {name!r} is out of range; expected an int >= 0, got {value!r}")
    return int(value)
