"""Orders beside the plan's own: drawn by class or weight, gathered by length."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from h5store.errors import OptionError
from h5store.sampling.drawing import Balanced, Bucketed, Weighted
from h5store.sampling.plan import EpochPlan

N = 1000


def plan(**options: Any) -> EpochPlan:
    return EpochPlan(**{"n": N, "batch_size": 64, "shuffle": False, "seed": 3, "block": 10, "window": 20, **options})


def drawn(choice: Any, made: EpochPlan, epoch: int = 0) -> np.ndarray:
    return np.concatenate([choice.ids(made, epoch, step) for step in range(len(made))])


def test_classes_come_equally_often_and_samples_in_turn() -> None:
    labels = np.repeat(["common", "rare"], [950, 50])
    ids = drawn(Balanced(labels), plan())
    counts = np.bincount(ids, minlength=N)
    assert len(ids) == N and 430 < counts[950:].sum() < 570
    assert np.ptp(counts[950:]) <= 1 and counts[:950].max() == 1


def test_odds_of_classes() -> None:
    labels = np.repeat([0, 1], [500, 500])
    ids = drawn(Balanced(labels, {0: 3.0, 1: 1.0}), plan())
    assert 700 < (ids < 500).sum() < 800
    assert set(drawn(Balanced(labels, {0: 1.0, 1: 0.0}), plan())) <= set(range(500))


def test_weights_of_samples() -> None:
    weights = np.zeros(N)
    weights[[3, 5]] = 1, 3
    ids = drawn(Weighted(weights, N), plan())
    assert set(ids) == {3, 5} and 650 < (ids == 5).sum() < 850


@pytest.mark.parametrize("bad, told", [(np.nan, "sample 7 has nan"), (-1, "sample 7 has -1"),
                                       (np.inf, "sample 7 has inf")])
def test_weights_that_are_none(bad: float, told: str) -> None:
    weights = np.ones(N)
    weights[7] = bad
    with pytest.raises(OptionError, match=told):
        Weighted(weights, N)
    with pytest.raises(OptionError, match="all are 0"):
        Weighted(np.zeros(N), N)
    with pytest.raises(OptionError, match="one a sample"):
        Weighted(np.ones(3), N)


@pytest.mark.parametrize("shuffle", [True, "full"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_buckets_hold_each_sample_once_and_like_lengths(shuffle: Any, world_size: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 500, N)
    choice, seen = Bucketed(lengths), []
    for rank in range(world_size):
        made = plan(shuffle=shuffle, rank=rank, world_size=world_size)
        for step in range(len(made)):
            ids = choice.ids(made, 2, step)
            assert np.ptp(lengths[ids]) < 250
            seen += ids.tolist()
    assert sorted(seen) == list(range(N))


@pytest.mark.parametrize("choice", [Balanced(np.arange(N) % 3), Weighted(np.arange(N), N), Bucketed(np.arange(N) % 40)],
                         ids=lambda choice: type(choice).__name__)
def test_a_function_of_seed_and_epoch(choice: Any) -> None:
    made = plan(shuffle=isinstance(choice, Bucketed))
    again = pickle.loads(pickle.dumps(choice))
    assert again.mark == choice.mark
    assert np.array_equal(drawn(choice, made, 4), drawn(again, made, 4))
    assert not np.array_equal(drawn(choice, made, 4), drawn(choice, made, 5))
    other = plan(shuffle=isinstance(choice, Bucketed), seed=4)
    assert not np.array_equal(drawn(choice, made, 4), drawn(choice, other, 4))
