"""Choosing samples: the part of a `Reader` that makes views, which are readers too. Nothing is copied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from h5store.errors import OptionError, SplitError, nearest
from h5store.normalization import Normalization, key_of, name_of
from h5store.sampling.split import kfold, split_ids
from h5store.splits import save_split, saved_part
from h5store.storage import notes

if TYPE_CHECKING:
    from typing_extensions import Self

    from h5store.batching import Form
    from h5store.schema import Field
    from h5store.storage.store import Store


class Choosing:
    """Views of a reader's samples."""

    _store: Store
    _ids: np.ndarray | None
    _options: dict[str, Any]
    _roles: dict[str, Any] | None
    _form: Form

    if TYPE_CHECKING:
        @property
        def ids(self) -> np.ndarray: ...

        @property
        def path(self) -> str: ...

        def __len__(self) -> int: ...
        def _set(self, store: Store, ids: np.ndarray | None, options: dict[str, Any],
                 roles: dict[str, Any] | None) -> None: ...

        def _flat(self, ids: Any, where: str) -> np.ndarray: ...
        def _field(self, name: str) -> Field: ...
        def _read(self, names: list[str], ids: np.ndarray) -> dict[str, np.ndarray]: ...
        def _texts(self, field: Field, codes: np.ndarray) -> np.ndarray: ...

    def select(self, ids: Any) -> Self:
        """A view of some samples, in the order of `ids`. Nothing is copied.

        Parameters
        ----------
        ids : as for `take`

        Raises
        ------
        SelectionError
        """
        return self._same(self._flat(ids, "select"))

    def _same(self, ids: np.ndarray | None = None) -> Self:
        """Another reader of the same store: of the same samples, or of `ids`, positions in the file."""
        view = type(self).__new__(type(self))
        view._set(self._store, self._ids if ids is None else ids, self._options, self._roles)
        view._form = self._form
        return view

    @overload
    def split(self, parts: str, /) -> Self: ...

    @overload
    def split(self, parts: Mapping[str, float] | Mapping[str, int], *, by: Any = None, groups: Any = None,
              seed: int = 0, save: bool = False) -> dict[str, Self]: ...

    def split(self, parts: Any, *, by: Any = None, groups: Any = None, seed: int = 0, save: bool = False) -> Any:
        """Divide the samples at random into named views, or look up a part that was saved.

        Parameters
        ----------
        parts : mapping of str to float or int; or str
            Shares that sum to at most 1, or numbers of samples. A str: the name of a saved part.
        by : str or array_like of shape (len(self),), optional
            A field, or one value a sample: each class is divided in the same shares.
        groups : str or array_like of shape (len(self),), optional
            Samples of one group stay in one part.
        seed : int
        save : bool
            Keep the parts in the store under their names, so that ``Reader(path).split("train")`` gives the
            same samples anywhere. The file is replaced by a copy with the note in it; open readers keep theirs.

        Returns
        -------
        dict of str to Reader; or Reader, for a saved part
            Samples of each part in the order of the file.

        Raises
        ------
        SplitError, FieldNotFound
        """
        if isinstance(parts, str):
            self._check_ours(f"split({parts!r})")
            chosen = np.zeros(self._store.length, bool)
            chosen[saved_part(self.path, parts, self._store.length)] = True
            return self.select(chosen[self.ids])
        with self._named():
            made = split_ids(len(self), parts, by=self._values_of(by), groups=self._values_of(groups), seed=seed)
        if save:
            self._check_ours("split(save=True)")
            how = {"seed": int(seed), **{key: value if isinstance(value, str) else "given"
                                         for key, value in (("by", by), ("groups", groups)) if value is not None}}
            save_split(self.path, self._store.length, {name: self.ids[ids] for name, ids in made.items()}, how,
                       seal=self._store.fingerprint)
            self._store.renew()
        return {name: self.select(ids) for name, ids in made.items()}

    def kfold(self, k: int, *, by: Any = None, groups: Any = None, seed: int = 0) -> list[tuple[Self, Self]]:
        """Divide the samples into k folds, each of them once the validation part.

        Parameters
        ----------
        k : int
            At least 2.
        by, groups, seed
            As for `split`.

        Returns
        -------
        list of (train, val), each a Reader

        Raises
        ------
        SplitError, FieldNotFound
        """
        with self._named():
            made = kfold(len(self), k, by=self._values_of(by), groups=self._values_of(groups), seed=seed)
        return [(self.select(train), self.select(val)) for train, val in made]

    def normalization(self, fields: Any = None, *, save: str | None = None) -> Normalization:
        """Mean and spread of input fields over these samples, e.g. those of the training part.

        Parameters
        ----------
        fields : str or list of str, optional
            All numeric features and aux fields by default.
        save : str, optional
            Keep it in the store under this name, such as that of the part it is taken over.

        Returns
        -------
        Normalization
            For ``normalize=`` of `loader` and the doors; ``.layer(field)`` is a ``keras.layers.Normalization``.

        Raises
        ------
        OptionError, FieldNotFound
        """
        found = Normalization.of(self, fields)  # type: ignore[arg-type]
        if save is not None:
            self._check_ours("normalization(save=...)")
            notes.write(self.path, {key_of(save): found.to_note()}, seal=self._store.fingerprint)
            self._store.renew()
        return found

    def saved_normalization(self, name: str) -> Normalization:
        """What `normalization` saved under a name.

        Raises
        ------
        OptionError
        """
        self._check_ours(f"a normalization saved as {name!r}")
        note = notes.read(self.path, key_of(name))
        if note is None:
            known = [n for n in map(name_of, notes.keys(self.path)) if n is not None]
            raise OptionError(f"{self.path}: no normalization saved as {name!r}; {nearest(name, known, 'saved ones')}; "
                              "make one with normalization(save=...)")
        return Normalization.from_note(note)

    def _check_ours(self, what: str) -> None:
        if self._store.layout is None:
            raise OptionError(f"{self.path}: {what} takes a note in the file, and only one store of this library's own "
                              "has notes; pack it first, into one store: h5store.pack(...)")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors of pure arithmetic, which knows no file, with the file's name."""
        try:
            yield
        except SplitError as error:
            raise SplitError(f"{self.path}: {error}") from error
        except OptionError as error:
            raise OptionError(f"{self.path}: {error}") from error

    def _values_of(self, by: Any) -> np.ndarray | None:
        """One value a sample, of a field by name or as given; rows of a vector field count as one value."""
        if by is None:
            return None
        if not isinstance(by, str):
            return np.asarray(by)
        field = self._field(by)
        values = self._read([field.name], self.ids)[field.name]
        if values.ndim == 1:
            return self._texts(field, values) if field.text else values
        return np.unique(values.reshape(len(values), -1), axis=0, return_inverse=True)[1].reshape(-1)
