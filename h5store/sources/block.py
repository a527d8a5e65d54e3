"""Sources: one block of samples, checked against the fields before anything is written.

Values are stored exactly, so nothing here casts, clips or broadcasts: what does not fit is an error that
names the field, what was expected and what came.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from h5store.errors import SchemaError, nearest
from h5store.ragged import Ragged
from h5store.schema import Field, Role, Schema, checked_dtype, is_text
from h5store.sources.jagged import is_jagged, jagged

ROLES = tuple(str(r) for r in Role)


def named(roles: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(role, field name, values) of what a call gives; a bare array is named after its role."""
    for role, value in roles.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            for name, values in value.items():
                yield role, name, values
        else:
            yield role, role, value


class Block:
    """Samples of every field, under one schema.

    Parameters
    ----------
    roles : mapping of role to array or mapping of name to array
    schema : Schema, optional
        That of the store; None: the block decides it.
    where : str
        What errors start with.

    Raises
    ------
    SchemaError
    """

    def __init__(self, roles: Mapping[str, Any], schema: Schema | None, where: str = "append") -> None:
        given = {}
        fields = []
        for role, name, values in named(roles):
            if name in given:
                raise SchemaError(f"{where}: two fields are named {name!r}; names are unique in a store: "
                                  "rename one")
            field = schema[name] if schema is not None and name in schema else None
            ragged = is_jagged(values) or (field is not None and field.ragged)
            given[name] = jagged(name, values, where, field) if ragged else as_values(name, values, where)
            fields.append((name, role))
        if schema is None:
            schema = Schema(tuple(infer(name, role, given[name], where) for name, role in fields))
        else:
            _check_names(schema, fields, where)
        self.schema = schema
        self.values = {f.name: conform(f, given[f.name], where) for f in schema}
        lengths = {name: len(v) for name, v in self.values.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name!r} {n}" for name, n in list(lengths.items())[:5])
            raise SchemaError(f"{where}: fields have different lengths: {told}; expected the same number of samples "
                              f"in each{_several(roles, lengths)}")
        self.length = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self.length

    @property
    def sample_bytes(self) -> int:
        """Decoded bytes of a sample of all fields, on average."""
        return sum(int(f.nbytes * self.values[f.name].mean_length) if f.ragged else f.nbytes for f in self.schema)

    def ragged_part(self, name: str, start: int, stop: int) -> Ragged:
        """Samples [start, stop) of a variable-length field, in the field's own dtype."""
        return self.values[name][start:stop].joined(self.schema[name])  # type: ignore[no-any-return]

    def part(self, name: str, start: int, stop: int) -> np.ndarray:
        """Samples [start, stop) of a field as a C-contiguous array of the field's own dtype, or of text."""
        field = self.schema[name]
        samples = np.asarray(self.values[name][start:stop])
        if field.text:
            return samples
        if samples.shape != (stop - start, *field.shape):
            raise SchemaError(f"append: {name!r} gave shape {samples.shape} for samples {start}-{stop - 1}, expected "
                              f"{(stop - start, *field.shape)}")
        return without_padding(np.ascontiguousarray(samples, field.dtype))

    def release(self) -> None:
        """Let go of the pages of memory maps that were read."""
        for values in self.values.values():
            release(values)


def release(values: Any) -> None:
    """Let go of the pages of a memory map that were read: they count as this process's memory otherwise."""
    base = values
    while isinstance(base, np.ndarray):
        # Only of shared mappings: a private one ("c") may hold changes that exist nowhere else.
        if isinstance(base, np.memmap) and base.mode not in ("r", "r+"):
            return
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)


def without_padding(samples: np.ndarray) -> np.ndarray:
    """Equal longdoubles, equal bytes: of x86's 80 bits in 16 bytes, the last 6 hold whatever memory held before."""
    size = np.dtype(np.longdouble).itemsize
    if samples.dtype.char not in "gG" or np.finfo(np.longdouble).nmant != 63:
        return samples
    out = samples.copy()
    out.reshape(-1).view(np.uint8).reshape(-1, size)[:, 10:] = 0
    return out


def as_values(name: str, values: Any, where: str) -> Any:
    """Something with shape, dtype and slicing: as it is, or made from a list."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise SchemaError(f"{where}: {name!r} is a masked array, and a store has no mask; fill it (.filled(value)) and "
                          "give the mask as a field of its own")
    if hasattr(values, "isna") and hasattr(values, "dtype") and not isinstance(values.dtype, np.dtype):
        gaps = np.flatnonzero(values.isna())
        if len(gaps):  # numpy would make NaN of them, and floats of the integers beside them
            raise SchemaError(f"{where}: {name!r} sample {gaps[0]} is missing ({values.dtype}); fill it "
                              "(.fillna(value)) and give what was missing as a field of its own")
    if hasattr(values, "dtype") and (not isinstance(values.dtype, np.dtype) or hasattr(values, "iloc")):
        try:
            values = np.asarray(values)  # tensors and pandas columns, whose dtypes or slices are not numpy's
        except (TypeError, RuntimeError) as error:
            raise SchemaError(f"{where}: {name!r} is {type(values).__name__} of {values.dtype}, and numpy makes no "
                              f"array of it ({error}); convert it first, e.g. to float32") from error
    if hasattr(values, "shape") and hasattr(values, "dtype") and hasattr(values, "__getitem__"):
        if len(values.shape) == 0:
            raise SchemaError(f"{where}: {name!r} is a scalar, expected shape (n, ...): samples along the first axis; "
                              "for one sample write values[None]")
        return values
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        if not hasattr(values, "__array__"):
            raise SchemaError(f"{where}: {name!r} is {type(values).__name__}, expected an array or a list of samples; "
                              "for an iterator of samples take h5store.sources.stream(...)")
    try:
        made = _listed(values)
    except (ValueError, OverflowError) as error:
        raise SchemaError(f"{where}: {name!r}: its samples do not make one array ({error}); expected the same shape in "
                          "each; pad them") from error
    if made.ndim == 0:
        raise SchemaError(f"{where}: {name!r} is a scalar, expected samples along the first axis; for one sample write "
                          "[value]")
    return _Listed(made)


def _listed(values: Any) -> np.ndarray:
    """An array of Python objects' values; of the objects themselves where numpy would change any."""
    made = np.asarray(values)
    if made.dtype.kind == "U":
        return np.array(values, object)  # numpy makes text of numbers, and cuts NULs off
    if made.dtype.kind in "fc" and made.size:
        with np.errstate(invalid="ignore"):
            large = bool((np.abs(made) >= 2**53).any())
        if large:  # there may be ints among them that no float64 holds
            same = np.array(values, object)
            if not ((same == made) | (made != made)).all():
                return same
    return made


class _Listed:
    """Values that came as Python objects, whose dtype is numpy's guess and binds nobody."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, key: Any) -> np.ndarray:
        return self.array[key]  # type: ignore[no-any-return]


def infer(name: str, role: str, values: Any, where: str) -> Field:
    """The field that these values make."""
    shape = tuple(values.shape[1:])
    if is_text(values.dtype) or (values.dtype == object and len(values) and _looks_text(values)):
        return Field(name, Role(role), np.dtype(str), shape)
    if not len(values) and (values.dtype == object or isinstance(values, _Listed)):
        raise SchemaError(f"{where}: {name!r} is empty, so no samples tell its shape and dtype; give an array that has "
                          "them, e.g. numpy.empty((0, 4), 'float32')")
    if values.dtype == object:
        _refuse_objects(name, values, where)
    return Field(name, Role(role), values.dtype, shape)


def _looks_text(values: Any) -> bool:
    first: Any = np.asarray(values[:1]).ravel()
    return len(first) > 0 and isinstance(first[0], str)


def conform(field: Field, values: Any, where: str) -> Any:
    """Values as the field takes them, or an error."""
    if isinstance(values, _Listed) and not len(values):
        return np.empty((0, *field.shape), object if field.text else field.dtype)
    if tuple(values.shape[1:]) != field.shape:
        expected = f"(n{''.join(f', {s}' for s in field.shape)}{'' if field.shape else ','})"
        raise SchemaError(f"{where}: {field.name!r} has shape {tuple(values.shape)}, expected {expected}; "
                          "reshape it, or pad its samples")
    if field.text:
        if not is_text(values.dtype) and values.dtype != object and len(values):
            raise SchemaError(f"{where}: {field.name!r} has dtype {values.dtype}, expected text; convert it "
                              "with .astype(str)")
        return values
    if values.dtype == object:
        _refuse_objects(field.name, values, where)
    if isinstance(values, _Listed):
        return _exact(field, values.array, where)
    if is_text(values.dtype) or checked_dtype(field.name, values.dtype) != field.dtype:
        _refuse_dtype(field, values, where)
    return values


def _several(roles: Mapping[str, Any], lengths: Mapping[str, int]) -> str:
    """What to do about a list of arrays that were meant as fields, and are taken for samples."""
    for role, values in roles.items():
        if isinstance(values, (list, tuple)) and all(len(getattr(v, "shape", ())) for v in values):
            if {len(v) for v in values} & {n for name, n in lengths.items() if name != role}:
                return (f". {role}=[...] is a list of {len(values)} arrays, each taken for one sample; give several "
                        f"fields as a dict by name: {role}={{'a': ..., 'b': ...}}")
    return ""


def _check_names(schema: Schema, fields: list[tuple[str, str]], where: str) -> None:
    for name, role in fields:
        if name not in schema:
            raise SchemaError(f"{where}: no field {name!r}; {nearest(name, schema.names)}")
        if schema[name].role != role:
            raise SchemaError(f"{where}: field {name!r} is in {schema[name].role}, got it in {role}; give it as "
                              f"{schema[name].role}={{{name!r}: ...}}")
    missing = [n for n in schema.names if n not in dict(fields)]
    if missing:
        raise SchemaError(f"{where}: field {missing[0]!r} is missing; expected every field of the store: "
                          f"{', '.join(map(repr, schema.names[:8]))}")


def _refuse_objects(name: str, values: Any, where: str) -> None:
    kinds = sorted({type(v).__name__ for v in np.asarray(values[:100]).ravel()})
    if set(kinds) <= {"bool", "int", "float"}:
        raise SchemaError(f"{where}: {name!r} holds numbers ({', '.join(kinds)}) that no one dtype holds exactly; give "
                          "an array of the dtype you mean")
    raise SchemaError(f"{where}: {name!r} holds Python objects ({', '.join(kinds[:5])}), expected numbers or text of "
                      "one shape; pad ragged samples, give text as str")


def _exact(field: Field, array: np.ndarray, where: str) -> np.ndarray:
    """A list's values in the field's dtype, where that changes none of them."""
    if array.dtype == field.dtype:
        return array
    if array.size == 0:
        return array.astype(field.dtype)
    if array.dtype.kind in ("biufc" if field.dtype.kind == "c" else "biuf"):
        with np.errstate(all="ignore"):
            cast = array.astype(field.dtype)
            same = (cast == array) | ((cast != cast) & (array != array))
            if array.dtype.kind in "iu" and field.dtype.kind in "iu":
                same &= (cast >= 0) == (array >= 0)
            elif array.dtype.kind in "iu":  # numpy compares ints and floats as floats, Python exactly
                same &= cast.astype(object) == array.astype(object)
        if same.all() and (array.dtype.kind == "b") == (field.dtype.kind == "b"):
            return cast  # type: ignore[no-any-return]
    _refuse_dtype(field, array, where)
    raise AssertionError("unreachable")


def _refuse_dtype(field: Field, values: Any, where: str) -> None:
    told = ""
    if np.dtype(values.dtype).kind in "biuf" and field.dtype.kind in "biuf":
        found = _first_unfit(field, values)
        told = f", and sample {found[0]} holds {found[1]!r}, which does not fit" if found else ""
    raise SchemaError(f"{where}: {field.name!r} has dtype {values.dtype}, expected {field.dtype.name}{told}; nothing "
                      f"is cast in silence: convert it with .astype({field.dtype.name!r}) if that is what you mean, or "
                      "give the store a wider field with schema=")


def _first_unfit(field: Field, values: Any) -> tuple[int, Any] | None:
    step = max(1, (1 << 20) // max(1, field.nbytes))
    for start in range(0, len(values), step):
        part = np.asarray(values[start:start + step])
        with np.errstate(all="ignore"):
            cast = part.astype(field.dtype)
            back = cast.astype(part.dtype)
            bad = (back != part) & ~((back != back) & (part != part))
            if part.dtype.kind in "iu" and field.dtype.kind in "iu":
                bad |= (cast < 0) != (part < 0)
        if bad.any():
            where = np.argwhere(bad)[0]
            return start + int(where[0]), part[tuple(where)].item()
    return None
