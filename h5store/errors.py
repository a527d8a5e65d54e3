"""Errors: one tree, each class also the builtin that people expect to catch. The lowest floor."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType

__all__ = [
    "H5StoreError", "SchemaError", "FieldNotFound", "SelectionError", "OptionError", "SplitError",
    "SourceError", "FormatError", "CorruptChunkError", "StaleStoreError", "StoreExistsError",
    "StoreLockedError", "JournalError", "MissingExtraError", "SlowPathWarning",
]


class H5StoreError(Exception):
    """Base of all errors that h5store raises on purpose."""


class SchemaError(H5StoreError, ValueError):
    """Data do not fit the fields of a store: name, shape, dtype or length."""


class FieldNotFound(H5StoreError, KeyError):
    """A field that the store does not have."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which escapes quotes and newlines of a sentence.
        return str(self.args[0]) if self.args else ""


class SelectionError(H5StoreError, IndexError):
    """Sample ids, masks or slices that do not select samples."""


class OptionError(H5StoreError, ValueError):
    """A setting that does not exist or is out of its range."""


class SplitError(H5StoreError, ValueError):
    """A split that cannot be made as asked."""


class SourceError(H5StoreError, ValueError):
    """Input data that cannot be packed as they are."""


class FormatError(H5StoreError, OSError):
    """A file that is not a whole store of a format that this version reads."""


class CorruptChunkError(H5StoreError, OSError):
    """Stored bytes that are not the bytes that were written."""


class StaleStoreError(H5StoreError, OSError):
    """The file at a path is no longer the one that was opened."""


class StoreExistsError(H5StoreError, FileExistsError):
    """A store, or the journal of one, is in the way."""


class StoreLockedError(H5StoreError, BlockingIOError):
    """Another writer holds the store."""


class JournalError(H5StoreError, OSError):
    """A journal that cannot be gone on from."""


class MissingExtraError(H5StoreError, ImportError):
    """An optional package is not installed."""


class SlowPathWarning(UserWarning):
    """Reading goes through libhdf5, one thread at a time."""


def nearest(name: object, known: Iterable[object], what: str = "fields") -> str:
    """List at most five of `known` for an error, the nearest spelling of `name` first."""
    names = [str(k) for k in known]
    if not names:
        return f"there are no {what}"
    close = difflib.get_close_matches(str(name), names, n=5, cutoff=0.4)
    shown = (close + [n for n in names if n not in close])[:5]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"{what}: {', '.join(repr(n) for n in shown)}{more}"


def require(module: str, extra: str, why: str) -> ModuleType:
    """Import an optional package, or say how to install it.

    Raises
    ------
    MissingExtraError
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{why} needs {module.partition('.')[0]!r}, which cannot be imported ({error}); "
            f"install it with: pip install 'h5store[{extra}]'"
        ) from error
