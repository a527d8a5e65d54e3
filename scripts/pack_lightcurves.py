"""Pack light curves from a memory map or .npz into a store. Copy this file and change what is marked.

    python scripts/pack_lightcurves.py X.npy Z.npy y.npy curves.h5
"""

from __future__ import annotations

import sys

import numpy as np

import h5store


def main(flux_path: str, host_path: str, label_path: str, out: str) -> None:
    # Mapped, not read: the arrays may be larger than memory. For an .npz archive write "X.npz:arr_0" instead.
    source = h5store.sources.arrays(
        features={"flux": flux_path},  # (n, time, bands): what the model is fed
        aux={"host": host_path},       # (n, columns): a second input of the model
        labels={"class": label_path},  # (n,): what it learns
    )
    # resume=True: run the script again after an interruption, and it goes on where it was.
    h5store.pack(out, source, resume=True)

    reader = h5store.Reader(out)
    print(reader)
    # Light curves with NaN in them are what a loss of NaN comes from: better to know it now.
    for name, found in h5store.verify(out).nonfinite.items():
        print(f"field {name!r}: {found.values} values are not finite, first in samples {found.samples}")
    inputs, labels = reader.batch(np.arange(min(4, len(reader))))
    print({name: array.shape for name, array in inputs.items()}, labels.shape)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
