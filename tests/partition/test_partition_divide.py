"""From settings to a checked partition: splits, limits, validation, owners, rotations."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_data import divided, images, sizes, table
from pydantic import TypeAdapter, ValidationError

from pomona.core.errors import ConfigError, DataError
from pomona.data import data_settings
from pomona.data.dataset import Owners
from pomona.partition import (
    RECIPES,
    Dirichlet,
    Groups,
    Iid,
    Natural,
    PartitionSettings,
    Pathological,
    divide,
)
from pomona.partition.divergence import label_counts
from pomona.partition.groups import Group, apply_turns


def test_pooled_rows_are_split_anew_and_stratified():
    data = table([100, 50, 50], [0, 50, 50])
    partition = divide(
        data, data_settings(split="pooled", test_share=0.2, validation_share=0), Iid(), 1, 0
    )
    assert np.array_equal(label_counts(partition, data, "train"), [[80, 80, 80]])
    assert np.array_equal(label_counts(partition, data, "test"), [[20, 20, 20]])


@pytest.mark.parametrize(("train", "test"), [([50, 50], [0, 0]), ([0, 0], [50, 50])])
def test_rows_of_one_kind_are_split(train, test):
    partition = divide(
        table(train, test), data_settings(test_share=0.3, validation_share=0), Iid(), 1, 0
    )
    assert (sizes(partition), sizes(partition, "test")) == ([70], [30])


@given(st.integers(1, 300), st.integers(1, 100))
def test_limits_are_exact_and_stratified(train_limit, test_limit):
    data = table([120, 80], [50, 30])
    limited = data_settings(train_limit=train_limit, test_limit=test_limit, validation_share=0)
    partition = divide(data, limited, Iid(), 1, 0)
    counts = label_counts(partition, data, "train")[0]
    assert counts.sum() == min(train_limit, 200)
    assert sizes(partition, "test") == [min(test_limit, 80)]
    assert abs(counts[0] - counts.sum() * 0.6) < 1


@settings(max_examples=50)
@given(st.floats(0, 0.99), st.integers(1, 6), st.integers(0, 2**32))
def test_validation_is_a_share_of_each_clients_training_rows(share, clients, seed):
    data = table([30, 20, 10], [6, 6, 6])
    unvalidated, partition = (
        divide(data, data_settings(validation_share=s), Iid(), clients, seed) for s in (0, share)
    )
    for pool, client in zip(unvalidated.clients, partition.clients, strict=True):
        assert np.array_equal(np.union1d(client.train, client.validation), pool.train)
        assert np.array_equal(client.test, pool.test)
        expected = share * len(pool.train)
        assert len(client.train) >= 1
        assert len(client.validation) == 0 if share == 0 else len(client.validation) >= 1
        assert abs(len(client.validation) - expected) <= 1
        for c in range(3):
            rate = len(client.validation) / len(pool.train)
            assert (
                abs(np.sum(data.y[client.validation] == c) - rate * np.sum(data.y[pool.train] == c))
                < 1
            )


def test_a_client_with_one_row_trains_on_it():
    partition = divide(
        table([3], [0]), data_settings(validation_share=0.5, test_share=0.3), Iid(), 2, 0
    )
    assert (sizes(partition), sizes(partition, "validation")) == ([1, 1], [0, 0])
    assert sizes(partition, "test").count(1) == 1


def test_a_client_without_training_rows_is_named():
    with pytest.raises(
        DataError, match=r"client \d has no training rows; every class is dealt out in equal shares"
    ):
        divided(table([3, 0], [3, 0]), Iid(), 4)
    with pytest.raises(DataError, match="no training rows"):
        divided(table([0], [0]), Iid(), 1)


def test_there_is_at_least_one_client():
    with pytest.raises(ConfigError, match="clients = 0"):
        divided(table([3], [3]), Iid(), 0)


def test_targets_without_classes():
    data = table([20], [10], y=np.linspace(0, 1, 30, dtype=np.float32)[:, None], classes=())
    assert sizes(divided(data, Iid(), 4)) == [5] * 4
    assert sum(sizes(divided(data, Dirichlet(beta=1, min_size=1), 4))) == 20
    with pytest.raises(
        ConfigError, match=r"'pathological' needs classes.*: dirichlet, file, iid, natural"
    ):
        divided(data, Pathological(), 4)


def owned(roles):
    """Two classes; ``roles[i]`` is the text of owner i's rows: t train, v validation, e test."""
    text = "".join(roles)
    client = np.repeat(np.arange(len(roles)), [len(r) for r in roles])
    # training rows come first
    order = np.argsort(np.array([letter == "e" for letter in text]), kind="stable")
    role = np.array(["tve".index(letter) for letter in text], dtype=np.int8)[order]
    owners = Owners(tuple(f"silo-{i}" for i in range(len(roles))), client[order], role)
    y = np.arange(len(text), dtype=np.int64) % 2
    return table(
        [len(text) - text.count("e")], [text.count("e")], y=y, classes=("a", "b"), owners=owners
    )


def test_natural_keeps_every_row_with_its_owner_and_in_its_part():
    data = owned(["tttvve", "ttve"])
    partition = divide(data, data_settings(validation_share=0.9), Natural(), 2, 0)
    for i, client in enumerate(partition.clients):
        for number, split in enumerate(("train", "validation", "test")):
            expected = np.flatnonzero((data.owners.client == i) & (data.owners.role == number))
            assert np.array_equal(getattr(client, split), expected)


def test_natural_draws_the_parts_that_an_owner_lacks():
    """Owner 0 lacks a test part: round(0.25 * 8) = 2 rows; owner 1 a validation part: round(0.5 *
    6) = 3.
    """
    data = owned(["t" * 8 + "v" * 8, "t" * 6 + "ee"])
    partition = divide(data, data_settings(validation_share=0.5, test_share=0.25), Natural(), 2, 0)
    split_sizes = [(len(c.train), len(c.validation), len(c.test)) for c in partition.clients]
    assert split_sizes == [(6, 8, 2), (3, 3, 2)]
    assert np.all(data.owners.client[partition.clients[0].test] == 0)


def test_natural_pooled_splits_inside_each_owner():
    data = owned(["tttvveeeee", "tttttttttttttttttttt"])
    partition = divide(
        data, data_settings(split="pooled", test_share=0.2, validation_share=0), Natural(), 2, 0
    )
    assert (sizes(partition), sizes(partition, "test")) == ([8, 16], [2, 4])


def test_natural_needs_owners_and_their_number():
    with pytest.raises(ConfigError, match="does not name the owners"):
        divided(table([5], [5]), Natural(), 1)
    with pytest.raises(ConfigError, match=r"2 owners.*set clients = 2"):
        divided(owned(["tte", "tte"]), Natural(), 3)


def test_turn_groups_are_consecutive_and_turn_the_images():
    data = images(96, 5, 5, channels=3)
    partition = divide(data, data_settings(), Iid(turn_groups=4), 12, 0)
    assert partition.turns == partition.groups == (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3)
    turned = apply_turns(data, partition)
    for client, turns in zip(partition.clients, partition.turns, strict=True):
        for row in np.concatenate([client.train, client.validation, client.test]):
            assert np.array_equal(turned.x[row], np.rot90(data.x[row], turns))
    assert turned.fingerprint != data.fingerprint
    assert np.array_equal(turned.y, data.y)


def test_a_quarter_turn_is_counterclockwise():
    """The upper right pixel comes to the upper left."""
    data = images(8, 2, 2)
    partition = divide(data, data_settings(), Iid(turn_groups=2), 2, 0)
    row = partition.clients[1].train[0]
    (a, b), (c, d) = data.x[row, :, :, 0]
    assert apply_turns(data, partition).x[row, :, :, 0].tolist() == [[b, d], [a, c]]


def test_turned_images_stay_on_disk(tmp_path):
    data = images(16, 3, 3)
    on_disk = np.memmap(tmp_path / "x", dtype=np.uint8, mode="w+", shape=data.x.shape)
    on_disk[:] = data.x
    partition = divide(data, data_settings(), Iid(turn_groups=2), 2, 0)
    turned = apply_turns(replace(data, x=on_disk), partition).x
    assert isinstance(turned, np.memmap)
    assert np.array_equal(turned, apply_turns(data, partition).x)
    assert np.array_equal(on_disk, data.x)


def test_without_turns_the_data_stays_itself():
    data = images(12, 4, 4)
    assert apply_turns(data, divided(data, Iid(), 2)) is data
    assert apply_turns(data, divided(data, Iid(turn_groups=1), 2)) is data


def test_what_cannot_be_turned():
    with pytest.raises(ConfigError, match="square images"):
        divided(images(12, 4, 5), Iid(turn_groups=2), 2)
    with pytest.raises(ConfigError, match="square images"):
        divided(table([12], [4]), Iid(turn_groups=2), 2)
    with pytest.raises(ConfigError, match="3 clients cannot form 2 groups"):
        divided(images(12, 4, 4), Iid(turn_groups=2), 3)
    with pytest.raises(ValidationError):
        Iid(turn_groups=5)


def test_groups_and_turns_make_a_hidden_group_for_each_pair():
    """Groups 0 0 1 1 1 1 and turns 0 0 0 1 1 1 meet as (0, 0), (1, 0), (1, 1)."""
    groups = (Group(clients=2, classes=(0,), n_train=4), Group(clients=4, classes=(1,), n_train=4))
    partition = divided(images(200, 4, 4), Groups(groups=groups, n_test=2, turn_groups=2), 6)
    assert partition.groups == (0, 0, 1, 2, 2, 2)
    assert partition.turns == (0, 0, 0, 1, 1, 1)


def test_the_recipe_is_recorded_and_names_the_settings():
    data = table([20, 20], [10, 10])
    partition = divide(data, data_settings(train_limit=30), Pathological(balanced=True), 3, 7)
    assert partition.recipe == {
        "name": "pathological",
        "settings": Pathological(balanced=True).model_dump(),
        "clients": 3,
        "seed": 7,
        "data": "rows",
        "fingerprint": data.fingerprint,
        "split": "official",
        "test_share": 0.2,
        "validation_share": 0.15,
        "train_limit": 30,
        "test_limit": None,
    }


def test_the_name_chooses_the_recipe():
    adapter = TypeAdapter(PartitionSettings)
    minimal = {
        "groups": {"groups": [{"clients": 1, "classes": [0], "n_train": 1}]},
        "file": {"path": "p.json"},
    }
    for name, cls in RECIPES.items():
        assert type(adapter.validate_python({"name": name, **minimal.get(name, {})})) is cls
        assert cls.__doc__
        assert all(field.description for key, field in cls.model_fields.items() if key != "name")
    with pytest.raises(ValidationError):
        adapter.validate_python({"name": "dirichlet", "alpha": 1})
