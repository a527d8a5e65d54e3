"""Several readers as one: what it serves is what they hold, one after the other, each sample once."""

from __future__ import annotations

import pickle

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import h5store
from h5store.errors import H5StoreError, OptionError, SchemaError

COLORS = [["red", "green"], ["blue", "green"], ["green", "red"]]


def _pack(path, seed, n, colors, **options):
    rng = np.random.default_rng(seed)
    data = {"x": rng.random((n, 5)).astype("f4"), "k": rng.integers(0, 99, n), "z": rng.integers(0, 9, (n, 2), "u1"),
            "y": np.array(colors)[rng.integers(0, len(colors), n)]}
    h5store.pack(path, features={"x": data["x"]}, aux={"k": data["k"], "z": data["z"]}, labels={"y": data["y"]},
                 progress=False, **options)
    return data


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("joining")
    data = [_pack(folder / f"{i}.h5", i, n, colors, chunk=chunk, codec=codec) for i, (n, colors, chunk, codec) in
            enumerate(zip((130, 47, 300), COLORS, (8, 5, "1KiB"), ("lz4", None, "gzip")))]
    whole = {name: np.concatenate([d[name] for d in data]) for name in data[0]}
    return [folder / f"{i}.h5" for i in range(3)], whole


@pytest.fixture(params=["256MiB", "2KiB", 0], ids=lambda cache: f"cache={cache}")
def joined(stores, request):
    readers = [h5store.Reader(path, cache=request.param) for path in stores[0]]
    yield h5store.concat(readers), stores[1]
    for reader in readers:
        reader.close()


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_it_reads_as_one_array(stores, data):
    ids = np.array(data.draw(st.lists(st.integers(0, 476), max_size=60)), np.int64)
    lo, hi = sorted(data.draw(st.tuples(st.integers(0, 477), st.integers(0, 477))))
    caches = [data.draw(st.sampled_from([0, "1MiB"])) for _ in stores[0]]
    with h5store.concat([h5store.Reader(path, cache=cache) for path, cache in zip(stores[0], caches)]) as r:
        for name, values in stores[1].items():
            np.testing.assert_array_equal(r.take(ids)[name], values[ids])
            np.testing.assert_array_equal(r[name][lo:hi], values[lo:hi])


def test_classes_are_put_together_and_batches_speak_of_all_of_them(joined):
    r, whole = joined
    assert len(r) == 477
    assert r.schema["y"].classes == ("blue", "green", "red")
    ids = [470, 0, 140, 131]
    np.testing.assert_array_equal(np.array(r.schema["y"].classes)[r.batch(ids)[1]], whole["y"][ids])


@pytest.mark.parametrize("shuffle", [True, "full", False])
def test_an_epoch_serves_each_sample_once(joined, shuffle):
    r, whole = joined
    loader = r.loader(batch_size=32, shuffle=shuffle, seed=1, window="3KiB")
    batches = list(loader.epoch(0))
    x = np.concatenate([inputs["x"] for inputs, _ in batches])
    np.testing.assert_array_equal(np.sort(x[:, 0]), np.sort(whole["x"][:, 0]))
    for step, (inputs, labels) in enumerate(batches):
        np.testing.assert_array_equal(inputs["x"], whole["x"][loader.ids(loader.plan, 0, step)])
        np.testing.assert_array_equal(labels, loader.batch(0, step)[1])
    if shuffle:
        assert not np.array_equal(x, whole["x"])


def test_ranks_share_it(joined):
    r, whole = joined
    seen = [inputs["x"] for rank in range(3)
            for inputs, _ in r.loader(batch_size=10, seed=2, rank=rank, world_size=3).epoch(1)]
    np.testing.assert_array_equal(np.sort(np.concatenate(seen)[:, 0]), np.sort(whole["x"][:, 0]))


def test_views_go_in_and_come_out(stores):
    a, b = h5store.Reader(stores[0][0]), h5store.Reader(stores[0][1])
    r = h5store.concat([a.select([5, 3]), b, a.select([5])])
    assert len(r) == 2 + 47 + 1
    np.testing.assert_array_equal(r["k"][[0, 1, 2, 49]], np.concatenate([a["k"][[5, 3]], b["k"][[0]], a["k"][[5]]]))
    parts = r.split({"train": 0.8, "val": 0.2}, by="y", seed=0)
    both = np.concatenate([part["x"][:] for part in parts.values()])
    np.testing.assert_array_equal(np.sort(both[:, 0]), np.sort(r["x"][:][:, 0]))
    for part in parts.values():
        got = np.concatenate([inputs["k"] for inputs, _ in part.loader(batch_size=7, seed=0).epoch(0)])
        np.testing.assert_array_equal(np.sort(got), np.sort(part["k"][:]))


def test_a_join_of_joins(stores):
    a, b, c = (h5store.Reader(path) for path in stores[0])
    r = h5store.concat([h5store.concat([a, b]), c])
    np.testing.assert_array_equal(r["x"][:], stores[1]["x"])
    np.testing.assert_array_equal(r["y"][:], stores[1]["y"])


def test_it_pickles_small_and_reads_the_same(joined):
    r, whole = joined
    raw = pickle.dumps(r)
    assert len(raw) < 4000
    again = pickle.loads(raw)
    np.testing.assert_array_equal(again["y"][:], whole["y"])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(again.select([400, 1])))["k"][:], whole["k"][[400, 1]])


def test_a_state_goes_on_and_is_not_that_of_another(joined, stores):
    r, _ = joined
    loader = r.loader(batch_size=50, seed=0)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [inputs["k"] for inputs, _ in batches]
    again = r.loader(batch_size=50, seed=0)
    again.load_state_dict(state)
    for one, (other, _) in zip(rest, again, strict=True):
        np.testing.assert_array_equal(one, other["k"])
    backwards = h5store.concat([h5store.Reader(path) for path in reversed(stores[0])]).loader(batch_size=50, seed=0)
    with pytest.raises(H5StoreError):
        backwards.load_state_dict(state)


def test_variable_lengths(tmp_path):
    made = []
    for i, n in enumerate((9, 4)):
        rng = np.random.default_rng(i)
        made += [rng.random((int(length), 3)).astype("f4") for length in rng.integers(1, 7, n)]
        h5store.pack(tmp_path / f"{i}.h5", features={"s": made[-n:]}, labels={"y": np.arange(n)}, progress=False)
    r = h5store.concat([h5store.Reader(tmp_path / "0.h5"), h5store.Reader(tmp_path / "1.h5")])
    for ids in ([12, 0, 9, 8], [3], list(range(13))):
        for one, i in zip(r.take(ids)["s"], ids, strict=True):
            np.testing.assert_array_equal(one, made[i])
    assert sum(len(labels) for _, labels in r.loader(batch_size=4, seed=0, bucket="s").epoch(0)) == 13
    r.close()


def test_mixing_draws_in_the_shares_and_wears_no_reader_out(joined):
    r, whole = joined
    loader = r.loader(batch_size=32, seed=0, mix=[1, 2, 0])
    ids = np.concatenate([loader.ids(loader.plan, 0, step) for step in range(len(loader))])
    assert len(ids) == 477 and ids.max() < 177
    share = (ids < 130).mean()
    assert 0.25 < share < 0.42  # a third, 4 sigma
    first = ids[ids < 130]
    assert len(np.unique(first[:130])) == len(first[:130])
    for step, (inputs, _) in enumerate(loader.epoch(0)):
        np.testing.assert_array_equal(inputs["x"], whole["x"][loader.ids(loader.plan, 0, step)])
    assert not np.array_equal(ids, np.concatenate([loader.ids(loader.plan, 1, step) for step in range(len(loader))]))


@pytest.mark.parametrize("mix, told", [
    ([1, 2], "2 shares for 3 readers"), ([1, -1, 2], "-1.0"), ([0, 0, 0], "all are 0"), ([1, float("nan"), 1], "nan"),
])
def test_bad_shares(joined, mix, told):
    with pytest.raises(OptionError, match=told):
        joined[0].loader(batch_size=8, mix=mix)


def test_mixing_is_for_several(stores, joined):
    with pytest.raises(OptionError, match="h5store.concat"):
        h5store.Reader(stores[0][0]).loader(batch_size=8, mix=[1])
    with pytest.raises(OptionError, match="leave one of them out"):
        joined[0].loader(batch_size=8, mix=[1, 1, 1], balance="y")
    with pytest.raises(OptionError, match="no samples; give it 0"):
        joined[0].select(range(100)).loader(batch_size=8, mix=[1, 1, 1])


def test_with_a_file_of_others(stores, tmp_path):
    a = h5store.Reader(stores[0][0])
    with h5py.File(tmp_path / "f.h5", "w") as f:
        f["X"], f["K"], f["Z"] = np.ones((20, 5), "f4"), np.arange(20), np.zeros((20, 2), "u1")
        f.create_dataset("Y", data=["red", "pink"] * 10, dtype=h5py.string_dtype())
    b = h5store.Reader.from_hdf5(tmp_path / "f.h5", features={"x": "X"}, aux={"k": "K", "z": "Z"}, labels={"y": "Y"})
    r = h5store.concat([a, b])
    np.testing.assert_array_equal(r["y"][130:], ["red", "pink"] * 10)
    assert sum(len(labels) for _, labels in r.loader(batch_size=16, seed=0).epoch(0)) == 150
    r.close()


def test_it_is_looked_at_like_any_other(joined):
    r, whole = joined
    assert "477" in repr(r) and "477" in r._repr_html_()
    stats = r.stats(progress=False)
    np.testing.assert_allclose(stats["x"].mean, whole["x"].mean(axis=0, dtype=np.float64), rtol=1e-12)
    assert stats["y"].classes == {color: int((whole["y"] == color).sum()) for color in ("blue", "green", "red")}


def test_what_cannot_be_kept_says_so(joined):
    with pytest.raises(OptionError, match="split"):
        joined[0].split({"a": 0.5, "b": 0.5}, save=True)
    with pytest.raises(OptionError, match="split"):
        joined[0].split("train")
    with pytest.raises(OptionError, match="normalization"):
        joined[0].loader(batch_size=8, normalize="train")


def test_a_form_of_one_is_not_dropped_in_silence(stores, joined):
    one = h5store.Reader(stores[0][0])
    with pytest.raises(SchemaError, match=r"0\.h5 was given a form of its own"):
        h5store.concat([one.padded(4), h5store.Reader(stores[0][1])])


def test_fields_that_differ(stores, tmp_path):
    a = h5store.Reader(stores[0][0])
    x, k, z, y = np.zeros((4, 5), "f4"), np.arange(4), np.zeros((4, 2), "u1"), np.array(["a"] * 4)
    others = {
        "no field 'z'": {"features": {"x": x}, "aux": {"k": k}, "labels": {"y": y}},
        "'x' has shape": {"features": {"x": x[:, :2]}, "aux": {"k": k, "z": z}, "labels": {"y": y}},
        "'k' has dtype": {"features": {"x": x}, "aux": {"k": k.astype("i4"), "z": z}, "labels": {"y": y}},
        "'z' has role": {"features": {"x": x, "z": z}, "aux": {"k": k}, "labels": {"y": y}},
        "'y' has": {"features": {"x": x}, "aux": {"k": k, "z": z}, "labels": {"y": k}},
    }
    for i, (told, roles) in enumerate(others.items()):
        h5store.pack(tmp_path / f"{i}.h5", progress=False, **roles)
        with pytest.raises(SchemaError, match=told) as error, h5store.Reader(tmp_path / f"{i}.h5") as other:
            h5store.concat([a, other])
        assert a.path in str(error.value) and f"{i}.h5" in str(error.value)
    with pytest.raises(SchemaError, match="no readers"):
        h5store.concat([])
    with pytest.raises(SchemaError, match="h5store.Reader"):
        h5store.concat([stores[0][0]])
