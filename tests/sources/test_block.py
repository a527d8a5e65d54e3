"""A block: everything that people have as an array, or an error that names the field and the way out."""

from __future__ import annotations

import array
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h5store.errors import SchemaError
from h5store.schema import Field, Schema
from h5store.sources.block import Block, release, without_padding

X = np.arange(12, dtype="f4").reshape(4, 3)


class Tensor:
    """As tensors of other libraries are: a dtype and a shape of their own kind, and a way to numpy."""

    class DType:
        name = "float32"

    dtype, shape = DType(), (4, 3)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return X

    def __getitem__(self, key: Any) -> Tensor:
        return self

    def __len__(self) -> int:
        return 4


class Lazy:
    """As arrays on disk are: shape, dtype and slicing."""

    dtype, shape = np.dtype("f4"), (4, 3)

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __getitem__(self, key: Any) -> np.ndarray:
        self.asked.append(key)
        return X[key]

    def __len__(self) -> int:
        return 4


def wide() -> np.ndarray:
    out = np.zeros((8, 6), "f4")
    out[::2, ::2] = X
    return out


FORMS: dict[str, Any] = {
    "array": X, "Fortran": np.asfortranarray(X), "strided": wide()[::2, ::2], "reversed": X[::-1][::-1],
    "big-endian": X.astype(">f4"), "read-only": np.frombuffer(X.tobytes(), "f4").reshape(4, 3), "tensor": Tensor(),
    "lazy": Lazy(), "masked, nothing masked": np.ma.masked_array(X, mask=False),
    "broadcast": np.broadcast_to(X, (4, 3)), "list of arrays": list(X),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_one_plain_array(form: str) -> None:
    block = Block({"features": FORMS[form]}, None)
    assert block.schema["features"] == Field("features", "features", "f4", (3,)) and len(block) == 4
    for lo, hi in [(0, 4), (1, 3), (4, 4)]:
        part = block.part("features", lo, hi)
        assert type(part) is np.ndarray and part.flags.c_contiguous and part.dtype == "<f4" and part.dtype.isnative
        assert np.array_equal(part, X[lo:hi])


@pytest.mark.parametrize("values", [[1, 2, 3], (1, 2, 3), range(1, 4), array.array("q", [1, 2, 3]),
                                    memoryview(np.array([1, 2, 3])), [np.int64(1), 2, 3]])
def test_sequences_of_numbers(values: Any) -> None:
    assert Block({"labels": values}, None).part("labels", 0, 3).tolist() == [1, 2, 3]


def test_lazy_arrays_are_asked_for_what_is_wanted_only() -> None:
    lazy = Lazy()
    block = Block({"features": lazy}, None)
    assert lazy.asked == []
    block.part("features", 1, 3)
    assert lazy.asked == [slice(1, 3)]


REFUSED: list[tuple[Any, str]] = [
    (np.float32(1), r"'features' is a scalar, expected shape \(n, ...\).*write values\[None\]"),
    (np.array(1.0), "is a scalar"), (3, "is int, expected an array or a list of samples"),
    ("word", "is str, expected"), (b"word", "is bytes, expected"), ({1, 2}, "is set, expected"),
    ((i for i in range(3)), "is generator, expected"), (object(), "is object, expected"),
    (np.ma.masked_array(X, mask=X > 3), "is a masked array, and a store has no mask.*filled.*a field of its own"),
    (np.array(["2020-01-01"], "M8[D]"), "dtype datetime64.D. is not stored.*astype.'int64'"),
    (np.array([3], "m8[s]"), "durations as numbers"),
    (np.zeros(3, [("flux", "f4"), ("error", "f4")]), r"each member as a field .*, e.g. \{'flux': X\['flux'\]\}"),
    (np.array([b"a"]), "numpy.char.decode"), (np.zeros(3, "V4"), "view it as a numeric dtype"),
    (np.array([None, {}]), "holds Python objects .NoneType, dict."), (np.array([object()]), "holds Python objects"),
    (np.zeros((3, 0)), "axis of length below 1"),
    ([2**64], "numbers .int. that no one dtype holds exactly"), ([2**63 + 1, -1], "no one dtype holds exactly"),
    ([2**53 + 1, 0.5], "no one dtype holds exactly"),
    ([], "is empty, so no samples tell its shape"), (np.array([], object), "is empty, so no samples"),
]


@pytest.mark.parametrize(("values", "told"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_the_rest_is_refused_with_the_way_out(values: Any, told: str) -> None:
    with pytest.raises(SchemaError, match=told) as caught:
        Block({"features": values}, None, "append")
    assert "'features'" in str(caught.value)


def test_a_block_that_lies_about_its_shape() -> None:
    lazy = Lazy()
    block = Block({"features": lazy}, None)
    lazy.__class__ = type("Liar", (Lazy,), {"__getitem__": lambda self, key: X[key, :2]})
    with pytest.raises(SchemaError, match=r"gave shape \(4, 2\) for samples 0-3, expected \(4, 3\)"):
        block.part("features", 0, 4)


def test_names_roles_and_lengths() -> None:
    schema = Schema((Field("x", "features", "f4", (3,)), Field("y", "labels", "i8")))
    block = Block({"features": {"x": X}, "labels": {"y": np.arange(4)}, "aux": None, "meta": {}}, schema)
    assert len(block) == 4
    for roles, told in [
        ({"features": {"x": X}, "labels": {"y": np.arange(3)}}, "lengths: 'x' 4, 'y' 3; expected the same number"),
        ({"features": {"x": X}}, "field 'y' is missing; expected every field of the store: 'x', 'y'"),
        ({"features": {"x": X, "y": np.arange(4)}}, "field 'y' is in labels, got it in features"),
        ({"features": {"x": X}, "labels": np.arange(4)}, "no field 'labels'; fields:"),
        ({"features": {"x": X[:, :2]}, "labels": {"y": np.arange(4)}}, r"'x' has shape \(4, 2\), expected \(n, 3\)"),
    ]:
        with pytest.raises(SchemaError, match=f"somewhere: .*{told}"):
            Block(roles, schema, "somewhere")


def test_pages_of_memory_maps_are_let_go_and_what_was_written_stays(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones(1000))
    shared = np.load(tmp_path / "x.npy", mmap_mode="r+")
    shared[0] = 7
    private = np.load(tmp_path / "x.npy", mmap_mode="c")
    private[1] = 9
    for values in (shared, private, shared[3:], np.zeros(3), [1], np.frombuffer(mmap.mmap(-1, 4096), "u1")):
        release(values)
    assert shared[0] == 7 and private[1] == 9 and private[0] == 7
    shared._mmap.close()
    private._mmap.close()


@pytest.mark.skipif(np.finfo("g").nmant != 63, reason="longdouble has no padding here")
@pytest.mark.parametrize("dtype", ["g", "G"])
def test_padding_holds_nothing(dtype: str) -> None:
    values = np.arange(5, dtype=dtype)
    raw = values.view(np.uint8).reshape(-1, 16)
    raw[:, 10:] = 0xFF
    clean = without_padding(values)
    assert np.array_equal(clean, values) and not clean.view(np.uint8).reshape(-1, 16)[:, 10:].any()
    assert (raw[:, 10:] == 0xFF).all(), "the caller's array is as it was"
