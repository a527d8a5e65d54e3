"""Stores as tf.data: whole batches, full specs, every pass the next epoch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h5store
from h5store.errors import SchemaError

tf = pytest.importorskip("tensorflow")
Open = Callable[..., h5store.Reader]


@pytest.fixture
def reader(tmp_path: Path, open_reader: Open) -> h5store.Reader:
    n = 103
    h5store.pack(tmp_path / "x.h5", features={"x": np.arange(n * 6, dtype="f4").reshape(n, 3, 2)},
                 aux={"z": np.arange(n, dtype="u1")[:, None]}, labels={"y": np.arange(n)},
                 weights={"w": np.ones(n, "f4")}, chunk=4, progress=False)
    return open_reader(tmp_path / "x.h5")


def ids(dataset: Any) -> list[int]:
    return [int(i) for batch in dataset for i in batch[1].numpy()]


def test_the_spec_is_static_but_for_the_samples(reader: h5store.Reader) -> None:
    spec = reader.to_tf(batch_size=10).element_spec
    assert spec == ({"x": tf.TensorSpec((None, 3, 2), tf.float32), "z": tf.TensorSpec((None, 1), tf.uint8)},
                    tf.TensorSpec((None,), tf.int64), tf.TensorSpec((None,), tf.float32))
    full = reader.to_tf(batch_size=10, drop_last=True).element_spec
    assert full[1].shape == (10,)
    assert reader.select(np.arange(100)).to_tf(batch_size=10).element_spec[1].shape == (10,)


@pytest.mark.parametrize("shuffle", [True, "full", False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_every_pass_is_the_next_epoch_of_the_loader(reader: h5store.Reader, shuffle: Any, drop_last: bool) -> None:
    options: dict[str, Any] = {"batch_size": 10, "shuffle": shuffle, "seed": 4, "drop_last": drop_last, "window": 400}
    dataset, loader = reader.to_tf(**options), reader.loader(**options)
    assert dataset.cardinality().numpy() == len(loader)
    next(iter(dataset))  # a look at the shapes is no epoch
    for epoch in range(5):
        seen = ids(dataset)
        assert seen == [int(i) for batch in loader.epoch(epoch) for i in batch[1]]
        assert len(set(seen)) == len(seen) == (100 if drop_last else 103)


def test_without_an_end(reader: h5store.Reader) -> None:
    dataset = reader.to_tf(batch_size=10, seed=4, repeat=True)
    assert dataset.cardinality().numpy() == tf.data.INFINITE_CARDINALITY
    seen = ids(dataset.take(33))
    assert [sorted(seen[i * 103:(i + 1) * 103]) for i in range(3)] == [list(range(103))] * 3


def test_a_pass_that_begins_within_an_epoch(reader: h5store.Reader) -> None:
    whole = [ids([b]) for _ in range(1) for b in reader.to_tf(batch_size=10, seed=4)]
    assert ids(reader.to_tf(batch_size=10, seed=4, start=(0, 7))) == sum(whole[7:], [])


def test_ranks_share_an_epoch(reader: h5store.Reader) -> None:
    parts = [reader.to_tf(batch_size=10, seed=4, rank=rank, world_size=3) for rank in range(3)]
    assert len({int(p.cardinality().numpy()) for p in parts}) == 1
    assert sorted(sum(map(ids, parts), [])) == list(range(103))
    policy = parts[0].options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.OFF


def test_a_mirrored_strategy_sees_each_sample_once(reader: h5store.Reader) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    seen = [int(i) for batch in strategy.experimental_distribute_dataset(reader.to_tf(batch_size=10, seed=4))
            for i in strategy.experimental_local_results(batch[1])[0].numpy()]
    assert sorted(seen) == list(range(103))


def test_no_samples(reader: h5store.Reader) -> None:
    with pytest.raises(SchemaError, match="no batches to feed"):
        reader.select([]).to_tf(batch_size=10)


def test_samples_of_different_lengths(tmp_path: Path, open_reader: Open) -> None:
    series = [np.full((n % 7, 2), n, "f4") for n in range(40)]
    h5store.pack(tmp_path / "r.h5", features={"s": series}, labels=np.arange(40), progress=False)
    reader = open_reader(tmp_path / "r.h5")
    dataset = reader.unpadded().to_tf(batch_size=8, seed=1)
    spec = dataset.element_spec[0]
    assert isinstance(spec, tf.RaggedTensorSpec) and spec.shape.as_list() == [8, None, 2]
    for ragged, labels in dataset:
        for row, i in zip(ragged, labels.numpy()):
            np.testing.assert_array_equal(row.numpy(), series[i])
    padded = reader.padded(mask=True).to_tf(batch_size=8, seed=1)
    assert padded.element_spec[0]["s"].shape.as_list() == [8, None, 2]
    assert reader.padded(5).to_tf(batch_size=8).element_spec[0].shape.as_list() == [8, 5, 2]
    for inputs, labels in padded:
        assert inputs["s_mask"].numpy().sum(1).tolist() == [len(series[i]) for i in labels.numpy()]
