"""Pack a folder of images and a labels file into a store. Copy this file and change what is marked.

    python scripts/pack_images.py photos labels.txt images.h5
"""

from __future__ import annotations

import sys

import h5store


def main(folder: str, labels: str, out: str) -> None:
    source = h5store.sources.images(
        folder,
        labels,               # "name label" a line, or CSV; leave it out for a folder a class
        resize=(128, 128),    # height, width; None if all images have one size
        mode="RGB",           # grey images and images with alpha become colour, too
    )
    h5store.pack(out, source, resume=True)
    reader = h5store.Reader(out)
    print(reader)

    # Parts that are kept in the store: Reader(out).split("train") finds the same samples anywhere.
    label = reader.schema.of("labels")[0].name
    for name, part in reader.split({"train": 0.8, "val": 0.2}, by=label, seed=0, save=True).items():
        print(f"{name}: {len(part):,} samples")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
