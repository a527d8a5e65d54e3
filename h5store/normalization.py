"""Mean and spread of each channel of some samples, and what takes them out of a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from h5store.errors import FieldNotFound, OptionError, nearest, require
from h5store.moments import Moments, by_channel, channel_axis, moments_of
from h5store.ragged import Ragged
from h5store.schema import Field, Role, dumps

if TYPE_CHECKING:
    from h5store.reader import Reader

_PREFIX = "normalization:"
#: Decoded bytes that are read at once.
_PIECE = 8 << 20


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of each channel of fields, and over which samples they were taken.

    Attributes
    ----------
    moments : mapping of str to Moments
        By field name.
    axes : mapping of str to int or None
        Axis of a sample that holds the channels; None: all values together.
    samples : int
    """

    moments: Mapping[str, Moments]
    axes: Mapping[str, int | None]
    samples: int

    @classmethod
    def of(cls, reader: Reader, fields: str | Sequence[str] | None = None) -> Normalization:
        """Measured over the samples of a reader, one pass."""
        chosen = _chosen(reader, fields)
        step = max(1, _PIECE // max(1, sum(reader._store.mean_bytes(f.name) for f in chosen)))
        parts: dict[str, list[Moments]] = {f.name: [] for f in chosen}
        ids = np.sort(reader.ids)
        for start in range(0, len(ids), step):
            found: dict[str, Any] = reader._read([f.name for f in chosen], ids[start:start + step])
            for f in chosen:
                values = found[f.name].values if isinstance(found[f.name], Ragged) else found[f.name]
                parts[f.name].append(moments_of(by_channel(_inner(f), values)))
        merged = {name: Moments.merged(some) for name, some in parts.items()}
        axes = {f.name: channel_axis(_inner(f).shape) for f in chosen}
        return cls(merged, {f.name: axis if axis is None else axis + f.ragged
                            for f, axis in ((f, axes[f.name]) for f in chosen)}, len(ids))

    def __contains__(self, name: object) -> bool:
        return name in self.moments

    def mean(self, name: str) -> np.ndarray:
        """Mean of each channel, float64."""
        return self._of(name).mean

    def std(self, name: str) -> np.ndarray:
        """Standard deviation of each channel, float64; 1 for a channel that is constant."""
        std = self._of(name).std
        return np.where(np.isfinite(std) & (std > 0), std, 1.0)

    def _of(self, name: str) -> Moments:
        if name not in self.moments:
            raise FieldNotFound(f"normalization: no field {name!r}; {nearest(name, self.moments)}")
        return self.moments[name]

    def apply(self, name: str, values: Any) -> Any:
        """Values (n, *field.shape), or `Ragged`, less their mean, over their standard deviation; floats."""
        if isinstance(values, Ragged):
            axis = self.axes[name]
            return replace(values, values=self._scaled(name, values.values, None if axis is None else axis))
        axis = self.axes[name]
        return self._scaled(name, values, None if axis is None else axis + 1)

    def _scaled(self, name: str, values: np.ndarray, axis: int | None) -> np.ndarray:
        dtype = values.dtype if values.dtype.kind == "f" else np.dtype(np.float32)
        shape = [1] * values.ndim
        if axis is not None:
            shape[axis] = -1
        mean, std = (a.astype(dtype).reshape(shape) for a in (self.mean(name), self.std(name)))
        out = values.astype(dtype)
        out -= mean
        out /= std
        return out

    def layer(self, name: str) -> Any:
        """A ``keras.layers.Normalization`` that does the same inside a model.

        Raises
        ------
        MissingExtraError, FieldNotFound
        """
        keras = require("keras", "tensorflow", "Normalization.layer")
        axis = self.axes[name]
        mean, std = self.mean(name), self.std(name)
        if axis is None:
            return keras.layers.Normalization(axis=None, mean=float(mean[0]), variance=float(std[0] ** 2))
        return keras.layers.Normalization(axis=axis + 1, mean=mean, variance=std ** 2)

    def to_note(self) -> bytes:
        return dumps({"moments": {name: m.to_json() for name, m in self.moments.items()}, "axes": dict(self.axes),
                      "samples": self.samples})

    @classmethod
    def from_note(cls, note: bytes) -> Normalization:
        data = json.loads(note)
        return cls({name: Moments.from_json(m) for name, m in data["moments"].items()}, data["axes"], data["samples"])

    def __repr__(self) -> str:
        return f"<h5store.Normalization of {', '.join(map(repr, self.moments))} over {self.samples:,} samples>"


def key_of(name: str) -> str:
    """Key of the note that holds a saved one."""
    return _PREFIX + name


def name_of(key: str) -> str | None:
    """Name of a saved one by its note's key; None if the note is about something else."""
    return key[len(_PREFIX):] if key.startswith(_PREFIX) else None


def _inner(field: Field) -> Field:
    """The field as its values lie: without the axis along which samples differ in length."""
    return field.columns[0]


def _chosen(reader: Reader, fields: str | Sequence[str] | None) -> list[Field]:
    if fields is None:
        found = [f for f in reader.schema.of(Role.FEATURES, Role.AUX) if not f.text and f.dtype.kind in "iuf"]
        if not found:
            raise OptionError(f"{reader.path}: normalization: no numeric input field; name the fields: "
                              "normalization(fields=[...])")
    else:
        found = [reader._field(name) for name in ([fields] if isinstance(fields, str) else fields)]
    for f in found:
        if f.text or f.dtype.kind not in "iuf":
            raise OptionError(f"{reader.path}: normalization: field {f.name!r} is {f.describe()}, expected numbers; "
                              "leave it out of fields=")
    if not len(reader):
        raise OptionError(f"{reader.path}: normalization: no samples to measure; take a reader that has some")
    return found
