"""Sources: a labels file beside a folder of images, matched to its files name by name."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from h5store.errors import SourceError, nearest
from h5store.sources.files import Skipped

#: Headings of the column that holds the file names, in any case.
_NAMES = ("filename", "file_name", "file", "name", "image", "image_path", "path", "img", "image_id", "id")


@dataclass(frozen=True)
class Matched:
    """Files that have labels, in the order of the labels file, their columns, and what did not fit."""

    files: list[str]
    columns: dict[str, np.ndarray]
    problems: list[Skipped]


@dataclass(frozen=True)
class _Row:
    line: int
    file: str
    values: tuple[str, ...]


def read_labels(path: str, folder: str, files: Sequence[str], wanted: Sequence[str] | None) -> Matched:
    """Match a labels file to the image files of a folder.

    Parameters
    ----------
    path : str
        ``name label`` a line, or CSV or TSV, with or without a line of column names.
    wanted : list of str or None
        Columns to take; all by default.

    Raises
    ------
    SourceError
        No text, no samples, or no such column.
    """
    finder = _Finder(folder, files)
    rows = [(line, cells) for line, cells in _cells(path, finder) if any(cells)]
    names, place = ["label"], 0
    if rows and _is_header(rows[0][1], finder):
        heading = rows.pop(0)[1]
        place = next((i for i, h in enumerate(heading) if h.lower() in _NAMES), 0)
        names = [h for i, h in enumerate(heading) if i != place]
    elif rows:
        count = max(len(cells) for _, cells in rows) - 1
        names = ["label"] if count == 1 else [f"label{i}" for i in range(1, count + 1)]
    if not rows:
        raise SourceError(f"{path}: no samples: it names no file")
    for name in wanted or ():
        if name not in names:
            raise SourceError(f"{path}: no column {name!r}; {nearest(name, names, 'columns')}")
    problems: list[Skipped] = []
    found = list(_found(rows, place, names, finder, problems))
    good = _agreed(found, names, problems)
    listed = {row.file for row in found} | {p.file for p in problems}
    problems += [Skipped(f, f"has no line in {path}") for f in files if f not in listed]
    columns = {name: typed([row.values[i] for row in good]) for i, name in enumerate(names)
               if wanted is None or name in wanted}
    return Matched([row.file for row in good], columns, problems)


def _cells(path: str, finder: _Finder) -> Iterator[tuple[int, list[str]]]:
    text = _text(path)
    first = text.partition("\n")[0]
    ending = os.path.splitext(path)[1].lower()
    bare = re.sub('"[^"]*"', "", first)  # names in quotes may hold anything
    if ending in (".csv", ".tsv") or "\t" in bare or "," in bare:
        delimiter = "\t" if "\t" in bare else ";" if ";" in bare and "," not in bare else ","
        reader = csv.reader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True)
        for cells in reader:
            yield reader.line_num, [cell.strip() for cell in cells]
        return
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        # A name may hold blanks: the longest beginning of the line that is a file is the name.
        for count in range(len(parts) - 1, 1, -1):
            name = line.strip().rsplit(None, len(parts) - count)[0]
            if finder.find(name):
                parts = [name, *parts[count:]]
                break
        yield number, parts


def _text(path: str) -> str:
    with open(path, "rb") as file:
        data = file.read()
    # Spreadsheets begin UTF-8 with a mark, and call UTF-16 "Unicode text".
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SourceError(f"{path}: line {line} is not UTF-8 text ({error.reason}); save the file as UTF-8") from error


def _is_header(cells: Sequence[str], finder: _Finder) -> bool:
    """Column names: no cell is a file or looks like one."""
    return not any(finder.find(c) or os.path.splitext(c)[1].lower() in finder.endings for c in cells)


def _found(rows: Sequence[tuple[int, list[str]]], place: int, names: Sequence[str], finder: _Finder,
           problems: list[Skipped]) -> Iterator[_Row]:
    for line, cells in rows:
        name = cells[place] if place < len(cells) else ""
        file = finder.find(name)
        values = tuple(c for i, c in enumerate(cells) if i != place)
        if file is None:
            problems.append(Skipped(name, f"is named in line {line}, but not there; "
                                          f"{nearest(name, finder.near(name), 'files')}"))
        elif len(values) != len(names) or not all(values):
            what = next((n for n, v in zip(names, values) if not v), names[len(values)] if len(values) < len(names)
                        else None)
            problems.append(Skipped(file, f"line {line} has no {what!r}" if what else
                                    f"line {line} has {len(values)} values, expected {len(names)}"))
        else:
            yield _Row(line, file, values)


def _agreed(rows: Sequence[_Row], names: Sequence[str], problems: list[Skipped]) -> list[_Row]:
    """Rows of files that are named once, or again with the same values; the rest are problems."""
    by_file: dict[str, list[_Row]] = {}
    for row in rows:
        by_file.setdefault(row.file, []).append(row)
    good = []
    for file, same in by_file.items():
        lines = " and ".join(str(row.line) for row in same)
        unlike = [i for i in range(len(names)) if len({row.values[i] for row in same}) > 1]
        if unlike:
            told = " and ".join(repr(row.values[unlike[0]]) for row in same)
            problems.append(Skipped(file, f"has {names[unlike[0]]!r} {told} in lines {lines}"))
            continue
        if len(same) > 1:
            problems.append(Skipped(file, f"is named again, with the same values, in lines {lines}"))
        good.append(same[0])
    return good


def typed(values: Sequence[str]) -> np.ndarray:
    """Whole numbers as int64, other numbers as float64, everything else as text.

    Numbers whose spelling says more than their value, such as 007, are text.
    """
    try:
        numbers = [int(v) for v in values]
        if all(str(n) == v.removeprefix("+") for n, v in zip(numbers, values)):
            return np.array(numbers, np.int64)
        if any(v.lstrip("+-").startswith("0") and v.lstrip("+-") != "0" for v in values):
            return np.array(values, object)
    except (ValueError, OverflowError):
        pass
    try:
        if all(set(v) <= set("+-.0123456789eE") for v in values):
            return np.array([float(v) for v in values])
    except ValueError:
        pass
    return np.array(values, object)


class _Finder:
    """Files of a folder by the names that people give them: path within it, bare name, name without ending."""

    def __init__(self, folder: str, files: Sequence[str]) -> None:
        self._paths = {os.path.relpath(f, folder): f for f in files}
        self.endings = {os.path.splitext(f)[1].lower() for f in files} | {".jpg", ".jpeg", ".png"}
        self._folder = os.path.basename(os.path.abspath(folder))
        self._short: dict[str, str | None] = {}
        for path, file in self._paths.items():
            base = os.path.basename(path)
            for short in {base, os.path.splitext(base)[0], os.path.splitext(path)[0]}:
                self._short[short] = None if short in self._short else file  # None: means several files

    def find(self, name: str) -> str | None:
        path = os.path.normpath(name) if name else ""
        return (self._paths.get(path) or self._paths.get(path.removeprefix(f"{self._folder}/"))
                or self._short.get(path))

    def near(self, name: str) -> list[str]:
        # The nearest spelling is sought among a few: comparing with a million names takes minutes.
        return list(self._paths)[:5000]


def columns_of(matched: Matched, roles: Mapping[str, Any], path: str) -> dict[str, tuple[str, np.ndarray]]:
    """Field name -> (role, values): the columns that roles name, and all others as labels if labels name none.

    Raises
    ------
    SourceError
    """
    out: dict[str, tuple[str, np.ndarray]] = {}
    for role, names in roles.items():
        for name in [names] if isinstance(names, str) else names or ():
            if name not in matched.columns:
                raise SourceError(f"{path}: no column {name!r}; {nearest(name, matched.columns, 'columns')}")
            out[name] = role, matched.columns[name]
    if roles.get("labels") is None:
        out |= {name: ("labels", values) for name, values in matched.columns.items() if name not in out}
    return out
