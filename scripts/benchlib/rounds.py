"""Interleaved rounds: in each, every contender runs once, so that a busy minute hits them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchlib.contender import Contender, Drained, Limit, Unavailable, drain
from benchlib.proof import Proof, WrongSamples
from benchlib.workloads import Data

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How a run measures: threads for those with the choice, timed rounds, seconds for the slow ones."""

    threads: int
    rounds: int
    seconds: float
    say: Say


@dataclass
class Entry:
    """A contender in a race: how far it is drained, and what came of it."""

    contender: Contender
    limit: Limit = Limit()
    disk_bytes: int = 0
    mix: float = 0.0
    fault: str = ""
    runs: list[Drained] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Samples a second, the median of the rounds."""
        return median(run.rate for run in self.runs)


def ready(entries: Iterable[Entry], data: Data, proof: Proof, settings: Settings) -> list[Entry]:
    """Prepare and prove each contender; those whose package is missing are left out with a printed line.

    One that serves other samples than the data hold runs on, and is marked for it.

    The proof drains what a timed round drains, so that it is also the round that warms the page cache.
    """
    present = []
    skipped: set[str] = set()
    for entry in entries:
        name = f"{data.workload.key}: {entry.contender.name}"
        try:
            entry.disk_bytes = entry.contender.prepare(data, settings.threads)
        except Unavailable as error:
            if name not in skipped:
                settings.say(f"{name} skipped: {error}")
            skipped.add(name)
            continue
        try:
            entry.mix = proof.check(entry.contender, entry.limit)
        except WrongSamples as error:
            entry.fault = str(error)
            settings.say(f"{name}: {error}")
        present.append(entry)
    return present


def race(entries: Sequence[Entry], rounds: int) -> None:
    """Run the rounds; the seed of a round is its number, from 1."""
    for seed in range(1, rounds + 1):
        for entry in entries:
            entry.runs.append(drain(entry.contender, seed, entry.limit))


def quiet(entry: Entry) -> float:
    """The part of a core that a contender of one thread had: well under 1.0, and others were at work."""
    return median(run.cpu_seconds / run.seconds for run in entry.runs)


def ratio(ours: Entry, theirs: Entry) -> float:
    """Our rate to theirs: the median of the ratios within a round; wrong answers have no speed."""
    if ours.fault or theirs.fault:
        return 0.0
    return median(mine.rate / other.rate for mine, other in zip(ours.runs, theirs.runs, strict=True))
