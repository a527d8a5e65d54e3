"""Splits by the reader: views, and parts that are saved in the store."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h5store
from h5store.errors import OptionError, SplitError, StaleStoreError
from h5store.storage import notes


Open = Callable[..., h5store.Reader]


@pytest.fixture
def opened() -> Iterator[Open]:
    """`h5store.Reader`, closed when the test ends."""
    made: list[h5store.Reader] = []

    def open_(*args: Any, **options: Any) -> h5store.Reader:
        made.append(h5store.Reader(*args, **options))
        return made[-1]

    yield open_
    for reader in made:
        reader.close()


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "x.h5")
    h5store.pack(path, features={"x": np.arange(300.0)}, labels={"y": np.repeat(["a", "b", "c"], 100)},
                 meta={"who": np.arange(300) // 10}, progress=False)
    return path


def test_a_saved_split_is_the_same_in_another_process(store: str, run_python: Callable[..., str], opened: Open) -> None:
    parts = opened(store).split({"train": 0.7, "val": 0.2, "test": 0.1}, by="y", seed=3, save=True)
    for name, part in parts.items():
        code = f"import h5store; print(h5store.Reader('x.h5').split({name!r})['x'][:].astype(int).tolist())"
        assert run_python(code).strip() == str(part["x"][:].astype(int).tolist())
    assert sorted(np.concatenate([p.ids for p in parts.values()])) == list(range(300))


def test_a_split_that_is_not_saved_leaves_the_file_alone(store: str, opened: Open) -> None:
    before = Path(store).read_bytes()
    opened(store).split({"train": 0.7, "val": 0.3})
    assert Path(store).read_bytes() == before


def test_readers_and_parts_go_on_after_saving(store: str, opened: Open) -> None:
    reader = opened(store, cache=0)
    early = reader.select([5, 6])
    parts = reader.split({"train": 0.5, "val": 0.5}, save=True)
    for r in (early, parts["val"], reader):
        again = pickle.loads(pickle.dumps(r))  # as a worker process gets it
        assert np.array_equal(again["x"][:], r["x"][:])
        again.close()
    reader.close()


def test_a_part_of_a_view_is_what_both_have(store: str, opened: Open) -> None:
    reader = opened(store)
    train = reader.split({"train": 0.5, "val": 0.5}, save=True)["train"]
    view = reader.select(np.arange(299, -1, -3))
    assert view.split("train").ids.tolist() == [i for i in view.ids.tolist() if i in set(train.ids.tolist())]


def test_splitting_a_view_saves_positions_in_the_file(store: str, opened: Open) -> None:
    reader = opened(store)
    parts = reader.select(np.arange(100, 200)).split({"train": 0.5, "val": 0.5}, save=True)
    assert opened(store).split("val").ids.tolist() == parts["val"].ids.tolist()
    assert parts["val"].ids.min() >= 100


def test_groups_stay_together(store: str, opened: Open) -> None:
    parts = opened(store).split({"train": 0.8, "val": 0.2}, groups="who", save=True)
    assert not set(parts["train"]["who"][:]) & set(parts["val"]["who"][:])


def test_saving_again_replaces_and_other_names_live_beside(store: str, opened: Open) -> None:
    reader = opened(store)
    reader.split({"train": 0.8, "val": 0.2}, seed=1, save=True)
    second = reader.split({"train": 0.8, "val": 0.2}, seed=2, save=True)
    reader.split({"left": 150, "right": 150}, save=True)
    assert reader.split("train").ids.tolist() == second["train"].ids.tolist()
    assert len(reader.split("left")) == 150
    swapped = reader.split({"val": 0.2, "train": 0.8}, seed=5, save=True)
    assert reader.split("train").ids.tolist() == swapped["train"].ids.tolist()
    assert len(notes.keys(store)) == 2


def test_a_name_of_another_split_is_refused(store: str, opened: Open) -> None:
    reader = opened(store)
    reader.split({"train": 0.8, "val": 0.2}, save=True)
    with pytest.raises(SplitError, match="'train' is saved already.*'val'"):
        reader.split({"train": 0.5, "test": 0.5}, save=True)


def test_an_unknown_part_is_told_with_the_nearest(store: str, opened: Open) -> None:
    reader = opened(store)
    with pytest.raises(SplitError, match="there are no saved parts"):
        reader.split("train")
    reader.split({"train": 0.8, "val": 0.2}, save=True)
    with pytest.raises(SplitError, match="'trian'; saved parts: 'train'"):
        reader.split("trian")


def test_more_parts_than_a_byte_numbers(store: str, opened: Open) -> None:
    reader = opened(store)
    parts = reader.split({f"p{i}": 1 for i in range(299)}, save=True)
    assert reader.split("p298").ids.tolist() == parts["p298"].ids.tolist()


def test_saving_about_another_store_is_refused(store: str, opened: Open) -> None:
    reader = opened(store)
    h5store.pack(store, features={"x": np.zeros(300)}, overwrite=True, progress=False)
    with pytest.raises(StaleStoreError):
        reader.split({"train": 0.5, "val": 0.5}, save=True)
    reader.close()


def test_a_file_of_others_has_no_room_for_notes(tmp_path: Path) -> None:
    import h5py

    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["x"] = np.arange(10.0)
    reader = h5store.Reader.from_hdf5(tmp_path / "f.h5", features="x")
    with pytest.raises(OptionError, match="pack it first"):
        reader.split({"a": 0.5, "b": 0.5}, save=True)
    reader.close()


@pytest.mark.parametrize("ask, told", [
    (lambda r: r.split({"a": 0.9, "b": 0.3}), "split: the fractions add up to 1.2"),
    (lambda r: r.kfold(1), "kfold: cannot make k=1 folds"),
    (lambda r: r.loader(batch_size=8, odds=[1.0, 2.0]), "odds: weights have shape"),
    (lambda r: r.loader(batch_size=8, balance="y", odds={"no such class": 1}), "odds: they are not of the classes"),
])
def test_errors_name_the_file(store: str, opened: Open, ask: Callable[[h5store.Reader], Any], told: str) -> None:
    with pytest.raises((SplitError, OptionError), match=re.escape(f"{opened(store).path}: {told}")):
        ask(opened(store))


def test_folds_hold_each_sample_once(store: str, opened: Open) -> None:
    folds = opened(store).select(np.arange(50, 250)).kfold(4, by="y", seed=1)
    assert sorted(np.concatenate([val.ids for _, val in folds])) == list(range(50, 250))
    for train, val in folds:
        assert sorted(np.concatenate([train.ids, val.ids])) == list(range(50, 250))


def test_a_class_with_one_sample_is_named(tmp_path: Path, opened: Open) -> None:
    h5store.pack(tmp_path / "y.h5", features=np.arange(5.0), labels={"y": ["a", "a", "a", "a", "rare"]},
                 progress=False)
    with pytest.raises(SplitError, match="rare"):
        opened(tmp_path / "y.h5").split({"train": 0.5, "val": 0.5}, by="y")
    with pytest.raises(SplitError, match="'val' would be empty"):
        opened(tmp_path / "y.h5").split({"train": 0.99, "val": 0.01})
