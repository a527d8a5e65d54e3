"""A long run in each of eight worker settings: descriptors and memory stay flat, nothing is left running.

    KERAS_BACKEND=torch python scripts/soak.py [--batches 1000]

Prints a line for each setting and fails if one grows by more than 1 % over the last half, or leaves a process.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import operator
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import h5store

#: A transform that any process can import: the batch as it is.
SAME = operator.itemgetter(slice(0, 3))
SETTINGS: list[dict[str, Any]] = [
    {},
    {"transform": SAME},
    {"transform": SAME, "workers": 2},
    {"transform": SAME, "workers": 4},
    *({"transform": SAME, "workers": workers, "use_multiprocessing": how} for how in ("fork", "spawn")
      for workers in (1, 4)),
]


def used() -> tuple[int, int]:
    """(open descriptors, resident bytes) of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGE_SIZE")


def soak(reader: h5store.Reader, options: dict[str, Any], batches: int) -> tuple[list[tuple[int, int]], int]:
    """What is used at half of the batches and at the end, and how many processes are left."""
    import keras

    marks: list[tuple[int, int]] = []

    class Watch(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch + 1 in (batches // 2, batches):
                marks.append(used())

    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = reader.to_keras(batch_size=64, seed=0, **options)
    model.fit(data, epochs=1, steps_per_epoch=batches, verbose=0, callbacks=[Watch()])
    del data, model
    end = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < end:
        gc.collect()
        time.sleep(0.1)
    return marks, len(multiprocessing.active_children())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=1000)
    batches, failed = parser.parse_args().batches, 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "soak.h5"
        x = np.random.default_rng(0).normal(size=(20_000, 64)).astype("f4")
        h5store.pack(path, features=x, labels=x[:, 0], progress=False)
        with h5store.Reader(path) as reader:
            for options in SETTINGS:
                marks, left = soak(reader, options, batches)
                (files, memory), (files_end, memory_end) = marks
                growth = memory_end / memory - 1
                bad = files_end > files or growth > 0.01 or left
                failed += bool(bad)
                told = ", ".join(f"{k}={v}" for k, v in options.items() if k != "transform") or "as it is"
                print(f"{told:<45} descriptors {files} -> {files_end}, memory {memory / 2**20:.1f} -> "
                      f"{memory_end / 2**20:.1f} MiB ({growth:+.2%}), processes left {left}"
                      f"{'  FAILED' if bad else ''}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
