"""Feeding: the part of a `Reader` that serves batches, and the doors to the trainers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from h5store.errors import OptionError
from h5store.loader import DEFAULT_WINDOW, Loader
from h5store.sampling.drawing import Balanced, Bucketed, Weighted
from h5store.storage.joined import JoinedStore

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf
    from keras.utils import PyDataset
    from torch.utils.data import DataLoader, Dataset

    from typing_extensions import Self

    from h5store.adapters.grain import BatchSource, SampleSource
    from h5store.normalization import Normalization
    from h5store.sampling.drawing import Choice
    from h5store.schema import Field, Schema
    from h5store.storage.store import Store

#: Options of `loader` that the doors hand on beside their own.
_LOADER = {"normalize", "balance", "odds", "mix", "bucket", "window"}


class Feeding:
    """Batches of a reader's samples for every trainer."""

    if TYPE_CHECKING:
        _store: Store
        _ids: np.ndarray | None

        @property
        def path(self) -> str: ...

        @property
        def schema(self) -> Schema: ...

        @property
        def ids(self) -> np.ndarray: ...

        def __len__(self) -> int: ...
        def _field(self, name: str) -> Field: ...
        def _formed(self, **changes: Any) -> Self: ...
        def _values_of(self, by: Any) -> np.ndarray | None: ...
        def _named(self) -> AbstractContextManager[None]: ...
        def saved_normalization(self, name: str) -> Normalization: ...
        def model_fields(self) -> tuple[Field, ...]: ...
        def pack_batch(self, values: Any) -> tuple[Any, ...]: ...
        def batch(self, ids: Any) -> tuple[Any, ...]: ...

    def loader(self, *, batch_size: int, shuffle: bool | str = True, seed: int | None = None, rank: int = 0,
               world_size: int = 1, drop_last: bool = False, window: Any = DEFAULT_WINDOW,
               normalize: Normalization | str | None = None, balance: Any = None, odds: Any = None,
               mix: Sequence[float] | None = None, bucket: str | None = None) -> Loader:
        """Batches of whole epochs, read ahead in threads. See `h5store.loader.Loader`.

        Parameters
        ----------
        batch_size, shuffle, seed, rank, world_size, drop_last, window
            As for `Loader`.
        normalize : Normalization, or str
            Taken out of the inputs: what `normalization` measured, or the name under which it is saved.
        balance : str or array_like of shape (len(self),), optional
            A field, or one class a sample: every class is drawn equally often. An epoch draws as many samples as there
            are; none comes again before all of its class have come.
        odds : mapping of class to float, or str or array_like of shape (len(self),), optional
            With `balance`: how often each class is drawn, relative to the others. Without: how often each sample is,
            with replacement.
        mix : sequence of float, optional
            Of what `h5store.concat` gives: the share of each reader, relative to the others. An epoch draws as many
            samples as there are; none comes again before all of its reader have come.
        bucket : str, optional
            A variable-length field: batches hold samples of like length. Each sample still comes once an epoch.

        Raises
        ------
        OptionError, SchemaError, FieldNotFound
        """
        reader = self if normalize is None else self._formed(normalize=self._checked_normalization(normalize))
        if mix is not None:
            balance, odds = self._mixed(mix, balance, odds)
        choice = self._choice(shuffle, balance, odds, bucket)
        drawn = isinstance(choice, (Balanced, Weighted))
        return Loader(reader, batch_size=batch_size, shuffle=False if drawn else shuffle, seed=seed, rank=rank,
                      world_size=world_size, drop_last=drop_last, window=window, choice=choice)

    def _checked_normalization(self, given: Any) -> Normalization:
        found = self.saved_normalization(given) if isinstance(given, str) else given
        if not hasattr(found, "moments"):
            raise OptionError(f"{self.path}: normalize={given!r}, expected what normalization() gives, or the name "
                              "under which it is saved")
        for name in found.moments:
            self._field(name)
        return found  # type: ignore[no-any-return]

    def _mixed(self, mix: Sequence[float], balance: Any, odds: Any) -> tuple[np.ndarray, dict[int, float]]:
        """Readers as classes: which of them each sample is of, and how often each is drawn."""
        if balance is not None or odds is not None:
            raise OptionError(f"{self.path}: mix= says how often readers are drawn, balance= and odds= how often "
                              "classes or samples are; leave one of them out")
        store = self._store
        if not isinstance(store, JoinedStore):
            raise OptionError(f"{self.path}: mix= is for several readers; join them first: h5store.concat([a, b])")
        if len(mix) != len(store.stores):
            raise OptionError(f"{self.path}: mix has {len(mix)} shares for {len(store.stores)} readers; give one for "
                              "each")
        part = store.part_of(self.ids)
        shares = {number: float(share) for number, share in enumerate(mix)}
        if not all(0 <= share < float("inf") for share in shares.values()) or not any(shares.values()):
            raise OptionError(f"{self.path}: mix: shares are finite and not negative, and not all are 0; got "
                              f"{list(shares.values())}")
        empty = [number for number, share in shares.items() if share and not (part == number).any()]
        if empty:
            raise OptionError(f"{self.path}: mix draws from reader {empty[0]}, of which there are no samples; give it "
                              "0")
        return part, {number: share for number, share in shares.items() if (part == number).any()}

    def _choice(self, shuffle: bool | str, balance: Any, odds: Any, bucket: str | None) -> Choice | None:
        asked = [name for name, value in (("balance", balance), ("odds", odds)) if value is not None]
        if not asked and bucket is None:
            return None
        if shuffle is False:
            raise OptionError(f"{self.path}: {(asked or ['bucket'])[0]}= changes the order of the samples, and "
                              "shuffle=False keeps it; leave one of them out")
        if asked and bucket is not None:
            raise OptionError(f"{self.path}: {asked[0]}= and bucket= exclude each other; leave one of them out")
        if bucket is not None:
            if not self._field(bucket).ragged:
                raise OptionError(f"{self.path}: bucket={bucket!r} is no variable-length field, all its samples have "
                                  f"shape {self._field(bucket).shape}; leave bucket out")
            return Bucketed(self._store.lengths(bucket, self.ids))
        with self._named():
            if balance is not None:
                return Balanced(self._values_of(balance), odds)  # type: ignore[arg-type]
            weights: Any = self._values_of(odds) if isinstance(odds, str) else odds
            return Weighted(weights, len(self))

    def to_keras(self, *, batch_size: int, shuffle: bool | str = True, seed: int | None = None, drop_last: bool = False,
                 transform: Callable[..., Any] | None = None, workers: int = 1,
                 use_multiprocessing: bool | str = False, **options: Any) -> PyDataset:
        """A ``keras.utils.PyDataset`` for `fit`, `evaluate` and `predict`, on every backend of Keras.

        Parameters
        ----------
        batch_size : int
        shuffle : True, "full" or False
            As for `loader`. Give False for `evaluate` and `predict`, whose results come in the order of the batches.
        seed : int, optional
            Same seed, same batches, whatever `fit` is told to shuffle and whatever the global `random` holds.
        drop_last : bool
        transform : callable, optional
            Applied to each batch: with its members, ``transform(inputs, labels)``, or, if it takes one
            argument, with the whole tuple. Returns a batch.
        workers : int
            Batches that are transformed at a time. Reading has threads of its own: ``Reader(path, threads=...)``.
        use_multiprocessing : bool, "spawn", "fork" or "forkserver"
            Transform in processes, for Python code that holds the interpreter; started for each epoch. True: "spawn".
        **options
            More of `loader`: `normalize`, `balance`, `odds`, `bucket`, `window`.

        Returns
        -------
        keras.utils.PyDataset
            With `steps_per_epoch`, `fit` goes on through the epochs without an end. ``resume(folder)`` is a callback
            that saves and restores the position with the model; ``go_to(epoch)`` chooses the epoch that comes next.

        Raises
        ------
        MissingExtraError
            Keras is not installed.
        SchemaError, OptionError
            There is nothing to feed: no samples, or no input field.
        """
        from h5store.adapters.keras import keras_batches

        loader = self.loader(batch_size=batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last, **options)
        return keras_batches(loader, transform, workers, use_multiprocessing)

    def to_tf(self, *, batch_size: int, shuffle: bool | str = True, seed: int | None = None, rank: int = 0,
              world_size: int = 1, drop_last: bool = False, repeat: bool = False, start: tuple[int, int] = (0, 0),
              **options: Any) -> tf.data.Dataset:
        """A ``tf.data.Dataset`` of batches, each as `batch` gives it. Every pass over it is the next epoch.

        Parameters
        ----------
        batch_size, shuffle, seed
            As for `loader`.
        rank, world_size : int
            This worker's share, e.g. of `MultiWorkerMirroredStrategy`. TensorFlow's own sharding is off.
        drop_last : bool
            As for `loader`.
        repeat : bool
            Go on with the next epoch without an end: for ``fit(steps_per_epoch=...)``.
        start : (epoch, step)
            Where the first pass begins.
        **options
            More of `loader`: `normalize`, `balance`, `odds`, `bucket`, `window`.

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
                             drop_last=drop_last, **options)
        return tf_batches(loader, repeat, start)

    def to_torch(self, *, batch_size: int, shuffle: bool | str = True, seed: int | None = None, rank: int = 0,
                 world_size: int = 1, drop_last: bool = False, transform: Callable[..., Any] | None = None,
                 num_workers: int = 0, **options: Any) -> DataLoader:
        """A ``torch.utils.data.DataLoader`` of batches, each as `batch` gives it, as tensors.

        Parameters
        ----------
        batch_size, shuffle, seed, rank, world_size, drop_last
            As for `loader`. The order is the same whatever `num_workers`.
        transform : callable, optional
            Applied to each batch, in the worker that read it: see `to_keras`.
        num_workers : int
            Processes that read and transform. 0: threads of this one read, which is fastest without a transform.
        **options
            More of `loader`: `normalize`, `balance`, `odds`, `bucket`, `window`. And for the ``DataLoader``:
            `pin_memory`, `persistent_workers`, `multiprocessing_context`, `prefetch_factor`, `timeout`,
            `worker_init_fn`.

        Returns
        -------
        DataLoader
            Every pass over it is the next epoch; it has `state_dict`, `load_state_dict` and `set_epoch`.

        Raises
        ------
        MissingExtraError, OptionError, SchemaError
        """
        from h5store.adapters.torch import torch_batches

        ours = {name: options.pop(name) for name in _LOADER & set(options)}
        loader = self.loader(batch_size=batch_size, shuffle=shuffle, seed=seed, rank=rank, world_size=world_size,
                             drop_last=drop_last, **ours)
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

        return torch_dataset(self, transform)  # type: ignore[arg-type]

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
            return SampleSource(self, **options)  # type: ignore[arg-type]
        return BatchSource(self.loader(batch_size=batch_size, **options))
