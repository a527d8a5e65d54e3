"""Selections that other tools got wrong, through every way to a sample: own stores, files of others, views."""

from __future__ import annotations

import warnings

import h5py
import numpy as np
import pytest

import h5store
from h5store.errors import SelectionError

N = 10
X = np.arange(2 * N, dtype="f4").reshape(N, 2)
Y = np.array(["cat", "dog", "cat", "eel", "dog", "cat", "猫", "", "cat ", "eel"])
PAIR = np.stack([Y, Y[::-1]], 1)
WAYS = ["own", "own cached", "view", "view of a view", "pickled", "fast", "slow", "chunk of one"]


@pytest.fixture(params=WAYS)
def reader(tmp_path, request):
    """The same ten samples, however they are reached."""
    way, path = request.param, tmp_path / "a.h5"
    if way in ("fast", "slow"):
        with h5py.File(path, "w") as f:
            f.create_dataset("x", data=X, chunks=(3, 2) if way == "fast" else (3, 1), compression="gzip")
            f.create_dataset("y", data=Y.astype(object), dtype=h5py.string_dtype())
            f.create_dataset("pair", data=PAIR.astype(object), dtype=h5py.string_dtype())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = h5store.Reader.from_hdf5(path, features="x", labels="y", meta="pair")
    else:
        # Of a view, the samples lie elsewhere, backwards.
        order = np.arange(N) if "view" not in way else np.repeat(np.arange(N)[::-1], 2)
        h5store.pack(path, features={"x": X[order]}, labels={"y": Y[order]}, meta={"pair": PAIR[order]},
                     progress=False, chunk=1 if way == "chunk of one" else 3)
        made = h5store.Reader(path, cache="1MiB" if way == "own cached" else 0)
        if way == "view":
            made = made.select(np.arange(2 * N)[::-2])
        elif way == "view of a view":
            made = made.select(slice(None, None, -1)).select(np.arange(2 * N) % 2 == 0)
        elif way == "pickled":
            made = made.select(range(N))
    if way == "own cached":
        made["x"][:]
    yield made
    made.close()


def aligned(reader, key, wanted):
    """All fields of a selection, by every door."""
    for found in (reader.take(key), {n: reader[n][key] for n in ("x", "y", "pair")},
                  {n: reader.select(key)[n][:] for n in ("x", "y", "pair")}):
        np.testing.assert_array_equal(found["x"], X[wanted])
        np.testing.assert_array_equal(found["y"], Y[wanted])
        np.testing.assert_array_equal(found["pair"], PAIR[wanted])
        assert found["x"].dtype == np.float32 and found["y"].dtype.kind == "U"
    x, codes = reader.batch(key)
    np.testing.assert_array_equal(x, X[wanted])
    classes = np.array(reader.schema["y"].classes)
    np.testing.assert_array_equal(classes[codes], Y[wanted])
    assert sorted(classes) == sorted(set(Y))


@pytest.mark.parametrize("ids", [[0, 2, 2, 9, 2], [9, 9, 9], [-1, 9, -10, 0], list(range(N)) * 3, [5, 4, 3, 2, 1]])
def test_samples_that_are_asked_for_twice(reader, ids):
    """Bootstrap sampling: the asked order, repeats repeated, every field aligned."""
    for given in (ids, np.array(ids), np.array(ids, "i1")):
        aligned(reader, given, ids)


def test_a_mask_selects_text_too(reader):
    mask = Y == "cat"
    for given in (mask, mask.tolist(), np.flatnonzero(mask)):
        aligned(reader, given, np.flatnonzero(mask))
    mask = (PAIR == "cat").any(1)
    aligned(reader, mask, np.flatnonzero(mask))
    aligned(reader, np.ones(N, bool), np.arange(N))


@pytest.mark.parametrize("nothing", [np.zeros(N, bool), [], np.array([]), slice(0, 0), np.zeros(0, "u1"), range(0)],
                         ids=repr)
def test_nothing_selected_keeps_shapes_and_dtypes(reader, nothing):
    aligned(reader, nothing, np.zeros(0, int))
    assert reader["x"][nothing].shape == (0, 2) and reader["pair"][nothing].shape == (0, 2)


@pytest.mark.parametrize("length", [1, 5, 11])
def test_a_mask_of_another_length_names_both(reader, length):
    for ask in (reader.take, reader.batch, reader.select, lambda m: reader["y"][m]):
        with pytest.raises(SelectionError, match=rf"\({length},\), expected \({N},\)"):
            ask(np.ones(length, bool))


def test_a_mask_is_never_read_as_ids(reader):
    found = reader["x"][[True] + [False] * (N - 1)]
    np.testing.assert_array_equal(found, X[:1])
