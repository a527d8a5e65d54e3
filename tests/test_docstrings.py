"""Docstrings cannot rot: their examples run, and what they say of parameters is so."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import h5store
from h5store.explore.stats import FieldStats, Stats
from h5store.fieldview import FieldView
from h5store.loader import Loader
from h5store.verify import Report

PACKAGE = Path(__file__).resolve().parent.parent / "h5store"
WITH_EXAMPLES = sorted(
    ".".join(["h5store", *file.relative_to(PACKAGE).with_suffix("").parts])
    for file in PACKAGE.rglob("*.py") if ">>> " in file.read_text("utf-8")
)
NEEDS = {"h5store.sources.tables": "pyarrow"}
# numpydoc's names for: no docstring; a parameter that is not there; parameters in another order.
FAULTS = {"GL08", "PR02", "PR03"}


def doors() -> list[str]:
    """Dotted names of all that users call: the package's names, and the public members of its classes."""
    found = []
    for thing in [*(getattr(h5store, name) for name in h5store.__all__), Loader, FieldView, Report, Stats, FieldStats]:
        if inspect.isfunction(thing) or inspect.isclass(thing):
            name = f"{thing.__module__}.{thing.__qualname__}"
            found.append(name)
            # A reader is made of several rooms; each method is known by the one that it stands in.
            found += [
                f"{owner.__module__}.{owner.__qualname__}.{member}" for owner in getattr(thing, "__mro__", ())
                if owner.__module__.startswith("h5store") for member, value in vars(owner).items()
                if not member.startswith("_")
                and (inspect.isroutine(value) or isinstance(value, (property, classmethod, staticmethod)))
            ]
    return found


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_a_module_hold(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(NEEDS.get(name, "h5store"))
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


def test_every_door_is_described_and_only_with_parameters_that_it_has() -> None:
    numpydoc = pytest.importorskip("numpydoc.validate")
    complaints = [
        f"{name}: {text}"
        for name in doors() for code, text in numpydoc.validate(name)["errors"] if code in FAULTS
    ]
    assert not complaints, "\n".join(complaints)
