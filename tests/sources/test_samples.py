"""One sample a file: order, keys, odd files all named at once, and the skipping of them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

import h5store
from h5store import sources
from h5store.errors import OptionError, SourceError


@pytest.fixture(autouse=True)
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "parts"
    folder.mkdir()
    for i in range(1, 13):
        save = np.savez if i % 2 else np.savez_compressed
        save(folder / f"s{i}.npz", x=np.full((3, 2), i, "f4"), y=np.int64(i), name=np.array(f"n{i}"))
    return folder


def source(where: object = "parts", **more: object) -> object:
    return sources.samples(where, **{"features": "x", "labels": "y", **more})


def labels(path: str = "out.h5") -> list[int]:
    with h5store.Reader(path) as reader:
        assert (reader["x"][:, 0, 0] == reader["y"][:]).all(), "x and y are of one file"
        return reader["y"][:].tolist()


@pytest.mark.parametrize("where", ["parts", "parts/*.npz", "parts/**/*.npz", "./parts/s*"])
def test_files_come_in_natural_order(where: str) -> None:
    h5store.pack("out.h5", source(where), progress=False)
    assert labels() == list(range(1, 13))


def test_a_list_keeps_its_order() -> None:
    h5store.pack("out.h5", source(["parts/s10.npz", "parts/s2.npz"]), progress=False)
    assert labels() == [10, 2]


def test_hidden_files_are_no_data(parts: Path) -> None:
    (parts / ".ipynb_checkpoints").mkdir()
    (parts / ".ipynb_checkpoints" / "s1-checkpoint.npz").write_bytes(b"junk")
    (parts / "._s1.npz").write_bytes(b"junk")
    (parts / "notes.txt").write_text("no sample")
    assert source("parts").length == 12
    assert source("parts/**/*.npz").length == 12


def test_keys_are_renamed_and_text_is_a_class() -> None:
    h5store.pack("out.h5", sources.samples("parts", features={"img": "x"}, meta="name"), progress=False)
    with h5store.Reader("out.h5") as reader:
        assert reader["name"][:3].tolist() == ["n1", "n2", "n3"]
        assert reader.schema["img"].shape == (3, 2)


def test_npy_files_have_one_array(tmp_path: Path) -> None:
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", np.full(4, i, ">i2"))
    h5store.pack("out.h5", sources.samples("*.npy", features="x"), progress=False)
    with h5store.Reader("out.h5") as reader:
        assert reader["x"][:, 0].tolist() == [0, 1, 2]
    with pytest.raises(SourceError, match="a .npy file has one array, and 2 fields"):
        h5store.pack("out2.h5", sources.samples("*.npy", features=["x", "y"]), progress=False)


def spoil(parts: Path) -> dict[str, str]:
    """Make files odd, each in its own way; gives what is to be said of each."""
    np.savez(parts / "s3.npz", x=np.full((3, 2), 3, "f4"))
    np.savez(parts / "s4.npz", np.zeros((3, 2), "f4"), np.int64(4))
    np.savez(parts / "s5.npz", x=np.zeros((4, 2), "f4"), y=np.int64(5))
    np.savez(parts / "s6.npz", x=np.zeros((3, 2), "f8"), y=np.int64(6))
    np.savez(parts / "s7.npz", x=np.array([{}], object), y=np.int64(7))
    os.truncate(parts / "s8.npz", 100)
    (parts / "s9.npz").write_bytes(b"")
    return {"s3": "no 'y'; its keys: 'x'", "s4": "no 'x', 'y'; its keys: 'arr_0', 'arr_1'",
            "s5": r"'x' is float32 \(4, 2\), most others are float32 \(3, 2\)", "s6": "'x' is float64",
            "s7": "dtype object.*unpickling", "s8": "cut short", "s9": "empty"}


def test_all_odd_files_are_named_and_nothing_is_begun(parts: Path) -> None:
    told = spoil(parts)
    with pytest.raises(SourceError) as error:
        h5store.pack("out.h5", source(), progress=False)
    message = str(error.value)
    for name, reason in told.items():
        assert re.search(rf"^  parts/{name}\.npz: .*{reason}", message, re.MULTILINE), name
    assert "s10" not in message and "7 of 12 files" in message
    assert not [p for p in os.listdir() if p.startswith("out.h5")]


def test_skipped_files_are_listed_beside_the_store(parts: Path) -> None:
    spoil(parts)
    chosen = source(on_error="skip")
    h5store.pack("out.h5", chosen, progress=False)
    assert labels() == [1, 2, 10, 11, 12]
    lines = Path("out.h5.skipped.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["file", *(f"parts/s{i}.npz" for i in range(3, 10))]
    assert [s.file for s in chosen.skipped] == [f"parts/s{i}.npz" for i in range(3, 10)]


def test_a_file_that_spoils_after_it_was_looked_at_is_named_and_the_rest_resumes(parts: Path) -> None:
    chosen = source()
    chosen.prepare()
    good = (parts / "s7.npz").read_bytes()
    np.savez(parts / "s7.npz", x=np.zeros((9, 9), "f4"), y=np.int64(7))
    with pytest.raises(SourceError, match=r"parts/s7\.npz: 'x' is float32 \(9, 9\).*changed"):
        h5store.pack("out.h5", chosen, progress=False)
    (parts / "s7.npz").write_bytes(good)
    h5store.pack("out.h5", source(), progress=False, resume=True)
    assert labels() == list(range(1, 13))


def test_an_interrupted_pack_resumes_to_the_same_file(resumes: object) -> None:
    resumes(lambda: source(meta="name"))


def test_a_pack_that_skips_resumes_to_the_same_file(parts: Path, resumes: object) -> None:
    # The damage shows only in the values, so that it is found while packing.
    for i in (2, 5, 6):
        np.savez(parts / f"s{i}.npz", x=np.full((3, 2), i, "f4"), y=np.int64(i))
        raw = bytearray((parts / f"s{i}.npz").read_bytes())
        at = raw.index(np.full((3, 2), i, "f4").tobytes())
        raw[at] ^= 1
        (parts / f"s{i}.npz").write_bytes(raw)
    resumes(lambda: source(on_error="skip"))
    assert labels("whole.h5") == [1, 3, 4, 7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize(("arguments", "kind", "told"), [
    ({"where": "prats"}, FileNotFoundError, "no such file, folder or glob; beside it: 'parts'"),
    ({"where": "prats/*.npz"}, FileNotFoundError, "prats: no such folder; beside it: 'parts'"),
    ({"where": "parts/*.npy"}, SourceError, "no samples: found no .npz or .npy files there"),
    ({"on_error": "ignore"}, OptionError, "expected 'stop' or 'skip'"),
    ({"features": None, "labels": None}, SourceError, "no fields named.*keys of s1.npz: 'name', 'x', 'y'"),
])
def test_mistakes_are_told(arguments: dict[str, object], kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        source(**arguments)


def test_large_files_are_looked_at_without_reading_them(parts: Path, tmp_path: Path) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    for i in range(3):
        np.savez(folder / f"{i}.npz", x=np.full((200, 100), i, "f8"), y=np.int64(i))
    h5store.pack("out.h5", sources.samples("large", features="x", labels="y"), progress=False)
    with h5store.Reader("out.h5") as reader:
        assert reader["x"][:, 199, 99].tolist() == [0, 1, 2]
