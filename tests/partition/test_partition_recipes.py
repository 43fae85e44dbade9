"""Properties of each recipe's table, in closed form."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_data import NO_VALIDATION, divided, sizes, table

from pomona.core.errors import ConfigError, DataError
from pomona.core.rng import stream
from pomona.partition import Classes, Dirichlet, Groups, Iid, Pathological, Practical, divide
from pomona.partition.divergence import label_counts
from pomona.partition.groups import Group, spread
from pomona.partition.label_skew import classes_table, dirichlet_table, pathological_table, shards


def test_iid_gives_every_client_the_same_of_every_class():
    data = table([40, 8, 12], [4, 8, 0])
    partition = divided(data, Iid(), 4)
    assert np.array_equal(label_counts(partition, data, "train"), [[10, 2, 3]] * 4)
    assert np.array_equal(label_counts(partition, data, "test"), [[1, 2, 0]] * 4)


@given(st.integers(1, 40), st.integers(1, 12), st.data(), st.booleans(), st.integers(0, 2**32))
def test_pathological_hands_out_whole_permutations(clients, n_classes, data, balanced, seed):
    k = data.draw(st.integers(1, n_classes))
    shares = pathological_table(clients, n_classes, k, balanced, stream(seed, "t"))
    owned = shares > 0
    assert np.all((owned.sum(axis=1) >= 1) & (owned.sum(axis=1) <= k))
    totals = shares.sum(axis=0)
    assert np.allclose(totals[owned.any(axis=0)], 1)
    # no client straddles two permutations: k classes each, owners within one of each other
    if n_classes % k == 0:
        assert np.all(owned.sum(axis=1) == k)
        owners = owned.sum(axis=0)
        assert owners.max() - owners.min() <= 1
        assert owners.sum() == clients * k
        if balanced:
            assert np.allclose(shares[owned], (1 / np.maximum(owners, 1) * owned)[owned])


def test_pathological_of_apple_on_a_small_vector():
    """12 clients, 10 classes: two whole permutations (20 places) and 4 of a third, so 2 owners for
    6, 3 for 4.
    """
    data = table([100] * 10, [50] * 10)
    partition = divided(data, Pathological(), 12)
    train, test = label_counts(partition, data, "train"), label_counts(partition, data, "test")
    assert np.all((train > 0).sum(axis=1) <= 2)
    assert np.all(train.sum(axis=0) == 100)
    assert np.all(test.sum(axis=0) == 50)
    shares = pathological_table(12, 10, 2, False, stream(0, "partition.table"))
    assert sorted((shares > 0).sum(axis=0)) == [2] * 6 + [3] * 4
    assert np.all(np.abs(train - 100 * shares) < 1)  # the same table for both parts
    assert np.all(np.abs(test - 50 * shares) < 1)


def test_pathological_repeats_a_class_only_across_permutations():
    """Three classes, two a client: client 1 of 3 takes the end of one permutation and the start of
    the next.
    """
    per_client = np.array(
        [(pathological_table(3, 3, 2, False, stream(s, "t")) > 0).sum(axis=1) for s in range(60)]
    )
    assert np.all(per_client[:, [0, 2]] == 2)
    assert set(per_client[:, 1]) == {1, 2}


def test_a_class_drawn_twice_counts_twice():
    """Six clients, three classes, two each: 12 places, 4 of each class; who has 2 of the 4 gets one
    half.
    """
    doubled = 0
    for seed in range(30):
        shares = pathological_table(6, 3, 2, True, stream(seed, "t"))
        for row in shares[(shares > 0).sum(axis=1) == 1]:
            doubled += 1
            assert row.max() == 0.5
    assert doubled


def test_pathological_leaves_out_classes_that_nobody_drew():
    data = table([10] * 10, [10] * 10)
    partition = divided(data, Pathological(), 3)
    assert np.array_equal(np.sort(label_counts(partition, data).sum(axis=0)), [0] * 4 + [10] * 6)


def test_pathological_shares_are_random_unless_balanced():
    random, equal = (
        pathological_table(4, 2, 1, balanced, stream(1, "t")) for balanced in (False, True)
    )
    assert np.allclose(equal[equal > 0], 0.5)
    assert len(np.unique(random[random > 0].round(6))) == 4


def test_classes_in_order_form_groups_of_four():
    """FedALA: 20 clients, 10 classes, 2 each: ceil(20 / 10 * 2) = 4 owners a class, so five groups
    of four.
    """
    shares = classes_table(20, 10, 2, False, stream(0, "t"))
    expected = np.kron(np.eye(5), np.ones((4, 2)))
    assert np.array_equal(shares > 0, expected > 0)
    assert np.allclose(shares.sum(axis=0), 1)
    first = shares.reshape(5, 4, 10)[:, :3][expected.reshape(5, 4, 10)[:, :3] > 0]
    assert np.all((first >= 1 / 40) & (first <= 1 / 4))
    assert np.allclose(classes_table(20, 10, 2, True, stream(0, "t")), expected / 4)


@given(st.integers(1, 40), st.integers(1, 12), st.data(), st.integers(0, 2**32))
def test_classes_shares_are_shares(clients, n_classes, data, seed):
    k = data.draw(st.integers(1, n_classes))
    shares = classes_table(clients, n_classes, k, False, stream(seed, "t"))
    assert np.all(shares >= 0)
    owned = shares.sum(axis=0) > 0
    assert np.allclose(shares.sum(axis=0), owned)
    assert np.all((shares > 0).sum(axis=1) <= k)
    if n_classes % k == 0 and clients * k % n_classes == 0:
        assert np.all((shares > 0).sum(axis=1) == k)
        assert np.all(owned)


@pytest.mark.parametrize(
    "recipe", [Pathological(classes_per_client=3), Classes(classes_per_client=3)]
)
def test_more_classes_a_client_than_there_are(recipe):
    with pytest.raises(ConfigError, match=r"classes_per_client = 3.* 2 classes"):
        divided(table([10, 10], [5, 5]), recipe, 2)


def test_practical_is_ten_small_shards_one_middle_and_one_large():
    """APPLE: of 1000 rows a class 800, 100 and ten times 10; of 100 test rows 80, 10, ten times 1,
    likewise.
    """
    data = table([1000] * 4, [100] * 4)
    partition = divided(data, Practical(), 12)
    train, test = label_counts(partition, data, "train"), label_counts(partition, data, "test")
    assert np.array_equal(np.sort(train, axis=0), np.tile([[10]] * 10 + [[100], [800]], (1, 4)))
    assert np.array_equal(test * 10, train)
    assert sum(sizes(partition)) == 4000
    assert len({tuple(column) for column in train.T}) > 1  # drawn anew for every class


@given(st.integers(1, 200))
def test_shards_sum_to_one(clients):
    assert np.isclose(shards(clients).sum(), 1)
    assert np.all(shards(clients) > 0)
    assert len(shards(clients)) == clients
    assert np.all(np.diff(shards(clients)) <= 1e-12)


def test_shards_of_few_clients():
    assert shards(1).tolist() == [1.0]
    assert shards(2).tolist() == [0.9, 0.1]
    assert np.allclose(shards(3), [0.8, 0.1, 0.1])


FEDAMP = Groups(
    groups=(
        Group(clients=2, classes=(0, 1), n_train=100),
        Group(clients=3, classes=(2,), n_train=50),
    ),
    n_test=10,
)


def test_groups_have_exact_sizes_and_dominating_shares():
    """Group 0: 80 rows of 2 classes (40 each), 20 of 2 others (10 each); group 1: 40 of 1, 10 of 3
    others (3, 3, 4).
    """
    data = table([500] * 4, [100] * 4)
    partition = divided(data, FEDAMP, 5)
    train, test = label_counts(partition, data, "train"), label_counts(partition, data, "test")
    assert np.array_equal(train[:2], [[40, 40, 10, 10]] * 2)
    assert np.all(train[2:, 2] == 40)
    assert np.array_equal(np.sort(train[2:, [0, 1, 3]], axis=1), [[3, 3, 4]] * 3)
    assert np.array_equal(test[:2], [[4, 4, 1, 1]] * 2)
    assert sizes(partition, "test") == [10] * 5
    assert partition.groups == (0, 0, 1, 1, 1)


def test_the_rows_left_over_are_drawn():
    """Seven rows over bins 0, 2 and 3: two each, and the seventh falls to any of the three."""
    counts = np.array([spread(7, np.array([0, 2, 3]), 5, stream(seed, "t")) for seed in range(40)])
    assert np.all(counts[:, [0, 2, 3]] >= 2)
    assert np.all(counts.sum(axis=1) == 7)
    assert np.array_equal(np.unique(np.argmax(counts, axis=1)), [0, 2, 3])


def test_groups_use_up_the_data_exactly():
    """One client that dominates in both of two classes, with as many rows as there are: 6 of
    each.
    """
    recipe = Groups(groups=(Group(clients=1, classes=(0, 1), n_train=12),), n_test=4)
    partition = divided(table([6, 6], [2, 2]), recipe, 1)
    assert sizes(partition) == [12]
    assert sizes(partition, "test") == [4]


def test_groups_name_the_class_that_is_short():
    """Class 2 needs 3 * 40 + 2 * 10 = 140 training rows."""
    with pytest.raises(DataError, match=r"training.*class 2 \(class-2\): 140 needed, 99 available"):
        divided(table([500, 500, 99, 500], [100] * 4), FEDAMP, 5)
    with pytest.raises(DataError, match=r"test rows.*class 0 .* 0 available; lower n_test"):
        divided(table([500] * 4, [0, 100, 100, 100]), FEDAMP, 5)


@pytest.mark.parametrize("classes", [(0, 4), (-1,), (1, 1)])
def test_groups_of_impossible_classes(classes):
    recipe = Groups(groups=(Group(clients=1, classes=classes, n_train=5),))
    with pytest.raises(ConfigError, match=r"groups\[0\].classes"):
        divided(table([50] * 4, [50] * 4), recipe, 1)


def test_groups_fit_the_number_of_clients():
    with pytest.raises(ConfigError, match="have 5 clients, but the run has clients = 6"):
        divided(table([500] * 4, [100] * 4), FEDAMP, 6)


@given(st.integers(1, 20), st.floats(1e-3, 100), st.booleans(), st.integers(0, 2**32))
def test_dirichlet_columns_sum_to_one(clients, beta, cap, seed):
    shares = dirichlet_table(clients, np.array([50, 0, 1, 30, 0]), beta, cap, stream(seed, "t"))
    assert np.all(shares >= 0)
    assert np.allclose(shares.sum(axis=0), 1)


def test_dirichlet_of_large_beta_is_nearly_uniform():
    """Dirichlet(b 1_n) has mean 1/n and deviation sqrt((1/n)(1 - 1/n) / (n b + 1)): 0.0014 for n =
    5, b = 2^14.
    """
    shares = dirichlet_table(5, np.full(50, 100), 2.0**14, False, stream(0, "t"))
    assert np.all(np.abs(shares - 1 / 5) < 6 * np.sqrt(0.2 * 0.8 / (5 * 2**14 + 1)))


def test_dirichlet_of_small_beta_gives_a_class_to_one_client():
    shares = dirichlet_table(5, np.full(200, 100), 1e-3, False, stream(0, "t"))
    assert np.mean(shares.max(axis=0) > 0.99) > 0.95


def test_dirichlet_has_the_variance_of_its_beta():
    """n = 4, b = 0.5: variance (1/4)(3/4)/(4 * 0.5 + 1) = 1/16; the mean over 4000 draws comes
    within 10 %.
    """
    shares = dirichlet_table(4, np.ones(4000, dtype=np.int64), 0.5, False, stream(0, "t"))
    assert np.isclose(np.mean((shares - 0.25) ** 2), 1 / 16, rtol=0.1)


def test_balance_cap_stops_clients_that_hold_their_part():
    """Whoever holds 1/n of all rows when a class comes up gets nothing of it."""
    counts = np.full(20, 30)
    shares = dirichlet_table(6, counts, 0.3, True, stream(3, "t"))
    rows_before = np.cumsum(shares * counts, axis=1) - shares * counts
    at_cap = rows_before >= counts.sum() / 6
    assert at_cap.any()
    assert np.all(shares[at_cap] == 0)


@settings(max_examples=25)
@given(st.integers(1, 8), st.integers(1, 25), st.integers(0, 2**32))
def test_dirichlet_keeps_its_smallest_size(clients, min_size, seed):
    data = table([90, 61, 49, 100], [10, 11, 9, 0])
    partition = divided(data, Dirichlet(beta=1, min_size=min_size), clients, seed)
    assert min(sizes(partition)) >= min_size
    assert sum(sizes(partition)) == 300
    assert sum(sizes(partition, "test")) == 30


def test_dirichlet_gives_up_with_what_it_reached():
    with pytest.raises(
        DataError,
        match=r"in 7 tries .* 40 training rows .* 8 clients 5 rows .*smallest client with \d",
    ):
        divided(table([20, 20], [2, 2]), Dirichlet(beta=0.01, min_size=5, tries=7), 8)


def test_default_smallest_size_is_half_the_mean_for_little_data():
    """80 rows, 4 clients: min(30, 80 / 8) = 10."""
    for seed in range(20):
        assert min(sizes(divided(table([40, 40], [2, 2]), Dirichlet(beta=0.5), 4, seed))) >= 10


@settings(max_examples=30)
@given(
    st.sampled_from([Iid(), Pathological(), Classes(), Practical(), Dirichlet(beta=0.5)]),
    # with two clients, pathological and classes may give whole classes only, whatever the seed
    st.integers(3, 9),
    st.integers(0, 2**32),
)
def test_every_recipe_divides_each_row_at_most_once_and_by_its_seed(recipe, clients, seed):
    data = table([70, 83, 60, 91], [20, 17, 25, 31])
    try:
        partition, repeated, next_seed = (
            divide(data, NO_VALIDATION, recipe, clients, s) for s in (seed, seed, seed + 1)
        )
    except DataError as fault:
        assert "no training rows" in str(fault)  # a random share below one row  # noqa: PT017
        return
    assert partition.sha256 == repeated.sha256
    assert [[*c.train] for c in partition.clients] != [[*c.train] for c in next_seed.clients]
    train, test = (
        np.concatenate([getattr(c, s) for c in partition.clients]) for s in ("train", "test")
    )
    assert len(np.unique(train)) == len(train)
    assert len(np.unique(test)) == len(test)
    assert np.all(train < data.n_train)
    assert np.all(test >= data.n_train)
    if not isinstance(recipe, Pathological | Classes):  # these leave out classes that nobody owns
        assert len(train) == 304
        assert len(test) == 93
