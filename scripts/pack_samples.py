"""Pack a folder of per-sample .npz files into a store. Copy this file and change what is marked.

    python scripts/pack_samples.py parts samples.h5
"""

from __future__ import annotations

import sys

import h5store


def main(folder: str, out: str) -> None:
    source = h5store.sources.samples(
        folder,               # or a glob such as "parts/**/*.npz", or a list of paths
        features="img",       # the keys of your files
        labels="label",
        on_error="skip",      # "stop" (the default) names all odd files, and packs nothing
    )
    h5store.pack(out, source, resume=True)
    print(h5store.Reader(out))
    for left_out in source.skipped:
        print(f"left out: {left_out.file}: {left_out.reason}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
