"""Labels files: every spelling that people have, and every way in which they disagree with a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import h5store
from h5store import sources
from h5store.errors import SourceError
from h5store.sources.labels import typed

Image = pytest.importorskip("PIL.Image")
NAMES = ["first.png", "with space.png", "a,b.png", "naïve 猫.png"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("img").mkdir()
    for i, name in enumerate(NAMES):
        Image.fromarray(np.full((4, 4, 3), i * 10, "u1")).save(f"img/{name}")


def packed(labels: str, **more: object) -> dict[str, np.ndarray]:
    h5store.pack("out.h5", sources.images("img", labels, **more), progress=False, overwrite=True)
    with h5store.Reader("out.h5") as reader:
        found = reader.take(slice(None))
    found["red"] = found.pop("image")[:, 0, 0, 0]
    return found


def test_what_a_spreadsheet_writes_is_read_without_stray_marks() -> None:
    text = "filename, label\r\n" + "".join(
        f'"{name}", {label}\r\n' for name, label in zip(NAMES, ["cat", "dog", "cat", "sea eel"])) + "\r\n"
    for data in (b"\xef\xbb\xbf" + text.encode(), text.encode("utf-16")):
        Path("labels.csv").write_bytes(data)
        found = packed("labels.csv")
        assert found["red"].tolist() == [0, 10, 20, 30]
        assert found["label"].tolist() == ["cat", "dog", "cat", "sea eel"]


@pytest.mark.parametrize("text", [
    "a,b.png 2\nfirst.png 0\nwith space.png 1\nnaïve 猫.png 3\n",
    '"a,b.png";2\nfirst.png;0\nwith space.png;1\nnaïve 猫.png;3\n',
    "file\tlabel\na,b.png\t2\nfirst.png\t0\nwith space.png\t1\nnaïve 猫.png\t3",
    "id,label\n\"a,b\",2\nfirst,0\nwith space,1\nnaïve 猫,3\n",
    "label,image\n2,\"a,b.png\"\n0,./first.png\n1,img/with space.png\n3,naïve 猫.png\n",
], ids=["blanks", "semicolons", "tabs", "no endings", "name second"])
def test_common_spellings_are_read_in_their_own_order(text: str) -> None:
    name = "labels.txt" if text.startswith("a,b.png 2") else "labels.csv"
    # A comma in the first line of a file of blanks is part of a name there.
    if name == "labels.txt":
        text = text.replace("a,b.png 2\n", "") + "a,b.png 2\n"
    Path(name).write_text(text, encoding="utf-8")
    found = packed(name)
    assert found["label"].dtype == np.int64
    assert (found["red"] == found["label"] * 10).all() and len(found["red"]) == 4


def test_columns_take_the_roles_that_are_asked_for() -> None:
    Path("labels.csv").write_text("file,kind,age,patient,weight\n" + "".join(
        f'"{name}",k{i},{i}.5,p{i},1\n' for i, name in enumerate(NAMES)))
    h5store.pack("out.h5", sources.images("img", "labels.csv:kind", aux="age", meta=["patient"], weights="weight"),
                 progress=False)
    with h5store.Reader("out.h5") as reader:
        assert {f.name: str(f.role) for f in reader.schema} == {
            "image": "features", "kind": "labels", "age": "aux", "patient": "meta", "weight": "weights"}
        assert reader["age"][:].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert {"kind", "patient", "weight"} < set(packed("labels.csv", aux="age"))


def disagree() -> None:
    for name in ("b.png", "c.png", "unlisted.png"):
        Image.fromarray(np.full((4, 4, 3), 99, "u1")).save(f"img/{name}")
    Path("labels.csv").write_text(
        'file,label\nfirst.png,0\nwith space.png,1\n"a,b.png",2\nnaïve 猫.png,\nb.png,1\nb.png,1\nc.png,0\nc.png,2\n'
        "gone.png,1\n")


def test_names_and_files_that_disagree_are_all_told() -> None:
    disagree()
    with pytest.raises(SourceError) as error:
        packed("labels.csv")
    message = str(error.value)
    for told in ("gone.png: is named in line 10, but not there",
                 "img/b.png: is named again, with the same values, in lines 6 and 7",
                 "img/c.png: has 'label' '0' and '2' in lines 8 and 9",
                 "img/unlisted.png: has no line in labels.csv", "img/naïve 猫.png: line 5 has no 'label'"):
        assert told in message
    assert not list(Path().glob("out.h5*"))


def test_what_disagrees_is_left_out_on_demand() -> None:
    disagree()
    found = packed("labels.csv", on_error="skip")
    assert found["red"].tolist() == [0, 10, 20, 99]
    assert found["label"].tolist() == [0, 1, 2, 1]
    assert len(Path("out.h5.skipped.csv").read_text().splitlines()) == 6


def test_a_file_with_nothing_in_it_is_told() -> None:
    for text in ("", "filename,label\n"):
        Path("labels.csv").write_text(text)
        with pytest.raises(SourceError, match="no samples"):
            packed("labels.csv")


def test_text_that_is_not_unicode_is_told_with_its_line() -> None:
    Path("labels.csv").write_bytes("file,label\nfirst.png,é\n".encode("latin-1"))
    with pytest.raises(SourceError, match="line 2 is not UTF-8 text"):
        packed("labels.csv")


@pytest.mark.parametrize(("values", "dtype"), [
    (["0", "-12"], np.int64), (["0.5", "1e3"], np.float64), (["1", "2.5"], np.float64), (["007", "012"], object),
    (["cat", "1"], object), (["nan", "1"], object), ([str(2**70), "1"], np.float64), (["1_000", "2"], object),
])
def test_values_are_numbers_where_that_loses_nothing(values: list[str], dtype: object) -> None:
    assert typed(values).dtype == dtype
