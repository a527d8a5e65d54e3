"""The scripts that people copy run as they stand, a second time too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import h5store

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(script: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, str(SCRIPTS / script), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_light_curves() -> None:
    flux = np.random.default_rng(0).normal(size=(50, 20, 2)).astype("f4")
    flux[7, 3, 1] = np.nan
    np.save("X.npy", flux)
    np.savez("Z.npz", np.ones((50, 4)))
    np.save("y.npy", np.arange(50) % 3)
    out = run("pack_lightcurves.py", "X.npy", "Z.npz", "y.npy", "curves.h5")
    assert "field 'flux': 1 values are not finite, first in samples (7,)" in out
    before = Path("curves.h5").read_bytes()
    run("pack_lightcurves.py", "X.npy", "Z.npz", "y.npy", "curves.h5")
    assert Path("curves.h5").read_bytes() == before
    with h5store.Reader("curves.h5") as reader:
        np.testing.assert_array_equal(reader["flux"][:], flux)


def test_samples() -> None:
    Path("parts").mkdir()
    for i in range(12):
        np.savez(f"parts/{i}.npz", img=np.full((4, 4), i), label=i % 2)
    np.savez("parts/3.npz", img=np.zeros((4, 4)))
    out = run("pack_samples.py", "parts", "samples.h5")
    assert "left out: parts/3.npz: no 'label'" in out
    with h5store.Reader("samples.h5") as reader:
        assert reader["img"][:, 0, 0].tolist() == [i for i in range(12) if i != 3]


def test_images() -> None:
    image = pytest.importorskip("PIL.Image")
    Path("photos").mkdir()
    for i in range(20):
        image.fromarray(np.full((150, 140, 3), i, "u1")).save(f"photos/{i}.png")
    Path("labels.txt").write_text("".join(f"{i}.png {'ab'[i % 2]}\n" for i in range(20)))
    out = run("pack_images.py", "photos", "labels.txt", "images.h5")
    assert "train: 16 samples" in out and "val: 4 samples" in out
    with h5store.Reader("images.h5") as reader:
        assert reader["image"].shape == (20, 128, 128, 3)
        assert len(reader.split("val")) == 4


@pytest.mark.parametrize("script", ["pack_lightcurves.py", "pack_samples.py", "pack_images.py"])
def test_without_arguments_they_say_how_they_are_called(script: str) -> None:
    done = subprocess.run([sys.executable, str(SCRIPTS / script)], capture_output=True, text=True)
    assert done.returncode == 1 and f"python scripts/{script}" in done.stderr
