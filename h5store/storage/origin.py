"""Bytes: what a store says of where it came from. No clock, no host, no path: the same input gives the same file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import h5py

from h5store._version import __version__
from h5store.errors import OptionError
from h5store.schema import dumps

#: Packages whose versions may change the bytes of a store.
_PACKAGES = ("hdf5plugin", "numcodecs", "numpy")
_MOST = 1 << 20


def of(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Provenance of a store that is begun now.

    Parameters
    ----------
    given : mapping or None
        What JSON can hold, e.g. ``{"sources": ["photos/"], "command": "pack.py --size 64"}``.

    Raises
    ------
    OptionError
    """
    try:
        kept = json.loads(dumps(dict(given or {})))
    except (TypeError, ValueError) as error:
        raise OptionError(f"provenance: expected a mapping of what JSON can hold, got {given!r} ({error})") from None
    if len(dumps(kept)) > _MOST:
        raise OptionError(f"provenance: takes {len(dumps(kept)):,} bytes, expected at most {_MOST:,}")
    from importlib import metadata  # takes longer than most of our own modules, and only writers need it

    versions = {"h5store": __version__, "hdf5": h5py.version.hdf5_version}
    versions |= {name: metadata.version(name) for name in _PACKAGES}
    return {**kept, "versions": versions}
