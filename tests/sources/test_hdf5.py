"""HDF5 files of others: datasets to fields, chunked anew by sample."""

from __future__ import annotations

import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest

import h5store
from h5store import sources
from h5store.errors import FieldNotFound

X = np.random.default_rng(0).normal(size=(60, 8)).astype(">f4")


@pytest.fixture(autouse=True)
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with h5py.File("theirs.h5", "w") as file:
        # Chunks that cut samples apart, as h5py chooses them.
        file.create_dataset("data/x", data=X, chunks=(16, 3), compression="gzip")
        file["y"] = np.arange(60)
        file.create_dataset("name", data=[f"n{i % 4}" for i in range(60)], dtype=h5py.string_dtype())


def test_datasets_are_copied_and_chunked_by_sample() -> None:
    source = sources.hdf5("theirs.h5", features={"x": "data/x"}, labels="y", meta="name")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        h5store.pack("out.h5", source, progress=False, chunk=8)
    with h5store.Reader("out.h5") as reader:
        np.testing.assert_array_equal(reader["x"][:], X)
        assert reader["name"][:5].tolist() == ["n0", "n1", "n2", "n3", "n0"]
    with h5py.File("out.h5") as file:
        assert file["features/x"].chunks[1] == 8


def test_a_name_that_is_not_there_gets_the_nearest() -> None:
    with pytest.raises(FieldNotFound, match="no dataset 'data/X'; datasets: 'data/x'"):
        sources.hdf5("theirs.h5", features="data/X")
    with pytest.raises(FileNotFoundError, match="their.h5: no such file.*'theirs.h5'"):
        sources.hdf5("their.h5", features="data/x")


def test_an_interrupted_pack_resumes_to_the_same_file(resumes: object) -> None:
    resumes(lambda: sources.hdf5("theirs.h5", features="data/x", labels="y", meta="name"))
