"""Plots draw what the store holds: as many axes as samples, the right kind, titles that tell, whatever the values."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h5store
from h5store.errors import FieldNotFound, OptionError, SchemaError, SelectionError

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")
opened: list[h5store.Reader] = []


@pytest.fixture(autouse=True)
def closed(no_file_left_open: None) -> Iterator[None]:
    yield
    plt.close("all")
    while opened:
        opened.pop().close()


def packed(path: Path, **how: Any) -> h5store.Reader:
    h5store.pack(path, progress=False, overwrite=True, **how)
    opened.append(h5store.Reader(path))
    return opened[-1]


@pytest.fixture
def reader(tmp_path: Path) -> h5store.Reader:
    rng = np.random.default_rng(0)
    kind = np.arange(120) % 3
    return packed(
        tmp_path / "s.h5", labels={"kind": np.array(["a$b", "bee", "cat"])[kind]}, meta={"z": rng.random(120)},
        features={"image": rng.integers(0, 9, (120, 8, 8), dtype="u1") + kind.astype("u1")[:, None, None],
                  "curve": rng.random((120, 50, 2))},
        aux={"host": rng.random((120, 5))})


def drawn(figure: Any) -> None:
    """Draw it: text that cannot be laid out, or mathematics that does not parse, fails here."""
    figure.set_dpi(30)
    figure.canvas.draw()


def shown(axes: Any) -> list[Any]:
    return [ax for ax in np.ravel(axes) if ax.axison]


def test_images_are_a_grid_of_the_samples(reader: h5store.Reader) -> None:
    axes = reader.plot_samples(ids=[5, 3, 99])
    drawn(axes[0, 0].figure)
    assert len(shown(axes)) == 3
    for ax, i in zip(np.ravel(axes), [5, 3, 99]):
        values = reader["image"][[5, 3, 99]].astype(float)
        wanted = (reader["image"][i] - values.min()) * 255 / (values.max() - values.min())
        np.testing.assert_allclose(ax.images[0].get_array(), wanted, atol=1)
        assert f"({i})" in ax.get_title()
    assert "image" in axes[0, 0].figure.get_suptitle()


def test_series_are_lines_by_channel_and_vectors_bars(reader: h5store.Reader) -> None:
    axes = reader.plot_samples("curve", ids=[7])
    drawn(axes[0, 0].figure)
    for c, line in enumerate(axes[0, 0].lines):
        assert line.get_ydata().tolist() == reader["curve"][7, :, c].tolist()
    assert len(axes[0, 0].lines) == 2
    axes = reader.plot_samples("host", ids=[7])
    drawn(axes[0, 0].figure)
    assert [bar.get_height() for bar in axes[0, 0].patches] == reader["host"][7].tolist()


def test_by_class_gives_a_row_a_class(reader: h5store.Reader) -> None:
    axes = reader.plot_samples("image", by="kind", n=12, seed=1)
    drawn(axes[0, 0].figure)
    assert axes.shape == (3, 4)
    for row, name in zip(axes, (r"a\$b", "bee", "cat")):
        assert all(ax.get_title().startswith(name) for ax in row)
    again = reader.plot_samples("image", by="kind", n=12, seed=1)
    assert [a.get_title() for a in np.ravel(axes)] == [a.get_title() for a in np.ravel(again)]


def test_labels_are_counted(reader: h5store.Reader) -> None:
    ax = reader.plot_labels()
    drawn(ax.figure)
    assert [bar.get_height() for bar in ax.patches] == [40, 40, 40]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == [r"a\$b", "bee", "cat"]
    ax = reader.plot_labels(parts=reader.split({"train": 0.5, "val": 0.5}, by="kind", seed=0))
    drawn(ax.figure)
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([1 / 3] * 6)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["train", "val"]
    mine = plt.subplots()[1]
    assert reader.plot_labels("z", ax=mine) is mine
    assert sum(path.get_extents().height > 0 for path in [p.get_path() for p in mine.patches]) == 1


def test_many_classes_are_cut_and_told(tmp_path: Path) -> None:
    reader = packed(tmp_path / "s.h5", features={"x": np.zeros(900)}, labels={"id": np.arange(900) % 300})
    ax = reader.plot_labels()
    drawn(ax.figure)
    assert len(ax.patches) == 30
    assert "30 most frequent of 300" in ax.get_xlabel()


def test_ranges_are_those_of_the_statistics(reader: h5store.Reader) -> None:
    stats = reader.stats(progress=False)
    ax = reader.plot_stats(stats)
    drawn(ax.figure)
    names = [tick.get_text() for tick in ax.get_yticklabels()]
    assert names == ["image", "curve [0]", "curve [1]"] + [f"host [{c}]" for c in range(5)]
    assert ax.lines[0].get_xdata() == pytest.approx([stats["image"].min[0], stats["image"].max[0]])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "smallest to largest", "1 to 99 %", "25 to 75 %", "median"]


def test_a_batch_is_what_the_model_is_fed(reader: h5store.Reader) -> None:
    loader = reader.loader(batch_size=16, shuffle=True, seed=2)
    inputs, labels = loader.batch(0, 1)
    axes = reader.plot_batch(loader, step=1, n=5)
    drawn(axes[0, 0].figure)
    assert len(shown(axes)) == 5
    assert [ax.get_title() for ax in shown(axes)] == [str(label) for label in labels[:5]]
    doubled = ({"image": inputs["image"] * 2.0 - 100}, labels)
    title = reader.plot_batch(doubled)[0, 0].figure.get_suptitle()
    assert f"{doubled[0]['image'].min():.4g} to {doubled[0]['image'].max():.4g}" in title and "float64" in title
    assert len(shown(reader.plot_batch(n=3))) == 3


def test_the_shuffle_is_the_loaders(reader: h5store.Reader) -> None:
    ax = reader.plot_shuffle(batch_size=10, seed=4, epoch=2)
    drawn(ax.figure)
    x, y = ax.lines[0].get_data()
    plan = reader.loader(batch_size=10, shuffle=True, seed=4).plan
    for step in range(12):
        assert y[x == step].tolist() == plan.batch(2, step).tolist()
    x, y = reader.select([50, 3, 7]).plot_shuffle(batch_size=1, shuffle=False).lines[0].get_data()
    assert y.tolist() == [50, 3, 7]


@pytest.mark.parametrize("values", [
    np.full((6, 9, 9), np.nan), np.full((6, 40), np.inf), np.zeros((6, 5)), np.full((6, 9, 9), 1e308),
    np.full(6, np.nan), np.zeros((6,) + (1,) * 31), np.ones((6, 40), "c8"), np.zeros((6, 8, 8, 3), "i8"),
    np.zeros((6, 5000)), np.zeros((6, 3, 700)), np.zeros((6, 4, 5, 6)), np.zeros((0, 8, 8)),
], ids=lambda v: f"{v.dtype}-{v.shape}")
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_odd_values_are_drawn(values: np.ndarray, tmp_path: Path) -> None:
    reader = packed(tmp_path / "s.h5", features={"x $\\frac{": values},
                    labels={"y": values.reshape(len(values), -1)[:, 0].real if len(values) else np.zeros(0)})
    drawn(reader.plot_samples()[0, 0].figure)
    drawn(reader.plot_labels().figure)
    drawn(reader.plot_stats().figure)
    drawn(reader.plot_shuffle(batch_size=2).figure)
    if len(values):
        drawn(reader.plot_batch()[0, 0].figure)


def test_large_samples_are_thinned_out(tmp_path: Path) -> None:
    reader = packed(tmp_path / "s.h5", features={"x": np.zeros((2, 1500, 1500), "u1"), "s": np.zeros((2, 10_000))})
    assert max(reader.plot_samples("x")[0, 0].images[0].get_array().shape) <= 512
    assert len(reader.plot_samples("s")[0, 0].lines[0].get_xdata()) <= 2000


def test_what_cannot_be_drawn_says_why(reader: h5store.Reader, tmp_path: Path) -> None:
    with pytest.raises(FieldNotFound, match="'image'"):
        reader.plot_samples("imgae")
    with pytest.raises(SelectionError):
        reader.plot_samples(ids=[999])
    with pytest.raises(OptionError, match="n: expected"):
        reader.plot_samples(n=1000)
    with pytest.raises(SchemaError, match="plot_samples"):
        reader.plot_labels("host")
    with pytest.raises(SchemaError, match="one value a sample"):
        reader.plot_samples(by="host")
    with pytest.raises(FieldNotFound, match="no labels field to draw"):
        packed(tmp_path / "n.h5", features={"x": np.zeros(3)}).plot_labels()
    with pytest.raises((OptionError, IndexError), match="step"):
        reader.plot_batch(step=99)


def test_samples_of_different_lengths_are_lines_that_end(tmp_path: Path) -> None:
    reader = packed(tmp_path / "s.h5", features={"s": [np.arange(30.0), np.arange(90.0)]})
    axes = reader.plot_samples()
    drawn(axes[0, 0].figure)
    assert [np.isfinite(ax.lines[0].get_ydata()).sum() for ax in axes.flat] == [30, 90]


def test_a_missing_matplotlib_is_told(reader: h5store.Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pip install 'h5store\[notebook\]'"):
        reader.plot_labels()
