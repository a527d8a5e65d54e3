"""EpochPlan: which ids each rank serves in which step, and what it reads for them."""

import dataclasses
import itertools
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from h5store.errors import OptionError
from h5store.sampling import order as order_module
from h5store.sampling.order import FULL, KeyedPermutation, draw, full_permutation
from h5store.sampling.plan import EpochPlan


def make(n=1000, **options):
    usual = {"batch_size": 32, "shuffle": True, "seed": 0, "block": 10, "window": 4}
    return EpochPlan(n=n, **{**usual, **options})


def ranks(plan):
    return [dataclasses.replace(plan, rank=r) for r in range(plan.world_size)]


def served(plan, epoch=0, steps=None):
    """Batches of all ranks."""
    return [p.batch(epoch, step) for p in ranks(plan) for step in range(len(p) if steps is None else steps)]


def joined(parts):
    return np.concatenate([np.empty(0, np.int64), *parts])


@st.composite
def plans(draw_value, **fixed):
    n = draw_value(st.integers(0, 300))
    options = {
        "n": n,
        "batch_size": draw_value(st.integers(1, 40)),
        "shuffle": draw_value(st.sampled_from([True, "full", False])),
        "seed": draw_value(st.integers(0, 2**40)),
        "block": draw_value(st.integers(1, 40)),
        "window": draw_value(st.integers(1, 12)),
        "drop_last": draw_value(st.booleans()),
        "world_size": draw_value(st.integers(1, max(1, min(n, 7)))),
    }
    if n and draw_value(st.booleans()):
        cuts = draw_value(st.sets(st.integers(1, n), max_size=30))
        options["starts"] = [0, *sorted(cuts - {n})]
    options.update(fixed)
    return EpochPlan(**options)


# Every sample, once, in as many steps on every rank


@settings(deadline=None, max_examples=200)
@given(plans(), st.integers(0, 5))
def test_an_epoch_serves_each_sample_once_in_equal_steps(plan, epoch):
    sequences = [[p.batch(epoch, s) for s in range(len(p))] for p in ranks(plan)]
    assert {len(batches) for batches in sequences} == {len(plan)}
    batches = list(itertools.chain(*sequences))
    assert all(b.dtype == np.int64 and 1 <= len(b) <= plan.batch_size for b in batches)
    ids = joined(batches)
    if plan.drop_last:
        assert len(plan) == plan.n // plan.world_size // plan.batch_size
        assert all(len(b) == plan.batch_size for b in batches)
        assert len(np.unique(ids)) == len(ids) and np.isin(ids, np.arange(plan.n)).all()
        return
    assert len(plan) == -(-(-(-plan.n // plan.world_size)) // plan.batch_size)
    repeats = 0
    if plan.batch_size == 1:
        repeats = -plan.n % plan.world_size  # ranks with one sample less than there are steps
    assert len(ids) == plan.n + repeats
    np.testing.assert_array_equal(np.unique(ids), np.arange(plan.n))


@pytest.mark.parametrize("n, world_size, batch_size, sizes", [
    (9, 2, 4, [[3, 1], [4, 1]]),       # the first rank has one full batch too few for two steps
    (10, 3, 2, [[2, 1], [2, 1], [2, 2]]),
    (20, 2, 4, [[4, 4, 2], [4, 4, 2]]),
    (5, 2, 1, [[1, 1, 1], [1, 1, 1]]),  # the first rank repeats its second sample
    (0, 4, 3, [[], [], [], []]),
])
def test_sizes_of_batches(n, world_size, batch_size, sizes):
    plan = make(n, world_size=world_size, batch_size=batch_size)
    assert [[len(p.batch(0, s)) for s in range(len(p))] for p in ranks(plan)] == sizes


def test_a_rank_with_too_few_samples_repeats_its_last():
    plan = make(5, batch_size=1, world_size=2, shuffle=False)
    assert [p.batch(0, s)[0] for p in ranks(plan) for s in range(3)] == [0, 1, 1, 2, 3, 4]


def test_file_order_is_the_order_of_the_file():
    np.testing.assert_array_equal(joined(served(make(100, shuffle=False, world_size=3))), np.arange(100))


# Windows


@settings(deadline=None, max_examples=200)
@given(plans(), st.integers(0, 5), st.data())
def test_windows_hold_the_batches_from_any_step_on(plan, epoch, data):
    for p in ranks(plan):
        first = data.draw(st.integers(0, len(p)))
        windows = list(p.windows(epoch, first))
        ids = joined([w.ids for w in windows])
        at = p.bounds(first)[0] if first < len(p) else 0
        for step in range(first, len(p)):
            a, b = p.bounds(step)
            np.testing.assert_array_equal(ids[a - at:b - at], p.batch(epoch, step))
        assert len(ids) == (p.bounds(len(p) - 1)[1] - at if first < len(p) else 0)
        for window in windows:
            assert (window.start, window.size) == (at, len(window.ids))
            at += window.size


def block_starts(plan):
    return np.arange(0, plan.n, plan.block) if plan.starts is None else plan.starts


@settings(deadline=None, max_examples=200)
@given(plans(shuffle=True), st.integers(0, 5))
def test_a_shuffled_window_reads_whole_needed_blocks_once(plan, epoch):
    starts = block_starts(plan)
    edges = np.append(starts, plan.n)
    for p in ranks(plan):
        for window in p.windows(epoch):
            pool = joined([np.arange(lo, hi) for lo, hi in window.ranges])
            np.testing.assert_array_equal(window.ids, pool[window.order])
            assert np.isin(window.ranges, edges).all()
            assert (window.ranges[1:, 0] > window.ranges[:-1, 1]).all()  # ascending, neighbours merged
            blocks = np.searchsorted(starts, pool, side="right")
            assert len(np.unique(blocks)) <= plan.window
            assert len(np.unique(window.order)) == window.size  # each row is written to, and once
            assert set(blocks) == set(np.searchsorted(starts, window.ids, side="right"))


@settings(deadline=None, max_examples=100)
@given(plans(shuffle=True, world_size=1, drop_last=False), st.integers(0, 5))
def test_windows_after_the_first_differ_by_one_block_at_most_and_none_is_read_twice(plan, epoch):
    starts = block_starts(plan)
    read = [np.unique(np.searchsorted(starts, w.ids, side="right")) for w in plan.windows(epoch)]
    assert len(np.unique(joined(read))) == len(joined(read)) == len(starts)
    sizes = [len(blocks) for blocks in read]
    if len(starts) <= plan.window:
        assert sizes == [len(starts)][:len(starts)]
        return
    assert sizes[0] == max(1, plan.window // 8)
    assert max(sizes) <= plan.window and max(sizes[1:]) - min(sizes[1:]) <= 1


def test_file_order_windows_end_where_blocks_end():
    plan = make(100, shuffle=False, block=10, window=3, world_size=2, batch_size=7)
    first, second = ([(w.start, w.ranges.tolist(), w.order) for w in p.windows(0)] for p in ranks(plan))
    assert first == [(0, [[0, 30]], None), (30, [[30, 50]], None)]
    assert second == [(0, [[50, 60]], None), (10, [[60, 90]], None), (40, [[90, 100]], None)]
    uneven = make(100, shuffle=False, starts=[0, 5, 50, 55, 90], window=2)
    assert [w.ranges.tolist() for w in uneven.windows(0)] == [[[0, 50]], [[50, 90]], [[90, 100]]]


def test_full_shuffle_windows_give_scattered_ids():
    windows = list(make(95, shuffle="full").windows(2))
    assert [w.size for w in windows] == [40, 40, 15]
    assert all(w.ranges is None and w.order is None for w in windows)
    np.testing.assert_array_equal(joined([w.ids for w in windows]), full_permutation(95, 0, 2))


def test_the_shorter_last_block_falls_anywhere():
    plan = make(96, block=10, window=1, batch_size=96)
    places = {int(np.flatnonzero(plan.batch(epoch, 0) >= 90).min()) for epoch in range(100)}
    assert places == set(range(0, 100, 10))


# What the order depends on


@settings(deadline=None, max_examples=50)
@given(plans(), st.integers(0, 5))
def test_equal_plans_serve_equal_batches(plan, epoch):
    twin = pickle.loads(pickle.dumps(plan))
    assert twin == plan and hash(twin) == hash(plan)
    batches = served(plan, epoch)
    for cached in (order_module._windowed, order_module.full_permutation, order_module.window_permutation):
        cached.cache_clear()
    for mine, its in zip(batches, served(twin, epoch)):
        np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize("shuffle", [True, "full"])
def test_epochs_and_seeds_differ(shuffle):
    orders = [joined(served(make(500, shuffle=shuffle, seed=seed), epoch)).tolist()
              for seed in range(4) for epoch in range(4)]
    assert len({tuple(o) for o in orders}) == 16
    # Also at the same place: a shift or a swap of seed and epoch would be no new shuffle.
    assert np.mean([a == b for a, b in itertools.combinations(np.array(orders).T[0].tolist(), 2)]) < 0.2


def test_one_order_whatever_the_batch_size_and_the_world():
    one = joined(served(make(1000)))
    for world_size, batch_size in ((1, 7), (3, 50), (8, 9)):
        plan = make(1000, world_size=world_size, batch_size=batch_size)
        np.testing.assert_array_equal(one, joined(served(plan)))


def test_plans_of_other_blocks_are_other_plans():
    uniform, uneven, other = make(100), make(100, starts=[0, 10, 35]), make(100, starts=[0, 10, 36])
    assert len({uniform, uneven, other, make(100, starts=np.array([0, 10, 35]))}) == 3
    orders = [joined(served(dataclasses.replace(plan, window=1))) for plan in (uneven, other)]
    assert not np.array_equal(*orders)  # nor does a cache take one for the other


# A change here, be it ours or numpy's, breaks the epochs of people who go on from a checkpoint.
GOLDEN = {
    (True, None): [11, 10, 9, 8, 13, 12, 0, 5, 1, 2, 6, 7, 3, 4],
    (True, (0, 3, 4, 9)): [4, 6, 7, 5, 8, 9, 10, 12, 11, 13, 1, 3, 2, 0],
    ("full", None): [11, 12, 13, 7, 6, 9, 3, 10, 5, 1, 4, 8, 0, 2],
}


@pytest.mark.parametrize("shuffle, starts", GOLDEN)
def test_orders_stay_what_they_are(shuffle, starts):
    plan = make(14, shuffle=shuffle, starts=starts, block=4, window=2, seed=2024, batch_size=14)
    assert plan.batch(3, 0).tolist() == GOLDEN[shuffle, starts]


def test_orders_of_very_many_blocks_stay_what_they_are():
    plan = make(10**9, block=54, window=256, seed=2024)
    assert plan.batch(3, 10**6)[:5].tolist() == [891472157, 765601442, 597946983, 699919144, 621410989]


# Going on elsewhere


@settings(deadline=None, max_examples=200)
@given(plans(), st.integers(0, 3), st.data())
def test_another_world_goes_on_with_exactly_the_unseen_samples(plan, epoch, data):
    step = data.draw(st.integers(0, len(plan)))
    seen = joined(served(plan, epoch, step))
    rest = plan.after(step)
    world_size = data.draw(st.integers(1, 5))
    assume(world_size <= max(plan.n, 1))
    options = {"world_size": world_size, "rank": 0, "batch_size": data.draw(st.integers(1, 30))}
    then = dataclasses.replace(plan, spans=rest, **options)
    left = joined(served(dataclasses.replace(then, drop_last=False), epoch))
    np.testing.assert_array_equal(np.unique(left), np.setdiff1d(np.arange(plan.n), seen))
    again = dataclasses.replace(then, spans=then.after(len(then) // 2), world_size=1, drop_last=False)
    both = joined([seen, *served(then, epoch, len(then) // 2), *served(again, epoch)])
    np.testing.assert_array_equal(np.unique(both), np.arange(plan.n))
    if options["batch_size"] > 1 and plan.batch_size > 1 and sum(hi - lo for lo, hi in rest) >= world_size:
        assert len(both) == plan.n


@settings(deadline=None, max_examples=100)
@given(plans(), st.data())
def test_windows_of_a_remainder_hold_its_batches(plan, data):
    step = data.draw(st.integers(0, len(plan)))
    rest = dataclasses.replace(plan, spans=plan.after(step), world_size=1)
    ids = joined([w.ids for w in rest.windows(1)])
    np.testing.assert_array_equal(ids, joined(served(rest, 1)))


def test_all_and_nothing_remain():
    plan = make(1000, world_size=4)
    assert plan.after(0) == ((0, 1000),)
    assert plan.after(len(plan)) == ()
    assert len(dataclasses.replace(plan, spans=())) == 0
    assert make(1000, drop_last=True).after(31) == ((992, 1000),)


def test_fewer_remaining_samples_than_ranks_still_give_equal_steps():
    rest = make(1000, world_size=4, spans=[[10, 11], [500, 501]], shuffle=False)  # lists, as JSON gives them
    assert [p.batch(0, 0).tolist() for p in ranks(rest)] == [[10], [10], [10], [500]]


# Quality of the shuffle


@pytest.mark.parametrize("n, block, window", [(1000, 54, 256), (40_000, 54, 64), (40_000, 16, 256)])
def test_a_file_sorted_by_class_gives_mixed_batches(n, block, window):
    label = np.arange(n) * 4 // n
    for epoch in range(3):
        batches = served(make(n, block=block, window=window), epoch)
        assert np.mean([len(set(label[b])) >= 3 for b in batches]) >= 0.95


@pytest.mark.parametrize("n, starts", [(20_011, None), (20_011, [0, *range(5, 20_000, 37)])])
def test_position_and_id_are_uncorrelated(n, starts):
    found = [np.corrcoef(joined(served(make(n, block=16, window=64, starts=starts), e)), np.arange(n))[0, 1]
             for e in range(20)]
    # Blocks move as one, so that the coefficient varies as over 1251 blocks: 0.03 an epoch.
    assert abs(np.mean(found)) < 0.03
    assert np.max(np.abs(found)) < 0.15


def test_each_sample_comes_first_equally_often():
    counts = np.zeros(12)
    for seed in range(2400):
        counts[make(12, block=3, window=2, seed=seed, batch_size=1).batch(0, 0)] += 1
    assert ((counts - 200) ** 2 / 200).sum() < 35  # chi-square, 11 degrees of freedom: 0.02 %


def test_keyed_permutation_is_a_bijection_with_an_inverse():
    for n in [*range(1, 300), *range(300, 2001, 17), 2000]:
        keyed = KeyedPermutation(n, 1, n)
        values = keyed(np.arange(n))
        np.testing.assert_array_equal(np.sort(values), np.arange(n))
        for i in range(0, n, 1 + n // 5):
            assert keyed.where(int(values[i])) == i


@pytest.mark.parametrize("n", [7, 50, 97])
def test_keyed_permutation_is_uniform(n):
    trials = 40 * n
    counts, pairs = np.zeros((n, n)), np.zeros(n)
    for key in range(trials):
        values = KeyedPermutation(n, key)(np.arange(n))
        counts[np.arange(n), values] += 1
        pairs[(values[1] - values[0]) % n] += 1
    # Every value at every place 40 times, and every distance between neighbours; chi-square within 5 sigma.
    freedom = (n - 1) ** 2
    assert abs(((counts - 40) ** 2 / 40).sum() - freedom) < 5 * np.sqrt(2 * freedom)
    share = trials / (n - 1)
    assert pairs[0] == 0
    assert ((pairs[1:] - share) ** 2 / share).sum() < (n - 2) + 5 * np.sqrt(2 * (n - 2))


def test_very_many_blocks_are_shuffled_like_few(monkeypatch):
    monkeypatch.setattr(order_module, "EXACT_BLOCKS", 10)
    order_module._windowed.cache_clear()
    try:
        for starts in (None, [0, *range(7, 990, 11)]):
            plan = make(1003, starts=starts, world_size=2)
            np.testing.assert_array_equal(np.sort(joined(served(plan))), np.arange(1003))
            for p in ranks(plan):
                ids = joined([p.batch(0, s) for s in range(len(p))])
                np.testing.assert_array_equal(joined([w.ids for w in p.windows(0)]), ids)
    finally:
        order_module._windowed.cache_clear()


def test_a_full_shuffle_is_the_permutation_of_numpy():
    assert full_permutation(1000, 3, 4).dtype == np.uint32
    np.testing.assert_array_equal(full_permutation(1000, 3, 4), draw(3, 4, FULL).permutation(1000))


# Cost


def test_a_billion_samples_in_constant_memory():
    tracemalloc.start()
    try:
        plan = make(10**9, block=54, window=256)
        steps = (0, 1, len(plan) // 3, len(plan) - 1)
        sizes = [len(np.unique(plan.batch(epoch, step))) for epoch in (0, 9) for step in steps]
        window = next(plan.windows(1, len(plan) // 2))
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()
    assert sizes == 2 * [32, 32, 32, 10**9 - 32 * (len(plan) - 1)]
    assert 0 < window.size <= 54 * 256


# Refusals and words


@pytest.mark.parametrize("options, words", [
    ({"n": -1}, "n=-1, expected an int of at least 0"),
    ({"n": 2.5}, "n=2.5, expected"),
    ({"batch_size": 0}, "batch_size=0, expected an int of at least 1"),
    ({"batch_size": True}, "batch_size=True, expected"),
    ({"seed": -1}, "seed=-1, expected"),
    ({"seed": None}, "seed=None, expected"),
    ({"block": 0}, "block=0, expected"),
    ({"window": 0}, "window=0, expected"),
    ({"shuffle": "fully"}, "shuffle='fully', expected True, 'full' or False"),
    ({"shuffle": 1}, "shuffle=1, expected"),
    ({"drop_last": 1}, "drop_last=1, expected"),
    ({"rank": 2, "world_size": 2}, "rank=2, expected an int from 0 to 1"),
    ({"world_size": 0}, "world_size=0, expected"),
    ({"n": 3, "world_size": 4}, "more than there are samples, 3.* at most 3 ranks"),
    ({"starts": [1, 5]}, "'starts'.* got 1 to 5"),
    ({"starts": [0, 5, 5]}, "'starts'.* got 5, 5 from 1 on"),
    ({"starts": [0, 1000]}, "'starts'.* below n=1000, got 0 to 1000"),
    ({"starts": []}, "'starts'.* got none"),
    ({"starts": [0.0, 5.0]}, "'starts'.* float64"),
    ({"starts": [[0, 5]]}, r"'starts'.* shape \(1, 2\)"),
    ({"spans": [(5, 4)]}, r"'spans'.* got \(5, 4\)"),
    ({"spans": [(0, 10), (9, 20)]}, r"'spans'.* got \(9, 20\) after position 10"),
    ({"spans": [(0, 1001)]}, r"'spans'.* \[0, 1000\]"),
    ({"spans": [3]}, "'spans'.* pairs"),
])
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(OptionError, match=words):
        make(**options)


def test_steps_and_epochs_outside_are_refused():
    plan = make()
    assert list(plan.windows(0, len(plan))) == []
    for call in (lambda: plan.batch(0, len(plan)), lambda: plan.batch(0, -1), lambda: plan.bounds(len(plan)),
                 lambda: plan.windows(0, len(plan) + 1), lambda: plan.after(-1), lambda: make(0).batch(0, 0)):
        with pytest.raises(IndexError, match="no step"):
            call()
    with pytest.raises(OptionError, match="epoch=.*, expected"):
        plan.batch(-1, 0)


def test_numpy_values_are_taken_as_python_ones():
    plan = make(np.int32(10), shuffle=np.bool_(False), batch_size=np.uint8(4), drop_last=np.bool_(True))
    assert plan == make(10, shuffle=False, batch_size=4, drop_last=True)
    assert (type(plan.n), plan.shuffle, plan.drop_last) == (int, False, True)


@pytest.mark.parametrize("options, words", [
    ({"n": 200_000, "block": 54, "window": 256}, "windowed shuffle: 16 windows of 245 blocks x 54 samples"),
    ({"n": 9, "block": 10}, "windowed shuffle: 1 window of 1 block x 10 samples"),
    ({"n": 100, "starts": [0, 20, 30]}, "windowed shuffle: 1 window of 3 blocks x about 33 samples"),
    ({"n": 0}, "windowed shuffle: no samples"),
    ({"shuffle": "full"}, "full shuffle"),
    ({"shuffle": False}, "file order"),
])
def test_a_plan_describes_itself(options, words):
    assert make(**options).describe() == words
