"""What tests of the trainers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import h5store


@pytest.fixture
def open_reader() -> Iterator[Callable[..., h5store.Reader]]:
    """`h5store.Reader`, closed when the test ends."""
    made: list[h5store.Reader] = []

    def open_(*args: Any, **options: Any) -> h5store.Reader:
        made.append(h5store.Reader(*args, **options))
        return made[-1]

    yield open_
    for reader in made:
        reader.close()
