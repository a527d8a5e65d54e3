"""Values are stored exactly: any dtype, shape, codec and cut into appends, bit for bit, also for other tools."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  as anybody who reads a store with h5py does
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h5store import Reader, Writer
from h5store.errors import SchemaError
from h5store.schema import MAX_AXES, Field, Role, Schema

# Crashes are played by losing a writer.
pytestmark = pytest.mark.filterwarnings("ignore:.*a Writer was lost without close")

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g", "c8", "c16", "G"]
CODECS = [None, "lz4", "gzip", "gzip:9", "zstd", "zstd:19"]
#: Of 16 bytes that an x86 longdouble takes, 10 are its value.
X87 = np.finfo("g").nmant == 63


def bits(values: np.ndarray) -> bytes:
    """Bytes of the values alone, in one order."""
    if values.dtype.char in "gG" and X87:
        return values.reshape(-1).view(np.uint8).reshape(-1, np.dtype("g").itemsize)[:, :10].tobytes()
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def any_values(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Random bits: floats hold NaN of every payload, infinities, -0.0 and denormals."""
    rng = np.random.default_rng(seed)
    if dtype == "?":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in "gG" and X87:  # not every pattern of 80 bits is a number
        real = np.dtype(dtype).itemsize // np.dtype("g").itemsize
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, np.pi], "g") * np.longdouble("1.1")
        return special[rng.integers(0, 7, (*shape, real))].view(dtype).reshape(shape)
    size = int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize
    values = np.frombuffer(rng.bytes(size), dtype).reshape(shape).copy()
    if values.size and values.dtype.kind == "f":
        flat = values.reshape(-1)
        flat[:: 7] = np.array([-0.0, np.nan, np.inf, -np.inf], dtype)[np.arange(len(flat[:: 7])) % 4]
    return values


shapes = st.one_of(
    st.just(()),
    st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
    st.integers(1, MAX_AXES).flatmap(
        lambda n: st.integers(0, n - 1).map(lambda i: tuple(3 if k == i else 1 for k in range(n)))),
)


@st.composite
def stores(draw: st.DrawFn) -> dict[str, Any]:
    n = draw(st.integers(1, 60))
    fields = draw(st.lists(st.tuples(st.sampled_from(DTYPES), shapes), min_size=1, max_size=3))
    cuts = sorted({0, n, *draw(st.lists(st.integers(0, n), max_size=6))})
    return {
        "n": n,
        "values": {f"f{k}": any_values(dtype, (n, *shape), draw(st.integers(0, 2**32)))
                   for k, (dtype, shape) in enumerate(fields)},
        "codec": draw(st.sampled_from(CODECS)),
        "chunk": draw(st.sampled_from([1, 2, 7, 1000, "1KiB", "random", "128KiB"])),
        "cuts": cuts,
        "breaks": [draw(st.sampled_from(["", "", "commit", "lose", "close"])) for _ in cuts],
        "layout": draw(st.sampled_from(["C", "F", "strided", ">"])),
    }


def laid_out(values: np.ndarray, how: str) -> Any:
    """Equal values that lie differently in memory."""
    if how == "F":
        return np.asfortranarray(values)
    if how == "strided":
        wide = np.repeat(values, 2, axis=0)
        return wide[::2]
    if how == ">" and values.dtype.char not in "gG":
        return values.astype(values.dtype.newbyteorder(">"))
    return values


@settings(max_examples=50)
@given(stores())
def test_any_store_however_cut_is_one_file_and_holds_its_values(case: dict[str, Any]) -> None:
    # In memory, where fsync costs nothing, if there is such a place.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        whole, pieces = Path(folder, "whole.h5"), Path(folder, "pieces.h5")
        options = {"codec": case["codec"], "chunk": case["chunk"]}
        with Writer(whole, **options) as writer:
            writer.append(features=case["values"])
        writer = Writer(pieces, **options)
        for lo, hi, then in zip(case["cuts"], case["cuts"][1:], case["breaks"]):
            writer.append(features={k: laid_out(v[lo:hi], case["layout"]) for k, v in case["values"].items()})
            if then == "commit":
                writer.commit()
            if then == "lose":
                writer.commit()
                del writer
                writer = Writer(pieces, resume=True)
                assert len(writer) == hi
            if then == "close":
                writer.close()
                writer = Writer(pieces, append=True)
        writer.close()
        assert pieces.read_bytes() == whole.read_bytes()
        check(whole, case["values"])


def check(path: Path, expected: dict[str, np.ndarray]) -> None:
    """Values and dtypes, through the reader and through h5py, bit for bit."""
    with Reader(path) as reader, h5py.File(path, "r") as file:
        for name, values in expected.items():
            for found in (reader[name][:], file["features"][name][()]):
                assert found.dtype == values.dtype and found.dtype.isnative
                assert found.shape == values.shape
                assert bits(found) == bits(values), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", CODECS)
def test_every_dtype_through_every_codec(tmp_path: Path, dtype: str, codec: Any) -> None:
    values = {"x": any_values(dtype, (100, 3, 5), 0), "y": any_values(dtype, (100,), 1)}
    with Writer(tmp_path / "a.h5", codec=codec, chunk=33) as writer:
        writer.append(features=values)
    check(tmp_path / "a.h5", values)


def test_nan_payloads_and_negative_zero_survive(tmp_path: Path) -> None:
    patterns = np.array([0x7FF8000000000001, 0xFFF800000000BEEF, 0x7FF0000000000001, 0x8000000000000000], "u8")
    with Writer(tmp_path / "a.h5") as writer:
        writer.append(features=patterns.view("f8"))
    with Reader(tmp_path / "a.h5") as reader:
        assert reader["features"][:].view("u8").tolist() == patterns.tolist()


@pytest.mark.skipif(not X87, reason="longdouble has no padding here")
def test_equal_longdoubles_are_equal_bytes_whatever_lies_in_their_padding(tmp_path: Path) -> None:
    one, two = np.arange(40, dtype="g"), np.arange(40, dtype="g")
    two.view(np.uint8).reshape(-1, 16)[:, 10:] = 0xAB
    for name, values in {"one": one, "two": two}.items():
        with Writer(tmp_path / name) as writer:
            writer.append(features=values, aux=values.astype("G") if name == "one" else (two + 0j))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_big_endian_arrays_come_back_native(tmp_path: Path) -> None:
    x = (np.arange(12).reshape(4, 3) / 7).astype(">f4")
    np.save(tmp_path / "x.npy", x)
    with Writer(tmp_path / "a.h5") as writer:
        writer.append(features=np.load(tmp_path / "x.npy", mmap_mode="r"), labels=np.arange(4).astype(">i2"),
                      weights=np.arange(4).astype(">f8"), meta=np.arange(4).astype(">c16"))
        # Either order fits what is there.
        writer.append(features=x.astype("<f4"), labels=np.arange(4, dtype="<i2"), weights=np.arange(4.0),
                      meta=np.arange(4) + 0j)
    with Reader(tmp_path / "a.h5") as reader:
        inputs, labels, weights = reader.batch([3, 0, 7])
        assert np.array_equal(inputs, x.astype("f4")[[3, 0, 3]]) and labels.tolist() == [3, 0, 3]
        assert all(part.dtype.isnative for part in (inputs, labels, weights, reader["meta"][:]))


# ---- what does not fit a field is an error, never a cast


MISFITS = [
    ("u1", [256, 300, -1], r"'y' has dtype int64, expected uint8, and sample 0 holds 256, which does not fit"),
    ("u1", [1, 2, -1], "sample 2 holds -1"),
    ("i8", np.array([2**63], "u8"), "sample 0 holds 9223372036854775808"),
    ("f4", [0.1], "sample 0 holds 0.1"),
    ("f4", [1e39], "sample 0 holds 1e[+]39"),
    ("f8", [2**53 + 1], "sample 0 holds 9007199254740993"),
    ("f8", [2**53 + 1, 0.5], "'y' holds numbers .* that no one dtype holds exactly"),
    ("u8", [2**64], "'y' holds numbers .* that no one dtype holds exactly"),
    ("i4", [1.5], "sample 0 holds 1.5"),
    ("i4", [np.nan], "sample 0 holds nan"),
    ("f8", [1j], "has dtype complex128, expected float64"),
    ("?", [2], "has dtype int64, expected bool"),
    ("i4", [True], "has dtype bool, expected int32"),
    # Arrays say what they are: another dtype is refused, also where these values would fit.
    ("f4", np.zeros(1), r"has dtype float64, expected float32; nothing is cast in silence.*astype\('float32'\)"),
    ("i8", np.zeros(1, "i4"), "has dtype int32, expected int64"),
    ("f8", np.zeros(1, "i8"), "has dtype int64, expected float64"),
    ("f4", ["a"], "'y'"),
    ("f4", np.array(["a"]), "has dtype <U1, expected float32"),
    ("f4", [None], "'y' holds Python objects .NoneType."),
]


@pytest.mark.parametrize(("dtype", "values", "told"), MISFITS)
def test_what_does_not_fit_is_refused(tmp_path: Path, dtype: str, values: Any, told: str) -> None:
    schema = Schema((Field("y", Role.LABELS, np.dtype(dtype)),))
    with Writer(tmp_path / "a.h5", schema=schema) as writer:
        with pytest.raises(SchemaError, match=told):
            writer.append(labels={"y": values})
        writer.append(labels={"y": np.ones(2, dtype)})
    with Reader(tmp_path / "a.h5") as reader:
        assert reader["y"][:].tolist() == [1, 1]


@pytest.mark.parametrize(("dtype", "values"), [
    ("u1", [0, 255]), ("i8", [2**63 - 1, -2**63]), ("u8", [2**64 - 1]), ("f4", [0.5, -2.0, np.nan, np.inf]),
    ("f8", [1, 2**53]), ("f2", [1, 2048]), ("i4", [1.0, -3.0]), ("c8", [1, 2.5, 1j]), ("?", [True, False]),
    ("f8", [float(2**80), np.nan, np.inf]), ("i2", range(3)), ("f4", (1, 2)),
])
def test_a_list_fits_where_no_value_changes(tmp_path: Path, dtype: str, values: Any) -> None:
    with Writer(tmp_path / "a.h5", schema=Schema((Field("y", Role.LABELS, np.dtype(dtype)),))) as writer:
        writer.append(labels={"y": values})
    with Reader(tmp_path / "a.h5") as reader:
        found = reader["y"][:]
        assert found.dtype == dtype
        assert all(a == b or (a != a and b != b) for a, b in zip(found.tolist(), values)) and len(found) == len(values)


def test_ids_that_outgrow_the_first_samples_dtype(tmp_path: Path) -> None:
    first, second = np.array([0, 1, 255], "u1"), np.array([256, 300, -1])
    with pytest.raises(SchemaError, match="'y' has dtype int64, expected uint8, and sample 0 holds 256.*wider field"):
        with Writer(tmp_path / "a.h5") as writer:
            writer.append(labels={"y": first})
            writer.append(labels={"y": second})
    wide = Schema((Field("y", "labels", "i8"),))
    with Writer(tmp_path / "b.h5", schema=wide) as writer:
        writer.append(labels={"y": first.astype("i8")})
        writer.append(labels={"y": second})
    with Reader(tmp_path / "b.h5") as reader:
        assert reader["y"][:].tolist() == [0, 1, 255, 256, 300, -1]


# ---- samples of different lengths


@st.composite
def ragged_stores(draw: st.DrawFn) -> dict[str, Any]:
    lengths = draw(st.lists(st.integers(0, 40), min_size=1, max_size=40))
    dtype, rest = draw(st.sampled_from(["u1", "f4", "f8"])), draw(st.sampled_from([(), (2,)]))
    flat = any_values(dtype, (sum(lengths), *rest), draw(st.integers(0, 2**32)))
    ends = np.cumsum([0, *lengths])
    cuts = sorted({0, len(lengths), *draw(st.lists(st.integers(0, len(lengths)), max_size=5))})
    return {"samples": [flat[lo:hi] for lo, hi in zip(ends, ends[1:])], "cuts": cuts,
            "schema": Schema((Field("t", "features", dtype, (None, *rest)), Field("i", "labels", "i8"))),
            "then": [draw(st.sampled_from(["", "commit", "lose", "close"])) for _ in cuts],
            "chunk": draw(st.sampled_from([1, 3, "1KiB", "64KiB"])),
            "codec": draw(st.sampled_from(["lz4", "gzip", None]))}


@settings(max_examples=40)
@given(ragged_stores())
def test_samples_of_different_lengths_however_cut_are_one_file(case: dict[str, Any]) -> None:
    options = {"codec": case["codec"], "chunk": case["chunk"], "schema": case["schema"]}
    samples = case["samples"]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        whole, pieces = Path(folder, "whole.h5"), Path(folder, "pieces.h5")
        with Writer(whole, **options) as writer:
            writer.append(features={"t": samples}, labels={"i": np.arange(len(samples))})
        writer = Writer(pieces, **options)
        for lo, hi, then in zip(case["cuts"], case["cuts"][1:], case["then"]):
            writer.append(features={"t": samples[lo:hi]}, labels={"i": np.arange(lo, hi)})
            if then == "commit":
                writer.commit()
            if then == "lose":
                writer.commit()
                del writer
                writer = Writer(pieces, resume=True)
                assert len(writer) == hi
            if then == "close":
                writer.close()
                writer = Writer(pieces, append=True)
        writer.close()
        assert pieces.read_bytes() == whole.read_bytes()
        with Reader(whole) as reader:
            for i, sample in enumerate(samples):
                found = reader["t"][i]
                assert found.dtype == sample.dtype and found.shape == sample.shape and bits(found) == bits(sample)
