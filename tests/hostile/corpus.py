"""Files that mean harm, one function each: HDF5 files for `Reader.from_hdf5`, and stores that were tampered with.

A builder gets a folder and the path to make; `CORPUS` says by which door it is opened and what must come of it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t

import h5store
from h5store.storage.layout import seal_of
from h5store.storage.metadata import Metadata, lookup3
from h5store.storage.validate import private

SECRET = "outside.h5"


@dataclass(frozen=True)
class Case:
    """One file: what it is, whether it is opened as a store, and whether an error must come."""

    build: Callable[[Path, Path], None]
    store: bool
    refused: bool = True

    @property
    def name(self) -> str:
        return self.build.__name__


def outside(folder: Path) -> Path:
    """A file that nobody may open."""
    path = folder / SECRET
    with h5py.File(path, "w") as file:
        file["X"] = np.arange(100.0)
    return path


# ---- files of others


def external_link(folder: Path, path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["X"] = h5py.ExternalLink(str(outside(folder)), "/X")


def external_link_behind_a_soft_link(folder: Path, path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["far"] = h5py.ExternalLink(str(outside(folder)), "/")
        file["X"] = h5py.SoftLink("/far/X")


def external_storage(folder: Path, path: Path) -> None:
    (folder / "raw").write_bytes(bytes(800))
    with h5py.File(path, "w") as file:
        file.create_dataset("X", (100,), "f8", external=[(str(folder / "raw"), 0, 800)])


def virtual_dataset(folder: Path, path: Path) -> None:
    layout = h5py.VirtualLayout((100,), "f8")
    layout[:] = h5py.VirtualSource(str(outside(folder)), "X", (100,))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("X", layout)


def soft_link_cycle(folder: Path, path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["X"], file["Y"] = h5py.SoftLink("/Y"), h5py.SoftLink("/X")


def hard_link_cycle(folder: Path, path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_group("a/b")
        file["a/b/a"] = file["a"]


def tiles_without_number(folder: Path, path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("X", (4, 2**30), "u1", chunks=(1, 1), compression="gzip")[0, 0] = 1


def text_that_was_never_written(folder: Path, path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("X", (2**31,), "S1")


def _texts(path: Path, texts: list[str], length: int) -> None:
    """30,000 texts that are the first bytes of few, one after the other and again from the first."""
    with h5py.File(path, "w") as file:
        made = file.create_dataset("X", (30_000,), h5py.string_dtype())
        made[:len(texts)] = texts
        at = made.id.get_offset()
    raw = bytearray(path.read_bytes())
    for i in range(len(texts)):
        struct.pack_into("<I", raw, at + 16 * i, length)
    raw[at:at + 16 * 30_000] = bytes(raw[at:at + 16 * len(texts)]) * (30_000 // len(texts))
    path.write_bytes(raw)


def texts_back_and_forth(folder: Path, path: Path) -> None:
    _texts(path, [chr(65 + i) * 2**20 for i in range(8)], 3)


def texts_that_overlap(folder: Path, path: Path) -> None:
    _texts(path, ["A" * 2**20], 2**20 - 1)


def values_beyond_the_end(folder: Path, path: Path) -> None:
    with h5py.File(path, "w", libver="earliest") as file:
        file.create_dataset("X", data=np.zeros(0xBEEF, "u1"))
    raw, many = path.read_bytes(), struct.pack("<Q", 2**45)
    path.write_bytes(raw.replace(struct.pack("<Q", 0xBEEF), many))


def _with_superblock(path: Path, at: int, value: bytes, **options: int) -> None:
    with h5py.File(path, "w", libver="earliest", **options) as file:
        file["X"] = np.arange(100.0)
    raw = bytearray(path.read_bytes())
    raw[at:at + len(value)] = value
    path.write_bytes(raw)


def driver_of_4_gigabytes(folder: Path, path: Path) -> None:
    _with_superblock(path, 48, struct.pack("<Q", 0x8D))


def driver_behind_a_user_block(folder: Path, path: Path) -> None:
    _with_superblock(path, 512 + 48, struct.pack("<Q", 0x8D), userblock_size=512)


def deep_groups(folder: Path, path: Path) -> None:
    with h5py.File(path, "w") as file:
        at = file["/"]
        for _ in range(3000):
            at = at.create_group("g")


def deflate_bomb(folder: Path, path: Path) -> None:
    import zlib

    with h5py.File(path, "w") as file:
        made = file.create_dataset("X", (64, 1024), "u1", chunks=(64, 1024), compression="gzip")
        made.id.write_direct_chunk((0, 0), zlib.compress(bytes(100 << 20), 1))


def deflate_bomb_in_tiles(folder: Path, path: Path) -> None:
    import zlib

    with h5py.File(path, "w") as file:
        made = file.create_dataset("X", (64, 1024), "u1", chunks=(64, 512), compression="gzip")
        for column in (0, 512):
            made.id.write_direct_chunk((0, column), zlib.compress(bytes(100 << 20), 1))


def short_stream(folder: Path, path: Path) -> None:
    import zlib

    with h5py.File(path, "w") as file:
        made = file.create_dataset("X", (64, 1024), "u1", chunks=(64, 1024), compression="gzip")
        made.id.write_direct_chunk((0, 0), zlib.compress(bytes(100)))


def short_stream_in_tiles(folder: Path, path: Path) -> None:
    import zlib

    with h5py.File(path, "w") as file:
        made = file.create_dataset("X", (64, 1024), "u1", chunks=(64, 512), compression="gzip")
        for column in (0, 512):
            made.id.write_direct_chunk((0, column), zlib.compress(bytes(100)))


def enormous_shape(folder: Path, path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("X", (2**60,), "u1", chunks=(1024,))


def enormous_sample(folder: Path, path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("X", (2, 2**45), "u1", chunks=(1, 1024))


def unknown_filter(folder: Path, path: Path) -> None:
    creation = h5p.create(h5p.DATASET_CREATE)
    creation.set_chunk((10,))
    creation.set_filter(31999, h5py.h5z.FLAG_OPTIONAL, (1,))
    with h5py.File(path, "w") as file:
        made = h5d.create(file.id, b"X", h5t.NATIVE_DOUBLE, h5s.create_simple((10,)), dcpl=creation)
        made.write_direct_chunk((0,), bytes(80))


def object_references(folder: Path, path: Path) -> None:
    with h5py.File(path, "w") as file:
        made = file.create_dataset("X", (10,), h5py.ref_dtype)
        made[0] = file.ref


def sequences_of_any_length(folder: Path, path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("X", (10,), h5py.vlen_dtype("f4"))[0] = [1, 2]


def giant_attribute(folder: Path, path: Path) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        file["X"] = np.arange(10.0)
        file.attrs["big"] = np.zeros(100 << 20, "u1")
        file["X"].attrs["big"] = np.zeros(100 << 20, "u1")


# ---- stores that were tampered with


def make_store(path: Path, codec: object = "gzip") -> None:
    ids = np.arange(60)
    h5store.pack(path, features={"X": (ids[:, None] * np.arange(1.0, 257)).astype("f4")}, aux={"A": ids % 7},
                 labels={"y": np.array(["cat", "dog", "yak"])[ids % 3]}, codec=codec, chunk=16, progress=False,
                 overwrite=True)


def reseal(raw: bytearray, schema: bytes | None = None, table: np.ndarray | None = None) -> None:
    """Put another schema of the same length, or another chunk table, into a store, and make its seal fit."""
    import os
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.write(raw)
        file.flush()
        metadata = Metadata(file.fileno(), len(raw))
        where = {name: private(metadata, name) for name in ("schema", "chunks")}
        old = metadata.attributes(metadata.root)["seal"]
        assert isinstance(old, bytes) and where["schema"] and where["chunks"]
        now_schema = schema or os.pread(file.fileno(), where["schema"].nbytes, where["schema"].offset)
        now_table = table
        if now_table is None:
            data = os.pread(file.fileno(), where["chunks"].nbytes, where["chunks"].offset)
            now_table = np.frombuffer(data, "<u8").reshape(-1, 3)
    assert len(now_schema) == where["schema"].nbytes
    raw[where["schema"].offset:where["schema"].offset + len(now_schema)] = now_schema
    raw[where["chunks"].offset:where["chunks"].offset + now_table.nbytes] = now_table.tobytes()
    at = raw.index(old)
    raw[at:at + 32] = seal_of(now_schema, now_table).encode()
    begin, end = next((b, e) for b, e in blocks(bytes(raw), check=False) if b < at < e)
    raw[end:end + 4] = struct.pack("<I", lookup3(bytes(raw[begin:end])))


def blocks(raw: bytes, check: bool = True) -> list[tuple[int, int]]:
    """[begin, end) of the checksummed object headers of a file; the checksum is the four bytes at end."""
    out, at = [(0, 44)], raw.find(b"OHDR")
    while at >= 0:
        flags = raw[at + 5]
        where = at + 6 + 16 * (flags >> 5 & 1) + 4 * (flags >> 4 & 1)
        width = 1 << (flags & 3)
        end = where + width + int.from_bytes(raw[where:where + width], "little")
        if end + 4 <= len(raw) and lookup3(raw[at:end]) == int.from_bytes(raw[end:end + 4], "little"):
            out.append((at, end))
            out += _continued(raw, at, end, where + width)
        at = raw.find(b"OHDR", at + 4)
    return out


def _continued(raw: bytes, begin: int, end: int, at: int) -> list[tuple[int, int]]:
    found = []
    ordered = 2 * (raw[begin + 5] >> 2 & 1)
    while at + 4 + ordered <= end:
        kind, size = struct.unpack_from("<BH", raw, at)
        if kind == 0x10:
            where, length = struct.unpack_from("<2Q", raw, at + 4 + ordered)
            found.append((where, where + length - 4))
        at += 4 + ordered + size
    return found


def _tampered(path: Path, schema: Callable[[dict], None] | None = None,
              table: Callable[[np.ndarray, int], None] | None = None) -> None:
    make_store(path)
    raw = bytearray(path.read_bytes())
    begin = raw.index(b'{"block"')
    size = json.JSONDecoder().raw_decode(raw[begin:].decode("latin-1"))[1]
    data = json.loads(raw[begin:begin + size])
    if schema is not None:
        schema(data)
    text = json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    rows = None
    if table is not None:
        with h5py.File(path) as file:
            rows = file["_h5store/chunks"][:].astype("<u8")
        table(rows, len(raw))
    reseal(raw, text.ljust(size) if len(text) <= size else None, rows)
    path.write_bytes(raw)


def chunk_past_the_end(folder: Path, path: Path) -> None:
    _tampered(path, table=lambda rows, size: rows.__setitem__((0, 0), size - 3))


def chunk_address_that_wraps(folder: Path, path: Path) -> None:
    _tampered(path, table=lambda rows, size: rows.__setitem__((0, 0), 2**64 - 8))


def chunk_of_another_field(folder: Path, path: Path) -> None:
    _tampered(path, table=lambda rows, size: rows.__setitem__(0, rows[-1].copy()))


def store_of_enormous_length(folder: Path, path: Path) -> None:
    def change(data: dict) -> None:
        data["length"] = 2**60
        data["provenance"] = {}

    _tampered(path, change)


def store_of_enormous_chunks(folder: Path, path: Path) -> None:
    def change(data: dict) -> None:
        data["provenance"] = {}
        data["block"], data["length"] = 2**40, 2**40
        for f in data["fields"]:
            f["chunk"] = 2**40

    _tampered(path, change)


def store_with_negative_numbers(folder: Path, path: Path) -> None:
    def change(data: dict) -> None:
        data["provenance"] = {}
        data["fields"][0]["shape"] = [-8]

    _tampered(path, change)


def store_with_too_few_chunks(folder: Path, path: Path) -> None:
    _tampered(path, lambda data: data.__setitem__("length", 99))


def store_whose_text_is_not_json(folder: Path, path: Path) -> None:
    make_store(path)
    raw = bytearray(path.read_bytes())
    begin = raw.index(b'{"block"')
    size = json.JSONDecoder().raw_decode(raw[begin:].decode("latin-1"))[1]
    reseal(raw, b"[" * size)
    path.write_bytes(raw)


CORPUS = [Case(build, store=False) for build in (
    external_link, external_link_behind_a_soft_link, external_storage, virtual_dataset, soft_link_cycle,
    driver_of_4_gigabytes, driver_behind_a_user_block,
    tiles_without_number, text_that_was_never_written, texts_back_and_forth,
    texts_that_overlap, values_beyond_the_end,
    hard_link_cycle, deep_groups, deflate_bomb, deflate_bomb_in_tiles, short_stream, short_stream_in_tiles,
    enormous_shape, enormous_sample, unknown_filter, object_references, sequences_of_any_length)]
CORPUS += [Case(giant_attribute, store=False, refused=False)]
CORPUS += [Case(build, store=True) for build in (
    chunk_past_the_end, chunk_address_that_wraps, chunk_of_another_field, store_of_enormous_length,
    store_of_enormous_chunks, store_with_negative_numbers, store_with_too_few_chunks, store_whose_text_is_not_json,
    external_link, virtual_dataset, soft_link_cycle, giant_attribute)]
