"""Plots of a whole store: classes, ranges, and how an epoch is mixed. matplotlib is imported behind the doors only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from h5store.errors import FieldNotFound, SchemaError, nearest, require
from h5store.explore.preview import Budget, class_counts, is_classed, scalars
from h5store.explore.stats import FieldStats, Stats
from h5store.explore.text import cut
from h5store.loader import DEFAULT_WINDOW
from h5store.schema import Field, Role

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from h5store.reader import Reader

#: Bars of classes, channels of ranges, points of an epoch.
_CLASSES, _CHANNELS, _POINTS = 30, 40, 20_000
_DRAWABLE = 1e100
#: Steps of an epoch that are drawn.
_STEPS = 400


def pyplot() -> Any:
    """matplotlib.pyplot, or an error that says how to install it."""
    return require("matplotlib.pyplot", "notebook", "plotting")


def axes_for(ax: Axes | None, width: float = 7.0, height: float = 3.6) -> Axes:
    """The axes given, or those of a new figure."""
    if ax is not None:
        return ax
    made: Axes = pyplot().subplots(figsize=(width, height), layout="constrained")[1]
    return made


def chosen(reader: Reader, name: str | None, role: Role) -> Field:
    """The field of that name, or the first of a role."""
    if name is not None:
        return reader._field(name)
    found = reader.schema.of(role)
    if not found:
        raise FieldNotFound(f"{reader.path}: no {role} field to draw; name one, {nearest('', reader.schema.names)}")
    return found[0]


def label(text: object, most: int = 24) -> str:
    """Text for a plot: on one line, short, and without meaning as mathematics."""
    return cut(str(text), most).replace("$", r"\$")


def name_of(reader: Reader) -> str:
    return label(os.path.basename(reader.path), 40)


# ---- labels

def plot_labels(reader: Reader, name: str | None, *, parts: Mapping[str, Reader] | None, ax: Axes | None) -> Axes:
    """See ``Reader.plot_labels``."""
    f = chosen(reader, name, Role.LABELS)
    if f.shape:
        raise SchemaError(f"plot_labels: {f.name!r} has samples of shape {f.shape}, expected one value a sample; "
                          "use plot_samples")
    views = {"": reader} if parts is None else dict(parts)
    seen = {part: scalars(view, f, Budget()) for part, view in views.items()}
    known = {part: found for part, found in seen.items() if found is not None}
    ax = axes_for(ax)
    some = next(iter(known.values()), None)
    if some is None:
        ax.text(0.5, 0.5, "no samples" if not len(reader) else "too large to look at: see stats()", ha="center",
                va="center", transform=ax.transAxes)
    elif is_classed(f):
        _bars(ax, {part: class_counts(f, found, _CLASSES) for part, found in known.items()},
              {part: len(found.values) for part, found in known.items()})
    else:
        _distribution(ax, f, {part: found.values for part, found in known.items()})
    drawn = sum(len(found.values) for found in known.values())
    total = sum(len(view) for view in views.values())
    of = f"{total:,} samples" if drawn == total else f"{drawn:,} of {total:,} samples"
    ax.set_title(f"{f.role} “{label(f.name)}” of {name_of(reader)}, {of}")
    if parts is not None and known:
        ax.legend(title="part", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return ax


def _bars(ax: Axes, parts: Mapping[str, tuple[list[tuple[Any, int]], int]], totals: Mapping[str, int]) -> None:
    shares = len(parts) > 1 or "" not in parts
    shown = list(dict.fromkeys(c for counts, _ in parts.values() for c, _ in counts))[:_CLASSES]
    classes = max(count for _, count in parts.values())
    each = 0.8 / len(parts)
    for i, (part, (counts, _)) in enumerate(parts.items()):
        total = totals[part] or 1
        of = dict(counts)
        heights = [of.get(c, 0) / (total if shares else 1) for c in shown]
        place = np.arange(len(shown)) - 0.4 + each * (i + 0.5)
        ax.bar(place, heights, each * 0.95, label=label(part), color=f"C{i}")
    long = len(shown) > 12 or any(len(str(c)) > 7 for c in shown)
    ax.set_xticks(np.arange(len(shown)), [label(c, 16) for c in shown], rotation=60 if long else 0,
                  ha="right" if long else "center", rotation_mode="anchor")
    more = f", the {len(shown)} most frequent of {classes:,}" if classes > len(shown) else ""
    ax.set_xlabel(f"class{more}")
    ax.set_ylabel("share of the part" if shares else "samples")
    if shares:
        from matplotlib.ticker import PercentFormatter

        ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.spines[["top", "right"]].set_visible(False)


def _distribution(ax: Axes, f: Field, parts: Mapping[str, np.ndarray]) -> None:
    finite = {part: v[np.isfinite(v)].astype(np.float64) for part, v in parts.items()}
    every = np.concatenate(list(finite.values()))
    if not len(every):
        ax.text(0.5, 0.5, "no finite value", ha="center", va="center", transform=ax.transAxes)
        return
    low, high = float(every.min()), float(every.max())
    if not 1e-12 * max(abs(low), abs(high)) < high / 2 - low / 2 < 1e300:
        ax.text(0.5, 0.5, f"all values are {low:g}" if low == high else f"from {low:g} to {high:g}", ha="center",
                va="center", transform=ax.transAxes)
        return
    edges = np.linspace(low, high, 41).tolist()
    for i, (part, values) in enumerate(finite.items()):
        ax.hist(values, edges, histtype="stepfilled" if len(finite) == 1 else "step", density=len(finite) > 1,
                label=label(part), color=f"C{i}")
    ax.set_xlabel(label(f.name))
    ax.set_ylabel("density" if len(finite) > 1 else "samples")
    ax.spines[["top", "right"]].set_visible(False)


# ---- ranges

def plot_stats(stats: Stats, *, ax: Axes | None) -> Axes:
    """See ``Reader.plot_stats``."""
    rows = [(f, c) for f in stats.values() if f.moments is not None and f.role in (Role.FEATURES, Role.AUX)
            for c in range(len(f.mean))]
    shown = rows[:_CHANNELS]
    ax = axes_for(ax, 7.5, max(2.2, 1.3 + 0.27 * len(shown)))
    # matplotlib has no ticks for axes near the end of float64.
    drawn = [i for i, (f, c) in enumerate(shown) if f.count[c] and max(abs(f.min[c]), abs(f.max[c])) < _DRAWABLE]
    for i in drawn:
        _range(ax, i, *shown[i], first=i == drawn[0])
    ax.set_yticks(range(len(shown)), [_row(f, c) for f, c in shown])
    ax.set_ylim(len(shown) - 0.5, -0.5)
    spans = [max(abs(f.min[c]), abs(f.max[c])) for f, c in (shown[i] for i in drawn)]
    small = [s for s in spans if s > 0]
    if small and max(small) / 300 > min(small):
        ax.set_xscale("symlog", linthresh=float(min(small)))
        ax.set_xlabel("value (logarithmic away from zero)")
    else:
        ax.set_xlabel("value")
    more = f", {len(shown)} of {len(rows):,} channels" if len(rows) > len(shown) else ""
    ax.set_title(f"inputs of {label(os.path.basename(stats.path), 40)}, {stats.samples:,} samples{more}")
    if drawn:
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="x", alpha=0.25)
    return ax


def _range(ax: Axes, row: int, f: FieldStats, c: int, *, first: bool) -> None:
    q = f.quantiles
    assert q is not None

    def named(text: str) -> str | None:
        return text if first else None

    ax.plot([f.min[c], f.max[c]], [row, row], color="C0", lw=1, alpha=0.5, label=named("smallest to largest"))
    ax.plot([q[0, c], q[6, c]], [row, row], color="C0", lw=4, alpha=0.55, solid_capstyle="butt",
            label=named("1 to 99 %"))
    ax.plot([q[2, c], q[4, c]], [row, row], color="C0", lw=9, solid_capstyle="butt", label=named("25 to 75 %"))
    ax.plot(q[3, c], row, "o", color="C1", ms=5, label=named("median"))


def _row(f: FieldStats, c: int) -> str:
    name = label(f.name, 18) + (f" [{c}]" if len(f.mean) > 1 else "")
    bad = float(f.share("nans")[c] + f.share("infs")[c])
    if f.count[c] and max(abs(f.min[c]), abs(f.max[c])) >= _DRAWABLE:
        name += f"  to {max(f.max[c], -f.min[c]):.0e}"
    return f"{name}  {bad:.1%} NaN" if bad else name


# ---- shuffling

def plot_shuffle(reader: Reader, *, batch_size: int, shuffle: bool | str, seed: int, epoch: int, window: Any,
                 ax: Axes | None) -> Axes:
    """See ``Reader.plot_shuffle``."""
    loader = reader.loader(batch_size=batch_size, shuffle=shuffle, seed=seed,
                           window=DEFAULT_WINDOW if window is None else window)
    plan = loader.plan
    ax = axes_for(ax, 7.0, 4.2)
    per = max(1, min(plan.batch_size, _POINTS // max(1, min(len(plan), _STEPS))))
    steps = np.unique(np.linspace(0, max(0, len(plan) - 1), min(len(plan), _STEPS)).astype(np.int64))
    for_step, in_file = [], []
    for step in steps.tolist():
        ids = plan.batch(epoch, step)[:per]
        for_step.append(np.full(len(ids), step))
        in_file.append(ids if loader._ids is None else loader._ids[ids])
    if for_step:
        x, y = np.concatenate(for_step), np.concatenate(in_file)
        ax.plot(x, y, ".", ms=max(1.0, min(5.0, 200 / len(x) ** 0.5)), alpha=0.6, color="C0", mew=0)
    ax.set_xlabel(f"step of the epoch (batches of {plan.batch_size:,})")
    ax.set_ylabel("position in the file")
    ax.set_title(f"epoch {epoch} of {name_of(reader)}, seed {loader.seed}\n{label(plan.describe(), 90)}")
    ax.margins(0.01)
    ax.spines[["top", "right"]].set_visible(False)
    return ax
