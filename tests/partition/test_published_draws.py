"""Published draws: the sizes that follow from their description, and row by row those of the
published programs.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_data import divided, sizes, table

from pomona.core.errors import ConfigError, DataError
from pomona.data import data_settings, read
from pomona.partition import Classes, Dirichlet, Pathological, Practical, divide
from pomona.partition.divergence import label_counts

pytestmark = pytest.mark.long

MNIST = (
    [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
)
# of APPLE's repository
APPLE_FIGURE = [10914, 6605, 5485, 1131, 596, 5775, 1132, 10118, 1122, 596, 5848, 10629]


def test_apples_practical_draw_has_the_sizes_of_its_published_figure():
    """They depend on the numbers of each class alone, not on the order of the rows."""
    data = table(*MNIST)
    partition = divided(data, Practical(draw="published"), 12)
    assert sizes(partition) == APPLE_FIGURE
    train = label_counts(partition, data, "train")
    assert np.all(
        np.sort(train, axis=0)
        == np.sort(np.outer([0.01] * 10 + [0.1, 0.8], MNIST[0]).astype(int), axis=0)
    )


def test_apples_pathological_draw_has_two_classes_a_client_and_all_owners():
    data = table(*MNIST)
    partition = divided(data, Pathological(draw="published"), 12)
    train = label_counts(partition, data, "train")
    assert np.all((train > 0).sum(axis=1) == 2)
    assert sorted((train > 0).sum(axis=0)) == [2] * 6 + [3] * 4
    # rounding leaves less than a row an owner
    assert np.all(np.array(MNIST[0]) - train.sum(axis=0) <= 3)


@pytest.mark.parametrize("recipe", [Dirichlet(draw="pfllib"), Classes(draw="pfllib")])
def test_pfllib_divides_the_rows_of_both_splits_and_splits_each_client_anew(recipe):
    data = table(*MNIST)
    partition = divided(data, recipe, 20)
    row_counts = [len(c.train) + len(c.test) for c in partition.clients]
    assert sum(row_counts) == len(data)
    assert sizes(partition) == [int(0.75 * n) for n in row_counts]
    assert min(row_counts) >= 40
    assert any(np.any(c.train >= data.n_train) for c in partition.clients)


NIID_DIRICHLET = [6631, 9475, 6099, 6004, 5074, 5106, 7397, 3742, 6052, 4420]
NIID_LABELS = [4064, 9701, 4927, 8078, 4873, 4685, 5938, 4062, 5635, 8037]


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (Dirichlet(draw="niid-bench", beta=0.5), NIID_DIRICHLET),
        (Classes(draw="niid-bench"), NIID_LABELS),
    ],
)
def test_niid_bench_divides_training_rows_in_the_sizes_that_its_program_gives(recipe, expected):
    """Sizes on MNIST of a program written from its description with NumPy alone."""
    data = table(*MNIST)
    partition = divided(data, recipe, 10)
    assert sizes(partition) == expected
    assert sorted(row for c in partition.clients for row in c.train) == list(range(data.n_train))
    assert [len(c.test) for c in partition.clients] == [1000] * 10
    assert sorted(row for c in partition.clients for row in c.test) == list(
        range(data.n_train, len(data))
    )


def test_two_labels_of_niid_bench_are_the_clients_own_and_another_in_equal_parts():
    data = table([300] * 10, [60] * 10)
    train = label_counts(divided(data, Classes(draw="niid-bench"), 10), data, "train")
    assert np.all((train > 0).sum(axis=1) == 2)
    assert np.all(np.diag(train) > 0)
    for class_counts in train.T:
        assert np.ptp(class_counts[class_counts > 0]) <= 1


@pytest.mark.parametrize(
    "recipe",
    [
        Practical(draw="published"),
        Pathological(draw="published"),
        Dirichlet(draw="pfllib"),
        Dirichlet(draw="niid-bench"),
        Classes(draw="niid-bench"),
    ],
)
def test_a_published_draw_is_the_same_for_every_seed(recipe):
    data = table([300] * 10, [60] * 10)
    first, second = (divided(data, recipe, 12, seed) for seed in (0, 1))
    assert [c.train.tolist() for c in first.clients] == [c.train.tolist() for c in second.clients]


def test_validation_is_held_out_of_the_training_rows():
    data = table(*MNIST)
    unvalidated = divided(data, Practical(draw="published"), 12)
    partition = divide(
        data, data_settings(validation_share=0.15), Practical(draw="published"), 12, seed=0
    )
    for all_rows, client in zip(unvalidated.clients, partition.clients, strict=True):
        assert np.array_equal(
            np.sort(np.concatenate([client.train, client.validation])), all_rows.train
        )
        assert len(client.validation) == round(0.15 * len(all_rows.train))
        assert np.array_equal(client.test, all_rows.test)


def test_settings_that_a_published_draw_does_not_have_are_refused():
    data = table([300] * 10, [60] * 10)
    for recipe in (
        Pathological(draw="published", balanced=True),
        Classes(draw="pfllib", balanced=True),
    ):
        with pytest.raises(ConfigError, match=r"remove partition\.balanced"):
            divided(data, recipe, 12)
    with pytest.raises(ConfigError, match="set clients = 12"):
        divided(data, Practical(draw="published"), 11)
    for changes in ({"min_size": 2}, {"balance_cap": False}):
        with pytest.raises(ConfigError, match="its own cap and smallest size"):
            divided(data, Dirichlet(draw="pfllib", **changes), 12)
    with pytest.raises(DataError, match="gave each of 12 clients 1 rows"):
        divided(table([12, 12], [1, 1]), Dirichlet(draw="pfllib", beta=1e-6), 12)


FILES = {
    "authors42_mnist_practical": ("mnist", Practical(draw="published"), 12),
    "authors42_mnist_pathological": ("mnist", Pathological(draw="published"), 12),
    "authors42_cifar10_practical": ("cifar10", Practical(draw="published"), 12),
    "authors42_cifar10_pathological": ("cifar10", Pathological(draw="published"), 12),
    "pfllib1_fashion_mnist_dir": ("fashion-mnist", Dirichlet(draw="pfllib"), 20),
    "pfllib1_fashion_mnist_pat": ("fashion-mnist", Classes(draw="pfllib"), 20),
    "pfllib1_cifar10_dir": ("cifar10", Dirichlet(draw="pfllib"), 20),
    "pfllib1_cifar10_pat": ("cifar10", Classes(draw="pfllib"), 20),
}


@pytest.mark.parametrize("name", FILES)
def test_the_rows_are_those_of_the_published_programs(name, real_data):
    folder = Path(
        os.environ.get(
            "POMONA_PUBLISHED_PARTITIONS", real_data.parent / "reference/published_partitions"
        )
    )
    if not (folder / f"{name}.json").is_file():
        pytest.skip(
            "needs the rows of the published programs: set POMONA_PUBLISHED_PARTITIONS to their "
            "folder"
        )
    source, recipe, clients = FILES[name]
    settings = data_settings(name=source, validation_share=0)
    partition = divide(read(settings), settings, recipe, clients, seed=0)
    published = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["clients"]
    assert [c.train.tolist() for c in partition.clients] == [c["train"] for c in published]
    assert [c.test.tolist() for c in partition.clients] == [c["test"] for c in published]


@pytest.mark.parametrize("draw", ["published", "pfllib", "niid-bench"])
@given(
    clients=st.integers(1, 14),
    classes=st.integers(1, 4),
    rows=st.integers(0, 40),
    test_rows=st.integers(0, 6),
    k=st.integers(1, 4),
)
@settings(max_examples=60)
def test_small_data_are_divided_or_refused(draw, clients, classes, rows, test_rows, k):
    data = table([rows] * classes, [test_rows] * classes)
    recipes = [
        (Practical, {}),
        (Pathological, {"classes_per_client": k}),
        (Classes, {"classes_per_client": k}),
        (Dirichlet, {"beta": 0.1}),
    ]
    for recipe, options in recipes[:2] if draw == "published" else recipes[2:]:
        try:
            partition = divided(data, recipe(draw=draw, **options), clients)
        except (ConfigError, DataError):
            continue
        dealt = np.concatenate([np.r_[c.train, c.validation, c.test] for c in partition.clients])
        assert len(np.unique(dealt)) == len(dealt)
        assert all(len(c.train) for c in partition.clients)
