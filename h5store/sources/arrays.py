"""Sources: arrays in memory or in files: .npy, members of .npz, files without a header, iterables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from h5store.errors import SourceError
from h5store.sources.base import ArraySource, StreamSource
from h5store.sources.listing import existing
from h5store.sources.npy import open_npy, open_raw
from h5store.sources.samples import named_keys
from h5store.sources.zipped import NpzMember

# X.dat:float32:-1x100x6, X.dat:<f4
_RAW = re.compile(r"(?P<path>.+?):(?P<dtype>[<>=|]?[a-z]+[0-9]*)(:(?P<shape>-?[0-9]+(x[0-9]+)*))?")


def arrays(*, features: Any = None, aux: Any = None, labels: Any = None, weights: Any = None,
           meta: Any = None) -> ArraySource:
    """Whole arrays, one a field, samples along the first axis. Files are read block by block.

    Parameters
    ----------
    features, aux, labels, weights, meta : array_like or path, or mapping of field name to array_like or path
        Anything with shape, dtype and slicing (numpy, memory maps, zarr, h5py, dask), or a path:
        ``"X.npy"``; ``"y.npz:arr_0"`` (``"y.npz"`` if it holds one array only); ``"X.dat:float32:-1x100x6"`` for a
        file without a header, whose shape may also lie beside it in ``X.shape.npy``. A bare one names the field after
        its role.

    Raises
    ------
    FileNotFoundError, SourceError, SchemaError

    Examples
    --------
    >>> import numpy as np, h5store
    >>> np.save("X.npy", np.zeros((100, 6), "float32"))
    >>> np.savez_compressed("y.npz", np.arange(100) % 3)
    >>> source = h5store.sources.arrays(features={"flux": "X.npy"}, labels="y.npz:arr_0")
    >>> source.length
    100
    """
    roles = {"features": features, "aux": aux, "labels": labels, "weights": weights, "meta": meta}
    opened: dict[str, Any] = {}
    names: list[str] = []
    for role, value in roles.items():
        if isinstance(value, Mapping):
            opened[role] = {name: _opened(one, names) for name, one in value.items()}
        elif value is not None:
            opened[role] = _opened(value, names)
    return ArraySource(opened, ", ".join(names[:3]) or "arrays")


def _opened(value: Any, names: list[str]) -> Any:
    if not isinstance(value, (str, os.PathLike)):
        return value
    names.append(os.fspath(value))
    return open_array(os.fspath(value))


def open_array(spec: str) -> Any:
    """The array that a path means; see `arrays`.

    Raises
    ------
    FileNotFoundError, SourceError
    """
    path, _, key = spec.partition(".npz:")
    if key and not os.path.exists(spec):
        return NpzMember(existing(f"{path}.npz"), key.removesuffix(".npy"))
    raw = _RAW.fullmatch(spec)
    if raw and not os.path.exists(spec):
        shape = raw["shape"]
        return open_raw(existing(raw["path"]), raw["dtype"], shape and tuple(map(int, shape.split("x"))))
    existing(spec)
    if spec.endswith(".npz"):
        return NpzMember(spec)
    if spec.endswith(".npy"):
        return open_npy(spec)
    raise SourceError(f"{spec}: neither .npy nor .npz; for a file without a header give dtype and shape: "
                      f"{spec}:float32:-1x100x6")


def npz(path: Any, *, features: Any = None, aux: Any = None, labels: Any = None, weights: Any = None,
        meta: Any = None) -> ArraySource:
    """Arrays of one .npz file, compressed or not, of any size: read block by block.

    Parameters
    ----------
    path : path-like
    features, aux, labels, weights, meta : str, list of str, or mapping of field name to array name

    Raises
    ------
    FileNotFoundError, SourceError, SchemaError

    Examples
    --------
    >>> import numpy as np, h5store
    >>> np.savez_compressed("data.npz", x=np.zeros((10, 2)), y=np.arange(10))
    >>> h5store.pack("data.h5", h5store.sources.npz("data.npz", features="x", labels="y"), progress=False)
    """
    where = existing(path)
    keys = named_keys({"features": features, "aux": aux, "labels": labels, "weights": weights, "meta": meta})
    if not keys:
        NpzMember(where, "")  # names the arrays that there are
    opened: dict[str, dict[str, Any]] = {}
    for role, name, key in keys:
        opened.setdefault(role, {})[name] = NpzMember(where, key)
    return ArraySource(opened, where)


def raw(*, dtype: Any, shape: Any = None, offset: int = 0, features: Any = None, aux: Any = None, labels: Any = None,
        weights: Any = None, meta: Any = None) -> ArraySource:
    """Files without a header, as ``numpy.memmap`` or ``tofile`` write them.

    Parameters
    ----------
    dtype : dtype_like, or mapping of field name to dtype_like
    shape : tuple of int, or path of a .npy file that holds it; or mapping of field name to them; optional
        Samples first, -1 for as many as there are. By default taken from ``X.shape.npy``, ``X.dat.shape.npy`` or
        ``X_shape.npy`` beside ``X.dat``.
    offset : int
        Bytes before the first value.
    features, aux, labels, weights, meta : path-like, or mapping of field name to path-like

    Raises
    ------
    FileNotFoundError
    SourceError
        The file's size is not that of dtype and shape.

    Examples
    --------
    >>> import numpy as np, h5store
    >>> np.zeros((50, 8), "float32").tofile("X.dat")
    >>> np.arange(50).tofile("y.dat")
    >>> source = h5store.sources.raw(features={"x": "X.dat"}, labels={"y": "y.dat"},
    ...                              dtype={"x": "float32", "y": "int64"}, shape={"x": (-1, 8), "y": -1})
    >>> print(source.schema)
    x  features  float32 (8,)
    y  labels    int64 ()
    """
    roles = {"features": features, "aux": aux, "labels": labels, "weights": weights, "meta": meta}
    opened: dict[str, dict[str, Any]] = {}
    for role, value in roles.items():
        for name, path in (value if isinstance(value, Mapping) else {} if value is None else {role: value}).items():
            opened.setdefault(role, {})[name] = open_raw(existing(path), _of(dtype, name, "dtype"),
                                                         _of(shape, name, "shape"), offset)
    if not opened:
        raise SourceError("raw: no files named; give features=, labels= or another role")
    return ArraySource(opened, "raw files")


def _of(value: Any, name: str, what: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    if name not in value and what == "dtype":
        raise SourceError(f"raw: no dtype of field {name!r}; give it: dtype={{{name!r}: 'float32'}}")
    return value.get(name)


def stream(items: Iterable[Mapping[str, Any]], *, features: Any = None, aux: Any = None, labels: Any = None,
           weights: Any = None, meta: Any = None, each: str | None = None) -> StreamSource:
    """An iterator or generator of dicts, each one sample or a block of samples.

    Parameters
    ----------
    items : iterable of mapping of str to array_like
    features, aux, labels, weights, meta : str or list of str
        Which role the keys have. Other keys are left out.
    each : {"sample", "block"}, optional
        What an item is; told by the first one where it can be.

    Raises
    ------
    SourceError

    Examples
    --------
    >>> import numpy as np, h5store
    >>> def made():
    ...     for i in range(10):
    ...         yield {"x": np.full(4, i), "y": i % 2}
    >>> h5store.pack("made.h5", h5store.sources.stream(made(), features="x", labels="y"), progress=False)
    """
    roles = {"features": features, "aux": aux, "labels": labels, "weights": weights, "meta": meta}
    return StreamSource(items, roles, each)
