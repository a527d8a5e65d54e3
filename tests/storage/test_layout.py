"""Where things lie, and what is said of a file that is not a whole store."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h5store import Reader, Writer, pack
from h5store.errors import CorruptChunkError, FormatError, OptionError, SchemaError
from h5store.schema import MAX_AXES, Field, Schema
from h5store.storage.layout import FORMAT, MAX_CHUNK, Layout, parse_chunk, seal_of
from h5store.storage.opening import open_store

# ---- chunks


def plan(*fields: tuple[str, tuple[int, ...]], chunk: Any = "128KiB") -> Layout:
    return Layout.plan(Schema(tuple(Field(f"f{i}", "features", d, s) for i, (d, s) in enumerate(fields))), "lz4", chunk)


def test_the_largest_field_gets_the_size_that_was_asked() -> None:
    layout = plan(("f4", (100, 6)), ("f4", (2,)), ("u1", ()))
    assert layout.block == layout.chunks["f0"] == 131072 // 2400
    # Small fields have larger chunks, of whole blocks: labels do not make millions of chunks.
    assert layout.chunks["f1"] % layout.block == 0 and layout.chunks["f1"] > layout.block
    assert layout.chunks["f2"] % layout.block == 0 and layout.chunks["f2"] <= 16384


@given(st.lists(st.tuples(st.sampled_from(["u1", "f4", "c16"]), st.lists(st.integers(1, 300), max_size=3).map(tuple)),
                min_size=1, max_size=4),
       st.sampled_from([1, 17, 5000, "1KiB", "128KiB", "10MB", "random"]))
def test_chunks_are_blocks_of_whole_samples_within_bounds(fields: list[Any], chunk: Any) -> None:
    try:
        layout = plan(*fields, chunk=chunk)
    except OptionError as error:  # samples a chunk that make one too large
        assert isinstance(chunk, int) and "expected at most" in str(error)
        return
    for field in layout.schema:
        assert layout.chunks[field.name] % layout.block == 0
        assert layout.chunk_shape(field) == (layout.chunks[field.name], *field.shape)
        assert layout.chunks[field.name] * field.nbytes <= MAX_CHUNK
    if isinstance(chunk, int):
        assert layout.block == chunk
        assert chunk == 1 or max(layout.chunks[f.name] * f.nbytes for f in layout.schema) <= 64 << 20


def test_a_sample_larger_than_the_chunk_is_a_chunk() -> None:
    assert plan(("f4", (1000, 1000))).block == 1


def test_a_layout_is_what_its_json_says() -> None:
    layout = plan(("f4", (100, 6)), ("?", ())).finished(1000, {}, {})
    assert Layout.from_json(layout.to_json()) == layout
    for change in ({"block": 0}, {"length": -1}, {"codec": "gzip"}, {"block": layout.block + 1}):
        with pytest.raises(ValueError):
            Layout.from_json({**layout.to_json(), **change})


@pytest.mark.parametrize(("chunk", "size"), [("128KiB", 131072), ("1 MB", 10**6), (2048, None), ("1.5KiB", 1536)])
def test_chunk_sizes(chunk: Any, size: int | None) -> None:
    assert parse_chunk(chunk) == (chunk if size is None else (size,))


def test_the_seal_covers_every_byte_of_schema_and_table() -> None:
    table = np.arange(6, dtype="<u8").reshape(2, 3)
    seals = {seal_of(b"{}", table), seal_of(b"{ }", table), seal_of(b"{}", table + 1), seal_of(b"", table)}
    assert len(seals) == 4


# ---- names and shapes that HDF5 has to hold


def test_any_name_is_a_name(tmp_path: Path) -> None:
    names = ["a", "猫 and 🐈", "with space", ".hidden", "x" * 500, "a.b", "..a", "%s", "\n", '"', "_h5store", "features"]
    pack(tmp_path / "a.h5", features={n: np.full(3, i) for i, n in enumerate(names)}, progress=False)
    with Reader(tmp_path / "a.h5") as reader, h5py.File(tmp_path / "a.h5") as file:
        assert reader.schema.names == tuple(names)
        for i, name in enumerate(names):
            assert (reader[name][:] == i).all() and (file["features"][name][:] == i).all()


def test_the_most_axes(tmp_path: Path) -> None:
    shape = (2,) * 5 + (1,) * (MAX_AXES - 5)
    x = np.arange(3 * 32, dtype="u2").reshape(3, *shape)
    pack(tmp_path / "a.h5", features=x, progress=False)
    with Reader(tmp_path / "a.h5") as reader:
        assert np.array_equal(reader["features"][:], x)
    with pytest.raises(SchemaError, match="has 32 axes, HDF5 holds at most 31"):
        Field("x", "features", "f4", (1,) * 32)


# ---- files that are no whole store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    pack(tmp_path / "train.h5", features={"x": rng.normal(size=(500, 40))}, labels={"y": rng.integers(0, 9, 500)},
         progress=False, chunk="4KiB")
    return tmp_path / "train.h5"


def npz(path: Path) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.zeros(3))
    path.write_bytes(buffer.getvalue())


def npy(path: Path) -> None:
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))


def plain(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(3)


def latest(path: Path) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        file["x"] = np.zeros(3)


def userblock(path: Path) -> None:
    with h5py.File(path, "w", userblock_size=512) as file:
        file["x"] = np.zeros(3)


OTHERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing": (lambda p: None, "no such file; files beside it: 'train.h5'"),
    "empty": (lambda p: p.write_bytes(b""), "not an HDF5 file, it is empty"),
    "text": (lambda p: p.write_text("my diary " * 100), "not an HDF5 file, its first bytes are not HDF5's"),
    "npz": (npz, "not an HDF5 file, it looks like a zip archive such as .npz"),
    "npy": (npy, "not an HDF5 file, it looks like a .npy array"),
    "folder": (lambda p: p.mkdir(), "is a folder, expected an HDF5 file"),
    "pipe": (os.mkfifo, "is not a regular file"),
    "signature": (lambda p: p.write_bytes(b"\x89HDF\r\n\x1a\n"), "cut short|damaged"),
    "another HDF5 file": (plain, r"an HDF5 file, but not a store of h5store; read it with h5store.Reader.from_hdf5\("),
    "a new HDF5 file": (latest, "an HDF5 file, but not a store of h5store"),
    "a user block": (userblock, "an HDF5 file, but not a store of h5store"),
    "unfinished": (lambda p: Path(f"{p}.journal").write_bytes(b""), "not finished; its journal is beside.*resume=True"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_store_is_named(store: Path, kind: str) -> None:
    make, told = OTHERS[kind]
    other = store.with_name("other.h5")
    make(other)
    with pytest.raises((FormatError, FileNotFoundError), match=told) as caught:
        Reader(other)
    assert str(other) in str(caught.value)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read(store: Path) -> None:
    store.chmod(0)
    with pytest.raises(PermissionError):
        Reader(store)


def edited(store: Path, edit: Callable[[h5py.File], None]) -> None:
    with h5py.File(store, "r+") as file:
        edit(file)


def test_a_format_that_is_newer(store: Path) -> None:
    data = store.read_bytes()

    def newer(file: h5py.File) -> None:
        file.attrs.modify("format_version", np.uint32(FORMAT + 1))

    edited(store, newer)
    with pytest.raises(FormatError, match=f"format {FORMAT + 1}, this version of h5store reads 1 to {FORMAT}; upgrade"):
        Reader(store)
    with pytest.raises(FormatError, match="upgrade"):
        Writer(store, append=True)
    store.write_bytes(data)
    with Reader(store) as reader:
        assert len(reader) == 500


def test_a_file_that_is_cut_short_anywhere(store: Path) -> None:
    whole = store.read_bytes()
    sizes = {*range(1, 600, 7), *range(600, len(whole), len(whole) // 60), len(whole) - 1}
    for size in sorted(sizes):
        store.write_bytes(whole[:size])
        with pytest.raises((FormatError, CorruptChunkError)):
            with Reader(store) as reader:
                reader.take(range(500))


def test_a_store_that_another_program_changed(store: Path) -> None:
    pristine = store.read_bytes()
    edits: list[Callable[[h5py.File], None]] = [
        lambda f: f["labels/y"].__setitem__(0, 99),
        lambda f: f.__delitem__("_h5store/schema"),
        lambda f: f.__delitem__("_h5store/chunks"),
        lambda f: f.attrs.__delitem__("seal"),
        lambda f: f["_h5store/schema"].__setitem__(5, 0),
        lambda f: f["_h5store/chunks"].__setitem__((0, 0), 2**63),
        lambda f: f["labels/y"].resize(10, axis=0),
    ]
    for k, edit in enumerate(edits):
        store.write_bytes(pristine)
        edited(store, edit)
        try:
            with Reader(store) as reader:
                found = reader.take(range(500))
            # What h5store does not read may have changed; what it reads is what was packed.
            assert found["y"].shape == (500,) and k in (0, 6)
        except (FormatError, CorruptChunkError):
            pass


def test_links_and_outside_data_are_not_followed(store: Path, tmp_path: Path) -> None:
    pristine = store.read_bytes()
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["schema"] = np.zeros(10, "u1")

    def external(file: h5py.File) -> None:
        del file["_h5store/schema"]
        file["_h5store/schema"] = h5py.ExternalLink(str(secret), "schema")

    def soft(file: h5py.File) -> None:
        file.move("_h5store/schema", "elsewhere")
        file["_h5store/schema"] = h5py.SoftLink("/elsewhere")

    def outside(file: h5py.File) -> None:
        del file["_h5store/schema"]
        file["_h5store"].create_dataset("schema", (10,), "u1", external=[(str(tmp_path / "raw"), 0, 10)])

    (tmp_path / "raw").write_bytes(bytes(10))
    for edit in (external, soft, outside):
        store.write_bytes(pristine)
        edited(store, edit)
        with pytest.raises(FormatError):
            Reader(store)


def test_any_flipped_bit_is_noticed_or_harmless(store: Path) -> None:
    whole = bytearray(store.read_bytes())
    with Reader(store) as reader:
        expected = reader.take(range(500))
    rng = np.random.default_rng(1)
    places = {*rng.integers(0, len(whole), 300).tolist(), *range(0, 700, 5)}
    noticed = 0
    for at in places:
        flip = 1 << int(rng.integers(8))
        whole[at] ^= flip
        store.write_bytes(whole)
        try:
            with Reader(store) as reader:
                found = reader.take(range(500))
            assert all(np.array_equal(found[n], expected[n]) for n in expected), at
        except (FormatError, CorruptChunkError):
            noticed += 1
        whole[at] ^= flip
    assert noticed > 200


def test_a_damaged_chunk_names_its_samples_and_spares_the_others(store: Path) -> None:
    table = open_store(str(store)).tables["x"]
    with open(store, "r+b") as file:
        file.seek(int(table.offsets[2]) + 20)
        file.write(b"????")
    per = table.samples
    with Reader(store) as reader:
        with pytest.raises(CorruptChunkError, match=rf"\['x'\] chunk 2 \(samples {2 * per}-{3 * per - 1}\): checksum"):
            reader.take([2 * per + 1])
        assert reader["x"][:2 * per].shape == (2 * per, 40) and reader["y"][:].shape == (500,)
    with pytest.raises(CorruptChunkError, match="chunk 2"):
        with Writer(store, append=True) as writer:
            writer.append(features={"x": np.zeros((1, 40))}, labels={"y": np.zeros(1, "i8")})


def test_a_copy_is_as_good(store: Path) -> None:
    shutil.copy(store, store.with_name("copy.h5"))
    store.unlink()
    with Reader(store.with_name("copy.h5")) as reader:
        assert len(reader) == 500
