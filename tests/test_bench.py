"""The benchmark runs, serves right samples, and knows wrong ones; no figure of it is judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def run_bench(folder: Path, *words: str) -> dict[str, Any]:
    """Run the benchmark in tiny sizes; gives what it wrote as JSON."""
    out = folder / "out" / "bench.json"
    command = [sys.executable, str(SCRIPTS / "bench.py"), "--quick", "--dir", str(folder), "--json", str(out)]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    content: dict[str, Any] = json.loads(out.read_text())
    return content


@pytest.mark.timeout(300)
def test_every_row_of_the_table_is_correct(tmp_path: Path) -> None:
    content = run_bench(tmp_path, "--name", "h5store", "--name", "numpy", "--name", "h5py")
    assert set(content["workloads"]) == {"W1", "W2", "W3"}
    for workload in content["workloads"].values():
        rows = workload["rows"]
        assert {(row["contender"], row["access"]) for row in rows} >= {
            ("h5store", "shuffled"), ("h5store", "random"), ("h5store, chunk random", "random"),
            ("np.memmap", "shuffled"), ("np.memmap", "random"), ("numpy in memory", "shuffled")}
        for row in rows:
            assert row["correct"] and not row["fault"]
            assert row["samples_per_s"] > 0 and len(row["runs"]) == content["settings"]["rounds"] == 1
            assert row["disk_to_raw"] > 0 and row["to_memmap"] > 0
    assert content["machine"]["cores"] and content["versions"]["numpy"] == np.__version__


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_check_gives_every_figure_with_its_bound(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    pytest.importorskip("keras")
    checks = run_bench(tmp_path, "--check", "--only", "W1,W2")["checks"]
    whats = {row["what"] for row in checks}
    assert len({(row["what"], row["workload"]) for row in checks}) == len(checks) == 30
    for start in ("shuffled epoch", "random batches", "file / raw", "pack", "memory", "open", "2 threads",
                  "Keras"):
        assert any(what.startswith(start) for what in whats)
    for row in checks:
        assert np.isfinite(row["value"]) and row["must"] > 0
        assert row["kept"] == (row["value"] <= row["must"] if row["at_most"] else row["value"] >= row["must"])


class Fake:
    """A contender that serves the data in order, and spoils the first batch as it is told."""

    name = "fake"

    def __init__(self, access: str, spoil: str) -> None:
        self.access, self.spoil = access, spoil
        self._data: Any = None

    def prepare(self, data: Any, threads: int) -> int:
        self._data = data
        return 0

    def epoch(self, seed: int) -> Iterator[dict[str, np.ndarray]]:
        for start, block in self._data.blocks(100):
            batch = {name: np.array(array) for name, array in block.items()}
            if start == 0 and self.spoil == "label of the neighbour":
                batch["target"] = np.roll(batch["target"], 1)
            if start == 0 and self.spoil == "one value":
                batch["columns"][3, 5] += 1
            if start == 0 and self.spoil == "twice":
                batch = {name: np.concatenate([array[:1], array[:-1]]) for name, array in batch.items()}
            if start == 0 and self.spoil == "dtype":
                batch["target"] = batch["target"].astype(np.float64)
            if start or self.spoil != "missing":
                yield batch

    def fields(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return batch

    def close(self) -> None:
        self._data = None


@pytest.mark.parametrize("spoil, fault", [
    ("nothing", ""), ("label of the neighbour", "not in the data"), ("one value", "not in the data"),
    ("twice", "twice"), ("missing", "misses"), ("dtype", "float64"),
])
def test_proof_knows_wrong_samples(spoil: str, fault: str, tmp_path: Path,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    entry = prove(Fake("shuffled", spoil), tmp_path, monkeypatch)
    assert (fault in entry.fault) if fault else not entry.fault


def test_proof_knows_random_batches_of_other_samples(tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    entry = prove(Fake("random", "nothing"), tmp_path, monkeypatch)
    assert "other samples than were asked for" in entry.fault


def prove(fake: Fake, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is noted of a contender after its proof on a small table."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from benchlib.proof import Proof
    from benchlib.rounds import Entry, Settings, ready
    from benchlib.workloads import WORKLOADS, make_data

    data = make_data(WORKLOADS["W3"], 0.0005, folder)
    [entry] = ready([Entry(fake)], data, Proof.of(data), Settings(1, 1, 1.0, print))
    fake.close()
    return entry
