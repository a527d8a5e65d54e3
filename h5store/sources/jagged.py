"""Sources: samples of different lengths, as they come: lists or object arrays of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from h5store.errors import SchemaError
from h5store.ragged import Ragged
from h5store.schema import Field, checked_dtype


class Jagged:
    """Arrays that differ in their first axis only. Has the shape and the dtype of a variable-length field.

    Parameters
    ----------
    samples : list of ndarray
        Not empty; of one dtype and one inner shape.
    """

    def __init__(self, samples: list[np.ndarray], inner: tuple[int, ...], dtype: np.dtype) -> None:
        self.samples, self.dtype = samples, dtype
        self.shape = (len(samples), None, *inner)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, key: slice) -> Jagged:
        return Jagged(self.samples[key], self.shape[2:], self.dtype)  # type: ignore[arg-type]

    @property
    def mean_length(self) -> float:
        return sum(map(len, self.samples)) / max(1, len(self.samples))

    def joined(self, field: Field) -> Ragged:
        """All samples in one array of the field's own dtype."""
        values = np.concatenate([np.zeros((0, *field.shape[1:]), field.dtype), *self.samples], dtype=field.dtype,
                                casting="no" if self.dtype.isnative else "equiv")
        return Ragged.of(values, [len(sample) for sample in self.samples])


def is_jagged(values: Any) -> bool:
    """Whether these are arrays of different lengths, and nothing else: what no array of one shape can be."""
    if isinstance(values, np.ndarray):
        if values.dtype != object or values.ndim != 1:
            return False
    elif not isinstance(values, (list, tuple)):
        return isinstance(values, Jagged)
    if not len(values) or not all(isinstance(v, np.ndarray) and v.ndim for v in values):
        return False
    return len({v.shape[0] for v in values}) > 1 and len({(v.shape[1:], v.dtype) for v in values}) == 1


def jagged(name: str, values: Any, where: str, field: Field | None = None) -> Jagged:
    """Samples of a variable-length field.

    Parameters
    ----------
    values : sequence of array_like (length, *inner), or array (n, length, *inner)
    field : Field, optional
        What they must be; that of the first sample if None.

    Raises
    ------
    SchemaError
    """
    if isinstance(values, Jagged):
        return values
    if isinstance(values, (str, bytes)) or not (isinstance(values, Sequence) or hasattr(values, "__len__")):
        raise SchemaError(f"{where}: {name!r} is {type(values).__name__}, expected a list of arrays, one a sample")
    samples = [_array(name, i, v, where, field) for i, v in enumerate(values)]
    inner = field.shape[1:] if field is not None else samples[0].shape[1:]
    dtype = field.dtype if field is not None else checked_dtype(name, samples[0].dtype)
    for i, sample in enumerate(samples):
        if sample.ndim == 0 or sample.shape[1:] != inner:
            expected = f"(length{''.join(f', {s}' for s in inner)}{'' if inner else ','})"
            raise SchemaError(f"{where}: {name!r} sample {i} has shape {sample.shape}, expected {expected}")
        if checked_dtype(name, sample.dtype) != dtype:
            raise SchemaError(f"{where}: {name!r} sample {i} has dtype {sample.dtype}, expected {dtype.name}; nothing "
                              f"is cast in silence: convert it with .astype({dtype.name!r}) if that is what you mean")
    return Jagged(samples, inner, dtype)


def _array(name: str, i: int, value: Any, where: str, field: Field | None) -> np.ndarray:
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        return np.asarray(value)
    try:
        made = np.asarray(value)
        if field is None or made.dtype == object:
            return made
        cast = made.astype(field.dtype)  # numbers as Python has them: numpy's guess of their dtype binds nobody
    except (ValueError, TypeError, OverflowError) as error:
        raise SchemaError(f"{where}: {name!r} sample {i} does not make an array ({error})") from error
    return cast if made.size == 0 or np.array_equal(cast, made, equal_nan=made.dtype.kind in "fc") else made
