"""Samples of no fixed length on their way to a reader: as they are stored, or decoded if they are image files."""

from __future__ import annotations

from typing import Any

import numpy as np

from h5store.storage.store import Store


def read_loose(store: Store, name: str, ids: np.ndarray) -> Any:
    """Samples `ids` of a variable-length field: `Ragged`; of encoded images, their pixels (n, height, width, channels).

    Raises
    ------
    CorruptChunkError
    MissingExtraError
        Images, and Pillow is not installed.
    """
    stored = store.ragged(name, ids)
    if store.schema[name].encoded is None:
        return stored
    from h5store.sources.pictures import decoded

    return decoded(store.schema[name], stored)
