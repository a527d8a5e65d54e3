"""What TensorFlow users have: a generator over memory maps, sample by sample, and TFRecord files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchlib.contender import BATCH
from benchlib.peers import made_once, need
from benchlib.workloads import BenchField, Block, Data

SHUFFLE_BUFFER = 4096  # samples that TFRecord's shuffle holds: 200 MB of images


def tensorflow() -> Any:
    """The module, or Unavailable; imported here only, because it takes seconds."""
    need("tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # its start-up notes would stand between the figures
    import tensorflow

    return tensorflow


def as_arrays(batch: Any) -> Block:
    """A dict of eager tensors as numpy arrays."""
    return {name: tensor.numpy() for name, tensor in batch.items()}


def with_threads(dataset: Any, threads: int) -> Any:
    """The dataset with a pool of its own: set so, it does not depend on what ran before in the process."""
    options = tensorflow().data.Options()
    options.threading.private_threadpool_size = threads
    return dataset.with_options(options)


class FromGenerator:
    """`tf.data.Dataset.from_generator`, a sample a call, over memory maps in fully permuted order."""

    name = "tf.data from_generator per sample"
    access = "shuffled"

    def __init__(self) -> None:
        self._maps: Block = {}
        self._threads = 1

    def prepare(self, data: Data, threads: int) -> int:
        tensorflow()
        self._maps, self._threads = data.maps(), threads
        return data.raw_bytes

    def epoch(self, seed: int) -> Iterator[Any]:
        tf = tensorflow()
        samples = len(next(iter(self._maps.values())))
        order = np.random.default_rng(seed).permutation(samples)

        def generate() -> Iterator[Block]:
            for place in order:
                yield {name: array[place] for name, array in self._maps.items()}

        signature = {name: tf.TensorSpec(array.shape[1:], array.dtype) for name, array in self._maps.items()}
        dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
        yield from with_threads(dataset.batch(BATCH).prefetch(2), self._threads)

    def fields(self, batch: Any) -> Block:
        return as_arrays(batch)

    def close(self) -> None:
        self._maps = {}


class TFRecord:
    """One TFRecord file of Examples, read through a shuffle buffer and parsed a batch at a time."""

    name = "TFRecord"
    access = "shuffled"

    def __init__(self) -> None:
        self._path = Path()
        self._fields: tuple[BenchField, ...] = ()
        self._threads = 1

    def prepare(self, data: Data, threads: int) -> int:
        tensorflow()
        self._fields, self._threads = data.workload.fields, threads
        self._path = data.folder / "samples.tfrecord"
        return made_once(self._path, lambda part: self._write(part, data))

    def _write(self, path: Path, data: Data) -> None:
        tf = tensorflow()
        with tf.io.TFRecordWriter(str(path)) as writer:
            for _, block in data.blocks():
                arrays = {name: np.asarray(array) for name, array in block.items()}
                for place in range(len(next(iter(arrays.values())))):
                    writer.write(self._example({name: array[place] for name, array in arrays.items()}))

    @staticmethod
    def _example(sample: Block) -> bytes:
        from tensorflow.train import BytesList, Example, Feature, Features

        features = {name: Feature(bytes_list=BytesList(value=[array.tobytes()]))
                    for name, array in sample.items()}
        serialized: bytes = Example(features=Features(feature=features)).SerializeToString()
        return serialized

    def epoch(self, seed: int) -> Iterator[Any]:
        tf = tensorflow()
        dataset = tf.data.TFRecordDataset(str(self._path), buffer_size=8 << 20)
        dataset = dataset.shuffle(SHUFFLE_BUFFER, seed=seed).batch(BATCH)
        dataset = dataset.map(self._parse, num_parallel_calls=self._threads)
        yield from with_threads(dataset.prefetch(2), self._threads)

    def _parse(self, serialized: Any) -> Any:
        import tensorflow as tf

        columns = {field.name: tf.io.FixedLenFeature([], tf.string) for field in self._fields}
        parsed = tf.io.parse_example(serialized, columns)
        return {field.name: tf.reshape(tf.io.decode_raw(parsed[field.name], field.dtype), (-1, *field.shape))
                for field in self._fields}

    def fields(self, batch: Any) -> Block:
        return as_arrays(batch)

    def close(self) -> None:
        """Nothing is held between epochs."""
