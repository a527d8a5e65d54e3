"""Text fields: words come back as the same words; a model gets codes from a class list that is sorted and stable."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h5store import Reader, Writer, pack
from h5store.errors import SchemaError

# Crashes are played by losing a writer.
pytestmark = pytest.mark.filterwarnings("ignore:.*a Writer was lost without close")

#: Where fsync costs nothing, if there is such a place.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
LABELS = ["cat", "café", "猫", "", "cat ", " cat", "cat\t", "cafe\u0301", "Ωμέγα", "a" * 300, "🐈\u200d⬛", "\ufeffcat",
          "\n"]


def objects(values: list[Any]) -> np.ndarray:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def string_dtype(values: list[str]) -> np.ndarray:
    if not hasattr(np.dtypes, "StringDType"):
        pytest.skip("numpy has no StringDType before 2.0")
    return np.array(values, dtype=np.dtypes.StringDType())


FORMS: dict[str, Callable[[list[str]], Any]] = {
    "U": np.array, "big-endian U": lambda v: np.array(v).astype(f">U{max(map(len, v))}"), "list": list, "tuple": tuple,
    "object": objects, "StringDType": string_dtype, "list of str_": lambda v: [np.str_(x) for x in v],
    "strided": lambda v: np.repeat(np.array(v), 2)[::2],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_text_comes_back_equal(tmp_path: Path, form: str) -> None:
    pack(tmp_path / "a.h5", features=np.zeros(len(LABELS)), labels=FORMS[form](LABELS), progress=False)
    with Reader(tmp_path / "a.h5") as reader:
        found = reader["labels"][:]
        assert found.tolist() == LABELS and found.dtype.kind == "U"
        assert (found == "cat").sum() == 1
        _, codes = reader.batch(range(len(LABELS)))
        classes = reader.schema["labels"].classes
        assert codes.dtype == np.int64 and [classes[c] for c in codes] == LABELS
        assert list(classes) == sorted(LABELS)


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_make_one_file(tmp_path: Path, form: str) -> None:
    with Writer(tmp_path / "a.h5") as writer:
        writer.append(labels=FORMS[form](LABELS[:5]))
        writer.append(labels=FORMS[form](LABELS[5:]))
    pack(tmp_path / "b.h5", labels=LABELS, progress=False)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_words_from_a_json_file(tmp_path: Path) -> None:
    (tmp_path / "y.json").write_text(json.dumps(LABELS), encoding="utf-8")
    pack(tmp_path / "a.h5", labels=json.loads((tmp_path / "y.json").read_text(encoding="utf-8")), progress=False)
    with Reader(tmp_path / "a.h5") as reader:
        assert reader["labels"][:].tolist() == LABELS


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=5)


@settings(max_examples=40)
@given(st.lists(texts, min_size=1, max_size=40), st.integers(0, 40), st.sampled_from(["append", "resume", "no"]))
def test_any_words_cut_anywhere(words: list[str], cut: int, again: str) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        one, two = Path(folder, "one.h5"), Path(folder, "two.h5")
        pack(one, labels=objects(words), chunk=3, progress=False)
        writer = Writer(two, chunk=3)
        writer.append(labels=np.array(words[:cut], str))
        if again == "resume":
            writer.commit()
            del writer
        elif again == "append":
            writer.close()
        with (writer if again == "no" else Writer(two, chunk=3, **{again: True})) as writer:
            writer.append(labels=words[cut:])
        assert one.read_bytes() == two.read_bytes()
        with Reader(one) as reader:
            assert reader["labels"][:].tolist() == words
            assert reader.schema["labels"].classes == tuple(sorted(set(words)))


def test_several_words_a_sample(tmp_path: Path) -> None:
    words = np.array([["a", "b"], ["", "猫"], ["b ", "b"]])
    for name, form in {"U": words, "object": words.astype(object), "lists": words.tolist()}.items():
        pack(tmp_path / name, labels=form, progress=False)
        with Reader(tmp_path / name) as reader:
            assert reader.schema["labels"].shape == (2,) and reader["labels"][:].tolist() == words.tolist()


def test_the_codes_are_plain_integers_for_other_tools(tmp_path: Path) -> None:
    pack(tmp_path / "a.h5", labels=["b", "a", "b"], progress=False, codec="gzip")
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["labels/labels"][:].tolist() == [1, 0, 1] and file["labels/labels"].dtype == "<i4"


def test_text_in_every_role(tmp_path: Path) -> None:
    roles = {role: {f"{role} 猫": np.array([f"{role}{i}" for i in (2, 0, 1)])} for role in ("features", "aux", "meta")}
    pack(tmp_path / "a.h5", **roles, progress=False)
    with Reader(tmp_path / "a.h5") as reader:
        for role, fields in roles.items():
            for name, values in fields.items():
                assert reader[name][:].tolist() == values.tolist()
        (inputs,) = reader.batch([0, 1, 2])
        assert {name: codes.tolist() for name, codes in inputs.items()} == {"features 猫": [2, 0, 1], "aux 猫": [2, 0, 1]}


LONE = "a\ud800"
REFUSED: list[tuple[Any, str]] = [
    (["a", None], r"'labels' sample 2 is None \(NoneType\), expected text"),
    (objects(["a", 3]), r"sample 2 is 3 \(int\)"),
    (objects(["a", float("nan")]), r"sample 2 is nan \(float\)"),
    (objects(["a", b"b"]), r"sample 2 is b'b' \(bytes\)"),
    (np.array([b"a", b"b"]), "has dtype .S1, expected text"),
    (["a", 3], r"sample 2 is 3 \(int\)"),
    (["a\0b", "c"], r"holds 'a\\x00b': text with a NUL"),
    (["a\0", "c"], r"holds 'a\\x00': text with a NUL"),
    (np.array(["a\0b"]), "text with a NUL"),
    (objects(["c", "\0"]), "text with a NUL"),
    (["b", LONE], "not valid Unicode .surrogates not allowed.; decode its bytes"),
    (objects([LONE]), "not valid Unicode"),
    ("words", "'labels' is str, expected an array or a list"),
    (np.array("word"), "'labels' is a scalar"),
    ([["a", "b"]], r"'labels' has shape \(1, 2\), expected \(n,\)"),
    ([["a"], ["b", "c"]], "do not make one array|has shape|sample"),
]


@pytest.mark.parametrize(("values", "told"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_is_no_text_is_refused_by_name_and_place(tmp_path: Path, values: Any, told: str) -> None:
    with Writer(tmp_path / "a.h5") as writer:
        writer.append(labels=["first"])
        with pytest.raises(SchemaError, match=told):
            writer.append(labels=values)
        writer.append(labels=["last"])
    with Reader(tmp_path / "a.h5") as reader:
        assert reader["labels"][:].tolist() == ["first", "last"]
        assert reader.schema["labels"].classes == ("first", "last")


@pytest.mark.parametrize(("values", "told"), [
    (objects(["a", 3]), "sample 1 is 3"), ([None, "a"], "Python objects .NoneType, str."),
    (np.array([b"a"]), r"dtype .S1 is not stored.*numpy.char.decode"), ([b"a"], "numpy.char.decode"),
    (["a\0"], "NUL"), ([LONE], "Unicode"), (["a", 1.5], "sample 1 is 1.5"), ([1, "a"], "Python objects .int, str."),
])
def test_a_first_block_of_no_text_is_refused_with_the_way_out(tmp_path: Path, values: Any, told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        pack(tmp_path / "a.h5", labels=values, progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy 2.0's")
@pytest.mark.parametrize("missing", [None, np.nan])
def test_missing_words_of_numpys_string_dtype_are_refused(tmp_path: Path, missing: Any) -> None:
    values = np.array(["b", "a", missing], dtype=np.dtypes.StringDType(na_object=missing))
    with pytest.raises(SchemaError, match="sample 2 is (nan|None)"):
        pack(tmp_path / "a.h5", labels=values, progress=False)
    values = np.array(["b", "a\0"], dtype=np.dtypes.StringDType())
    with pytest.raises(SchemaError, match="NUL"):
        pack(tmp_path / "a.h5", labels=values, progress=False)


def test_tables_of_pandas(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": np.arange(3, dtype="f4"), "b": [2.5, 0, 1], "word": ["x", "猫", ""],
                              "kind": pandas.Categorical(["u", "v", "u"])})
    pack(tmp_path / "a.h5", features={"a": table["a"], "ab": table[["a", "b"]]},
         labels={"word": table["word"], "kind": table["kind"]}, progress=False)
    with Reader(tmp_path / "a.h5") as reader:
        assert reader["a"][:].dtype == "f4" and reader["ab"][:].tolist() == [[0, 2.5], [1, 0], [2, 1]]
        assert reader["word"][:].tolist() == ["x", "猫", ""] and reader["kind"][:].tolist() == ["u", "v", "u"]
    for column in (pandas.Series(["a", None]), pandas.array([1, None]), pandas.Series(["a", np.nan], dtype="string"),
                   table):
        with pytest.raises(SchemaError):
            pack(tmp_path / "b.h5", labels=column, progress=False)
    assert not (tmp_path / "b.h5").exists()
