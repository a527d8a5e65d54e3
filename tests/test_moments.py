"""Moments equal numpy's in float64, whatever the dtype, the offset, the holes and the pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h5store.moments import Moments, by_channel, channel_axis, channels_of, moments_of
from h5store.schema import Field


def near(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def check(found: Moments, values: np.ndarray) -> None:
    values = values.astype(np.float64)
    finite = np.where(np.isfinite(values), values, np.nan)
    near(found.mean, np.nanmean(finite, axis=0))
    near(found.std, np.nanstd(finite, axis=0))
    assert found.min.tolist() == np.nanmin(finite, axis=0).tolist()
    assert found.max.tolist() == np.nanmax(finite, axis=0).tolist()
    assert found.count.tolist() == np.isfinite(values).sum(axis=0).tolist()
    assert found.nans.tolist() == np.isnan(values).sum(axis=0).tolist()
    assert found.infs.tolist() == np.isinf(values).sum(axis=0).tolist()
    assert found.zeros.tolist() == (values == 0).sum(axis=0).tolist()


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (5000, 6), (70_000, 5), (300_001, 1), (40, 64)])
def test_they_equal_numpy(dtype: str, shape: tuple[int, int]) -> None:
    values = (np.random.default_rng(0).normal(size=shape) * 40).astype(dtype)
    check(moments_of(values), values)


@pytest.mark.parametrize("rows", [3, 200_000])
def test_holes_are_counted_and_left_out(rows: int) -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(rows, 3))
    values[rng.random((rows, 3)) < 0.3] = np.nan
    values[0], values[-1, 1] = 1, -np.inf
    check(moments_of(values), values)


@pytest.mark.filterwarnings("error")
def test_a_channel_of_nothing_but_nan_has_no_mean_and_no_noise() -> None:
    values = np.array([[np.nan, 1.0], [np.nan, 3.0]])
    found = Moments.merged([moments_of(values), Moments.none(2)])
    assert np.isnan([found.mean[0], found.std[0], found.min[0], found.max[0]]).all()
    assert (found.mean[1], found.std[1], found.nans.tolist()) == (2.0, 1.0, [2, 0])


def test_an_offset_of_a_billion_costs_no_digits() -> None:
    values = np.random.default_rng(2).normal(size=(100_000, 2)) + 1e9
    found = moments_of(values)
    np.testing.assert_allclose(found.std, values.std(axis=0), rtol=1e-7)


def test_a_constant_has_no_spread_at_all() -> None:
    parts = [moments_of(np.full((n, 1), 0.1)) for n in (3, 1000, 77)]
    assert Moments.merged(parts).std.tolist() == [0.0]


@given(st.integers(0, 2**32), st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_merging_is_the_same_as_looking_at_all(seed: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.normal(rng.normal() * 100, size=(size, 2)) for size in sizes]
    every = np.concatenate(parts)
    if len(every):
        check(Moments.merged([moments_of(part) for part in parts]), every)


def test_they_survive_json() -> None:
    values = np.array([[np.nan, 1.5], [np.nan, -2.0]])
    found = moments_of(values)
    again = Moments.from_json(found.to_json())
    for name in found.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(found, name), getattr(again, name))


@pytest.mark.parametrize(("shape", "axis"), [
    ((), None), ((5,), 0), ((100,), None), ((100, 6), 1), ((6, 100), 0), ((8, 8), None), ((28, 28), None),
    ((128, 12), 1), ((224, 224, 3), 2), ((3, 224, 224), 0), ((8, 8, 1), 2), ((10, 32, 32, 3), 3), ((2,) * 31, 30),
])
def test_channels_are_where_people_put_them(shape: tuple[int, ...], axis: int | None) -> None:
    assert channel_axis(shape) == axis
    field = Field("x", "features", np.dtype("f4"), shape)
    count = 1 if axis is None else shape[axis]
    assert channels_of(field) == count
    if len(shape) < 8:
        samples = np.random.default_rng(0).normal(size=(3, *shape))
        wanted = samples.reshape(-1, 1) if axis is None else np.moveaxis(samples, axis + 1, -1).reshape(-1, count)
        np.testing.assert_array_equal(by_channel(field, samples), wanted)
