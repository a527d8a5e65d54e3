"""Sources: files of a folder, a glob or a list, in an order that is the same on every machine."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from h5store.errors import SourceError, nearest


def existing(path: Any, what: str = "file") -> str:
    """The path as text, if something is there.

    Raises
    ------
    FileNotFoundError
        With the nearest spelling beside it.
    """
    text = os.fspath(path)
    if not os.path.exists(text):
        folder, name = os.path.split(text.rstrip("/"))
        beside = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
        raise FileNotFoundError(f"{text}: no such {what}; "
                                f"{nearest(name, (n for n in beside if not n.startswith('.')), 'beside it')}")
    return text


def natural(path: str) -> list[tuple[str, list[Any]]]:
    """Sort key: numbers within names by their value, so that 2 comes before 10; the same on every machine."""
    return [(re.sub("[0-9]+", "0", part), [int(n) for n in re.findall("[0-9]+", part)] + [part])
            for part in path.split("/")]


def find(where: Any, endings: Sequence[str], what: str) -> list[str]:
    """Files of a folder and its subfolders, of a glob, or as listed; in natural order but for a list.

    Names that begin with a dot, and what lies in folders of such names, are no data.

    Raises
    ------
    FileNotFoundError
    SourceError
        Nothing found.
    """
    if not isinstance(where, (str, os.PathLike)):
        return [existing(w) for w in where]
    text = os.fspath(where)
    if os.path.isdir(text):
        found = [path for path in walk(text) if path.lower().endswith(tuple(endings))]
    elif glob.has_magic(text) and not os.path.exists(text):
        found = [path for path in glob.iglob(text, recursive=True)
                 if os.path.isfile(path) and not _hidden(os.path.relpath(path, _fixed(text)))]
        if not found and not os.path.isdir(_fixed(text)):
            existing(_fixed(text), "folder")
    else:
        found = [existing(text, "file, folder or glob")]
    if not found:
        raise SourceError(f"{text}: no samples: found no {what} there ({', '.join(endings)})")
    return sorted(found, key=natural)


def walk(folder: str) -> Iterator[str]:
    """All files below a folder that are not hidden."""
    for at, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        yield from (os.path.join(at, name) for name in names if not name.startswith("."))


def _fixed(pattern: str) -> str:
    """The folder of a glob up to its first wildcard."""
    parts = pattern.split("/")
    count = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return "/".join(parts[:count]) or ("/" if pattern.startswith("/") else ".")


def _hidden(path: str) -> bool:
    return any(part.startswith(".") and part != ".." for part in path.split("/"))
