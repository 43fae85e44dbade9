import json

import numpy as np
import pytest
import torch
from partition_data import NO_VALIDATION, divided, sizes, table

from pomona.core.errors import ConfigError, DataError
from pomona.data import data_settings
from pomona.data.dataset import Dataset
from pomona.partition import FromFile, Latent, divide
from pomona.partition.latent import network
from pomona.partition.recipe import open_task


def blobs():
    """Four distant blobs of 30 rows each; the label is independent of the blob."""
    rng = np.random.default_rng(0)
    blob = rng.permutation(np.repeat(np.arange(4), 30))
    corners = np.array([[0, 0], [0, 100], [100, 0], [100, 100]])
    x = (corners[blob] + rng.normal(size=(120, 2))).astype(np.float32)
    return table([90], [30], x=x, y=rng.integers(0, 2, 120), classes=("a", "b")), blob


def test_clusters_are_the_blobs_and_clients_share_them():
    data, blob = blobs()
    partition = divided(data, Latent(distributions=4), 6)
    assert partition.groups == (0, 0, 1, 2, 2, 3)  # floor(i * 4 / 6)
    blobs_of_group = {}
    for client, group in zip(partition.clients, partition.groups, strict=True):
        blobs_of_client = set(blob[np.concatenate([client.train, client.test])])
        assert len(blobs_of_client) == 1  # training and test rows of one blob
        blobs_of_group.setdefault(group, set()).update(blobs_of_client)
    assert sorted(b for s in blobs_of_group.values() for b in s) == [0, 1, 2, 3]
    assert (sum(sizes(partition)), sum(sizes(partition, "test"))) == (90, 30)
    assert abs(sizes(partition)[0] - sizes(partition)[1]) <= 1


def test_the_seed_decides():
    data, _ = blobs()
    first, second, third = (
        divided(data, Latent(distributions=4), 6, seed).sha256 for seed in (0, 0, 1)
    )
    assert first == second != third


def test_shuffled_targets_permute_pairs_only():
    data, _ = blobs()
    plain, shuffled = (
        divide(data, data_settings(), Latent(distributions=4, shuffle_targets=s), 8, 3)
        for s in (False, True)
    )
    pairs = [
        [(c.validation.tolist(), c.test.tolist()) for c in p.clients] for p in (plain, shuffled)
    ]
    assert [c.train.tolist() for c in plain.clients] == [c.train.tolist() for c in shuffled.clients]
    assert pairs[0] != pairs[1]
    assert sorted(pairs[0]) == sorted(pairs[1])
    assert plain.groups == shuffled.groups
    assert plain.targets == ()
    assert plain.target_groups == ()
    assert [pairs[0][t] for t in shuffled.targets] == pairs[1]
    assert shuffled.target_groups == tuple(shuffled.groups[t] for t in shuffled.targets)


def test_targets_are_in_the_partitions_file(tmp_path):
    data, _ = blobs()
    partition = divide(data, data_settings(), Latent(distributions=4, shuffle_targets=True), 8, 3)
    partition.save(tmp_path / "p.json")
    loaded = divided(data, FromFile(path=tmp_path / "p.json"), 8)
    assert (loaded.targets, loaded.sha256) == (partition.targets, partition.sha256)
    body = json.loads(partition.text())
    for targets in ([0] * 8, [0, 1], [8, *range(1, 8)]):
        (tmp_path / "p.json").write_text(json.dumps({**body, "targets": targets}))
        with pytest.raises(DataError, match="targets must name each client once"):
            divided(data, FromFile(path=tmp_path / "p.json"), 8)


@pytest.mark.parametrize("data_kind", ["image", "table"])
def test_a_network_separates_what_it_learns(data_kind):
    """Classes are told apart by one bright pixel; in the hidden layer the two form the two
    clusters.
    """
    rng = np.random.default_rng(1)
    y = np.arange(400, dtype=np.int64) % 2
    x = rng.integers(0, 60, (400, 8, 8, 1), dtype=np.uint8)
    x[:, 2:6, 2:6] += (150 * y).astype(np.uint8)[:, None, None, None]
    if data_kind == "table":
        x = x.reshape(400, -1).astype(np.float32)
    data = Dataset("squares", data_kind, x, y, ("dark", "bright"), 300, (30.0,), (60.0,))
    random_state = torch.get_rng_state()
    partition = divide(
        data, NO_VALIDATION, Latent(distributions=2, embedding="network", components=8), 2, 0
    )
    assert torch.equal(torch.get_rng_state(), random_state)
    assert [len(set(y[c.train])) for c in partition.clients] == [1, 1]
    assert sizes(partition) == [150, 150]


def test_the_network_is_seeded():
    data, _ = blobs()
    rows = np.arange(120)
    with torch.no_grad():  # of a caller
        embedding, twice, other_seed = (
            network(open_task(data, NO_VALIDATION, False, 4, s), rows, 1) for s in (0, 0, 1)
        )
    assert embedding.shape == (120, 128)
    assert embedding.dtype == np.float32
    assert np.array_equal(embedding, twice)
    assert not np.allclose(embedding, other_seed)


def test_what_cannot_be_clustered():
    data, _ = blobs()
    with pytest.raises(ConfigError, match="distributions = 5 is more than clients = 4"):
        divided(data, Latent(), 4)
    texts = table([6], [2], kind="text", x=np.ones((8, 3), dtype=np.int32))
    with pytest.raises(ConfigError, match="not texts"):
        divided(texts, Latent(distributions=1), 2)
    with pytest.raises(DataError, match="4 rows cannot form 5 clusters"):
        divided(table([3], [1]), Latent(), 5)
    equal_rows = table([60], [20], x=np.repeat(np.float32([0, 1]), 40)[:, None])
    with pytest.raises(DataError, match="form 2 clusters"):
        divided(equal_rows, Latent(distributions=3), 3)
