"""Reading a whole store tells what is wrong with it, and where NaN and infinities are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h5store import Field, Reader, Schema, pack, verify
from h5store.errors import FormatError, StoreExistsError
from h5store.storage import rest
from h5store.storage.layout import Layout, write_file
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


# ---- what no disk does, but a faulty writer could


def forged(path: Path, schema: Schema, length: int, columns: dict[str, np.ndarray], classes: Any = None,
           totals: Any = None) -> Path:
    """A store with fitting sums and seal that holds any values at all."""
    layout = Layout.plan(schema, None, 4).finished(length, classes or {}, totals or {})

    def chunks(column: Field) -> Iterator[bytes]:
        per, values = layout.chunks[column.name], columns[column.name].astype(column.dtype)
        for at in range(0, len(values), per):
            part = np.zeros((per, *column.shape), column.dtype)
            part[:len(values[at:at + per])] = values[at:at + per]
            yield part.tobytes()

    write_file(str(path), layout, chunks)
    rest.refresh(str(path))
    return path


@pytest.mark.parametrize("code, where", [(2, 0), (-1, 5), (2**31 - 1, 9)])
def test_codes_that_no_class_has(tmp_path: Path, code: int, where: int) -> None:
    codes = np.arange(10) % 2
    codes[where] = code
    schema = Schema((Field("kind", "labels", str), Field("id", "meta", "i8")))
    path = forged(tmp_path / "a.h5", schema, 10, {"kind": codes, "id": np.arange(10)}, {"kind": ("cat", "dog")})
    report = verify(path)
    assert len(report.problems) == 1 and "field 'kind'" in report.problems[0] and "2 classes" in report.problems[0]
    first, last = map(int, re.findall(r"samples (\d+)-(\d+)", report.problems[0])[0])
    assert first <= where <= last
    assert verify(path, repair=tmp_path / "b.h5").salvaged == 9
    with Reader(tmp_path / "b.h5") as reader:
        assert reader["id"][:].tolist() == np.delete(np.arange(10), where).tolist()
        assert reader["kind"][:].tolist() == np.delete(np.array(["cat", "dog"])[np.arange(10) % 2], where).tolist()


@pytest.mark.parametrize("ends, told, whole", [
    ([2, 5, 3, 7, 9, 12], "go.*back or too far", [0, 1, 3, 4, 5]), ([2, 5, 6, 7, 9, 2**40], "too far", [0, 1, 2, 3, 4]),
    ([2, 5, 6, 7, 9, 11], "end at value 11, there are 12", [0, 1, 2, 3, 4, 5]),
])
def test_ends_that_fit_no_values(tmp_path: Path, ends: list[int], told: str, whole: list[int]) -> None:
    path = forged(tmp_path / "a.h5", Schema((Field("s", "features", "f4", (None,)),)), 6,
                  {"s": np.arange(12), "s/ends": np.array(ends, "u8")}, totals={"s": 12})
    report = verify(path, repair=tmp_path / "b.h5")
    assert len(report.problems) == 1 and re.search(f"field 's'.*{told}", report.problems[0])
    with Reader(tmp_path / "b.h5") as reader:
        edges = [0, *ends]
        assert [s.tolist() for s in reader["s"]] == [list(range(edges[i], edges[i + 1])) for i in whole]


# ---- repair


def flip(path: Path, field: str, chunk: int) -> None:
    """Change one byte of a chunk."""
    table = open_store(str(path)).tables[field]
    raw = bytearray(path.read_bytes())
    raw[int(table.offsets[chunk]) + int(table.sizes[chunk]) // 2] ^= 8
    path.write_bytes(raw)


@pytest.mark.parametrize("codec", ["lz4", "gzip", "zstd", None])
def test_a_repair_saves_what_is_whole_in_every_field(tmp_path: Path, codec: str | None) -> None:
    ids, path = np.arange(100), tmp_path / "a.h5"
    pack(path, features={"x": ids[:, None] * np.ones(3000)}, labels={"y": np.array(["a", "b", "ö"])[ids % 3]},
         meta={"id": ids}, progress=False, chunk=8, codec=codec)
    flip(path, "x", 1)
    flip(path, "x", 12)
    before = path.read_bytes()
    report = verify(path, repair=tmp_path / "b.h5")
    assert path.read_bytes() == before
    assert [(d.field, d.chunk, d.first, d.last) for d in report.damaged] == [("x", 1, 8, 15), ("x", 12, 96, 99)]
    assert not report.ok and report.repaired == str(tmp_path / "b.h5") and report.salvaged == 88
    assert "88 samples that are whole" in str(report) and "12 are left out" in str(report)
    whole = np.delete(ids, [*range(8, 16), *range(96, 100)])
    with Reader(tmp_path / "b.h5") as reader:
        assert reader["id"][:].tolist() == whole.tolist()
        assert (reader["x"][:] == whole[:, None]).all()
        assert reader["y"][:].tolist() == np.array(["a", "b", "ö"])[whole % 3].tolist()
    assert verify(tmp_path / "b.h5").ok


def test_a_repair_of_samples_of_any_length(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "a.h5"
    series = [rng.normal(size=n) for n in rng.integers(0, 60, 300)]
    pack(path, features={"s": series}, meta={"id": np.arange(300)}, progress=False, chunk="1KiB")
    flip(path, "s", 3)
    report = verify(path)
    edges = np.concatenate([[0], np.cumsum([len(s) for s in series])])
    per = open_store(str(path)).tables["s"].samples
    lost = [i for i in range(300) if edges[i] < 4 * per and edges[i + 1] > 3 * per and len(series[i])]
    assert [(d.field, d.chunk, d.first, d.last) for d in report.damaged] == [("s", 3, lost[0], lost[-1])]
    assert f"chunk 3 (values {3 * per}-{4 * per - 1})" in report.problems[0]
    assert f"of samples {lost[0]}-{lost[-1]}" in report.problems[0]
    ends = open_store(str(path)).tables["s/ends"]
    if len(ends) > 1:
        flip(path, "s/ends", len(ends) - 1)
        first = (len(ends) - 1) * ends.samples
        lost += range(first, 300)
    report = verify(path, repair=tmp_path / "b.h5")
    whole = [i for i in range(300) if i not in lost]
    assert report.salvaged == len(whole)
    with Reader(tmp_path / "b.h5") as reader:
        assert reader["id"][:].tolist() == whole
        assert all(np.array_equal(found, series[i]) for found, i in zip(reader["s"], whole, strict=True))


@pytest.mark.parametrize("near, step", [(b"\x89HDF", 44), (b"seal", 30), (b"format_version", 3), (b"format\0", 20)],
                         ids=["superblock", "seal", "version", "format"])
def test_a_store_that_does_not_open_any_more_is_saved_too(store: Path, near: bytes, step: int) -> None:
    raw = bytearray(store.read_bytes())
    raw[raw.index(near) + step] ^= 1
    store.write_bytes(raw)
    with pytest.raises(FormatError):
        verify(store)
    report = verify(store, repair=store.with_name("b.h5"))
    assert not report.ok and str(store) in report.problems[0] and report.salvaged == 500
    assert store.read_bytes() == raw
    with Reader(store.with_name("b.h5")) as reader:
        assert reader["n"][:].tolist() == list(range(500))


@pytest.mark.parametrize("keep", [0, 100, 0.5, 0.99])
def test_what_is_cut_short_cannot_be_saved_and_leaves_nothing(store: Path, keep: float) -> None:
    raw = store.read_bytes()
    store.write_bytes(raw[:int(keep if keep > 1 else keep * len(raw))])
    with pytest.raises(FormatError, match=re.escape(str(store))):
        verify(store, repair=store.with_name("b.h5"))
    assert sorted(p.name for p in store.parent.iterdir()) == ["train.h5"]


def test_a_repair_replaces_nothing(store: Path) -> None:
    store.with_name("b.h5").write_text("diary")
    with pytest.raises(StoreExistsError, match="repair replaces nothing"):
        verify(store, repair=store.with_name("b.h5"))
    with pytest.raises(StoreExistsError):
        verify(store, repair=store)
    assert store.with_name("b.h5").read_text() == "diary" and verify(store).ok


def test_other_bytes_are_told_from_samples(store: Path) -> None:
    tables = open_store(str(store)).tables.values()
    raw = bytearray(store.read_bytes())
    at = next(lo for lo, hi in rest.spans(len(raw), tables, (0, 44)) if hi > lo + 8 and lo > 44)
    raw[at + 4] ^= 1
    store.write_bytes(raw)
    try:
        report = verify(store)
    except FormatError:
        return
    assert len(report.problems) == 1 and "outside the chunks" in report.problems[0]
