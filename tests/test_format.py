"""The format page against the code: its tables and its example are parsed, and a reader is written from it alone."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
import xxhash

from h5store import Reader, Writer, pack
from h5store.schema import CODE_DTYPE, ENDS_DTYPE, MAX_AXES, Encoded, Field, Role, checked_dtype
from h5store.storage import journal, notes
from h5store.storage.codecs import Codec
from h5store.storage.layout import FORMAT, PRIVATE, REST_BYTES
from h5store.storage.opening import journal_path

# Crashes are played by losing a writer.
pytestmark = pytest.mark.filterwarnings("ignore:.*a Writer was lost without close")

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "format.md").read_text("utf-8")
WORDS = np.array(["SN Ia", "猫", "RRLyr"])


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.split(f"\n## {title}\n", 1)[1], flags=re.M)[0]


def table(title: str, header: str) -> dict[str, str]:
    """First column -> the rest, of the table in a section whose header row begins so."""
    lines = section(title).split(f"| {header} |", 1)[1].splitlines()[2:]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])] for line in lines[:lines.index("")]]
    return {row[0].strip("`"): " | ".join(row[1:]) for row in rows}


def values() -> dict[str, Any]:
    """The store of the page's example."""
    rng = np.random.default_rng(0)
    return {
        "features": {"flux": rng.normal(size=(100, 50, 2)).astype("f4")},
        "labels": {"class": WORDS[np.arange(100) % 3]},
        "meta": {"times": [np.arange(i % 4 + 1, dtype="f4") for i in range(100)]},
    }


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "train.h5"
    pack(path, **values(), codec="gzip", chunk=8, provenance={"sources": ["curves/"]}, progress=False)
    return path


def schema_of(path: Path) -> dict[str, Any]:
    with h5py.File(path) as file:
        found: dict[str, Any] = json.loads(file["_h5store/schema"][()].tobytes())
        return found


# ---- tables


def test_constants() -> None:
    assert {k: v.strip("`") for k, v in table("Constants", "name").items()} == {
        "format version": str(FORMAT), "journal version": str(journal.VERSION), "journal magic": journal.MAGIC.decode(),
        "private group": PRIVATE, "most axes of a sample": str(MAX_AXES), "text code": CODE_DTYPE.str,
        "end of a variable-length sample": ENDS_DTYPE.str, "digest bytes": str(REST_BYTES),
        "journal suffix": journal_path(""), "lock suffix": ".lock", "suffix while sealing": ".sealing"}


def test_every_object_of_a_file_is_on_the_page_and_the_other_way_round(store: Path) -> None:
    notes.write(store, {"a": b"1"})
    found: dict[str, Any] = {}
    with h5py.File(store) as file:
        file.visititems(lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None)
        assert all(item.chunks if name.count("/") == 2 or name.split("/")[0] != PRIVATE else item.chunks is None
                   for name, item in found.items())
        assert not any(item.id.get_create_plist().get_obj_track_times() for item in found.values())
    generic = {re.sub(r"^_h5store/ends/.*", "_h5store/ends/<field>", name) for name in found}
    generic = {name if name.startswith(PRIVATE) else "<role>/<field>" for name in generic}
    assert {f"/{name}" for name in generic} == set(table("Objects", "path"))


def test_attributes_and_superblock(store: Path) -> None:
    said = table("Objects", "name")
    with h5py.File(store) as file:
        assert set(file.attrs) == set(said)
        assert file.attrs["format"] == b"h5store" and said["format"].startswith("`h5store`")
        assert file.attrs["format_version"] == FORMAT and file.attrs["format_version"].dtype == np.uint32
        assert re.fullmatch(rb"[0-9a-f]{32}", file.attrs["seal"])
    head = store.read_bytes()[:12]
    assert head[:8] == b"\x89HDF\r\n\x1a\n" and head[8] == 3 and head[9:11] == b"\x08\x08"


def test_roles() -> None:
    assert re.findall(r"`(\w+)`", section("Field datasets").split(";")[0]) == [str(r) for r in Role]


def test_dtypes(tmp_path: Path) -> None:
    said = [name.replace("\\", "") for row in table("Field datasets", "dtype") for name in row.replace("`", "").split()]
    accepted = {checked_dtype("x", code).str for code in "?bhilqBHILQefdgFDG"}
    assert set(said) == accepted, "all dtypes that are stored, and no other"
    pack(tmp_path / "a.h5", features={name: np.ones(3, name) for name in said}, progress=False)
    with h5py.File(tmp_path / "a.h5") as file:
        for name in said:
            assert file["features"][name].dtype.str == name
        assert h5py.check_enum_dtype(file["features"]["|b1"].id.dtype) in (None, {"FALSE": 0, "TRUE": 1})
    by_name = {f["name"]: f for f in schema_of(tmp_path / "a.h5")["fields"]}
    assert {name for name in said if "mantissa" in by_name[name]} == {"<f16", "<c32"} & set(said)


@pytest.mark.parametrize("itemsize", [1, 4])
def test_filters(itemsize: int) -> None:
    said = table("Field datasets", "codec")
    assert [name.partition(":")[0] for name in said] == ["none", "lz4", "gzip", "zstd"]
    for name, text in said.items():
        filters = Codec.parse(name.replace("L", "7")).filters(itemsize, (3,))
        text = re.sub(r"\[(.*?)\]", r"\1" if itemsize > 1 else "", text)
        known = {"itemsize": itemsize, "L": 7}
        expected = [(int(number), [known.get(v.strip(" *"), v.strip()) for v in numbers.split(",")])
                    for number, numbers in re.findall(r"(\d+) \((.*?)\)", text)]
        assert [number for number, _ in expected] == [number for number, _ in filters]
        for (_, said_values), (_, real) in zip(expected, filters):
            assert len(said_values) == len(real)
            assert all(str(a) == str(b) or str(a).startswith("*") for a, b in zip(said_values, real))


def test_the_example_is_a_real_schema(store: Path) -> None:
    example = json.loads(section("Schema").split("```json\n", 1)[1].split("```", 1)[0])
    found = schema_of(store)
    assert set(found["provenance"]["versions"]) == {"h5store", "hdf5", "hdf5plugin", "numcodecs", "numpy"}
    found["provenance"]["versions"] = {}
    assert found == example
    assert set(found) == set(table("Schema", "key"))
    keys = {key for field in found["fields"] for key in field} | {"mantissa", "encoded"}
    assert keys == set(table("Schema", "key of a field"))


def test_the_keys_of_encoded_images() -> None:
    field = Field("image", "features", np.dtype("u1"), (None,), encoded=Encoded((4, 5, 3), "|u1"))
    said = re.findall(r"`(\w+)`", table("Schema", "key of a field")["encoded"])
    assert set(field.to_json()["encoded"]) == set(said)
    assert Field.from_json(json.loads(json.dumps(field.to_json()))) == field


def test_the_schema_is_canonical(store: Path) -> None:
    with h5py.File(store) as file:
        raw = file["_h5store/schema"][()].tobytes()
    text = json.dumps(json.loads(raw), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert raw == text.encode("utf-8") and "猫" in text


def test_unknown_keys_and_objects_are_ignored(store: Path) -> None:
    """What a later version adds beside what is here does not stop this one."""
    with h5py.File(store, "r+", libver=("v110", "v110")) as file:
        schema = json.loads(file["_h5store/schema"][()].tobytes())
        schema["new"] = schema["fields"][0]["new"] = [1, {"a": 2}]
        raw = json.dumps(schema, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
        del file["_h5store/schema"]
        file["_h5store/schema"] = np.frombuffer(raw, "u1")
        file["_h5store/shards"] = np.zeros(3)
        seal = xxhash.xxh3_128(b"h5store 1\0" + raw + file["_h5store/chunks"][()].tobytes()).hexdigest()
        file.attrs.modify("seal", np.bytes_(seal.encode()))
    with Reader(store) as reader:
        assert len(reader) == 100 and reader["class"][:3].tolist() == WORDS.tolist()


# ---- a reader from the page alone


def read_by_the_page(path: Path) -> dict[str, Any]:
    """Every field of a store, checked."""
    raw = path.read_bytes()
    with h5py.File(path, "r") as file:
        schema_bytes, rows = file["_h5store/schema"][()].tobytes(), file["_h5store/chunks"][()]
        assert file.attrs["format"] == b"h5store" and file.attrs["format_version"] <= 1
        seal = xxhash.xxh3_128(b"h5store 1\0" + schema_bytes + rows.astype("<u8").tobytes())
        assert seal.hexdigest().encode() == file.attrs["seal"]
        for offset, size, sum_ in rows.tolist():
            assert xxhash.xxh3_64_intdigest(raw[offset:offset + size]) == sum_
        schema, out, at = json.loads(schema_bytes), {}, 0
        for field in schema["fields"]:
            data = file[field["role"]][field["name"]]
            parts = [(data, field["chunk"])]
            if "ends" in field:
                ends_data = file["_h5store/ends"][field["name"]]
                parts.append((ends_data, field["ends"]["chunk"]))
            for part, chunk in parts:
                count = -(-len(part) // chunk)
                for k in range(count):  # the table and HDF5's index say the same
                    where = part.id.get_chunk_info_by_coord((k * chunk, *[0] * (part.ndim - 1)))
                    assert (where.byte_offset, where.size) == tuple(rows[at + k, :2]) and where.filter_mask == 0
                at += count
            found = data[()]
            assert found.dtype == field["dtype"]
            if "classes" in field:
                assert field["classes"] == sorted(set(field["classes"]))
                found = np.array(field["classes"], dtype=str)[found]
            if "ends" in field:
                ends = ends_data[()].tolist()
                found = [found[lo:hi] for lo, hi in zip([0, *ends], ends)]
                assert len(data) == field["rows"]
            assert len(found) == schema["length"]
            out[field["name"]] = found
        assert at == len(rows)
        hole = file["_h5store/rest"].id.get_offset()
        digest, edge = xxhash.xxh3_128(), 0
        for lo, size in sorted([*rows[:, :2].tolist(), [hole, 16]]) + [[len(raw), 0]]:
            if lo > edge:
                digest.update(struct.pack("<2Q", edge, lo) + raw[edge:lo])
            edge = lo + size
        assert digest.digest() == raw[hole:hole + 16]
    return out


@pytest.mark.parametrize("codec", ["lz4", "gzip:9", "zstd", None])
def test_a_reader_written_from_the_page_reads_every_value(tmp_path: Path, codec: Any) -> None:
    given = values()
    pack(tmp_path / "a.h5", **given, codec=codec, chunk=8, progress=False)
    pack(tmp_path / "a.h5", **{**given, "labels": {"class": ["new"] * 100}}, progress=False, append=True)
    found = read_by_the_page(tmp_path / "a.h5")
    assert np.array_equal(found["flux"], np.concatenate([given["features"]["flux"]] * 2))
    assert found["class"].tolist() == [*given["labels"]["class"], *["new"] * 100]
    assert all(np.array_equal(a, b) for a, b in zip(found["times"], given["meta"]["times"] * 2))


def test_notes(store: Path) -> None:
    notes.write(store, {"split": b"first", "a": b"", "猫": bytes(range(9))})
    with h5py.File(store) as file:
        data = file["_h5store/notes"][()].tobytes()
    size, sum_ = struct.unpack_from("<2Q", data)
    assert xxhash.xxh3_64_intdigest(data[16:16 + size]) == sum_
    index, at, found = json.loads(data[16:16 + size]), 16 + size, {}
    for key, (length, sum_) in sorted(index.items()):
        found[key] = data[at:at + length]
        assert xxhash.xxh3_64_intdigest(found[key]) == sum_
        at += length
    assert found == {"split": b"first", "a": b"", "猫": bytes(range(9))} and at == len(data)
    read_by_the_page(store)


# ---- the journal


def frames_by_the_page(data: bytes) -> list[bytes]:
    rows = table("Journal", "offset")
    head = struct.Struct("<" + "".join(row.split("`")[1] for row in rows.values()))
    assert [int(offset) for offset in rows] == [0, 4, 8, 16, 24] and head.size == 32
    out, at = [], 0
    while at < len(data):
        magic, version, number, length, sum_ = head.unpack_from(data, at)
        payload = data[at + 32:at + 32 + length]
        assert (magic, version, number) == (b"HSJF", 1, len(out))
        assert xxhash.xxh3_64_intdigest(struct.pack("<2Q", number, length) + payload) == sum_
        out.append(payload)
        at += 32 + length
    return out


def test_a_journal_read_from_the_page_holds_every_sample(tmp_path: Path) -> None:
    path, given = tmp_path / "train.h5", values()
    with Writer(path, chunk=8, codec=None) as writer:
        writer.append(**{role: {n: v[:21] for n, v in fields.items()} for role, fields in given.items()})
    with h5py.File(path) as file:
        seal = file.attrs["seal"].decode()
    writer = Writer(path, append=True)
    for lo, hi in [(21, 22), (22, 80), (80, 100)]:
        writer.append(**{role: {n: v[lo:hi] for n, v in fields.items()} for role, fields in given.items()})
        writer.commit()
    head, *later = frames_by_the_page(Path(f"{path}.journal").read_bytes())
    del writer
    header = json.loads(head)
    assert set(header) == set(table("Journal", "key"))
    assert header["base"] == seal and header["before"] == 21 and header["fields"] == ["flux", "class", "times",
                                                                                      "times/ends"]
    described = re.findall(r"^\| `(\w+)` ", section("Journal").split("Every later payload")[1], flags=re.M)
    chunks: dict[str, bytes] = {name: b"" for name in header["fields"]}
    rows: dict[str, bytes] = {name: b"" for name in header["fields"]}
    classes = header["layout"]["fields"][1]["classes"]
    for payload in later:
        (size,) = struct.unpack_from("<I", payload)
        meta, at = json.loads(payload[4:4 + size]), 4 + size
        assert set(meta) == set(described)
        for name in header["fields"]:
            for stored in meta["chunks"].get(name, []):
                chunks[name], rows[name], at = chunks[name] + payload[at:at + stored], b"", at + stored
            more = meta["rows"].get(name, 0)
            rows[name], at = rows[name] + payload[at:at + more], at + more
        classes = classes + meta["classes"].get("class", [])
        assert at == len(payload)
    assert meta["length"] == 100
    flux = np.frombuffer(chunks["flux"] + rows["flux"], "<f4").reshape(-1, 50, 2)
    assert np.array_equal(flux, given["features"]["flux"][100 - len(flux):]) and len(flux) >= 79
    codes = np.frombuffer(chunks["class"] + rows["class"], "<i4")
    assert np.array(classes)[codes].tolist() == given["labels"]["class"][100 - len(codes):].tolist()
    ends = np.frombuffer(rows["times/ends"], "<u8")
    assert ends[-1] == 250 and len(ends) == 79


# ---- other tools


@pytest.mark.skipif(shutil.which("h5dump") is None, reason="HDF5's own tools are not installed")
@pytest.mark.parametrize("codec", ["gzip", "lz4"])
def test_hdf5s_own_tools_see_the_values(tmp_path: Path, codec: str) -> None:
    pack(tmp_path / "a.h5", features=np.arange(20, dtype="i4"), codec=codec, progress=False)
    done = subprocess.run(["h5dump", "-d", "/features/features", "-y", "-w", "1000", str(tmp_path / "a.h5")],
                          env={"HDF5_PLUGIN_PATH": hdf5plugin.PLUGIN_PATH, "PATH": "/usr/bin:/bin"},
                          capture_output=True, text=True, check=True)
    assert ", ".join(map(str, range(20))) in " ".join(done.stdout.split())
    listed = subprocess.run(["h5ls", "-r", str(tmp_path / "a.h5")], capture_output=True, text=True, check=True).stdout
    assert re.search(r"/features/features\s+Dataset \{20/Inf\}", listed)


def test_a_field_from_the_page_is_a_field_of_the_code() -> None:
    example = json.loads(section("Schema").split("```json\n", 1)[1].split("```", 1)[0])
    fields = [Field.from_json(f) for f in example["fields"]]
    assert [f.describe() for f in fields] == ["float32 (50, 2)", "text ()", "float32 (None,)"]
