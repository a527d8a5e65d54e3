"""Plots of single samples: images as a grid, series as lines, vectors as bars; of a store, or of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from h5store.errors import OptionError, SchemaError
from h5store.explore import pictures
from h5store.explore.facts import channels_last, kind_of, shape_text
from h5store.explore.plots import chosen, label, name_of, pyplot
from h5store.explore.sample import counted
from h5store.schema import Field, Role

if TYPE_CHECKING:
    from h5store.reader import Reader

_MOST = 64
#: Classes that a grid has rows for, and samples that are looked through for them.
_CLASSES, _LOOKED = 10, 200_000
# A screen has no more pixels: longer lines and larger images are thinned out.
_POINTS, _PIXELS = 2000, 512
_CHANNELS = 8
#: Decoded bytes of the samples of one plot.
_BYTES = 2**28
_NONE = np.empty(0, np.int64)


def plot_samples(reader: Reader, name: str | None, *, ids: Any, n: int, by: str | None, seed: int) -> Any:
    """See ``Reader.plot_samples``."""
    f = chosen(reader, name, Role.FEATURES)
    n = _checked(n)
    rows: list[np.ndarray] | None = None
    if ids is not None:
        places = _places(reader, ids)
    elif by is not None:
        rows = _of_each_class(reader, chosen(reader, by, Role.LABELS), n, seed)
        places = np.concatenate(rows) if rows else _NONE
    else:
        rng = np.random.Generator(np.random.PCG64(seed))
        places = np.sort(rng.choice(len(reader), min(n, len(reader)), replace=False)) if len(reader) else _NONE
    per = max(1, _BYTES // max(1, max(f.nbytes, reader._store.chunk_bytes(f.name) or 0)))
    places = places[:per]
    named, titles = _titles(reader, places, by)
    columns = max((len(r) for r in rows), default=1) if rows else None
    values, f = _stacked(reader.take(places, fields=[f.name])[f.name], f)
    return _grid(values, f, titles, f"{f.role} “{label(f.name)}” of {name_of(reader)}{named}", columns)


def _stacked(values: Any, f: Field) -> tuple[np.ndarray, Field]:
    """Samples as one array, and the field that they are of; shorter ones end in NaN."""
    if isinstance(values, np.ndarray):
        return values, f.seen
    shapes = {v.shape for v in values}
    if len(shapes) == 1:
        return np.stack(values), Field(f.name, f.role, values[0].dtype, shapes.pop())
    if f.encoded is not None:
        raise SchemaError(f"plot_samples: the images of {f.name!r} differ in size; draw one at a time: ids=[i]")
    longest = max((len(v) for v in values), default=1)
    out = np.full((len(values), max(1, longest), *f.shape[1:]), np.nan, np.result_type(f.dtype, np.float32))
    for row, sample in zip(out, values):
        row[:len(sample)] = sample
    return out, Field(f.name, f.role, out.dtype, out.shape[1:])


def _checked(n: int) -> int:
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or not 1 <= n <= _MOST:
        raise OptionError(f"n: expected an int from 1 to {_MOST}, got {n!r}")
    return int(n)


def _places(reader: Reader, ids: Any) -> np.ndarray:
    from h5store.sampling.select import as_ids

    return as_ids(ids, len(reader), f"{reader.path}: plot_samples").reshape(-1)[:_MOST]


def _of_each_class(reader: Reader, f: Field, n: int, seed: int) -> list[np.ndarray]:
    """Places of samples of each class, one row a class; drawn at random among the first that are looked through."""
    if f.shape:
        raise SchemaError(f"plot_samples: by={f.name!r} has samples of shape {f.shape}, expected one value a sample")
    rng = np.random.Generator(np.random.PCG64(seed))
    looked = (np.arange(len(reader)) if len(reader) <= _LOOKED
              else np.sort(rng.choice(len(reader), _LOOKED, replace=False)))
    values = reader.take(looked, fields=[f.name])[f.name]
    if values.dtype.kind == "U":
        names, codes = np.unique(values, return_inverse=True)
        classes: list[float | int] = [*range(len(names))][:_CLASSES]
    else:
        codes = values
        classes = sorted(counted(values))[:_CLASSES]
    each = max(1, n // max(1, len(classes)))
    out = []
    for c in classes:
        found = looked[np.flatnonzero(codes == c)]
        if len(found):
            out.append(np.sort(rng.choice(found, min(each, len(found)), replace=False)))
    return out


def _titles(reader: Reader, places: np.ndarray, by: str | None) -> tuple[str, list[str]]:
    """What the titles tell, and those: number of each sample, and its label where there is one scalar label."""
    scalar = [f.name for f in reader.schema.of(Role.LABELS) if not f.shape]
    name = by or (scalar[0] if len(scalar) == 1 else None)
    if name is None:
        return "", [f"sample {p}" for p in places.tolist()]
    values = reader.take(places, fields=[name])[name]
    texts = [label(f"{v:.4g}" if isinstance(v, float) else v, 14) for v in values.tolist()]
    titles = [f"{text}  ({place})" for text, place in zip(texts, places.tolist())]
    return f"; above each: {label(name)} (sample)", titles


def plot_batch(reader: Reader, batches: Any, *, step: int, n: int) -> Any:
    """See ``Reader.plot_batch``."""
    n = _checked(n)
    if batches is None:
        batches = reader.loader(batch_size=32, shuffle=True, seed=0)
    batch = _one(batches, step)
    members = list(batch)
    inputs = members[0] if isinstance(members[0], Mapping) else {"": members[0]}
    labels = _label_texts(members[1], n) if len(members) > 1 else None
    named = [f.name for f in reader.schema.of(Role.FEATURES, Role.AUX)]
    first = str(next(iter(inputs))) or (named[0] if len(named) == 1 else "inputs")
    values = np.asarray(next(iter(inputs.values())))
    shown = values[:n]
    titles = [f"{i}" for i in range(len(shown))] if labels is None else labels
    real = np.abs(values) if values.dtype.kind == "c" else values
    finite = real[np.isfinite(real)]
    low, high = (f"{float(np.min(finite)):.4g}", f"{float(np.max(finite)):.4g}") if finite.size else ("-", "-")
    field = Field(first, Role.FEATURES, values.dtype, values.shape[1:])
    title = (f"batch of {len(values):,}: “{label(first)}”, {values.dtype.name} {shape_text(values.shape[1:])}, "
             f"{low} to {high}" + ("" if labels is None else "; above each its label"))
    return _grid(shown, field, titles, title, None)


def _one(batches: Any, step: int) -> tuple[Any, ...]:
    """A batch of whatever holds batches."""
    if isinstance(batches, tuple):
        return batches
    if hasattr(batches, "plan") and hasattr(batches, "batch"):
        return batches.batch(0, step)  # type: ignore[no-any-return]
    if hasattr(batches, "__getitem__"):
        return tuple(batches[step])
    i = -1
    for i, batch in enumerate(batches):
        if i == step:
            return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    raise OptionError(f"plot_batch: there is no step {step}; expected one below {i + 1}: there are no more batches")


def _label_texts(labels: Any, n: int) -> list[str]:
    member = next(iter(labels.values())) if isinstance(labels, Mapping) else labels
    values = np.asarray(member)[:n]
    return [label(np.array2string(v, precision=3, threshold=6) if v.ndim else f"{v:.4g}" if v.dtype.kind == "f" else v,
                  20) for v in values]


# ---- drawing

def _grid(values: np.ndarray, f: Field, titles: Sequence[str], title: str, columns: int | None) -> np.ndarray:
    plt = pyplot()
    kind = kind_of(f.shape)
    if kind in ("scalar", "other"):
        # Values without a picture of their own: as they follow each other.
        values, kind = values.reshape(len(values), -1), "series" if kind == "other" else "vector"
    count = max(1, len(values))
    wide = {"image": 6, "series": 3, "vector": 4}[kind]
    columns = min(columns or wide, 8, count) if columns else min(wide, count)
    rows = math.ceil(count / columns)
    width, height = {"image": (1.35, 1.55), "series": (2.9, 1.75), "vector": (2.2, 1.6)}[kind]
    size = (max(4.5, width * columns + (1.1 if kind == "series" else 0)), height * rows + 0.6)
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False,
                                sharex=kind != "image", sharey=kind != "image")
    figure.suptitle(title if len(values) else f"{title}: no samples", fontsize=11)
    for ax in axes.flat[len(values):]:
        ax.set_axis_off()
    {"image": _images, "series": _lines, "vector": _bars}[kind](axes, values, f)
    for ax, text in zip(axes.flat, titles):
        ax.set_title(text, fontsize=9)
    return axes  # type: ignore[no-any-return]


def _images(axes: Any, values: np.ndarray, f: Field) -> None:
    pixels = pictures.as_pixels(pictures.thinned(pictures.as_images(values), _PIXELS))
    for ax, image in zip(axes.flat, pixels):
        ax.imshow(image, cmap="gray" if image.ndim == 2 else None, vmin=0, vmax=255, interpolation="nearest")
        ax.set_xticks([])
        ax.set_yticks([])


def _lines(axes: Any, values: np.ndarray, f: Field) -> None:
    series = _real(values)
    if len(f.shape) == 2:
        series = series.transpose([0, *(a + 1 for a in channels_last(f.shape))])
    else:
        series = series[..., None]
    step = -(-series.shape[1] // _POINTS)
    x = np.arange(0, series.shape[1], step)
    channels = min(_CHANNELS, series.shape[2])
    for ax, sample in zip(axes.flat, series):
        for c in range(channels):
            ax.plot(x, sample[::step, c], lw=1, color=f"C{c}", label=f"{c}")
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
    _edges(axes, "position in the sample", "value")
    if channels > 1 and len(series):
        more = "" if channels == series.shape[2] else f"\n(of {series.shape[2]})"
        handles, names = axes.flat[0].get_legend_handles_labels()
        axes.flat[0].figure.legend(handles, names, title=f"channel{more}", frameon=False, loc="outside right center",
                                   fontsize=8, title_fontsize=8)


def _bars(axes: Any, values: np.ndarray, f: Field) -> None:
    rows = _real(values).reshape(len(values), -1)
    for ax, sample in zip(axes.flat, rows):
        ax.bar(np.arange(len(sample)), np.where(np.isfinite(sample), sample, 0), color="C0")
        ax.axhline(0, color="0.5", lw=0.6)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
        if len(sample) <= 12:
            ax.set_xticks(np.arange(len(sample)))
    _edges(axes, "component", "value")


def _real(values: np.ndarray) -> np.ndarray:
    return np.abs(values) if values.dtype.kind == "c" else values.astype(np.float64)


def _edges(axes: Any, x: str, y: str) -> None:
    for ax in axes[-1]:
        ax.set_xlabel(x, fontsize=8)
    for ax in axes[:, 0]:
        ax.set_ylabel(y, fontsize=8)
