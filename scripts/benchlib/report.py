"""What came out, as text, JSON and a bar chart. Measures nothing."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchlib.checks import Verdict
from benchlib.tables import Row
from benchlib.workloads import Data

PACKAGES = ("h5store", "numpy", "h5py", "hdf5plugin", "numcodecs", "isal", "tensorflow", "tensorflow-cpu",
            "keras", "zarr", "zarrs")
HEAD = ("contender", "file/raw", "epoch, samples/s", "to memmap", "mix", "random, samples/s", "to memmap",
        "note")
OURS, THEIRS = "#1f77b4", "#b8b8b8"


def versions() -> dict[str, str]:
    """Versions of the packages that are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {"system": platform.system(), "processor": processor(), "cores": os.cpu_count(),
            "python": platform.python_version()}


def processor() -> str:
    """The processor's name, where the system tells it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def short(rate: float) -> str:
    """Samples a second in three digits: 1.05M, 86k, 91."""
    for bound, unit in ((1e6, "M"), (1e3, "k")):
        if rate >= bound:
            return f"{rate / bound:.3g}{unit}"
    return f"{rate:.3g}"


def table_text(data: Data, rows: Sequence[Row]) -> str:
    """A Markdown table, a line a contender, the two kinds of access side by side."""
    title = f"{data.workload.key}: {data.workload.title}"
    lines = [f"{title}, {data.samples:,} samples, {data.raw_bytes / 1e6:.0f} MB raw", "",
             "| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    for name in dict.fromkeys(row.contender for row in rows):
        of_access = {row.access: row for row in rows if row.contender == name}
        shuffled, random = of_access.get("shuffled"), of_access.get("random")
        cells = [name, f"{next(iter(of_access.values())).disk_to_raw:.2f}"]
        cells += speed_cells(shuffled) + [f"{shuffled.mix:.2f}" if shuffled else "-"] + speed_cells(random)
        cells.append(note(list(of_access.values())))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def speed_cells(row: Row | None) -> list[str]:
    """Samples a second, and the ratio to the memory map."""
    return [short(row.samples_per_s), f"{row.to_memmap:.3g}"] if row else ["-", "-"]


def note(rows: Sequence[Row]) -> str:
    """What to know of a contender's figures: wrong samples, or an epoch that was not drained to its end."""
    faults = [f"WRONG: {row.fault}" for row in rows if row.fault]
    parts = [row for row in rows if row.access == "shuffled" and not row.whole]
    return "; ".join(faults + [f"{row.batches} batches of an epoch" for row in parts])


def verdicts_text(verdicts: Sequence[Verdict], judged: bool) -> str:
    """A Markdown table of the checks, a line a figure."""
    lines = ["| what | on | measured | must | aim | |", "|---|---|---|---|---|---|"]
    for verdict in verdicts:
        unit = "" if verdict.unit == "x" else f" {verdict.unit}"
        bound = f"{'<=' if verdict.at_most else '>='} {verdict.must:g}{unit}"
        aim = "" if verdict.aim is None else f"{verdict.aim:g}"
        mark = ("ok" if verdict.kept else "ABOVE" if verdict.at_most else "BELOW") if judged else "not judged"
        cells = (verdict.what, verdict.workload, f"{verdict.value:.3g}{unit}", bound, aim, mark)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def document(settings: Mapping[str, Any], tables: Mapping[str, tuple[Data, Sequence[Row]]],
             verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Everything measured, as JSON holds it."""
    workloads = {}
    for key, (data, rows) in tables.items():
        workloads[key] = {"title": data.workload.title, "samples": data.samples, "raw_bytes": data.raw_bytes,
                          "rows": [asdict(row) | {"correct": row.correct} for row in rows]}
    return {"machine": machine(), "versions": versions(), "settings": dict(settings), "workloads": workloads,
            "checks": [asdict(verdict) | {"kept": verdict.kept} for verdict in verdicts]}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write the document, folders included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def plot(path: Path, tables: Mapping[str, tuple[Data, Sequence[Row]]]) -> None:
    """A panel a workload and kind of access: samples a second on a logarithmic axis, ours in colour."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(len(tables), 2, squeeze=False, figsize=(13, 1 + 3.6 * len(tables)),
                                     layout="constrained")
    for line, (data, rows) in zip(panels, tables.values(), strict=True):
        for panel, access, title in zip(line, ("shuffled", "random"), ("shuffled epoch", "random batches"),
                                        strict=True):
            draw(panel, [row for row in rows if row.access == access])
            panel.set_title(f"{data.workload.title}: {title}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw(panel: Any, rows: Sequence[Row]) -> None:
    """One panel of bars, the fastest on top."""
    rows = sorted(rows, key=lambda row: row.samples_per_s)
    colours = [OURS if row.contender.startswith("h5store") else THEIRS for row in rows]
    bars = panel.barh([row.contender for row in rows], [row.samples_per_s for row in rows], color=colours)
    panel.bar_label(bars, [short(row.samples_per_s) for row in rows], padding=3, fontsize=8)
    panel.set_xscale("log")
    panel.xaxis.set_minor_formatter("")
    panel.margins(x=0.15)
    panel.set_xlabel("samples/s", fontsize=8)
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)
