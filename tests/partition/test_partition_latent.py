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
    made = divided(data, Latent(distributions=4), 6)
    assert made.groups == (0, 0, 1, 2, 2, 3)  # floor(i * 4 / 6)
    seen = {}
    for client, group in zip(made.clients, made.groups, strict=True):
        blobs_of_client = set(blob[np.concatenate([client.train, client.test])])
        assert len(blobs_of_client) == 1  # training and test rows of one blob
        seen.setdefault(group, set()).update(blobs_of_client)
    assert sorted(b for s in seen.values() for b in s) == [0, 1, 2, 3]
    assert (sum(sizes(made)), sum(sizes(made, "test"))) == (90, 30)
    assert abs(sizes(made)[0] - sizes(made)[1]) <= 1


def test_the_seed_decides():
    data, _ = blobs()
    first, second, third = (
        divided(data, Latent(distributions=4), 6, seed).sha256 for seed in (0, 0, 1)
    )
    assert first == second != third


def test_shuffled_targets_permute_pairs_only():
    data, _ = blobs()
    own, shuffled = (
        divide(data, data_settings(), Latent(distributions=4, shuffle_targets=s), 8, 3)
        for s in (False, True)
    )
    pairs = [
        [(c.validation.tolist(), c.test.tolist()) for c in made.clients] for made in (own, shuffled)
    ]
    assert [c.train.tolist() for c in own.clients] == [c.train.tolist() for c in shuffled.clients]
    assert pairs[0] != pairs[1]
    assert sorted(pairs[0]) == sorted(pairs[1])
    assert own.groups == shuffled.groups
    assert own.targets == ()
    assert own.target_groups == ()
    assert [pairs[0][t] for t in shuffled.targets] == pairs[1]
    assert shuffled.target_groups == tuple(shuffled.groups[t] for t in shuffled.targets)


def test_targets_are_in_the_partitions_file(tmp_path):
    data, _ = blobs()
    made = divide(data, data_settings(), Latent(distributions=4, shuffle_targets=True), 8, 3)
    made.save(tmp_path / "p.json")
    again = divided(data, FromFile(path=tmp_path / "p.json"), 8)
    assert (again.targets, again.sha256) == (made.targets, made.sha256)
    body = json.loads(made.text())
    for wrong in ([0] * 8, [0, 1], [8, *range(1, 8)]):
        (tmp_path / "p.json").write_text(json.dumps({**body, "targets": wrong}))
        with pytest.raises(DataError, match="targets must name each client once"):
            divided(data, FromFile(path=tmp_path / "p.json"), 8)


@pytest.mark.parametrize("kind", ["image", "table"])
def test_a_network_separates_what_it_learns(kind):
    """Classes are told apart by one bright pixel; in the hidden layer the two form the two
    clusters.
    """
    rng = np.random.default_rng(1)
    y = np.arange(400, dtype=np.int64) % 2
    x = rng.integers(0, 60, (400, 8, 8, 1), dtype=np.uint8)
    x[:, 2:6, 2:6] += (150 * y).astype(np.uint8)[:, None, None, None]
    if kind == "table":
        x = x.reshape(400, -1).astype(np.float32)
    data = Dataset("squares", kind, x, y, ("dark", "bright"), 300, (30.0,), (60.0,))
    before = torch.get_rng_state()
    made = divide(
        data, NO_VALIDATION, Latent(distributions=2, embedding="network", components=8), 2, 0
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert [len(set(y[c.train])) for c in made.clients] == [1, 1]
    assert sizes(made) == [150, 150]


def test_the_network_is_seeded():
    data, _ = blobs()
    rows = np.arange(120)
    once, twice, other = (
        network(open_task(data, NO_VALIDATION, False, 4, s), rows, 1) for s in (0, 0, 1)
    )
    assert once.shape == (120, 128)
    assert once.dtype == np.float32
    assert np.array_equal(once, twice)
    assert not np.allclose(once, other)


def test_what_cannot_be_clustered():
    data, _ = blobs()
    with pytest.raises(ConfigError, match="distributions = 5 is more than clients = 4"):
        divided(data, Latent(), 4)
    texts = table([6], [2], kind="text", x=np.ones((8, 3), dtype=np.int32))
    with pytest.raises(ConfigError, match="not texts"):
        divided(texts, Latent(distributions=1), 2)
    with pytest.raises(DataError, match="4 rows cannot form 5 clusters"):
        divided(table([3], [1]), Latent(), 5)
    same = table([60], [20], x=np.repeat(np.float32([0, 1]), 40)[:, None])
    with pytest.raises(DataError, match="form 2 clusters"):
        divided(same, Latent(distributions=3), 3)
