"""Pack 1,797 handwritten digits into a store, train a two-input Keras model from it, and test it.

Reads like a script of your own: load, pack, split, train. Ends with exit code 1 below 95 % accuracy.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits

import h5store

STORE = Path(__file__).resolve().parent.parent / "build" / "demo" / "digits.h5"
EPOCHS = 30


def moments(images: np.ndarray) -> np.ndarray:
    """Describe each image by six numbers: mean, centre (y, x), spread (y, x) and left-right symmetry."""
    ink = images[..., 0].astype("float32") / 16
    mass = ink.sum(axis=(1, 2))
    place = np.linspace(-1, 1, 8, dtype="float32")
    rows, columns = ink.sum(axis=2), ink.sum(axis=1)
    y, x = rows @ place / mass, columns @ place / mass
    spread_y = np.sqrt(rows @ place**2 / mass - y**2)
    spread_x = np.sqrt(columns @ place**2 / mass - x**2)
    symmetry = 1 - np.abs(ink - ink[:, :, ::-1]).sum(axis=(1, 2)) / (2 * mass)
    return np.stack([ink.mean(axis=(1, 2)), y, x, spread_y, spread_x, symmetry], axis=1)


def pack_digits() -> None:
    """Write the store: features and aux are the model's inputs, labels what it learns to tell."""
    digits = load_digits()
    images = digits.images.astype("uint8")[..., np.newaxis]
    aux = moments(images)
    STORE.parent.mkdir(parents=True, exist_ok=True)
    h5store.pack(
        STORE,
        features={"image": images}, aux={"moments": aux}, labels={"digit": digits.target},
        overwrite=True, progress=False,
    )
    raw = images.nbytes + aux.nbytes + digits.target.nbytes
    stored = STORE.stat().st_size
    print(f"{STORE.name}: {len(images):,} samples, {stored:,} bytes ({stored / raw:.0%} of the raw {raw:,})")


def build_model() -> keras.Model:
    """Two inputs, named like the fields of the store, so that batches fit as they are."""
    image = keras.Input((8, 8, 1), name="image")
    numbers = keras.Input((6,), name="moments")
    seen = keras.layers.Rescaling(1 / 16)(image)
    seen = keras.layers.Conv2D(32, 3, activation="relu")(seen)
    seen = keras.layers.Conv2D(64, 3, activation="relu")(seen)
    seen = keras.layers.Flatten()(seen)
    told = keras.layers.Dense(16, activation="relu")(numbers)
    both = keras.layers.Concatenate()([seen, told])
    both = keras.layers.Dropout(0.3)(both)
    model = keras.Model([image, numbers], keras.layers.Dense(10, activation="softmax")(both))
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main() -> int:
    """Run the demo; 0 if the model reads the digits it has not seen."""
    keras.utils.set_random_seed(0)
    pack_digits()

    reader = h5store.Reader(STORE)
    parts = reader.split({"train": 0.8, "test": 0.2}, by="digit", seed=0)
    train, test = parts["train"], parts["test"]
    print(f"train: {len(train):,} samples, test: {len(test):,}, every digit in both in the same share")

    loader = train.loader(batch_size=64, shuffle=True, seed=0)
    start = time.perf_counter()
    samples = sum(len(labels) for _, labels in loader.epoch(0))
    print(f"reading: {samples / (time.perf_counter() - start):,.0f} samples/s over one shuffled epoch")

    model = build_model()
    model.fit(
        train.to_keras(batch_size=64, shuffle=True, seed=0),
        validation_data=test.to_keras(batch_size=64),
        epochs=EPOCHS, verbose=0,
    )
    _, accuracy = model.evaluate(test.to_keras(batch_size=64), verbose=0)
    print(f"test accuracy after {EPOCHS} epochs: {accuracy:.1%}")
    return 0 if accuracy >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
