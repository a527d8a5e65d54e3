"""Files that others wrote: values are always h5py's own, by the fast way or, with one warning, by libhdf5."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import warnings

import h5py
import hdf5plugin
import numpy as np
import pytest
from h5py import h5d, h5p, h5s, h5t

import h5store
from h5store.errors import (CorruptChunkError, FieldNotFound, FormatError, OptionError, SchemaError, SlowPathWarning,
                            StaleStoreError)

N = 53
RNG = np.random.default_rng(0)
X = np.cumsum(RNG.integers(-2, 3, (N, 6, 4)), axis=1)
IDS = [N - 1, 0, 0, -3, 17, 18, 5]

FAST = {
    "contiguous": {}, "chunked": {"chunks": (8, 6, 4)}, "one": {"chunks": (1, 6, 4)}, "whole": {"chunks": (N, 6, 4)},
    "longer": {"chunks": (64, 6, 4), "maxshape": (None, 6, 4)},
    "gzip": {"chunks": (8, 6, 4), "compression": "gzip"}, "gzip9": {"chunks": (8, 6, 4), "compression": 9},
    "shuffle": {"chunks": (8, 6, 4), "shuffle": True},
    "shuffle gzip": {"chunks": (8, 6, 4), "compression": "gzip", "shuffle": True},
    "fletcher32": {"chunks": (8, 6, 4), "fletcher32": True},
    "shuffle fletcher32": {"chunks": (8, 6, 4), "fletcher32": True, "shuffle": True},
    "gzip fletcher32": {"chunks": (8, 6, 4), "fletcher32": True, "compression": "gzip"},
    "shuffle gzip fletcher32": {"chunks": (8, 6, 4), "fletcher32": True, "compression": "gzip", "shuffle": True},
    "lz4": {"chunks": (8, 6, 4), **hdf5plugin.LZ4()}, "lz4 blocks": {"chunks": (8, 6, 4), **hdf5plugin.LZ4(nbytes=100)},
    "zstd": {"chunks": (8, 6, 4), **hdf5plugin.Zstd(clevel=5)},
    "zstd shuffle": {"chunks": (8, 6, 4), "shuffle": True, **hdf5plugin.Zstd()},
    **{f"blosc {c} {s}": {"chunks": (8, 6, 4), **hdf5plugin.Blosc(cname=c, shuffle=s)}
       for c in ("blosclz", "lz4", "lz4hc", "zlib", "zstd") for s in (0, 1, 2)},
}
SLOW = {
    "lzf": {"chunks": (8, 6, 4), "compression": "lzf"}, "bitshuffle": {"chunks": (8, 6, 4), **hdf5plugin.Bitshuffle()},
    "bitshuffle lz4": {"chunks": (8, 6, 4), **hdf5plugin.Bitshuffle(cname="lz4")},
    "bitshuffle zstd": {"chunks": (8, 6, 4), **hdf5plugin.Bitshuffle(cname="zstd")},
    "blosc2": {"chunks": (8, 6, 4), **hdf5plugin.Blosc2()},
    "columns": {"chunks": (16, 2, 4)}, "bricks": {"chunks": (7, 4, 3), "compression": "gzip"},
    "automatic": {"chunks": (27, 3, 2), "compression": "gzip", "shuffle": True},
    "bzip2": {"chunks": (8, 6, 4), **hdf5plugin.BZip2()}, "scaleoffset": {"chunks": (8, 6, 4), "scaleoffset": 0},
}


@pytest.fixture
def made(tmp_path):
    """Writes a file and gives a reader of it, with the warnings that it gave; closes all at the end."""
    opened = []

    def make(write, *, cache="1MiB", **roles):
        path = tmp_path / f"{len(opened)}.h5"
        with h5py.File(path, "w") as f:
            write(f)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            reader = h5store.Reader.from_hdf5(path, cache=cache, **(roles or {"features": "x"}))
        opened.append(reader)
        return reader, [w for w in told if issubclass(w.category, SlowPathWarning)]

    yield make
    for reader in opened:
        reader.close()


def same_as_h5py(reader, name="x", where=None):
    with h5py.File(reader.path) as f:
        wanted = f[where or name][...]
    for found in (reader[name][:], reader[name][::-1][::-1], np.concatenate([reader[name][:20], reader[name][20:]])):
        assert found.dtype == wanted.dtype.newbyteorder("=") and found.dtype.isnative
        np.testing.assert_array_equal(found, wanted)
    ids = [i for i in IDS if -len(wanted) <= i < len(wanted)]
    np.testing.assert_array_equal(reader[name][ids], wanted[ids])
    np.testing.assert_array_equal(reader.take(ids)[name], wanted[ids])
    epoch = [b[0] for b in reader.loader(batch_size=7, seed=0, window="1KiB").epoch(0)]
    assert sorted(v.tobytes() for v in np.concatenate(epoch)) == sorted(v.tobytes() for v in found)


@pytest.mark.parametrize("cache", ["1MiB", "2KiB", 0])
@pytest.mark.parametrize("kind", FAST)
def test_read_without_libhdf5(made, kind, cache):
    reader, told = made(lambda f: f.create_dataset("x", data=X.astype("i4"), **FAST[kind]), cache=cache)
    assert told == []
    same_as_h5py(reader)


@pytest.mark.parametrize("kind", SLOW)
def test_read_through_libhdf5_with_one_warning(made, kind):
    reader, told = made(lambda f: f.create_dataset("x", data=X.astype("i4"), **SLOW[kind]))
    assert len(told) == 1
    text = str(told[0].message)
    assert reader.path in text and "'/x'" in text and "h5store.pack" in text
    assert told[0].filename == __file__  # it points at who asked
    same_as_h5py(reader)


@pytest.mark.parametrize("kind, reason", [("lzf", "filter lzf"), ("blosc2", "filter blosc2"),
                                          ("bitshuffle", "filter bitshuffle"), ("columns", "cut samples")])
def test_the_warning_says_why(made, kind, reason):
    _, (told,) = made(lambda f: f.create_dataset("x", data=X, **SLOW[kind]))
    assert reason in str(told.message)


def test_one_warning_for_several_fields(made):
    def write(f):
        for name in "abcdefgh":
            f.create_dataset(name, data=X, **SLOW["lzf"])

    _, told = made(write, features=list("abcdefgh"))
    assert len(told) == 1


def test_where_warnings_are_errors_it_is_the_warning_that_is_raised(made, tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.create_dataset("x", data=X, **SLOW["lzf"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SlowPathWarning, match="filter lzf"):
            h5store.Reader.from_hdf5(tmp_path / "a.h5", features="x")


def test_lossless_zfp(made):
    data = RNG.normal(size=(N, 8)).astype("f4")
    reader, told = made(lambda f: f.create_dataset("x", data=data, chunks=(8, 8), **hdf5plugin.Zfp(reversible=True)))
    assert len(told) == 1
    same_as_h5py(reader)


DTYPES = ["?", "i1", "u1", "<i2", ">i2", "<u2", ">u4", "<i8", ">i8", "<u8", "<f2", ">f2", "<f4", ">f4", "<f8", ">f8",
          "<c8", ">c16", "<g"]


@pytest.mark.parametrize("how", ["contiguous", "shuffle gzip", "longer", "columns", "blosc lz4 1"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_come_native(made, dtype, how):
    data = X % 2 == 0 if dtype == "?" else (X * (1 + 2j) if "c" in dtype else X).astype(dtype)
    reader, _ = made(lambda f: f.create_dataset("x", data=data, **{**FAST, **SLOW}[how]))
    same_as_h5py(reader)
    batch, = reader.batch([3, 1])
    assert batch.dtype.isnative and reader.schema["x"].dtype.itemsize == data.dtype.itemsize


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1, 3), (1,) * 31])
def test_sample_shapes(made, shape):
    data = RNG.integers(0, 9, (20, *shape))
    reader, told = made(lambda f: f.create_dataset("x", data=data, chunks=(6, *shape), compression="gzip"))
    assert told == []
    assert reader.schema["x"].shape == shape
    same_as_h5py(reader)


def test_an_enum_of_two_is_bool_and_other_enums_are_numbers(made):
    def write(f):
        f.create_dataset("x", data=X % 2 == 0, chunks=(8, 6, 4))
        kinds = h5py.enum_dtype({"star": 0, "galaxy": 7}, basetype="u1")
        f.create_dataset("kind", data=np.arange(N) % 2 * 7, dtype=kinds, chunks=(8,))
        odd = h5py.enum_dtype({"no": 0, "yes": 1}, basetype="i2")
        f.create_dataset("flag", data=np.arange(N) % 2, dtype=odd)

    reader, _ = made(write, features="x", labels=["kind", "flag"])
    assert reader.schema["x"].dtype == bool and reader.schema["kind"].dtype == np.uint8
    assert reader.schema["flag"].dtype == np.int16
    np.testing.assert_array_equal(reader["x"][:], X % 2 == 0)
    np.testing.assert_array_equal(reader["kind"][:], np.arange(N) % 2 * 7)
    np.testing.assert_array_equal(reader["flag"][:], np.arange(N) % 2)


@pytest.mark.parametrize("bits, offset, base", [(12, 0, "u2"), (12, 4, "u2"), (24, 0, "i4"), (7, 1, "i1"),
                                                (40, 8, "i8")])
def test_integers_of_odd_sizes(made, bits, offset, base):
    wanted = np.arange(N) - (base[0] == "i") * 20

    def write(f):
        kind = h5t.py_create(np.dtype(base)).copy()
        kind.set_precision(bits)
        kind.set_offset(offset)
        dataset = h5d.create(f.id, b"x", kind, h5s.create_simple((N,)))
        dataset.write(h5s.ALL, h5s.ALL, wanted.astype(base))

    reader, told = made(write)
    assert len(told) == 1 and "HDF5 type" in str(told[0].message)
    same_as_h5py(reader)
    np.testing.assert_array_equal(reader["x"][:], wanted)


# ---- layouts


def test_compact(made):
    def write(f):
        plist = h5p.create(h5p.DATASET_CREATE)
        plist.set_layout(h5d.COMPACT)
        dataset = h5d.create(f.id, b"x", h5t.NATIVE_INT32, h5s.create_simple((N, 2)), dcpl=plist)
        dataset.write(h5s.ALL, h5s.ALL, np.arange(2 * N, dtype="i4").reshape(N, 2))

    reader, told = made(write)
    assert len(told) == 1 and "metadata" in str(told[0].message)
    same_as_h5py(reader)


@pytest.mark.parametrize("options", [{"chunks": (8, 4)}, {"chunks": (8, 4), "compression": "gzip"}, {}], ids=repr)
@pytest.mark.parametrize("fill", [0, -7])
def test_what_was_never_written_is_the_fill_value(made, options, fill):
    def write(f):
        x = f.create_dataset("x", (N, 4), "i4", fillvalue=fill, **options)
        if options:
            x[10:30] = np.arange(80).reshape(20, 4)

    reader, told = made(write)
    assert len(told) == 1 and "never written" in str(told[0].message)
    same_as_h5py(reader)
    assert (reader["x"][-1] == fill).all()


def test_filter_masks(made):
    def write(f):
        x = f.create_dataset("x", X.shape, "i4", chunks=(8, 6, 4), compression="gzip", shuffle=True)
        import zlib

        from numcodecs.shuffle import Shuffle

        for i in range(0, N, 8):
            chunk = np.zeros((8, 6, 4), "i4")
            chunk[:len(X[i:i + 8])] = X[i:i + 8]
            mask = i // 8 % 4
            stored = chunk.tobytes() if mask & 1 else bytes(Shuffle(4).encode(chunk.tobytes()))
            x.id.write_direct_chunk((i, 0, 0), stored if mask & 2 else zlib.compress(stored), mask)

    reader, told = made(write)
    assert told == []
    same_as_h5py(reader)


@pytest.mark.parametrize("cname", ["lz4", "blosc", "zstd", "gzip"])
def test_what_does_not_shrink(made, cname):
    noise = RNG.integers(0, 256, (N, 1000), dtype="u1")
    how = {"lz4": hdf5plugin.LZ4(nbytes=3000), "blosc": hdf5plugin.Blosc(), "zstd": hdf5plugin.Zstd(),
           "gzip": {"compression": "gzip"}}[cname]
    reader, told = made(lambda f: f.create_dataset("x", data=noise, chunks=(8, 1000), **how))
    assert told == []
    same_as_h5py(reader)


@pytest.mark.parametrize("order", [("gzip", "shuffle"), ("fletcher32", "gzip"), ("fletcher32", "shuffle", "gzip"),
                                   ("shuffle", "gzip", "gzip"), ("gzip", "zstd")])
def test_filters_in_any_order(made, order):
    def write(f):
        plist = h5p.create(h5p.DATASET_CREATE)
        plist.set_chunk((8, 6, 4))
        for name in order:
            {"gzip": lambda: plist.set_deflate(4), "shuffle": plist.set_shuffle, "fletcher32": plist.set_fletcher32,
             "zstd": lambda: plist.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))}[name]()
        dataset = h5d.create(f.id, b"x", h5t.NATIVE_INT32, h5s.create_simple(X.shape), dcpl=plist)
        dataset.write(h5s.ALL, h5s.ALL, X.astype("i4"))

    reader, told = made(write)
    assert len(told) <= 1
    same_as_h5py(reader)


def test_a_user_block(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=1024) as f:
        f.create_dataset("x", data=X, chunks=(8, 6, 4), compression="gzip")
    with open(path, "r+b") as raw:
        raw.write(b"#!/bin/sh\n" * 50)
    with pytest.warns(SlowPathWarning, match="user block"):
        reader = h5store.Reader.from_hdf5(path, features="x")
    with reader:
        same_as_h5py(reader)


@pytest.mark.parametrize("bounds", [("earliest", "v108"), ("v110", "latest"), ("latest", "latest")])
def test_library_bounds(tmp_path, bounds):
    with h5py.File(tmp_path / "a.h5", "w", libver=bounds) as f:
        for i, maxshape in enumerate([None, (None, 6, 4), (None, None, None)]):
            f.create_dataset(f"x{i}", data=X, chunks=(8, 6, 4), maxshape=maxshape, compression="gzip")
    with h5store.Reader.from_hdf5(tmp_path / "a.h5", features=["x0", "x1", "x2"]) as reader:
        for i in range(3):
            np.testing.assert_array_equal(reader[f"x{i}"][:], X)


def test_a_store_of_our_own_is_an_hdf5_file_too(tmp_path):
    h5store.pack(tmp_path / "a.h5", features={"x": X}, labels={"y": np.arange(N)}, progress=False)
    with h5store.Reader.from_hdf5(tmp_path / "a.h5", features="features/x", labels={"y": "/labels/y"}) as reader:
        assert reader.schema.names == ("features.x", "y")
        np.testing.assert_array_equal(reader["features.x"][:], X)


@pytest.mark.parametrize("options", [{}, {"maxshape": (None, 4)}, {"maxshape": (None, 4), "compression": "lzf"},
                                     {"maxshape": (None, 4), "chunks": (8, 2)}], ids=repr)
def test_no_samples(made, options):
    reader, told = made(lambda f: f.create_dataset("x", (0, 4), "f4", **options))
    assert len(reader) == 0 and reader["x"][:].shape == (0, 4) and told == []


# ---- text


WORDS = np.array(["cat", "café", "猫", "", "cat ", "dog"])[np.arange(N) % 6]


@pytest.mark.parametrize("kind", ["vlen", "vlen ascii", "fixed", "fixed utf-8", "gzip"])
def test_text(made, kind):
    words = np.char.encode(WORDS, "utf-8") if kind != "vlen ascii" else np.array([b"cat", b"dog "])[np.arange(N) % 2]
    dtype = {"vlen": h5py.string_dtype(), "vlen ascii": h5py.string_dtype("ascii"), "fixed": "S8",
             "fixed utf-8": h5py.string_dtype("utf-8", 8), "gzip": h5py.string_dtype()}[kind]
    values = words.astype(dtype if "fixed" in kind else object)
    options = {"chunks": (8,), "compression": "gzip"} if kind == "gzip" else {}

    def write(f):
        f.create_dataset("x", data=np.arange(N))
        f.create_dataset("y", data=values, dtype=dtype, **options)

    reader, told = made(write, features="x", labels="y")
    assert told == []
    wanted = np.char.decode(words, "utf-8")
    found = reader["y"][:]
    assert found.dtype.kind == "U"
    np.testing.assert_array_equal(found, wanted)
    assert reader.schema["y"].classes == tuple(sorted(set(wanted.tolist())))
    np.testing.assert_array_equal(reader["y"][IDS], wanted[IDS])
    codes = reader.batch(IDS)[1]
    assert codes.dtype == np.int64
    np.testing.assert_array_equal(np.array(reader.schema["y"].classes)[codes], wanted[IDS])
    np.testing.assert_array_equal(reader.select([4, 2])["y"][:], wanted[[4, 2]])


def test_text_of_two_axes(made):
    def write(f):
        f.create_dataset("x", data=np.arange(6))
        f.create_dataset("y", data=WORDS[:12].reshape(6, 2).astype(object), dtype=h5py.string_dtype())

    reader, _ = made(write, features="x", meta="y")
    np.testing.assert_array_equal(reader["y"][:], WORDS[:12].reshape(6, 2))
    np.testing.assert_array_equal(reader["y"][[3, 0], 1], WORDS[:12].reshape(6, 2)[[3, 0], 1])


def test_text_that_is_not_utf8(made):
    with pytest.raises(FormatError, match="'/x'.*not UTF-8"):
        made(lambda f: f.create_dataset("x", data=np.array([b"caf\xe9"])))


# ---- names, groups, links


def nested(f):
    f["data/flux"] = X
    f["data/deep/host"] = np.arange(N)
    f["label"] = np.arange(N) % 3
    f["short"] = np.arange(5)
    f["scalar"] = 3.0
    f["null"] = h5py.Empty("f4")
    f["soft"] = h5py.SoftLink("/data/flux")
    f["hard"] = f["data/flux"]
    f["broken"] = h5py.SoftLink("/nowhere")
    f["other"] = h5py.ExternalLink("other.h5", "/x")
    f["data/group link"] = h5py.ExternalLink("other.h5", "/")


def test_groups_lists_and_names_of_ones_own(made):
    reader, _ = made(nested, features="data/flux", aux={"z": "/data/deep/host"}, labels=["label"])
    assert reader.schema.names == ("data.flux", "z", "label")
    np.testing.assert_array_equal(reader["data.flux"][:], X)
    inputs, labels = reader.batch([5, 2])
    np.testing.assert_array_equal(inputs["z"], [5, 2])
    np.testing.assert_array_equal(labels, [2, 2])


@pytest.mark.parametrize("where", ["soft", "hard"])
def test_links_within_the_file(made, where):
    reader, _ = made(nested, features=where)
    np.testing.assert_array_equal(reader[where][:], X)


@pytest.mark.parametrize("where, error, text", [
    ("data/fluxx", FieldNotFound, "no dataset 'data/fluxx'; datasets: 'data/flux'"),
    ("labels", FieldNotFound, "'label'"), ("data", FieldNotFound, "is a group.*'data/flux'"),
    ("label/x", FieldNotFound, "no dataset"), ("scalar", SchemaError, "scalar"), ("null", SchemaError, "scalar"),
    ("broken", FieldNotFound, "no dataset 'broken'"), ("other", FormatError, "link to another file, 'other.h5'"),
    ("data/group link/x", FormatError, "link to another file"), ("", FieldNotFound, "is a group"),
])
def test_what_is_not_there(made, where, error, text):
    with pytest.raises(error, match=text):
        made(nested, features=where)


def test_lengths_must_agree(made):
    with pytest.raises(SchemaError, match="different lengths.*53.*5"):
        made(nested, features="data/flux", labels="short")


def test_nothing_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as f:
        nested(f)
    with pytest.raises(SchemaError, match="no dataset named.*datasets: .*'label'"):
        h5store.Reader.from_hdf5(tmp_path / "a.h5")


def test_two_fields_of_one_name(made):
    with pytest.raises(SchemaError, match="two fields are named 'label'"):
        made(nested, features="label", labels="label")


def test_data_in_other_files_are_refused(tmp_path, made):
    (tmp_path / "raw").write_bytes(bytes(80))

    def write(f):
        f.create_dataset("raw", (10,), "f8", external=[(str(tmp_path / "raw"), 0, 80)])
        layout = h5py.VirtualLayout((N, 6, 4), "i8")
        layout[...] = h5py.VirtualSource("other.h5", "x", shape=(N, 6, 4))
        f.create_virtual_dataset("virtual", layout)

    for where in ("raw", "virtual"):
        with pytest.raises(FormatError, match=f"'{where}' keeps its data in other files"):
            made(write, features=where)


def test_objects_are_refused(made):
    def write(f):
        group = f.create_group("g")
        f.create_dataset("ref", data=np.array([group.ref] * 3, dtype=h5py.ref_dtype), dtype=h5py.ref_dtype)
        ragged = f.create_dataset("ragged", (3,), dtype=h5py.vlen_dtype("i4"))
        ragged[0] = [1, 2]
        f["pair"] = np.zeros(3, [("a", "i4"), ("b", "f4")])
        f["opaque"] = np.zeros(3, "V5")

    for where in ("ref", "ragged", "pair", "opaque"):
        with pytest.raises((FormatError, SchemaError), match=where):
            made(write, features=where)


def test_not_hdf5(tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(FormatError, match="not an HDF5 file"):
        h5store.Reader.from_hdf5(tmp_path / "a.txt", features="x")
    with pytest.raises(FileNotFoundError):
        h5store.Reader.from_hdf5(tmp_path / "none.h5", features="x")
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["x"] = X
    with pytest.raises(OptionError, match="cache"):
        h5store.Reader.from_hdf5(tmp_path / "a.h5", features="x", cache="lots")


def test_a_truncated_file(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as f:
        f.create_dataset("x", data=RNG.normal(size=(500, 100)), chunks=(10, 100))
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(FormatError, match="cut short|damaged"):
        h5store.Reader.from_hdf5(path, features="x")


# ---- damage, replacement


@pytest.mark.parametrize("kind", ["gzip", "shuffle gzip", "lz4", "zstd", "blosc lz4 1", "fletcher32",
                                  "shuffle gzip fletcher32"])
def test_a_stream_that_does_not_decode_names_the_samples(made, kind):
    data = RNG.integers(0, 50, (64, 100)).astype("i4")
    options = {**FAST[kind], "chunks": (16, 100)}
    reader, _ = made(lambda f: f.create_dataset("x", data=data, **options), cache=0)
    with h5py.File(reader.path) as f:
        place = f["x"].id.get_chunk_info(2)
    raw = bytearray(open(reader.path, "rb").read())
    raw[place.byte_offset:place.byte_offset + place.size] = RNG.bytes(place.size)
    stat = os.stat(reader.path)
    with open(reader.path, "r+b") as f:
        f.write(raw)
    os.utime(reader.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(CorruptChunkError, match=r"\['/x'\] chunk 2 \(samples 32-47\)"):
        reader["x"][:]
    np.testing.assert_array_equal(reader["x"][:32], data[:32])


def test_damage_that_libhdf5_finds_names_the_samples(made):
    data = RNG.integers(0, 50, (64, 100)).astype("i4")
    reader, _ = made(lambda f: f.create_dataset("x", data=data, chunks=(16, 50), compression="gzip"), cache=0)
    with h5py.File(reader.path) as f:
        place = next(i for i in map(f["x"].id.get_chunk_info, range(8)) if i.chunk_offset == (32, 50))
    with open(reader.path, "r+b") as f:
        f.seek(place.byte_offset)
        f.write(bytes(place.size))
    with pytest.raises(CorruptChunkError, match=r"\['/x'\].*samples 32-47"):
        reader["x"][:]
    np.testing.assert_array_equal(reader["x"][:32], data[:32])


@pytest.mark.parametrize("kind", ["gzip", "lzf", "contiguous"])
@pytest.mark.filterwarnings("ignore::h5store.errors.SlowPathWarning")
def test_a_replaced_file_is_not_mixed_in(tmp_path, kind):
    path = tmp_path / "a.h5"

    def write(data):
        with h5py.File(tmp_path / "new", "w") as f:
            f.create_dataset("x", data=data, **{**FAST, **SLOW}[kind])
        os.replace(tmp_path / "new", path)

    write(X)
    with h5store.Reader.from_hdf5(path, features="x", cache=0) as reader:
        write(X + 1)
        np.testing.assert_array_equal(reader["x"][:], X)
        reader.close()
        with pytest.raises(StaleStoreError, match="another file"):
            reader["x"][:]


def test_closing_lets_go_of_the_file_and_reading_opens_it_again(made):
    reader, _ = made(lambda f: f.create_dataset("x", data=X, **SLOW["lzf"]), cache=0)
    for _ in range(2):
        np.testing.assert_array_equal(reader["x"][:], X)
        reader.close()
    gc.collect()
    with h5py.File(reader.path, "r+") as f:  # refused while HDF5 has it open for reading
        assert "x" in f


@pytest.mark.parametrize("kind", ["lzf", "gzip"])
@pytest.mark.parametrize("locking", [None, False])
def test_opens_beside_the_users_own_h5py(made, kind, locking):
    def write(f):
        f.create_dataset("x", data=X, **{**FAST, **SLOW}[kind])

    reader, _ = made(write, cache=0)
    np.testing.assert_array_equal(reader["x"][:], X)
    with h5py.File(reader.path) as f:
        np.testing.assert_array_equal(f["x"][:], X)
    reader.close()
    gc.collect()
    with h5py.File(reader.path, locking=locking) as f:
        np.testing.assert_array_equal(reader["x"][:], X)
        with warnings.catch_warnings(record=True):
            with h5store.Reader.from_hdf5(reader.path, features="x", cache=0) as other:
                np.testing.assert_array_equal(other["x"][:], f["x"][:])


# ---- threads, forks, pickles


@pytest.mark.parametrize("kind", ["lzf", "gzip", "bricks"])
def test_safe_in_threads(made, kind):
    reader, _ = made(lambda f: f.create_dataset("x", data=X, **{**FAST, **SLOW}[kind]), cache=0)
    wrong = []

    def read(seed):
        rng = np.random.default_rng(seed)
        for _ in range(30):
            ids = rng.integers(-N, N, 20)
            if not np.array_equal(reader["x"][ids], X[ids]):
                wrong.append(ids)

    threads = [threading.Thread(target=read, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


@pytest.mark.parametrize("kind", ["lzf", "gzip"])
def test_safe_after_a_fork_while_others_read(made, kind):
    reader, _ = made(lambda f: f.create_dataset("x", data=np.tile(X, (20, 1, 1)), **{**FAST, **SLOW}[kind]), cache=0)
    wanted, stop = np.tile(X, (20, 1, 1)), threading.Event()

    def read():
        while not stop.is_set():
            reader["x"][:]

    threads = [threading.Thread(target=read) for _ in range(2)]
    for t in threads:
        t.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                try:
                    os._exit(0 if np.array_equal(reader["x"][::-1], wanted[::-1]) else 3)
                finally:
                    os._exit(4)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for t in threads:
            t.join()


@pytest.mark.filterwarnings("ignore::h5store.errors.SlowPathWarning")
@pytest.mark.parametrize("kind", ["lzf", "gzip"])
def test_pickles_small(made, kind):
    def write(f):
        f.create_dataset("x", data=X, **{**FAST, **SLOW}[kind])
        f.create_dataset("y", data=WORDS.astype(object), dtype=h5py.string_dtype())

    reader, _ = made(write, features={"flux": "x"}, labels="y")
    raw = pickle.dumps(reader.select([4, 2]))
    assert len(raw) < 1500
    other = pickle.loads(raw)
    np.testing.assert_array_equal(other["flux"][:], X[[4, 2]])
    np.testing.assert_array_equal(other["y"][:], WORDS[[4, 2]])
    other.close()


WITHOUT_PLUGINS_IMPORTED = """
import sys, warnings, numpy as np, h5store
warnings.simplefilter("ignore")
assert "hdf5plugin" not in sys.modules
with h5store.Reader.from_hdf5(sys.argv[1], features="x") as r:
    print(int(r["x"][:].sum()))
"""


@pytest.mark.parametrize("kind", ["bitshuffle lz4", "blosc2", "zstd"])
def test_filters_are_found_without_importing_hdf5plugin(made, run_python, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reader, _ = made(lambda f: f.create_dataset("x", data=X, **{**FAST, **SLOW}[kind]))
    assert int(run_python(WITHOUT_PLUGINS_IMPORTED, reader.path)) == X.sum()


def test_big_endian_trains(made):
    def write(f):
        f.create_dataset("x", data=X.astype(">f4") / 7, chunks=(8, 6, 4), compression="gzip")
        f["y"] = np.arange(N, dtype=">i2")

    for cache in ("1MiB", "2KiB", 0):
        reader, told = made(write, features="x", labels="y", cache=cache)
        assert told == []
        for x, y in reader.loader(batch_size=10, seed=0).epoch(0):
            assert x.dtype == np.float32 and y.dtype == np.int16 and x.dtype.isnative and y.dtype.isnative
            np.testing.assert_array_equal(x, (X.astype("f4") / np.float32(7))[y])
