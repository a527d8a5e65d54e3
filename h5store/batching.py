"""Batches: the part of a `Reader` that arranges samples as a model is fed them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from h5store.errors import OptionError, SchemaError, nearest
from h5store.ragged import Ragged
from h5store.schema import Field, Role, Schema

if TYPE_CHECKING:
    from typing_extensions import Self

    from h5store.normalization import Normalization
    from h5store.storage.store import Store

_INPUTS = (Role.FEATURES, Role.AUX)


@dataclass(frozen=True)
class Form:
    """What becomes of stored samples on their way into a batch.

    Attributes
    ----------
    ragged : bool
        Leave samples of different lengths as `Ragged`, rather than padding them.
    length : int or None
        To which samples are padded and cut; None: the longest of the batch.
    value : float
        What they are padded with.
    mask, lengths : bool
        Whether inputs get a field of which places hold values, and one of how many.
    normalize : Normalization or None
    """

    ragged: bool = False
    length: int | None = None
    value: float = 0
    mask: bool = False
    lengths: bool = False
    normalize: Normalization | None = None

    def apply(self, field: Field, values: Any) -> dict[str, Any]:
        """The members of a batch that a field's stored samples make, by name."""
        if field.role is Role.WEIGHTS:
            _check_weights(field, values)
        if field.text:
            return {field.name: values.astype(np.int64)}
        if self.normalize is not None and field.name in self.normalize:
            values = self.normalize.apply(field.name, values)
        if not isinstance(values, Ragged) or self.ragged:
            return {field.name: values}
        out = {field.name: values.padded(self.length, self.value)}
        if field.role in _INPUTS:
            if self.mask:
                out[f"{field.name}_mask"] = values.mask(self.length)
            if self.lengths:
                most = out[field.name].shape[1]
                out[f"{field.name}_lengths"] = np.minimum(values.lengths, most).astype(np.int32)
        return out


def _check_weights(field: Field, values: np.ndarray) -> None:
    """A loss that is weighed by such numbers goes wrong in silence."""
    if field.dtype.kind in "iuf" and values.size and not (np.isfinite(values).all() and values.min() >= 0):
        bad = values[~(np.isfinite(values) & (values >= 0))].flat[0]
        raise SchemaError(f"field {field.name!r}: a weight is {bad}; expected finite numbers that are not negative. "
                          "Mend the data, or give the field the role meta")


class Batching:
    """Batches of a reader's samples."""

    _form = Form()

    if TYPE_CHECKING:
        _store: Store
        _ids: np.ndarray | None

        @property
        def path(self) -> str: ...

        @property
        def schema(self) -> Schema: ...

        def _same(self, ids: np.ndarray | None = None) -> Self: ...

    def model_fields(self) -> tuple[Field, ...]:
        """Fields that a batch is made of, in the order features, aux, labels, weights.

        Raises
        ------
        SchemaError
        """
        if not self.schema.of(*_INPUTS):
            raise SchemaError(f"{self.path}: no features and no aux field, so there is nothing to feed a model; use "
                              f"take(); {nearest('', self.schema.names)}")
        if self.schema.of(Role.WEIGHTS) and not self.schema.of(Role.LABELS):
            raise SchemaError(f"{self.path}: weights without labels: a batch is (inputs, labels, weights); give the "
                              "labels a role, or weights the role meta")
        return tuple(f for role in (*_INPUTS, Role.LABELS, Role.WEIGHTS) for f in self.schema.of(role))

    def pack_batch(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Arrange stored values of `model_fields` as `batch` gives them."""
        members = []
        for roles in (_INPUTS, (Role.LABELS,), (Role.WEIGHTS,)):
            arrays: dict[str, Any] = {}
            for f in self.schema.of(*roles):
                arrays |= self._form.apply(f, values[f.name])
            if arrays:
                members.append(arrays if len(arrays) > 1 else next(iter(arrays.values())))
        return tuple(members)

    def padded(self, length: int | None = None, *, value: float = 0, mask: bool = False,
               lengths: bool = False) -> Self:
        """A view whose batches pad samples of different lengths in this way. Nothing is copied.

        Parameters
        ----------
        length : int, optional
            To which all are padded, and cut; the longest sample of each batch by default.
        value : float
            What they are padded with.
        mask : bool
            Feed the model ``"<field>_mask"`` as well, bool (m, length): True where there are values.
        lengths : bool
            Feed the model ``"<field>_lengths"`` as well, int32 (m,).

        Raises
        ------
        OptionError
        """
        if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
            raise OptionError(f"padded: length={length!r}, expected an int of at least 1, or None for the longest")
        return self._formed(ragged=False, length=length, value=value, mask=mask, lengths=lengths)

    def unpadded(self) -> Self:
        """A view whose batches leave samples of different lengths as they are, as `h5store.ragged.Ragged`."""
        return self._formed(ragged=True)

    def _formed(self, **changes: Any) -> Self:
        view = self._same()
        view._form = replace(self._form, **changes)
        return view
