"""A loader as a ``tf.data.Dataset``. Whole batches cross into TensorFlow, never single samples."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from h5store.errors import require
from h5store.loader import Loader
from h5store.ragged import Ragged

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
    loader.need_batches()
    passes = _Passes(loader, repeat, *start)
    wanted = signature(loader)
    ragged = tf.nest.map_structure(lambda spec: isinstance(spec, tf.RaggedTensorSpec), wanted)
    # Ragged tensors cross as their two arrays: the generator would check and copy them otherwise.
    crossing = tf.nest.map_structure(lambda spec: _two(tf, spec), wanted)
    dataset = tf.data.Dataset.from_generator(passes, output_signature=crossing)
    if any(tf.nest.flatten(ragged)):
        dataset = dataset.map(lambda *batch: _joined(tf, ragged, batch))
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
    # What differs between a batch of short and one of long samples is not static.
    short, long = (loader.reader.pack_batch(loader.blank(length)) for length in (1, 2))

    def spec(a: Any, b: Any) -> Any:
        if isinstance(a, Ragged):
            return tf.RaggedTensorSpec((samples, None, *a.values.shape[1:]), a.dtype, ragged_rank=1,
                                       row_splits_dtype=tf.int64)
        return tf.TensorSpec((samples, *(m if m == n else None for m, n in zip(a.shape[1:], b.shape[1:]))), a.dtype)

    return paired(short, long, spec)


def paired(one: Any, other: Any, change: Callable[[Any, Any], Any]) -> Any:
    """Two batches of one structure as one, with `change` of each pair of arrays in their place."""
    if isinstance(one, tuple):
        return tuple(paired(a, b, change) for a, b in zip(one, other))
    if isinstance(one, Mapping):
        return {name: paired(member, other[name], change) for name, member in one.items()}
    return change(one, other)


def _two(tf: Any, spec: Any) -> Any:
    if not isinstance(spec, tf.RaggedTensorSpec):
        return spec
    samples, _, *inner = spec.shape
    return tf.TensorSpec((None, *inner), spec.dtype), tf.TensorSpec((samples and samples + 1,), tf.int64)


def _joined(tf: Any, ragged: Any, batch: Any) -> Any:
    return paired(ragged, batch, lambda is_ragged, leaf: tf.RaggedTensor.from_row_splits(*leaf, validate=False)
                  if is_ragged else leaf)


def _crossing(batch: Any) -> Any:
    return paired(batch, batch, lambda leaf, _: (leaf.values, leaf.offsets) if isinstance(leaf, Ragged) else leaf)


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
            yield _crossing(batch)
        with self._lock:
            if not self._repeat and self._at[0] == epoch:
                self._at, self._made = (epoch + 1, 0), 0
