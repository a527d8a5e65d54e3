"""What people reported of other feeders, through every door: sizes, mixing, names, and forks after reading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h5store

Open = Callable[..., h5store.Reader]


def plain(batch: Any) -> Any:
    """A batch of any trainer as numpy arrays."""
    if isinstance(batch, dict):
        return {name: plain(member) for name, member in batch.items()}
    return tuple(map(plain, batch)) if isinstance(batch, (tuple, list)) else np.asarray(batch)


def keras_epochs(reader: h5store.Reader, epochs: int, **options: Any) -> list[list[Any]]:
    """As a trainer of Keras asks for them."""
    pytest.importorskip("keras")
    batches, out = reader.to_keras(**options), []
    for _ in range(epochs):
        batches.on_epoch_begin()
        out.append([plain(batches[i]) for i in range(len(batches))])
        batches.on_epoch_end()
    return out


def passes(make: str, need: str | None = None, **more: Any) -> Callable[..., list[list[Any]]]:
    def feed(reader: h5store.Reader, epochs: int, **options: Any) -> list[list[Any]]:
        if need:
            pytest.importorskip(need)
        batches = getattr(reader, make)(**options, **more)
        return [[plain(batch) for batch in batches] for _ in range(epochs)]

    return feed


def grain_epochs(reader: h5store.Reader, epochs: int, **options: Any) -> list[list[Any]]:
    source = reader.to_grain(**options)
    return [[plain(source[epoch * len(source) + i]) for i in range(len(source))] for epoch in range(epochs)]


DOORS = {"loader": passes("loader"), "tf": passes("to_tf", "tensorflow"), "torch": passes("to_torch", "torch"),
         "torch, forks": passes("to_torch", "torch", num_workers=4), "keras": keras_epochs, "grain": grain_epochs}
pytestmark = [pytest.mark.parametrize("door", DOORS.values(), ids=list(DOORS)),
              pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:os.fork", "ignore:This process")]


@pytest.mark.parametrize("n, sizes", [(12, [4, 4, 4]), (13, [4, 4, 4, 1])])
def test_a_number_of_samples_that_divides_and_one_that_does_not(tmp_path: Path, open_reader: Open, door: Any, n: int,
                                                                sizes: list[int]) -> None:
    h5store.pack(tmp_path / "n.h5", features=np.arange(n, dtype="f4")[:, None], labels=np.arange(n), progress=False)
    reader = open_reader(tmp_path / "n.h5")
    (batches,) = door(reader, 1, batch_size=4, shuffle=False)
    assert [len(y) for _, y in batches] == sizes and np.concatenate([y for _, y in batches]).tolist() == list(range(n))
    first, second = ([int(i) for _, y in epoch for i in y] for epoch in door(reader, 2, batch_size=4, seed=1))
    assert sorted(first) == sorted(second) == list(range(n)) and first != second


def test_a_file_sorted_by_class_is_mixed(tmp_path: Path, open_reader: Open, door: Any) -> None:
    label = np.repeat(np.arange(10), 100)
    h5store.pack(tmp_path / "c.h5", features=np.arange(1000, dtype="f4")[:, None], labels=label, progress=False)
    reader = open_reader(tmp_path / "c.h5")
    epochs = door(reader, 3, batch_size=32, shuffle=True, seed=0)
    ids = [[int(i) for x, _ in epoch for i in x[:, 0]] for epoch in epochs]
    assert all(sorted(one) == list(range(1000)) for one in ids) and ids[0] != ids[1] != ids[2]
    full = [y for epoch in epochs for _, y in epoch if len(y) == 32]
    assert np.mean([len(set(y.tolist())) >= 3 for y in full]) >= 0.95
    again = door(reader, 3, batch_size=32, shuffle=True, seed=0)
    assert ids == [[int(i) for x, _ in epoch for i in x[:, 0]] for epoch in again]


def test_several_inputs_and_outputs_keep_their_names(tmp_path: Path, open_reader: Open, door: Any) -> None:
    n = 5
    h5store.pack(tmp_path / "m.h5", features={"image": np.zeros((n, 4, 4, 3), "u1")},
                 aux={"aux": np.zeros((n, 2), "f4"), "site": np.arange(n, dtype="i4")},
                 labels={"cls": np.arange(n), "reg": np.zeros((n, 1), "f8")}, progress=False)
    (batches,) = door(open_reader(tmp_path / "m.h5"), 1, batch_size=2, shuffle=False)
    inputs, targets = batches[-1]
    shapes = {name: (a.shape, a.dtype.str) for name, a in {**inputs, **targets}.items()}
    assert shapes == {"image": ((1, 4, 4, 3), "|u1"), "aux": ((1, 2), "<f4"), "site": ((1,), "<i4"),
                      "cls": ((1,), "<i8"), "reg": ((1, 1), "<f8")}
    assert set(inputs) == {"image", "aux", "site"} and set(targets) == {"cls", "reg"}


def test_read_in_the_parent_before_others_are_started(tmp_path: Path, open_reader: Open, door: Any) -> None:
    x = np.random.default_rng(0).integers(0, 9, (500, 8))
    h5store.pack(tmp_path / "p.h5", features=x, labels=x.sum(1), codec="gzip", progress=False)
    reader = open_reader(tmp_path / "p.h5")
    assert np.array_equal(reader["features"][0], x[0])
    for epoch in door(reader, 3, batch_size=32, seed=1):
        assert all(np.array_equal(features.sum(1), y) for features, y in epoch)
        assert sorted(map(bytes, np.concatenate([f for f, _ in epoch]))) == sorted(map(bytes, x))
