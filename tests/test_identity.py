"""The same samples are the same, whatever holds them; and a store says where it came from without a clock."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import h5store
from h5store.errors import OptionError

IDS = np.arange(5000)
FIELDS: dict[str, Any] = {
    "features": {"x": (IDS[:, None] * [1.0, 2.5, -3.0]).astype("f4")},
    "labels": {"kind": np.array(["cat", "dög", "yak"])[IDS % 3]},
    "weights": {"w": IDS / 7}, "meta": {"id": IDS}}


def pack(path: Path, fields: dict[str, Any] = FIELDS, **options: Any) -> Path:
    h5store.pack(path, **fields, progress=False, **options)
    return path


def test_chunks_codec_and_cuts_make_no_difference(tmp_path: Path) -> None:
    one = h5store.fingerprint(pack(tmp_path / "a.h5"))
    assert one == h5store.fingerprint(pack(tmp_path / "b.h5", codec=None, chunk=3))
    assert one == h5store.fingerprint(pack(tmp_path / "c.h5", codec="zstd", chunk="1MiB", provenance={"a": 1}))
    with h5store.Writer(tmp_path / "d.h5", codec="gzip") as writer:
        for start in range(0, 5000, 777):
            writer.append(**{role: {name: values[start:start + 777] for name, values in fields.items()}
                             for role, fields in FIELDS.items()})
    assert one == h5store.fingerprint(tmp_path / "d.h5")
    assert one.startswith("xxh3:") and len(one) == 5 + 32


@pytest.mark.parametrize("algorithm", ["xxh3", "sha256"])
@pytest.mark.parametrize("change", ["value", "zero", "order", "text", "name", "role", "dtype", "length"])
def test_any_difference_makes_one(tmp_path: Path, change: str, algorithm: str) -> None:
    other = {role: {name: values.copy() for name, values in fields.items()} for role, fields in FIELDS.items()}
    if change == "value":
        other["features"]["x"][4321, 1] += 1
    elif change == "zero":
        other["features"]["x"][0, 0] = -0.0
    elif change == "order":
        other = {role: {n: v[::-1] for n, v in fields.items()} for role, fields in other.items()}
    elif change == "text":
        other["labels"]["kind"][7] = "yaq"
    elif change == "name":
        other["meta"] = {"number": IDS}
    elif change == "role":
        other["aux"] = other.pop("meta")
    elif change == "dtype":
        other["meta"] = {"id": IDS.astype("i4")}
    else:
        other = {role: {n: v[:-1] for n, v in fields.items()} for role, fields in other.items()}
    assert (h5store.fingerprint(pack(tmp_path / "a.h5"), algorithm=algorithm)
            != h5store.fingerprint(pack(tmp_path / "b.h5", other), algorithm=algorithm))


def test_the_order_of_the_fields_makes_none(tmp_path: Path) -> None:
    with h5store.Writer(tmp_path / "b.h5") as writer:
        writer.append(meta={"id": IDS, "a": IDS})
    with h5store.Writer(tmp_path / "c.h5") as writer:
        writer.append(meta={"a": IDS, "id": IDS})
    assert h5store.fingerprint(tmp_path / "b.h5") == h5store.fingerprint(tmp_path / "c.h5")


def test_views_and_files_of_others_have_one_too(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["x"] = FIELDS["features"]["x"]
        file["id"] = IDS
    with h5store.Reader.from_hdf5(tmp_path / "f.h5", features="x", meta="id") as foreign:
        whole = h5store.fingerprint(foreign)
    few = {"features": FIELDS["features"], "meta": FIELDS["meta"]}
    assert whole == h5store.fingerprint(pack(tmp_path / "a.h5", few))
    some = [7, 3, 4999, 3]
    part = {role: {n: v[some] for n, v in fields.items()} for role, fields in few.items()}
    with h5store.Reader(tmp_path / "a.h5") as reader:
        assert h5store.fingerprint(reader.select(some)) == h5store.fingerprint(pack(tmp_path / "b.h5", part))


def test_the_classes_of_a_view_do_not_count(tmp_path: Path) -> None:
    part = {role: {n: v[:2] for n, v in fields.items()} for role, fields in FIELDS.items()}
    with h5store.Reader(pack(tmp_path / "a.h5")) as reader:
        assert h5store.fingerprint(reader.select([0, 1])) == h5store.fingerprint(pack(tmp_path / "b.h5", part))


def test_sha256_is_had_by_asking(tmp_path: Path) -> None:
    told = h5store.fingerprint(pack(tmp_path / "a.h5"), algorithm="sha256")
    assert told.startswith("sha256:") and len(told) == 7 + 64
    with pytest.raises(OptionError, match="md5.*'xxh3'"):
        h5store.fingerprint(tmp_path / "a.h5", algorithm="md5")


def test_the_same_input_gives_the_same_file_at_any_time_and_place(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    given = {"sources": ["photos/"], "command": "pack.py --size 64"}
    one = pack(tmp_path / "a.h5", provenance=given)
    time.sleep(1.1)  # a clock with seconds would have moved on
    other = pack(tmp_path / "folder" / "b.h5", provenance=given)
    assert hashlib.sha256(one.read_bytes()).digest() == hashlib.sha256(other.read_bytes()).digest()


def test_a_store_says_where_it_came_from(tmp_path: Path) -> None:
    given = {"sources": ["photos/"], "command": "pack.py --size 64"}
    told = h5store.provenance(pack(tmp_path / "a.h5", provenance=given))
    assert {key: told[key] for key in given} == given
    assert told["versions"]["h5store"] == h5store.__version__
    assert told["versions"]["hdf5"] == h5py.version.hdf5_version
    with pytest.raises(OptionError, match="JSON"):
        pack(tmp_path / "b.h5", provenance={"x": object()})
    assert not (tmp_path / "b.h5").exists()


def test_what_is_resumed_and_added_to_keeps_its_origin(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.h5", provenance={"command": "first"})
    pack(path, append=True, provenance={"command": "second"})
    assert h5store.provenance(path)["command"] == "first"
