"""How a user's transform is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def caller(transform: Callable[..., Any] | None) -> Callable[[tuple[Any, ...]], Any]:
    """How a transform is applied: to the whole batch if it takes one argument, else to its members."""
    if transform is None:
        return lambda batch: batch
    try:
        taken = [p for p in inspect.signature(transform).parameters.values()
                 if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
        whole = len(taken) == 1 and taken[0].kind is not inspect.Parameter.VAR_POSITIONAL
    except (TypeError, ValueError):  # a builtin without a signature
        whole = True
    return transform if whole else lambda batch: transform(*batch)
