"""What the fault bench has a writer do, how it goes on after a fault, and what must hold then."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

import h5store

NAME = "store.h5"
#: Samples after each commit. Odd numbers, so that chunks of 16 are begun, filled and passed within commits.
STOPS = (5, 21, 54, 55, 96)
TOTAL = STOPS[-1]
#: Samples of the store that is added to, or replaced.
BEFORE = 30
KINDS = ("new", "append", "overwrite")
_WORDS = np.array(["spiral", "elliptical", "irregular", "σ-disc", "ring"])


def block(start: int, stop: int, salt: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Samples [start, stop); each is a function of its number."""
    ids = np.arange(start, stop)
    flux = ((ids[:, None] * 7919 + np.arange(40) * 31 + salt) % 1009).astype("f4") / 8
    return {"features": {"flux": flux}, "aux": {"host": np.sqrt(ids[:, None] + [1.0, 2.0])},
            "labels": {"class": _WORDS[(ids * 7 + ids // 13) % 5]}, "meta": {"id": ids}}


def base_length(kind: str) -> int:
    """Samples that are in the store before the first of STOPS is reached."""
    return BEFORE if kind == "append" else 0


def prepare(folder: Path, kind: str, codec: str) -> None:
    """What is there before the writer that is watched."""
    if kind != "new":
        with h5store.Writer(folder / NAME, chunk=16, codec=codec) as writer:
            writer.append(**block(0, BEFORE, salt=0 if kind == "append" else 5))


def run(folder: Path, kind: str, codec: str, acknowledge: Callable[[int], None]) -> None:
    """Write the store, committing now and then; `acknowledge` is told what the writer promises."""
    with h5store.Writer(folder / NAME, chunk=16, codec=codec, append=kind == "append",
                        overwrite=kind == "overwrite") as writer:
        fill(writer, base_length(kind), acknowledge)


def fill(writer: h5store.Writer, base: int, acknowledge: Callable[[int], None]) -> None:
    for stop in STOPS:
        if base + stop > len(writer):
            writer.append(**block(len(writer), base + stop))
            writer.commit()
            acknowledge(len(writer))


def go_on(folder: Path, kind: str, codec: str) -> int:
    """Resume as a script does after a crash; the samples that were there at that moment."""
    with h5store.Writer(folder / NAME, chunk=16, codec=codec, resume=True, append=kind == "append",
                        overwrite=kind == "overwrite") as writer:
        found = len(writer)
        fill(writer, base_length(kind), lambda _: None)
    return found


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / NAME).read_bytes()).hexdigest()


def check(folder: Path, kind: str, codec: str, acknowledged: int, attempted: int, wanted: str) -> None:
    """What must hold after any fault, at any moment. Raises AssertionError, or what the library raises.

    Parameters
    ----------
    acknowledged, attempted : int
        Samples that a commit has returned for, and that one was asked for.
    wanted : str
        SHA-256 of the store that an undisturbed writer makes.
    """
    sealed = False
    if (folder / NAME).exists():
        sealed = _check_reader(folder, kind)
    if sealed and not os.path.exists(f"{folder / NAME}.journal"):
        assert digest(folder) == wanted
    else:
        found = go_on(folder, kind, codec)
        assert found >= acknowledged, f"lost: {acknowledged} samples were acknowledged, {found} are there"
        assert found <= attempted, f"phantom: {attempted} samples were committed at most, {found} are there"
    assert digest(folder) == wanted, "the resumed store differs from an undisturbed one"
    left = set(os.listdir(folder)) - {NAME, f"{NAME}.lock"}  # an old lock file locks nothing
    assert not left, f"left behind: {left}"


def _check_reader(folder: Path, kind: str) -> bool:
    """A reader sees the old store or the new one, whole; whether it is the new one."""
    with h5store.Reader(folder / NAME, cache=0) as reader:
        old = kind != "new" and len(reader) == BEFORE
        expected = block(0, len(reader), salt=5 if old and kind == "overwrite" else 0)
        assert old or len(reader) == base_length(kind) + TOTAL, f"a store of {len(reader)} samples"
        found = reader.take(range(len(reader)))
        for fields in expected.values():
            for name, values in fields.items():
                assert np.array_equal(found[name], values), f"field {name} has other values"
        return not old
