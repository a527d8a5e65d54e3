"""A loader as a ``tf.data.Dataset``. Whole batches cross into TensorFlow, never single samples."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from h5store.errors import SchemaError, require
from h5store.loader import Loader

if TYPE_CHECKING:
    import tensorflow as tf

#: Batches that are made while the trainer works on one.
_AHEAD = 2


def tf_batches(loader: Loader, repeat: bool, start: tuple[int, int]) -> tf.data.Dataset:
    """Batches of a loader as a ``tf.data.Dataset``. See ``Reader.to_tf``.

    Raises
    ------
    MissingExtraError, SchemaError
    """
    tf = require("tensorflow", "tensorflow", "to_tf")
    if not len(loader):
        raise SchemaError(f"{loader.reader.path}: no batches to feed: {len(loader.reader)} samples in batches of "
                          f"{loader.batch_size}{' with drop_last=True' if loader.plan.drop_last else ''}")
    passes = _Passes(loader, repeat, *start)
    dataset = tf.data.Dataset.from_generator(passes, output_signature=signature(loader))
    # The first pass is shorter if it begins within an epoch.
    if repeat or start[1] == 0:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(
            tf.data.INFINITE_CARDINALITY if repeat else len(loader)))
    options = tf.data.Options()
    # What a worker is given is its rank's share already; TensorFlow would shard that again, by batches.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    options.deterministic = True
    return dataset.prefetch(_AHEAD).with_options(options)


def signature(loader: Loader) -> Any:
    """TensorSpecs of a batch: static but for the number of samples, and that too where all batches are full."""
    tf = require("tensorflow", "tensorflow", "to_tf")
    plan = loader.plan
    full = plan.drop_last or (plan.n % (plan.batch_size * plan.world_size) == 0)
    samples = plan.batch_size if full else None
    empty = loader.reader.pack_batch({name: np.empty(shape, dtype)
                                      for name, (shape, dtype) in loader.shapes(0).items()})
    return spec_of(empty, lambda leaf: tf.TensorSpec((samples, *leaf.shape[1:]), leaf.dtype))


def spec_of(batch: Any, change: Any) -> Any:
    """A batch with `change` of each array in its place."""
    if isinstance(batch, tuple):
        return tuple(spec_of(member, change) for member in batch)
    if isinstance(batch, Mapping):
        return {name: spec_of(member, change) for name, member in batch.items()}
    return change(batch)


class _Passes:
    """Called for every pass over the dataset; counts the epochs."""

    def __init__(self, loader: Loader, repeat: bool, epoch: int, step: int) -> None:
        self._loader, self._repeat, self._lock = loader, repeat, threading.Lock()
        self._at = epoch, step
        self._made = 0

    def __call__(self) -> Iterator[Any]:
        with self._lock:
            # Read ahead, a trainer's look at one batch has made a few; whatever made more was an epoch.
            if self._made > 1 + _AHEAD + 1:
                self._at = self._at[0] + 1, 0
            (epoch, step), self._made = self._at, 0
        yield from self._epoch(epoch, step)
        while self._repeat:
            epoch += 1
            with self._lock:
                self._at = epoch, 0
            yield from self._epoch(epoch, 0)

    def _epoch(self, epoch: int, step: int) -> Iterator[Any]:
        for batch in self._loader.epoch(epoch, step):
            with self._lock:
                self._made += 1
            yield batch
        with self._lock:
            if not self._repeat and self._at[0] == epoch:
                self._at, self._made = (epoch + 1, 0), 0
