"""CSV and Parquet: columns and vectors, types, missing values, and resuming."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import h5store
from h5store import sources
from h5store.errors import SourceError

pyarrow = pytest.importorskip("pyarrow")
N = 50


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarrow import csv, parquet

    monkeypatch.chdir(tmp_path)
    table = pyarrow.table({"a": np.arange(N) / 4, "b": np.arange(N), "kind": [f"k{i % 3}" for i in range(N)],
                           "ok": np.arange(N) % 2 == 0, "one": np.arange(N, dtype="i1")})
    csv.write_csv(table, "t.csv")
    parquet.write_table(table.append_column("v", pyarrow.array([[i, i + 1.0] for i in range(N)])), "t.parquet",
                        row_group_size=8)


def packed(source: object) -> dict[str, np.ndarray]:
    h5store.pack("out.h5", source, progress=False, overwrite=True)
    with h5store.Reader("out.h5") as reader:
        return reader.take(slice(None))


@pytest.mark.parametrize("path", ["t.csv", "t.parquet"])
def test_columns_are_fields_and_several_make_a_vector(path: str) -> None:
    found = packed(sources.table(path, features={"x": ["a", "b"], "ok": "ok"}, aux=["a"], labels="kind"))
    np.testing.assert_array_equal(found["x"], np.column_stack([np.arange(N) / 4, np.arange(N)]))
    assert found["kind"].tolist() == [f"k{i % 3}" for i in range(N)]
    assert found["ok"].dtype == bool and found["ok"].tolist() == [i % 2 == 0 for i in range(N)]


def test_parquet_knows_its_length_types_and_lists() -> None:
    source = sources.table("t.parquet", features=["v", "one"])
    assert source.length == N
    found = packed(source)
    assert found["one"].dtype == np.int8
    assert found["v"].tolist() == [[i, i + 1.0] for i in range(N)]


def test_several_files_are_read_one_after_the_other() -> None:
    for i, name in enumerate(["p10.csv", "p2.csv"]):
        Path(name).write_text(f"y\n{i}\n{i}\n")
    assert packed(sources.table("p*.csv", labels="y"))["y"].tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("path", ["t.csv", "t.parquet"])
def test_a_dtype_that_is_asked_for_is_taken(path: str) -> None:
    found = packed(sources.table(path, features=["a", "b"], labels="one", dtype={"a": "float32", "one": "int16"}))
    assert (found["a"].dtype, found["b"].dtype, found["one"].dtype) == (np.float32, np.int64, np.int16)
    assert packed(sources.table("t.csv", labels="b", dtype={"b": str}))["b"][3] == "3"


def test_what_a_spreadsheet_writes_is_read() -> None:
    Path("s.csv").write_bytes(b"\xef\xbb\xbfx; label\r\n1.5;ja\r\n2;\xc3\xa9\r\n")
    found = packed(sources.table("s.csv", features="x", labels="label"))
    assert found["x"].tolist() == [1.5, 2.0] and found["label"].tolist() == ["ja", "é"]


def test_a_missing_number_is_nan_and_a_missing_whole_number_is_told() -> None:
    Path("m.csv").write_text("x,n\n1.5,1\n,2\n2.5,\n")
    assert np.isnan(packed(sources.table("m.csv", features="x"))["x"][1])
    with pytest.raises(SourceError, match=r"m\.csv: column 'n' has no value in sample 2.*float64"):
        packed(sources.table("m.csv", labels="n"))
    assert np.isnan(packed(sources.table("m.csv", labels="n", dtype={"n": "float64"}))["n"][2])


def test_a_type_that_changes_further_down_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h5store.sources.tables._CSV_BYTES", 100)
    Path("c.csv").write_text("x\n" + "1\n" * 300 + "1.5\n")
    with pytest.raises(SourceError, match=r"c\.csv: .*--dtype column=float64"):
        packed(sources.table("c.csv", features="x"))


@pytest.mark.parametrize(("arguments", "told"), [
    ({"path": "t.csv", "features": "aa"}, "t.csv: no column 'aa'; columns: 'a'"),
    ({"path": "t.parquet", "dtype": {"bb": "f4"}, "labels": "b"}, "no column 'bb'; columns: 'b'"),
    ({"path": "t.csv", "labels": "b", "dtype": {"b": "flaot"}}, "dtype of column 'b': 'flaot' is none"),
    ({"path": "t.csv"}, "no fields named"),
    ({"path": "t.csv", "features": {"x": ["a", "kind"]}}, "columns of different kinds make no vector: 'a' float64, "
                                                          "'kind' text"),
    ({"path": "twice.csv", "features": "x"}, "two columns are named 'x'"),
    ({"path": "empty.csv", "features": "x"}, "no samples"),
    ({"path": "header.csv", "features": "x"}, "no samples"),
    ({"path": "fake.parquet", "features": "x"}, "not a whole Parquet file"),
    ({"path": "nothing.csv", "features": "x"}, "is empty as far as it was read|null"),
    ({"path": "ragged.parquet", "features": "x"}, "its lists have different lengths, e.g. 2 and 1 in sample 1"),
])
def test_mistakes_are_told(arguments: dict[str, object], told: str) -> None:
    from pyarrow import parquet

    Path("twice.csv").write_text("x,x\n1,2\n")
    Path("empty.csv").write_text("")
    Path("header.csv").write_text("x,label\n")
    Path("fake.parquet").write_text("no table")
    Path("nothing.csv").write_text("x,y\n,1\n,2\n")
    parquet.write_table(pyarrow.table({"x": [[1, 2], [1]]}), "ragged.parquet")
    with pytest.raises(SourceError, match=told):
        packed(sources.table(**arguments))
    assert not list(Path().glob("out.h5*"))


@pytest.mark.parametrize("path", ["t.csv", "t.parquet", "*.parquet"])
def test_an_interrupted_pack_resumes_to_the_same_file(
    path: str, resumes: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow import parquet

    monkeypatch.setattr("h5store.sources.tables._CSV_BYTES", 100)
    parquet.write_table(parquet.read_table("t.parquet"), "u.parquet")
    resumes(lambda: sources.table(path, features="a", labels="kind"))
