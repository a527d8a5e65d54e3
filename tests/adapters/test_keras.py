"""to_keras: what a model sees in every epoch, counted inside its training step. TensorFlow backend."""

from __future__ import annotations

import os
import pickle
import random
import warnings

import numpy as np
import pytest

import h5store
from h5store.errors import H5StoreError, OptionError, SchemaError

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
if keras.backend.backend() != "tensorflow":
    pytest.skip("counts samples inside a TensorFlow training step", allow_module_level=True)

N, BATCH = 130, 16
STEPS = 9
pytestmark = pytest.mark.filterwarnings("error:Your input ran out of data")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("keras") / "a.h5"
    i = np.arange(N)
    h5store.pack(path, features={"x": np.repeat(i, 3).reshape(N, 3).astype("f4")}, aux={"i": i.astype("i4")},
                 labels={"y": np.array(["ant", "bee", "cat"])[i % 3]}, progress=False, chunk=8)
    return path


@pytest.fixture
def reader(path):
    with h5store.Reader(path, threads=2) as r:
        yield r


class Counting(keras.Model):
    """Notes which samples every step was fed."""

    def __init__(self):
        super().__init__()
        self.seen, self.dense = [], keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x["x"])

    def _note(self, i, x, y):
        assert (x.numpy() == i.numpy()[:, None]).all() and (y.numpy() == i.numpy() % 3).all()
        self.seen.append(i.numpy().tolist())
        return np.float32(len(i))

    def train_step(self, data):
        x, y = data
        return {"loss": tf.py_function(self._note, [x["i"], x["x"], y], tf.float32)}

    test_step = train_step


class Stop(keras.callbacks.Callback):
    """Ends training, at the end of an epoch or of a batch, or raises there."""

    def __init__(self, epoch=None, batch=None, error=None):
        super().__init__()
        self.epoch, self.batch, self.error = epoch, batch, error

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            self.stop()

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.batch:
            self.stop()

    def stop(self):
        if self.error:
            raise self.error
        self.model.stop_training = True


def fitted(data, model=None, **options):
    """Batches that a fit was fed."""
    model = model or Counting()
    if not model.compiled:
        model.compile(optimizer="sgd", loss="mse")
    model.seen = []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Your input ran out of data")
        model.fit(data, verbose=0, **options)
    return model.seen


def epochs_of(batches, steps=STEPS):
    return [batches[k:k + steps] for k in range(0, len(batches), steps)]


def once(epoch):
    return sorted(sum(epoch, [])) == list(range(N))


def plan(reader, seed, epochs, **options):
    loader = reader.loader(batch_size=BATCH, seed=seed, **options)
    return [loader.plan.batch(e, s).tolist() for e in range(epochs) for s in range(len(loader))]


# ---- each sample once an epoch


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"shuffle": True}], ids=repr)
@pytest.mark.parametrize("order", [True, "full", False])
def test_every_epoch_sees_each_sample_once(reader, options, order):
    seen = fitted(reader.to_keras(batch_size=BATCH, shuffle=order, seed=5), epochs=5, **options)
    assert len(seen) == 5 * STEPS
    assert all(once(epoch) for epoch in epochs_of(seen))
    assert seen == plan(reader, 5, 5, shuffle=order)
    assert (seen[:STEPS] == seen[STEPS:2 * STEPS]) == (order is False)


def test_a_seed_gives_the_same_batches_whatever_else(path):
    orders = []
    for state, threads in [(0, 1), (1, 2), (2, 4)]:
        random.seed(state)
        np.random.seed(state)
        keras.utils.set_random_seed(state)
        with h5store.Reader(path, threads=threads, cache=0 if threads == 2 else "1MiB") as r:
            orders.append(fitted(r.to_keras(batch_size=BATCH, seed=5), epochs=3))
            wanted = plan(r, 5, 3)
    assert orders == [wanted] * 3


def test_training_does_not_draw_from_the_global_random(reader):
    model, data = Counting(), reader.to_keras(batch_size=BATCH, seed=5)
    fitted(data, model, epochs=1)  # Keras draws the seeds of what it builds
    random.seed(3)
    before = random.getstate()
    fitted(data, model, epochs=2)
    assert random.getstate() == before


@pytest.mark.parametrize("steps", [1, 2, 4, 8, 9, 10, 20])
def test_steps_per_epoch(reader, steps):
    data = reader.to_keras(batch_size=BATCH, seed=5)
    seen = fitted(data, epochs=5, steps_per_epoch=steps)
    assert len(seen) == 5 * steps
    # No sample twice before all were seen: the epochs of the order follow each other without a gap.
    assert seen == plan(reader, 5, 12)[:5 * steps]
    again = fitted(data, epochs=1)
    assert once(again) and again not in epochs_of(seen)


def test_early_stop_at_the_end_of_an_epoch(reader):
    data = reader.to_keras(batch_size=BATCH, seed=5)
    seen = fitted(data, epochs=5, callbacks=[Stop(epoch=1)])
    assert seen == plan(reader, 5, 2)
    assert fitted(data, epochs=2) == plan(reader, 5, 4)[2 * STEPS:]


@pytest.mark.parametrize("batch", [0, 1, 3, STEPS - 1])
def test_early_stop_within_an_epoch(reader, batch):
    data = reader.to_keras(batch_size=BATCH, seed=5)
    seen = fitted(data, epochs=5, callbacks=[Stop(batch=batch)])
    assert seen == plan(reader, 5, 1)[:batch + 1]
    after = fitted(data, epochs=3)
    assert all(once(epoch) for epoch in epochs_of(after))
    assert after[:STEPS] != after[STEPS:2 * STEPS]


@pytest.mark.parametrize("stop", [{"epoch": 0}, {"batch": 0}, {"batch": 3}, {"batch": STEPS - 1}], ids=repr)
@pytest.mark.parametrize("error", [RuntimeError("in a callback"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
def test_an_exception_in_a_callback(reader, stop, error):
    data = reader.to_keras(batch_size=BATCH, seed=5)
    model = Counting()
    with pytest.raises(type(error)):
        fitted(data, model, epochs=3, callbacks=[Stop(**stop, error=error)])
    after = fitted(data, model, epochs=3)
    assert len(after) == 3 * STEPS and all(once(epoch) for epoch in epochs_of(after))
    assert len({str(epoch) for epoch in epochs_of(after)}) == 3
    whole = epochs_of(plan(reader, 5, 10))
    assert [whole.index(epoch) for epoch in epochs_of(after)] == sorted(whole.index(e) for e in epochs_of(after))


def test_two_fits_in_a_row_go_on_with_the_next_epoch(reader):
    data = reader.to_keras(batch_size=BATCH, seed=5)
    assert fitted(data, epochs=2) + fitted(data, epochs=2) == plan(reader, 5, 4)
    assert fitted(data, initial_epoch=3, epochs=4) == plan(reader, 5, 5)[4 * STEPS:]


def test_new_batches_that_begin_with_a_later_epoch(reader):
    data = reader.to_keras(batch_size=BATCH, seed=5)
    data.go_to(2)
    assert fitted(data, initial_epoch=2, epochs=4) == plan(reader, 5, 4)[2 * STEPS:]


@pytest.mark.parametrize("batch_size", [1, N - 1, N, 10 * N])
def test_batch_sizes_from_one_to_more_than_all(reader, batch_size):
    data = reader.to_keras(batch_size=batch_size, seed=5)
    steps = len(data)
    assert steps == -(-N // batch_size)
    epochs = epochs_of(fitted(data, epochs=3), steps)
    assert len(epochs) == 3 and all(once(epoch) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("n, sizes", [(13, [4, 4, 4, 1]), (12, [4, 4, 4])])
def test_sizes_that_divide_and_that_do_not(tmp_path, n, sizes):
    h5store.pack(tmp_path / "a.h5", features=np.arange(n, dtype="f4").reshape(n, 1), progress=False)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Identity()])
    with h5store.Reader(tmp_path / "a.h5") as r:
        data = r.to_keras(batch_size=4, shuffle=False)
        assert len(data) == data.num_batches == len(sizes)
        assert [len(data[k][0]) for k in range(len(data))] == sizes
        np.testing.assert_array_equal(model.predict(data, verbose=0)[:, 0], np.arange(n))


def test_drop_last(reader):
    data = reader.to_keras(batch_size=BATCH, seed=5, drop_last=True)
    assert len(data) == 8
    seen = fitted(data, epochs=3)
    assert [len(b) for b in seen] == [BATCH] * 24
    for epoch in epochs_of(seen, 8):
        assert len(set(sum(epoch, []))) == 128
    with pytest.raises(SchemaError, match="no batches to feed"):
        reader.to_keras(batch_size=N + 1, drop_last=True)
    with pytest.raises(SchemaError, match="no batches to feed"):
        reader.select([]).to_keras(batch_size=4)


@pytest.mark.parametrize("compiled", [{"run_eagerly": True}, {"steps_per_execution": 2}, {"steps_per_execution": 3}],
                         ids=repr)
@pytest.mark.parametrize("steps", [None, 4])
def test_ways_to_run(reader, compiled, steps):
    model = Counting()
    model.compile(optimizer="sgd", loss="mse", **compiled)
    seen = fitted(reader.to_keras(batch_size=BATCH, seed=5), model, epochs=2, steps_per_epoch=steps)
    taken = steps or STEPS
    per = compiled.get("steps_per_execution", 1)
    if steps and steps % per:  # Keras runs whole executions
        assert seen == plan(reader, 5, 4)[:len(seen)] and len(seen) >= 2 * taken
    else:
        assert seen == plan(reader, 5, 4)[:2 * taken]


# ---- validation, evaluate, predict


def test_validation_from_the_same_store(reader):
    parts = reader.split({"train": 0.7, "val": 0.3}, by="y", seed=0)
    model = Counting()
    model.compile(optimizer="sgd", loss="mse")
    val = parts["val"].to_keras(batch_size=BATCH, shuffle=False)
    data = parts["train"].to_keras(batch_size=BATCH, seed=5)
    seen = fitted(data, model, epochs=3, validation_data=val)
    per = len(data) + len(val)
    for epoch in epochs_of(seen, per):
        assert sorted(sum(epoch[:len(data)], [])) == parts["train"].ids.tolist()
        assert sum(epoch[len(data):], []) == parts["val"].ids.tolist()
    assert len(seen) == 3 * per


@pytest.mark.parametrize("options", [{"validation_steps": 2}, {"validation_freq": 2}], ids=repr)
def test_validation_options(reader, options):
    data = reader.to_keras(batch_size=BATCH, seed=5)
    val = reader.to_keras(batch_size=BATCH, shuffle=False)
    model = Counting()
    seen = fitted(data, model, epochs=4, validation_data=val, **options)
    train = [b for b in seen if b not in plan(reader, None, 1, shuffle=False)]
    assert train == plan(reader, 5, 4)
    assert len(seen) == len(train) + 4 * 2 * (options == {"validation_steps": 2}) + 2 * STEPS * (
        options == {"validation_freq": 2})


def test_evaluate_and_predict_in_file_order_and_full_length(reader):
    inputs = {"x": keras.Input((3,), name="x"), "i": keras.Input((), name="i", dtype="int32")}
    model = keras.Model(inputs, keras.ops.cast(inputs["i"], "float32")[:, None] + 0 * inputs["x"][:, :1])
    model.compile(loss="mse", metrics=["mae"])
    data = reader.to_keras(batch_size=BATCH, shuffle=False)
    for _ in range(2):
        np.testing.assert_array_equal(model.predict(data, verbose=0)[:, 0], np.arange(N))
        codes = np.arange(N) % 3
        assert model.evaluate(data, verbose=0)[1] == pytest.approx(np.abs(np.arange(N) - codes).mean(), rel=1e-5)
    np.testing.assert_array_equal(model.predict(data, steps=2, verbose=0)[:, 0], np.arange(2 * BATCH))
    view = reader.select([7, 3, 7]).to_keras(batch_size=2, shuffle=False)
    np.testing.assert_array_equal(model.predict(view, verbose=0)[:, 0], [7, 3, 7])


def test_one_dataset_for_training_and_evaluation(reader):
    data = reader.to_keras(batch_size=BATCH, seed=5)
    model = Counting()
    for _ in range(2):
        assert once(fitted(data, model, epochs=1))
        model.seen = []
        model.evaluate(data, verbose=0)
        assert once(model.seen)


# ---- what a batch is


def several(tmp_path, n=5):
    rng = np.random.default_rng(1)
    data = {"image": rng.integers(0, 256, (n, 4, 4, 3), dtype="u1"), "aux": rng.normal(size=(n, 2)).astype("f4"),
            "site": np.arange(n, dtype="i8"), "cls": np.arange(n) % 3, "reg": rng.normal(size=(n, 1)).astype("f4")}
    h5store.pack(tmp_path / "a.h5", features={"image": data["image"]}, aux={"aux": data["aux"], "site": data["site"]},
                 labels={"cls": data["cls"], "reg": data["reg"]}, progress=False)
    return data


def test_several_inputs_and_outputs_by_name(tmp_path):
    data = several(tmp_path)
    image, aux = keras.Input((4, 4, 3), name="image"), keras.Input((2,), name="aux")
    site = keras.Input((), name="site", dtype="int64")
    flat = keras.layers.Concatenate()([keras.layers.Flatten()(image), aux, keras.layers.Embedding(5, 2)(site)])
    outputs = {"cls": keras.layers.Dense(3, activation="softmax", name="cls")(flat),
               "reg": keras.layers.Dense(1, name="reg")(flat)}
    with h5store.Reader(tmp_path / "a.h5") as r:
        batches = r.to_keras(batch_size=2, shuffle=False)
        last = batches[len(batches) - 1]
        assert isinstance(last, tuple) and len(last) == 2
        for members, names in zip(last, (("image", "aux", "site"), ("cls", "reg"))):
            assert tuple(members) == names
            for name, value in members.items():
                np.testing.assert_array_equal(value, data[name][4:])
                assert value.dtype == data[name].dtype and value.shape == data[name][4:].shape
        for inputs in ({"image": image, "aux": aux, "site": site}, [image, aux, site]):
            model = keras.Model(inputs, outputs)
            model.compile("sgd", loss={"cls": "sparse_categorical_crossentropy", "reg": "mse"})
            history = model.fit(r.to_keras(batch_size=2, seed=0), epochs=2, verbose=0)
            assert len(history.history["loss"]) == 2
            found = model.predict(batches, verbose=0)
            assert found["cls"].shape == (5, 3) and found["reg"].shape == (5, 1)


def test_one_input_is_the_bare_array(tmp_path):
    h5store.pack(tmp_path / "a.h5", features=np.eye(6, dtype="f4"), labels=np.arange(6), progress=False)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with h5store.Reader(tmp_path / "a.h5") as r:
        data = r.to_keras(batch_size=4, seed=0)
        assert isinstance(data[0][0], np.ndarray)
        assert np.isfinite(model.fit(data, epochs=2, verbose=0).history["loss"]).all()


def weighted(tmp_path, kind="int"):
    n = 24
    labels = {"int": np.arange(n) % 2, "one-hot": np.eye(2, dtype="f4")[np.arange(n) % 2],
              "text": np.array(["no", "yes"])[np.arange(n) % 2]}[kind]
    h5store.pack(tmp_path / "a.h5", features={"x": np.ones((n, 1), "f4")}, labels={"y": labels},
                 weights={"w": (np.arange(n) % 2 * 3).astype("f4")}, progress=False, overwrite=True)
    return h5store.Reader(tmp_path / "a.h5")


def constant(kind="int"):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2, use_bias=False, kernel_initializer="zeros")])
    loss = keras.losses.CategoricalCrossentropy if kind == "one-hot" else keras.losses.SparseCategoricalCrossentropy
    model.compile(keras.optimizers.SGD(0.0), loss(from_logits=True))
    return model


def test_weights_are_the_third_member(tmp_path):
    with weighted(tmp_path) as r:
        x, y, w = r.to_keras(batch_size=8, shuffle=False)[0]
        np.testing.assert_array_equal(w, [0, 3] * 4)
        loss = constant().fit(r.to_keras(batch_size=24), verbose=0).history["loss"][0]
        assert loss == pytest.approx(1.5 * np.log(2), rel=1e-4)


@pytest.mark.parametrize("kind", ["int", "one-hot", "text"])
def test_class_weight(tmp_path, kind):
    with weighted(tmp_path, kind) as r:
        data = r.to_keras(batch_size=24, transform=lambda x, y, w: (x, y))
        loss = constant(kind).fit(data, class_weight={0: 0.0, 1: 2.0}, verbose=0).history["loss"][0]
        assert loss == pytest.approx(np.log(2), rel=1e-4)


def test_class_weight_beside_weights_is_refused_and_offers_weights(tmp_path):
    with weighted(tmp_path) as r:
        with pytest.raises(OptionError, match="class_weight.*weights.*'w'") as raised:
            constant().fit(r.to_keras(batch_size=8), class_weight={0: 1.0, 1: 2.0}, verbose=0)
        assert isinstance(raised.value, (H5StoreError, ValueError))
        # The same data still train without it.
        constant().fit(r.to_keras(batch_size=8), verbose=0)


def test_class_weight_of_several_labels_is_refused_and_offers_weights(tmp_path):
    several(tmp_path)
    image = keras.Input((4, 4, 3), name="image")
    flat = keras.layers.Flatten()(image)
    model = keras.Model({"image": image}, {"cls": keras.layers.Dense(3, name="cls")(flat),
                                           "reg": keras.layers.Dense(1, name="reg")(flat)})
    model.compile("sgd", loss={"cls": "mse", "reg": "mse"})
    with h5store.Reader(tmp_path / "a.h5") as r:
        with pytest.raises(OptionError, match="class_weight.*'cls', 'reg'.*weights"):
            model.fit(r.to_keras(batch_size=2), class_weight={0: 1.0}, verbose=0)


def test_text_labels_train_as_codes(path, reader):
    inputs = {"x": keras.Input((3,), name="x"), "i": keras.Input((), name="i", dtype="int32")}
    kind = keras.layers.Embedding(N, 3)(inputs["i"]) + 0 * inputs["x"]
    model = keras.Model(inputs, kind)
    model.compile(keras.optimizers.Adam(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  metrics=["accuracy"])
    history = model.fit(reader.to_keras(batch_size=BATCH, seed=0), epochs=4, verbose=0).history
    assert history["accuracy"][-1] == 1.0
    codes = model.predict(reader.to_keras(batch_size=BATCH, shuffle=False), verbose=0).argmax(1)
    np.testing.assert_array_equal(np.array(reader.schema["y"].classes)[codes], reader["y"][:])


def test_big_endian_sources_train(tmp_path):
    h5store.pack(tmp_path / "a.h5", features=np.arange(12).reshape(4, 3).astype(">f4"),
                 labels=np.arange(4).astype(">i2"), progress=False)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with h5store.Reader(tmp_path / "a.h5") as r:
        x, y = r.to_keras(batch_size=4, shuffle=False)[0]
        assert x.dtype.isnative and y.dtype.isnative
        np.testing.assert_array_equal(x, np.arange(12).reshape(4, 3))
        model.fit(r.to_keras(batch_size=2), verbose=0)


# ---- transform


def doubled(x, y):
    return {**x, "x": x["x"] * 2}, y


@pytest.mark.parametrize("transform", [doubled, lambda batch: doubled(*batch), lambda *members: doubled(*members),
                                       lambda x, y, factor=2: ({**x, "x": x["x"] * factor}, y)],
                         ids=["members", "whole", "star", "default"])
def test_transform(reader, transform):
    data = reader.to_keras(batch_size=BATCH, shuffle=False, transform=transform)
    x, y = data[1]
    np.testing.assert_array_equal(x["x"][:, 0], 2 * np.arange(BATCH, 2 * BATCH))
    np.testing.assert_array_equal(y, np.arange(BATCH, 2 * BATCH) % 3)
    for x, y in (data[k] for k in range(len(data))):
        assert (x["x"][:, 0] == 2 * x["i"]).all()


def test_a_transform_may_change_everything(reader):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    def pair(inputs, labels):
        return np.stack([inputs["i"], labels], 1).astype("f4"), labels.astype("f4"), np.ones(len(labels), "f4")

    data = reader.to_keras(batch_size=BATCH, transform=pair)
    assert len(data[0]) == 3
    model.fit(data, epochs=2, verbose=0)


def test_a_transform_that_cannot_be_called_is_refused_at_once(reader):
    with pytest.raises(OptionError, match="transform=3, expected a function"):
        reader.to_keras(batch_size=BATCH, transform=3)


def test_an_error_in_a_transform_reaches_the_user(reader):
    def broken(x, y):
        raise ZeroDivisionError("in a transform")

    with pytest.raises(ZeroDivisionError, match="in a transform"):
        fitted(reader.to_keras(batch_size=BATCH, transform=broken), epochs=1)


# ---- the object


def test_it_is_what_keras_takes(reader):
    data = reader.to_keras(batch_size=BATCH, seed=5)
    assert isinstance(data, keras.utils.PyDataset) and isinstance(data, tf.keras.utils.Sequence)
    assert len(data) == data.num_batches == STEPS
    assert repr(STEPS) in repr(data) and "seed 5" in repr(data)


def test_by_number_it_is_the_epoch_to_come(reader):
    data = reader.to_keras(batch_size=BATCH, seed=5)
    wanted = plan(reader, 5, 1)
    for k in (4, 0, -1, 8, 2):
        assert data[k][0]["i"].tolist() == wanted[k]
    assert fitted(data, epochs=1) == wanted


def test_it_pickles_small(reader):
    data = reader.to_keras(batch_size=BATCH, seed=5, transform=doubled)
    list(data[k] for k in range(3))
    raw = pickle.dumps(data)
    assert len(raw) < 5000
    other = pickle.loads(raw)
    assert other[0][0]["x"].tolist() == data[0][0]["x"].tolist()
    other.loader.reader.close()


@pytest.mark.parametrize("option, value", [("workers", 0), ("workers", 1), ("workers", 2), ("workers", 4),
                                           ("use_multiprocessing", False), ("use_multiprocessing", True)])
def test_workers_of_keras_own_stay_off(reader, option, value):
    """With more than one, Keras serves batches of one epoch in the next: some samples twice, others never."""
    data = reader.to_keras(batch_size=BATCH, seed=5)
    if value in (0, 1, False) and value is not True:
        setattr(data, option, value)
    else:
        with pytest.warns(UserWarning, match=rf"{option}.*Reader\(path, threads="):
            setattr(data, option, value)
    assert fitted(data, epochs=3) == plan(reader, 5, 3)
    assert fitted(data, epochs=2, steps_per_epoch=4) == plan(reader, 5, 4)[3 * STEPS:3 * STEPS + 8]


def test_a_dataset_survives_a_fork(reader):
    data = reader.to_keras(batch_size=BATCH, seed=5)
    data.on_epoch_begin()
    wanted = plan(reader, 5, 1)
    assert [data[k][0]["i"].tolist() for k in range(3)] == wanted[:3]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, bytes([[data[k][0]["i"].tolist() for k in range(3, STEPS)] == wanted[3:]]))
        finally:
            os._exit(0)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0 and os.read(read, 1) == b"\1"
    os.close(read)
    assert [data[k][0]["i"].tolist() for k in range(3, STEPS)] == wanted[3:]
    data.on_epoch_end()
