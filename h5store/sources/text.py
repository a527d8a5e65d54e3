"""Sources: text as codes. Codes follow first appearance while writing; sealing puts the classes in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from h5store.errors import SchemaError
from h5store.schema import CODE_DTYPE

_STEP = 1 << 16


def _plain(texts: np.ndarray) -> np.ndarray:
    """As Python objects where numpy would drop values: its StringDType sorts missing ones away."""
    return texts.astype(object) if texts.dtype.kind == "T" else texts


class Vocabulary:
    """The distinct texts of one field, each with its code."""

    def __init__(self, name: str, classes: Sequence[str] = ()) -> None:
        self.name = name
        self._codes = {text: code for code, text in enumerate(classes)}
        #: Texts that no commit has written yet.
        self.new: list[str] = []

    def extend(self, texts: Iterable[str]) -> None:
        """Texts that a journal holds already, in the order of their codes."""
        for text in texts:
            self._codes.setdefault(text, len(self._codes))

    def check(self, values: Any, first: int) -> None:
        """Refuse what is not text, or text that would not come back the same.

        Raises
        ------
        SchemaError
            Names the first sample at fault, counted from `first`.
        """
        for start in range(0, len(values), _STEP):
            part = _plain(np.asarray(values[start:start + _STEP]))
            flat = part.reshape(-1)
            if part.dtype == object:
                for i, text in enumerate(flat):
                    if not isinstance(text, str):
                        per = max(1, flat.size // len(part))
                        raise SchemaError(f"append: {self.name!r} sample {first + start + i // per} is {text!r} "
                                          f"({type(text).__name__}), expected text; write str(...) or ''")
            for text in np.unique(flat):
                self._check_text(str(text))

    def _check_text(self, text: str) -> None:
        if "\0" in text:
            raise SchemaError(f"append: {self.name!r} holds {text!r}: text with a NUL does not survive numpy or HDF5; "
                              "remove it")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise SchemaError(f"append: {self.name!r} holds {text!r}, which is not valid Unicode ({error.reason}); "
                              "decode its bytes with the right encoding first") from error

    def codes(self, values: np.ndarray) -> np.ndarray:
        """int32 codes in the shape of `values`; texts not seen before get the next ones."""
        flat = _plain(values).reshape(-1)
        if not flat.size:
            return np.zeros(values.shape, CODE_DTYPE)
        texts, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
        mapping = np.empty(len(texts), CODE_DTYPE)
        for i in np.argsort(first, kind="stable"):
            text = str(texts[i])
            code = self._codes.get(text)
            if code is None:
                code = self._codes[text] = len(self._codes)
                self.new.append(text)
            mapping[i] = code
        return mapping[inverse.reshape(-1)].reshape(values.shape)  # type: ignore[no-any-return]

    def committed(self) -> None:
        self.new = []

    def sorted(self) -> tuple[tuple[str, ...], np.ndarray | None]:
        """(classes in order of code points, code -> place in them); None if the codes are in order already."""
        classes = tuple(sorted(self._codes))
        mapping = np.empty(len(classes), CODE_DTYPE)
        for place, text in enumerate(classes):
            mapping[self._codes[text]] = place
        return classes, None if (mapping == np.arange(len(classes))).all() else mapping
