"""Pure arithmetic: quantiles and counts of values of which only a bounded part is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from h5store.moments import by_channel, channels_of
from h5store.schema import Field

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
# Values kept of one channel: a rank is then off by 0.6 % at most, in 99 of 100 cases. See `rank_error`.
_KEPT = 65_536
#: Values kept of all fields together, 16 MiB of float32.
_KEPT_OF_ALL = 2**22
_LEAST = 256
#: Distinct values that are counted; a field with more has no classes.
MOST_CLASSES = 2**20


def kept_values(fields: list[Field]) -> int:
    """Values to keep of each channel of these fields."""
    channels = sum(channels_of(f) for f in fields)
    return max(_LEAST, min(_KEPT, _KEPT_OF_ALL // max(1, channels)))


def rank_error(kept: int) -> float:
    """Share of all values by which the rank of a quantile may be off, in 99 of 100 cases.

    Notes
    -----
    Dvoretzky, Kiefer and Wolfowitz 1956, with the constant of Massart 1990: sqrt(ln(2 / 0.01) / (2 * kept)). It holds
    for a plain random sample; one value drawn from each of as many equal stretches is no worse.
    """
    return math.sqrt(math.log(2 / 0.01) / (2 * kept))


class Strata:
    """Which values of a channel are kept: all of them, or one at random out of each of `kept` equal stretches.

    Parameters
    ----------
    values : int
        Of one channel in the whole pass.
    kept : int
    """

    def __init__(self, values: int, kept: int) -> None:
        self.exact = values <= kept
        self._places = None
        if not self.exact:
            # Named outright, so that the same store gives the same figures everywhere.
            shift = np.random.Generator(np.random.PCG64(0)).random(kept)
            self._places = ((np.arange(kept) + shift) * (values / kept)).astype(np.int64)

    def pick(self, start: int, rows: np.ndarray) -> np.ndarray:
        """Copy of the kept among `rows` (values, channels), of which the first is value `start` of the pass."""
        if self._places is None:
            return rows.copy()
        lo, hi = np.searchsorted(self._places, [start, start + len(rows)])
        return rows[self._places[lo:hi] - start]


def strata_of(field: Field, samples: int, kept: int) -> Strata:
    return Strata(samples * (math.prod(field.shape) // channels_of(field)), kept)


def picked(field: Field, strata: Strata, start: int, samples: np.ndarray) -> np.ndarray:
    """Values of a piece of samples that a field's sketch keeps, (values, channels)."""
    rows = by_channel(field, samples)
    found = strata.pick(start * (math.prod(field.shape) // channels_of(field)), rows)
    return np.abs(found) if found.dtype.kind == "c" else found


def quantiles(rows: np.ndarray) -> np.ndarray:
    """`QUANTILES` of the finite values of each channel, float64 (quantiles, channels); NaN where there is none."""
    out = np.full((len(QUANTILES), rows.shape[1]), np.nan)
    for channel, values in enumerate(rows.T):
        # Sorting float32 and interpolating, as numpy.quantile does by default, takes a tenth of its time.
        values = np.sort(values[np.isfinite(values)])
        if len(values):
            place = np.array(QUANTILES) * (len(values) - 1)
            below = place.astype(np.int64)
            low, high = (values[np.minimum(i, len(values) - 1)].astype(np.float64) for i in (below, below + 1))
            with np.errstate(over="ignore", invalid="ignore"):
                out[:, channel] = low + (high - low) * (place - below)
    return out


def counted(values: np.ndarray) -> dict[float | int, int]:
    """How often each value occurs; NaN counts as one value."""
    low, found, counts = distinct(values)
    # Added as Python's numbers: a sum may be too large for int64.
    return {low + value: count for value, count in zip(found.tolist(), counts.tolist())}


def distinct(values: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """Distinct values, ascending and each less the number that comes first, and how often each occurs."""
    if values.dtype.kind in "bui" and values.size:
        low, high = int(values.min()), int(values.max())
        if high - low < max(65_536, 4 * values.size):
            places = values - values.min() if values.dtype.kind == "u" else values.astype(np.int64) - low
            counts = np.bincount(places.astype(np.int64).reshape(-1))
            found = np.flatnonzero(counts)
            return low, found, counts[found]
    return 0, *np.unique(values, return_counts=True)


class Counts:
    """Counts of distinct values, added up piece by piece; given up beyond `MOST_CLASSES`."""

    def __init__(self) -> None:
        self.found: dict[float | int, int] | None = {}

    def add(self, counts: Mapping[float | int, int]) -> None:
        if self.found is None:
            return
        for value, count in counts.items():
            self.found[value] = self.found.get(value, 0) + count
        if len(self.found) > MOST_CLASSES:
            self.found = None
