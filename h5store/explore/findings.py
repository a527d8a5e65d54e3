"""What in the statistics of a store may spoil a training, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from h5store.explore.parts import Parts
from h5store.explore.stats import FieldStats
from h5store.schema import Role

if TYPE_CHECKING:
    from h5store.reader import Reader

#: Spreads that differ by more than this make one channel drown another.
SCALE = 1000.0
#: Names that a sentence lists, and sentences of one kind.
_NAMED = 5
_SENTENCES = 20
_FED = (Role.FEATURES, Role.AUX)


def warnings_of(reader: Reader, fields: Mapping[str, FieldStats], parts: Parts) -> tuple[str, ...]:
    """Sentences, those that matter most first."""
    found: list[str] = []
    for kind in (_leaks(parts), _holes(fields), _labels(reader, fields), _missing(fields), _constants(fields),
                 _scales(fields)):
        said = list(kind)
        found += said[:_SENTENCES]
        if len(said) > _SENTENCES:
            found.append(f"{len(said) - _SENTENCES} more of this kind")
    return tuple(found)


def _leaks(parts: Parts) -> Iterator[str]:
    about = "" if parts.share == 1 else "about "
    for left, right, count, (a, b) in parts.shared():
        same = f"sample {a} is in both" if a == b else f"for example {a} and {b}"
        yield (f"parts {left!r} and {right!r} share {about}{_n(count, 'sample')} with the same inputs ({same}): what "
               f"is measured on {right!r} is too good; split with groups=")


def _holes(fields: Mapping[str, FieldStats]) -> Iterator[str]:
    for f in fields.values():
        if f.moments is None or f.role is Role.META:
            continue
        total = int(f.moments.total.sum())
        for what, counts in (("NaN", f.moments.nans), ("infinite", f.moments.infs)):
            bad = int(counts.sum())
            if bad:
                share = bad / total
                where = _channels(f, counts > 0)
                yield (f"{f.role} {f.name!r}: {bad:,} of {total:,} values are {what} ({_percent(share)}){where}; one "
                       "is enough for a loss of NaN: fill or mask them")


def _labels(reader: Reader, fields: Mapping[str, FieldStats]) -> Iterator[str]:
    for f in fields.values():
        if f.classes is None:
            continue
        if f.dtype == "text":
            outside = {code: n for code, n in f.classes.items() if isinstance(code, int)}
            if outside:
                yield (f"{f.role} {f.name!r}: {_n(sum(outside.values()), 'sample')} with a code outside the class list "
                       f"of {len(reader.schema[f.name].classes or ())}: the file is damaged, run 'h5store verify'")
        elif f.dtype.startswith("int") and min(f.classes, default=0) < 0:
            low = [value for value in f.classes if value < 0]
            count = sum(f.classes[value] for value in low)
            yield (f"{f.role} {f.name!r}: {_n(count, 'sample')} with a negative class ({_list(low)}); classes are "
                   "counted from 0: leave these samples out with select(), or give them a class")
        if len(f.classes) == 1:
            only = _list(list(f.classes))
            yield f"{f.role} {f.name!r}: all samples are of one class, {only}: there is nothing to learn"


def _missing(fields: Mapping[str, FieldStats]) -> Iterator[str]:
    for f in fields.values():
        if f.role is not Role.LABELS or f.classes is None or len(f.classes) > 1000:
            continue
        for part, counts in f.parts.items():
            gone = [c for c in f.classes if c not in counts]
            if gone:
                word = "class" if len(gone) == 1 else "classes"
                yield (f"part {part!r}: no sample of {word} {_list(gone)} of {f.name!r}; split with by={f.name!r}, or "
                       "leave the class out")


def _constants(fields: Mapping[str, FieldStats]) -> Iterator[str]:
    for f in fields.values():
        if f.role in _FED and f.moments is not None and f.constant.any():
            which = np.flatnonzero(f.constant)
            value = f"{f.min[which[0]]:g}"
            many = len(which) > 1
            what = ("all values are" if len(f.constant) == 1 else
                    f"channel{'s' * many} {_list(which.tolist())} always hold{'s' * (not many)} one value,")
            yield f"{f.role} {f.name!r}: {what} {value}: {'they teach' if many else 'it teaches'} a model nothing"


def _scales(fields: Mapping[str, FieldStats]) -> Iterator[str]:
    rows = [(f, c, f.std[c]) for f in fields.values() if f.role in _FED and f.moments is not None
            for c in range(len(f.std)) if f.std[c] > 0]
    if len(rows) < 2:
        return
    middle = float(np.median([std for _, _, std in rows]))
    smallest = min(rows, key=lambda row: row[2])
    largest = max(rows, key=lambda row: row[2])
    if largest[2] <= SCALE * smallest[2]:
        return
    if len(rows) == 2:
        yield (f"{_label(largest)} spreads {largest[2] / smallest[2]:,.0f} times as wide as {_label(smallest)}; bring "
               "them to one scale, for example by normalizing")
        return
    for row in rows:
        ratio = row[2] / middle
        if ratio > SCALE or ratio < 1 / SCALE:
            wide = f"{ratio:,.0f} times as wide" if ratio > 1 else f"{1 / ratio:,.0f} times as narrow"
            yield (f"{_label(row)} spreads {wide} as the other inputs (std {row[2]:.3g}, their median {middle:.3g}); "
                   "bring them to one scale, for example by normalizing")


def _label(row: tuple[FieldStats, int, float]) -> str:
    f, channel, _ = row
    return f"{f.role} {f.name!r}" + (f" channel {channel}" if len(f.std) > 1 else "")


def _channels(f: FieldStats, which: np.ndarray) -> str:
    if len(which) == 1 or which.all():
        return ""
    found = np.flatnonzero(which).tolist()
    return f" in channel{'s' * (len(found) > 1)} {_list(found)}"


def _list(values: list) -> str:
    text = ", ".join(repr(v) for v in values[:_NAMED])
    return text if len(values) <= _NAMED else f"{text} and {len(values) - _NAMED:,} more"


def _n(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _percent(share: float) -> str:
    return f"{share:.2%}" if share >= 0.0001 else "under 0.01%"
