"""`h5store bench` and `measure`: that they read what they say, and advise by what they see. No rate is judged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import h5store
from h5store.errors import SourceError
from h5store.speed import measure


def packed(path: Path, n: int = 300, **options: object) -> Path:
    x = (np.arange(n * 8) % 50).reshape(n, 8).astype("f4")
    h5store.pack(path, features=x, labels=np.arange(n) % 3, progress=False, **options)  # type: ignore[arg-type]
    return path


def test_every_way_of_reading_is_timed(tmp_path: Path) -> None:
    speed = measure(packed(tmp_path / "a.h5"), batch_size=32, seconds=0.02)
    assert list(speed.rates) == ["sequential", "shuffled", "random"]
    assert all(rate > 0 for rate in speed.rates.values())
    assert speed.samples == 300 and "samples/s" in str(speed)


def test_advice_tells_a_store_that_fits_the_cache_from_one_that_does_not(tmp_path: Path) -> None:
    path = packed(tmp_path / "a.h5", codec="gzip")
    held = measure(path, seconds=0.01)
    assert any("fit the cache" in text for text in held.advice)
    bare = measure(path, seconds=0.01, cache=0)
    assert any(text.startswith("cache=") for text in bare.advice)
    assert any("codec='lz4'" in text for text in bare.advice)


def test_samples_that_do_not_compress_are_better_stored_plainly(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (4000, 64), dtype=np.uint8)
    h5store.pack(tmp_path / "noise.h5", features=noise, progress=False)
    assert any("codec=None" in text for text in measure(tmp_path / "noise.h5", seconds=0.01).advice)


def test_a_store_without_samples_is_refused(tmp_path: Path) -> None:
    h5store.pack(tmp_path / "none.h5", features=np.zeros((0, 3)), progress=False)
    with pytest.raises(SourceError, match="no samples"):
        measure(tmp_path / "none.h5")
