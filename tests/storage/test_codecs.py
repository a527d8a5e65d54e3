"""One chunk in, the same chunk out; other bytes are an error, never a chunk; nothing is written past its end."""

from __future__ import annotations

import itertools
import struct
import threading
import zlib
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h5store.errors import OptionError
from h5store.storage import codecs, pool
from h5store.storage.codecs import BLOSC, DEFLATE, FLETCHER32, LZ4, SHUFFLE, ZSTD, Codec, DecodeError

NAMES = ["lz4", "gzip", "gzip:9", "zstd", "zstd:19", None]


def chunk(dtype: str = "f4", shape: tuple[int, ...] = (100, 6)) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.integers(0, 50, shape) / 8).astype(dtype)


def encoded(filters: Any, values: np.ndarray) -> bytes:
    out: bytes = pool.submit(codecs.encode, filters, values).result()
    return out


def decoded(filters: Any, stored: bytes, like: np.ndarray, slack: int = 64) -> np.ndarray:
    """Decodes into the middle of a larger buffer, and looks whether its edges are as they were."""
    room = np.full(like.nbytes + 2 * slack, 0xA5, np.uint8)
    out = room[slack:slack + like.nbytes]
    try:
        codecs.decode(filters, np.frombuffer(bytearray(stored), np.uint8), out)
    finally:
        assert (room[:slack] == 0xA5).all() and (room[slack + like.nbytes:] == 0xA5).all(), "written past the end"
    return out.view(like.dtype).reshape(like.shape)


# ---- names


@pytest.mark.parametrize(("spec", "name", "level"), [
    ("lz4", "lz4", None), ("gzip", "gzip", 4), ("gzip:9", "gzip", 9), (("zstd", 19), "zstd", 19),
    (["gzip", 1], "gzip", 1),
    (None, "none", None), ("none", "none", None), ("ZSTD:22", "zstd", 22), (("gzip", np.int64(3)), "gzip", 3),
])
def test_codecs_are_named_as_people_write_them(spec: Any, name: str, level: int | None) -> None:
    codec = Codec.parse(spec)
    assert (codec.name, codec.level) == (name, level)
    assert Codec.parse(str(codec)) == codec == Codec.parse(codec)


@pytest.mark.parametrize(("spec", "told"), [
    ("gziip", "no codec 'gziip'; codecs: 'gzip', .*or None"), ("gzip:10", "'gzip' takes a level from 1 to 9, got '10'"),
    (("zstd", 0), "from 1 to 22, got 0"), ("lz4:1", "'lz4' has no levels"), (3, "no codec 3"), (b"gzip", "no codec"),
    (("gzip", None, 1), "no codec"), ("gzip:x", "got 'x'"), ({}, "no codec"),
])
def test_unknown_codecs_and_levels_are_refused(spec: Any, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        Codec.parse(spec)


# ---- round trips


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "f4", "f8", "c16", "G"])
@pytest.mark.parametrize("shape", [(1,), (7,), (100, 6), (3, 5, 7), (5, 2000)])
def test_a_chunk_comes_back(name: str | None, dtype: str, shape: tuple[int, ...]) -> None:
    values = chunk(dtype, shape)
    filters = Codec.parse(name).filters(values.itemsize, shape[1:])
    stored = encoded(filters, values)
    assert decoded(filters, stored, values).tobytes() == values.tobytes()
    assert encoded(filters, values) == stored, "same chunk, same bytes"
    assert codecs.unsupported(filters) is None


@settings(max_examples=60)
@given(st.binary(min_size=1, max_size=3000), st.sampled_from(NAMES), st.sampled_from([1, 2, 4, 8, 16]))
def test_any_bytes_come_back(data: bytes, name: str | None, size: int) -> None:
    values = np.frombuffer(data * size, f"V{size}" if size == 16 else f"u{size}")
    filters = Codec.parse(name).filters(size, ())
    assert decoded(filters, encoded(filters, values), values).tobytes() == values.tobytes()


@pytest.mark.parametrize("name", NAMES[:-1])
def test_threads_make_the_same_bytes(name: str) -> None:
    values = [chunk("f4", (200, 50 + i)) for i in range(8)]
    filters = [Codec.parse(name).filters(4, v.shape[1:]) for v in values]
    alone = [encoded(f, v) for f, v in zip(filters, values)]
    found: dict[int, list[bytes]] = {}

    def work(k: int) -> None:
        found[k] = [codecs.encode(f, v) for f, v in zip(filters, values)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(part == alone for part in found.values()) and len(found) == 4


@pytest.mark.parametrize("name", NAMES[:-1])
def test_what_we_encode_hdf5_decodes(name: str, tmp_path: Any) -> None:
    values = chunk()
    filters = Codec.parse(name).filters(4, values.shape[1:])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_chunk(values.shape)
        for number, numbers in filters:
            creation.set_filter(number, h5py.h5z.FLAG_MANDATORY, numbers)
        space = h5py.h5s.create_simple(values.shape)
        h5py.h5d.create(file.id, b"x", h5py.h5t.py_create(values.dtype), space, dcpl=creation)
        file["x"].id.write_direct_chunk((0, 0), encoded(filters, values))
        assert np.array_equal(file["x"][:], values)


FOREIGN = {
    "gzip": {"compression": "gzip"}, "gzip+shuffle": {"compression": "gzip", "shuffle": True},
    "gzip+shuffle+fletcher32": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "fletcher32": {"fletcher32": True}, "shuffle": {"shuffle": True}, "lz4": hdf5plugin.LZ4(),
    "lz4 blocks": hdf5plugin.LZ4(256), "zstd": hdf5plugin.Zstd(),
    **{f"blosc {c} {s}": hdf5plugin.Blosc(cname=c, shuffle=s)
       for c, s in itertools.product(["lz4", "lz4hc", "zlib", "zstd", "blosclz"], [0, 1, 2])},
}


@pytest.mark.parametrize("how", FOREIGN)
@pytest.mark.parametrize("dtype", ["u1", "f4", "i8"])
def test_what_hdf5_encodes_we_decode(how: str, dtype: str, tmp_path: Any) -> None:
    values = chunk(dtype, (100, 11))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("x", data=values, chunks=values.shape, **FOREIGN[how])
        mask, stored = data.id.read_direct_chunk((0, 0))
        creation = data.id.get_create_plist()
        filters = tuple((f[0], f[2]) for f in map(creation.get_filter, range(creation.get_nfilters())))
    assert codecs.unsupported(filters) is None
    assert np.array_equal(decoded(codecs.masked(filters, mask), stored, values), values)


# ---- damage


ALL = {**{str(n): Codec.parse(n).filters(4, (6,)) for n in NAMES},
       "fletcher32": ((SHUFFLE, (4,)), (DEFLATE, (4,)), (FLETCHER32, ()))}


def stored_by(name: str, values: np.ndarray) -> bytes:
    if name != "fletcher32":
        return encoded(ALL[name], values)
    file = h5py.File.in_memory()
    data = file.create_dataset("x", data=values, chunks=values.shape, compression=4, shuffle=True, fletcher32=True)
    return bytes(data.id.read_direct_chunk((0, 0))[1])


@pytest.mark.parametrize("name", ALL)
def test_a_stream_cut_anywhere_is_an_error(name: str) -> None:
    values = chunk()
    stored = stored_by(name, values)
    for size in {*range(0, min(200, len(stored))), *range(0, len(stored), 37)}:
        with pytest.raises(DecodeError):
            decoded(ALL[name], stored[:size], values)


@pytest.mark.parametrize("name", ALL)
def test_a_stream_of_another_length_is_an_error(name: str) -> None:
    values = chunk()
    for shape in [(99, 6), (101, 6), (1, 6), (400, 6)]:
        stored = stored_by(name, chunk("f4", shape))
        with pytest.raises(DecodeError):
            decoded(ALL[name], stored, values)


@settings(max_examples=150)
@given(st.sampled_from([n for n in ALL if n != "fletcher32"]), st.integers(0, 2**31), st.integers(1, 255), st.data())
def test_damaged_streams_never_write_past_the_chunk(name: str, at: int, flip: int, data: st.DataObject) -> None:
    values = chunk()
    stored = bytearray(encoded(ALL[name], values))
    # Headers are where the lengths are.
    at = at % len(stored) if data.draw(st.booleans()) else at % min(32, len(stored))
    stored[at] ^= flip
    try:
        decoded(ALL[name], bytes(stored), values)
    except DecodeError:
        pass


@settings(max_examples=100)
@given(st.sampled_from([BLOSC, LZ4, ZSTD, DEFLATE]), st.binary(max_size=300))
def test_noise_is_an_error(number: int, noise: bytes) -> None:
    with pytest.raises(DecodeError):
        decoded(((number, (2, 2, 4, 0, 5, 1, 1)),), noise, chunk())


def test_bombs_are_not_unpacked() -> None:
    values = chunk()
    bomb = zlib.compress(bytes(1 << 28), 9)
    with pytest.raises(DecodeError, match="or more bytes, the chunk holds 2400"):
        decoded(((DEFLATE, (4,)),), bomb, values)
    for stored, number in [(struct.pack("<BBBBIII", 2, 1, 0, 4, 2**31 - 1, 4096, 20) + b"abcd", BLOSC),
                           (struct.pack(">QI", 2**40, 2**30) + b"abcd", LZ4),
                           (b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**40) + b"abcd", ZSTD)]:
        with pytest.raises(DecodeError, match="the chunk holds 2400|Blosc"):
            decoded(((number, (4,)),), stored, values)


def test_pipelines_that_only_hdf5_decodes_are_named() -> None:
    assert codecs.unsupported(((32008, ()),)) == "filter bitshuffle is decoded by libhdf5 only"
    assert "12345" in str(codecs.unsupported(((12345, ()),)))
    assert "two compressors" in str(codecs.unsupported(((DEFLATE, (4,)), (ZSTD, (3,)))))


def test_skipped_filters_are_left_out() -> None:
    filters = ((SHUFFLE, (4,)), (DEFLATE, (4,)))
    assert codecs.masked(filters, 0) == filters
    assert codecs.masked(filters, 0b10) == ((SHUFFLE, (4,)),)
    assert codecs.masked(filters, 0b11) == ()
