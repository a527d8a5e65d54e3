"""What a store holds: fields with a role, a dtype and a sample shape. Knows no files and no bytes."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from h5store.errors import FieldNotFound, FormatError, SchemaError, nearest

#: A dataset of HDF5 has at most 32 axes (H5S_MAX_RANK), one of which is the sample axis.
MAX_AXES = 31
#: Text is stored as positions in a class list; 4 bytes so that a new class never changes the width.
CODE_DTYPE = np.dtype("<i4")
#: Where samples of variable length end among the values of all.
ENDS_DTYPE = np.dtype("<u8")


class Role(str, Enum):
    """What a field is for: what a model is fed, what it is to learn, or what only travels along."""

    FEATURES = "features"
    AUX = "aux"
    LABELS = "labels"
    WEIGHTS = "weights"
    META = "meta"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Encoded:
    """Images that are stored as their files were, and decoded when they are read.

    Attributes
    ----------
    shape : (height, width, channels)
    dtype : str
        What decoding gives.
    resize, crop, mode
        As for `h5store.sources.images`.
    """

    shape: tuple[int, ...]
    dtype: str
    resize: tuple[int, ...] | None = None
    crop: tuple[int, ...] | None = None
    mode: str | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Encoded:
        shape, resize, crop = (None if data[key] is None else tuple(map(int, data[key]))
                               for key in ("shape", "resize", "crop"))
        if shape is None or len(shape) != 3 or min(shape) < 1:
            raise ValueError(f"encoded images of shape {shape}")
        return cls(shape, np.dtype(data["dtype"]).str, resize, crop, data["mode"])


@dataclass(frozen=True)
class Field:
    """One array of a store.

    Parameters
    ----------
    name : str
        Unique in its store; any text without "/" or NUL, not "." or "..".
    role : Role or str
    dtype : dtype_like
        bool, integer, float or complex; or ``str`` for text.
    shape : tuple of int
        Of one sample; () for a scalar. At most 31 axes, none of length 0. The first may be None: samples then differ in
        length along it.
    classes : tuple of str, optional
        Text only: the sorted distinct values. None until they are known.
    encoded : Encoded, optional
        Of uint8 samples (None,) that are image files: what readers make of them.

    Raises
    ------
    SchemaError
    """

    name: str
    role: Role
    dtype: np.dtype
    shape: tuple[Any, ...] = ()
    classes: tuple[str, ...] | None = None
    text: bool = field(default=False)
    encoded: Encoded | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        try:
            object.__setattr__(self, "role", Role(self.role))
        except ValueError:
            raise SchemaError(
                f"field {self.name!r}: no role {self.role!r}; {nearest(self.role, Role, 'roles')}"
            ) from None
        if self.text or is_text(self.dtype):
            object.__setattr__(self, "text", True)
            object.__setattr__(self, "dtype", CODE_DTYPE)
        else:
            object.__setattr__(self, "dtype", checked_dtype(self.name, self.dtype))
        object.__setattr__(self, "shape", _checked_shape(self.name, self.shape))
        if self.classes is not None and not self.text:
            raise SchemaError(f"field {self.name!r}: only text fields have classes, dtype is {self.dtype}; leave "
                              "classes out, or give dtype=str")
        if self.encoded is not None and (self.dtype != np.uint8 or self.shape != (None,)):
            raise SchemaError(f"field {self.name!r}: encoded images are uint8 of shape (None,), not {self.dtype} "
                              f"{self.shape}")
        if self.text and self.ragged:
            raise SchemaError(f"field {self.name!r}: text of variable length is not stored; give the number of words a "
                              "fixed length, or give codes")

    @property
    def ragged(self) -> bool:
        """Whether samples differ in length: the first axis is None."""
        return bool(self.shape) and self.shape[0] is None

    @property
    def seen(self) -> Field:
        """The field as readers see it: encoded images are decoded."""
        if self.encoded is None:
            return self
        return Field(self.name, self.role, np.dtype(self.encoded.dtype), self.encoded.shape)

    @property
    def columns(self) -> tuple[Field, ...]:
        """The datasets that hold this field: itself; of variable length, its values and where each sample ends."""
        if not self.ragged:
            return (self,)
        return (Column(self.name, self.role, self.dtype, self.shape[1:]),
                Column(ends_of(self.name), self.role, ENDS_DTYPE))

    @property
    def nbytes(self) -> int:
        """Bytes of one sample, decoded; of variable length, of a sample of length 1."""
        return math.prod(s for s in self.shape if s is not None) * self.dtype.itemsize

    def describe(self) -> str:
        """Dtype and sample shape in words, e.g. ``float32 (100, 6)``."""
        if self.encoded is not None:
            return f"encoded images {self.encoded.dtype.lstrip('|<')} {self.encoded.shape}"
        return f"{'text' if self.text else self.dtype.name} {self.shape}"

    def to_json(self) -> dict[str, Any]:
        """As plain data, which JSON can hold."""
        out: dict[str, Any] = {"name": self.name, "role": str(self.role), "dtype": self.dtype.str,
                               "shape": list(self.shape)}
        if self.text:
            out["classes"] = list(self.classes or ())
        elif self.encoded is not None:
            out["encoded"] = asdict(self.encoded)
        elif self.dtype.char in "gG":
            out["mantissa"] = int(np.finfo(self.dtype).nmant)
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Field:
        """What `to_json` gave."""
        text = "classes" in data
        # One name, three formats: x86 has 63 bits of mantissa, ARM 112, POWER 105.
        if data.get("mantissa", np.finfo(np.longdouble).nmant) != np.finfo(np.longdouble).nmant:
            raise FormatError(f"field {data['name']!r}: its longdouble has {data['mantissa']} bits of mantissa, this "
                              f"machine's {np.finfo(np.longdouble).nmant}; read it where it was written, and pack it "
                              "there as float64")
        return cls(data["name"], data["role"], CODE_DTYPE if text else np.dtype(data["dtype"]),
                   tuple(data["shape"]), tuple(data["classes"]) if text else None, text,
                   Encoded.from_json(data["encoded"]) if "encoded" in data else None)


@dataclass(frozen=True)
class Column(Field):
    """One of the two datasets of a variable-length field."""

    def __post_init__(self) -> None:
        """Made of a field, which was checked."""

    @property
    def ends(self) -> bool:
        """Whether it holds where samples end, one number a sample, rather than their values."""
        return "/" in self.name


def ends_of(name: str) -> str:
    """Name of the column of where the samples of a field end; no field can have it."""
    return f"{name}/ends"


@dataclass(frozen=True)
class Schema:
    """The fields of a store, in order. Behaves as a mapping from name to `Field`.

    Raises
    ------
    SchemaError
        Two fields of one name, or no field at all.
    """

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(self.fields))
        seen: dict[str, Role] = {}
        for f in self.fields:
            if f.name in seen:
                raise SchemaError(
                    f"two fields are named {f.name!r}, in {seen[f.name]} and {f.role}; names are unique "
                    "in a store: give one of them another name"
                )
            seen[f.name] = f.role
        if not seen:
            raise SchemaError("a store needs at least one field; give features=, labels= or another role")
        object.__setattr__(self, "_by_name", {f.name: f for f in self.fields})
        object.__setattr__(self, "_by_roles", {})

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __contains__(self, name: object) -> bool:
        try:
            return name in self._by_name  # type: ignore[attr-defined]
        except TypeError:  # a slice or a list: somebody indexes a reader as if it were a field
            return False

    def __getitem__(self, name: str) -> Field:
        try:
            return self._by_name[name]  # type: ignore[attr-defined,no-any-return]
        except (KeyError, TypeError):
            raise FieldNotFound(f"no field {name!r}; {nearest(name, self.names)}") from None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all fields, in order."""
        return tuple(f.name for f in self.fields)

    def of(self, *roles: Role | str) -> tuple[Field, ...]:
        """Fields of these roles, in the order of the schema."""
        found: tuple[Field, ...] | None = self._by_roles.get(roles)  # type: ignore[attr-defined]
        if found is None:  # asked for with every batch
            wanted = {Role(r) for r in roles}
            found = tuple(field for field in self.fields if field.role in wanted)
            self._by_roles[roles] = found  # type: ignore[attr-defined]
        return found

    def with_classes(self, classes: Mapping[str, tuple[str, ...]]) -> Schema:
        """The same fields, of which those named have these classes."""
        return Schema(tuple(replace(f, classes=classes.get(f.name, f.classes)) for f in self.fields))

    def mismatch(self, other: Schema) -> str | None:
        """Say how the fields of `other` differ from these, or None; class lists are left out."""
        mine, theirs = ({f.name: replace(f, classes=None) for f in s} for s in (self, other))
        for name, f in theirs.items():
            if name not in mine:
                return f"no field {name!r}; {nearest(name, mine)}"
            if f != mine[name]:
                return (f"field {name!r} is {f.role} {f.describe()}, "
                        f"expected {mine[name].role} {mine[name].describe()}")
        for name in mine:
            if name not in theirs:
                return f"field {name!r} is missing"
        return None

    def __repr__(self) -> str:
        width = max(len(f.name) for f in self.fields)
        return "\n".join(f"{f.name:<{width}}  {f.role!s:<8}  {f.describe()}" for f in self.fields)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise SchemaError(f"a field's name is a non-empty str, got {name!r}")
    if "/" in name or "\0" in name or name in (".", ".."):
        raise SchemaError(f"field {name!r}: a name has no '/' or NUL and is not '.' or '..', "
                          "since HDF5 reads it as a path; rename the field")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SchemaError(f"field {name!r}: the name is not valid Unicode ({error.reason}); rename the "
                          "field") from error


def _checked_shape(name: str, shape: Any) -> tuple[Any, ...]:
    try:
        out = tuple(None if s is None and i == 0 else int(s) for i, s in enumerate(shape))
    except (TypeError, ValueError):
        raise SchemaError(f"field {name!r}: shape {shape!r} is not a tuple of ints, such as (28, 28)") from None
    if len(out) > MAX_AXES:
        raise SchemaError(f"field {name!r}: a sample has {len(out)} axes, HDF5 holds at most {MAX_AXES} beside "
                          "the sample axis; reshape it to fewer")
    if any(s is not None and s < 1 for s in out):
        raise SchemaError(f"field {name!r}: sample shape {out} has an axis of length below 1, so a sample "
                          "holds nothing; drop the field or that axis")
    return out


def is_text(dtype: Any) -> bool:
    """Whether a dtype is text: ``str``, numpy's fixed-width ``U`` or its ``StringDType``."""
    if dtype is str:
        return True
    try:
        return np.dtype(dtype).kind in "UT"
    except TypeError:
        return False


def checked_dtype(name: str, dtype: Any) -> np.dtype:
    """The dtype as it is stored: little-endian bool, integer, float or complex.

    Raises
    ------
    SchemaError
        For dtypes that a store does not hold, with the way out.
    """
    try:
        dt = np.dtype(dtype)
    except TypeError as error:
        raise SchemaError(f"field {name!r}: {dtype!r} is not a dtype ({error}); expected such as 'float32', or "
                          "str for text") from None
    if dt.kind in "biufc":
        # "=" where it is the same: numpy does not hand on a longdouble whose order is spelled out.
        return dt.newbyteorder("=" if sys.byteorder == "little" else "<")
    advice = {
        "V": f"give each member as a field of its own, e.g. {{'{(dt.names or ('x',))[0]}': "
             f"X[{(dt.names or ('x',))[0]!r}]}}" if dt.names else _bits(dt),
        "O": "objects have no fixed size: give text as str, ragged rows padded to one shape",
        "S": "decode bytes to text first: numpy.char.decode(values, 'utf-8')",
        "M": "give times as numbers: values.astype('int64') (and note the unit)",
        "m": "give durations as numbers: values.astype('int64') (and note the unit)",
    }.get(dt.kind, "convert it with .astype(...)")
    raise SchemaError(f"field {name!r}: dtype {dt} is not stored; expected bool, integer, float, complex "
                      f"or text; {advice}")


def _bits(dt: np.dtype) -> str:
    """What to do with numbers that numpy has no dtype for: bfloat16, float8 and such."""
    if dt.type is np.void:
        return "view it as a numeric dtype"
    return f"convert it with .astype('float32'), or store its bits: values.view('uint{8 * dt.itemsize}')"


def dumps(data: Any) -> bytes:
    """Canonical JSON: same data, same bytes."""
    return json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
