"""The metadata say what is true of the package."""

from __future__ import annotations

import configparser
import importlib.metadata
import os
import re
from pathlib import Path

import pytest

import h5store
from h5store.storage import native

ROOT = Path(__file__).resolve().parent.parent


def read_setup() -> configparser.ConfigParser:
    """setup.cfg of the checkout."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    return setup


def test_the_installed_version_is_the_package_version() -> None:
    assert importlib.metadata.version("h5store") == h5store.__version__


def test_the_changelog_knows_the_version() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)
    assert h5store.__version__ in headings


def test_pyproject_holds_the_build_system_only() -> None:
    tables = re.findall(r"^\[(.+)\]$", (ROOT / "pyproject.toml").read_text("utf-8"), flags=re.MULTILINE)
    assert tables == ["build-system"]


@pytest.mark.skipif(not os.environ.get("CI") or os.environ.get("CC") == "false", reason="built by hand, or without cc")
def test_the_kernel_was_compiled() -> None:
    """It is optional, so that a compiler that fails would go unseen."""
    assert native.present()


def test_every_requirement_has_a_lower_bound_and_no_upper_one() -> None:
    lines = read_setup()["options"]["install_requires"].split("\n")
    requirements = [line for line in lines if line and not line.startswith("#")]
    assert requirements
    assert [line for line in requirements if not re.fullmatch(r"[\w-]+>=[\d.]+", line)] == []


def test_every_public_name_is_there() -> None:
    assert [name for name in h5store.__all__ if not hasattr(h5store, name)] == []
