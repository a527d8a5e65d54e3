"""Reading a whole store tells what is wrong with it, and where NaN and infinities are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from h5store import Reader, pack, verify
from h5store.errors import FormatError
from h5store.storage.opening import open_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    pack(tmp_path / "train.h5", features={"x": rng.normal(size=(500, 40)).astype("f4"), "n": np.arange(500)},
         labels={"y": rng.choice(["a", "b"], 500)}, progress=False, chunk="4KiB")
    return tmp_path / "train.h5"


@pytest.mark.parametrize("codec", ["lz4", "gzip", "zstd", None])
def test_a_whole_store_is_whole(tmp_path: Path, codec: str | None) -> None:
    pack(tmp_path / "a.h5", features=np.arange(5000.0), labels=["a", "b"] * 2500, codec=codec, progress=False)
    report = verify(tmp_path / "a.h5", hdf5=True)
    assert report.ok and report.problems == () and report.nonfinite == {} and report.samples == 5000
    assert str(report) == f"{tmp_path / 'a.h5'}: 5,000 samples, whole"


def test_non_finite_values_are_found_and_are_no_damage(tmp_path: Path) -> None:
    x = np.arange(18, dtype="f4").reshape(6, 3)
    x[1, 0], x[3, 2], x[4, 1], x[5, 0] = np.nan, np.inf, -np.inf, -0.0
    z = np.zeros((6, 2), "c16")
    z[2, 1] = complex(0, np.nan)
    pack(tmp_path / "a.h5", features={"x": x, "z": z}, labels={"h": np.ones(6, "f2")}, progress=False)
    report = verify(tmp_path / "a.h5")
    assert report.ok
    assert {n: (f.values, f.samples) for n, f in report.nonfinite.items()} == {"x": (3, (1, 3, 4)), "z": (1, (2,))}
    assert "field 'x': 3 non-finite values, in samples 1, 3, 4" in str(report)
    with Reader(tmp_path / "a.h5") as reader:
        assert reader["x"][:].tobytes() == x.tobytes(), "stored exactly"


def test_a_report_names_ten_samples_and_counts_all(tmp_path: Path) -> None:
    x = np.zeros((50_000, 7), "f4")
    x[::5, 3] = np.nan
    x[1, :] = np.inf
    pack(tmp_path / "a.h5", features=x, progress=False, chunk="4KiB")
    found = verify(tmp_path / "a.h5").nonfinite["features"]
    assert found.values == 10_007 and found.samples == (0, 1, 5, 10, 15, 20, 25, 30, 35, 40)


def test_every_damaged_chunk_is_named_and_the_rest_is_read(store: Path) -> None:
    tables = open_store(str(store)).tables
    with open(store, "r+b") as file:
        for name, i in [("x", 1), ("x", 5), ("y", 0)]:
            file.seek(int(tables[name].offsets[i]) + int(tables[name].sizes[i]) // 2)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))
    before = store.read_bytes()
    report = verify(store)
    assert not report.ok and len(report.problems) == 3
    per = tables["x"].samples
    assert f"chunk 1 (samples {per}-{2 * per - 1})" in report.problems[0] and "chunk 5" in report.problems[1]
    assert "['y'] chunk 0" in report.problems[2] and "3 problems" in str(report)
    assert store.read_bytes() == before


def test_one_bit_anywhere_is_seen(store: Path) -> None:
    whole = bytearray(store.read_bytes())
    rng = np.random.default_rng(0)
    places = {*range(0, 300, 9), *rng.integers(0, len(whole), 80).tolist(), len(whole) - 1}
    for at in places:
        whole[at] ^= 4
        store.write_bytes(whole)
        try:
            assert not verify(store).ok, at
        except FormatError:
            pass
        whole[at] ^= 4
    store.write_bytes(whole)
    assert verify(store).ok


def test_what_is_no_store_is_an_error_not_a_report(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_text("diary")
    with pytest.raises(FormatError):
        verify(tmp_path / "a.h5")
    with pytest.raises(FileNotFoundError):
        verify(tmp_path / "b.h5")
