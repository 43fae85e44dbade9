"""On a federation with known groups, every method that claims to find partners finds them, by a
stated margin.
"""

import numpy as np
import pytest
import torch

from pomona.methods import METHODS
from problems import Quadratics, trained

pytestmark = pytest.mark.long

GROUPS = np.array([0, 0, 0, 1, 1, 1])


def two_groups():
    """Six clients with twelve samples each; the groups' optima are (2, ..) and (-2, ..), the noise
    has deviation 1.
    """
    noise = torch.randn(72, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    centres = torch.tensor(
        [2.0 if GROUPS[k // 12] == 0 else -2.0 for k in range(72)], dtype=torch.float64
    )
    return Quadratics(
        noise + centres.unsqueeze(1), [list(range(12 * i, 12 * i + 12)) for i in range(6)]
    )


def weights(name, quantity, settings, rounds=15):
    """The weight matrix (n, N) that a method reports after some rounds."""
    passes = {"total": rounds, "epochs": 2, "batch_size": 4, "lr": 0.1}
    run = trained(METHODS[name](**settings), two_groups(), rounds, **passes)
    return run, torch.stack([r.info[quantity] for r in run.replies]).numpy()


@pytest.mark.parametrize(
    ("name", "quantity", "settings"),
    [
        ("apple", "dr", {"dr_lr": 0.02}),
        ("apple", "dr", {"core_step": "local"}),
        ("fedamp", "attention", {"sigma": 10.0, "alpha": 1.0}),
        ("heurfedamp", "attention", {"sigma": 2.0}),
        ("fedfomo", "affinity", {}),
        ("pgfed", "risk_weights", {"mixing": "client", "risk_lr": 0.0012}),
    ],
)
def test_partners_weigh_more_than_twice_as_much_as_strangers(name, quantity, settings):
    _, matrix = weights(name, quantity, settings)
    same_group, diagonal = GROUPS[:, None] == GROUPS, np.eye(6, dtype=bool)
    partners, strangers = matrix[same_group & ~diagonal].mean(), matrix[~same_group].mean()
    assert partners > 0
    assert partners > 2 * strangers


def test_clusters_split_into_the_groups():
    run, _ = weights("cfl", "cluster", {"warmup_rounds": 3}, rounds=25)
    clusters = np.array([int(r.info["cluster"]) for r in run.replies])
    assert len(set(clusters[:3])) == len(set(clusters[3:])) == 1
    assert clusters[0] != clusters[3]
