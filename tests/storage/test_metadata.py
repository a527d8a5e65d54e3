"""The parser of HDF5's metadata: agrees with libhdf5 on what a store is made of, and refuses everything else."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from h5py import h5d, h5p, h5s, h5t
from hypothesis import given, settings
from hypothesis import strategies as st

from h5store.storage.metadata import CutShort, Metadata, MetadataError, OtherLayout, lookup3


@contextmanager
def parsed(path: str | Path, **options: Any) -> Iterator[Metadata]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield Metadata(fd, os.fstat(fd).st_size, **options)
    finally:
        os.close(fd)


def create(path: str | Path, **options: Any) -> h5py.File:
    return h5py.File(path, "w", libver=("v110", "v110"), **options)


def plain(group: h5py.Group, name: str, data: np.ndarray) -> None:
    """A dataset in one piece, also an empty one."""
    creation = h5p.create(h5p.DATASET_CREATE)
    creation.set_layout(h5d.CONTIGUOUS)
    made = h5d.create(group.id, name.encode(), h5t.py_create(data.dtype), h5s.create_simple(data.shape), dcpl=creation)
    if data.size:
        made.write(h5s.ALL, h5s.ALL, np.ascontiguousarray(data))


NAMES = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="/\0"), min_size=1, max_size=300
                ).filter(lambda name: name not in (".", ".."))
DATA = st.tuples(st.sampled_from(["u1", "<u8"]), st.lists(st.integers(0, 5), min_size=1, max_size=4))
TREES = st.recursive(DATA, lambda below: st.dictionaries(NAMES, below, max_size=6), max_leaves=12)
# Small enough to be kept in the object header: a store has no other attributes.
VALUES = st.one_of(st.integers(0, 2**64 - 1), st.binary(min_size=1, max_size=64))
ATTRIBUTES = st.dictionaries(NAMES, VALUES, max_size=6)


def build(group: h5py.Group, tree: Any) -> None:
    for name, below in tree.items():
        if isinstance(below, dict):
            build(group.create_group(name), below)
        else:
            plain(group, name, np.arange(np.prod(below[1]), dtype="i8").reshape(below[1]).astype(below[0]))


def compare(metadata: Metadata, address: int, group: h5py.Group) -> None:
    links = metadata.links(address)
    assert set(links) == set(group)
    for name, item in group.items():
        assert links[name] == h5py.h5o.get_info(item.id).addr
        if isinstance(item, h5py.Group):
            compare(metadata, links[name], item)
        else:
            found = metadata.plain(links[name])
            assert found.dtype == item.dtype and found.shape == item.shape and found.nbytes == item.nbytes
            assert not item.size or found.offset == item.id.get_offset()


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(NAMES, TREES, max_size=6), ATTRIBUTES, st.booleans())
def test_it_sees_what_libhdf5_sees(tree: dict[str, Any], attributes: dict[str, int | bytes], tracked: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.h5")
        with create(path, track_order=tracked) as file:
            build(file, tree)
            for name, value in attributes.items():
                file.attrs[name] = np.uint64(value) if isinstance(value, int) else np.bytes_(value)
        with parsed(path) as metadata, h5py.File(path) as file:
            compare(metadata, metadata.root, file)
            told = metadata.attributes(metadata.root)
            assert told == {name: value if isinstance(value, int) else value.rstrip(b"\0")
                            for name, value in attributes.items()}
            for path_of in tree:
                assert metadata.find(path_of) == h5py.h5o.get_info(file[path_of].id).addr
            assert metadata.find("no such", "name") is None


# Of Bob Jenkins' own driver, and of libhdf5, which uses the same.
@pytest.mark.parametrize("text, total", [(b"", 0xDEADBEEF), (b"Four score and seven years ago", 0x17770551)])
def test_the_checksum(text: bytes, total: int) -> None:
    assert lookup3(text) == total


# ---- what is valid HDF5, and no store

def soft_link(file: h5py.File) -> None:
    file["a"] = h5py.SoftLink("/d")


def external_link(file: h5py.File) -> None:
    file["a"] = h5py.ExternalLink("/etc/passwd", "/")


def too_many_links(file: h5py.File) -> None:
    for i in range(40):
        file.create_group(str(i))


def chunked(file: h5py.File) -> None:
    file.create_dataset("d", data=np.arange(90, dtype="u1"), chunks=(9,))


def filtered(file: h5py.File) -> None:
    file.create_dataset("d", data=np.arange(90, dtype="u1"), chunks=(90,), compression="gzip")


def elsewhere(file: h5py.File) -> None:
    file.create_dataset("d", (9,), "u1", external=[("raw", 0, 9)])


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((9,), "u1")
    layout[:] = h5py.VirtualSource("other.h5", "d", (9,))
    file.create_virtual_dataset("d", layout)


def compact(file: h5py.File) -> None:
    creation = h5p.create(h5p.DATASET_CREATE)
    creation.set_layout(h5d.COMPACT)
    h5d.create(file.id, b"d", h5t.STD_U8LE, h5s.create_simple((9,)), dcpl=creation)


def shared_type(file: h5py.File) -> None:
    file["type"] = np.dtype("u1")
    file.create_dataset("d", (9,), file["type"])


def scalar_group(file: h5py.File) -> None:
    file.create_group("d")


def null_space(file: h5py.File) -> None:
    file.create_dataset("d", data=h5py.Empty("u1"))


LINKS = [soft_link, external_link, too_many_links]
OBJECTS = [chunked, filtered, elsewhere, virtual, compact, shared_type, scalar_group, null_space]
DTYPES = ["i1", "<i8", ">u8", "<u2", "<u4", "<f8", "S3", "?", "c16", np.dtype([("a", "u1")])]


@pytest.mark.parametrize("make", LINKS, ids=lambda make: make.__name__)
def test_links_that_lead_elsewhere_are_refused(tmp_path: Path, make: Callable[[h5py.File], None]) -> None:
    with create(tmp_path / "a.h5") as file:
        make(file)
    with parsed(tmp_path / "a.h5") as metadata, pytest.raises(MetadataError):
        metadata.find("a")


@pytest.mark.parametrize("make", OBJECTS, ids=lambda make: make.__name__)
def test_datasets_that_are_not_one_piece_of_this_file_are_refused(
        tmp_path: Path, make: Callable[[h5py.File], None]) -> None:
    with create(tmp_path / "a.h5") as file:
        make(file)
    with parsed(tmp_path / "a.h5") as metadata:
        at = metadata.find("d")
        assert at is not None
        with pytest.raises(MetadataError):
            metadata.plain(at)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_other_dtypes_are_refused(tmp_path: Path, dtype: Any) -> None:
    with create(tmp_path / "a.h5") as file:
        plain(file, "d", np.zeros(9, dtype))
    with parsed(tmp_path / "a.h5") as metadata, pytest.raises(MetadataError, match="unsigned"):
        metadata.plain(metadata.find("d") or 0)


@pytest.mark.parametrize("value", [1.5, np.arange(3), "text of any length", np.bytes_(b"x" * 65)], ids=repr)
def test_other_attributes_are_left_out(tmp_path: Path, value: Any) -> None:
    with create(tmp_path / "a.h5") as file:
        file.attrs["other"], file.attrs["n"] = value, np.uint64(3)
    with parsed(tmp_path / "a.h5") as metadata:
        found = metadata.attributes(metadata.root)
        assert "other" not in found and found["n"] == 3


@pytest.mark.parametrize("options", [{"libver": "earliest"}, {"libver": ("v108", "v108")}, {"userblock_size": 512}],
                         ids=str)
def test_other_beginnings_are_told_from_damage(tmp_path: Path, options: dict[str, Any]) -> None:
    with h5py.File(tmp_path / "a.h5", "w", **{"libver": ("v110", "v110"), **options}) as file:
        plain(file, "d", np.zeros(9, "u1"))
    with pytest.raises(OtherLayout), parsed(tmp_path / "a.h5"):
        pass


# ---- what is no valid HDF5

@pytest.fixture
def whole(tmp_path: Path) -> Path:
    with create(tmp_path / "a.h5") as file:
        plain(file, "d", np.arange(100, dtype="<u8"))
        file.attrs["n"] = np.uint64(7)
        file.attrs["text"] = np.bytes_(b"seven")
    return tmp_path / "a.h5"


def look(path: Path, **options: Any) -> Any:
    with parsed(path, **options) as metadata:
        at = metadata.find("d")
        return at, metadata.attributes(metadata.root), None if at is None else metadata.plain(at)


def header(raw: bytes, address: int) -> tuple[int, int]:
    """(first message, end without the sum) of the object header at a place."""
    flags = raw[address + 5]
    at = address + 6 + 16 * (flags >> 5 & 1) + 4 * (flags >> 4 & 1)
    width = 1 << (flags & 3)
    return at + width, at + width + int.from_bytes(raw[at:at + width], "little")


def forge(path: Path, of_dataset: bool, kind: int, change: Callable[[bytearray, int, int], None]) -> None:
    """Change a message of the root group or the dataset, body at [lo, hi), and make the sum of its header fit."""
    raw = bytearray(path.read_bytes())
    with parsed(path) as metadata:
        address = (metadata.find("d") or 0) if of_dataset else metadata.root
    at, end = header(raw, address)
    step = 6 if raw[address + 5] & 4 else 4
    while raw[at] != kind:
        at += step + struct.unpack_from("<H", raw, at + 1)[0]
        assert at < end, "no such message"
    change(raw, at + step, at + step + struct.unpack_from("<H", raw, at + 1)[0])
    raw[end:end + 4] = struct.pack("<I", lookup3(bytes(raw[address:end])))
    path.write_bytes(raw)


def put(form: str, *values: int, at: int = 0) -> Callable[[bytearray, int, int], None]:
    return lambda raw, lo, hi: struct.pack_into(form, raw, lo + at, *values)


SPACE, TYPE, LINK, LAYOUT = 1, 3, 6, 8
FORGED = {
    "a length that its bytes have not": (True, SPACE, put("<Q", 101, at=4)),
    "a length of 2**64 - 1": (True, SPACE, put("<Q", 2**64 - 1, at=4)),
    "a length that wraps": (True, SPACE, put("<Q", 2**61 + 100, at=4)),
    "255 axes": (True, SPACE, put("<B", 255, at=1)),
    "another version of the shape": (True, SPACE, put("<B", 9)),
    "an element of 7 bytes": (True, TYPE, put("<I", 7, at=4)),
    "an element of 2**32 - 1 bytes": (True, TYPE, put("<I", 2**32 - 1, at=4)),
    "bits left out": (True, TYPE, put("<H", 3, at=8)),
    "values beyond the end": (True, LAYOUT, put("<Q", 2**40, at=2)),
    "values that wrap": (True, LAYOUT, put("<Q", 2**64 - 400, at=2)),
    "more bytes than values": (True, LAYOUT, put("<Q", 808, at=10)),
    "another version of the layout": (True, LAYOUT, put("<B", 5)),
    "another class of layout": (True, LAYOUT, put("<B", 2, at=1)),
    "a link of another version": (False, LINK, put("<B", 2)),
    "a name longer than its message": (False, LINK, lambda raw, lo, hi: raw.__setitem__(hi - 10, 255)),
    "an object that is none": (False, LINK, lambda raw, lo, hi: struct.pack_into("<Q", raw, hi - 8, 9)),
    "an object beyond the end": (False, LINK, lambda raw, lo, hi: struct.pack_into("<Q", raw, hi - 8, 2**63)),
    "an object at the last byte": (False, LINK, lambda raw, lo, hi: struct.pack_into("<Q", raw, hi - 8, len(raw) - 1)),
    "a shared message": (True, TYPE, lambda raw, lo, hi: raw.__setitem__(lo - 1, 2)),
    "a message longer than its block": (True, LAYOUT, lambda raw, lo, hi: struct.pack_into("<H", raw, lo - 3, 60000)),
    "a header that goes on in itself": (True, LAYOUT, lambda raw, lo, hi: (
        raw.__setitem__(lo - 4, 16), struct.pack_into("<2Q", raw, lo, 48, 200))),
    "a header that goes on for 2**64 bytes": (True, LAYOUT, lambda raw, lo, hi: (
        raw.__setitem__(lo - 4, 16), struct.pack_into("<2Q", raw, lo, 48, 2**64 - 1))),
    "a message twice": (True, TYPE, lambda raw, lo, hi: raw.__setitem__(lo - 4, SPACE)),
}


@pytest.mark.parametrize("kind", FORGED)
def test_forged_metadata_whose_sums_fit_are_refused(whole: Path, kind: str) -> None:
    assert look(whole)[2].nbytes == 800
    forge(whole, *FORGED[kind])
    for strict in (True, False):
        with pytest.raises(MetadataError):
            look(whole, strict=strict)


def test_every_changed_byte_of_a_header_is_noticed(whole: Path) -> None:
    raw = whole.read_bytes()
    with parsed(whole) as metadata:
        spans = [(0, 44), *((at, header(raw, at)[1] + 4) for at in (metadata.root, metadata.find("d") or 0))]
    for lo, hi in spans:
        for at in range(lo, hi):
            other = bytearray(raw)
            other[at] ^= 1 << at % 8
            whole.write_bytes(other)
            with pytest.raises(MetadataError):
                look(whole)


@pytest.mark.parametrize("cut", [0, 7, 8, 47, 48, 60, 0.5, 0.999])
def test_a_file_that_ends_early(whole: Path, cut: float) -> None:
    raw = whole.read_bytes()
    whole.write_bytes(raw[:int(cut if cut > 1 else cut * len(raw))])
    with pytest.raises(CutShort):
        look(whole)


def test_a_file_that_was_added_to(whole: Path) -> None:
    with open(whole, "ab") as file:
        file.write(b"more")
    with pytest.raises(MetadataError, match="added to"):
        look(whole)
    assert look(whole, strict=False)[2].nbytes == 800, "what is found is good enough for salvaging"


def test_a_file_that_ends_while_it_is_read(whole: Path) -> None:
    fd = os.open(whole, os.O_RDONLY)
    try:
        metadata = Metadata(fd, os.fstat(fd).st_size)
        os.truncate(whole, 60)
        with pytest.raises(CutShort, match="ends at byte"):
            metadata.links(metadata.root)
    finally:
        os.close(fd)


def test_a_header_of_any_size_takes_no_memory(tmp_path: Path) -> None:
    with create(tmp_path / "a.h5") as file:
        for i in range(7):
            file.attrs[f"large {i}"] = np.zeros(60_000, "u1")
    with parsed(tmp_path / "a.h5") as metadata, pytest.raises(MetadataError, match="larger than any of a store's"):
        metadata.attributes(metadata.root)
