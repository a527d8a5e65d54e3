"""Stores as torch's loaders and datasets: one order whatever the number of processes, tensors without a copy."""

from __future__ import annotations

import gc
import json
import multiprocessing
import operator
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h5store
from h5store.errors import OptionError, SchemaError

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402  only where there is torch

Open = Callable[..., h5store.Reader]
N = 103
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:os.fork", "ignore:This process")


@pytest.fixture
def reader(tmp_path: Path, open_reader: Open) -> h5store.Reader:
    h5store.pack(tmp_path / "x.h5", features={"x": np.arange(N * 6, dtype="f4").reshape(N, 3, 2)},
                 aux={"z": np.arange(N) % 2 == 0}, labels={"y": np.arange(N), "t": np.repeat(["a"], N)},
                 chunk=4, progress=False)
    return open_reader(tmp_path / "x.h5")


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    yield
    end = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < end:
        gc.collect()
        time.sleep(0.05)
    assert not multiprocessing.active_children()


def ids(batches: Any) -> list[int]:
    out = []
    for inputs, labels in batches:
        assert torch.equal(inputs["x"][:, 0, 0].long() // 6, labels["y"])
        assert torch.equal(inputs["z"], labels["y"] % 2 == 0)
        out += labels["y"].tolist()
    return out


WAYS: list[dict[str, Any]] = [
    {"num_workers": 0}, {"num_workers": 1}, {"num_workers": 4}, {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "multiprocessing_context": "spawn", "persistent_workers": True},
]


@pytest.mark.parametrize("shuffle", [True, "full", False])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_each_sample_once_in_the_order_of_the_loader(reader: h5store.Reader, way: dict[str, Any], shuffle: Any) -> None:
    if "multiprocessing_context" in way and shuffle != "full":
        pytest.skip("starting such processes takes seconds, and they do not see how the order is made")
    options: dict[str, Any] = {"batch_size": 10, "shuffle": shuffle, "seed": 2, "window": 200}
    loader, batches = reader.loader(**options), reader.to_torch(**options, **way)
    assert isinstance(batches, DataLoader) and len(batches) == len(loader)
    for epoch in range(5):
        assert ids(batches) == [int(i) for b in loader.epoch(epoch) for i in b[1]["y"]]


@pytest.mark.parametrize("workers", [0, 2])
def test_dtypes_and_transforms(reader: h5store.Reader, workers: int) -> None:
    batch = next(iter(reader.to_torch(batch_size=10, seed=1, num_workers=workers)))
    assert batch[0]["x"].dtype == torch.float32 and batch[0]["z"].dtype == torch.bool
    assert batch[1]["t"].dtype == torch.int64
    inputs = list(reader.to_torch(batch_size=10, shuffle=False, num_workers=workers, transform=operator.itemgetter(0)))
    assert torch.equal(torch.cat([b["x"] for b in inputs]), torch.from_numpy(reader["x"][:]))


def test_tensors_are_the_arrays(reader: h5store.Reader) -> None:
    from h5store.adapters.torch import tensors

    batch = reader.batch([1, 2])
    assert tensors(batch)[0]["x"].data_ptr() == batch[0]["x"].__array_interface__["data"][0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 6, 11])
def test_resuming_in_another_process_goes_on_with_the_unseen_batches(reader: h5store.Reader, workers: int,
                                                                     stop: int) -> None:
    def fresh(workers: int) -> Any:
        return reader.to_torch(batch_size=10, seed=2, num_workers=workers, window=200)

    first = fresh(0)
    whole = [ids(first), ids(first)]
    cut = fresh(workers)
    seen = []
    for batch in cut:
        seen += batch[1]["y"].tolist()
        if len(seen) >= stop * 10 or len(seen) == N:
            state = json.loads(json.dumps(cut.state_dict()))
            break
    again = fresh(2 - workers)
    again.load_state_dict(state)
    assert seen + (ids(again) if len(seen) < N else []) == whole[0]
    assert ids(again) == whole[1]


def test_another_number_of_ranks_takes_over(reader: h5store.Reader) -> None:
    one = reader.to_torch(batch_size=10, seed=2)
    seen = [int(i) for _, batch in zip(range(4), one) for i in batch[1]["y"]]
    for rank in range(3):
        part = reader.to_torch(batch_size=5, seed=2, rank=rank, world_size=3, num_workers=rank)
        part.load_state_dict(one.state_dict())
        seen += ids(part)
    assert sorted(seen) == list(range(N))


def test_a_look_at_one_batch_is_no_epoch(reader: h5store.Reader) -> None:
    batches, loader = reader.to_torch(batch_size=10, seed=2), reader.loader(batch_size=10, seed=2)
    next(iter(batches))
    assert ids(batches) == [int(i) for b in loader.epoch(0) for i in b[1]["y"]]
    for _, _batch in zip(range(3), batches):
        pass  # given up
    assert ids(batches) == [int(i) for b in loader.epoch(2) for i in b[1]["y"]]
    batches.set_epoch(7)
    assert ids(batches) == [int(i) for b in loader.epoch(7) for i in b[1]["y"]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_data_loader(reader: h5store.Reader, workers: int) -> None:
    batches = DataLoader(reader.to_torch_dataset(), batch_size=10, shuffle=True, num_workers=workers)
    assert sorted(ids(batches)) == list(range(N))
    doubled = reader.to_torch_dataset(Doubled())
    inputs, labels = next(iter(DataLoader(doubled, batch_size=10, num_workers=workers)))
    assert torch.equal(inputs["x"], 2 * torch.from_numpy(reader["x"][:10])) and labels["y"].tolist() == list(range(10))
    assert doubled[3][0]["x"].shape == (3, 2)


class Doubled:
    def __call__(self, inputs: Any, labels: Any) -> Any:
        return {**inputs, "x": inputs["x"] * 2}, labels


def test_torch_s_own_sampler(reader: h5store.Reader) -> None:
    data, seen = reader.to_torch_dataset(), []
    for rank in range(2):
        sampler = DistributedSampler(data, num_replicas=2, rank=rank, seed=1, drop_last=True)
        seen += ids(DataLoader(data, batch_size=10, sampler=sampler))
    assert len(set(seen)) == len(seen) == 102


def test_lengths_that_differ(tmp_path: Path, open_reader: Open) -> None:
    series = [np.full((n % 7, 2), n, "f4") for n in range(40)]
    h5store.pack(tmp_path / "r.h5", features={"s": series}, labels=np.arange(40), progress=False)
    reader = open_reader(tmp_path / "r.h5").padded(lengths=True)
    for workers in (0, 2):
        seen = []
        for inputs, labels in reader.to_torch(batch_size=8, seed=1, num_workers=workers, bucket="s"):
            for row, length, i in zip(inputs["s"], inputs["s_lengths"], labels.tolist()):
                assert np.array_equal(row[:length].numpy(), series[i]) and not row[length:].any()
            seen += labels.tolist()
        assert sorted(seen) == list(range(40))


@pytest.mark.parametrize("name", ["sampler", "collate_fn"])
def test_what_the_plan_decides_is_refused(reader: h5store.Reader, name: str) -> None:
    with pytest.raises(OptionError, match=name):
        reader.to_torch(batch_size=10, **{name: None})
    with pytest.raises(OptionError, match="seed"):
        reader.to_torch(batch_size=10, world_size=2)
    with pytest.raises(SchemaError, match="no batches"):
        reader.select([]).to_torch(batch_size=10)


def test_a_state_of_another_file_is_refused(reader: h5store.Reader) -> None:
    state = reader.to_torch(batch_size=10, seed=1).state_dict()
    with pytest.raises(OptionError, match="store"):
        reader.select(np.arange(50)).to_torch(batch_size=10, seed=1).load_state_dict(state)
    with pytest.raises(OptionError, match="seed"):
        reader.to_torch(batch_size=10, seed=2).load_state_dict(state)
