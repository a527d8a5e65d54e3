"""The .npy format and raw files: mapped, never unpickled, refused where they are not what they say."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from h5store.errors import SourceError
from h5store.sources.npy import Unreadable, header_size, open_npy, open_raw, parse


class Canary:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("array", [
    np.arange(12, dtype="<f4").reshape(4, 3), np.asfortranarray(np.arange(12).reshape(4, 3)),
    np.arange(4, dtype=">i2"), np.array(["a", "bc"]), np.empty((0, 4), "f4"), np.array([True, False]),
    np.arange(3) + 1j,
], ids=["plain", "fortran", "big-endian", "text", "empty", "bool", "complex"])
def test_arrays_come_back_as_they_were(array: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array)
    found = open_npy(str(tmp_path / "x.npy"))
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_large_arrays_are_mapped_not_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((10, 3)))
    assert isinstance(open_npy(str(tmp_path / "x.npy")), np.memmap)


def test_objects_are_refused_before_any_is_unpickled(tmp_path: Path) -> None:
    mark = tmp_path / "UNPICKLED"
    np.save(tmp_path / "x.npy", np.array([Canary(mark)], object))
    with pytest.raises(SourceError, match=r"x\.npy: it has dtype object.*unpickling.*pad"):
        open_npy(str(tmp_path / "x.npy"))
    assert not mark.exists()
    pickle.loads(pickle.dumps(Canary(mark))).close()
    assert mark.exists(), "the canary sings when it is unpickled"


@pytest.mark.parametrize(("cut", "reason"), [(0, "empty"), (5, "not a .npy"), (60, "cut short"), (200, "cut short")])
def test_cut_files_are_told(cut: int, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(100))
    os.truncate(path, cut)
    with pytest.raises(SourceError, match=reason):
        open_npy(str(path))


def test_a_malformed_header_is_told() -> None:
    data = b"\x93NUMPY\x01\x00\x0e\x00" + b"{'descr': 1,,}"
    with pytest.raises(Unreadable, match="malformed"):
        parse(data[:header_size(data)])


def test_an_endless_header_is_refused_unparsed() -> None:
    with pytest.raises(Unreadable, match="expected at most"):
        header_size(b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little"))


def test_raw_files_take_as_many_samples_as_they_hold(tmp_path: Path) -> None:
    array = np.arange(24, dtype="<f4").reshape(4, 3, 2)
    array.tofile(tmp_path / "x.dat")
    np.testing.assert_array_equal(open_raw(str(tmp_path / "x.dat"), "float32", (-1, 3, 2)), array)
    np.testing.assert_array_equal(open_raw(str(tmp_path / "x.dat"), "float32", (2, 3, 2), offset=48), array[2:])


@pytest.mark.parametrize("name", ["x.shape.npy", "x.dat.shape.npy", "x_shape.npy"])
def test_a_saved_shape_beside_a_raw_file_is_found(name: str, tmp_path: Path) -> None:
    np.arange(6, dtype="<i4").tofile(tmp_path / "x.dat")
    np.save(tmp_path / name, np.array([2, 3]))
    assert open_raw(str(tmp_path / "x.dat"), "int32", None).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(("shape", "told"), [
    ((3, 2), "has 24 bytes, but float32 of shape \\(3, 2\\) takes 24|takes"), ((-1, 5), "no whole number of samples"),
    ((5, 2), "takes 40"), (None, "says nothing of its shape"), ((-1, -1), "not one"), ((), "not one"),
])
def test_a_shape_that_is_not_the_files_is_told(shape: object, told: str, tmp_path: Path) -> None:
    np.zeros(7, "f4").tofile(tmp_path / "x.dat")
    with pytest.raises(SourceError, match=told):
        open_raw(str(tmp_path / "x.dat"), "float32", shape)


def test_an_unknown_dtype_is_told(tmp_path: Path) -> None:
    np.zeros(7, "f4").tofile(tmp_path / "x.dat")
    with pytest.raises(SourceError, match="'flaot32' is not a dtype"):
        open_raw(str(tmp_path / "x.dat"), "flaot32", (-1,))
    with pytest.raises(SourceError, match="raw bytes"):
        open_raw(str(tmp_path / "x.dat"), object, (-1,))
