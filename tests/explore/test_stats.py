"""Statistics equal numpy's, are the same whatever the threads, and say what spoils a training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import h5store
from h5store.errors import FieldNotFound, OptionError
from h5store.explore import sample
from h5store.explore.sample import QUANTILES, Counts, Strata, counted, quantiles, rank_error
from h5store.explore.stats import Stats


opened: list[h5store.Reader] = []


def packed(path: Path, **roles: Any) -> h5store.Reader:
    h5store.pack(path, progress=False, overwrite=True, chunk="8KiB", **roles)
    return kept_open(path)


def kept_open(path: Any) -> h5store.Reader:
    """A reader that the test need not close."""
    opened.append(h5store.Reader(path))
    return opened[-1]


@pytest.fixture(autouse=True)
def closed(no_file_left_open: None) -> Iterator[None]:
    yield
    while opened:
        opened.pop().close()


@pytest.fixture
def reader(tmp_path: Path) -> h5store.Reader:
    rng = np.random.default_rng(0)
    flux = rng.normal(5, 2, size=(3000, 20, 3)).astype("f4")
    flux[:, :, 2] = 7
    flux[4, 2, 1], flux[9, 3, 1] = np.nan, np.inf
    return packed(tmp_path / "s.h5", features={"flux": flux}, aux={"host": rng.normal(size=(3000, 4))},
                  labels={"kind": np.array(["a", "b", "c"])[rng.integers(0, 3, 3000)], "z": rng.random(3000)})


def equal(found: Stats, reader: h5store.Reader, name: str) -> None:
    values = np.asarray(reader[name][:], np.float64)
    channels = found[name].mean.size
    values = values.reshape(-1, channels)
    values = np.where(np.isfinite(values), values, np.nan)
    np.testing.assert_allclose(found[name].mean, np.nanmean(values, axis=0), rtol=1e-6)
    np.testing.assert_allclose(found[name].std, np.nanstd(values, axis=0), rtol=1e-6)
    np.testing.assert_array_equal(found[name].min, np.nanmin(values, axis=0))
    np.testing.assert_array_equal(found[name].max, np.nanmax(values, axis=0))
    np.testing.assert_allclose(found[name].quantiles, np.nanquantile(values, QUANTILES, axis=0), rtol=1e-6)


def test_they_equal_numpy(reader: h5store.Reader) -> None:
    found = reader.stats(progress=False)
    for name in ("flux", "host", "z"):
        equal(found, reader, name)
    assert found["flux"].share("nans").tolist() == pytest.approx([0, 1 / 60_000, 0])
    assert found["flux"].share("infs").tolist() == pytest.approx([0, 1 / 60_000, 0])
    assert found["flux"].constant.tolist() == [False, False, True]
    names, counts = np.unique(reader["kind"][:], return_counts=True)
    assert found["kind"].classes == dict(zip(names.tolist(), counts.tolist()))
    assert sum(found["z"].classes.values()) == 3000


def test_a_view_has_statistics_of_its_own(reader: h5store.Reader) -> None:
    view = reader.select(np.random.default_rng(3).permutation(3000)[:700])
    found = view.stats(progress=False)
    assert found.samples == 700
    equal(found, view, "host")


def test_threads_change_nothing(reader: h5store.Reader) -> None:
    notes = []
    for threads in (1, 3):
        with h5store.Reader(reader.path, threads=threads) as again:
            notes.append(again.stats(progress=False).to_note())
    assert notes[0] == notes[1]


def test_quantiles_of_a_long_store_are_within_their_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "_KEPT", 4096)
    values = np.sort(np.random.default_rng(0).lognormal(size=(20_000, 10)).ravel()).reshape(20_000, 10)
    found = packed(tmp_path / "s.h5", features={"x": values.astype("f4")}).stats(progress=False)
    assert found.kept == 4096
    for column, quantile in zip(values.T, found["x"].quantiles.T):
        ranks = np.searchsorted(np.sort(column), quantile) / len(column)
        assert np.abs(ranks - QUANTILES).max() < found.rank_error


def test_every_stretch_gives_one_value() -> None:
    strata = Strata(1000, 100)
    rows = np.arange(1000)[:, None]
    pieces = [strata.pick(lo, rows[lo:lo + 37])[:, 0] for lo in range(0, 1000, 37)]
    assert (np.concatenate(pieces) // 10).tolist() == list(range(100))
    assert rank_error(65_536) < 0.007


def test_quantiles_of_nothing_finite_are_nan() -> None:
    found = quantiles(np.array([[np.nan, 1.0], [np.inf, 3.0]]))
    assert np.isnan(found[:, 0]).all() and found[3, 1] == 2.0


@pytest.mark.parametrize("values", [
    np.array([3, 3, -1]), np.array([0, 255, 255], "u1"), np.array([True, False, True]), np.array([1.5, 1.5, 2.0]),
    np.array([0, 2**62, 2**62]), np.array([2**64 - 1, 2**64 - 1, 2**64 - 2], "u8"), np.array([], "i4"),
])
def test_counting_is_numpys(values: np.ndarray) -> None:
    found, counts = np.unique(values, return_counts=True)
    assert counted(values) == dict(zip(found.tolist(), counts.tolist()))


def test_counting_gives_up_beyond_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "MOST_CLASSES", 3)
    counts = Counts()
    counts.add({1: 1, 2: 2, 3: 3})
    assert counts.found == {1: 1, 2: 2, 3: 3}
    counts.add({4: 1})
    assert counts.found is None


# ---- warnings

def said(reader: h5store.Reader, **how: Any) -> str:
    return "\n".join(reader.stats(progress=False, **how).warnings)


def test_a_sound_store_gives_no_warning(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    reader = packed(tmp_path / "s.h5", features={"x": rng.normal(size=(500, 4))}, labels={"y": np.arange(500) % 3})
    assert said(reader, parts=reader.split({"train": 0.8, "val": 0.2}, by="y")) == ""


def test_nan_infinity_and_constants_are_told(reader: h5store.Reader) -> None:
    text = said(reader)
    assert "features 'flux': 1 of 180,000 values are NaN (under 0.01%) in channel 1" in text
    assert "features 'flux': 1 of 180,000 values are infinite" in text
    assert "channel 2 always holds one value, 7" in text


def test_what_train_and_test_share_is_told(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(400, 5))
    x[390:] = x[:10]
    label = np.arange(400) % 2
    reader = packed(tmp_path / "s.h5", features={"x": x}, aux={"z": np.arange(400) % 7}, labels={"y": label})
    parts = {"train": reader.select(range(300)), "test": reader.select(range(300, 400))}
    assert "share" not in said(reader, parts=parts)  # the aux field differs
    x[:, 0] = 1
    reader = packed(tmp_path / "s.h5", features={"x": x}, labels={"y": label})
    parts = {"train": reader.select(range(300)), "test": reader.select(range(295, 400))}
    told = said(reader, parts=parts)
    assert "'train' and 'test' share 15 samples with the same inputs (sample 295 is in both)" in told


def test_a_class_that_a_part_lacks_is_told(tmp_path: Path) -> None:
    reader = packed(tmp_path / "s.h5", features={"x": np.random.default_rng(0).normal(size=(90, 2))},
                    labels={"y": np.repeat(["bee", "cat", "dog"], 30)})
    found = reader.stats(parts={"train": reader.select(range(70)), "val": reader.select(range(50, 90))}, progress=False)
    assert found.parts == {"train": 70, "val": 40}
    assert found["y"].parts == {"train": {"bee": 30, "cat": 30, "dog": 10}, "val": {"dog": 30, "cat": 10}}
    assert "part 'val': no sample of class 'bee' of 'y'" in "\n".join(found.warnings)


def test_labels_that_are_no_class_are_told(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(50, 2))
    assert "10 samples with a negative class (-1)" in said(
        packed(tmp_path / "a.h5", features={"x": x}, labels={"y": np.arange(50) % 5 - 1}))
    assert "all samples are of one class, 'a'" in said(
        packed(tmp_path / "b.h5", features={"x": x}, labels={"y": np.array(["a"] * 50)}))


def test_another_scale_is_told(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(500, 4)) * [1, 1, 1, 1e5]
    assert "features 'x' channel 3 spreads" in said(packed(tmp_path / "a.h5", features={"x": x}))
    two = packed(tmp_path / "b.h5", features={"x": x[:, 0], "z": x[:, 3]})
    assert "features 'z' spreads" in said(two) and "as wide as features 'x'" in said(two)


def test_samples_of_different_lengths_are_measured_and_compared(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    spectra = [rng.normal(size=(n, 2)) for n in rng.integers(1, 90, 200)]
    reader = packed(tmp_path / "s.h5", features={"s": spectra}, labels={"y": np.arange(200) % 2})
    parts = {"train": reader.select(range(150)), "test": reader.select(range(145, 200))}
    found = reader.stats(parts=parts, progress=False)
    every = np.concatenate(spectra)
    np.testing.assert_allclose(found["s"].mean, every.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(found["s"].std, every.std(axis=0), rtol=1e-9)
    np.testing.assert_allclose(found["s"].quantiles, np.quantile(every, QUANTILES, axis=0), rtol=1e-9)
    assert "share 5 samples" in "\n".join(found.warnings)
    only = packed(tmp_path / "o.h5", features={"s": spectra[:9]})
    assert only.select([1, 5]).stats(progress=False)["s"].count.tolist() == [len(spectra[1]) + len(spectra[5])] * 2


# ---- kept in the store

def test_they_are_kept_with_their_samples_and_found_again(reader: h5store.Reader,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    view = reader.select(range(100))
    first, small = reader.stats(progress=False, save=True), view.stats(progress=False, save=True)
    again = kept_open(reader.path)
    from h5store.explore import gather

    monkeypatch.setattr(gather, "stream", None)  # reading samples would fail
    assert again.stats().to_note() == first.to_note()
    assert again.select(range(100)).stats().to_note() == small.to_note()
    assert again["host"][:3].tolist() == reader["host"][:3].tolist()
    with pytest.raises(TypeError):
        again.select(range(99)).stats()


def test_the_saved_split_is_compared_by_itself(reader: h5store.Reader) -> None:
    reader.split({"train": 0.8, "val": 0.2}, by="kind", seed=0, save=True)
    found = kept_open(reader.path).stats(progress=False)
    assert found.parts == {"train": 2400, "val": 600}
    assert sum(found["kind"].parts["val"].values()) == 600


def test_another_store_at_the_path_does_not_take_them_over(reader: h5store.Reader) -> None:
    reader.stats(progress=False, save=True)
    again = packed(Path(reader.path), features={"flux": np.ones((10, 2))})
    assert again.stats(progress=False).samples == 10


def test_files_of_others_are_read_and_not_changed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["x"], file["y"] = np.arange(40.0).reshape(10, 4), np.arange(10) % 2
    reader = h5store.Reader.from_hdf5(tmp_path / "f.h5", features="x", labels="y")
    before = os.stat(reader.path)
    assert reader.stats(progress=False)["x"].mean.tolist() == [18, 19, 20, 21]
    with pytest.raises(OptionError, match="save=True"):
        reader.stats(progress=False, save=True)
    assert os.stat(reader.path) == before
    reader.close()


def test_parts_of_another_store_are_refused(reader: h5store.Reader, tmp_path: Path) -> None:
    other = packed(tmp_path / "o.h5", features={"x": np.ones((3, 2))})
    with pytest.raises(OptionError, match="another store"):
        reader.stats(parts={"train": other}, progress=False)


# ---- shown

def test_the_text_fits_and_names_what_is_missing(reader: h5store.Reader) -> None:
    found = reader.stats(progress=False)
    table = repr(found).split("\n!")[0]
    assert max(map(len, table.splitlines())) <= 100
    assert "flux[1]" in table and "host[3]" in table
    with pytest.raises(FieldNotFound, match="'flux'"):
        found["flx"]
    with pytest.raises(AttributeError, match="text"):
        found["kind"].mean


def test_a_frame_has_one_row_a_channel(reader: h5store.Reader) -> None:
    pytest.importorskip("pandas")
    frame = reader.stats(progress=False).to_frame()
    assert len(frame) == 3 + 4 + 1 + 1
    assert frame.loc[("host", 2), "mean"] == pytest.approx(reader["host"][:, 2].mean())
    assert {"count", "mean", "std", "min", "50%", "max", "nan", "inf", "zero"} <= set(frame.columns)


def test_complex_values_count_by_their_magnitude(tmp_path: Path) -> None:
    values = np.array([[3 + 4j], [0j]] * 5)
    found = packed(tmp_path / "s.h5", features={"x": values}).stats(progress=False)
    assert (found["x"].max[0], found["x"].mean[0], found["x"].quantiles[3, 0]) == (5, 2.5, 2.5)
