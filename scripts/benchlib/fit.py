"""Training: the same small Keras model fed from a store and from arrays in memory."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import numpy as np

from benchlib.contender import BATCH
from benchlib.ours import packed_store
from benchlib.peers import need
from benchlib.peers_tf import tensorflow
from benchlib.workloads import Data

FIT_SAMPLES = 50_000  # of the light curves: enough steps for a steady figure, a few seconds an epoch


def fit_ratio(data: Data, threads: int, rounds: int) -> float:
    """Seconds of an epoch of `fit` from the store to seconds from memory, the median of interleaved rounds.

    Both models start from the same weights and are trained for one untimed epoch first, which compiles them.
    """
    tensorflow()
    need("keras", "h5store")
    import h5store

    samples = min(FIT_SAMPLES, data.samples)
    arrays = {name: np.array(array[:samples]) for name, array in data.maps().items()}
    labels = arrays.pop("class")
    reader = h5store.Reader(packed_store(data, threads, samples=samples), threads=threads)
    feed = reader.to_keras(batch_size=BATCH, shuffle=True, seed=0)
    from_store, from_memory = small_model(), small_model()
    ratios = []
    for _ in range(rounds + 1):
        ours = seconds_of(lambda: from_store.fit(feed, epochs=1, verbose=0))
        theirs = seconds_of(lambda: from_memory.fit(arrays, labels, batch_size=BATCH, epochs=1, verbose=0))
        ratios.append(ours / theirs)
    return median(ratios[1:])


def seconds_of(run: Any) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def small_model() -> Any:
    """Two 1-D convolutions over the light curve, joined by the host galaxy's columns."""
    import keras

    keras.utils.set_random_seed(0)
    flux, host = keras.Input((100, 6), name="flux"), keras.Input((2,), name="host")
    x = keras.layers.Conv1D(16, 5, strides=2, activation="relu")(flux)
    x = keras.layers.Conv1D(32, 5, strides=2, activation="relu")(x)
    x = keras.layers.concatenate([keras.layers.GlobalAveragePooling1D()(x), host])
    model = keras.Model({"flux": flux, "host": host}, keras.layers.Dense(15, activation="softmax")(x))
    model.compile("adam", "categorical_crossentropy")
    return model
