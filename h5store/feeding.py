"""Feeding: the part of a `Reader` that serves batches, and the doors to the trainers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from h5store.loader import DEFAULT_WINDOW, Loader

if TYPE_CHECKING:
    from keras.utils import PyDataset


class Feeding:
    """Batches of a reader's samples for every trainer."""

    def loader(self, *, batch_size: int, shuffle: bool | str = True, seed: int | None = None, rank: int = 0,
               world_size: int = 1, drop_last: bool = False, window: Any = DEFAULT_WINDOW) -> Loader:
        """Batches of whole epochs, read ahead in threads. See `h5store.loader.Loader`."""
        return Loader(self, batch_size=batch_size, shuffle=shuffle, seed=seed, rank=rank, world_size=world_size,
                      drop_last=drop_last, window=window)

    def to_keras(self, *, batch_size: int, shuffle: bool | str = True, seed: int | None = None, drop_last: bool = False,
                 transform: Callable[..., Any] | None = None) -> PyDataset:
        """A ``keras.utils.PyDataset`` for `fit`, `evaluate` and `predict`.

        Parameters
        ----------
        batch_size : int
        shuffle : True, "full" or False
            As for `loader`. False for `evaluate` and `predict`, whose results come in the order of the file.
        seed : int, optional
            Same seed, same batches, whatever `fit` is told to shuffle and whatever the global `random` holds.
        drop_last : bool
        transform : callable, optional
            Applied to each batch: with its members, ``transform(inputs, labels)``, or, if it takes one
            argument, with the whole tuple. Returns a batch.

        Raises
        ------
        MissingExtraError
            Keras is not installed.
        SchemaError
            There is nothing to feed: no samples, or no input field.
        """
        from h5store.adapters.keras import keras_batches

        return keras_batches(self.loader(batch_size=batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last),
                             transform)
