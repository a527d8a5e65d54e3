"""Balanced draws and class weights."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h5store.errors import OptionError
from h5store.sampling.balance import balanced_order

RARE = np.repeat(["common", "rare", "single"], [900, 99, 1])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=200), st.integers(0, 500), st.integers(0, 9))
def test_no_sample_comes_again_before_all_of_its_class(labels, size, epoch):
    labels = np.array(labels)
    ids = balanced_order(labels, seed=1, epoch=epoch, size=size)
    assert ids.shape == (size,) and ids.dtype == np.int64
    for value in np.unique(labels):
        mine, members = ids[labels[ids] == value], np.flatnonzero(labels == value)
        for start in range(0, len(mine), len(members)):
            one = mine[start:start + len(members)]
            assert len(np.unique(one)) == len(one)


def test_classes_come_equally_often():
    ids = balanced_order(RARE, seed=0, epoch=0, size=30_000)
    counts = np.unique(RARE[ids], return_counts=True)[1]
    np.testing.assert_allclose(counts, 10_000, atol=5 * np.sqrt(30_000 * 2 / 9))
    mixed = [len(set(batch)) == 3 for batch in RARE[ids].reshape(-1, 30)]
    assert np.mean(mixed) > 0.99


@pytest.mark.parametrize("weights", [{"single": 0, "rare": 1, "common": 3}, [3, 1, 0],
                                     np.float32([0.75, 0.25, 0])])
def test_given_probabilities(weights):
    ids = balanced_order(RARE, seed=0, epoch=0, size=10_000, weights=weights)
    share = [(RARE[ids] == name).mean() for name in ("common", "rare", "single")]
    np.testing.assert_allclose(share, [0.75, 0.25, 0], atol=0.025)
    assert share[2] == 0


def test_passes_are_shuffled_anew():
    labels = np.zeros(50, int)
    passes = balanced_order(labels, seed=0, epoch=0, size=500).reshape(10, 50)
    assert len({tuple(one) for one in passes.tolist()}) == 10


def test_seed_and_epoch_decide():
    draws = [balanced_order(RARE, seed=s, epoch=e).tolist() for s in range(3) for e in range(3)]
    assert len({tuple(one) for one in draws}) == 9
    assert draws[4] == balanced_order(list(RARE), seed=1, epoch=1).tolist()
    assert len(draws[0]) == len(RARE)


def test_draws_stay_what_they_are():
    ids = balanced_order([0, 0, 0, 0, 1, 1, 2], seed=2024, epoch=3, size=10)
    assert ids.tolist() == [6, 6, 6, 6, 3, 0, 6, 1, 5, 6]


def test_nothing_of_nothing():
    assert balanced_order([], seed=0, epoch=0).shape == (0,)


@pytest.mark.parametrize("call, words", [
    (lambda: balanced_order(RARE, seed=-1, epoch=0), "seed=-1"),
    (lambda: balanced_order(RARE, seed=0, epoch=1.0), "epoch=1.0"),
    (lambda: balanced_order(RARE, seed=0, epoch=0, size=-5), "size=-5"),
    (lambda: balanced_order(np.eye(3), seed=0, epoch=0), r"shape \(3, 3\)"),
    (lambda: balanced_order([], seed=0, epoch=0, size=3), "n > 0"),
    (lambda: balanced_order(RARE, seed=0, epoch=0, weights=[1, 1]), "3 finite"),
    (lambda: balanced_order(RARE, seed=0, epoch=0, weights=[1, 1, -1]), ">= 0"),
    (lambda: balanced_order(RARE, seed=0, epoch=0, weights=[0, 0, 0]), "not all 0"),
    (lambda: balanced_order(RARE, seed=0, epoch=0, weights=[1, 1, np.nan]), "finite"),
    (lambda: balanced_order(RARE, seed=0, epoch=0, weights={"common": 1}), "'single'.* got .'common'"),
])
def test_what_cannot_be_drawn_is_refused(call, words):
    with pytest.raises(OptionError, match=words):
        call()
