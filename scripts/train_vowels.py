"""Real series of different lengths: nine speakers told apart by two Japanese vowels, 7 to 29 steps of 12 channels.

    python scripts/train_vowels.py [--ragged]

Packs the 640 series of the package aeon into one store, and trains on them with padding and a mask, or with ragged
tensors. Prints the test accuracy.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import h5store
from h5store.normalization import Normalization


def pack(path: Path) -> None:
    """The 270 training and 370 test series, as aeon brings them."""
    from aeon.datasets import load_japanese_vowels

    series: list[np.ndarray] = []
    speakers: list[str] = []
    parts: list[str] = []
    for part in ("train", "test"):
        found, labels = load_japanese_vowels(split=part)
        series += [np.ascontiguousarray(one.T, dtype=np.float32) for one in found]
        speakers += list(map(str, labels))
        parts += [part] * len(found)
    h5store.pack(path, features={"series": series}, labels={"speaker": np.array(speakers)},
                 meta={"part": np.array(parts)}, progress=False)


def padded_model(keras: Any, norm: Normalization) -> Any:
    """Means over the steps that the mask allows."""
    series = keras.Input((None, 12), name="series")
    mask = keras.Input((None,), dtype="bool", name="series_mask")
    x = keras.layers.Conv1D(64, 3, padding="same", activation="relu")(norm.layer("series")(series))
    x = keras.layers.Conv1D(64, 3, padding="same", activation="relu")(x)
    x = keras.layers.GlobalAveragePooling1D()(x, mask=mask)
    out = keras.layers.Dense(9, activation="softmax")(keras.layers.Dropout(0.3)(x))
    return keras.Model([series, mask], out)


def ragged_model(keras: Any, norm: Normalization) -> Any:
    """Sees each step and its neighbours, without a place that is not there."""
    import tensorflow as tf

    class Speaker(keras.Model):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.steps = [keras.layers.Dense(64, activation="relu") for _ in range(2)]
            self.drop, self.out = keras.layers.Dropout(0.3), keras.layers.Dense(9, activation="softmax")

        def call(self, series: Any, training: bool = False) -> Any:
            x = (series.values - norm.mean("series")) / norm.std("series")
            for layer in self.steps:
                x = layer(x)
            x = tf.reduce_mean(series.with_values(x), axis=1)
            return self.out(self.drop(x, training=training))

    return Speaker()


def train(path: Path, ragged: bool, epochs: int = 60) -> float:
    """Test accuracy after training."""
    import keras

    keras.utils.set_random_seed(0)
    with h5store.Reader(path) as reader:
        part = reader["part"][:]
        training, test = reader.select(part == "train"), reader.select(part == "test")
        norm = training.normalization("series", save="train")
        if ragged:
            model = ragged_model(keras, norm)
            batches = training.unpadded().to_tf(batch_size=32, seed=0)
            held = test.unpadded().to_tf(batch_size=64, shuffle=False)
        else:
            model = padded_model(keras, norm)
            batches = training.padded(mask=True).to_keras(batch_size=32, seed=0, bucket="series")
            held = test.padded(mask=True).to_keras(batch_size=64, shuffle=False)
        model.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.fit(batches, epochs=epochs, verbose=0)
        return float(model.evaluate(held, verbose=0, return_dict=True)["accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ragged", action="store_true", help="ragged tensors rather than padding (TensorFlow)")
    parser.add_argument("--epochs", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vowels.h5"
        pack(path)
        kind = "ragged tensors" if options.ragged else "padding"
        print(f"test accuracy with {kind}: {train(path, options.ragged, options.epochs):.4f}")


if __name__ == "__main__":
    main()
