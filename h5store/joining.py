"""Several readers as one: `concat`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from h5store.batching import Form
from h5store.errors import SchemaError
from h5store.reader import Reader
from h5store.schema import Field, Schema
from h5store.storage.joined import JoinedStore


class JoinedReader(Reader):
    """What `concat` gives. Pickles to the readers that it was made of, and the ids of a view."""

    _parts: tuple[Reader, ...]

    def _same(self, ids: np.ndarray | None = None) -> JoinedReader:
        view = super()._same(ids)
        view._parts = self._parts
        return view

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": self._parts, "ids": self._ids, "form": self._form}

    def __setstate__(self, state: dict[str, Any]) -> None:
        _join(self, state["parts"])
        self._ids, self._form = state["ids"], state["form"]


def concat(readers: Sequence[Reader]) -> Reader:
    """The samples of several readers, one after the other, as one reader. Nothing is copied.

    Parameters
    ----------
    readers : sequence of Reader
        Stores or views, also of one store, with the same fields: names, roles, dtypes and sample shapes. Of a text
        field the classes are put together.

    Returns
    -------
    Reader
        ``loader(..., mix=[0.7, 0.3])`` draws from them in these shares. Splits and statistics are made of it as of any
        other, but not saved: it is no file.

    Raises
    ------
    SchemaError
        No readers, or fields that differ.

    Notes
    -----
    Each store keeps a cache of its own. Codes of text fields whose classes differ among the stores are held in
    memory, 4 bytes a value.
    """
    parts = tuple(readers)
    for part in parts:
        if not isinstance(part, Reader):
            raise SchemaError(f"concat: expected readers, got {type(part).__name__}; open stores with "
                              "h5store.Reader(path)")
        if part._form != Form():
            raise SchemaError(f"concat: {part.path} was given a form of its own (padded(), unpadded() or a "
                              "normalization), which the other readers do not have; join them first and give it to all")
    if not parts:
        raise SchemaError("concat: no readers; give at least one")
    made = JoinedReader.__new__(JoinedReader)
    _join(made, parts)
    return made


def _join(made: JoinedReader, parts: tuple[Reader, ...]) -> None:
    store = JoinedStore([part._store for part in parts], _schema(parts))
    edges = np.cumsum([0] + [part._store.length for part in parts])
    ids = None
    if any(part._ids is not None for part in parts):
        ids = np.concatenate([part.ids + edge for part, edge in zip(parts, edges)])
    made._set(store, ids, {}, None)
    made._form, made._parts = Form(), parts


def _schema(parts: Sequence[Reader]) -> Schema:
    first = parts[0]
    for part in parts[1:]:
        missing = set(first.schema.names) ^ set(part.schema.names)
        if missing:
            name = sorted(missing)[0]
            lacks, has = (part, first) if name in first.schema else (first, part)
            raise SchemaError(f"concat: {lacks.path} has no field {name!r}, {has.path} has; expected the same "
                              "fields, so pack one of them anew")
        for field in first.schema:
            _check(field, part.schema[field.name], first.path, part.path)
    return Schema(tuple(_with_classes(field, parts) for field in first.schema))


def _check(one: Field, other: Field, here: str, there: str) -> None:
    for what in ("role", "dtype", "shape", "text", "encoded"):
        a, b = getattr(one, what), getattr(other, what)
        if what == "encoded":
            a, b = (None if e is None else (one.seen.shape, one.seen.dtype) for e in (a, b))
        if what == "dtype":
            a, b = a.newbyteorder("="), b.newbyteorder("=")
        if a != b:
            raise SchemaError(f"concat: field {one.name!r} has {what} {a} in {here} and {b} in {there}; expected the "
                              "same, so pack one of them anew")


def _with_classes(field: Field, parts: Sequence[Reader]) -> Field:
    if not field.text:
        return field
    classes = {text for part in parts for text in part.schema[field.name].classes or ()}
    return replace(field, classes=tuple(sorted(classes)))
