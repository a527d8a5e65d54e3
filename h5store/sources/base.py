"""Sources: what every source is to a packer, and the two that need no files: arrays and iterables."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from h5store.errors import SourceError, nearest
from h5store.schema import Schema
from h5store.sources.block import ROLES, Block, as_values, named

#: Decoded bytes a block of a source aims at: large against the cost of a call, small against memory.
BLOCK_BYTES = 8 << 20


class Source(Protocol):
    """Samples of several fields, in an order that does not change from one run to the next.

    Attributes
    ----------
    name : str
        For errors and the progress bar, e.g. ``"photos/"``.
    schema : Schema or None
        None where only the first block tells.
    length : int or None
        Samples in all, where that is known before.
    """

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> Schema | None: ...

    @property
    def length(self) -> int | None: ...

    def blocks(self, start: int = 0) -> Iterator[Mapping[str, Mapping[str, Any]]]:
        """Blocks from sample `start` on: role -> field name -> values (n, *shape)."""
        ...


class ArraySource:
    """Arrays, memory maps, lists, or anything with shape, dtype and slicing, one for each field.

    Parameters
    ----------
    roles : mapping of role to array, or to mapping of field name to array

    Raises
    ------
    SchemaError
    """

    def __init__(self, roles: Mapping[str, Any], name: str = "pack") -> None:
        self.name = name
        self._block = Block(roles, None, name)
        self.schema: Schema | None = self._block.schema
        self.length: int | None = len(self._block)

    def blocks(self, start: int = 0) -> Iterator[dict[str, dict[str, Any]]]:
        fields = list(self._block.schema)
        step = max(1, BLOCK_BYTES // max(1, sum(f.nbytes for f in fields)))
        for at in range(start, len(self._block), step):
            out: dict[str, dict[str, Any]] = {}
            for f in fields:
                out.setdefault(str(f.role), {})[f.name] = self._block.values[f.name][at:at + step]
            yield out

    @property
    def scattered(self) -> bool:
        """Whether runs of samples can be read in any order at little cost."""
        return all(isinstance(values, np.ndarray) for values in self._block.values.values())

    def runs(self, ranges: np.ndarray) -> dict[str, dict[str, Any]]:
        """One block of the runs [lo, hi) of samples, one after the other."""
        out: dict[str, dict[str, Any]] = {}
        for f in self._block.schema:
            values = self._block.values[f.name]
            out.setdefault(str(f.role), {})[f.name] = np.concatenate([values[lo:hi] for lo, hi in ranges.tolist()])
        self._block.release()
        return out


class StreamSource:
    """An iterable of dicts, each one sample or one block of them.

    Parameters
    ----------
    items : iterable of mapping of str to array_like
    roles : mapping of role to str or list of str
        Which role the keys have.
    each : {"sample", "block"}, optional
        What an item is. Told by the first one if None: a sample where a value is a scalar or the values have
        different lengths.
    """

    schema: Schema | None = None
    length: int | None = None

    def __init__(self, items: Iterable[Mapping[str, Any]], roles: Mapping[str, Any], each: str | None = None,
                 name: str = "the iterable") -> None:
        if each not in (None, "sample", "block"):
            raise SourceError(f"{name}: each={each!r}, expected 'sample' or 'block'")
        self.name, self._items, self._each = name, items, each
        self._roles = [(role, key) for role, keys in roles.items() if keys is not None
                       for key in ([keys] if isinstance(keys, str) else keys)]
        if not self._roles:
            raise SourceError(f"{name}: no fields named; say which keys are what: features='x', labels='y'")

    def blocks(self, start: int = 0) -> Iterator[dict[str, dict[str, Any]]]:
        held: list[dict[str, Any]] = []
        size, at = 0, 0
        for item in _kept_on_error(self._items):
            if isinstance(item, BaseException):
                # What came before it is packed, so that resuming need not make it again.
                if held:
                    yield self._stacked(held, at)
                raise item
            values = self._picked(item, at)
            if self._each is None:
                self._each = self._told(values)
            if self._each == "block":
                n = len(np.asarray(next(iter(values.values()))))
                if at + n > start:
                    skip = max(0, start - at)
                    yield self._by_role({k: v[skip:] for k, v in values.items()} if skip else values)
                at += n
                continue
            at += 1
            if at > start:
                held.append(values)
                size += sum(getattr(v, "nbytes", 64) for v in values.values())
            if size >= BLOCK_BYTES:
                yield self._stacked(held, at)
                held, size = [], 0
        if held:
            yield self._stacked(held, at)
        if at < start:
            raise SourceError(f"{self.name}: has {at:,} samples, but {start:,} are packed already; it is not the "
                              "source that was being packed: go on with that, or begin anew with overwrite=True")

    def _picked(self, item: Any, at: int) -> dict[str, Any]:
        if not isinstance(item, Mapping):
            raise SourceError(f"{self.name}: item {at} is {type(item).__name__}, expected a dict of field name to "
                              "values: yield {'x': ..., 'y': ...}")
        for _, key in self._roles:
            if key not in item:
                raise SourceError(f"{self.name}: item {at} has no {key!r}; {nearest(key, item, 'its keys')}")
        return {key: item[key] for _, key in self._roles}

    def _told(self, values: Mapping[str, Any]) -> str:
        shapes = [np.shape(v) for v in values.values()]
        if any(not s for s in shapes) or len({s[0] for s in shapes}) > 1:
            return "sample"
        raise SourceError(f"{self.name}: each item could be one sample or a block of {shapes[0][0]}; say which: "
                          "h5store.sources.stream(items, each='sample', ...) or each='block'")

    def _stacked(self, held: list[dict[str, Any]], at: int) -> dict[str, dict[str, Any]]:
        out = {}
        for _, key in self._roles:
            parts = [_exactly(key, values[key], self.name) for values in held]
            for i, part in enumerate(parts):
                if part.shape != parts[0].shape or _kind(part) != _kind(parts[0]):
                    value = "" if part.ndim else f" ({part.item()!r})"
                    raise SourceError(f"{self.name}: sample {at - len(held) + i}: {key!r} has shape {part.shape} and "
                                      f"dtype {_kind(part)}{value}, expected {parts[0].shape} and {_kind(parts[0])} "
                                      "as before")
            out[key] = np.stack(parts)
        return self._by_role(out)

    def _by_role(self, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        out: dict[str, dict[str, Any]] = {}
        for role, key in self._roles:
            out.setdefault(role, {})[key] = values[key]
        return out


def _kept_on_error(items: Iterable[Any]) -> Iterator[Any]:
    """The items, and at the end the exception that their iterator raised, if it did."""
    try:
        yield from items
    except GeneratorExit:
        raise
    except BaseException as error:
        yield error


def _exactly(name: str, value: Any, where: str) -> np.ndarray:
    """A sample as an array; of Python objects where numpy would change what it holds."""
    if isinstance(value, str):
        return np.array(value, object)  # numpy cuts NULs off
    if isinstance(value, (list, tuple)) or np.ndim(value):
        value = as_values(name, value, where)
        return np.asarray(getattr(value, "array", value))
    return np.asarray(value)


def _kind(part: np.ndarray) -> Any:
    text = part.dtype == object and part.size and isinstance(part.flat[0], str)
    return "text" if text or part.dtype.kind in "UT" else part.dtype


def as_source(source: Any, roles: Mapping[str, Any]) -> Source:
    """The source that a call to ``pack`` means.

    Raises
    ------
    SourceError, SchemaError
    """
    if source is None:
        for role, name, values in named(roles):
            if isinstance(values, (str, bytes)):
                raise SourceError(f"pack: {role}={values!r} is text, expected an array; load it first, e.g. "
                                  f"numpy.load({values!r}, mmap_mode='r')")
            if _looks_like_fields(values):
                warnings.warn(f"pack: {role}=[...] is a list of {len(values)} arrays, and each is stored as a sample; "
                              f"if they are several fields, give a dict by name: {role}={{'a': ..., 'b': ...}}",
                              stacklevel=3)
        return ArraySource(roles)
    if hasattr(source, "blocks") and hasattr(source, "schema"):
        given = [role for role in ROLES if roles.get(role) is not None]
        if given:
            raise SourceError(f"pack: {given[0]}= is given beside a source that has its roles; give it to the source")
        return source  # type: ignore[no-any-return]
    if isinstance(source, Mapping):
        return ArraySource({role: _chosen(source, keys) for role, keys in roles.items() if keys is not None})
    if isinstance(source, (str, bytes, os.PathLike)):
        raise SourceError(f"pack: {source!r} is a path, and a path does not say what is a feature and what a label; "
                          f"write h5store.pack(path, h5store.sources.{_door(os.fsdecode(source))})")
    if isinstance(source, Iterable):
        return StreamSource(source, roles)
    raise SourceError(f"pack: {type(source).__name__} is no source; expected arrays by role, a mapping of arrays, an "
                      "iterable of dicts, or one of h5store.sources")


def _looks_like_fields(values: Any) -> bool:
    """Whether a list is so short, and its arrays so long, that they are likelier to be fields than samples."""
    return isinstance(values, (list, tuple)) and 2 <= len(values) <= 8 and all(
        len(getattr(v, "shape", ())) > 1 and len(v) >= 1000 for v in values)


def _door(path: str) -> str:
    """The call that reads a path, by its ending."""
    doors = {(".npy",): "arrays(features={path!r}, labels=...)",
             (".npz",): "npz({path!r}, features='x', labels='y'), or samples(...) for one sample a file",
             (".csv", ".tsv", ".txt", ".parquet"): "table({path!r}, features=[...], labels='y')",
             (".h5", ".hdf5", ".hdf", ".he5"): "hdf5({path!r}, features='x', labels='y')",
             (".tfrecord", ".tfrecords", ".tfrecord.gz"): "tfrecord({path!r}, features='x', labels='y')"}
    call = next((call for endings, call in doors.items() if path.lower().endswith(endings)),
                "images({path!r}) for images, or samples({path!r}, features='x') for one .npz a sample")
    return call.format(path=path)


def _chosen(source: Mapping[str, Any], keys: Any) -> dict[str, Any]:
    wanted = [keys] if isinstance(keys, str) else list(keys)
    for key in wanted:
        if key not in source:
            raise SourceError(f"pack: no array {key!r}; {nearest(key, source, 'arrays')}")
    return {key: source[key] for key in wanted}
