"""Splits and folds: sizes, classes, groups, and what is refused."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h5store.errors import SplitError
from h5store.sampling.split import kfold, split_ids


def sizes(parts):
    return {name: len(ids) for name, ids in parts.items()}


def held(parts):
    return np.sort(np.concatenate(list(parts.values())))


fractions = st.lists(st.integers(1, 20), min_size=1, max_size=5).flatmap(
    lambda shares: st.integers(0, 20).map(lambda rest: [share / (sum(shares) + rest) for share in shares]))


@settings(deadline=None, max_examples=200)
@given(st.integers(100, 400), fractions, st.integers(0, 9))
def test_parts_are_disjoint_sorted_and_of_the_rounded_sizes(n, shares, seed):
    shares = {f"part{i}": share for i, share in enumerate(shares)}
    parts = split_ids(n, shares, seed=seed)
    assert list(parts) == list(shares)
    for name, ids in parts.items():
        assert ids.dtype == np.int64 and (np.diff(ids) > 0).all()
        assert abs(len(ids) - n * shares[name]) < 1
    together = held(parts)
    assert len(np.unique(together)) == len(together)
    assert abs(len(together) - n * sum(shares.values())) < 1 + 1e-6
    assert together[0] >= 0 and together[-1] < n


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(5, 40), min_size=1, max_size=30), fractions, st.integers(0, 9))
def test_every_class_is_divided_as_the_whole_is(counts, shares, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    n = len(labels)
    if n * min(shares) < 1:
        shares = [1.0]
    shares = {f"part{i}": share for i, share in enumerate(shares)}
    parts = split_ids(n, shares, by=labels, seed=seed)
    assert sizes(parts) == sizes(split_ids(n, shares, seed=seed))
    for ids in parts.values():
        got = np.bincount(labels[ids], minlength=len(counts))
        assert (np.abs(got - np.array(counts) * len(ids) / n) < 1).all()
    assert len(np.unique(held(parts))) == sum(map(len, parts.values()))


def test_a_class_too_small_for_its_share_does_not_unbalance_the_parts():
    # Each class rounds up to the same part if it is rounded alone: 5 / 2 -> 3 and 2.
    parts = split_ids(500, {"a": 0.5, "b": 0.5}, by=np.repeat(np.arange(100), 5))
    assert sizes(parts) == {"a": 250, "b": 250}


@pytest.mark.parametrize("shares", [None, [0.5, 0.25, 0.125], [0.5, 0.25, 0.25]])
def test_sizes_settle_though_some_quotas_are_whole(shares):
    rng = np.random.default_rng(1)
    for _ in range(50):
        counts = 4 + rng.permutation(np.arange(64) % 8)
        labels = np.repeat(np.arange(64), counts)
        some = shares or (rng.dirichlet(np.ones(4)) * 0.9 + 0.02).tolist()
        parts = split_ids(len(labels), dict(zip("abcd", some)), by=labels)
        assert sizes(parts) == sizes(split_ids(len(labels), dict(zip("abcd", some))))
        for ids in parts.values():
            wanted = counts * len(ids) / len(labels)
            assert (np.abs(np.bincount(labels[ids], minlength=64) - wanted) < 1).all()


def test_the_most_frequent_decimal_fractions_leave_nobody_out():
    single = list(np.float32([0.8, 0.2]))
    for shares in ([0.7, 0.2, 0.1], [0.8, 0.1, 0.1], [1 / 3] * 3, single, [0.1] * 10, [1.0]):
        parts = split_ids(1000, {str(i): share for i, share in enumerate(shares)})
        np.testing.assert_array_equal(held(parts), np.arange(1000))


def test_counts_are_exact_and_the_rest_is_unused():
    parts = split_ids(100, {"train": 50, "val": np.int64(13)}, by=np.arange(100) % 3)
    assert sizes(parts) == {"train": 50, "val": 13}
    assert sizes(split_ids(10, {"all": 10})) == {"all": 10}


@pytest.mark.parametrize("values", [
    np.array(["star", "galaxy"])[np.arange(100) % 2],
    np.array(["star", "galaxy"], object)[np.arange(100) % 2],
    (np.arange(100) % 2).astype(bool),
    np.float32([0.5, -1])[np.arange(100) % 2],
    (np.arange(100) % 2).tolist(),
])
def test_classes_may_be_of_any_kind(values):
    parts = split_ids(100, {"train": 0.8, "val": 0.2}, by=values)
    first = np.asarray(values)[0]
    assert [int((np.asarray(values)[ids] == first).sum()) for ids in parts.values()] == [40, 10]


def test_seeds_decide_and_nothing_else_does():
    by, groups = np.arange(200) % 4, np.arange(200) // 3
    for options in ({}, {"by": by}, {"groups": groups}, {"by": by, "groups": groups}):
        one, same, other = (split_ids(200, {"a": 0.5, "b": 0.5}, seed=seed, **options) for seed in (1, 1, 2))
        np.testing.assert_array_equal(one["a"], same["a"])
        assert not np.array_equal(one["a"], other["a"])


def test_a_split_is_random_over_the_file():
    parts = [split_ids(1000, {"val": 0.1}, by=np.arange(1000) // 500, seed=s)["val"] for s in range(50)]
    assert abs(np.mean(parts) - 499.5) < 12  # 6 sigma: half a class is 144 wide, over 5000 samples
    assert len(np.unique(parts)) > 980  # of 1000, each with a chance of 1 in 200 to be left out


# Groups


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(1, 12), min_size=5, max_size=60), fractions, st.booleans(), st.integers(0, 9))
def test_groups_stay_together(lengths, shares, stratified, seed):
    groups = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(lengths)), lengths))
    n = len(groups)
    if n * min(shares) < 1:
        shares = [1.0]
    parts = split_ids(n, {f"part{i}": share for i, share in enumerate(shares)}, groups=groups, seed=seed,
                      by=np.zeros(n) if stratified else None)
    found = [set(groups[ids].tolist()) for ids in parts.values()]
    assert sum(map(len, found)) == len(set.union(*found))
    assert all(len(ids) for ids in parts.values())
    assert all(np.isin(groups, list(g)).sum() == len(ids) for g, ids in zip(found, parts.values()))
    if sum(shares) > 1 - 1e-6:
        np.testing.assert_array_equal(held(parts), np.arange(n))


def test_many_groups_give_the_sizes_asked_for():
    groups = np.repeat(np.arange(500), 1 + np.arange(500) % 7)
    n = len(groups)
    parts = split_ids(n, {"train": 0.7, "val": 0.2, "test": 0.1}, groups=groups)
    assert np.allclose([len(ids) / n for ids in parts.values()], [0.7, 0.2, 0.1], atol=0.005)
    # Large groups are not all in the largest part.
    lengths = np.bincount(groups)
    assert np.allclose([lengths[np.unique(groups[ids])].mean() for ids in parts.values()], 4, atol=0.5)


def test_groups_of_one_sample_are_divided_exactly():
    parts = split_ids(103, {"a": 0.5, "b": 0.25, "c": 0.1}, groups=np.arange(103))
    assert sizes(parts) == sizes(split_ids(103, {"a": 0.5, "b": 0.25, "c": 0.1}))


def test_classes_and_groups_together():
    groups = np.repeat(np.arange(600), 5)
    label = np.where(np.arange(600) % 10 == 0, 1, 0)[groups]  # one group in ten is of the rare class
    parts = split_ids(3000, {"train": 0.8, "val": 0.2}, by=label, groups=groups)
    for name, share in (("train", 0.8), ("val", 0.2)):
        np.testing.assert_allclose(np.bincount(label[parts[name]]), [2700 * share, 300 * share], atol=5)
    assert not set(groups[parts["train"]]) & set(groups[parts["val"]])


def test_no_part_stays_empty_while_there_are_groups():
    assert sizes(split_ids(100, {"a": 0.9, "b": 0.1}, groups=np.repeat([0, 1], 50))) == {"a": 50, "b": 50}


# Folds


@settings(deadline=None, max_examples=100)
@given(st.integers(2, 9), st.integers(0, 60), st.sampled_from(["", "by", "groups"]), st.integers(0, 5))
def test_folds_hold_each_sample_once(k, more, option, seed):
    n = 3 * k + more
    options = {"by": {"by": np.arange(n) % 3}, "groups": {"groups": np.arange(n) // 3}, "": {}}[option]
    folds = kfold(n, k, seed=seed, **options)
    assert len(folds) == k
    np.testing.assert_array_equal(np.sort(np.concatenate([val for _, val in folds])), np.arange(n))
    for train, val in folds:
        np.testing.assert_array_equal(np.sort(np.concatenate([train, val])), np.arange(n))
        assert (np.diff(train) > 0).all() and (np.diff(val) > 0).all() and len(val)
        if option == "groups":
            assert not set(train // 3) & set(val // 3)
        else:
            assert abs(len(val) - n / k) < 1
        if option == "by":
            wanted = np.bincount(np.arange(n) % 3) * len(val) / n
            assert (np.abs(np.bincount(val % 3, minlength=3) - wanted) < 1).all()


# Refusals


@pytest.mark.parametrize("parts, options, words", [
    ({}, {}, "no parts"),
    ([0.5, 0.5], {}, "expected a dict"),
    ({"a": 0.5, "b": 10}, {}, "mixed"),
    ({"a": 0.9, "b": 0.2}, {}, "add up to 1.1"),
    ({"a": 1.5}, {}, "'a' has no valid share.* got 1.5"),
    ({"a": -0.1}, {}, "'a' has no valid share"),
    ({"a": -3}, {}, "'a' has no valid share"),
    ({"a": float("nan")}, {}, "'a' .*got nan"),
    ({"a": "80%"}, {}, "'a' .*got '80%'"),
    ({"a": True}, {}, "'a' .*got True"),
    ({"a": 0.99, "b": 0.001}, {}, "'b' would be empty: 0.001 of 100 samples"),
    ({"a": 0, "b": 5}, {}, "'a' would be empty"),
    ({"a": 60, "b": 50}, {}, "ask for 110 samples, there are 100"),
    ({"a": 0.5}, {"by": [1, 2]}, r"'by' has shape \(2,\), expected \(100,\)"),
    ({"a": 0.5}, {"by": np.eye(100)}, r"'by' has shape \(100, 100\)"),
    ({"a": 0.5}, {"groups": []}, r"'groups' has shape \(0,\)"),
    ({"a": 0.5}, {"by": np.array([1, "a"] * 50, object)}, "'by' cannot be compared"),
    ({"a": 0.5, "b": 0.5}, {"by": ["x"] * 99 + ["rare"]}, r"fewer .* the 2 parts: 'rare' \(1\); merge"),
    ({"a": 0.5, "b": 0.5}, {"by": np.arange(100)}, r"0 \(1\), .*4 \(1\) and 95 more"),
    ({"a": 0.5, "b": 0.5}, {"groups": [7] * 100}, "too few groups.* 2 parts, got 1"),
    ({"a": 0.5}, {"seed": -1}, "'seed'"),
    ({"a": 0.5}, {"seed": None}, "'seed'"),
])
def test_what_cannot_be_split_is_refused(parts, options, words):
    with pytest.raises(SplitError, match=words):
        split_ids(100, parts, **options)


@pytest.mark.parametrize("n, k, options, words", [
    (10, 1, {}, "k=1"),
    (3, 4, {}, "k=4 folds of n=3"),
    (10, 2.0, {}, "'k'"),
    (-1, 2, {}, "'n'"),
    (10, 3, {"by": [0] * 8 + [1] * 2}, re.escape("1 (2)")),
    (10, 3, {"groups": [0] * 5 + [1] * 5}, "too few groups"),
])
def test_what_cannot_be_folded_is_refused(n, k, options, words):
    with pytest.raises(SplitError, match=words):
        kfold(n, k, **options)


def test_a_split_of_nothing_is_refused():
    with pytest.raises(SplitError, match="empty"):
        split_ids(0, {"a": 1.0})
