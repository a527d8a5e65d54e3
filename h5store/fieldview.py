"""One field of a reader, indexed as numpy would index an array of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from h5store.errors import SelectionError
from h5store.sampling.select import as_ids, is_one
from h5store.schema import Field

#: Samples that iterating over a field reads at once.
_STEP = 1024


class FieldView:
    """One field of a reader, indexed like an array. Reads only what is asked for.

    Attributes
    ----------
    field : Field
    shape : tuple of int
        (len(reader), *field.shape); None where samples differ in length.
    dtype : dtype
        Native byte order; of text, that of the class list.
    """

    def __init__(self, field: Field, length: int, where: str, read: Callable[[np.ndarray], np.ndarray],
                 reader: Any = None) -> None:
        self.field, self._where, self._read, self._reader = field, where, read, reader
        self.shape = (length, *field.shape)
        self.dtype = (np.array(field.classes or ("",), dtype=str).dtype if field.text
                      else field.dtype.newbyteorder("="))

    @property
    def ndim(self) -> int:
        """Axes, the sample axis included."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Values of all samples."""
        return math.prod(s for s in self.shape if s is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of all samples, decoded."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        """Select samples by an int, a slice, ids, or a mask, as numpy does; further indices go into the sample.

        Raises
        ------
        SelectionError
        """
        first, *rest = _expanded(key, self.ndim)
        ids = as_ids(first, len(self), self._where)
        samples = self._read(ids.reshape(-1))
        if self.field.ragged:
            return self._ragged(samples, is_one(first), rest)
        if is_one(first):
            return samples[(0, *rest)]
        if isinstance(first, slice):
            return samples[(slice(None), *rest)] if rest else samples
        if not rest:
            return samples.reshape(*ids.shape, *self.field.shape)
        return samples[(np.arange(ids.size).reshape(ids.shape), *rest)]

    def _ragged(self, samples: Any, one: bool, rest: list[Any]) -> Any:
        if one:
            return samples[0][tuple(rest)] if rest else samples[0]
        if rest:
            raise SelectionError(f"{self._where}: its samples differ in length, so an index into several of them means "
                                 "nothing; index one sample, or go through the list")
        return samples

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self._where}: is stored, so an array of it is always a copy; leave copy=False out")
        values = self._read(np.arange(len(self)))
        if self.field.ragged:
            made = np.empty(len(values), object)
            made[:] = values
            return made
        return values if dtype is None else values.astype(dtype, copy=False)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), _STEP):
            yield from self[start:start + _STEP]

    def _repr_html_(self) -> str | None:
        from h5store.explore.card import field_card

        return None if self._reader is None else field_card(self._reader, self.field)

    def __repr__(self) -> str:
        return f"<h5store field {self.field.name!r}, {self.field.role}, {self.dtype} {self.shape}>"


def _expanded(key: Any, ndim: int) -> tuple[Any, ...]:
    """An index as a tuple whose first member is the sample axis."""
    parts = key if isinstance(key, tuple) else (key,)
    if parts and parts[0] is Ellipsis:
        if sum(_axes(part) for part in parts) < ndim:
            return (slice(None), *parts)
        # It stands for no axis. At the end it does too, and numpy still gives an array instead of a scalar.
        parts = (*parts[1:], Ellipsis)
    if not parts:
        return (slice(None),)
    if parts[0] is None:
        raise SelectionError("a new axis before the samples is not supported; index first, then add it to the result")
    return parts


def _axes(part: Any) -> int:
    """Axes that one member of an index takes up."""
    if part is None or part is Ellipsis:
        return 0
    return np.ndim(part) if isinstance(part, np.ndarray) and part.dtype.kind == "b" else 1
