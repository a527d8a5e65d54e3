"""Reader: samples by position, batches that a model is fed, views, splits, and what bad input gets."""

from __future__ import annotations

import os
import pickle

import h5py
import numpy as np
import pytest

import h5store
from h5store.errors import (CorruptChunkError, FieldNotFound, FormatError, H5StoreError, OptionError, SchemaError,
                            SelectionError, SplitError, StaleStoreError)

N = 100


def arrays(n=N, seed=0):
    rng = np.random.default_rng(seed)
    words = np.array(["cat", "dog", "eel", "ape"])
    return {
        "flux": np.cumsum(rng.normal(size=(n, 10, 3)), axis=1).astype("f4"),
        "host": rng.normal(size=(n, 2)).astype("f4"),
        "kind": words[rng.integers(0, 4, n)] if n else words[:0],
        "weight": rng.random(n).astype("f4"),
        "name": np.arange(n).astype("i8") * 10**10,
    }


def pack(path, data, **options):
    h5store.pack(path, features={"flux": data["flux"]}, aux={"host": data["host"]}, labels={"kind": data["kind"]},
                 weights={"weight": data["weight"]}, meta={"name": data["name"]}, progress=False,
                 **{"chunk": 8, **options})
    return path


@pytest.fixture(scope="module")
def data():
    return arrays()


@pytest.fixture(scope="module")
def path(tmp_path_factory, data):
    return pack(tmp_path_factory.mktemp("reader") / "train.h5", data)


@pytest.fixture
def reader(path):
    with h5store.Reader(path) as r:
        yield r


def codes(texts):
    return np.unique(texts, return_inverse=True)[1]


def equal(found, wanted):
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


# ---- what it is


def test_it_tells_what_it_holds(reader, path, data):
    assert len(reader) == N and reader.path == str(path)
    assert reader.schema.names == ("flux", "host", "kind", "weight", "name")
    assert [str(f.role) for f in reader.schema] == ["features", "aux", "labels", "weights", "meta"]
    assert reader.schema["flux"].shape == (10, 3) and reader.schema["flux"].dtype == np.float32
    assert reader.schema["kind"].classes == ("ape", "cat", "dog", "eel")
    assert "flux" in reader and "Flux" not in reader and 3 not in reader and [3] not in reader
    equal(reader.ids, np.arange(N))


def test_repr_fits_the_screen(reader, path):
    for shown in (reader, reader.select([1, 2]), reader.select([1]).split({"a": 1})["a"]):
        lines = repr(shown).splitlines()
        assert max(map(len, lines)) <= 100
        assert "train.h5" in lines[0] and "flux" in repr(shown) and "float32" in repr(shown)
    assert "2 of 100 samples" in repr(reader.select([1, 2]))
    assert max(map(len, repr(reader["flux"]).splitlines())) <= 100


def test_repr_of_long_names_and_many_fields(tmp_path):
    path = tmp_path / ("survey_" * 20 + ".h5")
    fields = {f"measurement_{k:02}_" + "long" * (k % 12): np.zeros((3, 10, 10, k + 1), "f8") for k in range(40)}
    h5store.pack(path, features=fields, progress=False)
    with h5store.Reader(path) as r:
        assert max(map(len, repr(r).splitlines())) <= 100
        assert "measurement_00_" in repr(r)


def test_it_is_not_iterated_sample_by_sample(reader):
    with pytest.raises(TypeError):
        iter(reader)


# ---- reading


def test_every_field_reads_back(reader, data):
    for name, wanted in data.items():
        equal(reader[name][:], wanted)


def test_one_sample_after_another(reader, data):
    for i in range(-N, N):
        equal(reader["flux"][i], data["flux"][i])
        assert reader["kind"][i] == data["kind"][i] and reader["name"][i] == data["name"][i]


@pytest.mark.parametrize("ids", [[0, 2, 2, 9, 2], [-1, 0, -100], [99] * 20, [5], range(10, 3, -1), slice(90, None, -7),
                                 np.array([3, 1], "u1"), np.array([7, -7], "i2"), (4, 2)], ids=repr)
def test_take_gives_every_field_in_the_order_asked(reader, data, ids):
    found = reader.take(ids)
    assert list(found) == list(data)
    for name, wanted in data.items():
        equal(found[name], wanted[ids if isinstance(ids, slice) else np.asarray(ids).astype("i8")])


def test_take_of_some_fields(reader, data):
    assert list(reader.take([1], "host")) == ["host"]
    assert list(reader.take([1], ["name", "flux"])) == ["name", "flux"]
    assert reader.take([1], []) == {}


def test_masks(reader, data):
    mask = data["kind"] == "cat"
    for given in (mask, list(mask)):
        equal(reader.take(given)["flux"], data["flux"][mask])
        equal(reader["kind"][given], data["kind"][mask])
    equal(reader.select(mask)["name"][:], data["name"][mask])


@pytest.mark.parametrize("nothing", [[], np.array([]), np.zeros(N, bool), slice(0, 0), slice(5, 2), range(0),
                                     np.zeros(0, "i8")], ids=repr)
def test_empty_selections_keep_shape_and_dtype(reader, data, nothing):
    for name, wanted in data.items():
        equal(reader[name][nothing], wanted[:0])
        equal(reader.take(nothing)[name], wanted[:0])
    (inputs, labels, weights) = reader.batch(nothing)
    equal(inputs["flux"], data["flux"][:0])
    equal(labels, np.zeros(0, "i8"))
    assert len(reader.select(nothing)) == 0


def test_batch_is_what_a_model_is_fed(reader, data):
    ids = [3, -1, 3]
    inputs, labels, weights = reader.batch(ids)
    assert list(inputs) == ["flux", "host"]
    equal(inputs["flux"], data["flux"][ids])
    equal(inputs["host"], data["host"][ids])
    equal(labels, codes(data["kind"])[ids])
    equal(weights, data["weight"][ids])


@pytest.mark.parametrize("roles, shape", [
    ({"features": 1}, "x"), ({"aux": 1}, "x"), ({"features": 1, "labels": 1}, "xy"), ({"features": 2}, "X"),
    ({"features": 1, "aux": 1, "labels": 2}, "XY"), ({"features": 1, "labels": 1, "weights": 1}, "xyw"),
    ({"features": 1, "labels": 2, "weights": 2, "meta": 1}, "xYW"),
])
def test_members_of_a_batch(tmp_path, roles, shape):
    given = {role: {f"{role}{i}": np.arange(4.0) + i for i in range(k)} for role, k in roles.items()}
    h5store.pack(tmp_path / "a.h5", progress=False, **given)
    with h5store.Reader(tmp_path / "a.h5") as r:
        batch = r.batch([0, 1])
    assert isinstance(batch, tuple)
    assert ["dict" if isinstance(m, dict) else "array" for m in batch] == [
        "dict" if letter.isupper() else "array" for letter in shape]


def test_nothing_to_feed_is_refused_and_take_still_works(tmp_path):
    h5store.pack(tmp_path / "a.h5", labels=np.arange(4), progress=False)
    with h5store.Reader(tmp_path / "a.h5") as r:
        for feed in (lambda: r.batch([0]), lambda: r.loader(batch_size=2)):
            with pytest.raises(SchemaError, match="no features and no aux"):
                feed()
        equal(r.take([1])["labels"], np.array([1]))


def test_weights_without_labels_are_refused_before_the_first_batch(tmp_path):
    h5store.pack(tmp_path / "a.h5", features=np.arange(4), weights=np.arange(4.0), progress=False)
    with h5store.Reader(tmp_path / "a.h5") as r:
        for feed in (lambda: r.batch([0]), lambda: r.loader(batch_size=2)):
            with pytest.raises(SchemaError, match="weights without labels"):
                feed()


@pytest.mark.parametrize("cache", ["256MiB", "10KiB", 0])
def test_batches_equal_numpy_for_random_id_lists(tmp_path, cache):
    """Light curves, scaled down: 1,000 lists with repeats and negatives."""
    rng, n = np.random.default_rng(3), 2000
    flux = np.round(rng.normal(size=(n, 20, 6)).cumsum(1), 2).astype("f4")
    host, label = rng.normal(size=(n, 2)).astype("f4"), np.eye(15, dtype="f4")[rng.integers(0, 15, n)]
    h5store.pack(tmp_path / "a.h5", features={"flux": flux}, aux={"host": host}, labels={"class": label},
                 progress=False, chunk="4KiB")
    with h5store.Reader(tmp_path / "a.h5", cache=cache, threads=2) as r:
        for _ in range(1000 if cache == "256MiB" else 100):
            ids = rng.integers(-n, n, rng.integers(0, 65))
            inputs, labels = r.batch(ids)
            equal(inputs["flux"], flux[ids])
            equal(inputs["host"], host[ids])
            equal(labels, label[ids])


def test_what_is_read_belongs_to_the_caller(reader, data):
    reader["flux"][:][...] = 0
    reader.take([1, 2])["host"][...] = 0
    reader.batch([1])[0]["flux"][...] = 0
    reader["flux"][4][...] = 0
    equal(reader["flux"][:], data["flux"])
    equal(reader["host"][:], data["host"])


# ---- what bad input gets


@pytest.mark.parametrize("ids, text", [
    ([100], "sample id 100 is out of range, there are 100 samples"), ([-101, 3], "-101"), ([2**40], str(2**40)),
    ([1.0, 2.0], "float64"), (np.array([0.5]), "float64"), ([True] * 5, r"shape \(5,\), expected \(100,\)"),
    (["a"], "expected ints"), (5, r"shape \(\)"), ([[1, 2]], r"shape \(1, 2\)"), (None, "expected ints"),
    ([[1], [1, 2]], "one array"), ({1, 2}, "expected ints"),
])
def test_ids_that_select_nothing_are_refused(reader, ids, text):
    for ask in (reader.take, reader.batch, reader.select):
        with pytest.raises(SelectionError, match=text) as raised:
            ask(ids)
        assert isinstance(raised.value, (H5StoreError, IndexError))
        assert str(raised.value).startswith(reader.path)


def test_unknown_fields_name_the_nearest(reader):
    for ask in (lambda: reader["fluxx"], lambda: reader.take([0], "fluxx"), lambda: reader.take([0], ["host", "fluxx"]),
                lambda: reader.split({"a": 0.5}, by="fluxx")):
        with pytest.raises(FieldNotFound, match=r"train\.h5: no field 'fluxx'; fields: 'flux'"):
            ask()
    with pytest.raises(KeyError):
        reader["fluxx"]


@pytest.mark.parametrize("key", [slice(0, 3), [1, 2], 5, np.arange(3)], ids=repr)
def test_indexing_the_reader_itself_says_what_to_do(reader, key):
    with pytest.raises(FieldNotFound, match="no field"):
        reader[key]


@pytest.mark.parametrize("options", [{"cache": "lots"}, {"cache": -1}, {"cache": "5 apples"}, {"threads": 0},
                                     {"threads": 2.5}, {"threads": True}, {"threads": 10**6}])
def test_bad_knobs(path, options):
    with pytest.raises(OptionError, match=next(iter(options))):
        h5store.Reader(path, **options)


def test_files_that_are_not_stores(tmp_path, path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        h5store.Reader(tmp_path / "none.h5")
    os.link(path, tmp_path / "train_v2.h5")
    with pytest.raises(FileNotFoundError, match="'train_v2.h5'"):
        h5store.Reader(tmp_path / "train_v3.h5")
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    np.save(tmp_path / "a.npy", np.arange(3))
    (tmp_path / "empty.h5").touch()
    (tmp_path / "text.h5").write_text("hello " * 300)
    for name, text in [("a.npz", "npz"), ("a.npy", "npy"), ("empty.h5", "empty"), ("text.h5", "not an HDF5 file"),
                       ("", "folder")]:
        with pytest.raises(FormatError, match=text) as raised:
            h5store.Reader(tmp_path / name)
        assert isinstance(raised.value, OSError)
    with h5py.File(tmp_path / "other.h5", "w") as f:
        f["x"] = np.arange(3)
    with pytest.raises(FormatError, match="from_hdf5"):
        h5store.Reader(tmp_path / "other.h5")


def test_a_store_of_a_newer_format(tmp_path, path):
    copy = tmp_path / "new.h5"
    copy.write_bytes(path.read_bytes())
    with h5py.File(copy, "r+") as f:
        f.attrs.modify("format_version", np.uint32(99))
    with pytest.raises(FormatError, match="format 99.*upgrade"):
        h5store.Reader(copy)


def test_a_store_that_is_being_written(tmp_path):
    w = h5store.Writer(tmp_path / "a.h5")
    w.append(features=np.arange(5))
    w.commit()
    with pytest.raises(FormatError, match="not finished"):
        h5store.Reader(tmp_path / "a.h5")
    w.close()
    with h5store.Reader(tmp_path / "a.h5") as r:
        assert len(r) == 5


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9, 0.999])
def test_a_truncated_store_is_refused_when_opened(tmp_path, path, keep):
    whole = path.read_bytes()
    (tmp_path / "cut.h5").write_bytes(whole[:int(len(whole) * keep)])
    with pytest.raises(FormatError, match="cut.h5"):
        h5store.Reader(tmp_path / "cut.h5")


# ---- a damaged file


@pytest.mark.parametrize("codec", ["lz4", "gzip", "zstd", None])
@pytest.mark.parametrize("cache", ["1MiB", 0])
def test_a_flipped_byte_names_file_field_chunk_and_samples(tmp_path, codec, cache):
    x = np.random.default_rng(0).integers(0, 50, (50, 2000)).astype("i2")
    path = tmp_path / "a.h5"
    h5store.pack(path, features={"x": x}, labels={"y": np.arange(50)}, progress=False, codec=codec, chunk=16)
    with h5py.File(path) as f:
        at = [(i.byte_offset, i.size) for i in map(f["features/x"].id.get_chunk_info, range(4))]
        assert f["features/x"].chunks[0] == 16
    rng, whole = np.random.default_rng(1), path.read_bytes()
    for chunk in (0, 2, 3):
        for byte in rng.integers(0, at[chunk][1], 5):
            bad = bytearray(whole)
            bad[at[chunk][0] + byte] ^= 1 << rng.integers(8)
            path.write_bytes(bad)
            last = min(49, chunk * 16 + 15)
            with h5store.Reader(path, cache=cache) as r:
                for read in (lambda: r["x"][:], lambda: r.batch([last, 0]), lambda: r["x"][chunk * 16],
                             lambda: list(r.loader(batch_size=10).epoch(0))):
                    with pytest.raises(CorruptChunkError) as raised:
                        read()
                    text = str(raised.value)
                    assert f"{path}['x'] chunk {chunk} (samples {chunk * 16}-{last})" in text
                    assert "h5store verify" in text
                # What is whole reads on.
                np.testing.assert_array_equal(r["x"][16:32], x[16:32])
                np.testing.assert_array_equal(r["y"][:], np.arange(50))


def test_without_verify_a_stream_that_does_not_decode_is_still_an_error(tmp_path):
    x = np.tile(np.arange(100, dtype="i4"), (64, 1))
    path = tmp_path / "a.h5"
    h5store.pack(path, features=x, progress=False, codec="gzip", chunk=64)
    with h5py.File(path) as f:
        info = f["features/features"].id.get_chunk_info(0)
    bad = bytearray(path.read_bytes())
    bad[info.byte_offset:info.byte_offset + info.size] = bytes(info.size)
    path.write_bytes(bad)
    with h5store.Reader(path, verify=False) as r:
        with pytest.raises(CorruptChunkError, match=r"chunk 0 \(samples 0-63\)"):
            r["features"][:]


# ---- views


def test_a_view_is_a_reader_in_the_order_of_its_ids(reader, data):
    ids = [9, 2, 9, -1]
    view = reader.select(ids)
    assert isinstance(view, h5store.Reader) and len(view) == 4
    equal(view.ids, np.array([9, 2, 9, 99]))
    for name, wanted in data.items():
        equal(view[name][:], wanted[ids])
        equal(view[name][[-1, 0]], wanted[ids][[-1, 0]])
    equal(view.batch([1, 1])[0]["host"], data["host"][[2, 2]])
    with pytest.raises(SelectionError, match="there are 4 samples"):
        view.take([4])


def test_views_of_views(reader, data):
    view = reader.select(slice(10, 60)).select(np.arange(50) % 2 == 0).select([-1, 3])
    equal(view.ids, np.arange(10, 60)[::2][[-1, 3]])
    equal(view["flux"][:], data["flux"][10:60][::2][[-1, 3]])


def test_views_share_the_file_and_outlive_the_name(path, data):
    view = h5store.Reader(path).select([5])
    equal(view["host"][:], data["host"][[5]])
    view.close()


@pytest.mark.parametrize("by", ["kind", "name", None])
def test_split(reader, data, by):
    parts = reader.split({"train": 0.8, "val": 0.1, "test": 0.1}, by=by if by != "name" else data["name"] // 10**10 % 2,
                         seed=4)
    assert list(parts) == ["train", "val", "test"]
    assert sorted(np.concatenate([p.ids for p in parts.values()])) == list(range(N))
    assert len(parts["train"]) == 80
    again = reader.split({"train": 0.8, "val": 0.1, "test": 0.1}, by=by if by != "name" else
                         data["name"] // 10**10 % 2, seed=4)
    for name, part in parts.items():
        equal(part.ids, again[name].ids)
        assert (np.diff(part.ids) > 0).all()  # in the order of the file
    if by == "kind":
        for word in np.unique(data["kind"]):
            share = (parts["train"]["kind"][:] == word).sum() / (data["kind"] == word).sum()
            assert abs(share - 0.8) < 0.06


def test_split_by_one_hot_labels_and_by_groups(tmp_path):
    n = 120
    kind = np.arange(n) % 3
    h5store.pack(tmp_path / "a.h5", features=np.arange(n), labels={"y": np.eye(3, dtype="f4")[kind]},
                 meta={"patient": np.arange(n) // 4}, progress=False)
    with h5store.Reader(tmp_path / "a.h5") as r:
        parts = r.split({"a": 60, "b": 30}, by="y", seed=1)
        for part in parts.values():
            np.testing.assert_array_equal(part["y"][:].sum(0), len(part) / 3)
        parts = r.split({"a": 0.5, "b": 0.5}, groups="patient", seed=1)
        patients = [set(p["patient"][:]) for p in parts.values()]
        assert not patients[0] & patients[1] and len(patients[0] | patients[1]) == 30


def test_split_of_a_view_stays_in_it(reader):
    ids = np.arange(0, N, 3)
    parts = reader.select(ids).split({"a": 0.5, "b": 0.5}, by="kind")
    assert sorted(np.concatenate([p.ids for p in parts.values()])) == list(ids)


@pytest.mark.parametrize("parts, options, error", [
    ({}, {}, SplitError), ({"a": 0.9, "b": 0.9}, {}, SplitError), ({"a": 101}, {}, SplitError),
    ({"a": 0.5, "b": 5}, {}, SplitError), ({"a": 0.5}, {"by": np.arange(5)}, SplitError),
    ({"a": 0.5}, {"by": "kinds"}, FieldNotFound), ({"a": 0.5}, {"groups": "nome"}, FieldNotFound),
])
def test_bad_splits(reader, parts, options, error):
    with pytest.raises(error):
        reader.split(parts, **options)


# ---- a store of length 0


def test_a_store_of_length_0(tmp_path):
    data = arrays(0)
    pack(tmp_path / "a.h5", data)
    with h5store.Reader(tmp_path / "a.h5") as r:
        assert len(r) == 0 and "0 samples" in repr(r)
        for name, wanted in data.items():
            found = r[name][:]
            assert found.shape == wanted.shape and (found.dtype == wanted.dtype or name == "kind")
            assert list(r[name]) == []
        assert r.batch([])[0]["flux"].shape == (0, 10, 3)
        assert len(r.select([])) == 0 and len(r.loader(batch_size=4)) == 0
        with pytest.raises(SelectionError, match="there are no samples"):
            r.take([0])
        with pytest.raises(SchemaError, match="no batches"):
            r.loader(batch_size=4).epoch(0)
        with pytest.raises(SplitError):
            r.split({"a": 0.5})


# ---- living


def test_close_then_read_again(path, data):
    r = h5store.Reader(path)
    view = r.select([3])
    equal(r["flux"][:], data["flux"])
    r.close()
    r.close()
    equal(r["flux"][2], data["flux"][2])
    equal(view["flux"][0], data["flux"][3])
    with r:
        equal(r["host"][:], data["host"])
    equal(r["host"][1], data["host"][1])
    r.close()


def test_closing_a_reader_leaves_others_of_the_file_reading(path, data):
    one, other = h5store.Reader(path, cache=0), h5store.Reader(path, cache=0)
    equal(other["flux"][:2], data["flux"][:2])
    batches = other.loader(batch_size=10, shuffle=False).epoch(0)
    first = next(batches)[0]["flux"]
    one.close()
    equal(np.concatenate([first, *(batch[0]["flux"] for batch in batches)]), data["flux"])
    equal(other["flux"][[5, 1]], data["flux"][[5, 1]])
    other.close()
    equal(one["flux"][3], data["flux"][3])
    one.close()


def test_close_while_a_loader_reads_ahead_gives_no_wrong_sample(tmp_path):
    n = 4000
    x = np.repeat(np.arange(1, n + 1), 64).reshape(n, 64)
    h5store.pack(tmp_path / "a.h5", features=x, progress=False, chunk="4KiB")
    r = h5store.Reader(tmp_path / "a.h5", threads=2)
    for _ in range(5):
        seen = []
        for batch, in r.loader(batch_size=100, seed=0, window="64KiB").epoch(0):
            assert (batch == batch[:, :1]).all()
            seen += batch[:, 0].tolist()
            r.close()
        assert sorted(seen) == list(range(1, n + 1))
    r.close()


def test_pickles_small_and_reads_the_same(path, data):
    with h5store.Reader(path, cache=0, threads=1, verify=False) as r:
        r["flux"][:]
        raw = pickle.dumps(r)
        assert len(raw) < 1000
        other = pickle.loads(raw)
        equal(other["flux"][:], data["flux"])
        view = pickle.loads(pickle.dumps(r.select([4, 2])))
        equal(view["kind"][:], data["kind"][[4, 2]])
        assert len(pickle.dumps(r.select(np.arange(10)))) < 1500
        other.close()


def test_a_cache_does_not_travel(path):
    with h5store.Reader(path) as r:
        r["flux"][:]
        assert len(pickle.dumps(r)) < 1000


def test_unpickling_beside_another_store_is_told(tmp_path, data):
    path = pack(tmp_path / "a.h5", data)
    with h5store.Reader(path) as r:
        raw = pickle.dumps(r)
    pack(path, arrays(seed=1), overwrite=True)
    with pytest.raises(StaleStoreError, match="another store"):
        pickle.loads(raw)


def test_a_reader_goes_on_with_the_store_that_it_opened(tmp_path, data):
    path = pack(tmp_path / "a.h5", data)
    with h5store.Reader(path, cache=0) as old:
        pack(path, arrays(seed=1), overwrite=True)
        equal(old["flux"][:], data["flux"])
        with h5store.Reader(path) as new:
            equal(new["flux"][:], arrays(seed=1)["flux"])
        equal(old["flux"][-1], data["flux"][-1])


def test_a_closed_reader_of_a_replaced_store_is_told(tmp_path, data):
    path = pack(tmp_path / "a.h5", data, codec=None)
    r = h5store.Reader(path, cache=0)
    r.close()
    for seed in (1, 2, 3):  # inode numbers are used again, and the size is the same
        pack(path, arrays(seed=seed), overwrite=True, codec=None)
        with pytest.raises(StaleStoreError, match="another file"):
            r["flux"][:]
    path.unlink()
    with pytest.raises(StaleStoreError, match="moved or removed"):
        r["flux"][:]


def test_a_store_that_is_cut_short_after_opening(tmp_path, data):
    path = pack(tmp_path / "a.h5", data)
    with h5store.Reader(path, cache=0) as r:
        os.truncate(path, 5000)
        with pytest.raises(CorruptChunkError, match="the file ends at byte"):
            r["flux"][:]


def test_many_readers_at_once_keep_few_files_open(tmp_path, data):
    paths = [pack(tmp_path / f"{i}.h5", arrays(4, seed=i)) for i in range(140)]
    readers = [h5store.Reader(p, cache=0) for p in paths]
    for i, r in enumerate(readers):
        equal(r["flux"][:], arrays(4, seed=i)["flux"])
    held = [link for link in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{link}").startswith(
        str(tmp_path))] if os.path.isdir("/proc/self/fd") else []
    assert len(held) <= 128
    for r in readers:
        r.close()
