"""Pure arithmetic: numpy's selection rules on the sample axis, as ids."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from h5store.errors import SelectionError


def as_ids(selection: Any, n: int, where: str) -> np.ndarray:
    """Sample ids that a slice, a mask, or ints of any shape select, in [0, n).

    Parameters
    ----------
    selection : slice, array_like of bool with shape (n,), or array_like of int
        Negative ids count from the end; any order, repeats allowed; an empty selection of any dtype is empty.
    n : int
        Samples to select from.
    where : str
        What errors start with.

    Returns
    -------
    ndarray of int64, in the shape of `selection` where that is ints

    Raises
    ------
    SelectionError
        Ids out of range, ids that are not ints, a mask of another length.
    """
    if isinstance(selection, slice):
        return np.arange(*selection.indices(n), dtype=np.int64)
    try:
        ids = np.asarray(selection)
    except ValueError as error:
        raise SelectionError(f"{where}: sample ids do not make one array ({error}); expected ints or a mask") from None
    if ids.dtype.kind == "b":
        if ids.shape != (n,):
            raise SelectionError(f"{where}: the mask has shape {ids.shape}, expected ({n},): one value a sample")
        return np.flatnonzero(ids)
    if ids.size == 0:
        return ids.astype(np.int64)
    if ids.dtype.kind not in "iu":
        raise SelectionError(f"{where}: sample ids are {ids.dtype}, expected ints, a slice or a mask; convert them "
                             "with .astype(int) if they are whole numbers")
    low, high = ids.min(), ids.max()
    if low < -n or high >= n:
        bad = int(low if low < -n else high)
        raise SelectionError(f"{where}: sample id {bad} is out of range, there are {n:,} samples (0 to {n - 1})"
                             if n else f"{where}: sample id {bad} is out of range, there are no samples")
    ids = ids.astype(np.int64)
    return np.where(ids < 0, ids + n, ids) if low < 0 else ids


def is_one(selection: Any) -> bool:
    """Whether a selection is a single int, so that the sample axis goes away."""
    if isinstance(selection, (bool, np.bool_)):
        return False
    try:
        operator.index(selection)
    except TypeError:
        return False
    return True
