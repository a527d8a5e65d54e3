"""How a user's transform is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from h5store.errors import OptionError


def caller(transform: Callable[..., Any] | None) -> Callable[[tuple[Any, ...]], Any]:
    """How a transform is applied: to the whole batch if it takes one argument, else to its members.

    Raises
    ------
    OptionError
    """
    if transform is None:
        return lambda batch: batch
    if not callable(transform):
        raise OptionError(f"transform={transform!r}, expected a function of a batch's members, or None")
    try:
        taken = [p for p in inspect.signature(transform).parameters.values()
                 if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
        whole = len(taken) == 1 and taken[0].kind is not inspect.Parameter.VAR_POSITIONAL
    except (TypeError, ValueError):  # a builtin without a signature
        whole = True
    return transform if whole else lambda batch: transform(*batch)
