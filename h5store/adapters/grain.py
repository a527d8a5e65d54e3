"""Random-access sources, as grain takes them: ``len`` and ``[i]``. Needs neither grain nor JAX."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from h5store.adapters.stream import Stream
from h5store.errors import SelectionError
from h5store.loader import Loader

if TYPE_CHECKING:
    from h5store.reader import Reader


class SampleSource:
    """Samples of a reader by position, each a dict of its fields.

    Parameters
    ----------
    reader : Reader
    fields : str or list of str, optional
        All by default.

    Notes
    -----
    Pickles small, for grain's worker processes. Safe in threads.
    """

    def __init__(self, reader: Reader, fields: Sequence[str] | str | None = None) -> None:
        self.reader, self._fields = reader, fields
        reader.take([], fields)

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: values[0] for name, values in self.reader.take([operator.index(index)], self._fields).items()}

    def __getitems__(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Several samples, read at once."""
        found = self.reader.take(np.asarray(ids, np.int64), self._fields)
        return [{name: values[i] for name, values in found.items()} for i in range(len(ids))]

    def __repr__(self) -> str:
        return f"<h5store.SampleSource of {self.reader.path!r}: {len(self):,} samples>"


class BatchSource:
    """Batches of a loader by number: ``source[i]`` is step ``i % steps`` of epoch ``i // steps``.

    Parameters
    ----------
    loader : Loader

    Notes
    -----
    ``len`` is the steps of one epoch; numbers beyond it go on with the next epochs. Quick when asked for in order.
    Safe in threads.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self._stream = Stream(loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        number = operator.index(index)
        if number < 0 or not len(self):
            raise SelectionError(f"{self!r}: no batch {number}, expected an int of at least 0: they count "
                                 "through all epochs")
        batch: tuple[Any, ...] = self._stream.get(*divmod(number, len(self)))
        return batch

    def __getstate__(self) -> dict[str, Any]:
        return {"loader": self.loader}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["loader"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"<h5store.BatchSource of {self.loader!r}>"
