"""How well shuffle=True mixes, in figures: the table of docs/shuffling.md.

    python scripts/shuffling.py

Three kinds of files, each sorted by class, as light curves, images and tables are packed by default. For every
way to shuffle, over 3 epochs of batches of 256:

- classes: distinct classes in a batch, on average, and in the poorest of 20 batches (5 %)
- spread: how far the shares of the classes in a batch are from those of the file, as the sum of their absolute
  differences; what is left for "full" is chance
- position: correlation of a sample's place in the file with its place in the epoch (0: none, 1: file order)
- neighbours: share of pairs of neighbours in the file that come in one batch
"""

from __future__ import annotations

import numpy as np

from h5store.sampling.plan import EpochPlan

BATCH = 256
EPOCHS = 3
WINDOW_BYTES = 32 << 20
#: name, samples, bytes a sample, samples a block at 128 KiB, classes
FILES = (("light curves", 200_000, 2468, 54, 15), ("images", 8_000, 49_160, 2, 10),
         ("table", 2_000_000, 132, 1024, 20))


def figures(plan: EpochPlan, classes: np.ndarray, count: int) -> tuple[float, float, float, float, float]:
    """(mean classes, 5 % classes, spread, correlation, neighbours) of a plan's first epochs."""
    share = np.bincount(classes, minlength=count) / len(classes)
    distinct, spread, correlation, neighbours = [], [], [], []
    for epoch in range(EPOCHS):
        order = np.concatenate([window.ids for window in plan.windows(epoch)])
        batch = np.empty(len(order), np.int64)
        batch[order] = np.arange(len(order)) // BATCH
        full = len(order) // BATCH
        mix = np.zeros((full, count))
        np.add.at(mix, (np.repeat(np.arange(full), BATCH), classes[order[:full * BATCH]]), 1)
        distinct.append((mix > 0).sum(axis=1))
        spread.append(np.abs(mix / BATCH - share).sum(axis=1).mean())
        place = np.empty(len(order))
        place[order] = np.arange(len(order))
        correlation.append(np.corrcoef(np.arange(len(order)), place)[0, 1])
        neighbours.append((batch[1:] == batch[:-1]).mean())
    every = np.concatenate(distinct)
    return (float(every.mean()), float(np.quantile(every, 0.05)), float(np.mean(spread)),
            float(np.abs(correlation).max()), float(np.mean(neighbours)))


def main() -> None:
    print("| file, sorted by class | shuffle | classes a batch (5 %) | spread | position | neighbours |")
    print("|---|---|---|---|---|---|")
    for name, n, size, block, count in FILES:
        classes = np.arange(n) * count // n
        for label, shuffle, budget in (("True", True, WINDOW_BYTES), ("True, window 8 MiB", True, WINDOW_BYTES // 4),
                                       ('"full"', "full", WINDOW_BYTES)):
            plan = EpochPlan(n=n, batch_size=BATCH, shuffle=shuffle, seed=0, block=block,
                             window=max(8, budget // (size * block)))
            mean, low, spread, correlation, neighbours = figures(plan, classes, count)
            print(f"| {name}, {count} classes | {label} | {mean:.1f} ({low:.0f}) | {spread:.3f} | {correlation:.3f} | "
                  f"{100 * neighbours:.2f} % |")


if __name__ == "__main__":
    main()
