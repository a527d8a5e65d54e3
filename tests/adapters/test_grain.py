"""Random-access sources: by themselves, and in grain."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h5store
from h5store.errors import SelectionError

N = 103


@pytest.fixture
def reader(tmp_path: Path, open_reader: Callable[..., h5store.Reader]) -> h5store.Reader:
    h5store.pack(tmp_path / "x.h5", features={"x": np.arange(N * 2, dtype="f4").reshape(N, 2)},
                 labels={"y": np.arange(N)}, meta={"who": np.repeat(["me"], N)}, chunk=4, progress=False)
    return open_reader(tmp_path / "x.h5")


def test_samples_by_position(reader: h5store.Reader) -> None:
    source = reader.to_grain()
    assert len(source) == N
    sample: Any = source[5]
    assert sample["x"].tolist() == [10, 11] and sample["y"] == 5 and sample["who"] == "me"
    assert [s["y"] for s in source.__getitems__([7, 3])] == [7, 3]
    assert reader.to_grain(fields="y")[-1] == {"y": N - 1}
    with pytest.raises(SelectionError):
        source[N]


@pytest.mark.parametrize("order", ["on", "back", "about"])
def test_batches_by_number(reader: h5store.Reader, order: str) -> None:
    source, loader = reader.to_grain(batch_size=10, seed=1), reader.loader(batch_size=10, seed=1)
    want = [b[1].tolist() for epoch in range(2) for b in loader.epoch(epoch)]
    numbers = list(range(2 * len(source)))
    if order == "back":
        numbers.reverse()
    if order == "about":
        np.random.default_rng(0).shuffle(numbers)
    again = pickle.loads(pickle.dumps(source))
    for i in numbers:
        assert source[i][1].tolist() == want[i] == again[i][1].tolist()
    again.loader.reader.close()
    with pytest.raises(SelectionError):
        source[-1]


def test_grain_reads_each_sample_once(reader: h5store.Reader) -> None:
    grain = pytest.importorskip("grain.python")
    sampler = grain.IndexSampler(N, shard_options=grain.NoSharding(), shuffle=True, num_epochs=1, seed=3)
    loader = grain.DataLoader(data_source=reader.to_grain(fields=["x", "y"]), sampler=sampler, worker_count=0,
                              operations=[grain.Batch(10)])
    seen = [int(i) for batch in loader for i in batch["y"]]
    assert sorted(seen) == list(range(N))


def test_plain_batches_for_jax(reader: h5store.Reader) -> None:
    jnp = pytest.importorskip("jax.numpy")
    total = sum(float(jnp.sum(jnp.asarray(x))) for x, _ in reader.loader(batch_size=10, seed=1))
    assert total == sum(range(2 * N))
