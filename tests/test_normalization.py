"""Mean and spread over the training part: measured, saved with the store, taken out of every batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h5store
from h5store.errors import FieldNotFound, OptionError

N = 300
RNG = np.random.default_rng(0)
X = (RNG.normal(size=(N, 20, 3)) * [1, 10, 100] + [0, 5, 1e4]).astype("f4")
Z = np.full((N, 1), 7, "i4")


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[h5store.Reader]:
    h5store.pack(tmp_path / "x.h5", features={"x": X}, aux={"z": Z}, labels={"y": np.repeat(["a", "b"], [250, 50])},
                 progress=False)
    reader = h5store.Reader(tmp_path / "x.h5")
    yield reader
    reader.close()


def test_only_the_samples_of_the_part_are_measured(reader: h5store.Reader) -> None:
    part = reader.select(RNG.permutation(N)[:100])
    norm = part.normalization()
    chosen = X[part.ids].astype("f8")
    assert norm.samples == 100 and "y" not in norm
    np.testing.assert_allclose(norm.mean("x"), chosen.mean((0, 1)), rtol=1e-12)
    np.testing.assert_allclose(norm.std("x"), chosen.std((0, 1)), rtol=1e-9)
    assert norm.mean("z") == 7 and norm.std("z") == 1  # a constant is moved, not blown up


def test_saved_and_found_again(reader: h5store.Reader, run_python: Callable[..., str]) -> None:
    train = reader.split({"train": 0.5, "val": 0.5}, save=True)["train"]
    norm = train.normalization("x", save="train")
    again = reader.saved_normalization("train")
    assert np.array_equal(again.mean("x"), norm.mean("x")) and again.samples == 150
    a = next(reader.loader(batch_size=50, shuffle=False, normalize="train").epoch(0))
    b = next(reader.loader(batch_size=50, shuffle=False, normalize=norm).epoch(0))
    assert np.array_equal(a[0]["x"], b[0]["x"])
    np.testing.assert_allclose(a[0]["x"], (X[:50] - norm.mean("x")) / norm.std("x"), rtol=1e-3, atol=1e-4)
    assert a[0]["x"].dtype == np.float32 and np.array_equal(a[0]["z"], Z[:50])
    with pytest.raises(OptionError, match="no normalization saved as 'trian'; saved ones: 'train'"):
        reader.loader(batch_size=50, normalize="trian")


def test_integers_become_floats_and_values_in_store_stay(reader: h5store.Reader) -> None:
    batch = next(reader.loader(batch_size=10, shuffle=False, normalize=reader.normalization("z")).epoch(0))
    assert batch[0]["z"].dtype == np.float32 and not batch[0]["z"].any()
    assert np.array_equal(reader["z"][:10], Z[:10])


def test_series_of_different_lengths(tmp_path: Path) -> None:
    series = [X[i, :i % 20] for i in range(N)]
    h5store.pack(tmp_path / "r.h5", features={"s": series}, progress=False)
    with h5store.Reader(tmp_path / "r.h5") as reader:
        norm, whole = reader.normalization(), np.concatenate(series).astype("f8")
        np.testing.assert_allclose(norm.mean("s"), whole.mean(0), rtol=1e-9)
        padded = reader.padded(20)._formed(normalize=norm).batch([5])[0]
        assert not padded[0, 5:].any()  # padding is put in afterwards: zero, the mean
        np.testing.assert_allclose(padded[0, :5], (series[5] - norm.mean("s")) / norm.std("s"), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("fields, error", [("y", OptionError), ("nope", FieldNotFound)])
def test_fields_that_have_no_mean(reader: h5store.Reader, fields: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=repr(fields)):
        reader.normalization(fields)
    with pytest.raises(OptionError, match="no samples"):
        reader.select([]).normalization()
    with pytest.raises(OptionError, match="normalize=3"):
        reader.loader(batch_size=5, normalize=3)


def test_balanced_by_a_field(reader: h5store.Reader) -> None:
    drawn = np.concatenate([b[1] for b in reader.loader(batch_size=50, balance="y", seed=1)])
    assert 110 < (drawn == 1).sum() < 190 and len(drawn) == N
    weighted = np.concatenate([b[1] for b in reader.loader(batch_size=50, odds=np.arange(N) >= 250, seed=1)])
    assert (weighted == 1).all()
    for options, told in (({"balance": "y", "shuffle": False}, "balance= changes the order"),
                          ({"bucket": "x"}, "no variable-length field"), ({"balance": "y", "bucket": "x"}, "exclude")):
        with pytest.raises(OptionError, match=told):
            reader.loader(batch_size=50, **options)
    state = reader.loader(batch_size=50, balance="y", seed=1).state_dict()
    with pytest.raises(OptionError, match="store"):
        reader.loader(batch_size=50, shuffle=False, seed=1).load_state_dict(state)
