"""Against what people write themselves: a per-sample generator for tf.data, a memory-mapped dataset for torch.

    python scripts/bench_feeding.py tf|torch [--samples 100000]

Light curves (100, 6) float32 on one machine, page cache warm; the same shuffled batches of 256 on both sides for torch.
Prints samples/s of both, and the ratio, of three rounds after one that is not counted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import h5store

BATCH = 256


def make(folder: Path, samples: int) -> tuple[Any, Any, h5store.Reader]:
    """The same samples as memory maps and as a store."""
    steps = np.random.default_rng(0).normal(size=(samples, 100, 6))
    np.save(folder / "x.npy", (np.round(np.cumsum(steps, axis=1) * 8) / 8).astype("f4"))
    np.save(folder / "y.npy", np.arange(samples))
    x, y = (np.load(folder / name, mmap_mode="r") for name in ("x.npy", "y.npy"))
    h5store.pack(folder / "x.h5", features=x, labels=y, progress=False)
    return x, y, h5store.Reader(folder / "x.h5")


def for_tf(x: Any, y: Any, reader: h5store.Reader) -> tuple[Iterable[Any], Iterable[Any]]:
    import tensorflow as tf

    def samples() -> Iterator[Any]:
        for i in np.random.default_rng(0).permutation(len(x))[:len(x) // 5]:
            yield x[i], y[i]

    signature = (tf.TensorSpec((100, 6), tf.float32), tf.TensorSpec((), tf.int64))
    theirs = tf.data.Dataset.from_generator(samples, output_signature=signature).batch(BATCH).prefetch(2)
    return theirs, reader.to_tf(batch_size=BATCH, seed=0)


def for_torch(x: Any, y: Any, reader: h5store.Reader) -> tuple[Iterable[Any], Iterable[Any]]:
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Mapped(Dataset):  # type: ignore[misc,type-arg]
        def __len__(self) -> int:
            return len(x)

        def __getitem__(self, i: int) -> Any:
            return torch.from_numpy(np.array(x[i])), int(y[i])

    loader = reader.loader(batch_size=BATCH, seed=0)
    batches = [loader.ids(loader.plan, 0, step).tolist() for step in range(len(loader))]
    theirs = DataLoader(Mapped(), batch_sampler=batches, num_workers=2, persistent_workers=True)
    ours = reader.to_torch(batch_size=BATCH, seed=0, num_workers=2, persistent_workers=True)
    same = all(torch.equal(a, b) for one, other in zip(theirs, ours) for a, b in zip(one, other))
    print(f"same batches: {same}", flush=True)
    return theirs, ours


def rate(batches: Iterable[Any]) -> float:
    """Samples a second of one pass."""
    start, count = time.perf_counter(), 0
    for _, labels in batches:
        count += int(labels.shape[0])
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainer", choices=["tf", "torch"])
    parser.add_argument("--samples", type=int, default=100_000)
    options = parser.parse_args()
    sides: dict[str, Callable[..., tuple[Iterable[Any], Iterable[Any]]]] = {"tf": for_tf, "torch": for_torch}
    with tempfile.TemporaryDirectory() as folder:
        x, y, reader = make(Path(folder), options.samples)
        theirs, ours = sides[options.trainer](x, y, reader)
        for count in range(4):
            a, b = rate(theirs), rate(ours)
            if count:
                print(f"theirs {a:,.0f}/s, ours {b:,.0f}/s: {b / a:.1f} times", flush=True)
        reader.close()


if __name__ == "__main__":
    main()
