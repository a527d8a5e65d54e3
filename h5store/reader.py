"""The second noun of the card: `Reader` gives samples by position, and batches that a model is fed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from h5store.batching import Batching, Form
from h5store.choosing import Choosing
from h5store.encoded import read_loose
from h5store.errors import FieldNotFound, OptionError, SelectionError, StaleStoreError, nearest
from h5store.feeding import Feeding
from h5store.fieldview import FieldView
from h5store.looking import Looking
from h5store.sampling.select import as_ids
from h5store.schema import Field, Schema
from h5store.storage.store import DEFAULT_CACHE, Store


class Reader(Batching, Choosing, Feeding, Looking):
    """Read a store. A view of some of its samples is a `Reader` too.

    Parameters
    ----------
    path : str or path-like
    cache : str or int
        Bytes of decoded samples to keep, e.g. ``"256MiB"``; 0 keeps none. Per process.
    threads : int, optional
        Threads that read and decode; all cores by default.
    verify : bool
        Check every chunk's checksum as it is read. It costs next to nothing.
    growing : bool
        Read what is committed of a store that is being written; nothing of it is locked or changed. `refresh` sees
        what was committed since. Text fields list their classes in the order in which they first came.

    Raises
    ------
    FileNotFoundError
    FormatError
        Not a store, or not a whole one.

    Notes
    -----
    Safe in threads and after a fork. Pickles to its path, options and the ids of a view; a worker process
    opens the file for itself and is told if it is no longer the same one.
    """

    #: A store is not iterated sample by sample; see `loader`, or a field of it.
    __iter__ = None

    def __init__(self, path: str | os.PathLike[str], *, cache: Any = DEFAULT_CACHE, threads: int | None = None,
                 verify: bool = True, growing: bool = False) -> None:
        options = {"cache": cache, "threads": threads, "verify": verify}
        if growing:
            options["growing"] = True
        self._set(_opened(path, options, None), None, options, None)

    def _set(self, store: Store, ids: np.ndarray | None, options: dict[str, Any],
             roles: dict[str, Any] | None) -> None:
        self._store, self._ids, self._options, self._roles, self._form = store, ids, options, roles, Form()

    @classmethod
    def from_hdf5(cls, path: str | os.PathLike[str], *, features: Any = None, aux: Any = None, labels: Any = None,
                  weights: Any = None, meta: Any = None, cache: Any = DEFAULT_CACHE,
                  threads: int | None = None, trust_plugins: bool = False) -> Reader:
        """Read an HDF5 file that something else wrote. Nothing is copied.

        Parameters
        ----------
        features, aux, labels, weights, meta : str, list of str, or mapping of str to str
            Paths of datasets inside the file, whose first axis is the samples; a mapping gives the fields names.
        cache, threads
            As for `Reader`.
        trust_plugins : bool
            Let libhdf5 load filters from the folders that HDF5_PLUGIN_PATH names, for a file that needs one which
            hdf5plugin does not have.

        Raises
        ------
        FileNotFoundError, FormatError, FieldNotFound, SchemaError

        Warns
        -----
        SlowPathWarning
            Datasets whose chunks cut samples apart, or whose filters only libhdf5 decodes, are read through
            it, one thread at a time.
        """
        roles = {"features": features, "aux": aux, "labels": labels, "weights": weights, "meta": meta}
        options = {"cache": cache, "threads": threads, "trust_plugins": trust_plugins}
        reader = cls.__new__(cls)
        reader._set(_opened(path, options, roles), None, options, roles)
        return reader

    # ---- what it is

    @property
    def path(self) -> str:
        """Absolute path of the file."""
        return self._store.path

    @property
    def schema(self) -> Schema:
        """The fields: name, role, dtype, sample shape."""
        return self._store.schema

    @property
    def ids(self) -> np.ndarray:
        """Positions in the file of this reader's samples, int64 (len(self),)."""
        return np.arange(self._store.length) if self._ids is None else self._ids

    def __len__(self) -> int:
        return self._store.length if self._ids is None else len(self._ids)

    def __contains__(self, name: object) -> bool:
        return name in self.schema

    def __getitem__(self, name: str) -> FieldView:
        """A field, to be indexed along its samples like an array."""
        field = self._field(name)

        def read(ids: np.ndarray) -> Any:
            return self._given(field, self._read([name], ids if self._ids is None else self._ids[ids])[name])

        return FieldView(field.seen, len(self), f"{self.path}[{name!r}]", read, self)

    def _field(self, name: str) -> Field:
        if name not in self.schema:
            raise FieldNotFound(f"{self.path}: no field {name!r}; {nearest(name, self.schema.names)}")
        return self.schema[name]

    # ---- reading

    def _absolute(self, ids: Any, where: str) -> np.ndarray:
        found = as_ids(ids, len(self), f"{self.path}: {where}")
        return found if self._ids is None else self._ids[found]

    def _read(self, names: Sequence[str], ids: np.ndarray) -> dict[str, np.ndarray]:
        """Stored values of fields (text as codes), for absolute ids of one axis."""
        out: dict[str, Any] = {name: read_loose(self._store, name, ids) for name in names if self.schema[name].ragged}
        fixed = [name for name in names if name not in out]
        out |= self._read_fixed(fixed, ids) if fixed else {}
        return out

    def _read_fixed(self, names: Sequence[str], ids: np.ndarray) -> dict[str, np.ndarray]:
        out = self._store.empty(names, len(ids))
        if len(ids):
            low, high = int(ids[0]), int(ids[-1])
            if high - low == len(ids) - 1 and (np.diff(ids) == 1).all():
                self._store.runs(np.array([[low, high + 1]]), out).result()
            else:
                self._store.gather(ids, out).result()
        return out

    def take(self, ids: Any, fields: Sequence[str] | str | None = None) -> dict[str, np.ndarray]:
        """Read samples by position.

        Parameters
        ----------
        ids : array_like of int, shape (n,), or slice, or mask of shape (len(self),)
            Positions in [-len(self), len(self)), any order, repeats allowed.
        fields : str or list of str, optional
            All by default.

        Returns
        -------
        dict of str to ndarray, each (n, *field.shape), in the order of `ids`; text fields as text, fields of
        variable length as a list of n arrays

        Raises
        ------
        SelectionError, FieldNotFound, CorruptChunkError

        Notes
        -----
        Safe in threads and after a fork. Holds the result and the cache's budget.
        """
        names = self.schema.names if fields is None else [fields] if isinstance(fields, str) else list(fields)
        wanted = [self._field(name) for name in names]
        found = self._read([f.name for f in wanted], self._flat(ids, "take"))
        return {f.name: self._given(f, found[f.name]) for f in wanted}

    def _flat(self, ids: Any, where: str) -> np.ndarray:
        found = self._absolute(ids, where)
        if found.ndim != 1:
            raise SelectionError(f"{self.path}: {where}: ids have shape {found.shape}, expected one axis: (n,)")
        return found

    def _given(self, field: Field, values: Any) -> Any:
        """What users see of stored values: text, and a list of samples of different lengths."""
        if field.ragged:
            return list(values) if field.encoded is None else values
        return self._texts(field, values) if field.text else values

    def _texts(self, field: Field, codes: np.ndarray) -> np.ndarray:
        return np.array(field.classes or ("",), dtype=str)[codes]

    def batch(self, ids: Any) -> tuple[Any, ...]:
        """What a model is fed for these samples.

        Parameters
        ----------
        ids : as for `take`

        Returns
        -------
        (inputs,), (inputs, labels) or (inputs, labels, weights)
            Inputs are features and aux together. One field: its array; several: a dict by field name. Text
            is given as int64 codes, positions in ``field.classes``. `meta` fields are left out.

        Raises
        ------
        SelectionError, CorruptChunkError
        SchemaError
            The store has no feature and no aux field.
        """
        names = [f.name for f in self.model_fields()]
        return self.pack_batch(self._read(names, self._flat(ids, "batch")))

    # ---- living

    def refresh(self) -> int:
        """See what was committed since; of a store that was sealed meanwhile, all of it.

        Returns
        -------
        int
            Samples that are there now.

        Raises
        ------
        OptionError
            The reader was not made with ``growing=True``, or is a view of one.
        """
        if "growing" not in self._options or self._ids is not None:
            raise OptionError(f"{self.path}: refresh() is for Reader(..., growing=True); a sealed store does not "
                              "change, and a view keeps its samples")
        store, self._store = self._store, _opened(self.path, self._options, None)
        store.close()
        return len(self)

    def close(self) -> None:
        """Let go of the file handle and of cached samples. Reading again opens them again."""
        self._store.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "options": self._options, "roles": self._roles, "ids": self._ids, "form": self._form,
                "fingerprint": self._store.fingerprint, "length": self._store.length}

    def __setstate__(self, state: dict[str, Any]) -> None:
        store = _opened(state["path"], state["options"], state["roles"])
        if store.fingerprint != state["fingerprint"]:
            store.close()
            raise StaleStoreError(f"{store.path}: another store is at this path since this reader was pickled; make a "
                                  "new Reader")
        ids = state["ids"]
        if ids is None and store.length > state["length"]:  # a growing store: the copy holds what the original held
            ids = np.arange(state["length"])
        self._set(store, ids, state["options"], state["roles"])
        self._form = state["form"]


def _opened(path: str | os.PathLike[str], options: Mapping[str, Any], roles: Mapping[str, Any] | None) -> Store:
    if roles is not None:
        from h5store.storage.foreign import open_foreign

        return open_foreign(path, roles, **options)
    if "growing" not in options:
        return Store.open(path, **options)
    from h5store.storage.growing import open_growing

    return open_growing(path, **{name: value for name, value in options.items() if name != "growing"})
