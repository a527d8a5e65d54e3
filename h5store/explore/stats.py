"""Statistics of a reader's samples: gathered in one pass, kept as numbers, shown as a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from h5store.errors import FieldNotFound, nearest
from h5store.explore.sample import QUANTILES, rank_error
from h5store.moments import Moments
from h5store.schema import Role, dumps

if TYPE_CHECKING:
    import pandas

VERSION = 1
Classes = dict[Any, int]


@dataclass(frozen=True)
class FieldStats:
    """Statistics of one field.

    Attributes
    ----------
    name, role : str
    dtype : str
        Of the samples; "text" for text.
    shape : tuple of int
        Of one sample.
    axis : int or None
        Axis of a sample that holds the channels; None for one channel.
    moments : Moments or None
        None for text.
    quantiles : ndarray of float64, shape (7, channels), or None
        At 1, 5, 25, 50, 75, 95 and 99 percent.
    classes : dict of value to int, or None
        Samples of each class, of labels and text with one value a sample; None for other fields, and for more than
        a million classes.
    parts : dict of str to dict
        The same for each part that was given.
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
    axis: int | None = None
    moments: Moments | None = None
    quantiles: np.ndarray | None = None
    classes: Classes | None = None
    parts: dict[str, Classes] = field(default_factory=dict)

    def _of(self, name: str) -> np.ndarray:
        if self.moments is None:
            raise AttributeError(f"field {self.name!r} is text and has no {name}; see its classes")
        found: np.ndarray = getattr(self.moments, name)
        return found

    @property
    def count(self) -> np.ndarray:
        """Finite values of each channel, int64 (channels,)."""
        return self._of("count")

    @property
    def mean(self) -> np.ndarray:
        """Mean of the finite values, float64 (channels,)."""
        return self._of("mean")

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of the finite values (of the population), float64 (channels,)."""
        return self._of("std")

    @property
    def min(self) -> np.ndarray:
        """Smallest finite value, float64 (channels,)."""
        return self._of("min")

    @property
    def max(self) -> np.ndarray:
        """Largest finite value, float64 (channels,)."""
        return self._of("max")

    def share(self, of: str) -> np.ndarray:
        """Share of values that are ``"nans"``, ``"infs"`` or ``"zeros"``, float64 (channels,)."""
        return self._of(of) / np.maximum(self._of("total"), 1)

    @property
    def constant(self) -> np.ndarray:
        """Channels that hold one value only, bool (channels,)."""
        return (self.min == self.max) & (self._of("count") == self._of("total"))

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row of a table a channel."""
        if self.moments is None or self.quantiles is None:
            yield {"count": sum(self.classes.values()) if self.classes is not None else None}
            return
        for c in range(len(self.mean)):
            yield {"count": int(self.count[c]), "mean": self.mean[c], "std": self.std[c], "min": self.min[c],
                   **{f"{q:.0%}": self.quantiles[i, c] for i, q in enumerate(QUANTILES)}, "max": self.max[c],
                   "nan": self.share("nans")[c], "inf": self.share("infs")[c], "zero": self.share("zeros")[c],
                   "constant": bool(self.constant[c])}

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        rows = [] if self.quantiles is None else self.quantiles.tolist()
        values = [[None if v != v else v for v in row] for row in rows] or None
        return {"name": self.name, "role": str(self.role), "dtype": self.dtype, "shape": list(self.shape),
                "axis": self.axis, "moments": self.moments and self.moments.to_json(), "quantiles": values,
                "classes": None if self.classes is None else list(self.classes.items()),
                "parts": {name: list(counts.items()) for name, counts in self.parts.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FieldStats:
        """What `to_json` gave."""
        values = data["quantiles"]
        return cls(data["name"], Role(data["role"]), data["dtype"], tuple(data["shape"]), data["axis"],
                   data["moments"] and Moments.from_json(data["moments"]),
                   None if values is None else np.array(values, np.float64),
                   None if data["classes"] is None else _classes(data["classes"]),
                   {name: _classes(counts) for name, counts in data["parts"].items()})


def _classes(pairs: list[list[Any]]) -> Classes:
    return {value: count for value, count in pairs}


@dataclass(frozen=True)
class Stats(Mapping[str, FieldStats]):
    """Statistics of a reader's samples, by field name.

    Attributes
    ----------
    path : str
    samples : int
    fingerprint : str
        Of the store that was read.
    parts : dict of str to int
        Samples of each part that was compared; empty if none was given.
    warnings : tuple of str
        What may spoil a training.
    kept : int
        Values kept of each channel for the quantiles. They are exact for channels of no more values.
    """

    path: str
    samples: int
    fingerprint: str
    fields: Mapping[str, FieldStats]
    parts: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    kept: int = 0

    def __getitem__(self, name: str) -> FieldStats:
        if name not in self.fields:
            raise FieldNotFound(f"{self.path}: no statistics of {name!r}; {nearest(name, self.fields)}")
        return self.fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    @property
    def rank_error(self) -> float:
        """Share of the values by which a quantile's rank may be off, in 99 of 100 cases, where it is not exact."""
        return rank_error(self.kept)

    def to_frame(self) -> pandas.DataFrame:
        """A table with one row a channel, indexed by field and channel.

        Returns
        -------
        pandas.DataFrame
            Columns role, dtype, count, mean, std, min, 1% to 99%, max, and the shares nan, inf and zero.

        Raises
        ------
        MissingExtraError
            pandas is not installed.
        """
        from h5store.errors import require

        pandas = require("pandas", "notebook", "Stats.to_frame()")
        rows, index = [], []
        for f in self.values():
            for channel, row in enumerate(f.rows()):
                rows.append({"role": str(f.role), "dtype": f.dtype, **row})
                index.append((f.name, channel))
        return pandas.DataFrame(rows, pandas.MultiIndex.from_tuples(index, names=["field", "channel"]))

    def __repr__(self) -> str:
        from h5store.explore.text import stats_text

        return stats_text(self)

    def _repr_html_(self) -> str:
        from h5store.explore.card import stats_card

        return stats_card(self)

    def to_note(self) -> bytes:
        """As it is kept in a store."""
        return dumps({"version": VERSION, "samples": self.samples, "fingerprint": self.fingerprint,
                      "fields": [f.to_json() for f in self.values()], "parts": dict(self.parts),
                      "warnings": list(self.warnings), "kept": self.kept})

    @classmethod
    def from_note(cls, path: str, note: bytes) -> Stats | None:
        """What `to_note` made, or None if another version did."""
        data = json.loads(note)
        if data.get("version") != VERSION:
            return None
        fields = {f["name"]: FieldStats.from_json(f) for f in data["fields"]}
        return cls(path, data["samples"], data["fingerprint"], fields, data["parts"], tuple(data["warnings"]),
                   data["kept"])
