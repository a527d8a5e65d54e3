"""Arrays from memory and files: named, read in pieces, refused where they cannot be a field."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import h5store
from h5store import sources
from h5store.errors import SchemaError, SourceError

X = np.random.default_rng(0).normal(size=(37, 5)).astype("f4")
Y = np.arange(37) % 4


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def packed(source: object) -> dict[str, np.ndarray]:
    h5store.pack("out.h5", source, progress=False, overwrite=True)
    with h5store.Reader("out.h5") as reader:
        return reader.take(slice(None))


def test_paths_of_every_kind_make_fields() -> None:
    np.save("X.npy", X)
    np.savez_compressed("y.npz", Y)
    X.tofile("Z.dat")
    found = packed(sources.arrays(features={"flux": "X.npy"}, aux={"z": "Z.dat:float32:-1x5"}, labels="y.npz:arr_0",
                                  meta=Path("y.npz")))
    np.testing.assert_array_equal(found["flux"], X)
    np.testing.assert_array_equal(found["z"], X)
    np.testing.assert_array_equal(found["labels"], Y)
    np.testing.assert_array_equal(found["meta"], Y)


class Sliced:
    """The least that an array of another library offers: it records what was asked of it."""

    def __init__(self, array: np.ndarray) -> None:
        self._array, self.shape, self.dtype = array, array.shape, array.dtype
        self.asked: list[slice] = []

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, key: slice) -> np.ndarray:
        self.asked.append(key)
        return self._array[key]


def test_whatever_has_shape_dtype_and_slicing_is_sliced_in_order() -> None:
    lazy = Sliced(X)
    np.testing.assert_array_equal(packed(sources.arrays(features=lazy))["features"], X)
    starts = [key.start for key in lazy.asked]
    assert starts == sorted(starts)


@pytest.mark.parametrize("array", [np.asfortranarray(X), X.astype(">f4"), X[::-1], X[:, ::2], np.ma.array(X)],
                         ids=["fortran", "big-endian", "reversed", "strided", "unmasked"])
def test_any_memory_layout_comes_back_native(array: np.ndarray) -> None:
    np.save("a.npy", np.asarray(array))
    for source in (sources.arrays(features=array), sources.arrays(features="a.npy")):
        found = packed(source)["features"]
        assert found.dtype.isnative
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("make", [
    lambda: sources.arrays(features="X.npy", labels="y.npy"),
    lambda: sources.npz("data.npz", features="x", labels="y"),
    lambda: sources.npz("packed.npz", features={"x": "f"}, labels="y"),
    lambda: sources.raw(features={"x": "X.dat"}, dtype="float32", shape=(-1, 5)),
    lambda: sources.stream(({"x": x, "y": y} for x, y in zip(X, Y)), features="x", labels="y", each="sample"),
    lambda: sources.stream(({"x": X[i:i + 6], "y": Y[i:i + 6]} for i in range(0, 37, 6)), features="x", labels="y",
                           each="block"),
], ids=["npy", "npz", "compressed fortran", "raw", "samples", "blocks"])
def test_an_interrupted_pack_resumes_to_the_same_file(make: object, resumes: object) -> None:
    np.save("X.npy", X)
    np.save("y.npy", Y)
    np.savez("data.npz", x=X, y=Y)
    np.savez_compressed("packed.npz", f=np.asfortranarray(X), y=Y)
    X.tofile("X.dat")
    resumes(make)
    with h5store.Reader("whole.h5") as reader:
        np.testing.assert_array_equal(reader[reader.schema.names[0]][:], X)


def test_raw_takes_dtype_and_shape_by_field() -> None:
    X.tofile("X.dat")
    Y.tofile("y.dat")
    found = packed(sources.raw(features={"x": "X.dat"}, labels={"y": "y.dat"}, dtype={"x": "f4", "y": "i8"},
                               shape={"x": (37, 5), "y": -1}))
    np.testing.assert_array_equal(found["x"], X)
    np.testing.assert_array_equal(found["y"], Y)


@pytest.mark.parametrize(("make", "kind", "told"), [
    (lambda: sources.arrays(features="X.npt"), FileNotFoundError, "X.npt: no such file; beside it: 'X.npy'"),
    (lambda: sources.arrays(features="y.npz:arr0"), SourceError, "no array 'arr0'; arrays: 'arr_0'"),
    (lambda: sources.arrays(features="notes.txt"), SourceError, "neither .npy nor .npz"),
    (lambda: sources.arrays(features="X.npy", labels="short.npy"), SchemaError, "different lengths"),
    (lambda: sources.npz("y.npz"), SourceError, "no array ''; arrays: 'arr_0'"),
    (lambda: sources.raw(dtype="f4"), SourceError, "no files named"),
    (lambda: sources.raw(features={"x": "notes.txt"}, dtype={"y": "f4"}), SourceError, "no dtype of field 'x'"),
    (lambda: sources.stream([{"x": 1}], features=None), SourceError, "no fields named"),
])
def test_mistakes_are_told(make: object, kind: type[Exception], told: str) -> None:
    np.save("X.npy", X)
    np.save("short.npy", Y[:-1])
    np.savez("y.npz", Y)
    Path("notes.txt").write_text("notes")
    with pytest.raises(kind, match=told):
        make()


def test_an_empty_array_makes_a_store_of_no_samples_that_keeps_its_fields() -> None:
    np.savez("zero.npz", x=np.empty((0, 4), "f4"), y=np.empty(0, "i8"))
    found = packed(sources.npz("zero.npz", features="x", labels="y"))
    assert (found["x"].shape, found["x"].dtype) == ((0, 4), np.dtype("f4"))


def test_a_source_that_yields_nothing_is_told() -> None:
    with pytest.raises(SourceError, match="no samples"):
        packed(sources.stream(iter(()), features="x"))
    assert not list(Path().glob("out.h5*"))
