"""Feeding: the part of a `Reader` that serves batches, and the doors to the trainers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from h5store.loader import DEFAULT_WINDOW, Loader

if TYPE_CHECKING:
    import tensorflow as tf
    from keras.utils import PyDataset
    from torch.utils.data import DataLoader, Dataset

    from h5store.adapters.grain import BatchSource, SampleSource


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

    def to_tf(self, *, batch_size: int, shuffle: bool | str = True, seed: int | None = None, rank: int = 0,
              world_size: int = 1, drop_last: bool = False, repeat: bool = False, window: Any = DEFAULT_WINDOW,
              start: tuple[int, int] = (0, 0)) -> tf.data.Dataset:
        """A ``tf.data.Dataset`` of batches, each as `batch` gives it. Every pass over it is the next epoch.

        Parameters
        ----------
        batch_size, shuffle, seed, drop_last, window
            As for `loader`.
        rank, world_size : int
            This worker's share, e.g. of `MultiWorkerMirroredStrategy`. TensorFlow's own sharding is off.
        repeat : bool
            Go on with the next epoch without an end: for ``fit(steps_per_epoch=...)``.
        start : (epoch, step)
            Where the first pass begins.

        Returns
        -------
        tf.data.Dataset
            Sample shapes and dtypes are static; the number of samples is too where all batches are full.

        Raises
        ------
        MissingExtraError, OptionError, SchemaError

        Notes
        -----
        A pass that is given up after a few batches, such as a look at the shapes, does not count as an epoch.
        """
        from h5store.adapters.tf import tf_batches

        loader = self.loader(batch_size=batch_size, shuffle=shuffle, seed=seed, rank=rank, world_size=world_size,
                             drop_last=drop_last, window=window)
        return tf_batches(loader, repeat, start)

    def to_torch(self, *, batch_size: int, shuffle: bool | str = True, seed: int | None = None, rank: int = 0,
                 world_size: int = 1, drop_last: bool = False, transform: Callable[..., Any] | None = None,
                 window: Any = DEFAULT_WINDOW, num_workers: int = 0, **options: Any) -> DataLoader:
        """A ``torch.utils.data.DataLoader`` of batches, each as `batch` gives it, as tensors.

        Parameters
        ----------
        batch_size, shuffle, seed, rank, world_size, drop_last, window
            As for `loader`. The order is the same whatever `num_workers`.
        transform : callable, optional
            Applied to each batch, in the worker that read it: see `to_keras`.
        num_workers : int
            Processes that read and transform. 0: threads of this one read, which is fastest without a transform.
        **options
            For the ``DataLoader``: `pin_memory`, `persistent_workers`, `multiprocessing_context`,
            `prefetch_factor`, `timeout`, `worker_init_fn`.

        Returns
        -------
        DataLoader
            Every pass over it is the next epoch; it has `state_dict`, `load_state_dict` and `set_epoch`.

        Raises
        ------
        MissingExtraError, OptionError, SchemaError
        """
        from h5store.adapters.torch import torch_batches

        loader = self.loader(batch_size=batch_size, shuffle=shuffle, seed=seed, rank=rank, world_size=world_size,
                             drop_last=drop_last, window=window)
        return torch_batches(loader, transform, {"num_workers": num_workers, **options})

    def to_torch_dataset(self, transform: Callable[..., Any] | None = None) -> Dataset:
        """A map-style ``torch.utils.data.Dataset`` of samples, for a ``DataLoader`` or sampler of your own.

        Parameters
        ----------
        transform : callable, optional
            Applied to each sample.

        Raises
        ------
        MissingExtraError, SchemaError

        Notes
        -----
        A plain ``DataLoader`` asks for all samples of a batch at once, and they are read together. In any order they
        may be asked for, so that `to_torch`, which reads ahead in the order of its plan, is faster.
        """
        from h5store.adapters.torch import torch_dataset

        return torch_dataset(self, transform)

    def to_grain(self, *, batch_size: int | None = None, **options: Any) -> SampleSource | BatchSource:
        """A random-access source for grain, or for anything that takes ``len`` and ``[i]``.

        Parameters
        ----------
        batch_size : int, optional
            None: element i is sample i, a dict of its fields. Else element i is the i-th batch, through one epoch
            after the other.
        **options
            With a `batch_size`: as for `loader`.

        Raises
        ------
        OptionError, SchemaError
        """
        from h5store.adapters.grain import BatchSource, SampleSource

        if batch_size is None:
            return SampleSource(self, **options)
        return BatchSource(self.loader(batch_size=batch_size, **options))
