"""Four jobs that people do by hand, each by one command, then an epoch of training from the store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import h5store
from h5store.cli.main import main


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> None:
    with pytest.raises(SystemExit) as done:
        main([*words, "--quiet"] if "pack" in words else list(words))
    assert not done.value.code


def two_inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {"X_train": rng.normal(size=(300, 20)).astype("f4"), "Z_train": rng.normal(size=(300, 4)).astype("f4"),
              "y_train": np.arange(300) % 3}
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    run("pack", "arrays", "train.h5", "--features", "input_1=X_train.npy", "--aux", "input_2=Z_train.npy",
        "--labels", "y_train.npy")
    return arrays


def model() -> object:
    keras = pytest.importorskip("keras")
    first, second = keras.Input((20,), name="input_1"), keras.Input((4,), name="input_2")
    out = keras.layers.Dense(3, activation="softmax")(keras.layers.Concatenate()([first, second]))
    made = keras.Model({"input_1": first, "input_2": second}, out)
    made.compile(loss="sparse_categorical_crossentropy")
    return made


def test_arrays_to_two_inputs_and_a_label() -> None:
    arrays = two_inputs()
    with h5store.Reader("train.h5") as reader:
        inputs, labels = reader.batch(range(5))
        np.testing.assert_array_equal(inputs["input_1"], arrays["X_train"][:5])
        np.testing.assert_array_equal(inputs["input_2"], arrays["Z_train"][:5])
        np.testing.assert_array_equal(labels, arrays["y_train"][:5])
        history = model().fit(reader.to_keras(batch_size=64, seed=0), epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"][0])


def test_arrays_through_tf_data() -> None:
    pytest.importorskip("tensorflow")
    arrays = two_inputs()
    with h5store.Reader("train.h5") as reader:
        dataset = reader.to_tf(batch_size=64, shuffle=False)
        inputs, labels = next(iter(dataset))
        np.testing.assert_array_equal(inputs["input_2"].numpy(), arrays["Z_train"][:64])
        np.testing.assert_array_equal(labels.numpy(), arrays["y_train"][:64])
        assert np.isfinite(model().fit(dataset, epochs=1, verbose=0).history["loss"][0])


MEMORY = """
import resource, sys
from h5store.cli.main import main

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    main(["pack", "arrays", "data.h5", "--features", "x=X_data.npz:arr_0", "--labels", "y_data.npz", "--quiet"])
except SystemExit as done:
    assert not done.code
import h5store

seen = 0
for x, y in h5store.Reader("data.h5", cache=0).loader(batch_size=256, seed=0, window="8MiB").epoch(0):
    seen += len(y)
print(seen, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * (1 if sys.platform == "darwin" else 1024))
"""


def test_compressed_archives_pass_through_little_memory() -> None:
    n, width = 40_000, 1000  # 160 MB decoded
    rng = np.random.default_rng(0)
    np.savez_compressed("X_data.npz", np.tile(rng.integers(0, 9, (n // 100, width)).astype("f4"), (100, 1)))
    np.savez_compressed("y_data.npz", np.arange(n) % 5)
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    seen, used = map(int, done.stdout.split("\n")[-2].split())
    assert seen == n
    assert used < 150e6, "less than the data: two buffers of what is on its way"


def test_a_folder_of_images_with_labels() -> None:
    image = pytest.importorskip("PIL.Image")
    keras = pytest.importorskip("keras")
    os.mkdir("img")
    for i in range(40):
        image.fromarray(np.full((20 + i, 30, 3), i, "u1")).save(f"img/{i}.jpg")
    Path("labels.txt").write_text("".join(f"{i}.jpg {i % 2}\n" for i in range(40)))
    run("pack", "images", "img.h5", "img", "--labels", "labels.txt", "--resize", "16x24")
    with h5store.Reader("img.h5") as reader:
        assert reader["image"].shape == (40, 16, 24, 3)
        assert reader["label"][:].tolist() == [i % 2 for i in range(40)]
        net = keras.Sequential([keras.Input((16, 24, 3)), keras.layers.Flatten(), keras.layers.Dense(1)])
        net.compile(loss="mse")
        assert np.isfinite(net.fit(reader.to_keras(batch_size=16, seed=0), verbose=0).history["loss"][0])


def test_a_hundred_files_through_torch(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkdir("parts")
    for i in range(100):
        np.savez(f"parts/{i}.npz", img=np.full((8, 8), i, "f4"), label=np.int64(i % 10))
    with pytest.raises(SystemExit):
        main(["pack", "samples", "parts.h5", "parts/*.npz", "--features", "img", "--labels", "label"])
    assert "100/100" in capsys.readouterr().err, "a bar was shown"
    torch = pytest.importorskip("torch")
    with h5store.Reader("parts.h5") as reader:
        seen = []
        for images, labels in reader.to_torch(batch_size=32, shuffle=True, seed=0):
            assert isinstance(images, torch.Tensor) and (images[:, 0, 0].long() % 10 == labels).all()
            seen += images[:, 0, 0].tolist()
    assert sorted(seen) == list(range(100))
