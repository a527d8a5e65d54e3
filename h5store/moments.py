"""Pure arithmetic: count, mean, spread and extremes of a field's channels, in pieces that can be merged.

Values are summed in float64, each piece about its own mean, and pieces are merged pairwise: neither a large
offset nor a long file costs digits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from h5store.schema import Field

#: A longer axis is not channels but positions, and is not told apart.
MOST_CHANNELS = 64
#: An image has at most so many colours; told from (height, width, colours) and (colours, height, width).
_COLOURS = 4
# Values looked at together, and of those made float64 together: both stay in a core's own cache.
_PIECE = 262_144
_WIDE = 32_768
# numpy adds rows of this many values at full speed; rows of six values take ten times as long.
_WIDTH = 1024
# Squares about the mean are the squares less what the mean makes, which costs digits where the mean is large against
# the spread: a factor of 10^4 costs four of sixteen. Beyond it the values are taken about their mean first.
_CONDITION = 1e4
_local = threading.local()


def channel_axis(shape: tuple[Any, ...]) -> int | None:
    """Axis of a sample that holds its channels, or None if it has one.

    The last axis, if it is at most `MOST_CHANNELS` long: (time, channels), (height, width, colours), (components,). The
    first, where a picture's colours or a series' channels come first. None for scalars, for one long axis, and for
    pictures without colours.

    Parameters
    ----------
    shape : tuple of int
        Of one sample; None first where samples differ in length.

    Returns
    -------
    int or None

    Examples
    --------
    >>> channel_axis((100, 6)), channel_axis((3, 224, 224)), channel_axis((28, 28)), channel_axis((5,))
    (1, 0, None, 0)
    """
    if not shape:
        return None
    if shape[0] is None:
        inner = channel_axis(shape[1:])
        return None if inner is None else inner + 1
    if len(shape) >= 3 and shape[-1] > _COLOURS and shape[-3] <= _COLOURS and min(shape[-2:]) > shape[-3]:
        return len(shape) - 3
    if len(shape) == 2 and is_picture(shape):
        return None
    if len(shape) == 2 and shape[0] < shape[1] and shape[0] <= MOST_CHANNELS:
        return 0
    return len(shape) - 1 if shape[-1] <= MOST_CHANNELS else None


def is_picture(shape: tuple[Any, ...]) -> bool:
    """Whether two axes are the height and width of a picture rather than times and channels.

    Both at least 8 long, and neither more than three times the other.
    """
    return len(shape) == 2 and min(shape) >= 8 and max(shape) <= 3 * min(shape)


@dataclass(frozen=True)
class Moments:
    """What is known of the values of each channel. Adding two of them is exact but for rounding.

    Attributes
    ----------
    count, nans, infs, zeros : ndarray of int64, shape (channels,)
        Finite values, and values that are NaN, infinite, zero.
    mean, squares, min, max : ndarray of float64, shape (channels,)
        Of the finite values; `squares` is the sum of squared distances from the mean. NaN where there is none.
    """

    count: np.ndarray
    nans: np.ndarray
    infs: np.ndarray
    zeros: np.ndarray
    mean: np.ndarray
    squares: np.ndarray
    min: np.ndarray
    max: np.ndarray

    @property
    def std(self) -> np.ndarray:
        """Standard deviation as ``numpy.std`` gives it (of the population), float64 (channels,).

        Infinite or NaN where squares of the values are beyond float64, from about 1e154 on.
        """
        return np.sqrt(self.squares / np.where(self.count, self.count, np.nan))

    @property
    def total(self) -> np.ndarray:
        """All values, finite or not, int64 (channels,)."""
        return self.count + self.nans + self.infs

    @classmethod
    def none(cls, channels: int) -> Moments:
        """Of no values at all."""
        zero, nan = np.zeros(channels, np.int64), np.full(channels, np.nan)
        return cls(zero, zero, zero, zero, nan, np.zeros(channels), nan, nan)

    @classmethod
    @np.errstate(invalid="ignore", over="ignore")
    def merged(cls, parts: Sequence[Moments]) -> Moments:
        """Of the values of all parts together, at least one.

        Notes
        -----
        Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance", The American Statistician
        37(3), 242-247: the squares of a part about its own mean, and of its mean about the mean of all.
        """
        count = np.stack([m.count for m in parts])
        means = np.where(count, np.stack([m.mean for m in parts]), 0.0)
        total = count.sum(axis=0)
        some = np.maximum(total, 1)
        low, high = np.fmin.reduce([m.min for m in parts]), np.fmax.reduce([m.max for m in parts])
        mean = np.where(low == high, low, (count * means).sum(axis=0) / some)
        squares = sum(m.squares for m in parts) + (count * (means - mean) ** 2).sum(axis=0)
        nans, infs, zeros = (sum(getattr(m, name) for m in parts) for name in ("nans", "infs", "zeros"))
        return cls(total, nans, infs, zeros, np.where(total, mean, np.nan), np.where(low == high, 0.0, squares),
                   low, high)

    def to_json(self) -> dict[str, list[Any]]:
        """Lists of numbers; NaN as None."""
        return {name: [None if v != v else v for v in getattr(self, name).tolist()]
                for name in self.__dataclass_fields__}

    @classmethod
    def from_json(cls, data: dict[str, list[Any]]) -> Moments:
        whole = ("count", "nans", "infs", "zeros")
        return cls(**{name: np.array([np.nan if v is None else v for v in data[name]],
                                     np.int64 if name in whole else np.float64) for name in cls.__dataclass_fields__})


def channels_of(field: Field) -> int:
    """Number of channels of a field's samples."""
    axis = channel_axis(field.shape)
    return 1 if axis is None else int(field.shape[axis])


def by_channel(field: Field, samples: np.ndarray) -> np.ndarray:
    """Samples (m, *field.shape) as (values, channels): a view, or a copy where the channels do not come last."""
    axis = channel_axis(field.shape)
    if axis is not None and axis != len(field.shape) - 1:
        samples = np.moveaxis(samples, axis + 1, -1)
    return samples.reshape(-1, channels_of(field))


def moments_of(values: np.ndarray) -> Moments:
    """Moments of an array (values, channels); complex values by their magnitude.

    Parameters
    ----------
    values : ndarray of bool, int, float or complex, shape (n, channels)

    Returns
    -------
    Moments
    """
    channels = values.shape[1]
    if values.dtype.kind == "c":
        values = np.abs(values)
    elif values.dtype.kind == "b":
        values = values.view(np.uint8)
    elif values.dtype == np.float16:
        values = values.astype(np.float32)  # numpy compares halves one by one
    fold = max(1, _WIDTH // channels)
    step = fold * max(1, _PIECE // (channels * fold))
    found = [Moments.none(channels)]
    for lo in range(0, len(values), step):
        piece = values[lo:lo + step]
        whole = len(piece) // fold * fold
        if whole:
            found.append(_of_rows(piece[:whole].reshape(-1, channels * fold), channels))
        if whole < len(piece):
            found.append(_of_rows(piece[whole:], channels))
    return Moments.merged(found[1:] or found)


@np.errstate(invalid="ignore", over="ignore")
def _of_rows(rows: np.ndarray, channels: int) -> Moments:
    """Of rows in which the channels repeat, so that numpy works along long rows."""
    lows, highs = rows.min(axis=0), rows.max(axis=0)
    if rows.dtype.kind == "f" and not (np.isfinite(lows).all() and np.isfinite(highs).all()):
        return _of_holed(rows.reshape(-1, channels))
    low, high = (lows.reshape(-1, channels).min(axis=0).astype(np.float64),
                 highs.reshape(-1, channels).max(axis=0).astype(np.float64))
    none = np.zeros(channels, np.int64)
    zeros = _zeros(rows, channels) if (low <= 0).any() and (high >= 0).any() else none
    count = rows.size // channels
    total, squares = _sums(rows, channels, None)
    # A mean that rounding moved off the one value there is would give a constant a spread.
    mean = np.where(low == high, low, total / count)
    about_mean = squares - total * mean
    if (~(squares <= _CONDITION * about_mean) & (low != high)).any():
        about_mean = _sums(rows, channels, mean)[1]
    return Moments(np.full(channels, count), none, none, zeros, mean, np.where(low == high, 0.0, about_mean), low, high)


def _sums(rows: np.ndarray, channels: int, centre: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Sum and sum of squares of each channel, about `centre` if given, in float64."""
    width = rows.shape[1]
    step = max(1, _WIDE // width)
    row = None if centre is None else np.tile(centre, width // channels)
    total, squares = np.zeros(width), np.zeros(width)
    for lo in range(0, len(rows), step):
        part = rows[lo:lo + step]
        wide = _scratch("values", np.float64, part.size).reshape(part.shape)
        wide[...] = part
        if row is not None:
            wide -= row
        total += wide.sum(axis=0)
        squares += np.einsum("ij,ij->j", wide, wide)
    return _fold(total, channels), _fold(squares, channels)


@np.errstate(invalid="ignore", over="ignore")
def _of_holed(values: np.ndarray) -> Moments:
    """Of values of which some are NaN or infinite."""
    finite = np.isfinite(values)
    count, nans = finite.sum(axis=0), np.isnan(values).sum(axis=0)
    seen, some = count > 0, np.maximum(count, 1)
    known = np.where(finite, values, 0).astype(np.float64)
    mean = known.sum(axis=0) / some
    known -= mean
    known[~finite] = 0
    low = np.where(finite, values, np.inf).min(axis=0).astype(np.float64)
    high = np.where(finite, values, -np.inf).max(axis=0).astype(np.float64)
    return Moments(count, nans, len(values) - count - nans, (values == 0).sum(axis=0),
                   np.where(seen, mean, np.nan), np.einsum("ij,ij->j", known, known),
                   np.where(seen, low, np.nan), np.where(seen, high, np.nan))


def _zeros(rows: np.ndarray, channels: int) -> np.ndarray:
    hits = np.equal(rows, 0, out=_scratch("hits", np.bool_, rows.size).reshape(rows.shape))
    if not hits.any():
        return np.zeros(channels, np.int64)
    # Bytes add up sixteen at a time, as long as no more than 255 rows are added.
    counts = [hits.view(np.uint8)[lo:lo + 255].sum(axis=0, dtype=np.uint8) for lo in range(0, len(hits), 255)]
    return _fold(np.stack(counts).sum(axis=0, dtype=np.int64), channels)


def _scratch(use: str, dtype: Any, size: int) -> np.ndarray:
    """Room of this thread's own, used again: fresh pages would cost more than the arithmetic."""
    have: np.ndarray | None = getattr(_local, use, None)
    if have is None or len(have) < size:
        have = np.empty(size, dtype)
        setattr(_local, use, have)
    return have[:size]


def _fold(row: np.ndarray, channels: int) -> np.ndarray:
    return row.reshape(-1, channels).sum(axis=0)
