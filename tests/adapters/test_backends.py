"""Every backend of Keras, each sample exactly once: counted by a metric inside the model, so by what was trained on.

Runs on the backend that KERAS_BACKEND names; CI has a leg for each.
"""

from __future__ import annotations

import gc
import multiprocessing
import operator
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h5store
from h5store.errors import OptionError, SchemaError

keras = pytest.importorskip("keras")
EPOCHS = 5
#: A transform that any process can import: the batch as it is.
SAME = operator.itemgetter(slice(0, 3))
WAYS = [(workers, how) for workers in (1, 4) for how in (False, "fork", "spawn")]


class Seen(keras.metrics.Metric):
    """How often each sample was trained on since the epoch began; its label is its number."""

    def __init__(self, n: int) -> None:
        super().__init__(name="seen")
        self.n = n
        self.counts = self.add_weight(shape=(n,), initializer="zeros", name="counts")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        ids = keras.ops.cast(keras.ops.reshape(y_true, (-1,)), "int32")
        self.counts.assign_add(keras.ops.sum(keras.ops.one_hot(ids, self.n), axis=0))

    def result(self) -> Any:
        return keras.ops.max(self.counts)


class Counts(keras.callbacks.Callback):
    """The counts of each epoch."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen, self.epochs = seen, []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model  # the JAX trainer brings its state back when asked for its model
        self.epochs.append(np.asarray(keras.ops.convert_to_numpy(self.seen.counts.value)).astype(int).tolist())


class Curve(keras.callbacks.Callback):
    """The loss after every batch; stops with an error after some."""

    def __init__(self, stop: int | None = None) -> None:
        super().__init__()
        self.losses, self.stop = [], stop

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"]))
        if len(self.losses) == self.stop:
            raise KeyboardInterrupt


def counting(n: int) -> tuple[Any, Seen]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    seen = Seen(n)
    model.compile("sgd", "mse", metrics=[seen])
    return model, seen


@pytest.fixture(scope="module", params=[100, 103], ids=["last batch full", "last batch ragged"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[h5store.Reader]:
    path, n = tmp_path_factory.mktemp("backends") / "x.h5", request.param
    x = np.stack([np.arange(n) / n, np.ones(n)], axis=1).astype("f4")
    h5store.pack(path, features=x, labels=np.arange(n, dtype="f4"), chunk=4, progress=False)
    reader = h5store.Reader(path)
    yield reader
    reader.close()


@pytest.fixture(scope="module")
def model(store: h5store.Reader) -> tuple[Any, Seen]:
    return counting(len(store))


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    yield
    end = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < end:
        gc.collect()
        time.sleep(0.05)
    assert not multiprocessing.active_children()


@pytest.mark.filterwarnings("ignore:os.fork", "ignore:This process")
@pytest.mark.parametrize("shuffle", [True, "full", False])
@pytest.mark.parametrize("workers, how", WAYS)
def test_each_sample_once_an_epoch(store: h5store.Reader, model: tuple[Any, Seen], workers: int, how: Any,
                                   shuffle: Any) -> None:
    made, seen = model
    if how == "spawn" and shuffle == "full":
        pytest.skip("costs seconds, and processes do not see how the order is made")
    counts = Counts(seen)
    batches = store.to_keras(batch_size=10, shuffle=shuffle, seed=3, transform=SAME, workers=workers,
                             use_multiprocessing=how, window=400)
    made.fit(batches, epochs=EPOCHS if how != "spawn" else 2, verbose=0, callbacks=[counts])
    assert counts.epochs == [[1] * len(store)] * len(counts.epochs)


def test_validation_and_predict_in_the_order_of_the_file(store: h5store.Reader, model: tuple[Any, Seen]) -> None:
    made, seen = model
    counts = Counts(seen)
    train = store.to_keras(batch_size=10, seed=1)
    val = store.to_keras(batch_size=8, shuffle=False)
    history = made.fit(train, epochs=2, verbose=0, validation_data=val, callbacks=[counts])
    # `seen` was updated by validation after training, and each pass reset it.
    assert counts.epochs == [[1] * len(store)] * 2
    assert history.history["val_seen"] == [1.0, 1.0]
    assert made.predict(val, verbose=0).shape == (len(store), 1)
    want = made.predict(store["features"][:], verbose=0)
    np.testing.assert_allclose(made.predict(val, verbose=0), want, rtol=1e-5)


def test_steps_per_epoch_go_through_all_samples_before_any_comes_again(store: h5store.Reader) -> None:
    made, seen = counting(len(store))
    counts = Counts(seen)
    batches = store.to_keras(batch_size=10, seed=1)
    steps = len(batches) // 2
    made.fit(batches, epochs=4, steps_per_epoch=steps, verbose=0, callbacks=[counts])
    first = np.sum(counts.epochs[:2], axis=0)
    assert first.max() == 1 and first.sum() == (2 * steps * 10 if len(store) == 100 else 100)


@pytest.mark.parametrize("stop", [1, 7, 10, 11, 16, 22])
@pytest.mark.parametrize("every", [1, "epoch"])
def test_killed_after_any_batch_and_resumed(store: h5store.Reader, tmp_path: Path, stop: int, every: Any) -> None:
    def train(resume: bool, stop: int | None = None) -> list[float]:
        batches, curve = store.to_keras(batch_size=10, seed=5), Curve(stop)
        callbacks = [batches.resume(tmp_path, every=every), curve] if resume else [curve]
        try:
            counting(len(store))[0].fit(batches, epochs=3, verbose=0, callbacks=callbacks)
        except KeyboardInterrupt:
            pass
        return curve.losses

    whole = train(False)
    steps = len(whole) // 3
    before = train(True, stop)
    after = train(True)
    # An epoch is saved after its last batch has returned.
    kept = stop if every == 1 else (stop - 1) // steps * steps
    assert len(after) == len(whole) - kept
    # A resumed epoch's running mean lacks the batches before it, so whole epochs are compared.
    whole_epochs = -(-kept // steps) * steps
    np.testing.assert_allclose(after[whole_epochs - kept:], whole[whole_epochs:], rtol=1e-5)
    np.testing.assert_allclose(before, whole[:stop], rtol=1e-6)


@pytest.mark.parametrize("how", [False, "fork"])
def test_an_error_in_a_transform_reaches_fit_and_leaves_nothing(store: h5store.Reader, how: Any) -> None:
    batches = store.to_keras(batch_size=10, seed=1, transform=operator.itemgetter(7), workers=2,
                             use_multiprocessing=how)
    with pytest.raises(Exception, match="index out of range"):
        counting(len(store))[0].fit(batches, verbose=0)


def test_an_interrupted_fit_leaves_nothing(store: h5store.Reader) -> None:
    batches = store.to_keras(batch_size=10, seed=1, transform=SAME, workers=2, use_multiprocessing="fork")
    with pytest.raises(KeyboardInterrupt):
        counting(len(store))[0].fit(batches, verbose=0, callbacks=[Curve(3)])


def test_a_transform_that_cannot_travel_is_told(store: h5store.Reader) -> None:
    with pytest.raises(OptionError, match="does not go into another process"):
        store.to_keras(batch_size=10, transform=lambda x, y: (x, y), use_multiprocessing=True)


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": True}, {"use_multiprocessing": "thread"}])
def test_settings_that_do_not_exist(store: h5store.Reader, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        store.to_keras(batch_size=10, transform=SAME, **options)


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_weights_that_are_none_are_named(tmp_path: Path, bad: float,
                                         open_reader: Callable[..., h5store.Reader]) -> None:
    weights = np.ones(20, "f4")
    weights[13] = bad
    h5store.pack(tmp_path / "w.h5", features=np.ones((20, 2), "f4"), labels=np.ones(20, "f4"),
                 weights={"w": weights}, progress=False)
    reader = open_reader(tmp_path / "w.h5")
    with pytest.raises(SchemaError, match="'w'.*a weight is"):
        for _ in reader.loader(batch_size=5, seed=0):
            pass


def test_normalized_inputs_are_the_layer_s(store: h5store.Reader) -> None:
    norm = store.select(np.arange(50)).normalization()
    raw = store["features"][:]
    fed = np.concatenate([b[0] for b in store.loader(batch_size=10, shuffle=False, normalize=norm)])
    np.testing.assert_allclose(fed, (raw - raw[:50].mean(0)) / np.where(raw[:50].std(0), raw[:50].std(0), 1), rtol=1e-4,
                               atol=1e-6)
    layer = norm.layer("features")
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(raw)), fed, rtol=1e-4, atol=1e-5)
