"""Measure h5store beside what people use without it; `--check` holds it to what it promises.

See docs/benchmarks.md for what is measured and how.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchlib import report
from benchlib.checks import Verdict, check
from benchlib.rounds import Settings
from benchlib.tables import Row, table
from benchlib.workloads import WORKLOADS, Data, make_data

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 2.0  # who is slow is drained so long in each round
QUICK_SECONDS = 0.05
QUICK_SCALE = 0.002  # enough to run every line, far too little to judge


def arguments(words: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="the promised figures instead of the table")
    parser.add_argument("--only", metavar="W1,W2", default=",".join(WORKLOADS), help="workloads to run")
    parser.add_argument("--name", action="append", default=[], help="contenders called so; repeatable")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (default 5)")
    parser.add_argument("--threads", type=int, default=2, help="of those who have the choice (default 2)")
    parser.add_argument("--samples", type=float, default=1.0, metavar="FACTOR", help="times the samples")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round: does it run?")
    parser.add_argument("--dir", type=Path, default=ROOT / "build" / "bench", help="where the data are kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the table, needs matplotlib")
    options = parser.parse_args(words)
    options.only = options.only.split(",")
    unknown = [key for key in options.only if key not in WORKLOADS]
    if unknown:
        parser.error(f"--only: no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    if options.plot and options.check:
        parser.error("--plot draws the table of everyone, which --check does not measure")
    if options.quick:
        options.samples, options.rounds = QUICK_SCALE, 1
    return options


def say(line: str) -> None:
    """Print at once, so that a long run shows where it is."""
    print(line, flush=True)


def main(words: list[str] | None = None) -> int:
    """Run; returns 1 if a contender served wrong samples or a promised figure was missed."""
    options = arguments(words)
    everything = {}
    for key in options.only:
        say(f"{key}: data")
        everything[key] = make_data(WORKLOADS[key], options.samples, options.dir)
    settings = Settings(options.threads, options.rounds, QUICK_SECONDS if options.quick else SECONDS, say)
    tables: dict[str, tuple[Data, list[Row]]] = {}
    verdicts: list[Verdict] = []
    if options.check:
        verdicts = check(everything, settings)
        say("\n" + report.verdicts_text(verdicts, judged=not options.quick))
    else:
        for key, data in everything.items():
            tables[key] = (data, table(data, options.name, settings))
            say("\n" + report.table_text(*tables[key]) + "\n")
    if options.json:
        knobs = {name: getattr(options, name) for name in ("rounds", "threads", "samples", "quick")}
        report.write_json(options.json, report.document(knobs, tables, verdicts))
    if options.plot:
        report.plot(options.plot, tables)
    correct = all(row.correct for _, rows in tables.values() for row in rows)
    kept = options.quick or all(verdict.kept for verdict in verdicts)
    return int(not (correct and kept))


if __name__ == "__main__":
    sys.exit(main())
